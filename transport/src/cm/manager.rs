//! [`Cm`]: the whole machine, as programs use it. What becomes of messages is in `dispatch.rs`.

use super::alternate::AlternateState;
use super::closed::ClosedConnections;
use super::conn::{Connection, Peer, State};
use super::error::CmError;
use super::listen::{Listen, ListenId, Listeners};
use super::outbox::{Event, Outbox, Outgoing};
use super::settings::Settings;
use super::sidr::Sidr;
use super::table::Table;
use super::terms::{Accept, Alternate, AlternateAnswer, Connect, QpTerms, Refusal, Resolution, Resolve, Route};
use crate::time::Instant;
use core::fmt;
use roxe_wire::cm::{CommId, Dreq, Mad, PrivateData, TimeCode, TransactionId};

/// What a call takes from outside.
pub struct Cx<'a> {
    /// The time.
    pub now: Instant,
    /// Unpredictable numbers, for ids and transactions.
    pub random: &'a mut dyn FnMut() -> u64,
}

impl Cx<'_> {
    /// A new transaction.
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

/// Verbs of the program.
impl Cm {
    /// A machine without connections.
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

    /// Takes requests for a service from now on.
    ///
    /// # Errors
    /// [`CmError::InUse`]: another listener takes the same.
    pub fn listen(&mut self, listen: Listen) -> Result<ListenId, CmError> {
        self.listeners.add(listen)
    }

    /// Takes no more requests. Those that wait can still be answered.
    ///
    /// # Errors
    /// [`CmError::UnknownId`].
    pub fn stop_listening(&mut self, id: ListenId) -> Result<(), CmError> {
        if self.listeners.remove(id) { Ok(()) } else { Err(CmError::UnknownId) }
    }

    /// Asks a peer for a connection. Comes to [`ConnectReply`](super::EventKind::ConnectReply),
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

    /// Passive side: accepts. The queue pair must be ready to receive.
    ///
    /// # Errors
    /// [`CmError::UnknownId`], [`CmError::State`]: the request is no more, or was answered.
    pub fn accept(&mut self, cx: &mut Cx<'_>, id: CommId, accept: &Accept) -> Result<(), CmError> {
        self.with(id, |conn, settings, out| conn.accept(cx.now, accept, settings, out))
    }

    /// Active side: confirms what the peer accepted. The queue pair must be ready to receive and
    /// send.
    ///
    /// # Errors
    /// As with [`accept`](Self::accept).
    pub fn confirm(&mut self, id: CommId, private_data: &PrivateData<224>) -> Result<(), CmError> {
        self.with(id, |conn, _, out| conn.confirm(private_data, out))
    }

    /// Refuses a request or an answer of the peer. The id is free.
    ///
    /// # Errors
    /// As with [`accept`](Self::accept).
    pub fn reject(&mut self, id: CommId, refusal: &Refusal) -> Result<(), CmError> {
        self.with(id, |conn, _, out| conn.reject(refusal, out))
    }

    /// Asks the peer to wait for our answer, at least as long as the 5-bit code says. Without this
    /// verb a peer that repeats itself is told to wait as [`Settings::service_timeout`] says.
    ///
    /// # Errors
    /// As with [`accept`](Self::accept).
    pub fn delay(&mut self, id: CommId, service_timeout: TimeCode) -> Result<(), CmError> {
        self.with(id, |conn, _, out| conn.delay(service_timeout, out))
    }

    /// Passive side: something came over the connection, so the peer has our answer.
    ///
    /// # Errors
    /// As with [`accept`](Self::accept).
    pub fn establish(&mut self, id: CommId) -> Result<(), CmError> {
        self.with(id, |conn, _, out| conn.establish(out))
    }

    /// Ends a connection, or agrees with its end.
    ///
    /// # Errors
    /// As with [`accept`](Self::accept).
    pub fn disconnect(&mut self, cx: &mut Cx<'_>, id: CommId) -> Result<(), CmError> {
        let tid = cx.tid();
        self.with(id, |conn, _, out| conn.disconnect(cx.now, tid, out))
    }

