//! Runs programs that connect through librdmacm between roxe and rxe, in both directions.

use super::run::{self, Runner};
use super::stock::{ProgramResult, TRIES};
use super::{Condition, Direction, Ending, Ip, capture};
use crate::guest::Guest;
use crate::guest::sides::{Process, Side};
use crate::pair::{self, KILLED, Outcome, POLL_INTERVAL};
use crate::parallel;
use crate::rdmacm::judge::{self, CheckResult, Expected};
use crate::rdmacm::list::{self, Scale};
use crate::rdmacm::{Exchange, Placeholders, Ready, Transport, check_copy, count_members, group, group_file, local};
use std::cmp::Reverse;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit of the clients that run at once. The guest's processor is emulated. A lost packet
/// costs up to a second, the acknowledgement timeout of the kernel's connection manager, and a lost
/// connection message 4 s.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Number of exchanges that run at once on a lossy network, where they mostly wait. More would
/// overload the emulated processor.
const PARALLEL: usize = 6;
/// Time within which servers must be ready, on a busy processor.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Time within which servers must end after their clients.
const SERVER_END_LIMIT: Duration = Duration::from_secs(15);

/// An exchange between the two sides.
#[derive(Clone, Debug)]
pub struct InteropExchange {
    /// Side of the client.
    pub direction: Direction,
    /// IP version.
    pub ip: Ip,
    /// Condition of the network.
    pub condition: Condition,
    /// Programs of the client and the server.
    pub exchange: Exchange,
}

/// A known limit of rxe or of the programs, because of which an exchange fails.
struct Limit {
    name: &'static str,
    /// Returns true if the limit can affect this exchange.
    affects: fn(&InteropExchange) -> bool,
    /// Output of rxe's side when it does.
    output: &'static str,
}

/// Reason why perftest fails with `-R` if a lost message delays its server.
const PERFTEST_RACE: &str =
    "perftest's client connects before its server listens, and retries with objects that it has freed";

/// Returns true if perftest's client failed because of [`PERFTEST_RACE`]. With `-R`, client and
/// server close a first connection; then the client connects and the server listens again, without
/// waiting for each other.
fn hit_perftest_race(client: &Outcome) -> bool {
    const REFUSED: [&str; 2] = ["RDMA_CM_EVENT_REJECTED; error: 8.", "RDMA_CM_EVENT_UNREACHABLE; error: 1."];
    // If the client does not crash, the output after this line belongs to its second try.
    client.output.contains("Failed to connect RDMA CM events")
        && REFUSED.iter().any(|words| client.output.contains(words))
}

/// Limits of Linux 6.1 and Debian's programs. All occur between two programs in the guest, too.
const LIMITS: [Limit; 5] = [
    Limit {
        name: "rxe refuses IPv6 groups",
        affects: |m| m.exchange.ready == Ready::Joined && m.ip == Ip::V6,
        output: "failure joining: Unknown error 524",
    },
    Limit {
        name: "datagram rsockets find no device over rxe",
        affects: |m| m.exchange.client.starts_with("udpong"),
        output: "rconnect: No such file or directory",
    },
    Limit {
        name: "librdmacm's rpoll reports a hang-up before its reader has the last bytes",
        affects: |m| m.exchange.client.contains("-T a"),
        output: "[ended with 16]",
    },
    Limit {
        name: "rxe has no XRC",
        affects: |m| m.exchange.client.contains("-c x"),
        output: "Operation not supported",
    },
    Limit {
        name: "rxe receives multicast unreliably",
        affects: |m| m.exchange.ready == Ready::Joined && m.direction == Direction::RoxeToRxe,
        output: KILLED,
    },
];

/// Returns all exchanges. On a lossy network only those that retransmit, because the others would
/// wait forever.
pub fn all() -> Vec<InteropExchange> {
    let mut exchanges = Vec::new();
    for condition in [Condition::Clean, Condition::Netem] {
        for ip in Ip::ALL {
            for direction in Direction::ALL {
                let list = list::all(Scale::Small)
                    .into_iter()
                    .chain(list::sockets(Scale::Small))
                    .filter(|e| e.ips.contains(&ip));
                let list = list.filter(|e| e.transport == Transport::Reliable || condition == Condition::Clean);
                // On rxe, udpong's server does not print why it fails; the client does (`LIMITS`).
                let list = list.filter(|e| direction == Direction::RxeToRoxe || !e.client.starts_with("udpong"));
                exchanges.extend(list.map(|exchange| InteropExchange { direction, ip, condition, exchange }));
            }
        }
    }
    exchanges
}

