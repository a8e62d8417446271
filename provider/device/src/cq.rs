//! Completion queues. One lock per queue guards the entries and the arming, so that an entry is
//! either appended before a program arms the queue or after it; both raise the event, unless the
//! entry was announced or polled already.

mod moderation;
#[cfg(test)]
mod tests;

pub use moderation::Moderation;

use crate::comp_channel::{CompChannel, EngineSet};
use crate::context::Context;
use crate::event::AsyncEventKind;
use crate::inventory::{Listing, ObjectProperties};
use crate::sleepers::{LONG_WAIT, Sleeper, sleepers};
use crate::weakest::WeakCq;
use moderation::{Moderator, Verdict};
use roxe_base::error::Error;
use roxe_base::limits::{self, NUM_COMP_VECTORS};
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{ObjectId, Use, UseCount};
use roxe_base::{clock, instruments};
use roxe_check::explain::{self, Cause};
use roxe_check::{Event, Object, Tracked, emit, is_checking, is_on, outcome};
use roxe_engine::engine::Engine;
use roxe_engine::presence::Awaited;
use roxe_engine::queue_pair::DeadlineOwner;
use roxe_transport::cx::Overrun;
use roxe_transport::time::Instant;
use roxe_transport::wr::{Cqe, WcStatus};
use roxe_wire::Qpn;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Initial capacity of the ring. It doubles up to the queue's capacity, so that a huge queue that
/// is polled in time stays small, and a queue in steady state allocates nothing.
const FIRST_ENTRIES: usize = 128;

/// Creation parameters of a completion queue.
#[derive(Clone, Debug, Default)]
pub struct CqInit {
    /// Capacity, 1..=`max_cqe`.
    pub cqe: u32,
    /// Channel for its events.
    pub channel: Option<Arc<CompChannel>>,
    /// Value that the program chooses and that asynchronous events of this object carry.
    pub user_context: u64,
    /// Completion vector, below the number of vectors.
    pub comp_vector: u32,
    /// True if a full queue grows instead of failing (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    pub ignore_overrun: bool,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    me: Weak<Self>,
    context: Arc<Context>,
    engines: EngineSet,
    channel: Option<Arc<CompChannel>>,
    /// Uses of the quota and of the channel, and the inventory entry; `None` once the queue is
    /// destroyed. Locked while an event is announced.
    held: Mutex<rank::CqChannel, Option<(Use, Option<Use>, Listing)>>,
    /// Number of the queue in the inventory, which `rdma resource` shows.
    number: u32,
    id: ObjectId,
    user_context: u64,
    tracked: Tracked,
    pub(crate) uses: UseCount,
    /// True if there are entries. Read without the lock, because most polls find none.
    has_entries: AtomicBool,
    state: Mutex<rank::Cq, CqState>,
}

impl Context {
    /// Creates a completion queue. Fails with EINVAL if the size is 0 or above `max_cqe`, or the
    /// vector is unknown; ENOMEM beyond `max_cq` queues.
    pub fn create_cq(self: &Arc<Self>, init: CqInit) -> Result<Arc<Cq>, Error> {
        let capacity = check_size(init.cqe)?;
        if init.comp_vector >= NUM_COMP_VECTORS {
            let vector = init.comp_vector;
            return Err(Error::invalid(format!("comp_vector {vector} does not exist; the device has vector 0")));
        }
        let quota = self.device().quotas().cqs.take()?;
        let ring = VecDeque::with_capacity(capacity.min(FIRST_ENTRIES));
        let id = ObjectId::next();
        let engine = self.engine().of_this_thread();
        let channel = init.channel.as_ref().map(|channel| channel.id());
        let tracked = Tracked::new(id, || Object::Cq { context: self.id(), channel, capacity: init.cqe });
        let uses = UseCount::default();
        let listing = self.inventory().enter(ObjectProperties::Cq { cqe: init.cqe, users: uses.clone() });
        Ok(Arc::new_cyclic(|me| Cq {
            me: Weak::clone(me),
            context: Arc::clone(self),
            engines: EngineSet::new(engine),
            number: listing.number(),
            held: Mutex::new(Some((quota, init.channel.as_ref().map(|channel| channel.uses.hold()), listing))),
            channel: init.channel,
            id,
            user_context: init.user_context,
            tracked,
            uses,
            has_entries: AtomicBool::new(false),
            state: Mutex::new(CqState {
                ring,
                capacity,
                ignore_overrun: init.ignore_overrun,
                weak: WeakCq::of_new(),
                ..CqState::default()
            }),
        }))
    }
}

