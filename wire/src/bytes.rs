//! Cursors over byte slices: big-endian numbers in, big-endian numbers out, no index that can fail.
//!
//! Touches nothing but `core`.

use crate::error::ParseError;
use core::sync::atomic::{AtomicU8, Ordering};

/// What is left to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], ParseError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(ParseError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, ParseError> {
        self.array().map(|bytes| u16::from_be_bytes(*bytes))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, ParseError> {
        self.array().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// The three words of a BTH, with one check of the length.
    #[inline]
    pub(crate) fn words(&mut self) -> Result<[u32; 3], ParseError> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *self.array()?;
        Ok([[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_be_bytes))
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, ParseError> {
        self.array().map(|bytes| u64::from_be_bytes(*bytes))
    }
}

/// Room that is written to from its start on. `None` means out of room.
pub(crate) trait Sink {
    /// Writes `bytes` and goes on behind them.
    fn array<const N: usize>(&mut self, bytes: [u8; N]) -> Option<()>;

    #[inline]
    fn u32(&mut self, value: u32) -> Option<()> {
        self.array(value.to_be_bytes())
    }

    /// The three words of a BTH, with one check of the length.
    #[inline]
    fn words(&mut self, values: [u32; 3]) -> Option<()> {
        let [[a, b, c, d], [e, f, g, h], [i, j, k, l]] = values.map(u32::to_be_bytes);
        self.array([a, b, c, d, e, f, g, h, i, j, k, l])
    }

    #[inline]
    fn u64(&mut self, value: u64) -> Option<()> {
        self.array(value.to_be_bytes())
    }
}

impl Sink for &mut [u8] {
    #[inline]
    fn array<const N: usize>(&mut self, bytes: [u8; N]) -> Option<()> {
        let (head, rest) = core::mem::take(self).split_first_chunk_mut()?;
        *head = bytes;
        *self = rest;
        Some(())
    }
}

/// Bytes that somebody else may change meanwhile.
impl Sink for &[AtomicU8] {
    #[inline]
    fn array<const N: usize>(&mut self, bytes: [u8; N]) -> Option<()> {
        let (head, rest) = self.split_first_chunk::<N>()?;
        head.iter().zip(bytes).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
        *self = rest;
        Some(())
    }
}
