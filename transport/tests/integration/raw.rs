//! Raw packet queue pairs: whole frames out, whole frames in.

use roxe_sim::SimHost;
use roxe_transport::Qp;
use roxe_transport::cx::{PacketNote, TxBatch, TxRoom, TxState};
use roxe_transport::qp::{AttrMask, DropReason, FrameNote, PostError, QpAttr, QpCaps, QpConfig, QpState, Service};
use roxe_transport::wr::{Access, Av, Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, WcOpcode, WcStatus};
use roxe_wire::Qpn;
use roxe_wire::frame::checksum;

const MAX_FRAME: u32 = 1518;

#[derive(Default)]
struct Frames(Vec<Vec<u8>>);

impl TxBatch for Frames {
    fn slot(&mut self, _: &Av, _: Qpn, _: usize, _: &PacketNote) -> Option<TxRoom<'_>> {
        None
    }

    fn frame(&mut self, len: usize, _: &PacketNote) -> Option<&mut [u8]> {
        self.0.push(vec![0xa5; len]);
        self.0.last_mut().map(Vec::as_mut_slice)
    }

    fn retract(&mut self) {
        self.0.pop();
    }
}

/// Returns a raw packet QP in `state` with queues of four entries.
fn qp(state: QpState, host: &mut SimHost) -> Qp {
    let caps = QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
    let (qpn, service) = (Qpn::new(2), Service::Raw);
    let config = QpConfig { sq_sig_all: true, port_mtu: MAX_FRAME, ..QpConfig::new(qpn, service, caps) };
    let mut qp = Qp::new(config);
    for (step, mask) in [
        (QpState::Init, AttrMask::STATE | AttrMask::PORT),
        (QpState::Rtr, AttrMask::STATE),
        (QpState::Rts, AttrMask::STATE),
    ] {
        if qp.state() == state {
            break;
        }
        qp.modify(host, &QpAttr { state: step, ..QpAttr::default() }, mask).expect("modify the QP to its next state");
    }
    qp
}

fn send<'a>(wr_id: u64, data: SendData<'a>, flags: SendFlags) -> SendRequest<'a> {
    SendRequest { wr_id, op: SendOp::Send, flags, data, ud: None }
}

/// Returns the frames that `qp` sends now, and the statuses of its requests.
fn sent(qp: &mut Qp, host: &mut SimHost) -> (Vec<Vec<u8>>, Vec<(u64, WcStatus)>) {
    let mut frames = Frames::default();
    assert_eq!(qp.poll_transmit(host, &mut frames), TxState::Drained);
    (frames.0, host.sends.drain(..).map(|cqe| (cqe.wr_id, cqe.status)).collect())
}

// clause: RAW-STATES
#[test]
fn raw_queue_pairs_accept_only_the_port_attribute() {
    let mut host = SimHost::default();
    let mut qp = qp(QpState::Reset, &mut host);
    let attr = QpAttr { state: QpState::Init, ..QpAttr::default() };
    assert!(qp.modify(&mut host, &attr, AttrMask::STATE).is_err());
    assert!(qp.modify(&mut host, &attr, AttrMask::STATE | AttrMask::PORT | AttrMask::QKEY).is_err());
    assert_eq!(qp.modify(&mut host, &attr, AttrMask::STATE | AttrMask::PORT), Ok(()));
}

