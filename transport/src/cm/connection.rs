//! One connection: its state, what it remembers of the peer, its timers, and what the time codes of
//! messages mean.
//!
//! What moves it is in `transitions.rs` and `alternate.rs`. It knows no other connection and no
//! table.

use super::terms::{CmError, EventKind, Ignored, Outbox, QpTerms, Route};
use crate::time::Instant;
use core::time::Duration;
use roxe_wire::Qpn;
use roxe_wire::cm::{CommId, Guid, Mad, Message, Small, TimeCode, TransactionId, Transport};

/// Where a connection stands (IBA §12.9); the picture is on the first page of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Active: asked, and nobody answered.
    ReqSent,
    /// Active: the peer needs longer.
    MraReqRcvd,
    /// Active: the peer accepts; our program has to confirm or reject.
    RepRcvd,
    /// Active: the same, and the peer knows that we need longer.
    MraRepSent,
    /// Passive: our program has to accept or reject.
    ReqRcvd,
    /// Passive: the same, and the peer knows that we need longer.
    MraReqSent,
    /// Passive: accepted, not confirmed.
    RepSent,
    /// Passive: the peer needs longer to confirm.
    MraRepRcvd,
    /// Both ends may send.
    Established,
    /// We want to end it.
    DreqSent,
    /// The peer wants to end it; our program has to agree.
    DreqRcvd,
    /// Over; late packets of the queue pair may still be on the way.
    TimeWait,
    /// Gone: the table forgets it at once.
    Idle,
}

/// What is known of the peer once it said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    /// Its name of this connection.
    pub(super) id: CommId,
    /// Its card.
    pub(super) guid: Guid,
    /// Its queue pair.
    pub(super) qpn: Qpn,
}

/// A connection that lives as long as the process at its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Our name of the connection.
    pub id: CommId,
    /// Between which addresses.
    pub route: Route,
    /// The peer's name of it.
    pub theirs: CommId,
}

/// When to act if nothing comes, and how often to do so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    /// When the timer is due; `None` while it is stopped.
    pub(super) due: Option<Instant>,
    /// How long each wait is.
    wait: Duration,
    /// How many repetitions are left.
    left: u8,
    /// How many there are for each message.
    retries: u8,
}

impl Timer {
    /// A timer that is not running.
    pub(super) const fn new(wait: Duration, retries: Small<4>) -> Self {
        Self { due: None, wait, left: 0, retries: retries.get() }
    }

    /// Waits for the answer to a message that was sent now.
    pub(super) fn start(&mut self, now: Instant) {
        (self.due, self.left) = (Some(now.after(self.wait)), self.retries);
    }

    pub(super) fn stop(&mut self) {
        self.due = None;
    }

    /// Waits for the answer once more; false if that was the last time.
    pub(super) fn again(&mut self, now: Instant) -> bool {
        let more = self.left > 0;
        self.left = self.left.saturating_sub(1);
        self.due = more.then(|| now.after(self.wait));
        more
    }
}

/// What is under way about an alternate path, with what it takes to go on.
#[derive(Debug, Default)]
pub(super) enum Loading {
    #[default]
    Nothing,
    /// We asked: the LAP, for when it has to be sent again, and whether the peer needs longer.
    Asked { lap: Box<Mad>, route: Route, patient: bool },
    /// The peer asked: its transaction, and the MRA if it was told to wait.
    Asks { tid: TransactionId, route: Route, mra: Option<Box<Mad>> },
    /// We answered: the APR, for when the peer asks again.
    Answered(Box<Mad>),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: CommId,
    pub(super) state: State,
    pub(super) remote: Option<Remote>,
    /// Our queue pair.
    pub(super) qpn: Qpn,
    pub(super) transport: Transport,
    /// Complete when the peer and our program have both spoken.
    pub(super) terms: QpTerms,
    /// How long packets live on the way; of the active side only.
    pub(super) lifetime: TimeCode,
    /// Transaction of the request under way: ours, or the peer's that we answer.
    pub(super) tid: TransactionId,
    pub(super) timer: Timer,
    /// With a peer where nobody listens.
    pub(super) req_retry: ReqRetry,
    /// What was sent last, for when it has to be sent again.
    pub(super) last: Option<Mad>,
    /// Our program forgot it: nothing is told any more, and nothing waited for but the peer.
    pub(super) orphan: bool,
    /// We asked for it.
    pub(super) is_active: bool,
    /// The request names an alternate path.
    pub(super) alternate_offered: bool,
    /// Our program wants to hear of alternate paths that the peer proposes.
    pub(super) takes_alternates: bool,
    pub(super) loading: Loading,
    /// Another path that both ends know.
    pub(super) alternate: Option<Route>,
}

impl Connection {
    pub(super) const fn route(&self) -> Route {
        self.terms.route
    }

    /// The peer's name of this connection; 0 while unknown, as messages have it.
    pub(super) fn remote_id(&self) -> CommId {
        self.remote.map_or(CommId::NONE, |remote| remote.id)
    }

