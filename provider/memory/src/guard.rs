//! Accesses to application memory. A bad address returns [`Fault`] instead of raising a signal.
//!
//! A program may unmap registered memory at any moment, even during an access. So all accesses are
//! made by assembly at known addresses (`asm`). A handler for SIGSEGV and SIGBUS (`signals`)
//! redirects a fault at one of these instructions to an exit that returns an error, and passes
//! every other fault to the previous handler. The program may change the memory at any time, so
//! only raw addresses and no Rust references to it exist.
//!
//! This is the only module that dereferences an address of the application. Two limits: a fault
//! kills a program that blocks SIGSEGV in a thread, or that replaces the handler after its first
//! registration without calling the earlier one.
//!
//! `x86` and `aarch64` use the assembly. Other processors use system calls (`portable`), and Miri
//! copies byte by byte (`interpreted`).

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

/// Installs the signal handlers. Call it once before any access.
pub fn install() {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    signals::install();
}

/// Copies `out.len()` bytes from `addr` of the application. After a fault, `out` may be partly
/// written.
#[inline]
pub fn read(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    arch::read(addr, out)
}

/// Like [`read`], for an `out` whose cache lines another processor holds, such as those of a ring
/// in its reader's cache.
#[inline]
pub(crate) fn read_shared(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    arch::read_shared(addr, out)
}

/// Like [`read`]. Where the processor computes the CRC during the copy at no extra cost, returns
/// the CRC of the first bytes.
#[inline]
pub(crate) fn read_summed(addr: u64, out: &[AtomicU8]) -> Result<Option<Sum>, Fault> {
    arch::read_summed(addr, out)
}

/// Copies `data` to `addr` of the application, in increasing order. The bytes in the last aligned
/// 8-byte word are written last, a naturally aligned integer at the very end with one store,
/// because programs wait for these bytes to change.
#[inline]
pub fn write(addr: u64, data: &[u8]) -> Result<(), Fault> {
    arch::write(addr, data)
}

/// Like [`write()`], from bytes that another process wrote and may still change. Uses no string
/// moves, which are slow for lines in another processor's cache.
#[inline]
pub(crate) fn write_shared(addr: u64, data: SharedBytes<'_>) -> Result<(), Fault> {
    arch::write_shared(addr, data)
}

/// Executes an atomic instruction on the aligned word at `addr`; returns the old value.
#[inline]
pub(crate) fn atomic(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    debug_assert!(addr.is_multiple_of(8));
    arch::atomic(addr, op)
}

/// Stores `word` at the aligned address `addr` with one instruction, after all earlier stores.
#[inline]
pub(crate) fn store(addr: u64, word: [u8; 8]) -> Result<(), Fault> {
    debug_assert!(addr.is_multiple_of(8));
    arch::store(addr, word)
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod tests;
