//! Runs the checks of `roxe check-peer` between two roxe processes over the loopback device. Also
//! tests these checks: they must detect a requester with one mistake.
//!
//! The wrong requester is a correct agent behind a proxy that changes its requests to post a send.

use roxe_peer::check::{self, CellRun, Check as Cell, CheckError, Clients, Conditions, Family, Pair};
use roxe_peer::client::Client;
use roxe_peer::plan::{self, Op, Service};
use roxe_tests::agent::Agent;
use roxe_tests::pair;
use roxe_tests::report::{self, Check, Verdict};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// Fault rules of the checks with faults.
const FAULTS: &str = "drop 1%; duplicate 1%; reorder 2% by=1ms; corrupt payload 0.1%";

pub(crate) fn main() -> ExitCode {
    let mut checks = vec![
        Check::new("every cell over IPv4", || run_cells(Family::V4, "", |_| true)),
        Check::new("every cell over IPv6", || match pair::has_ipv6() {
            true => run_cells(Family::V6, "", |_| true),
            false => Verdict::Skipped(pair::NO_IPV6.to_owned()),
        }),
        Check::new("cells under faults", || {
            run_cells(Family::V4, FAULTS, |check| check.cell.mtu == 1024 && check.cell.size < 1 << 20)
        }),
        Check::new("random cells on four connections under faults", random_cells),
    ];
    checks.extend(
        MISTAKES.iter().map(|s| Check::new(format!("wrong requester: {} is detected", s.name), || is_detected(s))),
    );
    report::main(checks)
}

