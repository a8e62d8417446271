//! The table of the program's descriptors: which of them are rsockets.
//!
//! Every `read` and `write` looks a descriptor up, so a lookup is two loads without a lock. The
//! table has a word per descriptor, in pages that are allocated on demand and never freed. A lock
//! guards state that is rarely needed ([`SHARED`]).

use crate::epoll;
use crate::real::{domain, real};
use core::array;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Once;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FdKind {
    /// Any descriptor that this library leaves to the kernel.
    Plain,
    /// Stands for the rsocket that has this descriptor in the RDMA library.
    Rsocket(RawFd),
    /// A TCP socket that becomes an rsocket; see [`crate::fork`].
    Fork(Stage),
}

/// State of a TCP socket that becomes an rsocket. The values are those of the table's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Neither listening nor connected.
    Fresh = 2,
    Listening = 3,
    /// Accepted, before the first transfer of data.
    Accepted = 4,
    /// Connected, before the first transfer of data.
    Connected = 5,
}

impl FdKind {
    fn word(self) -> u64 {
        match self {
            Self::Plain => 0,
            Self::Rsocket(rsocket) => 1 << 32 | u64::from(rsocket.cast_unsigned()),
            Self::Fork(stage) => (stage as u64) << 32,
        }
    }

    fn from_word(word: u64) -> Self {
        match word >> 32 {
            1 => Self::Rsocket((word as u32).cast_signed()),
            2 => Self::Fork(Stage::Fresh),
            3 => Self::Fork(Stage::Listening),
            4 => Self::Fork(Stage::Accepted),
            5 => Self::Fork(Stage::Connected),
            _ => Self::Plain,
        }
    }
}

/// Words per page.
const PAGE_LEN: usize = 1024;

type Page = [AtomicU64; PAGE_LEN];

/// The table, with a word for each descriptor below Linux's default limit (`fs.nr_open`, 2^20).
static PAGES: [AtomicPtr<Page>; 1024] = [const { AtomicPtr::new(ptr::null_mut()) }; 1024];

/// State of an rsocket that its descriptors share.
#[derive(Debug, Default)]
struct Shared {
    /// The program's descriptors; more than one after `dup`.
    fds: Vec<RawFd>,
    /// The address of the program's `bind`; empty without one.
    bound: Vec<u8>,
}

/// Shared state by rsocket.
static SHARED: Mutex<BTreeMap<RawFd, Shared>> = Mutex::new(BTreeMap::new());

/// Id of the process whose descriptors the table describes.
static OWNER: AtomicI32 = AtomicI32::new(0);

pub(crate) fn fd_kind(fd: c_int) -> FdKind {
    word(fd).map_or(FdKind::Plain, |word| FdKind::from_word(word.load(Ordering::Acquire)))
}

pub(crate) fn rsocket(fd: c_int) -> Option<RawFd> {
    if let FdKind::Rsocket(rsocket) = fd_kind(fd) { Some(rsocket) } else { None }
}

/// Returns the word of a descriptor, if its page exists.
fn word(fd: c_int) -> Option<&'static AtomicU64> {
    let index = usize::try_from(fd).ok()?;
    let page = PAGES.get(index / PAGE_LEN)?.load(Ordering::Acquire);
    // SAFETY: NULL, or a page from `word_or_alloc`, which is never freed.
    unsafe { page.as_ref() }?.get(index % PAGE_LEN)
}

/// Returns the word of a descriptor; allocates its page if needed. `None` for a descriptor beyond
/// the table.
fn word_or_alloc(fd: c_int) -> Option<&'static AtomicU64> {
    let slot = PAGES.get(usize::try_from(fd).ok()? / PAGE_LEN)?;
    if slot.load(Ordering::Acquire).is_null() {
        let fresh = Box::into_raw(Box::new(array::from_fn(|_| AtomicU64::new(0))));
        if slot.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: a `Box` made the page above, and no other thread has it: the slot holds the
            // page of the thread that was faster.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
    word(fd)
}

/// Sets the kind of `fd`; returns false if `fd` is beyond the table.
fn set(fd: c_int, kind: FdKind) -> bool {
    follow_forks();
    word_or_alloc(fd).map(|word| word.store(kind.word(), Ordering::Release)).is_some()
}

/// Makes `fd` a descriptor of `rsocket`; returns false if `fd` is beyond the table.
pub(crate) fn open(fd: c_int, rsocket: RawFd) -> bool {
    let mut shared = SHARED.lock();
    let is_set = set(fd, FdKind::Rsocket(rsocket));
    if is_set {
        shared.entry(rsocket).or_default().fds.push(fd);
    }
    is_set
}

/// Records the state of a TCP socket. A socket beyond the table stays TCP.
pub(crate) fn set_stage(fd: c_int, stage: Stage) {
    set(fd, FdKind::Fork(stage));
}