impl Cq {
    /// Returns the context of the queue.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the number of the queue in the inventory, which `rdma resource` shows.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the channel of the queue, if it has one.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// Returns the value that asynchronous events of this object carry.
    pub fn user_context(&self) -> u64 {
        self.user_context
    }

    /// Returns the number of entries that fit.
    pub fn capacity(&self) -> usize {
        self.state.lock().capacity
    }

    /// Passes up to `max` entries to `f`, oldest first, and returns their number. If the queue is
    /// empty, first receives arrived packets. `f` must not use this queue.
    pub fn poll(&self, max: usize, mut f: impl FnMut(&Cqe)) -> Result<usize, Error> {
        let n = self.take(max, &mut f);
        if n > 0 || max == 0 {
            return Ok(n);
        }
        self.engine().progress();
        self.engines.others().iter().for_each(|engine| engine.progress());
        Ok(self.take(max, f))
    }

    fn take(&self, max: usize, f: impl FnMut(&Cqe)) -> usize {
        if !self.has_entries.load(Ordering::Acquire) {
            return 0;
        }
        let (mut state, mut verdict) = (self.state.lock(), Verdict::Wait);
        let max = if instruments::any() { self.poll_watched(&mut state, max, &mut verdict) } else { max };
        let n = state.take(max, f);
        self.has_entries.store(!state.ring.is_empty(), Ordering::Release);
        drop(state);
        if verdict != Verdict::Wait && self.announces(verdict) {
            self.notify();
        }
        n
    }

    /// Reports the entries about to be polled, and returns their number; the weakest legal card may
    /// hide some.
    #[cold]
    #[inline(never)]
    fn poll_watched(&self, state: &mut CqState, max: usize, verdict: &mut Verdict) -> usize {
        let held = state.ring.len();
        state.polled_at = clock::now();
        let (max, shown) = state.weak.as_mut().map_or((max, 0), |weak| weak.poll(max, held));
        *verdict = state.show(shown);
        let failed = state.ring.iter().take(max).filter(|cqe| cqe.status != WcStatus::Success);
        failed.for_each(|_| outcome::polled_failure());
        state.ring.iter().take(max).for_each(|cqe| emit(|| Event::Polled { cq: self.id, cqe }));
        max
    }

    /// Requests one event for the next entry, or for the next solicited one. An unpolled entry that
    /// no event has announced raises it at once: the standard does not require that, but cards do
    /// it, and UCX relies on it. Arming for any entry outweighs arming for solicited ones (IBA
    /// §11.4.2.2).
    pub fn req_notify(&self, solicited_only: bool) {
        // With moderation an event stands for several completions and may be late.
        emit(|| {
            let state = self.state.lock();
            let is_plain = state.moderator.rule == Moderation::default();
            Event::Armed { cq: self.id, any: !solicited_only && is_plain, missed: state.missed() }
        });
        let mut state = self.state.lock();
        // clause: CQ-ARM
        let is_solicited = solicited_only && state.armed != Armed::Any;
        state.armed = if is_solicited { Armed::Solicited } else { Armed::Any };
        let verdict = state.fires_for_missed();
        drop(state);
        if self.announces(verdict) {
            self.notify();
        }
        self.engine().arm(Awaited::Completion);
        self.engines.others().iter().for_each(|engine| engine.arm(Awaited::Completion));
    }

