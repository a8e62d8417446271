//! Looking again and again before a sleep: what is about to come must not pay for waking a thread.
//!
//! Who finds nothing gives the processor to whoever wants it. Touches the clock and the scheduler
//! of the system; [`crate::poll_policy::spin`] decides.

use crate::poll_policy::spin::{Look, Next, SpinGovernor, SpinRound};
use crate::thread;
use roxe_base::clock;
use std::time::Duration;

impl SpinGovernor {
    /// Looks until it is enough, or nothing has come for as long as `patience`, or somebody else
    /// wants the processor. Whether it was enough.
    pub(crate) fn keep_looking(&self, patience: Duration, mut look: impl FnMut() -> Look) -> bool {
        let mut round = SpinRound::new(patience, clock::now());
        loop {
            let what = look();
            if what == Look::Vain {
                round.before_yield(thread::preemptions);
                // Who shares this processor may be the one that answers.
                std::thread::yield_now();
            }
            match round.after_look(what, clock::now(), thread::preemptions) {
                Next::Look => {}
                Next::Enough => return true,
                Next::GiveUp => return false,
                Next::MakeRoom => {
                    self.note_contention();
                    return false;
                }
            }
        }
    }
}
