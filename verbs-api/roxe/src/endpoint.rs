//! What two programs tell each other before they can talk: endpoints and remote addresses, as
//! values and as text.
//!
//! Both print to one line without spaces and parse back from it, so that they travel over whatever
//! channel the programs have: a TCP connection, a file, two terminals. Touches no device.

use crate::{ArgumentError, Error};
use roxe_wire::{Gid, Psn, Qpn, RKey};
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// One end of a connection: the address, the queue pair there, and the first packet sequence number
/// it sends.
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
            let mut parts = line(text).splitn(3, '/');
            let gid = Gid(parts.next()?.parse::<Ipv6Addr>().ok()?.octets());
            let qpn = number_24(parts.next()?)?;
            let psn = number_24(parts.next()?)?;
            Some(Self { gid, qpn: Qpn::new(qpn), psn: Psn::new(psn) })
        };
        Ok(parsed().ok_or_else(|| ArgumentError::Parse { text: text.into(), expected: "GID/QPN/PSN" })?)
    }
}

/// Memory of a peer: an address and the key that opens it. It travels as text, in a line or as the
/// private data of a connection, whose zeros at the end are passed over.
///
/// ```
/// # use roxe::RemoteAddr;
/// let remote: RemoteAddr = "0x7f0000001000@0xa1b2c3d4".parse()?;
/// assert_eq!(remote.offset(16).addr, 0x7f00_0000_1010);
/// # Ok::<(), roxe::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddr {
    /// Virtual address in the peer's process.
    pub addr: u64,
    /// Remote key of the region.
    pub rkey: RKey,
}

impl RemoteAddr {
    /// The address `bytes` further on. Whether it is still inside the region is for the peer to
    /// judge.
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
            let (addr, rkey) = line(text).split_once('@')?;
            Some(Self { addr: number(addr)?, rkey: RKey(u32::try_from(number(rkey)?).ok()?) })
        };
        Ok(parsed().ok_or_else(|| ArgumentError::Parse { text: text.into(), expected: "ADDRESS@RKEY" })?)
    }
}

/// What was written of a text that came as a line, or as private data, which the connection manager
/// fills up with zeros.
pub(crate) fn line(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || c == '\0')
}

/// A number, hexadecimal with `0x` or decimal.
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
    fn endpoints_travel_as_text() {
        let endpoint = Endpoint { gid: Gid([7; 16]), qpn: Qpn::new(0xff_ffff), psn: Psn::new(1) };
        assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
        assert!("::1/17/255\n".parse::<Endpoint>().is_ok(), "decimal, and the end of a line");
    }

    #[test]
    fn bad_endpoints_are_refused() {
        for text in ["", "::1", "::1/1", "::1/0x1000000/0", "::1/1/-1", "localhost/1/1", "::1/1/1/1"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn remote_addresses_travel_as_text() {
        let remote = RemoteAddr { addr: u64::MAX, rkey: RKey(u32::MAX) };
        assert_eq!(remote.to_string().parse::<RemoteAddr>().unwrap(), remote);
        for text in ["", "1", "1@", "@1", "1@0x100000000", "0x10000000000000000@1"] {
            assert!(text.parse::<RemoteAddr>().is_err(), "{text}");
        }
    }
}
