//! How a connection ends, or comes to nothing: rejections, disconnects, how its program leaves it,
//! and asking for more time.

use super::conn::{Connection, Loading, State};
use super::error::{CmError, Ignored};
use super::fields;
use super::outbox::{Ending, EventKind, Outbox};
use super::settings::Settings;
use super::terms::Refusal;
use super::times::wait;
use crate::time::Instant;
use roxe_wire::cm::{Answered, CommId, Dreq, Info, Message, Mra, PrivateData, Rej, RejReason, TimeCode, TransactionId};

impl Connection {
    /// Our program does not want the connection: after a REQ or a REP of the peer.
    // clause: CM-REJECT
    pub(super) fn reject(&mut self, refusal: &Refusal, out: &mut Outbox) -> Result<(), CmError> {
        self.check_state(&[State::ReqRcvd, State::MraReqSent, State::RepRcvd, State::MraRepSent])?;
        self.send_rejection(refusal, out);
        Ok(())
    }

    pub(super) fn send_rejection(&mut self, refusal: &Refusal, out: &mut Outbox) {
        out.send(self.route(), self.tid, fields::rejection(self, refusal));
        self.finish();
    }

    /// Our program needs longer to accept, to confirm, or to load a path.
    // clause: CM-MRA
    pub(super) fn delay(&mut self, service_timeout: TimeCode, out: &mut Outbox) -> Result<(), CmError> {
        self.state = match self.state {
            State::ReqRcvd => State::MraReqSent,
            State::RepRcvd => State::MraRepSent,
            State::Established => return self.delay_alternate(service_timeout, out),
            _ => return Err(CmError::State),
        };
        self.send(fields::mra(self, service_timeout), out);
        Ok(())
    }

    /// The peer needs longer to answer our REQ, to confirm our REP or to load a path: so long, and
    /// the time its packets take. Counts once: what comes after that wait is repeated as ever.
    // clause: CM-MRA
    pub(super) fn on_mra(&mut self, now: Instant, mra: &Mra) -> Result<(), Ignored> {
        match (self.state, mra.answered, &mut self.loading) {
            (State::ReqSent, Answered::Req, _) => self.state = State::MraReqRcvd,
            (State::RepSent, Answered::Rep, _) => self.state = State::MraRepRcvd,
            (State::Established, Answered::Neither, Loading::Asked { patient: patient @ false, .. }) => *patient = true,
            _ => return Err(Ignored::State),
        }
        self.timer.due = Some(now.after(wait(mra.service_timeout) + wait(self.terms.timeout)));
        Ok(())
    }

    /// The peer does not want the connection, or not any more.
    // clause: CM-REJ-RECEIVED
    pub(super) fn on_rej(&mut self, now: Instant, rej: &Rej, out: &mut Outbox) -> Result<(), Ignored> {
        let was = self.state;
        match was {
            State::ReqSent if rej.reason == RejReason::InvalidServiceId && self.req_retry.is_pausing => {
                return Err(Ignored::Duplicate);
            }
            State::ReqSent if rej.reason == RejReason::InvalidServiceId && self.will_ask_again(now) => return Ok(()),
            State::TimeWait | State::DreqRcvd | State::Idle => return Err(Ignored::State),
            State::Established | State::DreqSent => {
                self.enter_time_wait(now);
                self.tell(EventKind::Disconnected(Ending::Rejected), out);
                return Ok(());
            }
            _ => self.tell(EventKind::Rejected(Box::new(rej.clone())), out),
        }
        self.orphan = true;
        // Where queue pairs knew each other, or one still knows an older connection, packets may be
        // on the way.
        if rej.reason == RejReason::StaleConnection || matches!(was, State::RepRcvd | State::MraRepSent) {
            self.enter_time_wait(now);
        } else {
            self.finish();
        }
        Ok(())
    }

    /// The queue pair that the peer offers is that of another connection of ours: the offer is
    /// refused.
    // clause: CM-STALE
    pub(super) fn refuse_stale_rep(&mut self, theirs: CommId, out: &mut Outbox) {
        let refusal = fields::plain(self.id, theirs, Answered::Rep, RejReason::StaleConnection, Info::EMPTY);
        out.send(self.route(), self.tid, refusal);
        self.tell(EventKind::Stale, out);
        self.finish();
    }

