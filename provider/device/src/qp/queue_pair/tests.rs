//! Packets received by a queue pair.

use super::*;
use crate::cq::{Cq, CqInit};
use crate::pd::Pd;
use crate::qp::{Qp, QpInit};
use crate::srq::{Srq, SrqInit, TagInit};
use crate::testing::{self, PAGE_SIZE, Pages};
use roxe_engine::queue_pair::PREFETCH_LEN;
use roxe_engine::run::IdentGuess;
use roxe_transport::qp::{MAX_WAIT_RC, QpCaps};
use roxe_transport::wr::{Access, Av, Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, WcStatus};
use roxe_wire::{Bth, Deth, Gid, Header, Kind, PathMtu, Psn, Qkey, icrc};
use std::net::Ipv4Addr;
use std::sync::Arc;

const QKEY: Qkey = Qkey(7);

fn completions(pd: &Arc<Pd>) -> Arc<Cq> {
    pd.context().create_cq(CqInit { cqe: 16, ..CqInit::default() }).unwrap()
}

/// Creates a queue pair in RESET and its completion queue.
fn create(pd: &Arc<Pd>, service: Service) -> (Arc<Qp>, Arc<Cq>) {
    create_with(pd, service, None)
}

fn create_with(pd: &Arc<Pd>, service: Service, srq: Option<Arc<Srq>>) -> (Arc<Qp>, Arc<Cq>) {
    let cq = completions(pd);
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
    let init = QpInit { service, caps, sq_sig_all: false, send_cq, recv_cq, srq, user_context: 0 };
    (pd.create_qp(init).unwrap(), cq)
}

#[test]
fn shared_payload_is_accepted_only_by_rc_without_tags() {
    let pd = testing::pd();
    let init = || SrqInit { max_wr: 4, max_sge: 1, limit: 0, user_context: 0 };
    let plain = pd.create_srq(init()).unwrap();
    let tags = pd.create_tag_srq(init(), &completions(&pd), TagInit { max_tags: 1, max_ops: 1 }).unwrap();
    let takes = |service, srq| create_with(&pd, service, srq).0.core.takes_shared_payload();
    assert!(takes(Service::Rc, None) && takes(Service::Rc, Some(plain)));
    assert!(!takes(Service::Rc, Some(tags)));
    assert!(!takes(Service::Uc, None) && !takes(Service::Ud, None), "their packets may wait for a receive");
}

/// Creates a datagram queue pair in RTR and its completion queue.
fn receiver(pd: &Arc<Pd>) -> (Arc<Qp>, Arc<Cq>) {
    let (qp, cq) = create(pd, Service::Ud);
    let attr = QpAttr { state: QpState::Init, qkey: QKEY, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY).unwrap();
    qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, AttrMask::STATE).unwrap();
    (qp, cq)
}

/// Returns a sealed datagram of 4 bytes to `to`.
fn datagram(to: Qpn) -> (RxMeta, Vec<u8>) {
    let loopback = Ipv4Addr::LOCALHOST.into();
    let kind = Kind::Ud { deth: Deth { qkey: QKEY, src_qpn: Qpn::new(9) }, imm: None };
    let header = Header { bth: Bth::new(to, Psn::new(1)), kind };
    let mut bytes = vec![0; header.padded_len(4) + icrc::LEN];
    let covered = bytes.len() - icrc::LEN;
    header.emit(4, &mut bytes[..covered]).unwrap().copy_from_slice(b"data");
    let len = bytes.len();
    let (src, dst, src_port) = (loopback, loopback, 50_000);
    let by_ring = false;
    let meta =
        RxMeta { len, segment: len, first_index: 0, src, dst, src_port, traffic_class: 0, hop_limit: 64, by_ring };
    icrc::seal(&header_of(&meta, 0), &mut bytes);
    (meta, bytes)
}

fn icrc_errors(qp: &Qp) -> u64 {
    let counters = qp.pd().context().counters();
    counters.iter().find(|(name, _)| *name == "icrc_errors").unwrap().1
}

// clause: ICRC-WRONG
#[test]
fn packet_with_wrong_icrc_is_only_counted() {
    let (pd, pages) = (testing::pd(), Pages::new(1));
    let mr = pd.register(pages.addr(), PAGE_SIZE, pages.addr(), Access::LOCAL_WRITE).unwrap();
    let (qp, cq) = receiver(&pd);
    qp.post_recv(&RecvRequest { wr_id: 5, sges: &[Sge { addr: mr.addr(), length: 64, lkey: mr.lkey() }] }).unwrap();
    let (meta, mut bytes) = datagram(qp.qpn());
    let receive = |bytes: &[u8]| {
        let (mut ident, locals) = (IdentGuess::default(), []);
        let mut tools = tools(&mut ident, &locals);
        let _ = qp.core.receive(Run { meta: &meta, bytes, index: 0 }, &mut tools, clock::now());
        let mut done: Vec<Cqe> = vec![];
        cq.poll(16, |cqe| done.push(*cqe)).unwrap();
        (done, icrc_errors(&qp))
    };
    let before = icrc_errors(&qp);
    let last = bytes.len() - icrc::LEN - 1;
    bytes[last] ^= 1;
    let (done, errors) = receive(&bytes);
    assert_eq!(done, []);
    // Other tests of this program count on the same device.
    assert!(errors > before);
    assert_eq!(testing::load(mr.addr() + 40), 0, "memory is unchanged");
    bytes[last] ^= 1;
    let (done, _) = receive(&bytes);
    assert_eq!(done.iter().map(|cqe| (cqe.wr_id, cqe.byte_len)).collect::<Vec<_>>(), [(5, 44)]);
}

