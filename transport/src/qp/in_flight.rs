//! How much of this QP is on its way to the peer, and the room it holds for that at
//! [`FlowControl`].
//!
//! Room is accounted per packet, because a receiving socket has a cost for each; what it is, the
//! host says ([`FlowControl::charge`]). Bytes reserved are first `ahead`, then, once their packet
//! is in the batch, `unacked`, and are given back when the packet is acknowledged or given up.

use crate::cx::FlowControl;
use crate::qp::shared::Shared;
use roxe_wire::PathMtu;

/// What packets `from..to` of a message of `length` bytes in `packets` packets occupy together.
pub(crate) fn charge_range<F: FlowControl>(length: u32, packets: u32, mtu: PathMtu, from: u32, to: u32) -> u32 {
    if packets == 1 {
        return if from < to { F::charge_alone(length) } else { 0 };
    }
    let full = to.min(packets - 1).saturating_sub(from);
    let last = if from < to && to == packets { F::charge(length - (packets - 1) * mtu.bytes()) } else { 0 };
    full * F::charge(mtu.bytes()) + last
}

/// Room held for one RC QP, in the bytes of [`FlowControl::charge`].
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Packets sent and not acknowledged.
    unacked: u32,
    /// Reserved and not used yet.
    ahead: u32,
    /// Acknowledged and not given back yet.
    acked: u32,
}

impl InFlight {
    /// Makes sure that `first` and then `more` bytes are reserved beyond what is in flight: whether
    /// both are, or nothing but the first, or not even that. Instead of `more` takes what `run`
    /// says that the packets behind the first one need, if there is plenty. `fits_same_send` says
    /// whether so many packets travel with the last one.
    #[inline]
    pub(crate) fn reserve<F: FlowControl>(
        &mut self,
        sh: &Shared,
        flow: &mut F,
        first: u32,
        more: u32,
        run: impl FnOnce() -> u32,
        fits_same_send: impl Fn(usize) -> bool,
    ) -> Room {
        // What a long message takes at once lasts for most of its packets.
        if first + more <= self.ahead {
            return Room::Both;
        }
        if !self.reach(sh, flow, first, || fits_same_send(1)) {
            // What is merely reserved brings no acknowledgement. Without it nothing is under way,
            // so this is not refused.
            if self.unacked != 0 || self.ahead == 0 {
                return Room::None;
            }
            self.clear(sh, flow);
            if !self.reach(sh, flow, first, || false) {
                return Room::None;
            }
        }
        let enough = more == 0
            || self.reach_ahead(sh, flow, first + run())
            || self.reach(sh, flow, first + more, || fits_same_send(2));
        if enough { Room::Both } else { Room::First }
    }

    /// Raises `ahead` to `bytes`, more than it is, if nobody else might want them. Who may have to
    /// pause takes nothing for later.
    fn reach_ahead<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F, bytes: u32) -> bool {
        let missing = bytes - self.ahead;
        let is_free = sh.config.line_rate.is_none() && flow.reserve_ahead(&sh.attr.av, sh.attr.dest_qpn, missing);
        if is_free {
            self.ahead = bytes;
        }
        is_free
    }

    /// Raises `ahead` to at least `bytes`; `in_run`: the last packet of them travels with the one
    /// before it.
    #[inline]
    fn reach<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F, bytes: u32, in_run: impl FnOnce() -> bool) -> bool {
        let missing = bytes.saturating_sub(self.ahead);
        let (av, qpn, own) = (&sh.attr.av, sh.attr.dest_qpn, self.unacked + self.ahead);
        let fits = missing == 0
            || own != 0 && in_run() && flow.reserve_in_run(av, qpn, missing)
            || flow.reserve(av, qpn, missing, own);
        if fits {
            self.ahead += missing;
        }
        fits
    }

    /// A packet of `bytes`, reserved before, is in the batch.
    pub(crate) fn on_sent(&mut self, bytes: u32) {
        self.ahead = self.ahead.saturating_sub(bytes);
        self.unacked += bytes;
    }

    /// Packets of `bytes` arrived; [`InFlight::give_back`] tells the host once for all of them.
    pub(crate) fn on_acked(&mut self, bytes: u32) {
        let bytes = bytes.min(self.unacked);
        self.unacked -= bytes;
        self.acked += bytes;
    }

    /// Gives back the room of the packets that were acknowledged.
    pub(crate) fn give_back<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        let acked = core::mem::take(&mut self.acked);
        if acked != 0 {
            flow.release(&sh.attr.av, sh.attr.dest_qpn, acked);
        }
    }

    /// Bytes held.
    pub(crate) fn held(&self) -> u32 {
        self.unacked + self.ahead + self.acked
    }

    /// Gives back everything: what is in flight is given up.
    pub(crate) fn clear<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        self.acked += core::mem::take(&mut self.unacked) + core::mem::take(&mut self.ahead);
        self.give_back(sh, flow);
    }
}

/// Answer of [`InFlight::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// For this packet and the one after it.
    Both,
    /// For this packet, and then no more until something is acknowledged.
    First,
    /// For no packet.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr::Av;
    use roxe_wire::Qpn;

    /// Costs whose sums tell which packets they are of.
    struct Costs;

    impl FlowControl for Costs {
        fn charge(payload: u32) -> u32 {
            100_000 + payload
        }

        fn charge_alone(payload: u32) -> u32 {
            200_000 + payload
        }

        fn reserve(&mut self, _: &Av, _: Qpn, _: u32, _: u32) -> bool {
            true
        }

        fn reserve_ahead(&mut self, _: &Av, _: Qpn, _: u32) -> bool {
            true
        }

        fn release(&mut self, _: &Av, _: Qpn, _: u32) {}

        fn ack_interval(&mut self, _: &Av, _: Qpn) -> u32 {
            1
        }
    }

    #[test]
    fn a_range_costs_the_sum_of_its_packets() {
        let mtu = PathMtu::Mtu1024;
        let one = |i| Costs::charge(crate::qp::segment::payload_len(2500, mtu, i));
        for from in 0..=3 {
            for to in from..=3 {
                let sum = (from..to).map(one).sum::<u32>();
                assert_eq!(charge_range::<Costs>(2500, 3, mtu, from, to), sum, "{from}..{to}");
            }
        }
        assert_eq!(charge_range::<Costs>(0, 1, mtu, 0, 1), 200_000);
        let [all, none] = [0, 1].map(|from| charge_range::<Costs>(1024, 1, mtu, from, 1));
        assert_eq!((all, none), (201_024, 0));
    }
}
