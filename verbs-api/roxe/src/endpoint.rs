//! Endpoints and remote addresses, which two programs exchange before they communicate. Both are
//! printed as one line without spaces and can be parsed from it, so any channel can carry them: a
//! TCP connection, a file, two terminals.

use crate::{ArgumentError, Error};
use roxe_wire::{Gid, Psn, Qpn, RKey};
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// One end of a connection: its address, queue pair and first packet sequence number.
///
/// ```
/// # use roxe::Endpoint;
/// let text = "::ffff:127.0.0.1/0x11/0x3a9f00";
/// let endpoint: Endpoint = text.parse()?;
/// assert_eq!(endpoint.qpn.get(), 0x11);
/// assert_eq!(endpoint.to_string(), text);
/// # Ok::<(), roxe::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Address of the port.
    pub gid: Gid,
    /// Queue pair number.
    pub qpn: Qpn,
    /// First PSN of its requests.
    pub psn: Psn,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:#x}/{:#x}", self.gid, self.qpn.get(), self.psn.get())
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let mut parts = strip_padding(text).splitn(3, '/');
            let gid = Gid(parts.next()?.parse::<Ipv6Addr>().ok()?.octets());
            let qpn = number_24(parts.next()?)?;
            let psn = number_24(parts.next()?)?;
            Some(Self { gid, qpn: Qpn::new(qpn), psn: Psn::new(psn) })
        };
        Ok(parsed().ok_or_else(|| ArgumentError::Parse { text: text.into(), expected: "GID/QPN/PSN" })?)
    }
}

/// Memory of a peer: an address and its remote key. Zero bytes around its text are ignored, because
/// the private data of a connection is padded with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddr {
    /// Virtual address in the peer's process.
    pub addr: u64,
    /// Remote key of the region.
    pub rkey: RKey,
}

impl RemoteAddr {
    /// Returns the address plus `bytes`. The peer checks that it is inside the region.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self { addr: self.addr.wrapping_add(bytes), rkey: self.rkey }
    }
}

impl fmt::Display for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}@{:#x}", self.addr, self.rkey.0)
    }
}

impl FromStr for RemoteAddr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let (addr, rkey) = strip_padding(text).split_once('@')?;
            Some(Self { addr: number(addr)?, rkey: RKey(u32::try_from(number(rkey)?).ok()?) })
        };
        Ok(parsed().ok_or_else(|| ArgumentError::Parse { text: text.into(), expected: "ADDRESS@RKEY" })?)
    }
}

/// Strips white space, and the zero bytes that pad private data.
pub(crate) fn strip_padding(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || c == '\0')
}

/// Parses a number: hexadecimal with `0x`, else decimal.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

pub(crate) fn number_24(text: &str) -> Option<u32> {
    u32::try_from(number(text)?).ok().filter(|value| *value < 1 << 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_roundtrips_as_text() {
        let endpoint = Endpoint { gid: Gid([7; 16]), qpn: Qpn::new(0xff_ffff), psn: Psn::new(1) };
        assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
        assert!("::1/17/255\n".parse::<Endpoint>().is_ok(), "decimal numbers, and a newline");
    }

    #[test]
    fn malformed_endpoint_is_rejected() {
        for text in ["", "::1", "::1/1", "::1/0x1000000/0", "::1/1/-1", "localhost/1/1", "::1/1/1/1"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn remote_address_roundtrips_as_text() {
        let remote = RemoteAddr { addr: u64::MAX, rkey: RKey(u32::MAX) };
        assert_eq!(remote.to_string().parse::<RemoteAddr>().unwrap(), remote);
        for text in ["", "1", "1@", "@1", "1@0x100000000", "0x10000000000000000@1"] {
            assert!(text.parse::<RemoteAddr>().is_err(), "{text}");
        }
    }
}
