//! Completion queues: QPs push, programs poll, and whoever asked for it is woken once.
//!
//! One lock per queue guards the ring and the arming, so an entry either is there before a program
//! arms or comes after; either way it fires, unless it was announced or polled already. Touches its
//! channel and the engine.

mod moderation;
#[cfg(test)]
mod tests;

pub use moderation::Moderation;

use crate::comp_channel::CompChannel;
use crate::context::Context;
use crate::engine_set::EngineSet;
use crate::event::AsyncEventKind;
use crate::sleepers::{Sleeper, sleepers};
use crate::weakest::WeakCq;
use moderation::{Moderator, Verdict};
use roxe_base::error::Error;
use roxe_base::limits::{self, NUM_COMP_VECTORS};
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{ObjectId, Use, UseCount};
use roxe_base::{clock, instruments};
use roxe_check::explain::{self, Cause};
use roxe_check::{Event, Made, Tracked, is_checking, is_on, tell};
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::Deadline;
use roxe_transport::cx::Overrun;
use roxe_transport::time::Instant;
use roxe_transport::wr::Cqe;
use roxe_wire::Qpn;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Entries a ring starts with; it doubles up to the capacity as entries pile up, so that a huge
/// queue that is polled in time stays small, and a queue in steady state allocates nothing.
const FIRST_ENTRIES: usize = 128;
/// After so long without a poll the checker looks whether a thread sleeps in front of a queue.
const LONG: Duration = Duration::from_secs(1);

/// What a completion queue is created with.
#[derive(Clone, Debug, Default)]
pub struct CqInit {
    /// Entries it shall take, 1..=`max_cqe`.
    pub cqe: u32,
    /// Where its events go.
    pub channel: Option<Arc<CompChannel>>,
    /// Token that events carry.
    pub user: u64,
    /// Completion vector, below the number of vectors.
    pub comp_vector: u32,
    /// A full queue takes more all the same; nothing is lost, and nothing fails
    /// (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    pub ignore_overrun: bool,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// For the deadlines of moderation.
    me: Weak<Self>,
    context: Arc<Context>,
    engines: EngineSet,
    channel: Option<Arc<CompChannel>>,
    /// The place in the quota and the use of the channel; they end when the queue is destroyed.
    /// Locked while an event is announced.
    held: Mutex<rank::CqChannel, Option<(Use, Option<Use>)>>,
    id: ObjectId,
    user: u64,
    tracked: Tracked,
    uses: UseCount,
    /// Whether there are entries, for who looks without the lock: most looks of a program that
    /// polls are in vain.
    has_entries: AtomicBool,
    state: Mutex<rank::Cq, State>,
}

impl Context {
    /// A new completion queue; EINVAL for a size of 0 or beyond `max_cqe`, or a vector that does
    /// not exist. ENOMEM: there are `max_cq`.
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
        let tracked = Tracked::new(id, || Made::Cq { context: self.id(), channel, capacity: init.cqe });
        Ok(Arc::new_cyclic(|me| Cq {
            me: Weak::clone(me),
            context: Arc::clone(self),
            engines: EngineSet::new(engine),
            held: Mutex::new(Some((quota, init.channel.as_ref().map(|channel| channel.hold())))),
            channel: init.channel,
            id,
            user: init.user,
            tracked,
            uses: UseCount::default(),
            has_entries: AtomicBool::new(false),
            state: Mutex::new(State {
                ring,
                capacity,
                ignore_overrun: init.ignore_overrun,
                weak: WeakCq::of_new(),
                ..State::default()
            }),
        }))
    }
}

impl Cq {
    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its channel.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// The token that its events carry.
    pub fn user(&self) -> u64 {
        self.user
    }

    /// Entries it takes.
    pub fn capacity(&self) -> usize {
        self.state.lock().capacity
    }

