//! Raw packets over real interfaces, in network namespaces. Skipped where none can be made.

use crate::common::namespace::VETH_UP;
use crate::common::peer::{MARK, program};
use crate::common::*;
use roxe_provider::wire::Gid;
use roxe_provider::wire::frame::{Field, FrameKey, FrameMatch};
use roxe_provider::{
    AttrMask, Context, CounterKind, Cq, CqInit, Cqe, Flow, FlowCounters, FlowInit, HashFields, Qp, QpAttr, QpState,
    RecvRequest, RuleKind, RxHash, SendData, SendFlags, SendOp, SendRequest, Service, SrqInit, WcOpcode, WcStatus,
    WqInit, WqState, devices,
};
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

/// Set inside the namespace.
const INSIDE: &str = "ROXE_TEST_INSIDE";
/// Distance between frame buffers.
const AREA: usize = 4096;
/// Shell commands that create a veth pair.
const MAKE: &str = "ip link set lo up && ip link add x0 address 02:00:00:00:00:0a type veth peer name x1 address \
                    02:00:00:00:00:0b && ip link set x0 up && ip link set x1 up";
/// MAC addresses of its two ends.
const MAC_0: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const MAC_1: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
/// An Ethernet group, and an EtherType that only these tests use.
const GROUP: [u8; 6] = [1, 0x50, 0x56, 0x19, 0x20, 0xa7];
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];

/// A raw packet queue pair on one interface.
struct Station {
    node: Node,
    qp: Arc<Qp>,
}

impl Station {
    /// Opens device `index` with `receives` posted.
    fn new(index: usize, receives: u64) -> Self {
        let node = Node::open_device(index);
        let qp = node.qp(Service::Raw);
        let mut attr = QpAttr { state: QpState::Init, port: 1, ..QpAttr::default() };
        qp.modify(&attr, AttrMask::STATE | AttrMask::PORT).unwrap();
        for state in [QpState::Rtr, QpState::Rts] {
            attr.state = state;
            qp.modify(&attr, AttrMask::STATE).unwrap();
        }
        (0..receives).for_each(|n| post_recv(&qp, n, node.sge(n as usize * AREA, AREA)));
        Self { node, qp }
    }

    fn send(&self, frame: &[u8], flags: SendFlags) {
        let (op, ud) = (SendOp::Send, None);
        let flags = flags | SendFlags::SIGNALED;
        self.qp.post_send(&[SendRequest { wr_id: 1000, op, flags, data: SendData::Inline(frame), ud }]).unwrap();
        assert_eq!(self.node.wait(1)[0].status, WcStatus::Success);
    }

    /// Returns the next frame and its completion.
    fn receive(&self) -> (Vec<u8>, Cqe) {
        let cqe = self.node.wait(1)[0];
        assert_eq!((cqe.status, cqe.opcode, cqe.qpn), (WcStatus::Success, WcOpcode::Recv, self.qp.qpn()));
        (self.node.bytes(cqe.wr_id as usize * AREA, cqe.byte_len as usize), cqe)
    }

    fn flow(&self, filter: FrameMatch) -> Flow {
        self.qp.create_flow(FlowInit { filter, ..FlowInit::default() }).unwrap()
    }
}

/// Returns a frame of the test with `payload`.
fn frame(dst: [u8; 6], payload: &[u8]) -> Vec<u8> {
    [&dst[..], &[2, 9, 9, 9, 9, 9], &ETHER_TYPE, payload].concat()
}

/// Matches frames of the test to `dst`.
fn frames_to(dst: [u8; 6]) -> FrameMatch {
    let mut filter = frames_of_test();
    filter.require_exactly(Field::DstMac, &dst).unwrap();
    filter
}

/// Matches all frames of the test.
fn frames_of_test() -> FrameMatch {
    let mut filter = FrameMatch::default();
    filter.require_exactly(Field::EtherType, &ETHER_TYPE).unwrap();
    filter
}

/// Checks that no unexpected frame is pending: the next frame of each station is the one sent now.
fn nothing_else(from: &Station, dst: [u8; 6], stations: &[&Station]) {
    let last = frame(dst, b"last");
    from.send(&last, SendFlags::empty());
    for station in stations {
        assert_eq!(station.receive().0, last);
    }
}

