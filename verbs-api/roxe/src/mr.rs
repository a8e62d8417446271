//! Memory regions: memory that the device may access.
//!
//! A peer may change registered memory at any moment, so a region never lends a `&[u8]`, whose
//! bytes must not change. [`MemoryRegion`] owns its bytes and copies them in and out with relaxed
//! atomic accesses. Rust does not define concurrent atomic accesses of different sizes that
//! overlap, so every byte is always accessed with the same size: as part of its aligned 8-byte
//! word, or singly before the first and after the last word of the region. The device accesses the
//! memory in assembly, to which this rule of the compiler does not apply.
//!
//! No other module of the crate has unsafe code.
#![allow(unsafe_code)]

use crate::{ArgumentError, Error, ProtectionDomain, ResourceError};
use roxe_provider as provider;
use roxe_transport::wr::Access;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub use roxe_transport::wr::Sge;

/// Alignment of allocated regions, in bytes: a page, so that atomic words and 4 KiB blocks are
/// aligned.
const PAGE: usize = 4096;

impl ProtectionDomain {
    /// Allocates `len` zeroed bytes, page aligned, and registers them. `access` must contain
    /// `LOCAL_WRITE` to receive or READ into them, and for `REMOTE_WRITE` and `REMOTE_ATOMIC`.
    ///
    /// # Errors
    /// [`Error::Resources`] if the allocator has no memory, or the device has its maximum number of
    /// regions. [`Error::Argument`] if the device refuses length or rights, or the system has no
    /// pages for the bytes.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        let bytes = Bytes::zeroed(len).ok_or(ResourceError::OutOfMemory { bytes: len })?;
        MemoryRegion::register(self, bytes, access)
    }

    /// Registers memory that the program owns, for example a mapped file or a buffer of another
    /// library.
    ///
    /// # Safety
    /// `len` bytes at `ptr` must be valid memory until the region is dropped. They may change at
    /// any time: no `&[u8]` or `&mut [u8]` to them may be used while a queue pair of this domain
    /// or, with remote rights, a peer can access them. If several regions cover the same bytes,
    /// only one may be used to read and write them, unless all addresses and lengths are multiples
    /// of 8.
    ///
    /// # Errors
    /// [`Error::Argument`] if the memory is not mapped for `access` (this is not checked with
    /// `ON_DEMAND`), or the device refuses length or rights. [`Error::Resources`] if the device has
    /// its maximum number of regions.
    pub unsafe fn register_raw(&self, ptr: NonNull<u8>, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        MemoryRegion::register(self, Bytes { ptr, len, owned: None }, access)
    }
}

/// Registered memory of this process.
///
/// Dropping the value deregisters the memory. This is allowed while requests still use the region:
/// the keys become invalid, memory windows on the region close, `drop` waits for accesses in
/// progress, and the requests complete with an error.
pub struct MemoryRegion {
    pub(crate) mr: Arc<provider::Mr>,
    bytes: Bytes,
}

