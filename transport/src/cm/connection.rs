//! One connection: state, timers and time codes. `transitions.rs` and `alternate.rs` have its
//! transitions.

use super::terms::{CmError, EventKind, Ignored, Outbox, QpTerms, Route};
use crate::time::Instant;
use core::time::Duration;
use roxe_wire::Qpn;
use roxe_wire::cm::{CommId, Guid, Mad, Message, TimeCode, TransactionId, Transport, Uint};

/// State of a connection (IBA §12.9); the module documentation has a diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Active: REQ sent, not answered.
    ReqSent,
    /// Active: the peer needs longer.
    MraReqRcvd,
    /// Active: the peer accepts; our program has to confirm or reject.
    RepRcvd,
    /// Active: as `RepRcvd`, and the peer was requested to wait.
    MraRepSent,
    /// Passive: our program has to accept or reject.
    ReqRcvd,
    /// Passive: as `ReqRcvd`, and the peer was requested to wait.
    MraReqSent,
    /// Passive: REP sent, not confirmed.
    RepSent,
    /// Passive: the peer needs longer to confirm.
    MraRepRcvd,
    /// Both ends may send.
    Established,
    /// DREQ sent, not answered.
    DreqSent,
    /// The peer ends the connection; our program has to agree.
    DreqRcvd,
    /// Over, but packets of the queue pair may still be in the network.
    TimeWait,
    /// Over: the table removes it.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    /// The peer's id of this connection.
    pub(super) id: CommId,
    pub(super) guid: Guid,
    pub(super) qpn: Qpn,
}

/// A connection that ends with the peer process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Our id of the connection.
    pub id: CommId,
    /// Addresses of both ends.
    pub route: Route,
    /// The peer's id of the connection.
    pub theirs: CommId,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    /// Time of expiry; `None` while stopped.
    pub(super) due: Option<Instant>,
    wait: Duration,
    retries_left: u8,
    retries: u8,
}

impl Timer {
    pub(super) const fn new(wait: Duration, retries: Uint<4>) -> Self {
        Self { due: None, wait, retries_left: 0, retries: retries.get() }
    }

    /// Starts the wait for the answer to a message sent now.
    pub(super) fn start(&mut self, now: Instant) {
        (self.due, self.retries_left) = (Some(now.after(self.wait)), self.retries);
    }

    pub(super) fn stop(&mut self) {
        self.due = None;
    }

    /// Restarts the wait for a retransmission; returns false if no retry is left.
    pub(super) fn restart(&mut self, now: Instant) -> bool {
        let is_left = self.retries_left > 0;
        self.retries_left = self.retries_left.saturating_sub(1);
        self.due = is_left.then(|| now.after(self.wait));
        is_left
    }
}

/// Negotiation of an alternate path.
#[derive(Debug, Default)]
pub(super) enum Loading {
    #[default]
    Nothing,
    /// We proposed `route` by `lap`; `mra_received` after an MRA of the peer.
    LapSent { lap: Box<Mad>, route: Route, mra_received: bool },
    /// The peer proposed `route`; `mra` if it was requested to wait.
    LapReceived { tid: TransactionId, route: Route, mra: Option<Box<Mad>> },
    /// Our APR, to answer a duplicate LAP.
    AprSent(Box<Mad>),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: CommId,
    pub(super) state: State,
    pub(super) remote: Option<Remote>,
    pub(super) qpn: Qpn,
    pub(super) transport: Transport,
    /// Attributes of the queue pair; complete when both the peer and our program have answered.
    pub(super) terms: QpTerms,
    pub(super) lifetime: TimeCode,
    /// Transaction of the pending request, ours or the peer's.
    pub(super) tid: TransactionId,
    pub(super) timer: Timer,
    /// Retries while the peer has no listener.
    pub(super) req_retry: ReqRetry,
    pub(super) last_sent: Option<Mad>,
    /// True if our program has released the connection: it emits no events.
    pub(super) orphan: bool,
    /// True if our side sent the REQ.
    pub(super) is_active: bool,
    pub(super) alternate_offered: bool,
    pub(super) has_alternate_events: bool,
    pub(super) loading: Loading,
    /// Alternate path loaded by both ends.
    pub(super) alternate: Option<Route>,
}

impl Connection {
    pub(super) const fn route(&self) -> Route {
        self.terms.route
    }

    /// Returns the peer's id; 0 while unknown, as in messages.
    pub(super) fn remote_id(&self) -> CommId {
        self.remote.map_or(CommId::NONE, |remote| remote.id)
    }

    /// Checks that a message from `route` with the sender's id `theirs` belongs to this connection.
    /// The peer's id is unknown until it accepts.
    // clause: CM-MATCH
    pub(super) fn check_sender(&self, route: Route, theirs: CommId) -> Result<(), Ignored> {
        if self.route() != route && self.alternate != Some(route) {
            return Err(Ignored::Address);
        }
        if self.remote.is_some_and(|remote| remote.id != theirs) { Err(Ignored::UnknownId) } else { Ok(()) }
    }

    /// Sends `message` and keeps it for [`retransmit`](Self::retransmit).
    pub(super) fn send(&mut self, message: impl Into<Message>, out: &mut Outbox) {
        self.send_with(0, message, out);
    }

