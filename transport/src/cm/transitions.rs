//! The transitions of a connection: active side, passive side, both, and timers.

use super::connection::{Connection, Loading, Remote, ReqRetry, State, Timer, ack_timeout, wait};
use super::messages;
use super::terms::{
    Accept, CmError, Connect, Ece, Ending, EventKind, Ignored, Outbox, QpTerms, Refusal, Route, Settings,
};
use crate::time::Instant;
use roxe_wire::cm::{
    Answered, CommId, Dreq, Info, Message, Mra, PrivateData, Rej, RejReason, Rep, Req, TimeCode, TransactionId,
};
use roxe_wire::{PathMtu, Psn, Qpn};

impl Connection {
    pub(super) fn connect(
        now: Instant,
        id: CommId,
        tid: TransactionId,
        connect: &Connect,
        settings: &Settings,
        out: &mut Outbox,
    ) -> Self {
        // clause: CM-REQ-TIMEOUT
        let answer = 2 * wait(connect.packet_lifetime) + wait(connect.response_timeout);
        let mut conn = Self {
            id,
            state: State::ReqSent,
            remote: None,
            qpn: connect.qpn,
            transport: connect.transport,
            // The REP supplies the missing values.
            terms: QpTerms {
                route: connect.route,
                dest_qpn: Qpn::default(),
                rq_psn: connect.psn,
                sq_psn: Psn::default(),
                path_mtu: connect.path_mtu,
                max_dest_rd_atomic: connect.responder_resources,
                max_rd_atomic: connect.initiator_depth,
                retry_cnt: connect.retry_count,
                rnr_retry: connect.rnr_retry_count,
                timeout: ack_timeout(settings.ack_delay, connect.packet_lifetime),
                flow_label: connect.flow_label,
                traffic_class: connect.traffic_class,
                hop_limit: connect.hop_limit,
            },
            lifetime: connect.packet_lifetime,
            tid,
            timer: Timer::new(answer, connect.max_cm_retries),
            req_retry: ReqRetry::new(connect.retry_for),
            last_sent: None,
            orphan: false,
            is_active: true,
            alternate_offered: false,
            has_alternate_events: false,
            loading: Loading::Nothing,
            alternate: None,
        };
        conn.send_with(connect.ece.options, messages::req(id, connect, settings), out);
        conn.timer.start(now);
        conn
    }

    /// Returns true if the REP has not arrived.
    pub(super) const fn awaits_rep(&self) -> bool {
        matches!(self.state, State::ReqSent | State::MraReqRcvd)
    }

    /// Handles the first REP, whose queue pair has no other connection.
    // clause: CM-REP
    pub(super) fn take_rep(&mut self, rep: &Rep, options: u32, out: &mut Outbox) {
        let qpn = messages::offered_qpn(rep, self.transport);
        self.timer.stop();
        self.state = State::RepRcvd;
        self.remote = Some(Remote { id: rep.local_comm_id, guid: rep.local_ca_guid, qpn });
        let terms = &mut self.terms;
        (terms.dest_qpn, terms.sq_psn, terms.rnr_retry) = (qpn, rep.starting_psn, rep.rnr_retry_count);
        // clause: CM-DEPTH
        terms.max_rd_atomic = terms.max_rd_atomic.min(rep.responder_resources);
        terms.max_dest_rd_atomic = terms.max_dest_rd_atomic.min(rep.initiator_depth);
        terms.timeout = ack_timeout(rep.target_ack_delay, self.lifetime);
        let ece = Ece { vendor_id: rep.vendor_id, options };
        self.emit(EventKind::ConnectReply(Box::new(rep.clone()), ece), out);
    }

    /// Handles a duplicate REP: our RTU is lost or not yet sent.
    // clause: CM-REP-DUPLICATE
    pub(super) fn on_duplicate_rep(&mut self, settings: &Settings, out: &mut Outbox) -> Result<(), Ignored> {
        match self.state {
            State::RepRcvd => self.delay(settings.service_timeout, out).map_err(|_| Ignored::State)?,
            State::MraRepSent => self.retransmit(out),
            State::Established if self.is_active => self.retransmit(out),
            _ => return Err(Ignored::State),
        }
        Ok(())
    }

    pub(super) fn confirm(&mut self, private_data: &PrivateData<224>, out: &mut Outbox) -> Result<(), CmError> {
        self.check_state(&[State::RepRcvd, State::MraRepSent])?;
        self.state = State::Established;
        self.send(messages::rtu(self, private_data), out);
        Ok(())
    }