    /// Our program ends the connection, or agrees with its end.
    // clause: CM-DISCONNECT
    pub(super) fn disconnect(&mut self, now: Instant, tid: TransactionId, out: &mut Outbox) -> Result<(), CmError> {
        match self.state {
            State::Established => self.send_dreq(now, tid, out),
            State::DreqRcvd => self.send_drep(now, self.tid, out),
            _ => return Err(CmError::State),
        }
        Ok(())
    }

    pub(super) fn send_dreq(&mut self, now: Instant, tid: TransactionId, out: &mut Outbox) {
        self.state = State::DreqSent;
        self.tid = tid;
        self.send(fields::dreq(self), out);
        self.timer.start(now);
    }

    pub(super) fn send_drep(&mut self, now: Instant, tid: TransactionId, out: &mut Outbox) {
        self.answer_dreq(tid, out);
        self.enter_time_wait(now);
    }

    /// Whether it ends as the peer asked, who may not have got our answer.
    pub(super) fn was_asked(&self) -> bool {
        self.last.as_ref().is_some_and(|mad| matches!(mad.message, Message::Drep(_)))
    }

    fn answer_dreq(&mut self, tid: TransactionId, out: &mut Outbox) {
        self.tid = tid;
        self.send(fields::drep(self.id, self.remote_id()), out);
    }

    /// Our program is not interested any more: what the kernel does when an id is destroyed, but
    /// that a DREQ is repeated.
    // clause: CM-DESTROY
    pub(super) fn destroy(&mut self, now: Instant, tid: TransactionId, settings: &Settings, out: &mut Outbox) {
        self.orphan = true;
        match self.state {
            State::ReqSent | State::MraReqRcvd => self.give_up(settings, out),
            State::Established => self.send_dreq(now, tid, out),
            State::DreqRcvd => self.send_drep(now, self.tid, out),
            State::DreqSent | State::TimeWait | State::Idle => {}
            _ => self.send_rejection(&Refusal::new(PrivateData::EMPTY), out),
        }
    }

    /// The process ends, and nobody will repeat what ends the connection if it is lost: it is said
    /// now, or said once more.
    // clause: CM-PARTING
    pub(super) fn shut_down(&mut self, now: Instant, tid: TransactionId, settings: &Settings, out: &mut Outbox) {
        self.orphan = true;
        match self.state {
            State::DreqSent => self.repeat(out),
            // Unless the peer asked for nothing.
            State::TimeWait if self.was_asked() => self.repeat(out),
            _ => self.destroy(now, tid, settings, out),
        }
    }

    /// The peer ends the connection.
    // clause: CM-DREQ
    pub(super) fn on_dreq(
        &mut self,
        now: Instant,
        tid: TransactionId,
        dreq: &Dreq,
        out: &mut Outbox,
    ) -> Result<(), Ignored> {
        if dreq.remote_qpn != self.qpn {
            return Err(Ignored::Qpn);
        }
        match self.state {
            State::RepSent | State::MraRepRcvd | State::Established => {
                self.timer.stop();
                self.tid = tid;
                self.state = State::DreqRcvd;
                self.tell(EventKind::Disconnected(Ending::Asked), out);
            }
            // Both at once: our program has agreed already.
            // clause: CM-DREQ-CROSSING
            State::DreqSent => {
                self.send_drep(now, tid, out);
                self.tell(EventKind::Disconnected(Ending::Agreed), out);
            }
            State::TimeWait => self.answer_dreq(tid, out),
            State::DreqRcvd => return Err(Ignored::Duplicate),
            _ => return Err(Ignored::State),
        }
        Ok(())
    }

    /// The peer agrees.
    pub(super) fn on_drep(&mut self, now: Instant, out: &mut Outbox) -> Result<(), Ignored> {
        if self.state != State::DreqSent {
            return Err(Ignored::State);
        }
        self.enter_time_wait(now);
        self.tell(EventKind::Disconnected(Ending::Agreed), out);
        Ok(())
    }

    /// The peer does not answer our DREQ.
    pub(super) fn on_disconnect_timeout(&mut self, now: Instant, out: &mut Outbox) {
        if self.timer.again(now) {
            self.repeat(out);
            return;
        }
        self.enter_time_wait(now);
        self.tell(EventKind::Disconnected(Ending::TimedOut), out);
    }
}
