//! The receive side by hand, for tests of the crate above.

use super::*;
use roxe_base::clock;
use roxe_base::lock::MutexGuard;

/// The receive side, which nobody else gets meanwhile.
pub struct Held<'a>(#[expect(dead_code, reason = "held to be dropped")] MutexGuard<'a, rank::Rx, Rx>);

impl Engine {
    /// Takes the receive side.
    pub fn hold_receive_side(&self) -> Held<'_> {
        Held(self.rx.lock())
    }

    /// The timers that were added so far, as a visit counts them before it receives.
    pub fn timers_added(&self) -> u64 {
        self.scheduler.timers.added()
    }

    /// Runs what is due of the first `added` timers, as a visit does that has received.
    pub fn run_due_timers(&self, added: u64) {
        self.run_timers(added, clock::now());
    }
}
