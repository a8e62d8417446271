//! The queue pair: owns both roles, routes packets to them, and walks the state machine.
//!
//! Inside `qp` only this file and [`early_packets`](super::early_packets) see both roles. A role
//! that hits a fatal error says so in `Shared`; the change of state and the flush of both queues
//! happen here, before the call that caused them returns.

use crate::cx::{Host, RxPayload, TxBatch, TxState};
use crate::qp::features::congestion::CongestionCounts;
use crate::qp::modify::{self, ModifyError};
use crate::qp::receive_queue;
use crate::qp::requester::Requester;
use crate::qp::responder::Responder;
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
/// Before dropping a `Qp`, take it to RESET or ERR: what it has reserved at
/// [`crate::cx::FlowControl`] is given back then.
#[derive(Debug)]
pub struct Qp {
    pub(super) shared: Shared,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    /// Work was posted in a state that flushes it; the next `poll_transmit` does.
    flush_due: bool,
    /// An acknowledgement lets one batch of requests go first.
    acks_last: bool,
    /// It has done so.
    ack_has_waited: bool,
}

impl Qp {
    /// A queue pair in RESET. Its receive queue is reserved whole at the first post, its send queue
    /// doubles until it holds what is under way; after that nothing allocates.
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

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.shared.config.qpn
    }

    /// Its transport service.
    pub fn service(&self) -> Service {
        self.shared.config.service
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.shared.state
    }

    /// Its attributes as set by [`Qp::modify`].
    pub fn attr(&self) -> &QpAttr {
        &self.shared.attr
    }

    /// What it was created with.
    pub fn config(&self) -> &QpConfig {
        &self.shared.config
    }

    /// In SQD: whether started requests are still being finished (`sq_draining` of `ibv_query_qp`).
    pub fn is_draining(&self) -> bool {
        self.shared.state == QpState::Sqd && !self.requester.is_drained()
    }

    /// Whether nothing is posted to the send queue and no answer is owed to the peer.
    pub fn is_quiescent(&self) -> bool {
        self.requester.sq.is_empty() && !self.responder.has_work()
    }

    /// Changes attributes and state (`man ibv_modify_qp`): to ERR both queues flush, to RESET they
    /// empty silently.
    ///
    /// # Errors
    /// The caller's fault, always; nothing changed.
    pub fn modify<H: Host>(&mut self, host: &mut H, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        let mask = mask.difference(modify::ignored(self.service()));
        let from = self.shared.state;
        let to = modify::check(&self.shared, attr, mask)?;
        self.flush_posted(host);
        if to == QpState::Reset || mask.intersects(AttrMask::AV | AttrMask::DEST_QPN) {
            self.requester.in_flight.clear(&self.shared, host);
        }
        let migrates = modify::migrates(&self.shared, attr, mask);
        modify::apply(&mut self.shared, attr, mask, to);
        if migrates {
            self.requester.migrate(&mut self.shared, host);
        }
        match (from, to) {
            (_, QpState::Reset) => {
                self.responder.rq.give_up(host);
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

    /// Queues a send work request. In SQE and ERR it is accepted and flushed by the next
    /// [`Qp::poll_transmit`].
    ///
    /// # Errors
    /// The caller's fault; nothing was queued. The data of a request is not looked at before it is
    /// sent.
    pub fn post_send(&mut self, req: &SendRequest<'_>) -> Result<(), PostError> {
        self.post_send_to_srq(0, req)
    }

    /// As [`Qp::post_send`], for the shared receive queue of the peer with the number `srqn`, of
    /// which 24 bits count. It means something on XRC only.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
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

    /// Send work requests that the queue takes now.
    pub fn send_room(&self) -> u32 {
        self.requester.sq.room()
    }

    /// Whether a host that has just posted a request may leave out [`Qp::poll_transmit`]: so much
    /// is under way that an acknowledgement is sure to come, after which it is called anyway.
    /// Several requests then share what a call costs. An answer that is owed to the peer does not
    /// wait.
    pub fn may_coalesce(&self) -> bool {
        let is_reliable = self.shared.state == QpState::Rts && self.service().is_reliable();
        is_reliable && !self.responder.has_work() && self.requester.may_coalesce()
    }

    /// Takes back the `count` newest send work requests, for a caller who posts several wholly or
    /// not at all. Works as long as no other method was called since they were posted; what has
    /// been started stays.
    pub fn retract_sends(&mut self, count: u32) {
        self.requester.sq.take_back(count, self.requester.first_unstarted);
    }

    /// Queues a receive work request. In ERR it is accepted and flushed by the next
    /// [`Qp::poll_transmit`].
    ///
    /// # Errors
    /// The caller's fault; nothing was queued.
    pub fn post_recv(&mut self, req: &RecvRequest<'_>) -> Result<(), PostError> {
        match self.shared.state {
            QpState::Reset => return Err(PostError::State),
            QpState::Err => self.flush_due = true,
            _ => {}
        }
        self.responder.rq.post(req)
    }

    /// Whether a packet of UC or UD would be dropped for nothing but the want of a receive. Takes a
    /// receive from a shared queue if there is one.
    #[inline]
    pub fn lacks_receive<H: Host>(&mut self, host: &mut H, net: &NetHeader, packet: &Packet<'_>) -> bool {
        !self.service().is_reliable() && self.lacks_datagram_receive(host, net, packet)
    }

    fn lacks_datagram_receive<H: Host>(&mut self, host: &mut H, net: &NetHeader, packet: &Packet<'_>) -> bool {
        let (service, kind) = (self.shared.config.service, &packet.header.kind);
        matches!((service, kind), (Service::Ud, Kind::Ud { .. }) | (Service::Uc, Kind::UcRequest(_)))
            && takes_receive(kind)
            && check_request(&self.shared, net, &packet.header.bth).is_ok()
            && !self.responder.rq.acquire(host)
    }

    /// The PSN of the next request in order.
    pub fn expected_psn(&self) -> Psn {
        self.responder.progress.e_psn
    }

    /// Takes in one packet addressed to this QP, its ICRC already verified.
    ///
    /// # Errors
    /// Why it was ignored, for the counters; never a reason to do anything else.
    pub fn handle_packet<H: Host>(
        &mut self,
        host: &mut H,
        net: &NetHeader,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        self.handle_with_payload(host, net, &packet.header, RxPayload::Bytes(packet.payload))
    }

    /// As [`Qp::handle_packet`], for a packet with these headers whose payload may be where another
    /// process can change it. The 8 bytes of an ATOMIC WRITE and what a tag-matching queue takes
    /// must be [`RxPayload::Bytes`].
    ///
    /// # Errors
    /// As [`Qp::handle_packet`].
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
            (Service::Rc, Kind::RcRequest(req)) => {
                check_request(sh, net, bth).and_then(|()| self.responder.handle_request(sh, host, bth, req, payload))
            }
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
                .and_then(|()| self.responder.handle_xrc(sh, host, (bth, *xrc), req, payload)),
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

    /// Takes in packets from the middle of one message that follow each other, all at once: the
    /// headers of the others differ from those of the `first` by their PSNs and ask for nothing,
    /// and `payload` is that of all, `len` bytes each. False if the outcome would not be the plain
    /// one; then nothing has been done, and they have to be handed in one by one.
    pub fn handle_joined<H: Host>(
        &mut self,
        host: &mut H,
        net: &NetHeader,
        first: &Header,
        len: usize,
        payload: RxPayload<'_>,
    ) -> bool {
        let (sh, bth) = (&mut self.shared, &first.bth);
        let is_plain = sh.config.service == Service::Rc
            && sh.attr.path_mig_state == MigState::Migrated
            && !net.is_marked()
            && len == sh.attr.path_mtu.bytes() as usize;
        if !is_plain {
            return false;
        }
        let taken = match &first.kind {
            Kind::RcRequest(req) if check_request(sh, net, bth).is_ok() => {
                self.responder.handle_joined(sh, host, bth, req, payload)
            }
            Kind::RcResponse(Response::ReadMiddle) if check_response(sh, net, bth).is_ok() => {
                self.requester.handle_joined(sh, host, bth.psn, payload)
            }
            _ => false,
        };
        self.settle(host);
        taken
    }

    /// Passes on what one role has for the other: a rendezvous to begin, or one whose data is
    /// there.
    fn serve_rendezvous(&mut self) {
        if let Some(rendezvous) = self.shared.rendezvous.take() {
            // clause: TM-RENDEZVOUS
            self.shared.rendezvous_count += 1;
            self.requester.sq.push_rendezvous(&rendezvous, self.responder.rq.last_list());
        }
        if core::mem::take(&mut self.shared.rendezvous_read) {
            // What was executed is acknowledged once more. The message that ends the rendezvous
            // goes out behind this, so the program of the peer sees its request complete first,
            // even if the acknowledgement of that was lost.
            // clause: TM-RENDEZVOUS-ORDER
            self.responder.replies.acknowledge();
        }
    }

    /// As [`Qp::handle_packet`], but a request that needs a receive finds none, whatever is posted:
    /// a fault for tests.
    ///
    /// # Errors
    /// As [`Qp::handle_packet`].
    pub fn handle_packet_without_receive<H: Host>(
        &mut self,
        host: &mut H,
        net: &NetHeader,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        self.responder.rq.starved = true;
        let result = self.handle_packet(host, net, packet);
        self.responder.rq.starved = false;
        result
    }

    /// Acts on a timer that is due; does nothing if none is.
    pub fn handle_timeout<H: Host>(&mut self, host: &mut H) {
        self.shared.congestion.on_timeout(host.now());
        self.requester.handle_timeout(&mut self.shared, host);
        self.settle(host);
    }

    /// If `acks_last`, a lone acknowledgement leaves behind one batch of requests from now on. Both
    /// orders are legal; programs should not depend on either.
    pub fn set_acks_last(&mut self, acks_last: bool) {
        self.acks_last = acks_last;
    }

    /// Writes into `tx` what may be sent now, answers to the peer first: programs expect that a
    /// send completes before the answer to it is received, as it does on hardware.
    ///
    /// When [`crate::cx::FlowControl::reserve`] refuses, the QP stops and [`TxState::Drained`] is
    /// returned; the host calls again when there is room.
    pub fn poll_transmit<H: Host, T: TxBatch>(&mut self, host: &mut H, tx: &mut T) -> TxState {
        self.flush_posted(host);
        let sh = &mut self.shared;
        if sh.congestion.notice_due && !sh.congestion.notify(tx, sh.config.qpn, sh.attr.dest_qpn, &sh.path) {
            return TxState::BatchFull;
        }
        // clause: ACK-BEFORE-REQUESTS
        let ack_waits =
            self.acks_last && !core::mem::take(&mut self.ack_has_waited) && self.responder.replies.is_only_ack();
        if ack_waits {
            self.ack_has_waited = self.send_requests(host, tx) == TxState::BatchFull;
            return if self.ack_has_waited { TxState::BatchFull } else { self.send_answers(host, tx) };
        }
        // clause: RNR-OTHERS-GO-ON
        match self.send_answers(host, tx) {
            TxState::BatchFull => TxState::BatchFull,
            TxState::Drained => self.send_requests(host, tx),
        }
    }

    #[inline]
    fn send_answers<H: Host, T: TxBatch>(&mut self, host: &mut H, tx: &mut T) -> TxState {
        if !self.responder.has_work() {
            return TxState::Drained;
        }
        let state = self.responder.replies.poll_transmit(&mut self.shared, host, tx, self.responder.progress);
        self.settle(host);
        state
    }

    #[inline]
    fn send_requests<H: Host, T: TxBatch>(&mut self, host: &mut H, tx: &mut T) -> TxState {
        if !self.requester.has_work(&self.shared) {
            return TxState::Drained;
        }
        let state = self.requester.poll_transmit(&mut self.shared, host, tx);
        self.settle(host);
        state
    }

    /// The last [`Qp::poll_transmit`] could not go on because the link takes no more packets, and
    /// the host will call it again when it does. That time counts as time without an answer: an RC
    /// QP whose link is never emptied ends with `RETRY_EXC_ERR` as one whose packets are lost, also
    /// if it could not send any.
    pub fn on_link_full(&mut self, now: Instant) {
        self.requester.on_link_full(&self.shared, now);
    }

    /// The link of [`Qp::on_link_full`] has taken packets of others since: a QP that has nothing
    /// under way only waits for its turn, which costs no retry. To be called before
    /// [`Qp::handle_timeout`].
    pub fn on_link_moved(&mut self, now: Instant) {
        self.requester.on_link_moved(&self.shared, now);
    }

    /// Whether all there is to send is an acknowledgement. It may wait a little for a request to
    /// travel with: nothing depends on it but how long the peer waits before it asks again.
    pub fn owes_only_ack(&self) -> bool {
        self.responder.replies.is_only_ack()
            && !self.flush_due
            && !self.shared.congestion.notice_due
            && !self.requester.has_work(&self.shared)
    }

    /// Whether [`Qp::poll_transmit`] would do anything, given room at the peer: a QP that was
    /// refused by [`crate::cx::FlowControl::reserve`] still has work.
    pub fn has_work(&self) -> bool {
        self.flush_due
            || self.shared.congestion.notice_due
            || self.responder.may_answer(&self.shared)
            || self.requester.has_work(&self.shared)
    }

    /// When [`Qp::handle_timeout`] wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (retry, pause) = (self.requester.retry.deadline(), self.shared.congestion.pause);
        if pause.is_none() { retry } else { retry.into_iter().chain(pause).min() }
    }

    /// Takes the asynchronous events raised since the last call.
    pub fn poll_event(&mut self) -> QpEvents {
        core::mem::take(&mut self.shared.events)
    }

    /// Takes what it met of congestion since the last call; `None`: nothing.
    pub fn take_congestion_counts(&mut self) -> Option<CongestionCounts> {
        self.shared.congestion.take_counts()
    }

    /// Takes what it met of losses since the last call; `None`: nothing.
    #[inline]
    pub fn take_retry_counts(&mut self) -> Option<RetryCounts> {
        let counts = &mut self.shared.retries;
        if counts.is_empty() { None } else { Some(core::mem::take(counts)) }
    }

    /// A packet came marked. Only data of the connected peer counts: whether cards react to marked
    /// acknowledgements is not known, and nobody else shall make us send.
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

    /// Enters the state that a role asked for, and waits for nothing that is done.
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
            // What was held back has been acknowledged meanwhile. What comes next is measured anew.
            self.shared.congestion.pause = None;
        }
    }

    // clause: STATE-ERR
    fn enter_error<H: Host>(&mut self, host: &mut H) {
        self.shared.set_state(QpState::Err);
        self.shared.congestion.stop();
        self.requester.flush(&mut self.shared, host);
        self.responder.flush(&mut self.shared, host);
        // A completion queue that overruns during the flush has nothing left to change.
        self.shared.failed = false;
        self.shared.send_error = false;
        self.flush_due = false;
    }

    /// Flushes what was posted after the queues were flushed.
    #[inline]
    fn flush_posted<H: Host>(&mut self, host: &mut H) {
        if core::mem::take(&mut self.flush_due) {
            self.flush_again(host);
        }
    }

    #[cold]
    fn flush_again<H: Host>(&mut self, host: &mut H) {
        match self.shared.state {
            QpState::Err => self.enter_error(host),
            QpState::Sqe => self.requester.flush(&mut self.shared, host),
            _ => {}
        }
    }
}

/// Whether a packet uses up or begins to use a receive.
pub fn takes_receive(kind: &Kind) -> bool {
    matches!(kind, Kind::Ud { .. }) || kind.request().is_some_and(receive_queue::takes_receive)
}

/// Refuses requests in states that do not execute them, and packets of strangers.
pub(super) fn check_request(sh: &Shared, net: &NetHeader, bth: &Bth) -> Result<(), DropReason> {
    if !sh.state.accepts_requests() {
        return Err(DropReason::BadState);
    }
    check_connection(sh, net, bth)
}

/// Refuses responses in states that cannot have asked for them, and packets of strangers.
pub(super) fn check_response(sh: &Shared, net: &NetHeader, bth: &Bth) -> Result<(), DropReason> {
    if !sh.state.accepts_responses() {
        return Err(DropReason::BadState);
    }
    check_connection(sh, net, bth)
}

/// Both addresses are those of the connection, and the P_Key is ours (IBA §9.6.1.2). Any host may
/// send datagrams.
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
