//! Blocking connections, modelled on the TCP types of the standard library. Each connection and
//! listener has its own event channel.

use crate::cm::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel, PortSpace};
use crate::{EnvironmentError, Error, QueuePair};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Time limit of resolving the address, and again of resolving the route.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of unanswered requests of a listener.
const BACKLOG: u32 = 128;

/// Length of the completion queue: the builder's defaults of 128 sends and 128 receives.
const CQ_LEN: u32 = 256;

/// A connected queue pair and its events. Dropping it ends the connection.
#[derive(Debug)]
pub struct Connection {
    qp: QueuePair,
    id: CmId,
    channel: EventChannel,
    private_data: Vec<u8>,
}

impl Connection {
    /// Connects to a listener, with a queue pair in a new protection domain. Tries several
    /// addresses in order until one accepts.
    ///
    /// # Errors
    /// Those of the last address: errors of [`Outgoing::resolve`], of creating the queue pair
    /// ([`CmId::context`], [`Context::alloc_pd`](crate::Context::alloc_pd),
    /// [`Context::create_cq`](crate::Context::create_cq),
    /// [`QueuePairBuilder::build_on`](crate::QueuePairBuilder::build_on)) and of
    /// [`Outgoing::connect`].
    pub fn connect(addr: impl ToSocketAddrs) -> Result<Self, Error> {
        first(addr, |addr| {
            let outgoing = Outgoing::resolve(addr)?;
            let qp = simple_qp(outgoing.id())?;
            outgoing.connect(qp, &ConnParam::default())
        })
    }

    /// Returns the queue pair. Its domain and completion queues: [`QueuePair::pd`],
    /// [`QueuePair::send_cq`], [`QueuePair::recv_cq`].
    pub const fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Returns the connection id.
    pub const fn id(&self) -> &CmId {
        &self.id
    }

    /// Returns the event channel of the connection. When the peer disconnects, it reports
    /// [`CmEventKind::Disconnected`].
    pub const fn events(&self) -> &EventChannel {
        &self.channel
    }

    /// Returns the private data of the peer's acceptance. Empty at the accepting side; see
    /// [`Incoming::private_data`].
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Ends the connection and waits for the peer's answer. The peer answers when its program
    /// disconnects or drops the connection; the wait is limited to about a minute.
    ///
    /// The answer is the event [`Disconnected`](CmEventKind::Disconnected). A program that has
    /// taken it from [`events`](Self::events) must drop the connection instead: no second one
    /// arrives, and the wait would not end.
    ///
    /// # Errors
    /// [`Error::Environment`] if the device is removed. [`Error::NotYet`] if there is no event and
    /// the descriptor of the channel is in non-blocking mode. The connection ends in each case.
    pub fn disconnect(self) -> Result<(), Error> {
        self.id.disconnect()?;
        self.wait_for_disconnected()
    }

    /// Waits until the peer ends the connection, and answers the peer.
    ///
    /// Like [`disconnect`](Self::disconnect), it waits for the event
    /// [`Disconnected`](CmEventKind::Disconnected), so the program must not have taken it.
    ///
    /// # Errors
    /// Errors of [`disconnect`](Self::disconnect).
    pub fn wait_disconnected(self) -> Result<(), Error> {
        self.wait_for_disconnected()?;
        self.id.disconnect()
    }

    fn wait_for_disconnected(&self) -> Result<(), Error> {
        loop {
            let event = next_event(&self.channel)?;
            match event.kind() {
                CmEventKind::Disconnected => return Ok(()),
                // An alternate path that cannot be loaded does not end the connection.
                CmEventKind::RouteError => {}
                _ => _ = event.check()?,
            }
        }
    }
}

/// A connection whose address and route are resolved; [`connect`](Self::connect) requests it.
#[derive(Debug)]
pub struct Outgoing {
    id: CmId,
    channel: EventChannel,
}

impl Outgoing {
    /// Finds the device and the path to `addr`. Tries several addresses in order until one can be
    /// resolved.
    ///
    /// # Errors
    /// - [`Error::Environment`] if no device or route reaches `addr`, the link address of the peer
    ///   or of the router to it is unknown after 2 s, or the name has no address.
    /// - [`Error::Resources`] if the process has no free descriptor.
    pub fn resolve(addr: impl ToSocketAddrs) -> Result<Self, Error> {
        first(addr, Self::resolve_one)
    }

    fn resolve_one(addr: SocketAddr) -> Result<Self, Error> {
        let channel = EventChannel::create()?;
        let id = CmId::create(&channel, PortSpace::Tcp)?;
        id.resolve_addr(None, addr, RESOLVE_TIMEOUT)?;
        next_event(&channel)?.expect(CmEventKind::AddrResolved)?;
        id.resolve_route(RESOLVE_TIMEOUT)?;
        next_event(&channel)?.expect(CmEventKind::RouteResolved)?;
        Ok(Self { id, channel })
    }

    /// Returns the id, to build a queue pair on. [`CmId::device`] is the device that reaches the
    /// peer.
    pub const fn id(&self) -> &CmId {
        &self.id
    }

    /// Requests the connection with `qp`, which was built on the id, and waits for the answer.
    ///
    /// # Errors
    /// - [`Error::Peer`] if the peer refuses or does not respond within about a minute, or `qp`
    ///   refuses the terms of the connection or was not built on the id.
    /// - [`Error::Argument`] if the private data is too long: 56 bytes fit.
    /// - [`Error::Resources`] if the device has its maximum number of connections.
    /// - [`Error::Environment`] if the device is removed.
    pub fn connect(self, qp: QueuePair, param: &ConnParam) -> Result<Connection, Error> {
        let Self { id, channel } = self;
        id.connect(param)?;
        let answer = next_event(&channel)?.expect(CmEventKind::Established)?;
        Ok(Connection { qp, id, channel, private_data: answer.private_data().to_vec() })
    }
}

