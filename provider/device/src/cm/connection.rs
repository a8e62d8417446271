//! A connection, from its request to its end: the verbs that become messages, what the id hears of
//! the machine, what connection management gives the queue pair and when, and alternate paths.
//!
//! ```text
//!          attach       connect: the peer accepts; accept       disconnect; the peer rejects
//!   RESET ───────► INIT ────────────────────────► RTR ─► RTS ─────────────────────────────► ERR
//!   datagrams: RESET ─► INIT ─► RTR ─► RTS
//! ```
//!
//! # Alternate paths
//!
//! One end proposes another path, both load it into their queue pairs, which go over to it when the
//! first path fails (`ibv_modify_qp`, path migration). librdmacm has no calls for this, so only
//! programs in Rust do it. Nothing of a peer's proposal is loaded without [`Id::take_alternates`]:
//! it lets the peer choose where packets may go.

use super::event::{ConnParam, EventData, EventKind, Told, UDP_QKEY, UdParam};
use super::id::{Id, Inner, Link, Side, State, receive_before_end, refused};
use super::route::{Address, Path};
use crate::event::AsyncEventKind;
use crate::ib_cm::{CmHandler, Request, Session};
use crate::qp::Qp;
use crate::runtime::Runtime;
use roxe_base::error::Error;
use roxe_base::limits::{self, MAX_QP_RD_ATOM};
use roxe_engine::engine::Engine;
use roxe_transport::cm::{
    self as machine, Alternate, AlternateAnswer, CmError, Connect, Ece, Ending, Origin, QpTerms, Refusal, Resolution,
    Resolve, Route,
};
use roxe_transport::qp::{AttrMask, MigState, QpAttr, QpState, Service};
use roxe_transport::wr::Access;
use roxe_wire::cm::{
    AprStatus, CommId, FlowLabel, Info, IpCmHeader, IpPair, Lap, PrivateData, RejReason, Rep, ServiceId, SidrRep,
    SidrStatus, Small, TimeCode, Transport,
};
use roxe_wire::{Gid, Qpn};
use std::sync::Arc;
use std::time::Duration;

/// How long another host is asked while nobody listens there: short for a program that has to learn
/// that nobody ever will, long enough for a slow server that closes its listener and opens it
/// again, as perftest does.
const NO_LISTENER_RETRY: Duration = Duration::from_millis(500);

/// Verbs of connections.
impl Id {
    /// Asks the peer; a datagram id asks for its queue pair, with private data only. Comes to
    /// [`EventKind::Established`], or
    /// [`EventKind::ConnectResponse`] without a queue pair
    /// attached, or `Rejected`, `Unreachable`, `ConnectError`.
    ///
    /// EINVAL: the route is not resolved, or too much private data. ENOMEM: too many connections.
    pub fn connect(&self, param: &ConnParam) -> Result<(), Error> {
        self.runtime()?.cm(|session| {
            let mut inner = self.lock();
            inner.check(&[State::RouteResolved])?;
            let comm = match self.service() {
                Service::Ud => self.look_up(session, &inner, param)?,
                _ => self.ask(session, &inner, param)?,
            };
            (inner.state, inner.side, inner.link) = (State::Connected, Side::Active, Link::Alive(comm));
            session.ids.extend(self.me.upgrade().map(|id| (comm, id as _)));
            Ok(())
        })?
    }

