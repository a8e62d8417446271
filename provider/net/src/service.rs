//! Which program has which service of the connection manager, without a daemon.
//!
//! As with slots ([`crate::slot`]), whoever has something holds a Unix datagram socket with its
//! name ([`crate::named`]); nobody else has it then, and the death of the process ends it. There
//! are two kinds of names: that of a *claim* says that a program has bound a service at an address;
//! that of a *mailbox* takes the requests for a service which reach other processes of the same
//! interface.

use crate::named::{NamedSocket, Probe};
use crate::slot::{self, Slot, SlotSocket};
use roxe_wire::Gid;
use roxe_wire::cm::ServiceId;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};

/// At which addresses a service is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// At all addresses.
    All,
    /// At all addresses of IPv4.
    V4,
    /// At all addresses of IPv6.
    V6,
    /// At this address.
    At(Gid),
}

impl Scope {
    /// All addresses of the family of `gid`.
    pub fn family_of(gid: Gid) -> Self {
        if gid.to_ip().is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The scopes that include `gid`, narrowest first.
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

/// An address as a part of a file's name: those of IPv6 have always 32 digits, which is shorter
/// than the longest text.
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
    /// The service that is listened for.
    pub service: ServiceId,
    /// The addresses at which the service is offered.
    pub scope: Scope,
}

/// A service as a part of a file's name.
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
    /// `None`: for one alone. Programs that share it have a number each.
    pub share: Option<u8>,
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bind-{}", self.place)?;
        self.share.map_or(Ok(()), |number| write!(f, "+{number}"))
    }
}

impl ClaimName {
    /// Claims the name, for as long as the socket lives. `EADDRINUSE`: somebody has it.
    pub fn hold(&self) -> io::Result<NamedSocket> {
        NamedSocket::bind(self)
    }

    /// Whether some process holds the name.
    pub fn is_held(&self, probe: &Probe) -> bool {
        probe.finds(self)
    }
}

/// The name of the mailbox of a service.
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
    /// Opens it. `EADDRINUSE`: another process has it.
    pub fn open(ifindex: u32, place: Place) -> io::Result<Self> {
        Ok(Self { place, socket: slot::mailbox(&mailbox_name(ifindex, place))? })
    }

    /// The service of this mailbox and its addresses.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mailbox {
    /// To the owner of a slot.
    Slot(Slot),
    /// To the process that offers a service.
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
    fn a_claim_is_held_until_its_socket_is_closed() {
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
    fn the_longest_names_have_room() {
        let gid = Gid(*b"\xfe\x80roxeroxeroxe\xff\xff");
        let place = place(u64::MAX, Scope::At(gid));
        assert!(ClaimName { place, share: Some(u8::MAX) }.hold().is_ok());
        assert!(ServiceSocket::open(u32::MAX, place).is_ok());
    }

    #[test]
    fn a_mailbox_gets_the_frames_for_its_service_on_its_interface() {
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
    fn the_scope_of_one_address_comes_before_wider_ones() {
        let v4 = Gid::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(Scope::candidates(v4), [Scope::At(v4), Scope::V4, Scope::All]);
        let v6 = Gid::from(IpAddr::V6(Ipv6Addr::LOCALHOST));
        assert_eq!(Scope::candidates(v6), [Scope::At(v6), Scope::V6, Scope::All]);
    }
}
