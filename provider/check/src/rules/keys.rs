//! Keys that a request may not use, memory that disappears during requests, and rights that no peer
//! used.
//!
//! The mistake follows from the refused attempt and the known objects: a confused key, another
//! domain, a dead key, a bad range or a missing right.

use crate::event::{Event, MrInfo, Object};
use crate::id_map::IdMap;
use crate::program::{DestroyedObject, LiveObject, Observer, Program, Work, describe};
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::{MemError, Side};
use roxe_transport::qp::{AttrMask, DropReason, Service};
use roxe_transport::wr::{Access, Bind, SendOp, Sge};
use std::collections::VecDeque;

/// `key-confused`, `key-of-other-pd`, `key-stale`, `key-out-of-range`, `access-missing`,
/// `memory-gone-in-flight`.
#[derive(Debug, Default)]
pub(super) struct Keys {
    windows: Windows,
    /// Reports about peers' requests, held back until the request is refused. A retransmitted
    /// request may legally find its region deregistered, because the program may have seen its
    /// completion.
    peer_faults: IdMap<ObjectId, Report>,
    /// Requests whose region is being destroyed, by queue and `wr_id`; reported with the region.
    interrupted: IdMap<(ObjectId, u64), ObjectId>,
    /// Reports about regions being destroyed, held back until the regions are destroyed.
    destroying: IdMap<ObjectId, Report>,
}

impl Observer for Keys {
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::LocalFault { qp, side, sges, access, error } => {
                reports.extend(self.local_fault(qp, side, sges, (access, error), program));
            }
            Event::RemoteFault { qp, rkey, va, len, access, error } => {
                let report = self.remote_fault(qp, (rkey.0, va, len), (access, error), program);
                match report {
                    Some(report) => self.peer_faults.insert(qp, report),
                    None => self.peer_faults.remove(&qp),
                };
            }
            Event::Dropped { qp, reason, .. } if !self.peer_faults.is_empty() => {
                let is_refused = matches!(reason, DropReason::RemoteAccess | DropReason::LocalProtection);
                reports.extend(self.peer_faults.remove(&qp).filter(|_| is_refused));
            }
            Event::MissingRight { qp, right } => reports.push(missing_right(qp, right, program)),
            Event::Unmapped { mr } => reports.push(unmapped(mr, stack, program)),
            Event::DestroyBegun(id) => {
                if let Some(report) = self.deregister(id, stack, program) {
                    self.destroying.insert(id, report);
                }
            }
            Event::DestroyRefused(id, _) => {
                self.destroying.remove(&id);
                self.interrupted.retain(|_, region| *region != id);
            }
            Event::Destroyed(id) => {
                reports.extend(self.destroying.remove(&id));
                self.peer_faults.remove(&id);
                self.interrupted.retain(|(queue, _), _| *queue != id);
            }
            _ => {}
        }
        self.windows.observe(event, stack, program);
    }
}

impl Keys {
    fn local_fault(
        &self,
        qp: ObjectId,
        side: Side,
        sges: &[Sge],
        (access, error): (Access, MemError),
        program: &Program,
    ) -> Option<Report> {
        let pair = program.qp(qp).filter(|pair| pair.service != Service::XrcTgt)?;
        let queue = program.queue_of(qp, side);
        let work = program.outstanding(side, queue).find(|work| !work.completed && work.sges == sges);
        if work.is_some_and(|work| self.interrupted.contains_key(&(queue, work.wr_id))) {
            return None;
        }
        let pd = match program.live_object(queue).map(|known| known.object) {
            Some(Object::Srq { pd, .. }) => pd,
            _ => pair.pd,
        };
        sges.iter().filter(|sge| sge.length > 0).find_map(|sge| {
            let (key, va, len) = (sge.lkey.0, sge.addr, sge.length.into());
            let attempt = Attempt { by: KeyUser::List, qp, pd, key, va, len, right: access, error, work };
            explain(&attempt, &self.windows, program)
        })
    }

    fn remote_fault(
        &self,
        qp: ObjectId,
        (key, va, len): (u32, u64, u64),
        (right, error): (Access, MemError),
        program: &Program,
    ) -> Option<Report> {
        let pair = program.qp(qp).filter(|pair| pair.service != Service::XrcTgt)?;
        let is_match = |work: &&Work| work.op.as_ref().and_then(remote) == Some((va, key));
        let work = program.all_outstanding().map(|(_, work)| work).find(is_match);
        let attempt = Attempt { by: KeyUser::Peer, qp, pd: pair.pd, key, va, len, right, error, work };
        explain(&attempt, &self.windows, program)
    }

