//! Completion queues: QPs push, programs poll, and whoever asked for it is woken once.
//!
//! One lock per queue guards the ring and the arming, so an entry either is there before a program
//! arms or comes after; either way it fires, unless it was announced or polled already. Touches its
//! channel and the engine.

mod moderation;
mod slept_on;
mod state;
mod weak;

pub use moderation::Moderation;

use crate::comp_channel::CompChannel;
use crate::context::Context;
use crate::engine_set::EngineSet;
use crate::event::AsyncEventKind;
use crate::sleepers::{Sleeper, sleepers};
use crate::unpolled::{Entry, Unpolled};
use moderation::Verdict;
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
use slept_on::{LONG, SleptOn, Watched};
use state::{Armed, State};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use weak::WeakCq;

/// Entries a ring starts with; it doubles up to the capacity as entries pile up, so that a huge
/// queue that is polled in time stays small, and a queue in steady state allocates nothing.
const FIRST_ENTRIES: usize = 128;

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
            state.slept_on = Some(SleptOn::begin(Weak::clone(&self.me) as _));
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

impl Watched for Cq {
    fn look(&self) -> Option<Instant> {
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

    fn wait(&self, at: Instant, deadline: Weak<dyn Deadline>) {
        self.engine().scheduler.add_deadline(at, deadline);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use roxe_base::limits::MAX_CQE;

    fn cqe(wr_id: u64) -> Cqe {
        Cqe { wr_id, ..Cqe::default() }
    }

    fn solicited(wr_id: u64) -> Cqe {
        Cqe { solicited: true, ..cqe(wr_id) }
    }

    /// Further ahead than any test runs, nanoseconds: the engine does not end a period that begins
    /// then.
    const LATE: u64 = 1 << 62;

    fn late(wr_id: u64) -> Cqe {
        Cqe { timestamp: LATE, ..cqe(wr_id) }
    }

    fn cq(capacity: u32) -> Arc<Cq> {
        let context = testing::context();
        let channel = Some(context.create_comp_channel().unwrap());
        context.create_cq(CqInit { cqe: capacity, channel, user: 77, ..CqInit::default() }).unwrap()
    }

    fn drain(cq: &Cq) -> Vec<u64> {
        let mut ids = vec![];
        cq.poll(usize::MAX, |cqe| ids.push(cqe.wr_id)).unwrap();
        ids
    }

    #[test]
    fn entries_come_out_in_order_and_in_batches() {
        let cq = cq(10);
        (0..5).for_each(|i| assert_eq!(cq.push(cqe(i)), Ok(false)));
        let mut first = vec![];
        assert_eq!(cq.poll(2, |cqe| first.push(cqe.wr_id)).unwrap(), 2);
        assert_eq!(first, [0, 1]);
        assert_eq!(drain(&cq), [2, 3, 4]);
        assert_eq!(cq.poll(0, |_| panic!("nothing was asked for")).unwrap(), 0);
        assert!(drain(&cq).is_empty());
    }

    #[test]
    fn timestamps_never_go_back() {
        let cq = cq(10);
        for timestamp in [5, 9, 7, 10] {
            cq.push(Cqe { timestamp, ..cqe(0) }).unwrap();
        }
        let mut times = vec![];
        cq.poll(10, |cqe| times.push(cqe.timestamp)).unwrap();
        assert_eq!(times, [5, 9, 9, 10]);
    }

    // clause: CQ-OVERRUN
    #[test]
    fn a_full_queue_refuses_entries_for_good_and_keeps_those_it_has() {
        let cq = cq(2);
        cq.push(cqe(1)).unwrap();
        cq.push(cqe(2)).unwrap();
        assert_eq!(cq.push(cqe(3)), Err(Overrun));
        assert_eq!(drain(&cq), [1, 2]);
        assert_eq!(cq.push(cqe(4)), Err(Overrun));
        let event = cq.context().next_async_event().unwrap();
        assert_eq!((event.kind, event.user), (AsyncEventKind::CqErr, 77));
    }

    #[test]
    fn a_queue_that_ignores_overruns_loses_nothing() {
        let init = CqInit { cqe: 2, ignore_overrun: true, ..CqInit::default() };
        let cq = testing::context().create_cq(init).unwrap();
        (0..1000).for_each(|i| assert_eq!(cq.push(cqe(i)), Ok(false)));
        assert_eq!(drain(&cq), (0..1000).collect::<Vec<_>>());
        assert_eq!(cq.capacity(), 2);
    }

    // clause: CQ-ARM
    #[test]
    fn arming_fires_once_for_later_entries() {
        let cq = cq(10);
        cq.req_notify(false);
        assert_eq!(cq.push(cqe(2)), Ok(true));
        assert_eq!(cq.push(cqe(3)), Ok(false));
        cq.notify();
        assert_eq!(cq.channel().unwrap().get_event().unwrap(), 77);
    }

    /// Whether an event is waiting.
    fn has_event(cq: &Cq) -> bool {
        testing::is_readable(cq.channel().unwrap().fd())
    }

    // clause: CQ-ARM
    #[test]
    fn an_unpolled_entry_from_before_arming_fires_at_once() {
        let cq = cq(10);
        cq.push(cqe(1)).unwrap();
        cq.req_notify(true);
        assert!(!has_event(&cq), "it is not solicited");
        cq.req_notify(false);
        assert!(has_event(&cq));
        cq.channel().unwrap().get_event().unwrap();
        cq.req_notify(false);
        assert!(!has_event(&cq), "it was announced");
        assert_eq!(cq.push(solicited(2)), Ok(true));
        cq.push(solicited(3)).unwrap();
        cq.req_notify(true);
        assert!(has_event(&cq), "only the second was announced");
    }

    // clause: CQ-ARM
    #[test]
    fn a_polled_entry_from_before_arming_does_not_fire() {
        let cq = cq(10);
        cq.push(cqe(1)).unwrap();
        assert_eq!(drain(&cq), [1]);
        cq.req_notify(false);
        assert!(!has_event(&cq));
        assert_eq!(cq.push(cqe(2)), Ok(true));
    }

    // clause: CQ-ARM
    #[test]
    fn solicited_arming_waits_for_a_solicited_entry() {
        let cq = cq(10);
        cq.req_notify(true);
        assert_eq!(cq.push(cqe(1)), Ok(false));
        assert_eq!(cq.push(solicited(2)), Ok(true));
    }

    // clause: CQ-ARM
    #[test]
    fn arming_for_all_outweighs_arming_for_solicited() {
        let cq = cq(10);
        cq.req_notify(true);
        cq.req_notify(false);
        cq.req_notify(true);
        assert_eq!(cq.push(cqe(1)), Ok(true));
    }

    #[test]
    fn with_moderation_one_event_stands_for_several_entries() {
        let cq = cq(100);
        cq.moderate(Moderation { count: 4, period: u16::MAX });
        cq.req_notify(false);
        let fired: Vec<_> = (0..12).filter(|&i| cq.push(late(i)).unwrap()).collect();
        assert_eq!(fired, [3], "armed once");
        let solicited = |wr_id| Cqe { solicited: true, ..late(wr_id) };
        cq.req_notify(true);
        assert!(!(0..3).any(|i| cq.push(solicited(i)).unwrap()));
        assert_eq!(cq.push(late(3)), Ok(false), "not solicited");
        assert_eq!(cq.push(solicited(4)), Ok(true));
    }

    #[test]
    fn an_unpolled_entry_from_before_arming_waits_at_most_a_period() {
        let cq = cq(100);
        cq.moderate(Moderation { count: 4, period: 10 });
        assert_eq!(cq.push(late(1)), Ok(false));
        cq.req_notify(false);
        assert!(!has_event(&cq));
        cq.on_deadline(Instant(LATE + 10_000));
        assert!(has_event(&cq));
    }

    #[test]
    fn the_end_of_a_period_announces_entries_if_armed() {
        let cq = cq(100);
        cq.moderate(Moderation { count: 4, period: 10 });
        cq.req_notify(false);
        assert_eq!(cq.push(late(1)), Ok(false));
        cq.on_deadline(Instant(LATE + 10_000));
        assert_eq!(cq.channel().unwrap().get_event().unwrap(), 77);
        assert_eq!(cq.push(late(2)), Ok(false), "not armed again");
    }

    #[test]
    fn a_queue_without_channel_never_asks_to_notify() {
        let cq = testing::context().create_cq(CqInit { cqe: 4, ..CqInit::default() }).unwrap();
        cq.req_notify(false);
        assert_eq!(cq.push(cqe(1)), Ok(false));
    }

    #[test]
    fn resizing_keeps_entries_or_refuses() {
        let cq = cq(1000);
        (0..600).for_each(|i| assert_eq!(cq.push(cqe(i)), Ok(false)));
        assert_eq!(cq.resize(599).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(cq.resize(0).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(cq.resize(MAX_CQE + 1).unwrap_err().errno(), libc::EINVAL);
        cq.resize(600).unwrap();
        assert_eq!(cq.capacity(), 600);
        assert_eq!(drain(&cq), (0..600).collect::<Vec<_>>());
    }

    #[test]
    fn sizes_and_vectors_beyond_the_limits_are_refused() {
        let context = testing::context();
        for (cqe, comp_vector) in [(0, 0), (MAX_CQE + 1, 0), (1, NUM_COMP_VECTORS)] {
            let init = CqInit { cqe, comp_vector, ..CqInit::default() };
            assert_eq!(context.create_cq(init).unwrap_err().errno(), libc::EINVAL);
        }
        assert!(context.create_cq(CqInit { cqe: MAX_CQE, ..CqInit::default() }).is_ok());
    }

    #[test]
    fn a_destroyed_queue_takes_its_events_along() {
        let context = testing::context();
        let channel = context.create_comp_channel().unwrap();
        let make = |user| {
            let init = CqInit { cqe: 4, channel: Some(Arc::clone(&channel)), user, ..CqInit::default() };
            context.create_cq(init).unwrap()
        };
        let (gone, stays) = (make(1), make(2));
        gone.notify();
        stays.notify();
        let user = gone.hold();
        assert_eq!(gone.destroy().unwrap_err().errno(), libc::EBUSY);
        drop(user);
        gone.destroy().unwrap();
        gone.notify();
        assert_eq!(channel.get_event().unwrap(), 2);
        assert_eq!(channel.destroy().unwrap_err().errno(), libc::EBUSY);
        drop(stays);
        assert!(channel.destroy().is_ok());
    }

    /// An entry of the queue pair `qpn`.
    fn cqe_of(qpn: u32) -> Cqe {
        Cqe { qpn: Qpn::new(qpn), ..Cqe::default() }
    }

    // clause: SEND-PLACE
    #[test]
    fn polled_entries_are_known_by_number_although_other_queue_pairs_were_reset() {
        // Every way in which six entries belong to three queue pairs, again and again, of which one
        // after the other is reset, while the queue is polled and never runs empty for long.
        for case in 0..3u32.pow(6) * 4 {
            let cq = cq(100);
            let owner = |at: u32| case / 4 / 3u32.pow(at) % 3;
            let mut unpolled: [Unpolled; 3] = Default::default();
            let mut waiting = VecDeque::new();
            for at in 0..24 {
                cq.push_send(cqe_of(owner(at % 6)), &mut unpolled[owner(at % 6) as usize]).unwrap();
                waiting.push_back(owner(at % 6));
                if at % 4 == case % 4 {
                    let reset = (at / 4) % 3;
                    cq.forget(Qpn::new(reset), |_| {});
                    waiting.retain(|&owner| owner != reset);
                    unpolled[reset as usize].clear();
                }
                if at % 5 == 4 {
                    let n = cq.take(2, |cqe| assert_eq!(waiting.pop_front(), Some(cqe.qpn.get())));
                    assert!(n == 2 || waiting.is_empty());
                }
                for (qpn, unpolled) in (0..).zip(&mut unpolled) {
                    unpolled.forget(cq.polled());
                    let left = waiting.iter().filter(|&&owner| owner == qpn).count();
                    assert_eq!(unpolled.len() as usize, left, "case {case}, queue pair {qpn} after {at}");
                }
            }
        }
    }

    // clause: CQ-ARM
    #[test]
    fn an_entry_that_was_announced_does_not_fire_again_when_another_queue_pair_is_reset() {
        let cq = cq(10);
        cq.req_notify(false);
        cq.push(cqe_of(1)).unwrap();
        cq.req_notify(false);
        assert_eq!(cq.push(cqe_of(2)), Ok(true));
        cq.push(cqe_of(1)).unwrap();
        cq.forget(Qpn::new(1), |_| {});
        cq.req_notify(false);
        assert!(!has_event(&cq), "the entry of queue pair 2 was announced");
    }

    #[test]
    fn no_entry_is_lost_between_arming_and_polling() {
        const ENTRIES: u64 = 20_000;
        let cq = cq(ENTRIES as u32);
        let producer = std::thread::spawn({
            let cq = Arc::clone(&cq);
            move || {
                for i in 0..ENTRIES {
                    if cq.push(cqe(i)).unwrap() {
                        cq.notify();
                    }
                }
            }
        });
        let mut seen = drain(&cq);
        while (seen.len() as u64) < ENTRIES {
            cq.req_notify(false);
            seen.extend(drain(&cq));
            if (seen.len() as u64) < ENTRIES {
                // Would wait for ever if an event were lost.
                cq.channel().unwrap().get_event().unwrap();
                seen.extend(drain(&cq));
            }
        }
        producer.join().unwrap();
        assert!(seen.iter().copied().eq(0..ENTRIES));
    }
}
