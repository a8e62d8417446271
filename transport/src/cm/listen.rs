//! Who listens for what, and how many requests wait for each program.

use super::CmError;
use roxe_wire::Gid;
use roxe_wire::cm::ServiceId;
use std::collections::BTreeMap;

/// Names a listener for as long as the machine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenId(u64);

/// Which requests a listener takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Connections (REQ).
    Connections,
    /// Lookups of a datagram service (SIDR_REQ).
    Lookups,
    /// Both: the program decides later what kind of queue pair it has.
    Both,
}

/// What a program listens for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The service.
    pub service_id: ServiceId,
    /// The one address of ours at which it is offered; `None` is all of them.
    pub local: Option<Gid>,
    /// Which requests it takes.
    pub takes: Takes,
    /// How many requests may wait for the program's answer. More are refused.
    pub backlog: usize,
}

#[derive(Debug)]
struct Listener {
    listen: Listen,
    waiting: usize,
}

impl Listener {
    fn takes(&self, wanted: Takes) -> bool {
        self.listen.takes == Takes::Both || self.listen.takes == wanted
    }
}

/// All listeners. Few: they are searched one by one within a service.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_id: BTreeMap<ListenId, Listener>,
    by_service: BTreeMap<ServiceId, Vec<ListenId>>,
    made: u64,
}

impl Listeners {
    pub(super) fn add(&mut self, listen: Listen) -> Result<ListenId, CmError> {
        let of_service = self.by_service.entry(listen.service_id).or_default();
        let clashes = |id: &ListenId| self.by_id.get(id).is_some_and(|other| clash(&other.listen, &listen));
        if of_service.iter().any(clashes) {
            return Err(CmError::InUse);
        }
        self.made += 1;
        let id = ListenId(self.made);
        of_service.push(id);
        self.by_id.insert(id, Listener { listen, waiting: 0 });
        Ok(id)
    }

    /// False if there was no such listener.
    pub(super) fn remove(&mut self, id: ListenId) -> bool {
        let Some(listener) = self.by_id.remove(&id) else { return false };
        let service = listener.listen.service_id;
        if let Some(of_service) = self.by_service.get_mut(&service) {
            of_service.retain(|other| *other != id);
            if of_service.is_empty() {
                self.by_service.remove(&service);
            }
        }
        true
    }

    /// Who takes this: the listener at exactly this address, or else the one at all addresses.
    // clause: CM-LISTEN
    pub(super) fn find(&self, service_id: ServiceId, local: Gid, wanted: Takes) -> Option<ListenId> {
        let of_service = self.by_service.get(&service_id)?;
        let taking = |at: Option<Gid>| {
            let fits = |id: &&ListenId| self.by_id.get(id).is_some_and(|l| l.listen.local == at && l.takes(wanted));
            of_service.iter().find(fits).copied()
        };
        taking(Some(local)).or_else(|| taking(None))
    }

    /// Takes a place in the backlog, if there is one.
    // clause: CM-BACKLOG
    pub(super) fn enter(&mut self, id: ListenId) -> bool {
        let Some(listener) = self.by_id.get_mut(&id) else { return false };
        let room = listener.waiting < listener.listen.backlog;
        listener.waiting += usize::from(room);
        room
    }

    /// Gives a place in the backlog back. The listener may be gone.
    pub(super) fn leave(&mut self, id: ListenId) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }
}

/// Whether one of the two would never be asked, or either of them by chance.
fn clash(a: &Listen, b: &Listen) -> bool {
    a.local == b.local && (a.takes == b.takes || a.takes == Takes::Both || b.takes == Takes::Both)
}
