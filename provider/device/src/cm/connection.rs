//! A connection from request to end: verbs, events of the state machine, and what connection
//! management does to the queue pair.
//!
//! ```text
//!          attach       connect: the peer accepts; accept       disconnect; the peer rejects
//!   RESET ───────► INIT ────────────────────────► RTR ─► RTS ─────────────────────────────► ERR
//!   datagrams: RESET ─► INIT ─► RTR ─► RTS
//! ```
//!
//! librdmacm has no calls for alternate paths (APM); only programs in Rust use them.

use super::event::{ConnParam, EventData, EventKind, Outcome, UDP_QKEY, UdParam};
use super::id::{ConnHandle, Id, Inner, Side, State, receive_before_end, refused};
use super::route::{Address, Path};
use crate::event::AsyncEventKind;
use crate::ib_cm::{CmHandler, Request, Session};
use crate::qp::Qp;
use crate::rule_events;
use crate::runtime::Runtime;
use roxe_base::error::Error;
use roxe_base::limits::{self, MAX_QP_RD_ATOM};
use roxe_base::own_threads::OwnThread;
use roxe_check::faults;
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::DeadlineOwner;
use roxe_transport::cm::{
    self as machine, Alternate, AlternateAnswer, CmError, Connect, Ece, Ending, Origin, QpTerms, Refusal, Resolution,
    Resolve, Route,
};
use roxe_transport::fault::{EventFault, Raised};
use roxe_transport::qp::{AttrMask, MigState, QpAttr, QpState, Service};
use roxe_transport::time::Instant;
use roxe_transport::wr::Access;
use roxe_wire::cm::{
    AprStatus, CommId, FlowLabel, Info, IpCmHeader, IpPair, Lap, PrivateData, RejReason, Rep, ServiceId, SidrRep,
    SidrStatus, TimeCode, Transport, Uint,
};
use roxe_wire::{Gid, Qpn};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// Time for which a request to another host is retransmitted while no program listens: long enough
/// for a server that reopens its listener, as perftest does, and short for the client of one that
/// is down.
const NO_LISTENER_RETRY: Duration = Duration::from_millis(500);

impl Id {
    /// Sends a connection request; for a datagram id a lookup of the peer's queue pair, with only
    /// the private data of `param`. The result is [`EventKind::Established`], or
    /// [`EventKind::ConnectResponse`] without an attached queue pair, or `Rejected`, `Unreachable`,
    /// `ConnectError`.
    ///
    /// # Errors
    /// EINVAL if the route is not resolved, or with too much private data; ENOMEM beyond the limit
    /// of connections.
    pub fn connect(&self, param: &ConnParam) -> Result<(), Error> {
        self.runtime()?.cm(|session| {
            let mut inner = self.lock();
            inner.check(&[State::RouteResolved])?;
            if let Some(outcome) = failure_by_rule() {
                self.explain(&inner, (outcome.0, outcome.1, &outcome.2), None);
                self.raise_in(&inner, outcome.0, outcome.1, outcome.2);
                return Ok(());
            }
            let comm = match self.service() {
                Service::Ud => self.look_up(session, &inner, param)?,
                _ => self.request(session, &inner, param)?,
            };
            (inner.state, inner.side, inner.conn) = (State::Connected, Side::Active, ConnHandle::Alive(comm));
            session.ids.extend(self.me.upgrade().map(|id| (comm, id as _)));
            Ok(())
        })?
    }

    fn request(&self, session: &mut Session<'_>, inner: &Inner, param: &ConnParam) -> Result<CommId, Error> {
        let (path, service_id) = (inner.path()?, inner.service_id(self)?);
        let connect = Connect {
            transport: transport(inner.qp_service(self.service())),
            ece: inner.local_ece,
            responder_resources: capped(param.responder_resources),
            initiator_depth: capped(param.initiator_depth),
            flow_control: param.flow_control,
            retry_count: Uint::new(param.retry_count.min(7)),
            rnr_retry_count: Uint::new(param.rnr_retry_count.min(7)),
            srq: inner.has_srq(param),
            path_mtu: path.mtu,
            flow_label: FlowLabel::new(path.flow_label),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            packet_lifetime: TimeCode::new(path.packet_life_time),
            retry_for: retry_for(session.engine, path),
            private_data: inner.with_addresses(&param.private_data)?,
            ..Connect::new(path.route(), service_id, inner.qpn(param), inner.psn)
        };
        let comm = session.cm.connect(&mut session.cx, &connect).map_err(refused)?;
        session.watch_answer(comm, path.route());
        Ok(comm)
    }

