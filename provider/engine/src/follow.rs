//! Follows changes of the network interface: updates the port, the GID table and the sockets, and
//! notifies programs.
//!
//! Sockets of removed addresses stay open, because an address may return, as IPv6 addresses do when
//! a link comes up again.

use crate::engine::Engine;
use roxe_observe::port::Netdev;

impl Engine {
    /// Reads the addresses of all interfaces of this host.
    pub(crate) fn refresh_host_addresses(&self) {
        let addresses: Vec<_> = Netdev::all().into_iter().flat_map(|netdev| netdev.addresses).collect();
        self.links.set_host_addresses(addresses);
    }

    /// Reads the state of the interface and lets the background thread follow it. Errors are
    /// ignored: the state is read again at each opening, and the first queue pair reports why the
    /// thread cannot be started.
    pub fn watch(&self) {
        let mut control = self.starting.lock();
        // Subscribe before reading, so that no change is missed in between.
        let _ = self.ensure_thread(&mut control);
        self.refresh_port();
    }

    /// Calls [`Engine::watch`] if the background thread does not follow the interface yet.
    pub fn keep_watching(&self) {
        if self.scheduler.poller().is_err() {
            self.watch();
        }
    }

    /// Returns true if the device has an address.
    pub fn has_address(&self) -> bool {
        self.adapter.gids().used().next().is_some()
    }

    /// Handles link events. Background thread only.
    pub(crate) fn follow_interface(&self) {
        let control = self.starting.lock();
        self.refresh_host_addresses();
        let link_events = control.as_ref().and_then(|control| control.link_events.as_ref());
        if link_events.is_some_and(|link_events| link_events.are_about(self.ifindex())) {
            self.refresh_port();
            drop(control);
            self.services.interface_changed(self);
        }
    }

    /// Reads the state of the interface and, if the engine is started, opens sockets for new
    /// addresses before programs see them. Errors are ignored here, and reported to queue pairs
    /// that use the address.
    fn refresh_port(&self) {
        self.adapter.refresh(|gids| {
            let Ok(poller) = self.scheduler.poller() else { return };
            for (_, gid) in gids.used().filter(|_| self.is_started()) {
                if self.link(gid).is_none() {
                    let _ = self.add_link(gid, &poller);
                }
            }
        });
    }
}
