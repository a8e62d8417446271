//! The life of objects: destruction in the wrong order or with outstanding requests, use after
//! destruction, forks, and leaks.

use crate::event::{Event, Object};
use crate::id_map::IdMap;
use crate::program::{LiveObject, Observer, Program, Work, describe};
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use roxe_base::config::variable;
use roxe_base::error::Error;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

/// Maximum number of users of an object in a report.
const MAX_NAMED: usize = 8;
/// Maximum number of remembered invalid handles.
const MAX_HANDLES: usize = 4096;

/// `destroy-order`, `destroy-with-outstanding`, `fork-in-flight`, `use-after-destroy`, `leak`.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Invalid handles: the object, and the call that destroyed it.
    handles: IdMap<usize, (String, Stack)>,
    /// The object destroyed last and the thread that destroyed it; the event with the handle of the
    /// object follows.
    last: Option<(ThreadId, Object)>,
    /// Invalid handles, oldest first.
    ended: VecDeque<usize>,
}

impl Observer for Life {
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::Destroyed(id) => {
                self.last = program.live_object(id).map(|known| (thread::current().id(), known.object));
                // In ERR the card has completed all requests.
                if !program.has_set_error(id) {
                    reports.extend(with_outstanding(id, stack, program));
                }
            }
            Event::DestroyRefused(id, error) => reports.extend(refused(id, error, stack, program)),
            Event::HandleGone { handle, kind } => self.note_end(handle, kind, stack),
            Event::HandleUsed { handle } => reports.extend(self.used(handle, stack)),
            Event::Fork if !has_fork_support() => reports.extend(in_flight(stack, program)),
            Event::Exit => reports.extend(leak(program)),
            _ => {}
        }
    }
}

impl Life {
    fn note_end(&mut self, handle: usize, structure: &'static str, stack: &Stack) {
        let structure = structure.rsplit("::").next().unwrap_or(structure);
        let last = self.last.take().filter(|(by, object)| *by == thread::current().id() && kind(object).1 == structure);
        let name = match last {
            Some((_, object)) => format!("{} (struct {structure} at {handle:#x})", describe(&object)),
            None => format!("struct {structure} at {handle:#x}"),
        };
        self.handles.insert(handle, (name, stack.clone()));
        self.ended.push_back(handle);
        if self.handles.len() > MAX_HANDLES
            && let Some(oldest) = self.ended.pop_front()
        {
            self.handles.remove(&oldest);
        }
    }

    fn used(&self, handle: usize, stack: &Stack) -> Option<Report> {
        let (name, destroyed) = self.handles.get(&handle)?;
        let sentence = format!("The {name} was used after it was destroyed.");
        Some(
            Report::new(Rule::UseAfterDestroy, sentence).at("used at", stack).at("destroyed at", destroyed).advice(
                "Set the pointer to a destroyed object to NULL, and stop the threads that use an object first.",
            ),
        )
    }
}

/// Returns one report of all objects left.
fn leak(program: &Program) -> Option<Report> {
    let mut kinds: BTreeMap<&'static str, Vec<(ObjectId, &LiveObject)>> = BTreeMap::new();
    for (id, known) in program.objects().filter(|(_, known)| !known.of_library) {
        kinds.entry(kind(&known.object).0).or_default().push((id, known));
    }
    let count: usize = kinds.values().map(Vec::len).sum();
    if count == 0 {
        return None;
    }
    let plural = if count == 1 { "object was" } else { "objects were" };
    let mut report = Report::new(Rule::Leak, format!("{count} {plural} alive when the program ended."));
    for (kind, objects) in &mut kinds {
        objects.sort_by_key(|(id, _)| *id);
        let (_, first) = objects.first()?;
        let rest = if objects.len() == 1 { String::new() } else { format!(" and {} more", objects.len() - 1) };
        report = report.labelled(kind, format!("{}{rest}", describe(&first.object)));
    }
    for (kind, objects) in &kinds {
        report = report.at(kind, &objects.first()?.1.created);
    }
    Some(report.advice(
        "Destroy every object, users first: queue pairs, then completion queues and shared receive queues, then \
         channels, regions and domains, then the device context.",
    ))
}

