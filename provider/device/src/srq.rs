//! Shared receive queues, some of which match tags: a message then takes the receive posted for its
//! tag ([`roxe_transport::tags`] decides which).
//!
//! The lock of a queue is held while an operation on tags completes, so that the completion of a
//! posted tag precedes that of a message which matches it.

use crate::cq::{Cq, Unpolled};
use crate::event::AsyncEventKind;
use crate::inventory::{Listing, ObjectProperties};
use crate::pd::Pd;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::limits::{self, MAX_TM_OPS, MAX_TM_SGE, MAX_TM_TAGS, MAX_XRC_SRQ};
use roxe_base::lock::{Mutex, RwLock, rank};
use roxe_base::uses::{ObjectId, Use, UseCount};
use roxe_check::explain::because;
use roxe_check::{Event, Object, Tracked, emit};
use roxe_net::slot::Slot;
use roxe_transport::cx::TagFit;
use roxe_transport::qp::PostError;
use roxe_transport::tags::{TagError, TagHandle, TagList, TagRecv};
use roxe_transport::wr::{Cqe, RecvRequest, Sge, TmFlags, TmInfo, WcOpcode, WcStatus};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Creation parameters of a shared receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqInit {
    /// Capacity in requests, 1..=`max_srq_wr`.
    pub max_wr: u32,
    /// Maximum length of a list, 1..=`max_srq_sge`.
    pub max_sge: u32,
    /// Initial limit; 0 means none.
    pub limit: u32,
    /// Value that the program chooses and that asynchronous events of this object carry.
    pub user_context: u64,
}

/// Attributes of a shared receive queue (`struct ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Capacity in requests.
    pub max_wr: u32,
    /// Maximum number of elements of a scatter/gather list.
    pub max_sge: u32,
    /// Armed limit; 0 once it fired.
    pub limit: u32,
}

/// Creation parameters of tag matching (`struct ibv_tm_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagInit {
    /// Maximum number of posted tags, 1..=`max_num_tags`.
    pub max_tags: u32,
    /// Maximum number of unpolled completions of operations, 0..=`max_ops`.
    pub max_ops: u32,
}

/// Kind of an operation on the list of tags (`man ibv_post_srq_ops`).
#[derive(Clone, Copy, Debug)]
pub enum TagOp<'a> {
    /// Append a tag.
    Add(TagRecv<'a>),
    /// Remove a tag; the status of the completion is `TmErr` if the tag is not in the list.
    Remove(TagHandle),
    /// Only report [`TagRequest::handled`].
    Sync,
}

/// An operation on the list of tags.
#[derive(Clone, Copy, Debug)]
pub struct TagRequest<'a> {
    /// Identifier for its completion.
    pub wr_id: u64,
    /// Kind of the operation.
    pub op: TagOp<'a>,
    /// True if the operation reports its completion.
    pub signaled: bool,
    /// Total number of unexpected messages that the program has handled.
    pub handled: Option<u32>,
}

#[derive(Debug)]
struct SrqState {
    /// `wr_id` and list length of each request.
    requests: VecDeque<(u64, u32)>,
    sges: VecDeque<Sge>,
    attr: SrqAttr,
    tags: Option<TagState>,
}

impl SrqState {
    fn len(&self) -> u32 {
        // At most `max_wr`, a `u32`.
        self.requests.len() as u32
    }

    /// Takes the oldest request and puts its list into `sges`. Returns its `wr_id`, and true if the
    /// limit fired.
    fn take(&mut self, sges: &mut Vec<Sge>) -> Option<(u64, bool)> {
        sges.clear();
        // clause: SRQ-ORDER
        let (wr_id, count) = self.requests.pop_front()?;
        sges.extend(self.sges.drain(..count as usize));
        Some((wr_id, self.fire_limit()))
    }

