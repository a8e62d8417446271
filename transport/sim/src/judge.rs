//! The promises of a queue pair that are checked after every call and for every packet, and the
//! report of a broken one.
//!
//! Checks return a [`Broken`] instead of panicking, so that a search can run again with a smaller
//! case. They read the PSNs of the QP ([`Probe`]) and compare them with earlier ones and with
//! those of the peer.

use crate::host::SimHost;
use core::fmt;
use roxe_transport::Qp;
use roxe_transport::qp::Probe;
use roxe_transport::qp::QpState;
use roxe_transport::time::Instant;
use roxe_wire::{Header, Kind, Psn, Response, Syndrome};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// A work request completes at most once, in order, exactly once if nothing fails, and with the
    /// right opcode.
    Completions,
    /// A successful operation placed exactly the right bytes in exactly the right place.
    Bytes,
    /// PSNs stay in their windows and never go back: fewer than 2^23 outstanding, nothing
    /// acknowledged that did not arrive, no request or response outside the window.
    Windows,
    /// Reservations cover packets in flight: none leaks, a QP in the error state holds none, and
    /// their sum stays within the window.
    Credit,
    /// A timer runs only while the QP waits for something, and a handled deadline is not due again.
    Timers,
    /// A QP in the error state sends nothing after its last NAK; one without work sends nothing.
    Silence,
    /// A run ends: no QP waits forever or sends without end.
    Progress,
    NoPanic,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub promise: Promise,
    /// End that broke the promise; `None` if unknown.
    pub end: Option<usize>,
    pub at: Instant,
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

/// Half of the PSN space, to which the PSNs in flight are limited (IBA §9.7.2).
const WINDOW: i32 = 1 << 23;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watch {
    last: Option<Probe>,
    /// True if the QP has sent its last NAK in the error state.
    silenced: bool,
    /// Bytes of this QP that its window counts.
    pub(crate) counted: u32,
}

/// Returns true if the send queue runs. In other states a flush may change the PSNs.
fn is_sending(probe: &Probe) -> bool {
    matches!(probe.state, QpState::Rts | QpState::Sqd)
}

fn is_receiving(probe: &Probe) -> bool {
    matches!(probe.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
}

impl Watch {
    /// Checks the promises of `qp` after an event. `other` is its peer; `None` if the two may
    /// disagree, as after a restart.
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
            // Only the responses to requests before the refused one, a CNP that was due with them,
            // and the NAK may be sent.
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
                let newest = newest_response_psn(response, probe.expected);
                ensure!(psn.distance(newest) <= 0, Windows, None, at, "{response:?} {psn} is beyond {newest}");
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the newest legal PSN of a response: a NAK carries the PSN of the expected request, all
/// others the one before.
fn newest_response_psn(response: &Response, expected: Psn) -> Psn {
    match response {
        Response::Ack(aeth) if is_nak(aeth.syndrome) => expected,
        _ => expected.sub(1),
    }
}

fn is_nak(syndrome: Syndrome) -> bool {
    matches!(syndrome, Syndrome::Nak(_) | Syndrome::RnrNak { .. })
}

/// Checks that a timer runs only in RTS and SQD, and only while work is in flight, held back, or
/// waits for the peer.
fn check_timer(qp: &Qp, now: &Probe, at: Instant) -> Result<(), Broken> {
    let waits = is_sending(now) && (now.sends > 0 || !qp.is_quiescent());
    ensure!(waits || qp.poll_timeout().is_none(), Timers, None, at, "a timer runs without work: {now:?}");
    Ok(())
}

fn check_order(now: &Probe, at: Instant) -> Result<(), Broken> {
    let Probe { una, next, sent, .. } = *now;
    let (next, sent) = (next.distance(una), sent.distance(una));
    ensure!(
        0 <= next && next <= sent && sent < WINDOW,
        Windows,
        None,
        at,
        "una <= next <= sent < una + 2^23 does not hold: {now:?}"
    );
    Ok(())
}

/// Checks that the reservation equals what the QP holds; outside RTS and SQD it holds nothing.
fn check_credit(now: &Probe, host: &SimHost, at: Instant) -> Result<(), Broken> {
    let (reserved, held) = (host.flow.reserved, now.held);
    ensure!(reserved == held, Credit, None, at, "{reserved} bytes reserved, {held} held");
    ensure!(is_sending(now) || held == 0, Credit, None, at, "{held} bytes held in {:?}", now.state);
    Ok(())
}

/// Checks that PSNs never go back while the connection lasts.
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

/// Checks that the responder has received what the requester considers acknowledged, and nothing
/// that was not sent.
fn check_belief(requester: &Probe, responder: &Probe, at: Instant) -> Result<(), Broken> {
    if is_sending(requester) && is_receiving(responder) {
        let (sent, arrived) = (requester.sent, responder.expected);
        let acknowledged = requester.una;
        ensure!(
            acknowledged.distance(arrived) <= 0,
            Windows,
            None,
            at,
            "the requester considers all before {acknowledged} acknowledged, the responder expects {arrived}"
        );
        ensure!(
            arrived.distance(sent) <= 0,
            Windows,
            None,
            at,
            "the responder expects {arrived}, the requester has not sent {sent} yet"
        );
    }
    Ok(())
}