    /// Changes the capacity and keeps the entries. Fails with EINVAL if they do not fit, or beyond
    /// `max_cqe`.
    pub fn resize(&self, cqe: u32) -> Result<(), Error> {
        let capacity = check_size(cqe)?;
        let mut state = self.state.lock();
        let held = state.ring.len();
        if held > capacity {
            return Err(Error::invalid(format!("{held} queued completions do not fit into {capacity} entries")));
        }
        state.capacity = capacity;
        state.ring.shrink_to(capacity.min(FIRST_ENTRIES));
        drop(state);
        if let Some((.., listing)) = self.held.lock().as_ref() {
            listing.resize(cqe);
        }
        Ok(())
    }

    /// Sets the moderation from the next event on.
    pub fn moderate(&self, rule: Moderation) {
        self.state.lock().moderator.rule = rule;
    }

    /// Destroys the queue and its pending events. Fails with EBUSY while queue pairs use it.
    pub fn destroy(&self) -> Result<(), Error> {
        let unused = self.uses.check_unused("completion queue", "send and receive queues of queue pairs");
        unused.inspect_err(|error| emit(|| Event::DestroyRefused(self.id, error)))?;
        self.tracked.end();
        // No new event may follow `forget`.
        let held = self.held.lock().take();
        if let Some(channel) = &self.channel {
            channel.forget(self.id);
        }
        self.context.forget_events(self.id);
        drop(held);
        Ok(())
    }

    /// Appends an entry. Returns true if [`Cq::notify`] must be called, without any QP lock.
    ///
    /// A full queue fails this call and all later ones; its entries stay.
    pub(crate) fn push(&self, cqe: Cqe) -> Result<bool, Overrun> {
        self.append(cqe, None)
    }

    /// Adds a completion like [`Cq::push`], for a send, whose slot is in use until it is polled.
    pub(crate) fn push_send(&self, cqe: Cqe, unpolled: &mut Unpolled) -> Result<bool, Overrun> {
        self.append(cqe, Some(unpolled))
    }

    /// Returns the number of the oldest unpolled entry.
    pub(crate) fn polled(&self) -> u64 {
        self.state.lock().polled
    }

    /// Fails the queue, as a fault rule requests: it accepts no more entries.
    pub(crate) fn inject_failure(&self) {
        let was_whole = !std::mem::replace(&mut self.state.lock().overrun, true);
        if was_whole {
            self.context.raise(AsyncEventKind::CqErr, self.user_context(), self.id);
        }
    }

    fn append(&self, mut cqe: Cqe, unpolled: Option<&mut Unpolled>) -> Result<bool, Overrun> {
        let mut state = self.state.lock();
        if state.overrun {
            return Err(Overrun);
        }
        // clause: CQ-OVERRUN
        if state.ring.len() >= state.capacity && !state.ignore_overrun {
            state.overrun = true;
            let capacity = state.capacity;
            drop(state);
            explain::happened(|| Cause {
                text: format!(
                    "a completion queue overran: it has {capacity} entries, all unpolled, and the completion of wr_id {} \
                     of queue pair {:#08x} found no place (IBV_EVENT_CQ_ERR)",
                    cqe.wr_id,
                    cqe.qpn.get()
                ),
                advice: "create the queue with room for all requests of its queue pairs (cqe), or poll it in time"
                    .into(),
            });
            emit(|| Event::Overrun { cq: self.id });
            self.context.raise(AsyncEventKind::CqErr, self.user_context(), self.id);
            return Err(Overrun);
        }
        if let Some(unpolled) = unpolled {
            unpolled.note(state.appended, state.polled);
        }
        state.appended += 1;
        // A completion may have read the clock before the one appended earlier, but programs
        // subtract successive timestamps.
        cqe.timestamp = cqe.timestamp.max(state.newest);
        state.newest = cqe.timestamp;
        state.ring.push_back(cqe);
        self.has_entries.store(true, Ordering::Release);
        let verdict = if instruments::any() { self.append_watched(&mut state, &cqe) } else { state.fires(&cqe) };
        drop(state);
        Ok(self.announces(verdict))
    }

