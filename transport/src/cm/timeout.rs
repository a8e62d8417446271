//! What a connection does when nothing comes, or nobody is there: it asks again, and gives up in
//! the end.

use super::conn::{Connection, State};
use super::fields;
use super::outbox::{EventKind, Outbox};
use super::settings::Settings;
use crate::time::Instant;

impl Connection {
    /// The timer is due. While we are flooded with requests nothing is said to those who do not
    /// confirm: whoever waits for our REP asks again, and is answered.
    pub(super) fn on_timeout(&mut self, now: Instant, settings: &Settings, is_flooded: bool, out: &mut Outbox) {
        match self.state {
            State::ReqSent if self.req_retry.is_pausing => self.ask_again(now, out),
            // clause: CM-FLOOD
            State::RepSent | State::MraRepRcvd if is_flooded => {
                if !self.timer.again(now) {
                    self.tell(EventKind::Unreachable, out);
                    self.finish();
                }
            }
            State::ReqSent | State::MraReqRcvd | State::RepSent | State::MraRepRcvd => {
                if self.timer.again(now) {
                    self.repeat(out);
                } else {
                    self.give_up(settings, out);
                }
            }
            State::Established => self.on_alternate_timeout(now, out),
            State::DreqSent => self.on_disconnect_timeout(now, out),
            State::TimeWait => {
                self.tell(EventKind::TimeWaitExit, out);
                self.finish();
            }
            _ => self.timer.stop(),
        }
    }

    /// The peer does not answer. It may be that only its messages are lost, so it is told.
    // clause: CM-RETRIES
    pub(super) fn give_up(&mut self, settings: &Settings, out: &mut Outbox) {
        out.send(self.route(), self.tid, fields::timeout(self, settings.guid));
        self.tell(EventKind::Unreachable, out);
        self.finish();
    }

    /// Nobody listens where we asked: whether to ask again, after a pause.
    // clause: CM-REQ-AGAIN
    pub(super) fn will_ask_again(&mut self, now: Instant) -> bool {
        let next = self.req_retry.pause(now);
        self.timer.due = next.or(self.timer.due);
        next.is_some()
    }

    /// The pause is over.
    fn ask_again(&mut self, now: Instant, out: &mut Outbox) {
        self.req_retry.is_pausing = false;
        self.repeat(out);
        self.timer.start(now);
    }
}