    /// Builds the report for a region that is destroyed while requests use it. Unsignaled sends do
    /// not count: the program may know by other means that they are done.
    fn deregister(&mut self, mr: ObjectId, stack: &Stack, program: &Program) -> Option<Report> {
        let Object::Mr(memory) = program.live_object(mr)?.object else { return None };
        let names = |work: &Work| work.sges.iter().any(|sge| sge.length > 0 && sge.lkey.0 == memory.lkey);
        let is_open = |work: &Work| !work.completed && work.signaled && names(work);
        let open: Vec<_> = program.all_outstanding().filter(|(_, work)| is_open(work)).collect();
        let open: Vec<_> = open.into_iter().filter(|(queue, _)| is_served(*queue, program)).collect();
        let (queue, first) = *open.first()?;
        self.interrupted.extend(open.iter().map(|(queue, work)| ((*queue, work.wr_id), mr)));
        let (count, what) = (open.len(), first.operation());
        let sentence = format!("The {} was deregistered while {count} outstanding requests used it.", program.name(mr));
        Some(
            Report::new(Rule::MemoryGoneInFlight, sentence)
                .labelled("queue", program.name(queue))
                .labelled("first request", format!("{what}, wr_id {}", first.wr_id))
                .at("deregistered", stack)
                .at("posted at", &first.posted)
                .advice("Poll the completions of all requests that use a region, or destroy their queue pair, first."),
        )
    }
}

/// Reports a region whose memory was unmapped first. A card keeps the pinned pages, and the program
/// never sees data that peers write there.
fn unmapped(mr: ObjectId, stack: &Stack, program: &Program) -> Report {
    let sentence = format!(
        "The memory of the {} was unmapped while it was registered: a card keeps the old pages, even if other memory \
         is mapped there now.",
        program.name(mr)
    );
    let report = Report::new(Rule::MemoryGoneInFlight, sentence).warned().at("deregistered", stack);
    let report = report.at("registered at", program.live_object(mr).map(|known| &known.created));
    report.advice("Deregister the region before its memory is unmapped or freed.")
}

fn missing_right(qp: ObjectId, right: Access, program: &Program) -> Report {
    let flags = rights(right);
    let sentence = format!("A peer's request needs {flags} in qp_access_flags of the queue pair, which lacks it.");
    let report = Report::new(Rule::AccessMissing, sentence).labelled("queue pair", program.name(qp));
    let set = program.attributes(qp).map_or_else(Stack::unknown, |own| own.call(AttrMask::ACCESS_FLAGS));
    report.at("flags set at", &set).advice(format!("Call ibv_modify_qp with {flags} in qp_access_flags."))
}

/// Returns true if messages can reach the requests of a queue; a shared one needs a queue pair.
fn is_served(queue: ObjectId, program: &Program) -> bool {
    let serves = |object: &Object| matches!(object, Object::Qp(pair) if pair.srq == Some(queue));
    program.qp(queue).is_some() || program.objects().any(|(_, known)| serves(&known.object))
}

/// The party that uses a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyUser {
    /// A scatter/gather list of the program.
    List,
    Peer,
}

/// An access that was refused.
#[derive(Clone, Copy, Debug)]
struct Attempt<'a> {
    by: KeyUser,
    /// The queue pair that executes the request.
    qp: ObjectId,
    /// The domain that the key must belong to.
    pd: ObjectId,
    key: u32,
    va: u64,
    len: u64,
    right: Access,
    error: MemError,
    work: Option<&'a Work>,
}

/// The memory of a valid key.
struct Target<'a> {
    name: String,
    pd: Option<ObjectId>,
    base: u64,
    length: u64,
    access: Access,
    origin: (&'static str, &'a Stack),
}