    /// Sends `message` like [`send`](Self::send), with a MAD attribute modifier, which holds vendor
    /// options.
    pub(super) fn send_with(&mut self, modifier: u32, message: impl Into<Message>, out: &mut Outbox) {
        self.last_sent = Some(Mad { tid: self.tid, modifier, message: message.into() });
        self.retransmit(out);
    }

    pub(super) fn retransmit(&self, out: &mut Outbox) {
        if let Some(mad) = &self.last_sent {
            out.send_mad(self.route(), mad.clone());
        }
    }

    /// Emits an event unless the program has released the connection.
    pub(super) fn emit(&self, kind: EventKind, out: &mut Outbox) {
        if !self.orphan {
            out.emit(self.id, kind);
        }
    }

    pub(super) fn finish(&mut self) {
        self.state = State::Idle;
        self.timer.stop();
    }

    /// Ends the connection. Late packets may arrive, so its ids and queue pairs stay in use for a
    /// while.
    // clause: CM-TIMEWAIT
    pub(super) fn enter_time_wait(&mut self, now: Instant) {
        self.state = State::TimeWait;
        self.timer.due = Some(now.after(wait(self.terms.timeout)));
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.state == State::TimeWait && self.timer.due.is_some_and(|due| due <= now)
    }

    /// Returns the peer process on which an accepted connection depends.
    pub(super) fn peer(&self) -> Option<Peer> {
        let depends = matches!(self.state, State::RepSent | State::MraRepRcvd | State::Established | State::DreqSent);
        self.remote.filter(|_| depends).map(|remote| Peer { id: self.id, route: self.route(), theirs: remote.id })
    }

    pub(super) fn check_state(&self, allowed: &[State]) -> Result<(), CmError> {
        if allowed.contains(&self.state) { Ok(()) } else { Err(CmError::State) }
    }
}

/// First pause; each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// Retries of a request that was rejected for lack of a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReqRetry {
    /// Duration of retries after the first rejection.
    length: Duration,
    until: Option<Instant>,
    pause: Duration,
    /// True if a retry is scheduled after a rejection.
    pub(super) is_pausing: bool,
}

impl ReqRetry {
    pub(super) const NONE: Self = Self::new(Duration::ZERO);

    pub(super) const fn new(length: Duration) -> Self {
        Self { length, until: None, pause: FIRST_PAUSE, is_pausing: false }
    }

    /// Returns the time of the next retry, or `None` if the duration is over. A peer without a
    /// listener has forgotten the request and treats a retry as a new one.
    // clause: CM-REQ-AGAIN
    pub(super) fn pause(&mut self, now: Instant) -> Option<Instant> {
        let until = *self.until.get_or_insert_with(|| now.after(self.length));
        let next = Some(now.after(self.pause)).filter(|next| *next < until);
        self.pause = LONGEST_PAUSE.min(2 * self.pause);
        self.is_pausing = next.is_some();
        next
    }
}

/// Maximum wait that a message can request, as a code: 65.5 s, the kernel's own MRA value.
const LONGEST_WAIT: u8 = 24;

/// Returns the wait of a 5-bit code: 4.096 µs · 2^code, rounded like the kernel to at least one
/// millisecond.
// clause: CM-WAIT
pub(super) fn wait(code: TimeCode) -> Duration {
    Duration::from_millis(1 << code.get().min(LONGEST_WAIT).saturating_sub(8))
}

/// Returns the ACK timeout code of a path with this packet `lifetime` to a card that answers within
/// `delay` (both codes): about log2(2 · 2^lifetime + 2^delay), in the kernel's arithmetic.
// clause: CM-ACK-TIMEOUT
pub(super) fn ack_timeout(delay: TimeCode, lifetime: TimeCode) -> TimeCode {
    let (delay, there_and_back) = (delay.get(), lifetime.get() + 1);
    let code = if there_and_back >= delay {
        there_and_back + u8::from(delay >= lifetime.get())
    } else {
        delay + u8::from(there_and_back >= delay.saturating_sub(1))
    };
    TimeCode::new(code.min(31))
}

#[cfg(test)]
mod tests {
    use super::*;

    // clause: CM-WAIT
    #[test]
    fn codes_are_powers_of_two_milliseconds() {
        assert_eq!([0, 8, 9, 20, 24].map(|code| wait(TimeCode::new(code)).as_millis()), [1, 1, 2, 4096, 65536]);
        assert_eq!(
            [25, 31].map(|code| wait(TimeCode::new(code)).as_millis()),
            [65536; 2],
            "no peer makes us wait for hours"
        );
    }

    // clause: CM-ACK-TIMEOUT
    #[test]
    fn ack_timeout_equals_the_kernel_value() {
        let known = [((15, 16), 17), ((16, 16), 18), ((15, 18), 19), ((0, 16), 17), ((31, 31), 31), ((20, 3), 20)];
        for ((delay, lifetime), code) in known {
            let [delay, lifetime, code] = [delay, lifetime, code].map(TimeCode::new);
            assert_eq!(ack_timeout(delay, lifetime), code, "delay {delay:?}, lifetime {lifetime:?}");
        }
    }
}
