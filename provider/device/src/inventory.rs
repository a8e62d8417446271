//! Objects of this process as other programs list them (`rdma resource`), by context and number.
//!
//! Each new object enters itself, and its [`Listing`] removes it when it is dropped.
//! The lists hold numbers and counts only, so that reading them keeps no object alive. Memory
//! regions are read from the table of keys, queue pairs from the engine.

use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::uses::UseCount;
use roxe_memory::region::Users;
use roxe_memory::table::MemoryTable;
use roxe_net::status::ObjectKind;
use roxe_transport::wr::Access;
use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

static INVENTORIES: Mutex<rank::Inventories, Vec<Weak<Inventory>>> = Mutex::new(Vec::new());

/// Returns the lock of the list of contexts, for the fork handlers.
pub(crate) fn lock() -> &'static dyn Lockable {
    &INVENTORIES
}

/// Objects of one context.
#[derive(Debug)]
pub(crate) struct Inventory {
    ifindex: u32,
    /// Number of the context.
    number: u32,
    memory: Arc<MemoryTable>,
    objects: Mutex<rank::Inventory, BTreeMap<(ObjectKind, u32), ObjectProperties>>,
}

/// An object of a list.
#[derive(Debug)]
pub(crate) enum ObjectProperties {
    Pd {
        users: UseCount,
    },
    Cq {
        cqe: u32,
        users: UseCount,
    },
    Srq {
        /// `BASIC`, `XRC` or `TM`.
        kind: &'static str,
        pd: u32,
        cq: Option<u32>,
    },
}

impl ObjectProperties {
    fn kind(&self) -> ObjectKind {
        match self {
            Self::Pd { .. } => ObjectKind::Pd,
            Self::Cq { .. } => ObjectKind::Cq,
            Self::Srq { .. } => ObjectKind::Srq,
        }
    }
}

/// The entry of an object, until dropped.
#[derive(Debug)]
pub(crate) struct Listing {
    inventory: Arc<Inventory>,
    key: (ObjectKind, u32),
}

impl Listing {
    /// Returns the number of the object among those of its kind in this process.
    pub(crate) fn number(&self) -> u32 {
        self.key.1
    }

    /// Notes the new capacity of a completion queue.
    pub(crate) fn resize(&self, capacity: u32) {
        if let Some(ObjectProperties::Cq { cqe, .. }) = self.inventory.objects.lock().get_mut(&self.key) {
            *cqe = capacity;
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let entry = self.inventory.objects.lock().remove(&self.key);
        drop(entry);
    }
}

impl Inventory {
    /// Creates the list of a new context of the device on interface `ifindex`.
    pub(crate) fn new(ifindex: u32, memory: &Arc<MemoryTable>) -> Arc<Self> {
        let (number, memory, objects) = (next(ObjectKind::Ctx), Arc::clone(memory), Mutex::default());
        let inventory = Arc::new(Self { ifindex, number, memory, objects });
        let mut all = INVENTORIES.lock();
        all.retain(|inventory| inventory.strong_count() > 0);
        all.push(Arc::downgrade(&inventory));
        inventory
    }

    /// Enters an object under the next number of its kind.
    pub(crate) fn enter(self: &Arc<Self>, properties: ObjectProperties) -> Listing {
        let number = next(properties.kind());
        self.enter_as(number, properties)
    }

    /// Enters an object under a number that no other one of its kind has.
    pub(crate) fn enter_as(self: &Arc<Self>, number: u32, properties: ObjectProperties) -> Listing {
        let key = (properties.kind(), number);
        self.objects.lock().insert(key, properties);
        Listing { inventory: Arc::clone(self), key }
    }