/// Returns `rping` in each direction, for every change.
pub fn few() -> Vec<InteropExchange> {
    let mut list = slice();
    list.retain(|interop| interop.ip == Ip::V6);
    list
}

/// Returns each kind of connection, in both directions.
pub fn slice() -> Vec<InteropExchange> {
    const SLICE: [(Condition, Ip, &str); 4] = [
        (Condition::Clean, Ip::V6, "rping -c -a SERVER -V -v -C 100"),
        (Condition::Clean, Ip::V4, "ucmatose -s SERVER -c 4 -C 4"),
        (Condition::Clean, Ip::V4, "udaddy -s SERVER -c 4 -C 4"),
        (Condition::Clean, Ip::V4, "rdma_client -s SERVER"),
    ];
    let mut list = all();
    list.retain(|m| SLICE.contains(&(m.condition, m.ip, m.exchange.to_string().as_str())));
    list
}

/// Runs `exchanges`, one condition after the other, and prints each result.
pub fn run(
    exchanges: &[InteropExchange],
    runner: &mut Runner,
    print: impl Fn(&ProgramResult) + Sync,
) -> io::Result<Vec<ProgramResult>> {
    let mut all = Vec::new();
    for part in exchanges.chunk_by(|a, b| a.condition == b.condition) {
        let condition = part[0].condition;
        runner.set(condition)?;
        let parallel_runs = if condition.lossy() { PARALLEL } else { 1 };
        let runner = &*runner;
        // Start the longest first, so that the last one to start is short.
        let mut part: Vec<&InteropExchange> = part.iter().collect();
        part.sort_by_key(|interop| Reverse(interop.exchange.clients));
        all.extend(parallel::run(&part, parallel_runs, |interop| {
            let shown = interop.run(runner);
            print(&shown);
            shown
        }));
    }
    Ok(all)
}

impl InteropExchange {
    /// Returns direction, condition and the client's command line.
    pub fn name(&self) -> String {
        format!("rdmacm {} {} {} {}", self.direction, self.ip, self.condition, self.exchange)
    }

    fn run(&self, runner: &Runner) -> ProgramResult {
        let (name, start) = (self.name(), Instant::now());
        let missing = self.exchange.tools().into_iter().find(|tool| !pair::installed(tool));
        let mut tries = 0;
        let (ending, capture) = match missing {
            Some(tool) => (Ending::Skipped(format!("{tool} is not installed")), None),
            None => self.try_run(runner, &name, &mut tries).unwrap_or_else(|e| (Ending::Failed(e.to_string()), None)),
        };
        ProgramResult { name, ending, seconds: start.elapsed().as_secs_f32(), tries, capture }
    }

    fn try_run(
        &self,
        runner: &Runner,
        name: &str,
        tries: &mut usize,
    ) -> io::Result<(Ending, Option<capture::Verdict>)> {
        let file = runner.capture_file(name)?;
        loop {
            *tries += 1;
            let port = self.exchange.port.unwrap_or_else(|| runner.new_port());
            let [servers, clients] = self.run_programs(runner, port, file.as_deref())?;
            let copied = if self.exchange.copies() { self.check_copied_file(&runner.guest, port) } else { Ok(()) };
            match self.judge(&servers, &clients, copied) {
                Ending::Passed => return Ok((Ending::Passed, file.as_deref().map(capture::judge).transpose()?)),
                Ending::Failed(_) | Ending::Skipped(_)
                    if *tries < TRIES && self.is_unrecoverable(&servers, &clients) => {}
                // A failed one may have sent nothing; its output matters more.
                other => return Ok((other, None)),
            }
        }
    }

    /// Returns the sides of servers and clients.
    fn sides(&self) -> [Side; 2] {
        match self.direction {
            Direction::RoxeToRxe => [Side::Rxe, Side::Roxe],
            Direction::RxeToRoxe => [Side::Roxe, Side::Rxe],
        }
    }