/// Makes `fd` plain. Returns its rsocket if this was its last descriptor; the caller closes it.
pub(crate) fn forget(fd: c_int) -> Option<RawFd> {
    let word = word(fd)?;
    let mut shared = SHARED.lock();
    let FdKind::Rsocket(rsocket) = FdKind::from_word(word.swap(0, Ordering::AcqRel)) else { return None };
    let fds = &mut shared.get_mut(&rsocket)?.fds;
    fds.retain(|known| *known != fd);
    if !fds.is_empty() {
        return None;
    }
    shared.remove(&rsocket);
    Some(rsocket)
}

/// Makes all descriptors of an rsocket plain. Returns the address of the program's `bind`; empty
/// without one.
pub(crate) fn forget_rsocket(rsocket: RawFd) -> Vec<u8> {
    let Some(shared) = SHARED.lock().remove(&rsocket) else { return Vec::new() };
    for word in shared.fds.iter().filter_map(|fd| word(*fd)) {
        word.store(0, Ordering::Release);
    }
    shared.bound
}

/// Records the address of the program's `bind`.
pub(crate) fn record_bind(rsocket: RawFd, address: &[u8]) {
    if let Some(shared) = SHARED.lock().get_mut(&rsocket) {
        shared.bound = address.to_vec();
    }
}

/// Returns true if the table describes the descriptors of this process. A child of `vfork` runs in
/// its parent's memory, and must not change its parent's table.
pub(crate) fn is_ours() -> bool {
    // SAFETY: the call takes no pointers.
    OWNER.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

/// Records this process as the owner of the table, and every child of `fork` as the owner of its
/// copy.
fn follow_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        record_owner();
        // SAFETY: the functions are part of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) };
    });
}

fn record_owner() {
    // SAFETY: the call takes no pointers.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Locks the tables, so that the child's copy is consistent.
extern "C" fn before_fork() {
    epoll::lock_for_fork();
    core::mem::forget(SHARED.lock());
}

extern "C" fn after_fork() {
    // SAFETY: `before_fork` locked both on this thread, or on the parent's thread that this child
    // continues.
    unsafe {
        SHARED.force_unlock();
        epoll::unlock_after_fork();
    }
}

extern "C" fn after_fork_in_child() {
    record_owner();
    after_fork();
}

/// Replaces the kernel socket of `fd` by a new unconnected one with the same flags. Returns false
/// on failure.
pub(crate) fn replace_with_new_socket(fd: c_int) -> bool {
    let (real, domain) = (real(), domain(fd));
    // SAFETY: the calls take no pointers. This function created `fresh`, and closes it once.
    unsafe {
        let fresh = (real.socket)(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if fresh < 0 {
            return false;
        }
        let flags = (real.fcntl)(fd, libc::F_GETFL);
        let close_on_exec = (real.fcntl)(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
        (real.fcntl)(fresh, libc::F_SETFL, flags);
        let done = (real.dup3)(fresh, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 }) == fd;
        (real.close)(fresh);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_roundtrip_through_a_word() {
        let stages = [Stage::Fresh, Stage::Listening, Stage::Accepted, Stage::Connected].map(FdKind::Fork);
        for kind in stages.into_iter().chain([FdKind::Plain, FdKind::Rsocket(0), FdKind::Rsocket(i32::MAX)]) {
            assert_eq!(FdKind::from_word(kind.word()), kind);
        }
    }

    #[test]
    fn forgetting_the_last_descriptor_returns_the_rsocket() {
        assert!(open(5000, 9000) && open(5001, 9000) && open(5002, 9001));
        assert_eq!((rsocket(5000), rsocket(5001), rsocket(5002)), (Some(9000), Some(9000), Some(9001)));
        assert_eq!(forget(5000), None, "another descriptor is left");
        assert_eq!((forget(5001), forget(5001)), (Some(9000), None));
        record_bind(9001, &[2, 0, 1]);
        assert!(open(5003, 9001));
        assert_eq!(forget_rsocket(9001), [2, 0, 1]);
        assert_eq!((fd_kind(5002), fd_kind(5003)), (FdKind::Plain, FdKind::Plain));
    }

    #[test]
    fn descriptors_beyond_the_table_are_plain() {
        assert_eq!(
            (fd_kind(-1), fd_kind(i32::MAX), forget(-1), forget(i32::MAX)),
            (FdKind::Plain, FdKind::Plain, None, None)
        );
        assert!(!open(i32::MAX, 3) && !open(-1, 3));
    }

    #[test]
    fn table_belongs_to_the_forking_process_only() {
        set_stage(5010, Stage::Fresh);
        assert!(is_ours());
        // SAFETY: the child calls only `getpid` and `_exit`, which are async-signal-safe.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child; `_exit` runs no exit handlers of the test program.
            unsafe { libc::_exit(c_int::from(!is_ours())) };
        }
        let mut status = -1;
        // SAFETY: `status` is a local variable; `child` is a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