    fn look_up(&self, session: &mut Session<'_>, inner: &Inner, param: &ConnParam) -> Result<CommId, Error> {
        let private_data = inner.with_addresses(&param.private_data)?;
        let (path, service_id) = (inner.path()?, inner.service_id(self)?);
        let retry_for = retry_for(session.engine, path);
        let resolve = Resolve { retry_for, private_data, ..Resolve::new(path.route(), service_id) };
        session.cm.resolve(&mut session.cx, &resolve).map_err(refused)
    }

    /// Accepts a request; for a datagram id only `qp_num` and the private data of `param` count. On
    /// the active side, moves a queue pair attached after the request to RTS, and then does as
    /// [`Id::establish`]; `param` has no effect. Fails with EINVAL if there is no request, for too
    /// much private data, or for terms that the queue pair refuses; in the last case the request is
    /// rejected.
    pub fn accept(&self, param: &ConnParam) -> Result<(), Error> {
        self.runtime()?.cm(|session| {
            let mut inner = self.lock();
            inner.check(&[State::Connected])?;
            match (self.service(), inner.side) {
                (_, Side::Active) => inner.make_ready(session, None).and_then(|()| inner.confirm(session)),
                (Service::Ud, _) => inner.answer(session, param),
                _ => self.accept_request(session, &mut inner, param),
            }
        })?
    }

    fn accept_request(&self, session: &mut Session<'_>, inner: &mut Inner, param: &ConnParam) -> Result<(), Error> {
        let accept = machine::Accept {
            ece: inner.local_ece,
            responder_resources: capped(param.responder_resources),
            initiator_depth: capped(param.initiator_depth),
            flow_control: param.flow_control,
            rnr_retry_count: Uint::new(param.rnr_retry_count.min(7)),
            srq: inner.has_srq(param),
            private_data: private_data(&param.private_data)?,
            ..machine::Accept::new(inner.qpn(param), inner.psn)
        };
        let comm = inner.comm_id()?;
        let ready = inner.make_ready(session, Some((accept.responder_resources, accept.initiator_depth)));
        let accepted = ready.and_then(|()| session.cm.accept(&mut session.cx, comm, &accept).map_err(refused));
        accepted.inspect_err(|_| inner.give_up(session))
    }

    /// Rejects a request, or the peer's reply. A datagram id does not send the reason. Fails with
    /// EINVAL if there is nothing to reject, or for too much private data.
    pub fn reject(&self, private_data: &[u8], reason: RejReason) -> Result<(), Error> {
        self.runtime()?.cm(|session| {
            let mut inner = self.lock();
            let comm = inner.comm_id()?;
            if self.service() == Service::Ud {
                let private_data = self::private_data(private_data)?;
                let resolution = Resolution { private_data, ..Resolution::refused(SidrStatus::Reject) };
                session.cm.answer(comm, &resolution).map_err(refused)?;
            } else {
                let refusal = Refusal { reason, info: Info::EMPTY, private_data: self::private_data(private_data)? };
                session.cm.reject(comm, &refusal).map_err(refused)?;
            }
            inner.forget_conn(session);
            Ok(())
        })?
    }

    /// Confirms the peer's reply (`rdma_establish`), for programs that move their queue pair
    /// themselves. No event follows: the connection is established. Fails with EINVAL if there is
    /// no reply.
    pub fn establish(&self) -> Result<(), Error> {
        self.runtime()?.cm(|session| {
            let inner = self.lock();
            inner.check(&[State::Connected])?;
            inner.confirm(session)
        })?
    }

