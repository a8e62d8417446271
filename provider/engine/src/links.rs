//! Sockets by local address, and the addresses of this host.

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

#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) udp: RwLock<rank::Links, Vec<Arc<UdpLink>>>,
    /// Incremented when the list or the addresses of this host change.
    version: AtomicU32,
    pub(crate) frame_senders: Mutex<rank::FrameSenders, Vec<Weak<FrameSender>>>,
    pub(crate) host_addresses: RwLock<rank::HostAddresses, Vec<Gid>>,
    /// Time at which the next hop from a local to a remote address was last resolved.
    pub(crate) next_hops: Mutex<rank::NextHops, HashMap<(Gid, Gid), Instant>>,
}

impl Links {
    pub(crate) fn get(&self, gid: Gid) -> Option<Arc<UdpLink>> {
        self.udp.read().iter().find(|link| link.gid() == gid).map(Arc::clone)
    }

    /// Returns true if packets to `dst`, also those to a group, may arrive at this host.
    pub(crate) fn reaches_this_host(&self, dst: Gid) -> bool {
        dst.is_multicast() || dst.to_ip().is_loopback() || self.host_addresses.read().contains(&dst)
    }

    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn note_change(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn add(&self, link: Arc<UdpLink>) {
        self.udp.write().push(link);
        self.note_change();
    }

    pub(crate) fn set_host_addresses(&self, addresses: Vec<Gid>) {
        let mut known = self.host_addresses.write();
        if *known != addresses {
            *known = addresses;
            drop(known);
            self.note_change();
        }
    }

    pub(crate) fn add_frame_sender(&self, sender: &Arc<FrameSender>) {
        let mut senders = self.frame_senders.lock();
        senders.retain(|sender| sender.strong_count() > 0);
        senders.push(Arc::downgrade(sender));
    }

    pub(crate) fn clear(&self) {
        self.udp.write().clear();
        self.frame_senders.lock().clear();
        self.note_change();
    }

    /// Sends queued packets as far as send buffers have room, and passes the queue pairs that
    /// waited to `ready`. Returns true if packets remain.
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

fn count(counters: &Counters, packets: u64, result: Result<(), SendError>, sent: impl FnOnce(u64)) {
    match result {
        Ok(()) => sent(packets),
        // The kernel refused to segment this run. It was sealed as one datagram, so its packets
        // cannot be sent one by one and are lost.
        Err(SendError::NoSegments) => {
            counters.segments_refused.add(1);
            counters.send_errors.add(packets);
        }
        Err(_) => counters.send_errors.add(packets),
    }
}
