//! XRC over real sockets, within one process.

use crate::common::{Node, connect, request, wait_both, write_to};
use roxe_provider::wire::PathMtu;
use roxe_provider::{Access, Cq, Cqe, Error, Qp, RecvRequest, SendOp, Service, Srq, SrqInit, WcStatus, Xrcd, XrcdInit};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

const PRIVATE: XrcdInit<'static> = XrcdInit { file: None, create: true, exclusive: false };

/// A node with an XRC domain and two SRQs that complete in the node's queue.
struct Receiver {
    node: Node,
    xrcd: Arc<Xrcd>,
    queues: [Arc<Srq>; 2],
}

fn queue(xrcd: &Arc<Xrcd>, node: &Node, cq: &Arc<Cq>) -> Arc<Srq> {
    xrcd.create_srq(&node.pd, cq, SrqInit { max_wr: 16, max_sge: 2, limit: 0, user: 0 }).unwrap()
}

impl Receiver {
    fn open() -> Self {
        let node = Node::open();
        let xrcd = node.context.open_xrcd(PRIVATE).unwrap();
        let queues = [queue(&xrcd, &node, &node.cq), queue(&xrcd, &node, &node.cq)];
        Self { node, xrcd, queues }
    }

    fn number(&self, at: usize) -> u32 {
        self.queues[at].number().unwrap()
    }
}

/// Connects an initiator of `from` with a new target of `xrcd`.
fn pair(from: &Node, to: &Node, xrcd: &Arc<Xrcd>) -> (Arc<Qp>, Arc<Qp>) {
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
fn xrc_queue_of_other_domain_grants_no_access() {
    let (a, b) = (Node::open(), Receiver::open());
    let (ini, _tgt) = pair(&a, &b.node, &b.xrcd);
    let stranger = b.node.context.alloc_pd().unwrap();
    let init = SrqInit { max_wr: 1, max_sge: 1, limit: 0, user: 0 };
    let other = b.xrcd.create_srq(&stranger, &b.node.cq, init).unwrap();
    send(&ini, other.number().unwrap(), 3, write_to(&b.node, 0), a.sge(0, 8));
    let (sent, _) = wait_both((&a, 1), (&b.node, 0));
    assert_eq!(statuses(&sent), [(3, WcStatus::RemAccessErr)]);
}

// clause: XRC-QUEUE-KNOWN
#[test]
fn unknown_xrc_queues_are_refused() {
    let (a, b, c) = (Node::open(), Receiver::open(), Receiver::open());
    b.queues[1].destroy().unwrap();
    for number in [c.number(0), b.number(1), 0] {
        let (ini, _tgt) = pair(&a, &b.node, &b.xrcd);
        send(&ini, number, 9, SendOp::Send, a.sge(0, 8));
        let (sent, _) = wait_both((&a, 1), (&b.node, 0));
        assert_eq!(statuses(&sent), [(9, WcStatus::RemInvReqErr)]);
    }
}

#[test]
fn openings_of_one_file_share_xrc_domain() {
    let path = std::env::temp_dir().join(format!("roxe-xrcd-{}", std::process::id()));
    let (file, again) = (File::create(&path).unwrap(), File::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let other = File::open("/proc/self/exe").unwrap();
    let named = |file| XrcdInit { file: Some(file), create: true, exclusive: false };
    let (a, b) = (Node::open(), Node::open());
    let open = |node: &Node, init| node.context.open_xrcd(init);
    assert_eq!(errno(open(&a, XrcdInit { create: false, ..PRIVATE })), libc::EINVAL);
    assert_eq!(errno(open(&a, XrcdInit { create: false, ..named(file.as_fd()) })), libc::EAGAIN);
    let first = open(&a, named(file.as_fd())).unwrap();
    assert_eq!(errno(open(&b, XrcdInit { exclusive: true, ..named(again.as_fd()) })), libc::EINVAL);
    let second = open(&b, XrcdInit { create: false, ..named(again.as_fd()) }).unwrap();
    let third = open(&b, named(other.as_fd())).unwrap();
    // A target of one context delivers to a queue of another, in the memory of the latter.
    let (srq, target) = (queue(&second, &b, &b.cq), first.create_target(0).unwrap());
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
fn xrc_domain_is_busy_while_it_has_targets_or_queues() {
    let b = Receiver::open();
    let target = b.xrcd.create_target(0).unwrap();
    b.queues.iter().for_each(|srq| srq.destroy().unwrap());
    assert_eq!(errno(b.xrcd.close()), libc::EBUSY);
    target.destroy();
    b.xrcd.close().unwrap();
    let srq = queue(&b.xrcd, &b.node, &b.node.cq);
    assert_eq!(errno(b.xrcd.close()), libc::EBUSY);
    assert_eq!(errno(b.node.cq.destroy()), libc::EBUSY);
    srq.destroy().unwrap();
    b.xrcd.close().unwrap();
    let other = Node::open();
    let init = SrqInit { max_wr: 1, max_sge: 1, limit: 0, user: 0 };
    assert_eq!(errno(b.xrcd.create_srq(&other.pd, &other.cq, init)), libc::EINVAL);
}

// clause: XRC-DIRECTIONS
#[test]
fn xrc_ends_have_one_direction() {
    let (a, b) = (Node::open(), Receiver::open());
    let (ini, tgt) = pair(&a, &b.node, &b.xrcd);
    assert!(ini.post_recv(&RecvRequest { wr_id: 1, sges: &[] }).is_err());
    assert!(tgt.post_recv(&RecvRequest { wr_id: 1, sges: &[] }).is_err());
    assert!(tgt.post_send(&[request(1, SendOp::Send, &[])]).is_err());
    assert_eq!((ini.query().1.caps.max_recv_wr, tgt.query().0.access), (0, remote()));
}

fn remote() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}