/// Runs `test` in a namespace with devices `lo`, `x0`, `x1`; `name` is the calling test, and `wrap`
/// may change its capabilities.
#[track_caller]
fn inside(name: &str, wrap: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        test();
        println!("\n{MARK}done");
        return;
    }
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "--", "sh", "-c", script]);
        command
    };
    let make = format!("{MAKE} && {VETH_UP}");
    if !in_namespace(&make).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: unshare and ip cannot create a network namespace with a veth pair");
        return;
    }
    let inner = program(name);
    let script = format!("{make} && exec {wrap} \"$0\" \"$@\"");
    let mut command = in_namespace(&script);
    command.arg(inner.get_program()).args(inner.get_args()).env(INSIDE, "1").env("ROXE_NETDEV", "lo,x0,x1");
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains(&format!("{MARK}done")), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
}

// clause: RAW-FRAME, FLOW-COPIES
#[test]
fn loopback_frame_reaches_each_matching_flow_once() {
    inside("loopback_frame_reaches_each_matching_flow_once", "", || {
        let (a, b, c) = (Station::new(0, 8), Station::new(0, 8), Station::new(0, 8));
        let (_a, _b) = (a.flow(frames_to(GROUP)), b.flow(frames_to(GROUP)));
        let _c = [c.flow(frames_to(MAC_1)), c.flow(frames_of_test())];
        let sent = frame(GROUP, b"hello");
        a.send(&sent, SendFlags::empty());
        // The sender matches, too; the third station matches twice and gets one copy.
        for station in [&a, &b, &c] {
            assert_eq!(station.receive().0, sent);
        }
        let to_one = frame(MAC_1, b"");
        b.send(&to_one, SendFlags::empty());
        assert_eq!(c.receive().0, to_one);
        nothing_else(&b, GROUP, &[&a, &b, &c]);
    });
}

// clause: FLOW-COPIES, RAW-LOOPBACK
#[test]
fn link_frames_reach_peer_and_group_frames_both_ends() {
    inside("link_frames_reach_peer_and_group_frames_both_ends", "", || {
        let (here, other, there) = (Station::new(1, 8), Station::new(1, 8), Station::new(2, 8));
        let _flows = [here.flow(frames_of_test()), other.flow(frames_of_test()), there.flow(frames_of_test())];
        here.send(&frame(MAC_1, b"over"), SendFlags::empty());
        assert_eq!(there.receive().0, frame(MAC_1, b"over"));
        there.send(&frame(MAC_0, b"back"), SendFlags::empty());
        for station in [&here, &other] {
            assert_eq!(station.receive().0, frame(MAC_0, b"back"));
        }
        // A frame to its own sender also reaches the other end, which is promiscuous.
        here.send(&frame(MAC_0, b"self"), SendFlags::empty());
        for station in [&here, &other, &there] {
            assert_eq!(station.receive().0, frame(MAC_0, b"self"));
        }
        nothing_else(&there, GROUP, &[&here, &other, &there]);
        let mut tagged = frame(MAC_1, b"in a VLAN");
        tagged.splice(12..12, [0x81, 0, 0xac, 0x0c]);
        here.send(&tagged, SendFlags::empty());
        assert_eq!(there.receive().0, tagged);
    });
}

// clause: FLOW-ACTIONS, RAW-CHECKSUM-OK
#[test]
fn flow_tags_counts_and_drops_frames() {
    inside("flow_tags_counts_and_drops_frames", "", || {
        let station = Station::new(0, 8);
        let counters = Arc::new(FlowCounters::default());
        counters.attach(CounterKind::Packets, 0).unwrap();
        counters.attach(CounterKind::Bytes, 1).unwrap();
        let init = FlowInit {
            filter: frames_to(GROUP),
            tag: 0x1234,
            counters: vec![Arc::clone(&counters)],
            ..FlowInit::default()
        };
        let flow = station.qp.create_flow(init.clone()).unwrap();
        let sniffer = Station::new(0, 8);
        let sniffs = FlowInit { kind: RuleKind::Sniffer, ..FlowInit::default() };
        let _sniffs = sniffer.qp.create_flow(sniffs).unwrap();
        station.send(&frame(GROUP, b"tagged"), SendFlags::empty());
        let (got, cqe) = station.receive();
        assert_eq!((got, cqe.flow_tag, cqe.ip_csum_ok), (frame(GROUP, b"tagged"), 0x1234, false));
        assert_eq!(sniffer.receive().1.flow_tag, 0);
        let read = || {
            let mut values = [0; 2];
            counters.read(&mut values).unwrap();
            values
        };
        assert_eq!(read(), [1, 20]);
        assert_eq!(counters.destroy().unwrap_err().errno(), libc::EBUSY);
        assert_eq!(station.qp.check_detached().unwrap_err().errno(), libc::EBUSY);
        drop(flow);
        counters.destroy().unwrap();
        station.qp.check_detached().unwrap();
        // Only the sniffer receives frames without a flow, and frames that a flow drops. The first
        // has to arrive before there is a flow again.
        station.send(&frame(GROUP, b"unheard"), SendFlags::empty());
        assert_eq!(sniffer.receive().0, frame(GROUP, b"unheard"));
        let low = FlowInit { kind: RuleKind::Normal(1), ..init.clone() };
        let _low = station.qp.create_flow(low).unwrap();
        let _drops = station.qp.create_flow(FlowInit { drops: true, counters: vec![], ..init }).unwrap();
        station.send(&frame(GROUP, b"dropped"), SendFlags::empty());
        assert_eq!(sniffer.receive().0, frame(GROUP, b"dropped"));
        assert_eq!(read(), [1, 20]);
        checksums(&station);
    });
}

