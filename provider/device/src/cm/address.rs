//! Addresses of ids: IP, or the `AF_IB` form that names a service outright.

use roxe_wire::Gid;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// An address of an id (`struct sockaddr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// IPv4 or IPv6.
    Ip(SocketAddr),
    /// `AF_IB`.
    Ib(IbAddress),
}

/// An address with a service id in it (`struct sockaddr_ib`); all fields in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IbAddress {
    /// P_Key; 0 and 0xffff are the only one that there is.
    pub pkey: u16,
    /// Flow label and traffic class, as in IPv6.
    pub flow_info: u32,
    /// The address; zero for all.
    pub gid: Gid,
    /// The service.
    pub sid: u64,
    /// Which bits of it count.
    pub sid_mask: u64,
    /// Of a link-local address.
    pub scope_id: u64,
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl From<IbAddress> for Address {
    fn from(addr: IbAddress) -> Self {
        Self::Ib(addr)
    }
}

impl Address {
    /// Whether it stands for all addresses.
    pub fn is_any(&self) -> bool {
        match self {
            Self::Ip(ip) => ip.ip().is_unspecified(),
            Self::Ib(ib) => ib.gid.is_zero(),
        }
    }

    /// The port: of an `AF_IB` address the low 16 bits of the service.
    pub fn port(&self) -> u16 {
        match self {
            Self::Ip(ip) => ip.port(),
            Self::Ib(ib) => (ib.sid & ib.sid_mask) as u16,
        }
    }

    /// This address with another port; an `AF_IB` address is for exactly that service then.
    pub fn with_port(self, port: u16) -> Self {
        match self {
            Self::Ip(mut ip) => {
                ip.set_port(port);
                Self::Ip(ip)
            }
            Self::Ib(ib) => Self::Ib(IbAddress { sid: ib.sid & !0xffff | u64::from(port), sid_mask: !0, ..ib }),
        }
    }

    /// All addresses of its family, at no port.
    pub(super) fn any(&self) -> Self {
        match self {
            Self::Ip(SocketAddr::V4(_)) => Self::Ip((Ipv4Addr::UNSPECIFIED, 0).into()),
            Self::Ip(SocketAddr::V6(_)) => Self::Ip((Ipv6Addr::UNSPECIFIED, 0).into()),
            Self::Ib(_) => Self::Ib(IbAddress::default()),
        }
    }

    /// Whether it is of the same family.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ip(a), Self::Ip(b)) => a.is_ipv4() == b.is_ipv4(),
            (Self::Ib(_), Self::Ib(_)) => true,
            _ => false,
        }
    }

    /// This port or service at `ip`, which is an address on the network interface `ifindex`.
    pub(super) fn at(self, ip: IpAddr, ifindex: u32) -> Self {
        match (self, ip) {
            (Self::Ip(old), IpAddr::V6(v6)) => {
                let scope = if v6.is_unicast_link_local() { ifindex } else { 0 };
                let flow = if let SocketAddr::V6(old) = old { old.flowinfo() } else { 0 };
                Self::Ip(SocketAddrV6::new(v6, old.port(), flow, scope).into())
            }
            (Self::Ip(old), ip) => Self::Ip(SocketAddr::new(ip, old.port())),
            (Self::Ib(ib), ip) => Self::Ib(IbAddress { gid: ip.into(), ..ib }),
        }
    }

    /// The GID that packets have for it.
    pub fn gid(&self) -> Gid {
        match self {
            Self::Ip(ip) => ip.ip().into(),
            Self::Ib(ib) => ib.gid,
        }
    }
}
