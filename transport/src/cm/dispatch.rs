//! What becomes of a message: which connection it is for, whether its sender may speak of it, and
//! what is answered to messages that fit nothing.
//!
//! Answers go to where the message came from, one for one, so nobody can make us flood a third.
//! There are two exceptions. With the rejection of a stale request goes the DREQ of the connection
//! that it makes stale: that is the same peer's. And what our program accepts is repeated until the
//! peer confirms it; but while many peers do not, only to who asks again.

use super::checks::{Rejection, addresses_fit, check_request};
use super::conn::{Connection, State};
use super::error::Ignored;
use super::fields;
use super::listen::{ListenId, Takes};
use super::manager::{Cm, Cx};
use super::outbox::{Origin, Outbox};
use super::passive;
use super::settings::Settings;
use super::terms::{AlternateAnswer, Resolution, Route};
use crate::time::Instant;
use roxe_wire::PathMtu;
use roxe_wire::cm::{
    Answered, AprStatus, CommId, Dreq, Guid, Info, Lap, Mad, Message, Rej, RejReason, Rep, Req, ServiceId, SidrReq,
    SidrStatus, TransactionId,
};

/// Who has to act on a message, if several machines share an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// The machine that listens for a service.
    Service(ServiceId),
    /// The machine that made this id.
    Id(CommId),
    /// The machine that has a connection with the sender, which does not know our id of it: every
    /// machine may be the one.
    Anyone,
}

/// Who has to act on a message.
pub const fn addressee(message: &Message) -> Addressee {
    let id = match message {
        Message::Req(req) => return Addressee::Service(req.service_id),
        Message::SidrReq(request) => return Addressee::Service(request.service_id),
        Message::Rep(rep) => rep.remote_comm_id,
        Message::Rtu(rtu) => rtu.remote_comm_id,
        Message::Mra(mra) => mra.remote_comm_id,
        Message::Rej(rej) => rej.remote_comm_id,
        Message::Dreq(dreq) => dreq.remote_comm_id,
        Message::Drep(drep) => drep.remote_comm_id,
        Message::SidrRep(reply) => reply.request_id,
        Message::Lap(lap) => lap.remote_comm_id,
        Message::Apr(apr) => apr.remote_comm_id,
    };
    if id.0 == CommId::NONE.0 { Addressee::Anyone } else { Addressee::Id(id) }
}

/// Inputs.
impl Cm {
    /// Takes a message that came from queue pair 1 at `route.remote` to ours at `route.local`.
    ///
    /// # Errors
    /// Why nothing came of it. It may have been answered nevertheless. Nobody is told but the
    /// counters.
    pub fn handle_message(&mut self, cx: &mut Cx<'_>, route: Route, mad: &Mad) -> Result<(), Ignored> {
        let tid = mad.tid;
        match &mad.message {
            Message::Req(req) => self.on_req(cx, route, mad, req),
            Message::Rep(rep) => self.on_rep(cx, route, mad, rep),
            Message::Rtu(rtu) => {
                let found = self.find(route, rtu.remote_comm_id, rtu.local_comm_id);
                let id =
                    self.or_reject(found, (route, tid), Answered::Neither, rtu.local_comm_id, rtu.remote_comm_id)?;
                self.hand(id, |conn, _, out| conn.establish(out).map_err(|_| Ignored::State))
            }
            Message::Mra(mra) => {
                let id = self.find(route, mra.remote_comm_id, mra.local_comm_id)?;
                self.hand(id, |conn, _, _| conn.on_mra(cx.now, mra))
            }
            Message::Rej(rej) => self.on_rej(cx, route, rej),
            Message::Dreq(dreq) => self.on_dreq(cx, (route, tid), dreq),
            Message::Drep(drep) => {
                let id = self.find(route, drep.remote_comm_id, drep.local_comm_id)?;
                self.hand(id, |conn, _, out| conn.on_drep(cx.now, out))
            }
            Message::SidrReq(request) => self.on_sidr_req(cx, (route, tid), request),
            Message::SidrRep(reply) => self.sidr.on_reply(cx.now, route, reply, mad.modifier, &mut self.out),
            Message::Lap(lap) => self.on_lap((route, tid), lap),
            Message::Apr(apr) => {
                let id = self.find(route, apr.remote_comm_id, apr.local_comm_id)?;
                self.hand(id, |conn, _, out| conn.on_apr(tid, apr, out))
            }
        }
    }

    /// The connection that we call `ours`, if the sender may speak of it.
    fn find(&self, route: Route, ours: CommId, theirs: CommId) -> Result<CommId, Ignored> {
        let conn = self.table.get(ours).ok_or(Ignored::UnknownId)?;
        conn.check_sender(route, theirs).map(|()| ours)
    }

