//! Keys: which one is named, by whom, and whether it says yes; memory that goes away while requests
//! use it.

use super::key_faults::{Attempt, By, explain, remote, rights};
use super::observer::Observer;
use super::windows::Windows;
use crate::event::{Event, Made};
use crate::id_map::IdMap;
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use crate::world::{Work, World};
use roxe_base::uses::ObjectId;
use roxe_transport::cx::{MemError, Side};
use roxe_transport::qp::{AttrMask, DropReason, Service};
use roxe_transport::wr::{Access, Sge};

/// `key-confused`, `key-of-other-pd`, `key-stale`, `key-out-of-range`, `access-missing`,
/// `memory-gone-in-flight`.
#[derive(Debug, Default)]
pub(super) struct Keys {
    windows: Windows,
    /// What a peer's request met. It counts once the request is refused for it: one that comes
    /// again may find that the region is gone, as the program may have seen its completion.
    met: IdMap<ObjectId, Report>,
    /// Requests whose region goes, by queue and `wr_id`, and which that is: they are reported with
    /// it.
    cut: IdMap<(ObjectId, u64), ObjectId>,
    /// What is to be said of regions that are about to go, once they are gone.
    going: IdMap<ObjectId, Report>,
}

impl Observer for Keys {
    fn look(&mut self, event: &Event<'_>, stack: &Stack, world: &World, reports: &mut Vec<Report>) {
        match *event {
            Event::LocalFault { qp, side, sges, access, error } => {
                reports.extend(self.local_fault(qp, side, sges, (access, error), world));
            }
            Event::RemoteFault { qp, rkey, va, len, access, error } => {
                let report = self.remote_fault(qp, (rkey.0, va, len), (access, error), world);
                match report {
                    Some(report) => self.met.insert(qp, report),
                    None => self.met.remove(&qp),
                };
            }
            Event::Dropped { qp, reason, .. } if !self.met.is_empty() => {
                let is_refused = matches!(reason, DropReason::RemoteAccess | DropReason::LocalProtection);
                reports.extend(self.met.remove(&qp).filter(|_| is_refused));
            }
            Event::Denied { qp, right } => reports.push(denied(qp, right, world)),
            Event::Unmapped { mr } => reports.push(unmapped(mr, stack, world)),
            Event::DestroyBegun(id) => {
                if let Some(report) = self.deregister(id, stack, world) {
                    self.going.insert(id, report);
                }
            }
            Event::DestroyRefused(id, _) => {
                self.going.remove(&id);
                self.cut.retain(|_, region| *region != id);
            }
            Event::Destroyed(id) => {
                reports.extend(self.going.remove(&id));
                self.met.remove(&id);
                self.cut.retain(|(queue, _), _| *queue != id);
            }
            _ => {}
        }
        self.windows.look(event, stack, world);
    }
}

impl Keys {
    fn local_fault(
        &self,
        qp: ObjectId,
        side: Side,
        sges: &[Sge],
        (access, error): (Access, MemError),
        world: &World,
    ) -> Option<Report> {
        let pair = world.qp(qp).filter(|pair| pair.service != Service::XrcTgt)?;
        let queue = world.queue_of(qp, side);
        let work = world.outstanding(side, queue).find(|work| !work.completed && work.sges == sges);
        if work.is_some_and(|work| self.cut.contains_key(&(queue, work.wr_id))) {
            return None;
        }
        let pd = match world.object(queue).map(|known| known.made) {
            Some(Made::Srq { pd, .. }) => pd,
            _ => pair.pd,
        };
        sges.iter().filter(|sge| sge.length > 0).find_map(|sge| {
            let (key, va, len) = (sge.lkey.0, sge.addr, sge.length.into());
            let attempt = Attempt { by: By::List, qp, pd, key, va, len, right: access, error, work };
            explain(&attempt, &self.windows, world)
        })
    }

    fn remote_fault(
        &self,
        qp: ObjectId,
        (key, va, len): (u32, u64, u64),
        (right, error): (Access, MemError),
        world: &World,
    ) -> Option<Report> {
        let pair = world.qp(qp).filter(|pair| pair.service != Service::XrcTgt)?;
        let asks = |work: &&Work| work.op.as_ref().and_then(remote) == Some((va, key));
        let work = world.all_outstanding().map(|(_, work)| work).find(asks);
        let attempt = Attempt { by: By::Peer, qp, pd: pair.pd, key, va, len, right, error, work };
        explain(&attempt, &self.windows, world)
    }

    /// A region is about to go: what is to be said once it is gone, when the requests that use it
    /// may have completed without it. Sends without a completion do not count: the program may know
    /// by other means that they are done.
    fn deregister(&mut self, mr: ObjectId, stack: &Stack, world: &World) -> Option<Report> {
        let Made::Mr(memory) = world.object(mr)?.made else { return None };
        let names = |work: &Work| work.sges.iter().any(|sge| sge.length > 0 && sge.lkey.0 == memory.lkey);
        let is_open = |work: &Work| !work.completed && work.signaled && names(work);
        let open: Vec<_> = world.all_outstanding().filter(|(_, work)| is_open(work)).collect();
        let open: Vec<_> = open.into_iter().filter(|(queue, _)| is_served(*queue, world)).collect();
        let (queue, first) = *open.first()?;
        self.cut.extend(open.iter().map(|(queue, work)| ((*queue, work.wr_id), mr)));
        let (count, what) = (open.len(), first.operation());
        let sentence = format!("The {} was deregistered while {count} outstanding requests use it.", world.name(mr));
        Some(
            Report::new(Rule::MemoryGoneInFlight, sentence)
                .fact("queue", world.name(queue))
                .fact("first request", format!("{what}, wr_id {}", first.wr_id))
                .at("deregistered", stack)
                .at("posted at", &first.posted)
                .advice("Poll the completions of all requests that use a region, or destroy their queue pair, first."),
        )
    }
}

/// A region has outlived its memory. A card that has pinned the pages goes on with those, and what
/// peers write there is seen by nobody.
fn unmapped(mr: ObjectId, stack: &Stack, world: &World) -> Report {
    let sentence = format!(
        "The memory of the {} was unmapped while it was registered: a card keeps the old pages, whatever is mapped \
         there since.",
        world.name(mr)
    );
    let report = Report::new(Rule::MemoryGoneInFlight, sentence).warned().at("deregistered", stack);
    let report = report.at("registered at", world.object(mr).map(|known| &known.created));
    report.advice("Deregister the region before its memory is unmapped or freed.")
}

/// A queue pair does not grant a right.
fn denied(qp: ObjectId, right: Access, world: &World) -> Report {
    let flags = rights(right);
    let sentence = format!("A peer's request needs {flags} in qp_access_flags of the queue pair, which lacks it.");
    let report = Report::new(Rule::AccessMissing, sentence).fact("queue pair", world.name(qp));
    let set = world.attributes(qp).map_or_else(Stack::unknown, |own| own.call(AttrMask::ACCESS_FLAGS));
    report.at("flags set at", &set).advice(format!("Call ibv_modify_qp with {flags} in qp_access_flags."))
}

/// Whether messages can come to the requests of a queue: a shared one serves its queue pairs.
fn is_served(queue: ObjectId, world: &World) -> bool {
    let serves = |made: &Made| matches!(made, Made::Qp(pair) if pair.srq == Some(queue));
    world.qp(queue).is_some() || world.objects().any(|(_, known)| serves(&known.made))
}

#[cfg(test)]
mod tests;
