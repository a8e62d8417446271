//! Guarded access on x86-64: which instructions ([`asm`]) serve which access, and the fault handler
//! ([`signals`]).

mod asm;
mod signals;

use super::bytes::{Fault, SharedBytes, Sum};
use crate::crc::{FOLD, can_fold};
use asm::{roxe_guard_add, roxe_guard_cas, roxe_guard_copy, roxe_guard_fold, roxe_guard_move, roxe_guard_wide};
use roxe_transport::cx::AtomicOp;
use roxe_wire::icrc::BLOCK;
use std::ffi::c_void;
use std::sync::atomic::AtomicU8;

pub(super) use signals::install;
#[cfg(test)]
pub(super) use signals::put_in_front;

#[inline]
pub(super) fn read(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    // SAFETY: `out` is valid for its length, and atomics may change behind a shared reference; a
    // fault at `addr` is reported. Racing accesses at either end are no data race in the eyes of
    // the compiler, which does not see the assembly's.
    let rc = unsafe { roxe_guard_copy(out.as_ptr().cast_mut().cast(), addr as *const c_void, out.len()) };
    if rc == 0 { Ok(()) } else { Err(Fault) }
}

/// From this length on summing while copying is faster than before sealing.
const WORTH_SUMMING: usize = 4 * BLOCK;

pub(super) fn read_summed(addr: u64, out: &[AtomicU8]) -> Result<Option<Sum>, Fault> {
    let len = out.len() - out.len() % BLOCK;
    let Ok(blocks) = u8::try_from(len / BLOCK) else { return read(addr, out).map(|()| None) };
    if len < WORTH_SUMMING || !can_fold() {
        return read(addr, out).map(|()| None);
    }
    let (start, rest) = out.split_at(len);
    let mut remainder = 0;
    // SAFETY: `start` is valid for its length, a multiple of 256 that is not 0; the processor has
    // the instructions; the rest as in `read`.
    let rc = unsafe {
        roxe_guard_fold(
            start.as_ptr().cast_mut().cast(),
            addr as *const c_void,
            len,
            &raw mut remainder,
            (&raw const FOLD).cast(),
        )
    };
    if rc != 0 {
        return Err(Fault);
    }
    if !rest.is_empty() {
        read(addr.wrapping_add(len as u64), rest)?;
    }
    Ok(Some(Sum { blocks, remainder }))
}

#[inline]
pub(super) fn write(addr: u64, data: &[u8]) -> Result<(), Fault> {
    // SAFETY: `data` is valid for its length; a fault at `addr` is reported. The caller checked
    // that the program registered these bytes for writing, so they are not memory of ours.
    let rc = unsafe { roxe_guard_copy(addr as *mut c_void, data.as_ptr().cast(), data.len()) };
    if rc == 0 { Ok(()) } else { Err(Fault) }
}

/// From this length on [`Moves::Wide`] pays.
const WIDE: usize = 1024;

/// How bytes are moved that another processor has in its cache.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moves {
    /// 16 at a time.
    Narrow,
    /// 64 at a time; the processor must have AVX-512.
    Wide,
}

impl Moves {
    /// The fastest way to move `len` bytes.
    #[inline]
    fn best(len: usize) -> Self {
        if len >= WIDE && std::is_x86_feature_detected!("avx512f") { Self::Wide } else { Self::Narrow }
    }

    /// # Safety
    ///
    /// The one of the two addresses that is ours is valid for `len` bytes.
    #[inline]
    unsafe fn run(self, to: *mut c_void, from: *const c_void, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise; who says `Wide` has found the instructions.
        let rc = unsafe {
            match self {
                Self::Narrow => roxe_guard_move(to, from, len),
                Self::Wide => roxe_guard_wide(to, from, len),
            }
        };
        if rc == 0 { Ok(()) } else { Err(Fault) }
    }

    #[inline]
    pub(super) fn read(self, addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
        // SAFETY: `out` is valid for its length, and a fault at `addr` is reported, as in the
        // function `read`.
        unsafe { self.run(out.as_ptr().cast_mut().cast(), addr as *const c_void, out.len()) }
    }

    #[inline]
    pub(super) fn write(self, addr: u64, data: SharedBytes<'_>) -> Result<(), Fault> {
        // SAFETY: a fault at `addr` is reported, as in the function `write`; the bytes are mapped,
        // and no reference to them exists.
        unsafe { self.run(addr as *mut c_void, data.addr as *const c_void, data.len()) }
    }
}

#[inline]
pub(super) fn write_shared(addr: u64, data: SharedBytes<'_>) -> Result<(), Fault> {
    Moves::best(data.len()).write(addr, data)
}

#[inline]
pub(super) fn read_shared(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    Moves::best(out.len()).read(addr, out)
}

#[inline]
pub(super) fn store(addr: u64, word: [u8; 8]) -> Result<(), Fault> {
    // An aligned word is the tail, which one instruction stores.
    write(addr, &word)
}

#[inline]
pub(super) fn atomic(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    let mut old = 0;
    // SAFETY: `old` is valid; a fault at `addr` is reported; the rest as in `write`.
    let rc = unsafe {
        match op {
            AtomicOp::CompareSwap { compare, swap } => roxe_guard_cas(addr, compare, swap, &raw mut old),
            AtomicOp::FetchAdd { add } => roxe_guard_add(addr, add, &raw mut old),
        }
    };
    if rc == 0 { Ok(old) } else { Err(Fault) }
}