/// Checks that a datagram with an offloaded checksum arrives as correct, and without as wrong.
fn checksums(station: &Station) {
    let mut udp = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    udp.extend([0x12, 0x34, 0x56, 0x78, 0, 12, 0, 0, b'd', b'a', b't', b'a']);
    let mut filter = FrameMatch::default();
    filter.require_exactly(Field::DstPort, &[0x56, 0x78]).unwrap();
    let _flow = station.flow(filter);
    let packet = [&MAC_1[..], &MAC_0, &[8, 0], &udp].concat();
    for (flags, is_right) in [(SendFlags::IP_CSUM, true), (SendFlags::empty(), false)] {
        station.send(&packet, flags);
        assert_eq!(station.receive().1.ip_csum_ok, is_right);
    }
}

// clause: RAW-GROUP
#[test]
fn attached_qp_gets_group_frames() {
    inside("attached_qp_gets_group_frames", "", || {
        let (sender, member) = (Station::new(1, 0), Station::new(2, 8));
        let mut mgid = Gid([0; 16]);
        mgid.0[10..].copy_from_slice(&GROUP);
        member.qp.attach_mcast(mgid).unwrap();
        member.qp.attach_mcast(mgid).unwrap();
        assert_eq!(member.qp.check_detached().unwrap_err().errno(), libc::EBUSY);
        for payload in [&b"one"[..], b"two"] {
            sender.send(&frame(GROUP, payload), SendFlags::empty());
            assert_eq!(member.receive().0, frame(GROUP, payload));
        }
        member.qp.detach_mcast(mgid).unwrap();
        assert_eq!(member.qp.detach_mcast(mgid).unwrap_err().errno(), libc::EINVAL);
        member.qp.check_detached().unwrap();
        mgid.0[10] = 2;
        assert_eq!(
            member.qp.attach_mcast(mgid).unwrap_err().errno(),
            libc::EINVAL,
            "a unicast address is not a multicast group"
        );
    });
}

// clause: SRQ-ORDER
#[test]
fn frames_take_receives_from_srq() {
    inside("frames_take_receives_from_srq", "", || {
        let sender = Station::new(0, 0);
        let node = &sender.node;
        let srq = node.pd.create_srq(SrqInit { max_wr: 8, max_sge: 1, ..SrqInit::default() }).unwrap();
        let qp = node.qp_with(Service::Raw, Some(Arc::clone(&srq)));
        let attr = QpAttr { state: QpState::Init, port: 1, ..QpAttr::default() };
        qp.modify(&attr, AttrMask::STATE | AttrMask::PORT).unwrap();
        qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, AttrMask::STATE).unwrap();
        let _flow = qp.create_flow(FlowInit { filter: frames_to(GROUP), ..FlowInit::default() }).unwrap();
        srq.post_recv(&RecvRequest { wr_id: 3, sges: &[node.sge(0, AREA)] }).unwrap();
        sender.send(&frame(GROUP, b"shared"), SendFlags::empty());
        let cqe = node.wait(1)[0];
        assert_eq!((cqe.wr_id, cqe.qpn, cqe.byte_len), (3, qp.qpn(), 20));
    });
}