    /// Appends an entry while the checker or the weakest legal card is on.
    #[cold]
    #[inline(never)]
    fn append_watched(&self, state: &mut CqState, cqe: &Cqe) -> Verdict {
        self.report_fill_level(state);
        if state.sleep_watch.is_none() && self.channel.is_some() && is_checking() {
            state.sleep_watch = Some(SleepWatch::begin(self));
        }
        if !state.weak.as_mut().is_some_and(|weak| weak.hides()) {
            return state.fires(cqe);
        }
        if let Some(after) = state.weak.as_mut().and_then(|weak| weak.deadline()) {
            self.engine().scheduler.add_deadline(clock::now().after(after), Weak::clone(&self.me) as _);
        }
        Verdict::Wait
    }

    /// Reports the fill level of a queue that can overrun.
    #[cold]
    #[inline(never)]
    fn report_fill_level(&self, state: &CqState) {
        if !state.ignore_overrun {
            emit(|| Event::CqFillLevel { cq: self.id, unpolled: state.ring.len(), capacity: state.capacity });
        }
    }

    /// Returns true if an event is due now; registers a deadline for one that is due later.
    fn announces(&self, verdict: Verdict) -> bool {
        if let Verdict::WaitUntil(deadline) = verdict {
            self.engine().scheduler.add_deadline(deadline, Weak::clone(&self.me) as _);
        }
        verdict == Verdict::Announce && self.channel.is_some()
    }

    /// Drops the entries of one queue pair and passes each to `dropped`, which must not use this
    /// queue.
    pub(crate) fn forget(&self, qpn: Qpn, dropped: impl FnMut(&Cqe)) {
        let mut state = self.state.lock();
        state.forget(qpn, dropped);
        if is_on() {
            self.report_fill_level(&state);
        }
    }

    pub(crate) fn notify(&self) {
        let held = self.held.lock();
        if let (Some(channel), Some(_)) = (&self.channel, held.as_ref()) {
            emit(|| Event::CqEventQueued { cq: self.id });
            channel.announce(self.id, self.user_context());
        }
    }

    /// Returns the identity of the queue in checker events.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns the main engine of the queue pairs that complete here; without any, that of the
    /// creating thread.
    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.engines.main()
    }

    pub(crate) fn serve_by(&self, engine: &Arc<Engine>) {
        self.engines.add(engine);
        self.channel.iter().for_each(|channel| channel.engines().add(engine));
    }
}

