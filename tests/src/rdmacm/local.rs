//! Runs the programs on this machine, roxe with roxe: over the loopback device, or between two
//! namespaces.

use super::judge::{self, Judged};
use super::{Carrier, Exchange, Ready, Words, group, group_table, members_in, take_copy};
use crate::matrix::Ip;
use crate::pair::{self, Outcome, POLL_INTERVAL, Place, Program, Running};
use crate::report::Verdict;
use roxe_provider::runtime_dir;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time for one exchange without losses; a lost connection message costs seconds.
const LIMIT: Duration = Duration::from_secs(60);
const LOSSY_LIMIT: Duration = Duration::from_secs(600);
/// Time within which servers must end after their clients.
const PARTING: Duration = Duration::from_secs(15);

/// The environment of one side.
#[derive(Clone, Debug)]
pub struct End {
    /// Command prefix and environment of the programs.
    pub place: Place,
    /// IP address.
    pub address: String,
    /// A process whose `/proc` shows the network of this side.
    pub witness: u32,
}

/// A link with both its ends.
#[derive(Clone, Debug)]
pub struct Site {
    /// `lo` or `veth`.
    pub name: &'static str,
    /// IP version.
    pub ip: Ip,
    /// Where servers run.
    pub server: End,
    /// Where clients run.
    pub client: End,
}

/// Faults, on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// No faults.
    Clean,
    /// Drops 3% of the sent packets that an exchange retransmits. The seed makes runs repeatable.
    Loss(u64),
}

impl Weather {
    /// Returns the word in the names of checks.
    pub fn word(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Loss(_) => "loss",
        }
    }

    /// Returns true if this applies to the exchange.
    pub fn concerns(self, exchange: &Exchange) -> bool {
        self == Self::Clean || exchange.carrier != Carrier::Groups
    }

    /// The fault rules of one side. Programs that look up services lose requests only: a lost
    /// reply makes the client send another request, and the server's program counts requests.
    fn rules(self, carrier: Carrier, role: Role) -> Option<String> {
        match (self, carrier, role) {
            (Self::Loss(seed), Carrier::Reliable, _) => Some(format!("seed={seed}; drop tx 3%")),
            (Self::Loss(seed), Carrier::Datagrams, Role::Client) => Some(format!("seed={seed}; drop tx qp=1 10%")),
            _ => None,
        }
    }
}

/// Role of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

/// Name of a cell: the site, the IP version, the faults, the client's command line.
pub fn name(site: &str, ip: Ip, weather: Weather, exchange: &Exchange) -> String {
    format!("{site} {ip} {} {exchange}", weather.word())
}

/// Runs an exchange and checks it.
pub fn run(site: &Site, weather: Weather, exchange: &Exchange) -> Verdict {
    if let Some(tool) = exchange.tools().into_iter().find(|tool| !pair::installed(tool)) {
        return Verdict::Skipped(format!("{tool} is not installed (tests/run installs it)"));
    }
    let meeting = Meeting { site, weather, exchange, port: exchange.port.unwrap_or_else(port) };
    match meeting.hold() {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok([servers, clients]) => meeting.judge(&servers, &clients),
    }
}

/// A port that nothing else in this run uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(17_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A run of an exchange.
struct Meeting<'a> {
    site: &'a Site,
    weather: Weather,
    exchange: &'a Exchange,
    port: u16,
}

