//! Requests to other hosts that nobody answers: asks the network whether there is a card at all.
//!
//! A request is repeated for more than a minute before it is given up, but a host on which nobody
//! has opened a card says so at once (ICMP), if it is asked in a way in which a process hears of
//! it ([`roxe_net::probe`]). A card that is opened within the seconds until the second such answer
//! still gets the request. Touches the sockets of the probes.

use super::session::{Session, Unanswered};
use roxe_net::probe::Probe;
use roxe_transport::cm::{Route, State};
use roxe_wire::cm::CommId;
use std::time::Duration;

/// Between a request and the first question, and between questions.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// So many questions in a row have the same answer before it is believed.
const ENOUGH: u32 = 2;

impl Session<'_> {
    /// The request `id` has just left along `route`.
    pub(crate) fn watch_answer(&mut self, id: CommId, route: Route) {
        let is_far = self.engine.link(route.remote).is_none() && !route.remote.is_multicast();
        if is_far {
            self.unanswered.push(Unanswered { id, route, probe: None, refusals: 0 });
            let at = self.cx.now.after(PERIOD);
            *self.check_at = Some(self.check_at.map_or(at, |before| before.min(at)));
        }
    }

    /// Looks what the network has said, and gives up those requests that reach nobody. Whether
    /// there are others.
    // clause: CM-RETRIES
    pub(super) fn check_unanswered(&mut self) -> bool {
        let cm = &self.cm;
        self.unanswered.retain(|request| cm.state(request.id) == Some(State::ReqSent));
        let mut lost = Vec::new();
        for request in self.unanswered.iter_mut() {
            let answer = match request.probe.as_ref().map(Probe::answer) {
                // It may still come.
                Some(None) => continue,
                Some(answer) => answer,
                None => None,
            };
            let said = answer.and_then(|e| e.raw_os_error()).filter(|errno| is_final(*errno));
            request.refusals = if said.is_some() { request.refusals + 1 } else { 0 };
            if let Some(errno) = said.filter(|_| request.refusals >= ENOUGH) {
                lost.push((request.id, errno));
                continue;
            }
            // Who cannot ask waits as long as ever.
            request.probe = self.engine.probe(request.route).ok();
        }
        for (id, errno) in lost {
            self.errno_of_silence = errno;
            // It was there a moment ago.
            let _ = self.cm.give_up(id);
            self.settle();
        }
        self.errno_of_silence = libc::ETIMEDOUT;
        !self.unanswered.is_empty()
    }
}

/// Whether the network says that nobody is there.
const fn is_final(errno: i32) -> bool {
    matches!(errno, libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH)
}
