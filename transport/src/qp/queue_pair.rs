//! The queue pair: owns both roles, routes packets to them, and runs the state machine.
//!
//! A role that hits a fatal error sets a flag in [`Shared`]; [`Qp::settle`] then changes the state
//! and flushes both queues before the call that caused the error returns.

use crate::cx::{Host, RxPayload, TxBatch, TxState};
use crate::qp::features::congestion::CongestionCounts;
use crate::qp::modify::{self, ModifyError};
use crate::qp::receive_queue;
use crate::qp::requester::Requester;
use crate::qp::responder::{Incoming, Responder};
use crate::qp::send_queue::check_op;
use crate::qp::shared::{
    AttrMask, DropReason, MigState, PostError, QpAttr, QpConfig, QpEvents, QpState, RetryCounts, Service, Shared,
};
use crate::qp::unreliable::Datagram;
use crate::time::Instant;
use crate::wr::{RecvRequest, SendRequest};
use roxe_wire::{Bth, Header, Kind, NetHeader, Packet, Pkey, Psn, Qpn, Response};

/// A queue pair (IBA §10.2.4). See the crate documentation for how to drive one.
///
/// Move a `Qp` to RESET or ERR before dropping it: this releases its reservations at
/// [`crate::cx::FlowControl`].
#[derive(Debug)]
pub struct Qp {
    pub(super) shared: Shared,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    /// True if work was posted in SQE or ERR; the next `poll_transmit` flushes it.
    flush_due: bool,
    /// True if a lone acknowledgement leaves after one batch of requests.
    acks_last: bool,
    /// True if one batch of requests has left before the acknowledgement that is due.
    ack_has_waited: bool,
}

impl Qp {
    /// Creates a queue pair in RESET. The first post reserves the whole receive queue; the send
    /// queue grows with the number of outstanding requests. Nothing allocates after that.
    pub fn new(config: QpConfig) -> Self {
        Self {
            requester: Requester::new(&config),
            responder: Responder::new(&config),
            shared: Shared::new(config),
            flush_due: false,
            acks_last: false,
            ack_has_waited: false,
        }
    }

