//! Ownership of connection manager services by programs, without a daemon.
//!
//! As with slots ([`crate::slot`]), an owner holds a named Unix datagram socket ([`crate::named`]).
//! A *claim* records that a program has bound a service at an address; a *mailbox* receives
//! requests for a service that reached other processes of the interface.

use crate::named::{NamedSocket, Probe};
use crate::slot::{self, Slot, SlotSocket};
use roxe_wire::Gid;
use roxe_wire::cm::ServiceId;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};

/// Addresses at which a service is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All addresses.
    All,
    /// All IPv4 addresses.
    V4,
    /// All IPv6 addresses.
    V6,
    /// One address.
    At(Gid),
}

impl Scope {
    /// Returns the scope of all addresses of the family of `gid`.
    pub fn family_of(gid: Gid) -> Self {
        if gid.to_ip().is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Returns the scopes that include `gid`, narrowest first.
    pub fn candidates(gid: Gid) -> [Self; 3] {
        [Self::At(gid), Self::family_of(gid), Self::All]
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("any"),
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED).fmt(f),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED).fmt(f),
            Self::At(gid) => gid.to_ip().fmt(f),
        }
    }
}

/// An address in a file name. IPv6 always has 32 digits, which is shorter than its longest text.
pub(super) struct AddressPart(pub(super) Gid);

impl fmt::Display for AddressPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.to_ip() {
            IpAddr::V4(ip) => ip.fmt(f),
            IpAddr::V6(ip) => write!(f, "{:032x}", ip.to_bits()),
        }
    }
}

/// A service at some addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Service ID, which contains the port number.
    pub service: ServiceId,
    /// Addresses at which the service listens.
    pub scope: Scope,
}

/// The form in file names.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-", self.service.0)?;
        match self.scope {
            Scope::All => f.write_str("any"),
            Scope::V4 => f.write_str("ipv4"),
            Scope::V6 => f.write_str("ipv6"),
            Scope::At(gid) => AddressPart(gid).fmt(f),
        }
    }
}

/// The name of a claim.
#[derive(Clone, Copy, Debug)]
pub struct ClaimName {
    /// The service and its addresses.
    pub place: Place,
    /// `None` if claimed exclusively; programs that share it have a number each.
    pub share: Option<u8>,
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bind-{}", self.place)?;
        self.share.map_or(Ok(()), |number| write!(f, "+{number}"))
    }
}

impl ClaimName {
    /// Claims the name while the socket lives; `EADDRINUSE` if another process holds it.
    pub fn hold(&self) -> io::Result<NamedSocket> {
        NamedSocket::bind(self)
    }

    /// Returns true if a process holds the name.
    pub fn is_held(&self, probe: &Probe) -> bool {
        probe.finds(self)
    }
}

fn mailbox_name(ifindex: u32, place: Place) -> String {
    format!("svc-{ifindex:x}-{place}")
}

/// The mailbox of a service that this process offers on one interface.
#[derive(Debug)]
pub struct ServiceSocket {
    place: Place,
    socket: NamedSocket,
}

impl ServiceSocket {
    /// Opens the mailbox; `EADDRINUSE` if another process has it.
    pub fn open(ifindex: u32, place: Place) -> io::Result<Self> {
        Ok(Self { place, socket: slot::mailbox(&mailbox_name(ifindex, place))? })
    }

    /// Returns the service and its addresses.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Returns the descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mailbox {
    /// The owner of a slot.
    Slot(Slot),
    /// The process that offers a service.
    Service(Place),
}

impl SlotSocket {
    /// Sends a frame to any mailbox of this interface, as [`SlotSocket::send`] does.
    pub fn send_to_mailbox(&self, to: &Mailbox, header: &[u8], body: &[u8]) -> io::Result<()> {
        match *to {
            Mailbox::Slot(slot) => self.send(slot, header, body),
            Mailbox::Service(place) => self.send_to(&mailbox_name(self.ifindex(), place), header, body),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmsg::Control;

    const NOWHERE: u32 = 0x7000_0030;

    fn place(service: u64, scope: Scope) -> Place {
        Place { service: ServiceId(service), scope }
    }

    #[test]
    fn claim_is_held_until_socket_closes() {
        let probe = Probe::new().unwrap();
        let name = ClaimName { place: place(0x7fff_0000_0001, Scope::V4), share: None };
        assert!(!name.is_held(&probe));
        let held = name.hold().unwrap();
        assert!(name.is_held(&probe));
        assert_eq!(name.hold().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(!ClaimName { share: Some(0), ..name }.is_held(&probe));
        drop(held);
        assert!(!name.is_held(&probe));
    }

    #[test]
    fn longest_names_fit() {
        let gid = Gid(*b"\xfe\x80roxeroxeroxe\xff\xff");
        let place = place(u64::MAX, Scope::At(gid));
        assert!(ClaimName { place, share: Some(u8::MAX) }.hold().is_ok());
        assert!(ServiceSocket::open(u32::MAX, place).is_ok());
    }

    #[test]
    fn mailbox_receives_frames_for_its_service_and_interface() {
        let sender = SlotSocket::claim(NOWHERE).unwrap();
        let here = place(0x7fff_0000_0002, Scope::All);
        let socket = ServiceSocket::open(NOWHERE, here).unwrap();
        ServiceSocket::open(NOWHERE + 1, here).unwrap();
        sender.send_to_mailbox(&Mailbox::Service(here), b"head", b"body").unwrap();
        let mut buf = [0; 64];
        let received = slot::recv_frame(socket.fd(), &mut buf, &mut Control::new()).unwrap();
        assert_eq!((received.map(|(len, _)| len), &buf[..8]), (Some(8), &b"headbody"[..]));
        let other = place(0x7fff_0000_0002, Scope::V6);
        let refused = sender.send_to_mailbox(&Mailbox::Service(other), b"", b"x").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn narrow_scopes_come_first() {
        let v4 = Gid::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(Scope::candidates(v4), [Scope::At(v4), Scope::V4, Scope::All]);
        let v6 = Gid::from(IpAddr::V6(Ipv6Addr::LOCALHOST));
        assert_eq!(Scope::candidates(v6), [Scope::At(v6), Scope::V6, Scope::All]);
    }
}
