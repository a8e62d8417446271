//! The connections of a state machine with four indexes: our id, the peer's id, the peer's queue
//! pair, the next due time; and recently closed connections.
//!
//! [`Table::with`] changes a connection, updates the indexes and removes it if it is over. All maps
//! are ordered, so that behaviour never depends on a hash.

use super::connection::{Connection, Remote, State, wait};
use super::listen::Listeners;
use super::messages;
use super::terms::{ListenId, Outbox, Route};
use crate::time::Instant;
use roxe_wire::cm::{CommId, Guid, TimeCode, TransactionId};
use roxe_wire::{Gid, Qpn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Address, GUID and id or QPN of a peer. The address is included so that no host can name
/// another's connections (DESIGN D8).
type RemoteKey = ([u8; 16], Guid, u32);

#[derive(Debug)]
struct ConnEntry {
    conn: Connection,
    listener: Option<ListenId>,
    is_half_open: bool,
    due: Option<Instant>,
    remote: Option<(Gid, Remote)>,
}

/// Number of unconfirmed accepted connections that counts as a flood.
pub(super) const MANY_HALF_OPEN: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<CommId, ConnEntry>,
    by_remote_id: BTreeMap<RemoteKey, CommId>,
    by_remote_qpn: BTreeMap<RemoteKey, CommId>,
    due: BTreeSet<(Instant, CommId)>,
    /// Number of accepted connections not confirmed by the peer.
    half_open: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there is no connection and no index entry.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.by_remote_id.is_empty() && self.by_remote_qpn.is_empty() && self.due.is_empty()
    }

    pub(super) fn contains(&self, id: CommId) -> bool {
        self.entries.contains_key(&id)
    }

    pub(super) fn get(&self, id: CommId) -> Option<&Connection> {
        self.entries.get(&id).map(|entry| &entry.conn)
    }

    /// Returns true if so many accepted connections are unconfirmed that most requests are probably
    /// forged.
    pub(super) fn is_flooded(&self) -> bool {
        self.half_open >= MANY_HALF_OPEN
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.entries.values().map(|entry| &entry.conn)
    }

    /// Inserts a new connection; `listener` is the one whose backlog includes it.
    pub(super) fn insert(&mut self, conn: Connection, listener: Option<ListenId>, listeners: &mut Listeners) {
        let id = conn.id;
        self.entries.insert(id, ConnEntry { conn, listener, is_half_open: false, due: None, remote: None });
        self.settle(id, listeners);
    }

    /// Applies `change` to a connection, then updates the indexes.
    pub(super) fn with<R>(
        &mut self,
        id: CommId,
        listeners: &mut Listeners,
        change: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        let result = change(&mut self.entries.get_mut(&id)?.conn);
        self.settle(id, listeners);
        Some(result)
    }

    fn settle(&mut self, id: CommId, listeners: &mut Listeners) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if !matches!(entry.conn.state, State::ReqRcvd | State::MraReqSent)
            && let Some(listener) = entry.listener.take()
        {
            listeners.leave(listener);
        }
        let is_half_open = matches!(entry.conn.state, State::RepSent | State::MraRepRcvd);
        let was_half_open = core::mem::replace(&mut entry.is_half_open, is_half_open);
        self.half_open = self.half_open + usize::from(is_half_open) - usize::from(was_half_open);
        let is_over = entry.conn.state == State::Idle;
        let due = entry.conn.timer.due.filter(|_| !is_over);
        let gid = entry.conn.route().remote;
        let remote = entry.conn.remote.filter(|_| !is_over).map(|remote| (gid, remote));
        let (old_due, old_remote) =
            (core::mem::replace(&mut entry.due, due), core::mem::replace(&mut entry.remote, remote));
        if is_over {
            self.entries.remove(&id);
        }
        self.set_due(id, old_due, due);
        self.set_remote(id, old_remote, remote);
    }

    fn set_due(&mut self, id: CommId, old: Option<Instant>, new: Option<Instant>) {
        if old != new {
            old.map(|due| self.due.remove(&(due, id)));
            new.map(|due| self.due.insert((due, id)));
        }
    }

    fn set_remote(&mut self, id: CommId, old: Option<(Gid, Remote)>, new: Option<(Gid, Remote)>) {
        if old == new {
            return;
        }
        if let Some((gid, old)) = old {
            forget(&mut self.by_remote_id, (gid.0, old.guid, old.id.0), id);
            forget(&mut self.by_remote_qpn, (gid.0, old.guid, old.qpn.get()), id);
        }
        if let Some((gid, new)) = new {
            self.by_remote_id.insert((gid.0, new.guid, new.id.0), id);
            self.by_remote_qpn.insert((gid.0, new.guid, new.qpn.get()), id);
        }
    }

    /// Returns the connection with the peer's id `theirs`.
    pub(super) fn by_remote_id(&self, remote: Gid, guid: Guid, theirs: CommId) -> Option<CommId> {
        self.by_remote_id.get(&(remote.0, guid, theirs.0)).copied()
    }

    /// Returns the connection to this queue pair of this peer. TimeWait does not count: the peer
    /// may reuse the queue pair, and the kernel accepts that too.
    // clause: CM-STALE
    pub(super) fn by_remote_qpn(&self, remote: Gid, guid: Guid, qpn: Qpn) -> Option<CommId> {
        let id = self.by_remote_qpn.get(&(remote.0, guid, qpn.get())).copied()?;
        self.get(id).is_some_and(|conn| conn.state != State::TimeWait).then_some(id)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    pub(super) fn due_connection(&self, now: Instant) -> Option<CommId> {
        self.due.first().filter(|(due, _)| *due <= now).map(|(_, id)| *id)
    }
}

