//! What a queue pair promises, the report of a broken promise, and the promises that can be checked
//! after every call and for every packet.
//!
//! Judges return a [`Broken`] instead of panicking, so that a run can be repeated with less in it
//! until nothing can be left out. The numbers of the standard are read off the QP ([`Probe`]) and
//! compared with what they were and with those of the peer.

use crate::host::SimHost;
use core::fmt;
use roxe_transport::Qp;
use roxe_transport::qp::QpState;
use roxe_transport::qp::probe::Probe;
use roxe_transport::time::Instant;
use roxe_wire::{Header, Kind, Psn, Response, Syndrome};

/// What every run must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// A work request completes at most once, in order, exactly once if nothing fails, and as what
    /// it was.
    Completions,
    /// What succeeded brought exactly the right bytes to exactly the right place.
    Bytes,
    /// PSNs stay in their windows and never go back: never more than 2^23 outstanding, nothing
    /// acknowledged that did not arrive, nothing sent or answered outside.
    Windows,
    /// Room at the peer that a QP holds is room for packets under way: none leaks, none is held by
    /// the dead, and together all stay within the window.
    Credit,
    /// A timer runs only while something is waited for, and a deadline that was handled is not due
    /// again.
    Timers,
    /// A QP in the error state says nothing but its last NAK; one without work says nothing at all.
    Silence,
    /// A run ends: nobody waits for ever, nobody sends without end.
    Progress,
    /// The state machine does not panic.
    NoPanic,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The promise that was broken.
    pub promise: Promise,
    /// By which end; `None` when it cannot be told.
    pub end: Option<usize>,
    /// When, in virtual time.
    pub at: Instant,
    /// What was seen.
    pub detail: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} broken", self.promise)?;
        if let Some(end) = self.end {
            write!(f, " by #{end}")?;
        }
        write!(f, " at {} ns: {}", self.at.0, self.detail)
    }
}

impl core::error::Error for Broken {}

/// Returns a [`Broken`] from the function unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $promise:ident, $end:expr, $at:expr, $($detail:tt)+) => {
        if !$holds {
            let (promise, detail) = ($crate::judge::Promise::$promise, format!($($detail)+));
            return Err($crate::judge::Broken { promise, end: $end, at: $at, detail });
        }
    };
}
pub(crate) use ensure;

/// PSNs that two ends can tell apart (IBA §9.7.2).
const WINDOW: i32 = 1 << 23;

/// What is known of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watch {
    /// Where it stood, in which state.
    last: Option<Probe>,
    /// The QP is in the error state and has sent its last NAK.
    silenced: bool,
    /// Bytes that the sum over its node holds for it.
    pub(crate) counted: u32,
}

/// Returns true if its numbers are those of a running send queue: a flush sets them anew.
fn is_sending(probe: &Probe) -> bool {
    matches!(probe.state, QpState::Rts | QpState::Sqd)
}

