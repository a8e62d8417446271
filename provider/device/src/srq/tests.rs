//! Shared receive queues: order, limits, tags.

use super::*;
use crate::testing;
use roxe_base::limits::{MAX_SRQ_SGE, MAX_SRQ_WR};
use roxe_wire::LKey;

fn sge(addr: u64) -> Sge {
    Sge { addr, length: 8, lkey: LKey(1) }
}

fn srq(max_wr: u32, limit: u32) -> Arc<Srq> {
    testing::pd().create_srq(SrqInit { max_wr, max_sge: 2, limit, user_context: 5 }).unwrap()
}

fn post(srq: &Srq, wr_id: u64) -> Result<(), PostError> {
    srq.post_recv(&RecvRequest { wr_id, sges: &[sge(wr_id), sge(wr_id + 1)] })
}

// clause: SRQ-ORDER
#[test]
fn requests_keep_order_and_lists() {
    let srq = srq(4, 0);
    srq.post_recv(&RecvRequest { wr_id: 1, sges: &[] }).unwrap();
    srq.post_recv(&RecvRequest { wr_id: 2, sges: &[sge(20)] }).unwrap();
    post(&srq, 3).unwrap();
    let mut sges = vec![sge(99)];
    assert_eq!((srq.take(&mut sges), sges.as_slice()), (Some(1), &[][..]));
    assert_eq!((srq.take(&mut sges), sges.as_slice()), (Some(2), &[sge(20)][..]));
    assert_eq!((srq.take(&mut sges), sges.as_slice()), (Some(3), &[sge(3), sge(4)][..]));
    assert_eq!(srq.take(&mut sges), None);
    assert!(sges.is_empty());
}

#[test]
fn max_wr_and_max_sge_are_enforced() {
    let srq = srq(2, 0);
    let three = [sge(0); 3];
    assert_eq!(srq.post_recv(&RecvRequest { wr_id: 0, sges: &three }), Err(PostError::TooManySges));
    post(&srq, 1).unwrap();
    post(&srq, 2).unwrap();
    assert_eq!(post(&srq, 3), Err(PostError::QueueFull));
}

// clause: SRQ-LIMIT
#[test]
fn limit_event_fires_once_per_arming() {
    let srq = srq(8, 2);
    (0..4).for_each(|i| post(&srq, i).unwrap());
    let context = Arc::clone(srq.pd().context());
    let mut sges = vec![];
    let fired = |srq: &Srq| srq.query().limit == 0;
    srq.take(&mut sges);
    srq.take(&mut sges);
    assert!(!fired(&srq), "two are left, the limit is two");
    srq.take(&mut sges);
    assert!(fired(&srq));
    let event = context.next_async_event().unwrap();
    assert_eq!((event.kind, event.user_context), (AsyncEventKind::SrqLimitReached, 5));
    srq.modify(None, Some(3)).unwrap();
    assert_eq!(srq.query().limit, 3);
    srq.take(&mut sges);
    assert!(fired(&srq));
}

