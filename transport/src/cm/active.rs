//! The side that asks: REQ out, REP in, RTU out.

use super::conn::{Connection, Loading, Remote, State, Timer};
use super::error::{CmError, Ignored};
use super::fields;
use super::outbox::{EventKind, Outbox};
use super::req_retry::ReqRetry;
use super::settings::Settings;
use super::terms::{Connect, Ece, QpTerms};
use super::times::{ack_timeout, wait};
use crate::time::Instant;
use roxe_wire::cm::{CommId, PrivateData, Rep, TransactionId};
use roxe_wire::{Psn, Qpn};

impl Connection {
    /// Asks a peer.
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
            terms: proposed(connect, settings),
            lifetime: connect.packet_lifetime,
            tid,
            timer: Timer::new(answer, connect.max_cm_retries),
            req_retry: ReqRetry::new(connect.retry_for),
            last: None,
            orphan: false,
            is_active: true,
            alternate_offered: false,
            takes_alternates: false,
            loading: Loading::Nothing,
            alternate: None,
        };
        conn.send_with(connect.ece.options, fields::req(id, connect, settings), out);
        conn.timer.start(now);
        conn
    }

    /// Whether a REP is the first answer to our REQ.
    pub(super) const fn awaits_rep(&self) -> bool {
        matches!(self.state, State::ReqSent | State::MraReqRcvd)
    }

    /// The peer accepts. That its queue pair belongs to no other connection was found before.
    // clause: CM-REP
    pub(super) fn take_rep(&mut self, rep: &Rep, options: u32, out: &mut Outbox) {
        let qpn = fields::offered_qpn(rep, self.transport);
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
        self.tell(EventKind::ConnectReply(Box::new(rep.clone()), ece), out);
    }

    /// The peer has not got our answer yet, or our program did not give one.
    // clause: CM-REP-DUPLICATE
    pub(super) fn on_duplicate_rep(&mut self, settings: &Settings, out: &mut Outbox) -> Result<(), Ignored> {
        match self.state {
            State::RepRcvd => self.delay(settings.service_timeout, out).map_err(|_| Ignored::State)?,
            State::MraRepSent => self.repeat(out),
            State::Established if self.is_active => self.repeat(out),
            _ => return Err(Ignored::State),
        }
        Ok(())
    }

    /// Our program accepts the peer's answer: both ends may send.
    pub(super) fn confirm(&mut self, private_data: &PrivateData<224>, out: &mut Outbox) -> Result<(), CmError> {
        self.check_state(&[State::RepRcvd, State::MraRepSent])?;
        self.state = State::Established;
        self.send(fields::rtu(self, private_data), out);
        Ok(())
    }
}

/// What we have to say on the terms; the rest is in the peer's answer.
fn proposed(connect: &Connect, settings: &Settings) -> QpTerms {
    QpTerms {
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
    }
}
