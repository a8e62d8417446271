//! [`Id`]: one end of a connection, a listener, or a user of datagram services; its [`Channel`] and
//! [`Event`]s.
//!
//! ```text
//!   Idle ── bind ─► Bound ── resolve_addr ─► AddrResolved ── resolve_route ─► RouteResolved
//!                     │     (Resolving: waits for a neighbour)                  │ connect
//!                   listen ─► Listening ── a request ─► another id, Connected   └─► Connected
//!
//!   Connected (the state machine has a connection) ── DISCONNECTED ─► Disconnected
//! ```

use super::event::{EventData, EventKind};
use super::groups::Groups;
use super::route::{Address, DeviceAddr, HostRoute, Path};
use crate::device::Device;
use crate::event::EventQueue;
use crate::ib_cm::ports::{Claim, Ephemeral};
use crate::ib_cm::{Observer, Session, observe, unobserve};
use crate::qp::Qp;
use crate::runtime::Runtime;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_base::lock::{Mutex, MutexGuard, rank};
use roxe_base::uses::ObjectId;
use roxe_base::weakest::{Subject, number_for};
use roxe_check::{Event as CheckEvent, emit};
use roxe_engine::engine::Engine;
use roxe_engine::event_wait::Wait;
use roxe_engine::presence::Awaited;
use roxe_engine::queue_pair::DeadlineOwner;
use roxe_net::netlink::NextHop;
use roxe_observe::adapter::Adapter;
use roxe_transport::cm::{CmError, Ece, ListenId};
use roxe_transport::qp::Service;
use roxe_transport::time::Instant;
use roxe_wire::Psn;
use roxe_wire::cm::{CommId, PortSpace};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use std::{fmt, io};

/// Queue for the events of ids (`struct rdma_event_channel`). Pending events keep their ids alive:
/// end an id with [`Id::destroy`].
#[derive(Debug)]
pub struct Channel {
    /// Pending events, each with the id that it is for; requests are for the listener.
    pub(super) events: EventQueue<Event>,
    /// Engine of the id that raised the first event: threads that wait receive for it.
    engine: OnceLock<Arc<Engine>>,
}

impl Channel {
    /// Creates a channel. Fails with EMFILE if no descriptor is free.
    pub fn create() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { events: EventQueue::new()?, engine: OnceLock::new() }))
    }

    /// Returns the descriptor that is readable while events are pending. The channel owns it; it
    /// may be polled and made non-blocking.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Borrows the descriptor of [`Channel::fd`].
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Waits for the next event. Fails with EAGAIN if the descriptor is non-blocking and no event
    /// is pending; EINTR as for `read(2)`.
    pub fn next(&self) -> Result<Event, Error> {
        let _wait = self.before_wait();
        Ok(count_fetched(self.events.next()?))
    }

    /// Prepares a wait by a caller that sleeps itself: receives arrived packets, and returns the
    /// descriptor to read a unit from (`None` if an event is pending) and a guard for the wait.
    /// Fails with EAGAIN if [`Channel::fd`] is non-blocking and no event is pending.
    pub fn before_wait(&self) -> io::Result<(Option<RawFd>, Option<Wait>)> {
        let sleep_on = self.events.sleep_on()?;
        let engine = self.engine.get().filter(|_| sleep_on.is_some());
        Ok((sleep_on, engine.map(|engine| engine.before_sleep(Awaited::Connection, || !self.events.is_empty()))))
    }

    /// Returns the next event to a caller of [`Channel::before_wait`]; `slept` is true if it has
    /// read a unit. `None` if another thread took the event: the caller waits again.
    pub fn take(&self, slept: bool) -> Option<Event> {
        self.events.take_next(slept).map(count_fetched)
    }

    /// Takes the oldest event, if there is one; never waits.
    pub fn try_next(&self) -> Option<Event> {
        self.events.take_next(false).map(count_fetched)
    }
}