/// Finds the mistake, if it is certain.
fn explain(attempt: &Attempt<'_>, windows: &Windows, program: &Program) -> Option<Report> {
    let context = program.qp(attempt.qp)?.context;
    let key_of = |memory: &MrInfo| if attempt.by == KeyUser::List { memory.lkey } else { memory.rkey };
    let other_of = |memory: &MrInfo| if attempt.by == KeyUser::List { memory.rkey } else { memory.lkey };
    let region = program.regions().find(|(_, memory, _)| memory.context == context && key_of(memory) == attempt.key);
    if let Some((id, memory, registered)) = region {
        let MrInfo { pd, base, length, access, .. } = *memory;
        let name = format!("the {}", program.name(id));
        let origin = ("registered at", registered);
        return attempt.fault(&Target { name, pd: Some(pd), base, length, access, origin }, program);
    }
    if let Some((id, _, registered)) = program.regions().find(|(_, memory, _)| other_of(memory) == attempt.key) {
        return Some(attempt.confused(&format!("that of the {}", program.name(id)), Some(registered), program));
    }
    if let Some(binding) = windows.find(context, attempt.key) {
        if let Some((how, at)) = &binding.ended {
            let name = format!("a memory window that was {how}");
            return Some(attempt.stale(&name, ("bound at", &binding.posted), ("ended at", at), program));
        }
        let name = format!("the memory window of {} bytes at {:#x}", binding.bind.length, binding.bind.addr);
        let origin = ("bound at", &binding.posted);
        if attempt.by == KeyUser::List {
            return Some(attempt.confused(&format!("that of {name}"), Some(&binding.posted), program));
        }
        let base = if binding.bind.access.contains(Access::ZERO_BASED) { 0 } else { binding.bind.addr };
        let (length, access) = (binding.bind.length, binding.bind.access);
        let pd = program.objects().find_map(|(_, known)| match known.object {
            Object::Mw { pd, key } if key >> 8 == attempt.key >> 8 => Some(pd),
            _ => None,
        });
        return attempt.fault(&Target { name, pd, base, length, access, origin }, program);
    }
    let had_key = |gone: &&DestroyedObject| match &gone.object {
        Object::Mr(memory) => [memory.lkey, memory.rkey].contains(&attempt.key),
        _ => false,
    };
    if let Some(gone) = program.destroyed().find(had_key) {
        let name = format!("the {} that was deregistered", describe(&gone.object));
        let (origin, ended) = (("registered at", &gone.created), ("deregistered", &gone.destroyed));
        return Some(attempt.stale(&name, origin, ended, program));
    }
    // The list uses a key that other requests use as a peer's rkey.
    let names = |work: &Work| work.op.as_ref().and_then(remote).is_some_and(|(_, key)| key == attempt.key);
    let is_peers = attempt.by == KeyUser::List && program.all_outstanding().any(|(_, work)| names(work));
    is_peers.then(|| attempt.confused("the one that requests use for a peer's region", None, program))
}

