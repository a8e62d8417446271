//! Connections as futures with time limits, modelled on tokio's TCP types.

use crate::{Completions, Events};
use roxe::cm::{CmEventKind, CmId, ConnParam, EventChannel, PortSpace};
use roxe::{Error, PeerError, QueuePair};
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

const BACKLOG: u32 = 128;
/// Completions of a queue pair with the builder's default of 128 sends and 128 receives.
const COMPLETIONS: u32 = 256;

/// A connected queue pair with its completions. Dropping it ends the connection.
#[derive(Debug)]
pub struct Connection {
    qp: QueuePair,
    id: CmId,
    events: Events,
    completions: Completions,
    private_data: Vec<u8>,
}

impl Connection {
    /// Connects to a listener at `addr` within `limit`, with a queue pair in a new protection
    /// domain.
    ///
    /// # Errors
    /// - [`PeerError::ConnectTimeout`] after `limit`.
    /// - [`Error::Environment`] if no device or route reaches `addr`, the device is removed, or
    ///   tokio cannot watch a descriptor.
    /// - [`Error::Peer`] if the peer rejects the connection or does not respond, or the queue pair
    ///   refuses the terms of the connection.
    /// - [`Error::Resources`] if the process has no free descriptor, or the device has its maximum
    ///   number of objects.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with I/O and time enabled.
    pub async fn connect(addr: SocketAddr, limit: Duration) -> Result<Self, Error> {
        within(limit, async {
            let events = Events::new(EventChannel::create()?)?;
            let id = CmId::create(events.channel(), PortSpace::Tcp)?;
            id.resolve_addr(None, addr, limit)?;
            events.expect(CmEventKind::AddrResolved).await?;
            id.resolve_route(limit)?;
            events.expect(CmEventKind::RouteResolved).await?;
            let (qp, completions) = queue_pair(&id)?;
            id.connect(&ConnParam::default())?;
            let answer = events.expect(CmEventKind::Established).await?;
            Ok(Self { qp, id, events, completions, private_data: answer.private_data().to_vec() })
        })
        .await
    }

    /// Returns the queue pair. Its protection domain is [`QueuePair::pd`].
    pub const fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Completions of its send and receive requests.
    pub const fn completions(&self) -> &Completions {
        &self.completions
    }

    /// Returns the completions as a mutable reference, for the methods of a stream.
    pub const fn completions_mut(&mut self) -> &mut Completions {
        &mut self.completions
    }

    /// Returns the private data of the peer's acceptance; empty on the accepting side.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Waits until the peer ends the connection, and answers.
    ///
    /// # Errors
    /// [`Error::Environment`] if the runtime ends, or the device is removed.
    pub async fn disconnected(self) -> Result<(), Error> {
        self.until_disconnected().await?;
        self.id.disconnect()
    }

    /// Ends the connection, and waits at most `limit` for the peer's answer.
    ///
    /// # Errors
    /// [`PeerError::ConnectTimeout`] after `limit`; errors of [`disconnected`](Self::disconnected).
    /// The connection is closed anyway.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with time enabled.
    pub async fn disconnect(self, limit: Duration) -> Result<(), Error> {
        self.id.disconnect()?;
        within(limit, self.until_disconnected()).await
    }

    async fn until_disconnected(&self) -> Result<(), Error> {
        while self.events.next_event().await?.check()?.kind() != CmEventKind::Disconnected {}
        Ok(())
    }
}

/// Accepts connections at an address.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
    events: Events,
    requested: SocketAddr,
}

impl Listener {
    /// Listens at `addr`; port 0 chooses a free one.
    ///
    /// # Errors
    /// [`Error::Environment`] if no device has the address, another program uses the port, no
    /// socket of the device can be opened, or tokio cannot watch the descriptor.
    /// [`Error::Resources`] if the process has no free descriptor or cannot start a thread.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with I/O enabled.
    pub fn bind(addr: SocketAddr) -> Result<Self, Error> {
        let events = Events::new(EventChannel::create()?)?;
        let id = CmId::create(events.channel(), PortSpace::Tcp)?;
        id.bind(addr)?;
        id.listen(BACKLOG)?;
        Ok(Self { id, events, requested: addr })
    }

    /// Returns the address of the listener, with the chosen port.
    pub fn local_addr(&self) -> SocketAddr {
        self.id.local_addr().unwrap_or(self.requested)
    }

    /// Waits at most `limit` for the next request and accepts it, with a queue pair in a new
    /// protection domain. Dropping the future after a request has arrived rejects the request.
    ///
    /// # Errors
    /// - [`PeerError::ConnectTimeout`] after `limit`.
    /// - [`Error::Peer`] if the peer gives up or does not confirm.
    /// - [`Error::Argument`] if the peer gives up before the connection is accepted, or the queue
    ///   pair refuses its terms.
    /// - [`Error::Resources`] if the process has no free descriptor, or the device has its maximum
    ///   number of objects.
    /// - [`Error::Environment`] if the runtime ends, the device is removed, or tokio cannot watch a
    ///   descriptor.
    ///
    /// The listener stays usable unless the runtime ends or the device is removed.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with I/O and time enabled.
    pub async fn accept(&self, limit: Duration) -> Result<Connection, Error> {
        within(limit, async {
            loop {
                let mut event = self.events.next_event().await?.check()?;
                let param = event.param().cloned().unwrap_or_default();
                if let Some(id) = event.take_request() {
                    return accept(id, ConnParam { private_data: vec![], ..param }).await;
                }
            }
        })
        .await
    }
}

async fn accept(id: CmId, param: ConnParam) -> Result<Connection, Error> {
    let events = Events::new(EventChannel::create()?)?;
    id.migrate(events.channel())?;
    let (qp, completions) = queue_pair(&id)?;
    id.accept(&param)?;
    events.expect(CmEventKind::Established).await?;
    Ok(Connection { qp, id, events, completions, private_data: Vec::new() })
}

/// Creates a queue pair on `id`, in a new protection domain.
fn queue_pair(id: &CmId) -> Result<(QueuePair, Completions), Error> {
    let context = id.context()?;
    let (pd, completions) = (context.alloc_pd()?, Completions::create(&context, COMPLETIONS)?);
    let qp = pd.create_qp(completions.cq(), completions.cq()).build_on(id)?;
    Ok((qp, completions))
}

async fn within<T>(limit: Duration, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(limit, future).await.unwrap_or_else(|_| Err(PeerError::ConnectTimeout(limit).into()))
}