    fn list(&self, kind: ObjectKind, line: &mut dyn FnMut(Arguments<'_>)) {
        let context = self.number;
        match kind {
            ObjectKind::Ctx => line(format_args!("n={context}")),
            ObjectKind::Mr => self.list_regions(line),
            _ => {
                let objects = self.objects.lock();
                for ((_, number), properties) in objects.iter().filter(|(key, _)| key.0 == kind) {
                    match properties {
                        ObjectProperties::Pd { users } => {
                            line(format_args!("n={number} users={} ctx={context}", users.count()))
                        }
                        ObjectProperties::Cq { cqe, users } => {
                            line(format_args!("n={number} cqe={cqe} users={} ctx={context}", users.count()));
                        }
                        ObjectProperties::Srq { kind, pd, cq: Some(cq) } => {
                            line(format_args!("n={number} type={kind} pd={pd} cq={cq}"));
                        }
                        ObjectProperties::Srq { kind, pd, cq: None } => {
                            line(format_args!("n={number} type={kind} pd={pd}"))
                        }
                    }
                }
            }
        }
    }

    fn list_regions(&self, line: &mut dyn FnMut(Arguments<'_>)) {
        for (key, region) in self.memory.hold().memory_regions() {
            // With the checker on, the key for peers is an entry of its own.
            if let Users::Domain(pd) | Users::Null(pd) = region.users {
                let rkey = if region.access.intersects(Access::OF_PEERS) { key } else { 0 };
                let (index, length, pd) = (key >> 8, region.length, pd.number());
                line(format_args!("n={index} rkey={rkey:#x} lkey={key:#x} len={length} pd={pd}"));
            }
        }
    }
}

/// Draws a number for an object of this kind, from 1.
fn next(kind: ObjectKind) -> u32 {
    static NEXT: [AtomicU32; ObjectKind::ALL.len()] = [const { AtomicU32::new(1) }; ObjectKind::ALL.len()];
    NEXT[kind as usize].fetch_add(1, Ordering::Relaxed)
}

/// Passes the objects of this kind on the device on interface `ifindex` to `line`, without queue
/// pairs and identifiers.
pub(crate) fn list(ifindex: u32, kind: ObjectKind, line: &mut dyn FnMut(Arguments<'_>)) {
    // Held throughout, so that no list is locked while another thread forks.
    let all = INVENTORIES.lock();
    let here = all.iter().filter_map(Weak::upgrade).filter(|inventory| inventory.ifindex == ifindex);
    here.for_each(|inventory| inventory.list(kind, line));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(inventory: &Inventory, kind: ObjectKind) -> Vec<String> {
        let mut lines = Vec::new();
        inventory.list(kind, &mut |line| lines.push(line.to_string()));
        lines
    }

    #[test]
    fn objects_are_listed_until_their_listing_is_dropped() {
        let inventory = Inventory::new(0xfff7, &Arc::default());
        let users = UseCount::default();
        let _held = users.hold();
        let cq = inventory.enter(ObjectProperties::Cq { cqe: 16, users });
        let (context, number) = (inventory.number, cq.number());
        assert_eq!(lines(&inventory, ObjectKind::Cq), [format!("n={number} cqe=16 users=1 ctx={context}")]);
        cq.resize(32);
        assert_eq!(lines(&inventory, ObjectKind::Cq), [format!("n={number} cqe=32 users=1 ctx={context}")]);
        assert_eq!(lines(&inventory, ObjectKind::Pd), [""; 0]);
        drop(cq);
        assert_eq!(lines(&inventory, ObjectKind::Cq), [""; 0]);
        assert_eq!(lines(&inventory, ObjectKind::Ctx), [format!("n={context}")]);
    }

    #[test]
    fn objects_of_other_devices_are_left_out() {
        let _inventory = Inventory::new(0xfff8, &Arc::default());
        let count = |ifindex| {
            let mut count = 0;
            list(ifindex, ObjectKind::Ctx, &mut |_| count += 1);
            count
        };
        assert_eq!((count(0xfff8), count(0xfff9)), (1, 0));
    }

    #[test]
    fn device_lists_what_a_program_has_created() {
        let context = crate::testing::context();
        let (pd, inventory) = (context.alloc_pd().unwrap(), context.inventory());
        let cq = context.create_cq(crate::CqInit { cqe: 10, ..Default::default() }).unwrap();
        let srq = pd.create_srq(crate::SrqInit { max_wr: 1, max_sge: 1, ..Default::default() }).unwrap();
        let (domain, ctx) = (pd.id().number(), inventory.number);
        assert_eq!(lines(inventory, ObjectKind::Pd), [format!("n={domain} users=1 ctx={ctx}")]);
        let queue = &lines(inventory, ObjectKind::Srq)[0];
        assert!(queue.ends_with(&format!(" type=BASIC pd={domain}")), "{queue}");
        let entries = &lines(inventory, ObjectKind::Cq)[0];
        assert!(entries.ends_with(&format!(" cqe=10 users=0 ctx={ctx}")), "{entries}");
        let region = pd.alloc_null_mr().unwrap();
        let key = region.lkey().0;
        let expected = format!("n={} rkey=0x0 lkey={key:#x} len={} pd={domain}", key >> 8, u64::MAX);
        assert_eq!(lines(inventory, ObjectKind::Mr), [expected]);
        drop(region);
        cq.destroy().unwrap();
        srq.destroy().unwrap();
        for kind in [ObjectKind::Mr, ObjectKind::Cq, ObjectKind::Srq] {
            assert_eq!(lines(inventory, kind), [""; 0], "{}", kind.name());
        }
    }
}