/// perftest requests the depth that its peer reports, and rxe reports 128.
// clause: STATE-VALUES
#[test]
fn rd_atomic_depths_up_to_128_are_accepted() {
    let (qp, _) = create(&testing::pd(), Service::Rc);
    let loopback = Ipv4Addr::LOCALHOST.into();
    let av = Av { sgid: loopback, dgid: loopback, ..Av::default() };
    let attr = QpAttr { state: QpState::Init, av, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS).unwrap();
    let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN | AttrMask::MIN_RNR_TIMER;
    let retries = AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::SQ_PSN;
    for (state, mask) in
        [(QpState::Rtr, connected | AttrMask::MAX_DEST_RD_ATOMIC), (QpState::Rts, retries | AttrMask::MAX_QP_RD_ATOMIC)]
    {
        let before = qp.state();
        let to = |depth| QpAttr { state, max_rd_atomic: depth, max_dest_rd_atomic: depth, ..attr };
        let refused = qp.modify(&to(129), mask | AttrMask::STATE);
        assert_eq!((refused.map_err(|e| e.errno()), qp.state()), (Err(libc::EINVAL), before));
        qp.modify(&to(128), mask | AttrMask::STATE).unwrap();
    }
}

/// Creates a connected queue pair with four receives.
fn connected_receiver(pd: &Arc<Pd>, sge: Sge) -> (Arc<Qp>, Arc<Cq>) {
    let (qp, cq) = create(pd, Service::Rc);
    let loopback = Ipv4Addr::LOCALHOST.into();
    let av = Av { sgid: loopback, dgid: loopback, ..Av::default() };
    let attr = QpAttr { state: QpState::Init, av, rq_psn: Psn::new(77), dest_qpn: Qpn::new(9), ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS).unwrap();
    let mask = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN | AttrMask::MIN_RNR_TIMER;
    let mask = mask | AttrMask::STATE | AttrMask::MAX_DEST_RD_ATOMIC;
    qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, mask).unwrap();
    (0..4).for_each(|wr_id| qp.post_recv(&RecvRequest { wr_id, sges: &[sge] }).unwrap());
    (qp, cq)
}

fn send_with(psn: u32, to: Qpn) -> (RxMeta, Vec<u8>) {
    let (meta, _) = datagram(to);
    let kind = Kind::RcRequest(roxe_wire::Request::SendOnly(roxe_wire::SendTail::Plain));
    let header = Header { bth: Bth::new(to, Psn::new(psn)), kind };
    let mut bytes = vec![0; header.padded_len(4) + icrc::LEN];
    let covered = bytes.len() - icrc::LEN;
    header.emit(4, &mut bytes[..covered]).unwrap().copy_from_slice(b"data");
    icrc::seal(&header_of(&meta, 0), &mut bytes);
    (RxMeta { len: bytes.len(), segment: bytes.len(), ..meta }, bytes)
}

fn tools<'a>(ident: &'a mut IdentGuess, locals: &'a [Gid]) -> RxTools<'a> {
    let (no_receives, may_overtake, serves_at_once, delayed_until) = (false, false, false, None);
    RxTools { ident, locals, no_receives, may_overtake, serves_at_once, delayed_until }
}

/// At the end of a ring an acknowledgement leaves in the visit of its request, or is delayed there.
#[test]
fn ack_after_last_request_leaves_at_once() {
    let (pd, pages) = (testing::pd(), Pages::new(1));
    let mr = pd.register(pages.addr(), PAGE_SIZE, pages.addr(), Access::LOCAL_WRITE).unwrap();
    let (qp, _cq) = connected_receiver(&pd, Sge { addr: mr.addr(), length: 64, lkey: mr.lkey() });
    let now = clock::now();
    let receive = |psn, serves_at_once| {
        let (meta, mut bytes) = send_with(psn, qp.qpn());
        // Requests an acknowledgement; the packets of a ring need no ICRC.
        bytes[8] |= 0x80;
        let (meta, mut ident) = (RxMeta { by_ring: true, ..meta }, IdentGuess::default());
        let mut tools = RxTools { serves_at_once, ..tools(&mut ident, &[]) };
        let outcome = qp.core.receive(Run { meta: &meta, bytes: &bytes, index: 0 }, &mut tools, now);
        (outcome.contains(VisitOutcome::HAS_WORK), tools.delayed_until.is_some(), qp.core.status().1.sent_bytes)
    };
    assert_eq!(receive(77, false), (true, false, 0));
    assert_eq!(receive(78, true), (false, false, 20), "one for both");
    for _ in 0..u8::MAX {
        let mut inner = qp.core.inner.lock();
        inner.delayed_ack.on_post(now);
        inner.delayed_ack.on_request(now);
    }
    qp.core.inner.lock().delayed_ack.on_post(now);
    assert_eq!(receive(79, true), (false, true, 20));
    qp.core.send_delayed_ack(now);
    assert_eq!(qp.core.status().1.sent_bytes, 40);
}

