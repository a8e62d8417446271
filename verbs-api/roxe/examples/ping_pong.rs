//! Two processes send a message to and fro: the whole way from nothing to a measured round trip.
//!
//! ```sh
//! cargo run --release -p roxe --example ping_pong              # one terminal: the server
//! cargo run --release -p roxe --example ping_pong 127.0.0.1    # another terminal: the client
//! ```
//!
//! RDMA needs another channel first, over which the two tell each other where their queue pairs
//! are. Here it is a TCP connection that carries one line each way.

use roxe::{Access, CompletionQueue, Context, Endpoint, MemoryRegion, QueuePair, WcOpcode, WorkRequest};
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const PORT: u16 = 18515;
const MESSAGE: usize = 64;
const ROUNDS: u32 = 1000;
const PATIENCE: Duration = Duration::from_secs(5);

/// Where received messages land, and where the message to send lies.
const INBOX: usize = 0;
const OUTBOX: usize = MESSAGE;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        None => {
            println!("waiting for a client on TCP port {PORT}");
            let (tcp, _) = TcpListener::bind(("0.0.0.0", PORT))?.accept()?;
            Side::set_up(tcp)?.serve()
        }
        Some(server) => {
            let tcp = TcpStream::connect((server, PORT))?;
            Side::set_up(tcp)?.play()
        }
    }
}

/// One of the two processes, connected.
struct Side {
    tcp: TcpStream,
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
}

impl Side {
    /// Everything up to the first message: device, domain, queues, memory, connection.
    fn set_up(tcp: TcpStream) -> Result<Self, Box<dyn Error>> {
        // The first device: the loopback interface, or what ROXE_NETDEV names.
        let context = Context::open_first()?;
        let pd = context.alloc_pd()?;

        // One completion queue for sends and receives. It must hold all that can be outstanding:
        // one of each here.
        let cq = context.create_cq(16)?;
        let qp = pd.create_qp(&cq, &cq).max_send_wr(8).max_recv_wr(8).build()?;

        // The card may touch only registered memory. LOCAL_WRITE: received messages are written
        // here. No remote right: SEND needs none, because the receiver chooses where a message
        // lands.
        let region = pd.alloc_mr(2 * MESSAGE, Access::LOCAL_WRITE)?;
        let side = Self { tcp, qp, cq, region };

        // The first receive request is posted before the peer knows of us, so its message always
        // finds one.
        side.post_recv()?;
        let peer = exchange(&side.tcp, &side.qp.endpoint())?;
        side.qp.connect(&peer)?;
        println!("connected {} to {peer}", side.qp.endpoint());
        Ok(side)
    }

    /// The client: sends a ping, waits for the pong, looks at what came, and takes the time.
    fn play(&self) -> Result<(), Box<dyn Error>> {
        let start = Instant::now();
        for round in 0..ROUNDS {
            let ping = message(round);
            self.send(&ping)?;
            if self.receive()? != ping {
                return Err(format!("round {round}: another message came back").into());
            }
        }
        let half = start.elapsed() / ROUNDS / 2;
        println!("{ROUNDS} messages of {MESSAGE} bytes went and came back right; {half:?} one way");
        Ok(())
    }

    /// The server: sends everything back.
    fn serve(&self) -> Result<(), Box<dyn Error>> {
        for _ in 0..ROUNDS {
            let ping = self.receive()?;
            self.send(&ping)?;
        }
        // Stay until the client has the last answer and hangs up: if its packet was lost, we have
        // to repeat it.
        (&self.tcp).read_to_end(&mut Vec::new())?;
        println!("answered {ROUNDS} messages");
        Ok(())
    }

    /// Sends one message. Its bytes stay in the outbox until the peer has them: the answer proves
    /// that.
    fn send(&self, bytes: &[u8]) -> Result<(), roxe::Error> {
        self.region.write(OUTBOX, bytes)?;
        let part = self.region.slice(OUTBOX..OUTBOX + bytes.len())?;
        self.qp.post_send(&WorkRequest::send(&[part]).signaled())
    }

    /// Waits for the next message, copies it out and posts the next receive request.
    fn receive(&self) -> Result<Vec<u8>, roxe::Error> {
        loop {
            let completion = self.cq.wait(PATIENCE)?;
            // A failed request says why: no answer, no access, flushed, ...
            completion.check()?;
            // The completion of the own SEND comes through the same queue.
            if completion.opcode() == WcOpcode::Recv {
                let bytes = self.region.to_vec(INBOX..INBOX + completion.byte_len() as usize)?;
                self.post_recv()?;
                return Ok(bytes);
            }
        }
    }

    fn post_recv(&self) -> Result<(), roxe::Error> {
        self.qp.post_recv(0, &[self.region.slice(INBOX..INBOX + MESSAGE)?])
    }
}

/// Sends the own endpoint as a line of text and reads the peer's.
fn exchange(mut tcp: &TcpStream, own: &Endpoint) -> Result<Endpoint, Box<dyn Error>> {
    writeln!(tcp, "{own}")?;
    let mut line = String::new();
    BufReader::new(tcp).read_line(&mut line)?;
    Ok(line.parse()?)
}

/// Bytes that differ from round to round.
fn message(round: u32) -> Vec<u8> {
    (0..MESSAGE as u32).map(|i| (round.wrapping_mul(31) + i) as u8).collect()
}
