//! RC without failures: every operation, size, MTU and list; signaling; PSN wrap.

use super::*;
use roxe_sim::host::LEAST_COST;
use roxe_sim::wire::Batch;
use roxe_transport::wr::{WcExtra, WcOpcode};
use roxe_wire::{Aeth, PathMtu, RKey, Reth, Syndrome};

fn pair_of(path_mtu: PathMtu) -> Pair {
    Pair::new(Setup { path_mtu, log: false, ..Setup::default() })
}

/// Returns the sizes at which segmentation changes.
fn sizes(mtu: PathMtu) -> [u32; 8] {
    let mtu = mtu.bytes();
    [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu, 1 << 16, 1 << 20]
}

// clause: MTU-PATH, WC-BYTE-LEN
#[test]
fn sends_of_every_size_arrive_at_every_mtu() {
    for mtu in PathMtu::ALL {
        let mut p = pair_of(mtu);
        let (src, dst) = (filled(&mut p, A, 1 << 20), blank(&mut p, B, 1 << 20));
        for len in sizes(mtu) {
            p.end(B).host.memory.bytes_mut(dst).fill(0);
            recv(&mut p, B, 7, &[dst.all()]);
            post(&mut p, A, 1, SendOp::Send, &[src.sge(0, len)]);
            p.run();
            assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
            let cqe = one_recv(&mut p, B);
            assert_eq!((cqe.wr_id, cqe.status, cqe.byte_len), (7, WcStatus::Success, len));
            assert_eq!((cqe.opcode, cqe.extra), (WcOpcode::Recv, WcExtra::None));
            let n = len as usize;
            assert_eq!(bytes(&p, B, dst)[..n], bytes(&p, A, src)[..n], "{len} bytes at {mtu:?}");
            assert!(bytes(&p, B, dst)[n..].iter().all(|&b| b == 0), "{len} bytes at {mtu:?}");
            p.assert_settled();
        }
    }
}

#[test]
fn writes_of_every_size_arrive_at_every_mtu() {
    for mtu in PathMtu::ALL {
        let mut p = pair_of(mtu);
        let (src, dst) = (filled(&mut p, A, 1 << 20), blank(&mut p, B, 1 << 20));
        for len in sizes(mtu) {
            p.end(B).host.memory.bytes_mut(dst).fill(0);
            post(&mut p, A, 1, write_to(dst), &[src.sge(0, len)]);
            p.run();
            assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
            assert_eq!(p.recv_done(B), None);
            let n = len as usize;
            assert_eq!(bytes(&p, B, dst)[..n], bytes(&p, A, src)[..n], "{len} bytes at {mtu:?}");
            assert!(bytes(&p, B, dst)[n..].iter().all(|&b| b == 0), "{len} bytes at {mtu:?}");
            p.assert_settled();
        }
    }
}

// clause: WC-BYTE-LEN
#[test]
fn reads_of_every_size_arrive_at_every_mtu() {
    for mtu in PathMtu::ALL {
        let mut p = pair_of(mtu);
        let (dst, src) = (blank(&mut p, A, 1 << 20), filled(&mut p, B, 1 << 20));
        for len in sizes(mtu) {
            p.end(A).host.memory.bytes_mut(dst).fill(0);
            post(&mut p, A, 1, read_from(src), &[dst.sge(0, len)]);
            p.run();
            let cqe = p.send_done(A).expect("completed");
            assert_eq!((cqe.status, cqe.opcode, cqe.byte_len), (WcStatus::Success, WcOpcode::RdmaRead, len));
            let n = len as usize;
            assert_eq!(bytes(&p, A, dst)[..n], bytes(&p, B, src)[..n], "{len} bytes at {mtu:?}");
            assert!(bytes(&p, A, dst)[n..].iter().all(|&b| b == 0), "{len} bytes at {mtu:?}");
            p.assert_settled();
        }
    }
}

