//! Ids: an end of a connection, a listener, a datagram service or its client; the event channels of
//! ids.

use crate::cm::{Address, ConnParam, Ece, IdOption, JoinFlags, Path, PortSpace};
use crate::lock::IdNames;
use crate::{
    AsyncEventKind, AttrMask, Context, Device, EnvironmentError, Error, Gid, ObjectId, QpAttr, QpState, Service,
};
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
    /// [`Error::Resources`] if the process has no descriptor left.
    pub fn create() -> Result<Self, Error> {
        Ok(Self(cm::Channel::create()?))
    }
}

/// Readable while events are pending.
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

use roxe_provider as provider;

/// An id of the connection manager: `rdma_cm_id` in C. Clones are the same id.
///
/// No method blocks. The result of each is an event on the channel of the id:
///
/// - [`resolve_addr`](Self::resolve_addr): `AddrResolved`, or `AddrError`
/// - [`resolve_route`](Self::resolve_route): `RouteResolved`, or `RouteError`
/// - [`connect`](Self::connect): `Established`, or `Rejected`, `Unreachable`, `ConnectError`;
///   `ConnectResponse` without a queue pair
/// - [`listen`](Self::listen): `ConnectRequest` for each request; it carries a new id on the same
///   channel
/// - [`accept`](Self::accept): `Established`, or `Rejected`, `Unreachable`, `ConnectError`; none
///   for datagrams
/// - [`disconnect`](Self::disconnect): `Disconnected` at both ends, `TimewaitExit` later
/// - [`load_alternate`](Self::load_alternate): `RouteResolved`, or `RouteError`
/// - [`join_multicast`](Self::join_multicast): `MulticastJoin`, or `MulticastError`
///
/// The connection ends, and the peer is notified, when the last clone and the
/// [`QueuePair`](crate::QueuePair) built on it are dropped.
#[derive(Clone, Debug)]
pub struct CmId(Arc<Held>);

/// The id of the provider, destroyed with its last owner.
#[derive(Debug)]
struct Held {
    id: Arc<cm::Id>,
    name: ObjectId,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.id.destroy();
    }
}

impl CmId {
    /// Makes one whose events come to `channel`.
    ///
    /// # Errors
    /// [`Error::Resources`] if there are too many.
    pub fn create(channel: &EventChannel, port_space: PortSpace) -> Result<Self, Error> {
        let name = ObjectId::next();
        let id = cm::Id::create(&channel.0, port_space, name.0)?;
        Ok(Self(Arc::new(Held { id, name })))
    }