    /// Disarms the limit and returns true if fewer requests are left than the limit.
    fn fire_limit(&mut self) -> bool {
        // clause: SRQ-LIMIT
        let fires = self.len() < self.attr.limit;
        if fires {
            self.attr.limit = 0;
        }
        fires
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    pd: Arc<Pd>,
    /// Uses of other objects and of the quota, and the inventory entry; empty once the queue is
    /// destroyed.
    held: Mutex<rank::Uses, (Vec<Use>, Option<Listing>)>,
    /// Number of the queue in the inventory, which `rdma resource` shows.
    listed: u32,
    id: ObjectId,
    user_context: u64,
    tracked: Tracked,
    pub(crate) uses: UseCount,
    kind: Kind,
    state: Mutex<rank::Srq, SrqState>,
}

#[derive(Debug)]
enum Kind {
    Basic,
    /// In an XRC domain.
    Xrc {
        domain: Arc<XrcQueues>,
        /// Completion queue for its receives, whichever queue pair received the message.
        cq: Arc<Cq>,
        number: u32,
    },
    /// Matches tags; receives and operations complete in this queue.
    Tags(Arc<Cq>),
}

/// Shared receive queues of an XRC domain, by number.
#[derive(Debug, Default)]
pub(crate) struct XrcQueues(RwLock<rank::XrcQueues, HashMap<u32, Weak<Srq>>>);

impl XrcQueues {
    /// Creates a queue with a free number of `slot`, whose receives complete in `cq`; `opening` is
    /// its use of the domain. Fails with ENOMEM beyond [`MAX_XRC_SRQ`] queues of the domain.
    pub(crate) fn create(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        init: SrqInit,
        cq: &Arc<Cq>,
        (slot, opening): (Slot, Use),
    ) -> Result<Arc<Srq>, Error> {
        // A number is not reused soon, so that late messages for a destroyed queue do not reach the
        // next one. It contains the slot, so that messages for another process's queue reach none.
        // clause: XRC-QUEUE-KNOWN
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut queues = self.0.write();
        let number = (0..MAX_XRC_SRQ)
            .map(|_| slot.qpn(NEXT.fetch_add(1, Ordering::Relaxed)).get())
            .find(|number| !queues.contains_key(number))
            .ok_or_else(|| {
                Error::new(libc::ENOMEM, "the XRC domain has no free number for another shared receive queue")
            })?;
        let kind = Kind::Xrc { domain: Arc::clone(self), cq: Arc::clone(cq), number };
        let srq = Srq::make(pd, init, kind, None, vec![opening, cq.uses.hold()])?;
        queues.insert(number, Arc::downgrade(&srq));
        Ok(srq)
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<Srq>> {
        self.0.read().get(&number)?.upgrade()
    }
}

impl Pd {
    /// Creates a shared receive queue. Fails with EINVAL beyond the limits of the device, ENOMEM if
    /// it has `max_srq` already.
    pub fn create_srq(self: &Arc<Self>, init: SrqInit) -> Result<Arc<Srq>, Error> {
        Srq::make(self, init, Kind::Basic, None, vec![])
    }

    /// Creates a shared receive queue that matches tags (`man ibv_post_srq_ops`). Its receives and
    /// operations complete in `cq`. Fails with EINVAL beyond the limits of the device.
    pub fn create_tag_srq(self: &Arc<Self>, init: SrqInit, cq: &Arc<Cq>, tags: TagInit) -> Result<Arc<Srq>, Error> {
        if !Arc::ptr_eq(self.context(), cq.context()) {
            return Err(Error::invalid("the completion queue belongs to another context than the protection domain"));
        }
        Srq::make(self, init, Kind::Tags(Arc::clone(cq)), Some(TagState::new(tags)?), vec![cq.uses.hold()])
    }
}

impl Srq {
    fn make(
        pd: &Arc<Pd>,
        init: SrqInit,
        kind: Kind,
        tags: Option<TagState>,
        mut held: Vec<Use>,
    ) -> Result<Arc<Self>, Error> {
        let attr = SrqAttr { max_wr: init.max_wr, max_sge: init.max_sge, limit: init.limit };
        check_size(attr.max_wr)?;
        let max = limits::in_force().max_srq_sge;
        if attr.max_sge > max {
            let n = attr.max_sge;
            return Err(Error::invalid(format!("max_sge is {n}; the device takes at most {max}")));
        }
        check_limit(attr.limit, attr.max_wr)?;
        held.extend([pd.hold(), pd.context().device().quotas().srqs.take()?]);
        let id = ObjectId::next();
        let (name, cq) = match &kind {
            Kind::Basic => ("BASIC", None),
            Kind::Xrc { cq, .. } => ("XRC", Some(cq.number())),
            Kind::Tags(cq) => ("TM", Some(cq.number())),
        };
        let listing = pd.context().inventory().enter(ObjectProperties::Srq { kind: name, pd: pd.id().number(), cq });
        Ok(Arc::new(Self {
            pd: Arc::clone(pd),
            listed: listing.number(),
            held: Mutex::new((held, Some(listing))),
            id,
            tracked: Tracked::new(id, || Object::Srq { pd: pd.object(), max_wr: init.max_wr }),
            user_context: init.user_context,
            uses: UseCount::default(),
            kind,
            state: Mutex::new(SrqState { requests: VecDeque::new(), sges: VecDeque::new(), attr, tags }),
        }))
    }

