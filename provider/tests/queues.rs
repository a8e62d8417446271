//! Queues that belong to others, fill up or fail: shared receives and completion queues over real packets.

mod common;

use common::*;
use roxe_provider::wire::PathMtu;
use roxe_provider::{Access, Qp, QpCaps, QpInit, RecvRequest, Service, Sge, SrqInit, WcStatus};
use std::sync::Arc;

fn init(node: &Node) -> QpInit {
    let caps = QpCaps { max_send_wr: 4, max_send_sge: 1, ..QpCaps::default() };
    let (send_cq, recv_cq) = (Arc::clone(&node.cq), Arc::clone(&node.cq));
    QpInit { service: Service::Rc, caps, sq_sig_all: true, send_cq, recv_cq, srq: None, user: 7 }
}

/// Connects both to each other.
fn join(a: (&Node, &Qp), b: (&Node, &Qp)) {
    let gid = |node: &Node| node.context.gid(1, 0).unwrap();
    connect(a.1, a.0.av(0, gid(b.0)), b.1.qpn(), PathMtu::Mtu1024);
    connect(b.1, b.0.av(0, gid(a.0)), a.1.qpn(), PathMtu::Mtu1024);
}

// clause: SRQ-DOMAIN
#[test]
fn receives_use_the_domain_of_their_shared_queue_and_reads_that_of_the_queue_pair() {
    let (a, b) = (Node::open(), Node::open());
    let foreign_pd = a.context.alloc_pd().unwrap();
    let foreign_mr = foreign_pd.reg_mr(a.addr(0), 4096, a.addr(0), Access::LOCAL_WRITE).unwrap();
    let foreign = Sge { addr: a.addr(0), length: 64, lkey: foreign_mr.lkey() };
    let srq = foreign_pd.create_srq(SrqInit { max_wr: 2, max_sge: 1, ..SrqInit::default() }).unwrap();
    let qa = a.pd.create_qp(QpInit { srq: Some(Arc::clone(&srq)), ..init(&a) }).unwrap();
    let qb = b.qp(Service::Rc);
    join((&a, &qa), (&b, &qb));

    srq.post_recv(&RecvRequest { wr_id: 1, sges: &[foreign] }).unwrap();
    b.fill(0, 64, 9);
    post(&qb, 2, roxe_provider::SendOp::Send, b.sge(0, 64));
    let (received, sent) = wait_both((&a, 1), (&b, 1));
    assert_eq!((received[0].status, sent[0].status), (WcStatus::Success, WcStatus::Success));
    assert_eq!(a.bytes(0, 64), pattern(64, 9));

    b.fill(0, 64, 10);
    post(&qa, 3, read_from(&b, 0), foreign);
    assert_eq!(a.wait(1)[0].status, WcStatus::LocProtErr, "the region is not of the domain of the queue pair");
    assert_eq!(a.bytes(0, 64), pattern(64, 9));
}
