//! The entry that an extended completion queue shows its program between `ibv_start_poll` and
//! `ibv_end_poll` (`man ibv_create_cq_ex`).

use crate::wallclock::WallClock;
use core::cell::UnsafeCell;
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use roxe_transport::wr::Cqe;

/// The entry being read, and what makes time of day of its timestamp. `start_poll` locks it and
/// `end_poll` unlocks it, as the man page describes; in between the calling thread owns it.
pub(crate) struct Cursor {
    pub(crate) lock: RawMutex,
    pub(crate) entry: UnsafeCell<Cqe>,
    pub(crate) clock: UnsafeCell<WallClock>,
}

// SAFETY: entry and clock are only touched between `start_poll` and `end_poll`, while the lock is
// held.
unsafe impl Sync for Cursor {}

impl Default for Cursor {
    fn default() -> Self {
        Self { lock: RawMutex::INIT, entry: UnsafeCell::default(), clock: UnsafeCell::default() }
    }
}
