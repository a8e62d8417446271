//! Segmentation of messages.

use super::*;
use proptest::prelude::*;
use roxe_wire::{ImmDt, RKey};

const MTU: PathMtu = PathMtu::Mtu256;

// clause: PSN-SPAN
#[test]
fn empty_message_is_one_packet() {
    assert_eq!(packets(0, MTU), 1);
    assert_eq!(payload_len(0, MTU, 0), 0);
    assert_eq!(position(0, 1), Position::Only);
}

#[test]
fn multiple_of_the_mtu_ends_with_a_full_packet() {
    assert_eq!(packets(256, MTU), 1);
    assert_eq!(packets(512, MTU), 2);
    assert_eq!(payload_len(512, MTU, 1), 256);
    assert_eq!(packets(513, MTU), 3);
    assert_eq!(payload_len(513, MTU, 2), 1);
}

#[test]
fn longest_message_does_not_overflow() {
    let n = packets(MAX_MESSAGE, MTU);
    assert_eq!(n, 1 << 23);
    assert_eq!(offset(n - 1, MTU), MAX_MESSAGE - 256);
    assert_eq!(payload_len(MAX_MESSAGE, MTU, n - 1), 256);
}

// clause: SEND-TAIL
#[test]
fn first_packet_has_reth_and_last_has_tail() {
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
fn retried_read_requests_a_tail_of_the_original() {
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
    // clause: PSN-SPAN
    #[test]
    fn packets_partition_the_message(length in 0u32..100_000, code in 1u8..=5) {
        let mtu = PathMtu::from_code(code).expect("the MTU code is valid");
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
