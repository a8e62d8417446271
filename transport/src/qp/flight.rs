//! How much of this QP is on its way to the peer, and the room it holds for that at [`FlowControl`].
//!
//! Room is accounted per packet, as a receiving socket does. Bytes reserved are first `ahead`, then, once their packet is
//! in the batch, `in_flight`, and are given back when the packet is acknowledged or given up.

use crate::cx::FlowControl;
use crate::qp::shared::Shared;
use roxe_wire::{Kind, PathMtu, UcRequest};

/// What a packet costs besides its payload: its longest header (BTH, RETH, ImmDt) and 64 bytes of bookkeeping.
const OVERHEAD: u32 = 96;
/// The least that any packet costs: a socket buffer comes in steps.
const LEAST: u32 = 832;

/// Payload of the longest packet that costs no more than that, and what a longer one that comes alone is to be rounded up
/// with: headers, and what the kernel keeps behind them.
const SMALL: u32 = 128;
const ALONE: u32 = 410;
/// The kernel's description of a packet.
const DESCRIPTION: u32 = 256;

/// Bytes that a packet with this payload counts for at [`FlowControl`]: about what it occupies at the receiver when the
/// kernel joins it with others of its message.
pub fn charge(payload: u32) -> u32 {
    (payload.next_multiple_of(4) + OVERHEAD).max(LEAST)
}

/// The same for a packet that is a whole message, which mostly arrives alone: its buffer is a power of two, so that 4096
/// bytes occupy 8448.
pub fn charge_alone(payload: u32) -> u32 {
    if payload <= SMALL { LEAST } else { (payload + ALONE).next_power_of_two() + DESCRIPTION }
}

/// What a packet of a service without acknowledgements counts for, and so gives back.
pub fn charge_of(kind: &Kind, payload: usize) -> u32 {
    let payload = u32::try_from(payload).unwrap_or(0);
    match kind {
        Kind::Ud { .. } | Kind::UcRequest(UcRequest::SendOnly(_) | UcRequest::WriteOnly(..)) => charge_alone(payload),
        _ => charge(payload),
    }
}

/// What packets `from..to` of a message of `length` bytes in `packets` packets occupy together.
pub(crate) fn charge_range(length: u32, packets: u32, mtu: PathMtu, from: u32, to: u32) -> u32 {
    if packets == 1 {
        return if from < to { charge_alone(length) } else { 0 };
    }
    let full = to.min(packets - 1).saturating_sub(from);
    let last = if from < to && to == packets { charge(length - (packets - 1) * mtu.bytes()) } else { 0 };
    full * charge(mtu.bytes()) + last
}

/// Room held for one RC QP, in the bytes of [`charge`].
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// Packets sent and not acknowledged.
    in_flight: u32,
    /// Reserved and not used yet.
    ahead: u32,
    /// Acknowledged and not given back yet.
    landed: u32,
}

impl Flight {
    /// Makes sure that `first` and then `more` bytes are reserved beyond what is in flight: whether both are, or nothing
    /// but the first, or not even that. Instead of `more` takes what `run` says that the packets behind the first one need, if
    /// there is plenty. `takes_along` says whether so many packets travel with the last one.
    pub(crate) fn reserve<F: FlowControl>(
        &mut self,
        sh: &Shared,
        flow: &mut F,
        first: u32,
        more: u32,
        run: impl FnOnce() -> u32,
        takes_along: impl Fn(usize) -> bool,
    ) -> Room {
        if !self.reach(sh, flow, first, || takes_along(1)) {
            // What is merely reserved brings no acknowledgement. Without it nothing is under way, so this is not refused.
            if self.in_flight != 0 || self.ahead == 0 {
                return Room::None;
            }
            self.clear(sh, flow);
            if !self.reach(sh, flow, first, || false) {
                return Room::None;
            }
        }
        let enough = more == 0
            || first + more <= self.ahead
            || self.reach_ahead(sh, flow, first + run())
            || self.reach(sh, flow, first + more, || takes_along(2));
        if enough { Room::Both } else { Room::First }
    }

