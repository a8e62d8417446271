//! Cursors that read and write big-endian numbers without panicking, and [`ParseError`].

use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering};

/// Cursor over the unread bytes. Its functions return [`ParseError::Truncated`] if too few are
/// left.
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

    /// Reads the three words of a BTH, with one check of the length.
    #[inline]
    pub(crate) fn bth_words(&mut self) -> Result<[u32; 3], ParseError> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *self.array()?;
        let word = u32::from_be_bytes;
        Ok([word([a, b, c, d]), word([e, f, g, h]), word([i, j, k, l])])
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, ParseError> {
        self.array().map(|bytes| u64::from_be_bytes(*bytes))
    }
}

/// Cursor over the unwritten bytes of a buffer. Its functions return `None` if too few are left.
pub(crate) trait Writer {
    fn array<const N: usize>(&mut self, bytes: [u8; N]) -> Option<()>;

    #[inline]
    fn u32(&mut self, value: u32) -> Option<()> {
        self.array(value.to_be_bytes())
    }

    /// Writes the three words of a BTH, with one check of the length.
    #[inline]
    fn bth_words(&mut self, [first, second, third]: [u32; 3]) -> Option<()> {
        let ([a, b, c, d], [e, f, g, h]) = (first.to_be_bytes(), second.to_be_bytes());
        let [i, j, k, l] = third.to_be_bytes();
        self.array([a, b, c, d, e, f, g, h, i, j, k, l])
    }

    #[inline]
    fn u64(&mut self, value: u64) -> Option<()> {
        self.array(value.to_be_bytes())
    }
}

impl Writer for &mut [u8] {
    #[inline]
    fn array<const N: usize>(&mut self, bytes: [u8; N]) -> Option<()> {
        let (head, rest) = core::mem::take(self).split_first_chunk_mut()?;
        *head = bytes;
        *self = rest;
        Some(())
    }
}

/// Stores each byte atomically, since another process shares the memory and may access it.
impl Writer for &[AtomicU8] {
    #[inline]
    fn array<const N: usize>(&mut self, bytes: [u8; N]) -> Option<()> {
        let (head, rest) = self.split_first_chunk::<N>()?;
        head.iter().zip(bytes).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
        *self = rest;
        Some(())
    }
}

/// Reason why bytes are not a valid RoCEv2 packet. The receiver counts and drops them without a
/// NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// The packet is not IPv4 or IPv6, or has options, extension headers or fragments that RoCEv2
    /// does not use.
    NotIp,
    /// The packet is not UDP, or not to port 4791.
    NotRoce,
    /// The packet is shorter than its headers or its length fields require.
    Truncated,
    /// The transport header version is not 0.
    Version,
    /// The opcode is reserved, or belongs to a transport that roxe does not implement.
    Opcode,
    /// The pad count does not fit the payload: payload and pad are not a multiple of 4 bytes, the
    /// pad is longer than what the packet carries, or the opcode needs a full payload without pad.
    Pad,
    /// The opcode cannot carry a payload of this length: it must have none, it must have one, or
    /// the payload is too long.
    PayloadLength,
}

impl ParseError {
    /// All errors, in the order of the variants.
    pub const ALL: [Self; 7] =
        [Self::NotIp, Self::NotRoce, Self::Truncated, Self::Version, Self::Opcode, Self::Pad, Self::PayloadLength];

    /// Returns a short name for counters and logs.
    pub const fn name(self) -> &'static str {
        self.name_and_meaning().0
    }

    const fn name_and_meaning(self) -> (&'static str, &'static str) {
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
        f.write_str(self.name_and_meaning().1)
    }
}

impl core::error::Error for ParseError {}