/// Runs `work` with the agents of two processes. `tamper` changes the requests to the near one.
fn with_agents(
    faults: &str,
    tamper: Option<Tamper>,
    work: impl FnOnce(&mut Clients<'_>) -> Result<(), String>,
) -> Verdict {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let run = || -> Result<(), String> {
        let start = || Agent::start(&[("ROXE_FAULTS", faults)]).map_err(|error| text(&error));
        let (near, far) = (start()?, start()?);
        let address = match tamper {
            Some(tamper) => proxy(near.address.clone(), tamper).map_err(|error| text(&error))?.to_string(),
            None => near.address.clone(),
        };
        let mut near = Client::connect(address, &near.token).map_err(|error| text(&error))?;
        let mut far = far.client().map_err(|error| text(&error))?;
        work(&mut [&mut near, &mut far])
    };
    run().into()
}

/// Returns the checks in which the near side requests.
fn checks(family: Family) -> impl Iterator<Item = Cell> {
    let kinds = check::kinds().filter(move |(_, _, other)| *other == family);
    kinds.flat_map(check::checks).filter(|check| !check.is_from_far)
}

/// Runs the `wanted` checks of an IP version, all of which must pass.
fn run_cells(family: Family, faults: &str, wanted: fn(&Cell) -> bool) -> Verdict {
    with_agents(faults, None, |clients| {
        let conditions = Conditions { is_lossy: !faults.is_empty(), ..Conditions::default() };
        let mut pair = Pair::register(clients).map_err(|error| error.to_string())?;
        let mut failures = String::new();
        for check in checks(family).filter(wanted) {
            if let Err(why) = CellRun::run(&mut pair, clients, &check, &conditions) {
                _ = writeln!(failures, "{check}: {why}");
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    })
}

/// Runs random cells of both directions on four pairs of queue pairs at once, for
/// `ROXE_TEST_SOAK_SECONDS` (default 3).
fn random_cells() -> Verdict {
    let seconds = std::env::var("ROXE_TEST_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(3));
    with_agents(FAULTS, None, |clients| {
        let seed = RandomState::new().hash_one(0);
        let mut random = Random(seed);
        let conditions =
            Conditions { is_lossy: true, is_burst: true, ack_timeout: 11, grace_ms: 20, ..Conditions::default() };
        let mut pairs =
            (0..4).map(|_| Pair::register(clients)).collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
        let (start, mut cells, mut sent, mut delivered, mut repeated) = (Instant::now(), 0, 0, 0, 0);
        while start.elapsed() < time {
            let conditions = Conditions { seed: random.next(), ..conditions };
            let chosen: Vec<_> = pairs.iter().map(|_| random.check()).collect();
            let mut begin = |(pair, check)| CellRun::begin(pair, clients, check, &conditions);
            let runs: Vec<_> = pairs.iter_mut().zip(&chosen).map(&mut begin).collect();
            for ((pair, check), run) in pairs.iter_mut().zip(&chosen).zip(runs) {
                let arrived = run.and_then(|run| run.finish(pair, clients));
                let arrived = arrived.map_err(|why| format!("{check} with seed {}: {why}", conditions.seed))?;
                (cells, sent) = (cells + 1, sent + arrived.sent);
                (delivered, repeated) = (delivered + arrived.delivered, repeated + arrived.repeated);
            }
        }
        println!("{cells} cells, {sent} messages, {delivered} arrived, {repeated} repeated (seed {seed})");
        if delivered < sent || repeated > 0 {
            Ok(())
        } else {
            Err("no message was lost or repeated, so no faults were injected".into())
        }
    })
}

/// Random numbers by splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = plan::mix(self.0);
        self.0
    }

    fn below(&mut self, limit: u64) -> u32 {
        (((self.next() >> 32) * limit) >> 32) as u32
    }

    fn check(&mut self) -> Cell {
        let kinds: Vec<_> = check::kinds().filter(|(_, _, family)| *family == Family::V4).collect();
        let (service, mtu, family) = kinds[self.below(kinds.len() as u64) as usize];
        let op = service.ops()[self.below(service.ops().len() as u64) as usize];
        // Mostly small sizes, and sizes around multiples of the path MTU.
        let most = 1 << self.below(21);
        let size = match self.below(4) {
            _ if op.is_atomic() => plan::ATOMIC_LEN,
            _ if service == Service::Ud => self.below(u64::from(mtu) + 1),
            0 => mtu - 1 + self.below(3),
            1 => self.below(2 * u64::from(mtu)),
            2 => self.below(3),
            _ => self.below(most + 1),
        };
        Cell { cell: plan::Cell { service, op, size, mtu }, family, is_from_far: self.below(2) == 1 }
    }
}

/// Turns a request to post a send into the requests that the agent receives.
type Tamper = fn(Value) -> Vec<Value>;

/// A mistake of the requester.
struct Mistake {
    name: &'static str,
    tamper: Tamper,
    services: &'static [Service],
    ops: &'static [Op],
    sizes: &'static [u32],
}

const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "changed byte",
        tamper: |request| {
            let place = &request["sge"][0];
            let write =
                json!({"id": request["id"], "do": "write", "mr": place["mr"], "offset": place["offset"], "hex": "ff"});
            vec![write, request]
        },
        services: &Service::ALL,
        ops: &[Op::Send, Op::SendImm, Op::Write, Op::WriteImm],
        sizes: &[1, 1025],
    },
    Mistake {
        name: "extra byte",
        tamper: |request| {
            changed(request, |request| {
                let last =
                    request["sge"].as_array_mut().and_then(|list| list.last_mut()).map(|place| &mut place["length"]);
                add(last, 1);
            })
        },
        services: &Service::ALL,
        ops: &[Op::Send, Op::Write],
        sizes: &[1, 1025],
    },
    Mistake {
        name: "changed immediate data",
        tamper: |request| changed(request, |request| request["imm"] = (number(request, "imm") ^ 0x100).into()),
        services: &Service::ALL,
        ops: &[Op::SendImm, Op::WriteImm],
        sizes: &[0, 1025],
    },
    Mistake {
        name: "omitted message",
        tamper: |request| if is_second(&request) { Vec::new() } else { vec![request] },
        services: &[Service::Rc],
        ops: &[Op::Send, Op::Write, Op::FetchAdd],
        sizes: &[plan::ATOMIC_LEN, 1025],
    },
    Mistake {
        name: "duplicate message",
        tamper: |request| if is_second(&request) { vec![request; 2] } else { vec![request] },
        services: &[Service::Uc, Service::Ud],
        ops: &[Op::Send, Op::SendImm],
        sizes: &[1, 255],
    },
    Mistake {
        name: "shifted remote address",
        tamper: |request| changed(request, |request| add(request.get_mut("remote_addr"), 1)),
        services: &[Service::Rc, Service::Uc],
        ops: &[Op::Write, Op::WriteImm, Op::Read],
        sizes: &[1, 1025],
    },
    Mistake {
        name: "changed atomic operand",
        tamper: |request| changed(request, |request| add(request.get_mut("compare_add"), 1)),
        services: &[Service::Rc],
        ops: &[Op::FetchAdd, Op::CmpSwap],
        sizes: &[plan::ATOMIC_LEN],
    },
    Mistake {
        name: "unexpected completion",
        tamper: |request| changed(request, |request| request["flags"] = json!(["SIGNALED"])),
        services: &Service::ALL,
        ops: &[Op::Send],
        sizes: &[1, 255],
    },
];

