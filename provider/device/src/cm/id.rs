//! [`Id`]: one end of a connection, a listener, or a user of datagram services.
//!
//! Here: what it is made of, how it begins, moves to another channel and ends, what its program
//! sets and asks, the events by which the program hears of it, and what it does when its network
//! interface changes. [`Channel`], [`Event`] and [`Id`] know each other: an id raises events on its
//! channel, and an event holds its id.
//!
//! ```text
//!   Idle ── bind ─► Bound ── resolve_addr ─► AddrResolved ── resolve_route ─► RouteResolved
//!                     │     (Resolving while a neighbour is asked)              │ connect
//!                   listen ─► Listening ── a request ─► another id, Connected   └─► Connected
//!
//!   Connected ── DISCONNECTED ─► Disconnected
//! ```
//!
//! `Connected` means that the connection manager knows it: from `connect` or the request on.

use super::event::{EventData, EventKind};
use super::groups::Groups;
use super::route::{Address, Alternates, DeviceAddr, HostRoute, Path};
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
use roxe_check::{Event as Told, tell};
use roxe_engine::adapter::Adapter;
use roxe_engine::queue_pair::Deadline;
use roxe_net::netlink::NextHop;
use roxe_transport::cm::{CmError, Ece, ListenId};
use roxe_transport::qp::Service;
use roxe_transport::time::Instant;
use roxe_wire::Psn;
use roxe_wire::cm::{CommId, PortSpace};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, io};

/// Where the events of ids arrive (`struct rdma_event_channel`).
///
/// Holds its ids alive while events of them are pending: end an id with [`Id::destroy`].
#[derive(Debug)]
pub struct Channel {
    /// With each event the id that hears of it: its own, or the one that listens.
    pub(super) events: EventQueue<Event>,
}

impl Channel {
    /// A channel without ids. EMFILE: no descriptor is left.
    pub fn create() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { events: EventQueue::new()? }))
    }

    /// Readable while events are pending. Stays owned by the channel; may be polled and made
    /// non-blocking.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// The descriptor of [`Channel::fd`], borrowed.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Waits for the next event; EAGAIN if the descriptor is non-blocking and nothing is pending,
    /// EINTR as `read(2)` gives it.
    pub fn next(&self) -> Result<Event, Error> {
        Ok(fetched(self.events.next()?))
    }

    /// For a caller that sleeps itself: the descriptor of which a unit is to be read, `None` if an
    /// event is pending.
    ///
    /// # Errors
    /// EAGAIN if the program has made [`Channel::fd`] non-blocking and nothing is pending.
    pub fn before_wait(&self) -> io::Result<Option<RawFd>> {
        self.events.sleep_on()
    }

    /// The next event for a caller of [`Channel::before_wait`] that has `slept`, by reading a unit,
    /// or did not have to. `None`: there is no event any more, go on waiting.
    pub fn take(&self, slept: bool) -> Option<Event> {
        self.events.take_next(slept).map(fetched)
    }

    /// The oldest event, if there is one. Never waits, whatever the mode of the descriptor.
    pub fn try_next(&self) -> Option<Event> {
        self.events.take_next(false).map(fetched)
    }
}

/// Something that happened to an id.
#[derive(Clone, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// 0; a negative errno of what failed; the reason of a rejection, positive; the SIDR status of
    /// a datagram service that there is not, positive.
    pub status: i32,
    /// The id; with [`EventKind::ConnectRequest`] the new one of the connection to be.
    pub id: Arc<Id>,
    /// With [`EventKind::ConnectRequest`]: who listens.
    pub listener: Option<Arc<Id>>,
    /// What the peer says.
    pub data: EventData,
}

