//! A complete program: two processes send a message back and forth and measure the round trip.
//!
//! ```sh
//! cargo run --release -p roxe --example ping_pong              # one terminal: the server
//! cargo run --release -p roxe --example ping_pong 127.0.0.1    # another terminal: the client
//! ```
//!
//! The processes first exchange the endpoints of their queue pairs over another channel: a TCP
//! connection, which carries one line each way.

use roxe::{Access, CompletionQueue, Context, Endpoint, MemoryRegion, QueuePair, WcOpcode, WorkRequest};
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const PORT: u16 = 18515;
/// Length of a message in bytes.
const MESSAGE_LEN: usize = 64;
const ROUNDS: u32 = 1000;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Offsets in the region of the received message and of the message to send.
const INBOX: usize = 0;
const OUTBOX: usize = MESSAGE_LEN;

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
    /// Opens a device, creates domain, queues and memory, and connects.
    fn set_up(tcp: TcpStream) -> Result<Self, Box<dyn Error>> {
        // The first device: the loopback interface, or the first in ROXE_NETDEV.
        let context = Context::open_first()?;
        let pd = context.alloc_pd()?;

        // One completion queue for sends and receives. It must have room for all outstanding
        // requests: here one send and one receive.
        let cq = context.create_cq(16)?;
        let qp = pd.create_qp(&cq, &cq).max_send_wr(8).max_recv_wr(8).build()?;

        // The device accesses registered memory only. LOCAL_WRITE lets it write received messages.
        // SEND needs no remote right, because the receiver chooses the buffer.
        let region = pd.alloc_mr(2 * MESSAGE_LEN, Access::LOCAL_WRITE)?;
        let side = Self { tcp, qp, cq, region };

        // The first receive request is posted before the peer has this endpoint, so its first
        // message finds one.
        side.post_recv()?;
        let peer = exchange(&side.tcp, &side.qp.endpoint())?;
        side.qp.connect(&peer)?;
        println!("connected {} to {peer}", side.qp.endpoint());
        Ok(side)
    }

    /// Runs the client: sends pings, checks the pongs, and measures the time.
    fn play(&self) -> Result<(), Box<dyn Error>> {
        let start = Instant::now();
        for round in 0..ROUNDS {
            let ping = message(round);
            self.send(&ping)?;
            if self.receive()? != ping {
                return Err(format!("round {round}: the answer differs from the message").into());
            }
        }
        let half = start.elapsed() / ROUNDS / 2;
        println!("{ROUNDS} round trips of {MESSAGE_LEN} bytes; {half:?} one way");
        Ok(())
    }

    /// Runs the server: sends every message back.
    fn serve(&self) -> Result<(), Box<dyn Error>> {
        for _ in 0..ROUNDS {
            let ping = self.receive()?;
            self.send(&ping)?;
        }
        // Stay until the client closes the TCP connection, because it has received the last answer
        // then: a lost packet must be retransmitted.
        (&self.tcp).read_to_end(&mut Vec::new())?;
        println!("answered {ROUNDS} messages");
        Ok(())
    }

    /// Sends one message. Its bytes must stay in the outbox until the peer's answer arrives.
    fn send(&self, bytes: &[u8]) -> Result<(), roxe::Error> {
        self.region.write(OUTBOX, bytes)?;
        let part = self.region.slice(OUTBOX..OUTBOX + bytes.len())?;
        self.qp.post_send(&WorkRequest::send(&[part]).signaled())
    }

    /// Waits for the next message, copies it out and posts the next receive request.
    fn receive(&self) -> Result<Vec<u8>, roxe::Error> {
        loop {
            let completion = self.cq.wait(TIMEOUT)?;
            // Returns the reason if the request failed: no acknowledgement, no access, flushed, ...
            completion.check()?;
            // The completion of our SEND is in the same queue.
            if completion.opcode() == WcOpcode::Recv {
                let bytes = self.region.to_vec(INBOX..INBOX + completion.byte_len() as usize)?;
                self.post_recv()?;
                return Ok(bytes);
            }
        }
    }

    fn post_recv(&self) -> Result<(), roxe::Error> {
        self.qp.post_recv(0, &[self.region.slice(INBOX..INBOX + MESSAGE_LEN)?])
    }
}

/// Sends the endpoint of this side as a line of text, and reads the peer's.
fn exchange(mut tcp: &TcpStream, own: &Endpoint) -> Result<Endpoint, Box<dyn Error>> {
    writeln!(tcp, "{own}")?;
    let mut line = String::new();
    BufReader::new(tcp).read_line(&mut line)?;
    Ok(line.parse()?)
}

/// Returns bytes that differ from round to round.
fn message(round: u32) -> Vec<u8> {
    (0..MESSAGE_LEN as u32).map(|i| (round.wrapping_mul(31) + i) as u8).collect()
}
