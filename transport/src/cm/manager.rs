//! [`Cm`], the whole state machine: verbs, timers, outputs and the dispatch of messages to
//! connections.
//!
//! A message causes at most one answer, to its sender, so that a peer cannot make us flood a third
//! party. Two exceptions: the rejection of a stale request is sent with the DREQ of the connection
//! that it makes stale, to the same peer; and an accepted request's REP is retransmitted until the
//! peer confirms it, though only on a duplicate REQ while many peers do not confirm.

use super::alternate::AlternateState;
use super::connection::{Connection, Peer, State};
use super::listen::{Accepts, Listen, Listeners};
use super::messages;
use super::messages::{Rejection, addresses_fit, check_request};
use super::sidr::Sidr;
use super::table::{ClosedConnections, Table};
use super::terms::{
    Accept, Alternate, AlternateAnswer, CmError, Connect, Ece, Event, EventKind, Ignored, ListenId, Origin, Outbox,
    Outgoing, QpTerms, Refusal, Resolution, Resolve, Route, Settings,
};
use crate::time::Instant;
use core::fmt;
use roxe_wire::PathMtu;
use roxe_wire::cm::{
    Answered, AprStatus, CommId, Dreq, Guid, Info, Lap, Mad, Message, PrivateData, Rej, RejReason, Rep, Req, ServiceId,
    SidrReq, SidrStatus, TimeCode, TransactionId,
};

/// Inputs of a call.
pub struct Cx<'a> {
    /// Current time.
    pub now: Instant,
    /// Source of unpredictable numbers for ids and transactions.
    pub random: &'a mut dyn FnMut() -> u64,
}

impl Cx<'_> {
    pub(super) fn tid(&mut self) -> TransactionId {
        TransactionId((self.random)())
    }
}

impl fmt::Debug for Cx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx").field("now", &self.now).finish_non_exhaustive()
    }
}

/// All connections and lookups of one device.
#[derive(Debug)]
pub struct Cm {
    pub(super) settings: Settings,
    pub(super) listeners: Listeners,
    pub(super) table: Table,
    pub(super) sidr: Sidr,
    pub(super) closed: ClosedConnections,
    pub(super) out: Outbox,
}