    fn ask(&self, session: &mut Session<'_>, inner: &Inner, param: &ConnParam) -> Result<CommId, Error> {
        let (path, service_id) = (inner.path()?, inner.service_id(self)?);
        let connect = Connect {
            transport: transport(inner.qp_service(self.service())),
            ece: inner.local_ece,
            responder_resources: most(param.responder_resources),
            initiator_depth: most(param.initiator_depth),
            flow_control: param.flow_control,
            retry_count: Small::new(param.retry_count.min(7)),
            rnr_retry_count: Small::new(param.rnr_retry_count.min(7)),
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
        let comm = session.cm.connect(&mut session.cx, &connect).map_err(|e| refused(&e))?;
        session.watch_answer(comm, path.route());
        Ok(comm)
    }

    fn look_up(&self, session: &mut Session<'_>, inner: &Inner, param: &ConnParam) -> Result<CommId, Error> {
        let private_data = inner.with_addresses(&param.private_data)?;
        let (path, service_id) = (inner.path()?, inner.service_id(self)?);
        let retry_for = retry_for(session.engine, path);
        let resolve = Resolve { retry_for, private_data, ..Resolve::new(path.route(), service_id) };
        session.cm.resolve(&mut session.cx, &resolve).map_err(|e| refused(&e))
    }

    /// Accepts a request; of a datagram id with `qp_num` and private data only. On the side that
    /// asked: moves the queue pair that the id was given after it asked, if any, and then does as
    /// [`Id::establish`], with nothing said.
    ///
    /// EINVAL: there is no request (any more), too much private data, or terms that the queue pair
    /// does not take; after the last the request is rejected.
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
            responder_resources: most(param.responder_resources),
            initiator_depth: most(param.initiator_depth),
            flow_control: param.flow_control,
            rnr_retry_count: Small::new(param.rnr_retry_count.min(7)),
            srq: inner.has_srq(param),
            private_data: said(&param.private_data)?,
            ..machine::Accept::new(inner.qpn(param), inner.psn)
        };
        let comm = inner.alive()?;
        let ready = inner.make_ready(session, Some((accept.responder_resources, accept.initiator_depth)));
        let accepted = ready.and_then(|()| session.cm.accept(&mut session.cx, comm, &accept).map_err(|e| refused(&e)));
        accepted.inspect_err(|_| inner.give_up(session))
    }

    /// Refuses a request, or what the peer answered. Of a datagram id the reason is not sent.
    ///
    /// EINVAL: nothing to refuse, or too much private data.
    pub fn reject(&self, private_data: &[u8], reason: RejReason) -> Result<(), Error> {
        self.runtime()?.cm(|session| {
            let mut inner = self.lock();
            let comm = inner.alive()?;
            if self.service() == Service::Ud {
                let resolution =
                    Resolution { private_data: said(private_data)?, ..Resolution::refused(SidrStatus::Reject) };
                session.cm.answer(comm, &resolution).map_err(|e| refused(&e))?;
            } else {
                let refusal = Refusal { reason, info: Info::EMPTY, private_data: said(private_data)? };
                session.cm.reject(comm, &refusal).map_err(|e| refused(&e))?;
            }
            inner.is_over(session);
            Ok(())
        })?
    }

    /// Confirms the peer's answer (`rdma_establish`), for programs that move their queue pair
    /// themselves. Comes to nothing: from here on it is connected.
    ///
    /// EINVAL: there is no answer.
    pub fn establish(&self) -> Result<(), Error> {
        self.runtime()?.cm(|session| {
            let inner = self.lock();
            inner.check(&[State::Connected])?;
            inner.confirm(session)
        })?
    }

    /// Ends the connection, or agrees with its end; moves the queue pair to ERR. If it is over
    /// already, nothing happens.
    ///
    /// EINVAL: never connected.
    pub fn disconnect(&self) -> Result<(), Error> {
        let runtime = self.runtime()?;
        let (link, qp) = {
            let inner = self.lock();
            (inner.link, inner.qp.clone())
        };
        if link == Link::None {
            return Err(Error::invalid("the id was never connected"));
        }
        qp.map_or(Ok(()), |qp| fail(&qp))?;
        let Link::Alive(comm) = link else { return Ok(()) };
        receive_before_end(&runtime);
        runtime.cm(|session| {
            // Too early or too late: as the kernel, which tells nobody.
            let _ = session.cm.disconnect(&mut session.cx, comm);
        })
    }

    /// Tells of an event of its queue pair: with [`AsyncEventKind::CommEst`] an accepted connection
    /// is established, if the peer's confirmation was lost; with [`AsyncEventKind::PathMig`] it
    /// goes on over its alternate path. EISCONN: it is established already. EINVAL: any other event
    /// or state.
    // clause: CM-ESTABLISH
    pub fn notify(&self, event: AsyncEventKind) -> Result<(), Error> {
        let runtime = self.runtime()?;
        let comm = self.lock().alive()?;
        if event == AsyncEventKind::PathMig {
            return runtime.cm(|session| self.lock().migrated(session))?;
        }
        if event != AsyncEventKind::CommEst {
            return Err(Error::invalid(format!("{event:?} does not change a connection")));
        }
        runtime.cm(|session| match session.cm.establish(comm) {
            Err(CmError::State) if session.cm.state(comm) == Some(machine::State::Established) => {
                Err(Error::new(libc::EISCONN, "the connection is established"))
            }
            established => established.map_err(|e| refused(&e)),
        })?
    }

    /// The engine of its device, or EINVAL.
    pub(super) fn runtime(&self) -> Result<Runtime, Error> {
        Ok(self.lock().device_addr()?.runtime.clone())
    }
}

