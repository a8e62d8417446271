//! Shared receive queues: many QPs take receive requests from one place; some of the queues match
//! tags: programs post tags to them, and a message finds its receive by its tag.
//!
//! Which tag a message finds is decided in [`roxe_transport::tags`].
//!
//! One lock per queue; further in are only that of a completion queue, for operations on tags, and
//! that of the event queue. It is held while an operation on tags completes, so that the completion
//! of a posted tag comes before that of a message which found it. Touches the context for the limit
//! event.

use crate::cq::{Cq, Unpolled};
use crate::event::AsyncEventKind;
use crate::pd::Pd;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::limits::{self, MAX_TM_OPS, MAX_TM_SGE, MAX_TM_TAGS, MAX_XRC_SRQ};
use roxe_base::lock::{Mutex, RwLock, rank};
use roxe_base::uses::{ObjectId, Use, UseCount};
use roxe_check::explain::because;
use roxe_check::{Event, Made, Tracked, is_on, tell};
use roxe_net::slot::Slot;
use roxe_transport::cx::TagFit;
use roxe_transport::qp::PostError;
use roxe_transport::tags::{TagError, TagHandle, TagList, TagRecv};
use roxe_transport::wr::{Cqe, RecvRequest, Sge, TmFlags, TmInfo, WcOpcode, WcStatus};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// What a shared receive queue is created with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqInit {
    /// Requests it shall take, 1..=`max_srq_wr`.
    pub max_wr: u32,
    /// Elements of a list, 1..=`max_srq_sge`.
    pub max_sge: u32,
    /// Initial limit; 0 means none.
    pub limit: u32,
    /// Token that its events carry.
    pub user: u64,
}

/// Attributes of a shared receive queue (`struct ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Requests it takes.
    pub max_wr: u32,
    /// Elements of a list.
    pub max_sge: u32,
    /// The armed limit; 0 once it fired.
    pub limit: u32,
}

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

/// Requests in order, their lists packed one behind the other, so that memory follows what is
/// posted.
#[derive(Debug)]
struct State {
    /// `wr_id` and number of elements.
    requests: VecDeque<(u64, u32)>,
    sges: VecDeque<Sge>,
    attr: SrqAttr,
    /// Of a queue that matches tags.
    tags: Option<TagState>,
}

impl State {
    fn len(&self) -> u32 {
        // Never more than `max_wr`, which is 32 bits.
        self.requests.len() as u32
    }

    /// Takes the oldest request: its `wr_id`, and whether the limit fired; leaves its list in
    /// `sges`.
    fn take(&mut self, sges: &mut Vec<Sge>) -> Option<(u64, bool)> {
        sges.clear();
        // clause: SRQ-ORDER
        let (wr_id, count) = self.requests.pop_front()?;
        sges.extend(self.sges.drain(..count as usize));
        Some((wr_id, self.fire_limit()))
    }

    /// Disarms the limit if fewer requests than it are left, and says whether it did.
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
    /// What it uses, and its place in the quota; they end when the queue is destroyed.
    held: Mutex<rank::Uses, Vec<Use>>,
    id: ObjectId,
    user: u64,
    tracked: Tracked,
    uses: UseCount,
    kind: Kind,
    state: Mutex<rank::Srq, State>,
}

/// What kind of shared receive queue it is.
#[derive(Debug)]
enum Kind {
    Basic,
    /// Of an XRC domain.
    Xrc {
        domain: Arc<XrcQueues>,
        /// Where its receives complete, whichever queue pair brought the message.
        cq: Arc<Cq>,
        /// By which messages name it.
        number: u32,
    },
    /// With tags: where receives and operations complete.
    Tags(Arc<Cq>),
}

/// The shared receive queues of an XRC domain, by number. Taken under the lock of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct XrcQueues(RwLock<rank::XrcQueues, HashMap<u32, Weak<Srq>>>);

