//! [`Id`]: one end of a connection, a listener, or a user of datagram services.
//!
//! Here: what it is made of, its life, its options and getters. How it gets addresses is in `resolve.rs`, its connection in
//! `connect.rs`, its queue pair in `pair.rs`; what it hears in `cm/deliver.rs`.
//!
//! ```text
//!   Idle ── bind ─► Bound ── resolve_addr ─► AddrResolved ── resolve_route ─► RouteResolved ── connect ─► Connected ─┐
//!                     └──── listen ─► Listening ── a request ─► another id, Connected ───────────────────────────────┤
//!                                                                            DISCONNECTED ─► Disconnected ◄──────────┘
//! ```
//!
//! `Connected` means that the connection manager knows it: from `connect` or the request on.

mod connect;
mod pair;
mod resolve;

pub(super) use resolve::refused;

use super::address::Address;
use super::alternate::Alternates;
use super::channel::Channel;
use super::event::{Event, EventData, EventKind};
use super::follow;
use super::multicast::Groups;
use super::options::IdOption;
use super::place::Place;
use super::ports::{Claim, Ephemeral};
use super::route::Path;
use super::{Ece, PortSpace, Session};
use crate::device::Device;
use crate::qp::Qp;
use crate::runtime::Runtime;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_base::lock::{Mutex, MutexGuard, rank};
use roxe_base::uses::ObjectId;
use roxe_transport::cm::ListenId;
use roxe_transport::qp::Service;
use roxe_wire::Psn;
use roxe_wire::cm::CommId;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// `struct rdma_cm_id`: what a program binds, connects and listens with.
///
/// Ends with [`Id::destroy`] only: the connection manager and pending events hold it too.
pub struct Id {
    me: Weak<Self>,
    name: ObjectId,
    port_space: PortSpace,
    service: Service,
    user: AtomicU64,
    inner: Mutex<rank::CmId, Inner>,
    /// Where its events go. Changed and pushed to under this lock, so that they keep their order.
    channel: Mutex<rank::CmIdChannel, Arc<Channel>>,
}

/// Where an id stands; the picture is on the first page of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cm) enum State {
    Idle,
    Bound,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cm) enum Link {
    /// There was none yet.
    None,
    /// This.
    Alive(CommId),
    /// It is over, and the name may be another one's.
    Over,
}

/// Which end it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cm) enum Side {
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

/// What the lock guards.
#[derive(Debug)]
pub(in crate::cm) struct Inner {
    pub(in crate::cm) state: State,
    pub(in crate::cm) side: Side,
    pub(in crate::cm) place: Option<Place>,
    pub(in crate::cm) local: Option<Address>,
    pub(in crate::cm) peer: Option<Address>,
    /// TTL or hop limit of the way to the peer.
    hop_limit: u8,
    pub(in crate::cm) path: Option<Path>,
    pub(in crate::cm) link: Link,
    port: Option<Port>,
    listens: Vec<(Runtime, ListenId)>,
    /// Where to listen once there is an address.
    later: Vec<Runtime>,
    /// Requests that may wait for the program to hear of them, and how many do.
    backlog: usize,
    unheard: usize,
    options: Options,
    local_ece: Ece,
    pub(in crate::cm) remote_ece: Ece,
    qp: Option<Arc<Qp>>,
    groups: Groups,
    pub(in crate::cm) alternates: Alternates,
    /// The PSN that the peer starts with.
    psn: Psn,
    /// The program was told that its address is gone.
    pub(in crate::cm) address_lost: bool,
}

/// What a program set.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    tos: Option<u8>,
    reuse: bool,
    /// `None`: as the system's default.
    af_only: Option<bool>,
    ack_timeout: Option<u8>,
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
    fn claim(&self) -> Option<Arc<Claim>> {
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

    /// The queue pair is about to be forgotten: it leaves the groups that the id has brought it into.
    fn leave_groups(&mut self) {
        if let (groups, Some(qp)) = self.groups() {
            groups.detach_all(qp);
        }
    }

    /// The device, or EINVAL.
    pub(in crate::cm) fn placed(&self) -> Result<&Place, Error> {
        self.place.as_ref().ok_or_else(|| Error::invalid("the id is not bound to a device"))
    }
}

/// Life.
impl Id {
    /// An id whose events come to `channel`, for connections (RC) or, in the UDP and IPoIB port spaces, for datagrams. `user`
    /// is the program's own name of it.
    pub fn create(channel: &Arc<Channel>, port_space: PortSpace, user: u64) -> Result<Arc<Self>, Error> {
        let service = match port_space {
            PortSpace::Udp | PortSpace::Ipoib => Service::Ud,
            PortSpace::Tcp | PortSpace::Ib => Service::Rc,
        };
        Self::create_for(channel, port_space, service, user)
    }

    /// The same for queue pairs of another service: UC, the two sides of XRC, or UD in the IB port space. EINVAL: raw packets
    /// have no connections.
    pub fn create_for(
        channel: &Arc<Channel>,
        port_space: PortSpace,
        service: Service,
        user: u64,
    ) -> Result<Arc<Self>, Error> {
        if service == Service::Raw {
            return Err(Error::invalid("raw packets have no connections"));
        }
        let psn = getrandom::u32().map_err(|e| Error::os("cannot draw a random number", &std::io::Error::other(e)))?;
        Ok(Self::make(channel, port_space, service, user, psn))
    }

