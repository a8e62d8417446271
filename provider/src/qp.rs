//! The queue pair of a program: the transport's state machine under one lock, with its queues, memory and engine.
//!
//! [`Qp`] is what programs hold, [`QpCore`] what the engine finds by number. Every way in is a *visit*: take the lock, let
//! the state machine work, send what it has to send, register its timer, drop the lock, announce completions and events.

use crate::cq::Cq;
use crate::device::Context;
use crate::engine::{Batch, Engine, Run, RxTools, clock};
use crate::error::Error;
use crate::event::AsyncEventKind;
use crate::flow::Key;
use crate::fork::Lockable;
use crate::host::{Path, QpHost};
use crate::limits;
use crate::mr::MemoryTable;
use crate::net::RxMeta;
use crate::net::slot::Slot;
use crate::net::udp::UdpLink;
use crate::parking::{Parked, Parking};
use crate::pd::{Pd, PdId};
use crate::srq::Srq;
use crate::uses::{ObjectId, Use};
use parking_lot::{Mutex, MutexGuard};
use roxe_transport::Qp as Machine;
use roxe_transport::cx::{Side, TxState};
use roxe_transport::qp::{AttrMask, PostError, QpAttr, QpCaps, QpConfig, QpEvents, QpState, Service, charge};
use roxe_transport::time::Instant;
use roxe_transport::wr::{RecvRequest, SendRequest};
use roxe_wire::{Gid, Kind, NetHeader, Packet, Qpn};
use std::ops::BitOr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a queue pair is created with.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Transport service.
    pub service: Service,
    /// Depths and limits.
    pub caps: QpCaps,
    /// Every send work request reports success, whatever its flags say.
    pub sq_sig_all: bool,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Where receives come from instead of an own queue.
    pub srq: Option<Arc<Srq>>,
    /// Token that events carry.
    pub user: u64,
}

/// What a queue pair was created with, as `ibv_query_qp` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInitView {
    /// Transport service.
    pub service: Service,
    /// Depths and limits.
    pub caps: QpCaps,
    /// Every send work request reports success.
    pub sq_sig_all: bool,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    core: Arc<QpCore>,
    pd: Arc<Pd>,
    view: QpInitView,
    uses: Mutex<Vec<Use>>,
}

impl Qp {
    /// Makes a queue pair in RESET. EINVAL: beyond the limits of the device, or queues of another context. The first one
    /// opens the sockets of the engine: EADDRINUSE if another user has the port.
    pub(crate) fn create(pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Self>, Error> {
        check_init(pd, &init)?;
        let context = pd.context();
        let view = QpInitView { service: init.service, caps: init.caps, sq_sig_all: init.sq_sig_all };
        let port_mtu = context.device().active_mtu().bytes();
        let srq_max_sge = init.srq.as_ref().map(|srq| srq.max_sge());
        let make = |qpn| {
            let config = QpConfig {
                qpn,
                service: view.service,
                caps: view.caps,
                sq_sig_all: view.sq_sig_all,
                srq_max_sge,
                port_mtu,
            };
            Arc::new(QpCore::new(pd, &init, config))
        };
        let core = context.engine().register_qp(make)?;
        let mut uses = vec![pd.hold(), init.send_cq.hold(), init.recv_cq.hold()];
        uses.extend(init.srq.as_ref().map(|srq| srq.hold()));
        Ok(Arc::new(Self { core, pd: Arc::clone(pd), view, uses: Mutex::new(uses) }))
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core.qpn
    }

    /// Its transport service.
    pub fn service(&self) -> Service {
        self.core.service
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.core.send_cq
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.core.recv_cq
    }

    /// Its shared receive queue.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.core.srq.as_ref()
    }

    /// The token that its events carry.
    pub fn user(&self) -> u64 {
        self.core.user.load(Ordering::Relaxed)
    }

    /// Changes the token that its events carry from now on.
    pub fn set_user(&self, user: u64) {
        self.core.user.store(user, Ordering::Relaxed);
    }

    /// Its state now.
    pub fn state(&self) -> QpState {
        self.core.inner.lock().machine.state()
    }

