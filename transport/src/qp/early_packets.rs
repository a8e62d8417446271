//! A reorder buffer before a [`Qp`], for packets that arrive before the program has posted a
//! receive, or before packets that were sent earlier.
//!
//! A card drops datagrams without a receive (UC-LOST, UD-LOST), but here the same CPUs also run the
//! program: on a busy machine its receive queue may run empty before it is scheduled. Packets
//! between processes of one host may also overtake each other when another process forwards some of
//! them. Such packets wait in order. On RC only overtaking packets wait, because go-back-N would
//! otherwise retransmit everything after the gap.
//!
//! The buffer is bounded in bytes and time; a packet that waited too long is passed to the [`Qp`],
//! which drops it or reports the gap. A driver whose packets are never early or reordered needs no
//! buffer.

use super::queue_pair::Qp;
use super::shared::Service;
use crate::cx::Host;
use crate::qp::shared::DropReason;
use crate::time::Instant;
use core::time::Duration;
use roxe_wire::{Kind, NetHeader, Packet, Psn, icrc};
use std::collections::VecDeque;

/// Maximum wait of a UC or UD packet: a few scheduler slices.
pub const MAX_WAIT: Duration = Duration::from_millis(100);
/// Maximum wait of an RC request. It delays the NAK of a real loss; a forwarding process may have
/// to wait for a CPU first.
pub const MAX_WAIT_RC: Duration = Duration::from_millis(50);
/// Interval of checks for a receive in an SRQ, where posts notify no QP.
const RECHECK: Duration = Duration::from_millis(1);
/// Maximum bytes waiting for one queue pair, headers included.
const MAX_BYTES: usize = 4 << 20;
/// Maximum distance of an overtaking packet in PSNs; further ahead, the peer has restarted.
const MAX_AHEAD: i32 = 1 << 14;

/// A waiting packet with the driver's tag `T`.
#[derive(Debug)]
pub struct EarlyPacket<T> {
    /// Network header.
    pub net: NetHeader,
    header: roxe_wire::Header,
    payload: Vec<u8>,
    /// The driver's tag.
    pub tag: T,
    /// End of the wait.
    until: Instant,
}

impl<T> EarlyPacket<T> {
    /// Returns the packet.
    pub fn packet(&self) -> Packet<'_> {
        Packet { header: self.header, payload: &self.payload }
    }

    /// Returns the length from the BTH to the end of the ICRC, in bytes.
    fn len(&self) -> usize {
        self.header.padded_len(self.payload.len()) + icrc::LEN
    }

    fn psn(&self) -> Psn {
        self.header.bth.psn
    }
}

/// The waiting packets of one queue pair: those of a connection in PSN order, datagrams in order of
/// arrival.
#[derive(Debug)]
pub struct EarlyPackets<T> {
    packets: VecDeque<EarlyPacket<T>>,
    bytes: usize,
    max_bytes: usize,
    next_check: Option<Instant>,
}

impl<T> Default for EarlyPackets<T> {
    fn default() -> Self {
        Self { packets: VecDeque::new(), bytes: 0, max_bytes: MAX_BYTES, next_check: None }
    }
}

impl<T> EarlyPackets<T> {
    /// Creates a buffer that keeps no packet, as on a card that drops early packets.
    pub fn disabled() -> Self {
        Self { max_bytes: 0, ..Self::default() }
    }

    /// Returns true if nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the number of waiting packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns true if the buffer is half full: the driver should slow the senders down.
    pub fn is_half_full(&self) -> bool {
        self.bytes >= MAX_BYTES / 2
    }

