//! A queue pair under its lock: how a visit begins, transmits and ends.
//!
//! Every entry point is a *visit*: take the lock, run the state machine, transmit, register the
//! timer, drop the lock, announce completions and events. Visits come from the program's verbs
//! ([`super::verbs`], [`super::send`]) and from the engine ([`super::queue_pair`]).

use super::failure::{self, Entry, History};
use super::host::{QpHost, QpHostState};
use super::resources::{QpInit, QpResources};
use crate::event::AsyncEventKind;
use crate::pd::Pd;
use crate::srq::XrcQueues;
use roxe_base::clock;
use roxe_base::config::Explain;
use roxe_base::lock::{Mutex, MutexGuard, rank};
use roxe_base::uses::ObjectId;
use roxe_check::explain::explains;
use roxe_check::{DroppedPacket, Event, emit};
use roxe_engine::engine::Engine;
use roxe_engine::flow_control::Key;
use roxe_engine::poll_policy::DelayedAck;
use roxe_engine::queue_pair::{QueuePair, VisitOutcome};
use roxe_engine::tx::{TxCache, TxPath};
use roxe_memory::guard::SharedBytes;
use roxe_net::raw::FrameSender;
use roxe_net::rcvbuf_cost::cost_of;
use roxe_net::slot::Slot;
use roxe_transport::Qp as Machine;
use roxe_transport::cm::Route;
use roxe_transport::cx::TxState;
use roxe_transport::qp::{DropReason, EarlyPackets, QpConfig, QpEvents, RetryCounts};
use roxe_transport::time::Instant;
use roxe_wire::{Gid, Header, Kind, NetHeader, Packet, Qpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static CREATED: AtomicU32 = AtomicU32::new(0);

/// The part of a queue pair that the engine shares.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(super) resources: QpResources,
    /// True for a receive work queue.
    pub(super) is_work_queue: bool,
    pub(super) inner: Mutex<rank::Qp, Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) machine: Machine,
    pub(super) state: QpHostState,
    /// Packets that arrived before their receive was posted, or out of order, each with the local
    /// sender that waits for its credit.
    pub(super) early: EarlyPackets<Option<Qpn>>,
    pub(super) tx: TxCache,
    /// Link for raw packets.
    pub(super) frames: Option<Arc<FrameSender>>,
    /// Estimates how soon the program responds to its peer.
    pub(super) delayed_ack: DelayedAck,
    /// Earliest deadline registered with the engine.
    pub(super) registered: Option<Instant>,
    /// True while a lone posted request waits for more to share its system call.
    pub(super) coalesces: bool,
    /// True once destroyed, or inherited by the child of a fork.
    pub(super) is_cut_off: bool,
    /// True unless `is_cut_off` is set or the weakest legal card delays sends.
    pub(super) fast_path: bool,
}

