//! Interfaces slower than their senders: a sender waits for room in the send buffer of its address
//! without loss, and senders from other addresses do not wait. The kernel limits the rate of a veth
//! end (`man 8 tc-tbf`) in a network namespace.

use crate::common::*;
use roxe_provider::wire::{Gid, PathMtu, Qpn};
use roxe_provider::{AttrMask, Qp, QpAttr, QpState, SendOp, Service};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum wait of [`until`].
const TIMEOUT: Duration = Duration::from_secs(60);
/// Outstanding messages per queue pair.
const MESSAGES: usize = 128;
/// Length of a message in bytes.
const MESSAGE_LEN: usize = 16 << 10;
/// Queue pairs, which together send more than the largest send buffer holds (8 MB, with overhead of
/// the kernel).
const QPS: usize = 6;
/// A neighbour that receives and never answers.
const SILENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 7);

/// Returns commands that make an interface `x0` of `rate` with the neighbour [`SILENT`].
fn interface(rate: &str) -> String {
    let neighbour = "ip neigh add 10.77.0.7 lladdr 02:00:00:00:00:07 nud permanent dev x0";
    format!(
        "ip link set lo up && ip link add x0 type veth peer name x1 && ip addr add 10.77.0.1/24 dev x0 && \
         ip addr add 10.77.0.2/24 dev x0 && \
         ip link set x1 up && ip link set x0 up && {} && {neighbour} && \
         tc qdisc add dev x0 root tbf rate {rate} burst 20000 limit 100000000",
        namespace::VETH_UP
    )
}

/// Returns the GID index of an address.
fn index(node: &Node, address: [u8; 4]) -> u8 {
    let gid = Gid::from(Ipv4Addr::from(address));
    node.context
        .gid_entries()
        .into_iter()
        .find(|entry| entry.gid == gid)
        .expect("find the address in the GID table")
        .index
}

/// Fills the send queues of [`QPS`] UC queue pairs with messages to [`SILENT`].
fn flood(node: &Node) -> Vec<Arc<Qp>> {
    let index = index(node, [10, 77, 0, 1]);
    let qps: Vec<_> = (0..QPS).map(|_| node.qp(Service::Uc)).collect();
    for qp in &qps {
        connect(qp, node.av(index, SILENT.into()), Qpn::new(0x4711), PathMtu::Mtu1024);
        (0..MESSAGES).for_each(|n| post(qp, n as u64, SendOp::Send, node.sge(n * MESSAGE_LEN, MESSAGE_LEN)));
    }
    qps
}

fn lost(node: &Node) -> [u64; 2] {
    ["send_errors", "tx_queue_full"].map(|name| counter(&node.context, name))
}

#[test]
fn slow_interface_blocks_only_its_senders() {
    namespace::inside("slow_interface_blocks_only_its_senders", &interface("2mbit"), "x0", || {
        let (flooding, a, b) = (Node::open(), Node::open(), Node::open());
        let _qps = flood(&flooding);
        // Another address has another socket, and packets within this host bypass the interface.
        let other = index(&a, [10, 77, 0, 2]);
        let (qa, _qb) = pair(&a, &b, Service::Rc, other, PathMtu::Mtu1024);
        a.fill(0, 64 << 10, 5);
        for n in 0..20 {
            post(&qa, n, write_to(&b, 0), a.sge(0, 64 << 10));
            a.wait(1);
        }
        assert_eq!(b.bytes(0, 64 << 10), pattern(64 << 10, 5));
        let mut sent = 0;
        flooding.cq.poll(QPS * MESSAGES, |_| sent += 1).unwrap();
        // 12 MB take 50 s at this rate.
        assert!(sent < QPS * MESSAGES, "the flood is over: the rate of x0 is not limited");
        assert_eq!(lost(&flooding), [0, 0]);
    });
}

#[test]
fn messages_blocked_by_slow_interface_leave_whole() {
    namespace::inside("messages_blocked_by_slow_interface_leave_whole", &interface("800mbit"), "x0", || {
        let node = Node::open();
        let before = bytes_out();
        let _qps = flood(&node);
        assert_eq!(node.wait(QPS * MESSAGES).len(), QPS * MESSAGES);
        let bytes = QPS * MESSAGES * MESSAGE_LEN;
        until(|| counter(&node.context, "sent_packets") == bytes as u64 / 1024 && bytes_out() - before > bytes);
        let raw = node.qp(Service::Raw);
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr { state, port: 1, ..QpAttr::default() };
            let port = if state == QpState::Init { AttrMask::PORT } else { AttrMask::empty() };
            raw.modify(&attr, AttrMask::STATE | port).unwrap();
        }
        let before = bytes_out();
        for _ in 0..100 {
            (0..100).for_each(|n| post(&raw, n, SendOp::Send, node.sge(0, 1400)));
            assert_eq!(node.wait(100).len(), 100);
        }
        until(|| counter(&node.context, "sent_frames") == 10_000 && bytes_out() - before >= 14_000_000);
        assert_eq!(lost(&node), [0, 0]);
    });
}

/// Returns the bytes sent by the interface (`man 5 proc`, net/dev).
fn bytes_out() -> usize {
    let text = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("x0:")).expect("find the interface in the list");
    line.split_whitespace().nth(8).unwrap().parse().unwrap()
}

fn until(mut is_done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_done() {
        assert!(start.elapsed() < TIMEOUT, "not all packets were sent and counted in {TIMEOUT:?}");
        std::thread::yield_now();
    }
}
