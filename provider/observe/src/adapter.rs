//! A network interface as an RDMA card: name, port and counters.

use crate::counter_files::CounterFiles;
use crate::counters::Counters;
use crate::port::{GidTable, Netdev, Port, PortAttr, PortChange};
use roxe_base::config::config;
use roxe_base::lock::{Lockable, Mutex, RwLock, rank};
use roxe_net::link::MAX_BYTES;
use roxe_net::raw::Interface;
use roxe_transport::qp::DropReason;
use roxe_wire::frame::{ETH_LEN, TAG_LEN};
use roxe_wire::{Gid, PathMtu, icrc};
use std::fmt::Debug;
use std::num::NonZeroU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// Maximum number of engines of one device in a process.
pub const MAX_ENGINES: usize = 16;

/// Observer of a port.
pub trait PortObserver: Debug + Send + Sync {
    /// Called after a change of the port.
    fn port_changed(&self, change: PortChange);
}

/// A network interface as an RDMA card.
#[derive(Debug)]
pub struct Adapter {
    name: String,
    index: u32,
    netdev: String,
    ifindex: u32,
    guid: u64,
    port: RwLock<rank::Port, Port>,
    observers: Mutex<rank::Contexts, Vec<Weak<dyn PortObserver>>>,
    counters: [Arc<Counters>; MAX_ENGINES],
    engines: AtomicUsize,
    /// Files that show the counters to other programs.
    files: Option<CounterFiles>,
}

impl Adapter {
    /// Creates the adapter number `index` of this process, over `netdev`.
    pub fn new(index: u32, netdev: &Netdev) -> Self {
        let name = config().map(|config| config.device_name.clone()).unwrap_or_default().nth(index);
        let folders = config().map(|config| (config.counters.as_deref(), config.stats_files.as_deref()));
        let (files, stats) = folders.unwrap_or_default();
        Self {
            files: files.or(stats).map(|_| CounterFiles::new(files, stats, &name)),
            name,
            index,
            ifindex: netdev.ifindex,
            guid: netdev.guid(),
            netdev: netdev.name.clone(),
            port: RwLock::new(Port::new(netdev)),
            observers: Mutex::default(),
            counters: Default::default(),
            engines: AtomicUsize::new(1),
        }
    }

    /// Reads the state of the interface and reports changes to all observers. `prepare` is called
    /// with the new GID table before it becomes visible.
    pub fn refresh(&self, prepare: impl FnOnce(&GidTable)) {
        // Locked before reading, so that a newer state is never replaced by an older one.
        let mut observers = self.observers.lock();
        let Ok(now) = Netdev::find(self.ifindex) else { return };
        let mut port = self.port.read().clone();
        let changes = port.follow(now.as_ref());
        self.port.write().adopt_claim(&port);
        prepare(&port.gids);
        let mut visible = self.port.write();
        // `prepare` opens sockets, and `note_open` has released claims of their addresses.
        port.adopt_claim(&visible);
        *visible = port;
        drop(visible);
        observers.retain(|observer| observer.strong_count() > 0);
        for observer in observers.iter().filter_map(Weak::upgrade) {
            changes.iter().for_each(|change| observer.port_changed(*change));
        }
    }

    /// Reports a change that a fault rule requests; the port stays as it is.
    pub fn report(&self, change: PortChange) {
        let observers: Vec<_> = self.observers.lock().iter().filter_map(Weak::upgrade).collect();
        observers.iter().for_each(|observer| observer.port_changed(change));
    }

    /// Notes that a socket is open at `gid`.
    pub fn note_open(&self, gid: Gid) {
        self.port.write().note_open(gid);
    }

    /// Reports changes to `observer` as long as it exists.
    pub fn observe(&self, observer: &Arc<impl PortObserver + 'static>) {
        let observer: Weak<dyn PortObserver> = Arc::downgrade(observer) as _;
        self.observers.lock().push(observer);
    }