    /// Whether the program wants to hear of alternate paths that the peer proposes. Without this
    /// verb they are refused. Who takes them lets the peer choose where our packets may go one day:
    /// it should look at the addresses.
    ///
    /// # Errors
    /// [`CmError::UnknownId`].
    // clause: CM-LAP
    pub fn take_alternates(&mut self, id: CommId, takes: bool) -> Result<(), CmError> {
        self.with(id, |conn, _, _| {
            conn.takes_alternates = takes;
            Ok(())
        })
    }

    /// Proposes another path to the peer. Comes to
    /// [`AlternateReply`](super::EventKind::AlternateReply) or
    /// [`AlternateUnanswered`](super::EventKind::AlternateUnanswered), unless the connection ends
    /// before.
    ///
    /// # Errors
    /// [`CmError::UnknownId`]; [`CmError::State`]: not established, or another proposal is under
    /// way.
    pub fn load_alternate(&mut self, cx: &mut Cx<'_>, id: CommId, alternate: &Alternate) -> Result<(), CmError> {
        let tid = cx.tid();
        self.with(id, |conn, settings, out| conn.load_alternate(cx.now, tid, alternate, settings, out))
    }

    /// Answers what the peer proposed. For success the queue pair must have the path.
    ///
    /// # Errors
    /// [`CmError::UnknownId`]; [`CmError::State`]: the peer proposed nothing, or was answered.
    pub fn answer_alternate(&mut self, id: CommId, answer: &AlternateAnswer) -> Result<(), CmError> {
        self.with(id, |conn, _, out| conn.answer_alternate(answer, out))
    }

    /// The queue pair has gone over to the alternate path; messages do, too.
    ///
    /// # Errors
    /// [`CmError::UnknownId`]; [`CmError::State`]: there is none.
    pub fn migrated(&mut self, id: CommId) -> Result<(), CmError> {
        self.with(id, |conn, _, _| conn.migrate())
    }

    /// The process at the other end is gone: what its own system would tell us comes from here.
    /// Comes to [`Disconnected`](super::EventKind::Disconnected).
    ///
    /// # Errors
    /// [`CmError::UnknownId`], [`CmError::State`]: the connection does not depend on it (any more).
    // clause: CM-PEER-GONE
    pub fn lose_peer(&mut self, cx: &mut Cx<'_>, id: CommId) -> Result<(), CmError> {
        let (Some(conn), tid) = (self.table.get(id), cx.tid()) else { return Err(CmError::UnknownId) };
        let (remote_qpn, route) = (conn.qpn, conn.route());
        let theirs = conn.peer().ok_or(CmError::State)?.theirs;
        let dreq = Dreq { local_comm_id: theirs, remote_comm_id: id, remote_qpn, private_data: PrivateData::EMPTY };
        let mad = Mad { tid, modifier: 0, message: dreq.into() };
        self.handle_message(cx, route, &mad).map_err(|_| CmError::State)
    }

    /// The network says that nobody is there whom we ask: gives up, as after the last retry. Comes
    /// to [`Unreachable`](super::EventKind::Unreachable).
    ///
    /// # Errors
    /// [`CmError::UnknownId`]; [`CmError::State`]: it is no request that waits for its answer.
    pub fn give_up(&mut self, id: CommId) -> Result<(), CmError> {
        self.with(id, |conn, settings, out| {
            conn.check_state(&[State::ReqSent])?;
            conn.give_up(settings, out);
            Ok(())
        })
    }

    /// Looks a datagram service up. Comes to [`LookupReply`](super::EventKind::LookupReply) or
    /// [`Unreachable`](super::EventKind::Unreachable).
    ///
    /// # Errors
    /// [`CmError::Full`].
    pub fn resolve(&mut self, cx: &mut Cx<'_>, resolve: &Resolve) -> Result<CommId, CmError> {
        let (id, tid) = (self.fresh_id(cx).ok_or(CmError::Full)?, cx.tid());
        self.sidr.resolve(cx.now, id, tid, resolve, &mut self.out);
        Ok(id)
    }

