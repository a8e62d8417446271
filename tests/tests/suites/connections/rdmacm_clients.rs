//! Runs Debian's programs that connect through librdmacm, unmodified, with roxe on both sides: over
//! the loopback device and between two network namespaces, over IPv4 and IPv6, on a clean link and
//! with losses.
//!
//! Without arguments runs a slice that has every program.
//!
//! ```text
//! cargo test -p roxe-tests --test suites -- rdmacm_clients [--all] [--seed N] [WORD...]
//!   --all      every program over every link, with and without losses
//!   --seed N   the losses of an earlier run (a run prints its seed)
//!   WORD...    only checks with every WORD in their name, such as veth ipv6 loss rping
//! ```
//!
//! Root runs the suite in a network namespace of its own; other users have the loopback device
//! only. Exchanges with losses mostly wait, so they run in parallel after the others.

use roxe_tests::guest::link;
use roxe_tests::matrix::Ip;
use roxe_tests::pair::{Launch, NO_IPV6, has_ipv6};
use roxe_tests::rdmacm::list::{self, Scale};
use roxe_tests::rdmacm::local::{self, Faults, Link};
use roxe_tests::rdmacm::{Exchange, Ready};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::veth::{self, Veth};
use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;

/// Ends of the veth pair: interface, MAC address, IPv4 address, IPv6 address.
const HERE: [&str; 4] = ["v0", "02:00:00:00:01:0a", "10.79.1.1", "fd79:1::1"];
const THERE: [&str; 4] = ["v1", "02:00:00:00:01:0b", "10.79.1.2", "fd79:1::2"];

/// The command line.
struct Options {
    all: bool,
    list: bool,
    seed: u64,
    words: Vec<String>,
}

impl Options {
    fn read() -> Result<Self, String> {
        let seed = RandomState::new().hash_one(0) >> 32;
        let mut options = Self { all: false, list: false, seed, words: Vec::new() };
        let mut args = report::arguments();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--all" => options.all = true,
                "--list" => options.list = true,
                "--seed" => {
                    let value = args.next().ok_or("--seed wants a value")?;
                    options.seed = value.parse().map_err(|e| format!("--seed: {e}"))?;
                }
                // Options of the usual test harness that runners pass along.
                flag if flag.starts_with('-') => {}
                _ => options.words.push(arg),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.words.iter().all(|word| name.contains(word))
    }
}

pub(crate) fn main() -> ExitCode {
    let options = match Options::read() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    // `--list` needs no namespaces.
    let veth = match (!options.list && link::is_root()).then(create_veth).transpose() {
        Ok(veth) => veth,
        Err(e) => {
            println!("FAILED   rdmacm_clients: cannot make two namespaces with a link: {e}");
            return ExitCode::FAILURE;
        }
    };
    println!("seed {} (--seed {} repeats it)", options.seed, options.seed);
    let words: &[String] = if options.list { &["--list".to_owned()] } else { &[] };
    report::run(checks(&options, veth.as_ref()), words)
}

fn create_veth() -> std::io::Result<Veth> {
    let end = |[name, mac, v4, v6]: [&'static str; 4]| veth::Interface {
        name,
        mac,
        addresses: vec![format!("{v4}/24"), format!("{v6}/64")],
    };
    Veth::build(&end(HERE), &end(THERE))
}

/// An exchange over one link.
struct Cell {
    link: Result<Link, &'static str>,
    name: String,
    faults: Faults,
    exchange: Exchange,
}

fn checks(options: &Options, veth: Option<&Veth>) -> Vec<Check> {
    let links = [lo(Ip::V4), lo(Ip::V6), between(veth, Ip::V4), between(veth, Ip::V6)];
    let mut checks = Vec::new();
    for faults in [Faults::Clean, Faults::Loss(options.seed)] {
        for (link_name, ip, link) in &links {
            for exchange in list::all(if options.all { Scale::Full } else { Scale::Small }) {
                if !exchange.ips.contains(ip) || !faults.applies_to(&exchange) {
                    continue;
                }
                let name = local::name(link_name, *ip, faults, &exchange);
                let chosen = options.all || !options.words.is_empty() || in_slice(link_name, *ip, faults, &exchange);
                if chosen && options.wants(&name) {
                    checks.push(check(Cell { link: link.clone(), name, faults, exchange }));
                }
            }
        }
    }
    checks
}

fn check(cell: Cell) -> Check {
    let Cell { link, name, faults, exchange } = cell;
    // With losses an exchange mostly waits for timeouts. Those with a fixed port cannot run in
    // parallel.
    let waits = faults != Faults::Clean && exchange.port.is_none();
    let check = Check::new(name, move || match &link {
        Err(why) => Verdict::Skipped((*why).to_owned()),
        Ok(link) if link.name == "lo" && link.ip == Ip::V6 && !has_ipv6() => Verdict::Skipped(NO_IPV6.to_owned()),
        Ok(link) if link.name == "lo" && link.ip == Ip::V6 && exchange.ready == Ready::Joined => {
            Verdict::Skipped("Linux has no IPv6 multicast on the loopback interface".to_owned())
        }
        Ok(link) => local::run(link, faults, &exchange),
    });
    check.waiting_if(waits)
}

/// Name, IP version, and the link or the reason why it cannot be set up.
type Named = (&'static str, Ip, Result<Link, &'static str>);

fn lo(ip: Ip) -> Named {
    let address = if ip == Ip::V4 { "127.0.0.1" } else { "::1" };
    let launch = Launch { envs: vec![("ROXE_NETDEV".to_owned(), "lo".to_owned())], ..Launch::default() };
    let end = local::Host { launch, address: address.to_owned(), namespace_pid: std::process::id() };
    ("lo", ip, Ok(Link { name: "lo", ip, server: end.clone(), client: end }))
}

/// Returns the veth link, with servers in the second namespace.
fn between(veth: Option<&Veth>, ip: Ip) -> Named {
    let Some(veth) = veth else { return ("veth", ip, Err("needs root")) };
    let end = |[name, _, v4, v6]: [&str; 4], prefix, namespace_pid| local::Host {
        launch: Launch { prefix, envs: vec![("ROXE_NETDEV".to_owned(), name.to_owned())], ..Launch::default() },
        address: if ip == Ip::V4 { v4 } else { v6 }.to_owned(),
        namespace_pid,
    };
    let server = end(THERE, veth.prefix(), veth.pid());
    let client = end(HERE, Vec::new(), std::process::id());
    ("veth", ip, Ok(Link { name: "veth", ip, server, client }))
}

/// Returns true for the slice: every program over the loopback device and IPv4, and each kind of
/// connection over the veth pair and IPv6 with losses.
fn in_slice(link: &str, ip: Ip, faults: Faults, exchange: &Exchange) -> bool {
    const VARIANTS: [&str; 6] = ["-s 65536", "-s 1024 -e", "-T 32", "-F -z", "-c 3", "-C 10 -o"];
    const LOSSY: [&str; 5] = ["-C 20 -q", "ucmatose -s SERVER -c 4 -C 4", "-S 100000", "udaddy", "rdma_client"];
    let name = exchange.to_string();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    match (link, ip, faults) {
        ("lo", Ip::V4, Faults::Clean) => !has(&VARIANTS),
        ("veth", Ip::V6, Faults::Clean) => {
            name.starts_with("mckey") && name.ends_with(", 2 receivers") && !has(&VARIANTS)
        }
        ("veth", Ip::V6, Faults::Loss(_)) => has(&LOSSY) && !has(&["-f", "-m", "-P", "-S 0"]),
        _ => false,
    }
}
