//! Tag matching: posting tags to a shared receive queue, and finding the receive of a message by
//! its tag.
//!
//! The lock of the queue is held while an operation completes, so that the completion of a posted
//! tag comes before that of a message which found it. Touches the queue and its completion queue.

use super::tags::TagRequest;
use super::{Kind, Srq};
use roxe_transport::cx::TagFit;
use roxe_transport::qp::PostError;
use roxe_transport::tags::TagHandle;
use roxe_transport::wr::{Cqe, Sge, TmFlags, WcOpcode, WcStatus};

impl Srq {
    /// Whether it matches tags.
    pub fn matches_tags(&self) -> bool {
        matches!(self.kind, Kind::Tags(_))
    }

    /// Does an operation on the list of tags, and returns the handle of a new tag. `BadOpcode`: it
    /// matches no tags. `QueueFull`: too many tags, or too many completions that nobody has polled.
    pub fn post_op(&self, request: &TagRequest<'_>) -> Result<Option<TagHandle>, PostError> {
        let Kind::Tags(cq) = &self.kind else { return Err(PostError::BadOpcode) };
        let mut state = self.state.lock();
        let tags = state.tags.as_mut().ok_or(PostError::BadOpcode)?;
        // clause: TM-OPERATION-PLACE
        if request.signaled && !tags.has_room(cq) {
            return Err(PostError::QueueFull);
        }
        let (handle, cqe) = tags.execute(request)?;
        // A queue that overruns raises its own event.
        let announce = request.signaled && cq.push_send(cqe, &mut tags.unpolled).unwrap_or(false);
        drop(state);
        if announce {
            cq.notify();
        }
        Ok(handle)
    }

    /// Takes the receive for a message: the posted tag that wants `tag`, or else the oldest
    /// ordinary receive.
    pub(crate) fn take_tagged(&self, tag: Option<u64>, sges: &mut Vec<Sge>) -> Option<(u64, TagFit)> {
        let mut state = self.state.lock();
        let matched = state.tags.as_mut().zip(tag).and_then(|(tags, tag)| tags.list.take(tag, sges));
        if let Some(wr_id) = matched {
            return Some((wr_id, TagFit::Matched));
        }
        let (wr_id, fired) = state.take(sges)?;
        let unexpected = state.tags.as_mut().filter(|_| tag.is_some());
        let fit = unexpected.map(|tags| TagFit::Unexpected { asks_sync: tags.list.note_unexpected() });
        drop(state);
        self.raise_limit(fired);
        Some((wr_id, fit.unwrap_or(TagFit::Untagged)))
    }

    /// A message that counted as unexpected ended before the program could hear of it.
    pub(crate) fn forget_unexpected(&self) {
        if let Some(tags) = &mut self.state.lock().tags {
            tags.list.forget_unexpected();
        }
    }

    /// The completion `cqe` of a message vanished before the program took it.
    pub(crate) fn forget_completion(&self, cqe: &Cqe) {
        let is_unexpected = cqe.opcode == WcOpcode::TmRecv
            && cqe.status == WcStatus::Success
            && !cqe.tm.flags.intersects(TmFlags::MATCH | TmFlags::DATA_VALID);
        if is_unexpected {
            self.forget_unexpected();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::{Cq, CqInit};
    use crate::srq::{SrqInit, TagInit, TagOp};
    use crate::testing;
    use roxe_base::limits::{MAX_TM_OPS, MAX_TM_TAGS};
    use roxe_transport::tags::TagRecv;
    use roxe_transport::wr::{RecvRequest, TmInfo};
    use std::sync::Arc;

    fn srq(max_tags: u32, max_ops: u32) -> (Arc<Srq>, Arc<Cq>) {
        let pd = testing::pd();
        let cq = pd.context().create_cq(CqInit { cqe: 100, ..CqInit::default() }).unwrap();
        let init = SrqInit { max_wr: 4, max_sge: 1, limit: 0, user: 5 };
        (pd.create_tag_srq(init, &cq, TagInit { max_tags, max_ops }).unwrap(), cq)
    }

    fn request(wr_id: u64, op: TagOp<'_>) -> TagRequest<'_> {
        TagRequest { wr_id, op, signaled: true, handled: None }
    }

    fn add(wr_id: u64, tag: u64) -> TagOp<'static> {
        TagOp::Add(TagRecv { wr_id, tag, mask: !0, sges: &[] })
    }

    /// What the queue has to report: number, operation, status, whether the program is asked to
    /// synchronise.
    fn done(cq: &Cq) -> Vec<(u64, WcOpcode, WcStatus, bool)> {
        let mut found = vec![];
        let each = |cqe: &Cqe| found.push((cqe.wr_id, cqe.opcode, cqe.status, cqe.tm.flags == TmFlags::SYNC_REQ));
        cq.poll(100, each).unwrap();
        found
    }

    // clause: TM-OPERATION
    #[test]
    fn operations_complete_in_order_where_the_queue_says() {
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
    fn operations_ask_to_synchronise_until_the_program_has_done_so() {
        let (srq, cq) = srq(4, 10);
        let mut sges = vec![];
        assert_eq!(srq.take_tagged(Some(3), &mut sges), None, "no receive at all");
        srq.post_recv(&RecvRequest { wr_id: 70, sges: &[] }).unwrap();
        assert_eq!(srq.take_tagged(Some(3), &mut sges), Some((70, TagFit::Unexpected { asks_sync: false })));
        srq.post_op(&request(1, add(7, 7))).unwrap();
        srq.post_op(&TagRequest { handled: Some(1), ..request(2, TagOp::Sync) }).unwrap();
        srq.post_op(&TagRequest { handled: Some(1), ..request(3, add(8, 8)) }).unwrap();
        assert_eq!(done(&cq).iter().map(|cqe| cqe.3).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(srq.take_tagged(Some(7), &mut sges), Some((7, TagFit::Matched)));
        srq.post_recv(&RecvRequest { wr_id: 71, sges: &[] }).unwrap();
        assert_eq!(srq.take_tagged(None, &mut sges), Some((71, TagFit::Untagged)));
        assert_eq!(srq.take_tagged(Some(8), &mut sges), Some((8, TagFit::Matched)), "that did not count");
    }

    // clause: TM-OPERATION-PLACE
    #[test]
    fn unpolled_completions_of_operations_are_bounded() {
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
    fn sizes_are_checked_and_only_such_a_queue_has_tags() {
        let pd = testing::pd();
        let cq = pd.context().create_cq(CqInit { cqe: 1, ..CqInit::default() }).unwrap();
        let init = SrqInit { max_wr: 4, max_sge: 1, limit: 0, user: 5 };
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
    fn a_completion_that_vanishes_need_not_be_counted() {
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