    /// Removes all packets. Call it when the queue pair is reset: they belong to its earlier
    /// connection.
    pub fn drain(&mut self) -> impl Iterator<Item = EarlyPacket<T>> + '_ {
        (self.bytes, self.next_check) = (0, None);
        self.packets.drain(..)
    }

    /// Returns the time of the next [`EarlyPackets::deliver`]; `None` if no packet waits.
    pub fn deadline(&self) -> Option<Instant> {
        self.next_check
    }

    /// Keeps a packet for `qp` if it is early and there is room. Returns false if the caller must
    /// pass the packet to `qp` now.
    ///
    /// `may_have_overtaken` returns true if packets of this sender use several paths, so that a
    /// gap may still be filled. A reliable connection on which it is always false keeps nothing.
    #[inline]
    pub fn keep<H: Host>(
        &mut self,
        qp: &mut Qp,
        host: &mut H,
        (net, packet): (&NetHeader, &Packet<'_>),
        tag: T,
        may_have_overtaken: impl FnOnce() -> bool,
    ) -> bool {
        let is_ahead = |qp: &Qp| (1..MAX_AHEAD).contains(&packet.header.bth.psn.distance(qp.expected_psn()));
        let follows_others = match packet.header.kind {
            Kind::Ud { .. } => !self.is_empty(),
            Kind::UcRequest(_) => is_ahead(qp) && (may_have_overtaken() || !self.is_empty()),
            Kind::RcRequest(_) => {
                return is_ahead(qp)
                    && may_have_overtaken()
                    && self.push(qp.service(), host.now(), (net, packet), tag, MAX_WAIT_RC);
            }
            _ => false,
        };
        (follows_others || qp.lacks_receive(host, net, packet))
            && self.push(qp.service(), host.now(), (net, packet), tag, MAX_WAIT)
    }

    /// Inserts a packet in order; returns false if there is no room.
    #[cold]
    fn push(
        &mut self,
        service: Service,
        now: Instant,
        (net, packet): (&NetHeader, &Packet<'_>),
        tag: T,
        max_wait: Duration,
    ) -> bool {
        let (header, payload) = (packet.header, packet.payload.to_vec());
        let early = EarlyPacket { net: *net, header, payload, tag, until: now.after(max_wait) };
        if self.bytes + early.len() > self.max_bytes {
            return false;
        }
        self.bytes += early.len();
        self.next_check.get_or_insert_with(|| now.after(RECHECK));
        // A duplicate stays after the first, which has waited longer.
        let goes_before = |other: &&EarlyPacket<T>| service != Service::Ud && other.psn().is_after(early.psn());
        let later = self.packets.iter().rev().take_while(goes_before).count();
        self.packets.insert(self.packets.len() - later, early);
        true
    }

    /// Delivers to `qp` every packet that is no longer early or whose wait is over. Call it after
    /// `qp` handled a packet, after a receive was posted, and at the
    /// [deadline](EarlyPackets::deadline). `on_delivered` gets each packet with the result of
    /// [`Qp::handle_packet`] and the queue pair after it.
    #[inline]
    pub fn deliver<H: Host>(
        &mut self,
        qp: &mut Qp,
        host: &mut H,
        on_delivered: impl FnMut(&Qp, &EarlyPacket<T>, Result<(), DropReason>),
    ) {
        if !self.is_empty() {
            self.deliver_waiting(qp, host, on_delivered);
        }
    }

    #[cold]
    fn deliver_waiting<H: Host>(
        &mut self,
        qp: &mut Qp,
        host: &mut H,
        mut on_delivered: impl FnMut(&Qp, &EarlyPacket<T>, Result<(), DropReason>),
    ) {
        let now = host.now();
        while let Some(early) = self.packets.front() {
            let is_early = qp.service() != Service::Ud && early.psn().is_after(qp.expected_psn())
                || qp.lacks_receive(host, &early.net, &early.packet());
            if is_early && now < early.until {
                break;
            }
            let result = qp.handle_packet(host, &early.net, &early.packet());
            on_delivered(qp, early, result);
            self.bytes -= early.len();
            self.packets.pop_front();
        }
        self.next_check = (!self.is_empty()).then(|| now.after(RECHECK));
    }
}

#[cfg(test)]
mod tests;
