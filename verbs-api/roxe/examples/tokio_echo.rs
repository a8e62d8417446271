//! A server with many connections in one thread, and its clients, with tokio as the event loop.
//!
//! ```sh
//! cargo run --release -p roxe --example tokio_echo                      # server and clients
//! cargo run --release -p roxe --example tokio_echo serve 127.0.0.1:7471 # only the server
//! cargo run --release -p roxe --example tokio_echo 127.0.0.1:7471       # only clients
//! ```
//!
//! Nothing in the crate knows tokio, and another event loop does as well: a channel has a
//! descriptor that is readable while something is pending, and a method that takes it without
//! waiting. [`watched`] and [`until`] are all that joins the two.

use roxe::cm::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel, PortSpace};
use roxe::{
    Access, CompletionChannel, CompletionQueue, MemoryRegion, QueuePair, WcOpcode, WorkCompletion, WorkRequest,
};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Builder;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const MESSAGE: usize = 64;
const CLIENTS: u8 = 8;
const ROUNDS: u8 = 100;
/// How long the system may look for an address.
const LOOKUP: Duration = Duration::from_secs(2);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let runtime = Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        match args[..] {
            [] => println!("{} messages came back right", demo().await?),
            ["serve", address] => Server::bind(address.parse()?)?.serve().await?,
            [address] => println!("{} messages came back right", client(address.parse()?, 1).await?),
            _ => return Err("usage: tokio_echo [[serve] ADDRESS:PORT]".into()),
        }
        Ok(())
    })
}

/// A server and its clients, all on this thread. Returns how many messages came back right.
pub(crate) async fn demo() -> Result<u32> {
    let server = Server::bind("127.0.0.1:0".parse()?)?;
    let address = server.address()?;
    let serving = tokio::spawn(server.serve());
    let clients: Vec<_> = (1..=CLIENTS).map(|seed| tokio::spawn(client(address, seed))).collect();
    let mut right = 0;
    for client in clients {
        right += client.await??;
    }
    serving.abort();
    Ok(right)
}

/// Lets tokio watch the descriptor of `channel`.
fn watched<T: AsFd + AsRawFd>(channel: T) -> Result<AsyncFd<T>> {
    // SAFETY: `AsFd` promises that the descriptor is open as long as the channel lives, and both
    // traits name the same one.
    Ok(unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) }.map_err(std::io::Error::from)?)
}

/// Takes what `take` finds on `channel`, as soon as there is something; other tasks run meanwhile.
async fn until<T: AsRawFd, R>(channel: &AsyncFd<T>, take: impl Fn(&T) -> Option<R>) -> Result<R> {
    loop {
        let mut ready = channel.readable().await?;
        match take(channel.get_ref()) {
            Some(found) => return Ok(found),
            None => ready.clear_ready(),
        }
    }
}

/// The next event, which must be of this kind.
async fn event(channel: &AsyncFd<EventChannel>, kind: CmEventKind) -> Result<CmEvent> {
    Ok(until(channel, EventChannel::try_next).await?.expect(kind)?)
}

/// Where clients come in.
struct Server {
    id: CmId,
    events: AsyncFd<EventChannel>,
}

impl Server {
    fn bind(address: SocketAddr) -> Result<Self> {
        let channel = EventChannel::create()?;
        let id = CmId::create(&channel, PortSpace::Tcp)?;
        id.bind(address)?;
        id.listen(0)?;
        Ok(Self { id, events: watched(channel)? })
    }

    fn address(&self) -> Result<SocketAddr> {
        self.id.local_addr().ok_or_else(|| "it is bound".into())
    }

    /// Each client gets a task.
    async fn serve(self) -> Result<()> {
        loop {
            let mut request = event(&self.events, CmEventKind::ConnectRequest).await?;
            let terms = ConnParam { private_data: vec![], ..request.param().cloned().unwrap_or_default() };
            let Some(id) = request.take_request() else { continue };
            tokio::spawn(async move {
                if let Err(e) = echo(id, terms).await {
                    eprintln!("a client was lost: {e}");
                }
            });
        }
    }
}

/// Sends every message back until the client goes.
async fn echo(id: CmId, terms: ConnParam) -> Result<()> {
    let channel = EventChannel::create()?;
    id.migrate(&channel)?;
    let events = watched(channel)?;
    let end = End::new(&id)?;
    end.post_recv()?;
    id.accept(&terms)?;
    event(&events, CmEventKind::Established).await?;

    // When the client hangs up, so do we: that flushes the receive request, and the loop below
    // ends.
    tokio::spawn(async move {
        event(&events, CmEventKind::Disconnected).await?;
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(id.disconnect()?)
    });
    while let Ok(message) = end.receive().await {
        end.post_recv()?;
        end.qp.post_send(&WorkRequest::send_inline(&message).signaled())?;
    }
    Ok(())
}

/// Connects, sends messages and looks at what comes back. Returns how many.
async fn client(address: SocketAddr, seed: u8) -> Result<u32> {
    let channel = EventChannel::create()?;
    let id = CmId::create(&channel, PortSpace::Tcp)?;
    let events = watched(channel)?;
    id.resolve_addr(None, address, LOOKUP)?;
    event(&events, CmEventKind::AddrResolved).await?;
    id.resolve_route(LOOKUP)?;
    event(&events, CmEventKind::RouteResolved).await?;
    let end = End::new(&id)?;
    id.connect(&ConnParam::default())?;
    event(&events, CmEventKind::Established).await?;

    for round in 0..ROUNDS {
        let message = [seed.wrapping_mul(31).wrapping_add(round); MESSAGE];
        end.post_recv()?;
        end.qp.post_send(&WorkRequest::send_inline(&message).signaled())?;
        if end.receive().await? != message {
            return Err(format!("round {round}: another message came back").into());
        }
    }
    id.disconnect()?;
    event(&events, CmEventKind::Disconnected).await?;
    Ok(ROUNDS.into())
}

/// One end of a connection: queues and memory.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    completions: AsyncFd<CompletionChannel>,
    inbox: MemoryRegion,
}

impl End {
    fn new(id: &CmId) -> Result<Self> {
        let context = id.context()?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq_with_channel(16, &channel)?;
        let qp = pd.create_qp(&cq, &cq).max_send_wr(8).max_recv_wr(8).build_on(id)?;
        let inbox = pd.alloc_mr(MESSAGE, Access::LOCAL_WRITE)?;
        Ok(Self { qp, cq, completions: watched(channel)?, inbox })
    }

    fn post_recv(&self) -> Result<()> {
        Ok(self.qp.post_recv(0, &[self.inbox.slice(..)?])?)
    }

    /// The next message. Completions of sends are passed over.
    async fn receive(&self) -> Result<Vec<u8>> {
        loop {
            let completion = self.completion().await?;
            completion.ok()?;
            if completion.opcode() == WcOpcode::Recv {
                return Ok(self.inbox.to_vec(..completion.byte_len() as usize)?);
            }
        }
    }

    /// The next completion: the queue is polled once more after it was told to raise an event,
    /// because what is there already raises none.
    async fn completion(&self) -> Result<WorkCompletion> {
        let mut one = [WorkCompletion::default()];
        loop {
            if let [completion] = self.cq.poll(&mut one)? {
                return Ok(*completion);
            }
            self.cq.req_notify(false);
            if let [completion] = self.cq.poll(&mut one)? {
                return Ok(*completion);
            }
            until(&self.completions, CompletionChannel::try_get_event).await?;
        }
    }
}
