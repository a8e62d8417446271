//! Memory regions: memory that the card may read and write.
//!
//! A peer may change registered memory at any moment, so a region never gives out `&[u8]`: a
//! reference would promise the compiler that nothing changes. [`MemoryRegion`] owns its bytes and
//! copies them in and out with relaxed atomic accesses, which is defined whatever happens
//! meanwhile. Rust does not define atomic accesses of different sizes that overlap, so each byte
//! has one size for all accesses: every aligned word inside the region is accessed as a word, also
//! for a single byte of it, and what is left at the ends of a region that is not aligned by bytes.
//! The card accesses memory by machine code that the compiler does not see.
//!
//! The one module of this crate with unsafe code; it may touch the provider's registration and the
//! bytes it owns.
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
    /// `len` bytes behind `ptr` must be valid memory until the region is dropped, and all code that
    /// looks at them meanwhile must expect that they change at any time: no `&[u8]` or `&mut [u8]`
    /// to them may be used while a queue pair of this domain or, with remote rights, a peer can
    /// reach them. Of several regions over the same bytes only one may be used to read and write
    /// them, unless their first bytes and lengths are multiples of 8.
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
        // SAFETY: the bytes live as long as the region, which deregisters them when it is dropped,
        // and are accessed through it only; what `register_raw` was given its caller has promised.
        let mr = unsafe { pd.pd.reg_mr(addr, bytes.len as u64, addr, access) }?;
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
        self.check(offset, data.len())?;
        self.bytes.store(offset, data);
        Ok(())
    }

    /// Copies bytes out of the region, starting at byte `offset`, until `out` is full.
    ///
    /// # Errors
    /// [`Error::Argument`] if the region ends before; `out` is unchanged then.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check(offset, out.len())?;
        self.bytes.load(offset, out);
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
        self.check(offset, 1)?;
        Ok(self.bytes.load_byte(offset, Ordering::Acquire))
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

    fn word(&self, offset: usize) -> Result<&AtomicU64, Error> {
        self.check(offset, 8)?;
        let words = self.bytes.words();
        let is_one = words.contains(&offset) && (offset - words.start).is_multiple_of(8);
        if is_one { Ok(self.bytes.word(offset)) } else { Err(self.outside(offset, 8)) }
    }

    /// `len` bytes from `offset` on lie inside.
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

/// Keys and addresses of all kinds of regions, for local requests and for peers.
macro_rules! region_keys {
    ($region:ident) => {
        impl $region {
            /// The key for local work requests.
            pub fn lkey(&self) -> roxe_wire::LKey {
                self.mr.lkey()
            }

            /// The key for the peer's requests.
            pub fn rkey(&self) -> roxe_wire::RKey {
                self.mr.rkey()
            }

            /// The remote address of the first byte, for peers.
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
    /// Layout of the allocation, if owned.
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

    /// The offsets of all whole aligned words.
    fn words(&self) -> Range<usize> {
        let start = self.ptr.as_ptr().align_offset(8).min(self.len);
        start..start + (self.len - start) / 8 * 8
    }

    /// The word that begins at `offset`, which is one of [`Bytes::words`].
    #[allow(clippy::cast_ptr_alignment)] // `words` has aligned ones only.
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(self.words().contains(&offset));
        // SAFETY: 8 aligned bytes of the region, which live as long as `self`; all accesses to them
        // are by words.
        unsafe { AtomicU64::from_ptr(self.ptr.as_ptr().wrapping_add(offset).cast()) }
    }

    /// The byte at `offset`, which is inside and in none of [`Bytes::words`].
    fn byte(&self, offset: usize) -> &AtomicU8 {
        debug_assert!(offset < self.len && !self.words().contains(&offset));
        // SAFETY: a byte of the region, which lives as long as `self`; all accesses to it are by
        // bytes.
        unsafe { AtomicU8::from_ptr(self.ptr.as_ptr().wrapping_add(offset)) }
    }

    /// Lengths of the parts of `len` bytes from `offset` on that lie before, in and behind the
    /// words.
    fn parts(&self, offset: usize, len: usize) -> [usize; 3] {
        let words = self.words();
        let before = words.start.saturating_sub(offset).min(len);
        let inside = words.end.saturating_sub(offset + before).min(len - before);
        [before, inside, len - before - inside]
    }

    /// Copies `data` to `offset`; all of it is inside.
    fn store(&self, offset: usize, data: &[u8]) {
        let [before, inside, _] = self.parts(offset, data.len());
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

    /// Replaces some bytes of the word at `at`, and keeps concurrent changes of the others.
    fn merge(&self, at: usize, within: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let merged = |word: u64| {
            let mut bytes = word.to_ne_bytes();
            bytes[within..within + data.len()].copy_from_slice(data);
            Some(u64::from_ne_bytes(bytes))
        };
        // It is never refused.
        let _ = self.word(at).fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
    }

    /// Fills `out` from `offset` on; all of it is inside.
    fn load(&self, offset: usize, out: &mut [u8]) {
        let [before, inside, _] = self.parts(offset, out.len());
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

    /// The byte at `offset`, which is inside.
    fn load_byte(&self, offset: usize, ordering: Ordering) -> u8 {
        if !self.words().contains(&offset) {
            return self.byte(offset).load(ordering);
        }
        let within = self.within_word(offset);
        self.word(offset - within).load(ordering).to_ne_bytes()[within]
    }

    /// Where in its word an offset among [`Bytes::words`] is.
    fn within_word(&self, offset: usize) -> usize {
        (offset - self.words().start) % 8
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of other bytes, as a region that is registered raw.
    fn part(of: &Bytes, offset: usize, len: usize) -> Bytes {
        assert!(offset + len <= of.len);
        Bytes { ptr: NonNull::new(of.ptr.as_ptr().wrapping_add(offset)).unwrap(), len, owned: None }
    }

    #[test]
    fn copies_are_exact_at_every_alignment_and_length() {
        let step = if cfg!(miri) { 7 } else { 1 };
        for (offset, len) in (0..9).flat_map(|offset| (0..40).step_by(step).map(move |len| (offset, len))) {
            for first in [0, 3, offset] {
                let all = Bytes::zeroed(64).unwrap();
                // A region whose ends are no words, and the place in it.
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

    /// Under Miri also: no accesses of two sizes overlap.
    #[test]
    fn threads_with_copies_bytes_and_words_lose_nothing() {
        let bytes = Bytes::zeroed(24).unwrap();
        std::thread::scope(|scope| {
            for place in [0, 3, 6, 9, 15, 21] {
                let bytes = &bytes;
                scope.spawn(move || {
                    for turn in 1..=50 {
                        bytes.store(place, &[turn; 3]);
                        assert_eq!(bytes.load_byte(place + 2, Ordering::Acquire), turn, "nobody else writes it");
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