impl Meeting<'_> {
    /// Runs servers and clients; returns their outcomes.
    fn hold(&self) -> io::Result<[Vec<Outcome>; 2]> {
        let limit = if self.weather == Weather::Clean { LIMIT } else { LOSSY_LIMIT };
        let deadline = pair::deadline(limit);
        let (site, exchange) = (self.site, self.exchange);
        let mut servers = self.start(&site.server, &exchange.server, exchange.servers, Role::Server)?;
        while !self.ready() && Instant::now() < deadline && !servers.iter_mut().any(Running::exited) {
            thread::sleep(POLL_INTERVAL);
        }
        let mut clients = Vec::new();
        while clients.len() < exchange.clients {
            let next = if exchange.one_by_one { 1 } else { exchange.clients };
            let started = self.start(&site.client, &exchange.client, next, Role::Client)?;
            clients.extend(started.into_iter().map(|client| client.wait(deadline)));
        }
        // Servers whose client failed wait forever: they get a moment to print the reason.
        let good = clients.iter().all(|client| client.ok);
        let until = match exchange.stays {
            true => Duration::ZERO,
            false if good => PARTING,
            false => Duration::from_secs(1),
        };
        if exchange.stays && good {
            self.await_farewells(&mut servers, Instant::now() + PARTING);
        }
        let parting = Instant::now() + until;
        Ok([servers.into_iter().map(|server| server.wait(parting)).collect(), clients])
    }

    /// A server that stays notices the end of its clients a moment later.
    fn await_farewells(&self, servers: &mut [Running], deadline: Instant) {
        let (says, clients) = (self.exchange.says, self.exchange.clients);
        let done = |server: &mut Running| says.has_seen_all(&server.output_so_far(), clients) || server.exited();
        while !servers.iter_mut().all(done) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn start(&self, end: &End, line: &str, count: usize, role: Role) -> io::Result<Vec<Running>> {
        let copy = self.copy();
        let words = Words {
            own: &end.address,
            server: &self.site.server.address,
            group: group(self.site.ip),
            port: self.port,
            copy: &copy.to_string_lossy(),
        };
        let program = Program::parse(&words.fill(line));
        let place = self.place(end, role);
        let log = |n: usize| pair::log_path(&format!("{role:?}{}.{n}", self.port));
        (0..count).map(|n| Running::start(&program, &place, log(n))).collect()
    }

    /// The file that servers may leave.
    fn copy(&self) -> PathBuf {
        pair::log_path(&format!("copy{}", self.port))
    }

    fn place(&self, end: &End, role: Role) -> Place {
        let mut place = end.place.clone();
        place.envs.push(("ROXE_STATS".to_owned(), "on".to_owned()));
        let rules = self.weather.rules(self.exchange.carrier, role);
        place.envs.extend(rules.map(|rules| ("ROXE_FAULTS".to_owned(), rules)));
        place
    }

    fn ready(&self) -> bool {
        let (witness, ip) = (self.site.server.witness, self.site.ip);
        match self.exchange.ready {
            Ready::Listens => listens(witness, self.port),
            Ready::Joined => members(witness, ip) >= self.exchange.servers,
        }
    }

    fn judge(&self, servers: &[Outcome], clients: &[Outcome]) -> Verdict {
        if let Some(why) = servers.iter().chain(clients).find_map(judge::refusal) {
            return Verdict::Skipped(format!("the program says: {why}"));
        }
        let judged = self.exchange.says.judge(servers, clients, self.exchange.stays);
        let judged = judged.and_then(|()| self.traffic(servers, clients));
        let copied = if self.exchange.copies() { take_copy(&self.copy()) } else { Ok(()) };
        let judged = judged.and(copied);
        judged.into()
    }

    /// Processes that ended by themselves must have printed how many packets they received, and
    /// that faults were applied.
    fn traffic(&self, servers: &[Outcome], clients: &[Outcome]) -> Judged {
        let servers = if self.exchange.stays { &[] } else { servers };
        let mut all =
            servers.iter().map(|end| (Role::Server, end)).chain(clients.iter().map(|end| (Role::Client, end)));
        all.try_for_each(|(role, end)| {
            let lossy = self.weather.rules(self.exchange.carrier, role).is_some();
            if lossy && !end.output.contains("roxe: faults: ") {
                return Err(format!("`{}` reports no faults\n{}", end.command, end.output));
            }
            match pair::counter(&end.output, "received_packets") {
                0 if judge::lost_its_race(end) => Ok(()),
                packets if packets < self.exchange.packets => {
                    Err(format!("`{}` has received {packets} packets\n{}", end.command, end.output))
                }
                _ => Ok(()),
            }
        })
    }
}

/// Returns true if a process listens on `port` in the network namespace of the process `witness`:
/// the name of its Unix socket for requests contains both.
pub fn listens(witness: u32, port: u16) -> bool {
    let Ok(cookie) = namespace_cookie(witness) else { return false };
    let (namespace, probe) = (format!("-{cookie:x}-svc-"), UnixDatagram::unbound());
    let of_port = |name: &str| {
        let place = name.split_once(&namespace).map(|(_, place)| place);
        place.and_then(|place| place.split('-').nth(1)).is_some_and(|service| service.ends_with(&format!("{port:04x}")))
    };
    let names = runtime_dir().and_then(fs::read_dir).into_iter().flatten().flatten();
    let mut listeners = names.filter(|entry| entry.file_name().to_str().is_some_and(of_port));
    listeners.any(|entry| probe.as_ref().is_ok_and(|probe| probe.connect(entry.path()).is_ok()))
}

/// The number of the network namespace of a process (`SO_NETNS_COOKIE`), as a thread finds it that
/// enters there.
fn namespace_cookie(of: u32) -> io::Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let look = move || {
        if of != std::process::id() {
            let namespace = File::open(format!("/proc/{of}/ns/net"))?;
            // SAFETY: takes no pointers, and concerns this thread, which ends with it.
            if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let (socket, mut cookie) = (UnixDatagram::unbound()?, 0u64);
        let mut len = size_of_val(&cookie) as libc::socklen_t;
        // SAFETY: the call writes at most `len` bytes to `cookie`, and both are on this frame.
        let rc = unsafe {
            let value = (&raw mut cookie).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, value, &raw mut len)
        };
        if rc == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
    };
    thread::spawn(look).join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// Number of sockets that are members of the group.
pub(crate) fn members(witness: u32, ip: Ip) -> usize {
    members_in(&fs::read_to_string(format!("/proc/{witness}/net/{}", group_table(ip))).unwrap_or_default(), ip)
}