impl Cm {
    /// Creates a state machine without connections.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            listeners: Listeners::default(),
            table: Table::default(),
            sidr: Sidr::default(),
            closed: ClosedConnections::default(),
            out: Outbox::default(),
        }
    }

    /// Starts listening for a service.
    ///
    /// # Errors
    /// [`CmError::InUse`] if another listener uses the service id.
    pub fn listen(&mut self, listen: Listen) -> Result<ListenId, CmError> {
        self.listeners.add(listen)
    }

    /// Stops listening. Pending requests can still be answered.
    ///
    /// # Errors
    /// [`CmError::UnknownId`].
    pub fn stop_listening(&mut self, id: ListenId) -> Result<(), CmError> {
        if self.listeners.remove(id) { Ok(()) } else { Err(CmError::UnknownId) }
    }

    /// Requests a connection. Ends in [`ConnectReply`](super::EventKind::ConnectReply),
    /// [`Rejected`](super::EventKind::Rejected), [`Stale`](super::EventKind::Stale) or
    /// [`Unreachable`](super::EventKind::Unreachable).
    ///
    /// # Errors
    /// [`CmError::Full`].
    pub fn connect(&mut self, cx: &mut Cx<'_>, connect: &Connect) -> Result<CommId, CmError> {
        let (id, tid) = (self.fresh_id(cx).ok_or(CmError::Full)?, cx.tid());
        let conn = Connection::connect(cx.now, id, tid, connect, &self.settings, &mut self.out);
        self.table.insert(conn, None, &mut self.listeners);
        Ok(id)
    }

    /// Accepts a request (passive side). The queue pair must be ready to receive.
    ///
    /// # Errors
    /// [`CmError::UnknownId`] or [`CmError::State`] if the request was withdrawn or is answered.
    pub fn accept(&mut self, cx: &mut Cx<'_>, id: CommId, accept: &Accept) -> Result<(), CmError> {
        self.with(id, |conn, settings, out| conn.accept(cx.now, accept, settings, out))
    }

    /// Confirms the peer's REP (active side). The queue pair must be ready to receive and send.
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept).
    pub fn confirm(&mut self, id: CommId, private_data: &PrivateData<224>) -> Result<(), CmError> {
        self.with(id, |conn, _, out| conn.confirm(private_data, out))
    }

    /// Rejects a REQ or REP of the peer. The id is free afterwards.
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept).
    pub fn reject(&mut self, id: CommId, refusal: &Refusal) -> Result<(), CmError> {
        self.with(id, |conn, _, out| conn.reject(refusal, out))
    }

    /// Requests the peer to wait for our answer, for at least `service_timeout`. If the program
    /// does not call this, a peer that retransmits its message is requested to wait for
    /// [`Settings::service_timeout`].
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept).
    pub fn delay(&mut self, id: CommId, service_timeout: TimeCode) -> Result<(), CmError> {
        self.with(id, |conn, _, out| conn.delay(service_timeout, out))
    }

    /// Handles data that arrived over the connection: the peer has our REP, although its RTU is
    /// late or lost (passive side).
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept).
    pub fn establish(&mut self, id: CommId) -> Result<(), CmError> {
        self.with(id, |conn, _, out| conn.establish(out))
    }

    /// Ends a connection, or agrees to its end.
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept).
    pub fn disconnect(&mut self, cx: &mut Cx<'_>, id: CommId) -> Result<(), CmError> {
        let tid = cx.tid();
        self.with(id, |conn, _, out| conn.disconnect(cx.now, tid, out))
    }

    /// Enables events for alternate paths proposed by the peer, which are refused by default. An
    /// accepted path directs our packets, so the program should check its addresses.
    ///
    /// # Errors
    /// [`CmError::UnknownId`].
    // clause: CM-LAP
    pub fn enable_alternate_events(&mut self, id: CommId, enable: bool) -> Result<(), CmError> {
        self.with(id, |conn, _, _| {
            conn.has_alternate_events = enable;
            Ok(())
        })
    }

    /// Proposes an alternate path to the peer. Ends in
    /// [`AlternateReply`](super::EventKind::AlternateReply) or
    /// [`AlternateUnanswered`](super::EventKind::AlternateUnanswered), unless the connection ends
    /// before.
    ///
    /// # Errors
    /// [`CmError::UnknownId`]; [`CmError::State`] if the connection is not established or another
    /// proposal is pending.
    pub fn load_alternate(&mut self, cx: &mut Cx<'_>, id: CommId, alternate: &Alternate) -> Result<(), CmError> {
        let tid = cx.tid();
        self.with(id, |conn, settings, out| conn.load_alternate(cx.now, tid, alternate, settings, out))
    }

    /// Answers the peer's proposal. To report success, the queue pair must have the path.
    ///
    /// # Errors
    /// [`CmError::UnknownId`]; [`CmError::State`] if no proposal is pending.
    pub fn answer_alternate(&mut self, id: CommId, answer: &AlternateAnswer) -> Result<(), CmError> {
        self.with(id, |conn, _, out| conn.answer_alternate(answer, out))
    }

    /// Handles the migration of the queue pair to the alternate path: messages now use that path
    /// too.
    ///
    /// # Errors
    /// [`CmError::UnknownId`]; [`CmError::State`] if there is no alternate path.
    pub fn on_migrated(&mut self, id: CommId) -> Result<(), CmError> {
        self.with(id, |conn, _, _| conn.migrate())
    }

    /// Handles the death of the peer process, like the DREQ that the peer's system would have sent.
    /// Ends in [`Disconnected`](super::EventKind::Disconnected).
    ///
    /// # Errors
    /// [`CmError::UnknownId`]; [`CmError::State`] if the connection does not depend on the process.
    // clause: CM-PEER-GONE
    pub fn lose_peer(&mut self, cx: &mut Cx<'_>, id: CommId) -> Result<(), CmError> {
        let (Some(conn), tid) = (self.table.get(id), cx.tid()) else { return Err(CmError::UnknownId) };
        let (remote_qpn, route) = (conn.qpn, conn.route());
        let theirs = conn.peer().ok_or(CmError::State)?.theirs;
        let dreq = Dreq { local_comm_id: theirs, remote_comm_id: id, remote_qpn, private_data: PrivateData::EMPTY };
        let mad = Mad { tid, modifier: 0, message: dreq.into() };
        self.handle_message(cx, route, &mad).map_err(|_| CmError::State)
    }

    /// Handles a report of the network that the peer does not exist: gives up, as after the last
    /// retry. Ends in [`Unreachable`](super::EventKind::Unreachable).
    ///
    /// # Errors
    /// [`CmError::UnknownId`]; [`CmError::State`] if `id` is not an unanswered request.
    pub fn give_up(&mut self, id: CommId) -> Result<(), CmError> {
        self.with(id, |conn, settings, out| {
            conn.check_state(&[State::ReqSent])?;
            conn.give_up(settings, out);
            Ok(())
        })
    }

    /// Looks up a datagram service. Ends in [`LookupReply`](super::EventKind::LookupReply) or
    /// [`Unreachable`](super::EventKind::Unreachable).
    ///
    /// # Errors
    /// [`CmError::Full`].
    pub fn resolve(&mut self, cx: &mut Cx<'_>, resolve: &Resolve) -> Result<CommId, CmError> {
        let (id, tid) = (self.fresh_id(cx).ok_or(CmError::Full)?, cx.tid());
        self.sidr.resolve(cx.now, id, tid, resolve, &mut self.out);
        Ok(id)
    }

    /// Answers a lookup. The id is free afterwards.
    ///
    /// # Errors
    /// [`CmError::UnknownId`].
    pub fn answer(&mut self, id: CommId, resolution: &Resolution) -> Result<(), CmError> {
        self.sidr.answer(id, resolution, &mut self.listeners, &mut self.out)
    }

    /// Releases a connection or a lookup: no more events. The state machine keeps it until the peer
    /// has been informed.
    ///
    /// # Errors
    /// [`CmError::UnknownId`].
    pub fn destroy(&mut self, cx: &mut Cx<'_>, id: CommId) -> Result<(), CmError> {
        if self.sidr.destroy(id, &mut self.listeners, &mut self.out) {
            return Ok(());
        }
        let tid = cx.tid();
        self.with(id, |conn, settings, out| {
            conn.destroy(cx.now, tid, settings, out);
            Ok(())
        })
    }

    /// Releases a connection or a lookup at the end of the process, like
    /// [`destroy`](Self::destroy). Call it for each id of [`all`](Self::all). Further calls
    /// retransmit the final message, because no process will be left to do so over a lossy network.
    // clause: CM-PARTING
    pub fn shut_down(&mut self, cx: &mut Cx<'_>, id: CommId) {
        let tid = cx.tid();
        let Self { table, listeners, settings, out, sidr, closed } = self;
        if sidr.destroy(id, listeners, out) {
            return;
        }
        if table.with(id, listeners, |conn| conn.shut_down(cx.now, tid, settings, out)).is_none() {
            closed.retransmit(cx.now, id, out);
        }
    }

    /// Applies a verb to a connection that the program still owns.
    fn with(
        &mut self,
        id: CommId,
        verb: impl FnOnce(&mut Connection, &Settings, &mut Outbox) -> Result<(), CmError>,
    ) -> Result<(), CmError> {
        if self.table.get(id).is_none_or(|conn| conn.orphan) {
            return Err(CmError::UnknownId);
        }
        let Self { table, listeners, settings, out, .. } = self;
        table.with(id, listeners, |conn| verb(conn, settings, out)).unwrap_or(Err(CmError::UnknownId))
    }

    /// Returns an unused id, or `None` at the limit.
    // clause: CM-ID, CM-BOUNDS
    pub(super) fn fresh_id(&self, cx: &mut Cx<'_>) -> Option<CommId> {
        let Settings { prefix, max_connections, .. } = self.settings;
        if self.len() >= max_connections.min(CommId::PER_PREFIX - 1) {
            return None;
        }
        let mut serial = (cx.random)() as u32;
        loop {
            let id = CommId::with_prefix(prefix, serial);
            if id != CommId::NONE && !self.table.contains(id) && !self.sidr.contains(id) {
                return Some(id);
            }
            serial = serial.wrapping_add(1);
        }
    }

    /// Handles expired timers, if any.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.table.due_connection(now) {
            self.act_on_timer(now, id);
        }
        self.sidr.handle_timeout(now, &mut self.out);
    }

    pub(super) fn act_on_timer(&mut self, now: Instant, id: CommId) {
        let Self { table, listeners, settings, out, closed, .. } = self;
        if let Some(conn) = table.get(id) {
            closed.keep_if_ended(now, conn);
        }
        let is_flooded = table.is_flooded();
        table.with(id, listeners, |conn| conn.on_timeout(now, settings, is_flooded, out));
    }

    /// Takes the next message to send.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.out.messages.pop_front()
    }

    /// Takes the next event for the program.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// Returns the time of the next [`handle_timeout`](Self::handle_timeout); `None` if no timer
    /// runs.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.table.next_due(), self.sidr.next_due()].into_iter().flatten().min()
    }

    /// Returns the state of a connection; `None` if the connection does not exist.
    pub fn state(&self, id: CommId) -> Option<State> {
        self.table.get(id).map(|conn| conn.state)
    }

    /// Returns the alternate path negotiation of a connection; `None` if the connection does not
    /// exist.
    pub fn alternate_state(&self, id: CommId) -> Option<AlternateState> {
        self.table.get(id).map(Connection::alternate_state)
    }

    /// Returns the attributes for the queue pair; `None` until the peer has answered. Before the
    /// request is accepted, depths are the peer's offer and `rq_psn` is the program's choice.
    pub fn qp_terms(&self, id: CommId) -> Option<QpTerms> {
        let conn = self.table.get(id).filter(|conn| !conn.awaits_rep())?;
        Some(conn.terms)
    }

    /// Returns all connections and lookups with their routes, including released ones and closed
    /// ones for which [`shut_down`](Self::shut_down) may retransmit a message.
    pub fn all(&self) -> impl Iterator<Item = (CommId, Route)> {
        self.table.iter().map(|conn| (conn.id, conn.route())).chain(self.sidr.all()).chain(self.closed.all())
    }

    /// Returns the connections that end with the peer process.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        self.table.iter().filter_map(Connection::peer)
    }

    /// Returns the number of connections and lookups, including those in TimeWait.
    pub fn len(&self) -> usize {
        self.table.len() + self.sidr.len()
    }

    /// Returns true if there is no connection, no lookup, and no index entry of one.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty() && self.sidr.is_empty()
    }
}

