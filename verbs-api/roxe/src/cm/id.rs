//! Ids of the connection manager, and the channels of their events. An id is an end of a
//! connection, a listener, a datagram service or the client of one.

use crate::cm::{Address, ConnParam, Ece, IdOption, JoinFlags, Path, PortSpace};
use crate::lock::IdNames;
use crate::{AsyncEventKind, AttrMask, Context, Device, Error, Gid, ObjectId, QpAttr, QpState, Service};
use roxe_provider as provider;
use roxe_provider::cm;
use roxe_provider::lock::Mutex;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A channel on which [`CmId`]s report their events, in order. Clones are the same channel.
#[derive(Clone, Debug)]
pub struct EventChannel(pub(crate) Arc<cm::Channel>);

impl EventChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// [`Error::Resources`] if the process has no free descriptor.
    pub fn create() -> Result<Self, Error> {
        Ok(Self(cm::Channel::create()?))
    }
}

/// The descriptor is readable while events are pending.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// For event loops that need a raw descriptor. It stays open while a clone of the channel lives.
impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd()
    }
}

/// An id of the connection manager: `rdma_cm_id` in C. Clones are the same id.
///
/// No method blocks. The result of each is an event on the channel of the id:
///
/// - [`resolve_addr`](Self::resolve_addr): `AddrResolved`, or `AddrError`
/// - [`resolve_route`](Self::resolve_route): `RouteResolved`, or `RouteError`
/// - [`connect`](Self::connect): `Established` (`ConnectResponse` if the id has no queue pair), or
///   `Rejected`, `Unreachable`, `ConnectError`
/// - [`listen`](Self::listen): `ConnectRequest` for each request; it carries a new id on the same
///   channel
/// - [`accept`](Self::accept): `Established`, or `Rejected`, `Unreachable`; none for datagrams
/// - [`disconnect`](Self::disconnect): `Disconnected` at both ends, `TimewaitExit` later
/// - [`load_alternate`](Self::load_alternate): `RouteResolved`, or `RouteError`
/// - [`join_multicast`](Self::join_multicast): `MulticastJoin`, or `MulticastError`
///
/// The connection ends, and the peer is notified, when the last clone and the
/// [`QueuePair`](crate::QueuePair) built on it are dropped.
#[derive(Clone, Debug)]
pub struct CmId(Arc<OwnedId>);

/// An id of the provider, destroyed on drop.
#[derive(Debug)]
struct OwnedId {
    id: Arc<cm::Id>,
    identity: ObjectId,
}

impl Drop for OwnedId {
    fn drop(&mut self) {
        self.id.destroy();
    }
}

impl CmId {
    /// Creates an id that reports its events to `channel`.
    ///
    /// # Errors
    /// Fails if the kernel returns no random number.
    pub fn create(channel: &EventChannel, port_space: PortSpace) -> Result<Self, Error> {
        let identity = ObjectId::next();
        let id = cm::Id::create(&channel.0, port_space, identity.0)?;
        Ok(Self(Arc::new(OwnedId { id, identity })))
    }

    /// Creates an id for queue pairs of a service that is not the default of the port space: UC,
    /// the two sides of XRC, or UD in the IB port space.
    ///
    /// # Errors
    /// [`Error::Argument`] for [`Service::Raw`]; errors of [`create`](Self::create).
    pub fn create_for(channel: &EventChannel, port_space: PortSpace, service: Service) -> Result<Self, Error> {
        let identity = ObjectId::next();
        let id = cm::Id::create_for(&channel.0, port_space, service, identity.0)?;
        Ok(Self(Arc::new(OwnedId { id, identity })))
    }

    /// Takes ownership of the id of a connection request.
    pub(crate) fn own(id: Arc<cm::Id>) -> Self {
        let identity = Self::identity(&id);
        Self(Arc::new(OwnedId { id, identity }))
    }

    /// Returns the identity of `id`. An id from a connection request gets its identity on first
    /// use.
    pub(crate) fn identity(id: &cm::Id) -> ObjectId {
        /// Held while an id gets its identity, so that two threads do not assign different ones.
        static ASSIGNMENT: Mutex<IdNames, ()> = Mutex::new(());
        if id.user_context() == 0 {
            let _assignment = ASSIGNMENT.lock();
            if id.user_context() == 0 {
                id.set_user_context(ObjectId::next().0);
            }
        }
        ObjectId(id.user_context())
    }

    /// Returns the identity by which events name the id.
    pub fn id(&self) -> ObjectId {
        self.0.identity
    }

    /// Returns the port space of the id.
    pub fn port_space(&self) -> PortSpace {
        self.0.id.port_space()
    }

