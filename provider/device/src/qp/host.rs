//! [`QpHost`]: memory, completion queues, shared receives and flow control for the state machine of
//! one queue pair. It lives for one visit, under the queue pair's lock; [`QpHostState`] persists
//! between visits.

use super::failure::{Failed, History};
use super::resources::QpResources;
use super::watch::Watch;
use crate::cq::{Cq, Unpolled};
use crate::srq::Srq;
use crate::weakest::WeakQp;
use roxe_base::config::config;
use roxe_base::instruments;
use roxe_check::{Event, emit};
use roxe_engine::engine::Engine;
use roxe_engine::flow_control::{Flow, Key, Pool, STALL, STREAM_STALL};
use roxe_engine::queue_pair::{QpStats, VisitOutcome};
use roxe_engine::tx::Copied;
use roxe_memory::guard::{SharedBytes, Sum, cells};
use roxe_memory::region::{AccessScope, PdId};
use roxe_memory::regions::Regions;
use roxe_memory::table::MemoryTable;
use roxe_net::probe::Probe;
use roxe_net::rcvbuf_cost;
use roxe_transport::cx::{
    AtomicOp, Completions, Ending, FlowControl, Host, MemError, Memory, Overrun, RxPayload, SharedReceives, Side,
    TagFit, TxRoom,
};
use roxe_transport::qp::Service;
use roxe_transport::time::Instant;
use roxe_transport::wr::{Access, Av, Bind, Cqe, Sge, VendorErr, WcStatus};
use roxe_wire::{Qpn, RKey, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct QpHost<'a> {
    pub(super) qp: &'a QpResources,
    pub(super) state: &'a mut QpHostState,
    pub(super) now: Instant,
    pub(super) outcome: VisitOutcome,
    /// Shared receive queue that the current message to an XRC target selects.
    selected: Option<Arc<Srq>>,
    /// Checksums of payloads copied into packets; `None` if the batch does not need them.
    copied: Option<Vec<Copied>>,
    /// Regions of the queue pair's context, held from the first copy on.
    pub(super) held: Option<Regions<'a>>,
    /// Payload that still lies in a ring; [`RxPayload::Shared`] is a part of it.
    pub(super) arrived: Option<SharedBytes<'a>>,
    /// True if the batch goes into a ring.
    by_ring: bool,
    /// Version of the ring table that the visit has seen.
    rings: u32,
    /// True once a batch has begun.
    is_sending: bool,
}

impl<'a> QpHost<'a> {
    pub(super) fn new(qp: &'a QpResources, state: &'a mut QpHostState, now: Instant) -> Self {
        let (outcome, selected, copied, held) = (VisitOutcome::default(), None, None, None);
        let (arrived, by_ring, rings, is_sending) = (None, false, 0, false);
        Self { qp, state, now, outcome, selected, copied, held, arrived, by_ring, rings, is_sending }
    }

