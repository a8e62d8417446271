//! The guarded instructions, and the accesses that x86-64 and aarch64 share.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::bytes::Fault;
use roxe_transport::cx::AtomicOp;
use std::ffi::c_void;

// SAFETY: these are the symbols and signatures of the assembly. Once the handler is installed, any
// application address may be passed; the other address (the slice, `old`) must be valid.
unsafe extern "C" {
    pub(super) static roxe_guard_begin: u8;
    pub(super) static roxe_guard_end: u8;
    pub(super) static roxe_guard_fault: u8;
    pub(super) fn roxe_guard_copy(to: *mut c_void, from: *const c_void, len: usize) -> u32;
    pub(super) fn roxe_guard_move(to: *mut c_void, from: *const c_void, len: usize) -> u32;
    fn roxe_guard_cas(word: u64, compare: u64, swap: u64, old: *mut u64) -> u32;
    fn roxe_guard_add(word: u64, add: u64, old: *mut u64) -> u32;
}

#[inline]
pub(super) fn write(addr: u64, data: &[u8]) -> Result<(), Fault> {
    // SAFETY: `data` is valid for reads of its length; a fault at `addr` returns an error. The
    // program registered these bytes for writing, so roxe does not use them. Concurrent accesses by
    // the program are not data races for the compiler, which does not see the assembly.
    let rc = unsafe { roxe_guard_copy(addr as *mut c_void, data.as_ptr().cast(), data.len()) };
    if rc == 0 { Ok(()) } else { Err(Fault) }
}

#[inline]
pub(super) fn store(addr: u64, word: [u8; 8]) -> Result<(), Fault> {
    // An aligned word is the tail of a copy, which one instruction stores.
    write(addr, &word)
}

#[inline]
pub(super) fn atomic(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    let mut old = 0;
    // SAFETY: `old` is valid for a write of eight bytes; the rest as in `write`.
    let rc = unsafe {
        match op {
            AtomicOp::CompareSwap { compare, swap } => roxe_guard_cas(addr, compare, swap, &raw mut old),
            AtomicOp::FetchAdd { add } => roxe_guard_add(addr, add, &raw mut old),
        }
    };
    if rc == 0 { Ok(old) } else { Err(Fault) }
}