    /// Makes one whose events come to `channel`, for queue pairs of another service than is usual
    /// in the port space: UC, the two sides of XRC, or UD in the IB port space.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_for(channel: &EventChannel, port_space: PortSpace, service: Service) -> Result<Self, Error> {
        let name = ObjectId::next();
        let id = cm::Id::create_for(&channel.0, port_space, service, name.0)?;
        Ok(Self(Arc::new(Held { id, name })))
    }

    /// Takes what an event brought.
    pub(crate) fn own(id: Arc<cm::Id>) -> Self {
        let name = Self::identity(&id);
        Self(Arc::new(Held { id, name }))
    }

    /// The name of `id`. An id from a peer's request gets its name at the first use.
    pub(crate) fn identity(id: &cm::Id) -> ObjectId {
        /// Serializes naming, so that two threads give a new id one name.
        static NAMING: Mutex<IdNames, ()> = Mutex::new(());
        if id.user() == 0 {
            let _naming = NAMING.lock();
            if id.user() == 0 {
                id.set_user(ObjectId::next().0);
            }
        }
        ObjectId(id.user())
    }

    /// Its identity in events.
    pub fn id(&self) -> ObjectId {
        self.0.name
    }

    /// The space that its port belongs to.
    pub fn port_space(&self) -> PortSpace {
        self.0.id.port_space()
    }

    /// Takes an own address, and a port; port 0 chooses one. An unspecified address (`0.0.0.0`,
    /// `::`) stands for all.
    ///
    /// # Errors
    /// [`Error::Environment`] if another program has the port, or no device the address.
    pub fn bind(&self, addr: impl Into<Address>) -> Result<(), Error> {
        Ok(self.0.id.bind(&addr.into())?)
    }

    /// Finds out which device leads to `dst`, and binds to it; `from` asks for an own address.
    ///
    /// # Errors
    /// [`Error::Argument`] if the id is not new, or `from` cannot be had.
    pub fn resolve_addr(&self, from: Option<Address>, dst: impl Into<Address>, timeout: Duration) -> Result<(), Error> {
        Ok(self.0.id.resolve_addr(from.as_ref(), &dst.into(), millis(timeout))?)
    }

    /// Finds the path to the address that was resolved.
    ///
    /// # Errors
    /// [`Error::Argument`] before `AddrResolved`.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        Ok(self.0.id.resolve_route(millis(timeout))?)
    }

    /// Listens for requests; at most `backlog` may be unanswered, 0 for the system's default.
    ///
    /// # Errors
    /// [`Error::Environment`] if another listens there, or the id is in use.
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        Ok(self.0.id.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?)
    }

    /// Asks the peer for a connection, or for the queue pair of a datagram service. With a queue
    /// pair built on the id ([`QueuePairBuilder::build_on`](crate::QueuePairBuilder::build_on))
    /// everything follows by itself.
    ///
    /// # Errors
    /// [`Error::Argument`] before `RouteResolved`, or if the private data is too long: 56 bytes
    /// fit, 180 for datagrams.
    pub fn connect(&self, param: &ConnParam) -> Result<(), Error> {
        Ok(self.0.id.connect(param)?)
    }

    /// Accepts the request that made this id. For READs and atomics, `param` may not say more than
    /// the request offers.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is nothing to accept, or the private data is too long: 196
    /// bytes fit, 136 for datagrams.
    pub fn accept(&self, param: &ConnParam) -> Result<(), Error> {
        Ok(self.0.id.accept(param)?)
    }

    /// Refuses the request that made this id, or the peer's answer. The peer gets up to 148 bytes,
    /// 136 for datagrams.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is nothing to refuse.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        Ok(self.0.id.reject(private_data, roxe_wire::cm::RejReason::ConsumerDefined)?)
    }

    /// Confirms the peer's answer (`ConnectResponse`), for queue pairs that are not built on an id.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is nothing to confirm.
    pub fn establish(&self) -> Result<(), Error> {
        Ok(self.0.id.establish()?)
    }

    /// Ends the connection; the queue pair goes to the error state, which flushes its requests.
    /// After `Disconnected` it answers the peer.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no connection.
    pub fn disconnect(&self) -> Result<(), Error> {
        Ok(self.0.id.disconnect()?)
    }

    /// Attributes to move a queue pair that is not built on the id to `state`, for
    /// [`QueuePair::modify`](crate::QueuePair::modify).
    ///
    /// # Errors
    /// [`Error::Argument`] if they are not known yet.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        Ok(self.0.id.init_qp_attr(state)?)
    }

    /// Tells of an event of a queue pair that is not built on the id: with
    /// [`CommEst`](crate::AsyncEventKind::CommEst) an accepted connection is established, though
    /// the peer's confirmation is lost. With [`PathMig`](crate::AsyncEventKind::PathMig), of any
    /// queue pair, messages follow it to the alternate path.
    ///
    /// # Errors
    /// [`Error::Argument`] for any other event, or if it is established already, or there is no
    /// such path.
    pub fn notify(&self, event: AsyncEventKind) -> Result<(), Error> {
        Ok(self.0.id.notify(event)?)
    }

    /// Sets whether the queue pair on this id loads alternate paths that the peer proposes; off by
    /// default, because it lets the peer choose where packets go.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is not connected, or has no queue pair.
    pub fn take_alternates(&self, takes: bool) -> Result<(), Error> {
        Ok(self.0.id.take_alternates(takes)?)
    }

    /// Proposes another path to the peer, between other addresses of the same devices.
    /// `RouteResolved` tells that both queue pairs have it: when packets have gone both ways they
    /// may [`migrate`](crate::QueuePair::migrate), and do so when the first path fails. The status
    /// of `RouteError` is `-EOPNOTSUPP` if the peer does not want any.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is not connected, has no queue pair, has another proposal under
    /// way, or `path` does not begin at an address of its device.
    pub fn load_alternate(&self, path: &Path) -> Result<(), Error> {
        Ok(self.0.id.load_alternate(path)?)
    }

    /// Offers the peer options of a vendor with the next message (enhanced connection
    /// establishment).
    ///
    /// # Errors
    /// [`Error::Argument`] if it is too late.
    pub fn set_local_ece(&self, ece: Ece) -> Result<(), Error> {
        Ok(self.0.id.set_local_ece(ece)?)
    }

    /// The options of a vendor that the peer's last message offers.
    pub fn remote_ece(&self) -> Ece {
        self.0.id.remote_ece()
    }

    /// Joins a multicast group; `MulticastJoin` tells where it is. A queue pair on the id receives
    /// what is sent to it.
    ///
    /// # Errors
    /// [`Error::Argument`] if `group` is none, or the id is bound to no device.
    pub fn join_multicast(&self, group: impl Into<Address>, flags: JoinFlags) -> Result<(), Error> {
        Ok(self.0.id.join_multicast(&group.into(), flags, 0)?)
    }

    /// Leaves it.
    ///
    /// # Errors
    /// [`Error::Argument`] if it was not joined.
    pub fn leave_multicast(&self, group: impl Into<Address>) -> Result<(), Error> {
        Ok(self.0.id.leave_multicast(&group.into())?)
    }

    /// Sets an option.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is too late for it, or the value is none.
    pub fn set_option(&self, option: IdOption) -> Result<(), Error> {
        Ok(self.0.id.set_option(option)?)
    }

    /// Lets its events, those that are pending too, come to another channel.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is being destroyed.
    pub fn migrate(&self, to: &EventChannel) -> Result<(), Error> {
        Ok(self.0.id.migrate(&to.0)?)
    }

    /// The device that its address belongs to; none before `AddrResolved`, or if it is bound to
    /// all.
    pub fn device(&self) -> Option<Device> {
        self.0.id.device().map(Device)
    }

    /// That device, opened: all ids on it share one context as long as something uses it.
    ///
    /// # Errors
    /// [`Error::Environment`] if there is none yet, or it cannot be opened.
    pub fn context(&self) -> Result<Context, Error> {
        let none = || EnvironmentError::NoDevice {
            name: "for an id without an address".into(),
            present: "those of its peers".into(),
        };
        self.device().ok_or_else(none)?.share()
    }

    /// Its own address and port, once it has them.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        ip(self.0.id.local_addr())
    }

    /// The peer's address and port, once they are known.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        ip(self.0.id.peer_addr())
    }

    /// The path to the peer, once it is resolved or the peer named it.
    pub fn path(&self) -> Option<Path> {
        self.0.id.path()
    }

    /// The service of the queue pairs that go with it.
    pub fn service(&self) -> Service {
        self.0.id.service()
    }

    /// The own address as the GID table has it.
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
