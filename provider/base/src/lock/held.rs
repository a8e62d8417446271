//! The locks that each thread holds, and the check of the lock order. Without debug assertions
//! nothing is recorded or checked.

use super::rank::Rank;
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::panic::Location;

/// A lock that a thread holds or waits for.
#[derive(Clone, Copy, Debug)]
struct Held {
    level: u16,
    name: &'static str,
    address: usize,
    at: &'static Location<'static>,
}

impl Held {
    #[track_caller]
    fn new<R: Rank>(lock: &impl Sized) -> Self {
        Self { level: R::LEVEL, name: R::NAME, address: address_of(lock), at: Location::caller() }
    }
}

fn address_of(lock: &impl Sized) -> usize {
    std::ptr::from_ref(lock).addr()
}

thread_local! {
    // Every access is `try_`: a thread that ends, or a signal handler that interrupts these lines,
    // is not checked. The capacity avoids allocations on later locks: tests count the allocations
    // of a message in builds with this check.
    static HELD: RefCell<Vec<Held>> = RefCell::new(Vec::with_capacity(32));
    /// True while locks of one rank are taken together.
    static SAME_RANK_ALLOWED: Cell<bool> = const { Cell::new(false) };
}

/// Call before waiting for `lock`. Aborts if the lock order forbids this thread to wait for it.
#[inline(always)]
#[track_caller]
pub(super) fn check<R: Rank>(lock: &impl Sized) {
    let wanted = Held::new::<R>(lock);
    if cfg!(debug_assertions)
        && let Some(other) = conflict(&wanted)
    {
        let Held { name, at, .. } = wanted;
        // Not `eprintln!`: the test harness would capture the message and lose it in the abort.
        let _ = writeln!(
            std::io::stderr(),
            "lock order: {name} is waited for at {at} while {} is held, taken at {}; see the table in lock/rank.rs",
            other.name,
            other.at
        );
        std::process::abort();
    }
}

/// Returns the lock of this thread that forbids waiting for `wanted`.
fn conflict(wanted: &Held) -> Option<Held> {
    let same_rank_allowed = SAME_RANK_ALLOWED.try_with(Cell::get).unwrap_or(false);
    let forbids = |held: &&Held| {
        held.level > wanted.level
            || held.level == wanted.level && (!same_rank_allowed || held.address == wanted.address)
    };
    HELD.try_with(|held| held.try_borrow().ok()?.iter().rev().find(forbids).copied()).ok().flatten()
}

#[inline(always)]
#[track_caller]
pub(super) fn note<R: Rank>(lock: &impl Sized) {
    if cfg!(debug_assertions) {
        let taken = Held::new::<R>(lock);
        let _ = HELD.try_with(|held| held.try_borrow_mut().map(|mut held| held.push(taken)));
    }
}

/// Records `lock` if this thread's attempt has taken it; returns `is_taken`.
#[inline(always)]
#[track_caller]
pub(super) fn note_if<R: Rank>(lock: &impl Sized, is_taken: bool) -> bool {
    if is_taken {
        note::<R>(lock);
    }
    is_taken
}

/// Forgets a lock that this thread has released. Does nothing for a lock that it did not hold: the
/// child of a fork takes locks back from threads that do not exist there.
#[inline(always)]
pub(super) fn forget(lock: &impl Sized) {
    forget_at(address_of(lock));
}

#[inline(always)]
fn forget_at(address: usize) {
    if cfg!(debug_assertions) {
        let _ = HELD.try_with(|held| {
            let Ok(mut held) = held.try_borrow_mut() else { return };
            if let Some(at) = held.iter().rposition(|held| held.address == address) {
                held.remove(at);
            }
        });
    }
}

/// Takes a lock with `lock`, even if this thread holds another of its rank.
pub(super) fn allowing_same_rank<G>(lock: impl FnOnce() -> G) -> G {
    let _ = SAME_RANK_ALLOWED.try_with(|allowed| allowed.set(true));
    let guard = lock();
    let _ = SAME_RANK_ALLOWED.try_with(|allowed| allowed.set(false));
    guard
}

/// Records a lock that has no raw lock inside until dropped.
#[derive(Debug)]
pub(super) struct Noted(usize);

impl Noted {
    #[inline(always)]
    #[track_caller]
    pub(super) fn new<R: Rank>(lock: &impl Sized) -> Self {
        note::<R>(lock);
        Self(address_of(lock))
    }
}

impl Drop for Noted {
    #[inline(always)]
    fn drop(&mut self) {
        forget_at(self.0);
    }
}
