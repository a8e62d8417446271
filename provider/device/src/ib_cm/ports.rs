//! Ports of connection management, among all processes of this host.
//!
//! A bound port is a name that only one process can hold, and that ends with it
//! ([`roxe_net::service`]). Rules are those of the kernel's rdma_cm: one id binds a service at an
//! address or at all of them, unless all that bind it share; a listener does not share. A [`Claim`]
//! costs a descriptor; an [`Ephemeral`] port of the active side is unique in this process only, and
//! free. Ports below 1024 need no privilege: the kernel protects its own ports with it.

use roxe_base::error::Error;
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::random;
use roxe_engine::engine::Engine;
use roxe_net::named::{NamedSocket, Probe};
use roxe_net::service::{ClaimName, Place, Scope};
use roxe_observe::port::Netdev;
use roxe_wire::Gid;
use roxe_wire::cm::{PortSpace, ServiceId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of ids that share one address and port.
const MAX_SHARES: u8 = 16;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sharing {
    /// True if others with the same option may bind it too (`RDMA_OPTION_ID_REUSEADDR`).
    pub(crate) reuse: bool,
    /// True if the wildcard address excludes the other IP version (`RDMA_OPTION_ID_AFONLY`).
    pub(crate) af_only: bool,
}

/// A bound service; dropping it, or the end of the process, frees it.
#[derive(Debug)]
pub(crate) struct Claim {
    place: Place,
    is_shared: bool,
    key: u64,
    /// Exclusive name in [`HELD`] of a listener on a shared port.
    exclusive: Mutex<rank::PortAlone, Option<u64>>,
}

/// Names that this process holds, in one place so that the child of a fork can drop them.
static HELD: Mutex<rank::PortNames, BTreeMap<u64, NamedSocket>> = Mutex::new(BTreeMap::new());

fn keep(socket: NamedSocket) -> u64 {
    static KEY: AtomicU64 = AtomicU64::new(0);
    let key = KEY.fetch_add(1, Ordering::Relaxed);
    HELD.lock().insert(key, socket);
    key
}

pub(crate) fn locks() -> [&'static dyn Lockable; 2] {
    [&HELD, &IN_USE]
}

/// Drops the parent's ports in the child of a fork.
pub(crate) fn abandon() {
    HELD.lock().clear();
    IN_USE.lock().clear();
}

impl Claim {
    /// Binds `port` (0: a free one) at `address`, which may be the wildcard. Fails with EADDRINUSE
    /// if the port is in use at this address; EADDRNOTAVAIL if it is in use and one of both claims
    /// has all addresses, or if no port is free.
    pub(crate) fn take(space: PortSpace, address: IpAddr, port: u16, sharing: Sharing) -> Result<Self, Error> {
        let scope = match address {
            _ if !address.is_unspecified() => Scope::At(address.into()),
            IpAddr::V4(_) if sharing.af_only => Scope::V4,
            IpAddr::V6(_) if sharing.af_only => Scope::V6,
            _ => Scope::All,
        };
        let at = |port| Place { service: ServiceId::new(space, port), scope };
        match port {
            0 => from_range(|port| Self::bind(at(port), false).ok()),
            port => Self::bind(at(port), sharing.reuse),
        }
    }

    /// Binds a service ID (`AF_IB`) at `gid`, or at all addresses if that is zero. Errors as for
    /// [`Claim::take`].
    pub(crate) fn take_service(service: ServiceId, gid: Gid, reuse: bool) -> Result<Self, Error> {
        let scope = if gid.is_zero() { Scope::All } else { Scope::At(gid) };
        Self::bind(Place { service, scope }, reuse)
    }

    /// Returns the port; the low 16 bits of a service ID.
    pub(crate) fn port(&self) -> u16 {
        self.place.service.0 as u16
    }

    pub(crate) fn service(&self) -> ServiceId {
        self.place.service
    }

    /// Routes requests that reach other processes on the interface of `engine` to that engine. Call
    /// it once the state machine knows the listener. Errors as for [`Claim::take`], if it is
    /// shared.
    pub(crate) fn watch(&self, engine: &Engine) -> Result<(), Error> {
        self.be_exclusive()?;
        engine.open_service(self.place)
    }

    /// Ends [`Claim::watch`].
    pub(crate) fn unwatch(&self, engine: &Engine) {
        engine.close_service(self.place);
    }

    fn bind(place: Place, reuse: bool) -> Result<Self, Error> {
        let socket = if reuse { hold_shared(place)? } else { hold_exclusive(place)? };
        // Hold the own name first: of two that do this at a time, at least one sees the other.
        check_others(place, !reuse, reuse)?;
        Ok(Self { place, is_shared: reuse, key: keep(socket), exclusive: Mutex::default() })
    }

    fn be_exclusive(&self) -> Result<(), Error> {
        let mut exclusive = self.exclusive.lock();
        if !self.is_shared || exclusive.is_some() {
            return Ok(());
        }
        let socket = hold_exclusive(self.place)?;
        check_others(self.place, true, true)?;
        *exclusive = Some(keep(socket));
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        held.remove(&self.key);
        self.exclusive.get_mut().take().map(|key| held.remove(&key));
    }
}

/// Checks that the claims of other processes allow this claim, be it exclusive or shared.
fn check_others(own: Place, exclusive: bool, shared: bool) -> Result<(), Error> {
    let probe = Probe::new().map_err(|e| not_held(own, &e))?;
    let is_barred_at = |scope: &Scope| {
        let (place, mine) = (Place { scope: *scope, ..own }, *scope == own.scope);
        let one = || !(mine && exclusive) && ClaimName { place, share: None }.is_held(&probe);
        let sharing = || shares(place).filter(|name| name.is_held(&probe)).count() > usize::from(mine && shared);
        one() || exclusive && sharing()
    };
    match overlapping(own.scope).into_iter().find(is_barred_at) {
        Some(scope) => Err(taken(own, scope)),
        None => Ok(()),
    }
}

fn hold_exclusive(place: Place) -> Result<NamedSocket, Error> {
    ClaimName { place, share: None }.hold().map_err(|e| not_held(place, &e))
}

fn hold_shared(place: Place) -> Result<NamedSocket, Error> {
    for name in shares(place) {
        match name.hold() {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            held => return held.map_err(|e| not_held(place, &e)),
        }
    }
    Err(taken(place, place.scope))
}

fn not_held(place: Place, cause: &io::Error) -> Error {
    match cause.kind() {
        io::ErrorKind::AddrInUse => taken(place, place.scope),
        _ => Error::os(format!("cannot claim {}", place.service), cause),
    }
}

fn shares(place: Place) -> impl Iterator<Item = ClaimName> {
    (0..MAX_SHARES).map(move |number| ClaimName { place, share: Some(number) })
}

/// Scopes that have an address in common with `scope`, itself first.
fn overlapping(scope: Scope) -> Vec<Scope> {
    let addresses: Vec<_> = match scope {
        Scope::At(gid) => return Scope::candidates(gid).into(),
        _ => Netdev::all().into_iter().flat_map(|netdev| netdev.addresses).collect(),
    };
    let (families, only_family) = match scope {
        Scope::All => (vec![Scope::All, Scope::V4, Scope::V6], None),
        family => (vec![family, Scope::All], Some(family)),
    };
    let fits = |gid: &Gid| only_family.is_none_or(|family| Scope::family_of(*gid) == family);
    families.into_iter().chain(addresses.into_iter().filter(fits).map(Scope::At)).collect()
}

/// Errors as in the kernel: EADDRINUSE for the same address, EADDRNOTAVAIL if one of both has all
/// addresses.
fn taken(wanted: Place, by: Scope) -> Error {
    let is_same = matches!((wanted.scope, by), (Scope::At(_), Scope::At(_)));
    let errno = if is_same { libc::EADDRINUSE } else { libc::EADDRNOTAVAIL };
    Error::new(errno, format!("{} is in use at address {by}", wanted.service))
}

/// Port of an active id, unique among those of this process and port space: peers find the id by
/// other numbers.
#[derive(Debug)]
pub(crate) struct Ephemeral {
    space: PortSpace,
    port: u16,
}

static IN_USE: Mutex<rank::PortsInUse, BTreeSet<(u16, u16)>> = Mutex::new(BTreeSet::new());

impl Ephemeral {
    /// Takes a free port. Fails with EADDRNOTAVAIL if there is none.
    pub(crate) fn take(space: PortSpace) -> Result<Self, Error> {
        let mut in_use = IN_USE.lock();
        from_range(|port| in_use.insert((space.code(), port)).then(|| Self { space, port }))
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Ephemeral {
    fn drop(&mut self) {
        IN_USE.lock().remove(&(self.space.code(), self.port));
    }
}

/// Offers the ports of the system's local range, beginning at a random one, until `take` takes one.
fn from_range<T>(mut take: impl FnMut(u16) -> Option<T>) -> Result<T, Error> {
    let range = local_range();
    let count = u32::from(range.end() - range.start()) + 1;
    let first = random::number().map_or(0, |number| number as u32) % count;
    let port = |step: u32| range.start().wrapping_add(((first + step) % count) as u16);
    let found = (0..count).find_map(|step| take(port(step)));
    found.ok_or_else(|| Error::new(libc::EADDRNOTAVAIL, "no port of the system's local range is free"))
}

/// Returns the range of the ports that the system chooses for programs.
fn local_range() -> RangeInclusive<u16> {
    const DEFAULT_RANGE: RangeInclusive<u16> = 32_768..=60_999;
    static RANGE: OnceLock<RangeInclusive<u16>> = OnceLock::new();
    let read = || {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
        let mut ports = text.split_whitespace().map(|word| word.parse().ok());
        Some(ports.next()??..=ports.next()??).filter(|range: &RangeInclusive<u16>| !range.is_empty())
    };
    RANGE.get_or_init(|| read().unwrap_or(DEFAULT_RANGE)).clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 79, 3, 1));
    const ALONE: Sharing = Sharing { reuse: false, af_only: true };
    const SHARED: Sharing = Sharing { reuse: true, af_only: true };

    // No other test uses this port space.
    fn take(address: IpAddr, port: u16, sharing: Sharing) -> Result<Claim, i32> {
        Claim::take(PortSpace::Ipoib, address, port, sharing).map_err(|e| e.errno())
    }

    #[test]
    fn address_has_one_owner_per_family() {
        let claim = take(HERE, 1, ALONE).unwrap();
        assert_eq!(claim.port(), 1);
        assert_eq!(take(HERE, 1, ALONE).err(), Some(libc::EADDRINUSE));
        assert_eq!(take(HERE, 1, SHARED).err(), Some(libc::EADDRINUSE));
        assert_eq!(take(V4, 1, ALONE).err(), Some(libc::EADDRNOTAVAIL));
        assert_eq!(take(V6, 1, Sharing { af_only: false, ..ALONE }).err(), Some(libc::EADDRNOTAVAIL));
        assert!(take(THERE, 1, ALONE).is_ok() && take(V6, 1, ALONE).is_ok() && take(HERE, 2, ALONE).is_ok());
        drop(claim);
        assert!(take(V4, 1, ALONE).is_ok());
    }

    #[test]
    fn wildcard_excludes_single_addresses() {
        let claim = take(V4, 3, ALONE).unwrap();
        assert_eq!(take(HERE, 3, ALONE).err(), Some(libc::EADDRNOTAVAIL));
        assert_eq!(take(V4, 3, ALONE).err(), Some(libc::EADDRNOTAVAIL));
        drop(claim);
        let both = take(V6, 3, Sharing { af_only: false, ..ALONE }).unwrap();
        assert_eq!(take(HERE, 3, ALONE).err(), Some(libc::EADDRNOTAVAIL));
        assert_eq!(take(V4, 3, ALONE).err(), Some(libc::EADDRNOTAVAIL));
        drop(both);
        assert!(take(HERE, 3, ALONE).is_ok());
    }

    #[test]
    fn shared_port_has_one_listener() {
        let (one, two) = (take(HERE, 4, SHARED).unwrap(), take(HERE, 4, SHARED).unwrap());
        let all = take(V4, 4, SHARED).unwrap();
        assert_eq!(take(HERE, 4, ALONE).err(), Some(libc::EADDRINUSE));
        let errno = |claim: &Claim| claim.be_exclusive().err().map(|e| e.errno());
        assert_eq!((errno(&one), errno(&all)), (Some(libc::EADDRINUSE), Some(libc::EADDRNOTAVAIL)));
        drop(two);
        assert_eq!(errno(&one), Some(libc::EADDRNOTAVAIL), "all addresses are bound too");
        drop(all);
        assert_eq!((errno(&one), errno(&one)), (None, None));
        assert_eq!(take(HERE, 4, SHARED).err(), Some(libc::EADDRINUSE), "a listener does not share");
        drop(one);
        assert!(take(HERE, 4, ALONE).is_ok());
    }

    #[test]
    fn port_0_chooses_free_ports() {
        let claims: Vec<_> = (0..20).map(|_| take(HERE, 0, ALONE).unwrap()).collect();
        let ports: BTreeSet<_> = claims.iter().map(Claim::port).collect();
        assert!(ports.len() == 20 && ports.iter().all(|port| local_range().contains(port)));
    }

    #[test]
    fn service_id_has_one_owner() {
        let service = ServiceId(0x7fff_0000_0000_1234);
        let claim = Claim::take_service(service, Gid::default(), false).unwrap();
        assert_eq!((claim.port(), claim.service()), (0x1234, service));
        assert!(Claim::take_service(service, Gid::from(HERE), false).is_err());
    }

    #[test]
    fn ephemeral_ports_are_unique_and_reusable() {
        let space = PortSpace::Ipoib;
        let count = local_range().len();
        let all: Vec<_> = (0..count).map(|_| Ephemeral::take(space).unwrap()).collect();
        assert_eq!(all.iter().map(Ephemeral::port).collect::<BTreeSet<_>>().len(), count);
        assert_eq!(Ephemeral::take(space).map(|_| ()).unwrap_err().errno(), libc::EADDRNOTAVAIL);
        drop(all);
        assert!(Ephemeral::take(space).is_ok());
    }
}