// clause: RAW-FRAME
#[test]
fn frames_are_sent_unchanged() {
    let mut host = SimHost::default();
    let mut qp = qp(QpState::Rts, &mut host);
    let mr = host.memory.register(64, Access::LOCAL_WRITE);
    let bytes: Vec<u8> = (0..64).collect();
    host.memory.bytes_mut(mr).copy_from_slice(&bytes);
    qp.post_send(&send(1, SendData::Sges(&[mr.sge(20, 10), mr.sge(0, 20)]), SendFlags::empty())).expect("room");
    qp.post_send(&send(2, SendData::Inline(&bytes[..14]), SendFlags::empty())).expect("room");
    let (frames, done) = sent(&mut qp, &mut host);
    assert_eq!(frames, [[&bytes[20..30], &bytes[..20]].concat(), bytes[..14].to_vec()]);
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

// clause: RAW-LENGTH
#[test]
fn frame_too_short_or_too_long_stops_the_send_queue() {
    for (len, status) in [
        (13, WcStatus::LocLenErr),
        (14, WcStatus::Success),
        (MAX_FRAME, WcStatus::Success),
        (MAX_FRAME + 1, WcStatus::LocLenErr),
    ] {
        let mut host = SimHost::default();
        let mut qp = qp(QpState::Rts, &mut host);
        let mr = host.memory.register(2048, Access::LOCAL_WRITE);
        qp.post_send(&send(1, SendData::Sges(&[mr.sge(0, len)]), SendFlags::empty())).expect("room");
        assert_eq!(sent(&mut qp, &mut host).1, [(1, status)], "{len} bytes");
        assert_eq!(qp.state() == QpState::Sqe, status != WcStatus::Success);
    }
}

// clause: RAW-CHECKSUM-SEND
#[test]
fn checksums_are_filled_in_on_request() {
    let mut host = SimHost::default();
    let mut qp = qp(QpState::Rts, &mut host);
    let mut frame = vec![0; 14 + 20 + 8];
    frame[12] = 8;
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame[39] = 8;
    for flags in [SendFlags::empty(), SendFlags::IP_CSUM] {
        qp.post_send(&send(1, SendData::Inline(&frame), flags)).expect("room");
    }
    let (frames, _) = sent(&mut qp, &mut host);
    assert_eq!(frames.iter().map(|frame| checksum::is_verified(frame)).collect::<Vec<_>>(), [false, true]);
}

// clause: RAW-FRAME
#[test]
fn raw_accepts_plain_sends_only() {
    let mut host = SimHost::default();
    let mut qp = qp(QpState::Rts, &mut host);
    let request = send(1, SendData::Inline(&[0; 14]), SendFlags::empty());
    for op in [
        SendOp::SendImm(roxe_wire::ImmDt::default()),
        SendOp::SendInvalidate(roxe_wire::RKey(1)),
        SendOp::Write { remote_addr: 0, rkey: roxe_wire::RKey(1) },
        SendOp::FetchAdd { remote_addr: 0, rkey: roxe_wire::RKey(1), add: 1 },
    ] {
        assert_eq!(qp.post_send(&SendRequest { op, ..request }), Err(PostError::BadOpcode));
    }
}

// clause: RAW-FRAME
#[test]
fn frame_is_delivered_with_its_metadata() {
    let mut host = SimHost::default();
    let mut qp = qp(QpState::Rtr, &mut host);
    let mr = host.memory.register(64, Access::LOCAL_WRITE);
    qp.post_recv(&RecvRequest { wr_id: 5, sges: &[mr.sge(32, 10), mr.sge(0, 10)] }).expect("room");
    let note = FrameNote { flow_tag: 77, ip_csum_ok: true };
    let frame: Vec<u8> = (1..=16).collect();
    assert_eq!(qp.handle_frame(&mut host, &frame, note), Ok(()));
    assert_eq!((&host.memory.bytes(mr)[32..42], &host.memory.bytes(mr)[..6]), (&frame[..10], &frame[10..]));
    let (opcode, qpn) = (WcOpcode::Recv, Qpn::new(2));
    let expected = Cqe { wr_id: 5, opcode, byte_len: 16, qpn, flow_tag: 77, ip_csum_ok: true, ..Cqe::default() };
    assert_eq!(host.recvs, [expected]);
}

// clause: RAW-LOST
#[test]
fn frame_without_room_is_dropped_and_receive_kept() {
    let mut host = SimHost::default();
    let mut qp = qp(QpState::Rtr, &mut host);
    let note = FrameNote::default();
    assert_eq!(qp.handle_frame(&mut host, &[0; 14], note), Err(DropReason::NoReceive));
    let mr = host.memory.register(64, Access::LOCAL_WRITE);
    qp.post_recv(&RecvRequest { wr_id: 5, sges: &[mr.sge(0, 20)] }).expect("room");
    assert_eq!(qp.handle_frame(&mut host, &[1; 21], note), Err(DropReason::InvalidRequest));
    assert_eq!((host.recvs.len(), host.memory.bytes(mr)[0]), (0, 0));
    assert_eq!(qp.handle_frame(&mut host, &[1; 20], note), Ok(()));
}

// clause: TAKE-REQUESTS
#[test]
fn frame_before_rtr_is_dropped() {
    let mut host = SimHost::default();
    let mut qp = qp(QpState::Init, &mut host);
    qp.post_recv(&RecvRequest { wr_id: 5, sges: &[] }).expect("room");
    assert_eq!(qp.handle_frame(&mut host, &[0; 14], FrameNote::default()), Err(DropReason::BadState));
}

// clause: UNRELIABLE-OWN-FAULT
#[test]
fn local_memory_fault_ends_the_qp() {
    let mut host = SimHost::default();
    let mut qp = qp(QpState::Rtr, &mut host);
    let readonly = host.memory.register(64, Access::empty());
    qp.post_recv(&RecvRequest { wr_id: 5, sges: &[readonly.all()] }).expect("room");
    assert_eq!(qp.handle_frame(&mut host, &[0; 14], FrameNote::default()), Err(DropReason::LocalProtection));
    assert_eq!(host.recvs.pop_front().map(|cqe| cqe.status), Some(WcStatus::LocProtErr));
    assert_eq!(qp.state(), QpState::Err);
}