    /// Disconnects, or agrees to the peer's disconnect; moves the queue pair to ERR. Does nothing
    /// if the connection is over. Fails with EINVAL if the id was never connected.
    pub fn disconnect(&self) -> Result<(), Error> {
        let runtime = self.runtime()?;
        let (conn, qp) = {
            let inner = self.lock();
            (inner.conn, inner.qp.clone())
        };
        if conn == ConnHandle::None {
            return Err(Error::invalid("the id has not been connected"));
        }
        qp.map_or(Ok(()), |qp| fail(&qp))?;
        let ConnHandle::Alive(comm) = conn else { return Ok(()) };
        receive_before_end(&runtime);
        runtime.cm(|session| {
            // As in the kernel, a disconnect that is too early or too late is not an error.
            let _ = session.cm.disconnect(&mut session.cx, comm);
        })
    }

    /// Reports an event of the queue pair. [`AsyncEventKind::CommEst`] establishes an accepted
    /// connection whose confirmation was lost; [`AsyncEventKind::PathMig`] makes the alternate path
    /// the path of the connection. Fails with EISCONN if the connection is established; EINVAL for
    /// any other event or state.
    // clause: CM-ESTABLISH
    pub fn notify(&self, event: AsyncEventKind) -> Result<(), Error> {
        let runtime = self.runtime()?;
        let comm = self.lock().comm_id()?;
        if event == AsyncEventKind::PathMig {
            return runtime.cm(|session| self.lock().swap_paths(session))?;
        }
        if event != AsyncEventKind::CommEst {
            return Err(Error::invalid(format!("{event:?} does not change a connection")));
        }
        runtime.cm(|session| match session.cm.establish(comm) {
            Err(CmError::State) if session.cm.state(comm) == Some(machine::State::Established) => {
                Err(Error::new(libc::EISCONN, "the connection is established"))
            }
            established => established.map_err(refused),
        })?
    }

    pub(super) fn runtime(&self) -> Result<Runtime, Error> {
        Ok(self.lock().device_addr()?.runtime.clone())
    }
}

impl Inner {
    fn comm_id(&self) -> Result<CommId, Error> {
        match self.conn {
            ConnHandle::Alive(comm) => Ok(comm),
            ConnHandle::None => Err(Error::invalid("the id has not been connected")),
            ConnHandle::Over => Err(Error::invalid("the connection is over")),
        }
    }

    /// Stops receiving events of the connection.
    fn forget_conn(&mut self, session: &mut Session<'_>) {
        if let ConnHandle::Alive(comm) = self.conn {
            session.ids.remove(&comm);
        }
        self.conn = ConnHandle::Over;
    }

    fn give_up(&mut self, session: &mut Session<'_>) {
        let ConnHandle::Alive(comm) = self.conn else { return };
        self.fail_qp();
        if session.cm.reject(comm, &Refusal::new(PrivateData::EMPTY)).is_ok() {
            self.forget_conn(session);
        }
    }

    fn confirm(&self, session: &mut Session<'_>) -> Result<(), Error> {
        session.cm.confirm(self.comm_id()?, &PrivateData::EMPTY).map_err(refused)
    }

    fn answer(&mut self, session: &mut Session<'_>, param: &ConnParam) -> Result<(), Error> {
        let resolution = Resolution {
            service: Ok((self.qpn(param), UDP_QKEY)),
            ece: self.local_ece,
            private_data: private_data(&param.private_data)?,
        };
        session.cm.answer(self.comm_id()?, &resolution).map_err(refused)?;
        self.forget_conn(session);
        Ok(())
    }

    fn path(&self) -> Result<&Path, Error> {
        self.path.as_ref().ok_or_else(|| Error::invalid("the id has no path"))
    }

    // clause: CM-SERVICE-ID
    fn service_id(&self, id: &Id) -> Result<ServiceId, Error> {
        match self.peer {
            Some(Address::Ip(ip)) => Ok(ServiceId::new(id.port_space(), ip.port())),
            Some(Address::Ib(ib)) => Ok(ServiceId(ib.sid)),
            None => Err(Error::invalid("the id has no destination")),
        }
    }

