//! Manual control of the receive side, for tests of the crate above.

use super::*;
use roxe_base::clock;
use roxe_base::lock::MutexGuard;

/// The locked receive side.
pub struct Held<'a>(#[expect(dead_code, reason = "held to be dropped")] MutexGuard<'a, rank::Rx, Rx>);

impl Engine {
    /// Locks the receive side.
    pub fn hold_receive_side(&self) -> Held<'_> {
        Held(self.rx.lock())
    }

    /// Number of timers added so far, as a visit reads it before it receives.
    pub fn timers_added(&self) -> u64 {
        self.scheduler.timers.added()
    }

    /// Runs due timers among the first `added`, as a visit does after it has received.
    pub fn run_due_timers(&self, added: u64) {
        self.run_timers(added, clock::now());
    }
}