    // clause: CM-REP-TIMEOUT
    pub(super) fn requested(id: CommId, tid: TransactionId, route: Route, req: &Req, path_mtu: PathMtu) -> Self {
        Self {
            id,
            state: State::ReqRcvd,
            remote: Some(Remote { id: req.local_comm_id, guid: req.local_ca_guid, qpn: req.local_qpn }),
            qpn: Qpn::default(),
            transport: req.transport,
            // `accept` supplies our PSN and depths.
            terms: QpTerms {
                route,
                dest_qpn: req.local_qpn,
                rq_psn: Psn::default(),
                sq_psn: req.starting_psn,
                path_mtu,
                // The peer's initiator depth is what we serve, and vice versa.
                // clause: CM-DEPTH
                max_dest_rd_atomic: req.initiator_depth,
                max_rd_atomic: req.responder_resources,
                retry_cnt: req.retry_count,
                rnr_retry: req.rnr_retry_count,
                timeout: req.primary.local_ack_timeout,
                flow_label: req.primary.flow_label,
                traffic_class: req.primary.traffic_class,
                hop_limit: req.primary.hop_limit,
            },
            lifetime: TimeCode::default(),
            tid,
            timer: Timer::new(wait(req.local_cm_response_timeout), req.max_cm_retries),
            req_retry: ReqRetry::NONE,
            last_sent: None,
            orphan: false,
            is_active: false,
            alternate_offered: req.has_alternate(),
            has_alternate_events: false,
            loading: Loading::Nothing,
            alternate: None,
        }
    }

    /// Handles a duplicate REQ. A REP has a retry timer of its own, except during a flood.
    // clause: CM-REQ-DUPLICATE
    pub(super) fn on_duplicate_req(
        &mut self,
        tid: TransactionId,
        req: &Req,
        settings: &Settings,
        is_flooded: bool,
        out: &mut Outbox,
    ) {
        match self.state {
            // clause: CM-FLOOD
            State::RepSent if is_flooded => self.retransmit(out),
            State::ReqRcvd => {
                let _ = self.delay(settings.service_timeout, out);
            }
            State::MraReqSent => self.retransmit(out),
            State::TimeWait => {
                out.send(self.route(), tid, messages::reject_req(req, RejReason::StaleConnection, Info::EMPTY))
            }
            _ => {}
        }
    }

    pub(super) fn accept(
        &mut self,
        now: Instant,
        accept: &Accept,
        settings: &Settings,
        out: &mut Outbox,
    ) -> Result<(), CmError> {
        self.check_state(&[State::ReqRcvd, State::MraReqSent])?;
        self.qpn = accept.qpn;
        self.terms.rq_psn = accept.psn;
        self.terms.max_rd_atomic = self.terms.max_rd_atomic.min(accept.initiator_depth);
        self.terms.max_dest_rd_atomic = self.terms.max_dest_rd_atomic.min(accept.responder_resources);
        self.state = State::RepSent;
        self.send_with(accept.ece.options, messages::rep(self, accept, settings), out);
        self.timer.start(now);
        Ok(())
    }

    /// Handles proof that the peer has our REP: its RTU, or data while the RTU is late or lost.
    // clause: CM-ESTABLISH
    pub(super) fn establish(&mut self, out: &mut Outbox) -> Result<(), CmError> {
        self.check_state(&[State::RepSent, State::MraRepRcvd])?;
        self.timer.stop();
        self.state = State::Established;
        self.emit(EventKind::Established, out);
        Ok(())
    }

    // clause: CM-REJECT
    pub(super) fn reject(&mut self, refusal: &Refusal, out: &mut Outbox) -> Result<(), CmError> {
        self.check_state(&[State::ReqRcvd, State::MraReqSent, State::RepRcvd, State::MraRepSent])?;
        self.send_rejection(refusal, out);
        Ok(())
    }

    pub(super) fn send_rejection(&mut self, refusal: &Refusal, out: &mut Outbox) {
        out.send(self.route(), self.tid, messages::rejection(self, refusal));
        self.finish();
    }

