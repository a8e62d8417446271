//! A queue pair under its lock: how a visit begins, sends and ends.
//!
//! Every way in is a *visit*: take the lock, let the state machine work, send what it has to send,
//! register its timer, drop the lock, announce completions and events. Who visits are the verbs of
//! a program ([`super`]) and the engine ([`super::queue_pair`]).

use super::failure::{self, Circumstances, Entry, History};
use super::host::{QpHost, QpHostState};
use super::resources::{QpInit, QpResources};
use crate::event::AsyncEventKind;
use crate::pd::Pd;
use crate::srq::XrcQueues;
use roxe_base::clock;
use roxe_base::config::Explain;
use roxe_base::lock::{Mutex, MutexGuard, rank};
use roxe_check::explain::explains;
use roxe_check::{Arrived, Event, tell};
use roxe_engine::engine::Engine;
use roxe_engine::flow_control::Key;
use roxe_engine::poll_policy::DelayedAck;
use roxe_engine::queue_pair::{QueuePair, VisitOutcome};
use roxe_engine::tx::{TxCache, TxPath};
use roxe_memory::guard::SharedBytes;
use roxe_net::raw::FrameSender;
use roxe_net::rcvbuf_cost::charge_of;
use roxe_net::slot::Slot;
use roxe_transport::Qp as Machine;
use roxe_transport::cm::Route;
use roxe_transport::cx::TxState;
use roxe_transport::qp::{DropReason, EarlyPackets, QpConfig, QpEvents, RetryCounts};
use roxe_transport::time::Instant;
use roxe_wire::{Gid, Header, Kind, NetHeader, Packet, Qpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Queue pairs created in this process.
static CREATED: AtomicU32 = AtomicU32::new(0);

/// A queue pair: what is fixed, and what its lock guards.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(super) resources: QpResources,
    /// Counts the queue pairs of this process, from 0.
    pub(super) ordinal: u32,
    /// Its receives are those of a work queue, and so are its events.
    is_work_queue: bool,
    pub(super) inner: Mutex<rank::Qp, Inner>,
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) machine: Machine,
    pub(super) state: QpHostState,
    /// What came before its receive was posted, or before packets in front of it; with the queue
    /// pair of a sender on this host, which waits for credit.
    pub(super) early: EarlyPackets<Option<Qpn>>,
    /// What was used last to send.
    pub(super) tx: TxCache,
    /// The link of raw packets.
    pub(super) frames: Option<Arc<FrameSender>>,
    /// How quickly the program answers its peer.
    pub(super) delayed_ack: DelayedAck,
    /// The deadline registered with the engine.
    pub(super) registered: Option<Instant>,
    /// What is posted waits for more, and the engine will serve it at the next poll.
    pub(super) coalesces: bool,
    /// Destroyed, or inherited by the child of a fork.
    pub(super) is_cut_off: bool,
    /// It sends as always: it is not cut off, and nothing changes what the card does.
    pub(super) is_usual: bool,
}