/// Returns the packets of both ends for `op` on `len` bytes.
fn packets_of(joins: bool, mtu: PathMtu, op: fn(Mr) -> SendOp, len: u32) -> Vec<(Peer, Header, usize)> {
    let mut p = Pair::new(Setup { path_mtu: mtu, joins, flow_limit: Some(40_000), ..Setup::default() });
    let (here, there) = (filled(&mut p, A, 1 << 17), filled(&mut p, B, 1 << 17));
    recv(&mut p, B, 1, &[there.all()]);
    post(&mut p, A, 1, op(there), &[here.sge(0, len)]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
    p.log.iter().map(|packet| (packet.from, packet.header, packet.len)).collect()
}

// clause: SEND-ASK-MIDDLE
#[test]
fn joined_packets_equal_single_packets() {
    let ops: [fn(Mr) -> SendOp; 3] = [|_| SendOp::Send, write_to, read_from];
    for mtu in [PathMtu::Mtu256, PathMtu::Mtu1024] {
        for packets in [2, 3, 4, 5, 16, 64, 100] {
            let len = packets * mtu.bytes();
            for (op, len) in ops.into_iter().flat_map(|op| [len - 1, len, len + 1].map(|len| (op, len))) {
                assert_eq!(packets_of(true, mtu, op, len), packets_of(false, mtu, op, len), "{len} bytes at {mtu:?}");
            }
        }
    }
}

/// Returns the packets that leave for a WRITE of 64 packets, of which only the first `readable`
/// bytes can be read.
fn packets_before_fault(joins: bool, readable: u32) -> Vec<Vec<u8>> {
    let mut p = Pair::new(Setup::default());
    let (here, there) = (filled(&mut p, A, 1 << 14), blank(&mut p, B, 1 << 14));
    let (good, rest) = (here.sge(0, readable), here.sge(readable, (1 << 14) - readable));
    post(&mut p, A, 1, write_to(there), &[good, Sge { lkey: roxe_wire::LKey(!rest.lkey.0), ..rest }]);
    let (world, mut batch) = (&mut *p, Batch::default());
    let end = &mut world.ends[0];
    let _ = end.qp.poll_transmit(&mut end.host, &mut batch.open(&mut world.wire.pool, 64, joins, 0));
    assert_eq!(end.qp.state(), QpState::Err);
    batch.drain().map(|(.., bytes)| bytes).collect()
}

// clause: SEND-LOCAL-FAULT
#[test]
fn source_fault_in_the_middle_sends_earlier_packets() {
    for packets in [2, 3, 30, 62] {
        let sent = packets_before_fault(true, packets * 256 + 7);
        assert_eq!(sent.len(), packets as usize);
        assert!(sent == packets_before_fault(false, packets * 256 + 7), "{packets} packets");
    }
}

// clause: ATOMIC-RESULT, ATOMIC-NATIVE
#[test]
fn atomics_change_the_word_and_return_the_old_one() {
    let mut p = Pair::new(Setup::default());
    let (old, word) = (blank(&mut p, A, 32), blank(&mut p, B, 8));
    let cas = |compare, swap| SendOp::CompareSwap { remote_addr: word.addr, rkey: word.rkey(), compare, swap };
    post(&mut p, A, 1, add_to(word, u64::MAX), &[old.sge(0, 8)]);
    post(&mut p, A, 2, add_to(word, 0x1_0000_0002), &[old.sge(8, 8)]);
    post(&mut p, A, 3, cas(5, 77), &[old.sge(16, 8)]);
    post(&mut p, A, 4, cas(0x1_0000_0001, 78), &[old.sge(24, 8)]);
    p.run();
    let done: Vec<_> = core::iter::from_fn(|| p.send_done(A)).map(|c| (c.status, c.opcode, c.byte_len)).collect();
    let ok = |opcode| (WcStatus::Success, opcode, 8);
    assert_eq!(
        done,
        [ok(WcOpcode::FetchAdd), ok(WcOpcode::FetchAdd), ok(WcOpcode::CompareSwap), ok(WcOpcode::CompareSwap)]
    );
    let memory = &p.ends[0].host.memory;
    let olds = [0, 8, 16, 24].map(|at| memory.word(old, at));
    assert_eq!(olds, [0, u64::MAX, 0x1_0000_0001, 0x1_0000_0001]);
    assert_eq!(p.ends[1].host.memory.word(word, 0), 78);
    p.assert_settled();
}

// clause: IMM-OPAQUE
#[test]
fn immediate_data_and_flags_reach_the_receiver() {
    let mut p = Pair::new(Setup::default());
    let (src, dst) = (filled(&mut p, A, 600), blank(&mut p, B, 600));
    recv(&mut p, B, 1, &[dst.all()]);
    recv(&mut p, B, 2, &[]);
    recv(&mut p, B, 3, &[dst.all()]);
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    post_with(&mut p, A, 1, SendOp::SendImm(imm(0xdead_beef)), flags, &[src.all()]);
    let write = SendOp::WriteImm { remote_addr: dst.addr, rkey: dst.rkey(), imm: imm(42) };
    post(&mut p, A, 2, write, &[src.all()]);
    post(&mut p, A, 3, SendOp::Send, &[src.sge(0, 0)]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=3, WcStatus::Success));
    let first = p.recv_done(B).expect("completed");
    assert_eq!((first.byte_len, first.extra, first.solicited), (600, WcExtra::Imm(imm(0xdead_beef)), true));
    let second = p.recv_done(B).expect("completed");
    assert_eq!((second.wr_id, second.opcode), (2, WcOpcode::RecvRdmaWithImm));
    assert_eq!((second.byte_len, second.extra, second.solicited), (600, WcExtra::Imm(imm(42)), false));
    assert_eq!(one_recv(&mut p, B).byte_len, 0);
    assert_eq!(bytes(&p, B, dst), bytes(&p, A, src));
}

