//! Locks, and the order in which a thread may take them. **Unsafe room**: the traits of `lock_api` and forced unlocks.
//!
//! Every lock has a rank, which is part of its type, and the table at the end of this file lists the ranks from the outermost
//! to the innermost: a thread that holds a lock may wait for another one only if that one comes later in the table.
//! Two locks of one rank are never held together, but for the fork handlers, which take all locks of a rank at once; that is
//! sound because nobody else does. A lock that is tried (`try_lock`) may be of any rank, as nobody waits for it, but counts as
//! held from then on.
//!
//! In builds with debug assertions, and so in all tests, each thread notes what it holds, and a lock that is waited for out of
//! order ends the process with a message that names both locks and where they were taken. It does not panic: a panic would be
//! caught where the background thread and the C functions catch those of bugs, and the test would pass. In other builds nothing
//! of this exists, and the types are those of `parking_lot` and `crossbeam_utils`.
//!
//! Crates above have tables of their own, made with the same macro. Their locks are outside of all of these.
//!
//! Touches nothing but the locks.

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use parking_lot::lock_api;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The place of a lock in the order.
pub trait Rank: Send + Sync + 'static {
    /// Lower ones are further out. No two ranks have the same one.
    const LEVEL: u16;
    /// What the table calls it.
    const NAME: &'static str;
}

/// A mutex of rank `R`.
pub type Mutex<R, T> = lock_api::Mutex<RankedMutex<R>, T>;
/// Its guard.
pub type MutexGuard<'a, R, T> = lock_api::MutexGuard<'a, RankedMutex<R>, T>;
/// The guard of a mutex that it keeps alive.
pub type ArcMutexGuard<R, T> = lock_api::ArcMutexGuard<RankedMutex<R>, T>;
/// A lock of rank `R` for one writer or several readers. A thread must not read twice at a time: a writer that waits between
/// the two would stop it for ever.
pub type RwLock<R, T> = lock_api::RwLock<RankedRwLock<R>, T>;

/// The lock in a [`Mutex`].
pub struct RankedMutex<R>(parking_lot::RawMutex, PhantomData<R>);

// SAFETY: every lock and unlock is that of the `RawMutex` inside.
unsafe impl<R: Rank> lock_api::RawMutex for RankedMutex<R> {
    const INIT: Self = Self(parking_lot::RawMutex::INIT, PhantomData);
    type GuardMarker = <parking_lot::RawMutex as lock_api::RawMutex>::GuardMarker;

    #[inline]
    #[track_caller]
    fn lock(&self) {
        held::check::<R>(self.address());
        self.0.lock();
        held::note::<R>(self.address());
    }

    #[inline]
    #[track_caller]
    fn try_lock(&self) -> bool {
        let is_taken = self.0.try_lock();
        if is_taken {
            held::note::<R>(self.address());
        }
        is_taken
    }

