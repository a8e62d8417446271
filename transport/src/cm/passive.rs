//! The side that is asked: REQ in, REP out, RTU in.

use super::conn::{Connection, Loading, Remote, State, Timer};
use super::error::CmError;
use super::fields;
use super::outbox::{EventKind, Origin, Outbox};
use super::req_retry::ReqRetry;
use super::settings::Settings;
use super::terms::{Accept, Ece, QpTerms, Route};
use super::times::wait;
use crate::time::Instant;
use roxe_wire::cm::{CommId, Info, RejReason, Req, TimeCode, TransactionId};
use roxe_wire::{PathMtu, Psn, Qpn};

impl Connection {
    /// A peer asks. That it may was found before.
    // clause: CM-REP-TIMEOUT
    pub(super) fn requested(id: CommId, tid: TransactionId, route: Route, req: &Req, path_mtu: PathMtu) -> Self {
        Self {
            id,
            state: State::ReqRcvd,
            remote: Some(Remote { id: req.local_comm_id, guid: req.local_ca_guid, qpn: req.local_qpn }),
            qpn: Qpn::default(),
            transport: req.transport,
            terms: asked_for(route, req, path_mtu),
            lifetime: TimeCode::default(),
            tid,
            timer: Timer::new(wait(req.local_cm_response_timeout), req.max_cm_retries),
            req_retry: ReqRetry::NONE,
            last: None,
            orphan: false,
            is_active: false,
            alternate_offered: req.has_alternate(),
            takes_alternates: false,
            loading: Loading::Nothing,
            alternate: None,
        }
    }

    /// The peer repeats its REQ. An answer that is on the way has a timer of its own, but while we
    /// are flooded with requests.
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
            State::RepSent if is_flooded => self.repeat(out),
            State::ReqRcvd => {
                let _ = self.delay(settings.service_timeout, out);
            }
            State::MraReqSent => self.repeat(out),
            State::TimeWait => out.send(self.route(), tid, fields::no(req, RejReason::StaleConnection, Info::EMPTY)),
            _ => {}
        }
    }

    /// Our program accepts.
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
        self.send_with(accept.ece.options, fields::rep(self, accept, settings), out);
        self.timer.start(now);
        Ok(())
    }

    /// The peer has our REP: it confirms, or it has sent over the connection and its RTU is late or
    /// lost.
    // clause: CM-ESTABLISH
    pub(super) fn establish(&mut self, out: &mut Outbox) -> Result<(), CmError> {
        self.check_state(&[State::RepSent, State::MraRepRcvd])?;
        self.timer.stop();
        self.state = State::Established;
        self.tell(EventKind::Established, out);
        Ok(())
    }
}

/// What a program is told of a request.
pub(super) fn request_event(origin: Origin, req: &Req, options: u32) -> EventKind {
    EventKind::ConnectRequest(origin, Box::new(req.clone()), Ece { vendor_id: req.vendor_id, options })
}

/// What the request says on the terms; the rest is our program's to say.
fn asked_for(route: Route, req: &Req, path_mtu: PathMtu) -> QpTerms {
    let path = &req.primary;
    QpTerms {
        route,
        dest_qpn: req.local_qpn,
        rq_psn: Psn::default(),
        sq_psn: req.starting_psn,
        path_mtu,
        // What the peer wants to issue we serve, and the other way round.
        // clause: CM-DEPTH
        max_dest_rd_atomic: req.initiator_depth,
        max_rd_atomic: req.responder_resources,
        retry_cnt: req.retry_count,
        rnr_retry: req.rnr_retry_count,
        timeout: path.local_ack_timeout,
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
    }
}
