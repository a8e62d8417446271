//! The requester's receive path: acknowledgements, READ responses, atomic responses, NAKs.
//!
//! A response first retires what it acknowledges, strictly in order, so an error is reported only
//! after everything before it (IBA §9.7.5.2, §10.8.5). Everything else is a [`ResponseError`],
//! handled in [`Requester::handle_error`].

use crate::cx::{Host, RxPayload, Side};
use crate::qp::reliability::Exhausted;
use crate::qp::requester::{MAX_OUTSTANDING, Requester, index_of};
use crate::qp::segment::{self, range_cost};
use crate::qp::send_queue::{Origin, SendWqe};
use crate::qp::shared::{DropReason, Shared};
use crate::wr::{SendData, WcStatus};
use roxe_wire::{NakCode, PathMtu, Psn, Response, Syndrome};

/// Consequence of a response in addition to retiring what it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseError {
    /// The oldest unacknowledged packet, or its response, was lost.
    Lost,
    /// The peer had no receive; holds the code of the wait.
    NotReady(u8),
    Failed(WcStatus),
    Reserved,
}

impl Requester {
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        response: &Response,
        payload: RxPayload<'_>,
    ) -> Result<(), DropReason> {
        // Only sent and unacknowledged packets can be acknowledged (IBA §9.7.5.1.1).
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
            // Only an ACK may carry data.
            // clause: READ-POSITIVE
            _ if response.aeth().is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. })) => {
                self.ack_prior_and_head(sh, host, psn, |_| false).map(drop)
            }
            Response::AtomicAck(_, value) => {
                self.ack_prior_and_head(sh, host, psn, |wqe| wqe.op.is_atomic()).and_then(|wqe| {
                    // clause: ATOMIC-NATIVE
                    self.place(host, &wqe, 0, RxPayload::Bytes(&value.0.to_ne_bytes()))?;
                    self.retire_response(sh, host, &wqe, 0, 0);
                    Ok(())
                })
            }
            // clause: READ-STYLES
            Response::ReadFirst(_) | Response::ReadMiddle => self.on_read_response(sh, host, psn, payload, false),
            Response::ReadLast(_) | Response::ReadOnly(_) => self.on_read_response(sh, host, psn, payload, true),
        };
        if self.una_psn != una_before {
            self.on_progress(sh, host, self.una_psn.distance(una_before));
        }
        match result {
            // A failed QP is about to be flushed.
            Err(error) if !sh.failed => self.handle_error(sh, host, error),
            _ => Ok(()),
        }
    }

    /// Handles the payloads of consecutive READ RESPONSE MIDDLE packets; see
    /// [`crate::Qp::handle_joined`]. Returns false if the caller has to split them.
    pub(crate) fn handle_joined<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        payload: RxPayload<'_>,
    ) -> bool {
        let (mtu, Ok(len)) = (sh.attr.path_mtu, u32::try_from(payload.len())) else { return false };
        let Some(wqe) = self.sq.head().copied().filter(|wqe| wqe.op.gets_read_response()) else { return false };
        let (index, count) = (index_of(psn, &wqe), len / mtu.bytes());
        // All packets are the next expected, none ends a request, and no retry will request them
        // again.
        let is_next = psn == self.una_psn && !psn.add(count).is_after(self.cursor.psn);
        let end = segment::read_chunk_end(index, wqe.packets, mtu);
        if !is_next || count * mtu.bytes() != len || index.saturating_add(count) >= end {
            return false;
        }
        // If a part of the memory is refused, the caller handles the packets one by one and writes
        // the other parts twice.
        if self.place(host, &wqe, segment::offset(index, mtu), payload).is_err() {
            return false;
        }
        self.bytes_due = self.bytes_due.saturating_sub(len);
        self.una_psn = psn.add(count);
        self.on_progress(sh, host, self.una_psn.distance(psn));
        true
    }

    #[inline]
    fn on_acknowledge<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        syndrome: Syndrome,
    ) -> Result<(), ResponseError> {
        let error = match syndrome {
            // Credits are ignored: they are not negotiated, and RNR NAK replaces them.
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

    fn on_read_response<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        payload: RxPayload<'_>,
        ends: bool,
    ) -> Result<(), ResponseError> {
        // clause: NONPOSTED-ANSWER
        let wqe = self.ack_prior_and_head(sh, host, psn, |wqe| wqe.op.gets_read_response())?;
        let (mtu, index) = (sh.attr.path_mtu, index_of(psn, &wqe));
        // After a retry a response may begin anywhere in its request and be FIRST or MIDDLE, ONLY
        // or LAST: only the end of the request is fixed.
        let len = segment::payload_len(wqe.response_bytes(), mtu, index);
        // clause: READ-LENGTH
        if ends != ends_request(&wqe, mtu, index) || payload.len() != len as usize {
            return Err(ResponseError::Failed(WcStatus::BadRespErr));
        }
        self.place(host, &wqe, segment::offset(index, mtu), payload)?;
        self.retire_response(sh, host, &wqe, index, len);
        Ok(())
    }

    /// Completes everything before `psn` and returns the work request of this response. Fails if
    /// that request does not get responses of this kind.
    fn ack_prior_and_head<H: Host>(
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

    /// Writes response data into the list of the oldest work request.
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

    /// Retires packet `index` of the oldest work request, answered with `len` bytes of READ data.
    fn retire_response<H: Host>(&mut self, sh: &mut Shared, host: &mut H, wqe: &SendWqe, index: u32, len: u32) {
        // Requests that a retry has not retransmitted yet are not counted.
        if self.una_psn.is_before(self.cursor.psn) {
            self.bytes_due = self.bytes_due.saturating_sub(len);
            if ends_request(wqe, sh.attr.path_mtu, index) {
                self.reads_out = self.reads_out.saturating_sub(1);
                self.in_flight.on_acked(H::packet_cost(wqe.request_len()));
            }
        }
        let next = index + 1;
        self.una_psn = wqe.first_psn.add(next);
        if next == wqe.packets {
            self.complete_head(sh, host);
        }
    }

    /// Retires everything before `end`. Stops at the first READ or atomic without a response: a
    /// later response implies that this one was lost (implied NAK, IBA §9.7.5.2.4).
    #[inline]
    fn acknowledge<H: Host>(&mut self, sh: &mut Shared, host: &mut H, end: Psn) -> Result<(), ResponseError> {
        while self.una_psn.is_before(end) && !sh.failed {
            let Some(wqe) = self.sq.head() else { break };
            // clause: NAK-IMPLIED
            if wqe.op.awaits_response() {
                sh.retries.implied_nak_seq_err += 1;
                return Err(ResponseError::Lost);
            }
            let (from, to) = (index_of(self.una_psn, wqe), index_of(end, wqe).min(wqe.packets));
            // Packets that a retry has not retransmitted yet do not count.
            let ahead = u32::try_from(self.cursor.psn.distance(self.una_psn)).unwrap_or(0);
            let held = to.min(from.saturating_add(ahead));
            self.in_flight.on_acked(range_cost::<H>(wqe.length, wqe.packets, sh.attr.path_mtu, from, held));
            self.una_psn = wqe.first_psn.add(to);
            if to == wqe.packets {
                self.complete_head(sh, host);
            }
        }
        Ok(())
    }

    /// Handles an advance of the oldest PSN by `acked`: widens the window, skips acknowledged
    /// packets of a retry, reloads counters and timer.
    #[inline]
    fn on_progress<H: Host>(&mut self, sh: &mut Shared, host: &mut H, acked: i32) {
        self.window = self.window.saturating_add(acked).min(MAX_OUTSTANDING);
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

    fn handle_error<H: Host>(&mut self, sh: &mut Shared, host: &mut H, error: ResponseError) -> Result<(), DropReason> {
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
                Err(Exhausted) => self.migrate_or_fail(sh, host),
            },
            ResponseError::NotReady(code) => match self.retry.on_rnr(&sh.attr, host.now(), code) {
                Ok(()) => self.go_back(sh, host),
                Err(Exhausted) => self.fail_head(sh, host, WcStatus::RnrRetryExcErr),
            },
        }
        Ok(())
    }
}

/// Returns true if packet `index` is the last response to its READ REQUEST.
fn ends_request(wqe: &SendWqe, mtu: PathMtu, index: u32) -> bool {
    index + 1 == segment::read_chunk_end(index, wqe.packets, mtu)
}