impl XrcQueues {
    /// A new queue with a free number of `slot`, whose receives complete in `cq`. `opening` is its
    /// use of the domain. ENOMEM: the domain has [`MAX_XRC_SRQ`].
    pub(crate) fn create(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        init: SrqInit,
        cq: &Arc<Cq>,
        (slot, opening): (Slot, Use),
    ) -> Result<Arc<Srq>, Error> {
        // Numbers go round, so that a late message for a queue that is gone does not reach the next
        // one; and begin with a slot, so that one for a queue of another process reaches none.
        // clause: XRC-QUEUE-KNOWN
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut queues = self.0.write();
        let number = (0..MAX_XRC_SRQ)
            .map(|_| slot.qpn(NEXT.fetch_add(1, Ordering::Relaxed)).get())
            .find(|number| !queues.contains_key(number))
            .ok_or_else(|| {
                Error::new(libc::ENOMEM, "the XRC domain has no number left for another shared receive queue")
            })?;
        let kind = Kind::Xrc { domain: Arc::clone(self), cq: Arc::clone(cq), number };
        let srq = Srq::make(pd, init, kind, None, vec![opening, cq.hold()])?;
        queues.insert(number, Arc::downgrade(&srq));
        Ok(srq)
    }

    /// The queue with this number.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<Srq>> {
        self.0.read().get(&number)?.upgrade()
    }
}

impl Pd {
    /// A new shared receive queue; EINVAL beyond the limits of the device, ENOMEM: there are
    /// `max_srq`.
    pub fn create_srq(self: &Arc<Self>, init: SrqInit) -> Result<Arc<Srq>, Error> {
        Srq::make(self, init, Kind::Basic, None, vec![])
    }

    /// A new shared receive queue that matches tags (`man ibv_post_srq_ops`); everything that it
    /// receives, and every operation on its tags, completes in `cq`. EINVAL beyond the limits of
    /// the device.
    pub fn create_tag_srq(self: &Arc<Self>, init: SrqInit, cq: &Arc<Cq>, tags: TagInit) -> Result<Arc<Srq>, Error> {
        if !Arc::ptr_eq(self.context(), cq.context()) {
            return Err(Error::invalid("the completion queue belongs to another context than the protection domain"));
        }
        Srq::make(self, init, Kind::Tags(Arc::clone(cq)), Some(TagState::new(tags)?), vec![cq.hold()])
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
        let most = limits::in_force().max_srq_sge;
        if attr.max_sge > most {
            let n = attr.max_sge;
            return Err(Error::invalid(format!("max_sge is {n}; the device takes at most {most}")));
        }
        check_limit(attr.limit, attr.max_wr)?;
        held.extend([pd.hold(), pd.context().device().quotas().srqs.take()?]);
        let id = ObjectId::next();
        Ok(Arc::new(Self {
            pd: Arc::clone(pd),
            held: Mutex::new(held),
            id,
            tracked: Tracked::new(id, || Made::Srq { pd: pd.object(), max_wr: init.max_wr }),
            user: init.user,
            uses: UseCount::default(),
            kind,
            state: Mutex::new(State { requests: VecDeque::new(), sges: VecDeque::new(), attr, tags }),
        }))
    }

    /// In an XRC domain: by which number messages name it.
    pub fn number(&self) -> Option<u32> {
        if let Kind::Xrc { number, .. } = self.kind { Some(number) } else { None }
    }