    pub(super) fn arrived(&self, at: usize, len: usize) -> Result<SharedBytes<'a>, MemError> {
        self.arrived.and_then(|bytes| bytes.get(at..at.checked_add(len)?)).ok_or(MemError::Range)
    }

    /// Begins a batch. With `copied`, payloads are summed while they are copied, which saves a
    /// second pass over the data.
    ///
    /// If the batch goes `by_ring`, RC reserves no room, because a full ring refuses packets.
    /// `rings` is the version for
    /// [`Engine::knows_rings`](roxe_engine::engine::Engine::knows_rings).
    pub(super) fn begin_batch(&mut self, copied: Option<Vec<Copied>>, by_ring: bool, rings: u32) {
        (self.copied, self.by_ring, self.rings, self.is_sending) = (copied, by_ring, rings, true);
    }

    /// Returns the checksums of the batch and releases the regions: the first packet of the next
    /// batch locks a ring, and lock order is ring before memory.
    pub(super) fn end_batch(&mut self) -> Option<Vec<Copied>> {
        self.held = None;
        self.copied.take()
    }

    /// Records the checksum of a payload copied to the address `to`.
    fn note_copy(&mut self, to: usize, sum: Option<Sum>) {
        if let (Some(copied), Some(sum)) = (&mut self.copied, sum) {
            copied.push(Copied { to, sum });
        }
    }

    /// Returns the memory table and the access scope for keys. An XRC target uses those of the
    /// SRQ, which may belong to another context.
    pub(super) fn memory(&mut self) -> (&MemoryTable, AccessScope) {
        // The table must not be locked twice.
        self.held = None;
        let own = self.qp.access_scope();
        match &self.selected {
            None => (self.qp.memory(), own),
            Some(srq) => (srq.pd().context().memory(), AccessScope { pd: srq.pd().id(), ..own }),
        }
    }

    /// Returns the domain for receive lists if receives come from an SRQ, whose domain may
    /// differ from the queue pair's.
    #[inline]
    pub(super) fn shared_domain(&self, side: Side) -> Option<PdId> {
        // clause: SRQ-DOMAIN
        self.qp.srq.as_deref().filter(|_| side == Side::Recv).map(|srq| srq.pd().id())
    }

    /// Runs `f` on the regions and holds them until the batch or visit ends.
    #[inline]
    fn on_held<R>(&mut self, f: impl FnOnce(&Regions<'_>, AccessScope) -> R) -> R {
        self.hold_regions();
        self.on_regions(f)
    }

    /// Holds the regions from now on. Not for UD: the next datagram may lock another process's
    /// ring, and lock order is ring before memory.
    #[inline]
    fn hold_regions(&mut self) {
        if self.held.is_none() && self.selected.is_none() && self.qp.service != Service::Ud {
            self.held = Some(self.qp.memory().hold());
        }
    }

    /// Runs `f` on the regions without holding them afterwards: it may precede the first packet of
    /// a batch.
    #[inline]
    pub(super) fn on_regions<R>(&mut self, f: impl FnOnce(&Regions<'_>, AccessScope) -> R) -> R {
        let held;
        // One call of `f`, so that it is inlined.
        let (regions, scope) = match &self.held {
            Some(regions) if self.selected.is_none() => (regions, self.qp.access_scope()),
            _ => {
                let (memory, scope) = self.memory();
                held = memory.hold();
                (&held, scope)
            }
        };
        f(regions, scope)
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemError> {
        let (memory, scope) = self.memory();
        memory.invalidate(scope, rkey)?;
        emit(|| Event::Invalidated { qp: self.qp.id, rkey });
        Ok(())
    }

    fn try_reserve(&mut self, key: Key, bytes: u32, own: u32) -> bool {
        let (engine, now, has_turn, rings) = (self.qp.engine(), self.now, self.state.has_turn, self.rings);
        let flow = self.state.flow(key, engine, now);
        match pool(self.qp.service) {
            Pool::Stream if has_turn => flow.reserve_in_turn(bytes),
            Pool::Stream => flow.reserve_stream(bytes, own),
            Pool::Datagrams => {
                flow.reserve_datagram(bytes, now, || engine.receiver_at(key), || engine.knows_rings(rings))
            }
        }
    }
}

impl Memory for QpHost<'_> {
    fn gather(&mut self, sges: &[Sge], offset: u32, out: TxRoom<'_>) -> Result<(), MemError> {
        let out = cells(out);
        let done = if self.copied.is_none() {
            self.on_held(|regions, own| regions.gather(own.pd, sges, offset, out))
        } else {
            let to = out.as_ptr().addr();
            let summed = self.on_held(|regions, own| regions.gather_summed(own.pd, sges, offset, out));
            summed.map(|sum| self.note_copy(to, sum))
        };
        done.inspect_err(|error| self.report_local_fault(Side::Send, sges, Access::empty(), *error))
    }

    fn scatter(&mut self, side: Side, sges: &[Sge], offset: u32, data: RxPayload<'_>) -> Result<(), MemError> {
        if instruments::any()
            && let Some(done) = self.scatter_watched(side, sges, offset, data)
        {
            return done;
        }
        let shared = self.shared_domain(side);
        let done = match data {
            RxPayload::Bytes(data) => {
                self.on_held(|regions, own| regions.scatter(shared.unwrap_or(own.pd), sges, offset, data))
            }
            RxPayload::Shared { at, len } => self.arrived(at, len).and_then(|data| {
                self.on_held(|regions, own| regions.scatter_shared(shared.unwrap_or(own.pd), sges, offset, data))
            }),
        };
        done.inspect_err(|error| self.report_local_fault(side, sges, Access::LOCAL_WRITE, *error))
    }

    fn check_remote(&mut self, rkey: RKey, va: u64, len: u64, access: Access) -> Result<(), MemError> {
        if !self.is_sending {
            // A write follows the check.
            self.hold_regions();
        }
        let done = self.on_regions(|regions, scope| regions.check_remote(scope, rkey, va, len, access));
        done.or_else(|error| self.refuse_remote((rkey, va, len), access, error))
    }

    fn note_wrong_length(&mut self, request: &Request, len: usize) {
        emit(|| Event::WrongLength { qp: self.qp.id, request, len });
    }

    fn note_too_many_reads(&mut self) {
        emit(|| Event::TooManyReads { qp: self.qp.id });
    }

    fn note_missing_right(&mut self, right: Access) {
        emit(|| Event::MissingRight { qp: self.qp.id, right });
    }

    fn read_remote(&mut self, rkey: RKey, va: u64, out: TxRoom<'_>) -> Result<(), MemError> {
        let (len, out) = (out.len() as u64, cells(out));
        let done = if self.copied.is_none() {
            self.on_held(|regions, scope| regions.read_remote(scope, rkey, va, out))
        } else {
            let to = out.as_ptr().addr();
            let summed = self.on_held(|regions, scope| regions.read_remote_summed(scope, rkey, va, out));
            summed.map(|sum| self.note_copy(to, sum))
        };
        done.inspect_err(|error| self.report_remote_fault((rkey, va, len), Access::REMOTE_READ, *error))
    }

    fn write_remote(&mut self, rkey: RKey, va: u64, data: RxPayload<'_>) -> Result<(), MemError> {
        let len = data.len() as u64;
        if instruments::any()
            && let Some(done) = self.write_watched(rkey, va, data)
        {
            return done;
        }
        let done = match data {
            RxPayload::Bytes(data) => self.on_held(|regions, scope| regions.write_remote(scope, rkey, va, data)),
            RxPayload::Shared { at, len } => self
                .arrived(at, len)
                .and_then(|data| self.on_held(|regions, scope| regions.write_remote_shared(scope, rkey, va, data))),
        };
        done.inspect_err(|error| self.report_remote_fault((rkey, va, len), Access::REMOTE_WRITE, *error))
    }

    fn atomic_remote(&mut self, rkey: RKey, va: u64, op: AtomicOp) -> Result<u64, MemError> {
        let watched = if instruments::any() { self.atomic_watched(rkey, va, op) } else { None };
        let done =
            watched.unwrap_or_else(|| self.on_regions(|regions, scope| regions.atomic_remote(scope, rkey, va, op)));
        done.inspect_err(|error| self.report_remote_fault((rkey, va, 8), Access::REMOTE_ATOMIC, *error))
    }

    fn store_remote(&mut self, rkey: RKey, va: u64, data: [u8; 8]) -> Result<(), MemError> {
        if instruments::any() {
            self.store_watched(rkey, va);
        }
        let done = self.on_regions(|regions, scope| regions.store_remote(scope, rkey, va, data));
        done.inspect_err(|error| self.report_remote_fault((rkey, va, 8), Access::REMOTE_WRITE, *error))
    }

    fn flush_remote(&mut self, rkey: RKey, range: Option<(u64, u64)>, access: Access) -> Result<(), MemError> {
        self.settle(Side::Recv);
        let (va, len) = range.unwrap_or_default();
        let done = self.on_regions(|regions, scope| regions.flush_remote(scope, rkey, range, access));
        done.inspect_err(|error| self.report_remote_fault((rkey, va, len), access, *error))
    }

    fn invalidate_remote(&mut self, rkey: RKey) -> Result<(), MemError> {
        self.invalidate(rkey).inspect_err(|error| self.report_failed_invalidation(Side::Recv, rkey, *error))
    }

    fn invalidate_local(&mut self, rkey: RKey) -> Result<(), MemError> {
        self.invalidate(rkey).inspect_err(|error| self.report_failed_invalidation(Side::Send, rkey, *error))
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), MemError> {
        self.qp.binds.store(true, Ordering::Relaxed);
        let (memory, scope) = self.memory();
        if let Err(error) = memory.bind(scope, bind) {
            self.report_failed_bind(bind, error);
            return Err(error);
        }
        emit(|| Event::Bound { qp: self.qp.id, bind });
        Ok(())
    }
}

impl Completions for QpHost<'_> {
    #[inline]
    fn complete(&mut self, side: Side, cqe: Cqe) -> Result<(), Ending> {
        if instruments::any() {
            return self.complete_watched(side, cqe);
        }
        self.append(side, cqe).map_err(Ending::from)
    }
}

