//! Ends the connections to processes of this host that died.
//!
//! The kernel would do it for a dead process: it holds what that had, and sends a DREQ for each of
//! its connections. Here the card dies with its process, so those who are left look whether the
//! others are still there: at an address of our own the slot in the peer's name of a connection
//! says which process that is, and its mailbox whether it lives. Nobody can look into other hosts;
//! there a connection ends by what its queue pair or its program sends.

use super::session::Session;
use roxe_engine::engine::Engine;
use roxe_net::slot::Slot;
use roxe_transport::cm::{EventKind, Peer};
use roxe_wire::Gid;
use std::time::Duration;

/// Between two checks of the peers: the longest time for which the end of a process stays unknown.
/// One check takes some microseconds for each process.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// Whether the process of a peer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Liveness {
    /// It lives in this process, or where nobody can look.
    Unwatched,
    Alive,
    Dead,
}

impl Session<'_> {
    /// After this event there may be a peer to check.
    pub(super) fn note_peer(&mut self, event: &EventKind) {
        if self.check_at.is_none() && matches!(event, EventKind::Established | EventKind::ConnectReply(..)) {
            *self.check_at = Some(self.cx.now.after(CHECK_PERIOD));
        }
    }

    /// Checks the peers if it is time to, and ends the connections to those that are gone. Stops
    /// when there is none left to check.
    // clause: CM-PEER-GONE
    pub(super) fn check_peers(&mut self) {
        if self.check_at.is_none_or(|at| at > self.cx.now) {
            return;
        }
        let (mut known, mut is_watching, mut lost) = (Vec::new(), false, Vec::new());
        for peer in self.cm.peers() {
            match liveness_of(self.engine, &peer, &mut known) {
                Liveness::Unwatched => {}
                Liveness::Alive => is_watching = true,
                Liveness::Dead => lost.push(peer.id),
            }
        }
        let is_watching = self.check_unanswered() || is_watching;
        *self.check_at = is_watching.then(|| self.cx.now.after(CHECK_PERIOD));
        if !lost.is_empty() {
            // What the dead have sent is told before their end, as with a DREQ.
            self.engine.receive_all_arrived();
            self.engine.note_death(self.cx.now);
        }
        for id in lost {
            // It was there a moment ago.
            let _ = self.cm.lose_peer(&mut self.cx, id);
        }
    }
}

/// Whether the process of a peer lives; `known` is what was found before of processes.
fn liveness_of(engine: &Engine, peer: &Peer, known: &mut Vec<(Gid, Slot, Liveness)>) -> Liveness {
    let (address, slot) = (peer.route.remote, Slot::new(peer.theirs.prefix()));
    let before = known.iter().find(|(gid, of, _)| (*gid, *of) == (address, slot));
    before.map(|(_, _, liveness)| *liveness).unwrap_or_else(|| {
        let liveness = check(engine, address, slot);
        known.push((address, slot, liveness));
        liveness
    })
}

fn check(engine: &Engine, address: Gid, slot: Slot) -> Liveness {
    let is_own = engine.slot().is_ok_and(|own| own == slot);
    if is_own || !slot.can_be_owned() || engine.link(address).is_none() {
        Liveness::Unwatched
    } else if engine.is_owned(slot) {
        Liveness::Alive
    } else {
        Liveness::Dead
    }
}