    /// Hands up to `max` entries to `f`, oldest first, and returns how many. An empty queue first
    /// lets the engine receive what has arrived. `f` must not use this queue.
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
        let max = if instruments::any() { self.look_watched(&mut state, max, &mut verdict) } else { max };
        let n = state.take(max, f);
        self.has_entries.store(!state.ring.is_empty(), Ordering::Release);
        drop(state);
        if verdict != Verdict::Wait && self.announces(verdict) {
            self.notify();
        }
        n
    }

    /// How many entries are about to be handed out; the checker is told of them. Once for all of
    /// them, so that the loop that hands them out asks nothing.
    #[cold]
    #[inline(never)]
    fn look_watched(&self, state: &mut State, max: usize, verdict: &mut Verdict) -> usize {
        let held = state.ring.len();
        state.polled_at = clock::now();
        let (max, shown) = state.weak.as_mut().map_or((max, 0), |weak| weak.poll(max, held));
        *verdict = state.show(shown);
        state.ring.iter().take(max).for_each(|cqe| tell(|| Event::Polled { cq: self.id, cqe }));
        max
    }

    /// Asks for one event on the next entry, or on the next solicited one. An entry that came since
    /// the last event, and that nobody has polled, raises it at once: the standard asks programs to
    /// poll again after arming, but cards do this, and UCX sleeps without another look. Arming for
    /// any entry outweighs arming for solicited ones (IBA §11.4.2.2).
    pub fn req_notify(&self, solicited_only: bool) {
        // With moderation an event may stand for several completions, or come late.
        tell(|| {
            let state = self.state.lock();
            let is_plain = state.moderator.rule == Moderation::default();
            Event::Armed { cq: self.id, any: !solicited_only && is_plain, missed: state.missed() }
        });
        let mut state = self.state.lock();
        // clause: CQ-ARM
        state.armed = match state.armed {
            Armed::No if solicited_only => Armed::Solicited,
            Armed::Solicited if solicited_only => Armed::Solicited,
            _ => Armed::Any,
        };
        let verdict = state.fires_for_missed();
        drop(state);
        if self.announces(verdict) {
            self.notify();
        }
        self.engine().arm();
        self.engines.others().iter().for_each(|engine| engine.arm());
    }

    /// Changes the capacity, keeping the entries; EINVAL if they do not fit or it exceeds
    /// `max_cqe`.
    pub fn resize(&self, cqe: u32) -> Result<(), Error> {
        let capacity = check_size(cqe)?;
        let mut state = self.state.lock();
        let held = state.ring.len();
        if held > capacity {
            return Err(Error::invalid(format!("{held} completions wait and do not fit into {capacity} entries")));
        }
        state.capacity = capacity;
        state.ring.shrink_to(capacity.min(FIRST_ENTRIES));
        Ok(())
    }

    /// Sets how many completions one event stands for, from the next one on.
    pub fn moderate(&self, rule: Moderation) {
        self.state.lock().moderator.rule = rule;
    }

    /// Takes the queue out of use: EBUSY while QPs use it; then its pending events are forgotten.
    pub fn destroy(&self) -> Result<(), Error> {
        let unused = self.uses.check_unused("completion queue", "send and receive queues of queue pairs");
        unused.inspect_err(|error| tell(|| Event::DestroyRefused(self.id, error)))?;
        self.tracked.end();
        // First no new events, then forget the old ones.
        let held = self.held.lock().take();
        if let Some(channel) = &self.channel {
            channel.forget(self.id);
        }
        self.context.forget_events(self.id);
        drop(held);
        Ok(())
    }

    /// Appends an entry; the answer tells whether [`Cq::notify`] must be called, once no QP lock is
    /// held.
    ///
    /// A full queue refuses and from then on refuses everything; nothing that was there is lost.
    pub(crate) fn push(&self, cqe: Cqe) -> Result<bool, Overrun> {
        self.append(cqe, |_| ())
    }

    /// As [`Cq::push`] for a completion that keeps its place in a send queue until it is polled.
    pub(crate) fn push_send(&self, cqe: Cqe, unpolled: &mut Unpolled) -> Result<bool, Overrun> {
        self.append(cqe, |entry| unpolled.note(entry))
    }

    /// An entry with a lower number than this is no longer in the queue.
    pub(crate) fn polled(&self) -> u64 {
        self.state.lock().polled
    }

    fn append(&self, mut cqe: Cqe, note: impl FnOnce(Entry)) -> Result<bool, Overrun> {
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
            tell(|| Event::Overrun { cq: self.id });
            self.context.raise(AsyncEventKind::CqErr, self.user(), self.id);
            return Err(Overrun);
        }
        note(Entry { number: state.appended, polled: state.polled });
        state.appended += 1;
        // Whoever looked at the clock first may come second. Programs subtract the timestamps of
        // successive entries.
        cqe.timestamp = cqe.timestamp.max(state.newest);
        state.newest = cqe.timestamp;
        state.ring.push_back(cqe);
        self.has_entries.store(true, Ordering::Release);
        let verdict = if instruments::any() { self.show_watched(&mut state, &cqe) } else { state.fires(&cqe) };
        drop(state);
        Ok(self.announces(verdict))
    }

    /// The entry that was just appended, while something watches or changes what the card does.
    #[cold]
    #[inline(never)]
    fn show_watched(&self, state: &mut State, cqe: &Cqe) -> Verdict {
        self.tell_held(state);
        if state.slept_on.is_none() && self.channel.is_some() && is_checking() {
            state.slept_on = Some(SleptOn::begin(self));
        }
        if !state.weak.as_mut().is_some_and(|weak| weak.hides()) {
            return state.fires(cqe);
        }
        if let Some(after) = state.weak.as_mut().and_then(|weak| weak.deadline()) {
            self.engine().scheduler.add_deadline(clock::now().after(after), Weak::clone(&self.me) as _);
        }
        Verdict::Wait
    }

    /// A queue without a limit has none to be compared with.
    #[cold]
    #[inline(never)]
    fn tell_held(&self, state: &State) {
        if !state.ignore_overrun {
            tell(|| Event::Held { cq: self.id, held: state.ring.len(), capacity: state.capacity });
        }
    }

    /// Whether it is time for an event; sees to it that it will be.
    fn announces(&self, verdict: Verdict) -> bool {
        if let Verdict::WaitUntil(deadline) = verdict {
            self.engine().scheduler.add_deadline(deadline, Weak::clone(&self.me) as _);
        }
        verdict == Verdict::Announce && self.channel.is_some()
    }

    /// Drops what waits here of one queue pair; `dropped` is told of each and must not use this
    /// queue.
    pub(crate) fn forget(&self, qpn: Qpn, dropped: impl FnMut(&Cqe)) {
        let mut state = self.state.lock();
        state.forget(qpn, dropped);
        if is_on() {
            self.tell_held(&state);
        }
    }

    /// Announces on the channel that an armed entry came; not any more once the queue is destroyed.
    pub(crate) fn notify(&self) {
        let held = self.held.lock();
        if let (Some(channel), Some(_)) = (&self.channel, held.as_ref()) {
            tell(|| Event::Announced { cq: self.id });
            channel.announce(self.id, self.user());
        }
    }

    /// Names it in what the checker is told.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Registers one queue pair as a user.
    pub(crate) fn hold(&self) -> Use {
        self.uses.hold()
    }

    /// The engine for the queue pairs that complete here: that of the first one, or of the thread
    /// that made the queue.
    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.engines.main()
    }

    /// A queue pair of `engine` completes here.
    pub(crate) fn serve_by(&self, engine: &Arc<Engine>) {
        self.engines.add(engine);
        self.channel.iter().for_each(|channel| channel.engines().add(engine));
    }
}