impl DeadlineOwner for Cq {
    /// Ends a moderation period, and shows entries that the weakest legal card hides.
    fn on_deadline(&self, deadline: Instant) {
        let mut state = self.state.lock();
        let verdict = state.moderator.on_deadline(deadline);
        let verdict = state.disarm_if(verdict);
        let shown = state.weak.as_mut().map_or(0, |weak| weak.on_deadline());
        let verdict = if shown > 0 { state.show(shown) } else { verdict };
        drop(state);
        if self.announces(verdict) {
            self.notify();
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Cannot fail: users of the queue hold a reference. No-op after `destroy`.
        let _ = self.destroy();
    }
}

fn check_size(cqe: u32) -> Result<usize, Error> {
    let max = limits::in_force().max_cqe;
    let wrong = || Error::invalid(format!("cqe is {cqe}; it must be 1 to {max}"));
    if (1..=max).contains(&cqe) { Ok(cqe as usize) } else { Err(wrong()) }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Armed {
    #[default]
    No,
    Solicited,
    Any,
}

#[derive(Debug, Default)]
struct CqState {
    ring: VecDeque<Cqe>,
    /// Number of entries appended so far, which is the number of the next one.
    appended: u64,
    /// Number of the oldest entry in the ring; of the next entry if the ring is empty.
    polled: u64,
    /// Ascending numbers of entries dropped by `forget`; those below `polled` are stale.
    dropped: VecDeque<u64>,
    /// Value of `appended` when the last event was raised.
    announced: u64,
    /// Timestamp of the newest entry.
    newest: u64,
    capacity: usize,
    armed: Armed,
    moderator: Moderator,
    ignore_overrun: bool,
    overrun: bool,
    polled_at: Instant,
    /// Watch for sleeping threads, while the checker is on.
    sleep_watch: Option<Arc<dyn DeadlineOwner>>,
    weak: Option<Box<WeakCq>>,
}

impl CqState {
    /// Returns the effect of `cqe` on the armed event. Disarms the queue if `cqe` raises the event.
    fn fires(&mut self, cqe: &Cqe) -> Verdict {
        let counts = match self.armed {
            Armed::No => false,
            Armed::Solicited => cqe.solicited,
            Armed::Any => true,
        };
        let verdict = if counts { self.moderator.count(|| Instant(cqe.timestamp)) } else { Verdict::Wait };
        self.disarm_if(verdict)
    }

    fn disarm_if(&mut self, verdict: Verdict) -> Verdict {
        if verdict == Verdict::Announce {
            self.armed = Armed::No;
            self.announced = self.appended;
        }
        verdict
    }

    /// Returns the number of unpolled entries that no event has announced.
    fn missed(&self) -> usize {
        self.ring.len().saturating_sub(self.known())
    }

    /// Returns the number of unpolled entries that the last event announced.
    fn known(&self) -> usize {
        let dropped = self.dropped.iter().filter(|&&number| (self.polled..self.announced).contains(&number)).count();
        usize::try_from(self.announced.saturating_sub(self.polled)).unwrap_or(usize::MAX) - dropped
    }

    /// Returns the effect of an unannounced entry on the event just armed. The standard requires
    /// none.
    fn fires_for_missed(&mut self) -> Verdict {
        // A card that learns late how far a program has polled raises an event for polled entries
        // (`man ibv_get_cq_event`).
        let was_polled = self.ring.is_empty() && self.announced < self.appended && self.armed == Armed::Any;
        if was_polled && self.weak.as_mut().is_some_and(|weak| weak.raises_for_polled()) {
            return self.disarm_if(Verdict::Announce);
        }
        if self.weak.as_ref().is_some_and(|weak| weak.looks_ahead_only()) {
            return Verdict::Wait;
        }
        let known = self.known();
        let missed = match self.armed {
            Armed::No => None,
            Armed::Solicited => self.ring.iter().skip(known).find(|cqe| cqe.solicited),
            Armed::Any => self.ring.get(known),
        };
        // With moderation the entry counts and may start the period.
        let verdict = missed.map_or(Verdict::Wait, |cqe| self.moderator.count(|| Instant(cqe.timestamp)));
        self.disarm_if(verdict)
    }

    /// Shows the `count` oldest hidden entries of the weakest legal card, as if they completed now.
    fn show(&mut self, count: usize) -> Verdict {
        let Some(weak) = &mut self.weak else { return Verdict::Wait };
        let first = self.ring.len().saturating_sub(weak.hidden);
        weak.hidden -= count.min(weak.hidden);
        let shown: Vec<Cqe> = self.ring.iter().skip(first).take(count).copied().collect();
        let or_before = |before, now| if now == Verdict::Wait { before } else { now };
        shown.iter().fold(Verdict::Wait, |before, cqe| or_before(before, self.fires(cqe)))
    }

    fn take(&mut self, max: usize, mut f: impl FnMut(&Cqe)) -> usize {
        let n = max.min(self.ring.len());
        // Not `drain`, which would copy each entry once more: most polls read few entries.
        for _ in 0..n {
            if let Some(cqe) = self.ring.front() {
                f(cqe);
            }
            self.ring.pop_front();
        }
        self.advance_polled(n as u64);
        n
    }

    /// Advances `polled` after the `n` oldest entries have left the ring.
    fn advance_polled(&mut self, n: u64) {
        if self.ring.is_empty() {
            self.polled = self.appended;
            return;
        }
        let before = self.polled;
        self.polled += n;
        // Skip dropped numbers before the oldest entry.
        while let Some(&number) = self.dropped.front()
            && number <= self.polled
        {
            self.dropped.pop_front();
            self.polled += u64::from(number >= before);
        }
    }

    /// Drops the entries of one queue pair. The others keep their numbers, which [`Unpolled`]
    /// refers to.
    fn forget(&mut self, qpn: Qpn, mut forgotten: impl FnMut(&Cqe)) {
        let mut before = std::mem::take(&mut self.dropped);
        before.retain(|&number| number >= self.polled);
        let mut number = self.polled;
        self.ring.retain(|cqe| {
            while before.front() == Some(&number) {
                before.pop_front();
                self.dropped.push_back(number);
                number += 1;
            }
            let stays = cqe.qpn != qpn;
            if !stays {
                self.dropped.push_back(number);
                forgotten(cqe);
            }
            number += 1;
            stays
        });
        self.dropped.append(&mut before);
        self.advance_polled(0);
        let left = self.ring.len();
        self.weak.iter_mut().for_each(|weak| weak.hidden = weak.hidden.min(left));
    }
}

/// Completions of one send queue that may be unpolled: their slots in the send queue are in use.
///
/// Polls do not update it: a queue pair whose send queue looks full reads [`Cq::polled`] instead.
#[derive(Debug, Default)]
pub(crate) struct Unpolled {
    /// The oldest completion, which is mostly the only one: this field spares a cache miss per
    /// message.
    oldest: Option<u64>,
    newer: VecDeque<u64>,
}

impl Unpolled {
    /// Returns the number of unpolled completions; at most the number of slots of the send queue.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(usize::from(self.oldest.is_some()) + self.newer.len()).unwrap_or(u32::MAX)
    }

    /// Adds entry `number` of a completion queue whose oldest entry is `polled`.
    fn note(&mut self, number: u64, polled: u64) {
        self.forget(polled);
        match self.oldest {
            None => self.oldest = Some(number),
            Some(_) => self.newer.push_back(number),
        }
    }

    pub(crate) fn forget(&mut self, polled: u64) {
        while self.oldest.is_some_and(|number| number < polled) {
            self.oldest = self.newer.pop_front();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.oldest = None;
        self.newer.clear();
    }
}

/// Reports, once a second, threads that sleep on the channel of a queue that has completions.
/// Runs while the checker is on, from the first unpolled entry until the queue is empty.
#[derive(Debug)]
struct SleepWatch {
    me: Weak<Self>,
    queue: Weak<Cq>,
}

impl SleepWatch {
    /// Starts the watch; the queue keeps the returned value.
    fn begin(queue: &Cq) -> Arc<dyn DeadlineOwner> {
        let watch = Arc::new_cyclic(|me| Self { me: Weak::clone(me), queue: Weak::clone(&queue.me) });
        queue.engine().scheduler.add_deadline(clock::now().after(LONG_WAIT), Weak::clone(&watch.me) as _);
        watch
    }
}

impl DeadlineOwner for SleepWatch {
    fn on_deadline(&self, _: Instant) {
        let Some(queue) = self.queue.upgrade() else { return };
        let Some(channel) = &queue.channel else { return };
        let (now, due) = {
            let mut state = queue.state.lock();
            if state.ring.is_empty() {
                state.sleep_watch = None;
                return;
            }
            (clock::now(), state.polled_at.after(LONG_WAIT))
        };
        // With an event pending a thread is awake or waits for an edge, which `EventsUnread`
        // reports.
        if now >= due && channel.has_no_events() {
            for Sleeper { thread, call, .. } in sleepers(channel.fd()) {
                emit(|| Event::SleepsWithCompletions { cq: queue.id, thread, call });
            }
        }
        let next = if now < due { due } else { now.after(LONG_WAIT) };
        queue.engine().scheduler.add_deadline(next, Weak::clone(&self.me) as _);
    }
}