    /// Returns the private data of a request: addresses, except in `AF_IB`, and the program's part.
    // clause: CM-IP-HEADER
    fn with_addresses<const N: usize>(&self, program_data: &[u8]) -> Result<PrivateData<N>, Error> {
        let (Some(Address::Ip(local)), Some(Address::Ip(peer))) = (self.local, self.peer) else {
            return private_data(program_data);
        };
        let addresses = IpPair::new(local.ip(), peer.ip());
        let header = addresses.map(|addresses| IpCmHeader { src_port: local.port(), addresses });
        let data = header.and_then(|header| header.with_program_data(program_data));
        data.ok_or_else(|| too_long(program_data.len(), N - IpCmHeader::LEN))
    }

    fn qpn(&self, param: &ConnParam) -> Qpn {
        self.qp.as_ref().map_or_else(|| Qpn::new(param.qp_num), |qp| qp.qpn())
    }

    fn has_srq(&self, param: &ConnParam) -> bool {
        self.qp.as_ref().map_or(param.srq, |qp| qp.srq().is_some())
    }
}

/// Returns the time for which a request is retransmitted while no program listens. On this host the
/// request waits for its listener (`engine/gsi.rs`).
// clause: CM-REQ-AGAIN
fn retry_for(engine: &Engine, path: &Path) -> Duration {
    if engine.link(path.dgid).is_some() { Duration::ZERO } else { NO_LISTENER_RETRY }
}

fn private_data<const N: usize>(program_data: &[u8]) -> Result<PrivateData<N>, Error> {
    PrivateData::new(program_data).ok_or_else(|| too_long(program_data.len(), N))
}

fn too_long(len: usize, max: usize) -> Error {
    Error::invalid(format!("{len} bytes of private data exceed the maximum of {max}"))
}

/// Limits a number of outstanding READs and atomics to that of the device.
fn capped(depth: u8) -> u8 {
    depth.min(MAX_QP_RD_ATOM)
}

fn transport(service: Service) -> Transport {
    match service {
        Service::Uc => Transport::Uc,
        Service::XrcIni | Service::XrcTgt => Transport::Xrc,
        _ => Transport::Rc,
    }
}

impl CmHandler for Id {
    fn on_request(&self, session: &mut Session<'_>, request: Request<'_>, comm: CommId, origin: Origin) -> bool {
        self.accept_request_for(session, request, comm, origin).is_some()
    }

    fn on_event(&self, session: &mut Session<'_>, comm: CommId, kind: machine::EventKind) {
        let mut inner = self.lock();
        if inner.conn != ConnHandle::Alive(comm) {
            return;
        }
        let mut error = None;
        let (kind, status, data) = match kind {
            machine::EventKind::ConnectReply(rep, ece) => inner.on_reply(session, comm, &rep, ece, &mut error),
            machine::EventKind::Established => (EventKind::Established, 0, EventData::None),
            machine::EventKind::Rejected(rej) => inner.on_rejection(session, rej.reason, &rej.private_data),
            machine::EventKind::Stale => inner.on_rejection(session, RejReason::StaleConnection, &PrivateData::EMPTY),
            machine::EventKind::Unreachable => {
                inner.forget_conn(session);
                (EventKind::Unreachable, -session.timeout_errno, EventData::None)
            }
            machine::EventKind::Disconnected(ending) => {
                if inner.state == State::Connected {
                    inner.state = State::Disconnected;
                }
                let status = if ending == Ending::TimedOut { -libc::ETIMEDOUT } else { 0 };
                (EventKind::Disconnected, status, EventData::None)
            }
            machine::EventKind::TimeWaitExit => {
                inner.forget_conn(session);
                (EventKind::TimewaitExit, 0, EventData::None)
            }
            machine::EventKind::LookupReply(rep, ece) => inner.on_lookup_reply(session, &rep, ece),
            machine::EventKind::AlternateRequest(lap) => return inner.on_alternate_request(session, comm, &lap),
            machine::EventKind::AlternateReply(apr) => inner.on_alternate_reply(apr.status),
            machine::EventKind::AlternateUnanswered => inner.alternate_failed(-libc::ETIMEDOUT),
            // A connected id gets no requests.
            machine::EventKind::ConnectRequest(..) | machine::EventKind::LookupRequest(..) => return,
        };
        self.explain(&inner, (kind, status, &data), error.as_ref());
        self.raise_in(&inner, kind, status, data);
        if kind == EventKind::Established {
            self.end_by_rule(session.engine);
        }
    }
}

