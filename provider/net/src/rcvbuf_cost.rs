//! The bytes that a packet costs in the receive buffer of a UDP socket, as Linux accounts them
//! (`truesize` in the kernel, `SO_RCVBUF` in `man 7 socket`).

use roxe_wire::{Kind, Request};

/// Cost in bytes of a coalesced packet in addition to its payload: the longest header (BTH, RETH,
/// ImmDt) and 64 bytes of the kernel's bookkeeping.
const COALESCED_OVERHEAD: u32 = 96;
/// Minimum cost of a packet in bytes: the kernel's smallest buffer and its descriptor.
const MIN_COST: u32 = 832;
/// Maximum payload in bytes of a packet that arrives alone and fits the smallest buffer.
const MAX_SMALL_PAYLOAD: u32 = 128;
/// Bytes of headers and kernel data in the buffer of a larger packet that arrives alone.
const ALONE_OVERHEAD: u32 = 410;
/// Size in bytes of the kernel's descriptor of a packet (`struct sk_buff`).
const DESCRIPTOR_SIZE: u32 = 256;

/// Returns the cost in bytes of a packet that the kernel coalesces with others of its message.
#[inline]
pub fn packet_cost(payload: u32) -> u32 {
    (payload.next_multiple_of(4) + COALESCED_OVERHEAD).max(MIN_COST)
}

/// Returns the cost in bytes of a packet that is a whole message, and so mostly arrives alone. The
/// kernel rounds its buffer up to a power of two: a payload of 4096 bytes costs 8448.
#[inline]
pub fn lone_packet_cost(payload: u32) -> u32 {
    if payload <= MAX_SMALL_PAYLOAD {
        MIN_COST
    } else {
        (payload + ALONE_OVERHEAD).next_power_of_two() + DESCRIPTOR_SIZE
    }
}

/// Returns the cost in bytes of a packet of UC or UD, whose receiver returns it as credit.
#[inline]
pub fn cost_of(kind: &Kind, payload: usize) -> u32 {
    let payload = u32::try_from(payload).unwrap_or(0);
    match (kind, kind.request()) {
        (Kind::Ud { .. }, _) => lone_packet_cost(payload),
        (Kind::UcRequest(_), Some(Request::SendOnly(_) | Request::WriteOnly(..))) => lone_packet_cost(payload),
        _ => packet_cost(payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::{Deth, Qkey, Qpn, Reth, SendTail};

    #[test]
    fn coalesced_packet_costs_at_least_the_minimum() {
        assert_eq!(packet_cost(0), 832);
        assert_eq!(packet_cost(736), 832);
        assert_eq!(packet_cost(737), 836);
        assert_eq!(packet_cost(4096), 4192);
    }

    /// The expected values were measured on Linux 6.18.
    #[test]
    fn lone_packet_costs_its_rounded_buffer() {
        for (payload, cost) in [
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
            assert_eq!(lone_packet_cost(payload), cost, "{payload}");
        }
    }

    fn uc(request: Request) -> Kind {
        Kind::UcRequest(request.try_into().expect("UC supports the request"))
    }

    #[test]
    fn only_single_packet_messages_cost_as_lone_packets() {
        let reth = Reth { va: 0, rkey: roxe_wire::RKey(1), dma_len: 4096 };
        let deth = Deth { qkey: Qkey(1), src_qpn: Qpn::new(2) };
        for kind in
            [Kind::Ud { deth, imm: None }, uc(Request::SendOnly(SendTail::Plain)), uc(Request::WriteOnly(reth, None))]
        {
            assert_eq!(cost_of(&kind, 4096), 8448);
        }
        for request in
            [Request::SendFirst, Request::SendMiddle, Request::SendLast(SendTail::Plain), Request::WriteFirst(reth)]
        {
            assert_eq!(cost_of(&uc(request), 4096), 4192);
        }
    }
}
