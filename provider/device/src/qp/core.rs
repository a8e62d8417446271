//! A queue pair as the engine sees it: found by number, handed packets and timers, asked to send.
//!
//! Every way in is a *visit*: take the lock, let the state machine work, send what it has to send, register its timer, drop
//! the lock, announce completions and events.

mod frames;
mod xrc_requests;

use super::QpInit;
use crate::cq::Cq;
use crate::device::Context;
use crate::event::AsyncEventKind;
use crate::host::{Path, QpHost};
use crate::pd::Pd;
use crate::srq::Srq;
use crate::xrcd::Xrcd;
use roxe_base::clock;
use roxe_base::lock::{Lockable, Mutex, MutexGuard, rank};
use roxe_base::uses::ObjectId;
use roxe_engine::delayed_ack::DelayedAck;
use roxe_engine::engine::Engine;
use roxe_engine::flow_control::{Grant, Key};
use roxe_engine::queue_pair::{QueuePair, VisitOutcome};
use roxe_engine::run::{Joined, Run, RxTools, header_of};
use roxe_engine::tx::{TxCache, TxPath};
use roxe_memory::guard::SharedBytes;
use roxe_memory::region::{PdId, Reach};
use roxe_memory::table::MemoryTable;
use roxe_net::forward::XrcRequestId;
use roxe_net::frames::FrameSender;
use roxe_net::link::RxMeta;
use roxe_net::rcvbuf_cost::charge_of;
use roxe_net::slot::Slot;
use roxe_transport::Qp as Machine;
use roxe_transport::cx::{RxPayload, Side, TxState};
use roxe_transport::qp::{
    AttrMask, DropReason, EarlyPackets, FrameNote, Outcome, QpAttr, QpConfig, QpEvents, QpState, Service,
};
use roxe_transport::time::Instant;
use roxe_wire::{Gid, Kind, NetHeader, Packet, PacketReader, Qpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Queue pairs created in this process.
static CREATED: AtomicU32 = AtomicU32::new(0);

/// What the engine knows of a queue pair.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(super) qpn: Qpn,
    /// Counts the queue pairs of this process, from 0.
    ordinal: u32,
    pub(super) service: Service,
    pub(super) id: ObjectId,
    pub(super) user: u64,
    pd_id: PdId,
    pub(super) context: Arc<Context>,
    pub(super) send_cq: Arc<Cq>,
    pub(super) recv_cq: Arc<Cq>,
    pub(super) srq: Option<Arc<Srq>>,
    /// Its receives are those of a work queue, and so are its events.
    is_work_queue: bool,
    /// Of an XRC target.
    xrcd: Option<Arc<Xrcd>>,
    /// Whether it ever bound a memory window.
    binds: AtomicBool,
    pub(super) inner: Mutex<rank::Qp, Inner>,
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) machine: Machine,
    pub(super) path: Path,
    /// What came before its receive was posted, or before packets in front of it; with the queue pair of a sender on this
    /// host, which waits for credit.
    pub(super) early: EarlyPackets<Option<Qpn>>,
    /// The ways used last.
    tx: TxCache,
    /// The link of raw packets.
    pub(super) frames: Option<Arc<FrameSender>>,
    /// How quickly the program answers its peer.
    pub(super) delayed_ack: DelayedAck,
    /// The deadline registered with the engine.
    registered: Option<Instant>,
    /// What is posted waits for company, and the engine will serve it at the next poll.
    gathers: bool,
    /// Destroyed, or inherited by the child of a fork.
    pub(super) is_cut_off: bool,
}

