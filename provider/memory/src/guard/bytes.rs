//! Bytes in memory that another process may change at any moment.
//!
//! Bytes behind a `&[u8]` or `&mut [u8]` must not change, so no such reference to these bytes
//! exists. The only operation on them is a copy, by the instructions that also copy application
//! memory. Received bytes are
//! [`SharedBytes`]: code that checks them copies them first. The destination of a copy, in a ring
//! or in this process, is a slice of atomic bytes, *cells*.

use crate::prefetch::prefetch_at;
use roxe_transport::cx::TxRoom;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicU8;

/// The memory is not mapped, or not with the rights that the access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// The CRC of the first `blocks` times [`roxe_wire::icrc::BLOCK_LEN`] bytes of a copy, for
/// [`roxe_wire::icrc::Summed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Number of summed blocks.
    pub blocks: u8,
    /// Their CRC remainder.
    pub remainder: u32,
}

/// Returns the bytes of `room` as cells.
#[inline]
pub fn cells(room: TxRoom<'_>) -> &[AtomicU8] {
    match room {
        TxRoom::Own(bytes) => own_cells(bytes),
        TxRoom::Shared(cells) => cells,
    }
}

/// Returns bytes that only this process can access, as cells.
#[inline]
pub fn own_cells(bytes: &mut [u8]) -> &[AtomicU8] {
    // SAFETY: an atomic byte has the layout of a byte, and the result borrows `bytes` exclusively.
    unsafe { &*(ptr::from_mut(bytes) as *const [AtomicU8]) }
}

/// Bytes that another process may change at any moment. They stay mapped for the lifetime `'a`.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    pub(super) addr: u64,
    pub(super) len: usize,
    mapping: PhantomData<&'a ()>,
}

impl<'a> SharedBytes<'a> {
    /// Creates a reference to the `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// The bytes stay mapped for reading for the lifetime `'a`.
    #[inline]
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { addr: start.expose_provenance() as u64, len, mapping: PhantomData }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes in `range`; `None` if it reaches beyond the last one.
    #[inline]
    pub fn get(&self, range: Range<usize>) -> Option<Self> {
        let is_inside = range.start <= range.end && range.end <= self.len;
        is_inside.then(|| Self { addr: self.addr + range.start as u64, len: range.end - range.start, ..*self })
    }

    /// Prefetches the first `len` bytes.
    #[inline]
    pub fn prefetch(&self, len: usize) {
        prefetch_at(self.addr as usize, len.min(self.len));
    }

    /// Returns the address of the first byte.
    #[cfg(any(test, feature = "testing"))]
    pub fn addr(&self) -> u64 {
        self.addr
    }
}

/// Lets tests pass bytes that do not change.
#[cfg(any(test, feature = "testing"))]
impl<'a> From<&'a [u8]> for SharedBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: `bytes` is borrowed and so mapped for `'a`.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }
}

/// Lets tests pass bytes that change.
#[cfg(any(test, feature = "testing"))]
impl<'a> From<&'a [AtomicU8]> for SharedBytes<'a> {
    fn from(bytes: &'a [AtomicU8]) -> Self {
        // SAFETY: `bytes` is borrowed and so mapped for `'a`.
        unsafe { Self::new(bytes.as_ptr().cast(), bytes.len()) }
    }
}
