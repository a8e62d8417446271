//! Completion queues: too small ones, threads that sleep while completions are queued, and
//! completions that outlive their queue pair.

use crate::event::{Event, Object};
use crate::id_map::{IdMap, IdSet};
use crate::program::{Observer, Program, Work, side_of};
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::qp::{AttrMask, QpState};
use std::collections::BTreeSet;
use std::thread::{self, ThreadId};

/// Maximum number of queues in a report.
const NAMED: usize = 8;

/// `cq-too-small`, `cq-overrun`, `sleep-with-completions`.
#[derive(Debug, Default)]
pub(super) struct Completions {
    queues: IdMap<ObjectId, Queue>,
    /// Waiting threads by channel.
    waits: IdMap<ObjectId, (User, Stack)>,
    /// Queues with posted requests; unused queues produce no completions.
    used: IdSet<(ObjectId, Side)>,
}

/// Returns the requests of a side, in words.
const fn requests(side: Side) -> &'static str {
    match side {
        Side::Send => "sends",
        Side::Recv => "receives",
    }
}

/// A completion queue, its events and its user.
#[derive(Debug, Default)]
struct Queue {
    unpolled: usize,
    is_reported: bool,
    armed: Armed,
    /// The thread that armed or polled it last. A thread that does neither does not own the
    /// completions.
    user: Option<User>,
    armed_at: Option<Stack>,
    /// Completions present when it was armed, without an event due; 0 once polled.
    missed: usize,
    is_late_reported: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct User {
    thread: ThreadId,
    /// Thread id of the kernel.
    number: i32,
}

impl User {
    fn current() -> Self {
        thread_local! {
            static NUMBER: i32 = std::fs::read_link("/proc/thread-self")
                .ok()
                .and_then(|path| path.file_name()?.to_str()?.parse().ok())
                .unwrap_or(0);
        }
        Self { thread: thread::current().id(), number: NUMBER.with(|number| *number) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Armed {
    /// Never armed; the program polls at its own times.
    #[default]
    Never,
    /// The event was raised.
    Spent,
    /// The next completion raises the event.
    Any,
    /// Only a solicited completion raises the event, or the queue moderates its events. Completions
    /// may stay queued for long.
    Some,
}

impl Observer for Completions {
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::CqFillLevel { cq, unpolled, capacity } => {
                let queue = self.queues.entry(cq).or_default();
                queue.unpolled = unpolled;
                if unpolled * 5 > capacity * 4 && !queue.is_reported {
                    let producers = producers(cq, &self.used, program);
                    let report = too_small(cq, unpolled, capacity, &producers, program);
                    queue.is_reported = report.is_some();
                    reports.extend(report);
                }
            }
            Event::PostedSend { qp, .. } => drop(self.used.insert((qp, Side::Send))),
            Event::PostedRecv { queue, .. } => drop(self.used.insert((queue, Side::Recv))),
            Event::Polled { cq, .. } => {
                let queue = self.queues.entry(cq).or_default();
                (queue.unpolled, queue.user) = (queue.unpolled.saturating_sub(1), Some(User::current()));
                queue.missed = 0;
            }
            Event::Overrun { cq } => reports.extend(overrun(cq, &producers(cq, &self.used, program), program)),
            Event::Armed { cq, any, missed } => {
                let queue = self.queues.entry(cq).or_default();
                queue.armed = if any { Armed::Any } else { Armed::Some };
                (queue.user, queue.armed_at) = (Some(User::current()), Some(stack.clone()));
                queue.missed = missed;
            }
            Event::CqEventQueued { cq } => {
                self.queues.entry(cq).or_default().armed = Armed::Spent;
                // The waiting thread has its event, even if it has not run yet.
                if let Some(Object::Cq { channel: Some(channel), .. }) =
                    program.live_object(cq).map(|known| known.object)
                {
                    self.waits.remove(&channel);
                }
            }
            Event::Waits { channel } => {
                self.waits.insert(channel, (User::current(), stack.clone()));
                reports.extend(self.check_armed_late(channel, stack, program));
            }
            Event::StillWaits { channel } => {
                let Some((waiter, waits)) = self.waits.get(&channel) else { return };
                let is_it = |user: &User| user.thread == waiter.thread;
                let report = self.sleeps(channel, None, is_it, program);
                reports.extend(report.map(|report| report.at("waits at", waits)));
            }
            Event::SleepsWithCompletions { cq, thread, call } => {
                let Some(Object::Cq { channel: Some(channel), .. }) = program.live_object(cq).map(|known| known.object)
                else {
                    return;
                };
                let report = self.sleeps(channel, Some(cq), |user| user.number == thread, program);
                reports.extend(report.map(|report| report.labelled("sleeps in", format!("{call}, thread {thread}"))));
            }
            Event::Destroyed(id) => {
                self.used.retain(|(queue, _)| *queue != id);
                self.queues.remove(&id);
                self.waits.remove(&id);
            }
            _ => {}
        }
    }
}

impl Completions {
    /// Reports a thread that waits without polling the completions that were queued when it armed.
    /// roxe raises an event for those, as many cards do; the standard does not require it.
    fn check_armed_late(&mut self, channel: ObjectId, waits: &Stack, program: &Program) -> Option<Report> {
        let user = User::current();
        let is_it = |id: &ObjectId, queue: &Queue| {
            queue.missed > 0 && !queue.is_late_reported && queue.user == Some(user) && is_of(*id, channel, program)
        };
        let (cq, queue) = self.queues.iter_mut().find(|(id, queue)| is_it(id, queue))?;
        queue.is_late_reported = true;
        let sentence = format!(
            "A thread waits for an event of the {}, which it armed too late and has not polled since: {} already \
             queued, and a card need not raise an event for that.",
            program.name(*cq),
            counted(queue.missed)
        );
        let report = Report::new(Rule::SleepWithCompletions, sentence).warned().at("waits at", waits);
        Some(report.at("armed at", &queue.armed_at).advice(ADVICE))
    }

