//! The track of one queue pair: its states, what it waits for, and its send requests.
//!
//! States are slices of the track itself, with the waits for a peer that is not ready inside of
//! them. Send requests overlap, so they are slices of their own. Touches nothing but lines.

use super::lines::{Args, Lines, Phase};
use crate::event::Pair;
use crate::explain;
use crate::world::{length, operation};
use roxe_transport::cx::{PacketNote, TxReason};
use roxe_transport::qp::{AttrMask, QpAttr, QpState, RetryCounts};
use roxe_transport::time::Instant;
use roxe_transport::wr::{Cqe, SendData, SendFlags, SendRequest, WcStatus};
use roxe_wire::opcode::Position;
use roxe_wire::{Header, Psn, Qpn};
use std::collections::VecDeque;
use std::fmt::Display;

/// A send request between its post and its completion.
#[derive(Debug)]
struct Open {
    /// Its number among all requests of the process.
    serial: u64,
    wr_id: u64,
    name: &'static str,
    signaled: bool,
    /// The PSNs of its packets so far.
    psns: Option<(Psn, Psn)>,
    /// Packets of it that were sent again.
    retransmitted: u32,
}

/// What the track of a queue pair shows.
#[derive(Debug)]
pub(super) struct PairTrack {
    pub(super) pair: Pair,
    state: QpState,
    /// It waits until its peer is ready.
    waits: bool,
    /// Oldest first.
    sends: VecDeque<Open>,
}

impl PairTrack {
    /// A queue pair was made.
    pub(super) fn new(lines: &mut Lines, at: Instant, pair: Pair) -> Self {
        let new = Self { pair, state: QpState::Reset, waits: false, sends: VecDeque::new() };
        new.name(lines, at, None);
        new.begin_state(lines, at, Args::default());
        new
    }

    /// The number of its track.
    pub(super) const fn track(&self) -> u32 {
        self.pair.qpn.get()
    }

    fn name(&self, lines: &mut Lines, at: Instant, peer: Option<Qpn>) {
        let service = format!("{:?}", self.pair.service).to_uppercase();
        let peer = peer.map(|peer| format!(" → {:#08x}", peer.get())).unwrap_or_default();
        let text = format!("QP {:#08x} {service}{peer}", self.pair.qpn.get());
        lines.put(Phase::Name, self.track(), at, ("", &"thread_name"), &Args::default().text("name", &text));
    }

    fn begin_state(&self, lines: &mut Lines, at: Instant, args: Args) {
        let state = format!("{:?}", self.state).to_uppercase();
        lines.put(Phase::Begin, self.track(), at, ("state", &state), &args);
    }

    fn end_slice(&self, lines: &mut Lines, at: Instant) {
        lines.put(Phase::End, self.track(), at, ("", &""), &Args::default());
    }

    /// Something that takes no time.
    pub(super) fn note(&self, lines: &mut Lines, at: Instant, what: (&str, &dyn Display), args: &Args) {
        lines.put(Phase::Instant, self.track(), at, what, args);
    }

    /// Its attributes changed.
    pub(super) fn modified(&mut self, lines: &mut Lines, at: Instant, attr: &QpAttr, mask: AttrMask) {
        if mask.contains(AttrMask::DEST_QPN) {
            self.name(lines, at, Some(attr.dest_qpn));
        }
        if mask.contains(AttrMask::STATE) {
            self.enter(lines, at, attr.state, attributes(attr, mask));
        }
    }

    /// It is in another state.
    pub(super) fn enter(&mut self, lines: &mut Lines, at: Instant, state: QpState, args: Args) {
        if state == self.state {
            return;
        }
        self.end_wait(lines, at);
        self.end_slice(lines, at);
        self.state = state;
        self.begin_state(lines, at, args);
        if state == QpState::Reset {
            self.end_sends(lines, at, self.sends.len(), "reset");
        }
    }

    /// A send request is in the queue.
    pub(super) fn posted(&mut self, lines: &mut Lines, at: Instant, request: &SendRequest<'_>, serial: u64) {
        let length = match request.data {
            SendData::Inline(bytes) => bytes.len() as u64,
            SendData::Sges(sges) => length(sges),
        };
        let (wr_id, name) = (request.wr_id, operation(&request.op));
        let signaled = self.pair.sq_sig_all || request.flags.contains(SendFlags::SIGNALED);
        // Viewers put slices of one name on one track; each queue pair shall have its own.
        let title = format_args!("{name} {:#08x}", self.pair.qpn.get());
        let args = Args::default().hex("wr_id", wr_id).number("length", length).number("signaled", u8::from(signaled));
        lines.put(Phase::AsyncBegin(serial), self.track(), at, ("wr", &title), &args);
        self.sends.push_back(Open { serial, wr_id, name, signaled, psns: None, retransmitted: 0 });
    }