impl Attempt<'_> {
    /// Reports a valid key whose target does not allow the access.
    fn fault(&self, target: &Target<'_>, program: &Program) -> Option<Report> {
        match self.error {
            MemError::BadKey => None,
            MemError::WrongDomain if target.pd.is_some_and(|pd| pd != self.pd) => Some(self.other_pd(target, program)),
            MemError::WrongDomain => None,
            MemError::Access if !target.access.contains(self.right) => Some(self.missing(target, program)),
            MemError::Access => None,
            MemError::Range => self.out_of_range(target, program),
            MemError::Fault => Some(self.unmapped(target, program)),
        }
    }

    fn confused(&self, whose: &str, registered: Option<&Stack>, program: &Program) -> Report {
        let (is, used, right) = match self.by {
            KeyUser::List => ("a remote key", "the lkey of a list", "Use the lkey of the region in the sg_list"),
            KeyUser::Peer => ("a local key", "an rkey by a peer", "Give the peer the rkey of the region"),
        };
        let sentence = format!("The key {:#x} is {is}, {whose}, and was used as {used}.", self.key);
        let report = self.report(Rule::KeyConfused, sentence, program).at("registered at", registered);
        report.advice(format!("{right}; the two keys of a region differ on most cards."))
    }

    fn stale(
        &self,
        name: &str,
        origin: (&'static str, &Stack),
        ended: (&'static str, &Stack),
        program: &Program,
    ) -> Report {
        let sentence = format!("{} uses the key {:#x} of {name}.", self.user(), self.key);
        self.report(Rule::KeyStale, sentence, program).at(ended.0, ended.1).at(origin.0, origin.1).advice(
            "Let every request that uses the key complete, at both ends, before its memory is released; then drop the key.",
        )
    }

    fn other_pd(&self, target: &Target<'_>, program: &Program) -> Report {
        let created = |pd| program.live_object(pd).map_or_else(Stack::unknown, |known| known.created.clone());
        let sentence = format!(
            "{} uses the key {:#x} of {}, which is in another protection domain than the queue.",
            self.user(),
            self.key,
            target.name
        );
        self.report(Rule::KeyOfOtherPd, sentence, program)
            .at(target.origin.0, target.origin.1)
            .at("its domain", &target.pd.map_or_else(Stack::unknown, created))
            .at("queue's domain", &created(self.pd))
            .advice("Register the memory in the protection domain of the queue that uses it.")
    }

    fn missing(&self, target: &Target<'_>, program: &Program) -> Report {
        let flags = rights(self.right & !target.access);
        let sentence = format!("{} needs {flags}, which {} does not grant.", self.user(), target.name);
        let report = self.report(Rule::AccessMissing, sentence, program).at(target.origin.0, target.origin.1);
        let call = if target.origin.0 == "bound at" { "Bind the window" } else { "Register the region" };
        report.advice(format!("{call} with {flags}."))
    }

    fn out_of_range(&self, target: &Target<'_>, program: &Program) -> Option<Report> {
        let (begin, end) = (target.base, target.base.saturating_add(target.length));
        let last = self.va.saturating_add(self.len);
        let by = match (self.va < begin, last > end) {
            (true, _) => format!("begin {} bytes before", begin - self.va),
            (_, true) => format!("extend {} bytes beyond", last - end),
            (false, false) => return None,
        };
        let sentence = format!("The {} bytes at {:#x} of {} {by} {}.", self.len, self.va, self.whose(), target.name);
        let report = self.report(Rule::KeyOutOfRange, sentence, program).at(target.origin.0, target.origin.1);
        let overlaps = |memory: &MrInfo| memory.base < last && self.va < memory.base.saturating_add(memory.length);
        let is_match = |memory: &MrInfo| (memory.base, memory.length) == (target.base, target.length);
        let neighbour = program.regions().find(|(_, memory, _)| overlaps(memory) && !is_match(memory));
        let report = match neighbour {
            Some((id, ..)) => report.labelled("would reach", program.name(id)),
            None => report,
        };
        Some(report.advice("Keep address and length inside the memory of the key, or use the key of the other region."))
    }

    fn unmapped(&self, target: &Target<'_>, program: &Program) -> Report {
        let sentence = format!("The memory of {} is no longer mapped, but {} uses it.", target.name, self.whose());
        self.report(Rule::MemoryGoneInFlight, sentence, program)
            .at(target.origin.0, target.origin.1)
            .advice("Unmap memory only once its region is deregistered and all requests that use it have completed.")
    }

    fn report(&self, rule: Rule, sentence: String, program: &Program) -> Report {
        let report = Report::new(rule, sentence).labelled("queue pair", program.name(self.qp));
        let report = report.labelled("bytes", format!("{} at {:#x}, key {:#x}", self.len, self.va, self.key));
        let Some(work) = self.work else { return report };
        report.labelled("request", format!("{}, wr_id {}", work.operation(), work.wr_id)).at("posted at", &work.posted)
    }

    /// Returns the user of the key, for the beginning of a sentence.
    fn user(&self) -> String {
        match (self.by, self.work) {
            (KeyUser::List, Some(work)) => format!("The list of the {}", work.operation()),
            (KeyUser::List, None) => "A list".to_owned(),
            (KeyUser::Peer, Some(work)) => format!("The {} of the peer", work.operation()),
            (KeyUser::Peer, None) => "A request of the peer".to_owned(),
        }
    }

    fn whose(&self) -> &'static str {
        if self.by == KeyUser::List { "a list" } else { "a peer's request" }
    }
}

/// Returns the remote address and key of an operation.
pub(super) fn remote(op: &SendOp) -> Option<(u64, u32)> {
    use SendOp::{AtomicWrite, CompareSwap, FetchAdd, Read, Write, WriteImm};
    match *op {
        Write { remote_addr, rkey }
        | WriteImm { remote_addr, rkey, .. }
        | Read { remote_addr, rkey }
        | CompareSwap { remote_addr, rkey, .. }
        | FetchAdd { remote_addr, rkey, .. }
        | AtomicWrite { remote_addr, rkey } => Some((remote_addr, rkey.0)),
        _ => None,
    }
}

/// Rights as programs write them.
fn rights(access: Access) -> String {
    access.names(" | ")
}

/// Maximum number of former keys kept for a window.
const MAX_BINDINGS: usize = 16;