/// `struct rdma_cm_id`: what a program binds, connects and listens with.
///
/// Ends with [`Id::destroy`] only: the connection manager and pending events hold it too.
pub struct Id {
    pub(super) me: Weak<Self>,
    pub(super) name: ObjectId,
    pub(super) port_space: PortSpace,
    pub(super) service: Service,
    pub(super) user: AtomicU64,
    pub(super) inner: Mutex<rank::CmId, Inner>,
    /// Where its events go. Changed and pushed to under this lock, so that they keep their order.
    pub(super) channel: Mutex<rank::CmIdChannel, Arc<Channel>>,
}

/// Where an id stands; see the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Idle,
    Bound,
    /// The neighbour towards the peer has not answered yet.
    Resolving,
    AddrResolved,
    RouteResolved,
    Connected,
    Disconnected,
    Listening,
    /// Its device is gone.
    Removed,
    Destroyed,
}

/// What the machine calls its connection or lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Link {
    /// There was none yet.
    #[default]
    None,
    /// This one is known to the machine.
    Alive(CommId),
    /// It is over, and the machine may use the name for another one.
    Over,
}

/// Which end it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Side {
    #[default]
    Active,
    Passive,
}

/// A port that it has for itself.
#[derive(Debug)]
pub(super) enum Port {
    /// Known to all processes.
    Claimed(Arc<Claim>),
    /// To this one.
    Ephemeral(#[expect(dead_code, reason = "gives the port back when dropped")] Ephemeral),
}

/// A way whose first neighbour has not answered yet.
#[derive(Debug)]
pub(super) struct Resolution {
    pub(super) route: HostRoute,
    pub(super) hop: NextHop,
    /// When the program wants to hear that it does not answer.
    pub(super) until: Instant,
    /// How long after the last look comes the next.
    pub(super) pause: Duration,
    #[expect(dead_code, reason = "the engine looks for as long as this exists")]
    pub(super) look: Arc<dyn Deadline>,
}

/// What the lock guards.
#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) state: State,
    pub(super) side: Side,
    pub(super) device_addr: Option<DeviceAddr>,
    pub(super) local: Option<Address>,
    pub(super) peer: Option<Address>,
    /// TTL or hop limit of the way to the peer.
    pub(super) hop_limit: u8,
    pub(super) path: Option<Path>,
    /// While it is [`State::Resolving`].
    pub(super) resolution: Option<Resolution>,
    pub(super) link: Link,
    pub(super) port: Option<Port>,
    pub(super) listens: Vec<(Runtime, ListenId)>,
    /// Where to listen once there is an address.
    pub(super) later: Vec<Runtime>,
    /// Requests that may wait for the program to hear of them, and how many do.
    pub(super) backlog: usize,
    pub(super) unheard: usize,
    pub(super) options: Options,
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    pub(super) qp: Option<Arc<Qp>>,
    pub(super) groups: Groups,
    pub(super) alternates: Alternates,
    /// The PSN that the peer starts with.
    pub(super) psn: Psn,
    /// The program was told that its address is gone.
    pub(super) address_lost: bool,
}

/// An option of an id (`man rdma_set_option`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdOption {
    /// TOS or traffic class of what the id's queue pair sends.
    Tos(u8),
    /// Other ids may bind the same address and port, as long as none listens.
    ReuseAddr(bool),
    /// An id bound to all IPv6 addresses does not stand for the IPv4 addresses too.
    AfOnly(bool),
    /// The queue pair's ACK timeout, a code: 4.096 µs · 2^code; 0 is none.
    AckTimeout(u8),
    /// The path, instead of [`Id::resolve_route`](super::Id::resolve_route).
    Path(Path),
}

/// What a program set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) tos: Option<u8>,
    pub(super) reuse: bool,
    /// `None`: as the system's default.
    pub(super) af_only: Option<bool>,
    pub(super) ack_timeout: Option<u8>,
}

impl Inner {
    /// EINVAL unless it is in one of these states.
    pub(super) fn check(&self, allowed: &[State]) -> Result<(), Error> {
        if allowed.contains(&self.state) {
            return Ok(());
        }
        Err(Error::invalid(format!("the id is in the state {:?}; this needs {allowed:?}", self.state)))
    }

