//! Cursors over byte slices: big-endian numbers in, big-endian numbers out, no index that can fail;
//! and why bytes are not a RoCEv2 packet.

use core::fmt;
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

/// Why bytes are not a RoCEv2 packet. All of these are dropped in silence and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// Not IPv4 or IPv6, or with options, extension headers or fragments that RoCEv2 does not use.
    NotIp,
    /// Not UDP, or not to port 4791.
    NotRoce,
    /// Shorter than the headers or the length fields say.
    Truncated,
    /// The transport header version is not 0.
    Version,
    /// An opcode that is reserved or of a transport this implementation does not know.
    Opcode,
    /// The pad count does not go with the payload: not a multiple of 4 bytes, more pad than
    /// payload, or a pad where there must be none.
    Pad,
    /// A payload the opcode cannot carry: one where there must be none, none where there must be
    /// one, or too long.
    PayloadLength,
}

impl ParseError {
    /// Every reason, for counters.
    pub const ALL: [Self; 7] =
        [Self::NotIp, Self::NotRoce, Self::Truncated, Self::Version, Self::Opcode, Self::Pad, Self::PayloadLength];

    /// A short name for counters and logs.
    pub const fn name(self) -> &'static str {
        self.texts().0
    }

    /// Its name, and what it means for people.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::NotIp => ("not_ip", "not a plain IPv4 or IPv6 packet"),
            Self::NotRoce => ("not_roce", "not a UDP datagram to port 4791"),
            Self::Truncated => ("truncated", "shorter than its headers"),
            Self::Version => ("bth_version", "transport header version is not 0"),
            Self::Opcode => ("bad_opcode", "unknown opcode"),
            Self::Pad => ("bad_pad", "pad count does not fit the payload"),
            Self::PayloadLength => ("bad_payload_length", "payload length does not fit the opcode"),
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().1)
    }
}

impl core::error::Error for ParseError {}
