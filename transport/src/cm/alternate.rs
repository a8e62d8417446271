//! Alternate paths: one end of an established connection proposes another path (LAP); the other
//! loads it into its queue pair and accepts, or refuses (APR).
//!
//! ```text
//!   load_alternate ─ LAP ─► AlternateRequest ─ answer_alternate ─ APR ─► AlternateReply
//!      (retried, then AlternateUnanswered)     └─ delay ─ MRA(LAP) ─►  (waits longer)
//! ```
//!
//! Either end may propose, one path at a time; if both do at once, the active side's proposal
//! stands. A LAP is refused unless the program has enabled it. Queue pairs migrate on their own;
//! the program then reports the migration to this module.

use super::connection::{Connection, Loading, State};
use super::messages;
use super::terms::{Alternate, AlternateAnswer, CmError, EventKind, Ignored, Outbox, Route, Settings};
use crate::time::Instant;
use roxe_wire::cm::{Apr, AprStatus, Lap, Mad, Message, TimeCode, TransactionId};

/// Negotiation of an alternate path (IBA §12.9.7 has these as states of an established connection).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlternateState {
    /// No negotiation.
    Idle,
    /// We proposed a path; the peer has not answered.
    LapSent,
    /// We proposed a path; the peer needs longer.
    MraLapRcvd,
    /// The peer proposed a path; our program has to answer.
    LapRcvd,
    /// The peer proposed a path; we requested it to wait.
    MraLapSent,
}

impl Connection {
    pub(super) const fn alternate_state(&self) -> AlternateState {
        match (self.state, &self.loading) {
            (State::Established, Loading::LapSent { mra_received: false, .. }) => AlternateState::LapSent,
            (State::Established, Loading::LapSent { .. }) => AlternateState::MraLapRcvd,
            (State::Established, Loading::LapReceived { mra: None, .. }) => AlternateState::LapRcvd,
            (State::Established, Loading::LapReceived { .. }) => AlternateState::MraLapSent,
            _ => AlternateState::Idle,
        }
    }

    // clause: CM-LAP
    pub(super) fn load_alternate(
        &mut self,
        now: Instant,
        tid: TransactionId,
        alternate: &Alternate,
        settings: &Settings,
        out: &mut Outbox,
    ) -> Result<(), CmError> {
        self.check_state(&[State::Established])?;
        if self.alternate_state() != AlternateState::Idle {
            return Err(CmError::State);
        }
        let mad = Mad { tid, modifier: 0, message: messages::lap(self, alternate, settings).into() };
        out.send_mad(self.route(), mad.clone());
        self.loading = Loading::LapSent { lap: Box::new(mad), route: alternate.route, mra_received: false };
        self.timer.start(now);
        Ok(())
    }

    // clause: CM-LAP, CM-LAP-DUPLICATE
    pub(super) fn on_lap(
        &mut self,
        tid: TransactionId,
        lap: &Lap,
        settings: &Settings,
        out: &mut Outbox,
    ) -> Result<(), Ignored> {
        if self.state != State::Established {
            return Err(Ignored::State);
        }
        match &self.loading {
            Loading::AprSent(apr) if apr.tid == tid => {
                out.send_mad(self.route(), (**apr).clone());
                return Err(Ignored::Duplicate);
            }
            Loading::LapReceived { tid: known, .. } if *known == tid => {
                let _ = self.delay_alternate(settings.service_timeout, out);
                return Err(Ignored::Duplicate);
            }
            Loading::LapReceived { .. } => return Err(Ignored::State),
            // clause: CM-LAP-CROSSING
            Loading::LapSent { .. } if self.is_active => return Err(Ignored::State),
            _ => {}
        }
        if let Some(status) = self.why_not(lap) {
            out.send(self.route(), tid, messages::apr(self.id, self.remote_id(), &AlternateAnswer::new(status)));
            return Err(Ignored::Refused);
        }
        self.give_up_alternate(out);
        self.loading = Loading::LapReceived { tid, route: path_of(lap), mra: None };
        self.emit(EventKind::AlternateRequest(Box::new(lap.clone())), out);
        Ok(())
    }

