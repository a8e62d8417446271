//! What is wrong with a key that was refused, as a report: confused, of another domain, dead, too
//! short, or without the right.
//!
//! Functions of an attempt and of what the program has. Touches nothing.

use super::windows::Windows;
use crate::event::{Made, Memory};
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use crate::world::{Gone, Work, World, describe};
use roxe_base::uses::ObjectId;
use roxe_transport::cx::MemError;
use roxe_transport::wr::{Access, SendOp};

/// Who names a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// A list of the program.
    List,
    /// A peer.
    Peer,
}

/// An access that was refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt<'a> {
    pub(super) by: By,
    /// The queue pair that executes the request.
    pub(super) qp: ObjectId,
    /// The domain that the key has to be of.
    pub(super) pd: ObjectId,
    pub(super) key: u32,
    pub(super) va: u64,
    pub(super) len: u64,
    pub(super) right: Access,
    pub(super) error: MemError,
    /// The request, if it is one of this process.
    pub(super) work: Option<&'a Work>,
}

/// What a good key opens.
struct Target<'a> {
    name: String,
    pd: Option<ObjectId>,
    base: u64,
    length: u64,
    access: Access,
    made: (&'static str, &'a Stack),
}

/// What is wrong, if it can be told for sure.
pub(super) fn explain(attempt: &Attempt<'_>, windows: &Windows, world: &World) -> Option<Report> {
    let context = world.qp(attempt.qp)?.context;
    let key_of = |memory: &Memory| if attempt.by == By::List { memory.lkey } else { memory.rkey };
    let other_of = |memory: &Memory| if attempt.by == By::List { memory.rkey } else { memory.lkey };
    let region = world.regions().find(|(_, memory, _)| memory.context == context && key_of(memory) == attempt.key);
    if let Some((id, memory, registered)) = region {
        let Memory { pd, base, length, access, .. } = *memory;
        let name = format!("the {}", world.name(id));
        let made = ("registered at", registered);
        return attempt.fault(&Target { name, pd: Some(pd), base, length, access, made }, world);
    }
    if let Some((id, _, registered)) = world.regions().find(|(_, memory, _)| other_of(memory) == attempt.key) {
        return Some(attempt.confused(&format!("that of the {}", world.name(id)), Some(registered), world));
    }
    if let Some(binding) = windows.find(context, attempt.key) {
        if let Some((how, at)) = &binding.ended {
            let name = format!("a memory window that was {how}");
            return Some(attempt.stale(&name, ("bound at", &binding.posted), ("ended at", at), world));
        }
        let name = format!("the memory window of {} bytes at {:#x}", binding.bind.length, binding.bind.addr);
        let made = ("bound at", &binding.posted);
        if attempt.by == By::List {
            return Some(attempt.confused(&format!("that of {name}"), Some(&binding.posted), world));
        }
        let base = if binding.bind.access.contains(Access::ZERO_BASED) { 0 } else { binding.bind.addr };
        let (length, access) = (binding.bind.length, binding.bind.access);
        let pd = world.objects().find_map(|(_, known)| match known.made {
            Made::Mw { pd, key } if key >> 8 == attempt.key >> 8 => Some(pd),
            _ => None,
        });
        return attempt.fault(&Target { name, pd, base, length, access, made }, world);
    }
    let had =
        |gone: &&Gone| matches!(&gone.made, Made::Mr(memory) if [memory.lkey, memory.rkey].contains(&attempt.key));
    if let Some(gone) = world.gone().find(had) {
        let name = format!("the {} that was deregistered", describe(&gone.made));
        let (made, ended) = (("registered at", &gone.created), ("deregistered", &gone.destroyed));
        return Some(attempt.stale(&name, made, ended, world));
    }
    // A list with the key that a request of this process names as that of a peer's memory.
    let names = |work: &Work| work.op.as_ref().and_then(remote).is_some_and(|(_, key)| key == attempt.key);
    let is_peers = attempt.by == By::List && world.all_outstanding().any(|(_, work)| names(work));
    is_peers.then(|| attempt.confused("one that requests name as that of a peer's region", None, world))
}