    /// Posts `requests` in order and sends what can be sent. On an error the index of the refused one; those before it
    /// are posted, those from it on are not.
    pub fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), (usize, PostError)> {
        let mut guard = self.send();
        requests.iter().enumerate().try_for_each(|(at, request)| guard.push(request).map_err(|error| (at, error)))
    }

    /// Begins to post; dropping the guard sends what can be sent. The queue pair is locked meanwhile.
    pub fn send(&self) -> SendGuard<'_> {
        self.core.engine().enter_to_send();
        SendGuard { core: &self.core, inner: Some(self.core.inner.lock()), pushed: 0 }
    }

    /// Posts a receive request. The data of a request is looked at when a message arrives for it.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let mut inner = self.core.inner.lock();
        if inner.is_cut_off {
            return Err(PostError::State);
        }
        inner.machine.post_recv(request)?;
        if inner.machine.state() == QpState::Err || !inner.parking.is_empty() {
            // It flushes at once, or a message waits for it.
            self.core.receive_parked(inner, clock::now());
        }
        Ok(())
    }

    /// Changes attributes and state (`man ibv_modify_qp`). EINVAL: not allowed in this state or not valid; nothing
    /// changed. Addresses must be those of the device.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        if mask.contains(AttrMask::AV) && !attr.av.sgid.is_zero() {
            self.core.engine().ensure_link(attr.av.sgid)?;
        }
        let now = clock::now();
        if mask.contains(AttrMask::STATE) {
            // As before a destroy: acknowledgements of what has completed must not be lost.
            self.core.serve(now);
        }
        let result = self.core.visit(now, |machine, host| machine.modify(host, attr, mask));
        self.core.engine().leave_after_send(now);
        result.map_err(|e| Error::invalid(e.to_string()))
    }

    /// Its attributes, with the state in `state` and `cur_state`, and what it was created with.
    pub fn query(&self) -> (QpAttr, QpInitView) {
        let inner = self.core.inner.lock();
        let state = inner.machine.state();
        (QpAttr { state, cur_state: Some(state), ..*inner.machine.attr() }, self.view)
    }

    /// Whether the send queue is still finishing what it started before SQD.
    pub fn is_draining(&self) -> bool {
        self.core.inner.lock().machine.is_draining()
    }

    /// Takes the queue pair out of use: no completion, event or packet of it from now on. Later calls do nothing.
    ///
    /// What is owed to the peer goes out first: the program may already have seen the completion of a message whose
    /// acknowledgement still waits, and the peer must not believe it lost.
    pub fn destroy(&self) {
        self.core.serve(clock::now());
        self.core.engine().drain();
        self.core.engine().unregister_qp(self.core.qpn);
        self.core.cut_off();
        self.core.context.forget_events(self.core.id);
        self.core.engine().leave_after_send(clock::now());
        self.uses.lock().clear();
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// A queue pair that is being posted to.
#[derive(Debug)]
pub struct SendGuard<'a> {
    core: &'a QpCore,
    /// `None` only while it is dropped.
    inner: Option<MutexGuard<'a, Inner>>,
    pushed: u32,
}

impl SendGuard<'_> {
    /// Queues one request. Inline data is copied now, everything else is looked at when it is sent.
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let inner = self.inner.as_mut().filter(|inner| !inner.is_cut_off).ok_or(PostError::State)?;
        inner.machine.post_send(request)?;
        self.pushed += 1;
        Ok(())
    }

    /// Requests that the queue still takes.
    pub fn room(&self) -> u32 {
        self.inner.as_ref().map_or(0, |inner| inner.machine.send_room())
    }

    /// Takes back what this guard has pushed, as if it had never been posted.
    pub fn take_back(&mut self) {
        let pushed = std::mem::take(&mut self.pushed);
        if let Some(inner) = &mut self.inner {
            inner.machine.take_back_sends(pushed);
        }
    }
}

impl Drop for SendGuard<'_> {
    fn drop(&mut self) {
        let now = clock::now();
        if let Some(inner) = self.inner.take() {
            self.core.finish(inner, now);
        }
        self.core.engine().leave_after_send(now);
    }
}

