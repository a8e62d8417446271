//! The locks that each thread holds, and the check of the lock order. Without debug assertions
//! nothing is recorded or checked.

use super::rank::Rank;
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::panic::Location;

/// A lock that a thread holds or wants.
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
    // All accesses are tried: a thread that ends, or a signal handler that interrupts these few
    // lines, is not checked.
    // Long enough from the first lock on, so that no later one takes memory for being noted: what a
    // message allocates is tested in builds that have this check.
    static HELD: RefCell<Vec<Held>> = RefCell::new(Vec::with_capacity(32));
    /// True while locks of one rank are taken together.
    static BESIDE_OTHERS: Cell<bool> = const { Cell::new(false) };
}

/// This thread is going to wait for a lock: ends the process if the order forbids it.
#[inline(always)]
#[track_caller]
pub(super) fn check<R: Rank>(lock: &impl Sized) {
    let wanted = Held::new::<R>(lock);
    if cfg!(debug_assertions)
        && let Some(other) = conflict(&wanted)
    {
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

/// Which lock of this thread forbids to wait for `wanted`.
fn conflict(wanted: &Held) -> Option<Held> {
    let beside = BESIDE_OTHERS.try_with(Cell::get).unwrap_or(false);
    let forbids = |held: &&Held| {
        held.level > wanted.level || held.level == wanted.level && (!beside || held.address == wanted.address)
    };
    HELD.try_with(|held| held.try_borrow().ok()?.iter().rev().find(forbids).copied()).ok().flatten()
}

/// This thread has a lock now.
#[inline(always)]
#[track_caller]
pub(super) fn note<R: Rank>(lock: &impl Sized) {
    if cfg!(debug_assertions) {
        let taken = Held::new::<R>(lock);
        let _ = HELD.try_with(|held| held.try_borrow_mut().map(|mut held| held.push(taken)));
    }
}

/// This thread has tried to get a lock, and has it now if it `is_taken`, which is the answer.
#[inline(always)]
#[track_caller]
pub(super) fn note_if<R: Rank>(lock: &impl Sized, is_taken: bool) -> bool {
    if is_taken {
        note::<R>(lock);
    }
    is_taken
}

/// This thread has released a lock. Does nothing if it never had it: in the child of a fork locks
/// are taken back from threads that are not there.
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

/// Takes a lock with `lock`, although another one of its rank may be held.
pub(super) fn beside_others<G>(lock: impl FnOnce() -> G) -> G {
    let _ = BESIDE_OTHERS.try_with(|beside| beside.set(true));
    let guard = lock();
    let _ = BESIDE_OTHERS.try_with(|beside| beside.set(false));
    guard
}

/// Notes a lock that has no raw lock inside, for as long as this lives.
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