/// Removes `key` unless it now belongs to another connection.
fn forget(map: &mut BTreeMap<RemoteKey, CommId>, key: RemoteKey, id: CommId) {
    if map.get(&key) == Some(&id) {
        map.remove(&key);
    }
}

/// Time after TimeWait in which a peer may retransmit its DREQ: rdma_cm retransmits after this and
/// the lifetime of two packets, which TimeWait covers.
const DREQ_RETRY_TIME: TimeCode = TimeCode::new(20);
/// Maximum number of closed connections kept; the oldest are dropped.
// clause: CM-BOUNDS
const MAX_CLOSED: usize = 1024;

#[derive(Debug)]
struct Closed {
    id: CommId,
    theirs: CommId,
    tid: TransactionId,
    route: Route,
    until: Instant,
}

/// Closed connections whose peer may not have got our DREP, oldest first.
#[derive(Debug, Default)]
pub(super) struct ClosedConnections(VecDeque<Closed>);

impl ClosedConnections {
    /// Keeps a connection whose timer is due, if that ends it and the peer had sent a DREQ.
    // clause: CM-PARTING
    pub(super) fn keep_if_ended(&mut self, now: Instant, conn: &Connection) {
        if conn.state != State::TimeWait || !conn.ended_by_peer() {
            return;
        }
        while self.0.front().is_some_and(|oldest| oldest.until <= now || self.0.len() >= MAX_CLOSED) {
            self.0.pop_front();
        }
        let (id, theirs, tid, route) = (conn.id, conn.remote_id(), conn.tid, conn.route());
        self.0.push_back(Closed { id, theirs, tid, route, until: now.after(wait(DREQ_RETRY_TIME)) });
    }

    /// Retransmits the DREP of connection `id` while the peer may still need it.
    // clause: CM-PARTING
    pub(super) fn retransmit(&self, now: Instant, id: CommId, out: &mut Outbox) {
        if let Some(closed) = self.0.iter().find(|closed| closed.id == id && now < closed.until) {
            out.send(closed.route, closed.tid, messages::drep(closed.id, closed.theirs));
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (CommId, Route)> {
        self.0.iter().map(|closed| (closed.id, closed.route))
    }
}