/// Returns the outcome of a connection request that a fault rule requests.
fn failure_by_rule() -> Option<Outcome> {
    if faults::happens(EventFault::Rejected) {
        let reason = RejReason::InvalidServiceId;
        return Some((EventKind::Rejected, i32::from(reason.code()), EventData::None));
    }
    let is_lost = faults::happens(EventFault::Unreachable);
    is_lost.then_some((EventKind::Unreachable, -libc::ETIMEDOUT, EventData::None))
}

/// Ends a connection for a fault rule.
#[derive(Debug)]
struct Cut(Weak<Id>);

impl DeadlineOwner for Cut {
    fn on_deadline(&self, _: Instant) {
        // The thread that runs the timers may hold locks of the connection manager.
        let id = self.0.clone();
        let end = move || {
            let _own = OwnThread::begin();
            // A call after the end of the connection is not an error.
            id.upgrade().map(|id| id.disconnect())
        };
        // If no thread can be started, the connection stays established.
        _ = thread::Builder::new().spawn(end);
    }
}

impl Id {
    /// Ends the connection later, if a fault rule requests it.
    fn end_by_rule(&self, engine: &Engine) {
        for Raised { time, .. } in faults::occasion(EventFault::Disconnected) {
            rule_events::after(engine, time, Arc::new(Cut(Weak::clone(&self.me))));
        }
    }
}

impl Inner {
    /// Handles the peer's acceptance. If the id has no queue pair, the program must confirm it.
    fn on_reply(
        &mut self,
        session: &mut Session<'_>,
        comm: CommId,
        rep: &Rep,
        ece: Ece,
        error: &mut Option<Error>,
    ) -> Outcome {
        self.remote_ece = ece;
        let data = EventData::Conn(reply_params(rep));
        if self.qp.is_none() {
            return (EventKind::ConnectResponse, 0, data);
        }
        if let Err(e) = self.make_ready(session, None) {
            self.give_up(session);
            let status = -e.errno();
            *error = Some(e);
            return (EventKind::ConnectError, status, data);
        }
        // Cannot fail directly after a REP.
        let _ = session.cm.confirm(comm, &PrivateData::EMPTY);
        // The program may exit at its event, and the confirmation must leave before.
        session.send();
        (EventKind::Established, 0, data)
    }

    fn on_rejection(
        &mut self,
        session: &mut Session<'_>,
        reason: RejReason,
        private_data: &PrivateData<148>,
    ) -> Outcome {
        self.forget_conn(session);
        self.fail_qp();
        let param = ConnParam { private_data: private_data.as_bytes().to_vec(), ..ConnParam::NOTHING };
        (EventKind::Rejected, i32::from(reason.code()), EventData::Conn(param))
    }

    // clause: CM-SIDR
    fn on_lookup_reply(&mut self, session: &mut Session<'_>, rep: &SidrRep, ece: Ece) -> Outcome {
        self.forget_conn(session);
        self.remote_ece = ece;
        let ah_attr = match (&self.path, &self.device_addr) {
            (Some(path), Some(device_addr)) => path.ah_attr(device_addr.gid_index),
            _ => Default::default(),
        };
        let (qp_num, qkey) = (rep.qpn.get(), rep.qkey.0);
        let param = UdParam { private_data: rep.private_data.as_bytes().to_vec(), ah_attr, qp_num, qkey };
        match rep.status {
            SidrStatus::Success => (EventKind::Established, 0, EventData::Ud(param)),
            status => (EventKind::Unreachable, i32::from(status.code()), EventData::Ud(param)),
        }
    }
}

// clause: CM-DEPTH
fn reply_params(rep: &Rep) -> ConnParam {
    ConnParam {
        private_data: rep.private_data.as_bytes().to_vec(),
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        flow_control: rep.flow_control,
        retry_count: 0,
        rnr_retry_count: rep.rnr_retry_count.get(),
        srq: rep.srq,
        qp_num: if rep.local_qpn.get() == 0 { rep.local_eecn.get() } else { rep.local_qpn.get() },
    }
}

type Modify = (QpAttr, AttrMask);

