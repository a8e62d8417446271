//! Addresses as programs name them (IP, or the `AF_IB` form, which contains a service ID), the
//! device that has an address, the system's route, and the path of a connection.

use crate::ah::AhAttr;
use crate::device::Device;
use crate::devices::devices;
use crate::fork;
use crate::runtime::{Runtime, known_devices};
use roxe_base::error::Error;
use roxe_base::limits::PORTS;
use roxe_net::link::HOP_LIMIT;
use roxe_net::port_owners::other_owner_of_port;
use roxe_observe::notice;
use roxe_observe::port::Netdev;
use roxe_transport::cm::{QpTerms, Route};
use roxe_transport::wr::Av;
use roxe_wire::{Gid, PathMtu, Pkey, ROCE_PORT};
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::{Arc, Once};

/// An address of an id (`struct sockaddr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// IPv4 or IPv6.
    Ip(SocketAddr),
    /// `AF_IB`.
    Ib(IbAddress),
}

/// An address with a service ID (`struct sockaddr_ib`); all fields are in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IbAddress {
    /// P_Key; 0 and 0xffff mean the default one.
    pub pkey: u16,
    /// Flow label and traffic class, as in IPv6.
    pub flow_info: u32,
    /// GID; zero for all addresses.
    pub gid: Gid,
    /// Service ID.
    pub sid: u64,
    /// Significant bits of the service ID.
    pub sid_mask: u64,
    /// Scope of a link-local address.
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
    /// Returns true for the wildcard address.
    pub fn is_any(&self) -> bool {
        match self {
            Self::Ip(ip) => ip.ip().is_unspecified(),
            Self::Ib(ib) => ib.gid.is_zero(),
        }
    }

    /// Returns the port; of an `AF_IB` address the low 16 bits of the service ID.
    pub fn port(&self) -> u16 {
        match self {
            Self::Ip(ip) => ip.port(),
            Self::Ib(ib) => (ib.sid & ib.sid_mask) as u16,
        }
    }

    /// Returns the address with another port; an `AF_IB` address then means exactly that service.
    pub fn with_port(self, port: u16) -> Self {
        match self {
            Self::Ip(mut ip) => {
                ip.set_port(port);
                Self::Ip(ip)
            }
            Self::Ib(ib) => Self::Ib(IbAddress { sid: ib.sid & !0xffff | u64::from(port), sid_mask: !0, ..ib }),
        }
    }

    /// Returns the wildcard address of the family, without a port.
    pub(super) fn any(&self) -> Self {
        match self {
            Self::Ip(SocketAddr::V4(_)) => Self::Ip((Ipv4Addr::UNSPECIFIED, 0).into()),
            Self::Ip(SocketAddr::V6(_)) => Self::Ip((Ipv6Addr::UNSPECIFIED, 0).into()),
            Self::Ib(_) => Self::Ib(IbAddress::default()),
        }
    }

    pub(super) fn is_same_family(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ip(a), Self::Ip(b)) => a.is_ipv4() == b.is_ipv4(),
            (Self::Ib(_), Self::Ib(_)) => true,
            _ => false,
        }
    }

    /// Returns the same port or service at `ip`, an address on interface `ifindex`.
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

    /// Returns the GID of the address.
    pub fn gid(&self) -> Gid {
        match self {
            Self::Ip(ip) => ip.ip().into(),
            Self::Ib(ib) => ib.gid,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct DeviceAddr {
    pub(super) device: Arc<Device>,
    pub(super) runtime: Runtime,
    pub(super) gid: Gid,
    pub(super) gid_index: u8,
    /// MAC address of the interface at the time of the lookup.
    pub(super) mac: [u8; 6],
}

impl DeviceAddr {
    /// Finds the device with the address `gid`. Fails with EADDRNOTAVAIL if it is not an address of
    /// this host; ENODEV if no device has it.
    pub(super) fn of(gid: Gid) -> Result<Self, Error> {
        if let Some(device_addr) = Self::find(&known_devices(), |own| own == gid)? {
            return Ok(device_addr);
        }
        // The address may be newer than the GID tables of the known devices.
        let all = devices()?;
        for device in &all {
            fork::runtime_of(device)?.engine().watch();
        }
        Self::find(&all, |own| own == gid)?.ok_or_else(|| no_device(gid))
    }

    /// Finds a device with an address of this IP version, for the wildcard destination: it means
    /// this host.
    fn first(is_ipv4: bool) -> Result<Self, Error> {
        let found = Self::find(&devices()?, |gid| gid.is_ipv4() == is_ipv4)?;
        found.ok_or_else(|| Error::new(libc::ENODEV, "no device has an address of this family"))
    }

    fn find(devices: &[Arc<Device>], matches: impl Fn(Gid) -> bool) -> Result<Option<Self>, Error> {
        for device in devices {
            if let Some((gid_index, gid)) = device.adapter().gids().used().find(|(_, gid)| matches(*gid)) {
                let (runtime, mac) = (watched(device)?, device.adapter().interface().mac);
                return Ok(Some(Self { device: Arc::clone(device), runtime, gid, gid_index, mac }));
            }
        }
        Ok(None)
    }
}

/// Notifies the user, once, that connections to `gid` reach another user's card.
fn notify_of_owner(gid: Gid, own: Gid) {
    static NOTIFIED: Once = Once::new();
    if let Some(owner) = other_owner_of_port(gid) {
        let (ip, own) = (gid.to_ip(), own.to_ip());
        NOTIFIED.call_once(|| notice::print(&format_args!("{ip} is the address of the card of {owner}, and only that user's programs listen there; this user's card has {own}")));
    }
}

/// Returns the error for an address that no device has.
fn no_device(gid: Gid) -> Error {
    let ip = gid.to_ip();
    if let (Some(owner), Ok(own)) = (other_owner_of_port(gid), HostRoute::loopback(gid.is_ipv4())) {
        let own = own.gid.to_ip();
        return Error::new(
            libc::EADDRINUSE,
            format!("{ip} is the address of the card of {owner}; this user's card has {own}"),
        );
    }
    match UdpSocket::bind((ip, 0)) {
        Err(e) if e.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {
            Error::new(libc::EADDRNOTAVAIL, format!("{ip} is not an address of this host"))
        }
        _ => {
            let netdev = Netdev::all().into_iter().find(|netdev| netdev.addresses.contains(&gid));
            let name = netdev.map_or_else(|| " to its interface".to_owned(), |netdev| format!("={}", netdev.name));
            Error::new(libc::ENODEV, format!("no RDMA device has the address {ip}; set ROXE_NETDEV{name}"))
        }
    }
}

pub(super) fn all_engines() -> Result<Vec<Runtime>, Error> {
    devices()?.iter().map(watched).collect()
}

/// Returns the engine of `device`, which follows the interface's state from now on.
fn watched(device: &Arc<Device>) -> Result<Runtime, Error> {
    let runtime = fork::runtime_of(device)?;
    runtime.engine().keep_watching();
    Ok(runtime)
}

#[derive(Clone, Debug)]
pub(super) struct HostRoute {
    /// Outgoing device, with its address.
    pub(super) device_addr: DeviceAddr,
    /// Destination; the address of `device_addr` if the requested one is the wildcard.
    pub(super) destination: IpAddr,
    pub(super) hop_limit: u8,
}

impl HostRoute {
    /// Finds the route from `source` (`None`: by the system's routing table) to `to`. Fails with
    /// ENETUNREACH and others as connect(2); EADDRNOTAVAIL, ENODEV as [`DeviceAddr::of`].
    pub(super) fn find(source: Option<IpAddr>, to: &Address) -> Result<Self, Error> {
        let to = match to {
            Address::Ip(ip) => *ip,
            Address::Ib(ib) => SocketAddr::new(ib.gid.to_ip(), 0),
        };
        if to.ip().is_unspecified() {
            return Self::to_self(source, to.is_ipv4());
        }
        let any_source = source.is_none();
        let (source, hop_limit) = match source {
            // Groups are reached through the interface of the source, whatever the routing table
            // says.
            Some(source) if to.ip().is_multicast() => (source, HOP_LIMIT),
            _ => system_route(source, to).map_err(|e| Error::os(format!("no route to {}", to.ip()), &e))?,
        };
        let device_addr = match DeviceAddr::of(source.into()) {
            // The default loopback address may be that of another user's card.
            Err(_) if any_source && source.is_loopback() => {
                let own = Self::loopback(source.is_ipv4())?;
                notify_of_owner(to.ip().into(), own.gid);
                own
            }
            found => found?,
        };
        Ok(Self { device_addr, destination: to.ip(), hop_limit })
    }

    /// Returns the loopback address of this user's card.
    fn loopback(is_ipv4: bool) -> Result<DeviceAddr, Error> {
        let is_loopback = |gid: Gid| gid.is_ipv4() == is_ipv4 && gid.to_ip().is_loopback();
        let found = DeviceAddr::find(&devices()?, is_loopback)?;
        found.ok_or_else(|| Error::new(libc::ENODEV, "no device has an address of the loopback interface"))
    }

    pub(super) fn ends(&self) -> Route {
        Route { local: self.device_addr.gid, remote: self.destination.into() }
    }

    fn to_self(source: Option<IpAddr>, is_ipv4: bool) -> Result<Self, Error> {
        let device_addr = source.map_or_else(|| DeviceAddr::first(is_ipv4), |source| DeviceAddr::of(source.into()))?;
        let destination = device_addr.gid.to_ip();
        Ok(Self { device_addr, destination, hop_limit: HOP_LIMIT })
    }
}

/// Returns the source address and hop limit of packets to `to`. Connects a UDP socket, which sends
/// nothing and needs no privilege.
fn system_route(source: Option<IpAddr>, to: SocketAddr) -> io::Result<(IpAddr, u8)> {
    let mut to = to;
    to.set_port(ROCE_PORT);
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
    if let Some(source) = source {
        let mut from = SocketAddr::new(source, 0);
        if let (SocketAddr::V6(from), SocketAddr::V6(to)) = (&mut from, to) {
            from.set_scope_id(to.scope_id());
        }
        socket.bind(&from.into())?;
    }
    socket.connect(&to.into())?;
    let hops = if to.is_ipv4() { socket.ttl_v4() } else { socket.unicast_hops_v6() };
    let hop_limit = hops.ok().and_then(|hops| u8::try_from(hops).ok()).unwrap_or(HOP_LIMIT);
    let local = socket.local_addr()?.as_socket();
    Ok((local.ok_or(io::ErrorKind::AddrNotAvailable)?.ip(), hop_limit))
}

/// Returns the number of connections and lookups of `device` in this process, including those in
/// timewait.
pub fn connections(device: &Arc<Device>) -> usize {
    fork::runtime_of(device).map_or(0, |runtime| runtime.connections())
}

/// Default packet lifetime code: that of Linux on RoCE.
pub(super) const PACKET_LIFE_TIME: u8 = 16;

/// A path (`struct ibv_sa_path_rec`), in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Local GID.
    pub sgid: Gid,
    /// Peer GID.
    pub dgid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// P_Key.
    pub pkey: u16,
    /// Payload of a full packet.
    pub mtu: PathMtu,
    /// `enum ibv_rate`; 0 is unknown.
    pub rate: u8,
    /// Packet lifetime code N: 4.096 µs · 2^N.
    pub packet_life_time: u8,
}

impl Path {
    pub(super) fn of_terms(terms: &QpTerms) -> Self {
        Self {
            flow_label: terms.flow_label.get(),
            hop_limit: terms.hop_limit,
            traffic_class: terms.traffic_class,
            // The timeout covers a packet and its acknowledgement.
            packet_life_time: terms.timeout.get().saturating_sub(1),
            ..Self::between(terms.route, terms.path_mtu)
        }
    }

    pub(super) fn between(route: Route, mtu: PathMtu) -> Self {
        Self {
            sgid: route.local,
            dgid: route.remote,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            sl: 0,
            pkey: Pkey::DEFAULT.0,
            mtu,
            rate: 0,
            packet_life_time: PACKET_LIFE_TIME,
        }
    }

    pub(super) fn route(&self) -> Route {
        Route { local: self.sgid, remote: self.dgid }
    }

    pub(super) fn av(&self, sgid_index: u8) -> Av {
        let Self { sgid, dgid, traffic_class, hop_limit, flow_label, .. } = *self;
        Av { sgid, dgid, traffic_class, hop_limit, flow_label, sgid_index, static_rate: 0 }
    }

    /// Returns the address handle attributes for the end of the path, from the address with this
    /// index.
    pub(super) fn ah_attr(&self, sgid_index: u8) -> AhAttr {
        AhAttr {
            dgid: self.dgid,
            sgid_index,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            port: PORTS,
            has_grh: true,
            sl: self.sl,
            static_rate: 0,
        }
    }
}
