//! XRC: every request names a shared receive queue, and one of another process is executed there.
//!
//! The target keeps the connection: it puts requests in order, checks what the queue pair allows,
//! remembers and answers. In the process of the queue there is a *proxy target*, with which nobody
//! is connected. It is handed one request at a time and says what came of it; it keeps what belongs
//! to the queue, the receive in use above all. The hosts carry requests and outcomes between the
//! two. May touch [`Shared`] and the host.

use crate::cx::{Host, RxPayload, SrqPlace};
use crate::qp::queue_pair::{Qp, check_request};
use crate::qp::refusal::{Answer, Outcome, Refusal};
use crate::qp::replies::{OnceKind, Op};
use crate::qp::responder::{Incoming, Open, OpenWrite, Responder, check_op_valid, has_own_answer};
use crate::qp::shared::{DropReason, QpEvents, QpState, Service, Shared};
use roxe_wire::{Bth, Kind, NakCode, NetHeader, Packet, Request, Syndrome, XrcEth};

impl Qp {
    /// The shared queue that `packet` names, if it is the request that this XRC target expects next
    /// and nothing here stands against it. The host looks where the queue is.
    pub fn next_request_for(&self, net: &NetHeader, packet: &Packet<'_>) -> Option<u32> {
        let Kind::XrcRequest(XrcEth(srqn), req) = &packet.header.kind else { return None };
        let (sh, psn) = (&self.shared, packet.header.bth.psn);
        let is_next = sh.config.service == Service::XrcTgt
            && check_request(sh, net, &packet.header.bth).is_ok()
            && psn == self.responder.progress.e_psn
            && self.responder.goes_on(*srqn)
            && self.responder.check_here(sh, req).is_ok();
        is_next.then_some(*srqn)
    }

    /// As [`Qp::handle_packet`], for a request that the process of its shared queue has executed,
    /// with this outcome.
    ///
    /// # Errors
    /// As [`Qp::handle_packet`].
    pub fn handle_executed<H: Host>(
        &mut self,
        host: &mut H,
        net: &NetHeader,
        packet: &Packet<'_>,
        outcome: Outcome,
    ) -> Result<(), DropReason> {
        self.responder.outcome = Some(outcome);
        let result = self.handle_packet(host, net, packet);
        self.responder.outcome = None;
        result
    }

    /// Whether a request is open of which more packets must come.
    pub fn is_in_message(&self) -> bool {
        self.responder.open != Open::None
    }

    /// This target is a proxy: executes one request for a target in another process, which keeps
    /// order and answers. The packet may have any PSN. What it would answer is not sent.
    pub fn execute_for_other<H: Host>(&mut self, host: &mut H, net: &NetHeader, packet: &Packet<'_>) -> Outcome {
        // A proxy owes nothing, and any packet is the one that it expects.
        self.responder.replies.reset();
        self.responder.progress.e_psn = packet.header.bth.psn;
        let result = self.handle_packet(host, net, packet);
        let events = self.poll_event() & (QpEvents::REQ_ERR | QpEvents::ACCESS_ERR | QpEvents::FATAL);
        match result {
            Ok(()) if self.shared.state != QpState::Err => Outcome::Done(self.responder.original()),
            // Its completion queue overran.
            Ok(()) => Outcome::Refused(NakCode::RemoteOperation, events),
            Err(_) => self.responder.refusal(events),
        }
    }
}

impl Responder {
    /// A message for `srqn` begins, or the open one is for it.
    // clause: XRC-ONE-QUEUE
    fn goes_on(&self, srqn: u32) -> bool {
        self.open == Open::None || srqn == self.rq.srqn
    }

    /// The word that the atomic of the remote request found.
    fn original(&self) -> u64 {
        match self.replies.newest() {
            Some(Op::Once(_, original)) => original,
            _ => 0,
        }
    }