impl Id {
    /// Attaches a queue pair, which the id moves from now on: now to INIT, datagrams to RTS; later
    /// with connect, accept, reject and disconnect. Fails with EINVAL if the id has a queue pair or
    /// no device, or the queue pair belongs to another device or is not in RESET.
    pub fn attach_qp(&self, qp: &Arc<Qp>) -> Result<(), Error> {
        let mut inner = self.lock();
        if inner.qp.is_some() {
            return Err(Error::invalid("the id already has a queue pair"));
        }
        inner.check_device(qp)?;
        if qp.service() == Service::Ud {
            ud_states().into_iter().try_for_each(|(attr, mask)| qp.modify_at_once(&attr, mask))?;
        } else {
            let (attr, mask) = init(Access::empty());
            qp.modify_at_once(&attr, mask)?;
        }
        inner.groups.attach_all(qp)?;
        inner.qp = Some(Arc::clone(qp));
        Ok(())
    }

    /// Detaches the queue pair.
    pub fn detach_qp(&self) {
        // Without a queue pair no group can fail.
        let _ = self.replace_qp(None);
    }

    /// Attaches this queue pair instead of the present one, whatever the states of both: C programs
    /// move a queue pair to another id by assigning `rdma_cm_id.qp`. Unsuitable ones fail when they
    /// are moved. Fails if the queue pair cannot join a group of the id; the queue pair stays
    /// attached.
    pub fn replace_qp(&self, qp: Option<&Arc<Qp>>) -> Result<(), Error> {
        let mut inner = self.lock();
        inner.leave_groups();
        let before = std::mem::replace(&mut inner.qp, qp.map(Arc::clone));
        let joined = qp.map_or(Ok(()), |qp| inner.groups.attach_all(qp));
        drop(inner);
        drop(before);
        joined
    }

    /// Returns the attached queue pair.
    pub fn qp(&self) -> Option<Arc<Qp>> {
        self.lock().qp.clone()
    }

    /// Returns the attributes for moving a queue pair to `state` (INIT, RTR or RTS), for programs
    /// that move it themselves. Fails with EINVAL if the id has no device, for any other `state`,
    /// or before the peer's reply.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        let inner = self.lock();
        let runtime = inner.device_addr()?.runtime.clone();
        let (conn, service) = (inner.conn, inner.qp_service(self.service()));
        drop(inner);
        if service == Service::Ud {
            return ud_states().into_iter().find(|(attr, _)| attr.state == state).ok_or_else(no_such_state);
        }
        let ConnHandle::Alive(_) = conn else {
            return if state == QpState::Init { Ok(init(Access::empty())) } else { Err(no_reply_yet()) };
        };
        runtime.cm(|session| self.lock().modify_to(session, state, service, None))?
    }
}

impl Inner {
    fn check_device(&self, qp: &Qp) -> Result<(), Error> {
        if self.device_addr()?.device.index() == qp.pd().context().device().index() {
            return Ok(());
        }
        Err(Error::invalid("the queue pair belongs to another device than the id"))
    }

    fn qp_service(&self, default: Service) -> Service {
        self.qp.as_ref().map_or(default, |qp| qp.service())
    }

    /// Moves the attached queue pair, if any, to RTS. `depths` are the program's responder
    /// resources and initiator depth. Fails with EINVAL if the queue pair belongs to another
    /// device, or cannot reach RTS from its state.
    fn make_ready(&self, session: &mut Session<'_>, depths: Option<(u8, u8)>) -> Result<(), Error> {
        let Some(qp) = &self.qp else { return Ok(()) };
        self.check_device(qp)?;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, mask) = self.modify_to(session, state, qp.service(), depths)?;
            qp.modify_at_once(&attr, mask)?;
        }
        Ok(())
    }

    fn fail_qp(&self) {
        if let Some(qp) = &self.qp {
            // Fails if the program has reset the queue pair meanwhile, which then stays in RESET.
            let _ = fail(qp);
        }
    }

    fn modify_to(
        &self,
        session: &mut Session<'_>,
        state: QpState,
        service: Service,
        depths: Option<(u8, u8)>,
    ) -> Result<Modify, Error> {
        // Without the peer's reply there are no terms, only INIT.
        let terms = session.cm.qp_terms(self.comm_id()?);
        if state == QpState::Init {
            return Ok(init(rights(terms.map_or(0, |terms| terms.max_dest_rd_atomic))));
        }
        let mut terms = terms.ok_or_else(no_reply_yet)?;
        terms.rq_psn = self.psn;
        let (resources, requests) = depths.unwrap_or((MAX_QP_RD_ATOM, MAX_QP_RD_ATOM));
        terms.max_dest_rd_atomic = terms.max_dest_rd_atomic.min(resources);
        terms.max_rd_atomic = terms.max_rd_atomic.min(requests);
        match state {
            QpState::Rtr => Ok(rtr(&terms, service, self.device_addr()?.gid_index)),
            QpState::Rts => Ok(rts(&terms, service, self.options.ack_timeout)),
            _ => Err(no_such_state()),
        }
    }
}