impl QpHost<'_> {
    /// Appends `cqe` to the queue of `side`.
    #[inline]
    pub(super) fn append(&mut self, side: Side, mut cqe: Cqe) -> Result<(), Overrun> {
        if cqe.status != WcStatus::Success {
            self.note_failure(side, cqe);
            cqe = with_vendor_err_of_card(side, cqe);
        }
        if side == Side::Recv && self.qp.service == Service::XrcTgt {
            // A completion for a destroyed SRQ is dropped.
            if let Some(cq) = self.selected.as_ref().and_then(|srq| srq.cq())
                && cq.push(cqe)?
            {
                cq.notify();
            }
            return Ok(());
        }
        let (announce, fires) = match side {
            Side::Send => (VisitOutcome::NOTIFY_SEND_CQ, self.qp.cq(side).push_send(cqe, &mut self.state.unpolled)?),
            Side::Recv => (VisitOutcome::NOTIFY_RECV_CQ, self.qp.cq(side).push(cqe)?),
        };
        self.outcome |= VisitOutcome::when(announce, fires);
        Ok(())
    }
}

impl SharedReceives for QpHost<'_> {
    fn take_shared(&mut self, sges: &mut Vec<Sge>) -> Option<u64> {
        self.selected.as_deref().or(self.qp.srq.as_deref())?.take(sges)
    }

    fn take_tagged(&mut self, tag: Option<u64>, sges: &mut Vec<Sge>) -> Option<(u64, TagFit)> {
        self.qp.srq.as_deref()?.take_tagged(tag, sges)
    }

    fn forget_unexpected(&mut self) {
        if let Some(srq) = self.qp.srq.as_deref() {
            srq.forget_unexpected();
        }
    }

    fn select_srq(&mut self, srqn: u32) -> bool {
        if self.selected.as_ref().is_none_or(|srq| srq.number() != Some(srqn)) {
            self.selected = self.qp.xrc_queues.as_deref().and_then(|queues| queues.find(srqn));
        }
        self.selected.is_some()
    }
}

