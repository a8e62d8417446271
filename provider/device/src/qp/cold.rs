//! Out-of-line work of a queue pair: reports to the checker, explanations of failures, and the
//! weakest legal card. Every function is `#[cold]`, so that the path of a packet keeps its
//! registers.

use super::core::{Inner, QpCore};
use super::failure::{self, Entry, KeyAccess};
use super::host::QpHost;
use crate::mr::note_use;
use crate::weakest::{self, WeakQp};
use roxe_base::clock;
use roxe_base::config::Explain;
use roxe_check::explain::explains;
use roxe_check::{Event, emit, faults, is_checking, is_on};
use roxe_engine::queue_pair::{DeadlineOwner, VisitOutcome};
use roxe_memory::mapped;
use roxe_memory::region::AccessScope;
use roxe_transport::Qp as Machine;
use roxe_transport::cx::{AtomicOp, Ending, MemError, RxPayload, Side};
use roxe_transport::fault::{Completion, CompletionFault, CompletionVerdict};
use roxe_transport::qp::EarlyPackets;
use roxe_transport::time::Instant;
use roxe_transport::wr::{Access, Bind, Cqe, Sge, WcStatus};
use roxe_wire::{NetHeader, Packet, RKey};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

impl QpHost<'_> {
    #[cold]
    #[inline(never)]
    pub(super) fn report_local_fault(&mut self, side: Side, sges: &[Sge], access: Access, error: MemError) {
        emit(|| Event::LocalFault { qp: self.qp.id, side, sges, access, error });
        self.state.history.note(self.now, Entry::LocalFault(side, error));
        if explains() == Explain::Off {
            return;
        }
        let Some((sge, error)) = self.first_unusable(side, sges, access, error) else { return };
        let key_state = self.on_regions(|regions, _| regions.key_state(sge.lkey.0));
        let attempt = KeyAccess { kind: "lkey", key: sge.lkey.0, addr: sge.addr, len: sge.length.into(), access };
        failure::note_local(&mut self.state.failed, || attempt.refused(error, key_state));
    }

    /// Returns the first element of a list that cannot be used, and the error for it.
    fn first_unusable(&mut self, side: Side, sges: &[Sge], access: Access, error: MemError) -> Option<(Sge, MemError)> {
        // The table must not be locked twice.
        self.held = None;
        let shared = self.shared_domain(side);
        let is_written = access.contains(Access::LOCAL_WRITE);
        let refused = |sge: &Sge| {
            let place = self.on_regions(|regions, own| regions.locate(shared.unwrap_or(own.pd), sge, access));
            let is_unmapped =
                |addr| error == MemError::Fault && mapped::check(addr, sge.length.into(), is_written).is_err();
            place.map_or_else(Some, |addr| is_unmapped(addr).then_some(error))
        };
        let found = sges.iter().map(refused).zip(sges).find_map(|(error, sge)| Some((*sge, error?)));
        found.or_else(|| Some((*sges.first()?, error)))
    }

    /// Refuses a remote access, unless registration on first use withheld the right until now.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_remote(
        &mut self,
        (rkey, va, len): (RKey, u64, u64),
        access: Access,
        error: MemError,
    ) -> Result<(), MemError> {
        let is_withheld = error == MemError::Access && note_use(self.memory().0, rkey, access);
        let checked = if is_withheld {
            self.on_regions(|regions, scope| regions.check_remote(scope, rkey, va, len, access))
        } else {
            Err(error)
        };
        checked.inspect_err(|error| self.report_remote_fault((rkey, va, len), access, *error))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn report_failed_invalidation(&mut self, side: Side, rkey: RKey, error: MemError) {
        let key_state = self.on_regions(|regions, _| regions.key_state(rkey.0));
        let why = || failure::failed_invalidation(rkey, error, key_state);
        // The receive of a SEND with Invalidate fails, too.
        failure::note_local(&mut self.state.failed, why);
        if side == Side::Recv {
            failure::note_remote(self.qp, WcStatus::RemAccessErr, why);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn report_failed_bind(&mut self, bind: &Bind, error: MemError) {
        let key_states = self.on_regions(|regions, _| {
            let current = regions.current_key(bind.rkey.0).unwrap_or(bind.rkey.0);
            (regions.key_state(current), regions.key_state(bind.lkey.0))
        });
        failure::note_local(&mut self.state.failed, || failure::failed_bind(bind, error, key_states));
    }

    #[cold]
    #[inline(never)]
    pub(super) fn report_remote_fault(&mut self, (rkey, va, len): (RKey, u64, u64), access: Access, error: MemError) {
        emit(|| Event::RemoteFault { qp: self.qp.id, rkey, va, len, access, error });
        self.state.history.note(self.now, Entry::RemoteFault(rkey, error));
        let key_state = self.on_regions(|regions, _| regions.key_state(rkey.0));
        let attempt = KeyAccess { kind: "rkey", key: rkey.0, addr: va, len, access };
        let status = if error == MemError::Fault { WcStatus::RemOpErr } else { WcStatus::RemAccessErr };
        failure::note_remote(self.qp, status, || attempt.refused(error, key_state));
    }

    #[cold]
    #[inline(never)]
    pub(super) fn note_failure(&mut self, side: Side, cqe: Cqe) {
        let is_flushed = cqe.status == WcStatus::WrFlushErr;
        let entry = if is_flushed { Entry::Flushed(side, 1) } else { Entry::Failed(side, cqe.wr_id, cqe.status) };
        self.state.history.note(self.now, entry);
        if is_flushed {
            // A flush is an ordinary end; only `Explain::Full` reports it.
            let state = &mut self.state;
            if explains() == Explain::Full && state.failed.is_none() && !state.is_explained {
                let refusal = state.history.last_refusal();
                failure::note_flush(&mut state.failed, (side, &cqe), state.ended_by_program, refusal);
                self.outcome |= VisitOutcome::FAILED;
            }
        } else {
            self.state.stats.error = Some(cqe.status);
            failure::note(&mut self.state.failed, side, &cqe);
            self.outcome |= VisitOutcome::FAILED;
        }
    }

    fn note_write(&mut self, rkey: RKey, va: u64, len: u64) {
        let place = self.on_regions(|regions, scope| regions.locate_remote(scope, rkey, va, len));
        if let Ok(addr) = place {
            emit(|| Event::Written { addr, len });
        }
    }

    /// Scatters as [`QpHost::scatter`](roxe_transport::cx::Memory::scatter), while instruments are
    /// on. Returns `None` if the fast path is to write.
    #[cold]
    #[inline(never)]
    pub(super) fn scatter_watched(
        &mut self,
        side: Side,
        sges: &[Sge],
        offset: u32,
        data: RxPayload<'_>,
    ) -> Option<Result<(), MemError>> {
        let (qp, shared) = (self.qp, self.shared_domain(side));
        if is_checking() {
            // The table must not be locked twice.
            self.held = None;
            if offset == 0
                && let Some(wr_id) = self.state.watch.writes(qp.lists(), side, sges)
            {
                emit(|| Event::BytesChanged { qp: qp.id, side, wr_id });
            }
            for sge in sges {
                let pd = |own: AccessScope| shared.unwrap_or(own.pd);
                if let Ok(addr) = self.on_regions(|regions, own| regions.locate(pd(own), sge, Access::LOCAL_WRITE)) {
                    emit(|| Event::Written { addr, len: sge.length.into() });
                }
            }
        }
        self.delay(side, data, |this| {
            this.on_regions(|regions, own| regions.locate_list(shared.unwrap_or(own.pd), sges, offset, data.len()))
        })
    }

    /// Writes as [`QpHost::scatter_watched`], for the memory of an RDMA WRITE.
    #[cold]
    #[inline(never)]
    pub(super) fn write_watched(&mut self, rkey: RKey, va: u64, data: RxPayload<'_>) -> Option<Result<(), MemError>> {
        let len = data.len();
        if is_checking() {
            self.note_write(rkey, va, len as u64);
        }
        self.delay(Side::Recv, data, |this| {
            let place = this.on_regions(|regions, scope| regions.locate_write(scope, rkey, va, len as u64))?;
            Ok(vec![(place, 0..len)])
        })
    }

    /// Passes payload to the weakest legal card, with the addresses that `find` returns for it.
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
        let taken = self.state.weak.as_mut()?.delay(side, found, (self.qp.engine(), self.now));
        taken.then_some(Ok(()))
    }

    /// Executes a peer's atomic after all earlier payload is in memory (IBA §9.5).
    #[cold]
    #[inline(never)]
    pub(super) fn atomic_watched(&mut self, rkey: RKey, va: u64, op: AtomicOp) -> Option<Result<u64, MemError>> {
        self.settle(Side::Recv);
        if !weakest::splits_atomics() && !is_checking() {
            return None;
        }
        let done = self.on_regions(|regions, scope| weakest::atomic(regions, scope, rkey, va, op));
        if is_checking()
            && let Ok(old) = done
            && let Ok(addr) = self.on_regions(|regions, scope| regions.locate_remote(scope, rkey, va, 8))
        {
            emit(|| Event::Atomic { qp: self.qp.id, rkey, va, addr, old, new: op.applied(old) });
        }
        Some(done)
    }

    /// Prepares an 8-byte store: all earlier payload of the peer is placed before it.
    #[cold]
    #[inline(never)]
    pub(super) fn store_watched(&mut self, rkey: RKey, va: u64) {
        if is_checking() {
            self.note_write(rkey, va, 8);
        }
        self.settle(Side::Recv);
    }

    pub(super) fn settle(&mut self, side: Side) {
        if let Some(weak) = &mut self.state.weak {
            weak.settle(side);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn complete_watched(&mut self, side: Side, mut cqe: Cqe) -> Result<(), Ending> {
        let mut ending = Ok(());
        if let Some(CompletionVerdict { fault, rule }) = self.fault_of(&cqe) {
            match fault {
                CompletionFault::QpFatal => ending = Err(Ending::Fatal),
                CompletionFault::CqErr => self.qp.cq(side).inject_failure(),
                CompletionFault::Status(status) => (cqe.status, ending) = (status, Err(Ending::Failed)),
            }
            failure::note_local(&mut self.state.failed, || failure::requested_by(&rule));
        }
        if is_on() {
            self.held = None;
            let qp = self.qp;
            if self.state.watch.on_completed(qp.lists(), side, &cqe) {
                emit(|| Event::BytesChanged { qp: qp.id, side, wr_id: cqe.wr_id });
            }
            emit(|| Event::Completed { qp: qp.id, side, cqe: &cqe });
        }
        if let Some(weak) = &mut self.state.weak {
            weak.on_completed(side, &cqe);
        }
        self.append(side, cqe)?;
        ending
    }

    /// Returns the fault that a rule requests for a completion that reports success.
    fn fault_of(&self, cqe: &Cqe) -> Option<CompletionVerdict> {
        if !faults::is_on() || cqe.status != WcStatus::Success {
            return None;
        }
        let Cqe { opcode, wr_id, qpn, .. } = *cqe;
        let (at, ordinal) = (Duration::ZERO, self.qp.ordinal);
        faults::completion(Completion { opcode, wr_id, qpn, ordinal, at })
    }
}

impl QpCore {
    /// Reports a packet that waits for its receive or for earlier packets.
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
            emit(|| Event::MessageWaits { qp: self.resources.id });
        }
    }

    /// Applies the weakest legal card, if it is on, to a new queue pair whose send queue has
    /// `depth` entries.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_watched(self: &Arc<Self>, inner: &mut Inner, depth: u32) {
        let me: Weak<dyn DeadlineOwner> = Arc::downgrade(self) as _;
        if let Some(weak) = WeakQp::of_new(me, self.resources.ordinal, depth) {
            inner.fast_path = false;
            if weak.loses_early_messages() {
                inner.early = EarlyPackets::disabled();
            }
            inner.state.weak = Some(weak);
        }
    }

    /// Transmits as [`QpCore::transmit`], off the fast path.
    #[cold]
    #[inline(never)]
    pub(super) fn transmit_watched(&self, inner: &mut Inner, is_lone_ack: bool, now: Instant) -> VisitOutcome {
        let Inner { machine, state, is_cut_off: false, .. } = inner else { return VisitOutcome::default() };
        let Some(weak) = state.weak.as_mut().filter(|_| machine.has_work()) else { return VisitOutcome::default() };
        if !weak.may_send(machine, self.resources.service.is_reliable(), self.engine(), now) {
            return VisitOutcome::default();
        }
        inner.fast_path = true;
        let outcome = self.transmit(inner, is_lone_ack, now);
        inner.fast_path = false;
        outcome
    }
}

impl DeadlineOwner for QpCore {
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