    /// Returns the number of the queue in the inventory, which `rdma resource` shows.
    pub(crate) fn listed(&self) -> u32 {
        self.listed
    }

    /// Returns the number in messages, in an XRC domain.
    pub fn number(&self) -> Option<u32> {
        if let Kind::Xrc { number, .. } = self.kind { Some(number) } else { None }
    }

    /// Returns the completion queue of its receives, in an XRC domain or with tags.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        match &self.kind {
            Kind::Basic => None,
            Kind::Xrc { cq, .. } | Kind::Tags(cq) => Some(cq),
        }
    }

    /// Returns the protection domain for the lists of its requests.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Appends a request; `QueueFull` beyond `max_wr`, `TooManySges` beyond `max_sge`.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let mut state = self.state.lock();
        let (count, attr) = (u32::try_from(request.sges.len()).unwrap_or(u32::MAX), state.attr);
        let refused = if count > attr.max_sge {
            let text = format_args!("num_sge is {count}, max_sge of the shared receive queue is {}", attr.max_sge);
            because(|| format!("{}: {text}", PostError::TooManySges));
            Some(PostError::TooManySges)
        } else if state.len() >= attr.max_wr {
            because(|| format!("{}: max_wr of the shared receive queue is {}", PostError::QueueFull, attr.max_wr));
            Some(PostError::QueueFull)
        } else {
            None
        };
        if let Some(error) = refused {
            emit(|| Event::of_refused_recv(self.id, request, error));
            return Err(error);
        }
        state.requests.push_back((request.wr_id, count));
        state.sges.extend(request.sges);
        // Under the lock, because a message may take the request at once.
        emit(|| Event::PostedRecv { queue: self.id, request });
        Ok(())
    }

    /// Changes the size, the limit, or both. The limit event is raised when a message takes a
    /// request, never by this call. Fails with EINVAL if the size is above `max_srq_wr` or too
    /// small for the posted requests, or the limit exceeds the size; then nothing has changed.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Error> {
        let mut state = self.state.lock();
        let new_max = max_wr.unwrap_or(state.attr.max_wr);
        let new_limit = limit.unwrap_or(state.attr.limit);
        check_size(new_max)?;
        check_limit(new_limit, new_max)?;
        if state.len() > new_max {
            let posted = state.len();
            return Err(Error::invalid(format!("{posted} posted requests do not fit into {new_max} entries")));
        }
        (state.attr.max_wr, state.attr.limit) = (new_max, new_limit);
        Ok(())
    }

    /// Returns the current attributes.
    pub fn query(&self) -> SrqAttr {
        self.state.lock().attr
    }

    /// Destroys the queue and its pending events. Fails with EBUSY while queue pairs use it.
    pub fn destroy(&self) -> Result<(), Error> {
        let unused = self.uses.check_unused("shared receive queue", "queue pairs");
        unused.inspect_err(|error| emit(|| Event::DestroyRefused(self.id, error)))?;
        self.tracked.end();
        if let Kind::Xrc { domain, number, .. } = &self.kind {
            domain.0.write().remove(number);
        }
        self.pd.context().forget_events(self.id);
        drop(std::mem::take(&mut *self.held.lock()));
        Ok(())
    }

    /// Takes the oldest request and puts its list into `sges`. Returns its `wr_id`.
    pub(crate) fn take(&self, sges: &mut Vec<Sge>) -> Option<u64> {
        let (wr_id, fired) = self.state.lock().take(sges)?;
        self.raise_limit(fired);
        Some(wr_id)
    }

    fn raise_limit(&self, fired: bool) {
        if fired {
            self.pd.context().raise(AsyncEventKind::SrqLimitReached, self.user_context, self.id);
        }
    }

    /// Returns the maximum list length of a receive or posted tag.
    pub(crate) fn longest_list(&self) -> u32 {
        let max_sge = self.state.lock().attr.max_sge;
        if self.matches_tags() { max_sge.max(MAX_TM_SGE) } else { max_sge }
    }

    /// Returns the identity of the queue in checker events.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns the value that its events carry; in C the low half is its `handle`.
    pub(crate) fn user_context(&self) -> u64 {
        self.user_context
    }

    /// Returns true if the queue matches tags.
    pub fn matches_tags(&self) -> bool {
        matches!(self.kind, Kind::Tags(_))
    }

    /// Executes an operation on the list of tags, and returns the handle of a new tag. Fails with
    /// `BadOpcode` if the queue matches no tags, with `QueueFull` if there are too many tags or too
    /// many unpolled completions.
    pub fn post_op(&self, request: &TagRequest<'_>) -> Result<Option<TagHandle>, PostError> {
        let Kind::Tags(cq) = &self.kind else { return Err(PostError::BadOpcode) };
        let mut state = self.state.lock();
        let tags = state.tags.as_mut().ok_or(PostError::BadOpcode)?;
        // clause: TM-OPERATION-PLACE
        if request.signaled && !tags.has_room(cq) {
            return Err(PostError::QueueFull);
        }
        let (handle, cqe) = tags.execute(request)?;
        // An overrun raises an event of the completion queue.
        let announce = request.signaled && cq.push_send(cqe, &mut tags.unpolled).unwrap_or(false);
        drop(state);
        if announce {
            cq.notify();
        }
        Ok(handle)
    }

    /// Takes the receive for a message: the first posted tag that matches `tag`, or else the oldest
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

    /// Uncounts an unexpected message that failed before it completed.
    pub(crate) fn forget_unexpected(&self) {
        if let Some(tags) = &mut self.state.lock().tags {
            tags.list.forget_unexpected();
        }
    }

    /// Uncounts the message of `cqe` if it was unexpected: its completion was dropped unpolled.
    pub(crate) fn forget_completion(&self, cqe: &Cqe) {
        let is_unexpected = cqe.opcode == WcOpcode::TmRecv
            && cqe.status == WcStatus::Success
            && !cqe.tm.flags.intersects(TmFlags::MATCH | TmFlags::DATA_VALID);
        if is_unexpected {
            self.forget_unexpected();
        }
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // Cannot fail: users of the queue hold a reference. No-op after `destroy`.
        let _ = self.destroy();
    }
}