    /// Binds the id to a local address and port. Port 0 chooses a free port; an unspecified address
    /// (`0.0.0.0`, `::`) binds to all addresses.
    ///
    /// # Errors
    /// [`Error::Environment`] if another program uses the port, or no device has the address;
    /// [`Error::Argument`] if the id is bound, or the service of an
    /// [`IbAddress`](crate::cm::IbAddress) is outside the id's port space; [`Error::Resources`] if
    /// the process has no free descriptor.
    pub fn bind(&self, addr: impl Into<Address>) -> Result<(), Error> {
        Ok(self.0.id.bind(&addr.into())?)
    }

    /// Resolves `dst`: finds the device that reaches it, and binds the id to that device, at the
    /// local address `from` if it is given.
    ///
    /// # Errors
    /// [`Error::Argument`] if the address is resolved already, or the two addresses are of
    /// different families; errors of [`bind`](Self::bind) for `from`.
    pub fn resolve_addr(&self, from: Option<Address>, dst: impl Into<Address>, timeout: Duration) -> Result<(), Error> {
        Ok(self.0.id.resolve_addr(from.as_ref(), &dst.into(), millis(timeout))?)
    }

    /// Finds the path to the resolved address.
    ///
    /// # Errors
    /// [`Error::Argument`] before `AddrResolved`, or if the route is resolved already.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        Ok(self.0.id.resolve_route(millis(timeout))?)
    }

    /// Listens for connection requests. At most `backlog` requests may be unanswered; 0 selects the
    /// default.
    ///
    /// # Errors
    /// [`Error::Environment`] if another id listens at the address, or no socket of the device can
    /// be opened; [`Error::Argument`] if this id listens already, or is resolving or has resolved a
    /// peer's address; [`Error::Resources`] if the process has no free descriptor or cannot start a
    /// thread.
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        Ok(self.0.id.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?)
    }

    /// Requests a connection from the peer; for datagrams, requests the number of the service's
    /// queue pair. A queue pair that was built on the id
    /// ([`QueuePairBuilder::build_on`](crate::QueuePairBuilder::build_on)) is connected without
    /// further calls.
    ///
    /// # Errors
    /// [`Error::Argument`] before `RouteResolved`, or if the private data is too long: 56 bytes
    /// fit, 180 for datagrams (92 and 216 to an [`IbAddress`](crate::cm::IbAddress)).
    /// [`Error::Resources`] if the device has its maximum number of connections.
    pub fn connect(&self, param: &ConnParam) -> Result<(), Error> {
        Ok(self.0.id.connect(param)?)
    }

    /// Accepts the request of this id. Numbers of READs and atomics in `param` that exceed those of
    /// the request are reduced to them.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no request, or the peer has given it up; if the private data
    /// is too long: 196 bytes fit, 136 for datagrams; or if the queue pair refuses the terms of the
    /// connection, in which case the request is rejected.
    pub fn accept(&self, param: &ConnParam) -> Result<(), Error> {
        Ok(self.0.id.accept(param)?)
    }

    /// Rejects the request of this id, or the peer's answer, with up to 148 bytes of private data,
    /// 136 for datagrams.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is neither a request nor an answer, or the private data is too
    /// long.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        Ok(self.0.id.reject(private_data, roxe_wire::cm::RejReason::ConsumerDefined)?)
    }

    /// Confirms the peer's answer (`ConnectResponse`), for queue pairs that are not built on an id.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no answer.
    pub fn establish(&self) -> Result<(), Error> {
        Ok(self.0.id.establish()?)
    }

    /// Ends the connection: moves the queue pair to the error state, which flushes its requests,
    /// and notifies the peer. If the peer has disconnected, confirms that to the peer. Does nothing
    /// if the connection is over.
    ///
    /// # Errors
    /// [`Error::Argument`] if the id was never connected, or its queue pair is in the state RESET.
    pub fn disconnect(&self) -> Result<(), Error> {
        Ok(self.0.id.disconnect()?)
    }

    /// Returns the attributes with which [`QueuePair::modify`](crate::QueuePair::modify) moves a
    /// queue pair to `state`, for queue pairs that are not built on the id.
    ///
    /// # Errors
    /// [`Error::Argument`] if `state` is not INIT, RTR or RTS, the id is bound to no device, or the
    /// peer has not replied yet.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        Ok(self.0.id.init_qp_attr(state)?)
    }

    /// Notifies the connection manager of an asynchronous event of the connection's queue pair.
    /// [`CommEst`](crate::AsyncEventKind::CommEst), of a queue pair that is not built on the id,
    /// establishes an accepted connection whose confirmation by the peer was lost.
    /// [`PathMig`](crate::AsyncEventKind::PathMig) moves the messages of the connection manager to
    /// the alternate path.
    ///
    /// # Errors
    /// [`Error::Argument`] for any other event, if the id is not connected, if the connection is
    /// established already (`CommEst`), or if there is no alternate path (`PathMig`).
    pub fn notify(&self, event: AsyncEventKind) -> Result<(), Error> {
        Ok(self.0.id.notify(event)?)
    }

    /// Allows the peer to load alternate paths into the queue pair on this id, or forbids it. It is
    /// forbidden by default, because such a peer chooses the destination of this side's packets.
    ///
    /// # Errors
    /// [`Error::Argument`] if the id is not connected, or has no queue pair.
    pub fn allow_alternates(&self, allow: bool) -> Result<(), Error> {
        Ok(self.0.id.allow_alternates(allow)?)
    }

    /// Proposes an alternate path to the peer, between other addresses of the same devices. After
    /// `RouteResolved` both queue pairs have the path. Once packets have arrived at both ends, the
    /// queue pairs can [`migrate`](crate::QueuePair::migrate), and do so when the first path fails.
    /// The status of `RouteError` is `-EOPNOTSUPP` if the peer does not accept paths.
    ///
    /// # Errors
    /// [`Error::Argument`] if the id is not connected, has no queue pair or an unanswered proposal,
    /// or `path` does not begin at an address of its device.
    pub fn load_alternate(&self, path: &Path) -> Result<(), Error> {
        Ok(self.0.id.load_alternate(path)?)
    }

    /// Sets the vendor options (enhanced connection establishment) that the next
    /// [`connect`](Self::connect) or [`accept`](Self::accept) offers to the peer.
    ///
    /// # Errors
    /// None at present. Options that are set after the message has been sent have no effect.
    pub fn set_local_ece(&self, ece: Ece) -> Result<(), Error> {
        Ok(self.0.id.set_local_ece(ece)?)
    }

    /// Returns the vendor options in the peer's last message.
    pub fn remote_ece(&self) -> Ece {
        self.0.id.remote_ece()
    }

    /// Joins a multicast group; the event `MulticastJoin` carries the group's address. A queue pair
    /// on the id receives the group's messages.
    ///
    /// # Errors
    /// [`Error::Argument`] if `group` is not a multicast address or is of another family than the
    /// id's address, or if the id is not for datagrams, is bound to no device, or has resolved its
    /// route.
    pub fn join_multicast(&self, group: impl Into<Address>, flags: JoinFlags) -> Result<(), Error> {
        Ok(self.0.id.join_multicast(&group.into(), flags, 0)?)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// [`Error::Environment`] if the id is not a member.
    pub fn leave_multicast(&self, group: impl Into<Address>) -> Result<(), Error> {
        Ok(self.0.id.leave_multicast(&group.into())?)
    }

    /// Sets an option.
    ///
    /// # Errors
    /// [`Error::Argument`] if the option has no effect in the current state, or its value is
    /// invalid.
    pub fn set_option(&self, option: IdOption) -> Result<(), Error> {
        Ok(self.0.id.set_option(option)?)
    }

    /// Moves the id and its pending events to another channel.
    ///
    /// # Errors
    /// None at present.
    pub fn migrate(&self, to: &EventChannel) -> Result<(), Error> {
        Ok(self.0.id.migrate(&to.0)?)
    }

    /// Returns the device of the local address; `None` while the id is bound to no address, or to
    /// all.
    pub fn device(&self) -> Option<Device> {
        self.0.id.device().map(Device)
    }

    /// Returns the open device of the local address. All ids on a device share one context while
    /// any object uses it.
    ///
    /// # Errors
    /// [`Error::Environment`] if the id has no device yet; errors of [`Device::open`].
    pub fn context(&self) -> Result<Context, Error> {
        let none =
            || provider::Error::new(libc::ENODEV, "the id is not bound to a device; bind it or resolve an address");
        self.device().ok_or_else(none)?.share()
    }

    /// Returns the local IP address and port; `None` before the id is bound, or if its address is
    /// an [`IbAddress`](crate::cm::IbAddress).
    pub fn local_addr(&self) -> Option<SocketAddr> {
        ip(self.0.id.local_addr())
    }

    /// Returns the IP address and port of the peer; `None` while unknown, or if the address is an
    /// [`IbAddress`](crate::cm::IbAddress).
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        ip(self.0.id.peer_addr())
    }

    /// Returns the path to the peer; `None` before it is resolved or received in a request.
    pub fn path(&self) -> Option<Path> {
        self.0.id.path()
    }

    /// Returns the transport service of the queue pairs on this id.
    pub fn service(&self) -> Service {
        self.0.id.service()
    }

    /// Returns the local address as a GID.
    pub(crate) fn local_gid(&self) -> Option<Gid> {
        self.0.id.local_addr().map(|addr| addr.gid())
    }

    pub(crate) fn attach(&self, qp: &Arc<provider::Qp>) -> Result<(), Error> {
        Ok(self.0.id.attach_qp(qp)?)
    }

    pub(crate) fn detach(&self) {
        self.0.id.detach_qp();
    }
}

fn ip(addr: Option<Address>) -> Option<SocketAddr> {
    match addr? {
        Address::Ip(addr) => Some(addr),
        Address::Ib(_) => None,
    }
}

fn millis(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX)
}