fn receive(qp: &Qp, psn: u32, may_overtake: bool, now: Instant) {
    let (meta, bytes) = send_with(psn, qp.qpn());
    let locals = &[meta.src];
    let mut ident = IdentGuess::default();
    let mut tools = RxTools { may_overtake, ..tools(&mut ident, locals) };
    let _ = qp.core.receive(Run { meta: &meta, bytes: &bytes, index: 0 }, &mut tools, now);
}

#[test]
fn overtaking_request_of_local_peer_waits() {
    let (pd, pages) = (testing::pd(), Pages::new(1));
    let mr = pd.register(pages.addr(), PAGE_SIZE, pages.addr(), Access::LOCAL_WRITE).unwrap();
    let (qp, cq) = connected_receiver(&pd, Sge { addr: mr.addr(), length: 64, lkey: mr.lkey() });
    let now = clock::now();
    let expected = || qp.core.inner.lock().machine.expected_psn();
    receive(&qp, 79, true, now);
    receive(&qp, 78, true, now);
    assert_eq!(expected(), Psn::new(77));
    receive(&qp, 77, true, now);
    assert_eq!(expected(), Psn::new(80), "all three are accepted in order");
    let mut done = vec![];
    cq.poll(16, |cqe| done.push(cqe.wr_id)).unwrap();
    assert_eq!(done, [0, 1, 2]);
}

#[test]
fn psn_gap_is_a_loss_after_wait_or_at_once_if_remote() {
    let (pd, pages) = (testing::pd(), Pages::new(1));
    let mr = pd.register(pages.addr(), PAGE_SIZE, pages.addr(), Access::LOCAL_WRITE).unwrap();
    let (qp, _cq) = connected_receiver(&pd, Sge { addr: mr.addr(), length: 64, lkey: mr.lkey() });
    let now = clock::now();
    let waiting = || qp.core.inner.lock().early.len();
    receive(&qp, 78, false, now);
    assert_eq!(waiting(), 0);
    receive(&qp, 78, true, now);
    receive(&qp, 79, true, now);
    assert_eq!(waiting(), 2);
    receive(&qp, 90, false, now.after(MAX_WAIT_RC));
    assert_eq!(waiting(), 0, "delivered, so that the state machine requests the missing packet");
}

#[test]
fn early_packets_of_first_connection_are_dropped_by_reset() {
    let (pd, pages) = (testing::pd(), Pages::new(1));
    let mr = pd.register(pages.addr(), PAGE_SIZE, pages.addr(), Access::LOCAL_WRITE).unwrap();
    let (qp, _cq) = connected_receiver(&pd, Sge { addr: mr.addr(), length: 64, lkey: mr.lkey() });
    let waiting = || qp.core.inner.lock().early.len();
    receive(&qp, 79, true, clock::now());
    assert_eq!(waiting(), 1);
    qp.modify(&QpAttr { state: QpState::Reset, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    assert_eq!(waiting(), 0);
}

#[test]
fn prefetched_lines_fit_queue_pair() {
    assert!(size_of::<QpCore>().next_multiple_of(64) >= PREFETCH_LEN);
}

#[test]
fn history_holds_failed_retries() {
    let pd = testing::pd();
    let (qp, cq) = create(&pd, Service::Rc);
    let loopback = Ipv4Addr::LOCALHOST.into();
    let av = Av { sgid: loopback, dgid: loopback, hop_limit: 64, ..Av::default() };
    // No queue pair has this number.
    let dest_qpn = Qpn::new(qp.qpn().get() ^ 1);
    let init = QpAttr { state: QpState::Init, port: 1, ..QpAttr::default() };
    let rtr = QpAttr { state: QpState::Rtr, av, dest_qpn, path_mtu: PathMtu::Mtu1024, ..init };
    let rts = QpAttr { state: QpState::Rts, timeout: 1, retry_cnt: 3, sq_psn: Psn::new(7), ..rtr };
    testing::connect(&qp, [init, rtr, rts]);
    let (op, data) = (SendOp::Send, SendData::Inline(&[]));
    qp.post_send(&[SendRequest { wr_id: 5, op, flags: SendFlags::SIGNALED, data, ud: None }]).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        cq.poll(1, |cqe| done.push(cqe.status)).unwrap();
    }
    assert_eq!(done, [WcStatus::RetryExcErr]);
    let lines = qp.core.inner.lock().state.history.lines();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!([count("state INIT"), count("state RTR"), count("state RTS")], [1; 3], "{lines:#?}");
    assert_eq!(count("timeout; PSN 7 not acknowledged, next is 8"), 3, "{lines:#?}");
    assert_eq!(count("send request with wr_id 5 ended: transport retry counter exceeded"), 1, "{lines:#?}");
}