impl Inner {
    /// The machine's name of the connection, or EINVAL.
    fn alive(&self) -> Result<CommId, Error> {
        match self.link {
            Link::Alive(comm) => Ok(comm),
            Link::None => Err(Error::invalid("the id has not been connected")),
            Link::Over => Err(Error::invalid("the connection is over")),
        }
    }

    /// Nothing is heard of the connection any more.
    fn is_over(&mut self, session: &mut Session<'_>) {
        if let Link::Alive(comm) = self.link {
            session.ids.remove(&comm);
        }
        self.link = Link::Over;
    }

    /// What could not be accepted is rejected, as by the kernel.
    fn give_up(&mut self, session: &mut Session<'_>) {
        let Link::Alive(comm) = self.link else { return };
        self.fail_qp();
        if session.cm.reject(comm, &Refusal::new(PrivateData::EMPTY)).is_ok() {
            self.is_over(session);
        }
    }

    fn confirm(&self, session: &mut Session<'_>) -> Result<(), Error> {
        session.cm.confirm(self.alive()?, &PrivateData::EMPTY).map_err(|e| refused(&e))
    }

    fn answer(&mut self, session: &mut Session<'_>, param: &ConnParam) -> Result<(), Error> {
        let resolution = Resolution {
            service: Ok((self.qpn(param), UDP_QKEY)),
            ece: self.local_ece,
            private_data: said(&param.private_data)?,
        };
        session.cm.answer(self.alive()?, &resolution).map_err(|e| refused(&e))?;
        self.is_over(session);
        Ok(())
    }

    fn path(&self) -> Result<&Path, Error> {
        self.path.as_ref().ok_or_else(|| Error::invalid("the id has no path"))
    }

    /// The service that the peer's address names.
    // clause: CM-SERVICE-ID
    fn service_id(&self, id: &Id) -> Result<ServiceId, Error> {
        match self.peer {
            Some(Address::Ip(ip)) => Ok(ServiceId::new(id.port_space(), ip.port())),
            Some(Address::Ib(ib)) => Ok(ServiceId(ib.sid)),
            None => Err(Error::invalid("the id has no destination")),
        }
    }

    /// Private data of a request: the addresses, unless they are of `AF_IB`, and what the program
    /// says.
    // clause: CM-IP-HEADER
    fn with_addresses<const N: usize>(&self, user: &[u8]) -> Result<PrivateData<N>, Error> {
        let (Some(Address::Ip(local)), Some(Address::Ip(peer))) = (self.local, self.peer) else { return said(user) };
        let addresses = IpPair::new(local.ip(), peer.ip());
        let header = addresses.map(|addresses| IpCmHeader { src_port: local.port(), addresses });
        let data = header.and_then(|header| header.with_user(user));
        data.ok_or_else(|| too_long(user.len(), N - IpCmHeader::LEN))
    }

    fn qpn(&self, param: &ConnParam) -> Qpn {
        self.qp.as_ref().map_or_else(|| Qpn::new(param.qp_num), |qp| qp.qpn())
    }

    fn has_srq(&self, param: &ConnParam) -> bool {
        self.qp.as_ref().map_or(param.srq, |qp| qp.srq().is_some())
    }
}

/// How long to ask a peer where nobody listens. On this host every request waits for its listener
/// as it is (`engine/gsi.rs`).
// clause: CM-REQ-AGAIN
fn retry_for(engine: &Engine, path: &Path) -> Duration {
    if engine.link(path.dgid).is_some() { Duration::ZERO } else { NO_LISTENER_RETRY }
}