#[test]
fn write_with_immediate_and_no_data_takes_a_receive() {
    let mut p = Pair::new(Setup::default());
    recv(&mut p, B, 9, &[]);
    // A zero-length RDMA ignores key and address (IBA C9-88).
    post(&mut p, A, 1, SendOp::WriteImm { remote_addr: 3, rkey: RKey(77), imm: imm(1) }, &[]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
    let cqe = one_recv(&mut p, B);
    assert_eq!((cqe.wr_id, cqe.byte_len, cqe.extra), (9, 0, WcExtra::Imm(imm(1))));
}

// clause: CHECK-KEY-EMPTY
#[test]
fn zero_length_reads_and_writes_ignore_key_and_address() {
    let mut p = Pair::new(Setup::default());
    post(&mut p, A, 1, SendOp::Read { remote_addr: u64::MAX, rkey: RKey(9) }, &[]);
    post(&mut p, A, 2, SendOp::Write { remote_addr: u64::MAX, rkey: RKey(9) }, &[]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
    p.assert_settled();
}

#[test]
fn sge_lists_may_split_a_message_anywhere() {
    let mut p = Pair::new(Setup::default());
    let (src, dst) = (filled(&mut p, A, 2000), blank(&mut p, B, 2000));
    let from = [src.sge(0, 1), src.sge(1, 255), src.sge(256, 3), src.sge(259, 741)];
    let to = [dst.sge(0, 300), dst.sge(300, 0), dst.sge(300, 213), dst.sge(513, 1487)];
    recv(&mut p, B, 1, &to);
    post(&mut p, A, 1, SendOp::Send, &from);
    p.run();
    assert_eq!(one_recv(&mut p, B).byte_len, 1000);
    assert_eq!(bytes(&p, B, dst)[..1000], bytes(&p, A, src)[..1000]);

    // READ scatters into a list as well.
    let back = blank(&mut p, A, 2000);
    let landing = [back.sge(0, 7), back.sge(7, 256), back.sge(263, 1), back.sge(264, 736)];
    post(&mut p, A, 2, read_from(dst), &landing);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
    assert_eq!(bytes(&p, A, back)[..1000], bytes(&p, A, src)[..1000]);
}

// clause: SEND-INLINE
#[test]
fn inline_data_is_copied_at_post() {
    let mut p = Pair::new(Setup::default());
    let dst = blank(&mut p, B, 128);
    for len in [0, 1, 63, 64] {
        recv(&mut p, B, 1, &[dst.all()]);
        let mut data = vec![0x3c; len];
        let req = SendRequest {
            wr_id: 1,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            data: SendData::Inline(&data),
            ud: None,
        };
        assert_eq!(p.post_send(A, &req), Ok(()));
        data.fill(0);
        p.run();
        assert_eq!(one_recv(&mut p, B).byte_len as usize, len);
        assert!(bytes(&p, B, dst)[..len].iter().all(|&b| b == 0x3c));
    }
    let long = [0; 65];
    let req =
        SendRequest { wr_id: 1, op: SendOp::Send, flags: SendFlags::empty(), data: SendData::Inline(&long), ud: None };
    assert_eq!(p.post_send(A, &req), Err(PostError::InlineTooLong));
}

// clause: SEND-INLINE
#[test]
fn inline_writes_arrive_and_inline_reads_are_refused() {
    let mut p = Pair::new(Setup::default());
    let dst = blank(&mut p, B, 64);
    let req = |op| SendRequest {
        wr_id: 1,
        op,
        flags: SendFlags::SIGNALED,
        data: SendData::Inline(b"written inline"),
        ud: None,
    };
    assert_eq!(p.post_send(A, &req(write_to(dst))), Ok(()));
    p.run();
    assert_eq!(bytes(&p, B, dst)[..14], *b"written inline");
    assert!(p.post_send(A, &req(read_from(dst))).is_err());
    assert!(p.post_send(A, &req(add_to(dst, 1))).is_err());
}

// clause: WC-SIGNALED
#[test]
fn only_signaled_requests_report_success() {
    let mut p = Pair::new(Setup::default());
    let dst = blank(&mut p, B, 64);
    for id in 1..=9 {
        let flags = if id % 3 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        post_with(&mut p, A, id, write_to(dst), flags, &[]);
    }
    p.run();
    assert_eq!(sends(&mut p, A), [(3, WcStatus::Success), (6, WcStatus::Success), (9, WcStatus::Success)]);
    // Unsignaled requests have freed their queue entries: the whole depth is available again.
    for id in 0..64 {
        post_with(&mut p, A, id, write_to(dst), SendFlags::empty(), &[]);
    }
    let full = try_post(&mut p, A, 64, write_to(dst), SendFlags::empty(), &[]);
    assert_eq!(full, Err(PostError::QueueFull));
    p.run();
    assert_eq!(sends(&mut p, A), []);
    p.assert_settled();
}

// clause: WC-SIGNALED
#[test]
fn sq_sig_all_reports_every_request() {
    let mut p = Pair::new(Setup { sq_sig_all: true, ..Setup::default() });
    let dst = blank(&mut p, B, 64);
    for id in 1..=3 {
        post_with(&mut p, A, id, write_to(dst), SendFlags::empty(), &[]);
    }
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=3, WcStatus::Success));
}