    /// Why the remote request was not executed.
    fn refusal(&self, events: QpEvents) -> Outcome {
        match self.replies.refusal() {
            Some(Syndrome::RnrNak { .. }) => Outcome::NotReady,
            Some(Syndrome::Nak(code)) => Outcome::Refused(code, events),
            // It failed before.
            _ => Outcome::Refused(NakCode::InvalidRequest, events),
        }
    }

    /// What the queue pair of the connection itself may have against a request: its access flags,
    /// and how many requests it remembers. The proxy knows neither.
    fn check_here(&self, sh: &Shared, req: &Request) -> Result<(), Refusal> {
        check_op_valid(sh.attr.access, req)?;
        if has_own_answer(req) && !self.replies.has_room(sh.attr.max_dest_rd_atomic) {
            return Err(Refusal::TooManyReads);
        }
        Ok(())
    }

    /// A request on an extended reliable connection: as [`Responder::handle_request`], but
    /// receives, their completions and the domain of remote keys are those of the shared queue that
    /// the packet names.
    ///
    /// # Errors
    /// Why it was not executed.
    pub(crate) fn handle_xrc<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        header: (&Bth, XrcEth),
        req: &Request,
        payload: RxPayload<'_>,
    ) -> Result<(), DropReason> {
        let (bth, XrcEth(srqn)) = header;
        // clause: XRC-QUEUE-KNOWN
        let (place, outcome) = (host.select_srq(srqn), self.outcome.take());
        if bth.psn != self.progress.e_psn {
            return self.handle_request(sh, host, bth, req, payload);
        }
        // clause: XRC-ONE-QUEUE
        if place == SrqPlace::Nowhere || !self.goes_on(srqn) {
            self.replies.withdraw_nak();
            self.note_established(sh);
            return Err(self.refuse(sh, host, Refusal::SharedQueue));
        }
        self.rq.srqn = srqn;
        if place == SrqPlace::Elsewhere {
            return self.handle_elsewhere(sh, host, Incoming { bth, req, payload }, outcome);
        }
        self.handle_request(sh, host, bth, req, payload)
    }

    /// The expected request names a queue of another process.
    // clause: XRC-PROCESSES
    fn handle_elsewhere<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        incoming: Incoming<'_>,
        outcome: Option<Outcome>,
    ) -> Result<(), DropReason> {
        if let Err(refusal) = self.check_here(sh, incoming.req) {
            return Err(self.refuse(sh, host, refusal));
        }
        // Nobody has asked yet: the packet will come again.
        let Some(outcome) = outcome else { return Err(DropReason::OutOfSequence) };
        self.begin_expected(sh);
        match outcome {
            Outcome::Done(original) => {
                self.follow(sh, incoming, original);
                // clause: ACK-AFTER-DEED
                self.advance(sh, incoming);
                Ok(())
            }
            Outcome::NotReady => Err(self.refuse(sh, host, Refusal::NoReceive)),
            Outcome::Refused(code, events) => {
                sh.events.insert(events);
                self.replies.refuse(self.progress.e_psn, Answer::Nak(code), true, 0);
                sh.fail();
                Err(DropReason::InvalidRequest)
            }
        }
    }

    /// Notes what is open, and what is to be answered, after the proxy has executed a request.
    fn follow(&mut self, sh: &Shared, incoming: Incoming<'_>, original: u64) {
        let Incoming { bth, req, .. } = incoming;
        self.open = match req {
            Request::SendFirst | Request::SendMiddle => Open::Send(0),
            Request::WriteFirst(reth) => Open::Write(OpenWrite::new(reth)),
            Request::WriteMiddle => self.open,
            _ => Open::None,
        };
        match (req, OnceKind::of(req)) {
            (Request::Read(reth), _) => self.remember(sh, bth, req, Op::Read(*reth)),
            (_, Some(kind)) => self.remember(sh, bth, req, Op::Once(kind, original)),
            (_, None) => {}
        }
    }
}