impl Deadline for Cq {
    /// The period of moderation that was to end at `deadline` ends.
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
        // Whoever still uses the queue holds it, so nobody does and this cannot fail; it is a no-op
        // after `destroy`.
        let _ = self.destroy();
    }
}

fn check_size(cqe: u32) -> Result<usize, Error> {
    let most = limits::in_force().max_cqe;
    let wrong = || Error::invalid(format!("cqe is {cqe}; a completion queue takes 1 to {most} entries"));
    if (1..=most).contains(&cqe) { Ok(cqe as usize) } else { Err(wrong()) }
}

/// Which entries wake the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Armed {
    #[default]
    No,
    Solicited,
    Any,
}

/// The entries of a queue, and which of them wake the program.
#[derive(Debug, Default)]
struct State {
    ring: VecDeque<Cqe>,
    /// Entries that were ever appended: the number of the next one.
    appended: u64,
    /// The number of the oldest entry that is left, or of the next one.
    polled: u64,
    /// Numbers of entries that were dropped out of turn, rising. Those below `polled` mean nothing
    /// any more.
    dropped: VecDeque<u64>,
    /// Entries that had been appended when the last event was raised.
    announced: u64,
    /// Timestamp of the entry appended last.
    newest: u64,
    capacity: usize,
    armed: Armed,
    moderator: Moderator,
    ignore_overrun: bool,
    overrun: bool,
    /// When the program took an entry last; kept while something watches it.
    polled_at: Instant,
    /// Looks for threads that sleep although there are entries, while the checker is on.
    slept_on: Option<Arc<dyn Deadline>>,
    /// Of the weakest legal card.
    weak: Option<Box<WeakCq>>,
}

impl State {
    /// Whether `cqe` fires the event that is armed; disarms if so. With moderation, several have to
    /// come, or time passes.
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

    /// Entries that came since the last event, and that nobody has polled.
    fn missed(&self) -> usize {
        self.ring.len().saturating_sub(self.known())
    }

    /// Entries of the ring that the last event stands for.
    fn known(&self) -> usize {
        let dropped = self.dropped.iter().filter(|&&number| (self.polled..self.announced).contains(&number)).count();
        usize::try_from(self.announced.saturating_sub(self.polled)).unwrap_or(usize::MAX) - dropped
    }

