//! What responses do: acknowledge packets, bring READ data and old values, tell of losses and refusals.
//!
//! A response is judged into an [`Outcome`], which is then applied in one `match`. Work requests retire strictly in
//! order, so an error reaches the application only behind everything that came before it (IBA §9.7.5.2, §10.8.5).

use crate::cx::Host;
use crate::qp::DropReason;
use crate::qp::flight::{charge, charge_range};
use crate::qp::requester::{Requester, index_of};
use crate::qp::retry::Exhausted;
use crate::qp::segment;
use crate::qp::shared::Shared;
use crate::qp::sq::{Payload, SendWqe};
use crate::wr::WcStatus;
use roxe_wire::{Aeth, AtomicAckEth, NakCode, Psn, Response, Syndrome};

/// What a response asks for, once everything it acknowledges is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing more.
    Done,
    /// Repeat from the oldest packet not acknowledged: that one was lost, or its answer.
    GoBack,
    /// The same, after the wait with this code.
    NotReady(u8),
    /// The oldest work request failed.
    Failed(WcStatus),
    /// Nothing at all.
    Ignored(DropReason),
}

impl Requester {
    /// Takes in one response of the peer; the state allows it.
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        response: &Response,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        self.check_response_psn(psn)?;
        let una_before = self.una_psn;
        let outcome = match *response {
            Response::Ack(aeth) => self.on_acknowledge(sh, host, psn, aeth.syndrome),
            Response::AtomicAck(aeth, value) => self.on_atomic_answer(sh, host, psn, aeth, value),
            Response::ReadFirst(aeth) => self.on_read_answer(sh, host, psn, Some(aeth), false, payload),
            Response::ReadMiddle => self.on_read_answer(sh, host, psn, None, false, payload),
            Response::ReadLast(aeth) | Response::ReadOnly(aeth) => {
                self.on_read_answer(sh, host, psn, Some(aeth), true, payload)
            }
        };
        if self.una_psn != una_before {
            self.on_progress(sh, host);
        }
        self.apply(sh, host, outcome)
    }

    /// Answers can only be about packets that were sent and not acknowledged (IBA §9.7.5.1.1).
    fn check_response_psn(&self, psn: Psn) -> Result<(), DropReason> {
        if psn.is_before(self.una_psn) {
            Err(DropReason::DuplicateResponse)
        } else if psn.is_before(self.sent_psn) {
            Ok(())
        } else {
            Err(DropReason::GhostResponse)
        }
    }

    fn on_acknowledge<H: Host>(&mut self, sh: &mut Shared, host: &mut H, psn: Psn, syndrome: Syndrome) -> Outcome {
        let (end, outcome) = match syndrome {
            // Credits are ignored: nobody negotiates them, and RNR NAK does their work.
            Syndrome::Ack { .. } => (psn.next(), Outcome::Done),
            Syndrome::RnrNak { timer } => (psn, Outcome::NotReady(timer)),
            Syndrome::Nak(NakCode::PsnSequence) => (psn, Outcome::GoBack),
            Syndrome::Nak(NakCode::InvalidRequest) => (psn, Outcome::Failed(WcStatus::RemInvReqErr)),
            Syndrome::Nak(NakCode::RemoteAccess) => (psn, Outcome::Failed(WcStatus::RemAccessErr)),
            Syndrome::Nak(NakCode::RemoteOperation) => (psn, Outcome::Failed(WcStatus::RemOpErr)),
            Syndrome::Nak(NakCode::InvalidRd | NakCode::Reserved(_)) | Syndrome::Reserved(_) => {
                return Outcome::Ignored(DropReason::ReservedSyndrome);
            }
        };
        // An answer from behind a READ or atomic that is not answered itself: that answer was lost.
        if self.acknowledge(sh, host, end) { outcome } else { Outcome::GoBack }
    }

    fn on_read_answer<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        aeth: Option<Aeth>,
        ends: bool,
        payload: &[u8],
    ) -> Outcome {
        if aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. })) {
            return self.bad_response(sh, host, psn);
        }
        if !self.acknowledge(sh, host, psn) {
            return Outcome::GoBack;
        }
        let Some(wqe) = self.sq.head().filter(|wqe| wqe.is_read()).copied() else {
            return Outcome::Failed(WcStatus::BadRespErr);
        };
        let (mtu, index) = (sh.attr.path_mtu, index_of(psn, &wqe));
        let next = index + 1;
        // After a retry an answer may begin anywhere in its request and be called FIRST or MIDDLE, ONLY or LAST: only
        // where the request ends is fixed.
        let expected_end = next == segment::read_chunk_end(index, wqe.packets, mtu);
        if ends != expected_end || payload.len() != segment::payload_len(wqe.length, mtu, index) as usize {
            return Outcome::Failed(WcStatus::BadRespErr);
        }
        if !self.place(host, &wqe, segment::offset(index, mtu), payload) {
            return Outcome::Failed(WcStatus::LocProtErr);
        }
        self.on_answered(sh, host, &wqe, next, expected_end);
        Outcome::Done
    }

    fn on_atomic_answer<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        aeth: Aeth,
        value: AtomicAckEth,
    ) -> Outcome {
        if !matches!(aeth.syndrome, Syndrome::Ack { .. }) {
            return self.bad_response(sh, host, psn);
        }
        if !self.acknowledge(sh, host, psn) {
            return Outcome::GoBack;
        }
        let Some(wqe) = self.sq.head().filter(|wqe| wqe.is_atomic()).copied() else {
            return Outcome::Failed(WcStatus::BadRespErr);
        };
        if !self.place(host, &wqe, 0, &value.0.to_ne_bytes()) {
            return Outcome::Failed(WcStatus::LocProtErr);
        }
        self.on_answered(sh, host, &wqe, 1, true);
        Outcome::Done
    }

    /// An answer that makes no sense fails the work request it is about; others before it must be complete first.
    fn bad_response<H: Host>(&mut self, sh: &mut Shared, host: &mut H, psn: Psn) -> Outcome {
        if self.acknowledge(sh, host, psn) { Outcome::Failed(WcStatus::BadRespErr) } else { Outcome::GoBack }
    }

    /// Writes an answer into the list of the oldest work request.
    fn place<H: Host>(&self, host: &mut H, wqe: &SendWqe, offset: u32, data: &[u8]) -> bool {
        match self.sq.payload(self.sq.head_index(), wqe) {
            _ if data.is_empty() => true,
            Payload::Sges(sges) => host.scatter(sges, offset, data).is_ok(),
            Payload::Inline(_) => false,
        }
    }

    /// Packet `next - 1` of the oldest work request, a READ or atomic, is answered; `whole` if that answers its request.
    fn on_answered<H: Host>(&mut self, sh: &mut Shared, host: &mut H, wqe: &SendWqe, next: u32, whole: bool) {
        // A request that a retry has not repeated yet is not counted.
        let counted = self.una_psn.is_before(self.cursor.psn);
        self.una_psn = wqe.first_psn.add(next);
        if whole && counted {
            self.reads_out = self.reads_out.saturating_sub(1);
            self.flight.land(charge(0));
        }
        if next == wqe.packets {
            self.complete_head(sh, host);
        }
    }

    /// Everything before `end` arrived at the peer, as far as an acknowledgement can say so: stops in front of the first
    /// READ or atomic without an answer of its own and returns `false`.
    fn acknowledge<H: Host>(&mut self, sh: &mut Shared, host: &mut H, end: Psn) -> bool {
        while self.una_psn.is_before(end) && !sh.failed {
            let Some(wqe) = self.sq.head().copied() else { break };
            if wqe.awaits_response() {
                return false;
            }
            let (from, to) = (index_of(self.una_psn, &wqe), index_of(end, &wqe).min(wqe.packets));
            // Packets that a retry has not repeated yet hold no room.
            let ahead = u32::try_from(self.cursor.psn.distance(self.una_psn)).unwrap_or(0);
            let held = to.min(from.saturating_add(ahead));
            self.flight.land(charge_range(wqe.length, wqe.packets, sh.attr.path_mtu, from, held));
            self.una_psn = wqe.first_psn.add(to);
            if to == wqe.packets {
                self.complete_head(sh, host);
            }
        }
        true
    }

    /// The oldest PSN moved: a retry need not repeat what has arrived, counters and timer start afresh.
    fn on_progress<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        if self.cursor.psn.is_before(self.una_psn) {
            self.cursor = self.oldest();
        }
        self.retry.on_progress(&sh.attr, host.now(), self.una_psn != self.sent_psn);
        self.no_room = false;
        self.flight.give_back(sh, host);
        self.report_fault(sh, host);
        self.check_drained(sh);
    }

    fn apply<H: Host>(&mut self, sh: &mut Shared, host: &mut H, outcome: Outcome) -> Result<(), DropReason> {
        match outcome {
            // The queue is about to be flushed; nothing can be added to that.
            _ if sh.failed => {}
            Outcome::Done => {}
            Outcome::Ignored(reason) => return Err(reason),
            Outcome::Failed(status) => self.fail_head(sh, host, status),
            Outcome::GoBack | Outcome::NotReady(_) if self.retry.is_waiting() => return Err(DropReason::AwaitingRetry),
            Outcome::GoBack => return self.repair_loss(sh, host),
            Outcome::NotReady(code) => match self.retry.on_rnr(&sh.attr, host.now(), code) {
                Ok(()) => self.go_back(sh, host),
                Err(Exhausted) => self.fail_head(sh, host, WcStatus::RnrRetryExcErr),
            },
        }
        Ok(())
    }

    fn repair_loss<H: Host>(&mut self, sh: &mut Shared, host: &mut H) -> Result<(), DropReason> {
        match self.retry.on_loss() {
            Ok(true) => self.go_back(sh, host),
            Ok(false) => return Err(DropReason::AwaitingRetry),
            Err(Exhausted) => self.fail_head(sh, host, WcStatus::RetryExcErr),
        }
        Ok(())
    }
}