    /// Its port, if other processes know of it.
    pub(super) fn claim(&self) -> Option<Arc<Claim>> {
        match &self.port {
            Some(Port::Claimed(claim)) => Some(Arc::clone(claim)),
            _ => None,
        }
    }

    /// TOS or traffic class that the program wants.
    pub(super) fn traffic_class(&self) -> u8 {
        self.options.tos.unwrap_or(0)
    }

    /// The groups, and the queue pair that is in them.
    pub(super) fn groups(&mut self) -> (&mut Groups, Option<&Qp>) {
        (&mut self.groups, self.qp.as_deref())
    }

    /// The queue pair is about to be forgotten: it leaves the groups that the id has brought it
    /// into.
    pub(super) fn leave_groups(&mut self) {
        if let (groups, Some(qp)) = self.groups() {
            groups.detach_all(qp);
        }
    }

    /// The device, or EINVAL.
    pub(super) fn device_addr(&self) -> Result<&DeviceAddr, Error> {
        self.device_addr.as_ref().ok_or_else(|| Error::invalid("the id is not bound to a device"))
    }
}

/// How it begins, moves and ends.
impl Id {
    /// An id whose events come to `channel`, for connections (RC) or, in the UDP and IPoIB port
    /// spaces, for datagrams. `user` is the program's own name of it.
    pub fn create(channel: &Arc<Channel>, port_space: PortSpace, user: u64) -> Result<Arc<Self>, Error> {
        let service = match port_space {
            PortSpace::Udp | PortSpace::Ipoib => Service::Ud,
            PortSpace::Tcp | PortSpace::Ib => Service::Rc,
        };
        Self::create_for(channel, port_space, service, user)
    }

    /// An id as of [`Id::create`] for queue pairs of another service: UC, the two sides of XRC, or
    /// UD in the IB port space. EINVAL: raw packets have no connections.
    pub fn create_for(
        channel: &Arc<Channel>,
        port_space: PortSpace,
        service: Service,
        user: u64,
    ) -> Result<Arc<Self>, Error> {
        if service == Service::Raw {
            return Err(Error::invalid("raw packets have no connections"));
        }
        static IDS: AtomicU64 = AtomicU64::new(0);
        let psn = number_for(Subject::Psns, &IDS).map_err(|e| Error::os("cannot draw a random number", &e))?;
        Ok(Self::make(channel, port_space, service, user, psn))
    }

    pub(super) fn make(
        channel: &Arc<Channel>,
        port_space: PortSpace,
        service: Service,
        user: u64,
        psn: u32,
    ) -> Arc<Self> {
        let inner = Inner { psn: Psn::new(psn), ..Inner::default() };
        let (name, user, inner) = (ObjectId::next(), AtomicU64::new(user), Mutex::new(inner));
        let channel = Mutex::new(Arc::clone(channel));
        let id = Arc::new_cyclic(|me| Self { me: Weak::clone(me), name, port_space, service, user, inner, channel });
        observe(name, Arc::downgrade(&id) as _);
        id
    }