    /// Returns the queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.shared.config.qpn
    }

    /// Returns the transport service.
    pub fn service(&self) -> Service {
        self.shared.config.service
    }

    /// Returns the state.
    pub fn state(&self) -> QpState {
        self.shared.state
    }

    /// Returns the attributes set by [`Qp::modify`].
    pub fn attr(&self) -> &QpAttr {
        &self.shared.attr
    }

    /// Returns the creation parameters.
    pub fn config(&self) -> &QpConfig {
        &self.shared.config
    }

    /// Returns true in SQD while started requests are unfinished (`sq_draining` of `ibv_query_qp`).
    pub fn is_draining(&self) -> bool {
        self.shared.state == QpState::Sqd && !self.requester.is_drained()
    }

    /// Returns true if the send queue is empty and no response is owed to the peer.
    pub fn is_quiescent(&self) -> bool {
        self.requester.sq.is_empty() && !self.responder.has_work()
    }

    /// Changes attributes and state (`man ibv_modify_qp`). ERR flushes both queues, RESET empties
    /// them without completions.
    ///
    /// # Errors
    /// The modify is illegal; nothing changed.
    pub fn modify<H: Host>(&mut self, host: &mut H, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        let mask = mask.difference(modify::ignored(self.service()));
        let from = self.shared.state;
        let to = modify::check(&self.shared, attr, mask)?;
        self.flush_posted(host);
        if to == QpState::Reset || mask.intersects(AttrMask::AV | AttrMask::DEST_QPN) {
            self.requester.in_flight.clear(&self.shared, host);
        }
        let migrates = modify::forces_migration(&self.shared, attr, mask);
        modify::apply(&mut self.shared, attr, mask, to);
        if migrates {
            self.requester.migrate(&mut self.shared, host);
        }
        match (from, to) {
            (_, QpState::Reset) => {
                self.responder.rq.discard(host);
                self.reset();
            }
            (_, QpState::Err) => self.enter_error(host),
            (QpState::Init, QpState::Rtr) => self.responder.on_rtr(&self.shared),
            (QpState::Rtr, QpState::Rts) => self.requester.on_rts(&self.shared),
            (QpState::Rts, QpState::Sqd) => self.requester.on_sqd(&mut self.shared),
            (QpState::Sqd, QpState::Sqd) => self.requester.retry.reload(&self.shared.attr),
            _ => {}
        }
        self.settle(host);
        Ok(())
    }

    /// Queues a send work request. In SQE and ERR the next [`Qp::poll_transmit`] flushes it. Its
    /// data is read when its packets are built.
    ///
    /// # Errors
    /// The request is illegal; nothing was queued.
    pub fn post_send(&mut self, req: &SendRequest<'_>) -> Result<(), PostError> {
        self.post_send_to_srq(0, req)
    }

    /// Queues a send work request like [`Qp::post_send`], for the peer's SRQ whose number is the
    /// low 24 bits of `srqn`. Services other than XRC ignore `srqn`.
    ///
    /// # Errors
    /// Fails like [`Qp::post_send`].
    #[inline]
    pub fn post_send_to_srq(&mut self, srqn: u32, req: &SendRequest<'_>) -> Result<(), PostError> {
        match self.shared.state {
            // clause: STATE-POST
            QpState::Reset | QpState::Init | QpState::Rtr => return Err(PostError::State),
            QpState::Sqe | QpState::Err => self.flush_due = true,
            QpState::Rts | QpState::Sqd => {}
        }
        check_op(&self.shared, req)?;
        self.requester.sq.push(req, srqn)
    }

    /// Returns the free places in the send queue, in work requests.
    pub fn send_room(&self) -> u32 {
        self.requester.sq.room()
    }

    /// Returns true if [`Qp::poll_transmit`] may be skipped after a post: so many requests are
    /// outstanding that an acknowledgement will trigger it anyway. Several requests then share the
    /// cost of a call. False while a response is owed to the peer.
    pub fn may_coalesce(&self) -> bool {
        let is_reliable = self.shared.state == QpState::Rts && self.service().is_reliable();
        is_reliable && !self.responder.has_work() && self.requester.may_coalesce()
    }

    /// Removes the `count` newest send work requests, so that a caller can post a list completely
    /// or not at all. Call it directly after the posts; started requests stay.
    pub fn retract_sends(&mut self, count: u32) {
        self.requester.sq.retract(count, self.requester.first_unstarted);
    }

    /// Queues a receive work request. In ERR the next [`Qp::poll_transmit`] flushes it.
    ///
    /// # Errors
    /// The request is illegal; nothing was queued.
    pub fn post_recv(&mut self, req: &RecvRequest<'_>) -> Result<(), PostError> {
        match self.shared.state {
            QpState::Reset => return Err(PostError::State),
            QpState::Err => self.flush_due = true,
            _ => {}
        }
        self.responder.rq.post(req)
    }

    /// Returns true if this UC or UD packet would be dropped only because no receive is posted.
    /// Takes a receive from the SRQ if there is one.
    pub fn lacks_receive<H: Host>(&mut self, host: &mut H, net: &NetHeader, packet: &Packet<'_>) -> bool {
        let (service, kind) = (self.shared.config.service, &packet.header.kind);
        matches!((service, kind), (Service::Ud, Kind::Ud { .. }) | (Service::Uc, Kind::UcRequest(_)))
            && takes_receive(kind)
            && check_request(&self.shared, net, &packet.header.bth).is_ok()
            && !self.responder.rq.acquire(host)
    }

    /// Returns the PSN of the next request in order.
    pub fn expected_psn(&self) -> Psn {
        self.responder.progress.e_psn
    }

    /// Handles a packet addressed to this QP, whose ICRC is verified.
    ///
    /// # Errors
    /// The packet was dropped; the reason is for counters only.
    pub fn handle_packet<H: Host>(
        &mut self,
        host: &mut H,
        net: &NetHeader,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        self.handle_with_payload(host, net, &packet.header, RxPayload::Bytes(packet.payload))
    }

    /// Handles a packet like [`Qp::handle_packet`], with a payload that may lie in memory shared
    /// with another process. The 8 bytes of an ATOMIC WRITE and every payload of a tag-matching
    /// queue must be [`RxPayload::Bytes`].
    ///
    /// # Errors
    /// Fails like [`Qp::handle_packet`].
    pub fn handle_with_payload<H: Host>(
        &mut self,
        host: &mut H,
        net: &NetHeader,
        header: &Header,
        payload: RxPayload<'_>,
    ) -> Result<(), DropReason> {
        if self.shared.attr.path_mig_state != MigState::Migrated {
            self.requester.follow(&mut self.shared, host, net, header)?;
        }
        // clause: CNP-WHEN
        if net.is_marked() {
            self.note_mark(host.now(), net, header);
        }
        let (sh, bth) = (&mut self.shared, &header.bth);
        let result = match (sh.config.service, &header.kind) {
            (Service::Rc, Kind::RcRequest(req)) => check_request(sh, net, bth)
                .and_then(|()| self.responder.handle_request(sh, host, Incoming { bth, req, payload })),
            (Service::Rc, Kind::RcResponse(resp)) => check_response(sh, net, bth)
                .and_then(|()| self.requester.handle_response(sh, host, bth.psn, resp, payload)),
            (Service::Uc, Kind::UcRequest(req)) => {
                check_request(sh, net, bth).and_then(|()| self.responder.handle_uc(sh, host, bth, req, payload))
            }
            // clause: UD-ONE-PACKET
            (Service::Ud, Kind::Ud { deth, imm }) => check_request(sh, net, bth)
                .and_then(|()| self.responder.handle_ud(sh, host, net, &Datagram { header, deth, imm: *imm, payload })),
            // clause: XRC-DIRECTIONS
            (Service::XrcTgt, Kind::XrcRequest(xrc, req)) => check_request(sh, net, bth)
                .and_then(|()| self.responder.handle_xrc(sh, host, *xrc, Incoming { bth, req, payload })),
            (Service::XrcIni, Kind::XrcResponse(resp)) => check_response(sh, net, bth)
                .and_then(|()| self.requester.handle_response(sh, host, bth.psn, resp, payload)),
            // clause: CNP-RECEIVED
            (Service::Rc | Service::Uc | Service::XrcIni | Service::XrcTgt, Kind::Cnp) => check_response(sh, net, bth)
                .and_then(|()| {
                    let is_obeyed = sh.congestion.on_cnp(sh.config.line_rate, host.now());
                    if is_obeyed { Ok(()) } else { Err(DropReason::CongestionNotice) }
                }),
            // clause: TAKE-SERVICE
            _ => Err(DropReason::WrongService),
        };
        if self.shared.config.tag_matching {
            self.serve_rendezvous();
        }
        self.settle(host);
        result
    }

    /// Handles consecutive MIDDLE packets of one message at once. Their headers differ from `first`
    /// only in the PSN, none requests an acknowledgement, and `payload` holds `len` bytes of each.
    /// Returns false, with the queue pair unchanged, if a packet needs the full checks; the caller
    /// then handles the packets one by one.
    pub fn handle_joined<H: Host>(
        &mut self,
        host: &mut H,
        net: &NetHeader,
        first: &Header,
        len: usize,
        payload: RxPayload<'_>,
    ) -> bool {
        let (sh, bth) = (&mut self.shared, &first.bth);
        let fast_path = sh.config.service == Service::Rc
            && sh.attr.path_mig_state == MigState::Migrated
            && !net.is_marked()
            && len == sh.attr.path_mtu.bytes() as usize;
        if !fast_path {
            return false;
        }
        let handled = match &first.kind {
            Kind::RcRequest(req) if check_request(sh, net, bth).is_ok() => {
                self.responder.handle_joined(sh, host, Incoming { bth, req, payload })
            }
            Kind::RcResponse(Response::ReadMiddle) if check_response(sh, net, bth).is_ok() => {
                self.requester.handle_joined(sh, host, bth.psn, payload)
            }
            _ => false,
        };
        self.settle(host);
        handled
    }

    /// Passes rendezvous between the roles: one that the responder has matched to the requester,
    /// and one whose data was read back to the responder.
    fn serve_rendezvous(&mut self) {
        if let Some(rendezvous) = self.shared.rendezvous.take() {
            // clause: TM-RENDEZVOUS
            self.shared.rendezvous_count += 1;
            self.requester.sq.push_rendezvous(&rendezvous, self.responder.rq.last_list());
        }
        if core::mem::take(&mut self.shared.rendezvous_read) {
            // The acknowledgement of the peer's request may have been lost. Sending it again,
            // before the FIN, lets the peer complete its request first.
            // clause: TM-RENDEZVOUS-ORDER
            self.responder.replies.acknowledge();
        }
    }

    /// Handles a packet like [`Qp::handle_packet`], but as if no receive were posted, for fault
    /// injection.
    ///
    /// # Errors
    /// Fails like [`Qp::handle_packet`].
    pub fn handle_packet_without_receive<H: Host>(
        &mut self,
        host: &mut H,
        net: &NetHeader,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        self.responder.rq.receive_hidden = true;
        let result = self.handle_packet(host, net, packet);
        self.responder.rq.receive_hidden = false;
        result
    }

    /// Handles expired timers, if any.
    pub fn handle_timeout<H: Host>(&mut self, host: &mut H) {
        self.shared.congestion.on_timeout(host.now());
        self.requester.handle_timeout(&mut self.shared, host);
        self.settle(host);
    }

    /// Sets whether a lone acknowledgement leaves after one batch of requests, or before. Both
    /// orders are legal; programs must not depend on either.
    pub fn set_acks_last(&mut self, acks_last: bool) {
        self.acks_last = acks_last;
    }

    /// Writes the packets that may be sent now into `tx`, responses first: programs expect, as on
    /// hardware, that a send completes before the peer's answer to it is received.
    ///
    /// If [`crate::cx::FlowControl::reserve`] refuses, the QP stops and returns
    /// [`TxState::Drained`]; the host calls again when there is room.
    #[inline]
    pub fn poll_transmit<H: Host, T: TxBatch>(&mut self, host: &mut H, tx: &mut T) -> TxState {
        self.flush_posted(host);
        let sh = &mut self.shared;
        if sh.congestion.cnp_due && !sh.congestion.send_cnp(tx, sh.config.qpn, sh.attr.dest_qpn, &sh.path) {
            return TxState::BatchFull;
        }
        // clause: ACK-BEFORE-REQUESTS
        let ack_waits =
            self.acks_last && !core::mem::take(&mut self.ack_has_waited) && self.responder.replies.is_only_ack();
        if ack_waits {
            return self.send_requests_first(host, tx);
        }
        // clause: RNR-OTHERS-GO-ON
        match self.send_responses(host, tx) {
            TxState::BatchFull => TxState::BatchFull,
            TxState::Drained => self.send_requests(host, tx),
        }
    }

    /// Sends one batch of requests before the lone acknowledgement.
    #[cold]
    fn send_requests_first<H: Host, T: TxBatch>(&mut self, host: &mut H, tx: &mut T) -> TxState {
        self.ack_has_waited = self.send_requests(host, tx) == TxState::BatchFull;
        if self.ack_has_waited { TxState::BatchFull } else { self.send_responses(host, tx) }
    }

    // Inlined like `send_requests`: usually one of the two has nothing to send.
    #[inline(always)]
    fn send_responses<H: Host, T: TxBatch>(&mut self, host: &mut H, tx: &mut T) -> TxState {
        if !self.responder.has_work() {
            return TxState::Drained;
        }
        let state = self.responder.replies.poll_transmit(&mut self.shared, host, tx, self.responder.progress);
        self.settle(host);
        state
    }

    #[inline(always)]
    fn send_requests<H: Host, T: TxBatch>(&mut self, host: &mut H, tx: &mut T) -> TxState {
        if !self.requester.has_work(&self.shared) {
            return TxState::Drained;
        }
        let state = self.requester.poll_transmit(&mut self.shared, host, tx);
        self.settle(host);
        state
    }

    /// Tells the QP that the link accepts no more packets. The ACK timer runs during this time: an
    /// RC QP on a link that never drains ends with `RETRY_EXC_ERR`, like one whose packets are
    /// lost.
    pub fn on_link_full(&mut self, now: Instant) {
        self.requester.on_link_full(&self.shared, now);
    }

    /// Tells the QP that the full link has sent packets of other QPs. A QP with nothing in flight
    /// then only waits for its turn, so its ACK timer restarts. Call it before
    /// [`Qp::handle_timeout`].
    pub fn on_link_moved(&mut self, now: Instant) {
        self.requester.on_link_moved(&self.shared, now);
    }

    /// Returns true if only an acknowledgement is due. It may be delayed to leave together with a
    /// request.
    #[inline]
    pub fn owes_only_ack(&self) -> bool {
        self.responder.replies.is_only_ack()
            && !self.flush_due
            && !self.shared.congestion.cnp_due
            && !self.requester.has_work(&self.shared)
    }

    /// Returns true if [`Qp::poll_transmit`] would send something, given room at the peer: a QP
    /// refused by [`crate::cx::FlowControl::reserve`] still has work.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.flush_due
            || self.shared.congestion.cnp_due
            || self.responder.may_respond(&self.shared)
            || self.requester.has_work(&self.shared)
    }

    /// Returns the time of the next [`Qp::handle_timeout`]; `None` if no timer runs.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (retry, pause) = (self.requester.retry.deadline(), self.shared.congestion.pause);
        if pause.is_none() { retry } else { retry.into_iter().chain(pause).min() }
    }

    /// Takes the asynchronous events raised since the last call.
    pub fn poll_event(&mut self) -> QpEvents {
        core::mem::take(&mut self.shared.events)
    }

    /// Takes the congestion counts since the last call; `None` if all are zero.
    pub fn take_congestion_counts(&mut self) -> Option<CongestionCounts> {
        let counts = &mut self.shared.congestion.counts;
        if counts.is_empty() { None } else { Some(core::mem::take(counts)) }
    }

    /// Takes the retry counts since the last call; `None` if all are zero.
    #[inline]
    pub fn take_retry_counts(&mut self) -> Option<RetryCounts> {
        let counts = &mut self.shared.retries;
        if counts.is_empty() { None } else { Some(core::mem::take(counts)) }
    }

    /// Handles an ECN mark. Only data of the connected peer counts: another host must not make this
    /// QP send, and the reaction of cards to marked acknowledgements is unknown.
    #[cold]
    fn note_mark(&mut self, now: Instant, net: &NetHeader, header: &Header) {
        let sh = &mut self.shared;
        // clause: CNP-WHEN
        let is_data = match (sh.config.service, &header.kind) {
            (Service::Rc, Kind::RcRequest(_))
            | (Service::Uc, Kind::UcRequest(_))
            | (Service::XrcTgt, Kind::XrcRequest(..)) => true,
            (Service::Rc, Kind::RcResponse(response)) | (Service::XrcIni, Kind::XrcResponse(response)) => {
                !matches!(response, Response::Ack(_) | Response::AtomicAck(..))
            }
            _ => false,
        };
        if is_data && check_request(sh, net, &header.bth).is_ok() {
            sh.congestion.on_mark(now);
        }
    }

    // clause: STATE-RESET
    fn reset(&mut self) {
        self.shared = Shared::new(self.shared.config);
        self.requester.on_reset();
        self.responder.on_reset();
        (self.flush_due, self.ack_has_waited) = (false, false);
    }

    /// Enters the state that a role requested, and ends a pause when everything sent is
    /// acknowledged.
    #[inline]
    pub(super) fn settle<H: Host>(&mut self, host: &mut H) {
        let sh = &self.shared;
        if sh.failed || sh.send_error || sh.congestion.is_pausing() {
            self.settle_slow(host);
        }
    }

    #[cold]
    fn settle_slow<H: Host>(&mut self, host: &mut H) {
        if self.shared.failed {
            self.enter_error(host);
        } else if self.shared.send_error {
            self.shared.send_error = false;
            // clause: STATE-SQE
            self.shared.set_state(QpState::Sqe);
            self.requester.flush(&mut self.shared, host);
        } else if self.is_quiescent() {
            // Nothing is left to send, so the pause is over.
            self.shared.congestion.pause = None;
        }
    }

    // clause: STATE-ERR
    #[cold]
    fn enter_error<H: Host>(&mut self, host: &mut H) {
        self.shared.set_state(QpState::Err);
        self.shared.congestion.stop();
        self.requester.flush(&mut self.shared, host);
        self.responder.flush(&mut self.shared, host);
        // A completion queue overrun during the flush changes nothing more.
        self.shared.failed = false;
        self.shared.send_error = false;
        self.flush_due = false;
    }

    /// Flushes work requests posted in SQE or ERR.
    #[inline]
    fn flush_posted<H: Host>(&mut self, host: &mut H) {
        match self.shared.state {
            _ if !core::mem::take(&mut self.flush_due) => {}
            QpState::Err => self.enter_error(host),
            QpState::Sqe => self.requester.flush(&mut self.shared, host),
            _ => {}
        }
    }
}

