//! Following the network interface: ids whose device or address goes hear of it. Lives here: the list of all ids.

use super::event::{EventData, EventKind};
use super::id::{Id, State};
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::uses::ObjectId;
use roxe_engine::adapter::Adapter;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

/// All ids of this process.
static IDS: LazyLock<Mutex<rank::CmIds, HashMap<ObjectId, Weak<Id>>>> = LazyLock::new(Mutex::default);

pub(super) fn add(id: &Arc<Id>) {
    IDS.lock().insert(id.name(), Arc::downgrade(id));
}

pub(super) fn remove(id: &Id) {
    IDS.lock().remove(&id.name());
}

/// The lock of the list, for the fork handlers.
pub(crate) fn ids() -> &'static impl Lockable {
    &*IDS
}

/// The interface of `device` has changed. Call without any lock.
pub(crate) fn follow(device: &Adapter) {
    let ids: Vec<_> = IDS.lock().values().filter_map(Weak::upgrade).collect();
    for id in &ids {
        look(id, device);
        // What keeps it from listening there kept others before; nobody waits to be told.
        let _ = id.listen_where_possible();
    }
}

fn look(id: &Id, device: &Adapter) {
    let mut inner = id.lock();
    let Some(place) = inner.place.as_ref().filter(|place| place.device.ifindex() == device.ifindex()) else { return };
    let has_address = device.gids().used().any(|(_, gid)| gid == place.gid);
    let is_same = has_address && device.interface().mac == place.mac;
    if device.is_gone() {
        if !matches!(inner.state, State::Removed | State::Destroyed) {
            id.raise_in(&inner, EventKind::DeviceRemoval, 0, EventData::None);
            inner.state = State::Removed;
        }
    } else if !is_same && !std::mem::replace(&mut inner.address_lost, true) {
        id.raise_in(&inner, EventKind::AddrChange, 0, EventData::None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{Channel, PortSpace};

    #[test]
    fn ids_are_listed_as_long_as_they_live() {
        let channel = Channel::create().unwrap();
        let id = Id::create(&channel, PortSpace::Tcp, 0).unwrap();
        let name = id.name();
        assert!(IDS.lock().contains_key(&name));
        drop(id);
        assert!(!IDS.lock().contains_key(&name));
    }
}