    /// In an XRC domain, and where tags are matched: where its receives complete.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        match &self.kind {
            Kind::Basic => None,
            Kind::Xrc { cq, .. } | Kind::Tags(cq) => Some(cq),
        }
    }

    /// Its protection domain, in which the lists of its requests are looked up.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Appends a request. `QueueFull` beyond `max_wr`, `TooManySges` beyond `max_sge`.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        if is_on() { self.post_recv_told(request) } else { self.append(request, || ()) }
    }

    /// As [`Srq::post_recv`] while the checker is on.
    #[cold]
    #[inline(never)]
    fn post_recv_told(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        // Told under the lock: a message may take the request at once.
        let queued = || tell(|| Event::PostedRecv { queue: self.id, request });
        self.append(request, queued).inspect_err(|error| {
            tell(|| Event::of_refused_recv(self.id, request, *error));
        })
    }

    /// `queued` is called once the request is in the queue, under the lock.
    #[inline]
    fn append(&self, request: &RecvRequest<'_>, queued: impl FnOnce()) -> Result<(), PostError> {
        let mut state = self.state.lock();
        let count = u32::try_from(request.sges.len()).unwrap_or(u32::MAX);
        if count > state.attr.max_sge {
            let (error, most) = (PostError::TooManySges, state.attr.max_sge);
            because(|| format!("{error}: num_sge is {count}, max_sge of the shared receive queue is {most}"));
            return Err(error);
        }
        if state.len() >= state.attr.max_wr {
            let (error, most) = (PostError::QueueFull, state.attr.max_wr);
            because(|| format!("{error}: max_wr of the shared receive queue is {most}"));
            return Err(error);
        }
        state.requests.push_back((request.wr_id, count));
        state.sges.extend(request.sges);
        queued();
        Ok(())
    }

    /// Changes the size, the limit, or both; nothing on an error. EINVAL: the size is beyond
    /// `max_srq_wr` or too small for what is posted, or the limit is greater than the size. The
    /// limit fires when a request is taken, never here.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Error> {
        let mut state = self.state.lock();
        let new_max = max_wr.unwrap_or(state.attr.max_wr);
        let new_limit = limit.unwrap_or(state.attr.limit);
        check_size(new_max)?;
        check_limit(new_limit, new_max)?;
        if state.len() > new_max {
            let posted = state.len();
            return Err(Error::invalid(format!("{posted} requests are posted and do not fit into {new_max}")));
        }
        (state.attr.max_wr, state.attr.limit) = (new_max, new_limit);
        Ok(())
    }

    /// Its attributes now.
    pub fn query(&self) -> SrqAttr {
        self.state.lock().attr
    }

    /// Takes the queue out of use: EBUSY while QPs use it; then its pending events are forgotten.
    pub fn destroy(&self) -> Result<(), Error> {
        let unused = self.uses.check_unused("shared receive queue", "queue pairs");
        unused.inspect_err(|error| tell(|| Event::DestroyRefused(self.id, error)))?;
        self.tracked.end();
        if let Kind::Xrc { domain, number, .. } = &self.kind {
            domain.0.write().remove(number);
        }
        self.pd.context().forget_events(self.id);
        self.held.lock().clear();
        Ok(())
    }

    /// Takes the oldest request: returns its `wr_id` and leaves its list in `sges`. Raises the
    /// limit event.
    pub(crate) fn take(&self, sges: &mut Vec<Sge>) -> Option<u64> {
        let (wr_id, fired) = self.state.lock().take(sges)?;
        self.raise_limit(fired);
        Some(wr_id)
    }

    /// Tells the program that the limit was reached, if it was.
    fn raise_limit(&self, fired: bool) {
        if fired {
            self.pd.context().raise(AsyncEventKind::SrqLimitReached, self.user, self.id);
        }
    }

    /// Elements that the list of a receive, or of a posted tag, has at most.
    pub(crate) fn longest_list(&self) -> u32 {
        let max_sge = self.state.lock().attr.max_sge;
        if self.matches_tags() { max_sge.max(MAX_TM_SGE) } else { max_sge }
    }

    /// Names it in what the checker is told.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// The number that its creator gave it; in C the low half is its `handle`.
    pub(crate) fn user(&self) -> u64 {
        self.user
    }

    /// Registers one queue pair as a user.
    pub(crate) fn hold(&self) -> Use {
        self.uses.hold()
    }
}

/// Tags.
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

impl Drop for Srq {
    fn drop(&mut self) {
        // Nobody holds the queue any more, so this cannot fail; it is a no-op after `destroy`.
        let _ = self.destroy();
    }
}

fn check_size(max_wr: u32) -> Result<(), Error> {
    let most = limits::in_force().max_srq_wr;
    if max_wr == 0 || max_wr > most {
        return Err(Error::invalid(format!("max_wr is {max_wr}; a shared receive queue takes 1 to {most} requests")));
    }
    Ok(())
}

fn check_limit(limit: u32, max_wr: u32) -> Result<(), Error> {
    if limit > max_wr {
        return Err(Error::invalid(format!("srq_limit is {limit}; accepted is max_wr, {max_wr}, at most")));
    }
    Ok(())
}

/// What a tag-matching queue has besides, under its lock.
#[derive(Debug)]
struct TagState {
    list: TagList,
    max_ops: u32,
    /// Completions of operations that nobody has polled.
    unpolled: Unpolled,
}

impl TagState {
    fn new(init: TagInit) -> Result<Self, Error> {
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

#[cfg(test)]
mod tests;