impl QpCore {
    pub(super) fn new(
        pd: &Pd,
        engine: &Arc<Engine>,
        init: &QpInit,
        config: QpConfig,
        xrc_queues: Option<&Arc<XrcQueues>>,
        is_work_queue: bool,
    ) -> Self {
        Self {
            resources: QpResources {
                qpn: config.qpn,
                service: init.service,
                id: ObjectId::next(),
                user_context: init.user_context,
                ordinal: CREATED.fetch_add(1, Ordering::Relaxed),
                signals_all: init.sq_sig_all,
                pd_id: pd.id(),
                context: Arc::clone(pd.context()),
                engine: Arc::clone(engine),
                send_cq: Arc::clone(&init.send_cq),
                recv_cq: Arc::clone(&init.recv_cq),
                srq: init.srq.clone(),
                xrc_queues: xrc_queues.cloned(),
                binds: AtomicBool::new(false),
            },
            is_work_queue,
            inner: Mutex::new(Inner {
                machine: Machine::new(config),
                state: QpHostState::default(),
                early: EarlyPackets::default(),
                tx: TxCache::default(),
                frames: None,
                delayed_ack: DelayedAck::default(),
                registered: None,
                coalesces: false,
                is_cut_off: false,
                fast_path: true,
            }),
        }
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Engine {
        self.resources.engine()
    }

    /// Runs `take` on the state machine for `bytes` that arrived; `arrived` is payload that still
    /// lies in a ring. Packets to send are left for [`QueuePair::serve`], unless
    /// `serves_at_once`.
    ///
    /// Returns `None` if `take` returned false or the queue pair was destroyed after the lookup,
    /// else the outcome, and the time until which an acknowledgement is delayed.
    #[inline]
    pub(super) fn receive_visit(
        &self,
        (bytes, arrived): (usize, Option<SharedBytes<'_>>),
        serves_at_once: bool,
        now: Instant,
        take: impl FnOnce(&mut Machine, &mut QpHost<'_>, &mut EarlyPackets<Option<Qpn>>) -> bool,
    ) -> Option<(VisitOutcome, Option<Instant>)> {
        let mut inner = self.inner.lock();
        let Inner { machine, state, early, is_cut_off: false, .. } = &mut *inner else { return None };
        state.stats.received_bytes += bytes as u64;
        let (is_taken, outcome) = {
            let mut host = QpHost::new(&self.resources, state, now);
            host.arrived = arrived;
            (take(machine, &mut host, early), host.outcome)
        };
        is_taken.then(|| {
            let outcome = outcome | self.deliver_early(&mut inner, now);
            let outcome = outcome | VisitOutcome::when(VisitOutcome::IS_CROWDED, inner.early.is_half_full());
            if !inner.machine.has_work() {
                (outcome | self.settle(&mut inner), None)
            } else if serves_at_once {
                let (served, until) = self.serve_locked(&mut inner, now);
                (outcome | served, until)
            } else {
                // `serve` settles as well.
                (outcome | VisitOutcome::HAS_WORK, None)
            }
        })
    }

    /// Sends pending packets, or delays a lone acknowledgement until the returned time.
    #[inline]
    pub(super) fn serve_locked(&self, inner: &mut Inner, now: Instant) -> (VisitOutcome, Option<Instant>) {
        let is_lone_ack = inner.machine.owes_only_ack();
        let until = if is_lone_ack { inner.delayed_ack.on_request(now) } else { None };
        let sent = if until.is_none() { self.transmit(inner, is_lone_ack, now) } else { VisitOutcome::default() };
        (sent | self.settle(inner), until)
    }

    /// Counts a packet with `len` bytes of payload that the state machine dropped, and adds it to
    /// `history` unless the host borrows that.
    #[cold]
    #[inline(never)]
    pub(super) fn count_dropped(
        &self,
        reason: DropReason,
        machine: &Machine,
        history: Option<&mut History>,
        (net, header, len): (&NetHeader, &Header, usize),
    ) {
        if let Some(history) = history {
            history.note(clock::now(), Entry::Dropped(reason, header.bth.psn));
        }
        emit(|| {
            let (src, dst, header, expected) = (net.src, net.dst, *header, machine.expected_psn());
            let packet = Some(DroppedPacket { src, dst, header, len, expected });
            Event::Dropped { qp: self.resources.id, reason, packet }
        });
        self.engine().counters().count_drop(reason);
        failure::note_drop(&self.resources, machine, reason);
    }

    /// Delivers early packets that are next in order or whose wait is over.
    #[inline]
    pub(super) fn deliver_early(&self, inner: &mut Inner, now: Instant) -> VisitOutcome {
        if inner.early.is_empty() { VisitOutcome::default() } else { self.deliver_waiting(inner, now) }
    }

    #[inline(never)]
    fn deliver_waiting(&self, inner: &mut Inner, now: Instant) -> VisitOutcome {
        let Inner { machine, state, early, .. } = inner;
        let mut host = QpHost::new(&self.resources, state, now);
        let mut credits = Credits::default();
        early.deliver(machine, &mut host, |machine, early, result| {
            let packet = early.packet();
            if let Err(reason) = result {
                self.engine().counters().early_dropped.add(1);
                self.count_dropped(reason, machine, None, (&early.net, &packet.header, packet.payload.len()));
            }
            credits.add(&self.resources, early.tag, early.net.dst, &packet);
        });
        credits.return_all(&self.resources);
        host.outcome
    }

    /// Forgets the earlier connection: its state, and early packets that waited for a receive.
    pub(super) fn reset(&self) {
        let mut credits = Credits::default();
        let mut inner = self.inner.lock();
        inner.state.reset();
        for early in inner.early.drain() {
            self.engine().counters().early_dropped.add(1);
            credits.add(&self.resources, early.tag, early.net.dst, &early.packet());
        }
        drop(inner);
        credits.return_all(&self.resources);
    }

    /// Defers a lone posted request if the state machine can wait: until more are posted, the
    /// program polls, or an acknowledgement arrives. Posts then share system calls.
    #[inline]
    pub(super) fn coalesce(&self, inner: &mut Inner) -> bool {
        if inner.is_cut_off || !inner.machine.may_coalesce() {
            return false;
        }
        if !std::mem::replace(&mut inner.coalesces, true) {
            self.engine().flows.push_ready(std::iter::once(self.resources.qpn));
        }
        true
    }

    pub(super) fn visit<R>(&self, now: Instant, f: impl FnOnce(&mut Machine, &mut QpHost<'_>) -> R) -> R {
        let mut inner = self.inner.lock();
        let Inner { machine, state, .. } = &mut *inner;
        let (result, outcome) = {
            let mut host = QpHost::new(&self.resources, state, now);
            (f(machine, &mut host), host.outcome)
        };
        self.end_visit(inner, outcome, now);
        result
    }

    /// Transmits, registers the timer, drops the lock and announces `outcome` and what followed.
    pub(super) fn end_visit(&self, mut inner: MutexGuard<'_, rank::Qp, Inner>, outcome: VisitOutcome, now: Instant) {
        let outcome = outcome | self.transmit(&mut inner, false, now) | self.settle(&mut inner);
        drop(inner);
        self.announce(outcome);
    }

    /// Transmits everything that may be sent now; `is_lone_ack` if that is known to be an
    /// acknowledgement only.
    pub(super) fn transmit(&self, inner: &mut Inner, is_lone_ack: bool, now: Instant) -> VisitOutcome {
        let Inner { machine, state, tx, frames, fast_path: true, .. } = inner else {
            return self.transmit_watched(inner, is_lone_ack, now);
        };
        if !machine.has_work() {
            return VisitOutcome::default();
        }
        let mut host = QpHost::new(&self.resources, state, now);
        let mut tx_path = TxPath::new(self.engine(), tx, self.resources.qpn, self.resources.service.is_reliable());
        tx_path.joins_acks = !is_lone_ack;
        let is_blocked = loop {
            if tx_path.waits_for_send_room(frames.as_deref()) {
                break true;
            }
            let copied = if frames.is_none() { tx_path.lend_copied() } else { None };
            host.begin_batch(copied, tx_path.by_ring(), tx_path.rings());
            let tx_state = machine.poll_transmit(&mut host, &mut tx_path);
            if let Some(copied) = host.end_batch() {
                tx_path.note_copied(copied);
            }
            let may_go_on = match frames {
                None => tx_path.flush(self.resources.ordinal),
                Some(frames) => tx_path.flush_frames(frames),
            };
            if !may_go_on {
                break true;
            }
            if tx_state == TxState::Drained {
                break false;
            }
        };
        if is_blocked {
            machine.on_link_full(now);
        }
        tx_path.put_back();
        if is_blocked && !self.resources.service.is_reliable() {
            host.state.stalls_at.get_or_insert_with(|| now.after(TxPath::ROOM_TIMEOUT));
        }
        host.outcome
    }

    /// Ends the flow control turn, registers the next timer, and collects events and counts.
    pub(super) fn settle(&self, inner: &mut Inner) -> VisitOutcome {
        inner.state.has_turn = false;
        let next = earlier(earlier(inner.machine.poll_timeout(), inner.state.stalls_at), inner.early.deadline());
        if let Some(next) = next
            && inner.registered.is_none_or(|registered| next < registered)
        {
            inner.registered = Some(next);
            self.engine().scheduler.add_timer(next, self.resources.qpn);
        }
        if let Some(counts) = inner.machine.take_congestion_counts() {
            self.engine().counters().count_congestion(counts);
        }
        if let Some(counts) = inner.machine.take_retry_counts() {
            self.note_retries(inner, counts);
        }
        VisitOutcome::from_bits_retain(inner.machine.poll_event().bits().into())
    }

    #[cold]
    #[inline(never)]
    fn note_retries(&self, inner: &mut Inner, counts: RetryCounts) {
        let (now, probe) = (clock::now(), inner.machine.probe());
        inner.state.history.note(now, Entry::Retried(counts, [probe.una, probe.sent]));
        emit(|| Event::Retried { qp: self.resources.id, counts });
        self.engine().counters().count_retries(counts);
        inner.state.stats.add_retries(counts);
        if counts.local_ack_timeout_err > 0 {
            // Probe the path to another host at the first timeout: later retries use up the ICMP
            // errors that a host sends per second.
            let av = inner.machine.attr().av;
            if explains() > Explain::Off && inner.state.probe.is_none() && self.engine().link(av.dgid).is_none() {
                let route = Route { local: av.sgid, remote: av.dgid };
                inner.state.probe = self.engine().probe(route).ok().map(Box::new);
            }
            self.engine().scheduler.note_unanswered(now);
        }
    }

    #[cold]
    pub(super) fn explain_failure(&self) {
        let mut inner = self.inner.lock();
        self.report_state(&mut inner);
        let Some(failed) = inner.state.failed.take() else { return };
        inner.state.is_explained = true;
        let (attr, unanswered) = (*inner.machine.attr(), inner.machine.unanswered());
        let (probe, history) = (inner.state.probe.take(), inner.state.history.lines());
        drop(inner);
        failed.explain(&self.resources, &attr, unanswered, probe.as_deref(), history);
    }

    /// Reports a state that the card itself may have changed.
    fn report_state(&self, inner: &mut Inner) {
        inner.state.history.note_state(clock::now(), inner.machine.state());
        emit(|| Event::StateChanged { qp: self.resources.id, state: inner.machine.state() });
    }

    /// Raises asynchronous events. Holds the lock, so that none follows `Qp::destroy`, which
    /// discards pending ones.
    #[cold]
    pub(super) fn raise(&self, events: QpEvents) {
        let mut inner = self.inner.lock();
        self.report_state(&mut inner);
        let is_cut_off = inner.is_cut_off;
        let raised = EVENTS.iter().filter(|(flag, _)| events.contains(*flag));
        for (_, kind) in raised.filter(|_| !is_cut_off) {
            // A work queue has one event only.
            let kind = if self.is_work_queue { AsyncEventKind::WqFatal } else { *kind };
            inner.state.history.note(clock::now(), Entry::Raised(kind));
            self.resources.context.raise(kind, self.resources.user_context, self.resources.id);
        }
    }
}

#[inline]
fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => a.or(b),
    }
}

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

/// Flow control credits for datagrams read from the socket, summed up per sender. Senders on this
/// host wait for these credits.
#[derive(Debug, Default)]
pub(super) struct Credits {
    creditor: Option<(Qpn, Gid)>,
    bytes: u32,
}

impl Credits {
    pub(super) fn add(&mut self, qp: &QpResources, creditor: Option<Qpn>, dst: Gid, packet: &Packet<'_>) {
        let Some(from) = creditor else { return };
        if self.creditor != Some((from, dst)) {
            self.return_all(qp);
            self.creditor = Some((from, dst));
        }
        self.bytes += cost_of(&packet.header.kind, packet.payload.len());
    }

    /// Records the sum as owed; the engine sends it.
    pub(super) fn return_all(&mut self, qp: &QpResources) {
        if let Some((from, dst)) = self.creditor.take() {
            qp.engine().flows.owe(Slot::of(from), Key::of(dst, qp.qpn), std::mem::take(&mut self.bytes));
        }
    }
}

/// Returns the queue pair that sent a packet if its service has no acknowledgements.
pub(super) fn sender_of(machine: &Machine, packet: &Packet<'_>) -> Option<Qpn> {
    match packet.header.kind {
        Kind::Ud { deth, .. } => Some(deth.src_qpn),
        Kind::UcRequest(_) => Some(machine.attr().dest_qpn),
        _ => None,
    }
}