fn check_size(max_wr: u32) -> Result<(), Error> {
    let max = limits::in_force().max_srq_wr;
    if max_wr == 0 || max_wr > max {
        return Err(Error::invalid(format!("max_wr is {max_wr}; it must be 1 to {max}")));
    }
    Ok(())
}

fn check_limit(limit: u32, max_wr: u32) -> Result<(), Error> {
    if limit > max_wr {
        return Err(Error::invalid(format!("srq_limit is {limit}; it must be at most max_wr, {max_wr}")));
    }
    Ok(())
}

#[derive(Debug)]
struct TagState {
    list: TagList,
    max_ops: u32,
    unpolled: Unpolled,
}

impl TagState {
    fn new(init: TagInit) -> Result<Self, Error> {
        let TagInit { max_tags, max_ops } = init;
        if !(1..=MAX_TM_TAGS).contains(&max_tags) || max_ops > MAX_TM_OPS {
            let limits = format!("the device accepts 1 to {MAX_TM_TAGS} tags and up to {MAX_TM_OPS} operations");
            return Err(Error::invalid(format!("{limits}, not {max_tags} and {max_ops}")));
        }
        Ok(Self { list: TagList::new(max_tags, MAX_TM_SGE), max_ops, unpolled: Unpolled::default() })
    }

    fn has_room(&mut self, cq: &Cq) -> bool {
        if self.unpolled.len() >= self.max_ops {
            self.unpolled.forget(cq.polled());
        }
        self.unpolled.len() < self.max_ops
    }

    /// Executes `request` and returns the handle of a new tag and the completion. A refused request
    /// changes nothing, not even the count of handled messages.
    // clause: TM-OPERATION
    fn execute(&mut self, request: &TagRequest<'_>) -> Result<(Option<TagHandle>, Cqe), PostError> {
        let (handle, opcode, status) = match &request.op {
            TagOp::Add(recv) => {
                let handle = self.list.add(recv).map_err(|error| match error {
                    TagError::Full => PostError::QueueFull,
                    TagError::TooManySges => PostError::TooManySges,
                })?;
                (Some(handle), WcOpcode::TmAdd, WcStatus::Success)
            }
            TagOp::Remove(tag) => {
                let status = if self.list.remove(*tag) { WcStatus::Success } else { WcStatus::TmErr };
                (None, WcOpcode::TmDel, status)
            }
            TagOp::Sync => (None, WcOpcode::TmSync, WcStatus::Success),
        };
        if let Some(count) = request.handled {
            self.list.sync(count);
        }
        let flags = if self.list.needs_sync() { TmFlags::SYNC_REQ } else { TmFlags::empty() };
        let tm = TmInfo { flags, ..TmInfo::default() };
        let (wr_id, solicited, timestamp) = (request.wr_id, status != WcStatus::Success, clock::now().0);
        Ok((handle, Cqe { wr_id, status, opcode, tm, solicited, timestamp, ..Cqe::default() }))
    }
}

#[cfg(test)]
mod tests;
