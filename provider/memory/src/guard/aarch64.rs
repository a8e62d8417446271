//! Guarded access on aarch64. A copy out of application memory needs no barrier.

use super::asm::{roxe_guard_copy, roxe_guard_move};
use super::bytes::{Fault, SharedBytes, Sum};
use std::ffi::c_void;
use std::sync::atomic::AtomicU8;

pub(super) use super::asm::{atomic, store, write};

#[inline]
pub(super) fn read(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    // SAFETY: `out` is valid for its length, and a fault at `addr` returns an error.
    let rc = unsafe { roxe_guard_move(out.as_ptr().cast_mut().cast(), addr as *const c_void, out.len()) };
    if rc == 0 { Ok(()) } else { Err(Fault) }
}

#[inline]
pub(super) fn read_shared(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    read(addr, out)
}

/// Does not compute the CRC: the CRC instructions would only delay the copy.
#[inline]
pub(super) fn read_summed(addr: u64, out: &[AtomicU8]) -> Result<Option<Sum>, Fault> {
    read(addr, out).map(|()| None)
}

#[inline]
pub(super) fn write_shared(addr: u64, data: SharedBytes<'_>) -> Result<(), Fault> {
    // SAFETY: as in `write`; the bytes of `data` are mapped, and no reference to them exists.
    let rc = unsafe { roxe_guard_copy(addr as *mut c_void, data.addr as *const c_void, data.len()) };
    if rc == 0 { Ok(()) } else { Err(Fault) }
}
