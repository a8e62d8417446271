//! The packets of each operation.

use roxe_sim::{Pair, Peer, Rng, Setup};
use roxe_transport::wr::{Access, SendData, SendFlags, SendOp, SendRequest};
use roxe_wire::{Feth, Kind, Operation, Placement, Selectivity};

/// Returns the packets of a requester at MTU 256 for one request: opcode, payload bytes, AckReq,
/// SE.
fn packets(op: SendOp, len: u32) -> Vec<(Operation, usize, bool, bool)> {
    let mut pair = Pair::idle(Setup::default(), Rng::new(1));
    pair.bring_to(Peer::A, roxe_transport::qp::QpState::Rts);
    let mr = pair.end(Peer::A).host.memory.register(8192, Access::LOCAL_WRITE);
    let flags = SendFlags::SOLICITED;
    let req = SendRequest { wr_id: 1, op, flags, data: SendData::Sges(&[mr.sge(0, len)]), ud: None };
    assert_eq!(pair.post_send(Peer::A, &req), Ok(()));
    pair.transmit(Peer::A);
    assert!(pair.log.iter().all(|p| p.header.bth.mig_req && matches!(p.header.kind, Kind::RcRequest(_))));
    let fields = |p: &roxe_sim::LoggedPacket| {
        (p.header.opcode().operation(), p.len, p.header.bth.ack_req, p.header.bth.solicited)
    };
    pair.log.iter().map(fields).collect()
}

// clause: BTH-SOLICITED, SEND-ASK-LAST
#[test]
fn last_packet_requests_ack_and_solicits() {
    let sent = packets(SendOp::Send, 17 * 256 + 3);
    assert_eq!(sent.len(), 18);
    for (index, packet) in sent.into_iter().enumerate() {
        let expected = match index {
            0 => (Operation::SendFirst, 256, false, false),
            17 => (Operation::SendLast, 3, true, true),
            _ => (Operation::SendMiddle, 256, false, false),
        };
        assert_eq!(packet, expected, "packet {index}");
    }
}

// clause: BTH-SOLICITED, SEND-ASK-LAST
#[test]
fn only_write_imm_solicits_and_all_requests_request_acks() {
    let (remote_addr, rkey) = (0, roxe_wire::RKey(1));
    let one = |op, len| packets(op, len)[0];
    let imm = roxe_wire::ImmDt([0; 4]);
    assert_eq!(one(SendOp::Write { remote_addr, rkey }, 4), (Operation::WriteOnly, 4, true, false));
    assert_eq!(one(SendOp::WriteImm { remote_addr, rkey, imm }, 4), (Operation::WriteOnlyImm, 4, true, true));
    assert_eq!(one(SendOp::Read { remote_addr, rkey }, 4096), (Operation::ReadRequest, 0, true, false));
    assert_eq!(one(SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8), (Operation::FetchAdd, 0, true, false));
    assert_eq!(one(SendOp::AtomicWrite { remote_addr, rkey }, 8), (Operation::AtomicWrite, 8, true, false));
    let feth = Feth { selectivity: Selectivity::Range, placement: Placement::GLOBAL_VISIBILITY };
    let flush = SendOp::Flush { remote_addr, rkey, length: 1 << 20, feth };
    assert_eq!(packets(flush, 0), [(Operation::Flush, 0, true, false)], "one packet for any range");
}