    /// Lets a connection that was found act on a message.
    fn hand(
        &mut self,
        id: CommId,
        act: impl FnOnce(&mut Connection, &Settings, &mut Outbox) -> Result<(), Ignored>,
    ) -> Result<(), Ignored> {
        let Self { table, listeners, settings, out, .. } = self;
        table.with(id, listeners, |conn| act(conn, settings, out)).unwrap_or(Err(Ignored::UnknownId))
    }

    /// Tells the sender that there is no such connection, so that it does not wait for the end of
    /// its retries.
    // clause: CM-UNKNOWN
    fn or_reject(
        &mut self,
        found: Result<CommId, Ignored>,
        (route, tid): (Route, TransactionId),
        answered: Answered,
        theirs: CommId,
        ours: CommId,
    ) -> Result<CommId, Ignored> {
        if found == Err(Ignored::UnknownId) && theirs != CommId::NONE {
            self.out.send(route, tid, fields::plain(ours, theirs, answered, RejReason::InvalidCommId, Info::EMPTY));
        }
        found
    }

    fn on_rep(&mut self, cx: &mut Cx<'_>, route: Route, mad: &Mad, rep: &Rep) -> Result<(), Ignored> {
        if rep.local_comm_id == CommId::NONE {
            return Err(Ignored::Malformed);
        }
        let found = self.find(route, rep.remote_comm_id, rep.local_comm_id);
        let id = self.or_reject(found, (route, mad.tid), Answered::Rep, rep.local_comm_id, rep.remote_comm_id)?;
        let Some(conn) = self.table.get(id).filter(|conn| conn.awaits_rep()) else {
            return self.hand(id, |conn, settings, out| conn.on_duplicate_rep(settings, out));
        };
        let qpn = fields::offered_qpn(rep, conn.transport);
        // clause: CM-STALE
        if let Some(other) = self.table.by_remote_qpn(route.remote, rep.local_ca_guid, qpn) {
            self.hand(id, |conn, _, out| {
                conn.refuse_stale_rep(rep.local_comm_id, out);
                Ok(())
            })?;
            self.end_stale(cx, other);
            return Err(Ignored::Stale);
        }
        self.hand(id, |conn, _, out| {
            conn.take_rep(rep, mad.modifier, out);
            Ok(())
        })
    }

    /// The peer has begun something new with the queue pair of this connection: it is over.
    fn end_stale(&mut self, cx: &mut Cx<'_>, id: CommId) {
        let tid = cx.tid();
        // A connection that is not established ends by its own timer.
        let _ = self.hand(id, |conn, _, out| {
            conn.check_state(&[State::Established]).map_err(|_| Ignored::State)?;
            conn.send_dreq(cx.now, tid, out);
            Ok(())
        });
    }

    // clause: CM-REJ-RECEIVED
    fn on_rej(&mut self, cx: &Cx<'_>, route: Route, rej: &Rej) -> Result<(), Ignored> {
        let id = match self.find_by_guid(route, rej) {
            Some(id) => id,
            None => self.find(route, rej.remote_comm_id, rej.local_comm_id)?,
        };
        // Only a REQ is refused by somebody who gave the connection no name.
        if rej.local_comm_id == CommId::NONE && !self.table.get(id).is_some_and(Connection::awaits_rep) {
            return Err(Ignored::UnknownId);
        }
        self.hand(id, |conn, _, out| conn.on_rej(cx.now, rej, out))
    }

    /// A peer that gives up may not know our id of the connection; it says its GUID.
    fn find_by_guid(&self, route: Route, rej: &Rej) -> Option<CommId> {
        let guid: &[u8; 8] = rej.info.as_bytes().first_chunk().filter(|_| rej.reason == RejReason::Timeout)?;
        let id = self.table.by_remote_id(route.remote, Guid(u64::from_be_bytes(*guid)), rej.local_comm_id)?;
        self.find(route, id, rej.local_comm_id).ok()
    }

    /// A DREQ always ends: the DREP that its sender waits for may have been lost, and the
    /// connection forgotten since.
    // clause: CM-DREQ-UNKNOWN
    fn on_dreq(&mut self, cx: &Cx<'_>, (route, tid): (Route, TransactionId), dreq: &Dreq) -> Result<(), Ignored> {
        let (ours, theirs) = (dreq.remote_comm_id, dreq.local_comm_id);
        let found = self.find(route, ours, theirs);
        if found == Err(Ignored::UnknownId) {
            self.out.send(route, tid, fields::drep(ours, theirs));
        }
        let id = found?;
        self.hand(id, |conn, _, out| conn.on_dreq(cx.now, tid, dreq, out))
    }

    /// A peer that proposes a path for a connection that we do not know is told, so that it need
    /// not repeat it.
    // clause: CM-LAP
    fn on_lap(&mut self, (route, tid): (Route, TransactionId), lap: &Lap) -> Result<(), Ignored> {
        let (ours, theirs) = (lap.remote_comm_id, lap.local_comm_id);
        let found = self.find(route, ours, theirs);
        if found == Err(Ignored::UnknownId) {
            self.out.send(route, tid, fields::apr(ours, theirs, &AlternateAnswer::new(AprStatus::InvalidCommId)));
        }
        let id = found?;
        self.hand(id, |conn, settings, out| conn.on_lap(tid, lap, settings, out))
    }
}