fn fail(qp: &Qp) -> Result<(), Error> {
    qp.modify_at_once(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE)
}

/// Access rights of a peer, given the number of READs and atomics served for it.
// clause: CM-QP-INIT
fn rights(resources: u8) -> Access {
    let reads = Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL;
    if resources > 0 { Access::REMOTE_WRITE | reads } else { Access::REMOTE_WRITE }
}

fn init(access: Access) -> Modify {
    let attr = QpAttr { state: QpState::Init, access, port: limits::PORTS, ..QpAttr::default() };
    (attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS)
}

fn ud_states() -> [Modify; 3] {
    let attr = |state| QpAttr { state, qkey: UDP_QKEY, port: limits::PORTS, ..QpAttr::default() };
    let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    [
        (attr(QpState::Init), init),
        (attr(QpState::Rtr), AttrMask::STATE),
        (attr(QpState::Rts), AttrMask::STATE | AttrMask::SQ_PSN),
    ]
}

// clause: CM-QP-RTR
fn rtr(terms: &QpTerms, service: Service, sgid_index: u8) -> Modify {
    let attr = QpAttr {
        state: QpState::Rtr,
        av: Path::of_terms(terms).av(sgid_index),
        path_mtu: terms.path_mtu,
        dest_qpn: terms.dest_qpn,
        rq_psn: terms.rq_psn,
        max_dest_rd_atomic: terms.max_dest_rd_atomic,
        min_rnr_timer: 0,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let responder = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    (attr, if matches!(service, Service::Rc | Service::XrcTgt) { mask | responder } else { mask })
}

// clause: CM-QP-RTS
fn rts(terms: &QpTerms, service: Service, ack_timeout: Option<u8>) -> Modify {
    let attr = QpAttr {
        state: QpState::Rts,
        sq_psn: terms.sq_psn,
        timeout: ack_timeout.unwrap_or_else(|| terms.timeout.get()),
        retry_cnt: terms.retry_cnt.get(),
        rnr_retry: terms.rnr_retry.get(),
        max_rd_atomic: terms.max_rd_atomic,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::SQ_PSN;
    let requester = AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    let mask = match service {
        Service::Rc | Service::XrcIni => mask | AttrMask::TIMEOUT | requester,
        Service::XrcTgt => mask | AttrMask::TIMEOUT,
        _ => mask,
    };
    (attr, mask)
}

fn no_reply_yet() -> Error {
    Error::invalid("the peer has not responded to the request yet")
}

fn no_such_state() -> Error {
    Error::invalid("attributes exist only for the transitions to INIT, RTR and RTS")
}

impl Id {
    /// Sets if alternate paths that the peer proposes are loaded. By default they are refused,
    /// because they let the peer choose a destination of packets. Fails with EINVAL if the id is
    /// not connected or has no queue pair.
    pub fn allow_alternates(&self, allow: bool) -> Result<(), Error> {
        self.runtime()?.cm(|session| {
            let inner = self.lock();
            inner.check(&[State::Connected])?;
            inner.attached()?;
            session.cm.enable_alternate_events(inner.comm_id()?, allow).map_err(refused)
        })?
    }

    /// Proposes an alternate path to the peer. The result is [`EventKind::RouteResolved`] once both
    /// queue pairs have loaded it, or [`EventKind::RouteError`] with a negative errno (EOPNOTSUPP:
    /// the peer's program accepts none) or the positive status of an APR. The path is armed by the
    /// next packet.
    ///
    /// # Errors
    /// EINVAL if the connection is not established, has no queue pair or a pending proposal, or
    /// `path` does not begin at an address of the device.
    pub fn load_alternate(&self, path: &Path) -> Result<(), Error> {
        self.runtime()?.cm(|session| {
            let mut inner = self.lock();
            inner.check(&[State::Connected])?;
            inner.attached()?;
            inner.index_of(path.sgid)?;
            let alternate = Alternate {
                flow_label: FlowLabel::new(path.flow_label),
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                packet_lifetime: TimeCode::new(path.packet_life_time),
                ..Alternate::new(path.route())
            };
            let comm = inner.comm_id()?;
            session.cm.load_alternate(&mut session.cx, comm, &alternate).map_err(refused)?;
            inner.proposed_path = Some(*path);
            Ok(())
        })?
    }
}

impl Inner {
    fn attached(&self) -> Result<(), Error> {
        if self.qp.is_some() { Ok(()) } else { Err(Error::invalid("the id has no queue pair")) }
    }

    fn index_of(&self, sgid: Gid) -> Result<u8, Error> {
        let found =
            self.device_addr()?.device.adapter().gids().used().find(|(_, gid)| *gid == sgid).map(|(index, _)| index);
        found.ok_or_else(|| Error::invalid(format!("{sgid} is not an address of the device")))
    }

    /// Loads an alternate path into the queue pair and arms it.
    // clause: CM-QP-ALTERNATE
    fn rearm(&self, path: &Path) -> Result<(), Error> {
        let alt_av = path.av(self.index_of(path.sgid)?);
        let alt_timeout = path.packet_life_time.saturating_add(1).min(31);
        let path_mig_state = MigState::Rearm;
        let attr = QpAttr { alt_av, alt_port: limits::PORTS, alt_timeout, path_mig_state, ..QpAttr::default() };
        self.device_addr()?.runtime.engine().ensure_link(path.sgid)?;
        let mask = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
        self.qp.as_ref().map_or(Ok(()), |qp| qp.modify_at_once(&attr, mask))
    }

    fn on_alternate_request(&mut self, session: &mut Session<'_>, comm: CommId, lap: &Lap) {
        let route = Route { local: lap.remote_gid, remote: lap.local_gid };
        let Some(own) = self.path else { return };
        let path = Path {
            flow_label: lap.flow_label.get(),
            hop_limit: lap.hop_limit,
            traffic_class: lap.traffic_class,
            packet_life_time: lap.local_ack_timeout.get().saturating_sub(1),
            ..Path::between(route, own.mtu)
        };
        let status = match self.index_of(path.sgid).map_err(|_| AprStatus::InvalidGid) {
            Err(status) => status,
            Ok(_) if self.rearm(&path).is_ok() => AprStatus::Success,
            Ok(_) => AprStatus::Reject,
        };
        if status == AprStatus::Success {
            self.alternate_path = Some(path);
        }
        // Cannot fail directly after the request.
        let _ = session.cm.answer_alternate(comm, &AlternateAnswer::new(status));
    }

    fn on_alternate_reply(&mut self, status: AprStatus) -> Outcome {
        let loaded = match (status, self.proposed_path.take()) {
            (AprStatus::Success, Some(path)) => self.rearm(&path).map(|()| path).map_err(|e| -e.errno()),
            (AprStatus::Unsupported, _) => Err(-libc::EOPNOTSUPP),
            (status, _) => Err(status.code().into()),
        };
        match loaded {
            Ok(path) => {
                self.alternate_path = Some(path);
                (EventKind::RouteResolved, 0, EventData::None)
            }
            Err(status) => self.alternate_failed(status),
        }
    }

    fn alternate_failed(&mut self, status: i32) -> Outcome {
        self.proposed_path = None;
        (EventKind::RouteError, status, EventData::None)
    }

    /// Makes the alternate path the path of the connection.
    // clause: CM-MIGRATED
    fn swap_paths(&mut self, session: &mut Session<'_>) -> Result<(), Error> {
        session.cm.on_migrated(self.comm_id()?).map_err(refused)?;
        std::mem::swap(&mut self.path, &mut self.alternate_path);
        Ok(())
    }
}