/// An event of an id (`struct rdma_cm_event`).
#[derive(Clone, Debug)]
pub struct Event {
    /// Kind of the event.
    pub kind: EventKind,
    /// 0, a negative errno, or a positive reason of a rejection or SIDR status.
    pub status: i32,
    /// The id; for [`EventKind::ConnectRequest`] that of the new connection.
    pub id: Arc<Id>,
    /// The listener, for [`EventKind::ConnectRequest`].
    pub listener: Option<Arc<Id>>,
    /// Parameters from the peer.
    pub data: EventData,
}

/// An identifier to bind, connect and listen with (`struct rdma_cm_id`). Ends with
/// [`Id::destroy`] only: the connection manager and pending events hold references.
pub struct Id {
    pub(super) me: Weak<Self>,
    pub(super) name: ObjectId,
    pub(super) port_space: PortSpace,
    pub(super) service: Service,
    pub(super) user_context: AtomicU64,
    pub(super) inner: Mutex<rank::CmId, Inner>,
    /// Channel for its events. Locked while an event is pushed, which keeps their order.
    pub(super) channel: Mutex<rank::CmIdChannel, Arc<Channel>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Idle,
    Bound,
    Resolving,
    AddrResolved,
    RouteResolved,
    Connected,
    Disconnected,
    Listening,
    Removed,
    Destroyed,
}

impl State {
    /// Returns the name in lists of the kernel's ids (`rdma resource show cm_id`).
    const fn name(self) -> &'static str {
        match self {
            Self::Idle => "IDLE",
            Self::Bound => "ADDR_BOUND",
            Self::Resolving => "ADDR_QUERY",
            Self::AddrResolved => "ADDR_RESOLVED",
            Self::RouteResolved => "ROUTE_RESOLVED",
            Self::Connected => "CONNECT",
            Self::Disconnected => "DISCONNECT",
            Self::Listening => "LISTEN",
            Self::Removed => "DEVICE_REMOVAL",
            Self::Destroyed => "DESTROYING",
        }
    }
}

/// Connection or lookup of an id in the state machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ConnHandle {
    #[default]
    None,
    Alive(CommId),
    /// Over; the state machine may reuse the [`CommId`].
    Over,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Side {
    #[default]
    Active,
    Passive,
}

#[derive(Debug)]
pub(super) enum Port {
    /// Claimed among all processes of the host.
    Claimed(Arc<Claim>),
    Ephemeral(#[expect(dead_code, reason = "gives the port back when dropped")] Ephemeral),
}

/// A route that waits for its first neighbour.
#[derive(Debug)]
pub(super) struct Resolution {
    pub(super) route: HostRoute,
    pub(super) hop: NextHop,
    /// Deadline of the program.
    pub(super) until: Instant,
    pub(super) pause: Duration,
    #[expect(dead_code, reason = "dropping it ends the checks")]
    pub(super) timer: Arc<dyn DeadlineOwner>,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) state: State,
    pub(super) side: Side,
    pub(super) device_addr: Option<DeviceAddr>,
    pub(super) local: Option<Address>,
    pub(super) peer: Option<Address>,
    pub(super) hop_limit: u8,
    pub(super) path: Option<Path>,
    /// Present in [`State::Resolving`].
    pub(super) resolution: Option<Resolution>,
    pub(super) conn: ConnHandle,
    pub(super) port: Option<Port>,
    pub(super) listens: Vec<(Runtime, ListenId)>,
    /// Devices without an address, on which to listen once they have one.
    pub(super) listen_later: Vec<Runtime>,
    /// Maximum number of requests that the program has not fetched.
    pub(super) backlog: usize,
    /// Number of requests that the program has not fetched.
    pub(super) pending_requests: usize,
    pub(super) options: Options,
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    pub(super) qp: Option<Arc<Qp>>,
    pub(super) groups: Groups,
    /// Alternate path proposed to the peer, which has not replied.
    pub(super) proposed_path: Option<Path>,
    /// Alternate path loaded at both ends.
    pub(super) alternate_path: Option<Path>,
    /// PSN that the peer starts with.
    pub(super) psn: Psn,
    pub(super) address_lost: bool,
}

