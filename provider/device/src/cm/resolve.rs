//! Binding an id, and resolving its device, addresses and path.

use super::event::{EventData, EventKind};
use super::id::{Id, Inner, Port, Resolution, State};
use super::route::{Address, DeviceAddr, HostRoute, IbAddress, PACKET_LIFE_TIME, Path};
use crate::fork;
use crate::ib_cm::ports::{Claim, Ephemeral, Sharing};
use crate::runtime::Runtime;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_check::faults;
use roxe_engine::queue_pair::DeadlineOwner;
use roxe_engine::reachability::no_answer;
use roxe_net::netlink::NextHop;
use roxe_net::runtime_dir;
use roxe_transport::cm::Route;
use roxe_transport::fault::EventFault;
use roxe_transport::time::Instant;
use roxe_wire::cm::{PortSpace, ServiceId};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// First pause between checks of a neighbour; each further one is twice as long, up to
/// [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause between checks of a neighbour.
const LONGEST_PAUSE: Duration = Duration::from_millis(32);
/// Bits of a service ID that name the port space.
const SPACE_MASK: u64 = !0xffff;

impl Id {
    /// Binds the id to an address of a device, or to all with the wildcard address; port 0 chooses
    /// one. A loopback address that no device has means all addresses, because `localhost` means
    /// this host. Ports below 1024 need no privilege.
    ///
    /// # Errors
    /// EINVAL if the id is bound; EADDRNOTAVAIL if the address is not one of this host, or in use;
    /// EADDRINUSE if it is in use; ENODEV if no device has it; EPROTONOSUPPORT if the service of an
    /// `AF_IB` address is not in the id's port space.
    pub fn bind(&self, addr: &Address) -> Result<(), Error> {
        let mut inner = self.lock();
        inner.check(&[State::Idle])?;
        self.bind_in(&mut inner, addr)
    }

    pub(super) fn bind_in(&self, inner: &mut Inner, addr: &Address) -> Result<(), Error> {
        let addr = or_wildcard(self.within_port_space(addr)?);
        let device_addr = if addr.is_any() { None } else { Some(DeviceAddr::of(addr.gid())?) };
        let claim = self.claim(inner, &addr)?;
        inner.local = Some(addr.with_port(claim.port()));
        (inner.device_addr, inner.port, inner.state) =
            (device_addr, Some(Port::Claimed(Arc::new(claim))), State::Bound);
        Ok(())
    }

    /// Completes the service ID of an `AF_IB` address with its port space, as the kernel does.
    // clause: CM-IB-SERVICE
    fn within_port_space(&self, addr: &Address) -> Result<Address, Error> {
        let Address::Ib(ib) = addr else { return Ok(*addr) };
        let (own, mask) = (self.port_space(), ib.sid_mask & SPACE_MASK);
        let spaces = [own, PortSpace::Ib, PortSpace::Tcp, PortSpace::Udp];
        let allowed = |space: &PortSpace| *space == own || own == PortSpace::Ib;
        let named = |space: &PortSpace| ib.sid & mask == ServiceId::new(*space, 0).0 & mask;
        let space = spaces.into_iter().filter(allowed).find(named);
        let space = space.ok_or_else(|| {
            Error::new(libc::EPROTONOSUPPORT, format!("service {:#x} is not in the id's port space", ib.sid))
        })?;
        let sid = ServiceId::new(space, addr.port()).0;
        Ok(Address::Ib(IbAddress { sid, sid_mask: ib.sid_mask | SPACE_MASK, ..*ib }))
    }

    fn claim(&self, inner: &Inner, addr: &Address) -> Result<Claim, Error> {
        // A bound wildcard port is the first object of a process without a device.
        fork::install();
        let sharing = Sharing { reuse: inner.options.reuse, af_only: inner.is_of_one_family(addr) };
        match addr {
            Address::Ip(ip) => Claim::take(self.port_space(), ip.ip(), ip.port(), sharing),
            Address::Ib(ib) if addr.port() == 0 => {
                let space = ServiceId(ib.sid).port().map_or_else(|| self.port_space(), |(space, _)| space);
                Claim::take(space, ib.gid.to_ip(), 0, sharing)
            }
            Address::Ib(ib) => Claim::take_service(ServiceId(ib.sid), ib.gid, inner.options.reuse),
        }
    }

