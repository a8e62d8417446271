//! Bytes that a packet occupies in the receive buffer of a UDP socket, as Linux accounts them
//! (`truesize`, `SO_RCVBUF` in `man 7 socket`).

use roxe_wire::{Kind, Request};

/// Cost in addition to the payload: the longest header (BTH, RETH, ImmDt) and 64 bytes of
/// bookkeeping.
const OVERHEAD: u32 = 96;
/// Minimum cost of a packet in bytes, because socket buffers have fixed sizes.
const MIN_COST: u32 = 832;
/// Maximum payload in bytes of a single packet with the minimum cost.
const MAX_SMALL: u32 = 128;
/// Headers and kernel overhead added to a larger payload before rounding.
const ALONE_OVERHEAD: u32 = 410;
/// Size in bytes of the kernel's descriptor of a packet.
const DESCRIPTOR: u32 = 256;

/// Cost of a packet with this payload when the kernel coalesces it with others of its message.
#[inline]
pub fn charge(payload: u32) -> u32 {
    (payload.next_multiple_of(4) + OVERHEAD).max(MIN_COST)
}

/// Cost of a packet that is a whole message and mostly arrives alone: its buffer is a power of two,
/// so that 4096 bytes occupy 8448.
#[inline]
pub fn charge_alone(payload: u32) -> u32 {
    if payload <= MAX_SMALL { MIN_COST } else { (payload + ALONE_OVERHEAD).next_power_of_two() + DESCRIPTOR }
}

/// Cost, and thus credit, of a packet of an unacknowledged service.
#[inline]
pub fn charge_of(kind: &Kind, payload: usize) -> u32 {
    let payload = u32::try_from(payload).unwrap_or(0);
    match (kind, kind.request()) {
        (Kind::Ud { .. }, _) => charge_alone(payload),
        (Kind::UcRequest(_), Some(Request::SendOnly(_) | Request::WriteOnly(..))) => charge_alone(payload),
        _ => charge(payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::{Deth, Qkey, Qpn, Reth, SendTail};

    #[test]
    fn packet_costs_at_least_a_small_buffer() {
        assert_eq!(charge(0), 832);
        assert_eq!(charge(736), 832);
        assert_eq!(charge(737), 836);
        assert_eq!(charge(4096), 4192);
    }

    /// The number of packets that fit the buffer of a socket on Linux 6.18.
    #[test]
    fn single_packet_message_costs_its_buffer() {
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

    fn uc(request: Request) -> Kind {
        Kind::UcRequest(request.try_into().expect("UC supports the request"))
    }

    #[test]
    fn only_whole_messages_are_charged_as_alone() {
        let reth = Reth { va: 0, rkey: roxe_wire::RKey(1), dma_len: 4096 };
        let deth = Deth { qkey: Qkey(1), src_qpn: Qpn::new(2) };
        for kind in
            [Kind::Ud { deth, imm: None }, uc(Request::SendOnly(SendTail::Plain)), uc(Request::WriteOnly(reth, None))]
        {
            assert_eq!(charge_of(&kind, 4096), 8448);
        }
        for request in
            [Request::SendFirst, Request::SendMiddle, Request::SendLast(SendTail::Plain), Request::WriteFirst(reth)]
        {
            assert_eq!(charge_of(&uc(request), 4096), 4192);
        }
    }
}