    /// Moves it to another channel, with its pending events, and the ids of requests that nobody
    /// has heard of.
    pub fn migrate(&self, to: &Arc<Channel>) -> Result<(), Error> {
        // Its own events, and requests to it, are only raised under this lock.
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

    /// The program has not heard of it yet, and its listener has moved to another channel.
    fn migrate_with_listener(&self, to: &Arc<Channel>) {
        let mut channel = self.channel.lock();
        let from = std::mem::replace(&mut *channel, Arc::clone(to));
        if !Arc::ptr_eq(&from, to) {
            from.events.take_of(self.name).into_iter().for_each(|event| to.events.push(self.name, event, None));
        }
    }

    /// Ends it: no event of it comes any more, pending ones are dropped, requests that nobody has
    /// heard of are rejected. The peer is told what it must know.
    pub fn destroy(&self) {
        let mut inner = self.lock();
        if std::mem::replace(&mut inner.state, State::Destroyed) == State::Destroyed {
            return;
        }
        let (device_addr, link) = (inner.device_addr.take(), std::mem::replace(&mut inner.link, Link::Over));
        let (listens, claim) = (std::mem::take(&mut inner.listens), inner.claim());
        inner.leave_groups();
        let held = (inner.port.take(), inner.qp.take(), std::mem::take(&mut inner.later), inner.resolution.take());
        drop(inner);
        let channel = self.channel();
        for (runtime, listen) in listens {
            stop_listening(&runtime, listen, claim.as_deref());
        }
        if let (Some(device_addr), Link::Alive(comm)) = (device_addr, link) {
            receive_before_end(&device_addr.runtime);
            with_machine(&device_addr.runtime, |session| {
                session.ids.remove(&comm);
                // It is unknown in the child of a fork, where it is the parent's, or because it
                // ended meanwhile.
                let _ = session.cm.destroy(&mut session.cx, comm);
            });
        }
        drop((held, claim));
        let pending = channel.events.take_of(self.name);
        pending.iter().filter(|event| event.listener.is_some()).for_each(|event| event.id.destroy());
    }
}

/// What its program sets and asks, and hears.
impl Id {
    /// The program's own name of it; 0 for the id of a request until [`Id::set_user`].
    pub fn user(&self) -> u64 {
        self.user.load(Ordering::Relaxed)
    }

    /// Its port space.
    pub fn port_space(&self) -> PortSpace {
        self.port_space
    }

    /// What kind of queue pair it is for.
    pub fn service(&self) -> Service {
        self.service
    }

    /// Where its events come.
    pub fn channel(&self) -> Arc<Channel> {
        Arc::clone(&self.channel.lock())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, rank::CmId, Inner> {
        self.inner.lock()
    }

    /// Tells the program what happened; `inner` is what the id's lock guards.
    pub(super) fn raise_in(&self, inner: &Inner, kind: EventKind, status: i32, data: EventData) {
        if let Some(id) = self.me.upgrade().filter(|_| inner.state != State::Destroyed) {
            tell(|| Told::Connection { id: self.name, kind: &kind, status });
            self.channel.lock().events.push(self.name, Event { kind, status, id, listener: None, data }, None);
        }
    }

    /// Tells the program that a peer wants to connect to this listener. False: it does not listen
    /// any more, or too many wait already.
    pub(super) fn raise_request(&self, id: &Arc<Self>, data: EventData) -> bool {
        let mut inner = self.lock();
        let Some(me) = self.me.upgrade() else { return false };
        if inner.state != State::Listening || inner.unheard >= inner.backlog {
            return false;
        }
        inner.unheard += 1;
        let (kind, id, channel) = (EventKind::ConnectRequest, Arc::clone(id), self.channel());
        // The new id's events come where those of the listener do, which may have moved.
        *id.channel.lock() = Arc::clone(&channel);
        tell(|| Told::Connection { id: id.name, kind: &kind, status: 0 });
        channel.events.push(self.name, Event { kind, status: 0, id, listener: Some(me), data }, None);
        true
    }

    /// Names it anew.
    pub fn set_user(&self, user: u64) {
        self.user.store(user, Ordering::Relaxed);
    }

    /// Puts an event into the channel that no peer has caused (`rdma_write_cm_event`).
    pub fn write_event(&self, kind: EventKind, status: i32, arg: u64) {
        let inner = self.lock();
        self.raise_in(&inner, kind, status, EventData::Arg(arg));
    }

    /// Sets an option. EINVAL: not (any more) possible.
    pub fn set_option(&self, option: IdOption) -> Result<(), Error> {
        let mut inner = self.lock();
        match option {
            IdOption::Tos(tos) => inner.options.tos = Some(tos),
            IdOption::ReuseAddr(reuse) => {
                if inner.state != State::Idle && (!reuse || inner.state == State::Listening) {
                    return Err(Error::invalid("an address that is in use cannot be shared differently"));
                }
                inner.options.reuse = reuse;
            }
            IdOption::AfOnly(af_only) => {
                inner.check(&[State::Idle, State::Bound])?;
                inner.options.af_only = Some(af_only);
            }
            IdOption::AckTimeout(code) => {
                if !matches!(self.service, Service::Rc | Service::XrcIni) || code > 31 {
                    return Err(Error::invalid("an ACK timeout is a code up to 31, of a reliable connection"));
                }
                inner.options.ack_timeout = Some(code);
            }
            IdOption::Path(path) => self.set_path(&mut inner, path)?,
        }
        Ok(())
    }

    /// Sets the vendor options that the next message offers the peer (`rdma_set_local_ece`).
    pub fn set_local_ece(&self, ece: Ece) -> Result<(), Error> {
        self.lock().local_ece = ece;
        Ok(())
    }

    /// The vendor options of the peer (`rdma_get_remote_ece`).
    pub fn remote_ece(&self) -> Ece {
        self.lock().remote_ece
    }

    /// The device it is bound to.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.lock().device_addr.as_ref().map(|device_addr| Arc::clone(&device_addr.device))
    }

