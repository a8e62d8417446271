//! Tests of `unreliable.rs`: received datagrams, and the Q_Key of sent ones.

use super::*;
use crate::qp::shared::{QpCaps, QpConfig, QpEvents, Service};
use crate::sim_host::{Mr, SimHost};
use crate::wr::{Access, RecvRequest, Sge};
use core::net::{Ipv4Addr, Ipv6Addr};
use roxe_wire::{Bth, Kind, Psn, Qkey, Qpn};

const QKEY: Qkey = Qkey(0x1111_1111);
const PORT_MTU: usize = 1024;

struct Script {
    sh: Shared,
    responder: Responder,
    host: SimHost,
    mr: Mr,
    net: NetHeader,
}

fn script(srq_max_sge: Option<u32>) -> Script {
    let caps = QpCaps { max_recv_wr: 4, max_recv_sge: 2, ..QpCaps::default() };
    let (qpn, service, port_mtu) = (Qpn::new(2), Service::Ud, PORT_MTU as u32);
    let config = QpConfig { srq_max_sge, port_mtu, ..QpConfig::new(qpn, service, caps) };
    let (mut sh, mut host) = (Shared::new(config), SimHost::default());
    sh.attr.qkey = QKEY;
    let mr = host.memory.register(2048, Access::LOCAL_WRITE);
    let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into());
    let net = NetHeader { src, dst, src_port: 50000, hop_limit: 64, ..NetHeader::default() };
    Script { sh, responder: Responder::new(&config), host, mr, net }
}

impl Script {
    fn receive(&mut self, wr_id: u64, sges: &[Sge]) {
        self.responder.rq.post(&RecvRequest { wr_id, sges }).expect("room in the queue");
    }

    fn deliver(&mut self, qkey: Qkey, imm: Option<ImmDt>, payload: &[u8]) -> Result<(), DropReason> {
        let deth = Deth { qkey, src_qpn: Qpn::new(77) };
        let bth = Bth { solicited: true, ..Bth::new(Qpn::new(2), Psn::new(9)) };
        let header = Header { bth, kind: Kind::Ud { deth, imm } };
        let datagram = Datagram { header: &header, deth: &deth, imm, payload: payload.into() };
        self.responder.handle_ud(&mut self.sh, &mut self.host, &self.net, &datagram)
    }
}

// clause: UD-COMPLETION
#[test]
fn datagram_is_placed_after_its_grh() {
    let mut s = script(None);
    s.receive(5, &[s.mr.sge(0, 44), s.mr.sge(100, 100)]);
    let imm = ImmDt([1, 2, 3, 4]);
    assert_eq!(s.deliver(QKEY, Some(imm), b"hello"), Ok(()));
    // 12 BTH, 8 DETH, 4 ImmDt, 5 payload, 3 pad, 4 ICRC.
    assert_eq!(s.host.memory.bytes(s.mr)[..40], s.net.to_grh(36));
    assert_eq!((&s.host.memory.bytes(s.mr)[40..44], s.host.memory.bytes(s.mr)[100]), (b"hell".as_slice(), b'o'));
    let expected = Cqe {
        wr_id: 5,
        opcode: WcOpcode::Recv,
        byte_len: 45,
        extra: WcExtra::Imm(imm),
        qpn: Qpn::new(2),
        src_qpn: Qpn::new(77),
        grh: true,
        sl: 0b1010,
        solicited: true,
        ..Cqe::default()
    };
    assert_eq!(s.host.recvs, [expected]);
    assert!(!s.responder.has_work());
}

// clause: UD-COMPLETION
#[test]
fn ipv6_grh_is_the_ip_header() {
    let mut s = script(None);
    s.net.src = roxe_wire::Gid(Ipv6Addr::LOCALHOST.octets());
    s.net.dst = roxe_wire::Gid(Ipv6Addr::LOCALHOST.octets());
    s.receive(5, &[s.mr.all()]);
    assert_eq!(s.deliver(QKEY, None, b""), Ok(()));
    assert_eq!(s.host.memory.bytes(s.mr)[..40], s.net.to_grh(24));
    assert_eq!(s.host.recvs.pop_front().map(|cqe| (cqe.sl, cqe.byte_len)), Some((0b1001, 40)));
}

// clause: UD-QKEY
#[test]
fn wrong_qkey_is_dropped_before_taking_a_receive() {
    let mut s = script(Some(2));
    s.host.srq.post(&RecvRequest { wr_id: 4, sges: &[s.mr.all()] });
    assert_eq!(s.deliver(Qkey(QKEY.0 + 1), None, b"x"), Err(DropReason::Qkey));
    assert_eq!(s.host.srq.len(), 1);
    assert_eq!(s.deliver(QKEY, None, b"x"), Ok(()));
    assert_eq!(s.host.recvs.pop_front().map(|cqe| cqe.wr_id), Some(4));
}

// clause: UD-LOST
#[test]
fn receive_without_room_for_grh_and_payload_is_kept() {
    let mut s = script(None);
    assert_eq!(s.deliver(QKEY, None, b""), Err(DropReason::NoReceive));
    s.receive(5, &[s.mr.sge(0, 50)]);
    assert_eq!(s.deliver(QKEY, None, &[1; 11]), Err(DropReason::InvalidRequest));
    assert_eq!(s.host.memory.bytes(s.mr)[..50], [0; 50], "untouched");
    assert_eq!(s.deliver(QKEY, None, &[1; 10]), Ok(()));
    assert_eq!(s.host.recvs.pop_front().map(|cqe| (cqe.wr_id, cqe.byte_len)), Some((5, 50)));
}

// clause: UD-PORT-MTU
#[test]
fn payload_is_limited_by_the_port_mtu() {
    let mut s = script(None);
    s.receive(5, &[s.mr.all()]);
    assert_eq!(s.deliver(QKEY, None, &[1; PORT_MTU + 1]), Err(DropReason::InvalidRequest));
    assert_eq!(s.deliver(QKEY, None, &[1; PORT_MTU]), Ok(()));
}

// clause: UNRELIABLE-OWN-FAULT
#[test]
fn local_memory_fault_ends_the_qp() {
    let mut s = script(None);
    let readonly = s.host.memory.register(64, Access::empty());
    s.receive(5, &[readonly.all()]);
    assert_eq!(s.deliver(QKEY, None, b"x"), Err(DropReason::LocalProtection));
    assert_eq!(s.host.recvs.pop_front().map(|cqe| (cqe.wr_id, cqe.status)), Some((5, WcStatus::LocProtErr)));
    assert_eq!((s.sh.failed, s.sh.events), (true, QpEvents::empty()));
}

// clause: UD-QKEY-CONTROLLED, UD-QKEY-GSI
#[test]
fn controlled_qkey_selects_that_of_the_qp() {
    let mut sh = Shared::new(QpConfig::new(Qpn::new(2), Service::Ud, QpCaps::default()));
    sh.attr.qkey = Qkey(7);
    assert_eq!(qkey_to_send(&sh, Qkey(0x7fff_ffff)), Qkey(0x7fff_ffff));
    assert_eq!(qkey_to_send(&sh, Qkey(0x8000_0000)), Qkey(7));
    sh.config.qpn = Qpn::GSI;
    assert_eq!(qkey_to_send(&sh, Qkey(5)), Qkey::GSI);
}
