//! Connections that are over and forgotten, and whose peer may not know: the DREP that it asked for
//! can have been lost.
//!
//! While the process lives, a peer that asks again is answered, whatever is remembered. One that
//! ends before says it once more.

use super::conn::{Connection, State};
use super::outbox::Outbox;
use super::terms::Route;
use super::{fields, times};
use crate::time::Instant;
use roxe_wire::cm::{CommId, TimeCode, TransactionId};
use std::collections::VecDeque;

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
        self.0.push_back(Closed { id, theirs, tid, route, until: now.after(times::wait(REPEAT_WITHIN)) });
    }

    /// Says once more that the connection `id` is over, unless its peer has heard it or asked again
    /// by now.
    // clause: CM-PARTING
    pub(super) fn repeat(&self, now: Instant, id: CommId, out: &mut Outbox) {
        if let Some(said) = self.0.iter().find(|said| said.id == id && now < said.until) {
            out.send(said.route, said.tid, fields::drep(said.id, said.theirs));
        }
    }

    /// The ids of all, and between which addresses they were.
    pub(super) fn all(&self) -> impl Iterator<Item = (CommId, Route)> {
        self.0.iter().map(|said| (said.id, said.route))
    }
}
