//! `ROXE_PROFILE` over real sockets: a process whose device takes on the identity of a card.

use crate::common::peer::program;
use crate::common::*;
use roxe_provider::wire::{LKey, PathMtu, RKey};
use roxe_provider::{AttrMask, QpAttr, QpState, SendOp, Service, Sge, SrqInit, WcStatus, devices};

/// GID index of the IPv4 address as RoCE v2, which many programs take for granted.
const INDEX: u8 = 3;

/// Runs a test of this file with the profile of a card.
fn run(test: &str, card: &str) {
    let output = program(test).env("ROXE_PROFILE", card).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn is_child() -> bool {
    std::env::var_os("ROXE_PROFILE").is_some()
}

#[test]
fn connectx_profile_reports_vendor_errors_of_the_card() {
    run("process_with_failing_requests", "cx6");
}

/// Runs in a process started by the test above.
#[test]
fn process_with_failing_requests() {
    if !is_child() {
        return;
    }
    assert_eq!(devices().unwrap()[0].name(), "mlx5_0");
    let (a, b) = (Node::open(), Node::open());
    let bad_key = |sge: Sge| Sge { lkey: LKey(sge.lkey.0 ^ 0xff00), ..sge };
    let wrong_write = SendOp::Write { remote_addr: b.addr(0), rkey: RKey(b.mr.rkey().0 ^ 0xff00) };
    let cases = [
        (wrong_write, a.sge(0, 64), WcStatus::RemAccessErr, 136, None),
        (write_to(&b, 0), bad_key(a.sge(0, 64)), WcStatus::LocProtErr, 81, None),
        // The receive is too short.
        (SendOp::Send, a.sge(0, 64), WcStatus::RemInvReqErr, 138, Some(WcStatus::LocLenErr)),
    ];
    for (op, sge, status, vendor_err, of_receive) in cases {
        let (qa, qb) = pair(&a, &b, Service::Rc, INDEX, PathMtu::Mtu1024);
        post_recv(&qb, 1, b.sge(0, 8));
        post_recv(&qb, 2, b.sge(0, 8));
        post(&qa, 1, op, sge);
        let done = a.wait(1)[0];
        assert_eq!((done.status, done.vendor_err.0), (status, vendor_err));
        qb.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
        let ended: Vec<_> = b.wait(2).iter().map(|cqe| (cqe.status, cqe.vendor_err.0)).collect();
        // roxe's own reason stays where nothing is known of the card.
        let first = of_receive.map_or((WcStatus::WrFlushErr, 249), |status| (status, 6));
        assert_eq!(ended, [first, (WcStatus::WrFlushErr, 249)]);
    }
}

#[test]
fn e810_profile_has_no_shared_receive_queues() {
    run("process_without_shared_queues", "e810");
}

/// Runs in a process started by the test above.
#[test]
fn process_without_shared_queues() {
    if !is_child() {
        return;
    }
    let node = Node::open();
    assert_eq!(node.context.device().attr().max_srq, 0);
    assert!(node.pd.create_srq(SrqInit { max_wr: 1, max_sge: 1, limit: 0, user_context: 0 }).is_err());
}
