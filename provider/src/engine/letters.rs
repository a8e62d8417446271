//! Errands between processes that share an XRC domain, on their way out and in.
//!
//! Queue pairs post letters under their locks; whoever holds the receive lock sends them through the mailboxes. Bounded: a
//! letter that finds no room is lost, and whoever waits for the answer posts it again.

use super::Engine;
use super::rx::RxState;
use super::strays::Fate;
use crate::lock::rank;
use crate::net::forward::{Errand, ErrandId, ErrandKind, Frame};
use crate::net::service::Mailbox;
use crate::net::slot::Slot;
use crate::qp::Report;
use crate::queue::Queue;
use crate::xrcd;
use roxe_transport::qp::Outcome;
use roxe_transport::time::Instant;
use roxe_wire::{Gid, NetHeader, Packet, RKey};

/// Letters that wait to be sent.
const MAX_LETTERS: usize = 1024;

/// A frame for another process.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    /// Whose mailbox.
    pub(crate) to: Slot,
    pub(crate) frame: Frame,
    pub(crate) body: Vec<u8>,
}

/// What waits.
pub(super) type Letters = Queue<rank::Letters, Letter>;

impl Engine {
    /// Leaves a letter for [`Engine::send_letters`].
    pub(crate) fn post(&self, letter: Letter) {
        self.letters.change(|letters| {
            if letters.len() < MAX_LETTERS {
                letters.push_back(letter);
            } else {
                self.counters().forward_errors.add(1);
            }
        });
    }

    /// Whether letters wait.
    pub(crate) fn has_letters(&self) -> bool {
        !self.letters.is_empty()
    }

    /// Sends the letters. A process that is gone has no queues any more.
    pub(super) fn send_letters(&self, state: &mut RxState, now: Instant) {
        while let Some(first) = state.slots.first() {
            let Some(Letter { to, frame, body }) = self.letters.pop() else { return };
            let fate = state.strays.send(first, Mailbox::Slot(to), &frame, &body);
            if let (Fate::Unowned, Frame::Errand(Errand { id, .. })) = (fate, frame)
                && let Some(qp) = self.table.get(id.target)
            {
                let report = qp.take_result((id, Outcome::NO_QUEUE, &[]), now);
                if report.contains(Report::HAS_WORK) {
                    qp.serve(now);
                }
                qp.announce(report);
            }
        }
    }

    /// A result came for a target of ours.
    pub(super) fn take_result(&self, state: &mut RxState, result: (ErrandId, Outcome, &[u8]), now: Instant) {
        if let Some(qp) = self.table.get(result.0.target) {
            let report = qp.take_result(result, now);
            state.touch(qp, report);
        }
    }

    /// Does what a target of another process asks for.
    pub(super) fn run_errand(&self, errand: &Errand, body: &[u8], now: Instant) {
        let srq = xrcd::find_shared(self.device.index(), errand.file, errand.srqn);
        let id = errand.id;
        let (outcome, body) = match (srq, errand.kind) {
            (None, ErrandKind::End) => return,
            (None, ErrandKind::Execute(_) | ErrandKind::Read) => (Some(Outcome::NO_QUEUE), None),
            (Some(srq), ErrandKind::End) => return srq.end_guest(id, now),
            (Some(srq), ErrandKind::Execute(mtu)) => {
                let Some((net, bytes)) = addresses(body) else { return self.counters().malformed.add(1) };
                let Ok(packet) = Packet::parse(bytes) else { return self.counters().malformed.add(1) };
                (srq.execute(id, mtu, (&net, &packet), now), None)
            }
            (Some(srq), ErrandKind::Read) => {
                let Some((rkey, len, va)) = range(body) else { return self.counters().malformed.add(1) };
                match srq.read_for_other(rkey, va, len) {
                    Some(bytes) => (Some(Outcome::Done(0)), Some(bytes)),
                    None => (Some(Outcome::NO_QUEUE), None),
                }
            }
        };
        if let Some(outcome) = outcome {
            let (to, frame) = (Slot::of(id.target), Frame::Result(id, outcome));
            self.post(Letter { to, frame, body: body.unwrap_or_default() });
        }
    }
}

/// Where a request came from and went to, and its packet.
fn addresses(body: &[u8]) -> Option<(NetHeader, &[u8])> {
    let (src, rest) = body.split_first_chunk()?;
    let (dst, bytes) = rest.split_first_chunk()?;
    Some((NetHeader { src: Gid(*src), dst: Gid(*dst), ..NetHeader::default() }, bytes))
}

/// What to read.
fn range(body: &[u8]) -> Option<(RKey, u32, u64)> {
    let (rkey, rest) = body.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let va = rest.first_chunk()?;
    Some((RKey(u32::from_ne_bytes(*rkey)), u32::from_ne_bytes(*len), u64::from_ne_bytes(*va)))
}

#[cfg(test)]
mod tests;