    /// The port of the device; 0 without one.
    pub fn port(&self) -> u8 {
        if self.lock().device_addr.is_some() { limits::PORTS } else { 0 }
    }

    /// Its own address, once bound.
    pub fn local_addr(&self) -> Option<Address> {
        self.lock().local
    }

    /// The peer's address, once known.
    pub fn peer_addr(&self) -> Option<Address> {
        self.lock().peer
    }

    /// The path, once resolved or requested.
    pub fn path(&self) -> Option<Path> {
        self.lock().path
    }
}

impl Observer for Id {
    fn interface_changed(&self, adapter: &Adapter) {
        self.tell_of_loss(adapter);
        // What keeps it from listening there kept others before; nobody waits to be told.
        let _ = self.listen_where_possible();
    }
}

impl Id {
    /// Tells the program what it has lost, once.
    fn tell_of_loss(&self, device: &Adapter) {
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
        f.debug_struct("Id").field("port_space", &self.port_space).field("user", &self.user()).finish_non_exhaustive()
    }
}

pub(super) fn stop_listening(runtime: &Runtime, listen: ListenId, claim: Option<&Claim>) {
    if let Some(claim) = claim {
        claim.unwatch(runtime.engine());
    }
    with_machine(runtime, |session| {
        session.listeners.remove(&listen);
        // It is unknown only in the child of a fork: it is the parent's.
        let _ = session.cm.stop_listening(listen);
    });
}

/// Works on the machine if there is one: in the child of a fork there is nothing of the parent's.
fn with_machine(runtime: &Runtime, verb: impl FnOnce(&mut Session<'_>)) {
    if runtime.engine().is_started() {
        // An engine that cannot start has no machine.
        let _ = runtime.cm(verb);
    }
}

/// The system may have given the last packets to a peer on this host to our own socket: they are
/// sent on before the peer hears that the connection is over. Take no lock of an id around this.
pub(super) fn receive_before_end(runtime: &Runtime) {
    runtime.engine().receive_all_arrived();
}

/// An event that goes to the program: its listener has room for one more request.
fn fetched(event: Event) -> Event {
    if let Some(listener) = &event.listener {
        let mut inner = listener.lock();
        inner.unheard = inner.unheard.saturating_sub(1);
    }
    event
}

/// What a refusal of the machine is to programs.
pub(super) fn refused(error: &CmError) -> Error {
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
    fn ids_hear_of_their_interface_as_long_as_they_live() {
        let channel = Channel::create().unwrap();
        let id = Id::create(&channel, PortSpace::Tcp, 0).unwrap();
        let name = id.name;
        assert!(is_observed_by(name));
        drop(id);
        assert!(!is_observed_by(name));
    }
}