/// An option of an id (`man rdma_set_option`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdOption {
    /// TOS or traffic class of the queue pair's packets.
    Tos(u8),
    /// Allow other ids to bind the same address and port as long as none listens.
    ReuseAddr(bool),
    /// Make the IPv6 wildcard address exclude IPv4.
    AfOnly(bool),
    /// ACK timeout of the queue pair as a code: 4.096 µs · 2^code; 0 is none.
    AckTimeout(u8),
    /// Path to use instead of [`Id::resolve_route`](super::Id::resolve_route).
    Path(Path),
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) tos: Option<u8>,
    pub(super) reuse: bool,
    /// `None`: system default.
    pub(super) af_only: Option<bool>,
    pub(super) ack_timeout: Option<u8>,
}

impl Inner {
    pub(super) fn check(&self, allowed: &[State]) -> Result<(), Error> {
        if allowed.contains(&self.state) {
            return Ok(());
        }
        Err(Error::invalid(format!("the id is in the state {:?}; this needs {allowed:?}", self.state)))
    }

    pub(super) fn claim(&self) -> Option<Arc<Claim>> {
        match &self.port {
            Some(Port::Claimed(claim)) => Some(Arc::clone(claim)),
            _ => None,
        }
    }

    pub(super) fn traffic_class(&self) -> u8 {
        self.options.tos.unwrap_or(0)
    }

    pub(super) fn groups(&mut self) -> (&mut Groups, Option<&Qp>) {
        (&mut self.groups, self.qp.as_deref())
    }

    pub(super) fn leave_groups(&mut self) {
        if let (groups, Some(qp)) = self.groups() {
            groups.detach_all(qp);
        }
    }

    pub(super) fn device_addr(&self) -> Result<&DeviceAddr, Error> {
        self.device_addr.as_ref().ok_or_else(|| Error::invalid("the id is not bound to a device"))
    }
}

impl Id {
    /// Creates an id for connections (RC) or, in the UDP and IPoIB port spaces, for datagrams.
    /// Events of the id carry `user_context`.
    pub fn create(channel: &Arc<Channel>, port_space: PortSpace, user_context: u64) -> Result<Arc<Self>, Error> {
        let service = match port_space {
            PortSpace::Udp | PortSpace::Ipoib => Service::Ud,
            PortSpace::Tcp | PortSpace::Ib => Service::Rc,
        };
        Self::create_for(channel, port_space, service, user_context)
    }

    /// Creates an id like [`Id::create`], for UC, the two sides of XRC, or UD in the IB port space.
    /// Fails with EINVAL for raw packets, which have no connections.
    pub fn create_for(
        channel: &Arc<Channel>,
        port_space: PortSpace,
        service: Service,
        user_context: u64,
    ) -> Result<Arc<Self>, Error> {
        if service == Service::Raw {
            return Err(Error::invalid("an id for raw packets cannot be connected"));
        }
        static IDS: AtomicU64 = AtomicU64::new(0);
        let psn = number_for(Subject::Psns, &IDS).map_err(|e| Error::os("cannot draw a random number", &e))?;
        Ok(Self::make(channel, port_space, service, user_context, psn))
    }

    pub(super) fn make(
        channel: &Arc<Channel>,
        port_space: PortSpace,
        service: Service,
        user_context: u64,
        psn: u32,
    ) -> Arc<Self> {
        let inner = Inner { psn: Psn::new(psn), ..Inner::default() };
        let (name, user_context, inner) = (ObjectId::next(), AtomicU64::new(user_context), Mutex::new(inner));
        let channel = Mutex::new(Arc::clone(channel));
        let id =
            Arc::new_cyclic(|me| Self { me: Weak::clone(me), name, port_space, service, user_context, inner, channel });
        observe(name, Arc::downgrade(&id) as _);
        id
    }