    /// Resolves the route to `dst`: source address (unless bound, or given by `src`), device, and
    /// first neighbour. A loopback address that no device has means this host. The result is
    /// [`EventKind::AddrResolved`], or [`EventKind::AddrError`], after which the program may try
    /// again: ENETUNREACH without a route, ETIMEDOUT if the neighbour has not answered within
    /// `timeout_ms`.
    ///
    /// # Errors
    /// EINVAL in another state, or if the addresses are of two families; errors of [`Id::bind`] for
    /// `src`.
    // clause: AV-NEXT-HOP
    pub fn resolve_addr(&self, src: Option<&Address>, dst: &Address, timeout_ms: u32) -> Result<(), Error> {
        let dst = &or_wildcard(*dst);
        let mut inner = self.lock();
        inner.check(&[State::Idle, State::Bound])?;
        let from = inner.local.or_else(|| src.copied()).unwrap_or_else(|| dst.any());
        if !from.is_same_family(dst) {
            return Err(Error::invalid("the source and the destination address are of different families"));
        }
        if inner.state == State::Idle {
            self.take_source(&mut inner, &from)?;
        }
        inner.peer = Some(*dst);
        if faults::happens(EventFault::AddrError) {
            let error = Error::new(libc::ENETUNREACH, "a fault rule requested ADDR_ERROR");
            self.not_resolved(&mut inner, &error);
            return Ok(());
        }
        match find_route(&inner, dst) {
            Ok((route, None)) => self.resolved(&mut inner, route),
            Ok((route, Some(hop))) => self.begin_resolution(&mut inner, route, hop, timeout_ms),
            Err(e) => self.not_resolved(&mut inner, &e),
        }
        Ok(())
    }

    fn resolved(&self, inner: &mut Inner, route: HostRoute) {
        let ifindex = route.device_addr.device.ifindex();
        inner.local = inner.local.map(|local| local.at(route.device_addr.gid.to_ip(), ifindex));
        inner.peer = inner.peer.map(|peer| peer.at(route.destination, ifindex));
        inner.hop_limit = route.hop_limit;
        inner.device_addr = Some(route.device_addr);
        inner.state = State::AddrResolved;
        self.raise_in(inner, EventKind::AddrResolved, 0, EventData::None);
    }

    fn not_resolved(&self, inner: &mut Inner, error: &Error) {
        // The program has chosen verbs, although this address leads to no device.
        runtime_dir::note_start();
        inner.state = State::Bound;
        let (kind, status) = (EventKind::AddrError, -error.errno());
        self.explain(inner, (kind, status, &EventData::None), Some(error));
        self.raise_in(inner, kind, status, EventData::None);
    }

    /// Waits for the neighbour by timer, so that no thread of the program has to.
    fn begin_resolution(&self, inner: &mut Inner, route: HostRoute, hop: NextHop, timeout_ms: u32) {
        let (id, runtime) = (Weak::clone(&self.me), route.device_addr.runtime.clone());
        let timer = Arc::new_cyclic(|me| RetryTimer { me: Weak::clone(me), id, runtime });
        let until = clock::now().after(Duration::from_millis(timeout_ms.into()));
        timer.again(FIRST_PAUSE);
        inner.state = State::Resolving;
        inner.resolution = Some(Resolution { route, hop, until, pause: FIRST_PAUSE, timer });
    }

    /// Checks the neighbour. Returns the pause until the next check.
    fn follow_resolution(&self, inner: &mut Inner) -> Option<Duration> {
        let mut resolution = inner.resolution.take().filter(|_| inner.state == State::Resolving)?;
        let route = resolution.route.ends();
        if resolution.hop.is_resolved() {
            resolution.route.device_addr.runtime.engine().note_next_hop(route);
            self.resolved(inner, resolution.route);
            return None;
        }
        if clock::now() >= resolution.until {
            self.not_resolved(inner, &no_answer(route, &resolution.hop));
            return None;
        }
        resolution.pause = (resolution.pause * 2).min(LONGEST_PAUSE);
        let pause = resolution.pause;
        inner.resolution = Some(resolution);
        Some(pause)
    }

    /// Binds the active side. A port that it does not name is unique in this process only, because
    /// no peer sends to it.
    fn take_source(&self, inner: &mut Inner, from: &Address) -> Result<(), Error> {
        if from.port() != 0 {
            return self.bind_in(inner, from);
        }
        let from = or_wildcard(self.within_port_space(from)?);
        inner.device_addr = if from.is_any() { None } else { Some(DeviceAddr::of(from.gid())?) };
        let port = Ephemeral::take(self.port_space())?;
        inner.local = Some(from.with_port(port.port()));
        (inner.port, inner.state) = (Some(Port::Ephemeral(port)), State::Bound);
        Ok(())
    }

