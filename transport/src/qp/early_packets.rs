//! Packets that come too early: before the program has posted a receive for them, or before packets
//! that were sent ahead of them and took another way.
//!
//! A card with its own processor drops datagrams that find no receive (UC-LOST, UD-LOST). Here the
//! same processors run the program, and on a busy machine it may not be scheduled for as long as
//! its receive queue lasts, while another thread goes on receiving. And packets between processes
//! of one host may overtake each other when some of them are forwarded by another process. So such
//! packets wait a little, in order. On a reliable connection only what has overtaken others waits:
//! the protocol repeats everything else by itself, but would have all packets behind a gap sent
//! again.
//!
//! The buffer is bounded in bytes and in time; what has waited too long is handed to the state
//! machine as it is, which then drops it or asks for what is missing. It stands in front of a
//! [`Qp`] and belongs to whoever drives that: a driver whose packets can neither be early nor
//! overtake each other needs none. Knows no clock and sends nothing.

use super::queue_pair::Qp;
use super::shared::Service;
use crate::cx::Host;
use crate::qp::shared::DropReason;
use crate::time::Instant;
use core::time::Duration;
use roxe_wire::{Kind, NetHeader, Packet, Psn, icrc};
use std::collections::VecDeque;

/// How long a packet of UC or UD waits: a few turns of a scheduler.
pub const MAX_WAIT: Duration = Duration::from_millis(100);
/// How long a request of RC waits for those that it may have overtaken. A NAK is put off by as much
/// when they were lost; a process that is to forward them may have to wait for a processor first.
pub const MAX_WAIT_RC: Duration = Duration::from_millis(50);
/// How soon to look whether a shared receive queue has something; posting there tells nobody.
const RECHECK: Duration = Duration::from_millis(1);
/// Bytes that wait for one queue pair, headers included.
const MAX_BYTES: usize = 4 << 20;
/// A packet of a connection further ahead than this has not overtaken others: the peer has started
/// anew.
const MAX_AHEAD: i32 = 1 << 14;

/// A packet that waits. `T` is what the driver wants to know again when it is handed over.
#[derive(Debug)]
pub struct EarlyPacket<T> {
    /// Its network header.
    pub net: NetHeader,
    /// Its headers.
    header: roxe_wire::Header,
    payload: Vec<u8>,
    /// What the driver said of it.
    pub tag: T,
    /// When it has waited long enough.
    until: Instant,
}

impl<T> EarlyPacket<T> {
    /// The packet itself.
    pub fn packet(&self) -> Packet<'_> {
        Packet { header: self.header, payload: &self.payload }
    }

    /// Bytes from the BTH to the end of the ICRC.
    fn len(&self) -> usize {
        self.header.padded_len(self.payload.len()) + icrc::LEN
    }

    fn psn(&self) -> Psn {
        self.header.bth.psn
    }
}

/// The packets that wait in front of one queue pair. Those of a connection are in the order of
/// their PSNs, datagrams in that of their arrival.
#[derive(Debug)]
pub struct EarlyPackets<T> {
    packets: VecDeque<EarlyPacket<T>>,
    bytes: usize,
    /// Bytes that may wait.
    most: usize,
    next_check: Option<Instant>,
}

impl<T> Default for EarlyPackets<T> {
    fn default() -> Self {
        Self { packets: VecDeque::new(), bytes: 0, most: MAX_BYTES, next_check: None }
    }
}

impl<T> EarlyPackets<T> {
    /// Where nothing ever waits, as on a card that drops what comes early.
    pub fn none() -> Self {
        Self { most: 0, ..Self::default() }
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// How many packets wait.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether at least half of the room is taken: a driver that can make senders wait should.
    pub fn is_half_full(&self) -> bool {
        self.bytes >= MAX_BYTES / 2
    }

    /// When to call [`EarlyPackets::deliver`] next, whatever happens until then.
    pub fn deadline(&self) -> Option<Instant> {
        self.next_check
    }

    /// Keeps a packet that has just come for `qp` if it is too early, and there is room. False:
    /// hand it to `qp` now.
    ///
    /// `may_have_overtaken` says whether packets of its sender take several ways, so that a gap in
    /// front of it may be filled yet. A reliable connection on which it is always false keeps
    /// nothing.
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
        let is_behind_others = match packet.header.kind {
            Kind::Ud { .. } => !self.is_empty(),
            Kind::UcRequest(_) => is_ahead(qp) && (may_have_overtaken() || !self.is_empty()),
            Kind::RcRequest(_) => {
                return is_ahead(qp)
                    && may_have_overtaken()
                    && self.push(qp.service(), host.now(), (net, packet), tag, MAX_WAIT_RC);
            }
            _ => false,
        };
        (is_behind_others || qp.lacks_receive(host, net, packet))
            && self.push(qp.service(), host.now(), (net, packet), tag, MAX_WAIT)
    }

    /// Puts a packet at its place; false if there is no room.
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
        if self.bytes + early.len() > self.most {
            return false;
        }
        self.bytes += early.len();
        self.next_check.get_or_insert_with(|| now.after(RECHECK));
        // One that is repeated stays behind the first, which has waited for longer.
        let goes_before = |other: &&EarlyPacket<T>| service != Service::Ud && other.psn().is_after(early.psn());
        let behind = self.packets.iter().rev().take_while(goes_before).count();
        self.packets.insert(self.packets.len() - behind, early);
        true
    }

    /// Hands to `qp` every packet whose turn has come or that has waited long enough. To be called
    /// after `qp` took in a packet, after a receive was posted, and at the
    /// [deadline](EarlyPackets::deadline). `handed_over` is told of each packet and of what
    /// [`Qp::handle_packet`] said, and sees the queue pair as it is behind the packet.
    #[inline]
    pub fn deliver<H: Host>(
        &mut self,
        qp: &mut Qp,
        host: &mut H,
        handed_over: impl FnMut(&Qp, &EarlyPacket<T>, Result<(), DropReason>),
    ) {
        if !self.is_empty() {
            self.deliver_waiting(qp, host, handed_over);
        }
    }

    #[cold]
    fn deliver_waiting<H: Host>(
        &mut self,
        qp: &mut Qp,
        host: &mut H,
        mut handed_over: impl FnMut(&Qp, &EarlyPacket<T>, Result<(), DropReason>),
    ) {
        let now = host.now();
        while let Some(early) = self.packets.front() {
            let is_early = qp.service() != Service::Ud && early.psn().is_after(qp.expected_psn())
                || qp.lacks_receive(host, &early.net, &early.packet());
            if is_early && now < early.until {
                break;
            }
            let result = qp.handle_packet(host, &early.net, &early.packet());
            handed_over(qp, early, result);
            self.bytes -= early.len();
            self.packets.pop_front();
        }
        self.next_check = (!self.is_empty()).then(|| now.after(RECHECK));
    }
}

#[cfg(test)]
mod tests;
