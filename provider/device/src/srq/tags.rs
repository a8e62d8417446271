//! Tag matching: posting tags to a shared receive queue, and finding the receive of a message by its tag.
//!
//! The lock of the queue is held while an operation completes, so that the completion of a posted tag comes before that of a
//! message which found it. Which tag a message finds is decided in [`roxe_transport::tags`].

use super::{Kind, Srq};
use crate::cq::Cq;
use crate::unpolled::Unpolled;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::limits::{MAX_TM_OPS, MAX_TM_SGE, MAX_TM_TAGS};
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::Use;
use roxe_transport::cx::TagFit;
use roxe_transport::qp::PostError;
use roxe_transport::tags::{TagError, TagHandle, TagList, TagRecv};
use roxe_transport::wr::{Cqe, Sge, TmFlags, TmInfo, WcOpcode, WcStatus};
use std::sync::Arc;

/// What tag matching is created with (`struct ibv_tm_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagInit {
    /// Tags posted at a time, 1..=`max_num_tags`.
    pub max_tags: u32,
    /// Signaled operations whose completions are not polled, 0..=`max_ops`.
    pub max_ops: u32,
}

/// What to do with the list of tags (`man ibv_post_srq_ops`).
#[derive(Clone, Copy, Debug)]
pub enum TagOp<'a> {
    /// Post a tag behind the others.
    Add(TagRecv<'a>),
    /// Remove a tag; if it is not there any more, the completion says `TmErr`.
    Remove(TagHandle),
    /// Nothing more than [`TagRequest::handled`].
    Sync,
}

/// An operation on the list of tags.
#[derive(Clone, Copy, Debug)]
pub struct TagRequest<'a> {
    /// Handed back in the completion of the operation.
    pub wr_id: u64,
    /// What to do.
    pub op: TagOp<'a>,
    /// Report with a completion.
    pub signaled: bool,
    /// Before that: the program has handled so many unexpected messages in all.
    pub handled: Option<u32>,
}

/// What a tag-matching queue has besides.
#[derive(Debug)]
pub(super) struct Tags {
    pub(super) cq: Arc<Cq>,
    pub(super) cq_use: Mutex<rank::Uses, Option<Use>>,
}

/// The part of it that the lock of the queue guards.
#[derive(Debug)]
pub(super) struct TagState {
    list: TagList,
    max_ops: u32,
    /// Completions of operations that nobody has polled.
    unpolled: Unpolled,
}

impl TagState {
    pub(super) fn new(init: TagInit) -> Result<Self, Error> {
        let TagInit { max_tags, max_ops } = init;
        if !(1..=MAX_TM_TAGS).contains(&max_tags) || max_ops > MAX_TM_OPS {
            let most = format!("the device takes 1 to {MAX_TM_TAGS} tags and up to {MAX_TM_OPS} operations");
            return Err(Error::invalid(format!("{most}, not {max_tags} and {max_ops}")));
        }
        Ok(Self { list: TagList::new(max_tags, MAX_TM_SGE), max_ops, unpolled: Unpolled::default() })
    }

    /// Whether one more completion may wait in `cq`.
    fn has_room(&mut self, cq: &Cq) -> bool {
        if self.unpolled.len() >= self.max_ops {
            self.unpolled.forget(cq.polled());
        }
        self.unpolled.len() < self.max_ops
    }

    /// Does what `request` asks for: the handle of a new tag, and the completion.
    // clause: TM-OPERATION
    fn execute(&mut self, request: &TagRequest<'_>) -> Result<(Option<TagHandle>, Cqe), PostError> {
        let mut handle = None;
        let (opcode, status) = match &request.op {
            TagOp::Add(recv) => {
                handle = Some(self.add(recv, request.handled)?);
                (WcOpcode::TmAdd, WcStatus::Success)
            }
            TagOp::Remove(tag) => {
                self.sync(request.handled);
                let status = if self.list.remove(*tag) { WcStatus::Success } else { WcStatus::TmErr };
                (WcOpcode::TmDel, status)
            }
            TagOp::Sync => {
                self.sync(request.handled);
                (WcOpcode::TmSync, WcStatus::Success)
            }
        };
        let flags = if self.list.needs_sync() { TmFlags::SYNC_REQ } else { TmFlags::empty() };
        let tm = TmInfo { flags, ..TmInfo::default() };
        let (wr_id, solicited, timestamp) = (request.wr_id, status != WcStatus::Success, clock::now().0);
        Ok((handle, Cqe { wr_id, status, opcode, tm, solicited, timestamp, ..Cqe::default() }))
    }

    /// A tag that is refused changes nothing, not even the count.
    fn add(&mut self, recv: &TagRecv<'_>, handled: Option<u32>) -> Result<TagHandle, PostError> {
        let handle = self.list.add(recv).map_err(|error| match error {
            TagError::Full => PostError::QueueFull,
            TagError::TooManySges => PostError::TooManySges,
        })?;
        self.sync(handled);
        Ok(handle)
    }

    fn sync(&mut self, handled: Option<u32>) {
        if let Some(count) = handled {
            self.list.sync(count);
        }
    }
}

impl Srq {
    /// Whether it matches tags.
    pub fn matches_tags(&self) -> bool {
        matches!(self.kind, Kind::Tags(_))
    }

    /// Does an operation on the list of tags, and returns the handle of a new tag. `BadOpcode`: it matches no tags.
    /// `QueueFull`: too many tags, or too many completions that nobody has polled.
    pub fn post_op(&self, request: &TagRequest<'_>) -> Result<Option<TagHandle>, PostError> {
        let Kind::Tags(Tags { cq, .. }) = &self.kind else { return Err(PostError::BadOpcode) };
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

    /// Takes the receive for a message: the posted tag that wants `tag`, or else the oldest ordinary receive.
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
    use crate::cq::CqInit;
    use crate::srq::SrqInit;
    use crate::testing;
    use roxe_transport::wr::RecvRequest;

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

    /// What the queue has to report: number, operation, status, whether the program is asked to synchronise.
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