    /// Runs servers and clients. Returns their outcomes.
    fn run_programs(&self, runner: &Runner, port: u16, capture: Option<&Path>) -> io::Result<[Vec<Outcome>; 2]> {
        let envs = runner.environment(self.condition, capture);
        let ([server_side, client_side], exchange) = (self.sides(), &self.exchange);
        let guest = &runner.guest;
        let start = |guest: &Guest, side: Side, line: &str, count: usize| {
            let server = run::address(server_side, self.ip);
            let copy = &copy_path(guest, server_side, port).display().to_string();
            let words = Placeholders { own: run::address(side, self.ip), server, group: group(self.ip), port, copy };
            let line = words.fill(line);
            (0..count).map(|_| Process::start(guest, side, &line, &envs)).collect::<io::Result<Vec<_>>>()
        };
        let mut servers = start(guest, server_side, &exchange.server, exchange.servers)?;
        self.await_ready(guest, &mut servers, port)?;
        let mut clients = Vec::new();
        // After a failed client, each further one would wait until its limit.
        while clients.len() < exchange.clients && clients.iter().all(|client: &Outcome| client.ok) {
            let next = if exchange.one_by_one { 1 } else { exchange.clients };
            let deadline = Instant::now() + TIME_LIMIT;
            for client in start(guest, client_side, &exchange.client, next)? {
                clients.push(self.wait_client(guest, client, &mut servers, deadline)?);
            }
        }
        let all_ok = clients.iter().all(|client| client.ok);
        self.await_server_ends(guest, &mut servers, all_ok)?;
        // A server that still runs has lost its client, or exits only by a signal.
        let servers = servers.into_iter().map(|s| s.wait(guest, Instant::now())).collect::<io::Result<Vec<_>>>()?;
        Ok([servers, clients])
    }

    /// Waits for a client until `deadline`, or until [`SERVER_END_LIMIT`] after the servers have
    /// ended.
    fn wait_client(
        &self,
        guest: &Guest,
        mut client: Process,
        servers: &mut [Process],
        mut deadline: Instant,
    ) -> io::Result<Outcome> {
        let mut servers_ended = false;
        while Instant::now() < deadline && !client.ended(guest, POLL_INTERVAL)? {
            if !servers_ended && all_ended(guest, servers)? {
                (servers_ended, deadline) = (true, deadline.min(Instant::now() + SERVER_END_LIMIT));
            }
        }
        client.wait(guest, Instant::now())
    }

