//! Memory regions: memory that the card may read and write.
//!
//! A peer may change registered memory at any moment, so a region never gives out `&[u8]`: a
//! reference would promise the compiler that nothing changes. [`MemoryRegion`] owns its bytes and
//! copies them in and out with relaxed atomic accesses, which is defined whatever happens
//! meanwhile. The one module of this crate with unsafe code; it may touch the provider's
//! registration and the bytes it owns.
#![allow(unsafe_code)]

use crate::{ArgumentError, Error, ProtectionDomain, ResourceError};
use roxe_provider as provider;
use roxe_transport::wr::Access;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub use roxe_transport::wr::Sge;

/// Alignment of owned regions: a page, so that every atomic word and every 4 KiB block is aligned.
const PAGE: usize = 4096;

impl ProtectionDomain {
    /// Allocates `len` zeroed bytes, page aligned, and registers them. `LOCAL_WRITE` is needed to
    /// receive or READ into them; `REMOTE_WRITE` and `REMOTE_ATOMIC` need it too.
    ///
    /// # Errors
    /// [`Error::Resources`], or [`Error::Argument`] if the card refuses length or rights.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        let bytes = Bytes::zeroed(len).ok_or(ResourceError::OutOfMemory { bytes: len })?;
        MemoryRegion::register(self, bytes, access)
    }

    /// Registers memory of the program's own, for example a mapped file or a buffer of another
    /// library.
    ///
    /// # Safety
    /// `len` bytes behind `ptr` must be valid memory until the region is dropped, and everybody who
    /// looks at them meanwhile must expect that they change at any time: no `&[u8]` or `&mut [u8]`
    /// to them may be used while a queue pair of this domain or, with remote rights, a peer can
    /// reach them.
    ///
    /// # Errors
    /// [`Error::Argument`] if the memory is not there or the card refuses length or rights.
    pub unsafe fn register_raw(&self, ptr: NonNull<u8>, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        // The caller's promise is what every access through these bytes relies on.
        MemoryRegion::register(self, Bytes { ptr, len, owned: None }, access)
    }
}

/// Registered memory of this process.
///
/// The memory stays registered as long as the value lives. Dropping it while requests still use it
/// is allowed: the keys stop working first, memory windows on it close, drop returns when no access
/// is under way, and the requests complete with an error.
pub struct MemoryRegion {
    pub(crate) mr: Arc<provider::Mr>,
    bytes: Bytes,
}

impl MemoryRegion {
    fn register(pd: &ProtectionDomain, bytes: Bytes, access: Access) -> Result<Self, Error> {
        let addr = bytes.ptr.as_ptr().expose_provenance() as u64;
        let mr = pd.pd.reg_mr(addr, bytes.len as u64, addr, access)?;
        Ok(Self { mr, bytes })
    }

    /// Its size in bytes.
    #[allow(clippy::len_without_is_empty)] // An empty region cannot be registered.
    pub const fn len(&self) -> usize {
        self.bytes.len
    }