// clause: PSN-24BIT, PSN-SPAN, PSN-START
#[test]
fn psns_wrap_in_both_directions() {
    let mut p = Pair::new(Setup { psn: [0xff_fffe, 0xff_ffff], ..Setup::default() });
    let (a, b) = (filled(&mut p, A, 4096), filled(&mut p, B, 4096));
    let (dst_a, dst_b) = (blank(&mut p, A, 4096), blank(&mut p, B, 4096));
    for _ in 0..3 {
        post(&mut p, A, 1, write_to(dst_b), &[a.sge(0, 1000)]);
        post(&mut p, A, 2, read_from(b), &[dst_a.sge(0, 1000)]);
        post(&mut p, B, 3, write_to(dst_a), &[b.sge(0, 700)]);
        p.run();
    }
    let ok = [(1, WcStatus::Success), (2, WcStatus::Success)];
    assert_eq!(sends(&mut p, A), [ok, ok, ok].concat());
    assert_eq!(sends(&mut p, B), vec![(3, WcStatus::Success); 3]);
    // Each round is a WRITE of four packets and a READ REQUEST that occupies four PSNs.
    assert_eq!(request_psns(&p, A), [0xff_fffe, 0xff_ffff, 0, 1, 2, 6, 7, 8, 9, 10, 14, 15, 16, 17, 18]);
    assert_eq!(request_psns(&p, B), [0xff_ffff, 0, 1, 2, 3, 4, 5, 6, 7]);
    p.assert_settled();
}

