//! Both ends in one process, over UDP on the loopback interface.

use crate::common::*;
use roxe_provider::wire::{PathMtu, Qpn};
use roxe_provider::{CqInit, Cqe, SendFlags, SendOp, SendRequest, Service, WcOpcode, WcStatus};
use std::collections::HashSet;
use std::time::{Duration, Instant};

fn assert_ok(cqes: &[Cqe]) {
    for cqe in cqes {
        assert_eq!(cqe.status, WcStatus::Success, "{cqe:?}");
    }
}

/// Returns the index of the first IPv6 GID, if there is one.
fn ipv6_index(node: &Node) -> Option<u8> {
    node.context.gid_entries().iter().find(|entry| !entry.gid.is_ipv4()).map(|entry| entry.index)
}

fn exchange(index: u8, mtu: PathMtu) {
    let (a, b) = (Node::open(), Node::open());
    let (qa, qb) = pair(&a, &b, Service::Rc, index, mtu);
    for (n, len) in [0, 1, 7, 255, 256, 257, 4096, 4097, 65_536, 1_000_003].into_iter().enumerate() {
        let seed = n as u8;
        a.fill(0, len, seed);
        post_recv(&qb, 1, b.sge(0, len.max(1)));
        post(&qa, 2, SendOp::Send, a.sge(0, len));
        let (sent, received) = wait_both((&a, 1), (&b, 1));
        assert_ok(&sent);
        assert_ok(&received);
        assert_eq!(received[0].byte_len as usize, len);
        assert_eq!(b.bytes(0, len), pattern(len, seed), "{len} bytes");

        post(&qa, 3, write_to(&b, LEN / 2), a.sge(0, len));
        assert_ok(&a.wait(1));
        assert_eq!(b.bytes(LEN / 2, len), pattern(len, seed));

        b.fill(0, len, seed + 100);
        post(&qa, 4, read_from(&b, 0), a.sge(LEN / 2, len));
        assert_ok(&a.wait(1));
        assert_eq!(a.bytes(LEN / 2, len), pattern(len, seed + 100));
    }
    assert_eq!(counter(&a.context, "icrc_errors"), 0);
    assert_eq!(counter(&a.context, "malformed"), 0);
}

// clause: PATH-SOURCE
#[test]
fn rc_over_ipv6() {
    match ipv6_index(&Node::open()) {
        Some(index) => exchange(index, PathMtu::Mtu1024),
        None => no_ipv6(),
    }
}

#[test]
fn rc_messages_keep_order_with_full_window() {
    let (a, b) = (Node::open(), Node::open());
    let pairs: Vec<_> = (0..8).map(|_| pair(&a, &b, Service::Rc, 0, PathMtu::Mtu4096)).collect();
    for round in 0..4u64 {
        for (qa, _) in &pairs {
            (0..16).for_each(|n| post(qa, round * 16 + n, write_to(&b, 0), a.sge(0, 1 << 18)));
        }
        let done = a.wait(16 * pairs.len());
        assert_ok(&done);
        for (qa, _) in &pairs {
            let ids: Vec<_> = done.iter().filter(|cqe| cqe.qpn == qa.qpn()).map(|cqe| cqe.wr_id).collect();
            assert_eq!(ids, (round * 16..round * 16 + 16).collect::<Vec<_>>());
        }
    }
}

#[test]
fn uc_messages_pass_credit_window_whole() {
    let (a, b) = (Node::open(), Node::open());
    let (qa, qb) = pair(&a, &b, Service::Uc, 0, PathMtu::Mtu4096);
    let (count, len) = (100, 200_000);
    a.fill(0, len, 5);
    (0..count).for_each(|n| post_recv(&qb, n, b.sge(0, len)));
    for n in 0..count {
        post(&qa, n, SendOp::Send, a.sge(0, len));
    }
    let (sent, received) = wait_both((&a, count as usize), (&b, count as usize));
    assert_ok(&sent);
    assert_ok(&received);
    assert!(received.iter().map(|cqe| cqe.wr_id).eq(0..count));
    assert_eq!(b.bytes(0, len), pattern(len, 5));
}