/// Returns true if it executes requests.
fn is_receiving(probe: &Probe) -> bool {
    matches!(probe.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
}

impl Watch {
    /// Checks where `qp` stands; `other` is its peer, if what it believes of it must be true.
    pub(crate) fn check(&mut self, qp: &Qp, host: &SimHost, other: Option<Probe>, at: Instant) -> Result<(), Broken> {
        let now = qp.probe();
        let last = self.last.replace(now);
        self.silenced &= now.state == QpState::Err;
        check_timer(qp, &now, at)?;
        if !qp.service().is_reliable() {
            return Ok(());
        }
        check_order(&now, at)?;
        check_credit(&now, host, at)?;
        if let Some(last) = last {
            check_progress(&last, &now, at)?;
        }
        if let Some(other) = other {
            check_belief(&now, &other, at)?;
            check_belief(&other, &now, at)?;
        }
        Ok(())
    }

    /// Checks a packet that `qp` has just sent.
    pub(crate) fn on_emitted(&mut self, qp: &Qp, header: &Header, at: Instant) -> Result<(), Broken> {
        let (probe, psn) = (qp.probe(), header.bth.psn);
        if probe.state == QpState::Err {
            // The answers before the request that was refused may still leave, the CNP that came
            // due with them, and the refusal; nothing after it.
            let answer = matches!(header.kind, Kind::RcResponse(_) | Kind::XrcResponse(_) | Kind::Cnp);
            ensure!(answer && !self.silenced, Silence, None, at, "{header:?} in the error state");
            self.silenced = matches!(header.kind,
                Kind::RcResponse(Response::Ack(aeth)) | Kind::XrcResponse(Response::Ack(aeth)) if is_nak(aeth.syndrome));
        }
        match &header.kind {
            Kind::RcRequest(_) | Kind::XrcRequest(..) => {
                let inside = psn.distance(probe.una) >= 0 && psn.is_before(probe.sent);
                ensure!(inside, Windows, None, at, "request {psn} outside {}..{}", probe.una, probe.sent);
            }
            Kind::RcResponse(response) | Kind::XrcResponse(response) => {
                let newest = newest_answer(response, probe.expected);
                ensure!(psn.distance(newest) <= 0, Windows, None, at, "{response:?} {psn} is beyond {newest}");
            }
            _ => {}
        }
        Ok(())
    }
}

/// The newest PSN that an answer may have: a refusal names the request expected next, all others
/// one before.
fn newest_answer(response: &Response, expected: Psn) -> Psn {
    match response {
        Response::Ack(aeth) if is_nak(aeth.syndrome) => expected,
        _ => expected.sub(1),
    }
}

fn is_nak(syndrome: Syndrome) -> bool {
    matches!(syndrome, Syndrome::Nak(_) | Syndrome::RnrNak { .. })
}

/// A timer runs only for work that is under way, held back, or waits for the peer; and never
/// outside RTS and SQD.
fn check_timer(qp: &Qp, now: &Probe, at: Instant) -> Result<(), Broken> {
    let waits = is_sending(now) && (now.sends > 0 || !qp.is_quiescent());
    ensure!(waits || qp.poll_timeout().is_none(), Timers, None, at, "a timer runs for nothing: {now:?}");
    Ok(())
}

/// Oldest, next and newest PSN are in order and close together.
fn check_order(now: &Probe, at: Instant) -> Result<(), Broken> {
    let Probe { una, next, sent, .. } = *now;
    let (next, sent) = (next.distance(una), sent.distance(una));
    ensure!(0 <= next && next <= sent && sent < WINDOW, Windows, None, at, "out of order: {now:?}");
    Ok(())
}

/// What is reserved is what the QP says it holds; the dead hold nothing.
fn check_credit(now: &Probe, host: &SimHost, at: Instant) -> Result<(), Broken> {
    let (reserved, held) = (host.flow.reserved, now.held);
    ensure!(reserved == held, Credit, None, at, "{reserved} bytes reserved, {held} held");
    ensure!(is_sending(now) || held == 0, Credit, None, at, "{held} bytes held in {:?}", now.state);
    Ok(())
}

/// Nothing goes back while the connection lasts.
fn check_progress(last: &Probe, now: &Probe, at: Instant) -> Result<(), Broken> {
    let back = |from: Psn, to: Psn| to.distance(from) < 0;
    if is_sending(last) && is_sending(now) {
        ensure!(!back(last.una, now.una), Windows, None, at, "una went back: {last:?} {now:?}");
        ensure!(!back(last.sent, now.sent), Windows, None, at, "sent went back: {last:?} {now:?}");
    }
    if is_receiving(last) && is_receiving(now) {
        ensure!(!back(last.expected, now.expected), Windows, None, at, "expected went back: {now:?}");
    }
    Ok(())
}

/// What a requester takes for acknowledged has arrived, and nothing arrived that was not sent.
fn check_belief(requester: &Probe, responder: &Probe, at: Instant) -> Result<(), Broken> {
    if is_sending(requester) && is_receiving(responder) {
        let (sent, arrived) = (requester.sent, responder.expected);
        let acknowledged = requester.una;
        ensure!(acknowledged.distance(arrived) <= 0, Windows, None, at, "{acknowledged} acknowledged, {arrived} next");
        ensure!(arrived.distance(sent) <= 0, Windows, None, at, "{arrived} next, {sent} not yet sent");
    }
    Ok(())
}
