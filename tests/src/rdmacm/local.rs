//! Runs the programs on this machine, both on roxe: over the loopback device or between two network
//! namespaces.

use super::judge::{self, CheckResult};
use super::{Exchange, Placeholders, Ready, Transport, check_copy, count_members, group, group_file};
use crate::matrix::Ip;
use crate::pair::{self, Launch, Outcome, POLL_INTERVAL, Program, Running};
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

/// Time limit of an exchange without losses.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of an exchange with losses: each lost connection message costs seconds.
const LOSSY_LIMIT: Duration = Duration::from_secs(600);
/// Time within which servers must end after their clients.
const SERVER_END_LIMIT: Duration = Duration::from_secs(15);

/// One end of a link.
#[derive(Clone, Debug)]
pub struct Host {
    /// Command prefix and environment of the programs.
    pub launch: Launch,
    /// IP address.
    pub address: String,
    /// Id of a process in the network namespace of this end.
    pub namespace_pid: u32,
}

/// A link with its two ends.
#[derive(Clone, Debug)]
pub struct Link {
    /// `lo` or `veth`.
    pub name: &'static str,
    /// IP version.
    pub ip: Ip,
    /// End of the servers.
    pub server: Host,
    /// End of the clients.
    pub client: Host,
}

/// Faults that roxe injects at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// No faults.
    Clean,
    /// Drops 3 % of the sent packets that an exchange retransmits. The number is the seed of the
    /// losses.
    Loss(u64),
}