impl MemoryRegion {
    fn register(pd: &ProtectionDomain, bytes: Bytes, access: Access) -> Result<Self, Error> {
        let addr = bytes.ptr.as_ptr().expose_provenance() as u64;
        // SAFETY: `Bytes` keeps allocated memory valid, and the caller of `register_raw` its own,
        // until the region is dropped. `MemoryRegion::drop` ends the device's access before that.
        let mr = unsafe { pd.pd.reg_mr(addr, bytes.len as u64, addr, access) }?;
        Ok(Self { mr, bytes })
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty)] // The program has chosen the length itself.
    pub const fn len(&self) -> usize {
        self.bytes.len
    }

    /// Returns the address of the first byte.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.bytes.ptr.as_ptr()
    }

    /// Returns a part of the region as an element of a scatter/gather list.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range is not inside the region, or is longer than 2^31 bytes.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        slice(&self.mr, self.len(), range, 1 << 31)
    }

    /// Copies `data` into the region, starting at byte `offset`.
    ///
    /// # Errors
    /// [`Error::Argument`] if `data` does not fit; nothing is written then.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.check(offset, data.len())?;
        self.bytes.store(offset, data);
        Ok(())
    }

    /// Fills `out` with bytes of the region, starting at byte `offset`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the region has fewer bytes; `out` is unchanged then.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check(offset, out.len())?;
        self.bytes.load(offset, out);
        Ok(())
    }

    /// Returns a copy of the bytes in `range`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range is not inside the region.
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>, Error> {
        let (offset, len) = bounds(range, self.len())?;
        let mut out = vec![0; len];
        self.read(offset, &mut out)?;
        Ok(out)
    }

    /// Loads the byte at `offset`, for programs that poll on memory. The load has acquire ordering,
    /// and the device stores the bytes of a WRITE in increasing order. So once this method returns
    /// the new last byte of a WRITE, the bytes before it are visible too.
    ///
    /// # Errors
    /// [`Error::Argument`] if `offset` is not inside the region.
    pub fn load_u8(&self, offset: usize) -> Result<u8, Error> {
        self.check(offset, 1)?;
        Ok(self.bytes.load_byte(offset, Ordering::Acquire))
    }

    /// Loads the 8 bytes at `offset` as one number in native byte order, as the device's atomics
    /// do.
    ///
    /// # Errors
    /// [`Error::Argument`] if they are not inside the region, or their address is not a multiple of
    /// 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64, Error> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Stores the 8 bytes at `offset` at once, as one number in native byte order.
    ///
    /// # Errors
    /// Errors of [`load_u64`](Self::load_u64).
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), Error> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64, Error> {
        self.check(offset, 8)?;
        let words = self.bytes.words();
        let is_aligned = words.contains(&offset) && (offset - words.start).is_multiple_of(8);
        if is_aligned { Ok(self.bytes.word(offset)) } else { Err(self.outside(offset, 8)) }
    }

    /// Returns an error unless `len` bytes at `offset` are inside the region.
    fn check(&self, offset: usize, len: usize) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(self.outside(offset, len)),
        }
    }

    fn outside(&self, offset: usize, len: usize) -> Error {
        ArgumentError::OutOfRange { offset, len, region: self.len() }.into()
    }
}

/// Implements the accessors of keys and addresses for a type of region.
macro_rules! region_keys {
    ($region:ident) => {
        impl $region {
            /// Returns the lkey, for local work requests.
            pub fn lkey(&self) -> roxe_wire::LKey {
                self.mr.lkey()
            }

            /// Returns the rkey, for requests of peers.
            pub fn rkey(&self) -> roxe_wire::RKey {
                self.mr.rkey()
            }

            /// Returns the remote address of the first byte, for peers.
            pub fn remote(&self) -> crate::RemoteAddr {
                crate::RemoteAddr { addr: self.mr.base(), rkey: self.mr.rkey() }
            }
        }
    };
}

pub(crate) use region_keys;

region_keys!(MemoryRegion);

/// Returns a part of a region of `region` bytes as a list element. [`Error::Argument`] if it is not
/// inside the region, or has more than `max` bytes.
pub(crate) fn slice(mr: &provider::Mr, region: usize, range: impl RangeBounds<usize>, max: u32) -> Result<Sge, Error> {
    let (offset, len) = bounds(range, region)?;
    let length = u32::try_from(len).ok().filter(|len| *len <= max);
    let length = length.ok_or(ArgumentError::OutOfRange { offset, len, region })?;
    Ok(Sge { addr: mr.base() + offset as u64, length, lkey: mr.lkey() })
}

/// Returns offset and length of `range` in a region of `region` bytes; [`Error::Argument`] if it is
/// not inside.
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
        // Invalidates the keys and waits for accesses in progress, before the bytes are freed.
        self.mr.revoke();
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("remote", &self.remote()).field("len", &self.len()).finish()
    }
}

/// The memory of a region, which this value may own.
struct Bytes {
    ptr: NonNull<u8>,
    /// Length in bytes.
    len: usize,
    /// Layout of the allocation; `None` for memory of the program.
    owned: Option<Layout>,
}