// clause: MSN-COUNT
#[test]
fn acks_carry_the_msn() {
    let mut p = Pair::new(Setup::default());
    let (a, b) = (filled(&mut p, A, 4096), filled(&mut p, B, 4096));
    // One message at a time, so that no acknowledgement is coalesced.
    post(&mut p, A, 1, write_to(b), &[a.sge(0, 1000)]);
    p.run();
    post(&mut p, A, 2, read_from(b), &[a.sge(0, 1000)]);
    p.run();
    post(&mut p, A, 3, add_to(b, 1), &[a.sge(0, 8)]);
    p.run();
    let msns: Vec<_> = responses(&p, B).iter().filter_map(|(r, psn)| aeth(r).map(|a| (*psn, a.msn.get()))).collect();
    // WRITE is 100..=103, READ 104..=107 (first and last carry an AETH), the atomic 108.
    assert_eq!(msns, [(103, 1), (104, 2), (107, 2), (108, 3)]);
}

fn aeth(response: &Response) -> Option<Aeth> {
    match response {
        Response::ReadFirst(a) | Response::ReadLast(a) | Response::ReadOnly(a) | Response::Ack(a) => Some(*a),
        Response::AtomicAck(a, _) => Some(*a),
        Response::ReadMiddle => None,
    }
}

// clause: ACK-NO-LIMIT
#[test]
fn acks_carry_unlimited_credits() {
    let mut p = Pair::new(Setup::default());
    let dst = blank(&mut p, B, 64);
    post(&mut p, A, 1, write_to(dst), &[]);
    p.run();
    let [(Response::Ack(aeth), 100)] = responses(&p, B)[..] else { panic!("{:?}", responses(&p, B)) };
    assert_eq!(aeth.syndrome, Syndrome::ACK_UNLIMITED);
}

// clause: INVALIDATE-KEY
#[test]
fn send_with_invalidate_invalidates_the_key() {
    let mut p = Pair::new(Setup::default());
    let (src, dst, window) = (filled(&mut p, A, 300), blank(&mut p, B, 300), blank(&mut p, B, 64));
    p.end(B).host.memory.make_window(window);
    recv(&mut p, B, 1, &[dst.all()]);
    post(&mut p, A, 1, SendOp::SendInvalidate(window.rkey()), &[src.all()]);
    p.run();
    assert_eq!(one_recv(&mut p, B).extra, WcExtra::Invalidated(window.rkey()));
    assert_eq!(bytes(&p, B, dst), bytes(&p, A, src));
    post(&mut p, A, 2, write_to(window), &[src.sge(0, 8)]);
    p.run();
    assert_eq!(sends(&mut p, A), [(1, WcStatus::Success), (2, WcStatus::RemAccessErr)]);
}

#[test]
fn both_sides_may_send_at_once() {
    let mut p = Pair::new(Setup::default());
    let (a, b) = (filled(&mut p, A, 8192), filled(&mut p, B, 8192));
    let (to_a, to_b) = (blank(&mut p, A, 8192), blank(&mut p, B, 8192));
    recv(&mut p, A, 10, &[to_a.all()]);
    recv(&mut p, B, 20, &[to_b.all()]);
    post(&mut p, A, 1, SendOp::Send, &[a.all()]);
    post(&mut p, B, 2, SendOp::Send, &[b.all()]);
    p.run();
    assert_eq!(
        (sends(&mut p, A), sends(&mut p, B)),
        (statuses(1..=1, WcStatus::Success), statuses(2..=2, WcStatus::Success))
    );
    assert_eq!((one_recv(&mut p, A).wr_id, one_recv(&mut p, B).wr_id), (10, 20));
    assert_eq!((bytes(&p, A, to_a), bytes(&p, B, to_b)), (bytes(&p, B, b), bytes(&p, A, a)));
    p.assert_settled();
}

