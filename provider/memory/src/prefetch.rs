//! Bringing what is about to be used into the cache. **Unsafe room**: one instruction.
//!
//! A visit to a queue pair that nothing was done with for a while meets some twenty cache lines
//! that lie in no cache, one after the other, as each is needed. Asked for at once they come
//! together.

const LINE: usize = 64;

/// Asks for all of `value`. It costs one instruction for each line, and nothing is waited for.
#[inline]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).addr(), size_of_val(value));
}

/// Asks for the `len` bytes at an address, mapped or not.
#[inline]
pub fn prefetch_at(start: usize, len: usize) {
    // From 0 on: where the length is known, no loop is left. Where it is not, `step_by` would count
    // the lines first.
    let mut at = 0;
    while at < len {
        line(std::ptr::without_provenance(start.wrapping_add(at)));
        at += LINE;
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn line(at: *const i8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every x86-64 has SSE; for a program this has no effect, whatever the address is.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at) }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn line(at: *const i8) {
    // SAFETY: for a program this has no effect, whatever the address is.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
fn line(_at: *const i8) {}
