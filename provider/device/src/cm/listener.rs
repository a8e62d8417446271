//! Listening on the devices that have an address, and on the others as soon as they get one.
//! Creation of ids for the requests of peers.

use super::event::{ConnParam, EventData, UdParam};
use super::explain::note_refusal;
use super::id::{ConnHandle, Id, Inner, Side, State, refused, stop_listening};
use super::resolve::is_ipv4;
use super::route::{Address, DeviceAddr, IbAddress, Path, all_engines};
use crate::ib_cm::ports::Claim;
use crate::ib_cm::{Request, Session};
use crate::runtime::Runtime;
use roxe_base::error::Error;
use roxe_transport::cm::{Accepts, Addresses, Ece, Listen, Origin, Route};
use roxe_transport::qp::Service;
use roxe_wire::cm::{CommId, IpCmHeader, ServiceId, Transport};
use std::net::SocketAddr;
use std::sync::Arc;

/// Maximum and default backlog, as in Linux cma.c.
const MAX_BACKLOG: usize = 1024;
/// Maximum number of unanswered requests; the backlog bounds only those whose event the program has
/// not fetched.
const MAX_UNANSWERED: usize = 1 << 16;

impl Id {
    /// Listens for requests, with at most `backlog` of them pending (0 and less: 1024). An unbound
    /// id binds all IPv4 addresses and any port. An id bound to all addresses listens on all
    /// devices. Fails with EINVAL in another state; EADDRINUSE if another id listens at the
    /// address.
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
            return Err(Error::invalid("the id was bound for a connect, and cannot listen"));
        }
        inner.listen_later = match &inner.device_addr {
            Some(device_addr) => vec![device_addr.runtime.clone()],
            None => all_engines()?,
        };
        let wanted = usize::try_from(backlog).unwrap_or(0);
        inner.backlog = if wanted == 0 { MAX_BACKLOG } else { wanted.min(MAX_BACKLOG) };
        inner.state = State::Listening;
        Ok(())
    }

    /// Listens on the devices of `listen_later` that have an address by now.
    pub(super) fn listen_where_possible(&self) -> Result<(), Error> {
        while let Some((runtime, claim, listen)) = self.next_to_listen_on() {
            let listening = runtime.cm(|session| {
                let listen_id = session.cm.listen(listen)?;
                session.listeners.extend(self.me.upgrade().map(|id| (listen_id, id as _)));
                self.lock().listens.push((runtime.clone(), listen_id));
                Ok(())
            });
            listening?.map_err(refused)?;
            claim.watch(runtime.engine())?;
        }
        Ok(())
    }

    fn next_to_listen_on(&self) -> Option<(Runtime, Arc<Claim>, Listen)> {
        let mut inner = self.lock();
        let at = inner.listen_later.iter().position(|runtime| runtime.engine().has_address())?;
        let (claim, local) = (inner.claim()?, inner.local?);
        let listen = Listen { service_id: claim.service(), ..inner.listen(self.service(), &local) };
        Some((inner.listen_later.swap_remove(at), claim, listen))
    }

    fn stop_listening(&self) {
        let mut inner = self.lock();
        if inner.state == State::Listening {
            inner.state = State::Bound;
        }
        let (listens, listen_later) = (std::mem::take(&mut inner.listens), std::mem::take(&mut inner.listen_later));
        let claim = inner.claim();
        drop(inner);
        drop(listen_later);
        listens.iter().for_each(|(runtime, listen)| stop_listening(runtime, *listen, claim.as_deref()));
    }
}

impl Inner {
    /// Returns the parameters for the state machine, except the service id.
    fn listen(&self, service: Service, local: &Address) -> Listen {
        let accepts = if service == Service::Ud { Accepts::Lookups } else { Accepts::Connections };
        let gid = (!local.is_any()).then(|| local.gid());
        let plain = Listen { local: gid, ..Listen::new(ServiceId(0), accepts, MAX_UNANSWERED) };
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
    /// Creates an id for a request and reports the request to the program. `None` if the request is
    /// refused.
    pub(super) fn accept_request_for(
        &self,
        session: &mut Session<'_>,
        request: Request<'_>,
        comm: CommId,
        origin: Origin,
    ) -> Option<()> {
        let (channel, bound) = (self.channel(), self.lock().local?);
        let service = service(request, self)?;
        let (local, peer, program_data) = addresses(&request, &bound, origin.route)?;
        let device_addr = DeviceAddr::of(origin.route.local).ok()?;
        let (terms, ifindex) = (session.cm.qp_terms(comm), device_addr.device.ifindex());
        let id = Self::make(&channel, self.port_space(), service, 0, (session.cx.random)() as u32);
        {
            let mut inner = id.lock();
            (inner.state, inner.side, inner.conn) = (State::Connected, Side::Passive, ConnHandle::Alive(comm));
            (inner.local, inner.peer) = (Some(local), Some(peer));
            let mtu = device_addr.device.adapter().active_mtu();
            inner.path = Some(terms.map_or_else(|| Path::between(origin.route, mtu), |terms| Path::of_terms(&terms)));
            inner.device_addr = Some(device_addr);
            inner.remote_ece = if let Request::Connection(_, ece) = request { ece } else { Ece::NONE };
        }
        session.ids.insert(comm, Arc::clone(&id) as _);
        let is_raised = self.raise_request(&id, event_data(request, program_data));
        if !is_raised {
            if let Request::Connection(req, _) = request {
                note_refusal(ifindex, req.local_qpn, self.lock().backlog);
            }
            session.ids.remove(&comm);
            id.lock().conn = ConnHandle::Over;
            id.destroy();
        }
        is_raised.then_some(())
    }
}

/// Returns the service of the new id; `None` if the listener does not accept it. A listener for
/// connections accepts RC and UC; XRC needs a listener of its own.
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

/// Returns local and peer address, and the private data of the peer's program. The state machine
/// has checked the addresses in the request.
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
    let (header, program_data) = IpCmHeader::parse(private_data).ok()?;
    let (_, port) = service_id.port()?;
    let at = |ip, port| Address::Ip(SocketAddr::new(ip, port));
    Some((at(header.addresses.dst(), port), at(header.addresses.src(), header.src_port), program_data))
}

fn event_data(request: Request<'_>, program_data: &[u8]) -> EventData {
    let private_data = program_data.to_vec();
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
