//! What a tag-matching shared receive queue has besides: the list of tags, and the completions of
//! operations on it.
//!
//! Which tag a message finds is decided in [`roxe_transport::tags`]. Touches the completion queue.

use crate::cq::Cq;
use crate::unpolled::Unpolled;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::limits::{MAX_TM_OPS, MAX_TM_SGE, MAX_TM_TAGS};
use roxe_transport::qp::PostError;
use roxe_transport::tags::{TagError, TagHandle, TagList, TagRecv};
use roxe_transport::wr::{Cqe, TmFlags, TmInfo, WcOpcode, WcStatus};

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

/// What a tag-matching queue has besides, under its lock.
#[derive(Debug)]
pub(super) struct TagState {
    pub(super) list: TagList,
    max_ops: u32,
    /// Completions of operations that nobody has polled.
    pub(super) unpolled: Unpolled,
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
    pub(super) fn has_room(&mut self, cq: &Cq) -> bool {
        if self.unpolled.len() >= self.max_ops {
            self.unpolled.forget(cq.polled());
        }
        self.unpolled.len() < self.max_ops
    }

    /// Does what `request` asks for: the handle of a new tag, and the completion.
    // clause: TM-OPERATION
    pub(super) fn execute(&mut self, request: &TagRequest<'_>) -> Result<(Option<TagHandle>, Cqe), PostError> {
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