    /// Whether an entry that came since the last event, and that nobody has polled, fires the event
    /// that was just armed. The standard does not ask for that.
    fn fires_for_missed(&mut self) -> Verdict {
        if self.fires_for_nothing() {
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
        // With moderation it starts the period, if it is not the last that is waited for.
        let verdict = missed.map_or(Verdict::Wait, |cqe| self.moderator.count(|| Instant(cqe.timestamp)));
        self.disarm_if(verdict)
    }

    /// Whether the event that was just armed is raised although all that came since the last one
    /// was polled: a card that learns late how far a program has polled does so (`man
    /// ibv_get_cq_event`).
    fn fires_for_nothing(&mut self) -> bool {
        let was_polled = self.ring.is_empty() && self.announced < self.appended && self.armed == Armed::Any;
        self.weak.as_mut().is_some_and(|weak| was_polled && weak.raises_for_nothing())
    }

    /// Shows the `count` oldest entries of those that are not shown yet: for a program they come
    /// now.
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
        // Mostly one or a few; a drain of the ring pays for putting it together again. An entry is
        // shown where it lies: taken out first it would be copied twice.
        for _ in 0..n {
            self.ring.front().into_iter().for_each(&mut f);
            self.ring.pop_front();
        }
        self.pass(n as u64);
        n
    }

    /// The `n` oldest entries have left the ring.
    fn pass(&mut self, n: u64) {
        if self.ring.is_empty() {
            self.polled = self.appended;
            return;
        }
        let before = self.polled;
        self.polled += n;
        // Each number that no entry in front of the oldest one has any more is one to skip.
        while let Some(&number) = self.dropped.front()
            && number <= self.polled
        {
            self.dropped.pop_front();
            self.polled += u64::from(number >= before);
        }
    }

    /// Drops the entries of one queue pair; `forgotten` is told of each. The numbers of the others
    /// stay as they are: queue pairs know their completions by them.
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
        self.pass(0);
        let left = self.ring.len();
        self.weak.iter_mut().for_each(|weak| weak.hidden = weak.hidden.min(left));
    }
}

/// Where an entry went into a completion queue, and how far that queue has been emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// Number of the entry, from 0 in the life of the queue.
    number: u64,
    /// Entries taken so far: those with a lower number than this.
    polled: u64,
}

/// The completions of one send queue that a program may not have taken yet: their places in the
/// send queue are still occupied.
///
/// A completion queue numbers its entries and knows how many were taken, so nothing has to be done
/// when a program polls: a queue pair that looks full asks.
#[derive(Debug, Default)]
pub(crate) struct Unpolled {
    /// Mostly it is the only one; here it needs no memory of its own, which would be another cache
    /// miss for each message of a program with many queue pairs.
    oldest: Option<u64>,
    /// The others, oldest first.
    newer: VecDeque<u64>,
}

impl Unpolled {
    /// How many there are. Never more than the send queue has places.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(usize::from(self.oldest.is_some()) + self.newer.len()).unwrap_or(u32::MAX)
    }

    /// One more was appended.
    fn note(&mut self, entry: Entry) {
        self.forget(entry.polled);
        match self.oldest {
            None => self.oldest = Some(entry.number),
            Some(_) => self.newer.push_back(entry.number),
        }
    }

    /// Those with a lower number than `polled` were taken.
    pub(crate) fn forget(&mut self, polled: u64) {
        while self.oldest.is_some_and(|number| number < polled) {
            self.oldest = self.newer.pop_front();
        }
    }

    /// The send queue starts anew.
    pub(crate) fn clear(&mut self) {
        self.oldest = None;
        self.newer.clear();
    }
}

/// Looks once a second after a queue that has completions, while the checker is on, from the first
/// unpolled one on until it is empty: whether a thread sleeps in front of its channel.
#[derive(Debug)]
struct SleptOn {
    me: Weak<Self>,
    queue: Weak<Cq>,
}

impl SleptOn {
    /// To be kept by the queue.
    fn begin(queue: &Cq) -> Arc<dyn Deadline> {
        let watch = Arc::new_cyclic(|me| Self { me: Weak::clone(me), queue: Weak::clone(&queue.me) });
        queue.engine().scheduler.add_deadline(clock::now().after(LONG), Weak::clone(&watch.me) as _);
        watch
    }
}

impl Deadline for SleptOn {
    fn on_deadline(&self, _: Instant) {
        if let Some(queue) = self.queue.upgrade()
            && let Some(at) = queue.look_at_sleepers()
        {
            queue.engine().scheduler.add_deadline(at, Weak::clone(&self.me) as _);
        }
    }
}

impl Cq {
    /// Tells the checker of threads that sleep, and returns when to look again; `None` if there is
    /// nothing left to look after.
    fn look_at_sleepers(&self) -> Option<Instant> {
        let channel = self.channel.as_ref()?;
        let (now, due) = {
            let mut state = self.state.lock();
            if state.ring.is_empty() {
                state.slept_on = None;
                return None;
            }
            (clock::now(), state.polled_at.after(LONG))
        };
        if now < due {
            return Some(due);
        }
        // One that has an event to take does not sleep, or waits for an edge: see `unread`.
        if channel.has_no_events() {
            for Sleeper { thread, call, .. } in sleepers(channel.fd()) {
                tell(|| Event::Sleeps { cq: self.id, thread, call });
            }
        }
        Some(now.after(LONG))
    }
}