// clause: READ-AFTER-WRITE
#[test]
fn read_returns_the_bytes_of_an_earlier_write() {
    let mut p = Pair::new(Setup::default());
    let (src, dst, back) = (filled(&mut p, A, 3000), blank(&mut p, B, 3000), blank(&mut p, A, 3000));
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    post(&mut p, A, 2, read_from(dst), &[back.all()]);
    p.run();
    assert_eq!(bytes(&p, A, back), bytes(&p, A, src));
}

#[test]
fn narrow_window_slows_but_does_not_stop() {
    for limit in [1, LEAST_COST, 2000, 10_000] {
        let mut p = Pair::new(Setup { flow_limit: Some(limit), ..Setup::default() });
        let (src, dst) = (filled(&mut p, A, 1 << 16), blank(&mut p, B, 1 << 16));
        post(&mut p, A, 1, write_to(dst), &[src.all()]);
        p.run();
        assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
        assert_eq!(bytes(&p, B, dst), bytes(&p, A, src));
        // Only a packet sent with nothing else in flight may exceed the limit.
        assert!(p.ends[0].host.flow.peak <= limit.max(LEAST_COST), "{} > {limit}", p.ends[0].host.flow.peak);
        assert_eq!(p.timeouts, [0, 0], "the window must not be reopened by a timer");
        p.assert_settled();
    }
}