impl FlowControl for QpHost<'_> {
    #[inline]
    fn packet_cost(payload: u32) -> u32 {
        rcvbuf_cost::packet_cost(payload)
    }

    #[inline]
    fn lone_packet_cost(payload: u32) -> u32 {
        rcvbuf_cost::lone_packet_cost(payload)
    }

    #[inline]
    fn reserve(&mut self, av: &Av, qpn: Qpn, bytes: u32, own: u32) -> bool {
        if self.by_ring && pool(self.qp.service) == Pool::Stream {
            self.state.stalls_at = None;
            return true;
        }
        let key = Key::of(av.dgid, qpn);
        if self.try_reserve(key, bytes, own) {
            self.state.stalls_at = None;
            return true;
        }
        self.state.has_turn = false;
        let pool = pool(self.qp.service);
        if self.state.waits_for != Some(key) {
            self.state.waits_for = Some(key);
            if let Some(flow) = &self.state.flow {
                flow.add_waiter(pool, self.qp.qpn, bytes);
            }
            // Room freed between the refusal and the registration woke no waiter.
            if self.try_reserve(key, bytes, own) {
                return true;
            }
        }
        if pool == Pool::Datagrams || own == 0 {
            self.state.stalls_at.get_or_insert_with(|| self.now.after(stall(pool)));
        }
        if pool == Pool::Datagrams {
            self.qp.engine().flows.set_wants_credits(true);
        }
        false
    }

    fn reserve_in_run(&mut self, av: &Av, qpn: Qpn, bytes: u32) -> bool {
        self.state.flow(Key::of(av.dgid, qpn), self.qp.engine(), self.now).reserve_in_run(bytes)
    }

    fn reserve_ahead(&mut self, av: &Av, qpn: Qpn, bytes: u32) -> bool {
        let key = Key::of(av.dgid, qpn);
        self.by_ring || self.state.flow(key, self.qp.engine(), self.now).reserve_ahead(bytes)
    }

    fn release(&mut self, av: &Av, qpn: Qpn, bytes: u32) {
        let engine = self.qp.engine();
        let flow = self.state.flow(Key::of(av.dgid, qpn), engine, self.now);
        flow.release_stream(bytes, self.now);
        engine.flows.wake(flow);
    }

    fn ack_interval(&mut self, av: &Av, qpn: Qpn) -> u32 {
        self.state.flow(Key::of(av.dgid, qpn), self.qp.engine(), self.now).ack_interval()
    }
}