impl Attempt<'_> {
    /// The key is good; what it opens does not suffice.
    fn fault(&self, target: &Target<'_>, world: &World) -> Option<Report> {
        match self.error {
            MemError::BadKey => None,
            MemError::WrongDomain if target.pd.is_some_and(|pd| pd != self.pd) => Some(self.other_pd(target, world)),
            MemError::WrongDomain => None,
            MemError::Access if !target.access.contains(self.right) => Some(self.missing(target, world)),
            MemError::Access => None,
            MemError::Range => self.out_of_range(target, world),
            MemError::Fault => Some(self.unmapped(target, world)),
        }
    }

    fn confused(&self, whose: &str, registered: Option<&Stack>, world: &World) -> Report {
        let (is, used, right) = match self.by {
            By::List => ("a remote key", "the lkey of a list", "lkey of the region in the sg_list"),
            By::Peer => ("a local key", "an rkey by a peer", "rkey of the region to the peer"),
        };
        let sentence = format!("The key {:#x} is {is}, {whose}, and was used as {used}.", self.key);
        let report = self.report(Rule::KeyConfused, sentence, world).at("registered at", registered);
        report.advice(format!("Give the {right}; the two keys of a region differ on most cards."))
    }

    fn stale(&self, name: &str, made: (&'static str, &Stack), ended: (&'static str, &Stack), world: &World) -> Report {
        let sentence = format!("{} uses the key {:#x} of {name}.", self.user(), self.key);
        self.report(Rule::KeyStale, sentence, world).at(ended.0, ended.1).at(made.0, made.1).advice(
            "Let every request that names the key complete, on both ends, before the key dies; then no longer use it.",
        )
    }

    fn other_pd(&self, target: &Target<'_>, world: &World) -> Report {
        let created = |pd| world.object(pd).map_or_else(Stack::unknown, |known| known.created.clone());
        let sentence = format!(
            "{} uses the key {:#x} of {}, which is in another protection domain than the queue.",
            self.user(),
            self.key,
            target.name
        );
        self.report(Rule::KeyOfOtherPd, sentence, world)
            .at(target.made.0, target.made.1)
            .at("its domain", &target.pd.map_or_else(Stack::unknown, created))
            .at("queue's domain", &created(self.pd))
            .advice("Register the memory in the protection domain of the queue that uses it.")
    }

    fn missing(&self, target: &Target<'_>, world: &World) -> Report {
        let flags = rights(self.right & !target.access);
        let sentence = format!("{} needs {flags}, which {} does not grant.", self.user(), target.name);
        let report = self.report(Rule::AccessMissing, sentence, world).at(target.made.0, target.made.1);
        let call = if target.made.0 == "bound at" { "Bind the window" } else { "Register the region" };
        report.advice(format!("{call} with {flags}."))
    }

    fn out_of_range(&self, target: &Target<'_>, world: &World) -> Option<Report> {
        let (begin, end) = (target.base, target.base.saturating_add(target.length));
        let last = self.va.saturating_add(self.len);
        let by = match (self.va < begin, last > end) {
            (true, _) => format!("begin {} bytes before", begin - self.va),
            (_, true) => format!("end {} bytes behind", last - end),
            (false, false) => return None,
        };
        let sentence = format!("The {} bytes at {:#x} of {} {by} {}.", self.len, self.va, self.whose(), target.name);
        let report = self.report(Rule::KeyOutOfRange, sentence, world).at(target.made.0, target.made.1);
        let overlaps = |memory: &Memory| memory.base < last && self.va < memory.base.saturating_add(memory.length);
        let is_it = |memory: &Memory| (memory.base, memory.length) == (target.base, target.length);
        let neighbour = world.regions().find(|(_, memory, _)| overlaps(memory) && !is_it(memory));
        let report = match neighbour {
            Some((id, ..)) => report.fact("would reach", world.name(id)),
            None => report,
        };
        Some(report.advice(
            "Keep address and length inside what the key was registered for, or use the key of the other region.",
        ))
    }

    fn unmapped(&self, target: &Target<'_>, world: &World) -> Report {
        let sentence = format!("The memory of {} is no longer mapped, and {} uses it.", target.name, self.whose());
        self.report(Rule::MemoryGoneInFlight, sentence, world)
            .at(target.made.0, target.made.1)
            .advice("Unmap memory only once its region is deregistered and all requests that use it have completed.")
    }

    fn report(&self, rule: Rule, sentence: String, world: &World) -> Report {
        let report = Report::new(rule, sentence).fact("queue pair", world.name(self.qp));
        let report = report.fact("bytes", format!("{} at {:#x}, key {:#x}", self.len, self.va, self.key));
        let Some(work) = self.work else { return report };
        report.fact("request", format!("{}, wr_id {}", work.operation(), work.wr_id)).at("posted at", &work.posted)
    }

    /// Who does it, at the beginning of a sentence.
    fn user(&self) -> String {
        match (self.by, self.work) {
            (By::List, Some(work)) => format!("The list of the {}", work.operation()),
            (By::List, None) => "A list".to_owned(),
            (By::Peer, Some(work)) => format!("The {} of the peer", work.operation()),
            (By::Peer, None) => "A request of the peer".to_owned(),
        }
    }

    fn whose(&self) -> &'static str {
        if self.by == By::List { "a list" } else { "a peer's request" }
    }
}

/// The remote address and key of an operation.
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
pub(super) fn rights(access: Access) -> String {
    access.names(" | ")
}