    #[inline]
    unsafe fn unlock(&self) {
        held::forget(self.address());
        // SAFETY: the caller holds it.
        unsafe { self.0.unlock() }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

// SAFETY: as above.
unsafe impl<R: Rank> lock_api::RawMutexFair for RankedMutex<R> {
    unsafe fn unlock_fair(&self) {
        held::forget(self.address());
        // SAFETY: the caller holds it.
        unsafe { lock_api::RawMutexFair::unlock_fair(&self.0) }
    }
}

// SAFETY: as above.
unsafe impl<R: Rank> lock_api::RawMutexTimed for RankedMutex<R> {
    type Duration = Duration;
    type Instant = Instant;

    #[track_caller]
    fn try_lock_for(&self, timeout: Duration) -> bool {
        let is_taken = lock_api::RawMutexTimed::try_lock_for(&self.0, timeout);
        if is_taken {
            held::note::<R>(self.address());
        }
        is_taken
    }

    #[track_caller]
    fn try_lock_until(&self, timeout: Instant) -> bool {
        let is_taken = lock_api::RawMutexTimed::try_lock_until(&self.0, timeout);
        if is_taken {
            held::note::<R>(self.address());
        }
        is_taken
    }
}

impl<R> RankedMutex<R> {
    #[inline]
    fn address(&self) -> usize {
        (&raw const *self).addr()
    }
}

/// The lock in a [`RwLock`].
pub struct RankedRwLock<R>(parking_lot::RawRwLock, PhantomData<R>);

// SAFETY: every lock and unlock is that of the `RawRwLock` inside.
unsafe impl<R: Rank> lock_api::RawRwLock for RankedRwLock<R> {
    const INIT: Self = Self(parking_lot::RawRwLock::INIT, PhantomData);
    type GuardMarker = <parking_lot::RawRwLock as lock_api::RawRwLock>::GuardMarker;

    #[inline]
    #[track_caller]
    fn lock_shared(&self) {
        held::check::<R>(self.address());
        self.0.lock_shared();
        held::note::<R>(self.address());
    }

    #[inline]
    #[track_caller]
    fn try_lock_shared(&self) -> bool {
        let is_taken = self.0.try_lock_shared();
        if is_taken {
            held::note::<R>(self.address());
        }
        is_taken
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        held::forget(self.address());
        // SAFETY: the caller holds it for reading.
        unsafe { self.0.unlock_shared() }
    }

    #[inline]
    #[track_caller]
    fn lock_exclusive(&self) {
        held::check::<R>(self.address());
        self.0.lock_exclusive();
        held::note::<R>(self.address());
    }

    #[inline]
    #[track_caller]
    fn try_lock_exclusive(&self) -> bool {
        let is_taken = self.0.try_lock_exclusive();
        if is_taken {
            held::note::<R>(self.address());
        }
        is_taken
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        held::forget(self.address());
        // SAFETY: the caller holds it for writing.
        unsafe { self.0.unlock_exclusive() }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    #[inline]
    fn is_locked_exclusive(&self) -> bool {
        self.0.is_locked_exclusive()
    }
}

impl<R> RankedRwLock<R> {
    #[inline]
    fn address(&self) -> usize {
        (&raw const *self).addr()
    }
}

/// A [`RwLock`] of which every thread has a part of its own to read by: reading is cheap, and writing is not.
pub struct Sharded<R, T>(ShardedLock<T>, PhantomData<R>);

/// Holds a [`Sharded`] for reading.
#[derive(Debug)]
pub struct ShardedReadGuard<'a, T> {
    guard: ShardedLockReadGuard<'a, T>,
    _noted: held::Noted,
}

/// Holds a [`Sharded`] for writing.
#[derive(Debug)]
pub struct ShardedWriteGuard<'a, T> {
    guard: ShardedLockWriteGuard<'a, T>,
    _noted: held::Noted,
}

impl<R: Rank, T> Sharded<R, T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self(ShardedLock::new(value), PhantomData)
    }

    /// Waits until nobody writes.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> ShardedReadGuard<'_, T> {
        held::check::<R>(self.address());
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ShardedReadGuard { guard, _noted: held::Noted::new::<R>(self.address()) }
    }

    /// Waits until nobody reads or writes.
    #[track_caller]
    pub fn write(&self) -> ShardedWriteGuard<'_, T> {
        held::check::<R>(self.address());
        let guard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        ShardedWriteGuard { guard, _noted: held::Noted::new::<R>(self.address()) }
    }

    fn address(&self) -> usize {
        (&raw const *self).addr()
    }
}

impl<R, T: fmt::Debug> fmt::Debug for Sharded<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Deref for ShardedReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> Deref for ShardedWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for ShardedWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A lock that can be taken in one call and released in another: what the fork handlers need.
pub trait Lockable: Sync {
    /// Its place in the order.
    fn level(&self) -> u16;

    /// Takes it exclusively, beside others of its rank.
    fn lock_raw(&self);

