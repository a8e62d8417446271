//! Measures connections per second between two processes over the loopback device, with the Rust
//! API: resolve address and route, create a queue pair, connect, disconnect, and free all objects.
//!
//! `cargo bench -p roxe-tests --bench connections -- [SECONDS [WIDTH...]]`

use roxe::cm::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel, PortSpace};
use roxe::{CompletionQueue, ObjectId, ProtectionDomain, QueuePair};
use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Numbers of connections established at a time.
const WIDTHS: [u32; 3] = [1, 8, 64];
/// Timeout of address resolution.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.first().map(String::as_str) {
        Some("serve") => serve(),
        _ => compare(&words.iter().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("connections: {e}");
            ExitCode::FAILURE
        }
    }
}

fn compare(numbers: &[u32]) -> Result<()> {
    let (seconds, widths) = match numbers {
        [] => (5, &WIDTHS[..]),
        [seconds] => (*seconds, &WIDTHS[..]),
        [seconds, widths @ ..] => (*seconds, widths),
    };
    println!("connections opened and closed by two processes over the loopback device, {seconds} s each");
    for &width in widths {
        let (mut server, address) = start_server()?;
        let mut client = Client { end: End::new()?, address };
        let start = Instant::now();
        let count = client.run(width, start + Duration::from_secs(seconds.into()))?;
        println!("{width:3} at a time: {:7.0} per second", f64::from(count) / start.elapsed().as_secs_f64());
        server.kill()?;
        server.wait()?;
    }
    Ok(())
}

/// Starts this program as a server. Returns the process and its address.
fn start_server() -> Result<(Child, SocketAddr)> {
    let mut server = Command::new(std::env::current_exe()?).arg("serve").stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(server.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    Ok((server, line.trim().parse()?))
}

/// Objects of one side.
struct End {
    channel: EventChannel,
    /// Protection domain and completion queue, once a device is known.
    objects: Option<(ProtectionDomain, CompletionQueue)>,
    connections: HashMap<ObjectId, (CmId, QueuePair)>,
}

impl End {
    fn new() -> Result<Self> {
        Ok(Self { channel: EventChannel::create()?, objects: None, connections: HashMap::new() })
    }

    /// Creates a queue pair for `id`.
    fn create_qp(&mut self, id: CmId) -> Result<CmId> {
        if self.objects.is_none() {
            let context = id.context()?;
            self.objects = Some((context.alloc_pd()?, context.create_cq(16)?));
        }
        let (pd, cq) = self.objects.as_ref().ok_or("no objects")?;
        let qp = pd.create_qp(cq, cq).max_send_wr(1).max_recv_wr(1).build_on(&id)?;
        self.connections.insert(id.id(), (id.clone(), qp));
        Ok(id)
    }
}

fn serve() -> Result<()> {
    let mut end = End::new()?;
    let listener = CmId::create(&end.channel, PortSpace::Tcp)?;
    listener.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    listener.listen(1024)?;
    println!("{}", listener.local_addr().ok_or("not bound")?);
    std::io::stdout().flush()?;
    loop {
        let mut event = end.channel.next_event()?;
        match event.kind() {
            CmEventKind::ConnectRequest => {
                let id = event.take_request().ok_or("a request without an id")?;
                end.create_qp(id)?.accept(&ConnParam::default())?;
            }
            CmEventKind::Disconnected => {
                if let Some((id, _qp)) = end.connections.remove(&event.id()) {
                    id.disconnect()?;
                }
            }
            CmEventKind::Established | CmEventKind::TimewaitExit => {}
            _ => return Err(event.check().err().map_or_else(|| "unexpected".into(), Into::into)),
        }
    }
}

struct Client {
    end: End,
    address: SocketAddr,
}

impl Client {
    /// Opens and closes connections, `width` at a time, until the time `until`. Returns their
    /// number.
    fn run(&mut self, width: u32, until: Instant) -> Result<u32> {
        let mut resolving = HashMap::new();
        let (mut in_progress, mut done) = (0, 0);
        while in_progress > 0 || Instant::now() < until {
            while in_progress < width && Instant::now() < until {
                let id = CmId::create(&self.end.channel, PortSpace::Tcp)?;
                id.resolve_addr(None, self.address, RESOLVE_TIMEOUT)?;
                resolving.insert(id.id(), id);
                in_progress += 1;
            }
            let event = self.end.channel.next_event()?;
            if self.act(&mut resolving, event)? {
                (in_progress, done) = (in_progress - 1, done + 1);
            }
        }
        Ok(done)
    }

    /// Advances a connection after an event. Returns true if the connection is over.
    fn act(&mut self, resolving: &mut HashMap<ObjectId, CmId>, event: CmEvent) -> Result<bool> {
        let name = event.id();
        match event.kind() {
            CmEventKind::AddrResolved => resolving.get(&name).ok_or("unknown")?.resolve_route(RESOLVE_TIMEOUT)?,
            CmEventKind::RouteResolved => {
                let id = self.end.create_qp(resolving.remove(&name).ok_or("unknown")?)?;
                id.connect(&ConnParam::default())?;
            }
            CmEventKind::Established => self.end.connections.get(&name).ok_or("unknown")?.0.disconnect()?,
            CmEventKind::Disconnected => return Ok(self.end.connections.remove(&name).is_some()),
            CmEventKind::TimewaitExit => {}
            _ => return Err(event.check().err().map_or_else(|| "unexpected".into(), Into::into)),
        }
        Ok(false)
    }
}