    /// Returns the name: `roxe0`, `roxe1`, ..., or as configured by `ROXE_DEVICE_NAME`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the position in the list of devices, from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the name of the network interface.
    pub fn netdev(&self) -> &str {
        &self.netdev
    }

    /// Returns the index of the network interface.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Returns the node GUID, in host byte order; never 0.
    pub fn node_guid(&self) -> u64 {
        self.guid
    }

    /// Returns the lock that [`Adapter::refresh`] holds, for the fork handlers.
    pub fn observers_lock(&self) -> &impl Lockable {
        &self.observers
    }

    /// Returns the lock of the port's state, for the fork handlers.
    pub fn port_lock(&self) -> &impl Lockable {
        &self.port
    }

    /// Returns the active MTU: the largest path MTU, and the largest payload of a UD message.
    pub fn active_mtu(&self) -> PathMtu {
        self.port.read().attr.active_mtu
    }

    /// Returns the line rate in bit/s.
    pub fn line_rate(&self) -> NonZeroU64 {
        self.port.read().line_rate
    }

    /// Returns the network interface as raw packet queue pairs need it.
    pub fn interface(&self) -> Interface {
        let port = self.port.read();
        let max_frame = (port.mtu as usize + ETH_LEN + TAG_LEN).min(MAX_BYTES - icrc::LEN);
        Interface { index: self.ifindex, mac: port.mac, max_frame }
    }

    /// Returns true if the interface was removed.
    pub fn is_gone(&self) -> bool {
        self.port.read().is_gone()
    }

    /// Returns the current GID table.
    pub fn gids(&self) -> GidTable {
        self.port.read().gids
    }

    /// Returns the attributes of the port.
    pub fn port_attr(&self) -> PortAttr {
        let counters = self.counters();
        let drops = |reason| u32::try_from(counters.drops(reason)).unwrap_or(u32::MAX);
        PortAttr {
            // clause: TAKE-PKEY
            bad_pkey_cntr: drops(DropReason::Pkey),
            // clause: UD-QKEY
            qkey_viol_cntr: drops(DropReason::Qkey),
            ..self.port.read().attr
        }
    }

    /// Returns the counters of all engines, added up.
    pub fn counters(&self) -> Counters {
        let sum = Counters::default();
        self.counters.iter().take(self.engines.load(Relaxed)).for_each(|counters| sum.add_counts(counters));
        sum
    }

    /// Returns the counters of engine number `engine`, which [`Adapter::counters`] includes from
    /// now on.
    pub fn counters_of(&self, engine: usize) -> Arc<Counters> {
        let number = engine.min(MAX_ENGINES - 1);
        self.engines.fetch_max(number + 1, Relaxed);
        self.counters.get(number).map(Arc::clone).unwrap_or_default()
    }

    /// Files that show the counters to other programs, if configured.
    #[inline]
    pub fn files(&self) -> Option<&CounterFiles> {
        self.files.as_ref()
    }

    /// Resets the counters in the child of a fork; the parent reports the previous values.
    pub fn reset_after_fork(&self) {
        self.counters.iter().for_each(|counters| counters.clear());
        self.files.iter().for_each(CounterFiles::reset_after_fork);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_net::port_owners::CLAIM_PORT;
    use std::io;
    use std::net::UdpSocket;

    #[test]
    fn socket_opened_during_refresh_ends_claim() {
        let lo = Netdev::all().into_iter().find(|dev| dev.name == "lo").unwrap();
        let adapter = Adapter::new(0, &lo);
        let (_, gid) = adapter.gids().used().next().unwrap();
        let bind = || UdpSocket::bind((gid.to_ip(), CLAIM_PORT)).map(drop).map_err(|e| e.kind());
        assert_eq!(bind(), Err(io::ErrorKind::AddrInUse));
        adapter.refresh(|gids| gids.used().for_each(|(_, gid)| adapter.note_open(gid)));
        assert_eq!(bind(), Ok(()));
        adapter.refresh(|_| ());
        assert_eq!(bind(), Ok(()));
    }
}
