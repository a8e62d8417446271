//! Manual control of the receive side, for tests of `roxe-provider`.

use super::*;
use roxe_base::clock;
use roxe_base::lock::MutexGuard;

/// The lock of the receive side, released on drop.
pub struct ReceiveGuard<'a>(#[expect(dead_code, reason = "held to be dropped")] MutexGuard<'a, rank::Rx, Rx>);

impl Engine {
    /// Locks the receive side.
    pub fn hold_receive_side(&self) -> ReceiveGuard<'_> {
        ReceiveGuard(self.rx.lock())
    }

    /// Returns the number of timers added so far. A poll of the engine reads it before it receives.
    pub fn timers_added(&self) -> u64 {
        self.scheduler.timers.added()
    }

    /// Runs due timers among the first `added`, as a poll of the engine does after it has received.
    pub fn run_due_timers(&self, added: u64) {
        self.run_timers(added, clock::now());
    }
}