/// The recipient of a message, if several state machines share an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// The one that listens for a service.
    Service(ServiceId),
    /// The one that created this id.
    Id(CommId),
    /// The one that has a connection with the sender, which does not know our id.
    Anyone,
}

/// Returns the recipient of a message.
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

impl Cm {
    /// Handles a message from queue pair 1 at `route.remote` to ours at `route.local`.
    ///
    /// # Errors
    /// The message had no effect, though it may have been answered; the reason is for counters.
    pub fn handle_message(&mut self, cx: &mut Cx<'_>, route: Route, mad: &Mad) -> Result<(), Ignored> {
        let tid = mad.tid;
        match &mad.message {
            Message::Req(req) => self.on_req(cx, route, mad, req),
            Message::Rep(rep) => self.on_rep(cx, route, mad, rep),
            Message::Rtu(rtu) => {
                let found = self.find(route, rtu.remote_comm_id, rtu.local_comm_id);
                let id =
                    self.reject_unknown(found, (route, tid), Answered::Neither, rtu.local_comm_id, rtu.remote_comm_id)?;
                self.apply(id, |conn, _, out| conn.establish(out).map_err(|_| Ignored::State))
            }
            Message::Mra(mra) => {
                let id = self.find(route, mra.remote_comm_id, mra.local_comm_id)?;
                self.apply(id, |conn, _, _| conn.on_mra(cx.now, mra))
            }
            Message::Rej(rej) => self.on_rej(cx, route, rej),
            Message::Dreq(dreq) => self.on_dreq(cx, (route, tid), dreq),
            Message::Drep(drep) => {
                let id = self.find(route, drep.remote_comm_id, drep.local_comm_id)?;
                self.apply(id, |conn, _, out| conn.on_drep(cx.now, out))
            }
            Message::SidrReq(request) => self.on_sidr_req(cx, (route, tid), request),
            Message::SidrRep(reply) => self.sidr.on_reply(cx.now, route, reply, mad.modifier, &mut self.out),
            Message::Lap(lap) => self.on_lap((route, tid), lap),
            Message::Apr(apr) => {
                let id = self.find(route, apr.remote_comm_id, apr.local_comm_id)?;
                self.apply(id, |conn, _, out| conn.on_apr(tid, apr, out))
            }
        }
    }

