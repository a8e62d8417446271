//! Threads with completion queues of their own, and queues shared by threads. Queue pairs of each
//! thread have an engine of their own if there are two processors.

use crate::common::{Node, connect, counter, pair, pattern, post, post_recv, write_to};
use roxe_provider::wire::{PathMtu, Qpn};
use roxe_provider::{CqInit, Qp, QpCaps, QpInit, SendOp, Service, WcStatus};
use std::sync::{Arc, Barrier};
use std::thread;

/// Bits of a QPN that differ within a slot.
const IN_SLOT: u32 = 12;

fn open_in_a_thread() -> Node {
    let open = || {
        let node = Node::open();
        (node.context, node.pd, node.cq, node.mr, node.memory as usize)
    };
    let (context, pd, cq, mr, memory) = thread::scope(|scope| scope.spawn(open).join().unwrap());
    Node { context, pd, cq, mr, memory: memory as *mut u8 }
}

/// Returns nodes of two threads with different engines, whatever engines other tests have taken.
fn nodes_of_two_engines() -> Option<(Node, Node)> {
    if thread::available_parallelism().map_or(1, Into::into) < 2 {
        eprintln!("skipped: with one processor all threads have one engine");
        return None;
    }
    let slot = |node: &Node| node.qp(Service::Rc).qpn().get() >> IN_SLOT;
    let first = open_in_a_thread();
    let second = (0..64).map(|_| open_in_a_thread()).find(|node| slot(node) != slot(&first));
    Some((first, second.expect("no thread has another engine")))
}

fn sends(from: (&Node, &Qp), to: (&Node, &Qp), count: u64) {
    for n in 0..count {
        post_recv(to.1, n, to.0.sge(4096, 64));
        post(from.1, n, SendOp::Send, from.0.sge(0, 64));
        assert_eq!(from.0.wait(1)[0].status, WcStatus::Success);
        assert_eq!(to.0.wait(1)[0].status, WcStatus::Success);
    }
}

#[test]
fn qps_of_two_threads_exchange_and_counters_add_up() {
    let Some((a, b)) = nodes_of_two_engines() else { return };
    for service in [Service::Rc, Service::Uc] {
        let (qa, qb) = pair(&a, &b, service, 0, PathMtu::Mtu1024);
        a.fill(0, 64, 5);
        sends((&a, &qa), (&b, &qb), 100);
        assert_eq!(b.bytes(4096, 64), pattern(64, 5));
    }
    assert!(counter(&a.context, "received_packets") >= 200);
}

#[test]
fn threads_with_own_queues_work_in_parallel() {
    const MESSAGES: u64 = 2000;
    let start = Barrier::new(4);
    let work = || {
        let node = Node::open();
        let (from, to) = pair(&node, &node, Service::Rc, 0, PathMtu::Mtu1024);
        start.wait();
        for n in 0..MESSAGES {
            node.fill(0, 256, n as u8);
            post(&from, n, write_to(&node, 8192), node.sge(0, 256));
            assert_eq!(node.wait(1)[0].status, WcStatus::Success);
            assert_eq!(node.bytes(8192, 256), pattern(256, n as u8));
        }
        drop(to);
    };
    thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(work)));
}

#[test]
fn channel_serves_queues_of_two_threads() {
    let Some((a, b)) = nodes_of_two_engines() else { return };
    let channel = a.context.create_comp_channel().unwrap();
    let cq_of_thread = |user_context| {
        let init = CqInit { cqe: 16, channel: Some(Arc::clone(&channel)), user_context, ..CqInit::default() };
        let make = || a.context.create_cq(init).unwrap();
        thread::scope(|scope| scope.spawn(make).join().unwrap())
    };
    for user_context in 0..4 {
        let cq = cq_of_thread(user_context);
        let node = Node { context: Arc::clone(&a.context), pd: Arc::clone(&a.pd), cq, mr: Arc::clone(&a.mr), ..a };
        let (ours, theirs) = pair(&node, &b, Service::Rc, 0, PathMtu::Mtu1024);
        for n in 0..50 {
            post_recv(&ours, n, node.sge(4096, 64));
            node.cq.req_notify(false);
            // Polling keeps the background thread from receiving while this thread sleeps.
            (0..200).for_each(|_| assert_eq!(node.cq.poll(1, |_| ()).unwrap(), 0));
            thread::scope(|scope| {
                let (theirs, from) = (&theirs, b.sge(0, 64));
                scope.spawn(move || post(theirs, n, SendOp::Send, from));
                assert_eq!(channel.get_event().unwrap(), user_context);
            });
            assert_eq!(b.wait(1)[0].status, WcStatus::Success);
            assert_eq!(node.wait(1)[0].status, WcStatus::Success);
        }
    }
}

#[test]
fn qp_completes_in_queues_of_two_threads() {
    let Some((a, b)) = nodes_of_two_engines() else { return };
    let caps = QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let send_cq = Arc::clone(&a.cq);
    let make = || a.context.create_cq(CqInit { cqe: 16, ..CqInit::default() }).unwrap();
    // One queue is created by a thread whose engine is not the queue pair's.
    for recv_cq in (0..4).map(|_| thread::scope(|scope| scope.spawn(make).join().unwrap())) {
        let init = QpInit {
            service: Service::Rc,
            caps,
            sq_sig_all: false,
            send_cq: Arc::clone(&send_cq),
            recv_cq: Arc::clone(&recv_cq),
            srq: None,
            user_context: 1,
        };
        receives_in_two_queues(&a, init, &b);
    }
}

fn receives_in_two_queues(a: &Node, init: QpInit, b: &Node) {
    let recv_cq = Arc::clone(&init.recv_cq);
    let (qa, qb) = (a.pd.create_qp(init).unwrap(), b.qp(Service::Rc));
    let gid = a.context.gid(1, 0).unwrap();
    let to = |qpn: Qpn| (a.av(0, gid), qpn, PathMtu::Mtu1024);
    for (qp, (av, dest, mtu)) in [(&qa, to(qb.qpn())), (&qb, to(qa.qpn()))] {
        connect(qp, av, dest, mtu);
    }
    for n in 0..100 {
        post_recv(&qa, n, a.sge(4096, 64));
        post(&qb, n, SendOp::Send, b.sge(0, 64));
        let mut done = Vec::new();
        while done.is_empty() {
            recv_cq.poll(1, |cqe| done.push(cqe.status)).unwrap();
        }
        assert_eq!(done, [WcStatus::Success]);
        assert_eq!(b.wait(1)[0].status, WcStatus::Success);
    }
}