    /// Raises `ahead` to `bytes`, more than it is, if nobody else might want them. Who may have to pause takes nothing for
    /// later.
    fn reach_ahead<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F, bytes: u32) -> bool {
        let missing = bytes - self.ahead;
        let is_free = sh.config.line_rate.is_none() && flow.reserve_ahead(&sh.attr.av, sh.attr.dest_qpn, missing);
        if is_free {
            self.ahead = bytes;
        }
        is_free
    }

    /// Raises `ahead` to at least `bytes`; `in_run`: the last packet of them travels with the one before it.
    fn reach<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F, bytes: u32, in_run: impl FnOnce() -> bool) -> bool {
        let missing = bytes.saturating_sub(self.ahead);
        let (av, qpn, own) = (&sh.attr.av, sh.attr.dest_qpn, self.in_flight + self.ahead);
        let fits = missing == 0
            || own != 0 && in_run() && flow.reserve_in_run(av, qpn, missing)
            || flow.reserve(av, qpn, missing, own);
        if fits {
            self.ahead += missing;
        }
        fits
    }

    /// A packet of `bytes`, reserved before, is in the batch.
    pub(crate) fn depart(&mut self, bytes: u32) {
        self.ahead = self.ahead.saturating_sub(bytes);
        self.in_flight += bytes;
    }

    /// Packets of `bytes` arrived; [`Flight::give_back`] tells the host once for all of them.
    pub(crate) fn land(&mut self, bytes: u32) {
        let bytes = bytes.min(self.in_flight);
        self.in_flight -= bytes;
        self.landed += bytes;
    }

    /// Gives back what landed.
    pub(crate) fn give_back<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        let landed = core::mem::take(&mut self.landed);
        if landed != 0 {
            flow.release(&sh.attr.av, sh.attr.dest_qpn, landed);
        }
    }

    /// Bytes held.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn held(&self) -> u32 {
        self.in_flight + self.ahead + self.landed
    }

    /// Gives back everything: what is in flight is given up.
    pub(crate) fn clear<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        self.landed += core::mem::take(&mut self.in_flight) + core::mem::take(&mut self.ahead);
        self.give_back(sh, flow);
    }
}

/// Answer of [`Flight::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// For this packet and the one after it.
    Both,
    /// For this packet, and then no more until something is acknowledged.
    First,
    /// For nothing.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_costs_at_least_a_small_buffer() {
        assert_eq!(charge(0), 832);
        assert_eq!(charge(736), 832);
        assert_eq!(charge(737), 836);
        assert_eq!(charge(4096), 4192);
    }

    /// As a socket of Linux 6.18 reports it: how many fit its buffer.
    #[test]
    fn a_message_of_one_packet_costs_what_its_buffer_takes() {
        for (payload, bytes) in [
            (0, 832),
            (128, 832),
            (192, 1280),
            (512, 1280),
            (640, 2304),
            (1600, 2304),
            (2048, 4352),
            (3600, 4352),
            (4096, 8448),
        ] {
            assert_eq!(charge_alone(payload), bytes, "{payload}");
        }
    }

    #[test]
    fn a_range_costs_the_sum_of_its_packets() {
        let mtu = PathMtu::Mtu1024;
        let one = |i| charge(crate::qp::segment::payload_len(2500, mtu, i));
        for from in 0..=3 {
            for to in from..=3 {
                assert_eq!(charge_range(2500, 3, mtu, from, to), (from..to).map(one).sum::<u32>(), "{from}..{to}");
            }
        }
        assert_eq!(charge_range(0, 1, mtu, 0, 1), 832);
        assert_eq!((charge_range(1024, 1, mtu, 0, 1), charge_range(1024, 1, mtu, 1, 1)), (2304, 0));
    }
}
