//! Counters of an engine: traffic, and reasons of dropped packets, by the names of
//! `/sys/class/infiniband/*/hw_counters`.

use roxe_base::lock::{Mutex, rank};
use roxe_transport::cm::Ignored;
use roxe_transport::qp::{CongestionCounts, DropReason, RetryCounts};
use roxe_wire::cm::MadError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds `n` without an atomic read-modify-write. The caller holds a lock that all other writers
    /// hold.
    #[inline]
    pub fn add_locked(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one ring, written under the ring's lock, so that a small message needs no atomic
/// addition.
#[derive(Debug, Default)]
pub struct SentByRing {
    packets: Counter,
    bytes: Counter,
}

impl SentByRing {
    /// Counts packets and their bytes. The caller holds the lock of the ring.
    #[inline]
    pub fn count(&self, packets: u64, bytes: u64) {
        self.packets.add_locked(packets);
        self.bytes.add_locked(bytes);
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $visibility:vis $name:ident,)+) => {
        /// All counters of an engine, on cache lines of their own.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[doc = $doc])+ $visibility $name: Counter,)+
            drops: [Counter; DropReason::ALL.len()],
            ignored: [Counter; Ignored::ALL.len()],
            bad_mads: [Counter; MadError::ALL.len()],
            /// Counters of open rings, added to those above when a ring is closed.
            rings: Mutex<rank::RingCounts, Vec<Arc<SentByRing>>>,
        }

        impl Counters {
            /// Returns the counters without those of the reasons: name, meaning and value.
            fn named(&self) -> impl Iterator<Item = (&'static str, Meaning, &Counter)> {
                [$((stringify!($name), Meaning { subject: "", text: concat!($($doc),+) }, &self.$name),)+].into_iter()
            }
        }
    };
}

counters! {
    /// RoCE packets passed to the link, and connection messages to this host.
    pub sent_packets,
    /// Bytes of the sent packets, from the BTH to the ICRC.
    pub sent_bytes,
    /// RoCE packets consumed by this process. Forwarded packets count in the process that they are
    /// for. This counter, `received_bytes` and `received_by_ring` are written under the receive
    /// lock.
    pub received_packets,
    /// Bytes of the received packets, from the BTH to the ICRC.
    pub received_bytes,
    /// Sent packets that went through shared memory.
    pub sent_by_ring,
    /// Packets received through shared memory.
    pub received_by_ring,
    /// Packets that are not valid RoCE packets.
    pub malformed,
    /// Packets with a wrong ICRC.
    pub icrc_errors,
    /// Packets for a queue pair that does not exist.
    pub unknown_qp,
    /// Dropped packets that had been kept for a receive or for missing packets.
    pub early_dropped,
    /// Packets from an address of this host whose source port belongs to another user. If a filter
    /// in the kernel drops them, this counts all datagrams that the kernel drops, because it has a
    /// single drop counter for a socket.
    pub foreign_source_port,
    /// Packets that could not be sent.
    pub send_errors,
    /// Packets dropped because the send buffer of a slow interface and its queue were full.
    pub tx_queue_full,
    /// Runs of packets that the kernel refused to segment (`UDP_SEGMENT`), sent one by one instead.
    pub segments_refused,
    /// Receive calls that failed.
    pub receive_errors,
    /// Datagrams dropped by the kernel because the receive buffer of a socket was full.
    pub rcvbuf_errors,
    /// Packets put into the mailbox of another process: received ones, which count nowhere else,
    /// and connection messages of this process.
    pub forwarded,
    /// Packets for another process that could not be forwarded.
    pub forward_errors,
    /// Connection messages (MADs) passed to the link.
    pub sent_mads,
    /// Connection messages (MADs) received.
    pub received_mads,
    /// Connection messages (MADs) dropped because too many were queued.
    pub mads_lost,
    /// Frames of raw packet queue pairs passed to the interface.
    pub sent_frames,
    /// Frames received and matched against flow rules.
    pub received_frames,
    /// Frames dropped because the kernel had coalesced them beyond the size of the interface.
    pub oversized_frames,
    /// Panics of the background thread, each caused by a bug.
    pub panics,
    /// Packets dropped by a fault rule.
    pub fault_dropped,
    /// Copies of packets made by a fault rule.
    pub fault_duplicated,
    /// Packets delayed by a fault rule.
    pub fault_delayed,
    /// Packets corrupted by a fault rule.
    pub fault_corrupted,
    /// Packets that a fault rule marked as congested (ECN).
    pub fault_marked,
    /// Packets for which a fault rule hid the posted receives.
    pub fault_rnr,
    /// Packets forged by a fault rule.
    pub fault_forged,
    /// Packets of connected peers marked by a switch (ECN).
    np_ecn_marked_roce_packets,
    /// Congestion notifications (CNPs) sent.
    np_cnp_sent,
    /// CNPs that reduced the rate of a queue pair; others are counted as `rp_cnp_ignored`.
    rp_cnp_handled,
    /// NAKs received for a PSN sequence error.
    packet_seq_err,
    /// Responses received that imply the loss of an earlier response.
    implied_nak_seq_err,
    /// RNR NAKs received.
    rnr_nak_retry_err,
    /// Acknowledgement timeouts.
    local_ack_timeout_err,
    /// RNR NAKs sent.
    send_rnr_err,
}