#[test]
fn modify_changes_all_or_nothing() {
    let srq = srq(4, 0);
    (0..3).for_each(|i| post(&srq, i).unwrap());
    let before = srq.query();
    for (max_wr, limit) in [(Some(2), None), (None, Some(5)), (Some(3), Some(4)), (Some(0), None)] {
        assert_eq!(srq.modify(max_wr, limit).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(srq.query(), before);
    }
    srq.modify(Some(MAX_SRQ_WR), Some(1)).unwrap();
    assert_eq!(srq.query(), SrqAttr { max_wr: MAX_SRQ_WR, max_sge: 2, limit: 1 });
}

#[test]
fn sizes_beyond_the_device_are_refused() {
    let pd = testing::pd();
    for (max_wr, max_sge) in [(0, 1), (MAX_SRQ_WR + 1, 1), (1, MAX_SRQ_SGE + 1)] {
        let init = SrqInit { max_wr, max_sge, ..SrqInit::default() };
        assert_eq!(pd.create_srq(init).unwrap_err().errno(), libc::EINVAL);
    }
}

#[test]
fn destroy_is_busy_with_users_and_frees_domain() {
    let srq = srq(1, 0);
    let user = srq.uses.hold();
    assert_eq!(srq.destroy().unwrap_err().errno(), libc::EBUSY);
    drop(user);
    srq.destroy().unwrap();
    assert!(srq.pd().dealloc().is_ok());
}

mod tags {
    use super::super::*;
    use crate::cq::CqInit;
    use crate::testing;

    fn srq(max_tags: u32, max_ops: u32) -> (Arc<Srq>, Arc<Cq>) {
        let pd = testing::pd();
        let cq = pd.context().create_cq(CqInit { cqe: 100, ..CqInit::default() }).unwrap();
        let init = SrqInit { max_wr: 4, max_sge: 1, limit: 0, user_context: 5 };
        (pd.create_tag_srq(init, &cq, TagInit { max_tags, max_ops }).unwrap(), cq)
    }

    fn request(wr_id: u64, op: TagOp<'_>) -> TagRequest<'_> {
        TagRequest { wr_id, op, signaled: true, handled: None }
    }

    fn add(wr_id: u64, tag: u64) -> TagOp<'static> {
        TagOp::Add(TagRecv { wr_id, tag, mask: !0, sges: &[] })
    }

    /// Polls all completions: `wr_id`, opcode, status, and true if a sync is requested.
    fn done(cq: &Cq) -> Vec<(u64, WcOpcode, WcStatus, bool)> {
        let mut found = vec![];
        let each = |cqe: &Cqe| found.push((cqe.wr_id, cqe.opcode, cqe.status, cqe.tm.flags == TmFlags::SYNC_REQ));
        cq.poll(100, each).unwrap();
        found
    }

    // clause: TM-OPERATION
    #[test]
    fn tag_operations_complete_in_order() {
        let (srq, cq) = srq(2, 10);
        let handle = srq.post_op(&request(1, add(7, 7))).unwrap().unwrap();
        srq.post_op(&TagRequest { signaled: false, ..request(2, add(8, 8)) }).unwrap().unwrap();
        assert_eq!(srq.post_op(&request(3, add(9, 9))), Err(PostError::QueueFull));
        srq.post_op(&request(4, TagOp::Remove(handle))).unwrap();
        srq.post_op(&request(5, TagOp::Remove(handle))).unwrap();
        srq.post_op(&request(6, TagOp::Sync)).unwrap();
        let ok = WcStatus::Success;
        let expected = [
            (1, WcOpcode::TmAdd, ok, false),
            (4, WcOpcode::TmDel, ok, false),
            (5, WcOpcode::TmDel, WcStatus::TmErr, false),
            (6, WcOpcode::TmSync, ok, false),
        ];
        assert_eq!(done(&cq), expected);
    }

    // clause: TM-UNEXPECTED, TM-SYNC
    #[test]
    fn tag_operations_request_sync_until_program_syncs() {
        let (srq, cq) = srq(4, 10);
        let mut sges = vec![];
        assert_eq!(srq.take_tagged(Some(3), &mut sges), None, "no receive is posted");
        srq.post_recv(&RecvRequest { wr_id: 70, sges: &[] }).unwrap();
        assert_eq!(srq.take_tagged(Some(3), &mut sges), Some((70, TagFit::Unexpected { asks_sync: false })));
        srq.post_op(&request(1, add(7, 7))).unwrap();
        srq.post_op(&TagRequest { handled: Some(1), ..request(2, TagOp::Sync) }).unwrap();
        srq.post_op(&TagRequest { handled: Some(1), ..request(3, add(8, 8)) }).unwrap();
        assert_eq!(done(&cq).iter().map(|cqe| cqe.3).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(srq.take_tagged(Some(7), &mut sges), Some((7, TagFit::Matched)));
        srq.post_recv(&RecvRequest { wr_id: 71, sges: &[] }).unwrap();
        assert_eq!(srq.take_tagged(None, &mut sges), Some((71, TagFit::Untagged)));
        assert_eq!(
            srq.take_tagged(Some(8), &mut sges),
            Some((8, TagFit::Matched)),
            "an untagged message does not count"
        );
    }

    // clause: TM-OPERATION-PLACE
    #[test]
    fn unpolled_tag_operations_are_bounded() {
        let (srq, cq) = srq(8, 2);
        for wr_id in 0..2 {
            srq.post_op(&request(wr_id, TagOp::Sync)).unwrap();
        }
        assert_eq!(srq.post_op(&request(2, TagOp::Sync)), Err(PostError::QueueFull));
        srq.post_op(&TagRequest { signaled: false, ..request(3, TagOp::Sync) }).unwrap();
        assert_eq!(done(&cq).len(), 2);
        srq.post_op(&request(4, TagOp::Sync)).unwrap();
    }

    #[test]
    fn tag_sizes_are_checked_and_plain_srq_has_no_tags() {
        let pd = testing::pd();
        let cq = pd.context().create_cq(CqInit { cqe: 1, ..CqInit::default() }).unwrap();
        let init = SrqInit { max_wr: 4, max_sge: 1, limit: 0, user_context: 5 };
        for (max_tags, max_ops) in [(0, 1), (MAX_TM_TAGS + 1, 1), (1, MAX_TM_OPS + 1)] {
            let error = pd.create_tag_srq(init, &cq, TagInit { max_tags, max_ops }).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL);
        }
        let plain = pd.create_srq(init).unwrap();
        assert_eq!(plain.post_op(&request(1, TagOp::Sync)), Err(PostError::BadOpcode));
        assert!(!plain.matches_tags());
        let (srq, own) = srq(MAX_TM_TAGS, MAX_TM_OPS);
        assert_eq!(own.destroy().unwrap_err().errno(), libc::EBUSY);
        srq.destroy().unwrap();
        own.destroy().unwrap();
    }

    // clause: TM-BROKEN-OFF
    #[test]
    fn dropped_completion_uncounts_unexpected_message() {
        let (srq, _cq) = srq(4, 10);
        srq.post_recv(&RecvRequest { wr_id: 70, sges: &[] }).unwrap();
        srq.take_tagged(Some(3), &mut vec![]).unwrap();
        let unexpected = Cqe { opcode: WcOpcode::TmRecv, ..Cqe::default() };
        let matched = Cqe { tm: TmInfo { flags: TmFlags::MATCH, ..TmInfo::default() }, ..unexpected };
        let needs_sync = || srq.state.lock().tags.as_ref().is_some_and(|tags| tags.list.needs_sync());
        srq.forget_completion(&matched);
        assert!(needs_sync());
        srq.forget_completion(&unexpected);
        assert!(!needs_sync());
    }
}
