//! What a queue pair's surroundings do out of line: what they tell the checker, and those who
//! explain; and what happens in place of the usual way if something watches or changes what the
//! card does (the checker, the weakest legal card).
//!
//! Each function is called only if there is something to tell or to change, and stands out of line:
//! nothing of it may take registers from the path of every packet. Reads the program's memory by
//! its keys.

use super::core::{Inner, QpCore};
use super::failure::{self, Asked, Entry};
use super::host::QpHost;
use crate::mr::note_use;
use crate::weakest::{self, WeakQp};
use roxe_base::clock;
use roxe_base::config::Explain;
use roxe_check::explain::explains;
use roxe_check::{Event, is_checking, is_on, tell};
use roxe_engine::queue_pair::{Deadline, VisitOutcome};
use roxe_memory::mapped;
use roxe_transport::Qp as Machine;
use roxe_transport::cx::{AtomicOp, MemError, RxPayload, Side};
use roxe_transport::qp::EarlyPackets;
use roxe_transport::time::Instant;
use roxe_transport::wr::{Access, Bind, Cqe, Sge, WcStatus};
use roxe_wire::{NetHeader, Packet, RKey};
use std::ops::Range;
use std::sync::{Arc, Weak};

impl QpHost<'_> {
    /// A local list could not be used.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_local(&mut self, side: Side, sges: &[Sge], access: Access, error: MemError) {
        tell(|| Event::LocalFault { qp: self.qp.id, side, sges, access, error });
        self.state.history.note(self.now, Entry::LocalFault(side, error));
        if explains() == Explain::Off {
            return;
        }
        let Some((sge, error)) = self.first_unusable(side, sges, access, error) else { return };
        let facts = self.look(|regions, _| regions.facts(sge.lkey.0));
        let asked = Asked { kind: "lkey", key: sge.lkey.0, addr: sge.addr, len: sge.length.into(), access };
        failure::note_local(&mut self.state.failed, || asked.refused(error, facts));
    }

    /// The first element of a list that cannot be used.
    fn first_unusable(&mut self, side: Side, sges: &[Sge], access: Access, error: MemError) -> Option<(Sge, MemError)> {
        // The table may be asked only if it is not held.
        self.held = None;
        let shared = self.shared_domain(side);
        let refused = |sge: &Sge| {
            let place = self.look(|regions, own| regions.locate(shared.unwrap_or(own.pd), sge, access));
            match place {
                Err(error) => Some(error),
                Ok(addr) => {
                    let is_lost = error == MemError::Fault
                        && mapped::check(addr, sge.length.into(), access.contains(Access::LOCAL_WRITE)).is_err();
                    is_lost.then_some(error)
                }
            }
        };
        let found = sges.iter().map(refused).zip(sges).find_map(|(error, sge)| Some((*sge, error?)));
        found.or_else(|| Some((*sges.first()?, error)))
    }

    /// A peer may not get at memory, unless the right was only withheld until somebody uses it.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_remote(
        &mut self,
        (rkey, va, len): (RKey, u64, u64),
        access: Access,
        error: MemError,
    ) -> Result<(), MemError> {
        let is_withheld = error == MemError::Access && note_use(self.memory().0, rkey, access);
        let refused = match is_withheld {
            true => self.look(|regions, reach| regions.check_remote(reach, rkey, va, len, access)),
            false => Err(error),
        };
        refused.inspect_err(|error| self.tell_remote((rkey, va, len), access, *error))
    }

    /// A key could not be invalidated, for a request of this end or of the peer.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_uninvalidated(&mut self, side: Side, rkey: RKey, error: MemError) {
        let facts = self.look(|regions, _| regions.facts(rkey.0));
        let why = || failure::uninvalidated(rkey, error, facts);
        // The receive of a SEND with Invalidate ends in error, too.
        failure::note_local(&mut self.state.failed, why);
        if side == Side::Recv {
            failure::note_remote(self.qp, WcStatus::RemAccessErr, why);
        }
    }

    /// A memory window could not be bound.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_unbound(&mut self, bind: &Bind, error: MemError) {
        let facts = self.look(|regions, _| {
            let now = regions.key_of(bind.rkey.0).unwrap_or(bind.rkey.0);
            (regions.facts(now), regions.facts(bind.lkey.0))
        });
        failure::note_local(&mut self.state.failed, || failure::unbound(bind, error, facts));
    }

    /// A peer could not get at memory.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_remote(&mut self, (rkey, va, len): (RKey, u64, u64), access: Access, error: MemError) {
        tell(|| Event::RemoteFault { qp: self.qp.id, rkey, va, len, access, error });
        self.state.history.note(self.now, Entry::RemoteFault(rkey, error));
        let facts = self.look(|regions, _| regions.facts(rkey.0));
        let asked = Asked { kind: "rkey", key: rkey.0, addr: va, len, access };
        let status = if error == MemError::Fault { WcStatus::RemOpErr } else { WcStatus::RemAccessErr };
        failure::note_remote(self.qp, status, || asked.refused(error, facts));
    }

    /// A request ends in error.
    #[cold]
    #[inline(never)]
    pub(super) fn note_failure(&mut self, side: Side, cqe: Cqe) {
        let is_flushed = cqe.status == WcStatus::WrFlushErr;
        let entry = if is_flushed { Entry::Flushed(side, 1) } else { Entry::Failed(side, cqe.wr_id, cqe.status) };
        self.state.history.note(self.now, entry);
        if is_flushed {
            // An ordinary end, of which only a user who wants all explanations hears.
            let state = &mut self.state;
            if explains() == Explain::Full && state.failed.is_none() && !state.is_explained {
                let refusal = state.history.last_refusal();
                failure::note_flush(&mut state.failed, (side, &cqe), state.ended_by_program, refusal);
                self.report |= VisitOutcome::FAILED;
            }
        } else {
            self.state.met.error = Some(cqe.status);
            failure::note(&mut self.state.failed, side, &cqe);
            self.report |= VisitOutcome::FAILED;
        }
    }

    /// The list is about to be written.
    #[cold]
    #[inline(never)]
    pub(super) fn note_scatter(&mut self, side: Side, sges: &[Sge], offset: u32) {
        // The table may be asked only if it is not held.
        self.held = None;
        let qp = self.qp;
        if offset == 0
            && let Some(wr_id) = self.state.watch.writes(qp.lists(), side, sges)
        {
            tell(|| Event::BytesChanged { qp: qp.id, side, wr_id });
        }
        let shared = self.shared_domain(side);
        for sge in sges {
            let place = self.look(|regions, own| regions.locate(shared.unwrap_or(own.pd), sge, Access::LOCAL_WRITE));
            if let Ok(addr) = place {
                tell(|| Event::Written { addr, len: sge.length.into() });
            }
        }
    }

    /// Memory is about to be written for a peer.
    #[cold]
    #[inline(never)]
    pub(super) fn note_write(&mut self, rkey: RKey, va: u64, len: u64) {
        let place = self.look(|regions, reach| regions.locate_remote(reach, rkey, va, len));
        if let Ok(addr) = place {
            tell(|| Event::Written { addr, len });
        }
    }

    /// An atomic of a peer was executed.
    #[cold]
    #[inline(never)]
    pub(super) fn note_atomic(&mut self, rkey: RKey, va: u64, op: AtomicOp, found: u64) {
        let qp = self.qp.id;
        if let Ok(addr) = self.look(|regions, reach| regions.locate_remote(reach, rkey, va, 8)) {
            tell(|| Event::Atomic { qp, rkey, va, addr, found, left: op.applied(found) });
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn note_completion(&mut self, side: Side, cqe: Cqe) {
        self.held = None;
        let qp = self.qp;
        if self.state.watch.completed(qp.lists(), side, &cqe) {
            tell(|| Event::BytesChanged { qp: qp.id, side, wr_id: cqe.wr_id });
        }
        tell(|| Event::Completed { qp: qp.id, side, cqe: &cqe });
    }

    /// As [`QpHost::scatter`](roxe_transport::cx::Memory::scatter) if something watches or changes
    /// that; `None`: it is to be done as always.
    #[cold]
    #[inline(never)]
    pub(super) fn scatter_watched(
        &mut self,
        side: Side,
        sges: &[Sge],
        offset: u32,
        data: RxPayload<'_>,
    ) -> Option<Result<(), MemError>> {
        if is_checking() {
            self.note_scatter(side, sges, offset);
        }
        let shared = self.shared_domain(side);
        self.delay(side, data, |this| {
            this.look(|regions, own| regions.locate_list(shared.unwrap_or(own.pd), sges, offset, data.len()))
        })
    }

    /// As [`QpHost::scatter_watched`] for what a peer writes.
    #[cold]
    #[inline(never)]
    pub(super) fn write_watched(&mut self, rkey: RKey, va: u64, data: RxPayload<'_>) -> Option<Result<(), MemError>> {
        let len = data.len();
        if is_checking() {
            self.note_write(rkey, va, len as u64);
        }
        self.delay(Side::Recv, data, |this| {
            let place = this.look(|regions, reach| regions.locate_write(reach, rkey, va, len as u64))?;
            Ok(vec![(place, 0..len)])
        })
    }

    /// On the weakest legal card, takes payload in if `find` has a place for all of it.
    fn delay(
        &mut self,
        side: Side,
        data: RxPayload<'_>,
        find: impl FnOnce(&mut Self) -> Result<Vec<(u64, Range<usize>)>, MemError>,
    ) -> Option<Result<(), MemError>> {
        self.state.weak.as_ref().filter(|weak| weak.delays_payload() && !data.is_empty())?;
        let bytes = match data {
            RxPayload::Bytes(bytes) => Some(bytes.to_vec()),
            RxPayload::Shared { at, len } => {
                let mut bytes = vec![0; len];
                let arrived = self.arrived(at, len).ok();
                arrived.and_then(|arrived| arrived.copy_to(&mut bytes).ok()).map(|()| bytes)
            }
        };
        let found = bytes.and_then(|bytes| Some((bytes, find(self).ok()?)));
        let taken = self.state.weak.as_mut()?.take_in(side, found, (self.qp.engine(), self.now));
        taken.then_some(Ok(()))
    }

    /// An atomic of a peer: everything before it is in memory first (IBA §9.5).
    #[cold]
    #[inline(never)]
    pub(super) fn atomic_watched(&mut self, rkey: RKey, va: u64, op: AtomicOp) -> Option<Result<u64, MemError>> {
        self.settle(Side::Recv);
        if !weakest::splits_atomics() && !is_checking() {
            return None;
        }
        let done = self.look(|regions, reach| weakest::atomic(regions, reach, rkey, va, op));
        if let (Ok(found), true) = (done, is_checking()) {
            self.note_atomic(rkey, va, op, found);
        }
        Some(done)
    }

    /// A peer changes 8 bytes behind everything that it has written before.
    #[cold]
    #[inline(never)]
    pub(super) fn store_watched(&mut self, rkey: RKey, va: u64) {
        if is_checking() {
            self.note_write(rkey, va, 8);
        }
        self.settle(Side::Recv);
    }

    /// Everything of `side` is in memory from now on.
    pub(super) fn settle(&mut self, side: Side) {
        if let Some(weak) = &mut self.state.weak {
            weak.settle(side);
        }
    }

    /// A request ends.
    #[cold]
    #[inline(never)]
    pub(super) fn complete_watched(&mut self, side: Side, cqe: Cqe) {
        if is_on() {
            self.note_completion(side, cqe);
        }
        if let Some(weak) = &mut self.state.weak {
            weak.completed(side, &cqe);
        }
    }
}

impl QpCore {
    /// A packet waits for its receive, or for packets in front of it.
    #[cold]
    #[inline(never)]
    pub(super) fn note_early(
        &self,
        machine: &mut Machine,
        host: &mut QpHost<'_>,
        (net, packet): (&NetHeader, &Packet<'_>),
    ) {
        failure::note_early(&self.resources, machine);
        if is_on() && machine.lacks_receive(host, net, packet) {
            tell(|| Event::MessageWaits { qp: self.resources.id });
        }
    }

    /// A queue pair that is new, with `depth` places for sends, may be one of the weakest legal
    /// card.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_watched(self: &Arc<Self>, inner: &mut Inner, depth: u32) {
        let me: Weak<dyn Deadline> = Arc::downgrade(self) as _;
        if let Some(weak) = WeakQp::of_new(me, self.ordinal, depth) {
            inner.is_usual = false;
            if weak.loses_early_messages() {
                inner.early = EarlyPackets::none();
            }
            inner.state.weak = Some(weak);
        }
    }

    /// As `transmit` where that is not the usual one.
    #[cold]
    #[inline(never)]
    pub(super) fn transmit_watched(&self, inner: &mut Inner, now: Instant) -> VisitOutcome {
        let Inner { machine, state, is_cut_off: false, .. } = inner else { return VisitOutcome::default() };
        let Some(weak) = state.weak.as_mut().filter(|_| machine.has_work()) else { return VisitOutcome::default() };
        if !weak.lets_send(machine, self.resources.service.is_reliable(), self.engine(), now) {
            return VisitOutcome::default();
        }
        inner.is_usual = true;
        let report = self.transmit(inner, now);
        inner.is_usual = false;
        report
    }
}

impl Deadline for QpCore {
    /// What waits on the weakest legal card has waited.
    fn on_deadline(&self, _: Instant) {
        let (mut inner, now) = (self.inner.lock(), clock::now());
        if let Inner { state, is_cut_off: false, .. } = &mut *inner
            && let Some(weak) = &mut state.weak
        {
            weak.on_deadline(self.engine(), now);
            self.end_visit(inner, VisitOutcome::default(), now);
        }
    }
}
