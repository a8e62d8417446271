//! What an id hears of the machine: what its program is told, and what happens to its queue pair
//! meanwhile.

use super::address::{Address, IbAddress};
use super::device_addr::DeviceAddr;
use super::event::{ConnParam, EventData, EventKind, Told, UdParam};
use super::explain::note_refusal;
use super::id::{Id, Inner, Link, Side, State};
use super::route::Path;
use crate::ib_cm::{CmHandler, Request, Session};
use roxe_base::error::Error;
use roxe_transport::cm::{self as machine, Ece, Ending, Origin, Route};
use roxe_transport::qp::Service;
use roxe_wire::cm::{CommId, IpCmHeader, PrivateData, RejReason, Rep, ServiceId, SidrRep, SidrStatus, Transport};
use std::net::SocketAddr;
use std::sync::Arc;

impl Id {
    /// Gives the program a new id for a request to this one. `None`: nobody takes it.
    fn make_for(&self, session: &mut Session<'_>, request: Request<'_>, comm: CommId, origin: Origin) -> Option<()> {
        let (channel, bound) = (self.channel(), self.lock().local?);
        let service = service(request, self)?;
        let (local, peer, user) = addresses(&request, &bound, origin.route)?;
        let device_addr = DeviceAddr::of(origin.route.local).ok()?;
        let (terms, ifindex) = (session.cm.qp_terms(comm), device_addr.device.ifindex());
        let id = Self::make(&channel, self.port_space(), service, 0, (session.cx.random)() as u32);
        {
            let mut inner = id.lock();
            (inner.state, inner.side, inner.link) = (State::Connected, Side::Passive, Link::Alive(comm));
            (inner.local, inner.peer) = (Some(local), Some(peer));
            let mtu = device_addr.device.adapter().active_mtu();
            inner.path = Some(terms.map_or_else(|| Path::between(origin.route, mtu), |terms| Path::of_terms(&terms)));
            inner.device_addr = Some(device_addr);
            inner.remote_ece = ece(request);
        }
        session.ids.insert(comm, Arc::clone(&id) as _);
        let heard = self.raise_request(&id, data(request, user));
        if !heard {
            if let Request::Connection(req, _) = request {
                note_refusal(ifindex, req.local_qpn, self.lock().backlog);
            }
            session.ids.remove(&comm);
            id.lock().link = Link::Over;
            id.destroy();
        }
        heard.then_some(())
    }
}

/// What the new id is for, if the listener takes it. Who listens for connections takes RC and UC;
/// XRC has to be asked for.
fn service(request: Request<'_>, listener: &Id) -> Option<Service> {
    let Request::Connection(req, _) = request else { return Some(Service::Ud) };
    let service = match req.transport {
        Transport::Uc => Service::Uc,
        Transport::Xrc => Service::XrcTgt,
        _ => Service::Rc,
    };
    let is_xrc = matches!(listener.service(), Service::XrcTgt | Service::XrcIni);
    (is_xrc == (service == Service::XrcTgt)).then_some(service)
}

/// Our address and the peer's, and what its program says. The machine has checked those that are in
/// the request.
// clause: CM-IP-HEADER
fn addresses<'a>(request: &'a Request<'_>, bound: &Address, route: Route) -> Option<(Address, Address, &'a [u8])> {
    let (service_id, private_data) = match request {
        Request::Connection(req, _) => (req.service_id, &req.private_data.as_bytes()[..]),
        Request::Lookup(req) => (req.service_id, &req.private_data.as_bytes()[..]),
    };
    if let Address::Ib(_) = bound {
        let at = |gid, ServiceId(sid)| IbAddress { pkey: 0xffff, gid, sid, sid_mask: !0, ..IbAddress::default() };
        let (local, peer) = (at(route.local, service_id), at(route.remote, ServiceId(0)));
        return Some((Address::Ib(local), Address::Ib(peer), private_data));
    }
    let (header, user) = IpCmHeader::parse(private_data).ok()?;
    let (_, port) = service_id.port()?;
    let at = |ip, port| Address::Ip(SocketAddr::new(ip, port));
    Some((at(header.addresses.dst(), port), at(header.addresses.src(), header.src_port), user))
}

const fn ece(request: Request<'_>) -> Ece {
    if let Request::Connection(_, ece) = request { ece } else { Ece::NONE }
}

fn data(request: Request<'_>, user: &[u8]) -> EventData {
    let private_data = user.to_vec();
    match request {
        // clause: CM-DEPTH
        Request::Connection(req, _) => EventData::Conn(ConnParam {
            private_data,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.flow_control,
            retry_count: req.retry_count.get(),
            rnr_retry_count: req.rnr_retry_count.get(),
            srq: req.srq,
            qp_num: req.local_qpn.get(),
        }),
        Request::Lookup(_) => EventData::Ud(UdParam { private_data, ..UdParam::default() }),
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
                inner.end();
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
    fn end(&mut self) {
        if self.state == State::Connected {
            self.state = State::Disconnected;
        }
    }

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
