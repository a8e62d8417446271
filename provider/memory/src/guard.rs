//! Touching application memory: every access ends in a value or in [`Fault`], never in a signal.
//!
//! A program may unmap memory that is still registered, at any moment, also during an access. So
//! the accesses are a few instructions of our own (`asm`) at known addresses, and a handler for
//! SIGSEGV and SIGBUS (`signals`) sends a fault at one of them to an exit that reports it. Any
//! other fault goes to whatever handler was there before. Memory is only ever reached through raw
//! addresses here: the program changes it at will, and no Rust reference to it exists.
//!
//! The only room of this crate that dereferences an address of the application. Two limits: a
//! program that blocks SIGSEGV in a thread, or replaces the handler after its first registration
//! without calling the earlier one, dies of such a fault as it would have without us.
//!
//! Code for one processor is in `x86` and `aarch64`. Others go through system calls
//! (`portable`) until they have instructions here, and Miri byte by byte (`interpreted`).

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod aarch64;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod asm;
mod bytes;
#[cfg(miri)]
mod interpreted;
#[cfg(all(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))), not(miri)))]
mod portable;
mod shared;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod signals;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86;

#[cfg(all(target_arch = "aarch64", not(miri)))]
use aarch64 as arch;
#[cfg(miri)]
use interpreted as arch;
#[cfg(all(not(any(target_arch = "x86_64", target_arch = "aarch64")), not(miri)))]
use portable as arch;
use roxe_transport::cx::AtomicOp;
use std::sync::atomic::AtomicU8;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86 as arch;

pub use bytes::{Fault, SharedBytes, Sum, cells, own_cells};

/// Makes faults of the functions below end in [`Fault`]; must have been called once before any of
/// them.
pub fn install() {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    signals::install();
}

/// Copies `out.len()` bytes at `addr` of the application. Which bytes of `out` are written before a
/// fault is open.
#[inline]
pub fn read(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    arch::read(addr, out)
}

/// As [`read`], for an `out` whose lines are in the cache of another processor, as those of a ring
/// are in its reader's.
#[inline]
pub(crate) fn read_shared(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    arch::read_shared(addr, out)
}

/// Copies `out.len()` bytes at `addr` of the application and sums them up on the way where the
/// processor can do both as fast as one of them: the sum of the first bytes, if so.
#[inline]
pub(crate) fn read_summed(addr: u64, out: &[AtomicU8]) -> Result<Option<Sum>, Fault> {
    arch::read_summed(addr, out)
}

/// Copies `data` to `addr` of the application, in increasing order. The bytes in the last aligned
/// 8-byte word land last, each naturally aligned integer at the very end with one store, because
/// programs wait for them to change.
#[inline]
pub fn write(addr: u64, data: &[u8]) -> Result<(), Fault> {
    arch::write(addr, data)
}

/// As [`write()`], of bytes that another process wrote and may still change: string moves are slow
/// where lines come out of another processor's cache.
#[inline]
pub(crate) fn write_shared(addr: u64, data: SharedBytes<'_>) -> Result<(), Fault> {
    arch::write_shared(addr, data)
}

/// An atomic operation of the processor on the aligned word at `addr`; returns the old value.
#[inline]
pub(crate) fn atomic(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    debug_assert!(addr.is_multiple_of(8));
    arch::atomic(addr, op)
}

/// Stores `word` at the aligned address `addr`, behind all earlier stores: others see all of its
/// bytes or none.
#[inline]
pub(crate) fn store(addr: u64, word: [u8; 8]) -> Result<(), Fault> {
    debug_assert!(addr.is_multiple_of(8));
    arch::store(addr, word)
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod tests;
