//! What the unit tests share: a context on loopback, and pages of memory to mistreat.

use crate::device::{Context, devices};
use crate::pd::Pd;
use crate::qp::Qp;
use roxe_transport::qp::{AttrMask, QpAttr};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;

pub(crate) const PAGE: u64 = 4096;

/// A context of its own on the first device.
pub(crate) fn context() -> Arc<Context> {
    devices().unwrap().first().unwrap().open().unwrap()
}

/// A protection domain in a context of its own.
pub(crate) fn pd() -> Arc<Pd> {
    context().alloc_pd().unwrap()
}

/// Takes `qp` to INIT, RTR and RTS. An end passes over what it does not have.
pub(crate) fn connect(qp: &Qp, [init, rtr, rts]: [QpAttr; 3]) {
    let of_init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let of_rtr = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let of_rtr = of_rtr | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let of_rts = AttrMask::SQ_PSN | AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY;
    let of_rts = of_rts | AttrMask::MAX_QP_RD_ATOMIC;
    for (attr, mask) in [(init, of_init), (rtr, of_rtr), (rts, of_rts)] {
        qp.modify(&attr, mask | AttrMask::STATE).unwrap();
    }
}

/// Whether there is something to read, now.
pub(crate) fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which outlives the call; it does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Makes sure that `is_true` in the child of a fork, which is all that it does.
pub(crate) fn in_child(is_true: impl Fn() -> bool) {
    // The handlers of a fork are there from the first opening of a device on.
    let _context = context();
    // SAFETY: the child has what the handlers of a fork give back to it, and ends with `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = i32::from(!is_true());
        // SAFETY: ends the child, without what the parent does at its end.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: a child of this test, whose status outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
}

/// The word at `addr`, as another thread of the application would look at it.
pub(crate) fn load(addr: u64) -> u64 {
    // SAFETY: tests pass addresses of their own, aligned, mapped pages.
    unsafe { (*(addr as *const std::sync::atomic::AtomicU64)).load(std::sync::atomic::Ordering::Acquire) }
}

/// Whether the mapped page at `addr` was ever touched.
pub(crate) fn is_resident(addr: u64) -> bool {
    let mut resident = 0u8;
    // SAFETY: changes nothing but one byte of answer; the kernel checks the address.
    assert_eq!(unsafe { libc::mincore(addr as *mut c_void, PAGE as usize, &raw mut resident) }, 0);
    resident & 1 != 0
}

/// Zeroed pages, freed in the end; single pages can be unmapped or protected.
#[derive(Debug)]
pub(crate) struct Pages {
    addr: u64,
    count: u64,
    file: Option<File>,
}

impl Pages {
    pub(crate) fn new(count: u64) -> Self {
        Self::map(count, None)
    }

    /// Shared pages of a file in memory.
    pub(crate) fn of_file(count: u64) -> Self {
        // SAFETY: the name is a C string; the returned descriptor is ours.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"roxe-test".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(count * PAGE).unwrap();
        Self::map(count, Some(file))
    }

    fn map(count: u64, file: Option<File>) -> Self {
        let (fd, flags) = file
            .as_ref()
            .map_or((-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS), |file| (file.as_raw_fd(), libc::MAP_SHARED));
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), (count * PAGE) as usize, rights, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { addr: at as u64, count, file }
    }

    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// The descriptor of their file.
    pub(crate) fn fd(&self) -> i32 {
        self.file.as_ref().unwrap().as_raw_fd()
    }

    fn page(&self, index: u64) -> *mut c_void {
        assert!(index < self.count);
        (self.addr + index * PAGE) as *mut c_void
    }

    /// Replaces pages by forbidden ones: as good as unmapped, but nobody else gets the address.
    pub(crate) fn unmap(&self, first: u64, count: u64) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        assert!(first + count <= self.count);
        // SAFETY: replaces pages of this mapping only.
        let at = unsafe { libc::mmap(self.page(first), (count * PAGE) as usize, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
    }

    pub(crate) fn protect(&self, index: u64, rights: i32) {
        // SAFETY: a page of this mapping.
        assert_eq!(unsafe { libc::mprotect(self.page(index), PAGE as usize, rights) }, 0);
    }

    /// Writes zeros over a page.
    pub(crate) fn clear(&self, index: u64) {
        // SAFETY: a page of this mapping, which the tests keep writable.
        unsafe { std::ptr::write_bytes(self.page(index).cast::<u8>(), 0, PAGE as usize) };
    }

    /// Whether a page was ever touched.
    pub(crate) fn is_resident(&self, index: u64) -> bool {
        is_resident(self.page(index) as u64)
    }

    /// Takes the file away under the mapping.
    pub(crate) fn truncate_file(&self) {
        self.file.as_ref().unwrap().set_len(0).unwrap();
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody uses any more.
        unsafe { libc::munmap(self.addr as *mut c_void, (self.count * PAGE) as usize) };
    }
}