    /// Whether a message that came by `route` and calls the sender's end `theirs` is of this
    /// connection. Before the peer has accepted, nobody knows what it calls its end.
    // clause: CM-MATCH
    pub(super) fn check_sender(&self, route: Route, theirs: CommId) -> Result<(), Ignored> {
        if self.route() != route && self.alternate != Some(route) {
            return Err(Ignored::Address);
        }
        if self.remote.is_some_and(|remote| remote.id != theirs) { Err(Ignored::UnknownId) } else { Ok(()) }
    }

    /// Sends `message` now and whenever [`repeat`](Self::repeat) asks for it.
    pub(super) fn send(&mut self, message: impl Into<Message>, out: &mut Outbox) {
        self.send_with(0, message, out);
    }

    /// As [`send`](Self::send), with this modifier in the header of the MAD, where a vendor has
    /// options.
    pub(super) fn send_with(&mut self, modifier: u32, message: impl Into<Message>, out: &mut Outbox) {
        self.last = Some(Mad { tid: self.tid, modifier, message: message.into() });
        self.repeat(out);
    }

    /// Sends the last message again.
    pub(super) fn repeat(&self, out: &mut Outbox) {
        if let Some(mad) = &self.last {
            out.send_mad(self.route(), mad.clone());
        }
    }

    /// Tells the program, if it still wants to know.
    pub(super) fn tell(&self, kind: EventKind, out: &mut Outbox) {
        if !self.orphan {
            out.tell(self.id, kind);
        }
    }

    /// Over, and nothing of it may be met again.
    pub(super) fn finish(&mut self) {
        self.state = State::Idle;
        self.timer.stop();
    }

    /// Over, but late packets may come: neither the ids nor the queue pairs are free yet.
    // clause: CM-TIMEWAIT
    pub(super) fn enter_time_wait(&mut self, now: Instant) {
        self.state = State::TimeWait;
        self.timer.due = Some(now.after(wait(self.terms.timeout)));
    }

    /// Whether its TimeWait has passed.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.state == State::TimeWait && self.timer.due.is_some_and(|due| due <= now)
    }

    /// The peer whose death ends the connection, once that is accepted.
    pub(super) fn peer(&self) -> Option<Peer> {
        let depends = matches!(self.state, State::RepSent | State::MraRepRcvd | State::Established | State::DreqSent);
        self.remote.filter(|_| depends).map(|remote| Peer { id: self.id, route: self.route(), theirs: remote.id })
    }

    /// Refuses what the program asks for in the wrong state.
    pub(super) fn check_state(&self, allowed: &[State]) -> Result<(), CmError> {
        if allowed.contains(&self.state) { Ok(()) } else { Err(CmError::State) }
    }
}

/// The first pause; each one after that is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// Until when a refused request is repeated, and how long the next pause is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReqRetry {
    /// How long after the first refusal.
    length: Duration,
    until: Option<Instant>,
    pause: Duration,
    /// The request was refused, and is not repeated yet.
    pub(super) is_pausing: bool,
}

impl ReqRetry {
    /// That of a side that was asked: it repeats nothing.
    pub(super) const NONE: Self = Self::new(Duration::ZERO);

    pub(super) const fn new(length: Duration) -> Self {
        Self { length, until: None, pause: FIRST_PAUSE, is_pausing: false }
    }

    /// Nobody listens: when to ask again, or `None` when it has been long enough. A peer that
    /// refuses for that reason has forgotten the request, and takes its repetition for a new one.
    // clause: CM-REQ-AGAIN
    pub(super) fn pause(&mut self, now: Instant) -> Option<Instant> {
        let until = *self.until.get_or_insert_with(|| now.after(self.length));
        let next = Some(now.after(self.pause)).filter(|next| *next < until);
        self.pause = LONGEST_PAUSE.min(2 * self.pause);
        self.is_pausing = next.is_some();
        next
    }
}

/// The longest wait that a message can ask for, as a code: 65.5 s, what the kernel itself asks for
/// with an MRA.
const LONGEST_WAIT: u8 = 24;

/// How long to wait for a 5-bit code: 4.096 µs · 2^code as the kernel rounds it, to milliseconds
/// and at least one.
// clause: CM-WAIT
pub(super) fn wait(code: TimeCode) -> Duration {
    Duration::from_millis(1 << code.get().min(LONGEST_WAIT).saturating_sub(8))
}

/// The ACK timeout code of a path whose packets live for `lifetime` towards a card that answers
/// within `delay` (both codes): about log2(2 · 2^lifetime + 2^delay), in the kernel's arithmetic.
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
    fn the_ack_timeout_is_the_kernels() {
        let known = [((15, 16), 17), ((16, 16), 18), ((15, 18), 19), ((0, 16), 17), ((31, 31), 31), ((20, 3), 20)];
        for ((delay, lifetime), code) in known {
            let [delay, lifetime, code] = [delay, lifetime, code].map(TimeCode::new);
            assert_eq!(ack_timeout(delay, lifetime), code, "delay {delay:?}, lifetime {lifetime:?}");
        }
    }
}