    /// Address of the first byte.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.bytes.ptr.as_ptr()
    }

    /// A part of the region as an element of a work request.
    ///
    /// # Errors
    /// [`Error::Argument`] if it does not lie inside, or is longer than 2^31 bytes.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        slice(&self.mr, self.len(), range, 1 << 31)
    }

    /// Copies `data` into the region, starting at byte `offset`.
    ///
    /// # Errors
    /// [`Error::Argument`] if it does not fit; nothing is written then.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        let place = self.place(offset, data.len())?;
        // SAFETY: `place` checked that all of `data.len()` bytes behind it belong to the region,
        // which lives as long as `self`; all other accesses to it are atomic too, or made by the
        // card on a peer's behalf.
        unsafe { store(place, data) };
        Ok(())
    }

    /// Copies bytes out of the region, starting at byte `offset`, until `out` is full.
    ///
    /// # Errors
    /// [`Error::Argument`] if the region ends before; `out` is unchanged then.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let place = self.place(offset, out.len())?;
        // SAFETY: as in `write`.
        unsafe { load(place, out) };
        Ok(())
    }

    /// The bytes of `range` as they are now.
    ///
    /// # Errors
    /// [`Error::Argument`] if it does not lie inside.
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>, Error> {
        let (offset, len) = bounds(range, self.len())?;
        let mut out = vec![0; len];
        self.read(offset, &mut out)?;
        Ok(out)
    }

    /// The byte at `offset`, with acquire ordering: once it shows what a peer wrote last, the bytes
    /// before it are there too, because the card places a WRITE in increasing order. For programs
    /// that poll on memory.
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub fn load_u8(&self, offset: usize) -> Result<u8, Error> {
        let place = self.place(offset, 1)?;
        // SAFETY: `place` is a byte of the region, as in `write`; bytes have no alignment.
        Ok(unsafe { AtomicU8::from_ptr(place) }.load(Ordering::Acquire))
    }

    /// The 8 bytes at `offset` as one number, as the card's atomics see it.
    ///
    /// # Errors
    /// [`Error::Argument`] if they do not lie inside, or the address is not a multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64, Error> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Sets the 8 bytes at `offset` at once.
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), Error> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    #[allow(clippy::cast_ptr_alignment)] // Checked in the next line.
    fn word(&self, offset: usize) -> Result<&AtomicU64, Error> {
        let place = self.place(offset, 8)?.cast::<u64>();
        if !place.is_aligned() {
            return Err(self.outside(offset, 8));
        }
        // SAFETY: 8 bytes of the region, aligned; they live as long as `self`.
        Ok(unsafe { AtomicU64::from_ptr(place) })
    }

    /// Pointer to `offset` if `len` bytes follow there.
    fn place(&self, offset: usize, len: usize) -> Result<*mut u8, Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(self.outside(offset, len));
        }
        Ok(self.bytes.ptr.as_ptr().wrapping_add(offset))
    }

    fn outside(&self, offset: usize, len: usize) -> Error {
        ArgumentError::OutOfRange { offset, len, region: self.len() }.into()
    }
}

/// What all kinds of regions say of themselves to own work requests and to peers.
macro_rules! region_keys {
    ($region:ident) => {
        impl $region {
            /// The key for own work requests.
            pub fn lkey(&self) -> roxe_wire::LKey {
                self.mr.lkey()
            }

            /// The key for the peer's requests.
            pub fn rkey(&self) -> roxe_wire::RKey {
                self.mr.rkey()
            }

            /// What a peer must know to reach the first byte.
            pub fn remote(&self) -> crate::RemoteAddr {
                crate::RemoteAddr { addr: self.mr.base(), rkey: self.mr.rkey() }
            }
        }
    };
}

pub(crate) use region_keys;

region_keys!(MemoryRegion);

/// A part of a region of `region` bytes as an element of a work request; [`Error::Argument`] if
/// it does not lie inside, or has more than `most` bytes.
pub(crate) fn slice(mr: &provider::Mr, region: usize, range: impl RangeBounds<usize>, most: u32) -> Result<Sge, Error> {
    let (offset, len) = bounds(range, region)?;
    let length = u32::try_from(len).ok().filter(|len| *len <= most);
    let length = length.ok_or(ArgumentError::OutOfRange { offset, len, region })?;
    Ok(Sge { addr: mr.base() + offset as u64, length, lkey: mr.lkey() })
}

/// Offset and length of `range` in a region of `region` bytes; [`Error::Argument`] if it does not
/// lie inside.
pub(crate) fn bounds(range: impl RangeBounds<usize>, region: usize) -> Result<(usize, usize), Error> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => region,
    };
    match end.checked_sub(start) {
        Some(len) if end <= region => Ok((start, len)),
        len => Err(ArgumentError::OutOfRange { offset: start, len: len.unwrap_or(0), region }.into()),
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // Before the bytes go: afterwards no key opens them and no access is under way.
        self.mr.revoke();
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("remote", &self.remote()).field("len", &self.len()).finish()
    }
}

