//! [`Qp`]: the queue pair that a program holds, and its verbs except posting sends.

use super::core::{Inner, QpCore};
use super::resources::{QpInit, check_init};
use super::steering::{Flow, FlowInit, FlowUses, Rss};
use crate::context::Context;
use crate::cq::Cq;
use crate::pd::Pd;
use crate::srq::{Srq, XrcQueues};
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{ObjectId, Use};
use roxe_base::{clock, instruments};
use roxe_check::explain::because;
use roxe_check::{Event, Object, QpInfo, Tracked, emit, is_checking, is_on};
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::QueuePair;
use roxe_transport::cm::Route;
use roxe_transport::qp::{AttrMask, PostError, QpAttr, QpCaps, QpConfig, QpState, Service};
use roxe_transport::wr::RecvRequest;
use roxe_wire::{Gid, Qpn};
use std::sync::Arc;

/// Role of a queue pair within another object.
#[derive(Debug)]
pub(crate) enum QpRole {
    /// A queue pair of its own.
    None,
    /// An XRC target, which takes receives from the queues of its domain and keeps the domain in
    /// use.
    Target(Arc<XrcQueues>, Use),
    /// The state machine of a receive work queue: no sends, no flows.
    WorkQueue,
    /// A hash queue pair, which spreads frames over work queues.
    Rss(Arc<Rss>),
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pub(super) core: Arc<QpCore>,
    pd: Arc<Pd>,
    uses: Mutex<rank::Uses, Vec<Use>>,
    flows: FlowUses,
    /// Present in a hash queue pair.
    rss: Option<Arc<Rss>>,
    tracked: Tracked,
}

impl Pd {
    /// Creates a queue pair in the RESET state. The first one opens the sockets of the engine.
    /// Fails with EINVAL beyond the limits of the device, or for queues of another context; ENOMEM
    /// beyond `max_qp` queue pairs; EADDRINUSE if another user has the UDP port.
    pub fn create_qp(self: &Arc<Self>, init: QpInit) -> Result<Arc<Qp>, Error> {
        // With the checker on, programs get no more than they requested, so that it can report
        // those that rely on more.
        let min = if is_checking() { 0 } else { limits::min_inline_data() };
        let caps = QpCaps { max_inline_data: init.caps.max_inline_data.max(min), ..init.caps };
        let init = match init.service {
            Service::XrcTgt => return Err(Error::invalid("an XRC target must be created in an XRC domain")),
            Service::XrcIni => {
                let caps = QpCaps { max_recv_wr: 0, max_recv_sge: 0, ..caps };
                QpInit { caps, srq: None, ..init }
            }
            _ => QpInit { caps, ..init },
        };
        Qp::create_in(self, init, QpRole::None)
    }
}

impl Qp {
    /// Creates a queue pair in the role `role`. Errors as for [`Pd::create_qp`].
    pub(crate) fn create_in(pd: &Arc<Pd>, init: QpInit, role: QpRole) -> Result<Arc<Self>, Error> {
        check_init(pd, &init)?;
        let context = pd.context();
        let quota = context.device().quotas().qps.take()?;
        let mut uses = vec![quota, pd.hold(), init.send_cq.uses.hold(), init.recv_cq.uses.hold()];
        uses.extend(init.srq.as_ref().map(|srq| srq.uses.hold()));
        let tags = init.srq.clone().filter(|srq| srq.matches_tags());
        // clause: TM-QUEUE
        let recv_cq = tags.as_ref().and_then(|srq| srq.cq()).unwrap_or(&init.recv_cq);
        let init = QpInit { recv_cq: Arc::clone(recv_cq), ..init };
        let sends_frames = init.service == Service::Raw && matches!(role, QpRole::None);
        let frames = if sends_frames { Some(context.engine().open_frame_sender()?) } else { None };
        let engine = engine_for(context, &init, &role);
        let is_work_queue = matches!(role, QpRole::WorkQueue);
        let (xrc_queues, rss) = match role {
            QpRole::None | QpRole::WorkQueue => (None, None),
            QpRole::Target(queues, opening) => {
                uses.push(opening);
                (Some(queues), None)
            }
            QpRole::Rss(rss) => (None, Some(rss)),
        };
        uses.extend(rss.as_ref().map(|rss| rss.table.uses.hold()));
        let make = |qpn| {
            let config = config(context, &init, qpn, xrc_queues.is_some());
            Arc::new(QpCore::new(pd, &engine, &init, config, xrc_queues.as_ref(), is_work_queue))
        };
        let core = engine.register_qp(init.service, make)?;
        [&init.send_cq, &init.recv_cq].into_iter().for_each(|cq| cq.serve_by(&engine));
        {
            let mut inner = core.inner.lock();
            inner.frames = frames;
            if instruments::any() {
                core.begin_watched(&mut inner, init.caps.max_send_wr);
            }
        }
        let flows = FlowUses::default();
        let tracked = Tracked::new(core.resources.id, || Object::Qp(qp_for_checker(&core, pd, &init)));
        Ok(Arc::new(Self { core, pd: Arc::clone(pd), uses: Mutex::new(uses), flows, rss, tracked }))
    }

