//! A global allocator that detects allocations, for tests that prove that a path allocates nothing.
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: WatchedAllocator = WatchedAllocator::new();
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The system's allocator, which can report the first allocation during a call.
#[derive(Debug, Default)]
pub struct WatchedAllocator {
    /// True if the next allocation is recorded in `first`.
    is_armed: AtomicBool,
    first: Mutex<Option<Backtrace>>,
}

impl WatchedAllocator {
    /// Creates an allocator that records nothing yet.
    pub const fn new() -> Self {
        Self { is_armed: AtomicBool::new(false), first: Mutex::new(None) }
    }

    /// Runs `work` and returns its result if no thread allocated or reallocated meanwhile.
    ///
    /// # Errors
    /// The backtrace of the first allocation.
    pub fn check_none_during<R>(&self, work: impl FnOnce() -> R) -> Result<R, String> {
        self.is_armed.store(true, Ordering::SeqCst);
        let result = work();
        if self.is_armed.swap(false, Ordering::SeqCst) {
            return Ok(result);
        }
        let first = self.first.lock().ok().and_then(|mut first| first.take());
        Err(format!("memory was allocated:\n{}", first.map_or_else(String::new, |first| first.to_string())))
    }

    fn record(&self) {
        // Disarm first, because recording allocates.
        if self.is_armed.load(Ordering::Relaxed) && self.is_armed.swap(false, Ordering::SeqCst) {
            let here = Backtrace::force_capture();
            if let Ok(mut first) = self.first.lock() {
                *first = Some(here);
            }
        }
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for WatchedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.record();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.record();
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.record();
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}