    /// Sends an MRA: our program needs longer to accept, to confirm, or to load a path.
    // clause: CM-MRA
    pub(super) fn delay(&mut self, service_timeout: TimeCode, out: &mut Outbox) -> Result<(), CmError> {
        self.state = match self.state {
            State::ReqRcvd => State::MraReqSent,
            State::RepRcvd => State::MraRepSent,
            State::Established => return self.delay_alternate(service_timeout, out),
            _ => return Err(CmError::State),
        };
        self.send(messages::mra(self, service_timeout), out);
        Ok(())
    }

    /// Handles an MRA: waits for the requested time and the packets' lifetime, once.
    // clause: CM-MRA
    pub(super) fn on_mra(&mut self, now: Instant, mra: &Mra) -> Result<(), Ignored> {
        match (self.state, mra.answered, &mut self.loading) {
            (State::ReqSent, Answered::Req, _) => self.state = State::MraReqRcvd,
            (State::RepSent, Answered::Rep, _) => self.state = State::MraRepRcvd,
            (State::Established, Answered::Neither, Loading::LapSent { mra_received: mra_received @ false, .. }) => {
                *mra_received = true
            }
            _ => return Err(Ignored::State),
        }
        self.timer.due = Some(now.after(wait(mra.service_timeout) + wait(self.terms.timeout)));
        Ok(())
    }

    // clause: CM-REJ-RECEIVED
    pub(super) fn on_rej(&mut self, now: Instant, rej: &Rej, out: &mut Outbox) -> Result<(), Ignored> {
        let old_state = self.state;
        match old_state {
            State::ReqSent if rej.reason == RejReason::InvalidServiceId && self.req_retry.is_pausing => {
                return Err(Ignored::Duplicate);
            }
            State::ReqSent if rej.reason == RejReason::InvalidServiceId && self.schedule_retry(now) => return Ok(()),
            State::TimeWait | State::DreqRcvd | State::Idle => return Err(Ignored::State),
            State::Established | State::DreqSent => {
                self.enter_time_wait(now);
                self.emit(EventKind::Disconnected(Ending::Rejected), out);
                return Ok(());
            }
            _ => self.emit(EventKind::Rejected(Box::new(rej.clone())), out),
        }
        self.orphan = true;
        // Late packets may still be in the network if the queue pairs were connected, or if one of
        // them has an older connection.
        if rej.reason == RejReason::StaleConnection || matches!(old_state, State::RepRcvd | State::MraRepSent) {
            self.enter_time_wait(now);
        } else {
            self.finish();
        }
        Ok(())
    }

    /// Rejects a REP whose queue pair belongs to another connection of ours.
    // clause: CM-STALE
    pub(super) fn refuse_stale_rep(&mut self, theirs: CommId, out: &mut Outbox) {
        let refusal = messages::rej(self.id, theirs, Answered::Rep, RejReason::StaleConnection, Info::EMPTY);
        out.send(self.route(), self.tid, refusal);
        self.emit(EventKind::Stale, out);
        self.finish();
    }

    // clause: CM-DISCONNECT
    pub(super) fn disconnect(&mut self, now: Instant, tid: TransactionId, out: &mut Outbox) -> Result<(), CmError> {
        match self.state {
            State::Established => self.send_dreq(now, tid, out),
            State::DreqRcvd => self.send_drep(now, self.tid, out),
            _ => return Err(CmError::State),
        }
        Ok(())
    }

    pub(super) fn send_dreq(&mut self, now: Instant, tid: TransactionId, out: &mut Outbox) {
        self.state = State::DreqSent;
        self.tid = tid;
        self.send(messages::dreq(self), out);
        self.timer.start(now);
    }

    pub(super) fn send_drep(&mut self, now: Instant, tid: TransactionId, out: &mut Outbox) {
        self.answer_dreq(tid, out);
        self.enter_time_wait(now);
    }

    /// Returns true if our DREP ended the connection; the peer may not have got it.
    pub(super) fn ended_by_peer(&self) -> bool {
        self.last_sent.as_ref().is_some_and(|mad| matches!(mad.message, Message::Drep(_)))
    }

    fn answer_dreq(&mut self, tid: TransactionId, out: &mut Outbox) {
        self.tid = tid;
        self.send(messages::drep(self.id, self.remote_id()), out);
    }

