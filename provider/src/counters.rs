//! What the device has counted since the process opened it: traffic, and why packets were dropped.
//!
//! Readable by name like the files in `/sys/class/infiniband/*/hw_counters`. Touches nothing.

use roxe_transport::qp::{CongestionCounts, DropReason};
use std::sync::atomic::{AtomicU64, Ordering};

/// One number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All counters of a device.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// RoCE packets handed to the link.
    pub(crate) sent_packets: Counter,
    /// Their bytes, from the BTH to the ICRC.
    pub(crate) sent_bytes: Counter,
    /// RoCE packets taken from the link.
    pub(crate) received_packets: Counter,
    /// Their bytes, from the BTH to the ICRC.
    pub(crate) received_bytes: Counter,
    /// Packets that are no legal RoCE packet.
    pub(crate) malformed: Counter,
    /// Packets whose ICRC is wrong.
    pub(crate) icrc_errors: Counter,
    /// Packets for a queue pair that does not exist.
    pub(crate) unknown_qp: Counter,
    /// Packets that the link could not send.
    pub(crate) send_errors: Counter,
    /// Receives that failed.
    pub(crate) receive_errors: Counter,
    /// Packets for another process, forwarded to it.
    pub(crate) forwarded: Counter,
    /// Packets for another process that could not be forwarded.
    pub(crate) forward_errors: Counter,
    /// Times the background thread met a bug.
    pub(crate) panics: Counter,
    /// Packets that a fault rule lost.
    pub(crate) fault_dropped: Counter,
    /// Copies of packets that a fault rule made.
    pub(crate) fault_duplicated: Counter,
    /// Packets that a fault rule held back.
    pub(crate) fault_delayed: Counter,
    /// Packets that a fault rule damaged.
    pub(crate) fault_corrupted: Counter,
    /// Packets that a fault rule marked as having met congestion.
    pub(crate) fault_marked: Counter,
    /// Packets that a fault rule let find no receive.
    pub(crate) fault_rnr: Counter,
    /// Data of connected peers that a switch marked (ECN).
    np_ecn_marked_roce_packets: Counter,
    /// Congestion notifications (CNPs) sent.
    np_cnp_sent: Counter,
    /// CNPs that slowed a queue pair down; those that did not are drops, as `rp_cnp_ignored`.
    rp_cnp_handled: Counter,
    drops: [Counter; DropReason::ALL.len()],
}

impl Counters {
    /// Counts a packet that a queue pair dropped.
    pub(crate) fn count_drop(&self, reason: DropReason) {
        if let Some(counter) = self.drops.get(reason as usize) {
            counter.add(1);
        }
    }

    /// Adds what a queue pair met of congestion.
    #[cold]
    pub(crate) fn count_congestion(&self, met: CongestionCounts) {
        self.np_ecn_marked_roce_packets.add(met.np_ecn_marked_roce_packets.into());
        self.np_cnp_sent.add(met.np_cnp_sent.into());
        self.rp_cnp_handled.add(met.rp_cnp_handled.into());
    }

    /// How many packets were dropped for `reason`.
    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).map_or(0, Counter::get)
    }

    /// Every counter with its name.
    pub(crate) fn list(&self) -> Vec<(&'static str, u64)> {
        let traffic = [
            ("sent_packets", &self.sent_packets),
            ("sent_bytes", &self.sent_bytes),
            ("received_packets", &self.received_packets),
            ("received_bytes", &self.received_bytes),
            ("malformed", &self.malformed),
            ("icrc_errors", &self.icrc_errors),
            ("unknown_qp", &self.unknown_qp),
            ("send_errors", &self.send_errors),
            ("receive_errors", &self.receive_errors),
            ("forwarded", &self.forwarded),
            ("forward_errors", &self.forward_errors),
            ("panics", &self.panics),
            ("fault_dropped", &self.fault_dropped),
            ("fault_duplicated", &self.fault_duplicated),
            ("fault_delayed", &self.fault_delayed),
            ("fault_corrupted", &self.fault_corrupted),
            ("fault_marked", &self.fault_marked),
            ("fault_rnr", &self.fault_rnr),
            ("np_ecn_marked_roce_packets", &self.np_ecn_marked_roce_packets),
            ("np_cnp_sent", &self.np_cnp_sent),
            ("rp_cnp_handled", &self.rp_cnp_handled),
        ];
        let traffic = traffic.into_iter().map(|(name, counter)| (name, counter.get()));
        traffic.chain(DropReason::ALL.iter().map(|&reason| (reason.name(), self.drops(reason)))).collect()
    }
}

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
    }
}
