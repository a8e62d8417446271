//! The queue pair of a program: the transport's state machine under one lock, with its queues, memory and engine.
//!
//! [`Qp`] is what programs hold, [`QpCore`] what the engine finds by number.

mod core;

pub(crate) use self::core::QpCore;

use self::core::Inner;
use crate::cq::Cq;
use crate::device::Context;
use crate::pd::Pd;
use crate::srq::Srq;
use crate::steering::{Flow, FlowInit, FlowUses};
use crate::wq::Rss;
use crate::xrcd::Xrcd;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_base::lock::{Mutex, MutexGuard, rank};
use roxe_base::uses::Use;
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::QueuePair;
use roxe_memory::prefetch::prefetch;
use roxe_net::frames::FrameSender;
use roxe_transport::qp::{AttrMask, PostError, QpAttr, QpCaps, QpConfig, QpState, Service};
use roxe_transport::wr::{RecvRequest, SendRequest};
use roxe_wire::{Gid, Qpn};
use std::sync::Arc;

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

/// What a queue pair is part of.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// Nothing: it is whole.
    None,
    /// The target of an XRC domain, which it takes receives from.
    Target(Arc<Xrcd>),
    /// A work queue, whose receives are in it: it neither sends nor has flows.
    WorkQueue,
    /// A hash queue pair, whose frames go elsewhere: it neither sends nor receives.
    Spread(Arc<Rss>),
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    core: Arc<QpCore>,
    pd: Arc<Pd>,
    view: QpInitView,
    uses: Mutex<rank::Uses, Vec<Use>>,
    flows: FlowUses,
    /// Of a hash queue pair.
    rss: Option<Arc<Rss>>,
}

