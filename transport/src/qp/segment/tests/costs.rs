//! Costs of packet ranges.

use super::*;
use crate::wr::Av;
use roxe_wire::Qpn;

/// Costs whose sums identify the packets.
struct Costs;

impl FlowControl for Costs {
    fn packet_cost(payload: u32) -> u32 {
        100_000 + payload
    }

    fn lone_packet_cost(payload: u32) -> u32 {
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
fn range_costs_the_sum_of_its_packets() {
    let mtu = PathMtu::Mtu1024;
    let one = |i| Costs::packet_cost(payload_len(2500, mtu, i));
    for from in 0..=3 {
        for to in from..=3 {
            let sum = (from..to).map(one).sum::<u32>();
            assert_eq!(range_cost::<Costs>(2500, 3, mtu, from, to), sum, "{from}..{to}");
        }
    }
    assert_eq!(range_cost::<Costs>(0, 1, mtu, 0, 1), 200_000);
    let [all, none] = [0, 1].map(|from| range_cost::<Costs>(1024, 1, mtu, from, 1));
    assert_eq!((all, none), (201_024, 0));
}
