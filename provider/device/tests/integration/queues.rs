//! Shared receive queues, and completion queues that fill up or fail, over real packets.

use crate::common::*;
use roxe_provider::wire::{PathMtu, RKey};
use roxe_provider::{
    Access, AsyncEventKind, AttrMask, CqInit, MwKind, Qp, QpAttr, QpCaps, QpInit, QpState, RecvRequest, SendOp,
    Service, Sge, SrqInit, WcStatus,
};
use std::sync::Arc;

fn init(node: &Node) -> QpInit {
    let caps = QpCaps { max_send_wr: 4, max_send_sge: 1, ..QpCaps::default() };
    let (send_cq, recv_cq) = (Arc::clone(&node.cq), Arc::clone(&node.cq));
    QpInit { service: Service::Rc, caps, sq_sig_all: true, send_cq, recv_cq, srq: None, user_context: 7 }
}

/// Connects two queue pairs.
fn join(a: (&Node, &Qp), b: (&Node, &Qp)) {
    let gid = |node: &Node| node.context.gid(1, 0).unwrap();
    connect(a.1, a.0.av(0, gid(b.0)), b.1.qpn(), PathMtu::Mtu1024);
    connect(b.1, b.0.av(0, gid(a.0)), a.1.qpn(), PathMtu::Mtu1024);
}