    /// Waits until the servers are ready or one of them has ended.
    fn await_ready(&self, guest: &Guest, servers: &mut [Process], port: u16) -> io::Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        while !self.is_ready(guest, port)? && Instant::now() < deadline {
            for server in servers.iter_mut() {
                if server.ended(guest, POLL_INTERVAL)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn is_ready(&self, guest: &Guest, port: u16) -> io::Result<bool> {
        let ([side, _], exchange) = (self.sides(), &self.exchange);
        match (side, exchange.ready) {
            (Side::Roxe, Ready::Listens) => Ok(local::listens(std::process::id(), port)),
            (Side::Roxe, Ready::Joined) => Ok(local::joined_sockets(std::process::id(), self.ip) >= exchange.servers),
            (Side::Rxe, Ready::Listens) => {
                let ids = guest.run("rdma resource show cm_id")?;
                let listens = |line: &str| line.contains("LISTEN") && line.contains(&format!(":{port} "));
                Ok(ids.lines().any(listens))
            }
            (Side::Rxe, Ready::Joined) => {
                let table = guest.run(&format!("cat /proc/net/{}", group_file(self.ip)))?;
                Ok(count_members(&table, self.ip) >= exchange.servers)
            }
        }
    }

    /// Waits until the servers have ended, or those that stay have reported the end of their
    /// clients. Waits only a second if a client failed.
    fn await_server_ends(&self, guest: &Guest, servers: &mut [Process], clients_ok: bool) -> io::Result<()> {
        let exchange = &self.exchange;
        let deadline = Instant::now() + if clients_ok { SERVER_END_LIMIT } else { Duration::from_secs(1) };
        for server in servers {
            let seen_all = |server: &Process| {
                exchange.stays && exchange.expected.has_seen_all(&server.output_so_far(), exchange.clients)
            };
            while !seen_all(server) && Instant::now() < deadline && !server.ended(guest, POLL_INTERVAL)? {}
        }
        Ok(())
    }

    /// Checks that the file on the servers' side equals the one that the client copied.
    fn check_copied_file(&self, guest: &Guest, port: u16) -> CheckResult {
        let [server_side, _] = self.sides();
        let (copy, shared) = (copy_path(guest, server_side, port), copy_path(guest, Side::Roxe, port));
        if server_side == Side::Rxe {
            let (from, to) = (copy.display(), format!("/mnt/{COPY}.{port}"));
            // `check_copy` reports a missing file.
            guest.run(&format!("[ ! -e {from} ] || mv {from} {to}")).map_err(|e| e.to_string())?;
        }
        check_copy(&shared)
    }

    fn judge(&self, servers: &[Outcome], clients: &[Outcome], copied: CheckResult) -> Ending {
        if let Some(why) = servers.iter().chain(clients).find_map(judge::refusal) {
            return Ending::Skipped(format!("the program refuses: {why}"));
        }
        if self.condition.lossy() && clients.iter().any(hit_perftest_race) {
            return Ending::Skipped(PERFTEST_RACE.to_owned());
        }
        match self.expected().judge(servers, clients, self.exchange.stays).and(copied) {
            Ok(()) => Ending::Passed,
            Err(why) => match self.known_limit(servers, clients) {
                Some(limit) => Ending::PeerBug(limit.to_owned()),
                None => Ending::Failed(why),
            },
        }
    }

    /// Returns the expected output. 20 clients in the guest each send their DREQ once and exit.
    /// With 3 % loss, half of all runs lose a DREQ, and 0.3 % lose more than three.
    fn expected(&self) -> Expected {
        match self.exchange.expected {
            Expected::PingsOfMany { pings, .. } if self.condition.lossy() && self.direction == Direction::RxeToRoxe => {
                Expected::PingsOfMany { pings, missed: 3 }
            }
            expected => expected,
        }
    }

    /// Returns true if the exchange failed by a loss from which no program, card or kernel
    /// recovers, or because the emulated processor stalled for longer than requests are retried.
    fn is_unrecoverable(&self, servers: &[Outcome], clients: &[Outcome]) -> bool {
        clients.iter().any(hit_perftest_race) || self.condition.lossy() && lost_last_message(servers, clients)
    }

    /// Returns the limit that the output of rxe's side shows.
    fn known_limit(&self, servers: &[Outcome], clients: &[Outcome]) -> Option<&'static str> {
        let rxe_ends = if self.direction == Direction::RoxeToRxe { servers } else { clients };
        let shows =
            |limit: &&Limit| (limit.affects)(self) && rxe_ends.iter().any(|end| end.output.contains(limit.output));
        LIMITS.iter().find(shows).map(|limit| limit.name)
    }
}

/// Returns true if one side exited with 0 and the other only lacks the acknowledgement of its last
/// message. A side that ends a connection destroys its queue pair and cannot repeat a lost
/// acknowledgement. A peer in the guest then waits forever, because rxe retries infinitely with the
/// retry count of 7 that these programs set. A guest that destroys its id does not repeat a DREQ
/// either.
fn lost_last_message(servers: &[Outcome], clients: &[Outcome]) -> bool {
    let finished = |ends: &[Outcome]| ends.iter().all(|end| end.ok);
    (finished(servers) || finished(clients)) && servers.iter().chain(clients).all(judge::lacks_only_last_ack)
}

fn all_ended(guest: &Guest, servers: &mut [Process]) -> io::Result<bool> {
    for server in servers {
        if !server.ended(guest, Duration::ZERO)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Name of the file that `rcopy` writes on the servers' side.
const COPY: &str = "copy";

/// Returns the path of [`COPY`] on `side`. On roxe's side it is in the shared folder. On rxe's side
/// it is not: rcopy maps the file to write it, and the guest cannot write through mappings of the
/// shared folder.
fn copy_path(guest: &Guest, side: Side, port: u16) -> PathBuf {
    match side {
        Side::Roxe => guest.folder().join(format!("{COPY}.{port}")),
        Side::Rxe => format!("/tmp/{COPY}.{port}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_has_both_directions() {
        let names: Vec<String> = slice().iter().map(InteropExchange::name).collect();
        assert_eq!(names.len(), 8, "{names:#?}");
    }

    #[test]
    fn limit_of_rxe_excuses_no_other_failure() {
        let end = |ok, output: &str| Outcome { command: String::new(), ok, output: output.to_owned() };
        let exchange_of = |ip, tool: &str| {
            let fits = |m: &InteropExchange| {
                m.ip == ip && m.direction == Direction::RoxeToRxe && m.exchange.client.starts_with(tool)
            };
            all().into_iter().find(fits).expect("find an exchange")
        };
        let refused = [end(false, "mckey: failure joining: Unknown error 524")];
        let other = [end(false, "return status -1")];
        let mckey = exchange_of(Ip::V6, "mckey");
        assert!(matches!(mckey.judge(&refused, &other, Ok(())), Ending::PeerBug(_)));
        // If roxe's side prints this error, roxe has failed, not rxe.
        assert!(matches!(mckey.judge(&other, &refused, Ok(())), Ending::Failed(_)));
        assert!(matches!(exchange_of(Ip::V4, "mckey").judge(&refused, &other, Ok(())), Ending::Failed(_)));
        assert!(matches!(exchange_of(Ip::V6, "rping").judge(&refused, &other, Ok(())), Ending::Failed(_)));
    }
}