/// Requests.
impl Cm {
    fn on_req(&mut self, cx: &mut Cx<'_>, route: Route, mad: &Mad, req: &Req) -> Result<(), Ignored> {
        if req.local_comm_id == CommId::NONE || req.local_ca_guid == Guid(0) {
            return Err(Ignored::Malformed);
        }
        let known = self.table.by_remote_id(route.remote, req.local_ca_guid, req.local_comm_id);
        if let Some(id) = known.filter(|id| !self.ends_time_wait(cx.now, *id)) {
            let id = self.find(route, id, req.local_comm_id)?;
            let is_flooded = self.table.is_flooded();
            return self.hand(id, |conn, settings, out| {
                conn.on_duplicate_req(mad.tid, req, settings, is_flooded, out);
                Err(Ignored::Duplicate)
            });
        }
        match self.judge(cx, route, req) {
            Ok((id, listener, path_mtu)) => {
                self.out.tell(id, passive::request_event(Origin { listener, route }, req, mad.modifier));
                let conn = Connection::requested(id, mad.tid, route, req, path_mtu);
                self.table.insert(conn, Some(listener), &mut self.listeners);
                Ok(())
            }
            Err((reason, info)) => {
                self.out.send(route, mad.tid, fields::no(req, reason, info));
                Err(if reason == RejReason::StaleConnection { Ignored::Stale } else { Ignored::Refused })
            }
        }
    }

    /// Whether the connection was in TimeWait and is over now. The peer, which came there later,
    /// may have named a new connection as it named that one before anybody looked at the timer.
    // clause: CM-TIMEWAIT
    fn ends_time_wait(&mut self, now: Instant, id: CommId) -> bool {
        let is_over = self.table.get(id).is_some_and(|conn| conn.is_over(now));
        if is_over {
            self.act_on_timer(now, id);
        }
        is_over
    }

    /// Whether a new REQ may become a connection, and of which listener; else what to answer.
    fn judge(&mut self, cx: &mut Cx<'_>, route: Route, req: &Req) -> Result<(CommId, ListenId, PathMtu), Rejection> {
        let path_mtu = check_request(route, req)?;
        // clause: CM-STALE
        if let Some(other) = self.table.by_remote_qpn(route.remote, req.local_ca_guid, req.local_qpn) {
            self.end_stale(cx, other);
            return Err((RejReason::StaleConnection, Info::EMPTY));
        }
        // clause: CM-LISTEN
        let listener = self.listeners.find(req.service_id, route.local, Takes::Connections);
        let (listener, addresses) = listener.ok_or((RejReason::InvalidServiceId, Info::EMPTY))?;
        if !addresses_fit(addresses, route, req.private_data.as_bytes()) {
            return Err((RejReason::ConsumerDefined, Info::EMPTY));
        }
        // clause: CM-BACKLOG, CM-BOUNDS
        let id = self.fresh_id(cx).filter(|_| self.listeners.enter(listener));
        let id = id.ok_or((RejReason::NoResources, Info::EMPTY))?;
        Ok((id, listener, path_mtu))
    }

    // clause: CM-SIDR
    fn on_sidr_req(
        &mut self,
        cx: &mut Cx<'_>,
        (route, tid): (Route, TransactionId),
        request: &SidrReq,
    ) -> Result<(), Ignored> {
        if request.request_id == CommId::NONE {
            return Err(Ignored::Malformed);
        }
        if self.sidr.is_asked(route, request.request_id) {
            return Err(Ignored::Duplicate);
        }
        match self.judge_lookup(cx, route, request) {
            Ok((id, listener)) => {
                self.sidr.on_request(id, tid, Origin { listener, route }, request, &mut self.out);
                Ok(())
            }
            Err(status) => {
                self.out.send(route, tid, fields::sidr_rep(request, &Resolution::refused(status)));
                Err(Ignored::Refused)
            }
        }
    }

    /// Whose a new lookup is, or what to answer.
    fn judge_lookup(
        &mut self,
        cx: &mut Cx<'_>,
        route: Route,
        request: &SidrReq,
    ) -> Result<(CommId, ListenId), SidrStatus> {
        let found = self.listeners.find(request.service_id, route.local, Takes::Lookups);
        let (listener, addresses) = found.ok_or(SidrStatus::Unsupported)?;
        if !addresses_fit(addresses, route, request.private_data.as_bytes()) {
            return Err(SidrStatus::Reject);
        }
        // clause: CM-BACKLOG, CM-BOUNDS
        let id = self.fresh_id(cx).filter(|_| self.listeners.enter(listener));
        id.map(|id| (id, listener)).ok_or(SidrStatus::Reject)
    }
}