    /// Reports a thread that waits although one of its queues (`wanted`, if given) holds
    /// completions.
    fn sleeps(
        &self,
        channel: ObjectId,
        wanted: Option<ObjectId>,
        is_waiter: impl Fn(&User) -> bool,
        program: &Program,
    ) -> Option<Report> {
        let ours = |id| is_of(id, channel, program);
        let mut queues: Vec<_> = self.queues.iter().filter(|(id, _)| ours(**id)).collect();
        queues.sort_by_key(|(id, _)| **id);
        let is_slept_on = |queue: &Queue| {
            let is_armed = matches!(queue.armed, Armed::Spent | Armed::Any);
            queue.unpolled > 0 && queue.user.as_ref().is_some_and(&is_waiter) && is_armed
        };
        let is_it = |id: &ObjectId| wanted.is_none_or(|wanted| wanted == *id);
        let at = queues.iter().position(|(id, queue)| is_it(id) && is_slept_on(queue))?;
        let (cq, queue) = queues.remove(at);
        // The thread may wait for another queue.
        if queues.iter().any(|(_, other)| matches!(other.armed, Armed::Any | Armed::Some)) {
            return None;
        }
        let (unpolled, why) = match queue.armed {
            Armed::Any => (queue.unpolled, "the queue was armed too late, and nothing has completed since"),
            _ => (queue.unpolled, "the queue was not armed again after its last event"),
        };
        let sentence = format!(
            "A thread waits for an event while {} in the {}, and no event is due: {why}.",
            counted(unpolled),
            program.name(*cq)
        );
        Some(Report::new(Rule::SleepWithCompletions, sentence).at("armed at", &queue.armed_at).advice(ADVICE))
    }
}

fn counted(count: usize) -> String {
    if count == 1 { "1 completion is".to_owned() } else { format!("{count} completions are") }
}

const ADVICE: &str =
    "After each event call ibv_req_notify_cq, then ibv_poll_cq until it returns 0, and only then wait again.";

/// Returns true if `cq` reports its events to `channel`.
fn is_of(cq: ObjectId, channel: ObjectId, program: &Program) -> bool {
    let object = program.live_object(cq).map(|known| known.object);
    matches!(object, Some(Object::Cq { channel: Some(of), .. }) if of == channel)
}

/// A queue, its side and the maximum number of requests in it.
type Producer = (ObjectId, Side, u32);

fn producers(cq: ObjectId, used: &IdSet<(ObjectId, Side)>, program: &Program) -> Vec<Producer> {
    let (mut found, mut shared) = (Vec::new(), BTreeSet::new());
    for (id, known) in program.objects() {
        let Object::Qp(pair) = known.object else { continue };
        if pair.send_cq == cq {
            found.push((id, Side::Send, pair.caps.max_send_wr));
        }
        match pair.srq {
            _ if pair.recv_cq != cq => {}
            None => found.push((id, Side::Recv, pair.caps.max_recv_wr)),
            Some(srq) => drop(shared.insert(srq)),
        }
    }
    found.extend(shared.into_iter().filter_map(|srq| match program.live_object(srq)?.object {
        Object::Srq { max_wr, .. } => Some((srq, Side::Recv, max_wr)),
        _ => None,
    }));
    found.retain(|(id, side, _)| used.contains(&(*id, *side)));
    found.sort_unstable();
    found
}

fn too_small(
    cq: ObjectId,
    unpolled: usize,
    capacity: usize,
    producers: &[Producer],
    program: &Program,
) -> Option<Report> {
    let max: u64 = producers.iter().map(|(_, _, max)| u64::from(*max)).sum();
    if max <= capacity as u64 {
        return None;
    }
    let sentence = format!(
        "A completion queue of {capacity} entries holds {unpolled} completions, but the queues that complete there can \
         produce {max}."
    );
    let names = producers.iter().take(NAMED);
    let names: Vec<_> =
        names.map(|(id, side, max)| format!("up to {max} {} of the {}", requests(*side), program.name(*id))).collect();
    Some(
        Report::new(Rule::CqTooSmall, sentence)
            .labelled("attached", names.join("; "))
            .at("created at", &program.live_object(cq)?.created)
            .advice(format!("Create it with cqe = {max} or more, or attach smaller queues to it.")),
    )
}

fn overrun(cq: ObjectId, producers: &[Producer], program: &Program) -> Option<Report> {
    let Object::Cq { capacity, .. } = program.live_object(cq)?.object else { return None };
    let sentence = format!(
        "A completion queue of {capacity} entries was full when another request completed: that completion is lost, \
         and so are all later ones."
    );
    let names = producers.iter().take(NAMED).map(|&(id, side, max)| {
        let unpolled = program.outstanding(side, id).filter(|work| work.completed).count();
        format!("{unpolled} unpolled {} of the {}, which can have {max}", requests(side), program.name(id))
    });
    let report = Report::new(Rule::CqOverrun, sentence).labelled("filled by", names.collect::<Vec<_>>().join("; "));
    let is_unpolled = |(queue, work): &(ObjectId, &Work)| {
        work.completed && program.qp(*queue).is_some_and(|pair| pair.send_cq == cq || pair.recv_cq == cq)
    };
    let unpolled = program.all_outstanding().find(is_unpolled).map(|(_, work)| &work.posted);
    Some(report.at("created at", &program.live_object(cq)?.created).at("unpolled", unpolled).advice(
        "Poll before the queue is full, or create it with cqe of at least the sum of max_send_wr and max_recv_wr of \
         all queue pairs that complete there.",
    ))
}

/// `completion-of-the-dead`. roxe removes completions with their queue pair; other cards leave them
/// queued, with the number of the destroyed queue pair.
#[derive(Debug, Default)]
pub(super) struct Dead {
    /// Unpolled completions of sends and of receives, by queue pair.
    unpolled: IdMap<ObjectId, [u64; 2]>,
    /// Unpolled completions of destroyed queue pairs, by completion queue.
    left: IdMap<ObjectId, Left>,
}

/// Unpolled completions of a destroyed queue pair.
#[derive(Debug)]
struct Left {
    count: u64,
    /// The queue pair.
    name: String,
    created: Stack,
    destroyed: Stack,
}

impl Observer for Dead {
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::Completed { qp, side, .. } => self.unpolled.entry(qp).or_default()[side as usize] += 1,
            Event::Polled { cq, cqe } => {
                // Cards that keep the completions of a destroyed queue pair return those first.
                reports.extend(self.left.remove(&cq).map(|left| left.report(cq, program)));
                let unpolled = program.qp_of(cq, cqe.qpn).and_then(|qp| self.unpolled.get_mut(&qp));
                if let Some(unpolled) = unpolled {
                    let count = &mut unpolled[side_of(cqe) as usize];
                    *count = count.saturating_sub(1);
                }
            }
            // RESET removes the completions on every card.
            Event::Modified { qp, attr, mask } if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset => {
                self.unpolled.remove(&qp);
            }
            Event::Destroyed(id) => {
                self.left.remove(&id);
                self.on_destroyed(id, stack, program);
            }
            _ => {}
        }
    }
}