    /// The card is done with a send request, and with all before it.
    pub(super) fn completed(&mut self, lines: &mut Lines, at: Instant, cqe: &Cqe) {
        let failed = cqe.status != WcStatus::Success;
        let is_it = |open: &Open| open.wr_id == cqe.wr_id && (open.signaled || failed);
        let Some(before) = self.sends.iter().position(is_it) else { return };
        for (at_front, open) in self.sends.drain(..=before).enumerate() {
            let status = if at_front == before { explain::name(cqe.status) } else { "no completion asked for" };
            open.end(lines, self.pair.qpn, at, status);
        }
        if failed && cqe.status != WcStatus::WrFlushErr {
            // A program may end as soon as it has this completion, before anybody tells the state.
            let state = if self.pair.service.is_reliable() { QpState::Err } else { QpState::Sqe };
            self.enter(lines, at, state, Args::default().text("why", &explain::name(cqe.status)));
        }
    }

    /// Ends the requests that were posted last.
    pub(super) fn end_sends(&mut self, lines: &mut Lines, at: Instant, count: usize, status: &str) {
        let first = self.sends.len().saturating_sub(count);
        for open in self.sends.drain(first..) {
            open.end(lines, self.pair.qpn, at, status);
        }
    }

    /// A packet of it leaves.
    pub(super) fn sent(&mut self, lines: &mut Lines, at: Instant, note: PacketNote, header: &Header) {
        let Some(wr_id) = note.wr_id else { return };
        self.end_wait(lines, at);
        let psn = header.bth.psn;
        match note.reason {
            TxReason::Retransmission => {
                if let Some(open) = self.sends.iter_mut().find(|open| open.has(psn)) {
                    open.retransmitted += 1;
                }
            }
            _ => {
                // Programs use the same number for many; packets leave in the order of posts.
                let position = header.opcode().facts().position;
                let goes_on = matches!(position, Position::Middle | Position::Last);
                let mut of_it = self.sends.iter_mut().filter(|open| open.wr_id == wr_id);
                let open = match goes_on {
                    true => of_it.rev().find(|open| open.psns.is_some()),
                    false => of_it.find(|open| open.psns.is_none()),
                };
                if let Some(open) = open {
                    open.psns = Some((open.psns.map_or(psn, |(first, _)| first), psn));
                }
            }
        }
    }

    /// Packets were lost, or the peer was not ready.
    pub(super) fn retried(&mut self, lines: &mut Lines, at: Instant, counts: RetryCounts) {
        let all = [
            (counts.local_ack_timeout_err, "timeout: no acknowledgement came"),
            (counts.packet_seq_err, "NAK received: PSN sequence error"),
            (counts.implied_nak_seq_err, "implied NAK received"),
            (counts.rnr_nak_retry_err, "RNR NAK received"),
            (counts.send_rnr_err, "RNR NAK sent"),
        ];
        for (times, what) in all.into_iter().filter(|(times, _)| *times > 0) {
            self.note(lines, at, ("retry", &what), &Args::default().number("times", times));
        }
        if counts.rnr_nak_retry_err > 0 && !self.waits && self.state != QpState::Err {
            self.waits = true;
            lines.put(Phase::Begin, self.track(), at, ("retry", &"RNR wait"), &Args::default());
        }
    }

    fn end_wait(&mut self, lines: &mut Lines, at: Instant) {
        if std::mem::take(&mut self.waits) {
            self.end_slice(lines, at);
        }
    }

    /// It is gone, or the program ends.
    pub(super) fn end(mut self, lines: &mut Lines, at: Instant, why: &str) {
        self.end_wait(lines, at);
        self.end_slice(lines, at);
        self.end_sends(lines, at, self.sends.len(), why);
    }
}

impl Open {
    fn has(&self, psn: Psn) -> bool {
        self.psns.is_some_and(|(first, last)| psn.distance(first) >= 0 && psn.distance(last) <= 0)
    }

    fn end(self, lines: &mut Lines, qpn: Qpn, at: Instant, status: &str) {
        let mut args = Args::default().text("status", &status);
        if let Some((first, last)) = self.psns {
            args = args.number("first_psn", first.get()).number("last_psn", last.get());
        }
        if self.retransmitted > 0 {
            args = args.number("retransmitted", self.retransmitted);
        }
        lines.put(
            Phase::AsyncEnd(self.serial),
            qpn.get(),
            at,
            ("wr", &format_args!("{} {:#08x}", self.name, qpn.get())),
            &args,
        );
    }
}

/// What the program set together with a state.
fn attributes(attr: &QpAttr, mask: AttrMask) -> Args {
    let all = [
        (AttrMask::PATH_MTU, "path_mtu", attr.path_mtu.bytes()),
        (AttrMask::TIMEOUT, "timeout", attr.timeout.into()),
        (AttrMask::RETRY_CNT, "retry_cnt", attr.retry_cnt.into()),
        (AttrMask::RNR_RETRY, "rnr_retry", attr.rnr_retry.into()),
        (AttrMask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer.into()),
    ];
    let set = all.into_iter().filter(|(bit, ..)| mask.contains(*bit));
    let args = set.fold(Args::default(), |args, (_, name, value)| args.number(name, value));
    let psns = [(AttrMask::RQ_PSN, "rq_psn", attr.rq_psn), (AttrMask::SQ_PSN, "sq_psn", attr.sq_psn)];
    psns.into_iter()
        .filter(|(bit, ..)| mask.contains(*bit))
        .fold(args, |args, (_, name, psn)| args.number(name, psn.get()))
}
