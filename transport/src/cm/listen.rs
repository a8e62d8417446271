//! Who listens for what, and how many requests wait for each program.

use super::terms::{CmError, ListenId};
use roxe_wire::Gid;
use roxe_wire::cm::ServiceId;
use std::collections::BTreeMap;

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

/// Which addresses have to stand in front of the private data of a request
/// ([`IpCmHeader`](roxe_wire::cm::IpCmHeader)), and be those that it came from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// None: private data is the program's.
    Unchecked,
    /// Addresses of either version of IP.
    Ip,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// What a program listens for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The service.
    pub service_id: ServiceId,
    /// Which bits of the service have to be as in `service_id`; all of them for one service.
    pub service_mask: u64,
    /// The one address of ours at which it is offered; `None` is all of them.
    pub local: Option<Gid>,
    /// What it wants to see of addresses; of all of ours it listens at those of that version of IP.
    pub addresses: Addresses,
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

impl Listen {
    /// For exactly this service at all addresses, whatever the private data.
    pub const fn new(service_id: ServiceId, takes: Takes, backlog: usize) -> Self {
        Self { service_id, service_mask: u64::MAX, local: None, addresses: Addresses::Unchecked, takes, backlog }
    }

    fn takes(&self, wanted: Takes) -> bool {
        self.takes == Takes::Both || self.takes == wanted
    }

    /// Whether it is for a request for this service that came to this address of ours.
    fn serves(&self, service_id: ServiceId, local: Gid) -> bool {
        let family_fits = match self.addresses {
            Addresses::Unchecked | Addresses::Ip => true,
            Addresses::Ipv4 => local.is_ipv4(),
            Addresses::Ipv6 => !local.is_ipv4(),
        };
        family_fits && (service_id.0 ^ self.service_id.0) & self.service_mask == 0
    }
}

/// All listeners. Few: they are searched one by one within a service, and so are those of many
/// services.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_id: BTreeMap<ListenId, Listener>,
    /// Listeners of one service each.
    by_service: BTreeMap<ServiceId, Vec<ListenId>>,
    /// Listeners of many services.
    masked: Vec<ListenId>,
    made: u64,
}

impl Listeners {
    pub(super) fn add(&mut self, listen: Listen) -> Result<ListenId, CmError> {
        if self.by_id.values().any(|other| clash(&other.listen, &listen)) {
            return Err(CmError::InUse);
        }
        self.made += 1;
        let id = ListenId(self.made);
        if listen.service_mask == u64::MAX {
            self.by_service.entry(listen.service_id).or_default().push(id);
        } else {
            self.masked.push(id);
        }
        self.by_id.insert(id, Listener { listen, waiting: 0 });
        Ok(id)
    }

    /// False if there was no such listener.
    pub(super) fn remove(&mut self, id: ListenId) -> bool {
        let Some(listener) = self.by_id.remove(&id) else { return false };
        let service = listener.listen.service_id;
        self.masked.retain(|other| *other != id);
        if let Some(of_service) = self.by_service.get_mut(&service) {
            of_service.retain(|other| *other != id);
            if of_service.is_empty() {
                self.by_service.remove(&service);
            }
        }
        true
    }

    /// The listener that takes a request, and what it wants to see: the listener at exactly this
    /// address, or else the one at all addresses.
    // clause: CM-LISTEN
    pub(super) fn find(&self, service_id: ServiceId, local: Gid, wanted: Takes) -> Option<(ListenId, Addresses)> {
        let of_service = self.by_service.get(&service_id).map_or(&[][..], Vec::as_slice);
        let taking = |at: Option<Gid>| {
            let fits =
                |listen: &&Listen| listen.local == at && listen.takes(wanted) && listen.serves(service_id, local);
            let found = |id: &ListenId| self.by_id.get(id).map(|l| &l.listen).filter(fits).map(|l| (*id, l.addresses));
            of_service.iter().chain(&self.masked).find_map(found)
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
// clause: CM-LISTEN-MASK
fn clash(a: &Listen, b: &Listen) -> bool {
    use Addresses::{Ipv4, Ipv6};
    if matches!((a.addresses, b.addresses), (Ipv4, Ipv6) | (Ipv6, Ipv4)) {
        return false;
    }
    let same_service = (a.service_id.0 ^ b.service_id.0) & a.service_mask & b.service_mask == 0;
    same_service && a.local == b.local && (a.takes == b.takes || a.takes == Takes::Both || b.takes == Takes::Both)
}