impl QpCore {
    pub(super) fn new(pd: &Arc<Pd>, init: &QpInit, config: QpConfig, xrcd: Option<&Arc<Xrcd>>) -> Self {
        Self {
            qpn: config.qpn,
            ordinal: CREATED.fetch_add(1, Ordering::Relaxed),
            service: config.service,
            id: ObjectId::next(),
            user: init.user,
            pd_id: pd.id(),
            context: Arc::clone(pd.context()),
            send_cq: Arc::clone(&init.send_cq),
            recv_cq: Arc::clone(&init.recv_cq),
            srq: init.srq.clone(),
            xrcd: xrcd.cloned(),
            is_work_queue: false,
            binds: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                machine: Machine::new(config),
                path: Path::default(),
                early: EarlyPackets::default(),
                tx: TxCache::default(),
                frames: None,
                delayed_ack: DelayedAck::default(),
                registered: None,
                gathers: false,
                is_cut_off: false,
            }),
        }
    }

    /// The same as the receiving half that a work queue is.
    pub(super) fn of_work_queue(self, is_work_queue: bool) -> Self {
        Self { is_work_queue, ..self }
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.context.engine()
    }

    pub(crate) fn memory(&self) -> &MemoryTable {
        self.context.memory()
    }

    /// Which memory its peer may reach.
    pub(crate) fn reach(&self) -> Reach {
        Reach { pd: self.pd_id, qp: Some(self.id) }
    }

    /// It binds a memory window.
    pub(crate) fn note_binding(&self) {
        self.binds.store(true, Ordering::Relaxed);
    }

    /// Closes the memory windows that only its peer could use; nothing can bind more.
    pub(super) fn close_windows(&self) {
        if self.binds.load(Ordering::Relaxed) {
            self.memory().forget_qp(self.id);
        }
    }

    pub(crate) fn cq(&self, side: Side) -> &Cq {
        match side {
            Side::Send => &self.send_cq,
            Side::Recv => &self.recv_cq,
        }
    }

    pub(crate) fn srq(&self) -> Option<&Srq> {
        self.srq.as_deref()
    }

    pub(crate) fn xrcd(&self) -> Option<&Xrcd> {
        self.xrcd.as_deref()
    }

    fn end_receiving(&self, inner: &mut Inner, report: VisitOutcome, now: Instant) -> VisitOutcome {
        let report = report | self.hand_over_early(inner, now);
        let report = report | VisitOutcome::when(VisitOutcome::IS_CROWDED, inner.early.is_half_full());
        // Who serves it settles.
        if inner.machine.has_work() { report | VisitOutcome::HAS_WORK } else { report | self.settle(inner) }
    }

    /// Counts a packet that the state machine did not want.
    fn count(&self, result: Result<(), DropReason>) {
        if let Err(reason) = result {
            self.engine().counters().count_drop(reason);
        }
    }

    /// Hands over packets that came early, as far as their turn has come or they have waited long enough.
    #[inline]
    fn hand_over_early(&self, inner: &mut Inner, now: Instant) -> VisitOutcome {
        if inner.early.is_empty() { VisitOutcome::default() } else { self.hand_over_waiting(inner, now) }
    }

    #[inline(never)]
    fn hand_over_waiting(&self, inner: &mut Inner, now: Instant) -> VisitOutcome {
        let Inner { machine, path, early, .. } = inner;
        let mut host = QpHost::new(self, path, now);
        let mut taken = Taken::default();
        early.hand_over(machine, &mut host, |early, result| {
            self.count(result);
            taken.add(self, early.tag, early.net.dst, &early.packet());
        });
        taken.settle(self);
        host.end()
    }

    /// A receive was posted while packets waited for it, or in the error state.
    pub(super) fn receive_early(&self, mut inner: MutexGuard<'_, rank::Qp, Inner>, now: Instant) {
        let report = self.hand_over_early(&mut inner, now);
        self.finish_with(inner, report, now);
        self.engine().send_credits(now);
    }

    /// Leaves a request that was posted for later, if the state machine can wait: until more are posted, the program polls
    /// or waits, or an acknowledgement comes, whatever is first. Posting one by one then costs 1/32 of a system call.
    #[inline]
    pub(super) fn put_off(&self, inner: &mut Inner) -> bool {
        if inner.is_cut_off || !inner.machine.may_coalesce() {
            return false;
        }
        if !std::mem::replace(&mut inner.gathers, true) {
            self.engine().flows().push_ready(std::iter::once(self.qpn));
        }
        true
    }

    /// Runs `f` under the lock, then sends, and reports without the lock.
    pub(super) fn visit<R>(&self, now: Instant, f: impl FnOnce(&mut Machine, &mut QpHost<'_>) -> R) -> R {
        let mut inner = self.inner.lock();
        let Inner { machine, path, .. } = &mut *inner;
        let mut host = QpHost::new(self, path, now);
        let result = f(machine, &mut host);
        let report = host.end();
        self.finish_with(inner, report, now);
        result
    }

    /// Ends a visit.
    pub(super) fn finish(&self, inner: MutexGuard<'_, rank::Qp, Inner>, now: Instant) {
        self.finish_with(inner, VisitOutcome::default(), now);
    }

    /// Ends a visit that already has something to report.
    fn finish_with(&self, mut inner: MutexGuard<'_, rank::Qp, Inner>, report: VisitOutcome, now: Instant) {
        let report = report | self.transmit(&mut inner, now) | self.settle(&mut inner);
        drop(inner);
        self.announce(report);
        if self.service == Service::XrcTgt && self.engine().has_xrc_messages() {
            self.engine().send_credits(now);
        }
    }

    /// Sends everything that may be sent, in the order of the state machine.
    fn transmit(&self, inner: &mut Inner, now: Instant) -> VisitOutcome {
        let Inner { machine, path, tx, frames, is_cut_off: false, .. } = inner else { return VisitOutcome::default() };
        if !machine.has_work() {
            return VisitOutcome::default();
        }
        let mut is_blocked = false;
        let mut host = QpHost::new(self, path, now);
        let mut tx_path = TxPath::new(self.engine(), tx, self.qpn, self.service.is_reliable());
        loop {
            if tx_path.waits_for_send_room(frames.as_deref()) {
                machine.on_link_full(now);
                is_blocked = true;
                break;
            }
            let copied = if frames.is_none() { tx_path.lend_copied() } else { None };
            host.begin_batch(copied, tx_path.by_ring(), tx_path.rings());
            let state = machine.poll_transmit(&mut host, &mut tx_path);
            if let Some(copied) = host.end_batch() {
                tx_path.note_copied(copied);
            }
            let may_go_on = match frames {
                None => tx_path.flush(self.ordinal),
                Some(frames) => tx_path.flush_frames(frames),
            };
            if !may_go_on {
                machine.on_link_full(now);
                is_blocked = true;
                break;
            }
            if state == TxState::Drained {
                break;
            }
        }
        tx_path.put_back();
        let report = host.end();
        if is_blocked && !self.service.is_reliable() {
            path.wait_until(now.after(TxPath::PATIENCE));
        }
        report
    }

    /// Ends its turn if it had one, registers the next timer, and collects events and counts.
    fn settle(&self, inner: &mut Inner) -> VisitOutcome {
        inner.path.end_turn();
        // In the error state READs that came before are still answered.
        if inner.path.has_xrc_requests() && !inner.machine.state().accepts_requests() && !inner.machine.has_work() {
            inner.path.end_xrc_requests(self.engine());
        }
        let patience = earlier(inner.early.deadline(), inner.path.xrc_requests_deadline());
        let next = earlier(earlier(inner.machine.poll_timeout(), inner.path.deadline()), patience);
        if let Some(next) = next
            && inner.registered.is_none_or(|registered| next < registered)
        {
            inner.registered = Some(next);
            self.engine().add_timer(next, self.qpn);
        }
        if let Some(met) = inner.machine.take_congestion_counts() {
            self.engine().counters().count_congestion(met);
        }
        if let Some(met) = inner.machine.take_retry_counts() {
            self.engine().counters().count_retries(met);
            if met.local_ack_timeout_err > 0 {
                self.engine().note_unanswered(clock::now());
            }
        }
        let events = VisitOutcome::from_bits_retain(inner.machine.poll_event().bits().into());
        events | VisitOutcome::when(VisitOutcome::HAS_WORK, inner.machine.has_work())
    }

    /// Queues asynchronous events, under the lock: none may come after `Qp::destroy` has forgotten those that came.
    fn raise(&self, events: QpEvents) {
        let inner = self.inner.lock();
        for (_, kind) in EVENTS.iter().filter(|(flag, _)| events.contains(*flag) && !inner.is_cut_off) {
            // Nothing else can happen to one.
            let kind = if self.is_work_queue { AsyncEventKind::WqFatal } else { *kind };
            self.context.raise(kind, self.user, self.id);
        }
    }
}