    /// Returns the reason to refuse a path without asking the program.
    fn why_not(&self, lap: &Lap) -> Option<AprStatus> {
        if !self.has_alternate_events || self.orphan {
            Some(AprStatus::Unsupported)
        } else if lap.remote_qpn != self.qpn {
            Some(AprStatus::InvalidQpn)
        } else if path_of(lap) == self.route() {
            Some(AprStatus::IsCurrent)
        } else if lap.local_gid.is_zero() || lap.local_gid.is_multicast() || lap.remote_gid.is_multicast() {
            Some(AprStatus::InvalidGid)
        } else {
            None
        }
    }

    // clause: CM-LAP
    pub(super) fn answer_alternate(&mut self, answer: &AlternateAnswer, out: &mut Outbox) -> Result<(), CmError> {
        let Loading::LapReceived { tid, route, .. } = self.loading else { return Err(CmError::State) };
        self.check_state(&[State::Established])?;
        let mad = Mad { tid, modifier: 0, message: messages::apr(self.id, self.remote_id(), answer).into() };
        out.send_mad(self.route(), mad.clone());
        self.loading = Loading::AprSent(Box::new(mad));
        self.note_alternate(answer.status, route);
        Ok(())
    }

    // clause: CM-LAP
    pub(super) fn on_apr(&mut self, tid: TransactionId, apr: &Apr, out: &mut Outbox) -> Result<(), Ignored> {
        let Loading::LapSent { lap, route, .. } = &self.loading else { return Err(Ignored::State) };
        if self.state != State::Established || lap.tid != tid {
            return Err(Ignored::State);
        }
        let route = *route;
        self.timer.stop();
        self.loading = Loading::Nothing;
        self.note_alternate(apr.status, route);
        self.emit(EventKind::AlternateReply(Box::new(apr.clone())), out);
        Ok(())
    }

    /// Accepts messages from `route` once both ends have loaded that path.
    fn note_alternate(&mut self, status: AprStatus, route: Route) {
        if status == AprStatus::Success {
            self.alternate = Some(route);
        }
    }

    /// Sends an MRA, so that the peer waits for our program's answer.
    // clause: CM-MRA
    pub(super) fn delay_alternate(&mut self, service_timeout: TimeCode, out: &mut Outbox) -> Result<(), CmError> {
        let (message, to) = (messages::mra(self, service_timeout), self.route());
        let Loading::LapReceived { tid, mra, .. } = &mut self.loading else { return Err(CmError::State) };
        let mad = mra.get_or_insert_with(|| Box::new(Mad { tid: *tid, modifier: 0, message: Message::Mra(message) }));
        out.send_mad(to, (**mad).clone());
        Ok(())
    }

    // clause: CM-RETRIES
    pub(super) fn on_alternate_timeout(&mut self, now: Instant, out: &mut Outbox) {
        let Loading::LapSent { lap, .. } = &self.loading else { return self.timer.stop() };
        if self.timer.restart(now) {
            out.send_mad(self.terms.route, (**lap).clone());
        } else {
            self.give_up_alternate(out);
        }
    }

    /// Abandons the local proposal, if any.
    fn give_up_alternate(&mut self, out: &mut Outbox) {
        if matches!(self.loading, Loading::LapSent { .. }) {
            self.timer.stop();
            self.loading = Loading::Nothing;
            self.emit(EventKind::AlternateUnanswered, out);
        }
    }

    /// Handles the migration of our queue pair: messages use the new path. The old path stays
    /// valid, because the peer may migrate later.
    // clause: CM-MIGRATED
    pub(super) fn migrate(&mut self) -> Result<(), CmError> {
        let alternate = self.alternate.as_mut().ok_or(CmError::State)?;
        core::mem::swap(&mut self.terms.route, alternate);
        Ok(())
    }
}

pub(super) const fn path_of(lap: &Lap) -> Route {
    Route { local: lap.remote_gid, remote: lap.local_gid }
}
