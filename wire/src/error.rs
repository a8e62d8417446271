//! Why bytes are not a RoCEv2 packet. Pure data.

use core::fmt;

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