impl Qp {
    /// Makes a queue pair in RESET. EINVAL: beyond the limits of the device, or queues of another context. ENOMEM: there are
    /// `max_qp`. The first one
    /// opens the sockets of the engine: EADDRINUSE if another user has the port.
    pub(crate) fn create(pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Self>, Error> {
        let caps = QpCaps { max_inline_data: init.caps.max_inline_data.max(limits::MIN_INLINE_DATA), ..init.caps };
        let init = match init.service {
            Service::XrcTgt => return Err(Error::invalid("an XRC target is made in an XRC domain")),
            Service::XrcIni => {
                let caps = QpCaps { max_recv_wr: 0, max_recv_sge: 0, ..caps };
                QpInit { caps, srq: None, ..init }
            }
            _ => QpInit { caps, ..init },
        };
        Self::create_in(pd, init, Part::None)
    }

    /// The same, for what belongs to something else.
    pub(crate) fn create_in(pd: &Arc<Pd>, init: QpInit, part: Part) -> Result<Arc<Self>, Error> {
        check_init(pd, &init)?;
        let quota = pd.context().device().quotas().qps.take()?;
        let mut uses = vec![quota, pd.hold(), init.send_cq.hold(), init.recv_cq.hold()];
        let tags = init.srq.clone().filter(|srq| srq.matches_tags());
        // clause: TM-QUEUE
        let recv_cq = tags.as_ref().and_then(|srq| srq.cq()).unwrap_or(&init.recv_cq);
        let init = QpInit { recv_cq: Arc::clone(recv_cq), ..init };
        let context = pd.context();
        let view = QpInitView { service: init.service, caps: init.caps, sq_sig_all: init.sq_sig_all };
        let frames = Self::raw_link(context.engine(), view.service, &part)?;
        let xrcd = if let Part::Target(xrcd) = &part { Some(xrcd) } else { None };
        let is_wq = matches!(part, Part::WorkQueue);
        let port_mtu = match view.service {
            Service::Raw => u32::try_from(context.device().adapter().interface().max_frame).unwrap_or(u32::MAX),
            _ => context.device().adapter().active_mtu().bytes(),
        };
        let line_rate = context.engine().line_rate().filter(|_| view.service != Service::Raw);
        let in_domain = xrcd.map(|_| limits::MAX_SRQ_SGE);
        let srq_max_sge = init.srq.as_ref().map(|srq| srq.longest_list()).or(in_domain);
        let tag_matching = tags.is_some();
        let make = |qpn| {
            let config = QpConfig {
                qpn,
                service: view.service,
                caps: view.caps,
                sq_sig_all: view.sq_sig_all,
                srq_max_sge,
                tag_matching,
                port_mtu,
                line_rate,
            };
            Arc::new(QpCore::new(pd, &init, config, xrcd).of_work_queue(is_wq))
        };
        let core = context.engine().register_qp(view.service, make)?;
        core.inner.lock().frames = frames;
        uses.extend(init.srq.as_ref().map(|srq| srq.hold()));
        uses.extend(xrcd.map(|xrcd| xrcd.hold()));
        let flows = FlowUses::default();
        let rss = if let Part::Spread(rss) = part { Some(rss) } else { None };
        uses.extend(rss.as_ref().map(|rss| rss.hold()));
        Ok(Arc::new(Self { core, pd: Arc::clone(pd), view, uses: Mutex::new(uses), flows, rss }))
    }

    /// What a whole raw packet queue pair sends by; others have none.
    fn raw_link(engine: &Engine, service: Service, part: &Part) -> Result<Option<Arc<FrameSender>>, Error> {
        match (service, part) {
            (Service::Raw, Part::None) => engine.open_frame_sender().map(Some),
            _ => Ok(None),
        }
    }

    /// What the engine knows of it.
    pub(crate) fn core(&self) -> &Arc<QpCore> {
        &self.core
    }

    /// How it spreads frames, if it is a hash queue pair.
    pub(crate) fn rss(&self) -> Option<&Arc<Rss>> {
        self.rss.as_ref()
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
        self.core.user
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
    #[inline]
    pub fn send(&self) -> SendGuard<'_> {
        prefetch(&*self.core);
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
        if inner.machine.state() == QpState::Err || !inner.early.is_empty() {
            // It flushes at once, or a message waits for it.
            self.core.receive_early(inner, clock::now());
        }
        Ok(())
    }

    /// Changes attributes and state (`man ibv_modify_qp`). EINVAL: not allowed in this state or not valid; nothing
    /// changed. EOPNOTSUPP: a hash queue pair. Addresses must be those of the device.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        if self.rss.is_some() {
            return Err(Error::new(libc::EOPNOTSUPP, "a hash queue pair has no states; its work queues do"));
        }
        for (bit, av) in [(AttrMask::AV, &attr.av), (AttrMask::ALT_PATH, &attr.alt_av)] {
            if mask.contains(bit) && !av.sgid.is_zero() {
                self.core.engine().ensure_link(av.sgid)?;
            }
        }
        let now = clock::now();
        if mask.contains(AttrMask::STATE) {
            // As before a destroy: acknowledgements of what has completed must not be lost.
            self.core.serve(now);
        }
        let result = self.core.visit(now, |machine, host| machine.modify(host, attr, mask));
        self.core.engine().leave_after_send(now);
        result.map_err(|e| Error::invalid(e.to_string()))?;
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            self.core.inner.lock().path.reset();
            self.core.engine().forget_packets(&*self.core);
            self.forget_completions();
        }
        Ok(())
    }

    /// Drops the completions that nobody has polled.
    // clause: STATE-RESET-COMPLETIONS, DESTROY-COMPLETIONS
    fn forget_completions(&self) {
        let mut dropped = vec![];
        self.recv_cq().forget(self.qpn(), |cqe| dropped.push(*cqe));
        self.send_cq().forget(self.qpn(), |_| {});
        if let Some(srq) = self.srq().filter(|srq| srq.matches_tags()) {
            dropped.iter().for_each(|cqe| srq.forget_completion(cqe));
        }
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

    /// Makes it receive what is sent to the multicast group `mgid` (`man ibv_attach_mcast`); once more changes nothing.
    ///
    /// A raw packet queue pair takes the address of an Ethernet group in the last six bytes of an otherwise empty `mgid`.
    ///
    /// EINVAL: no group, or neither UD nor raw packets. ENOMEM: too many groups or members. EADDRINUSE: another user listens
    /// for the group.
    pub fn attach_mcast(&self, mgid: Gid) -> Result<(), Error> {
        if self.service() == Service::Raw {
            return self.flows.attach(self, &self.core, mgid);
        }
        if !mgid.is_multicast() || self.service() != Service::Ud {
            return Err(Error::invalid(format!("{mgid} is no multicast group, or the queue pair is not UD")));
        }
        self.core.engine().attach(&(Arc::clone(&self.core) as _), mgid)
    }

    /// Ends what [`Qp::attach_mcast`] with the same `mgid` began; EINVAL if there was nothing.
    pub fn detach_mcast(&self, mgid: Gid) -> Result<(), Error> {
        if self.service() == Service::Raw {
            return self.flows.detach(mgid);
        }
        self.core.engine().detach(&*self.core, mgid)
    }

    /// Lets frames come to it, until the returned value is dropped (`man ibv_create_flow`).
    ///
    /// EINVAL: not a raw packet queue pair, or a flow of no normal kind that passes frames on. ENOMEM: too many flows.
    pub fn create_flow(&self, init: FlowInit) -> Result<Flow, Error> {
        Flow::create(self, &self.core, init)
    }

    /// Its flows.
    pub(crate) fn flows(&self) -> &FlowUses {
        &self.flows
    }

    /// EBUSY while it is attached to a multicast group or has flows: a program may not destroy it yet.
    pub fn check_detached(&self) -> Result<(), Error> {
        self.flows.check_unused()?;
        match if self.service() == Service::Ud { self.core.engine().memberships(&*self.core) } else { 0 } {
            0 => Ok(()),
            n => Err(Error::busy("queue pair", "multicast groups", u32::try_from(n).unwrap_or(u32::MAX))),
        }
    }

    /// Takes the queue pair out of use: no completion, event or packet of it from now on. Later calls do nothing.
    ///
    /// What is owed to the peer goes out first: the program may already have seen the completion of a message whose
    /// acknowledgement still waits, and the peer must not believe it lost.
    pub fn destroy(&self) {
        self.core.serve(clock::now());
        self.core.engine().drain();
        self.flows.clear();
        // Before the number is free for others, whose completions it would mean then.
        if self.core.cut_off() {
            self.forget_completions();
        }
        self.core.engine().unregister_qp(&*self.core);
        self.core.close_windows();
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
    inner: Option<MutexGuard<'a, rank::Qp, Inner>>,
    pushed: u32,
}

impl SendGuard<'_> {
    /// Queues one request. Inline data is copied now, everything else is looked at when it is sent.
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.push_to_srq(0, request)
    }

    /// As [`SendGuard::push`], for the shared receive queue of the peer with this number: it means something on XRC only.
    pub fn push_to_srq(&mut self, srqn: u32, request: &SendRequest<'_>) -> Result<(), PostError> {
        let inner = self.inner.as_mut().filter(|inner| !inner.is_cut_off).ok_or(PostError::State)?;
        let room = inner.machine.send_room();
        // What the state machine itself refuses it shall refuse with its own reason.
        if room != 0 && inner.path.free_sends(room, &self.core.send_cq) == 0 {
            return Err(PostError::QueueFull);
        }
        inner.machine.post_send_to_srq(srqn, request)?;
        self.pushed += 1;
        Ok(())
    }

    /// Requests that the queue still takes.
    pub fn room(&mut self) -> u32 {
        let Some(inner) = self.inner.as_mut() else { return 0 };
        let room = inner.machine.send_room();
        inner.path.free_sends(room, &self.core.send_cq)
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
        let Some(mut inner) = self.inner.take() else { return };
        // A list is company enough.
        if self.pushed == 1 && self.core.put_off(&mut inner) {
            return self.core.engine().leave();
        }
        let now = clock::now();
        inner.delayed_ack.on_post(now);
        self.core.finish(inner, now);
        self.core.engine().leave_after_send(now);
    }
}

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
    // clause: TM-QUEUE
    if init.service != Service::Rc && init.srq.as_ref().is_some_and(|srq| srq.matches_tags()) {
        return Err(Error::invalid("a shared receive queue that matches tags is for reliable connections only"));
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