fn changed(mut request: Value, change: fn(&mut Value)) -> Vec<Value> {
    change(&mut request);
    vec![request]
}

fn number(request: &Value, name: &str) -> u64 {
    request[name].as_u64().unwrap_or_default()
}

fn add(place: Option<&mut Value>, more: u64) {
    if let Some(place) = place {
        *place = place.as_u64().unwrap_or_default().wrapping_add(more).into();
    }
}

/// Returns true for the second message of a cell.
fn is_second(request: &Value) -> bool {
    number(request, "wr_id") & 0xffff_ffff == 1
}

/// Checks that each cell fails when its requester makes the mistake.
fn is_detected(mistake: &Mistake) -> Verdict {
    with_agents("", Some(mistake.tamper), |clients| {
        let conditions = Conditions { grace_ms: 50, timeout_ms: 1000, ..Conditions::default() };
        let mut pair = Pair::register(clients).map_err(|error| error.to_string())?;
        let mut count = 0;
        for service in mistake.services {
            for op in service.ops().iter().filter(|op| mistake.ops.contains(op)) {
                for &size in mistake.sizes.iter().filter(|size| !op.is_atomic() || **size == plan::ATOMIC_LEN) {
                    let cell = plan::Cell { service: *service, op: *op, size, mtu: 256 };
                    let check = Cell { cell, family: Family::V4, is_from_far: false };
                    match CellRun::run(&mut pair, clients, &check, &conditions) {
                        Err(CheckError::Wrong(_)) => count += 1,
                        other => return Err(format!("{check}: {other:?}")),
                    }
                }
            }
        }
        if count > 0 { Ok(()) } else { Err("no cell was run".to_owned()) }
    })
}

/// Listens for one controller and connects it to the agent at `address`. Returns its own address.
fn proxy(address: String, tamper: Tamper) -> io::Result<std::net::SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let own = listener.local_addr()?;
    // Ends with its connections.
    thread::spawn(move || -> io::Result<()> {
        let (controller, _) = listener.accept()?;
        let agent = TcpStream::connect(address)?;
        controller.set_nodelay(true)?;
        agent.set_nodelay(true)?;
        let (mut to_agent, mut to_controller) = (agent.try_clone()?, controller.try_clone()?);
        let mut answers = BufReader::new(agent).lines();
        for line in BufReader::new(controller).lines() {
            let request: Value = serde_json::from_str(&line?)?;
            let mut answer = json!({"id": request["id"], "ok": {}}).to_string();
            let requests = if request["do"] == "post_send" { tamper(request) } else { vec![request] };
            for request in requests {
                writeln!(to_agent, "{request}")?;
                answer = answers.next().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
            }
            writeln!(to_controller, "{answer}")?;
        }
        Ok(())
    });
    Ok(own)
}
