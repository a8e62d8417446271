//! [`Id`]: one end of a connection, a listener, or a user of datagram services.
//!
//! Here: what it is made of, what its program sets and asks, and the events by which the program
//! hears of it. The three types know each other: an id raises events on its channel, and an event
//! holds its id.
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

use crate::cm::address::Address;
use crate::cm::device_addr::{DeviceAddr, HostRoute};
use crate::cm::event::{EventData, EventKind};
use crate::cm::groups::Groups;
use crate::cm::options::IdOption;
use crate::cm::route::{Alternates, Path};
use crate::device::Device;
use crate::event::EventQueue;
use crate::ib_cm::ports::{Claim, Ephemeral};
use crate::ib_cm::unobserve;
use crate::qp::Qp;
use crate::runtime::Runtime;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_base::lock::{Mutex, MutexGuard, rank};
use roxe_base::uses::ObjectId;
use roxe_check::{Event as Told, tell};
use roxe_engine::queue_pair::Deadline;
use roxe_net::next_hop::NextHop;
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
        self.events.try_next().map(fetched)
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

/// Where an id stands; the picture is on the first page of the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cm) enum State {
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
pub(in crate::cm) enum Link {
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
pub(in crate::cm) enum Side {
    #[default]
    Active,
    Passive,
}

/// A port that it has for itself.
#[derive(Debug)]
pub(in crate::cm) enum Port {
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
pub(in crate::cm) struct Inner {
    pub(in crate::cm) state: State,
    pub(in crate::cm) side: Side,
    pub(in crate::cm) device_addr: Option<DeviceAddr>,
    pub(in crate::cm) local: Option<Address>,
    pub(in crate::cm) peer: Option<Address>,
    /// TTL or hop limit of the way to the peer.
    pub(super) hop_limit: u8,
    pub(in crate::cm) path: Option<Path>,
    /// While it is [`State::Resolving`].
    pub(super) resolution: Option<Resolution>,
    pub(in crate::cm) link: Link,
    pub(super) port: Option<Port>,
    pub(super) listens: Vec<(Runtime, ListenId)>,
    /// Where to listen once there is an address.
    pub(super) later: Vec<Runtime>,
    /// Requests that may wait for the program to hear of them, and how many do.
    pub(in crate::cm) backlog: usize,
    pub(super) unheard: usize,
    pub(super) options: Options,
    pub(super) local_ece: Ece,
    pub(in crate::cm) remote_ece: Ece,
    pub(in crate::cm) qp: Option<Arc<Qp>>,
    pub(super) groups: Groups,
    pub(in crate::cm) alternates: Alternates,
    /// The PSN that the peer starts with.
    pub(super) psn: Psn,
    /// The program was told that its address is gone.
    pub(in crate::cm) address_lost: bool,
}

/// What a program set.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cm) struct Options {
    pub(super) tos: Option<u8>,
    pub(super) reuse: bool,
    /// `None`: as the system's default.
    pub(super) af_only: Option<bool>,
    pub(super) ack_timeout: Option<u8>,
}

impl Inner {
    /// EINVAL unless it is in one of these states.
    pub(in crate::cm) fn check(&self, allowed: &[State]) -> Result<(), Error> {
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
    pub(in crate::cm) fn traffic_class(&self) -> u8 {
        self.options.tos.unwrap_or(0)
    }

    /// The groups, and the queue pair that is in them.
    pub(in crate::cm) fn groups(&mut self) -> (&mut Groups, Option<&Qp>) {
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
    pub(in crate::cm) fn device_addr(&self) -> Result<&DeviceAddr, Error> {
        self.device_addr.as_ref().ok_or_else(|| Error::invalid("the id is not bound to a device"))
    }
}

/// What the other files need of it.
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

    pub(in crate::cm) fn lock(&self) -> MutexGuard<'_, rank::CmId, Inner> {
        self.inner.lock()
    }

    /// Tells the program what happened; `inner` is what the id's lock guards.
    pub(in crate::cm) fn raise_in(&self, inner: &Inner, kind: EventKind, status: i32, data: EventData) {
        if let Some(id) = self.me.upgrade().filter(|_| inner.state != State::Destroyed) {
            tell(|| Told::Connection { id: self.name, kind: &kind, status });
            self.channel.lock().events.push(self.name, Event { kind, status, id, listener: None, data }, None);
        }
    }

    /// Tells the program that a peer wants to connect to this listener. False: it does not listen
    /// any more, or too many wait already.
    pub(in crate::cm) fn raise_request(&self, id: &Arc<Self>, data: EventData) -> bool {
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

    /// A request that came to it was heard.
    pub(in crate::cm) fn request_fetched(&self) {
        let mut inner = self.lock();
        inner.unheard = inner.unheard.saturating_sub(1);
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

/// An event that goes to the program: its listener has room for one more request.
fn fetched(event: Event) -> Event {
    if let Some(listener) = &event.listener {
        listener.request_fetched();
    }
    event
}

/// What a refusal of the machine is to programs.
pub(in crate::cm) fn refused(error: &CmError) -> Error {
    let errno = match error {
        CmError::UnknownId | CmError::State => libc::EINVAL,
        CmError::InUse => libc::EADDRINUSE,
        CmError::Full => libc::ENOMEM,
    };
    Error::new(errno, error.to_string())
}
