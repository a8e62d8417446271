//! Prefetches into the cache. Unsafe code: the prefetch instruction.
//!
//! Work on an idle queue pair causes many cache misses, one after the other.
//! Prefetching the lines together overlaps the misses.

const LINE: usize = 64;

/// Prefetches all of `value`, with one instruction per cache line.
#[inline]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).addr(), size_of_val(value));
}

/// Prefetches the cache lines at `start`, `start + 64`, ... below `start + len`. The addresses may
/// be unmapped. If `start` is not aligned, the line of the last byte can be missing.
#[inline]
pub fn prefetch_at(start: usize, len: usize) {
    // Counting from 0 lets the compiler unroll the loop for a constant length; `step_by` would
    // first compute the number of lines.
    let mut at = 0;
    while at < len {
        prefetch_line(std::ptr::without_provenance(start.wrapping_add(at)));
        at += LINE;
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch_line(at: *const i8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every x86-64 has SSE, and a prefetch of any address has no visible effect.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at) }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn prefetch_line(at: *const i8) {
    // SAFETY: a prefetch of any address has no visible effect.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
fn prefetch_line(_at: *const i8) {}