impl QpCore {
    /// A queue pair in RESET with what `init` names. Without `xrc_queues` it is no XRC target.
    pub(super) fn new(
        pd: &Pd,
        engine: &Arc<Engine>,
        init: &QpInit,
        config: QpConfig,
        xrc_queues: Option<&Arc<XrcQueues>>,
        is_work_queue: bool,
    ) -> Self {
        Self {
            resources: QpResources::new(pd, engine, init, config.qpn, xrc_queues),
            ordinal: CREATED.fetch_add(1, Ordering::Relaxed),
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
                is_usual: true,
            }),
        }
    }

    /// What sends and receives for it.
    #[inline]
    pub(crate) fn engine(&self) -> &Engine {
        self.resources.engine()
    }

    /// A visit in which `take` takes in `bytes` that have come, some of them not copied yet from
    /// where they `arrived`; what there is to send is left for [`QueuePair::serve`].
    /// `None`: `take` took nothing, or was not called, as the queue pair was destroyed after it was
    /// found.
    #[inline]
    pub(super) fn take_in(
        &self,
        (bytes, arrived): (usize, Option<SharedBytes<'_>>),
        now: Instant,
        take: impl FnOnce(&mut Machine, &mut QpHost<'_>, &mut EarlyPackets<Option<Qpn>>) -> bool,
    ) -> Option<VisitOutcome> {
        let mut inner = self.inner.lock();
        let Inner { machine, state, early, is_cut_off: false, .. } = &mut *inner else { return None };
        state.met.received_bytes += bytes as u64;
        let mut host = QpHost::new(&self.resources, state, now).with_arrived(arrived);
        let is_taken = take(machine, &mut host, early);
        let report = host.end();
        is_taken.then(|| {
            let report = report | self.hand_over_early(&mut inner, now);
            let report = report | VisitOutcome::when(VisitOutcome::IS_CROWDED, inner.early.is_half_full());
            // Whoever serves it will settle, too.
            if inner.machine.has_work() { report | VisitOutcome::HAS_WORK } else { report | self.settle(&mut inner) }
        })
    }

    /// Counts a frame that the state machine did not want.
    pub(super) fn count(&self, result: Result<(), DropReason>) {
        if let Err(reason) = result {
            tell(|| Event::Dropped { qp: self.resources.id, reason, packet: None });
            self.engine().counters().count_drop(reason);
        }
    }

    /// Counts a packet with `len` bytes of payload that the state machine did not want; `history`
    /// is that of the queue pair, unless somebody else has hold of it.
    #[inline]
    pub(super) fn count_packet(
        &self,
        result: Result<(), DropReason>,
        machine: &Machine,
        history: Option<&mut History>,
        (net, header, len): (&NetHeader, &Header, usize),
    ) {
        if let Err(reason) = result {
            self.count_dropped(reason, machine, history, (net, header, len));
        }
    }

    #[cold]
    #[inline(never)]
    fn count_dropped(
        &self,
        reason: DropReason,
        machine: &Machine,
        history: Option<&mut History>,
        (net, header, len): (&NetHeader, &Header, usize),
    ) {
        if let Some(history) = history {
            history.note(clock::now(), Entry::Dropped(reason, header.bth.psn));
        }
        tell(|| {
            let (src, dst, header, expected) = (net.src, net.dst, *header, machine.expected_psn());
            let packet = Some(Arrived { src, dst, header, len, expected });
            Event::Dropped { qp: self.resources.id, reason, packet }
        });
        self.engine().counters().count_drop(reason);
        failure::note_drop(&self.resources, machine, reason);
    }

    /// Hands over packets that came early, as far as their turn has come or they have waited long
    /// enough.
    #[inline]
    pub(super) fn hand_over_early(&self, inner: &mut Inner, now: Instant) -> VisitOutcome {
        if inner.early.is_empty() { VisitOutcome::default() } else { self.hand_over_waiting(inner, now) }
    }

    #[inline(never)]
    fn hand_over_waiting(&self, inner: &mut Inner, now: Instant) -> VisitOutcome {
        let Inner { machine, state, early, .. } = inner;
        let mut host = QpHost::new(&self.resources, state, now);
        let mut credits = Credits::default();
        early.hand_over(machine, &mut host, |machine, early, result| {
            let packet = early.packet();
            if result.is_err() {
                self.engine().counters().early_dropped.add(1);
            }
            self.count_packet(result, machine, None, (&early.net, &packet.header, packet.payload.len()));
            credits.add(&self.resources, early.tag, early.net.dst, &packet);
        });
        credits.return_all(&self.resources);
        host.end()
    }

    /// A receive was posted while packets waited for it, or in the error state.
    pub(super) fn receive_early(&self, mut inner: MutexGuard<'_, rank::Qp, Inner>, now: Instant) {
        let report = self.hand_over_early(&mut inner, now);
        self.end_visit(inner, report, now);
        self.engine().send_credits(now);
    }

    /// Leaves a request that was posted for later, if the state machine can wait: until more are
    /// posted, the program polls or waits, or an acknowledgement comes, whatever is first. Posting
    /// one by one then costs 1/32 of a system call.
    #[inline]
    pub(super) fn coalesce(&self, inner: &mut Inner) -> bool {
        if inner.is_cut_off || !inner.machine.may_coalesce() {
            return false;
        }
        if !std::mem::replace(&mut inner.coalesces, true) {
            self.engine().flows().push_ready(std::iter::once(self.resources.qpn));
        }
        true
    }

    /// Runs `f` under the lock, then sends, and reports without the lock.
    pub(super) fn visit<R>(&self, now: Instant, f: impl FnOnce(&mut Machine, &mut QpHost<'_>) -> R) -> R {
        let mut inner = self.inner.lock();
        let Inner { machine, state, .. } = &mut *inner;
        let mut host = QpHost::new(&self.resources, state, now);
        let result = f(machine, &mut host);
        let report = host.end();
        self.end_visit(inner, report, now);
        result
    }

    /// Ends a visit: sends what there is to send, registers the timer, and tells the program of
    /// `report` and of what came of this, without the lock.
    pub(super) fn end_visit(&self, mut inner: MutexGuard<'_, rank::Qp, Inner>, report: VisitOutcome, now: Instant) {
        let report = report | self.transmit(&mut inner, now) | self.settle(&mut inner);
        drop(inner);
        self.announce(report);
    }

    /// Sends everything that may be sent, in the order of the state machine.
    pub(super) fn transmit(&self, inner: &mut Inner, now: Instant) -> VisitOutcome {
        let Inner { machine, state, tx, frames, is_usual: true, .. } = inner else {
            return self.transmit_watched(inner, now);
        };
        if !machine.has_work() {
            return VisitOutcome::default();
        }
        let mut is_blocked = false;
        let mut host = QpHost::new(&self.resources, state, now);
        let mut tx_path = TxPath::new(self.engine(), tx, self.resources.qpn, self.resources.service.is_reliable());
        loop {
            if tx_path.waits_for_send_room(frames.as_deref()) {
                machine.on_link_full(now);
                is_blocked = true;
                break;
            }
            let copied = if frames.is_none() { tx_path.lend_copied() } else { None };
            host.begin_batch(copied, tx_path.by_ring(), tx_path.rings());
            let tx_state = machine.poll_transmit(&mut host, &mut tx_path);
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
            if tx_state == TxState::Drained {
                break;
            }
        }
        tx_path.put_back();
        let report = host.end();
        if is_blocked && !self.resources.service.is_reliable() {
            state.stalls_at.get_or_insert_with(|| now.after(TxPath::PATIENCE));
        }
        report
    }

    /// Ends its turn if it had one, registers the next timer, and collects events and counts.
    pub(super) fn settle(&self, inner: &mut Inner) -> VisitOutcome {
        inner.state.has_turn = false;
        let next = earlier(earlier(inner.machine.poll_timeout(), inner.state.stalls_at), inner.early.deadline());
        if let Some(next) = next
            && inner.registered.is_none_or(|registered| next < registered)
        {
            inner.registered = Some(next);
            self.engine().scheduler.add_timer(next, self.resources.qpn);
        }
        if let Some(met) = inner.machine.take_congestion_counts() {
            self.engine().counters().count_congestion(met);
        }
        if let Some(met) = inner.machine.take_retry_counts() {
            self.note_retries(inner, met);
        }
        VisitOutcome::from_bits_retain(inner.machine.poll_event().bits().into())
    }

    /// Packets were lost, or a peer was not ready.
    #[cold]
    #[inline(never)]
    fn note_retries(&self, inner: &mut Inner, met: RetryCounts) {
        let (now, probe) = (clock::now(), inner.machine.probe());
        inner.state.history.note(now, Entry::Retried(met, [probe.una, probe.sent]));
        tell(|| Event::Retried { qp: self.resources.id, counts: met });
        self.engine().counters().count_retries(met);
        inner.state.met.add(met);
        if met.local_ack_timeout_err > 0 {
            self.ask_network(inner);
            self.engine().scheduler.note_unanswered(now);
        }
    }

    /// Asks the network about a peer on another host when the first acknowledgement is overdue, if
    /// a failure would be explained: retries use up the answers that a host gives in a second.
    fn ask_network(&self, inner: &mut Inner) {
        let av = inner.machine.attr().av;
        if explains() > Explain::Off && inner.state.probe.is_none() && self.engine().link(av.dgid).is_none() {
            let way = Route { local: av.sgid, remote: av.dgid };
            inner.state.probe = self.engine().probe(way).ok().map(Box::new);
        }
    }

    /// A request failed: in which state the queue pair is now, and why, to whoever wants to know.
    #[cold]
    pub(super) fn tell_failure(&self) {
        let (failed, circumstances) = {
            let mut inner = self.inner.lock();
            self.tell_state(&mut inner);
            let Some(failed) = inner.state.failed.take() else { return };
            inner.state.is_explained = true;
            let (attr, unanswered) = (*inner.machine.attr(), inner.machine.unanswered());
            let (probe, history) = (inner.state.probe.take(), inner.state.history.tell());
            (failed, Circumstances { attr, unanswered, probe, history })
        };
        failed.explain(&self.resources, circumstances);
    }

    /// Tells the state into which the card may have moved the queue pair.
    fn tell_state(&self, inner: &mut Inner) {
        inner.state.history.note_state(clock::now(), inner.machine.state());
        tell(|| Event::StateChanged { qp: self.resources.id, state: inner.machine.state() });
    }

    /// Queues asynchronous events, under the lock: none may come after `Qp::destroy` has forgotten
    /// those that came.
    #[cold]
    pub(super) fn raise(&self, events: QpEvents) {
        let mut inner = self.inner.lock();
        self.tell_state(&mut inner);
        let is_cut_off = inner.is_cut_off;
        let raised = EVENTS.iter().filter(|(flag, _)| events.contains(*flag));
        for (_, kind) in raised.filter(|_| !is_cut_off) {
            // A work queue has no other event than that it cannot report its completions.
            let kind = if self.is_work_queue { AsyncEventKind::WqFatal } else { *kind };
            inner.state.history.note(clock::now(), Entry::Raised(kind));
            self.resources.context.raise(kind, self.resources.user, self.resources.id);
        }
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

/// Credit for datagrams that were taken out of the socket, summed up as long as they have one
/// sender: senders on this host wait for it.
#[derive(Debug, Default)]
pub(super) struct Credits {
    creditor: Option<(Qpn, Gid)>,
    bytes: u32,
}

impl Credits {
    /// One more datagram has left the socket.
    pub(super) fn add(&mut self, qp: &QpResources, creditor: Option<Qpn>, dst: Gid, packet: &Packet<'_>) {
        let Some(from) = creditor else { return };
        if self.creditor != Some((from, dst)) {
            self.return_all(qp);
            self.creditor = Some((from, dst));
        }
        self.bytes += charge_of(&packet.header.kind, packet.payload.len());
    }

    /// Notes what is owed; the engine sends it.
    pub(super) fn return_all(&mut self, qp: &QpResources) {
        if let Some((from, dst)) = self.creditor.take() {
            qp.engine().flows().owe(Slot::of(from), Key::of(dst, qp.qpn), std::mem::take(&mut self.bytes));
        }
    }
}

/// The queue pair that sent a packet, if it is of a service without acknowledgements.
pub(super) fn sender_of(machine: &Machine, packet: &Packet<'_>) -> Option<Qpn> {
    match packet.header.kind {
        Kind::Ud { deth, .. } => Some(deth.src_qpn),
        Kind::UcRequest(_) => Some(machine.attr().dest_qpn),
        _ => None,
    }
}
