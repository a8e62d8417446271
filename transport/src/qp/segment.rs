//! Messages into packets, as pure functions: how many, which part of the payload, which request.
//!
//! A message of `length` bytes is `packets(length)` packets, numbered from 0. Touches only `wire`
//! and `wr`.

use crate::wr::{ATOMIC_LEN, MAX_MESSAGE, SendOp};
use roxe_wire::opcode::Position;
use roxe_wire::{AtomicEth, Ieth, PathMtu, Request, Reth, SendTail};

/// Response packets and bytes that one READ REQUEST asks for at most. A longer READ is a sequence
/// of requests, so that the answers never outrun the receive buffer of our own socket.
const READ_CHUNK_PACKETS: u32 = 64;
const READ_CHUNK_BYTES: u32 = 128 << 10;

/// Bytes of the payload of a packet, or of a few that are joined, so it always fits.
pub(crate) fn len_of(payload: usize) -> u32 {
    u32::try_from(payload).unwrap_or(u32::MAX)
}

/// log2 of the payload bytes of a full packet.
const fn shift(mtu: PathMtu) -> u32 {
    mtu.bytes().trailing_zeros()
}

/// Packets, and so PSNs, of a message of `length` bytes: at least one.
// clause: PSN-SPAN
pub(crate) const fn packets(length: u32, mtu: PathMtu) -> u32 {
    match length.div_ceil(mtu.bytes()) {
        0 => 1,
        n => n,
    }
}

/// Offset in the message of the payload of packet `index`, bytes.
pub(crate) const fn offset(index: u32, mtu: PathMtu) -> u32 {
    index << shift(mtu)
}

/// Payload bytes of packet `index` of a message of `length` bytes.
pub(crate) fn payload_len(length: u32, mtu: PathMtu, index: u32) -> u32 {
    length.saturating_sub(offset(index, mtu)).min(mtu.bytes())
}

/// Where packet `index` of `packets` stands in its message.
pub(crate) const fn position(index: u32, packets: u32) -> Position {
    match (index == 0, index + 1 == packets) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

/// Packet after the last one that a READ REQUEST for packet `index` of a READ covers. Requests end
/// at fixed places also when a retry starts one in its middle, so that a retry always asks for a
/// tail of the original (IBA §9.7.5.1.3).
pub(crate) fn read_chunk_end(index: u32, packets: u32, mtu: PathMtu) -> u32 {
    let chunk = READ_CHUNK_PACKETS.min(READ_CHUNK_BYTES >> shift(mtu));
    ((index / chunk + 1) * chunk).min(packets)
}

/// Packets `index..end` of the READ that `whole` asks for.
// clause: RETRY-READ-TAIL
pub(crate) fn read_part(whole: Reth, mtu: PathMtu, index: u32, end: u32) -> Reth {
    let from = offset(index, mtu);
    let until = (u64::from(end) << shift(mtu)).min(u64::from(whole.dma_len));
    let dma_len = u32::try_from(until).unwrap_or(MAX_MESSAGE).saturating_sub(from);
    Reth { va: whole.va.wrapping_add(u64::from(from)), dma_len, ..whole }
}

/// The request that packet `index` of `packets` of `op` carries; a READ asks for everything.
/// `None`: nothing of a local operation leaves.
// clause: SEND-TAIL
// Inlined for the same reason as [`Outgoing::of`](super::outgoing::Outgoing::of).
#[inline(always)]
pub(crate) fn request(op: &SendOp, length: u32, position: Position) -> Option<Request> {
    let reth = |va, rkey| Reth { va, rkey, dma_len: length };
    Some(match *op {
        SendOp::Send => send(position, SendTail::Plain),
        SendOp::SendImm(imm) => send(position, SendTail::Imm(imm)),
        SendOp::SendInvalidate(rkey) => send(position, SendTail::Invalidate(Ieth(rkey))),
        SendOp::Write { remote_addr, rkey } => write(position, reth(remote_addr, rkey), None),
        SendOp::WriteImm { remote_addr, rkey, imm } => write(position, reth(remote_addr, rkey), Some(imm)),
        SendOp::Read { remote_addr, rkey } => Request::Read(reth(remote_addr, rkey)),
        SendOp::CompareSwap { remote_addr, rkey, compare, swap } if length == ATOMIC_LEN => {
            Request::CompareSwap(AtomicEth { va: remote_addr, rkey, swap_or_add: swap, compare })
        }
        SendOp::FetchAdd { remote_addr, rkey, add } if length == ATOMIC_LEN => {
            // clause: ATOMIC-OPERANDS
            Request::FetchAdd(AtomicEth { va: remote_addr, rkey, swap_or_add: add, compare: 0 })
        }
        SendOp::AtomicWrite { remote_addr, rkey } => Request::AtomicWrite(reth(remote_addr, rkey)),
        SendOp::Flush { remote_addr, rkey, length, feth } => {
            Request::Flush(feth, Reth { va: remote_addr, rkey, dma_len: length })
        }
        // clause: SEND-ATOMIC-LENGTH
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => return None,
        SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. } => return None,
    })
}

