//! Guarded access on aarch64: what is copied to memory of ours takes no barrier.

use super::asm::{roxe_guard_copy, roxe_guard_move};
use super::bytes::{Fault, SharedBytes, Sum};
use std::ffi::c_void;
use std::sync::atomic::AtomicU8;

pub(super) use super::asm::{atomic, store, write};

#[inline]
pub(super) fn read(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    // SAFETY: as in `asm`: `out` is valid for its length, and a fault at `addr` is reported.
    let rc = unsafe { roxe_guard_move(out.as_ptr().cast_mut().cast(), addr as *const c_void, out.len()) };
    if rc == 0 { Ok(()) } else { Err(Fault) }
}

#[inline]
pub(super) fn read_shared(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    read(addr, out)
}

/// Never sums: the sum has an instruction of its own, which a copy would only wait for.
#[inline]
pub(super) fn read_summed(addr: u64, out: &[AtomicU8]) -> Result<Option<Sum>, Fault> {
    read(addr, out).map(|()| None)
}

#[inline]
pub(super) fn write_shared(addr: u64, data: SharedBytes<'_>) -> Result<(), Fault> {
    // SAFETY: a fault at `addr` is reported, as in `write`; the bytes are mapped, and no reference
    // to them exists.
    let rc = unsafe { roxe_guard_copy(addr as *mut c_void, data.addr as *const c_void, data.len()) };
    if rc == 0 { Ok(()) } else { Err(Fault) }
}
