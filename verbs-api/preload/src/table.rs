//! The meaning of the program's descriptors.
//!
//! Every `read` and `write` looks one up, so a lookup is two loads without a lock: one word per
//! number, in pages that are allocated on demand and never freed. Rarely needed state has a lock.

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
    Plain,
    Rsocket(RawFd),
    /// A TCP socket that becomes an rsocket; see [`crate::fork`].
    Fork(Stage),
}

/// Progress of a socket from TCP to RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Neither listening nor connected.
    Fresh = 2,
    Listening = 3,
    /// Accepted, before the first byte.
    Accepted = 4,
    /// Connected, before the first byte.
    Connected = 5,
}

impl FdKind {
    fn word(self) -> u64 {
        match self {
            Self::Plain => 0,
            Self::Rsocket(number) => 1 << 32 | u64::from(number.cast_unsigned()),
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

const PAGE: usize = 1024;

type Page = [AtomicU64; PAGE];

/// Room for the default limit of descriptors of Linux (`fs.nr_open`).
static PAGES: [AtomicPtr<Page>; 1024] = [const { AtomicPtr::new(ptr::null_mut()) }; 1024];

#[derive(Debug, Default)]
struct Shared {
    /// The program's numbers for it; more than one after `dup`.
    numbers: Vec<RawFd>,
    bound: Vec<u8>,
}

static SHARED: Mutex<BTreeMap<RawFd, Shared>> = Mutex::new(BTreeMap::new());

/// The process that the table describes.
static OWNER: AtomicI32 = AtomicI32::new(0);

pub(crate) fn fd_kind(fd: c_int) -> FdKind {
    word(fd).map_or(FdKind::Plain, |word| FdKind::from_word(word.load(Ordering::Acquire)))
}

pub(crate) fn rsocket(fd: c_int) -> Option<RawFd> {
    if let FdKind::Rsocket(number) = fd_kind(fd) { Some(number) } else { None }
}

/// Returns the word of a number, if its page exists.
fn word(fd: c_int) -> Option<&'static AtomicU64> {
    let at = usize::try_from(fd).ok()?;
    let page = PAGES.get(at / PAGE)?.load(Ordering::Acquire);
    // SAFETY: NULL or a leaked page.
    unsafe { page.as_ref() }?.get(at % PAGE)
}

/// Returns the word of a number; allocates its page. `None` for a number beyond all pages.
fn word_or_alloc(fd: c_int) -> Option<&'static AtomicU64> {
    let slot = PAGES.get(usize::try_from(fd).ok()? / PAGE)?;
    if slot.load(Ordering::Acquire).is_null() {
        let fresh = Box::into_raw(Box::new(array::from_fn(|_| AtomicU64::new(0))));
        if slot.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: made above; another thread's page is in use.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
    word(fd)
}

/// Sets the kind of `fd`; returns false if the table has no room for it.
fn set(fd: c_int, kind: FdKind) -> bool {
    follow_forks();
    word_or_alloc(fd).map(|word| word.store(kind.word(), Ordering::Release)).is_some()
}

/// Makes `fd` a number of the rsocket `number`; returns false if the table has no room for it.
pub(crate) fn open(fd: c_int, number: RawFd) -> bool {
    let mut shared = SHARED.lock();
    let room = set(fd, FdKind::Rsocket(number));
    if room {
        shared.entry(number).or_default().numbers.push(fd);
    }
    room
}

/// Records the progress of a TCP socket; without room in the table it stays TCP.
pub(crate) fn stage(fd: c_int, stage: Stage) {
    set(fd, FdKind::Fork(stage));
}

/// Makes `fd` plain. Returns its rsocket if this was its last number; the caller closes it.
pub(crate) fn forget(fd: c_int) -> Option<RawFd> {
    let word = word(fd)?;
    let mut shared = SHARED.lock();
    let FdKind::Rsocket(number) = FdKind::from_word(word.swap(0, Ordering::AcqRel)) else { return None };
    let numbers = &mut shared.get_mut(&number)?.numbers;
    numbers.retain(|known| *known != fd);
    if !numbers.is_empty() {
        return None;
    }
    shared.remove(&number);
    Some(number)
}

/// Makes all numbers of an rsocket plain. Returns the address of the program's `bind`.
pub(crate) fn give_up(number: RawFd) -> Vec<u8> {
    let Some(shared) = SHARED.lock().remove(&number) else { return Vec::new() };
    for word in shared.numbers.iter().filter_map(|fd| word(*fd)) {
        word.store(0, Ordering::Release);
    }
    shared.bound
}

pub(crate) fn bound(number: RawFd, address: &[u8]) {
    if let Some(shared) = SHARED.lock().get_mut(&number) {
        shared.bound = address.to_vec();
    }
}

/// Returns true if this process owns the table. A child of `vfork` runs in its parent's memory and
/// must not change the parent's entries.
pub(crate) fn is_ours() -> bool {
    // SAFETY: takes no pointers.
    OWNER.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

/// Sets the owner once, and again in every child of `fork`, which has its own table.
fn follow_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        own();
        // SAFETY: three functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) };
    });
}

extern "C" fn own() {
    // SAFETY: takes no pointers.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Takes the locks, so that the child's copy of the tables is consistent.
extern "C" fn before_fork() {
    epoll::hold();
    core::mem::forget(SHARED.lock());
}

extern "C" fn after_fork() {
    // SAFETY: this thread locked both in `before_fork`.
    unsafe {
        SHARED.force_unlock();
        epoll::release();
    }
}

extern "C" fn after_fork_in_child() {
    own();
    after_fork();
}

pub(crate) fn replace(fd: c_int) -> bool {
    let (real, domain) = (real(), domain(fd));
    // SAFETY: numbers only.
    unsafe {
        let fresh = (real.socket)(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if fresh < 0 {
            return false;
        }
        let flags = (real.fcntl)(fd, libc::F_GETFL);
        let kept = (real.fcntl)(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
        (real.fcntl)(fresh, libc::F_SETFL, flags);
        let done = (real.dup3)(fresh, fd, if kept { libc::O_CLOEXEC } else { 0 }) == fd;
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
    fn rsocket_ends_with_its_last_number() {
        assert!(open(5000, 9000) && open(5001, 9000) && open(5002, 9001));
        assert_eq!((rsocket(5000), rsocket(5001), rsocket(5002)), (Some(9000), Some(9000), Some(9001)));
        assert_eq!(forget(5000), None, "another number is left");
        assert_eq!((forget(5001), forget(5001)), (Some(9000), None));
        bound(9001, &[2, 0, 1]);
        assert!(open(5003, 9001));
        assert_eq!(give_up(9001), [2, 0, 1]);
        assert_eq!((fd_kind(5002), fd_kind(5003)), (FdKind::Plain, FdKind::Plain));
    }

    #[test]
    fn impossible_numbers_are_plain() {
        assert_eq!(
            (fd_kind(-1), fd_kind(i32::MAX), forget(-1), forget(i32::MAX)),
            (FdKind::Plain, FdKind::Plain, None, None)
        );
        assert!(!open(i32::MAX, 3) && !open(-1, 3));
    }

    #[test]
    fn table_belongs_to_the_forking_process_only() {
        stage(5010, Stage::Fresh);
        assert!(is_ours());
        // SAFETY: the child only asks and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once, without the exit handlers of the test program.
            unsafe { libc::_exit(c_int::from(!is_ours())) };
        }
        let mut status = -1;
        // SAFETY: a variable for the status of our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