    /// Answers a lookup. The id is free.
    ///
    /// # Errors
    /// [`CmError::UnknownId`].
    pub fn answer(&mut self, id: CommId, resolution: &Resolution) -> Result<(), CmError> {
        self.sidr.answer(id, resolution, &mut self.listeners, &mut self.out)
    }

    /// Forgets a connection or a lookup: no more events. The peer is told what it must know; the
    /// machine goes on until it does.
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

    /// The process ends: as [`destroy`](Self::destroy), of whatever [`all`](Self::all) names. Each
    /// further time what ends the connection is said once more, so that it reaches the peer over a
    /// bad network though nobody will be there to repeat it.
    // clause: CM-PARTING
    pub fn shut_down(&mut self, cx: &mut Cx<'_>, id: CommId) {
        let tid = cx.tid();
        let Self { table, listeners, settings, out, sidr, closed } = self;
        if sidr.destroy(id, listeners, out) {
            return;
        }
        if table.with(id, listeners, |conn| conn.shut_down(cx.now, tid, settings, out)).is_none() {
            closed.repeat(cx.now, id, out);
        }
    }

    /// Lets the program's verb work on a connection that the program still has.
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

    /// An id that nothing has, unless there are as many as there may be.
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
}

/// What is asked again and again, and what is fetched: see the module for the order.
impl Cm {
    /// Acts on every timer that is due; does nothing if none is.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.table.due(now) {
            self.act_on_timer(now, id);
        }
        self.sidr.handle_timeout(now, &mut self.out);
    }

    /// The timer of connection `id` is due.
    pub(super) fn act_on_timer(&mut self, now: Instant, id: CommId) {
        let Self { table, listeners, settings, out, closed, .. } = self;
        table.get(id).into_iter().for_each(|conn| closed.note(now, conn));
        let is_flooded = table.is_flooded();
        table.with(id, listeners, |conn| conn.on_timeout(now, settings, is_flooded, out));
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.out.poll_transmit()
    }

    /// The next thing that a program must know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.poll_event()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.table.next_due(), self.sidr.next_due()].into_iter().flatten().min()
    }
}

/// Getters.
impl Cm {
    /// Where a connection stands; `None` if it is over or was never there.
    pub fn state(&self, id: CommId) -> Option<State> {
        self.table.get(id).map(|conn| conn.state)
    }

    /// What is under way about an alternate path of a connection; `None` if it is over or was never
    /// there.
    pub fn alternate_state(&self, id: CommId) -> Option<AlternateState> {
        self.table.get(id).map(Connection::alternate_state)
    }

    /// What to give the queue pair, once the peer has spoken. Of a request that was not accepted
    /// yet the depths are what the peer offers, and the PSN to expect is the program's to choose.
    pub fn qp_terms(&self, id: CommId) -> Option<QpTerms> {
        let conn = self.table.get(id).filter(|conn| !conn.awaits_rep())?;
        Some(conn.terms)
    }

    /// All connections and lookups and between which addresses they are, also those that their
    /// program has forgotten, and those that are over and that [`shut_down`](Self::shut_down) may
    /// yet have to speak of.
    pub fn all(&self) -> impl Iterator<Item = (CommId, Route)> {
        self.table.iter().map(|conn| (conn.id, conn.route())).chain(self.sidr.all()).chain(self.closed.all())
    }

    /// The connections that end with the process at their other end.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        self.table.iter().filter_map(Connection::peer)
    }

    /// How many connections and lookups there are, those included that wait for the end of their
    /// time.
    pub fn len(&self) -> usize {
        self.table.len() + self.sidr.len()
    }

    /// Whether there is nothing but listeners: no connection, no lookup, and no trace of one.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty() && self.sidr.is_empty()
    }
}