#[test]
fn one_packet_per_batch_is_enough() {
    let mut p = Pair::new(Setup { batch: 1, ..Setup::default() });
    let (a, b) = (filled(&mut p, A, 5000), filled(&mut p, B, 5000));
    let (to_a, to_b) = (blank(&mut p, A, 5000), blank(&mut p, B, 5000));
    post(&mut p, A, 1, write_to(to_b), &[a.all()]);
    post(&mut p, A, 2, read_from(b), &[to_a.all()]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
    assert_eq!((bytes(&p, A, to_a), bytes(&p, B, to_b)), (bytes(&p, B, b), bytes(&p, A, a)));
    p.assert_settled();
}

// clause: SEND-FENCE
#[test]
fn fence_waits_for_reads() {
    let run = |flags| {
        let mut p = Pair::new(Setup::default());
        let (a, b) = (filled(&mut p, A, 4096), filled(&mut p, B, 4096));
        post(&mut p, A, 1, read_from(b), &[a.sge(0, 100)]);
        post_with(&mut p, A, 2, write_to(b), flags, &[a.sge(0, 100)]);
        p.run();
        assert_eq!(p.log.iter().filter(|l| l.from == A).count(), 2);
        let sent_at = |from: Peer, n: usize| p.log.iter().filter(|l| l.from == from).nth(n).expect("sent").at;
        sent_at(A, 1) > sent_at(B, 0)
    };
    assert!(!run(SendFlags::SIGNALED), "without a fence the WRITE does not wait");
    assert!(run(SendFlags::SIGNALED | SendFlags::FENCE), "with a fence it waits for the READ's data");
}

// clause: SEND-RD-ATOMIC
#[test]
fn max_rd_atomic_limits_outstanding_reads() {
    for max_rd_atomic in [1, 2, 4] {
        let mut p = Pair::new(Setup { max_rd_atomic, max_dest_rd_atomic: max_rd_atomic, ..Setup::default() });
        let (a, b) = (filled(&mut p, A, 4096), filled(&mut p, B, 4096));
        for id in 1..=8 {
            let op = if id % 2 == 0 { read_from(b) } else { add_to(b, 1) };
            post(&mut p, A, id, op, &[a.sge(0, 8)]);
        }
        p.transmit_all();
        assert_eq!(request_psns(&p, A).len(), usize::from(max_rd_atomic));
        p.run();
        assert_eq!(sends(&mut p, A), statuses(1..=8, WcStatus::Success));
        p.assert_settled();
    }
}

// clause: SEND-RD-ATOMIC-0
#[test]
fn reads_and_atomics_fail_with_max_rd_atomic_0() {
    let mut p = Pair::new(Setup { max_rd_atomic: 0, ..Setup::default() });
    let (a, b) = (filled(&mut p, A, 64), filled(&mut p, B, 64));
    if try_post(&mut p, A, 1, read_from(b), SendFlags::SIGNALED, &[a.sge(0, 8)]).is_ok() {
        p.run();
        assert_eq!(sends(&mut p, A), [(1, WcStatus::LocQpOpErr)]);
    }
    assert_eq!(request_psns(&p, A), []);
}

// clause: SRQ-ORDER, SRQ-LIMIT
#[test]
fn srq_is_fifo_and_raises_its_limit_event_once() {
    let mut p = Pair::new(Setup { srq: true, ..Setup::default() });
    let (src, dst) = (filled(&mut p, A, 600), blank(&mut p, B, 4000));
    for id in 0..4 {
        recv(&mut p, B, id, &[dst.sge(1000 * id as u32, 1000)]);
    }
    p.end(B).host.srq.arm(3);
    for id in 0..4 {
        post(&mut p, A, id, SendOp::Send, &[src.all()]);
    }
    p.run();
    assert_eq!(recvs(&mut p, B), statuses(0..=3, WcStatus::Success));
    assert_eq!((p.end(B).host.srq.limit_events, p.end(B).host.srq.len()), (1, 0));
    for id in 0..4 {
        assert_eq!(bytes(&p, B, dst)[1000 * id..1000 * id + 600], bytes(&p, A, src)[..]);
    }
}

/// Returns the packets that B sends in one call after a request, with `posted` WRITEs of one packet
/// to send.
fn order_at_b(batch: usize, posted: u32, acks_last: bool) -> Vec<Kind> {
    let mut p = alone(B, Setup { batch, ..Setup::default() });
    p.ends[B as usize].qp.set_acks_last(acks_last);
    let (mr, src) = (blank(&mut p, B, 64), filled(&mut p, B, 64));
    let reth = Reth { va: mr.addr, rkey: mr.rkey(), dma_len: 4 };
    p.inject(B, &request(B, 100, Request::WriteOnly(reth, None)), b"abcd");
    for n in 0..posted {
        post(&mut p, B, n.into(), write_to(mr), &[src.sge(0, 8)]);
    }
    p.transmit(B);
    sent(&p, B).into_iter().map(|(kind, _)| kind).collect()
}

// clause: ACK-BEFORE-REQUESTS
#[test]
fn lone_ack_leaves_before_requests() {
    let is_ack = |kind: &Kind| matches!(kind, Kind::RcResponse(Response::Ack(_)));
    for (batch, posted) in [(64, 0), (64, 1), (64, 5), (4, 10)] {
        let kinds = order_at_b(batch, posted, false);
        assert_eq!(kinds.iter().position(is_ack), Some(0), "{posted} requests in batches of {batch}");
        assert_eq!(kinds.len() as u32, posted + 1);
    }
}

/// An acknowledgement must not wait until all queued requests are sent.
// clause: ACK-BEFORE-REQUESTS
#[test]
fn lone_ack_set_last_lets_one_batch_go_first() {
    let is_ack = |kind: &Kind| matches!(kind, Kind::RcResponse(Response::Ack(_)));
    for (batch, posted, position) in [(64, 0, 0), (64, 1, 1), (64, 5, 5), (4, 3, 3), (4, 4, 4), (4, 10, 4)] {
        let kinds = order_at_b(batch, posted, true);
        assert_eq!(kinds.iter().position(is_ack), Some(position), "{posted} requests in batches of {batch}");
        assert_eq!(kinds.len() as u32, posted + 1);
    }
}