    pub(in crate::cm) fn make(
        channel: &Arc<Channel>,
        port_space: PortSpace,
        service: Service,
        user: u64,
        psn: u32,
    ) -> Arc<Self> {
        let inner = Inner {
            state: State::Idle,
            side: Side::Active,
            place: None,
            local: None,
            peer: None,
            hop_limit: 0,
            path: None,
            link: Link::None,
            port: None,
            listens: vec![],
            later: vec![],
            backlog: 0,
            unheard: 0,
            options: Options::default(),
            local_ece: Ece::NONE,
            remote_ece: Ece::NONE,
            qp: None,
            groups: Groups::default(),
            alternates: Alternates::default(),
            psn: Psn::new(psn),
            address_lost: false,
        };
        let (name, user, inner) = (ObjectId::next(), AtomicU64::new(user), Mutex::new(inner));
        let channel = Mutex::new(Arc::clone(channel));
        let id = Arc::new_cyclic(|me| Self { me: Weak::clone(me), name, port_space, service, user, inner, channel });
        follow::add(&id);
        id
    }

    /// Moves it to another channel, with its pending events, and the ids of requests that nobody has heard of.
    pub fn migrate(&self, to: &Arc<Channel>) -> Result<(), Error> {
        // Its own events, and requests to it, are only raised under this lock.
        let _inner = self.lock();
        let from = std::mem::replace(&mut *self.channel.lock(), Arc::clone(to));
        if !Arc::ptr_eq(&from, to) {
            for event in from.take_of(self) {
                if event.listener.is_some() {
                    event.id.follow_listener(to);
                }
                to.push(event);
            }
        }
        Ok(())
    }

    /// The program has not heard of it yet, and its listener has moved to another channel.
    fn follow_listener(&self, to: &Arc<Channel>) {
        let mut channel = self.channel.lock();
        let from = std::mem::replace(&mut *channel, Arc::clone(to));
        if !Arc::ptr_eq(&from, to) {
            from.take_of(self).into_iter().for_each(|event| to.push(event));
        }
    }

    /// Ends it: no event of it comes any more, pending ones are dropped, requests that nobody has heard of are rejected. The
    /// peer is told what it must know.
    pub fn destroy(&self) {
        let mut inner = self.lock();
        if std::mem::replace(&mut inner.state, State::Destroyed) == State::Destroyed {
            return;
        }
        let (place, link) = (inner.place.take(), std::mem::replace(&mut inner.link, Link::Over));
        let (listens, claim) = (std::mem::take(&mut inner.listens), inner.claim());
        inner.leave_groups();
        let held = (inner.port.take(), inner.qp.take(), std::mem::take(&mut inner.later));
        drop(inner);
        let channel = self.channel();
        for (engine, listen) in listens {
            stop_listening(&engine, listen, claim.as_deref());
        }
        if let (Some(place), Link::Alive(comm)) = (place, link) {
            connect::send_on_what_came_back(&place.engine);
            end(&place.engine, comm);
        }
        drop((held, claim));
        let pending = channel.take_of(self);
        pending.iter().filter(|event| event.listener.is_some()).for_each(|event| event.id.destroy());
    }

    pub(in crate::cm) fn lock(&self) -> MutexGuard<'_, rank::CmId, Inner> {
        self.inner.lock()
    }

    pub(in crate::cm) fn name(&self) -> ObjectId {
        self.name
    }

    /// Tells the program what happened; `inner` is what the id's lock guards.
    pub(in crate::cm) fn raise_in(&self, inner: &Inner, kind: EventKind, status: i32, data: EventData) {
        if let Some(id) = self.me.upgrade().filter(|_| inner.state != State::Destroyed) {
            self.channel.lock().push(Event { kind, status, id, listener: None, data });
        }
    }

    /// Tells the program that a peer wants to connect to this listener. False: it does not listen any more, or too many
    /// wait already.
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
        channel.push(Event { kind, status: 0, id, listener: Some(me), data });
        true
    }

    /// A request that came to it was heard.
    pub(super) fn request_fetched(&self) {
        let mut inner = self.lock();
        inner.unheard = inner.unheard.saturating_sub(1);
    }
}

/// Takes no more requests.
fn stop_listening(engine: &Runtime, listen: ListenId, claim: Option<&Claim>) {
    if let Some(claim) = claim {
        claim.unwatch(engine);
    }
    with_machine(engine, |session| {
        session.listeners.remove(&listen);
        // It is unknown only in the child of a fork: it is the parent's.
        let _ = session.cm.stop_listening(listen);
    });
}

/// The program forgets a connection or lookup.
fn end(engine: &Runtime, comm: CommId) {
    with_machine(engine, |session| {
        session.ids.remove(&comm);
        let (cm, mut cx) = session.cx();
        // As above, or it ended meanwhile.
        let _ = cm.destroy(&mut cx, comm);
    });
}

/// Works on the machine if there is one: in the child of a fork there is nothing of the parent's.
fn with_machine(engine: &Runtime, verb: impl FnOnce(&mut Session<'_>)) {
    if engine.is_started() {
        // An engine that cannot start has no machine.
        let _ = engine.cm(verb);
    }
}

/// Options and getters.
impl Id {
    /// The program's own name of it; 0 for the id of a request until [`Id::set_user`].
    pub fn user(&self) -> u64 {
        self.user.load(Ordering::Relaxed)
    }

    /// Names it anew.
    pub fn set_user(&self, user: u64) {
        self.user.store(user, Ordering::Relaxed);
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
        self.lock().place.as_ref().map(|place| Arc::clone(&place.device))
    }

    /// The port of the device; 0 without one.
    pub fn port(&self) -> u8 {
        if self.lock().place.is_some() { limits::PORTS } else { 0 }
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
        follow::remove(self);
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Id").field("port_space", &self.port_space).field("user", &self.user()).finish_non_exhaustive()
    }
}