    /// Moves the id with its pending events to another channel, and the ids of pending requests.
    pub fn migrate(&self, to: &Arc<Channel>) -> Result<(), Error> {
        // Events of this id and requests to it are raised under this lock only.
        let _inner = self.lock();
        let from = std::mem::replace(&mut *self.channel.lock(), Arc::clone(to));
        if !Arc::ptr_eq(&from, to) {
            for event in from.events.take_of(self.name) {
                if event.listener.is_some() {
                    event.id.migrate_with_listener(to);
                }
                to.events.push(self.name, event, None);
            }
        }
        Ok(())
    }

    /// Moves the id of a pending request after its listener.
    fn migrate_with_listener(&self, to: &Arc<Channel>) {
        let mut channel = self.channel.lock();
        let from = std::mem::replace(&mut *channel, Arc::clone(to));
        if !Arc::ptr_eq(&from, to) {
            from.events.take_of(self.name).into_iter().for_each(|event| to.events.push(self.name, event, None));
        }
    }

    /// Destroys the id: no further event, pending ones are dropped, pending requests are rejected,
    /// and the peer is notified.
    pub fn destroy(&self) {
        let mut inner = self.lock();
        if std::mem::replace(&mut inner.state, State::Destroyed) == State::Destroyed {
            return;
        }
        let (device_addr, conn) = (inner.device_addr.take(), std::mem::replace(&mut inner.conn, ConnHandle::Over));
        let (listens, claim) = (std::mem::take(&mut inner.listens), inner.claim());
        inner.leave_groups();
        let held =
            (inner.port.take(), inner.qp.take(), std::mem::take(&mut inner.listen_later), inner.resolution.take());
        drop(inner);
        let channel = self.channel();
        for (runtime, listen) in listens {
            stop_listening(&runtime, listen, claim.as_deref());
        }
        if let (Some(device_addr), ConnHandle::Alive(comm)) = (device_addr, conn) {
            receive_before_end(&device_addr.runtime);
            with_machine(&device_addr.runtime, |session| {
                session.ids.remove(&comm);
                // Fails if the connection ended meanwhile, or belongs to the parent of a fork.
                let _ = session.cm.destroy(&mut session.cx, comm);
            });
        }
        drop((held, claim));
        let pending = channel.events.take_of(self.name);
        pending.iter().filter(|event| event.listener.is_some()).for_each(|event| event.id.destroy());
    }

    /// Returns the value that its events carry; 0 for the id of a request until
    /// [`Id::set_user_context`].
    pub fn user_context(&self) -> u64 {
        self.user_context.load(Ordering::Relaxed)
    }

    /// Returns the port space.
    pub fn port_space(&self) -> PortSpace {
        self.port_space
    }

    /// Returns the service of its queue pair.
    pub fn service(&self) -> Service {
        self.service
    }