/// Returns true if a packet consumes a receive or begins to fill one.
pub fn takes_receive(kind: &Kind) -> bool {
    matches!(kind, Kind::Ud { .. }) || kind.request().is_some_and(receive_queue::takes_receive)
}

pub(super) fn check_request(sh: &Shared, net: &NetHeader, bth: &Bth) -> Result<(), DropReason> {
    if !sh.state.accepts_requests() {
        return Err(DropReason::BadState);
    }
    check_connection(sh, net, bth)
}

pub(super) fn check_response(sh: &Shared, net: &NetHeader, bth: &Bth) -> Result<(), DropReason> {
    if !sh.state.accepts_responses() {
        return Err(DropReason::BadState);
    }
    check_connection(sh, net, bth)
}

/// Checks the addresses and the P_Key (IBA §9.6.1.2). Any host may send datagrams.
fn check_connection(sh: &Shared, net: &NetHeader, bth: &Bth) -> Result<(), DropReason> {
    let av = &sh.attr.av;
    // clause: UDP-SOURCE-PORT, TAKE-ADDRESS, UD-ANY-SOURCE
    if sh.config.service != Service::Ud && (net.src != av.dgid || net.dst != av.sgid) {
        return Err(DropReason::Address);
    }
    // clause: TAKE-PKEY
    if !Pkey::DEFAULT.matches(bth.pkey) {
        return Err(DropReason::Pkey);
    }
    Ok(())
}