    /// Releases it.
    ///
    /// # Safety
    /// This thread, or the one it is a copy of, took it with [`Lockable::lock_raw`] and did not release it since.
    unsafe fn unlock_raw(&self);

    /// Takes it back from a thread that waited for it at the moment of the fork: a lock that is released may be handed over
    /// to who has waited long, and in the child there is nobody to take it.
    ///
    /// # Safety
    /// As for [`Lockable::unlock_raw`], which was just called, in the child of a fork.
    unsafe fn take_back(&self);
}

impl<R: Rank, T: Send> Lockable for Mutex<R, T> {
    fn level(&self) -> u16 {
        R::LEVEL
    }

    fn lock_raw(&self) {
        held::beside_others(|| std::mem::forget(self.lock()));
    }

    unsafe fn unlock_raw(&self) {
        // SAFETY: the caller holds the lock, whose guard was forgotten.
        unsafe { self.force_unlock() }
    }

    unsafe fn take_back(&self) {
        while self.is_locked() {
            // SAFETY: this thread is alone, so whoever has the lock does not exist.
            unsafe { self.force_unlock() }
        }
    }
}

impl<R: Rank, T: Send + Sync> Lockable for RwLock<R, T> {
    fn level(&self) -> u16 {
        R::LEVEL
    }

    fn lock_raw(&self) {
        held::beside_others(|| std::mem::forget(self.write()));
    }

    unsafe fn unlock_raw(&self) {
        // SAFETY: the caller holds the lock for writing, and the guard was forgotten.
        unsafe { self.force_unlock_write() }
    }

    unsafe fn take_back(&self) {
        while self.is_locked() {
            // SAFETY: this thread is alone, so whoever has the lock, for reading or writing, does not exist.
            unsafe {
                if self.is_locked_exclusive() {
                    self.force_unlock_write();
                } else {
                    self.force_unlock_read();
                }
            }
        }
    }
}

/// What this thread holds.
#[cfg(debug_assertions)]
mod held {
    use super::Rank;
    use std::cell::{Cell, RefCell};
    use std::io::Write;
    use std::panic::Location;

    /// One lock.
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
        // A thread that ends, or a signal handler that interrupts these few lines, goes without: the accesses are all tried.
        static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
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
            // Not by a macro: the test harness would keep the message to itself, and it is about to die.
            let _ = writeln!(
                std::io::stderr(),
                "lock order: {name} is waited for at {at} while {} is held, taken at {}; see the table in lock.rs",
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

    /// It has let go of it. Does nothing if it never had it: in the child of a fork locks are taken from threads that are not
    /// there.
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

    /// A lock without a raw one, as long as this lives.
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
}

/// The same where nobody asks.
#[cfg(not(debug_assertions))]
mod held {
    use super::Rank;

    #[inline(always)]
    pub fn check<R: Rank>(_address: usize) {}

    #[inline(always)]
    pub fn note<R: Rank>(_address: usize) {}

    #[inline(always)]
    pub fn forget(_address: usize) {}

    #[inline(always)]
    pub fn beside_others(lock: impl FnOnce()) {
        lock();
    }

    #[derive(Debug)]
    pub struct Noted;

