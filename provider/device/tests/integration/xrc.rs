//! XRC over real sockets, within one process.

use crate::common::{Node, connect, request, wait_both, write_to};
use roxe_provider::wire::PathMtu;
use roxe_provider::{Access, Cq, Cqe, Error, Qp, RecvRequest, SendOp, Service, Srq, SrqInit, WcStatus, Xrcd, XrcdInit};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

const PRIVATE: XrcdInit<'static> = XrcdInit { file: None, create: true, exclusive: false };

/// A node with an XRC domain and two SRQs, whose receives complete in the node's CQ.
struct Receiver {
    node: Node,
    xrcd: Arc<Xrcd>,
    srqs: [Arc<Srq>; 2],
}

fn create_srq(xrcd: &Arc<Xrcd>, node: &Node, cq: &Arc<Cq>) -> Arc<Srq> {
    xrcd.create_srq(&node.pd, cq, SrqInit { max_wr: 16, max_sge: 2, limit: 0, user_context: 0 }).unwrap()
}

impl Receiver {
    fn open() -> Self {
        let node = Node::open();
        let xrcd = node.context.open_xrcd(PRIVATE).unwrap();
        let srqs = [create_srq(&xrcd, &node, &node.cq), create_srq(&xrcd, &node, &node.cq)];
        Self { node, xrcd, srqs }
    }

    fn srqn(&self, at: usize) -> u32 {
        self.srqs[at].number().unwrap()
    }
}

/// Connects an initiator of `from` with a new target in `xrcd`, a domain of `to`. Returns both.
fn connected_pair(from: &Node, to: &Node, xrcd: &Arc<Xrcd>) -> (Arc<Qp>, Arc<Qp>) {
    let (ini, tgt) = (from.qp(Service::XrcIni), xrcd.create_target(0).unwrap());
    let gid = |node: &Node| node.context.gid(1, 0).unwrap();
    connect(&ini, from.av(0, gid(to)), tgt.qpn(), PathMtu::Mtu1024);
    connect(&tgt, to.av(0, gid(from)), ini.qpn(), PathMtu::Mtu1024);
    (ini, tgt)
}

fn send(ini: &Qp, srqn: u32, wr_id: u64, op: SendOp, sge: roxe_provider::Sge) {
    ini.send().push_to_srq(srqn, &request(wr_id, op, &[sge])).unwrap();
}

fn statuses(done: &[Cqe]) -> Vec<(u64, WcStatus)> {
    done.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
}

fn errno<T>(result: Result<T, Error>) -> i32 {
    result.err().expect("the call is refused").errno()
}

// clause: XRC-DOMAIN
#[test]
fn srq_of_other_pd_grants_no_access_to_xrc_target() {
    let (a, b) = (Node::open(), Receiver::open());
    let (ini, _tgt) = connected_pair(&a, &b.node, &b.xrcd);
    let other_pd = b.node.context.alloc_pd().unwrap();
    let init = SrqInit { max_wr: 1, max_sge: 1, limit: 0, user_context: 0 };
    let other = b.xrcd.create_srq(&other_pd, &b.node.cq, init).unwrap();
    send(&ini, other.number().unwrap(), 3, write_to(&b.node, 0), a.sge(0, 8));
    let (sent, _) = wait_both((&a, 1), (&b.node, 0));
    assert_eq!(statuses(&sent), [(3, WcStatus::RemAccessErr)]);
}

// clause: XRC-QUEUE-KNOWN
#[test]
fn unknown_xrc_srq_is_refused() {
    let (a, b, c) = (Node::open(), Receiver::open(), Receiver::open());
    b.srqs[1].destroy().unwrap();
    for srqn in [c.srqn(0), b.srqn(1), 0] {
        let (ini, _tgt) = connected_pair(&a, &b.node, &b.xrcd);
        send(&ini, srqn, 9, SendOp::Send, a.sge(0, 8));
        let (sent, _) = wait_both((&a, 1), (&b.node, 0));
        assert_eq!(statuses(&sent), [(9, WcStatus::RemInvReqErr)]);
    }
}