// clause: RAW-EVENT
#[test]
fn frame_wakes_sleeping_program() {
    inside("frame_wakes_sleeping_program", "", || {
        let context: Arc<Context> = devices().unwrap()[1].open().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let init = CqInit { cqe: 8, channel: Some(Arc::clone(&channel)), user_context: 5, ..CqInit::default() };
        let cq: Arc<Cq> = context.create_cq(init).unwrap();
        let node = Node::open_in(context, cq);
        let qp = node.qp(Service::Raw);
        let attr = QpAttr { state: QpState::Init, port: 1, ..QpAttr::default() };
        qp.modify(&attr, AttrMask::STATE | AttrMask::PORT).unwrap();
        qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, AttrMask::STATE).unwrap();
        post_recv(&qp, 9, node.sge(0, AREA));
        let _flow = qp.create_flow(FlowInit { filter: frames_to(MAC_0), ..FlowInit::default() }).unwrap();
        node.cq.req_notify(false);
        Station::new(2, 0).send(&frame(MAC_0, b"wake up"), SendFlags::empty());
        assert_eq!(channel.get_event().unwrap(), 5);
        assert_eq!(node.wait(1)[0].wr_id, 9);
    });
}

// clause: RSS-CHOICE, WQ-STATES
#[test]
fn hash_qp_spreads_frames_over_work_queues() {
    inside("hash_qp_spreads_frames_over_work_queues", "", || {
        let (sender, node) = (Station::new(0, 0), Node::open_device(0));
        let wq = |at: usize| {
            let wq = node
                .pd
                .create_wq(WqInit { max_wr: 64, max_sge: 1, cq: Arc::clone(&node.cq), user_context: 0 })
                .unwrap();
            wq.modify(WqState::Ready, None).unwrap();
            for area in (0..64).map(|n| at * 64 + n) {
                wq.post_recv(&RecvRequest { wr_id: area as u64, sges: &[node.sge(area * AREA, AREA)] }).unwrap();
            }
            wq
        };
        let wqs: Vec<_> = (0..4).map(wq).collect();
        let table = node.context.create_rwq_table(&wqs).unwrap();
        let hash = RxHash { key: std::array::from_fn(|at| (at * 73 % 251) as u8), fields: HashFields::SRC_IPV4 };
        let qp = node.pd.create_hash_qp(&table, hash, 0).unwrap();
        let mut filter = FrameMatch::default();
        filter.require_exactly(Field::DstMac, &MAC_1).unwrap();
        let _flow = qp.create_flow(FlowInit { filter, ..FlowInit::default() }).unwrap();
        let mut queues = BTreeSet::new();
        for host in 0..64 {
            let sent = datagram_from(host);
            sender.send(&sent, SendFlags::empty());
            let cqe = node.wait(1)[0];
            let at = hash.of(&FrameKey::of(&sent).unwrap()) as usize % 4;
            assert_eq!((cqe.status, cqe.qpn.get()), (WcStatus::Success, wqs[at].number()), "host {host}");
            assert_eq!(cqe.wr_id as usize / 64, at, "the receive belongs to another work queue");
            assert_eq!(node.bytes(cqe.wr_id as usize * AREA, cqe.byte_len as usize), sent);
            queues.insert(at);
        }
        assert_eq!(queues.len(), 4);
        // Work queues in RESET drop their frames; ready again, they receive.
        wqs.iter().for_each(|wq| wq.modify(WqState::Reset, None).unwrap());
        sender.send(&datagram_from(1), SendFlags::empty());
        wqs.iter().for_each(|wq| wq.modify(WqState::Ready, None).unwrap());
        let at = hash.of(&FrameKey::of(&datagram_from(2)).unwrap()) as usize % 4;
        wqs[at].post_recv(&RecvRequest { wr_id: 500, sges: &[node.sge(0, AREA)] }).unwrap();
        sender.send(&datagram_from(2), SendFlags::empty());
        assert_eq!(node.wait(1)[0].wr_id, 500);
    });
}

/// Returns an IPv4 UDP frame from 10.0.0.`host`.
fn datagram_from(host: u8) -> Vec<u8> {
    let ip = [0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, host, 10, 1, 0, 1];
    [&MAC_1[..], &[2, 9, 9, 9, 9, 9], &[8, 0], &ip, &[0; 8]].concat()
}

// clause: RAW-RIGHTS
#[test]
fn raw_packets_need_cap_net_raw() {
    inside("raw_packets_need_cap_net_raw", "setpriv --bounding-set=-net_raw --", || {
        let node = Node::open_device(0);
        assert_eq!(node.try_qp(Service::Raw, None).unwrap_err().errno(), libc::EPERM);
        // Everything else works.
        activate(&node.qp(Service::Ud));
    });
}

#[test]
fn flow_on_other_services_is_refused() {
    let node = Node::open();
    for service in [Service::Ud, Service::Rc] {
        assert_eq!(node.qp(service).create_flow(FlowInit::default()).unwrap_err().errno(), libc::EINVAL);
    }
}