#[test]
fn ud_datagrams_pass_credit_window_with_grh_and_source() {
    let (a, b) = (Node::open(), Node::open());
    let (qa, qb) = (a.qp(Service::Ud), b.qp(Service::Ud));
    activate(&qa);
    activate(&qb);
    let av = a.av(0, b.context.gid(1, 0).unwrap());
    a.fill(0, 4096, 9);
    for round in 0..20u64 {
        (0..100).for_each(|n| post_recv(&qb, n, b.sge(0, 4136)));
        for n in 0..100 {
            qa.post_send(&[datagram(round * 100 + n, av, qb.qpn(), &[a.sge(0, 4096)])]).unwrap();
        }
        let (sent, received) = wait_both((&a, 100), (&b, 100));
        assert_ok(&sent);
        assert_ok(&received);
        for cqe in received {
            assert_eq!((cqe.byte_len, cqe.src_qpn, cqe.grh), (4136, qa.qpn(), true));
            assert_eq!(cqe.opcode, WcOpcode::Recv);
        }
        assert_eq!(b.bytes(40, 4096), pattern(4096, 9));
        assert_eq!(b.bytes(32, 8), [127, 0, 0, 1, 127, 0, 0, 1]);
    }
}

#[test]
fn early_messages_are_kept_for_receives() {
    for service in [Service::Ud, Service::Uc] {
        assert!((0..10).any(|seed| early_messages_are_kept(service, seed)), "{service:?}");
    }
}

/// Returns true if messages that arrive before their receives are kept; false if this machine
/// stalls longer than they are kept. Uses new queue pairs, whose receives no other message takes.
fn early_messages_are_kept(service: Service, seed: u8) -> bool {
    let (a, b) = (Node::open(), Node::open());
    let (qa, qb) = match service {
        Service::Ud => (a.qp(service), b.qp(service)),
        _ => pair(&a, &b, service, 0, PathMtu::Mtu1024),
    };
    if service == Service::Ud {
        activate(&qa);
        activate(&qb);
    }
    let av = a.av(0, b.context.gid(1, 0).unwrap());
    let grh = if service == Service::Ud { 40 } else { 0 };
    a.fill(0, 3000, seed);
    for id in 0..3 {
        qa.post_send(&[datagram(id, av, qb.qpn(), &[a.sge(0, 3000)])]).unwrap();
    }
    assert_ok(&a.wait(3));
    b.cq.poll(1, |cqe| panic!("no receive is there: {cqe:?}")).unwrap();
    (0..3).for_each(|id| post_recv(&qb, id, b.sge(0, 3000 + grh)));
    arrives(&b, 3) && b.bytes(grh, 3000) == pattern(3000, seed)
}

/// Returns true if `count` successful completions arrive within a second.
fn arrives(node: &Node, count: usize) -> bool {
    let (start, mut got) = (Instant::now(), 0);
    while got < count && start.elapsed() < Duration::from_secs(1) {
        got += node.cq.poll(count - got, |cqe| assert_ok(&[*cqe])).unwrap();
    }
    got == count
}

#[test]
fn messages_without_receives_block_local_sender() {
    assert!((0..10).any(|_| the_sender_waits_for_receives()));
}

/// Sends more than may wait for a queue pair before the first receive is posted. Returns true if
/// all arrive; false if the machine stalls for 100 ms.
fn the_sender_waits_for_receives() -> bool {
    let (a, b) = (Node::open(), Node::open());
    let (qa, qb) = pair(&a, &b, Service::Uc, 0, PathMtu::Mtu4096);
    // After so many visits there may be a ring.
    for id in 0..400 {
        post_recv(&qb, id, b.sge(0, 8));
        post(&qa, id, SendOp::Send, a.sge(0, 8));
        wait_both((&a, 1), (&b, 1));
    }
    let (count, len) = (40, 200_000);
    (0..count).for_each(|n| post(&qa, n, SendOp::Send, a.sge(0, len)));
    let (mut sent, mut last) = (0, Instant::now());
    while sent < count as usize && last.elapsed() < Duration::from_millis(20) {
        let found = a.cq.poll(64, |cqe| assert_ok(&[*cqe])).unwrap();
        if found > 0 {
            (sent, last) = (sent + found, Instant::now());
        }
    }
    (0..count).for_each(|n| post_recv(&qb, n, b.sge(0, len)));
    arrives(&b, count as usize)
}