// SAFETY: this module accesses the bytes with atomics only, so every thread may use the pointer.
unsafe impl Send for Bytes {}
// SAFETY: this module accesses the bytes with atomics only, so threads may share the pointer.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn zeroed(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), PAGE).ok()?;
        // SAFETY: the layout has a size of at least 1.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { ptr, len, owned: Some(layout) })
    }

    /// Returns the offsets of all whole aligned words.
    fn words(&self) -> Range<usize> {
        let start = self.ptr.as_ptr().align_offset(8).min(self.len);
        start..start + (self.len - start) / 8 * 8
    }

    /// Returns the word at `offset`, which must be the offset of a word ([`Bytes::words`]).
    #[allow(clippy::cast_ptr_alignment)] // [`Bytes::words`] are aligned.
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(self.words().contains(&offset));
        // SAFETY: `words` yields offsets of 8 aligned bytes inside the region, which are valid as
        // long as `self`. This module accesses them as words only.
        unsafe { AtomicU64::from_ptr(self.ptr.as_ptr().wrapping_add(offset).cast()) }
    }

    /// Returns the byte at `offset`, which must be inside the region and in no word
    /// ([`Bytes::words`]).
    fn byte(&self, offset: usize) -> &AtomicU8 {
        debug_assert!(offset < self.len && !self.words().contains(&offset));
        // SAFETY: the offset is inside the region, whose bytes are valid as long as `self`. This
        // module accesses bytes outside words singly only.
        unsafe { AtomicU8::from_ptr(self.ptr.as_ptr().wrapping_add(offset)) }
    }

    /// Splits `len` bytes at `offset` into those before, in and after the words; returns the three
    /// lengths.
    fn split_lengths(&self, offset: usize, len: usize) -> [usize; 3] {
        let words = self.words();
        let before = words.start.saturating_sub(offset).min(len);
        let inside = words.end.saturating_sub(offset + before).min(len - before);
        [before, inside, len - before - inside]
    }

    /// Copies `data` to `offset`. The range must be inside the region.
    fn store(&self, offset: usize, data: &[u8]) {
        let [before, inside, _] = self.split_lengths(offset, data.len());
        let (head, rest) = data.split_at(before);
        let (body, tail) = rest.split_at(inside);
        let bytes = |at: usize, data: &[u8]| {
            (at..).zip(data).for_each(|(at, byte)| self.byte(at).store(*byte, Ordering::Relaxed));
        };
        bytes(offset, head);
        self.store_in_words(offset + before, body);
        bytes(offset + before + inside, tail);
    }

    fn store_in_words(&self, offset: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let within = self.within_word(offset);
        let (head, rest) = data.split_at(((8 - within) % 8).min(data.len()));
        let words = rest.chunks_exact(8);
        self.merge(offset - within, within, head);
        let mut at = offset + head.len();
        let tail = words.remainder();
        for word in words {
            self.word(at).store(word.try_into().map_or(0, u64::from_ne_bytes), Ordering::Relaxed);
            at += 8;
        }
        self.merge(at, 0, tail);
    }

    /// Replaces the bytes from `within` on of the word at `at`. Keeps concurrent changes of its
    /// other bytes.
    fn merge(&self, at: usize, within: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let merged = |word: u64| {
            let mut bytes = word.to_ne_bytes();
            bytes[within..within + data.len()].copy_from_slice(data);
            Some(u64::from_ne_bytes(bytes))
        };
        // Never fails: `merged` always returns a value.
        let _ = self.word(at).fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
    }

    /// Fills `out` from `offset`. The range must be inside the region.
    fn load(&self, offset: usize, out: &mut [u8]) {
        let [before, inside, _] = self.split_lengths(offset, out.len());
        let (head, rest) = out.split_at_mut(before);
        let (body, tail) = rest.split_at_mut(inside);
        let bytes = |at: usize, out: &mut [u8]| {
            (at..).zip(out).for_each(|(at, byte)| *byte = self.byte(at).load(Ordering::Relaxed));
        };
        bytes(offset, head);
        self.load_from_words(offset + before, body);
        bytes(offset + before + inside, tail);
    }

    fn load_from_words(&self, offset: usize, out: &mut [u8]) {
        if out.is_empty() {
            return;
        }
        let within = self.within_word(offset);
        let (head, rest) = out.split_at_mut(((8 - within) % 8).min(out.len()));
        let mut at = offset + head.len();
        if !head.is_empty() {
            let word = self.word(offset - within).load(Ordering::Relaxed).to_ne_bytes();
            head.copy_from_slice(&word[within..within + head.len()]);
        }
        for part in rest.chunks_mut(8) {
            part.copy_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes()[..part.len()]);
            at += part.len();
        }
    }

    /// Loads the byte at `offset`, which must be inside the region.
    fn load_byte(&self, offset: usize, ordering: Ordering) -> u8 {
        if !self.words().contains(&offset) {
            return self.byte(offset).load(ordering);
        }
        let within = self.within_word(offset);
        self.word(offset - within).load(ordering).to_ne_bytes()[within]
    }

    /// Returns the position in its word of an offset that is in [`Bytes::words`].
    fn within_word(&self, offset: usize) -> usize {
        (offset - self.words().start) % 8
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Some(layout) = self.owned {
            // SAFETY: `zeroed` allocated the bytes with this layout, and only `drop` frees them.
            unsafe { dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a part of `whole`, as `register_raw` would make it.
    fn part(whole: &Bytes, offset: usize, len: usize) -> Bytes {
        assert!(offset + len <= whole.len);
        Bytes { ptr: NonNull::new(whole.ptr.as_ptr().wrapping_add(offset)).unwrap(), len, owned: None }
    }

    #[test]
    fn copy_is_exact_at_every_alignment_and_length() {
        let step = if cfg!(miri) { 7 } else { 1 };
        for (offset, len) in (0..9).flat_map(|offset| (0..40).step_by(step).map(move |len| (offset, len))) {
            for first in [0, 3, offset] {
                let all = Bytes::zeroed(64).unwrap();
                // A region whose ends are not aligned.
                let region = part(&all, first, 64 - first - 5);
                let at = offset - first.min(offset);
                let data: Vec<u8> = (1..=len).collect();
                let (mut out, mut whole) = (vec![0; data.len()], vec![0; region.len]);
                region.store(0, &vec![0xee; region.len]);
                region.store(at, &data);
                region.load(at, &mut out);
                region.load(0, &mut whole);
                assert_eq!(out, data);
                assert!(whole[..at].iter().chain(&whole[at + data.len()..]).all(|byte| *byte == 0xee));
                let bytes = (0..region.len).map(|at| region.load_byte(at, Ordering::Acquire));
                assert!(bytes.eq(whole.iter().copied()));
            }
        }
    }

    // Miri also checks that no accesses of different sizes overlap.
    #[test]
    fn concurrent_copies_and_word_accesses_lose_no_bytes() {
        let bytes = Bytes::zeroed(24).unwrap();
        std::thread::scope(|scope| {
            for place in [0, 3, 6, 9, 15, 21] {
                let bytes = &bytes;
                scope.spawn(move || {
                    for turn in 1..=50 {
                        bytes.store(place, &[turn; 3]);
                        assert_eq!(bytes.load_byte(place + 2, Ordering::Acquire), turn, "only this thread writes it");
                        bytes.word(16).load(Ordering::Acquire);
                    }
                });
            }
            scope.spawn(|| {
                let mut out = [0; 24];
                (0..50).for_each(|_| bytes.load(0, &mut out));
            });
        });
        let mut out = [0; 24];
        bytes.load(0, &mut out);
        assert_eq!(out, [[50; 12], [0, 0, 0, 50, 50, 50, 0, 0, 0, 50, 50, 50]].concat()[..]);
    }
}
