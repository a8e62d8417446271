//! Guarded access on x86-64: copies that compute the CRC, and copies of bytes in another
//! processor's cache.

use super::asm::{roxe_guard_copy, roxe_guard_move};
use super::bytes::{Fault, SharedBytes, Sum};
use crate::crc::{FOLD, can_fold};
use roxe_wire::icrc::BLOCK_LEN;
use std::ffi::c_void;
use std::sync::atomic::AtomicU8;

pub(super) use super::asm::{atomic, store, write};

// SAFETY: as in `asm`; the processor must have the instructions that the called function uses.
unsafe extern "C" {
    fn roxe_guard_wide(to: *mut c_void, from: *const c_void, len: usize) -> u32;
    fn roxe_guard_fold(
        to: *mut c_void,
        from: *const c_void,
        len: usize,
        remainder: *mut u32,
        by: *const [u64; 2],
    ) -> u32;
    fn roxe_guard_fold_256(
        to: *mut c_void,
        from: *const c_void,
        len: usize,
        remainder: *mut u32,
        by: *const [u64; 2],
    ) -> u32;
}

#[inline]
pub(super) fn read(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    // SAFETY: `out` is valid for writes of its length during the call, and atomics may change
    // behind a shared reference; a fault at `addr` returns an error.
    let rc = unsafe { roxe_guard_copy(out.as_ptr().cast_mut().cast(), addr as *const c_void, out.len()) };
    if rc == 0 { Ok(()) } else { Err(Fault) }
}

/// Length in bytes from which computing the CRC during the copy is faster than computing it later.
const WORTH_SUMMING: usize = 4 * BLOCK_LEN;

/// Width of the processor's carry-less multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fold {
    /// 512 bits.
    Wide,
    /// 256 bits.
    Half,
}

impl Fold {
    /// Returns the widest multiplication of this processor, if it has one.
    #[inline]
    fn best() -> Option<Self> {
        if can_fold() { Some(Self::Wide) } else { Self::has_half().then_some(Self::Half) }
    }

    #[inline]
    pub(super) fn has_half() -> bool {
        std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("vpclmulqdq")
    }

    /// Copies `out.len()` bytes, a multiple of 256 but not 0; returns their CRC remainder.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `self`, and `out` has such a length.
    pub(super) unsafe fn run(self, addr: u64, out: &[AtomicU8]) -> Result<u32, Fault> {
        let (to, from, mut remainder) = (out.as_ptr().cast_mut().cast(), addr as *const c_void, 0);
        let (len, by) = (out.len(), (&raw const FOLD).cast());
        debug_assert!(len > 0 && len.is_multiple_of(BLOCK_LEN));
        // SAFETY: the caller guarantees the instructions and the length of `out`; the rest as in
        // `read`.
        let rc = unsafe {
            match self {
                Self::Wide => roxe_guard_fold(to, from, len, &raw mut remainder, by),
                Self::Half => roxe_guard_fold_256(to, from, len, &raw mut remainder, by),
            }
        };
        if rc == 0 { Ok(remainder) } else { Err(Fault) }
    }
}

pub(super) fn read_summed(addr: u64, out: &[AtomicU8]) -> Result<Option<Sum>, Fault> {
    let len = out.len() - out.len() % BLOCK_LEN;
    let Ok(blocks) = u8::try_from(len / BLOCK_LEN) else { return read(addr, out).map(|()| None) };
    let Some(fold) = Fold::best().filter(|_| len >= WORTH_SUMMING) else { return read(addr, out).map(|()| None) };
    let (start, rest) = out.split_at(len);
    // SAFETY: the processor has `fold`, and the length of `start` is a multiple of 256 and not 0.
    let remainder = unsafe { fold.run(addr, start)? };
    if !rest.is_empty() {
        read(addr.wrapping_add(len as u64), rest)?;
    }
    Ok(Some(Sum { blocks, remainder }))
}

/// Length in bytes from which [`Moves::Wide`] is faster.
const WIDE: usize = 1024;

/// The copy method for bytes in the cache of another processor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moves {
    /// 16 bytes at a time.
    Narrow,
    /// 64 bytes at a time; the processor must have AVX-512.
    Wide,
}

impl Moves {
    #[inline]
    fn best(len: usize) -> Self {
        if len >= WIDE && std::is_x86_feature_detected!("avx512f") { Self::Wide } else { Self::Narrow }
    }

    /// # Safety
    ///
    /// The address that is not the application's is valid for `len` bytes during the call, and the
    /// processor has the instructions of `self`.
    #[inline]
    unsafe fn run(self, to: *mut c_void, from: *const c_void, len: usize) -> Result<(), Fault> {
        // SAFETY: this function's contract covers the address and the instructions; a fault at the
        // application's address returns an error.
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
        // SAFETY: as in the function `read`.
        unsafe { self.run(out.as_ptr().cast_mut().cast(), addr as *const c_void, out.len()) }
    }

    #[inline]
    pub(super) fn write(self, addr: u64, data: SharedBytes<'_>) -> Result<(), Fault> {
        // SAFETY: as in the function `write`; the bytes of `data` are mapped, and no reference to
        // them exists.
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
