//! [`Id`]: one end of a connection, a listener, or a user of datagram services.

use super::address::Address;
use super::channel::Channel;
use super::event::ConnParam;
use super::options::{IdOption, JoinFlags};
use super::route::Path;
use super::{Ece, PortSpace, RejReason};
use crate::device::Device;
use crate::error::Error;
use crate::event::AsyncEventKind;
use crate::qp::Qp;
use roxe_transport::qp::{AttrMask, QpAttr, QpState, Service};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// `struct rdma_cm_id`: what a program binds, connects and listens with.
///
/// Ends with [`Id::destroy`] only: the connection manager and pending events hold it too.
#[derive(Debug)]
pub struct Id {
    port_space: PortSpace,
    service: Service,
    user: AtomicU64,
}

/// What is not there yet.
fn not_yet<T>() -> Result<T, Error> {
    Err(Error::new(libc::EOPNOTSUPP, "not there yet"))
}

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

    /// The same for queue pairs of another service: UC, the two sides of XRC, or UD in the IB port space.
    pub fn create_for(
        _channel: &Arc<Channel>,
        port_space: PortSpace,
        service: Service,
        user: u64,
    ) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { port_space, service, user: AtomicU64::new(user) }))
    }

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

    /// Gives it a local address: of a device, or unspecified for all; port 0 chooses one. EINVAL: it has one. EADDRNOTAVAIL:
    /// not an address of this host. ENODEV: of no device. EADDRINUSE: taken.
    pub fn bind(&self, _addr: &Address) -> Result<(), Error> {
        not_yet()
    }

    /// Finds the way to `dst`: the source address, unless it is bound or `src` says, and the device. Comes to
    /// [`EventKind::AddrResolved`](super::EventKind::AddrResolved) or [`EventKind::AddrError`](super::EventKind::AddrError).
    /// EINVAL: wrong state, or addresses of two families; and as [`Id::bind`].
    pub fn resolve_addr(&self, _src: Option<&Address>, _dst: &Address, _timeout_ms: u32) -> Result<(), Error> {
        not_yet()
    }

    /// Finds the path. Comes to [`EventKind::RouteResolved`](super::EventKind::RouteResolved) or
    /// [`EventKind::RouteError`](super::EventKind::RouteError). EINVAL: the address is not resolved.
    pub fn resolve_route(&self, _timeout_ms: u32) -> Result<(), Error> {
        not_yet()
    }

    /// Takes requests for its port from now on, at most `backlog` of them unheard (0 and less: 1024). Binds to all
    /// addresses if it is not bound. EINVAL: wrong state. EADDRINUSE.
    pub fn listen(&self, _backlog: i32) -> Result<(), Error> {
        not_yet()
    }

    /// Asks the peer. EINVAL: the route is not resolved, or too much private data.
    pub fn connect(&self, _param: &ConnParam) -> Result<(), Error> {
        not_yet()
    }

    /// Accepts a request; of a datagram id with `qp_num` and private data only. On the side that asked: [`Id::establish`].
    /// EINVAL: there is no request (any more), or too much private data.
    pub fn accept(&self, _param: &ConnParam) -> Result<(), Error> {
        not_yet()
    }

    /// Refuses a request, or what the peer answered. EINVAL: nothing to refuse, or too much private data.
    pub fn reject(&self, _private_data: &[u8], _reason: RejReason) -> Result<(), Error> {
        not_yet()
    }

    /// Confirms the peer's answer (`rdma_establish`), for programs that move their queue pair themselves. EINVAL: there is
    /// none.
    pub fn establish(&self) -> Result<(), Error> {
        not_yet()
    }

    /// Ends the connection, or agrees with its end. EINVAL: never connected.
    pub fn disconnect(&self) -> Result<(), Error> {
        not_yet()
    }

    /// Tells of an event of its queue pair: with [`AsyncEventKind::CommEst`] an accepted connection is established. EISCONN:
    /// it is already. EINVAL: any other event or state.
    pub fn notify(&self, _event: AsyncEventKind) -> Result<(), Error> {
        not_yet()
    }

    /// What a queue pair has to be given on its way to `state` (INIT, RTR or RTS). EINVAL: too early.
    pub fn init_qp_attr(&self, _state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        not_yet()
    }

    /// Becomes a member of the group `addr`; see `multicast.rs`.
    pub fn join_multicast(&self, _addr: &Address, _flags: JoinFlags, _user: u64) -> Result<(), Error> {
        not_yet()
    }

    /// Ends what [`Id::join_multicast`] began.
    pub fn leave_multicast(&self, _addr: &Address) -> Result<(), Error> {
        not_yet()
    }

    /// Sets an option. EINVAL: not (any more) possible.
    pub fn set_option(&self, _option: IdOption) -> Result<(), Error> {
        not_yet()
    }

    /// Sets the vendor options that the next message offers the peer (`rdma_set_local_ece`).
    pub fn set_local_ece(&self, _ece: Ece) -> Result<(), Error> {
        not_yet()
    }

    /// The vendor options of the peer (`rdma_get_remote_ece`).
    pub fn remote_ece(&self) -> Ece {
        Ece::NONE
    }

    /// Moves it to another channel, with its pending events.
    pub fn migrate(&self, _to: &Arc<Channel>) -> Result<(), Error> {
        not_yet()
    }

    /// The device it is bound to.
    pub fn device(&self) -> Option<Arc<Device>> {
        None
    }

    /// The port of the device; 0 without one.
    pub fn port(&self) -> u8 {
        0
    }

    /// Its own address, once bound.
    pub fn local_addr(&self) -> Option<Address> {
        None
    }

    /// The peer's address, once known.
    pub fn peer_addr(&self) -> Option<Address> {
        None
    }

    /// The path, once resolved or requested.
    pub fn path(&self) -> Option<Path> {
        None
    }

    /// The id moves this queue pair from now on: now to INIT, datagrams to RTS; then with connect, accept, reject and
    /// disconnect. EINVAL: it has one, or no device.
    pub fn attach_qp(&self, _qp: &Arc<Qp>) -> Result<(), Error> {
        not_yet()
    }

    /// Forgets the queue pair.
    pub fn detach_qp(&self) {}

    /// The queue pair.
    pub fn qp(&self) -> Option<Arc<Qp>> {
        None
    }

    /// Ends it: no event of it comes any more, pending ones are dropped, requests that nobody has heard of are rejected. The
    /// peer is told what it must know.
    pub fn destroy(&self) {}

    /// A request that came to it was heard.
    pub(super) fn request_fetched(&self) {}
}