    /// Returns the connection `ours` if the sender is its peer.
    fn find(&self, route: Route, ours: CommId, theirs: CommId) -> Result<CommId, Ignored> {
        let conn = self.table.get(ours).ok_or(Ignored::UnknownId)?;
        conn.check_sender(route, theirs).map(|()| ours)
    }

    /// Applies a message to a connection.
    fn apply(
        &mut self,
        id: CommId,
        act: impl FnOnce(&mut Connection, &Settings, &mut Outbox) -> Result<(), Ignored>,
    ) -> Result<(), Ignored> {
        let Self { table, listeners, settings, out, .. } = self;
        table.with(id, listeners, |conn| act(conn, settings, out)).unwrap_or(Err(Ignored::UnknownId))
    }

    /// Rejects a message about an unknown connection, so that the sender does not wait for the end
    /// of its retries.
    // clause: CM-UNKNOWN
    fn reject_unknown(
        &mut self,
        found: Result<CommId, Ignored>,
        (route, tid): (Route, TransactionId),
        answered: Answered,
        theirs: CommId,
        ours: CommId,
    ) -> Result<CommId, Ignored> {
        if found == Err(Ignored::UnknownId) && theirs != CommId::NONE {
            self.out.send(route, tid, messages::rej(ours, theirs, answered, RejReason::InvalidCommId, Info::EMPTY));
        }
        found
    }