    pub(crate) fn core(&self) -> &Arc<QpCore> {
        &self.core
    }

    /// Returns the identity of the queue pair in checker events.
    pub fn id(&self) -> ObjectId {
        self.core.resources.id
    }

    /// Returns the queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.core.resources.qpn
    }

    /// Returns the transport service.
    pub fn service(&self) -> Service {
        self.core.resources.service
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the completion queue for sends.
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.core.resources.send_cq
    }

    /// Returns the completion queue for receives.
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.core.resources.recv_cq
    }

    /// Returns the shared receive queue, if it has one.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.core.resources.srq.as_ref()
    }

    /// Returns the current state.
    pub fn state(&self) -> QpState {
        self.core.inner.lock().machine.state()
    }

    /// Posts a receive request. Its list is checked when a message arrives.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let mut inner = self.core.inner.lock();
        let posted = match inner.is_cut_off {
            true => Err(PostError::State),
            false => inner.machine.post_recv(request).inspect_err(|error| {
                because(|| inner.machine.why_receive_refused(*error, request.sges.len()));
            }),
        };
        if is_on() {
            // Under the lock, because a waiting message completes the request at once.
            self.observe_recv(&mut inner, request, posted);
        }
        posted?;
        if inner.machine.state() == QpState::Err || !inner.early.is_empty() {
            // The receive is flushed, or a message waits for it.
            let now = clock::now();
            let outcome = self.core.deliver_early(&mut inner, now);
            self.core.end_visit(inner, outcome, now);
            self.core.engine().send_credits(now);
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn observe_recv(&self, inner: &mut Inner, request: &RecvRequest<'_>, posted: Result<(), PostError>) {
        let qp = &self.core.resources;
        match posted {
            Err(error) => emit(|| Event::of_refused_recv(qp.id, request, error)),
            Ok(()) => {
                if is_checking() {
                    inner.state.watch.watch_recv(qp.lists(), request, qp.longest_message());
                }
                emit(|| Event::PostedRecv { queue: qp.id, request });
            }
        }
    }

    /// Changes attributes and state (`man ibv_modify_qp`). With an address it waits until the
    /// neighbour is resolved. Fails with EINVAL if an attribute is not valid or not allowed in this
    /// state; then nothing has changed. Fails with EOPNOTSUPP for a hash queue pair; ENETUNREACH,
    /// EHOSTUNREACH or EACCES without a route to the address; ETIMEDOUT if the neighbour has not
    /// answered for a second.
    // clause: AV-NEXT-HOP
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        let route = Route { local: attr.av.sgid, remote: attr.av.dgid };
        let has_address = mask.contains(AttrMask::AV) && !route.local.is_zero();
        let resolved = if has_address { self.core.engine().await_next_hop(route) } else { Ok(()) };
        self.report_modify(attr, mask, resolved.and_then(|()| self.change(attr, mask)))
    }

    /// Modifies like [`Qp::modify`], for a resolved address; never waits.
    pub(crate) fn modify_at_once(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        self.report_modify(attr, mask, self.change(attr, mask))
    }

    fn report_modify(&self, attr: &QpAttr, mask: AttrMask, modified: Result<(), Error>) -> Result<(), Error> {
        let qp = self.core.resources.id;
        match &modified {
            Ok(()) => emit(|| Event::Modified { qp, attr, mask }),
            Err(error) => emit(|| Event::ModifyRefused { qp, attr, mask, error }),
        }
        modified
    }

    fn change(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        if self.rss.is_some() {
            return Err(Error::new(libc::EOPNOTSUPP, "a hash queue pair has no state; modify its work queues"));
        }
        for (bit, av) in [(AttrMask::AV, &attr.av), (AttrMask::ALT_PATH, &attr.alt_av)] {
            if mask.contains(bit) && !av.sgid.is_zero() {
                self.core.engine().ensure_link(av.sgid)?;
            }
        }
        let now = clock::now();
        if mask.contains(AttrMask::STATE) {
            // Acknowledge first the messages that the program has seen complete; otherwise the peer
            // would report them as lost.
            self.core.settle_memory();
            self.core.serve(now);
        }
        let refused = self.core.visit(now, |machine, host| {
            // Requests flushed by this change read the flag.
            let before = host.state.ended_by_program;
            host.state.ended_by_program |= mask.contains(AttrMask::STATE) && attr.state == QpState::Err;
            let result = machine.modify(host, attr, mask);
            host.state.ended_by_program &= before || result.is_ok();
            host.state.history.note_state(now, machine.state());
            result.map_err(|error| machine.why_not_modified(error, attr)).err()
        });
        self.core.engine().leave_after_send(now);
        refused.map_or(Ok(()), |why| Err(Error::invalid(why)))?;
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            self.core.reset();
            self.core.engine().forget_packets(&*self.core);
            self.forget_completions();
        }
        Ok(())
    }

    /// Drops completions that were not polled.
    // clause: STATE-RESET-COMPLETIONS, DESTROY-COMPLETIONS
    fn forget_completions(&self) {
        let mut dropped = vec![];
        self.recv_cq().forget(self.qpn(), |cqe| dropped.push(*cqe));
        self.send_cq().forget(self.qpn(), |_| {});
        if let Some(srq) = self.srq().filter(|srq| srq.matches_tags()) {
            dropped.iter().for_each(|cqe| srq.forget_completion(cqe));
        }
    }

    /// Returns the attributes, with the state in `state` and `cur_state`, and the creation
    /// parameters.
    pub fn query(&self) -> (QpAttr, QpConfig) {
        let inner = self.core.inner.lock();
        let state = inner.machine.state();
        (QpAttr { state, cur_state: Some(state), ..*inner.machine.attr() }, *inner.machine.config())
    }

    /// Returns true while the send queue finishes requests started before SQD.
    pub fn is_draining(&self) -> bool {
        self.core.inner.lock().machine.is_draining()
    }

    /// Joins the multicast group `mgid` (`man ibv_attach_mcast`); joining twice changes nothing.
    /// For a raw packet queue pair the last six bytes of `mgid` are an Ethernet group address, the
    /// others are 0. Fails with EINVAL if `mgid` is not a group, or for services other than UD and
    /// raw packets; ENOMEM beyond the limit of groups or members; EADDRINUSE if another user
    /// listens for the group.
    pub fn attach_mcast(&self, mgid: Gid) -> Result<(), Error> {
        if self.service() == Service::Raw {
            return self.flows.attach(&self.core, self.rss.as_ref(), mgid);
        }
        if !mgid.is_multicast() || self.service() != Service::Ud {
            return Err(Error::invalid(format!("{mgid} is not a multicast group, or the queue pair is not UD")));
        }
        self.core.engine().attach(&(Arc::clone(&self.core) as _), mgid)
    }

    /// Leaves the multicast group `mgid`. Fails with EINVAL if it was not joined.
    pub fn detach_mcast(&self, mgid: Gid) -> Result<(), Error> {
        if self.service() == Service::Raw {
            return self.flows.detach(mgid);
        }
        self.core.engine().detach(&*self.core, mgid)
    }

    /// Steers frames to the queue pair until the returned flow is dropped (`man ibv_create_flow`).
    /// Fails with EINVAL for another service, or for a flow that passes frames on and is not of
    /// type NORMAL; ENOMEM beyond the limit of flows.
    pub fn create_flow(&self, init: FlowInit) -> Result<Flow, Error> {
        Flow::create(&self.core, self.rss.as_ref(), &self.flows, init)
    }

    /// Fails with EBUSY while the queue pair is attached to a multicast group or has flows.
    pub fn check_detached(&self) -> Result<(), Error> {
        self.flows.check_unused()?;
        match if self.service() == Service::Ud { self.core.engine().memberships(&*self.core) } else { 0 } {
            0 => Ok(()),
            n => Err(Error::busy("queue pair", "multicast groups", u32::try_from(n).unwrap_or(u32::MAX))),
        }
    }

    /// Destroys the queue pair: no completion, event or packet follows. Later calls do nothing.
    ///
    /// Owed acknowledgements leave first: the program may have seen the completion of a message
    /// that the peer still counts as outstanding.
    pub fn destroy(&self) {
        if self.tracked.is_alive() {
            // Process arrived acknowledgements, so that finished requests are not reported as
            // outstanding.
            self.core.engine().progress();
        }
        self.tracked.end();
        self.core.settle_memory();
        self.core.serve(clock::now());
        self.core.engine().drain();
        self.flows.clear();
        // Before the number is reused: later completions with it belong to another queue pair.
        if self.core.cut_off() {
            self.forget_completions();
        }
        self.core.engine().unregister_qp(&*self.core);
        self.core.resources.close_windows();
        self.core.resources.context.forget_events(self.core.resources.id);
        self.core.engine().leave_after_send(clock::now());
        self.uses.lock().clear();
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// Chooses the engine of a new queue pair: that of its send CQ. XRC and raw packets use the first
/// engine, because XRC targets complete in CQs of any thread, and so do all if another engine
/// cannot start.
fn engine_for(context: &Context, init: &QpInit, role: &QpRole) -> Arc<Engine> {
    let may_be_any = matches!((role, init.service), (QpRole::None, Service::Rc | Service::Uc | Service::Ud));
    let engine = init.send_cq.engine();
    let engine = if may_be_any && engine.start_with_links().is_ok() { engine } else { context.engine() };
    Arc::clone(engine)
}

fn config(context: &Context, init: &QpInit, qpn: Qpn, is_xrc_target: bool) -> QpConfig {
    let QpInit { service, caps, sq_sig_all, .. } = *init;
    let (engine, adapter) = (context.engine(), context.device().adapter());
    let port_mtu = match service {
        Service::Raw => u32::try_from(adapter.interface().max_frame).unwrap_or(u32::MAX),
        _ => adapter.active_mtu().bytes(),
    };
    // An XRC target takes receives from any queue of its domain.
    let in_domain = is_xrc_target.then_some(limits::MAX_SRQ_SGE);
    QpConfig {
        sq_sig_all,
        srq_max_sge: init.srq.as_ref().map(|srq| srq.longest_list()).or(in_domain),
        tag_matching: init.srq.as_ref().is_some_and(|srq| srq.matches_tags()),
        port_mtu,
        line_rate: engine.line_rate().filter(|_| service != Service::Raw),
        ..QpConfig::new(qpn, service, caps)
    }
}

fn qp_for_checker(core: &QpCore, pd: &Pd, init: &QpInit) -> QpInfo {
    let qp = &core.resources;
    QpInfo {
        context: pd.context().id(),
        pd: pd.object(),
        qpn: qp.qpn,
        service: init.service,
        caps: init.caps,
        sq_sig_all: init.sq_sig_all,
        send_cq: qp.send_cq.id(),
        recv_cq: qp.recv_cq.id(),
        srq: qp.srq.as_ref().map(|srq| srq.id()),
        port_mtu: pd.context().device().adapter().active_mtu().bytes(),
    }
}