/// What the program says, or EINVAL.
fn said<const N: usize>(user: &[u8]) -> Result<PrivateData<N>, Error> {
    PrivateData::new(user).ok_or_else(|| too_long(user.len(), N))
}

fn too_long(len: usize, most: usize) -> Error {
    Error::invalid(format!("{len} bytes of private data; there is room for {most}"))
}

/// What the device can have under way at a time, if the program asks for more or for all.
fn most(depth: u8) -> u8 {
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
        self.make_for(session, request, comm, origin).is_some()
    }

    fn on_event(&self, session: &mut Session<'_>, comm: CommId, kind: machine::EventKind) {
        let mut inner = self.lock();
        if inner.link != Link::Alive(comm) {
            return;
        }
        let mut error = None;
        let (kind, status, data) = match kind {
            machine::EventKind::ConnectReply(rep, ece) => inner.take_reply(session, comm, &rep, ece, &mut error),
            machine::EventKind::Established => (EventKind::Established, 0, EventData::None),
            machine::EventKind::Rejected(rej) => inner.take_rejection(session, rej.reason, &rej.private_data),
            machine::EventKind::Stale => inner.take_rejection(session, RejReason::StaleConnection, &PrivateData::EMPTY),
            machine::EventKind::Unreachable => {
                inner.is_over(session);
                (EventKind::Unreachable, -session.errno_of_silence, EventData::None)
            }
            machine::EventKind::Disconnected(ending) => {
                if inner.state == State::Connected {
                    inner.state = State::Disconnected;
                }
                let status = if ending == Ending::TimedOut { -libc::ETIMEDOUT } else { 0 };
                (EventKind::Disconnected, status, EventData::None)
            }
            machine::EventKind::TimeWaitExit => {
                inner.is_over(session);
                (EventKind::TimewaitExit, 0, EventData::None)
            }
            machine::EventKind::LookupReply(rep, ece) => inner.take_service(session, &rep, ece),
            machine::EventKind::AlternateRequest(lap) => return inner.take_alternate(session, comm, &lap),
            machine::EventKind::AlternateReply(apr) => inner.take_answer(apr.status),
            machine::EventKind::AlternateUnanswered => inner.no_alternate(-libc::ETIMEDOUT),
            // Requests are not for an id that is connected.
            machine::EventKind::ConnectRequest(..) | machine::EventKind::LookupRequest(..) => return,
        };
        self.explain(&inner, (kind, status, &data), error.as_ref());
        self.raise_in(&inner, kind, status, data);
    }
}

impl Inner {
    /// The peer accepts: with a queue pair of ours to move, that is all it takes.
    fn take_reply(
        &mut self,
        session: &mut Session<'_>,
        comm: CommId,
        rep: &Rep,
        ece: Ece,
        error: &mut Option<Error>,
    ) -> Told {
        self.remote_ece = ece;
        let data = EventData::Conn(accepted(rep));
        if self.qp.is_none() {
            return (EventKind::ConnectResponse, 0, data);
        }
        if let Err(e) = self.make_ready(session, None) {
            self.give_up(session);
            let status = -e.errno();
            *error = Some(e);
            return (EventKind::ConnectError, status, data);
        }
        // The answer to a REP that was just taken cannot be out of place.
        let _ = session.cm.confirm(comm, &PrivateData::EMPTY);
        // A program that hears it may end at once, and the peer must not wait for what never left.
        session.send();
        (EventKind::Established, 0, data)
    }

    fn take_rejection(&mut self, session: &mut Session<'_>, reason: RejReason, said: &PrivateData<148>) -> Told {
        self.is_over(session);
        self.fail_qp();
        let param = ConnParam { private_data: said.as_bytes().to_vec(), ..ConnParam::NOTHING };
        (EventKind::Rejected, i32::from(reason.code()), EventData::Conn(param))
    }