impl Clone for Counters {
    /// Returns a copy of the current values.
    fn clone(&self) -> Self {
        let copy = Self::default();
        copy.add_counts(self);
        copy
    }
}

impl Counters {
    /// Counts a packet dropped by a queue pair.
    pub fn count_drop(&self, reason: DropReason) {
        self.drops[reason as usize].add(1);
    }

    /// Counts a datagram to queue pair 1 that is not a connection message.
    pub fn count_bad_mad(&self, reason: MadError) {
        self.bad_mads[reason as usize].add(1);
    }

    /// Counts a message ignored by the connection manager.
    pub fn count_ignored(&self, reason: Ignored) {
        self.ignored[reason as usize].add(1);
    }

    /// Adds the congestion counts of a queue pair.
    #[cold]
    pub fn count_congestion(&self, counts: CongestionCounts) {
        self.np_ecn_marked_roce_packets.add(counts.np_ecn_marked_roce_packets.into());
        self.np_cnp_sent.add(counts.np_cnp_sent.into());
        self.rp_cnp_handled.add(counts.rp_cnp_handled.into());
    }

    /// Adds the retry counts of a queue pair.
    #[cold]
    pub fn count_retries(&self, counts: RetryCounts) {
        self.packet_seq_err.add(counts.packet_seq_err.into());
        self.implied_nak_seq_err.add(counts.implied_nak_seq_err.into());
        self.rnr_nak_retry_err.add(counts.rnr_nak_retry_err.into());
        self.local_ack_timeout_err.add(counts.local_ack_timeout_err.into());
        self.send_rnr_err.add(counts.send_rnr_err.into());
    }

    /// Counts sent packets.
    pub fn count_sent(&self, packets: u64, bytes: u64) {
        self.sent_packets.add(packets);
        self.sent_bytes.add(bytes);
    }

    /// Adds a ring, and returns its counters.
    pub fn add_ring(&self) -> Arc<SentByRing> {
        let ring = Arc::default();
        self.rings.lock().push(Arc::clone(&ring));
        ring
    }

    fn count_ring(&self, ring: &SentByRing) {
        self.count_sent(ring.packets.get(), ring.bytes.get());
        self.sent_by_ring.add(ring.packets.get());
    }

    /// Counts received packets. The caller holds the receive lock.
    #[inline]
    pub fn count_received(&self, packets: u64, bytes: usize) {
        self.received_packets.add_locked(packets);
        self.received_bytes.add_locked(bytes as u64);
    }

    /// Returns the number of packets dropped for `reason`.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }

    /// Adds the values of `other`, with those of its rings. Closed rings are removed from `other`:
    /// their counts become part of its own counters.
    pub fn add_counts(&self, other: &Self) {
        let mut rings = other.rings.lock();
        rings.retain(|ring| {
            let is_open = Arc::strong_count(ring) > 1;
            // The ring's counts before it was closed are visible from here on.
            fence(Ordering::Acquire);
            if is_open {
                self.count_ring(ring)
            } else {
                other.count_ring(ring)
            }
            is_open
        });
        self.all().zip(other.all()).for_each(|((.., sum), (.., counter))| sum.add_locked(counter.get()));
    }

    /// Resets all counters.
    pub fn clear(&self) {
        self.rings.lock().clear();
        self.all().for_each(|(.., counter)| counter.clear());
    }

    /// Returns names and values of all counters.
    pub fn list(&self) -> Vec<(&'static str, u64)> {
        self.all().map(|(name, _, counter)| (name, counter.get())).collect()
    }

    /// Returns names and meanings of all counters.
    pub fn legend() -> Vec<(&'static str, String)> {
        Self::default().all().map(|(name, meaning, _)| (name, meaning.to_string())).collect()
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, Meaning, &Counter)> {
        let dropped = |text| Meaning { subject: "Packets dropped: ", text };
        let ignored = |text| Meaning { subject: "Connection messages ignored: ", text };
        let bad = |text| Meaning { subject: "Datagrams to queue pair 1 dropped: ", text };
        let drops = DropReason::ALL.iter().zip(&self.drops).map(move |(r, n)| (r.name(), dropped(r.meaning()), n));
        let ignored = Ignored::ALL.iter().zip(&self.ignored).map(move |(r, n)| (r.name(), ignored(r.meaning()), n));
        let bad = MadError::ALL.iter().zip(&self.bad_mads).map(move |(r, n)| (r.name(), bad(r.meaning()), n));
        self.named().chain(drops).chain(ignored).chain(bad)
    }
}