    fn on_rep(&mut self, cx: &mut Cx<'_>, route: Route, mad: &Mad, rep: &Rep) -> Result<(), Ignored> {
        if rep.local_comm_id == CommId::NONE {
            return Err(Ignored::Malformed);
        }
        let found = self.find(route, rep.remote_comm_id, rep.local_comm_id);
        let id = self.reject_unknown(found, (route, mad.tid), Answered::Rep, rep.local_comm_id, rep.remote_comm_id)?;
        let Some(conn) = self.table.get(id).filter(|conn| conn.awaits_rep()) else {
            return self.apply(id, |conn, settings, out| conn.on_duplicate_rep(settings, out));
        };
        let qpn = messages::offered_qpn(rep, conn.transport);
        // clause: CM-STALE
        if let Some(other) = self.table.by_remote_qpn(route.remote, rep.local_ca_guid, qpn) {
            self.apply(id, |conn, _, out| {
                conn.refuse_stale_rep(rep.local_comm_id, out);
                Ok(())
            })?;
            self.end_stale(cx, other);
            return Err(Ignored::Stale);
        }
        self.apply(id, |conn, _, out| {
            conn.take_rep(rep, mad.modifier, out);
            Ok(())
        })
    }

    /// Ends a connection whose queue pair the peer now uses for a new one.
    fn end_stale(&mut self, cx: &mut Cx<'_>, id: CommId) {
        let tid = cx.tid();
        // A connection that is not established ends by its own timer.
        let _ = self.apply(id, |conn, _, out| {
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
        // Only the rejection of a REQ lacks an id of the peer.
        if rej.local_comm_id == CommId::NONE && !self.table.get(id).is_some_and(Connection::awaits_rep) {
            return Err(Ignored::UnknownId);
        }
        self.apply(id, |conn, _, out| conn.on_rej(cx.now, rej, out))
    }

    /// Returns the connection of a peer that gives up without knowing our id: its REJ carries its
    /// GUID.
    fn find_by_guid(&self, route: Route, rej: &Rej) -> Option<CommId> {
        let guid: &[u8; 8] = rej.info.as_bytes().first_chunk().filter(|_| rej.reason == RejReason::Timeout)?;
        let id = self.table.by_remote_id(route.remote, Guid(u64::from_be_bytes(*guid)), rej.local_comm_id)?;
        self.find(route, id, rej.local_comm_id).ok()
    }

    /// Answers every DREQ: an earlier DREP may be lost and the connection forgotten.
    // clause: CM-DREQ-UNKNOWN
    fn on_dreq(&mut self, cx: &Cx<'_>, (route, tid): (Route, TransactionId), dreq: &Dreq) -> Result<(), Ignored> {
        let (ours, theirs) = (dreq.remote_comm_id, dreq.local_comm_id);
        let found = self.find(route, ours, theirs);
        if found == Err(Ignored::UnknownId) {
            self.out.send(route, tid, messages::drep(ours, theirs));
        }
        let id = found?;
        self.apply(id, |conn, _, out| conn.on_dreq(cx.now, tid, dreq, out))
    }

    /// Rejects a path for an unknown connection, so that the peer stops retransmitting its LAP.
    // clause: CM-LAP
    fn on_lap(&mut self, (route, tid): (Route, TransactionId), lap: &Lap) -> Result<(), Ignored> {
        let (ours, theirs) = (lap.remote_comm_id, lap.local_comm_id);
        let found = self.find(route, ours, theirs);
        if found == Err(Ignored::UnknownId) {
            self.out.send(route, tid, messages::apr(ours, theirs, &AlternateAnswer::new(AprStatus::InvalidCommId)));
        }
        let id = found?;
        self.apply(id, |conn, settings, out| conn.on_lap(tid, lap, settings, out))
    }

    fn on_req(&mut self, cx: &mut Cx<'_>, route: Route, mad: &Mad, req: &Req) -> Result<(), Ignored> {
        if req.local_comm_id == CommId::NONE || req.local_ca_guid == Guid(0) {
            return Err(Ignored::Malformed);
        }
        let known = self.table.by_remote_id(route.remote, req.local_ca_guid, req.local_comm_id);
        if let Some(id) = known.filter(|id| !self.ends_time_wait(cx.now, *id)) {
            let id = self.find(route, id, req.local_comm_id)?;
            let is_flooded = self.table.is_flooded();
            return self.apply(id, |conn, settings, out| {
                conn.on_duplicate_req(mad.tid, req, settings, is_flooded, out);
                Err(Ignored::Duplicate)
            });
        }
        match self.check_new_request(cx, route, req) {
            Ok((id, listener, path_mtu)) => {
                let ece = Ece { vendor_id: req.vendor_id, options: mad.modifier };
                self.out.emit(id, EventKind::ConnectRequest(Origin { listener, route }, Box::new(req.clone()), ece));
                let conn = Connection::requested(id, mad.tid, route, req, path_mtu);
                self.table.insert(conn, Some(listener), &mut self.listeners);
                Ok(())
            }
            Err((reason, info)) => {
                self.out.send(route, mad.tid, messages::reject_req(req, reason, info));
                Err(if reason == RejReason::StaleConnection { Ignored::Stale } else { Ignored::Refused })
            }
        }
    }

    /// Ends the TimeWait of a connection if its time is over; returns true in that case. The peer
    /// may reuse its id of that connection before our timer is handled.
    // clause: CM-TIMEWAIT
    fn ends_time_wait(&mut self, now: Instant, id: CommId) -> bool {
        let is_over = self.table.get(id).is_some_and(|conn| conn.is_over(now));
        if is_over {
            self.act_on_timer(now, id);
        }
        is_over
    }

    /// Checks a new REQ. Returns an id, the listener and the path MTU, or the rejection.
    fn check_new_request(
        &mut self,
        cx: &mut Cx<'_>,
        route: Route,
        req: &Req,
    ) -> Result<(CommId, ListenId, PathMtu), Rejection> {
        let path_mtu = check_request(route, req)?;
        // clause: CM-STALE
        if let Some(other) = self.table.by_remote_qpn(route.remote, req.local_ca_guid, req.local_qpn) {
            self.end_stale(cx, other);
            return Err((RejReason::StaleConnection, Info::EMPTY));
        }
        // clause: CM-LISTEN
        let listener = self.listeners.find(req.service_id, route.local, Accepts::Connections);
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
        if self.sidr.is_pending(route, request.request_id) {
            return Err(Ignored::Duplicate);
        }
        match self.check_new_lookup(cx, route, request) {
            Ok((id, listener)) => {
                self.sidr.on_request(id, tid, Origin { listener, route }, request, &mut self.out);
                Ok(())
            }
            Err(status) => {
                self.out.send(route, tid, messages::sidr_rep(request, &Resolution::refused(status)));
                Err(Ignored::Refused)
            }
        }
    }

    /// Checks a new lookup. Returns an id and the listener, or the status of the rejection.
    fn check_new_lookup(
        &mut self,
        cx: &mut Cx<'_>,
        route: Route,
        request: &SidrReq,
    ) -> Result<(CommId, ListenId), SidrStatus> {
        let found = self.listeners.find(request.service_id, route.local, Accepts::Lookups);
        let (listener, addresses) = found.ok_or(SidrStatus::Unsupported)?;
        if !addresses_fit(addresses, route, request.private_data.as_bytes()) {
            return Err(SidrStatus::Reject);
        }
        // clause: CM-BACKLOG, CM-BOUNDS
        let id = self.fresh_id(cx).filter(|_| self.listeners.enter(listener));
        id.map(|id| (id, listener)).ok_or(SidrStatus::Reject)
    }
}
