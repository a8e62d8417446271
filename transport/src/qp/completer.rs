//! What responses do: acknowledge packets, bring READ data and old values, tell of losses and
//! refusals.
//!
//! A response first retires what it acknowledges, strictly in order, so an error reaches the
//! application only behind everything that came before it (IBA §9.7.5.2, §10.8.5). What else it
//! tells is a [`ResponseError`], dealt with in one `match`.

use crate::cx::{Host, RxPayload, Side};
use crate::qp::reliability::Exhausted;
use crate::qp::requester::{Requester, index_of};
use crate::qp::segment::{self, charge_range};
use crate::qp::send_queue::{Origin, SendWqe};
use crate::qp::shared::{DropReason, Shared};
use crate::wr::{SendData, WcStatus};
use roxe_wire::{NakCode, PathMtu, Psn, Response, Syndrome};

/// What a response asks for besides retiring what it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseError {
    /// Repeat from the oldest packet not acknowledged: that one was lost, or its answer.
    Lost,
    /// The peer had no receive: it is asked again after the wait with this code.
    NotReady(u8),
    /// The oldest work request failed.
    Failed(WcStatus),
    /// The response means nothing.
    Reserved,
}

impl Requester {
    /// Takes in one response of the peer; the state allows it.
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        response: &Response,
        payload: RxPayload<'_>,
    ) -> Result<(), DropReason> {
        // Answers can only be about packets that were sent and not acknowledged (IBA §9.7.5.1.1).
        // clause: RESP-REGION
        if psn.is_before(self.una_psn) {
            return Err(DropReason::DuplicateResponse);
        }
        if !psn.is_before(self.sent_psn) {
            return Err(DropReason::GhostResponse);
        }
        let una_before = self.una_psn;
        let result = match *response {
            Response::Ack(aeth) => self.on_acknowledge(sh, host, psn, aeth.syndrome),
            // What comes with data is an acknowledgement, and cannot be anything else.
            // clause: READ-POSITIVE
            _ if response.aeth().is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. })) => {
                self.asked(sh, host, psn, |_| false).map(drop)
            }
            Response::AtomicAck(_, value) => self.asked(sh, host, psn, SendWqe::is_atomic).and_then(|wqe| {
                // clause: ATOMIC-NATIVE
                self.place(host, &wqe, 0, RxPayload::Bytes(&value.0.to_ne_bytes()))?;
                self.on_answered(sh, host, &wqe, 0, 0);
                Ok(())
            }),
            // clause: READ-STYLES
            Response::ReadFirst(_) | Response::ReadMiddle => self.on_read_answer(sh, host, psn, payload, false),
            Response::ReadLast(_) | Response::ReadOnly(_) => self.on_read_answer(sh, host, psn, payload, true),
        };
        if self.una_psn != una_before {
            self.widen(self.una_psn.distance(una_before));
            self.on_progress(sh, host);
        }
        match result {
            // When it failed, the queue is about to be flushed; nothing can be added to that.
            Err(error) if !sh.failed => self.react(sh, host, error),
            _ => Ok(()),
        }
    }

    /// As [`crate::Qp::handle_joined`], for READ data.
    pub(crate) fn handle_joined<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        payload: RxPayload<'_>,
    ) -> bool {
        let (mtu, Ok(len)) = (sh.attr.path_mtu, u32::try_from(payload.len())) else { return false };
        let Some(wqe) = self.sq.head().copied().filter(SendWqe::is_answered_as_read) else { return false };
        let (index, count) = (index_of(psn, &wqe), len / mtu.bytes());
        // All are the oldest there is, none ends a request, and no retry is about to ask for them
        // again.
        let is_next = psn == self.una_psn && !psn.add(count).is_after(self.cursor.psn);
        let end = segment::read_chunk_end(index, wqe.packets, mtu);
        if !is_next || count * mtu.bytes() != len || index.saturating_add(count) >= end {
            return false;
        }
        // What memory has taken when it refuses the rest is written once more then.
        if self.place(host, &wqe, segment::offset(index, mtu), payload).is_err() {
            return false;
        }
        self.bytes_due = self.bytes_due.saturating_sub(len);
        self.una_psn = psn.add(count);
        self.widen(self.una_psn.distance(psn));
        self.on_progress(sh, host);
        true
    }

    fn on_acknowledge<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        syndrome: Syndrome,
    ) -> Result<(), ResponseError> {
        let error = match syndrome {
            // Credits are ignored: nobody negotiates them, and RNR NAK does their work.
            // clause: ACK-CUMULATIVE, ACK-CREDITS
            Syndrome::Ack { .. } => return self.acknowledge(sh, host, psn.next()),
            Syndrome::RnrNak { timer } => {
                sh.retries.rnr_nak_retry_err += 1;
                ResponseError::NotReady(timer)
            }
            // clause: NAK-SEQUENCE
            Syndrome::Nak(NakCode::PsnSequence) => {
                sh.retries.packet_seq_err += 1;
                ResponseError::Lost
            }
            // clause: NAK-STATUS
            Syndrome::Nak(NakCode::InvalidRequest) => ResponseError::Failed(WcStatus::RemInvReqErr),
            // clause: READ-NAK-MIDDLE
            Syndrome::Nak(NakCode::RemoteAccess) => ResponseError::Failed(WcStatus::RemAccessErr),
            Syndrome::Nak(NakCode::RemoteOperation) => ResponseError::Failed(WcStatus::RemOpErr),
            // clause: NAK-RESERVED
            Syndrome::Nak(NakCode::InvalidRd | NakCode::Reserved(_)) | Syndrome::Reserved(_) => {
                return Err(ResponseError::Reserved);
            }
        };
        // clause: NAK-ACKNOWLEDGES
        self.acknowledge(sh, host, psn)?;
        Err(error)
    }

    fn on_read_answer<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        payload: RxPayload<'_>,
        ends: bool,
    ) -> Result<(), ResponseError> {
        // clause: NONPOSTED-ANSWER
        let wqe = self.asked(sh, host, psn, SendWqe::is_answered_as_read)?;
        let (mtu, index) = (sh.attr.path_mtu, index_of(psn, &wqe));
        // After a retry an answer may begin anywhere in its request and be called FIRST or MIDDLE,
        // ONLY or LAST: only where the request ends is fixed.
        let len = segment::payload_len(wqe.lands(), mtu, index);
        // clause: READ-LENGTH
        if ends != ends_request(&wqe, mtu, index) || payload.len() != len as usize {
            return Err(ResponseError::Failed(WcStatus::BadRespErr));
        }
        self.place(host, &wqe, segment::offset(index, mtu), payload)?;
        self.on_answered(sh, host, &wqe, index, len);
        Ok(())
    }

    /// The work request that an answer with `psn` is about, once everything before it is complete.
    /// It fails if it is not of the kind that gets such answers.
    fn asked<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        is_kind: fn(&SendWqe) -> bool,
    ) -> Result<SendWqe, ResponseError> {
        // clause: READ-IN-ORDER, READ-ACKNOWLEDGES
        self.acknowledge(sh, host, psn)?;
        // clause: RESP-KIND
        self.sq.head().filter(|wqe| is_kind(wqe)).copied().ok_or(ResponseError::Failed(WcStatus::BadRespErr))
    }

    /// Writes an answer into the list of the oldest work request.
    fn place<H: Host>(
        &self,
        host: &mut H,
        wqe: &SendWqe,
        offset: u32,
        data: RxPayload<'_>,
    ) -> Result<(), ResponseError> {
        // clause: TM-RENDEZVOUS
        let side = if wqe.origin == Origin::Rendezvous { Side::Recv } else { Side::Send };
        let placed = match self.sq.payload(self.sq.head_index(), wqe) {
            _ if data.is_empty() => true,
            SendData::Sges(sges) => host.scatter(side, sges, offset, data).is_ok(),
            SendData::Inline(_) => false,
        };
        // clause: READ-LOCAL-FAULT
        if placed { Ok(()) } else { Err(ResponseError::Failed(WcStatus::LocProtErr)) }
    }

    /// Packet `index` of the oldest work request, one that awaits a response, is answered with
    /// `len` bytes of READ data.
    fn on_answered<H: Host>(&mut self, sh: &mut Shared, host: &mut H, wqe: &SendWqe, index: u32, len: u32) {
        // What a retry has not asked for again is not counted.
        if self.una_psn.is_before(self.cursor.psn) {
            self.bytes_due = self.bytes_due.saturating_sub(len);
            if ends_request(wqe, sh.attr.path_mtu, index) {
                self.reads_out = self.reads_out.saturating_sub(1);
                self.in_flight.on_acked(H::charge(wqe.question_len()));
            }
        }
        let next = index + 1;
        self.una_psn = wqe.first_psn.add(next);
        if next == wqe.packets {
            self.complete_head(sh, host);
        }
    }

    /// Everything before `end` arrived at the peer. Stops in front of the first READ or atomic
    /// without an answer of its own: what comes from behind it tells that this answer was lost (an
    /// implied NAK, IBA §9.7.5.2.4).
    fn acknowledge<H: Host>(&mut self, sh: &mut Shared, host: &mut H, end: Psn) -> Result<(), ResponseError> {
        while self.una_psn.is_before(end) && !sh.failed {
            let Some(wqe) = self.sq.head() else { break };
            // clause: NAK-IMPLIED
            if wqe.awaits_response() {
                sh.retries.implied_nak_seq_err += 1;
                return Err(ResponseError::Lost);
            }
            let (from, to) = (index_of(self.una_psn, wqe), index_of(end, wqe).min(wqe.packets));
            // Packets that a retry has not repeated yet hold no room.
            let ahead = u32::try_from(self.cursor.psn.distance(self.una_psn)).unwrap_or(0);
            let held = to.min(from.saturating_add(ahead));
            self.in_flight.on_acked(charge_range::<H>(wqe.length, wqe.packets, sh.attr.path_mtu, from, held));
            self.una_psn = wqe.first_psn.add(to);
            if to == wqe.packets {
                self.complete_head(sh, host);
            }
        }
        Ok(())
    }

    /// The oldest PSN moved: a retry need not repeat what has arrived, counters and timer start
    /// afresh.
    fn on_progress<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        // clause: ACK-OVER-RETRY
        if self.cursor.psn.is_before(self.una_psn) {
            self.cursor = self.oldest();
        }
        let outstanding = self.una_psn != self.sent_psn;
        self.retry.on_progress(&sh.attr, host.now(), outstanding);
        if outstanding {
            self.in_flight.give_back(sh, host);
        } else {
            self.in_flight.clear(sh, host);
        }
        self.report_fault(sh, host);
        self.check_drained(sh);
    }

    fn react<H: Host>(&mut self, sh: &mut Shared, host: &mut H, error: ResponseError) -> Result<(), DropReason> {
        match error {
            ResponseError::Reserved => return Err(DropReason::ReservedSyndrome),
            ResponseError::Failed(status) => self.fail_head(sh, host, status),
            // clause: RNR-WAIT-WHOLE
            ResponseError::Lost | ResponseError::NotReady(_) if self.retry.is_waiting() => {
                return Err(DropReason::AwaitingRetry);
            }
            ResponseError::Lost => match self.retry.on_loss() {
                Ok(true) => self.go_back_after_loss(sh, host),
                Ok(false) => return Err(DropReason::AwaitingRetry),
                Err(Exhausted) => self.give_up_path(sh, host),
            },
            ResponseError::NotReady(code) => match self.retry.on_rnr(&sh.attr, host.now(), code) {
                Ok(()) => self.go_back(sh, host),
                Err(Exhausted) => self.fail_head(sh, host, WcStatus::RnrRetryExcErr),
            },
        }
        Ok(())
    }
}

/// Whether the answer to packet `index` of a request that awaits it is the last one.
fn ends_request(wqe: &SendWqe, mtu: PathMtu, index: u32) -> bool {
    index + 1 == segment::read_chunk_end(index, wqe.packets, mtu)
}