impl QpCore {
    /// Its number.
    #[inline]
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its transport service.
    #[inline]
    pub(crate) fn service(&self) -> Service {
        self.service
    }
}

impl QueuePair for QpCore {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn ordinal(&self) -> u32 {
        self.ordinal
    }

    fn service(&self) -> Service {
        self.service
    }

    fn receive(&self, run: Run<'_>, tools: &mut RxTools<'_>, now: Instant) -> VisitOutcome {
        let mut inner = self.inner.lock();
        if inner.is_cut_off {
            // It was destroyed after it was found.
            self.engine().counters().unknown_qp.add(run.count());
            return VisitOutcome::default();
        }
        let Inner { machine, path, early, .. } = &mut *inner;
        let mut host = QpHost::new(self, path, now);
        let mut taken = Taken::default();
        let (mut net, mut reader) = (header_of(run.meta, run.index), PacketReader::default());
        if run.meta.sealed {
            tools.ident.begin_run(&net);
        }
        for (index, bytes) in run.packets() {
            net.ident = index;
            // clause: ICRC-WRONG
            if run.meta.sealed && !tools.ident.verify(bytes, index) {
                self.engine().counters().icrc_errors.add(1);
                continue;
            }
            let Ok(packet) = reader.parse(bytes) else {
                self.engine().counters().malformed.add(1);
                continue;
            };
            if self.service == Service::XrcTgt && !tools.starved && host.hold(machine, &net, packet, bytes) {
                continue;
            }
            let sender = sender_of(machine, packet).filter(|_| tools.owes_credit(net.src, net.dst));
            let creditor = sender.filter(|_| !run.meta.by_ring);
            let may_have_overtaken = || sender.is_some() || tools.may_overtake(net.src);
            if !tools.starved && early.keep(machine, &mut host, (&net, packet), creditor, may_have_overtaken) {
                continue;
            }
            if tools.starved {
                self.count(machine.handle_packet_starved(&mut host, &net, packet));
            } else {
                self.count(machine.handle_packet(&mut host, &net, packet));
            }
            taken.add(self, creditor, net.dst, packet);
        }
        taken.settle(self);
        let report = host.end();
        self.end_receiving(&mut inner, report, now)
    }

