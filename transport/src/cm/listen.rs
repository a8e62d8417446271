//! Listeners and their backlogs.

use super::terms::{CmError, ListenId};
use roxe_wire::Gid;
use roxe_wire::cm::ServiceId;
use std::collections::BTreeMap;

/// Requests accepted by a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepts {
    /// Connections (REQ).
    Connections,
    /// Lookups of a datagram service (SIDR_REQ).
    Lookups,
    /// Both: the program chooses the kind of queue pair later.
    Both,
}

/// Addresses required in the header of a request's private data
/// ([`IpCmHeader`](roxe_wire::cm::IpCmHeader)); they must equal the addresses of the request
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// None: the program owns all private data.
    Unchecked,
    /// IPv4 or IPv6.
    Ip,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Parameters of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Service ID that connection requests must have in the bits of `service_mask`.
    pub service_id: ServiceId,
    /// Significant bits of `service_id`; all ones for one service.
    pub service_mask: u64,
    /// Local address; `None` is all addresses.
    pub local: Option<Gid>,
    /// Required addresses. With a version of IP, it listens at addresses of that version only.
    pub addresses: Addresses,
    /// Accepted requests.
    pub accepts: Accepts,
    /// Maximum number of unanswered requests; further ones are rejected.
    pub backlog: usize,
}

#[derive(Debug)]
struct Listener {
    listen: Listen,
    waiting: usize,
}

impl Listen {
    /// Creates a listener for one service at all addresses with any private data.
    pub const fn new(service_id: ServiceId, accepts: Accepts, backlog: usize) -> Self {
        Self { service_id, service_mask: u64::MAX, local: None, addresses: Addresses::Unchecked, accepts, backlog }
    }

    fn accepts(&self, wanted: Accepts) -> bool {
        self.accepts == Accepts::Both || self.accepts == wanted
    }

    fn serves(&self, service_id: ServiceId, local: Gid) -> bool {
        let family_fits = match self.addresses {
            Addresses::Unchecked | Addresses::Ip => true,
            Addresses::Ipv4 => local.is_ipv4(),
            Addresses::Ipv6 => !local.is_ipv4(),
        };
        family_fits && (service_id.0 ^ self.service_id.0) & self.service_mask == 0
    }
}

/// All listeners. Those of one service, and those with a mask, are few and searched linearly.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_id: BTreeMap<ListenId, Listener>,
    by_service: BTreeMap<ServiceId, Vec<ListenId>>,
    /// Listeners with a mask.
    masked: Vec<ListenId>,
    last_id: u64,
}

impl Listeners {
    pub(super) fn add(&mut self, listen: Listen) -> Result<ListenId, CmError> {
        if self.by_id.values().any(|other| overlaps(&other.listen, &listen)) {
            return Err(CmError::InUse);
        }
        self.last_id += 1;
        let id = ListenId(self.last_id);
        if listen.service_mask == u64::MAX {
            self.by_service.entry(listen.service_id).or_default().push(id);
        } else {
            self.masked.push(id);
        }
        self.by_id.insert(id, Listener { listen, waiting: 0 });
        Ok(id)
    }

    /// Removes a listener. Returns false if there is none with this id.
    pub(super) fn remove(&mut self, id: ListenId) -> bool {
        let Some(listener) = self.by_id.remove(&id) else { return false };
        let service = listener.listen.service_id;
        self.masked.retain(|other| *other != id);
        if let Some(ids_of_service) = self.by_service.get_mut(&service) {
            ids_of_service.retain(|other| *other != id);
            if ids_of_service.is_empty() {
                self.by_service.remove(&service);
            }
        }
        true
    }

    /// Returns the listener of a request and the addresses it requires: one at exactly this
    /// address, or else one at all addresses.
    // clause: CM-LISTEN
    pub(super) fn find(&self, service_id: ServiceId, local: Gid, wanted: Accepts) -> Option<(ListenId, Addresses)> {
        let ids_of_service = self.by_service.get(&service_id).map_or(&[][..], Vec::as_slice);
        let listener_at = |at: Option<Gid>| {
            let fits =
                |listen: &&Listen| listen.local == at && listen.accepts(wanted) && listen.serves(service_id, local);
            let found = |id: &ListenId| self.by_id.get(id).map(|l| &l.listen).filter(fits).map(|l| (*id, l.addresses));
            ids_of_service.iter().chain(&self.masked).find_map(found)
        };
        listener_at(Some(local)).or_else(|| listener_at(None))
    }

    /// Takes a place in the backlog. Returns false if it is full.
    // clause: CM-BACKLOG
    pub(super) fn enter(&mut self, id: ListenId) -> bool {
        let Some(listener) = self.by_id.get_mut(&id) else { return false };
        let room = listener.waiting < listener.listen.backlog;
        listener.waiting += usize::from(room);
        room
    }

    /// Releases a place in the backlog. The listener may have been destroyed.
    pub(super) fn leave(&mut self, id: ListenId) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }
}

/// Returns true if both listeners match a common request, so that the choice between them would be
/// arbitrary.
// clause: CM-LISTEN-MASK
fn overlaps(a: &Listen, b: &Listen) -> bool {
    use Addresses::{Ipv4, Ipv6};
    if matches!((a.addresses, b.addresses), (Ipv4, Ipv6) | (Ipv6, Ipv4)) {
        return false;
    }
    let same_service = (a.service_id.0 ^ b.service_id.0) & a.service_mask & b.service_mask == 0;
    same_service
        && a.local == b.local
        && (a.accepts == b.accepts || a.accepts == Accepts::Both || b.accepts == Accepts::Both)
}
