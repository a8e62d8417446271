//! Congestion over real sockets: ECN marks lead to CNPs, and CNPs to a lower rate. The loopback
//! interface does not mark, so marks come from the traffic class of an address vector or from
//! forged packets.

use crate::common::peer::program;
use crate::common::*;
use parking_lot::Mutex;
use roxe_net::udp::LocalSender;
use roxe_provider::wire::{Bth, Gid, Header, Kind, NetHeader, PathMtu, Pkey, Psn, Request, SendTail, icrc};
use roxe_provider::{Av, Qp, Service};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Congestion experienced, with a DSCP (RFC 3168 §5).
const CE: u8 = 0x68 | 0b11;
/// Serializes tests: a process that ends may take CNPs for another one along, and they are not
/// retransmitted.
static ONE_TEST: Mutex<()> = Mutex::new(());

/// Polls until a counter has reached `least`.
fn until(node: &Node, name: &str, least: u64) -> u64 {
    let start = Instant::now();
    loop {
        let value = counter(&node.context, name);
        if value >= least {
            return value;
        }
        assert!(start.elapsed() < TIMEOUT, "{name} is {value}, not {least}; {:?}", node.context.counters());
        node.cq.poll(1, |cqe| panic!("no completion is due: {cqe:?}")).unwrap();
    }
}

/// Connects a pair whose packets are all marked; only a peer without DCQCN can do this.
fn marked_pair(a: &Node, b: &Node, service: Service, index: u8) -> (Arc<Qp>, Arc<Qp>) {
    let (qa, qb) = (a.qp(service), b.qp(service));
    let av = |from: &Node, to: &Node| {
        let gid = to.context.gid(1, index.into()).unwrap();
        Av { traffic_class: CE, ..from.av(index, gid) }
    };
    connect(&qa, av(a, b), qb.qpn(), PathMtu::Mtu1024);
    connect(&qb, av(b, a), qa.qpn(), PathMtu::Mtu1024);
    (qa, qb)
}

/// Sends 256 packets in few segmented datagrams: each counts as marked, but only each datagram is
/// answered. The peer counts CNPs that it ignores.
#[test]
fn marked_packet_causes_cnp() {
    const PACKETS: u64 = 256;
    let _alone = ONE_TEST.lock();
    let (a, b) = (Node::open(), Node::open());
    let (mut marked, mut notified) = (0, 0);
    for service in [Service::Rc, Service::Uc] {
        for entry in a.context.gid_entries() {
            let (qa, _qb) = marked_pair(&a, &b, service, entry.index);
            a.fill(0, 256 << 10, 9);
            post(&qa, 1, write_to(&b, 0), a.sge(0, 256 << 10));
            a.wait(1);
            marked += PACKETS;
            assert!(until(&a, "np_ecn_marked_roce_packets", marked) >= marked, "{:?}", entry.gid);
            let sent = until(&a, "np_cnp_sent", notified + 1);
            assert!(sent - notified < PACKETS / 2, "{} CNPs for {PACKETS} packets", sent - notified);
            notified = until(&a, "rp_cnp_ignored", sent);
            assert_eq!(b.bytes(0, 256 << 10), pattern(256 << 10, 9));
        }
    }
    assert_eq!(counter(&a.context, "rp_cnp_handled"), 0);
}

#[test]
fn cnps_answer_only_marks_and_limit_rate_with_dcqcn() {
    let _alone = ONE_TEST.lock();
    let output = program("dcqcn_process").envs([("ROXE_DCQCN", "on"), ("ROXE_STATS", "on")]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stats = stderr.lines().find(|line| line.starts_with("roxe0 (process ")).unwrap_or_else(|| panic!("{stderr}"));
    let expected = ["np_ecn_marked_roce_packets=1", "np_cnp_sent=1", "rp_cnp_handled=501"];
    assert!(expected.iter().all(|counter| stats.contains(counter)) && !stats.contains("rp_cnp_ignored"), "{stats}");
}

/// Runs with DCQCN, in a process started by the test above.
#[test]
fn dcqcn_process() {
    if std::env::var("ROXE_DCQCN").is_err() {
        return;
    }
    let (a, b) = (Node::open(), Node::open());
    let (qa, qb) = pair(&a, &b, Service::Rc, 0, PathMtu::Mtu1024);
    transfer(&a, &b, &qa, 1);
    assert_eq!(counter(&a.context, "np_ecn_marked_roce_packets"), 0);

    // A marked duplicate request (old PSN) is acknowledged again, and causes a CNP.
    let tail = Kind::RcRequest(Request::SendOnly(SendTail::Plain));
    let forger = Forger::at(Ipv4Addr::LOCALHOST);
    forger.send(CE, &Header { bth: bth(&qb, 76), kind: tail });
    until(&a, "np_cnp_sent", 1);
    assert_eq!(counter(&a.context, "np_ecn_marked_roce_packets"), 1);
    assert_eq!(until(&a, "rp_cnp_handled", 1), 1);
    transfer(&a, &b, &qa, 2);

    // CNPs of a stranger change nothing; a flood of the peer's lowers the rate, but not forever.
    let cnp = Header { bth: Bth { becn: true, ..bth(&qa, 0) }, kind: Kind::Cnp };
    let strangers = counter(&a.context, "address");
    Forger::at(Ipv4Addr::new(127, 0, 0, 9)).send(0, &cnp);
    assert_eq!(until(&a, "address", strangers + 1), strangers + 1);
    assert_eq!(counter(&a.context, "rp_cnp_handled"), 1);
    for n in 0..500 {
        forger.send(0, &cnp);
        until(&a, "rp_cnp_handled", n + 2);
    }
    transfer(&a, &b, &qa, 3);
    assert_eq!(counter(&a.context, "rp_cnp_ignored"), 0);
}

/// Transfers 1 MiB from `a` to `b`.
fn transfer(a: &Node, b: &Node, qp: &Qp, seed: u8) {
    a.fill(0, 1 << 20, seed);
    post(qp, u64::from(seed), write_to(b, 0), a.sge(0, 1 << 20));
    assert_eq!(a.wait(1)[0].wr_id, u64::from(seed));
    assert_eq!(b.bytes(0, 1 << 20), pattern(1 << 20, seed));
}

fn bth(to: &Qp, psn: u32) -> Bth {
    Bth { pkey: Pkey::DEFAULT, ..Bth::new(to.qpn(), Psn::new(psn)) }
}

/// Sends forged packets to the device on 127.0.0.1.
struct Forger {
    link: LocalSender,
    net: NetHeader,
}

impl Forger {
    /// Binds an address, which may be the device's.
    fn at(address: Ipv4Addr) -> Self {
        let link = LocalSender::open(address.into(), 0).unwrap();
        let (src, dst) = (Gid::from(address), Gid::from(Ipv4Addr::LOCALHOST));
        let net = NetHeader { src, dst, src_port: link.port(), ..NetHeader::default() };
        Self { link, net }
    }

    /// Sends a packet without payload. The kernel chooses its IPv4 identification; the ICRC is
    /// right for one of them, and receivers accept any.
    fn send(&self, traffic_class: u8, header: &Header) {
        let mut bytes = vec![0; header.padded_len(0) + icrc::LEN];
        let len = bytes.len() - icrc::LEN;
        header.emit(0, &mut bytes[..len]).unwrap();
        icrc::seal(&self.net, &mut bytes);
        self.link.socket().set_tos_v4(traffic_class.into()).unwrap();
        self.link.socket().send_to(&bytes, &victim()).unwrap();
    }
}