    fn receive_joined(&self, meta: &RxMeta, packets: &Joined<'_>, now: Instant) -> Option<VisitOutcome> {
        let mut inner = self.inner.lock();
        if inner.is_cut_off {
            return None;
        }
        let Inner { machine, path, .. } = &mut *inner;
        let mut host = QpHost::new(self, path, now).with_arrived(packets.payload);
        let payload = RxPayload::Shared { at: 0, len: packets.payload.len() };
        let is_taken = machine.handle_joined(&mut host, &header_of(meta, 0), &packets.first, packets.len, payload);
        let report = host.end();
        is_taken.then(|| self.end_receiving(&mut inner, report, now))
    }

    fn takes_shared_payload(&self) -> bool {
        self.service == Service::Rc && self.srq.is_none()
    }

    fn receive_shared(
        &self,
        meta: &RxMeta,
        (copies, head): (&[u8], usize),
        shared: SharedBytes<'_>,
        now: Instant,
    ) -> VisitOutcome {
        let mut inner = self.inner.lock();
        if inner.is_cut_off {
            return VisitOutcome::default();
        }
        let Inner { machine, path, .. } = &mut *inner;
        let mut host = QpHost::new(self, path, now).with_arrived(shared);
        let (net, mut reader) = (header_of(meta, 0), PacketReader::default());
        for (index, bytes) in copies.chunks(meta.segment).enumerate() {
            let Ok(packet) = reader.parse(bytes) else {
                self.engine().counters().malformed.add(1);
                continue;
            };
            let (len, before) = (packet.payload.len(), packet.header.padded_len(0));
            let payload = if before + len <= head {
                RxPayload::Bytes(packet.payload)
            } else {
                RxPayload::Shared { at: index * meta.segment + before, len }
            };
            let net = NetHeader { ident: index as u16, ..net };
            self.count(machine.handle_with_payload(&mut host, &net, &packet.header, payload));
        }
        let report = host.end();
        self.end_receiving(&mut inner, report, now)
    }

    fn is_crowded(&self) -> bool {
        self.inner.lock().early.is_half_full()
    }

    fn return_credit(&self, packet: &Packet<'_>, net: &NetHeader, tools: &RxTools<'_>) {
        let sender = sender_of(&self.inner.lock().machine, packet);
        let creditor = sender.filter(|_| tools.owes_credit(net.src, net.dst));
        let mut taken = Taken::default();
        taken.add(self, creditor, net.dst, packet);
        taken.settle(self);
    }

    fn serve(&self, now: Instant) {
        self.visit(now, |_, _| {});
    }

    fn serve_or_wait(&self, report: VisitOutcome, now: Instant) -> Option<Instant> {
        let mut inner = self.inner.lock();
        let until = if inner.machine.owes_only_ack() { inner.delayed_ack.on_request(now) } else { None };
        if until.is_none() {
            self.finish_with(inner, report, now);
        } else {
            let report = report | self.settle(&mut inner);
            drop(inner);
            self.announce(report);
        }
        until
    }

    fn end_waiting(&self, now: Instant) {
        let mut inner = self.inner.lock();
        if inner.machine.has_work() {
            inner.delayed_ack.on_silence();
            self.finish(inner, now);
        }
    }

    fn serve_waiter(&self, grant: Option<Grant>, now: Instant) {
        let mut inner = self.inner.lock();
        // Who only waited for company has no turn.
        if !std::mem::take(&mut inner.gathers) || grant.is_some() {
            inner.path.begin_turn();
        }
        inner.tx.stop_waiting();
        drop(grant);
        self.finish(inner, now);
    }

