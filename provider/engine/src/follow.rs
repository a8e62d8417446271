//! Following the network interface: the thread hears that it changed, and port, GID table, sockets
//! and programs learn of it.
//!
//! Sockets of addresses that go stay open: an address may come back, as IPv6 addresses do when a
//! link comes up again.

use crate::engine::Engine;
use roxe_observe::port::{GidTable, Netdev};

impl Engine {
    /// Takes over which addresses this host has, whatever their interface.
    pub(crate) fn look_at_host(&self) {
        let addresses: Vec<_> = Netdev::all().into_iter().flat_map(|netdev| netdev.addresses).collect();
        self.links.set_host_addresses(addresses);
    }

    /// Looks at the interface, and lets the background thread follow it from now on. If that cannot
    /// be, the device works all the same: it is looked at whenever it is opened, and the first
    /// queue pair tries to start the thread and says why not.
    pub fn watch(&self) {
        let mut ears = self.starting.lock();
        // First listen, then look: so no change falls between the two.
        let _ = self.ensure_thread(&mut ears);
        self.look();
    }

    /// The same, unless the thread follows it already.
    pub fn keep_watching(&self) {
        if self.scheduler.poller().is_err() {
            self.watch();
        }
    }

    /// Whether the device has an address.
    pub fn has_address(&self) -> bool {
        self.adapter.gids().used().next().is_some()
    }

    /// Takes the link events, and what follows from them. Background thread only.
    pub(crate) fn follow_interface(&self) {
        let ears = self.starting.lock();
        self.look_at_host();
        let link_events = ears.as_ref().and_then(|ears| ears.link_events.as_ref());
        if link_events.is_some_and(|link_events| link_events.are_about(self.ifindex())) {
            self.look();
            drop(ears);
            self.services.interface_changed(self);
        }
    }

    /// Takes over what the interface is like. Programs see a new address once packets can leave
    /// from it and come to it.
    fn look(&self) {
        self.adapter.refresh(|gids| self.open_new_links(gids));
    }

    /// Opens the addresses that have come, if sockets are open at all. What cannot be opened is
    /// reported to whoever wants to use it.
    fn open_new_links(&self, gids: &GidTable) {
        let Ok(poller) = self.scheduler.poller() else { return };
        if !self.is_started() {
            return;
        }
        for (_, gid) in gids.used() {
            if self.link(gid).is_none() {
                let _ = self.add_link(gid, &poller);
            }
        }
    }
}
