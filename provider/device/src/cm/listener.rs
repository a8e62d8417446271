//! How an id listens, on the devices that have an address, and on the others as soon as they get
//! one; and how a request of a peer becomes a new id.

use super::event::{ConnParam, EventData, UdParam};
use super::explain::note_refusal;
use super::id::{Id, Inner, Link, Side, State, refused, stop_listening};
use super::resolve::is_ipv4;
use super::route::{Address, DeviceAddr, IbAddress, Path, all_engines};
use crate::ib_cm::ports::Claim;
use crate::ib_cm::{Request, Session};
use crate::runtime::Runtime;
use roxe_base::error::Error;
use roxe_transport::cm::{Addresses, Ece, Listen, Origin, Route, Takes};
use roxe_transport::qp::Service;
use roxe_wire::cm::{CommId, IpCmHeader, ServiceId, Transport};
use std::net::SocketAddr;
use std::sync::Arc;

/// What a listener holds of requests that its program has not heard of, unless it says less (Linux
/// cma.c).
const MAX_BACKLOG: usize = 1024;
/// The most requests that wait for an answer; the backlog bounds those that nobody has heard of.
const MAX_UNANSWERED: usize = 1 << 16;

impl Id {
    /// Takes requests for its port from now on, at most `backlog` of them unheard (0 and less:
    /// 1024). An id without an address listens at all IPv4 addresses, at a port that
    /// [`Id::local_addr`] tells. An id at all addresses listens on all devices.
    ///
    /// EINVAL: wrong state. EADDRINUSE: another id listens.
    pub fn listen(&self, backlog: i32) -> Result<(), Error> {
        self.begin_to_listen(backlog)?;
        self.listen_where_possible().inspect_err(|_| self.stop_listening())
    }

    fn begin_to_listen(&self, backlog: i32) -> Result<(), Error> {
        let mut inner = self.lock();
        if inner.state == State::Idle {
            self.bind_in(&mut inner, &Address::Ip(([0, 0, 0, 0], 0).into()))?;
        }
        inner.check(&[State::Bound])?;
        if inner.claim().is_none() {
            return Err(Error::invalid("the id was bound to connect, not to listen"));
        }
        inner.later = match &inner.device_addr {
            Some(device_addr) => vec![device_addr.runtime.clone()],
            None => all_engines()?,
        };
        let wanted = usize::try_from(backlog).unwrap_or(0);
        inner.backlog = if wanted == 0 { MAX_BACKLOG } else { wanted.min(MAX_BACKLOG) };
        inner.state = State::Listening;
        Ok(())
    }

    /// Listens on the devices that have an address and where it does not yet: those that come to
    /// one later follow.
    pub(super) fn listen_where_possible(&self) -> Result<(), Error> {
        while let Some((runtime, claim, listen)) = self.next_to_listen_on() {
            let listening = runtime.cm(|session| {
                let name = session.cm.listen(listen)?;
                session.listeners.extend(self.me.upgrade().map(|id| (name, id as _)));
                self.lock().listens.push((runtime.clone(), name));
                Ok(())
            });
            listening?.map_err(|e| refused(&e))?;
            claim.watch(runtime.engine())?;
        }
        Ok(())
    }

    fn next_to_listen_on(&self) -> Option<(Runtime, Arc<Claim>, Listen)> {
        let mut inner = self.lock();
        let at = inner.later.iter().position(|runtime| runtime.engine().has_address())?;
        let (claim, local) = (inner.claim()?, inner.local?);
        let listen = Listen { service_id: claim.service(), ..inner.listen(self.service(), &local) };
        Some((inner.later.swap_remove(at), claim, listen))
    }

    /// Where it listens already it stops, and is bound only.
    fn stop_listening(&self) {
        let mut inner = self.lock();
        if inner.state == State::Listening {
            inner.state = State::Bound;
        }
        let (listens, later) = (std::mem::take(&mut inner.listens), std::mem::take(&mut inner.later));
        let claim = inner.claim();
        drop(inner);
        drop(later);
        listens.iter().for_each(|(runtime, listen)| stop_listening(runtime, *listen, claim.as_deref()));
    }
}

impl Inner {
    /// What the machine has to listen for, but for the service.
    fn listen(&self, service: Service, local: &Address) -> Listen {
        let takes = if service == Service::Ud { Takes::Lookups } else { Takes::Connections };
        let gid = (!local.is_any()).then(|| local.gid());
        let plain = Listen { local: gid, ..Listen::new(ServiceId(0), takes, MAX_UNANSWERED) };
        match local {
            Address::Ib(ib) => Listen { service_mask: ib.sid_mask, ..plain },
            Address::Ip(_) => {
                let addresses = match (local.is_any(), is_ipv4(local), self.is_of_one_family(local)) {
                    (true, true, _) => Addresses::Ipv4,
                    (true, false, true) => Addresses::Ipv6,
                    _ => Addresses::Ip,
                };
                Listen { addresses, ..plain }
            }
        }
    }
}

impl Id {
    /// Gives the program a new id for a request to this one. `None`: nobody takes it.
    pub(super) fn make_for(
        &self,
        session: &mut Session<'_>,
        request: Request<'_>,
        comm: CommId,
        origin: Origin,
    ) -> Option<()> {
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
            inner.remote_ece = if let Request::Connection(_, ece) = request { ece } else { Ece::NONE };
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
