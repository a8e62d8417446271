//! Packets that came too early: those of UC and UD before the program posted a receive, and those of connections before packets
//! in front of them.
//!
//! A card with its own processor drops them. Here the same processors run the program, and on a busy machine it may not be
//! scheduled for as long as its receive queue lasts, while the background thread goes on receiving. And packets between
//! processes of one host may overtake each other when some of them took the way over another process. So they
//! wait a little, in order, and their senders get no credit meanwhile and stop ([`crate::flow`]); those that send by a ring
//! find it full. A reliable connection would have all of them sent again; there they wait only as long as an overtaken packet
//! may be on its way, as it may be lost, too. Bounded in bytes and time. Touches nothing.

use roxe_transport::time::Instant;
use roxe_wire::{NetHeader, Psn, Qpn};
use std::collections::VecDeque;
use std::time::Duration;

/// How long a packet waits: a few turns of a scheduler.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// The same on a reliable connection: a NAK is put off by as much when a packet was lost. Another process that has the missing
/// one may have to wait for a processor before it sends it on.
pub(crate) const RC_PATIENCE: Duration = Duration::from_millis(50);
/// How soon to look whether a shared receive queue has something; posting there tells nobody.
const LOOK: Duration = Duration::from_millis(1);
/// Bytes that wait for one queue pair.
const MAX_BYTES: usize = 4 << 20;
/// From this many on nothing more is taken out of rings. What was under way by sockets then still finds room.
const CROWDED: usize = MAX_BYTES / 2;

/// A packet whose ICRC was right.
#[derive(Debug)]
pub(crate) struct Parked {
    /// Where it came from.
    pub(crate) net: NetHeader,
    /// From the BTH to the ICRC.
    pub(crate) bytes: Vec<u8>,
    /// Its place in the order of UC; on UD the order is that of arrival.
    pub(crate) psn: Option<Psn>,
    /// The queue pair of a sender on this host, which waits for credit.
    pub(crate) creditor: Option<Qpn>,
    /// When it came.
    pub(crate) at: Instant,
    /// How long it waits.
    pub(crate) patience: Duration,
}

impl Parked {
    /// Whether it has waited too long.
    pub(crate) fn is_stale(&self, now: Instant) -> bool {
        now.since(self.at) >= self.patience
    }

    /// Whether this one goes before `other`.
    fn precedes(&self, other: &Self) -> bool {
        match (self.psn, other.psn) {
            (Some(mine), Some(theirs)) => mine.is_before(theirs),
            _ => true,
        }
    }
}

/// The packets that wait for one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    packets: VecDeque<Parked>,
    bytes: usize,
    looks_at: Option<Instant>,
}

impl Parking {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether senders have to wait.
    pub(crate) fn is_crowded(&self) -> bool {
        self.bytes >= CROWDED
    }

    /// Lets a packet wait at its place; false if there is no room.
    pub(crate) fn push(&mut self, packet: Parked) -> bool {
        if self.bytes + packet.bytes.len() > MAX_BYTES {
            return false;
        }
        self.bytes += packet.bytes.len();
        self.looks_at.get_or_insert_with(|| packet.at.after(LOOK));
        let behind = self.packets.iter().rev().take_while(|other| !other.precedes(&packet)).count();
        self.packets.insert(self.packets.len() - behind, packet);
        true
    }

    /// The packet that has waited longest.
    pub(crate) fn front(&self) -> Option<&Parked> {
        self.packets.front()
    }

    /// Takes it out.
    pub(crate) fn pop(&mut self) {
        if let Some(packet) = self.packets.pop_front() {
            self.bytes -= packet.bytes.len();
        }
    }

    /// All that could be done at `now` was done.
    pub(crate) fn rest(&mut self, now: Instant) {
        self.looks_at = (!self.is_empty()).then(|| now.after(LOOK));
    }

    /// When to look again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.looks_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(len: usize, at: Instant) -> Parked {
        Parked { net: NetHeader::default(), bytes: vec![0; len], psn: None, creditor: None, at, patience: PATIENCE }
    }

    #[test]
    fn packets_wait_in_order_up_to_a_bound() {
        let mut parking = Parking::default();
        let count = (0..).take_while(|n| parking.push(packet(60_000, Instant(*n)))).count();
        assert_eq!(count, MAX_BYTES / 60_000);
        for n in 0..count {
            assert_eq!(parking.front().map(|packet| packet.at), Some(Instant(n as u64)));
            parking.pop();
        }
        assert!(parking.is_empty());
        assert!(parking.push(packet(60_000, Instant(0))));
    }

    #[test]
    fn packets_with_numbers_wait_in_their_order() {
        let mut parking = Parking::default();
        for psn in [0xff_fffe, 1, 0xff_ffff, 0] {
            parking.push(Parked { psn: Some(Psn::new(psn)), ..packet(1, Instant(0)) });
        }
        let order = std::iter::from_fn(|| {
            let psn = parking.front()?.psn?.get();
            parking.pop();
            Some(psn)
        });
        assert!(order.eq([0xff_fffe, 0xff_ffff, 0, 1]));
    }

    #[test]
    fn there_is_a_deadline_while_something_waits() {
        let mut parking = Parking::default();
        assert_eq!(parking.deadline(), None);
        parking.push(packet(1, Instant(5)));
        parking.push(packet(1, Instant(6)));
        assert_eq!(parking.deadline(), Some(Instant(5).after(LOOK)));
        parking.pop();
        parking.rest(Instant(100));
        assert_eq!(parking.deadline(), Some(Instant(100).after(LOOK)));
        parking.pop();
        parking.rest(Instant(200));
        assert_eq!(parking.deadline(), None);
    }

    #[test]
    fn packets_grow_stale() {
        let packet = packet(1, Instant(7));
        assert!(!packet.is_stale(Instant(6).after(PATIENCE)));
        assert!(packet.is_stale(Instant(7).after(PATIENCE)));
    }
}
