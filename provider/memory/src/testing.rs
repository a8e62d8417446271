//! Helpers of memory tests: pages to unmap, protect and inspect.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

/// Page size in bytes of the machines that run the tests.
pub const PAGE_SIZE: u64 = 4096;

/// Loads the word at `addr`, as another thread of the application would.
pub fn load(addr: u64) -> u64 {
    // SAFETY: tests pass addresses of their own, aligned, mapped pages.
    unsafe { (*(addr as *const std::sync::atomic::AtomicU64)).load(std::sync::atomic::Ordering::Acquire) }
}

/// Returns true if the mapped page at `addr` was ever touched.
pub fn is_resident(addr: u64) -> bool {
    let mut resident = 0u8;
    // SAFETY: the call writes one byte, `resident`; the kernel checks the address.
    assert_eq!(unsafe { libc::mincore(addr as *mut c_void, PAGE_SIZE as usize, &raw mut resident) }, 0);
    resident & 1 != 0
}

/// Zeroed pages, unmapped on drop. Single pages can be unmapped or protected.
#[derive(Debug)]
pub struct Pages {
    addr: u64,
    count: u64,
    file: Option<File>,
}

impl Pages {
    pub fn new(count: u64) -> Self {
        Self::map(count, None)
    }

    /// Creates shared pages of a file in memory.
    pub fn of_file(count: u64) -> Self {
        // SAFETY: the name is a C string; the returned descriptor has no other owner.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"roxe-test".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(count * PAGE_SIZE).unwrap();
        Self::map(count, Some(file))
    }

    fn map(count: u64, file: Option<File>) -> Self {
        let (fd, flags) = file
            .as_ref()
            .map_or((-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS), |file| (file.as_raw_fd(), libc::MAP_SHARED));
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the call creates a mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), (count * PAGE_SIZE) as usize, rights, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { addr: at as u64, count, file }
    }

    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the descriptor of the file of [`Pages::of_file`].
    pub fn fd(&self) -> i32 {
        self.file.as_ref().unwrap().as_raw_fd()
    }

    fn page(&self, index: u64) -> *mut c_void {
        assert!(index < self.count);
        (self.addr + index * PAGE_SIZE) as *mut c_void
    }

    /// Makes pages inaccessible, as unmapping would, but reserves their addresses.
    pub fn unmap(&self, first: u64, count: u64) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        assert!(first + count <= self.count);
        // SAFETY: the call replaces pages of this mapping only.
        let at = unsafe { libc::mmap(self.page(first), (count * PAGE_SIZE) as usize, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
    }

    pub fn protect(&self, index: u64, rights: i32) {
        // SAFETY: the page belongs to this mapping.
        assert_eq!(unsafe { libc::mprotect(self.page(index), PAGE_SIZE as usize, rights) }, 0);
    }

    /// Writes zeros over a page.
    pub fn clear(&self, index: u64) {
        // SAFETY: the page belongs to this mapping, and the tests keep it writable.
        unsafe { std::ptr::write_bytes(self.page(index).cast::<u8>(), 0, PAGE_SIZE as usize) };
    }

    /// Returns true if a page was ever touched.
    pub fn is_resident(&self, index: u64) -> bool {
        is_resident(self.page(index) as u64)
    }

    /// Truncates the mapped file to 0 bytes.
    pub fn truncate_file(&self) {
        self.file.as_ref().unwrap().set_len(0).unwrap();
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this value owns the whole mapping, which is not used after this.
        unsafe { libc::munmap(self.addr as *mut c_void, (self.count * PAGE_SIZE) as usize) };
    }
}