impl Dead {
    fn on_destroyed(&mut self, qp: ObjectId, stack: &Stack, program: &Program) -> Option<()> {
        let unpolled = self.unpolled.remove(&qp)?;
        let (pair, created) = (program.qp(qp)?, &program.live_object(qp)?.created);
        for (side, cq) in [(Side::Send, pair.send_cq), (Side::Recv, pair.recv_cq)] {
            let count = unpolled[side as usize];
            if count > 0 {
                let (name, created, destroyed) = (program.name(qp), created.clone(), stack.clone());
                self.left.entry(cq).or_insert(Left { count: 0, name, created, destroyed }).count += count;
            }
        }
        Some(())
    }
}

impl Left {
    fn report(self, cq: ObjectId, program: &Program) -> Report {
        let Self { count, name, created, destroyed } = self;
        let what = if count == 1 { "completion" } else { "completions" };
        let sentence = format!(
            "{count} {what} of the {name} had not been polled when it was destroyed, and the program went on polling \
             their completion queue: some cards keep them there, with the number of the destroyed queue pair."
        );
        Report::new(Rule::CompletionOfTheDead, sentence)
            .labelled("polled from", program.name(cq))
            .at("destroyed at", &destroyed)
            .at("created at", &created)
            .advice(
                "Poll all completions of a queue pair before it is destroyed: move it to IBV_QPS_ERR and poll until each \
                 request has completed. Or look up the qp_num of each completion, and ignore destroyed queue pairs.",
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Card, write};
    use roxe_transport::qp::QpAttr;
    use roxe_transport::wr::SendFlags;

    fn card_with_events() -> (Card, ObjectId) {
        let mut card = Card::new();
        let (context, channel, cq) = (card.context, ObjectId::next(), ObjectId::next());
        card.emit(Event::Created(channel, Object::Channel { context }));
        card.emit(Event::Created(cq, Object::Cq { context, channel: Some(channel), capacity: 16 }));
        card.cq = cq;
        (card, channel)
    }

    #[test]
    fn nearly_full_cq_is_reported_if_producers_exceed_it() {
        let mut card = Card::new();
        let cq = card.cq;
        for _ in 0..8 {
            let qp = card.qp();
            card.post(qp, &write(1, SendFlags::SIGNALED));
        }
        assert_eq!(
            card.emit(Event::CqFillLevel { cq, unpolled: 16, capacity: 16 }),
            [],
            "eight send queues of two, and no receive"
        );
        let one_more = card.qp();
        card.post(one_more, &write(1, SendFlags::SIGNALED));
        assert_eq!(card.emit(Event::CqFillLevel { cq, unpolled: 12, capacity: 16 }), []);
        assert_eq!(card.emit(Event::CqFillLevel { cq, unpolled: 13, capacity: 16 }), [Rule::CqTooSmall]);
        assert_eq!(card.emit(Event::CqFillLevel { cq, unpolled: 14, capacity: 16 }), [], "once is enough");
    }

    #[test]
    fn overrun_is_reported() {
        let mut card = Card::new();
        let (qp, cq) = (card.qp(), card.cq);
        card.post(qp, &write(1, SendFlags::SIGNALED));
        card.complete(qp, 1);
        assert_eq!(card.emit(Event::Overrun { cq }), [Rule::CqOverrun]);
    }

    #[test]
    fn sleep_with_completions_is_reported() {
        let (mut card, channel) = card_with_events();
        let cq = card.cq;
        card.emit(Event::Armed { cq, any: true, missed: 0 });
        card.emit(Event::CqFillLevel { cq, unpolled: 1, capacity: 16 });
        card.emit(Event::CqEventQueued { cq });
        card.emit(Event::Waits { channel });
        assert_eq!(card.emit(Event::StillWaits { channel }), [Rule::SleepWithCompletions]);
    }

    #[test]
    fn wait_after_raised_event_is_clean() {
        let (mut card, channel) = card_with_events();
        let cq = card.cq;
        card.emit(Event::Armed { cq, any: true, missed: 0 });
        card.emit(Event::Waits { channel });
        card.emit(Event::CqFillLevel { cq, unpolled: 1, capacity: 16 });
        card.emit(Event::CqEventQueued { cq });
        assert_eq!(card.emit(Event::StillWaits { channel }), []);
    }

    #[test]
    fn wait_after_draining_the_cq_is_clean() {
        let (mut card, channel) = card_with_events();
        let (qp, cq) = (card.qp(), card.cq);
        card.emit(Event::Armed { cq, any: true, missed: 0 });
        card.emit(Event::CqFillLevel { cq, unpolled: 1, capacity: 16 });
        card.poll(qp, 1);
        card.emit(Event::Waits { channel });
        assert_eq!(card.emit(Event::StillWaits { channel }), []);
    }

    #[test]
    fn wait_with_unarmed_or_solicited_cq_is_clean() {
        let (mut card, channel) = card_with_events();
        let cq = card.cq;
        card.emit(Event::CqFillLevel { cq, unpolled: 1, capacity: 16 });
        card.emit(Event::Waits { channel });
        assert_eq!(card.emit(Event::StillWaits { channel }), []);
        card.emit(Event::Armed { cq, any: false, missed: 0 });
        assert_eq!(card.emit(Event::StillWaits { channel }), []);
    }

    #[test]
    fn sleep_in_poll_with_completions_is_reported() {
        let (mut card, _) = card_with_events();
        let (cq, thread) = (card.cq, User::current().number);
        let sleeps = |thread| Event::SleepsWithCompletions { cq, thread, call: "poll" };
        card.emit(Event::Armed { cq, any: true, missed: 0 });
        card.emit(Event::CqFillLevel { cq, unpolled: 1, capacity: 16 });
        card.emit(Event::CqEventQueued { cq });
        assert_eq!(card.emit(sleeps(thread + 1)), [], "another thread polls them");
        assert_eq!(card.emit(sleeps(thread)), [Rule::SleepWithCompletions]);
    }

    #[test]
    fn wait_is_clean_if_completions_before_arming_are_polled() {
        let (mut card, channel) = card_with_events();
        let (qp, cq) = (card.qp(), card.cq);
        card.emit(Event::Armed { cq, any: true, missed: 1 });
        card.poll(qp, 1);
        assert_eq!(card.emit(Event::Waits { channel }), []);
        card.emit(Event::Armed { cq, any: true, missed: 1 });
        assert_eq!(card.emit(Event::Waits { channel }), [Rule::SleepWithCompletions]);
        assert_eq!(card.emit(Event::Waits { channel }), [], "once for each queue");
    }

    /// Creates two queue pairs of one completion queue, with a completion of each.
    fn card_with_two_pairs() -> (Card, [ObjectId; 2]) {
        let mut card = Card::new();
        let pairs = [card.qp(), card.qp()];
        for qp in pairs {
            card.post(qp, &write(1, SendFlags::SIGNALED));
            card.complete(qp, 1);
        }
        (card, pairs)
    }

    #[test]
    fn poll_after_destroyed_qp_with_completions_is_reported_once() {
        let (mut card, [dead, alive]) = card_with_two_pairs();
        assert_eq!(card.emit(Event::Destroyed(dead)), []);
        assert_eq!(card.poll(alive, 1), [Rule::CompletionOfTheDead]);
        card.complete(alive, 2);
        assert_eq!(card.poll(alive, 2), []);
    }

    #[test]
    fn destroyed_qp_is_clean_if_polled_reset_or_never_polled_again() {
        let (mut polled, [dead, alive]) = card_with_two_pairs();
        assert_eq!(polled.poll(dead, 1), []);
        polled.emit(Event::Destroyed(dead));
        assert_eq!(polled.poll(alive, 1), []);

        let (mut reset, [dead, alive]) = card_with_two_pairs();
        let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        reset.emit(Event::Modified { qp: dead, attr: &attr, mask: AttrMask::STATE });
        reset.emit(Event::Destroyed(dead));
        assert_eq!(reset.poll(alive, 1), []);

        let (mut ended, pairs) = card_with_two_pairs();
        for qp in pairs {
            assert_eq!(ended.emit(Event::Destroyed(qp)), []);
        }
        let cq = ended.cq;
        assert_eq!(ended.emit(Event::Destroyed(cq)), []);
    }
}