/// A binding of a memory window.
#[derive(Clone, Debug)]
struct Binding {
    bind: Bind,
    posted: Stack,
    /// The act that ended the binding, and its call.
    ended: Option<(&'static str, Stack)>,
}

/// All windows, by context and by the constant upper bits of their keys.
#[derive(Debug, Default)]
struct Windows(IdMap<(ObjectId, u32), VecDeque<Binding>>);

impl Windows {
    /// Records bindings and their ends.
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program) {
        match *event {
            Event::Bound { qp, bind } => {
                let Some(pair) = program.qp(qp) else { return };
                let posted = posted(program, |op| matches!(op, SendOp::BindWindow { rkey, .. } if *rkey == bind.rkey));
                let bindings = self.0.entry((pair.context, bind.rkey.0 >> 8)).or_default();
                end_last(bindings, if bind.length == 0 { "closed" } else { "bound anew" }, &posted);
                if bind.length > 0 {
                    if bindings.len() == MAX_BINDINGS {
                        bindings.pop_front();
                    }
                    bindings.push_back(Binding { bind: *bind, posted, ended: None });
                }
            }
            Event::Invalidated { qp, rkey } => {
                let Some(pair) = program.qp(qp) else { return };
                let invalidates = |op: &SendOp| matches!(op, SendOp::LocalInvalidate(key) | SendOp::SendInvalidate(key) if *key == rkey);
                let posted = posted(program, invalidates);
                if let Some(bindings) = self.0.get_mut(&(pair.context, rkey.0 >> 8)) {
                    end_last(bindings, "invalidated", &posted);
                }
            }
            Event::Destroyed(id) => {
                let Some(Object::Mw { pd, key }) = program.live_object(id).map(|known| known.object) else { return };
                let Some(Object::Pd { context }) = program.live_object(pd).map(|known| known.object) else { return };
                if let Some(bindings) = self.0.get_mut(&(context, key >> 8)) {
                    end_last(bindings, "deallocated", stack);
                }
            }
            _ => {}
        }
    }

    /// Returns the latest binding of the key.
    fn find(&self, context: ObjectId, key: u32) -> Option<&Binding> {
        self.0.get(&(context, key >> 8))?.iter().rev().find(|binding| binding.bind.rkey.0 == key)
    }
}

fn end_last(bindings: &mut VecDeque<Binding>, how: &'static str, stack: &Stack) {
    if let Some(last) = bindings.back_mut() {
        last.ended.get_or_insert_with(|| (how, stack.clone()));
    }
}

/// Returns the call that posted the request selected by `is_match`.
fn posted(program: &Program, is_match: impl Fn(&SendOp) -> bool) -> Stack {
    let is_match = |work: &&Work| work.op.as_ref().is_some_and(&is_match);
    let work = program.all_outstanding().map(|(_, work)| work).find(is_match);
    work.map_or_else(Stack::unknown, |work| work.posted.clone())
}

/// `access-unused`.
#[derive(Debug, Default)]
pub(super) struct Rights {
    /// Used rights by rkey.
    used: IdMap<u32, Access>,
}

impl Observer for Rights {
    fn observe(&mut self, event: &Event<'_>, _: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::FirstUse { rkey, right } => *self.used.entry(rkey.0).or_default() |= right,
            Event::Destroyed(id) => {
                if let Some(known) = program.live_object(id)
                    && let Object::Mr(memory) = known.object
                {
                    reports.extend(self.unused(known, "it was deregistered"));
                    self.used.remove(&memory.rkey);
                }
            }
            Event::Exit => {
                reports.extend(program.objects().filter_map(|(_, known)| self.unused(known, "the program ended")));
            }
            _ => {}
        }
    }
}

impl Rights {
    fn unused(&self, known: &LiveObject, until: &str) -> Option<Report> {
        let Object::Mr(memory) = known.object else { return None };
        let used = self.used.get(&memory.rkey).copied().unwrap_or_default();
        let unused = memory.access & Access::OF_PEERS & !used;
        if unused.is_empty() || known.of_library {
            return None;
        }
        let (flags, name) = (rights(unused), describe(&known.object));
        let sentence = format!("The {name} grants {flags}, which no peer had used when {until}.");
        Some(Report::new(Rule::AccessUnused, sentence).at("registered at", &known.created).advice(format!(
            "Register it without {flags} unless another run needs it: any peer that learns or guesses the rkey can use \
             the right."
        )))
    }
}

#[cfg(test)]
mod tests;