// clause: STATE-RESET-COMPLETIONS
#[test]
fn reset_drops_completions() {
    let node = Node::open();
    let (again, other) = (node.qp(Service::Rc), node.qp(Service::Rc));
    let to = |qp: &Qp, state| qp.modify(&QpAttr { state, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    for (qp, wr_id) in [(&again, 1), (&other, 2)] {
        connect(qp, node.av(0, node.context.gid(1, 0).unwrap()), qp.qpn(), PathMtu::Mtu1024);
        qp.post_recv(&RecvRequest { wr_id, sges: &[] }).unwrap();
        to(qp, QpState::Err);
    }
    to(&again, QpState::Reset);
    let left = node.wait(1);
    assert_eq!((left[0].wr_id, left[0].status), (2, WcStatus::WrFlushErr));
    assert_eq!(node.cq.poll(1, |cqe| panic!("{cqe:?}")).unwrap(), 0);
}

// clause: DESTROY-COMPLETIONS
#[test]
fn destroyed_qp_drops_only_its_completions() {
    let node = Node::open();
    let (gone, other) = (node.qp(Service::Rc), node.qp(Service::Rc));
    for (qp, wr_id) in [(&gone, 1), (&other, 2), (&gone, 3)] {
        if wr_id < 3 {
            connect(qp, node.av(0, node.context.gid(1, 0).unwrap()), qp.qpn(), PathMtu::Mtu1024);
        }
        qp.post_recv(&RecvRequest { wr_id, sges: &[] }).unwrap();
    }
    for qp in [&gone, &other] {
        qp.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    }
    gone.destroy();
    let left = node.wait(1);
    assert_eq!((left[0].wr_id, left[0].status), (2, WcStatus::WrFlushErr));
    assert_eq!(node.cq.poll(1, |cqe| panic!("{cqe:?}")).unwrap(), 0);
}

// clause: SRQ-DOMAIN
#[test]
fn srq_receives_use_domain_of_srq() {
    let (a, b) = (Node::open(), Node::open());
    let foreign_pd = a.context.alloc_pd().unwrap();
    // SAFETY: memory of the node, which is registered already.
    let foreign_mr = unsafe { foreign_pd.reg_mr(a.addr(0), 4096, a.addr(0), Access::LOCAL_WRITE) }.unwrap();
    let foreign = Sge { addr: a.addr(0), length: 64, lkey: foreign_mr.lkey() };
    let srq = foreign_pd.create_srq(SrqInit { max_wr: 2, max_sge: 1, ..SrqInit::default() }).unwrap();
    let qa = a.pd.create_qp(QpInit { srq: Some(Arc::clone(&srq)), ..init(&a) }).unwrap();
    let qb = b.qp(Service::Rc);
    join((&a, &qa), (&b, &qb));

    srq.post_recv(&RecvRequest { wr_id: 1, sges: &[foreign] }).unwrap();
    b.fill(0, 64, 9);
    post(&qb, 2, SendOp::Send, b.sge(0, 64));
    let (received, sent) = wait_both((&a, 1), (&b, 1));
    assert_eq!((received[0].status, sent[0].status), (WcStatus::Success, WcStatus::Success));
    assert_eq!(a.bytes(0, 64), pattern(64, 9));

    b.fill(0, 64, 10);
    post(&qa, 3, read_from(&b, 0), foreign);
    assert_eq!(a.wait(1)[0].status, WcStatus::LocProtErr, "the region is not of the domain of the queue pair");
    assert_eq!(a.bytes(0, 64), pattern(64, 9));
}

// clause: SEND-PLACE
#[test]
fn full_send_queue_never_overruns_its_cq() {
    let (a, b) = (Node::open(), Node::open());
    let send_cq = a.context.create_cq(CqInit { cqe: 4, ..CqInit::default() }).unwrap();
    let uc = |node: &Node| QpInit { service: Service::Uc, ..init(node) };
    let qa = a.pd.create_qp(QpInit { send_cq: Arc::clone(&send_cq), ..uc(&a) }).unwrap();
    let qb = b.pd.create_qp(uc(&b)).unwrap();
    join((&a, &qa), (&b, &qb));
    let write = |wr_id| qa.post_send(&[request(wr_id, write_to(&b, 0), &[a.sge(0, 8)])]);
    let full = Err((0, roxe_provider::PostError::QueueFull));
    let polled = |max| {
        let mut ids = Vec::new();
        send_cq.poll(max, |cqe| ids.push((cqe.wr_id, cqe.status))).unwrap();
        ids
    };

    // A UC request completes when it is posted and the peer has room.
    assert!((0..4).all(|id| write(id).is_ok()));
    assert_eq!(write(9), full);
    assert_eq!(polled(1), [(0, WcStatus::Success)]);
    assert_eq!((write(4), write(9)), (Ok(()), full));
    assert_eq!(polled(9), [1, 2, 3, 4].map(|id| (id, WcStatus::Success)));

    // A flushed request also frees its place only when polled.
    qa.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    assert!((5..9).all(|id| write(id).is_ok()));
    assert_eq!(write(9), full);
    assert_eq!(polled(9), [5, 6, 7, 8].map(|id| (id, WcStatus::WrFlushErr)));

    // A reset empties the send queue.
    assert!((5..9).all(|id| write(id).is_ok()));
    qa.modify(&QpAttr { state: QpState::Reset, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    polled(9);
    connect(&qa, a.av(0, b.context.gid(1, 0).unwrap()), qb.qpn(), PathMtu::Mtu1024);
    assert!((0..4).all(|id| write(id).is_ok()));
}

/// `tests/tests/integration/cases` tests windows between processes; this test has both ends in one
/// process for the sanitizers.
// clause: WINDOW-TYPE-2
#[test]
fn window_is_bound_written_and_invalidated_per_message() {
    let (a, b) = (Node::open(), Node::open());
    let (qa, qb) = pair(&a, &b, Service::Rc, 0, PathMtu::Mtu1024);
    let rights = Access::LOCAL_WRITE | Access::MW_BIND;
    // SAFETY: memory of the node, which is registered already.
    let closed = unsafe { b.pd.reg_mr(b.addr(0), 5000, b.addr(0), rights) }.unwrap();
    let window = b.pd.alloc_mw(MwKind::Two).unwrap();
    let run = |node: &Node, qp: &Qp, op, sges: &[Sge]| {
        qp.post_send(&[request(1, op, sges)]).unwrap();
        assert_eq!(node.wait(1)[0].status, WcStatus::Success, "{op:?}");
    };
    for turn in 1..=60 {
        let rkey = RKey(window.rkey().0 & !0xff | turn);
        let (lkey, access, addr) = (closed.lkey(), Access::REMOTE_WRITE, b.addr(0));
        run(&b, &qb, SendOp::BindWindow { rkey, lkey, access, addr, length: 5000 }, &[]);
        a.fill(0, 5000, turn as u8);
        run(&a, &qa, SendOp::Write { remote_addr: addr, rkey }, &[a.sge(0, 5000)]);
        assert_eq!(b.bytes(0, 5000), pattern(5000, turn as u8));
        run(&b, &qb, SendOp::LocalInvalidate(rkey), &[]);
    }
}

// clause: CQ-OVERRUN
#[test]
fn overrun_raises_cq_and_qp_events() {
    let (a, b) = (Node::open(), Node::open());
    let send_cq = a.context.create_cq(CqInit { cqe: 1, user_context: 5, ..CqInit::default() }).unwrap();
    let uc = |node: &Node| QpInit { service: Service::Uc, ..init(node) };
    let qa = a.pd.create_qp(QpInit { send_cq: Arc::clone(&send_cq), ..uc(&a) }).unwrap();
    let qb = b.pd.create_qp(uc(&b)).unwrap();
    join((&a, &qa), (&b, &qb));
    (0..2).for_each(|id| post(&qa, id, write_to(&b, 0), a.sge(0, 8)));
    let events = [(); 2].map(|()| a.context.next_async_event().unwrap()).map(|event| (event.kind, event.user_context));
    assert_eq!(events, [(AsyncEventKind::CqErr, 5), (AsyncEventKind::QpFatal, 7)]);
    assert_eq!(qa.state(), QpState::Err);
    let mut left = Vec::new();
    send_cq.poll(9, |cqe| left.push((cqe.wr_id, cqe.status))).unwrap();
    assert_eq!(left, [(0, WcStatus::Success)], "what was there before can still be polled");
}

#[test]
fn completions_survive_resizes() {
    let (a, b) = (Node::open(), Node::open());
    let (qa, _qb) = pair(&a, &b, Service::Rc, 0, PathMtu::Mtu1024);
    let (total, mut posted, mut done) = (2000, 0, Vec::new());
    std::thread::scope(|scope| {
        let resizer = scope.spawn(|| (0..400).for_each(|n| a.cq.resize([128, 4096, 1000][n % 3]).unwrap()));
        while done.len() < total {
            while posted < total && qa.post_send(&[request(posted as u64, write_to(&b, 0), &[a.sge(0, 8)])]).is_ok() {
                posted += 1;
            }
            a.cq.poll(7, |cqe| done.push((cqe.wr_id, cqe.status))).unwrap();
        }
        resizer.join().unwrap();
    });
    let wrong = done.into_iter().zip(0..total as u64).find(|(done, id)| *done != (*id, WcStatus::Success));
    assert_eq!(wrong, None);
}