#[test]
fn datagrams_without_receiver_complete() {
    let a = Node::open();
    let qp = a.qp(Service::Ud);
    activate(&qp);
    let av = a.av(0, a.context.gid(1, 0).unwrap());
    for dest in [Qpn::new(0x00ff_0123), Qpn::GSI, Qpn::MULTICAST, Qpn::new(qp.qpn().get() ^ 1)] {
        for n in 0..500 {
            qp.post_send(&[datagram(n, av, dest, &[a.sge(0, 4096)])]).unwrap();
            assert_ok(&a.wait(1));
        }
    }
}

#[test]
fn ten_thousand_queue_pairs_work_with_distinct_numbers() {
    let (a, b) = (Node::open(), Node::open());
    let qps: Vec<_> = (0..10_000).map(|_| a.qp(Service::Rc)).collect();
    let numbers: HashSet<_> = qps.iter().map(|qp| qp.qpn()).collect();
    assert_eq!(numbers.len(), qps.len());
    let gid = a.context.gid(1, 0).unwrap();
    for (n, qp) in qps.iter().step_by(997).enumerate() {
        let other = b.qp(Service::Rc);
        connect(qp, a.av(0, gid), other.qpn(), PathMtu::Mtu1024);
        connect(&other, b.av(0, gid), qp.qpn(), PathMtu::Mtu1024);
        a.fill(0, 100, n as u8);
        post(qp, 1, write_to(&b, 0), a.sge(0, 100));
        assert_ok(&a.wait(1));
        assert_eq!(b.bytes(0, 100), pattern(100, n as u8));
    }
}

#[test]
fn destroyed_qp_under_traffic_leaves_others_working() {
    let (a, b) = (Node::open(), Node::open());
    let (survivor, _peer) = pair(&a, &b, Service::Rc, 0, PathMtu::Mtu4096);
    for round in 0..20 {
        let (qa, qb) = pair(&a, &b, Service::Rc, 0, PathMtu::Mtu4096);
        (0..8).for_each(|n| post(&qa, n, write_to(&b, 0), a.sge(0, 1 << 19)));
        if round % 2 == 0 {
            qb.destroy()
        } else {
            qa.destroy()
        }
        qa.destroy();
        a.cq.poll(4096, |_| {}).unwrap();
        post(&survivor, 1000 + round, write_to(&b, LEN / 2), a.sge(0, 1 << 19));
        while !a.wait(1).iter().any(|cqe| cqe.qpn == survivor.qpn()) {}
    }
}

#[test]
fn event_arrives_without_polling() {
    let (a, b) = (Node::open(), Node::open());
    let channel = b.context.create_comp_channel().unwrap();
    let init = CqInit { cqe: 16, channel: Some(channel.clone()), user_context: 42, ..CqInit::default() };
    let b = Node { cq: b.context.create_cq(init).unwrap(), ..b };
    let (qa, qb) = pair(&a, &b, Service::Rc, 0, PathMtu::Mtu1024);
    for n in 0..200 {
        post_recv(&qb, n, b.sge(0, 64));
        b.cq.req_notify(false);
        post(&qa, n, SendOp::Send, a.sge(0, 64));
        assert_eq!(channel.get_event().unwrap(), 42);
        assert_ok(&b.wait(1));
        assert_ok(&a.wait(1));
    }
}

#[test]
fn coalesced_requests_leave_without_polling() {
    let (a, b) = (Node::open(), Node::open());
    let channel = a.context.create_comp_channel().unwrap();
    let init = CqInit { cqe: 16, channel: Some(channel.clone()), user_context: 43, ..CqInit::default() };
    let a = Node { cq: a.context.create_cq(init).unwrap(), ..a };
    let (qa, _qb) = pair(&a, &b, Service::Rc, 0, PathMtu::Mtu1024);
    for round in 0..50 {
        a.cq.req_notify(false);
        // Some of those after the first 16 wait, and no request follows the last one, which alone
        // is signaled.
        for n in 1..=60 {
            let flags = if n == 60 { SendFlags::SIGNALED } else { SendFlags::empty() };
            let sges = [a.sge(round, 64)];
            qa.post_send(&[SendRequest { flags, ..request(n, write_to(&b, 0), &sges) }]).unwrap();
        }
        assert_eq!(channel.get_event().unwrap(), 43);
        assert_ok(&a.wait(1));
    }
}
