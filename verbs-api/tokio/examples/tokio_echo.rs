//! A tokio server with many connections in one thread, and its clients.
//!
//! ```sh
//! cargo run --release -p roxe-tokio --example tokio_echo                      # server and clients
//! cargo run --release -p roxe-tokio --example tokio_echo serve 127.0.0.1:7471 # only the server
//! cargo run --release -p roxe-tokio --example tokio_echo 127.0.0.1:7471       # only one client
//! ```
//!
//! No task polls in a loop: idle tasks sleep, and so does the thread when all are idle.

use roxe::cm::{CmEventKind, CmId, ConnParam, EventChannel, PortSpace};
use roxe::{Access, MemoryRegion, QueuePair, WcOpcode, WorkRequest};
use roxe_tokio::{Completions, Events};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::runtime::Builder;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Length of a message in bytes.
const MESSAGE_LEN: usize = 64;
const CLIENTS: u8 = 8;
/// Number of messages that each client sends.
const ROUNDS: u8 = 100;
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let runtime = Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        match args[..] {
            [] => println!("{} messages were echoed", demo().await?),
            ["serve", address] => Server::bind(address.parse()?)?.serve().await?,
            [address] => println!("{} messages were echoed", client(address.parse()?, 1).await?),
            _ => return Err("usage: tokio_echo [[serve] ADDRESS:PORT]".into()),
        }
        Ok(())
    })
}

/// Runs a server and its clients on this thread. Returns the number of echoed messages.
pub(crate) async fn demo() -> Result<u32> {
    let server = Server::bind("127.0.0.1:0".parse()?)?;
    let address = server.address()?;
    let serving = tokio::spawn(server.serve());
    let clients: Vec<_> = (1..=CLIENTS).map(|seed| tokio::spawn(client(address, seed))).collect();
    let mut echoed = 0;
    for client in clients {
        echoed += client.await??;
    }
    serving.abort();
    Ok(echoed)
}

/// A listener at an address.
struct Server {
    id: CmId,
    events: Events,
}

impl Server {
    fn bind(address: SocketAddr) -> Result<Self> {
        let events = Events::new(EventChannel::create()?)?;
        let id = CmId::create(events.channel(), PortSpace::Tcp)?;
        id.bind(address)?;
        id.listen(0)?;
        Ok(Self { id, events })
    }

    fn address(&self) -> Result<SocketAddr> {
        self.id.local_addr().ok_or_else(|| "the listener has no address".into())
    }

    /// Serves each client in its own task.
    async fn serve(self) -> Result<()> {
        loop {
            let mut request = self.events.expect(CmEventKind::ConnectRequest).await?;
            let param = ConnParam { private_data: vec![], ..request.param().cloned().unwrap_or_default() };
            let Some(id) = request.take_request() else { continue };
            tokio::spawn(async move {
                if let Err(e) = echo(id, param).await {
                    eprintln!("a connection failed: {e}");
                }
            });
        }
    }
}

/// Sends every message back until the client disconnects.
async fn echo(id: CmId, param: ConnParam) -> Result<()> {
    let events = Events::new(EventChannel::create()?)?;
    id.migrate(events.channel())?;
    let end = End::new(&id)?;
    end.post_recv()?;
    id.accept(&param)?;
    events.expect(CmEventKind::Established).await?;

    // When the client disconnects, disconnect too: that flushes the receive request, which ends the
    // loop below.
    tokio::spawn(async move {
        events.expect(CmEventKind::Disconnected).await?;
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(id.disconnect()?)
    });
    while let Ok(message) = end.receive().await {
        end.post_recv()?;
        end.qp.post_send(&WorkRequest::send_inline(&message).signaled())?;
    }
    Ok(())
}

/// Connects, sends messages and checks their echoes. Returns their number.
async fn client(address: SocketAddr, seed: u8) -> Result<u32> {
    let events = Events::new(EventChannel::create()?)?;
    let id = CmId::create(events.channel(), PortSpace::Tcp)?;
    id.resolve_addr(None, address, RESOLVE_TIMEOUT)?;
    events.expect(CmEventKind::AddrResolved).await?;
    id.resolve_route(RESOLVE_TIMEOUT)?;
    events.expect(CmEventKind::RouteResolved).await?;
    let end = End::new(&id)?;
    id.connect(&ConnParam::default())?;
    events.expect(CmEventKind::Established).await?;

    for round in 0..ROUNDS {
        let message = [seed.wrapping_mul(31).wrapping_add(round); MESSAGE_LEN];
        end.post_recv()?;
        end.qp.post_send(&WorkRequest::send_inline(&message).signaled())?;
        if end.receive().await? != message {
            return Err(format!("round {round}: another message was echoed").into());
        }
    }
    id.disconnect()?;
    events.expect(CmEventKind::Disconnected).await?;
    Ok(ROUNDS.into())
}

/// One end of a connection: queue pair, completions and memory.
struct End {
    qp: QueuePair,
    completions: Completions,
    inbox: MemoryRegion,
}

impl End {
    fn new(id: &CmId) -> Result<Self> {
        let context = id.context()?;
        let pd = context.alloc_pd()?;
        let completions = Completions::create(&context, 16)?;
        let qp = pd.create_qp(completions.cq(), completions.cq()).max_send_wr(8).max_recv_wr(8).build_on(id)?;
        let inbox = pd.alloc_mr(MESSAGE_LEN, Access::LOCAL_WRITE)?;
        Ok(Self { qp, completions, inbox })
    }

    fn post_recv(&self) -> Result<()> {
        Ok(self.qp.post_recv(0, &[self.inbox.slice(..)?])?)
    }

    /// Waits for the next message. Skips completions of sends.
    async fn receive(&self) -> Result<Vec<u8>> {
        loop {
            let completion = self.completions.next_completion().await?;
            completion.check()?;
            if completion.opcode() == WcOpcode::Recv {
                return Ok(self.inbox.to_vec(..completion.byte_len() as usize)?);
            }
        }
    }
}