/// Meaning of a counter for users: its subject, and the first sentence of its text.
#[derive(Clone, Copy, Debug)]
struct Meaning {
    /// Subject that all counters of the kind share; may be empty.
    subject: &'static str,
    text: &'static str,
}

impl fmt::Display for Meaning {
    /// Writes the first sentence without its full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text.trim();
        let first = text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.');
        match first.split_at_checked(1).filter(|_| !self.subject.is_empty()) {
            Some((initial, rest)) => write!(f, "{}{}{rest}", self.subject, initial.to_lowercase()),
            None => f.write_str(first),
        }
    }
}

/// A counter file: its path below a port, and its value.
pub type File = (&'static str, fn(&Counters) -> u64);

/// The files of a port, named like those of kernel drivers (rxe, mlx5). Counters of events that
/// cannot happen here are always 0. Data is counted in units of 4 octets, from the BTH to the ICRC.
pub const FILES: [File; 55] = [
    ("counters/port_xmit_data", |c| c.sent_bytes.get() / 4),
    ("counters/port_rcv_data", |c| c.received_bytes.get() / 4),
    ("counters/port_xmit_packets", |c| c.sent_packets.get()),
    ("counters/port_rcv_packets", |c| c.received_packets.get()),
    ("counters/port_rcv_errors", |c| c.malformed.get() + c.icrc_errors.get()),
    ("counters/port_xmit_discards", |c| c.send_errors.get() + c.tx_queue_full.get()),
    ("counters/port_rcv_constraint_errors", |c| c.drops(DropReason::Pkey)),
    ("counters/port_xmit_constraint_errors", |_| 0),
    ("counters/port_rcv_remote_physical_errors", |_| 0),
    ("counters/port_rcv_switch_relay_errors", |_| 0),
    ("counters/port_xmit_wait", |_| 0),
    ("counters/symbol_error", |_| 0),
    ("counters/link_error_recovery", |_| 0),
    ("counters/link_downed", |_| 0),
    ("counters/local_link_integrity_errors", |_| 0),
    ("counters/excessive_buffer_overrun_errors", |_| 0),
    ("counters/VL15_dropped", |_| 0),
    ("hw_counters/sent_pkts", |c| c.sent_packets.get()),
    ("hw_counters/rcvd_pkts", |c| c.received_packets.get()),
    ("hw_counters/duplicate_request", |c| c.drops(DropReason::DuplicateRequest)),
    ("hw_counters/out_of_sequence", |c| c.drops(DropReason::OutOfSequence)),
    ("hw_counters/out_of_buffer", |c| c.drops(DropReason::NoReceive)),
    ("hw_counters/packet_seq_err", |c| c.packet_seq_err.get()),
    ("hw_counters/implied_nak_seq_err", |c| c.implied_nak_seq_err.get()),
    ("hw_counters/rnr_nak_retry_err", |c| c.rnr_nak_retry_err.get()),
    ("hw_counters/local_ack_timeout_err", |c| c.local_ack_timeout_err.get()),
    ("hw_counters/send_rnr_err", |c| c.send_rnr_err.get()),
    ("hw_counters/send_err", |c| c.send_errors.get() + c.tx_queue_full.get()),
    ("hw_counters/resp_remote_access_errors", |c| c.drops(DropReason::RemoteAccess)),
    ("hw_counters/rx_icrc_encapsulated", |c| c.icrc_errors.get()),
    ("hw_counters/np_ecn_marked_roce_packets", |c| c.np_ecn_marked_roce_packets.get()),
    ("hw_counters/np_cnp_sent", |c| c.np_cnp_sent.get()),
    ("hw_counters/rp_cnp_handled", |c| c.rp_cnp_handled.get()),
    ("hw_counters/rp_cnp_ignored", |c| c.drops(DropReason::CongestionNotice)),
    ("hw_counters/qkey_violations", |c| c.drops(DropReason::Qkey)),
    ("hw_counters/unknown_qp", |c| c.unknown_qp.get()),
    ("hw_counters/foreign_source_port", |c| c.foreign_source_port.get()),
    ("hw_counters/malformed", |c| c.malformed.get()),
    ("hw_counters/bad_state", |c| c.drops(DropReason::BadState)),
    ("hw_counters/wrong_service", |c| c.drops(DropReason::WrongService)),
    ("hw_counters/pkey_violations", |c| c.drops(DropReason::Pkey)),
    ("hw_counters/wrong_address", |c| c.drops(DropReason::Address)),
    ("hw_counters/ghost_response", |c| c.drops(DropReason::GhostResponse)),
    ("hw_counters/duplicate_response", |c| c.drops(DropReason::DuplicateResponse)),
    ("hw_counters/awaiting_retry", |c| c.drops(DropReason::AwaitingRetry)),
    ("hw_counters/reserved_syndrome", |c| c.drops(DropReason::ReservedSyndrome)),
    ("hw_counters/invalid_request", |c| c.drops(DropReason::InvalidRequest)),
    ("hw_counters/local_protection", |c| c.drops(DropReason::LocalProtection)),
    ("hw_counters/rcvbuf_errors", |c| c.rcvbuf_errors.get()),
    ("hw_counters/receive_errors", |c| c.receive_errors.get()),
    ("hw_counters/forward_errors", |c| c.forward_errors.get()),
    ("hw_counters/mads_lost", |c| c.mads_lost.get()),
    ("hw_counters/oversized_frames", |c| c.oversized_frames.get()),
    ("hw_counters/panics", |c| c.panics.get()),
    ("hw_counters/forwarded", |c| c.forwarded.get()),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_reason_has_its_own_counter_and_name() {
        let counters = Counters::default();
        for (n, &reason) in DropReason::ALL.iter().enumerate() {
            (0..=n).for_each(|_| counters.count_drop(reason));
        }
        for (n, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(counters.drops(reason), n as u64 + 1, "{reason:?}");
        }
        let list = counters.list();
        let names: HashSet<_> = list.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), list.len());
        let files: HashSet<_> = FILES.iter().map(|(path, _)| path).collect();
        assert_eq!(files.len(), FILES.len());
    }

    #[test]
    fn every_counter_has_its_own_meaning() {
        let legend = Counters::legend();
        assert_eq!(legend.len(), Counters::default().list().len());
        let meanings: HashSet<_> = legend.iter().map(|(_, meaning)| meaning).collect();
        assert_eq!(meanings.len(), legend.len());
        assert!(legend.iter().all(|(name, meaning)| meaning.len() > 10 && !meaning.ends_with('.') && name != meaning));
        let meaning_of = |name| legend.iter().find(|(known, _)| *known == name).map(|(_, meaning)| meaning.as_str());
        assert_eq!(meaning_of("sent_by_ring"), Some("Sent packets that went through shared memory"));
        assert_eq!(meaning_of("out_of_sequence"), Some("Packets dropped: a request after a lost one"));
    }

    #[test]
    fn counters_of_engines_are_added_up() {
        let (sum, more) = (Counters::default(), Counters::default());
        (1..).zip(sum.all()).for_each(|(n, (.., counter))| counter.add(n));
        (1..).zip(more.all()).for_each(|(n, (.., counter))| counter.add(100 * n));
        sum.add_counts(&more);
        assert!((1..).zip(sum.all()).all(|(n, (.., counter))| counter.get() == 101 * n));
    }

    #[test]
    fn ring_counts_in_sum_while_open_and_once_closed() {
        let counters = Counters::default();
        let ring = counters.add_ring();
        ring.count(2, 100);
        let sums = || {
            let sum = Counters::default();
            sum.add_counts(&counters);
            [&sum.sent_packets, &sum.sent_bytes, &sum.sent_by_ring].map(Counter::get)
        };
        assert_eq!(sums(), [2, 100, 2]);
        ring.count(1, 50);
        assert_eq!(sums(), [3, 150, 3]);
        drop(ring);
        assert_eq!([sums(), sums()], [[3, 150, 3]; 2]);
        counters.clear();
        assert_eq!(sums(), [0; 3]);
    }

    #[test]
    fn clear_resets_all_counters() {
        let counters = Counters::default();
        counters.all().for_each(|(.., counter)| counter.add(1));
        assert!(FILES.iter().any(|(_, value)| value(&counters) > 0));
        counters.clear();
        assert!(FILES.iter().all(|(_, value)| value(&counters) == 0));
    }

    #[test]
    fn data_is_counted_in_units_of_4_octets_and_errors_are_added_up() {
        let counters = Counters::default();
        counters.sent_bytes.add(4 * 7 + 3);
        counters.malformed.add(2);
        counters.icrc_errors.add(3);
        counters.count_retries(RetryCounts { rnr_nak_retry_err: 4, ..RetryCounts::default() });
        let value = |path| FILES.iter().find(|(name, _)| *name == path).map(|(_, value)| value(&counters));
        assert_eq!(value("counters/port_xmit_data"), Some(7));
        assert_eq!(value("counters/port_rcv_errors"), Some(5));
        assert_eq!(value("hw_counters/rnr_nak_retry_err"), Some(4));
    }
}
