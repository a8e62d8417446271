//! What an id does when its network interface changes: it tells its program that its device or its
//! address is gone, and listens where it could not before.

use super::event::{EventData, EventKind};
use super::id::{Id, State};
use crate::ib_cm::Observer;
use roxe_engine::adapter::Adapter;

impl Observer for Id {
    fn interface_changed(&self, adapter: &Adapter) {
        tell(self, adapter);
        // What keeps it from listening there kept others before; nobody waits to be told.
        let _ = self.listen_where_possible();
    }
}

/// Tells the program what it has lost, once.
fn tell(id: &Id, device: &Adapter) {
    let mut inner = id.lock();
    let Some(device_addr) =
        inner.device_addr.as_ref().filter(|device_addr| device_addr.device.ifindex() == device.ifindex())
    else {
        return;
    };
    let has_address = device.gids().used().any(|(_, gid)| gid == device_addr.gid);
    let is_same = has_address && device.interface().mac == device_addr.mac;
    if device.is_gone() {
        if !matches!(inner.state, State::Removed | State::Destroyed) {
            id.raise_in(&inner, EventKind::DeviceRemoval, 0, EventData::None);
            inner.state = State::Removed;
        }
    } else if !is_same && !std::mem::replace(&mut inner.address_lost, true) {
        id.raise_in(&inner, EventKind::AddrChange, 0, EventData::None);
    }
}