#[test]
fn opens_of_one_file_share_an_xrc_domain() {
    let path = std::env::temp_dir().join(format!("roxe-xrcd-{}", std::process::id()));
    let (file, reopened) = (File::create(&path).unwrap(), File::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let other = File::open("/proc/self/exe").unwrap();
    let init_for = |file| XrcdInit { file: Some(file), create: true, exclusive: false };
    let (a, b) = (Node::open(), Node::open());
    let open = |node: &Node, init| node.context.open_xrcd(init);
    assert_eq!(errno(open(&a, XrcdInit { create: false, ..PRIVATE })), libc::EINVAL);
    assert_eq!(errno(open(&a, XrcdInit { create: false, ..init_for(file.as_fd()) })), libc::EAGAIN);
    let first = open(&a, init_for(file.as_fd())).unwrap();
    assert_eq!(errno(open(&b, XrcdInit { exclusive: true, ..init_for(reopened.as_fd()) })), libc::EINVAL);
    let second = open(&b, XrcdInit { create: false, ..init_for(reopened.as_fd()) }).unwrap();
    let third = open(&b, init_for(other.as_fd())).unwrap();
    // A target of context `a` delivers to an SRQ of context `b`, in the memory of `b`.
    let (srq, target) = (create_srq(&second, &b, &b.cq), first.create_target(0).unwrap());
    let ini = a.qp(Service::XrcIni);
    let gid = a.context.gid(1, 0).unwrap();
    connect(&ini, a.av(0, gid), target.qpn(), PathMtu::Mtu1024);
    connect(&target, a.av(0, gid), ini.qpn(), PathMtu::Mtu1024);
    a.fill(0, 64, 9);
    srq.post_recv(&RecvRequest { wr_id: 6, sges: &[b.sge(0, 64)] }).unwrap();
    send(&ini, srq.number().unwrap(), 1, SendOp::Send, a.sge(0, 64));
    wait_both((&a, 1), (&b, 1));
    assert_eq!(b.bytes(0, 64), a.bytes(0, 64));
    assert!(second.open_target(target.qpn().get()).is_ok_and(|found| Arc::ptr_eq(&found, &target)));
    assert_eq!(errno(third.open_target(target.qpn().get())), libc::EINVAL);
}

#[test]
fn xrc_domain_with_targets_or_srqs_is_busy() {
    let b = Receiver::open();
    let target = b.xrcd.create_target(0).unwrap();
    b.srqs.iter().for_each(|srq| srq.destroy().unwrap());
    assert_eq!(errno(b.xrcd.close()), libc::EBUSY);
    target.destroy();
    b.xrcd.close().unwrap();
    let srq = create_srq(&b.xrcd, &b.node, &b.node.cq);
    assert_eq!(errno(b.xrcd.close()), libc::EBUSY);
    assert_eq!(errno(b.node.cq.destroy()), libc::EBUSY);
    srq.destroy().unwrap();
    b.xrcd.close().unwrap();
    let other = Node::open();
    let init = SrqInit { max_wr: 1, max_sge: 1, limit: 0, user_context: 0 };
    assert_eq!(errno(b.xrcd.create_srq(&other.pd, &other.cq, init)), libc::EINVAL);
}

// clause: XRC-DIRECTIONS
#[test]
fn xrc_initiator_only_sends_and_target_only_receives() {
    let (a, b) = (Node::open(), Receiver::open());
    let (ini, tgt) = connected_pair(&a, &b.node, &b.xrcd);
    assert!(ini.post_recv(&RecvRequest { wr_id: 1, sges: &[] }).is_err());
    assert!(tgt.post_recv(&RecvRequest { wr_id: 1, sges: &[] }).is_err());
    assert!(tgt.post_send(&[request(1, SendOp::Send, &[])]).is_err());
    assert_eq!((ini.query().1.caps.max_recv_wr, tgt.query().0.access), (0, all_remote_rights()));
}

fn all_remote_rights() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}