/// What the engine knows of a queue pair.
#[derive(Debug)]
pub(crate) struct QpCore {
    qpn: Qpn,
    service: Service,
    id: ObjectId,
    user: AtomicU64,
    pd_id: PdId,
    context: Arc<Context>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    inner: Mutex<Inner>,
}

/// What the lock guards.
#[derive(Debug)]
struct Inner {
    machine: Machine,
    path: Path,
    /// What came before its receive was posted.
    parking: Parking,
    /// The link used last.
    link: Option<Arc<UdpLink>>,
    /// The deadline registered with the engine.
    registered: Option<Instant>,
    /// Destroyed, or inherited by the child of a fork.
    is_cut_off: bool,
}

/// What a visit leaves to be done without the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The queue of sends fired.
    pub(crate) announce_send: bool,
    /// The queue of receives fired.
    pub(crate) announce_recv: bool,
    /// There is something to send.
    pub(crate) has_work: bool,
    events: QpEvents,
}

impl Report {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl BitOr for Report {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            announce_send: self.announce_send | other.announce_send,
            announce_recv: self.announce_recv | other.announce_recv,
            has_work: self.has_work | other.has_work,
            events: self.events | other.events,
        }
    }
}

impl QpCore {
    fn new(pd: &Arc<Pd>, init: &QpInit, config: QpConfig) -> Self {
        Self {
            qpn: config.qpn,
            service: config.service,
            id: ObjectId::next(),
            user: AtomicU64::new(init.user),
            pd_id: pd.id(),
            context: Arc::clone(pd.context()),
            send_cq: Arc::clone(&init.send_cq),
            recv_cq: Arc::clone(&init.recv_cq),
            srq: init.srq.clone(),
            inner: Mutex::new(Inner {
                machine: Machine::new(config),
                path: Path::default(),
                parking: Parking::default(),
                link: None,
                registered: None,
                is_cut_off: false,
            }),
        }
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn service(&self) -> Service {
        self.service
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.context.engine()
    }

    pub(crate) fn memory(&self) -> &MemoryTable {
        self.context.memory()
    }

    pub(crate) fn pd_id(&self) -> PdId {
        self.pd_id
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

    /// The lock, for the fork handlers.
    pub(crate) fn raw(&self) -> &impl Lockable {
        &self.inner
    }

    /// Takes in a run of packets addressed to this queue pair. What it wants to send is left for [`QpCore::serve`].
    pub(crate) fn receive(&self, run: Run<'_>, tools: &mut RxTools<'_>, now: Instant) -> Report {
        let mut inner = self.inner.lock();
        if inner.is_cut_off {
            return Report::default();
        }
        let mut report = self.drain_parking(&mut inner, now);
        let Inner { machine, path, parking, .. } = &mut *inner;
        let mut host = QpHost::new(self, path, now);
        let mut taken = Taken::default();
        for (index, bytes) in run.packets() {
            let net = header_of(run.meta, index);
            if !tools.ident.verify(&net, bytes, index) {
                self.engine().counters().icrc_errors.add(1);
                continue;
            }
            let Ok(packet) = Packet::parse(bytes) else {
                self.engine().counters().malformed.add(1);
                continue;
            };
            let creditor = sender_of(machine, &packet).filter(|_| tools.local_sender);
            let waits =
                self.service != Service::Rc && (!parking.is_empty() || machine.lacks_receive(&mut host, &net, &packet));
            if waits && parking.push(Parked { net, bytes: bytes.to_vec(), creditor, at: now }) {
                continue;
            }
            self.handle(machine, &mut host, &net, &packet);
            taken.add(self, creditor, net.dst, &packet);
        }
        taken.settle(self);
        report = report | host.report();
        report | self.settle(&mut inner)
    }

    /// Hands one packet to the state machine.
    fn handle(&self, machine: &mut Machine, host: &mut QpHost<'_>, net: &NetHeader, packet: &Packet<'_>) {
        if let Err(reason) = machine.handle_packet(host, net, packet) {
            self.engine().counters().count_drop(reason);
        }
    }

    /// Hands over what waited for a receive, as far as there are receives now; what waited too long is dropped.
    fn drain_parking(&self, inner: &mut Inner, now: Instant) -> Report {
        let Inner { machine, path, parking, .. } = inner;
        if parking.is_empty() {
            return Report::default();
        }
        let mut host = QpHost::new(self, path, now);
        let mut taken = Taken::default();
        while let Some(parked) = parking.front() {
            let Ok(packet) = Packet::parse(&parked.bytes) else { break };
            if !parked.is_stale(now) && machine.lacks_receive(&mut host, &parked.net, &packet) {
                break;
            }
            self.handle(machine, &mut host, &parked.net, &packet);
            taken.add(self, parked.creditor, parked.net.dst, &packet);
            parking.pop();
        }
        parking.rest(now);
        taken.settle(self);
        host.report()
    }

    /// A receive was posted while packets waited for it, or in the error state.
    fn receive_parked(&self, mut inner: MutexGuard<'_, Inner>, now: Instant) {
        let report = self.drain_parking(&mut inner, now);
        self.finish_with(inner, report, now);
        self.engine().send_credits(now);
    }

    /// Sends what there is to send.
    pub(crate) fn serve(&self, now: Instant) {
        self.visit(now, |_, _| {});
    }

    /// The same for a queue pair that waited for room.
    pub(crate) fn serve_waiter(&self, now: Instant) {
        self.inner.lock().path.stop_waiting();
        self.serve(now);
    }

    /// Acts on the timer that was registered for `deadline`; an entry that was overtaken by an earlier one does nothing.
    pub(crate) fn on_timer(&self, deadline: Instant, now: Instant) {
        let mut inner = self.inner.lock();
        if inner.registered != Some(deadline) {
            return;
        }
        inner.registered = None;
        inner.path.on_timer(self.engine(), now);
        let looks = inner.parking.deadline().is_some_and(|at| at <= now);
        let mut report = if looks { self.drain_parking(&mut inner, now) } else { Report::default() };
        let Inner { machine, path, .. } = &mut *inner;
        if machine.poll_timeout().is_some_and(|at| at <= now) {
            let mut host = QpHost::new(self, path, now);
            machine.handle_timeout(&mut host);
            report = report | host.report();
        }
        self.finish_with(inner, report, now);
        if looks {
            self.engine().send_credits(now);
        }
    }

    /// Runs `f` under the lock, then sends, and reports without the lock.
    fn visit<R>(&self, now: Instant, f: impl FnOnce(&mut Machine, &mut QpHost<'_>) -> R) -> R {
        let mut inner = self.inner.lock();
        let Inner { machine, path, .. } = &mut *inner;
        let mut host = QpHost::new(self, path, now);
        let result = f(machine, &mut host);
        let report = host.report();
        self.finish_with(inner, report, now);
        result
    }

    /// Ends a visit.
    fn finish(&self, inner: MutexGuard<'_, Inner>, now: Instant) {
        self.finish_with(inner, Report::default(), now);
    }

    /// Ends a visit that already has something to report.
    fn finish_with(&self, mut inner: MutexGuard<'_, Inner>, report: Report, now: Instant) {
        let report = report | self.transmit(&mut inner, now) | self.settle(&mut inner);
        drop(inner);
        self.announce(report);
    }

    /// Sends everything that may be sent, in the order of the state machine.
    fn transmit(&self, inner: &mut Inner, now: Instant) -> Report {
        let Inner { machine, path, link, is_cut_off: false, .. } = inner else { return Report::default() };
        if !machine.has_work() {
            return Report::default();
        }
        let mut host = QpHost::new(self, path, now);
        let mut batch = Batch::take();
        loop {
            let state = machine.poll_transmit(&mut host, &mut *batch);
            batch.flush(self.engine(), link);
            if state == TxState::Drained {
                break;
            }
        }
        Batch::put_back(batch);
        host.report()
    }

    /// Registers the next timer and collects events.
    fn settle(&self, inner: &mut Inner) -> Report {
        let next = inner.machine.poll_timeout().into_iter().chain(inner.path.deadline());
        let next = next.chain(inner.parking.deadline()).min();
        if let Some(next) = next
            && inner.registered.is_none_or(|registered| next < registered)
        {
            inner.registered = Some(next);
            self.engine().add_timer(next, self.qpn);
        }
        Report { has_work: inner.machine.has_work(), events: inner.machine.poll_event(), ..Report::default() }
    }

    /// Tells the program what a visit brought. No lock of a queue pair may be held.
    pub(crate) fn announce(&self, report: Report) {
        if report.announce_send {
            self.send_cq.notify();
        }
        if report.announce_recv {
            self.recv_cq.notify();
        }
        if !report.events.is_empty() {
            self.raise(report.events);
        }
    }

    /// Queues asynchronous events, under the lock: none may come after [`Qp::destroy`] has forgotten those that came.
    fn raise(&self, events: QpEvents) {
        let inner = self.inner.lock();
        for (_, kind) in EVENTS.iter().filter(|(flag, _)| events.contains(*flag) && !inner.is_cut_off) {
            self.context.raise(*kind, self.user.load(Ordering::Relaxed), self.id);
        }
    }

    /// Ends all work: it is destroyed, or belongs to the parent of this process.
    pub(crate) fn cut_off(&self) {
        let mut inner = self.inner.lock();
        let Inner { machine, path, parking, link, is_cut_off, .. } = &mut *inner;
        if !std::mem::replace(is_cut_off, true) {
            *link = None;
            *parking = Parking::default();
            // To RESET is allowed from every state; it gives back what is reserved.
            let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
            let _ = machine.modify(&mut QpHost::new(self, path, clock::now()), &attr, AttrMask::STATE);
        }
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
        self.bytes += charge(u32::try_from(packet.payload.len()).unwrap_or(0));
    }

    /// Notes what is owed.
    fn settle(&mut self, qp: &QpCore) {
        if let Some((from, dst)) = self.creditor.take() {
            qp.engine().flows().owe(Slot::of(from), Key::of(dst, qp.qpn), std::mem::take(&mut self.bytes));
        }
    }
}

/// The header of packet `index` of a receive.
fn header_of(meta: &RxMeta, index: u16) -> NetHeader {
    NetHeader {
        src: meta.src,
        dst: meta.dst,
        src_port: meta.src_port,
        traffic_class: meta.traffic_class,
        hop_limit: meta.hop_limit,
        flow_label: 0,
        ident: index,
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
const EVENTS: [(QpEvents, AsyncEventKind); 6] = [
    (QpEvents::COMM_EST, AsyncEventKind::CommEst),
    (QpEvents::SQ_DRAINED, AsyncEventKind::SqDrained),
    (QpEvents::FATAL, AsyncEventKind::QpFatal),
    (QpEvents::REQ_ERR, AsyncEventKind::QpReqErr),
    (QpEvents::ACCESS_ERR, AsyncEventKind::QpAccessErr),
    (QpEvents::LAST_WQE_REACHED, AsyncEventKind::QpLastWqeReached),
];

/// Refuses what the device cannot do or what does not belong together.
fn check_init(pd: &Pd, init: &QpInit) -> Result<(), Error> {
    let QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = init.caps;
    let limits = [
        ("max_send_wr", max_send_wr, limits::MAX_QP_WR),
        ("max_recv_wr", max_recv_wr, limits::MAX_QP_WR),
        ("max_send_sge", max_send_sge, limits::MAX_SGE),
        ("max_recv_sge", max_recv_sge, limits::MAX_SGE),
        ("max_inline_data", max_inline_data, limits::MAX_INLINE_DATA),
    ];
    if let Some((name, asked, most)) = limits.into_iter().find(|(_, asked, most)| asked > most) {
        return Err(Error::invalid(format!("{name} is {asked}; the device takes at most {most}")));
    }
    let context = pd.context();
    let same = |other: &Arc<Context>| Arc::ptr_eq(context, other);
    if !same(init.send_cq.context()) || !same(init.recv_cq.context()) {
        return Err(Error::invalid("a completion queue belongs to another context than the protection domain"));
    }
    if init.srq.as_ref().is_some_and(|srq| !same(srq.pd().context())) {
        return Err(Error::invalid("the shared receive queue belongs to another context than the protection domain"));
    }
    Ok(())
}
