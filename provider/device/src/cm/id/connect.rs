//! How an id connects, answers, and ends: the verbs that become messages.

use super::pair::fail;
use super::state::{Id, Inner, Link, Side, State, refused};
use crate::cm::address::Address;
use crate::cm::event::{ConnParam, UDP_QKEY};
use crate::cm::route::Path;
use crate::event::AsyncEventKind;
use crate::ib_cm::Session;
use crate::runtime::Runtime;
use roxe_base::error::Error;
use roxe_base::limits::MAX_QP_RD_ATOM;
use roxe_engine::engine::Engine;
use roxe_transport::cm::{self as machine, CmError, Connect, Refusal, Resolution, Resolve};
use roxe_transport::qp::Service;
use roxe_wire::Qpn;
use roxe_wire::cm::{
    CommId, FlowLabel, Info, IpCmHeader, IpPair, PrivateData, RejReason, ServiceId, SidrStatus, Small, TimeCode,
    Transport,
};
use std::time::Duration;

/// How long another host is asked while nobody listens there: short for a program that has to learn
/// that nobody ever will, long enough for a slow server that closes its listener and opens it
/// again, as perftest does.
const NO_LISTENER_RETRY: Duration = Duration::from_millis(500);

/// Verbs.
impl Id {
    /// Asks the peer; a datagram id asks for its queue pair, with private data only. Comes to
    /// [`EventKind::Established`](crate::cm::EventKind::Established), or
    /// [`EventKind::ConnectResponse`](crate::cm::EventKind::ConnectResponse) without a queue pair
    /// attached, or `Rejected`, `Unreachable`, `ConnectError`.
    ///
    /// EINVAL: the route is not resolved, or too much private data. ENOMEM: too many connections.
    pub fn connect(&self, param: &ConnParam) -> Result<(), Error> {
        self.engine()?.cm(|session| {
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
        self.engine()?.cm(|session| {
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
        self.engine()?.cm(|session| {
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
        self.engine()?.cm(|session| {
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
        let engine = self.engine()?;
        let (link, qp) = {
            let inner = self.lock();
            (inner.link, inner.qp.clone())
        };
        if link == Link::None {
            return Err(Error::invalid("the id was never connected"));
        }
        qp.map_or(Ok(()), |qp| fail(&qp))?;
        let Link::Alive(comm) = link else { return Ok(()) };
        send_on_own_packets(&engine);
        engine.cm(|session| {
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
        let engine = self.engine()?;
        let comm = self.lock().alive()?;
        if event == AsyncEventKind::PathMig {
            return engine.cm(|session| self.lock().migrated(session))?;
        }
        if event != AsyncEventKind::CommEst {
            return Err(Error::invalid(format!("{event:?} does not change a connection")));
        }
        engine.cm(|session| match session.cm.establish(comm) {
            Err(CmError::State) if session.cm.state(comm) == Some(machine::State::Established) => {
                Err(Error::new(libc::EISCONN, "the connection is established"))
            }
            established => established.map_err(|e| refused(&e)),
        })?
    }

    /// The engine of its device, or EINVAL.
    pub(in crate::cm) fn engine(&self) -> Result<Runtime, Error> {
        Ok(self.lock().device_addr()?.engine.clone())
    }
}

impl Inner {
    /// The machine's name of the connection, or EINVAL.
    pub(in crate::cm) fn alive(&self) -> Result<CommId, Error> {
        match self.link {
            Link::Alive(comm) => Ok(comm),
            Link::None => Err(Error::invalid("the id has not been connected")),
            Link::Over => Err(Error::invalid("the connection is over")),
        }
    }

    /// Nothing is heard of the connection any more.
    pub(in crate::cm) fn is_over(&mut self, session: &mut Session<'_>) {
        if let Link::Alive(comm) = self.link {
            session.ids.remove(&comm);
        }
        self.link = Link::Over;
    }

    /// What could not be accepted is rejected, as by the kernel.
    pub(in crate::cm) fn give_up(&mut self, session: &mut Session<'_>) {
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

/// The system may have given the last packets to a peer on this host to our own socket: they are
/// sent on before the peer hears that the connection is over. Take no lock of an id around this.
pub(super) fn send_on_own_packets(engine: &Runtime) {
    engine.receive_all_arrived();
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