    /// Resolves the path, without waiting: RoCE has no subnet administrator. The result is
    /// [`EventKind::RouteResolved`]. Fails with EINVAL if the address is not resolved.
    pub fn resolve_route(&self, _timeout_ms: u32) -> Result<(), Error> {
        let mut inner = self.lock();
        inner.check(&[State::AddrResolved])?;
        let path = inner.find_path()?;
        if faults::happens(EventFault::RouteError) {
            self.raise_in(&inner, EventKind::RouteError, -libc::ENETUNREACH, EventData::None);
            return Ok(());
        }
        self.set_path(&mut inner, path)
    }

    pub(super) fn set_path(&self, inner: &mut Inner, path: Path) -> Result<(), Error> {
        inner.check(&[State::AddrResolved])?;
        let ours = inner.device_addr()?.gid;
        if path.sgid != ours || path.dgid.is_zero() {
            return Err(Error::invalid(format!(
                "the path is from {} to {}; the id is at {ours}",
                path.sgid, path.dgid
            )));
        }
        inner.path = Some(path);
        inner.state = State::RouteResolved;
        self.raise_in(inner, EventKind::RouteResolved, 0, EventData::None);
        Ok(())
    }
}

/// Replaces a loopback address that no device has by the wildcard address.
// clause: CM-LOOPBACK
fn or_wildcard(addr: Address) -> Address {
    match addr {
        Address::Ip(ip) if ip.ip().is_loopback() && DeviceAddr::of(addr.gid()).is_err() => {
            addr.any().with_port(addr.port())
        }
        _ => addr,
    }
}

/// Finds the route from the bound address and opens its sockets. Returns the neighbour that has to
/// answer before packets can leave, if it is not resolved.
fn find_route(inner: &Inner, dst: &Address) -> Result<(HostRoute, Option<NextHop>), Error> {
    let bound = inner.local.filter(|local| !local.is_any()).map(|local| local.gid().to_ip());
    let route = HostRoute::find(bound, dst)?;
    let runtime = &route.device_addr.runtime;
    runtime.engine().ensure_link(route.device_addr.gid)?;
    let hop = runtime.engine().find_next_hop(route.ends())?;
    Ok((route, hop))
}

#[derive(Debug)]
struct RetryTimer {
    me: Weak<Self>,
    id: Weak<Id>,
    runtime: Runtime,
}

impl RetryTimer {
    fn again(&self, pause: Duration) {
        self.runtime.engine().scheduler.add_deadline(clock::now().after(pause), Weak::clone(&self.me) as _);
    }
}

impl DeadlineOwner for RetryTimer {
    fn on_deadline(&self, _: Instant) {
        let Some(id) = self.id.upgrade() else { return };
        // The thread that runs the timers may hold the id's lock.
        let pause = match id.inner.try_lock() {
            Some(mut inner) => id.follow_resolution(&mut inner),
            None => Some(FIRST_PAUSE),
        };
        if let Some(pause) = pause {
            self.again(pause);
        }
    }
}

impl Inner {
    /// Returns the path that the kernel's rdma_cm would.
    // clause: CM-PATH
    fn find_path(&self) -> Result<Path, Error> {
        let (device_addr, Some(local), Some(peer)) = (self.device_addr()?, self.local, self.peer) else {
            return Err(Error::invalid("the id has no addresses"));
        };
        let is_ib = matches!(peer, Address::Ib(_));
        let route = Route { local: device_addr.gid, remote: peer.gid() };
        Ok(Path {
            flow_label: flow_label(&local, &peer),
            // No router on one subnet.
            hop_limit: if is_ib { 1 } else { self.hop_limit },
            traffic_class: self.traffic_class(),
            // Half of the ACK timeout, if the program has set one.
            packet_life_time: self
                .options
                .ack_timeout
                .filter(|code| *code != 0)
                .map_or(PACKET_LIFE_TIME, |code| code - 1),
            ..Path::between(route, device_addr.device.adapter().active_mtu())
        })
    }

    /// Returns true if the id at this wildcard address stands for one IP version only.
    pub(super) fn is_of_one_family(&self, addr: &Address) -> bool {
        // Default of the system for IPv6 sockets (`man 7 ipv6`).
        let default = || std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "1");
        addr.gid().is_ipv4() || is_ipv4(addr) || self.options.af_only.unwrap_or_else(default)
    }
}

pub(super) fn is_ipv4(addr: &Address) -> bool {
    matches!(addr, Address::Ip(SocketAddr::V4(_)))
}

/// Returns the flow label of a path: the program's, or one derived from the ports.
// clause: CM-FLOW-LABEL
fn flow_label(local: &Address, peer: &Address) -> u32 {
    const MASK: u32 = 0x000f_ffff;
    let given = if let Address::Ip(SocketAddr::V6(v6)) = peer { v6.flowinfo() & MASK } else { 0 };
    if given != 0 { given } else { (u32::from(local.port()) * 31 + u32::from(peer.port())) & MASK }
}
