//! All connections of a machine, and the four ways to find one: by our id, by the peer's id, by the
//! peer's queue pair, by what is due next; and those that are over, whose peer may not know.
//!
//! Whoever changes a connection does so through [`Table::with`], which afterwards brings the ways
//! up to date and forgets the connection if it is over. All maps are ordered: what happens never
//! depends on a hash.

use super::connection::{Connection, Remote, State, wait};
use super::listen::Listeners;
use super::messages;
use super::terms::{ListenId, Outbox, Route};
use crate::time::Instant;
use roxe_wire::cm::{CommId, Guid, TimeCode, TransactionId};
use roxe_wire::{Gid, Qpn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Something of a peer: its address and card, and what it calls it. The address is part of it so
/// that nobody can speak of another's connections (DESIGN D8).
type Theirs = ([u8; 16], Guid, u32);

#[derive(Debug)]
struct Entry {
    conn: Connection,
    /// Whose backlog it fills.
    listener: Option<ListenId>,
    /// Whether it counts as half open.
    is_half_open: bool,
    /// As the ways know it.
    due: Option<Instant>,
    remote: Option<(Gid, Remote)>,
}

/// Accepted connections whose peers have not confirmed, from which on there are many of them.
pub(super) const MANY_HALF_OPEN: usize = 256;

/// The connections.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<CommId, Entry>,
    by_remote_id: BTreeMap<Theirs, CommId>,
    by_remote_qpn: BTreeMap<Theirs, CommId>,
    due: BTreeSet<(Instant, CommId)>,
    /// Connections that we accepted and whose peers have not confirmed.
    half_open: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is left of any connection, in no way.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.by_remote_id.is_empty() && self.by_remote_qpn.is_empty() && self.due.is_empty()
    }

    pub(super) fn contains(&self, id: CommId) -> bool {
        self.entries.contains_key(&id)
    }

    pub(super) fn get(&self, id: CommId) -> Option<&Connection> {
        self.entries.get(&id).map(|entry| &entry.conn)
    }

    /// Whether so many peers have not confirmed what we accepted that most of them may never have
    /// asked: somebody floods us with requests in the name of others.
    pub(super) fn is_flooded(&self) -> bool {
        self.half_open >= MANY_HALF_OPEN
    }

    /// All connections.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.entries.values().map(|entry| &entry.conn)
    }

    /// Takes a new connection; `listener` is whose backlog it fills.
    pub(super) fn insert(&mut self, conn: Connection, listener: Option<ListenId>, listeners: &mut Listeners) {
        let id = conn.id;
        self.entries.insert(id, Entry { conn, listener, is_half_open: false, due: None, remote: None });
        self.settle(id, listeners);
    }

    /// Lets `change` work on a connection, then brings everything else up to date.
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

    /// The connection that this peer calls `theirs`.
    pub(super) fn by_remote_id(&self, remote: Gid, guid: Guid, theirs: CommId) -> Option<CommId> {
        self.by_remote_id.get(&(remote.0, guid, theirs.0)).copied()
    }

    /// The connection to this queue pair of this peer. One in TimeWait is over for both, and who is
    /// quick may use the queue pair again: the kernel forgets it here too.
    // clause: CM-STALE
    pub(super) fn by_remote_qpn(&self, remote: Gid, guid: Guid, qpn: Qpn) -> Option<CommId> {
        let id = self.by_remote_qpn.get(&(remote.0, guid, qpn.get())).copied()?;
        self.get(id).is_some_and(|conn| conn.state != State::TimeWait).then_some(id)
    }

    /// When the next timer is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// A connection whose timer is due.
    pub(super) fn due(&self, now: Instant) -> Option<CommId> {
        self.due.first().filter(|(due, _)| *due <= now).map(|(_, id)| *id)
    }
}

/// Takes `key` out, unless it means another connection by now.
fn forget(map: &mut BTreeMap<Theirs, CommId>, key: Theirs, id: CommId) {
    if map.get(&key) == Some(&id) {
        map.remove(&key);
    }
}

/// How long after TimeWait a peer may have yet to ask again: rdma_cm repeats a DREQ after this and
/// the time that two packets take, which TimeWait is longer than.
const REPEAT_WITHIN: TimeCode = TimeCode::new(20);
/// The most that are remembered; the last ones are.
// clause: CM-BOUNDS
const MOST: usize = 1024;

/// One connection that is over.
#[derive(Debug)]
struct Closed {
    id: CommId,
    theirs: CommId,
    tid: TransactionId,
    route: Route,
    until: Instant,
}

/// The connections that are over, the oldest first.
#[derive(Debug, Default)]
pub(super) struct ClosedConnections(VecDeque<Closed>);

impl ClosedConnections {
    /// Remembers a connection whose timer is due now, if that ends it and the peer had asked for
    /// the end.
    // clause: CM-PARTING
    pub(super) fn note(&mut self, now: Instant, conn: &Connection) {
        if conn.state != State::TimeWait || !conn.was_asked() {
            return;
        }
        while self.0.front().is_some_and(|oldest| oldest.until <= now || self.0.len() >= MOST) {
            self.0.pop_front();
        }
        let (id, theirs, tid, route) = (conn.id, conn.remote_id(), conn.tid, conn.route());
        self.0.push_back(Closed { id, theirs, tid, route, until: now.after(wait(REPEAT_WITHIN)) });
    }

    /// Says once more that the connection `id` is over, unless its peer has heard it or asked again
    /// by now.
    // clause: CM-PARTING
    pub(super) fn repeat(&self, now: Instant, id: CommId, out: &mut Outbox) {
        if let Some(said) = self.0.iter().find(|said| said.id == id && now < said.until) {
            out.send(said.route, said.tid, messages::drep(said.id, said.theirs));
        }
    }

    /// The ids of all, and between which addresses they were.
    pub(super) fn all(&self) -> impl Iterator<Item = (CommId, Route)> {
        self.0.iter().map(|said| (said.id, said.route))
    }
}