impl Host for QpHost<'_> {
    fn now(&self) -> Instant {
        self.now
    }
}

/// The part of a [`QpHost`] that persists between visits.
#[derive(Debug, Default)]
pub(super) struct QpHostState {
    /// Flow control window used last.
    pub(super) flow: Option<Arc<Flow>>,
    /// Window in which the queue pair waits for room.
    pub(super) waits_for: Option<Key>,
    /// Time at which the window opens without a release, while the queue pair waits for room.
    pub(super) stalls_at: Option<Instant>,
    /// True while the queue pair has a grant of room after a wait.
    pub(super) has_turn: bool,
    /// Send completions not polled yet.
    pub(super) unpolled: Unpolled,
    pub(super) history: History,
    /// First failure, until it is explained.
    pub(super) failed: Option<Box<Failed>>,
    /// True if a failure was explained since the last reset.
    pub(super) is_explained: bool,
    /// True if the program moved the queue pair to ERR.
    pub(super) ended_by_program: bool,
    /// Probe of the network path, sent when an acknowledgement was overdue.
    pub(super) probe: Option<Box<Probe>>,
    /// Checksums of posted buffers, for the checker.
    pub(super) watch: Watch,
    /// Losses and failures, for statistics.
    pub(super) stats: QpStats,
    /// State of the weakest legal card.
    pub(super) weak: Option<Box<WeakQp>>,
}

impl QpHostState {
    /// Resets the window if credits seem to be lost.
    pub(super) fn on_timer(&mut self, engine: &Engine, service: Service, now: Instant) {
        if self.stalls_at.is_none_or(|at| at > now) {
            return;
        }
        let pool = pool(service);
        // The queue pair keeps its place among the waiters.
        self.stalls_at = self.waits_for.map(|_| now.after(stall(pool)));
        if let Some(flow) = &self.flow {
            match pool {
                Pool::Stream => flow.reset_stream_if_stalled(now),
                Pool::Datagrams if flow.reset_datagrams_if_stalled(now) => engine.scheduler.note_unanswered(now),
                Pool::Datagrams => {}
            }
            engine.flows.wake(flow);
        }
    }

    /// Returns the free slots of a send queue whose state machine has `room`. A send whose
    /// completion is unpolled in `cq` still occupies its slot, so that a program that fills the
    /// send queue never overruns the completion queue.
    // clause: SEND-PLACE
    pub(super) fn free_sends(&mut self, room: u32, cq: &Cq) -> u32 {
        if room <= self.unpolled.len() {
            self.unpolled.forget(cq.polled());
        }
        room.saturating_sub(self.unpolled.len())
    }

    pub(super) fn reset(&mut self) {
        self.unpolled.clear();
        self.failed = None;
        self.probe = None;
        (self.is_explained, self.ended_by_program) = (false, false);
        self.history.reset();
        self.watch = Watch::default();
        self.weak.iter_mut().for_each(|weak| weak.reset());
    }

    #[inline]
    fn flow(&mut self, key: Key, engine: &Engine, now: Instant) -> &Arc<Flow> {
        if self.flow.as_ref().is_some_and(|flow| flow.key() != key) {
            self.flow = None;
        }
        self.flow.get_or_insert_with(|| engine.flows.get(key, now, || engine.receiver_at(key)))
    }
}

/// Returns the completion as a card of the profile reports it.
#[cold]
fn with_vendor_err_of_card(side: Side, cqe: Cqe) -> Cqe {
    let card = config().ok().and_then(|config| config.profile);
    match card.and_then(|card| card.vendor_err(side == Side::Recv, cqe.status)) {
        Some(code) => Cqe { vendor_err: VendorErr(code), ..cqe },
        None => cqe,
    }
}

const fn pool(service: Service) -> Pool {
    if service.is_reliable() { Pool::Stream } else { Pool::Datagrams }
}

/// Returns the time to wait for room before the window opens anyway.
const fn stall(pool: Pool) -> Duration {
    match pool {
        Pool::Stream => STREAM_STALL,
        Pool::Datagrams => STALL,
    }
}
