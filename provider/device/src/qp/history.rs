//! The last events of a queue pair, which are always kept: what led to a failure.
//!
//! Only what is rare is kept, states, retries, refusals, errors, so that nothing of it is on the
//! path of every packet; where requests stood is noted with each. Touches nothing.

use crate::event::AsyncEventKind;
use roxe_transport::cx::{MemError, Side};
use roxe_transport::qp::{DropReason, QpState, RetryCounts};
use roxe_transport::time::Instant;
use roxe_transport::wr::{WC_STATUS_TEXTS, WcStatus};
use roxe_wire::{Psn, RKey};
use std::collections::VecDeque;
use std::fmt;

/// Events that are kept.
const KEPT: usize = 64;

/// Something that happened to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Entry {
    /// It is in another state.
    State(QpState),
    /// Packets were lost, or a peer was not ready, while these PSNs were under way: the oldest that
    /// was not acknowledged, and the one behind the newest.
    Retried(RetryCounts, [Psn; 2]),
    /// A packet with this PSN was not taken.
    Dropped(DropReason, Psn),
    /// A local list could not be used.
    LocalFault(Side, MemError),
    /// A peer did not get at the memory behind a key.
    RemoteFault(RKey, MemError),
    /// A request ended in error.
    Failed(Side, u64, WcStatus),
    /// So many requests of one queue were flushed.
    Flushed(Side, u32),
    /// An asynchronous event was raised.
    Raised(AsyncEventKind),
}

/// The last events, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    entries: VecDeque<(Instant, Entry)>,
    /// They were told since the queue pair was reset.
    is_told: bool,
}

impl History {
    /// Notes what happens now.
    #[cold]
    #[inline(never)]
    pub(super) fn note(&mut self, now: Instant, entry: Entry) {
        if let (Some((at, Entry::Flushed(of, count))), Entry::Flushed(side, more)) = (self.entries.back_mut(), entry)
            && *of == side
        {
            *at = now;
            *count = count.saturating_add(more);
            return;
        }
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back((now, entry));
    }

    /// The queue pair is in this state, which may be an old one.
    pub(super) fn note_state(&mut self, now: Instant, state: QpState) {
        let is_it = |(_, entry): &&(Instant, Entry)| matches!(entry, Entry::State(_));
        if self.entries.iter().rev().find(is_it).is_none_or(|(_, entry)| *entry != Entry::State(state)) {
            self.note(now, Entry::State(state));
        }
    }

    /// The queue pair was reset; what led to that is still of interest.
    pub(super) fn reset(&mut self) {
        self.is_told = false;
    }

    /// The newest entry that ends a connection although no request of this end has failed.
    pub(super) fn last_refusal(&self) -> Option<Entry> {
        let mut newest = self.entries.iter().rev().map(|(_, entry)| *entry);
        newest.find(|entry| match entry {
            Entry::RemoteFault(..) | Entry::LocalFault(..) => true,
            Entry::Dropped(reason, _) => {
                matches!(reason, DropReason::InvalidRequest | DropReason::RemoteAccess | DropReason::LocalProtection)
            }
            Entry::Raised(kind) => matches!(kind, AsyncEventKind::QpFatal),
            Entry::State(_) | Entry::Retried(..) | Entry::Failed(..) | Entry::Flushed(..) => false,
        })
    }

    /// A line for each, with times from the last error on; nothing if they were told already.
    pub(super) fn tell(&mut self) -> Vec<String> {
        if std::mem::replace(&mut self.is_told, true) {
            return Vec::new();
        }
        let failed = self.entries.iter().rev().find(|(_, entry)| matches!(entry, Entry::Failed(..)));
        let zero = failed.or_else(|| self.entries.back()).map_or(0, |(at, _)| at.0);
        let line = |(at, entry): &(Instant, Entry)| {
            #[expect(clippy::cast_precision_loss, reason = "a time of the last days, for people")]
            let ms = (at.0 as f64 - zero as f64) / 1e6;
            format!("{ms:>12.3} ms  {entry}")
        };
        self.entries.iter().map(line).collect()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = |side: &Side| if *side == Side::Send { "send" } else { "receive" };
        match self {
            Self::State(state) => write!(f, "state {}", format!("{state:?}").to_uppercase()),
            Self::Retried(counts, [oldest, next]) => {
                let counts = [
                    (counts.local_ack_timeout_err, "timeout"),
                    (counts.packet_seq_err, "NAK received: PSN sequence error"),
                    (counts.implied_nak_seq_err, "implied NAK received"),
                    (counts.rnr_nak_retry_err, "RNR NAK received"),
                    (counts.send_rnr_err, "RNR NAK sent"),
                ];
                let met = counts.iter().filter(|(times, _)| *times > 0).map(|(times, what)| match times {
                    1 => (*what).to_owned(),
                    _ => format!("{what} {times} times"),
                });
                f.write_str(&met.collect::<Vec<_>>().join(", "))?;
                // After the last retry nothing is under way any more.
                if oldest == next {
                    return Ok(());
                }
                write!(f, "; PSN {oldest} not acknowledged, next is {next}")
            }
            Self::Dropped(reason, psn) => write!(f, "packet with PSN {psn} not taken: {}", reason.name()),
            Self::LocalFault(side, error) => write!(f, "list of a {} request unusable: {error:?}", queue(side)),
            Self::RemoteFault(rkey, error) => write!(f, "rkey {:#x} refused: {error:?}", rkey.0),
            Self::Failed(side, wr_id, status) => {
                let text = WC_STATUS_TEXTS.get(*status as usize).and_then(|text| text.to_str().ok());
                write!(f, "{} request with wr_id {wr_id} ended: {}", queue(side), text.unwrap_or("unknown"))
            }
            Self::Flushed(side, count) => write!(f, "{count} {} requests flushed", queue(side)),
            Self::Raised(kind) => write!(f, "asynchronous event {kind:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_64_are_kept_and_told_once_with_times_before_the_failure() {
        let mut history = History::default();
        for at in 0..70 {
            let counts = RetryCounts { local_ack_timeout_err: 1, ..RetryCounts::default() };
            history.note(Instant(at * 1_000_000), Entry::Retried(counts, [Psn::new(5), Psn::new(9)]));
        }
        history.note(Instant(70_500_000), Entry::Failed(Side::Send, 7, WcStatus::RetryExcErr));
        history.note(Instant(71_000_000), Entry::Flushed(Side::Send, 1));
        history.note(Instant(71_500_000), Entry::Flushed(Side::Send, 1));
        let told = history.tell();
        assert_eq!(told.len(), KEPT);
        assert_eq!(told[0].trim(), "-62.500 ms  timeout; PSN 5 not acknowledged, next is 9");
        let failed = "0.000 ms  send request with wr_id 7 ended: transport retry counter exceeded";
        assert_eq!([told[62].trim(), told[63].trim()], [failed, "1.000 ms  2 send requests flushed"]);
        assert!(history.tell().is_empty());
        history.reset();
        assert_eq!(history.tell().len(), KEPT);
    }

    #[test]
    fn a_state_is_noted_when_it_changes() {
        let mut history = History::default();
        for state in [QpState::Rts, QpState::Rts, QpState::Err] {
            history.note_state(Instant(0), state);
        }
        history.note(Instant(0), Entry::Raised(AsyncEventKind::QpFatal));
        history.note_state(Instant(0), QpState::Err);
        assert_eq!(history.entries.len(), 3);
    }
}