impl Faults {
    /// Returns the word for these faults in the names of checks.
    pub fn word(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Loss(_) => "loss",
        }
    }

    /// Returns true if the exchange can run with these faults.
    pub fn applies_to(self, exchange: &Exchange) -> bool {
        self == Self::Clean || exchange.transport != Transport::Multicast
    }

    /// Returns the fault rules of one end. With datagrams only connection requests are lost: a lost
    /// reply makes the client send another request, and the server program counts requests.
    fn rules(self, transport: Transport, role: Role) -> Option<String> {
        match (self, transport, role) {
            (Self::Loss(seed), Transport::Reliable, _) => Some(format!("seed={seed}; drop tx 3%")),
            (Self::Loss(seed), Transport::Datagrams, Role::Client) => Some(format!("seed={seed}; drop tx qp=1 10%")),
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

/// Returns the name of a check: the link, the IP version, the faults, the client's command line.
pub fn name(link: &str, ip: Ip, faults: Faults, exchange: &Exchange) -> String {
    format!("{link} {ip} {} {exchange}", faults.word())
}

/// Runs an exchange and checks it.
pub fn run(link: &Link, faults: Faults, exchange: &Exchange) -> Verdict {
    if let Some(tool) = exchange.tools().into_iter().find(|tool| !pair::installed(tool)) {
        return Verdict::not_installed(tool);
    }
    let run = ExchangeRun { link, faults, exchange, port: exchange.port.unwrap_or_else(port) };
    match run.run_programs() {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok([servers, clients]) => run.judge(&servers, &clients),
    }
}

/// Returns a port that no other exchange of this process uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(17_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A run of an exchange.
struct ExchangeRun<'a> {
    link: &'a Link,
    faults: Faults,
    exchange: &'a Exchange,
    port: u16,
}

impl ExchangeRun<'_> {
    /// Runs servers and clients; returns their outcomes.
    fn run_programs(&self) -> io::Result<[Vec<Outcome>; 2]> {
        let limit = if self.faults == Faults::Clean { TIME_LIMIT } else { LOSSY_LIMIT };
        let deadline = pair::deadline(limit);
        let (link, exchange) = (self.link, self.exchange);
        let mut servers = self.start(&link.server, &exchange.server, exchange.servers, Role::Server)?;
        while !self.ready() && Instant::now() < deadline && !servers.iter_mut().any(Running::exited) {
            thread::sleep(POLL_INTERVAL);
        }
        let mut clients = Vec::new();
        while clients.len() < exchange.clients {
            let next = if exchange.one_by_one { 1 } else { exchange.clients };
            let started = self.start(&link.client, &exchange.client, next, Role::Client)?;
            clients.extend(started.into_iter().map(|client| client.wait(deadline)));
        }
        // A server whose client failed may wait forever. It gets a second to print the reason.
        let good = clients.iter().all(|client| client.ok);
        let until = match exchange.stays {
            true => Duration::ZERO,
            false if good => SERVER_END_LIMIT,
            false => Duration::from_secs(1),
        };
        if exchange.stays && good {
            self.await_client_reports(&mut servers, Instant::now() + SERVER_END_LIMIT);
        }
        let deadline = Instant::now() + until;
        Ok([servers.into_iter().map(|server| server.wait(deadline)).collect(), clients])
    }

    /// Waits until servers that run until they are killed have printed the end of their clients.
    fn await_client_reports(&self, servers: &mut [Running], deadline: Instant) {
        let (expected, clients) = (self.exchange.expected, self.exchange.clients);
        let done = |server: &mut Running| expected.has_seen_all(&server.output_so_far(), clients) || server.exited();
        while !servers.iter_mut().all(done) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn start(&self, end: &Host, line: &str, count: usize, role: Role) -> io::Result<Vec<Running>> {
        let copy = self.copy();
        let words = Placeholders {
            own: &end.address,
            server: &self.link.server.address,
            group: group(self.link.ip),
            port: self.port,
            copy: &copy.to_string_lossy(),
        };
        let program = Program::parse(&words.fill(line));
        let launch = self.launch(end, role);
        let log = |n: usize| pair::log_path(&format!("{role:?}{}.{n}", self.port));
        (0..count).map(|n| Running::start(&program, &launch, log(n))).collect()
    }

    /// Returns the path of the file that `rcopy` writes on the servers' side.
    fn copy(&self) -> PathBuf {
        pair::log_path(&format!("copy{}", self.port))
    }

    fn launch(&self, end: &Host, role: Role) -> Launch {
        let mut launch = end.launch.clone();
        launch.envs.push(("ROXE_STATS".to_owned(), "on".to_owned()));
        let rules = self.faults.rules(self.exchange.transport, role);
        launch.envs.extend(rules.map(|rules| ("ROXE_FAULTS".to_owned(), rules)));
        launch
    }

    fn ready(&self) -> bool {
        let (namespace_pid, ip) = (self.link.server.namespace_pid, self.link.ip);
        match self.exchange.ready {
            Ready::Listens => listens(namespace_pid, self.port),
            Ready::Joined => joined_sockets(namespace_pid, ip) >= self.exchange.servers,
        }
    }

    fn judge(&self, servers: &[Outcome], clients: &[Outcome]) -> Verdict {
        if let Some(why) = servers.iter().chain(clients).find_map(judge::refusal) {
            return Verdict::Skipped(format!("the program refuses: {why}"));
        }
        let result = self.exchange.expected.judge(servers, clients, self.exchange.stays);
        let result = result.and_then(|()| self.check_counters(servers, clients));
        let copied = if self.exchange.copies() { check_copy(&self.copy()) } else { Ok(()) };
        result.and(copied).into()
    }

    /// Checks that each process that exited by itself received enough packets and applied its fault
    /// rules, by the counters that it printed.
    fn check_counters(&self, servers: &[Outcome], clients: &[Outcome]) -> CheckResult {
        let servers = if self.exchange.stays { &[] } else { servers };
        let mut all =
            servers.iter().map(|end| (Role::Server, end)).chain(clients.iter().map(|end| (Role::Client, end)));
        all.try_for_each(|(role, end)| {
            let lossy = self.faults.rules(self.exchange.transport, role).is_some();
            if lossy && !end.output.contains("roxe: faults: ") {
                return Err(format!("`{}` reports no faults\n{}", end.command, end.output));
            }
            match pair::counter(&end.output, "received_packets") {
                0 if judge::hit_rping_exit_race(end) => Ok(()),
                packets if packets < self.exchange.packets => {
                    Err(format!("`{}` has received {packets} packets\n{}", end.command, end.output))
                }
                _ => Ok(()),
            }
        })
    }
}

/// Returns true if a roxe process listens on `port` in the network namespace of `namespace_pid`.
/// The name of its Unix socket for connection requests contains the namespace and the port.
pub fn listens(namespace_pid: u32, port: u16) -> bool {
    let Ok(cookie) = namespace_cookie(namespace_pid) else { return false };
    let (namespace, probe) = (format!("-{cookie:x}-svc-"), UnixDatagram::unbound());
    let is_for_port = |name: &str| {
        let rest = name.split_once(&namespace).map(|(_, rest)| rest);
        rest.and_then(|rest| rest.split('-').nth(1)).is_some_and(|service| service.ends_with(&format!("{port:04x}")))
    };
    let names = runtime_dir().and_then(fs::read_dir).into_iter().flatten().flatten();
    let mut listeners = names.filter(|entry| entry.file_name().to_str().is_some_and(is_for_port));
    listeners.any(|entry| probe.as_ref().is_ok_and(|probe| probe.connect(entry.path()).is_ok()))
}

/// Returns the cookie of a process's network namespace (`SO_NETNS_COOKIE`), read in a thread that
/// enters the namespace.
fn namespace_cookie(pid: u32) -> io::Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let read = move || {
        if pid != std::process::id() {
            let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
            // SAFETY: takes no pointers, and changes only this thread.
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
    thread::spawn(read).join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// Returns the number of sockets in the network namespace of `namespace_pid` that have joined the
/// tests' multicast group.
pub(crate) fn joined_sockets(namespace_pid: u32, ip: Ip) -> usize {
    count_members(&fs::read_to_string(format!("/proc/{namespace_pid}/net/{}", group_file(ip))).unwrap_or_default(), ip)
}