    /// Returns the channel of its events.
    pub fn channel(&self) -> Arc<Channel> {
        Arc::clone(&self.channel.lock())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, rank::CmId, Inner> {
        self.inner.lock()
    }

    /// Raises an event; `inner` shows that the id is locked.
    pub(super) fn raise_in(&self, inner: &Inner, kind: EventKind, status: i32, data: EventData) {
        if let Some(id) = self.me.upgrade().filter(|_| inner.state != State::Destroyed) {
            emit(|| CheckEvent::CmEventQueued { id: self.name, kind: &kind, status });
            let channel = self.channel.lock();
            if let Some(DeviceAddr { runtime, .. }) = &inner.device_addr {
                channel.engine.get_or_init(|| Arc::clone(runtime.engine()));
            }
            channel.events.push(self.name, Event { kind, status, id, listener: None, data }, None);
        }
    }

    /// Raises a connect request to this listener. Returns false if it no longer listens or its
    /// backlog is full.
    pub(super) fn raise_request(&self, id: &Arc<Self>, data: EventData) -> bool {
        let mut inner = self.lock();
        let Some(me) = self.me.upgrade() else { return false };
        if inner.state != State::Listening || inner.pending_requests >= inner.backlog {
            return false;
        }
        inner.pending_requests += 1;
        let (kind, id, channel) = (EventKind::ConnectRequest, Arc::clone(id), self.channel());
        // The listener may have moved to another channel.
        *id.channel.lock() = Arc::clone(&channel);
        emit(|| CheckEvent::CmEventQueued { id: id.name, kind: &kind, status: 0 });
        channel.events.push(self.name, Event { kind, status: 0, id, listener: Some(me), data }, None);
        true
    }

    /// Sets the value that its events carry.
    pub fn set_user_context(&self, user_context: u64) {
        self.user_context.store(user_context, Ordering::Relaxed);
    }

    /// Raises an event of the program itself (`rdma_write_cm_event`).
    pub fn write_event(&self, kind: EventKind, status: i32, arg: u64) {
        let inner = self.lock();
        self.raise_in(&inner, kind, status, EventData::Arg(arg));
    }

    /// Sets an option. Fails with EINVAL if it is not possible or not in this state.
    pub fn set_option(&self, option: IdOption) -> Result<(), Error> {
        let mut inner = self.lock();
        match option {
            IdOption::Tos(tos) => inner.options.tos = Some(tos),
            IdOption::ReuseAddr(reuse) => {
                if inner.state != State::Idle && (!reuse || inner.state == State::Listening) {
                    return Err(Error::invalid(
                        "the options for sharing an address must be set before the id is bound",
                    ));
                }
                inner.options.reuse = reuse;
            }
            IdOption::AfOnly(af_only) => {
                inner.check(&[State::Idle, State::Bound])?;
                inner.options.af_only = Some(af_only);
            }
            IdOption::AckTimeout(code) => {
                if !matches!(self.service, Service::Rc | Service::XrcIni) || code > 31 {
                    return Err(Error::invalid(
                        "the ACK timeout is a code from 0 to 31, for reliable connections only",
                    ));
                }
                inner.options.ack_timeout = Some(code);
            }
            IdOption::Path(path) => self.set_path(&mut inner, path)?,
        }
        Ok(())
    }

    /// Sets the vendor options offered with the next message (`rdma_set_local_ece`).
    pub fn set_local_ece(&self, ece: Ece) -> Result<(), Error> {
        self.lock().local_ece = ece;
        Ok(())
    }

    /// Returns the vendor options of the peer (`rdma_get_remote_ece`).
    pub fn remote_ece(&self) -> Ece {
        self.lock().remote_ece
    }

    /// Returns the device that the id is bound to.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.lock().device_addr.as_ref().map(|device_addr| Arc::clone(&device_addr.device))
    }

    /// Returns the port number of the device; 0 without a device.
    pub fn port(&self) -> u8 {
        if self.lock().device_addr.is_some() { limits::PORTS } else { 0 }
    }

    /// Returns the local address, once bound.
    pub fn local_addr(&self) -> Option<Address> {
        self.lock().local
    }

    /// Returns the peer address, once known.
    pub fn peer_addr(&self) -> Option<Address> {
        self.lock().peer
    }

    /// Returns the path, once resolved or requested.
    pub fn path(&self) -> Option<Path> {
        self.lock().path
    }
}

impl Observer for Id {
    fn interface_changed(&self, adapter: &Adapter) {
        self.report_loss(adapter);
        // The change is not the result of a verb, so no call can return an error.
        let _ = self.listen_where_possible();
    }