fn send(position: Position, tail: SendTail) -> Request {
    match position {
        Position::Only => Request::SendOnly(tail),
        Position::First => Request::SendFirst,
        Position::Middle => Request::SendMiddle,
        Position::Last => Request::SendLast(tail),
    }
}

fn write(position: Position, reth: Reth, imm: Option<roxe_wire::ImmDt>) -> Request {
    match position {
        Position::Only => Request::WriteOnly(reth, imm),
        Position::First => Request::WriteFirst(reth),
        Position::Middle => Request::WriteMiddle,
        Position::Last => Request::WriteLast(imm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use roxe_wire::{ImmDt, RKey};

    const MTU: PathMtu = PathMtu::Mtu256;

    // clause: PSN-SPAN
    #[test]
    fn an_empty_message_is_one_packet() {
        assert_eq!(packets(0, MTU), 1);
        assert_eq!(payload_len(0, MTU, 0), 0);
        assert_eq!(position(0, 1), Position::Only);
    }

    #[test]
    fn a_multiple_of_the_mtu_ends_with_a_full_packet() {
        assert_eq!(packets(256, MTU), 1);
        assert_eq!(packets(512, MTU), 2);
        assert_eq!(payload_len(512, MTU, 1), 256);
        assert_eq!(packets(513, MTU), 3);
        assert_eq!(payload_len(513, MTU, 2), 1);
    }

    #[test]
    fn the_longest_message_fits_the_arithmetic() {
        let n = packets(MAX_MESSAGE, MTU);
        assert_eq!(n, 1 << 23);
        assert_eq!(offset(n - 1, MTU), MAX_MESSAGE - 256);
        assert_eq!(payload_len(MAX_MESSAGE, MTU, n - 1), 256);
    }

    // clause: SEND-TAIL
    #[test]
    fn only_the_last_packet_carries_the_tail_and_only_the_first_the_address() {
        let op = SendOp::WriteImm { remote_addr: 7, rkey: RKey(8), imm: ImmDt([1; 4]) };
        let reth = Reth { va: 7, rkey: RKey(8), dma_len: 700 };
        let sequence = [0, 1, 2].map(|i| request(&op, 700, position(i, 3)));
        let expected = [Request::WriteFirst(reth), Request::WriteMiddle, Request::WriteLast(Some(ImmDt([1; 4])))];
        assert_eq!(sequence, expected.map(Some));
        assert_eq!(request(&SendOp::SendInvalidate(RKey(3)), 0, Position::First), Some(Request::SendFirst));
        let tail = SendTail::Invalidate(Ieth(RKey(3)));
        assert_eq!(request(&SendOp::SendInvalidate(RKey(3)), 0, Position::Last), Some(Request::SendLast(tail)));
    }

    // clause: ATOMIC-OPERANDS
    #[test]
    fn atomics_map_their_operands() {
        let op = SendOp::CompareSwap { remote_addr: 8, rkey: RKey(1), compare: 3, swap: 4 };
        let eth = AtomicEth { va: 8, rkey: RKey(1), swap_or_add: 4, compare: 3 };
        assert_eq!(request(&op, 8, Position::Only), Some(Request::CompareSwap(eth)));
        let op = SendOp::FetchAdd { remote_addr: 8, rkey: RKey(1), add: 5 };
        let eth = AtomicEth { va: 8, rkey: RKey(1), swap_or_add: 5, compare: 0 };
        assert_eq!(request(&op, 8, Position::Only), Some(Request::FetchAdd(eth)));
    }

    // clause: RETRY-READ-TAIL
    #[test]
    fn a_retried_read_asks_for_a_tail_of_the_original_request() {
        let reth = Reth { va: 0x1000, rkey: RKey(1), dma_len: 100 * 256 - 6 };
        let n = packets(reth.dma_len, MTU);
        assert_eq!(read_chunk_end(0, n, MTU), 64);
        assert_eq!(read_part(reth, MTU, 0, 64), Reth { dma_len: 64 * 256, ..reth });
        assert_eq!(read_chunk_end(63, n, MTU), 64);
        let last = Reth { va: 0x1000 + 63 * 256, dma_len: 256, ..reth };
        assert_eq!(read_part(reth, MTU, 63, 64), last);
        assert_eq!(read_chunk_end(64, n, MTU), 100);
        let rest = Reth { va: 0x1000 + 64 * 256, dma_len: 36 * 256 - 6, ..reth };
        assert_eq!(read_part(reth, MTU, 64, 100), rest);
        assert_eq!(read_chunk_end(0, 1000, PathMtu::Mtu4096), 32);
    }

    proptest! {
        /// The packets of a message partition it.
        // clause: PSN-SPAN
        #[test]
        fn packets_partition_the_message(length in 0u32..100_000, code in 1u8..=5) {
            let mtu = PathMtu::from_code(code).expect("a code");
            let n = packets(length, mtu);
            let mut at = 0;
            for i in 0..n {
                prop_assert_eq!(offset(i, mtu), at);
                let len = payload_len(length, mtu, i);
                prop_assert!(len == mtu.bytes() || matches!(position(i, n), Position::Only | Position::Last));
                at += len;
            }
            prop_assert_eq!(at, length);
        }
    }
}