/// The memory behind a region.
struct Bytes {
    ptr: NonNull<u8>,
    len: usize,
    /// How it was allocated, if it is ours to free.
    owned: Option<Layout>,
}

// SAFETY: it is only a place; every access through it is atomic (see `MemoryRegion`) or made by the
// card.
unsafe impl Send for Bytes {}
// SAFETY: it is only a place; every access through it is atomic (see `MemoryRegion`) or made by
// the card.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn zeroed(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), PAGE).ok()?;
        // SAFETY: the layout has a size of at least 1.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { ptr, len, owned: Some(layout) })
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Some(layout) = self.owned {
            // SAFETY: allocated with this very layout in `zeroed`, and freed only here.
            unsafe { dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

/// Copies `data` to `place`: single bytes up to the first aligned word, then words, then the rest.
///
/// # Safety
/// `data.len()` bytes behind `place` are valid for atomic access.
unsafe fn store(place: *mut u8, data: &[u8]) {
    let (head, body) = data.split_at(place.align_offset(8).min(data.len()));
    let words = body.chunks_exact(8);
    let tail = words.remainder();
    // SAFETY: the three parts are `data.len()` bytes together; the middle starts at the first
    // aligned word.
    unsafe {
        store_bytes(place, head);
        let mut at = place.add(head.len());
        for word in words {
            let value = word.try_into().map_or(0, u64::from_ne_bytes);
            AtomicU64::from_ptr(at.cast()).store(value, Ordering::Relaxed);
            at = at.add(8);
        }
        store_bytes(at, tail);
    }
}

/// # Safety
/// As [`store`].
unsafe fn store_bytes(place: *mut u8, data: &[u8]) {
    for (i, byte) in data.iter().enumerate() {
        // SAFETY: `i` is less than the valid length.
        unsafe { AtomicU8::from_ptr(place.add(i)) }.store(*byte, Ordering::Relaxed);
    }
}

/// Fills `out` from `place`, as [`store`].
///
/// # Safety
/// `out.len()` bytes behind `place` are valid for atomic access.
unsafe fn load(place: *mut u8, out: &mut [u8]) {
    let (head, body) = out.split_at_mut(place.align_offset(8).min(out.len()));
    // SAFETY: the three parts are `out.len()` bytes together; the middle starts at the first
    // aligned word.
    unsafe {
        load_bytes(place, head);
        let mut at = place.add(head.len());
        let mut words = body.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&AtomicU64::from_ptr(at.cast()).load(Ordering::Relaxed).to_ne_bytes());
            at = at.add(8);
        }
        load_bytes(at, words.into_remainder());
    }
}

/// # Safety
/// As [`load`].
unsafe fn load_bytes(place: *mut u8, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        // SAFETY: `i` is less than the valid length.
        *byte = unsafe { AtomicU8::from_ptr(place.add(i)) }.load(Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_every_alignment_and_length() {
        let bytes = Bytes::zeroed(64).unwrap();
        for offset in 0..9 {
            for len in 0..40 {
                let data: Vec<u8> = (1..=len).collect();
                let place = bytes.ptr.as_ptr().wrapping_add(offset);
                let mut out = vec![0; data.len()];
                let mut all = [0; 64];
                // SAFETY: at most 9 + 40 of 64 bytes.
                unsafe {
                    store(bytes.ptr.as_ptr(), &[0xee; 64]);
                    store(place, &data);
                    load(place, &mut out);
                    load(bytes.ptr.as_ptr(), &mut all);
                }
                assert_eq!(out, data);
                assert!(all[..offset].iter().chain(&all[offset + data.len()..]).all(|byte| *byte == 0xee));
            }
        }
    }
}