    /// Releases the connection as the kernel does, except that a DREQ is retransmitted.
    // clause: CM-DESTROY
    pub(super) fn destroy(&mut self, now: Instant, tid: TransactionId, settings: &Settings, out: &mut Outbox) {
        self.orphan = true;
        match self.state {
            State::ReqSent | State::MraReqRcvd => self.give_up(settings, out),
            State::Established => self.send_dreq(now, tid, out),
            State::DreqRcvd => self.send_drep(now, self.tid, out),
            State::DreqSent | State::TimeWait | State::Idle => {}
            _ => self.send_rejection(&Refusal::new(PrivateData::EMPTY), out),
        }
    }

    /// Ends the connection at the end of the process: sends or retransmits the final message.
    // clause: CM-PARTING
    pub(super) fn shut_down(&mut self, now: Instant, tid: TransactionId, settings: &Settings, out: &mut Outbox) {
        self.orphan = true;
        match self.state {
            State::DreqSent => self.retransmit(out),
            State::TimeWait if self.ended_by_peer() => self.retransmit(out),
            _ => self.destroy(now, tid, settings, out),
        }
    }

    // clause: CM-DREQ
    pub(super) fn on_dreq(
        &mut self,
        now: Instant,
        tid: TransactionId,
        dreq: &Dreq,
        out: &mut Outbox,
    ) -> Result<(), Ignored> {
        if dreq.remote_qpn != self.qpn {
            return Err(Ignored::Qpn);
        }
        match self.state {
            State::RepSent | State::MraRepRcvd | State::Established => {
                self.timer.stop();
                self.tid = tid;
                self.state = State::DreqRcvd;
                self.emit(EventKind::Disconnected(Ending::Requested), out);
            }
            // Both ends disconnect: our program has already agreed.
            // clause: CM-DREQ-CROSSING
            State::DreqSent => {
                self.send_drep(now, tid, out);
                self.emit(EventKind::Disconnected(Ending::Agreed), out);
            }
            State::TimeWait => self.answer_dreq(tid, out),
            State::DreqRcvd => return Err(Ignored::Duplicate),
            _ => return Err(Ignored::State),
        }
        Ok(())
    }

    pub(super) fn on_drep(&mut self, now: Instant, out: &mut Outbox) -> Result<(), Ignored> {
        if self.state != State::DreqSent {
            return Err(Ignored::State);
        }
        self.enter_time_wait(now);
        self.emit(EventKind::Disconnected(Ending::Agreed), out);
        Ok(())
    }

    /// Handles an expired timer. During a flood unconfirmed REPs are not retransmitted: a peer that
    /// waits for one retransmits its REQ.
    pub(super) fn on_timeout(&mut self, now: Instant, settings: &Settings, is_flooded: bool, out: &mut Outbox) {
        match self.state {
            State::ReqSent if self.req_retry.is_pausing => {
                self.req_retry.is_pausing = false;
                self.retransmit(out);
                self.timer.start(now);
            }
            // clause: CM-FLOOD
            State::RepSent | State::MraRepRcvd if is_flooded => {
                if !self.timer.restart(now) {
                    self.emit(EventKind::Unreachable, out);
                    self.finish();
                }
            }
            State::ReqSent | State::MraReqRcvd | State::RepSent | State::MraRepRcvd => {
                if self.timer.restart(now) {
                    self.retransmit(out);
                } else {
                    self.give_up(settings, out);
                }
            }
            State::Established => self.on_alternate_timeout(now, out),
            State::DreqSent if self.timer.restart(now) => self.retransmit(out),
            State::DreqSent => {
                self.enter_time_wait(now);
                self.emit(EventKind::Disconnected(Ending::TimedOut), out);
            }
            State::TimeWait => {
                self.emit(EventKind::TimeWaitExit, out);
                self.finish();
            }
            _ => self.timer.stop(),
        }
    }

    /// Gives up on a silent peer. Sends it a REJ, because perhaps only the peer's messages are
    /// lost.
    // clause: CM-RETRIES
    pub(super) fn give_up(&mut self, settings: &Settings, out: &mut Outbox) {
        out.send(self.route(), self.tid, messages::timeout(self, settings.guid));
        self.emit(EventKind::Unreachable, out);
        self.finish();
    }

    /// Schedules a retry while the peer has no listener. Returns false if the time for retries is
    /// over.
    // clause: CM-REQ-AGAIN
    pub(super) fn schedule_retry(&mut self, now: Instant) -> bool {
        let next = self.req_retry.pause(now);
        self.timer.due = next.or(self.timer.due);
        next.is_some()
    }
}
