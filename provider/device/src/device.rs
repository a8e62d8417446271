//! A [`Device`]: one network interface seen as an RDMA card, and what it has for this process.
//!
//! Touches nothing; the interface is read by the engine's [`Adapter`].

use roxe_base::error::Error;
use roxe_base::limits::MAX_DM_SIZE;
use roxe_base::uses::Quotas;
use roxe_engine::adapter::Adapter;
use roxe_engine::port::{GidEntry, Netdev, PortAttr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One RDMA device: a network interface and its addresses.
#[derive(Debug)]
pub struct Device {
    adapter: Arc<Adapter>,
    dm_budget: Arc<DmBudget>,
    quotas: Quotas,
}

impl Device {
    /// The device number `index`, over `netdev`.
    pub(crate) fn new(index: u32, netdev: &Netdev) -> Self {
        let adapter = Arc::new(Adapter::new(index, netdev));
        Self { adapter, dm_budget: Arc::default(), quotas: Quotas::default() }
    }

    /// The interface as a card.
    pub(crate) fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// `roxe0`, `roxe1`, ...
    pub fn name(&self) -> &str {
        self.adapter.name()
    }

    /// Position in the list of devices, from 0.
    pub fn index(&self) -> u32 {
        self.adapter.index()
    }

    /// Name of the network interface.
    pub fn netdev(&self) -> &str {
        self.adapter.netdev()
    }

    /// Index of the network interface.
    pub fn ifindex(&self) -> u32 {
        self.adapter.ifindex()
    }

    /// Node GUID, host order; never 0.
    pub fn node_guid(&self) -> u64 {
        self.adapter.node_guid()
    }

    /// Attributes of its port.
    pub fn port_attr(&self) -> PortAttr {
        self.adapter.port_attr()
    }

    /// The used entries of its GID table, in order.
    pub fn gid_entries(&self) -> Vec<GidEntry> {
        let entry = |(index, gid, is_v1)| GidEntry { index, port: 1, gid, ndev_ifindex: self.ifindex(), is_v1 };
        self.adapter.gids().shown().map(entry).collect()
    }

    /// How much of its memory this process has.
    pub(crate) fn dm_budget(&self) -> &Arc<DmBudget> {
        &self.dm_budget
    }

    /// How many objects of each kind there may be.
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.quotas
    }
}

/// How many bytes of a device's memory this process has.
#[derive(Debug, Default)]
pub(crate) struct DmBudget(AtomicU64);

impl DmBudget {
    /// ENOMEM if there are not `length` bytes left.
    pub(crate) fn take(&self, length: u64) -> Result<(), Error> {
        let after = |used: u64| used.checked_add(length).filter(|used| *used <= MAX_DM_SIZE);
        let used = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        used.map(drop).map_err(|used| {
            let left = MAX_DM_SIZE.saturating_sub(used);
            Error::new(libc::ENOMEM, format!("{left} bytes of device memory are left; free some, or ask for less"))
        })
    }

    pub(crate) fn give_back(&self, length: u64) {
        self.0.fetch_sub(length, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
