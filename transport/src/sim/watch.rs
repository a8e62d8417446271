//! The promises of one queue pair that can be checked after every call and for every packet.
//!
//! May touch: the public face of `qp`, [`super::promise`]. Reads the numbers of the standard off
//! the QP ([`crate::qp::probe`]) and compares them with what they were and with those of the peer.

use super::host::SimHost;
use super::promise::{Broken, ensure};
use crate::Qp;
use crate::qp::QpState;
use crate::qp::probe::Probe;
use crate::time::Instant;
use roxe_wire::{Header, Kind, Psn, Response, Syndrome};

/// PSNs that two ends can tell apart (IBA §9.7.2).
const WINDOW: i32 = 1 << 23;

/// What is known of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    /// Where it stood, in which state.
    last: Option<Probe>,
    /// The QP is in the error state and has sent its last NAK.
    silenced: bool,
    /// Bytes that the sum over its node holds for it.
    pub(super) counted: u32,
}

impl Probe {
    /// Whether its numbers are those of a running send queue: a flush sets them anew.
    fn is_sending(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    /// Whether it executes requests.
    fn is_receiving(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
    }
}

impl Watch {
    /// Checks where `qp` stands; `other` is its peer, if what it believes of it must be true.
    pub(super) fn check(&mut self, qp: &Qp, host: &SimHost, other: Option<Probe>, at: Instant) -> Result<(), Broken> {
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
    pub(super) fn on_emitted(&mut self, qp: &Qp, header: &Header, at: Instant) -> Result<(), Broken> {
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
    let waits = now.is_sending() && (now.sends > 0 || !qp.is_quiescent());
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
    ensure!(now.is_sending() || held == 0, Credit, None, at, "{held} bytes held in {:?}", now.state);
    Ok(())
}

/// Nothing goes back while the connection lasts.
fn check_progress(last: &Probe, now: &Probe, at: Instant) -> Result<(), Broken> {
    let back = |from: Psn, to: Psn| to.distance(from) < 0;
    if last.is_sending() && now.is_sending() {
        ensure!(!back(last.una, now.una), Windows, None, at, "una went back: {last:?} {now:?}");
        ensure!(!back(last.sent, now.sent), Windows, None, at, "sent went back: {last:?} {now:?}");
    }
    if last.is_receiving() && now.is_receiving() {
        ensure!(!back(last.expected, now.expected), Windows, None, at, "expected went back: {now:?}");
    }
    Ok(())
}

/// What a requester takes for acknowledged has arrived, and nothing arrived that was not sent.
fn check_belief(requester: &Probe, responder: &Probe, at: Instant) -> Result<(), Broken> {
    if requester.is_sending() && responder.is_receiving() {
        let (sent, arrived) = (requester.sent, responder.expected);
        let acknowledged = requester.una;
        ensure!(acknowledged.distance(arrived) <= 0, Windows, None, at, "{acknowledged} acknowledged, {arrived} next");
        ensure!(arrived.distance(sent) <= 0, Windows, None, at, "{arrived} next, {sent} not yet sent");
    }
    Ok(())
}