    impl Noted {
        #[inline(always)]
        pub fn new<R: Rank>(_address: usize) -> Self {
            Self
        }
    }
}

/// Declares ranks, outermost first. The first one has this level, which leaves room for the tables of other crates: each
/// crate's levels are below those of the crates that it uses.
#[macro_export]
macro_rules! ranks {
    ($vis:vis, $first:literal.. ; $($(#[$doc:meta])* $name:ident,)*) => {
        #[repr(u16)]
        enum Order {
            $($name,)*
        }
        $(
            $(#[$doc])*
            #[derive(Debug)]
            $vis enum $name {}

            impl $crate::lock::Rank for $name {
                const LEVEL: u16 = $first + Order::$name as u16;
                const NAME: &'static str = concat!(module_path!(), "::", stringify!($name));
            }
        )*
    };
}

/// The ranks of this crate, outermost first: the lock order.
pub mod rank {
    crate::ranks! { pub, 10_000.. ;
        /// `engine::thread`: held by the background thread while it has its engine, that is, while it does anything.
        ThreadTurn,
        /// `cm::agent`: the connection manager of an engine; who receives only tries it, and leaves messages in its inbox.
        CmAgent,
        /// `cm::id`: one identifier.
        CmId,
        /// `cm::id`: where the events of one identifier go.
        CmIdChannel,
        /// `cm::multicast` and `steering`: the memberships of a raw packet queue pair.
        FlowGroups,
        /// `wq`: who changes the state of a work queue.
        WqModify,
        /// `device`: the devices that were given out.
        Devices,
        /// `fork`: the engines of this process.
        Engines,
        /// `engine`: the start of an engine, and whoever follows the interface.
        Starting,
        /// `engine::interceptor`: the start of captures and fault rules.
        InterceptorStarting,
        /// `device`: the contexts that want to hear of the port; also held while its new addresses are opened.
        Contexts,
        /// `engine::rx`: the receive side, held while packets are handed to queue pairs and those answer. Pollers only try it.
        Rx,
        /// `srq::remote_targets`: stand-ins for XRC targets of other processes, held while one works.
        XrcRemoteTargets,
        /// `engine::table`: queue pairs by number.
        QpTable,
        /// `qp`: one queue pair.
        Qp,
        /// `engine::rings`: the writing half of one ring, held while a batch is built in it.
        RingSender,
        /// `engine::interceptor`: the rules that spoil packets.
        Faults,
        /// `engine::interceptor`: the capture file, for a batch of packets.
        Capture,
        /// `mr`: the description of one region, while it is registered anew.
        Registration,
        /// `mr`: the table of keys, read while bytes are copied, mostly for all packets of a visit.
        Memory,
        /// `dm`: the block of device memory.
        DeviceMemory,
        /// `engine::table`: the slots of this process.
        OwnedSlots,
        /// `xrcd`: the domains that files name.
        XrcNames,
        /// `xrcd`: the shared receive queues of a domain.
        XrcQueues,
        /// `xrcd`: the targets of a domain.
        XrcTargets,
        /// `srq`: one shared receive queue.
        Srq,
        /// `cq`: one completion queue.
        Cq,
        /// `cq`: held while an event is announced, so that none comes once the queue is destroyed.
        CqChannel,
        /// `flow`: the windows by destination.
        Flows,
        /// `flow`: what is known of the receiver behind one window.
        FlowReceiver,
        /// `engine::rings`: the rings to other processes, by slot.
        RingsOut,
        /// `engine::rings`: the rings from other processes.
        RingsIn,
        /// `engine::rings`: the rings that somebody waits for.
        RingsFull,
        /// `flow`: the queue pairs that have room again.
        FlowReady,
        /// `flow`: the queue pairs that wait for room in one window.
        FlowWaiters,
        /// `flow`: what is owed to senders.
        FlowCredits,
        /// `engine`: the links by address.
        Links,
        /// `engine::send_room`: what raw packet queue pairs send by.
        FrameSenders,
        /// `engine`: the addresses of this host.
        HostAddresses,
        /// `device`: the description of the port.
        Port,
        /// `cm::agent`: what waits for the connection manager.
        CmInbox,
        /// `engine::xrc_messages`: frames for other processes.
        XrcMessages,
        /// `cm::ports`: who holds a port alone.
        PortAlone,
        /// `cm::ports`: the sockets that stand for ports.
        PortNames,
        /// `cm::ports`: the ports that clients use.
        PortsInUse,
        /// `cm::follow`: all identifiers.
        CmIds,
        /// `net::runtime_dir`: the names of this process in the runtime directory.
        RuntimeDir,
        /// `net::tx_queue`: what waits for room in the send buffer of one socket, held while it is sent.
        TxQueue,
        /// `net::segments`: destinations to which the kernel does not cut sends into packets.
        Segments,
        /// Uses of an object by another one, which end when it is destroyed.
        Uses,
        /// `steering`: what flow counters count.
        FlowCounters,
        /// `live`: the counters that were told last.
        Told,
        /// `stats_file`: the file that says what this process counted.
        StatsFile,
        /// `event`: events that wait for the program.
        Events,
        /// `engine::interceptor`: packets that are held back.
        Delayed,
        /// `timers`: deadlines.
        Timers,
        /// `engine::thread`: the handle to join the thread by.
        ThreadHandle,
        /// `engine`: the background thread, so that whoever holds any lock may wake it.
        Thread,
        /// `exit`: what is done when the process ends.
        ExitTasks,
    }
}

#[cfg(test)]
mod tests {
    use super::rank::{Qp, RingSender, RingsOut};
    use super::*;
    use std::io::Read;
    use std::os::fd::FromRawFd;

    /// What a child of a fork that does `wrong` says before it dies, and the signal that ends it.
    fn in_child(wrong: impl FnOnce()) -> (String, i32) {
        let (mut pipe, mut status) = ([0; 2], 0);
        // SAFETY: two descriptors of room; the child writes to its own and ends with `_exit` at the latest.
        let (reader, pid) = unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let pid = libc::fork();
            if pid == 0 {
                libc::dup2(pipe[1], 2);
                wrong();
                libc::_exit(0);
            }
            libc::close(pipe[1]);
            (std::fs::File::from_raw_fd(pipe[0]), pid)
        };
        let mut said = String::new();
        (&reader).read_to_string(&mut said).unwrap();
        // SAFETY: a child of this test, whose status outlives the call.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        (said, if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 })
    }

    #[test]
    fn who_waits_for_an_outer_lock_under_an_inner_one_dies_and_says_where_both_were_taken() {
        let (outer, inner) = (Mutex::<Qp, _>::new(()), RwLock::<RingsOut, _>::new(()));
        let (said, signal) = in_child(|| {
            let _inner = inner.read();
            let _outer = outer.lock();
        });
        assert_eq!(signal, libc::SIGABRT, "{said}");
        assert!(said.contains("rank::Qp is waited for at") && said.contains("rank::RingsOut is held"), "{said}");
        assert_eq!(said.matches(file!()).count(), 2, "{said}");
    }

    #[test]
    fn locks_may_be_taken_inwards_tried_in_any_order_and_let_go_of_in_any_order() {
        let (outer, middle, inner) =
            (Mutex::<Qp, _>::new(()), Mutex::<RingSender, _>::new(()), Sharded::<RingsOut, _>::new(()));
        let (first, second, third) = (outer.lock(), middle.lock(), inner.read());
        drop(second);
        let second = middle.try_lock().unwrap();
        drop(first);
        drop(outer.try_lock_for(Duration::ZERO).unwrap());
        drop(third);
        drop(second);
        drop((outer.lock(), inner.write()));
    }

    #[test]
    fn two_locks_of_one_rank_exclude_each_other_but_for_who_takes_them_all() {
        let [a, b] = [(); 2].map(|()| Mutex::<Qp, _>::new(()));
        let (said, signal) = in_child(|| drop((a.lock(), b.lock())));
        assert_eq!(signal, libc::SIGABRT, "{said}");
        let (said, signal) = in_child(|| drop((a.lock(), a.lock())));
        assert_eq!(signal, libc::SIGABRT, "a thread would wait for itself: {said}");
        [&a, &b].into_iter().for_each(Lockable::lock_raw);
        // SAFETY: just taken.
        [&a, &b].into_iter().for_each(|lock| unsafe { lock.unlock_raw() });
        drop(b.lock());
    }
}