    // clause: CM-SIDR
    fn take_service(&mut self, session: &mut Session<'_>, rep: &SidrRep, ece: Ece) -> Told {
        self.is_over(session);
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

/// What the peer says with its acceptance.
// clause: CM-DEPTH
fn accepted(rep: &Rep) -> ConnParam {
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

/// What the queue pair is told.
type Modify = (QpAttr, AttrMask);

/// Verbs of the queue pair.
impl Id {
    /// The id moves this queue pair from now on: now to INIT, datagrams to RTS; then with connect,
    /// accept, reject and disconnect.
    ///
    /// EINVAL: it has one, or no device, or the queue pair is of another device or not in RESET.
    pub fn attach_qp(&self, qp: &Arc<Qp>) -> Result<(), Error> {
        let mut inner = self.lock();
        if inner.qp.is_some() {
            return Err(Error::invalid("the id has a queue pair"));
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

    /// Forgets the queue pair.
    pub fn detach_qp(&self) {
        // Nothing that is joined can fail without a queue pair.
        let _ = self.replace_qp(None);
    }

    /// The id moves this queue pair from now on, instead of the one it has, in whatever state both
    /// are: C programs take a queue pair from one id to another by assigning `rdma_cm_id.qp`.
    /// Whether it suits is seen when it is moved.
    ///
    /// The error is that of a group which the id has joined and the queue pair cannot be in; the id
    /// has it all the same.
    pub fn replace_qp(&self, qp: Option<&Arc<Qp>>) -> Result<(), Error> {
        let mut inner = self.lock();
        inner.leave_groups();
        let before = std::mem::replace(&mut inner.qp, qp.map(Arc::clone));
        let joined = qp.map_or(Ok(()), |qp| inner.groups.attach_all(qp));
        drop(inner);
        drop(before);
        joined
    }

    /// The queue pair.
    pub fn qp(&self) -> Option<Arc<Qp>> {
        self.lock().qp.clone()
    }

    /// What a queue pair has to be given on its way to `state` (INIT, RTR or RTS), for programs
    /// that move it themselves.
    ///
    /// EINVAL: no device, any other state, or the peer has not spoken yet.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        let inner = self.lock();
        let runtime = inner.device_addr()?.runtime.clone();
        let (link, service) = (inner.link, inner.qp_service(self.service()));
        drop(inner);
        if service == Service::Ud {
            return ud_states().into_iter().find(|(attr, _)| attr.state == state).ok_or_else(no_such_state);
        }
        let Link::Alive(_) = link else {
            return if state == QpState::Init { Ok(init(Access::empty())) } else { Err(too_early()) };
        };
        runtime.cm(|session| self.lock().modify_to(session, state, service, None))?
    }
}

impl Inner {
    /// EINVAL without a device, or if the queue pair is of another one.
    fn check_device(&self, qp: &Qp) -> Result<(), Error> {
        if self.device_addr()?.device.index() == qp.pd().context().device().index() {
            return Ok(());
        }
        Err(Error::invalid("the queue pair is of another device"))
    }

    /// Of the queue pair attached, or else `usual`.
    fn qp_service(&self, usual: Service) -> Service {
        self.qp.as_ref().map_or(usual, |qp| qp.service())
    }

    /// Moves the queue pair, if there is one, to RTS: the peer has spoken. `depths` are the
    /// program's, of resources and requests. EINVAL: it is of another device, or in a state that
    /// does not lead there.
    fn make_ready(&self, session: &mut Session<'_>, depths: Option<(u8, u8)>) -> Result<(), Error> {
        let Some(qp) = &self.qp else { return Ok(()) };
        self.check_device(qp)?;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, mask) = self.modify_to(session, state, qp.service(), depths)?;
            qp.modify_at_once(&attr, mask)?;
        }
        Ok(())
    }

    /// The peer does not want it, or it was given up.
    fn fail_qp(&self) {
        if let Some(qp) = &self.qp {
            // A queue pair that its program has reset meanwhile stays so.
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
        // While the peer has not answered there is only what we offer it.
        let terms = session.cm.qp_terms(self.alive()?);
        if state == QpState::Init {
            return Ok(init(rights(terms.map_or(0, |terms| terms.max_dest_rd_atomic))));
        }
        let mut terms = terms.ok_or_else(too_early)?;
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

/// Moves a queue pair to ERR.
fn fail(qp: &Qp) -> Result<(), Error> {
    qp.modify_at_once(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE)
}

/// What a peer may do that we serve so many READs and atomics of.
// clause: CM-QP-INIT
fn rights(resources: u8) -> Access {
    let reads = Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL;
    if resources > 0 { Access::REMOTE_WRITE | reads } else { Access::REMOTE_WRITE }
}

fn init(access: Access) -> Modify {
    let attr = QpAttr { state: QpState::Init, access, port: limits::PORTS, ..QpAttr::default() };
    (attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS)
}

/// All that a datagram queue pair needs.
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

fn too_early() -> Error {
    Error::invalid("the peer has not answered yet")
}

fn no_such_state() -> Error {
    Error::invalid("a queue pair is given attributes on its way to INIT, RTR and RTS only")
}

/// Verbs of alternate paths.
impl Id {
    /// Whether the queue pair loads alternate paths that the peer proposes from now on. It says no
    /// by itself.
    ///
    /// EINVAL: not connected, or no queue pair attached.
    pub fn take_alternates(&self, takes: bool) -> Result<(), Error> {
        self.runtime()?.cm(|session| {
            let inner = self.lock();
            inner.check(&[State::Connected])?;
            inner.attached()?;
            session.cm.take_alternates(inner.alive()?, takes).map_err(|e| refused(&e))
        })?
    }

    /// Proposes an alternate path to the peer. Comes to [`EventKind::RouteResolved`] when both
    /// queue pairs have it, armed as soon as a packet has come; or to [`EventKind::RouteError`]:
    /// the status is a negative errno, -EOPNOTSUPP if the peer's program does not want any, or the
    /// positive status of an APR.
    ///
    /// EINVAL: not established, no queue pair attached, a proposal is under way, or `path` does not
    /// begin at an address of the device.
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
            let comm = inner.alive()?;
            session.cm.load_alternate(&mut session.cx, comm, &alternate).map_err(|e| refused(&e))?;
            inner.alternates.proposed = Some(*path);
            Ok(())
        })?
    }
}

impl Inner {
    fn attached(&self) -> Result<(), Error> {
        if self.qp.is_some() { Ok(()) } else { Err(Error::invalid("the id has no queue pair")) }
    }

    /// Where the device has an address.
    fn index_of(&self, sgid: Gid) -> Result<u8, Error> {
        let found =
            self.device_addr()?.device.adapter().gids().used().find(|(_, gid)| *gid == sgid).map(|(index, _)| index);
        found.ok_or_else(|| Error::invalid(format!("{sgid} is no address of the device")))
    }

    /// The queue pair may go over to this path from now on, if its peer may.
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

    /// The peer proposes a path: loads it and says so, or why not.
    fn take_alternate(&mut self, session: &mut Session<'_>, comm: CommId, lap: &Lap) {
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
            self.alternates.loaded = Some(path);
        }
        // It cannot fail: the question has come this moment.
        let _ = session.cm.answer_alternate(comm, &AlternateAnswer::new(status));
    }

    /// The peer has loaded what was proposed, or has not.
    fn take_answer(&mut self, status: AprStatus) -> Told {
        let loaded = match (status, self.alternates.proposed.take()) {
            (AprStatus::Success, Some(path)) => self.rearm(&path).map(|()| path).map_err(|e| -e.errno()),
            (AprStatus::Unsupported, _) => Err(-libc::EOPNOTSUPP),
            (status, _) => Err(status.code().into()),
        };
        match loaded {
            Ok(path) => {
                self.alternates.loaded = Some(path);
                (EventKind::RouteResolved, 0, EventData::None)
            }
            Err(status) => self.no_alternate(status),
        }
    }

    /// Nothing came of what was proposed.
    fn no_alternate(&mut self, status: i32) -> Told {
        self.alternates.proposed = None;
        (EventKind::RouteError, status, EventData::None)
    }

    /// The queue pair has gone over.
    // clause: CM-MIGRATED
    fn migrated(&mut self, session: &mut Session<'_>) -> Result<(), Error> {
        session.cm.migrated(self.alive()?).map_err(|e| refused(&e))?;
        std::mem::swap(&mut self.path, &mut self.alternates.loaded);
        Ok(())
    }
}