    fn describe(&self, adapter: &Adapter) -> Option<String> {
        let inner = self.lock();
        let is_here = |device: &Adapter| device.ifindex() == adapter.ifindex();
        let is_bound = inner.device_addr.as_ref().is_some_and(|bound| is_here(bound.device.adapter()));
        if !is_bound && !inner.listens.iter().any(|(runtime, _)| is_here(&runtime.engine().adapter)) {
            return None;
        }
        let qp = inner
            .qp
            .as_ref()
            .map_or_else(String::new, |qp| format!(" qpn={} type={}", qp.qpn().get(), self.service.name()));
        let place = |address: &Option<Address>| match address {
            Some(Address::Ip(address)) => format!("{}:{}", address.ip(), address.port()),
            Some(Address::Ib(address)) => format!("{}:{}", address.gid.to_ip(), address.sid as u16),
            None => "0.0.0.0:0".to_owned(),
        };
        let space = match self.port_space {
            PortSpace::Tcp => "TCP",
            PortSpace::Udp => "UDP",
            PortSpace::Ib | PortSpace::Ipoib => "IPoIB",
        };
        let (state, source, peer) = (inner.state.name(), place(&inner.local), place(&inner.peer));
        Some(format!("n={}{qp} state={state} ps={space} src={source} dst={peer}", self.name.number()))
    }
}

impl Id {
    /// Raises the event for a removed device or a changed address, once.
    fn report_loss(&self, device: &Adapter) {
        let mut inner = self.lock();
        let Some(device_addr) =
            inner.device_addr.as_ref().filter(|device_addr| device_addr.device.ifindex() == device.ifindex())
        else {
            return;
        };
        let has_address = device.gids().used().any(|(_, gid)| gid == device_addr.gid);
        let is_same = has_address && device.interface().mac == device_addr.mac;
        if device.is_gone() {
            if !matches!(inner.state, State::Removed | State::Destroyed) {
                self.raise_in(&inner, EventKind::DeviceRemoval, 0, EventData::None);
                inner.state = State::Removed;
            }
        } else if !is_same && !std::mem::replace(&mut inner.address_lost, true) {
            self.raise_in(&inner, EventKind::AddrChange, 0, EventData::None);
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        unobserve(self.name);
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Id")
            .field("port_space", &self.port_space)
            .field("user_context", &self.user_context())
            .finish_non_exhaustive()
    }
}

pub(super) fn stop_listening(runtime: &Runtime, listen: ListenId, claim: Option<&Claim>) {
    if let Some(claim) = claim {
        claim.unwatch(runtime.engine());
    }
    with_machine(runtime, |session| {
        session.listeners.remove(&listen);
        // Fails only in the child of a fork, whose state machine does not know the listener.
        let _ = session.cm.stop_listening(listen);
    });
}

/// Runs `verb` on the state machine, unless this is the child of a fork and it is the parent's.
fn with_machine(runtime: &Runtime, verb: impl FnOnce(&mut Session<'_>)) {
    if runtime.engine().is_started() {
        // An engine that cannot start has no state machine.
        let _ = runtime.cm(verb);
    }
}

/// Receives arrived packets before a connection ends: the kernel may have delivered packets for
/// another process of this host to a socket of this process, and they must reach the other process
/// before the end of the connection does. The caller holds no lock of an id.
pub(super) fn receive_before_end(runtime: &Runtime) {
    runtime.engine().receive_all_arrived();
}

/// Counts a fetched connect request as no longer pending.
fn count_fetched(event: Event) -> Event {
    if let Some(listener) = &event.listener {
        let mut inner = listener.lock();
        inner.pending_requests = inner.pending_requests.saturating_sub(1);
    }
    event
}

pub(super) fn refused(error: CmError) -> Error {
    let errno = match error {
        CmError::UnknownId | CmError::State => libc::EINVAL,
        CmError::InUse => libc::EADDRINUSE,
        CmError::Full => libc::ENOMEM,
    };
    Error::new(errno, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ib_cm::is_observed_by;

    #[test]
    fn id_observes_interface_until_dropped() {
        let channel = Channel::create().unwrap();
        let id = Id::create(&channel, PortSpace::Tcp, 0).unwrap();
        let name = id.name;
        assert!(is_observed_by(name));
        drop(id);
        assert!(!is_observed_by(name));
    }
}
