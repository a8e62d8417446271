//! What each thread holds, and the check of the order: builds with debug assertions only.

use super::rank::Rank;
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::panic::Location;

/// A lock that a thread holds or wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub level: u16,
    pub name: &'static str,
    pub address: usize,
    pub at: &'static Location<'static>,
}

impl Held {
    #[track_caller]
    pub(super) fn new<R: Rank>(address: usize) -> Self {
        Self { level: R::LEVEL, name: R::NAME, address, at: Location::caller() }
    }
}

thread_local! {
    // All accesses are tried: a thread that ends, or a signal handler that interrupts these few
    // lines, is not checked.
    // Long enough from the first lock on, so that no later one takes memory for being noted: what a
    // message allocates is tested in builds that have this check.
    static HELD: RefCell<Vec<Held>> = RefCell::new(Vec::with_capacity(32));
    /// Whether locks of one rank are taken together.
    static BESIDE_OTHERS: Cell<bool> = const { Cell::new(false) };
}

/// This thread is going to wait for a lock: ends the process if the order forbids it.
#[track_caller]
pub(super) fn check<R: Rank>(address: usize) {
    let wanted = Held::new::<R>(address);
    let beside = BESIDE_OTHERS.try_with(Cell::get).unwrap_or(false);
    let conflict = HELD.try_with(|held| held.try_borrow().ok().and_then(|held| conflict(&held, &wanted, beside)));
    if let Ok(Some(other)) = conflict {
        let Held { name, at, .. } = wanted;
        // Not by a macro: the test harness would keep the message to itself, and it is about to
        // die.
        let _ = writeln!(
            std::io::stderr(),
            "lock order: {name} is waited for at {at} while {} is held, taken at {}; see the table in lock/rank.rs",
            other.name,
            other.at
        );
        std::process::abort();
    }
}

/// Which lock of `held` forbids to wait for `wanted`.
pub(super) fn conflict(held: &[Held], wanted: &Held, beside: bool) -> Option<Held> {
    let forbids = |held: &&Held| {
        held.level > wanted.level || held.level == wanted.level && (!beside || held.address == wanted.address)
    };
    held.iter().rev().find(forbids).copied()
}

/// This thread has a lock now.
#[track_caller]
pub(super) fn note<R: Rank>(address: usize) {
    let taken = Held::new::<R>(address);
    let _ = HELD.try_with(|held| held.try_borrow_mut().map(|mut held| held.push(taken)));
}

/// This thread has released a lock. Does nothing if it never had it: in the child of a fork locks
/// are taken back from threads that are not there.
pub(super) fn forget(address: usize) {
    let _ = HELD.try_with(|held| {
        let Ok(mut held) = held.try_borrow_mut() else { return };
        if let Some(at) = held.iter().rposition(|held| held.address == address) {
            held.remove(at);
        }
    });
}

/// Takes a lock with `lock`, although another one of its rank may be held.
pub(super) fn beside_others(lock: impl FnOnce()) {
    let _ = BESIDE_OTHERS.try_with(|beside| beside.set(true));
    lock();
    let _ = BESIDE_OTHERS.try_with(|beside| beside.set(false));
}

/// Notes a lock that has no raw lock inside, for as long as this lives.
#[derive(Debug)]
pub(super) struct Noted(usize);

impl Noted {
    #[track_caller]
    pub(super) fn new<R: Rank>(address: usize) -> Self {
        note::<R>(address);
        Self(address)
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        forget(self.0);
    }
}