/// Listens for connection requests at an address.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
    channel: EventChannel,
    requested: SocketAddr,
}

impl Listener {
    /// Listens at `addr`. Port 0 chooses a free port. Tries several addresses in order until one is
    /// available.
    ///
    /// # Errors
    /// [`Error::Environment`] if no device has the address, another program uses the port, the name
    /// has no address, or no socket of the device can be opened. [`Error::Resources`] if the
    /// process has no free descriptor or cannot start a thread.
    pub fn bind(addr: impl ToSocketAddrs) -> Result<Self, Error> {
        first(addr, Self::bind_one)
    }

    fn bind_one(addr: SocketAddr) -> Result<Self, Error> {
        let channel = EventChannel::create()?;
        let id = CmId::create(&channel, PortSpace::Tcp)?;
        id.bind(addr)?;
        id.listen(BACKLOG)?;
        Ok(Self { id, channel, requested: addr })
    }

    /// Returns the address of the listener, with the chosen port.
    pub fn local_addr(&self) -> SocketAddr {
        self.id.local_addr().unwrap_or(self.requested)
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// - [`Error::Environment`] if the device is removed; only at an address of one device.
    /// - [`Error::Resources`] if the process has no free descriptor for the events of the request,
    ///   which is rejected then.
    /// - [`Error::NotYet`] if a signal interrupts the wait.
    pub fn next_request(&self) -> Result<Incoming, Error> {
        loop {
            let mut event = self.channel.next_event()?.check()?;
            if let Some(id) = event.take_request() {
                return Incoming::new(id, event.param().cloned().unwrap_or_default());
            }
        }
    }

    /// Waits for the next request and accepts it, with a queue pair in a new protection domain.
    ///
    /// # Errors
    /// Errors of [`next_request`](Self::next_request), of creating the queue pair as for
    /// [`Connection::connect`], and of [`Incoming::accept`].
    pub fn accept(&self) -> Result<Connection, Error> {
        let incoming = self.next_request()?;
        let qp = simple_qp(incoming.id())?;
        let param = incoming.answer();
        incoming.accept(qp, &param)
    }
}

/// A connection request of a peer. Dropping it rejects the request.
#[derive(Debug)]
pub struct Incoming {
    id: CmId,
    channel: EventChannel,
    param: ConnParam,
}

impl Incoming {
    fn new(id: CmId, param: ConnParam) -> Result<Self, Error> {
        let channel = EventChannel::create()?;
        id.migrate(&channel)?;
        Ok(Self { id, channel, param })
    }

    /// Returns the id, to build a queue pair on. [`CmId::device`] is the device that received the
    /// request.
    pub const fn id(&self) -> &CmId {
        &self.id
    }

    /// Returns the private data of the request, padded with zeros to 56 bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.param.private_data
    }

    /// Returns the peer's connection parameters, from the view of this side.
    pub const fn param(&self) -> &ConnParam {
        &self.param
    }

    /// Returns parameters for [`accept`](Self::accept): the numbers of READs and atomics that the
    /// peer offers, without private data.
    pub fn answer(&self) -> ConnParam {
        let ConnParam { responder_resources, initiator_depth, .. } = self.param;
        ConnParam { responder_resources, initiator_depth, ..ConnParam::default() }
    }

    /// Accepts the request with `qp`, which was built on the id, and waits for the peer's
    /// confirmation.
    ///
    /// # Errors
    /// - [`Error::Peer`] if the peer gives up or does not confirm.
    /// - [`Error::Argument`] if the peer had given up before the call, the private data is longer
    ///   than 196 bytes, or the queue pair refuses the terms of the connection.
    /// - [`Error::Environment`] if the device is removed.
    ///
    /// After an error there is no connection.
    pub fn accept(self, qp: QueuePair, param: &ConnParam) -> Result<Connection, Error> {
        let Self { id, channel, .. } = self;
        id.accept(param)?;
        next_event(&channel)?.expect(CmEventKind::Established)?;
        Ok(Connection { qp, id, channel, private_data: Vec::new() })
    }

    /// Rejects the request, with up to 148 bytes of private data.
    ///
    /// # Errors
    /// [`Error::Argument`] if the private data is longer, or the peer has ended the request.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.id.reject(private_data)
    }
}

/// Waits for the next event, again if a signal interrupts the wait: the functions that call this
/// consume the connection, so the program could not repeat them.
fn next_event(channel: &EventChannel) -> Result<CmEvent, Error> {
    loop {
        match channel.next_event() {
            Err(error) if error.errno() == libc::EINTR => {}
            waited => return waited,
        }
    }
}

/// Returns a queue pair on `id`, in a new protection domain and with a new completion queue.
fn simple_qp(id: &CmId) -> Result<QueuePair, Error> {
    let context = id.context()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(CQ_LEN)?);
    pd.create_qp(&cq, &cq).build_on(id)
}

/// Calls `make` with each address in order. Returns its first success, or its last error.
fn first<T>(addr: impl ToSocketAddrs, make: impl Fn(SocketAddr) -> Result<T, Error>) -> Result<T, Error> {
    let nothing = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    let mut failed = EnvironmentError::Lookup(nothing).into();
    for addr in addr.to_socket_addrs().map_err(EnvironmentError::Lookup)? {
        match make(addr) {
            Ok(made) => return Ok(made),
            Err(e) => failed = e,
        }
    }
    Err(failed)
}