static FORK_SUPPORT: AtomicBool = AtomicBool::new(false);

/// Records that the program has prepared for forks with outstanding requests, or asked whether it
/// must.
pub fn note_fork_support() {
    FORK_SUPPORT.store(true, Ordering::Relaxed);
}

/// Returns true if the program called for fork support or set it in the environment (`man
/// ibv_fork_init`).
fn has_fork_support() -> bool {
    let is_set = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"].iter().any(|name| variable(name).is_some());
    FORK_SUPPORT.load(Ordering::Relaxed) || is_set
}

/// Reports a fork that shares pages which the card is using.
fn in_flight(stack: &Stack, program: &Program) -> Option<Report> {
    let uses_memory = |work: &&Work| !work.completed && work.sges.iter().any(|sge| sge.length > 0);
    let open: Vec<_> = program.all_outstanding().map(|(_, work)| work).filter(uses_memory).collect();
    let (first, count) = (open.iter().min_by_key(|work| work.serial)?, open.len());
    let what = if count == 1 { "request was" } else { "requests were" };
    let sentence = format!(
        "The program forked while {count} {what} outstanding, and has not called ibv_fork_init: where the kernel does \
         not copy such pages for the child at once, the first write to a page detaches it from the card."
    );
    Some(
        Report::new(Rule::ForkInFlight, sentence)
            .labelled("oldest", format!("{}, wr_id {}", first.operation(), first.wr_id))
            .at("forked at", stack)
            .at("posted at", &first.posted)
            .advice(
                "Call ibv_fork_init before any other verb, or check ibv_is_fork_initialized; or fork before requests \
                 are posted. To start another program, use posix_spawn.",
            ),
    )
}

/// Returns the label of a kind of objects, and the structure of its handle.
const fn kind(object: &Object) -> (&'static str, &'static str) {
    match object {
        Object::Context => ("context", "ibv_context"),
        Object::Pd { .. } => ("domain", "ibv_pd"),
        Object::Channel { .. } => ("channel", "ibv_comp_channel"),
        Object::Cq { .. } => ("cq", "ibv_cq"),
        Object::Srq { .. } => ("srq", "ibv_srq"),
        Object::Qp(_) => ("queue pair", "ibv_qp"),
        Object::Mr(_) => ("region", "ibv_mr"),
        Object::Mw { .. } => ("window", "ibv_mw"),
        Object::Ah { .. } => ("address handle", "ibv_ah"),
    }
}

/// Returns true if `object` directly uses the object with the id `used`.
fn uses(object: &Object, used: ObjectId) -> bool {
    match object {
        Object::Context => false,
        Object::Pd { context } | Object::Channel { context } => *context == used,
        Object::Cq { context, channel, .. } => *context == used || *channel == Some(used),
        Object::Srq { pd, .. } | Object::Mw { pd, .. } | Object::Ah { pd } => *pd == used,
        Object::Qp(pair) => {
            [pair.context, pair.pd, pair.send_cq, pair.recv_cq].contains(&used) || pair.srq == Some(used)
        }
        Object::Mr(memory) => memory.context == used || memory.pd == used,
    }
}

/// Reports a destroy call that was refused because of users.
fn refused(id: ObjectId, error: &Error, stack: &Stack, program: &Program) -> Option<Report> {
    let known = program.live_object(id)?;
    let mut users: Vec<_> = program.objects().filter(|(_, user)| uses(&user.object, id)).collect();
    users.sort_by_key(|(user, _)| *user);
    let sentence = format!("The {} was to be destroyed, but other objects use it: {error}.", describe(&known.object));
    let mut report = Report::new(Rule::DestroyOrder, sentence);
    let names: Vec<_> = users.iter().take(MAX_NAMED).map(|(_, user)| describe(&user.object)).collect();
    if !names.is_empty() {
        report = report.labelled("used by", names.join("; "));
    }
    report = report.at("destroyed at", stack).at("created at", &known.created);
    report = report.at("user created", users.first().map(|(_, first)| &first.created));
    Some(report.advice("Destroy its users first: queue pairs before their queues, everything before its domain."))
}

