//! Alternate paths by message: an end of an established connection proposes another path (LAP), the
//! other one loads it into its queue pair and says so (APR), or says why not.
//!
//! ```text
//!   load_alternate ─ LAP ─► AlternateRequest ─ answer_alternate ─ APR ─► AlternateReply
//!      (repeated, then AlternateUnanswered)    └─ delay ─ MRA(LAP) ─►  (waits longer)
//! ```
//!
//! Either end may propose, one path at a time. If both do at once, the active side's proposal
//! stands. Only programs that want to are asked; for the others a LAP is refused. Nothing here
//! moves a connection to its alternate path: queue pairs do that, and the program says when its own
//! has done so.

use super::connection::{Connection, Loading, State};
use super::messages;
use super::terms::{Alternate, AlternateAnswer, CmError, EventKind, Ignored, Outbox, Route, Settings};
use crate::time::Instant;
use roxe_wire::cm::{Apr, AprStatus, Lap, Mad, Message, TimeCode, TransactionId};

/// What is under way about an alternate path (IBA §12.9.7 has these as states of an established
/// connection).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlternateState {
    /// No new path is being agreed on.
    Idle,
    /// We asked for a new path, and the peer has not answered.
    LapSent,
    /// The new path was asked for, and the peer said that it needs longer.
    MraLapRcvd,
    /// The peer asked for a new path; our program has to answer.
    LapRcvd,
    /// The peer asked for a new path, and was told that we need longer.
    MraLapSent,
}

impl Connection {
    pub(super) const fn alternate_state(&self) -> AlternateState {
        match (self.state, &self.loading) {
            (State::Established, Loading::Asked { patient: false, .. }) => AlternateState::LapSent,
            (State::Established, Loading::Asked { .. }) => AlternateState::MraLapRcvd,
            (State::Established, Loading::Asks { mra: None, .. }) => AlternateState::LapRcvd,
            (State::Established, Loading::Asks { .. }) => AlternateState::MraLapSent,
            _ => AlternateState::Idle,
        }
    }

    /// Our program proposes a path.
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
        self.loading = Loading::Asked { lap: Box::new(mad), route: alternate.route, patient: false };
        self.timer.start(now);
        Ok(())
    }

    /// The peer proposes a path.
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
            Loading::Answered(apr) if apr.tid == tid => {
                out.send_mad(self.route(), (**apr).clone());
                return Err(Ignored::Duplicate);
            }
            Loading::Asks { tid: known, .. } if *known == tid => {
                let _ = self.delay_alternate(settings.service_timeout, out);
                return Err(Ignored::Duplicate);
            }
            Loading::Asks { .. } => return Err(Ignored::State),
            // clause: CM-LAP-CROSSING
            Loading::Asked { .. } if self.is_active => return Err(Ignored::State),
            _ => {}
        }
        if let Some(status) = self.why_not(lap) {
            out.send(self.route(), tid, messages::apr(self.id, self.remote_id(), &AlternateAnswer::new(status)));
            return Err(Ignored::Refused);
        }
        self.give_up_alternate(out);
        self.loading = Loading::Asks { tid, route: path_of(lap), mra: None };
        self.tell(EventKind::AlternateRequest(Box::new(lap.clone())), out);
        Ok(())
    }

    /// Why our program is not even asked.
    fn why_not(&self, lap: &Lap) -> Option<AprStatus> {
        if !self.takes_alternates || self.orphan {
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

    /// Our program answers.
    // clause: CM-LAP
    pub(super) fn answer_alternate(&mut self, answer: &AlternateAnswer, out: &mut Outbox) -> Result<(), CmError> {
        let Loading::Asks { tid, route, .. } = self.loading else { return Err(CmError::State) };
        self.check_state(&[State::Established])?;
        let mad = Mad { tid, modifier: 0, message: messages::apr(self.id, self.remote_id(), answer).into() };
        out.send_mad(self.route(), mad.clone());
        self.loading = Loading::Answered(Box::new(mad));
        self.note_alternate(answer.status, route);
        Ok(())
    }

    /// The peer answers.
    // clause: CM-LAP
    pub(super) fn on_apr(&mut self, tid: TransactionId, apr: &Apr, out: &mut Outbox) -> Result<(), Ignored> {
        let Loading::Asked { lap, route, .. } = &self.loading else { return Err(Ignored::State) };
        if self.state != State::Established || lap.tid != tid {
            return Err(Ignored::State);
        }
        let route = *route;
        self.timer.stop();
        self.loading = Loading::Nothing;
        self.note_alternate(apr.status, route);
        self.tell(EventKind::AlternateReply(Box::new(apr.clone())), out);
        Ok(())
    }

    /// Both ends know a second path: messages may come by it from now on.
    fn note_alternate(&mut self, status: AprStatus, route: Route) {
        if status == AprStatus::Success {
            self.alternate = Some(route);
        }
    }

    /// Tells a peer that has asked to wait for our program.
    // clause: CM-MRA
    pub(super) fn delay_alternate(&mut self, service_timeout: TimeCode, out: &mut Outbox) -> Result<(), CmError> {
        let (message, to) = (messages::mra(self, service_timeout), self.route());
        let Loading::Asks { tid, mra, .. } = &mut self.loading else { return Err(CmError::State) };
        let mad = mra.get_or_insert_with(|| Box::new(Mad { tid: *tid, modifier: 0, message: Message::Mra(message) }));
        out.send_mad(to, (**mad).clone());
        Ok(())
    }

    /// The peer does not answer our LAP.
    // clause: CM-RETRIES
    pub(super) fn on_alternate_timeout(&mut self, now: Instant, out: &mut Outbox) {
        let Loading::Asked { lap, .. } = &self.loading else { return self.timer.stop() };
        if self.timer.again(now) {
            out.send_mad(self.terms.route, (**lap).clone());
        } else {
            self.give_up_alternate(out);
        }
    }

    /// Nothing comes of what we asked for, if we did.
    fn give_up_alternate(&mut self, out: &mut Outbox) {
        if matches!(self.loading, Loading::Asked { .. }) {
            self.timer.stop();
            self.loading = Loading::Nothing;
            self.tell(EventKind::AlternateUnanswered, out);
        }
    }

    /// Our queue pair has gone over to the alternate path: messages take it, too. What comes by the
    /// old one counts as well, as the peer may go over later.
    // clause: CM-MIGRATED
    pub(super) fn migrate(&mut self) -> Result<(), CmError> {
        let alternate = self.alternate.as_mut().ok_or(CmError::State)?;
        core::mem::swap(&mut self.terms.route, alternate);
        Ok(())
    }
}

/// The path that the peer proposes, from our side.
pub(super) const fn path_of(lap: &Lap) -> Route {
    Route { local: lap.remote_gid, remote: lap.local_gid }
}
