//! Who hears of changes of network interfaces: all ids of this process, by [`Observer`].

use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::uses::ObjectId;
use roxe_engine::adapter::Adapter;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

/// Who hears of changes of an interface.
pub(crate) trait Observer: Send + Sync {
    /// The interface of `adapter` has changed. Called without any lock.
    fn interface_changed(&self, adapter: &Adapter);
}

type Observers = HashMap<ObjectId, Weak<dyn Observer>>;

/// All observers of this process.
static OBSERVERS: LazyLock<Mutex<rank::CmIds, Observers>> = LazyLock::new(Mutex::default);

/// From now on `observer` hears of every change, until [`remove`] is called with the same name.
pub(crate) fn add(name: ObjectId, observer: Weak<dyn Observer>) {
    OBSERVERS.lock().insert(name, observer);
}

/// The observer with this name goes away.
pub(crate) fn remove(name: ObjectId) {
    OBSERVERS.lock().remove(&name);
}

/// The lock of the list, for the fork handlers.
pub(crate) fn lock() -> &'static impl Lockable {
    &*OBSERVERS
}

/// Tells everybody that the interface of `adapter` has changed. Call without any lock.
pub(crate) fn announce(adapter: &Adapter) {
    let observers: Vec<Arc<_>> = OBSERVERS.lock().values().filter_map(Weak::upgrade).collect();
    observers.iter().for_each(|observer| observer.interface_changed(adapter));
}

/// Whether an observer has this name.
#[cfg(test)]
pub(crate) fn has(name: ObjectId) -> bool {
    OBSERVERS.lock().contains_key(&name)
}