/// Reports a queue pair that was destroyed with unfinished sends, whose outcome stays unknown.
/// Unused receives do no harm.
fn with_outstanding(id: ObjectId, stack: &Stack, program: &Program) -> Option<Report> {
    program.qp(id)?;
    let open: Vec<_> = program.outstanding(Side::Send, id).filter(|work| work.signaled && !work.completed).collect();
    let (first, count) = (open.first()?, open.len());
    let what = if count == 1 { "request was" } else { "requests were" };
    let sentence = format!(
        "The {} was destroyed while {count} send {what} outstanding: the peer may have received any part of the data.",
        program.name(id)
    );
    Some(
        Report::new(Rule::DestroyWithOutstanding, sentence)
            .labelled("oldest", format!("{}, wr_id {}", first.operation(), first.wr_id))
            .at("destroyed at", stack)
            .at("posted at", &first.posted)
            .advice(
                "Poll the completions of all requests first. To give up requests that do not complete, move the queue \
                 pair to IBV_QPS_ERR and poll until each request has its IBV_WC_WR_FLUSH_ERR.",
            ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Card, write};
    use roxe_transport::qp::{AttrMask, QpAttr, QpState};
    use roxe_transport::wr::SendFlags;

    #[test]
    fn live_objects_at_exit_leak_unless_of_a_library() {
        let mut card = Card::new();
        let left = [card.context, card.pd, card.cq];
        assert_eq!(card.emit(Event::Exit), [Rule::Leak]);
        for id in left {
            card.emit(Event::OwnedByLibrary(id));
        }
        assert_eq!(card.emit(Event::Exit), []);
        let qp = card.qp();
        assert_eq!(card.emit(Event::Exit), [Rule::Leak]);
        card.emit(Event::Destroyed(qp));
        assert_eq!(card.emit(Event::Exit), []);
    }

    #[test]
    fn destroying_an_object_in_use_is_reported() {
        let mut card = Card::new();
        card.qp();
        let error = Error::busy("protection domain", "queue pairs", 1);
        assert_eq!(card.emit(Event::DestroyRefused(card.pd, &error)), [Rule::DestroyOrder]);
    }

    #[test]
    fn qp_destroyed_with_outstanding_sends_is_reported() {
        let mut card = Card::new();
        let [lost, done, failed] = [card.qp(), card.qp(), card.qp()];
        for qp in [lost, done, failed] {
            card.post(qp, &write(1, SendFlags::SIGNALED));
        }
        card.complete(done, 1);
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        card.emit(Event::Modified { qp: failed, attr: &attr, mask: AttrMask::STATE });
        assert_eq!(card.emit(Event::Destroyed(lost)), [Rule::DestroyWithOutstanding]);
        assert_eq!(card.emit(Event::Destroyed(done)), []);
        assert_eq!(card.emit(Event::Destroyed(failed)), []);
    }

    #[test]
    fn fork_with_outstanding_memory_is_reported() {
        let mut card = Card::new();
        let qp = card.qp();
        assert_eq!(card.emit(Event::Fork), []);
        card.post(qp, &write(1, SendFlags::SIGNALED));
        assert_eq!(card.emit(Event::Fork), [], "the request has no list");
        card.receive(qp, 8);
        assert_eq!(card.emit(Event::Fork), [Rule::ForkInFlight]);
    }

    #[test]
    fn handle_used_after_destroy_is_reported() {
        let mut card = Card::new();
        assert_eq!(card.emit(Event::HandleUsed { handle: 0x10 }), []);
        card.emit(Event::HandleGone { handle: 0x10, kind: "abi::ibv_qp" });
        assert_eq!(card.emit(Event::HandleUsed { handle: 0x10 }), [Rule::UseAfterDestroy]);
    }
}
