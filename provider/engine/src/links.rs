//! The sockets that packets leave by and come to, by address; and the addresses of this host.
//!
//! Touches the links.

use roxe_base::lock::{Mutex, RwLock, rank};
use roxe_net::link::SendError;
use roxe_net::link::TxQueue;
use roxe_net::raw::FrameSender;
use roxe_net::udp::UdpLink;
use roxe_observe::counters::Counters;
use roxe_wire::{Gid, Qpn};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The links of an engine.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) udp: RwLock<rank::Links, Vec<Arc<UdpLink>>>,
    /// Changes with the list, and with the addresses of this host.
    version: AtomicU32,
    /// What raw packet queue pairs send by.
    pub(crate) frame_senders: Mutex<rank::FrameSenders, Vec<Weak<FrameSender>>>,
    /// The addresses of all interfaces of this host.
    pub(crate) host_addresses: RwLock<rank::HostAddresses, Vec<Gid>>,
    /// When the way from an address to one of another host was found.
    pub(crate) next_hops: Mutex<rank::NextHops, HashMap<(Gid, Gid), Instant>>,
}

impl Links {
    /// The link with the local address `gid`.
    pub(crate) fn get(&self, gid: Gid) -> Option<Arc<UdpLink>> {
        self.udp.read().iter().find(|link| link.gid() == gid).map(Arc::clone)
    }

    /// Whether packets to `dst` may arrive at this host. Those to a group arrive here, too.
    pub(crate) fn reaches_this_host(&self, dst: Gid) -> bool {
        dst.is_multicast() || dst.to_ip().is_loopback() || self.host_addresses.read().contains(&dst)
    }

    /// Changes when the lists do.
    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// The lists have changed.
    pub(crate) fn note_change(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Adds a link.
    pub(crate) fn add(&self, link: Arc<UdpLink>) {
        self.udp.write().push(link);
        self.note_change();
    }

    /// Takes over which addresses this host has.
    pub(crate) fn set_host_addresses(&self, addresses: Vec<Gid>) {
        let mut known = self.host_addresses.write();
        if *known != addresses {
            *known = addresses;
            drop(known);
            self.note_change();
        }
    }

    /// Adds what a raw packet queue pair sends by.
    pub(crate) fn add_frame_sender(&self, sender: &Arc<FrameSender>) {
        let mut senders = self.frame_senders.lock();
        senders.retain(|sender| sender.strong_count() > 0);
        senders.push(Arc::downgrade(sender));
    }

    /// Closes all sockets that nobody else has.
    pub(crate) fn clear(&self) {
        self.udp.write().clear();
        self.frame_senders.lock().clear();
        self.note_change();
    }

    /// Sends what waits for room in send buffers, as far as there is some; `ready` is told of the
    /// queue pairs that waited behind. Whether something still waits.
    pub(crate) fn send_queued(&self, counters: &Counters, ready: impl Fn(Vec<Qpn>)) -> bool {
        let links: Vec<_> = self.udp.read().iter().filter(|link| !link.queue().is_empty()).map(Arc::clone).collect();
        let senders: Vec<_> = self.frame_senders.lock().iter().filter_map(Weak::upgrade).collect();
        for link in &links {
            let served = link.send_queued(|run, len, result| {
                count(counters, run.packets(len), result, |packets| counters.count_sent(packets, len as u64));
            });
            ready(served.into_iter().collect());
        }
        for sender in senders.iter().filter(|sender| !sender.queue().is_empty()) {
            let served = sender.send_queued(|_, _, result| {
                count(counters, 1, result, |frames| counters.sent_frames.add(frames));
            });
            ready(served.into_iter().collect());
        }
        let waits = |queue: &TxQueue| !queue.is_empty();
        links.iter().any(|link| waits(link.queue())) || senders.iter().any(|sender| waits(sender.queue()))
    }
}

/// Counts what came of `packets` that waited.
fn count(counters: &Counters, packets: u64, result: Result<(), SendError>, sent: impl FnOnce(u64)) {
    match result {
        Ok(()) => sent(packets),
        // Sealed as one run they cannot leave alone.
        Err(SendError::NoSegments) => {
            counters.segments_refused.add(1);
            counters.send_errors.add(packets);
        }
        Err(_) => counters.send_errors.add(packets),
    }
}