    fn on_timer(&self, deadline: Instant, now: Instant) {
        let mut inner = self.inner.lock();
        if inner.registered != Some(deadline) {
            return;
        }
        inner.registered = None;
        if inner.path.deadline().is_some_and(|at| at <= now) && !self.service.is_reliable() {
            inner.tx.end_patience(self.engine());
        }
        inner.path.on_timer(self.engine(), self.service, now);
        inner.path.ask_again(self.engine(), now);
        let looks = inner.early.deadline().is_some_and(|at| at <= now);
        let mut report = if looks { self.hand_over_early(&mut inner, now) } else { VisitOutcome::default() };
        let Inner { machine, path, tx, .. } = &mut *inner;
        if machine.poll_timeout().is_some_and(|at| at <= deadline) {
            if tx.link_moved(self.engine()) {
                machine.on_link_moved(now);
            }
            let mut host = QpHost::new(self, path, now);
            machine.handle_timeout(&mut host);
            report |= host.end();
        }
        self.finish_with(inner, report, now);
        if looks {
            self.engine().send_credits(now);
        }
    }

    fn announce(&self, report: VisitOutcome) {
        if report.contains(VisitOutcome::ANNOUNCE_SEND) {
            self.send_cq.notify();
        }
        if report.contains(VisitOutcome::ANNOUNCE_RECV) {
            self.recv_cq.notify();
        }
        if report.intersects(VisitOutcome::EVENTS) {
            self.raise(QpEvents::from_bits_truncate(report.bits() as u8));
        }
    }

    fn cut_off(&self) -> bool {
        let mut inner = self.inner.lock();
        let Inner { machine, path, early, tx, frames, is_cut_off, .. } = &mut *inner;
        let is_first = !std::mem::replace(is_cut_off, true);
        if is_first {
            *tx = TxCache::default();
            *frames = None;
            self.engine().counters().unknown_qp.add(early.len() as u64);
            *early = EarlyPackets::default();
            path.end_xrc_requests(self.engine());
            // To RESET is allowed from every state; it gives back what is reserved.
            let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
            let _ = machine.modify(&mut QpHost::new(self, path, clock::now()), &attr, AttrMask::STATE);
        }
        is_first
    }

    fn raw(&self) -> &dyn Lockable {
        &self.inner
    }

    fn receive_frame(&self, frame: &[u8], note: FrameNote, now: Instant) -> VisitOutcome {
        self.receive_frame(frame, note, now)
    }

    fn take_result(&self, result: (XrcRequestId, Outcome, &[u8]), now: Instant) -> VisitOutcome {
        self.take_result(result, now)
    }
}

/// The earlier of two deadlines.
#[inline]
fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => a.or(b),
    }
}

/// Datagrams that were taken out of the socket, summed up as long as they have one sender.
#[derive(Debug, Default)]
struct Taken {
    creditor: Option<(Qpn, Gid)>,
    bytes: u32,
}

impl Taken {
    fn add(&mut self, qp: &QpCore, creditor: Option<Qpn>, dst: Gid, packet: &Packet<'_>) {
        let Some(from) = creditor else { return };
        if self.creditor != Some((from, dst)) {
            self.settle(qp);
            self.creditor = Some((from, dst));
        }
        self.bytes += charge_of(&packet.header.kind, packet.payload.len());
    }

    /// Notes what is owed.
    fn settle(&mut self, qp: &QpCore) {
        if let Some((from, dst)) = self.creditor.take() {
            qp.engine().flows().owe(Slot::of(from), Key::of(dst, qp.qpn), std::mem::take(&mut self.bytes));
        }
    }
}

/// The queue pair that sent a packet, if it is of a service without acknowledgements.
fn sender_of(machine: &Machine, packet: &Packet<'_>) -> Option<Qpn> {
    match packet.header.kind {
        Kind::Ud { deth, .. } => Some(deth.src_qpn),
        Kind::UcRequest(_) => Some(machine.attr().dest_qpn),
        _ => None,
    }
}

/// Asynchronous events of the state machine and their numbers.
const EVENTS: [(QpEvents, AsyncEventKind); 8] = [
    (QpEvents::COMM_EST, AsyncEventKind::CommEst),
    (QpEvents::SQ_DRAINED, AsyncEventKind::SqDrained),
    (QpEvents::FATAL, AsyncEventKind::QpFatal),
    (QpEvents::REQ_ERR, AsyncEventKind::QpReqErr),
    (QpEvents::ACCESS_ERR, AsyncEventKind::QpAccessErr),
    (QpEvents::LAST_WQE_REACHED, AsyncEventKind::QpLastWqeReached),
    (QpEvents::PATH_MIG, AsyncEventKind::PathMig),
    (QpEvents::PATH_MIG_ERR, AsyncEventKind::PathMigErr),
];

#[cfg(test)]
mod tests;
