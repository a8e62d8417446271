//! Programs that connect through librdmacm between roxe and rxe, both ways.

use super::run::{self, Runner};
use super::stock::{Shown, TRIES};
use super::{Condition, Direction, Ending, Ip, capture};
use crate::guest::Guest;
use crate::guest::sides::{Process, Side};
use crate::lanes;
use crate::pair::{self, KILLED, Outcome, POLL_INTERVAL};
use crate::rdmacm::judge::{self, Judged, Says};
use crate::rdmacm::list::{self, Scale};
use crate::rdmacm::{Carrier, Exchange, Ready, Words, group, group_table, local, members_in, take_copy};
use std::cmp::Reverse;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time for one client, or for all that run at once. The guest's processor is emulated; a
/// lost packet costs up to the acknowledgement timeout of the kernel's connection manager, about a
/// second, and a lost connection message 4 s.
const LIMIT: Duration = Duration::from_secs(120);
/// Exchanges that run at once on a lossy network, where they mostly wait. More would delay the
/// emulated processor.
const LANES: usize = 6;
/// Time within which servers must be ready, on a busy processor.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Time within which servers must end after their clients.
const PARTING: Duration = Duration::from_secs(15);

/// An exchange between the two sides.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// Side of the client.
    pub direction: Direction,
    /// IP version.
    pub ip: Ip,
    /// Condition of the network.
    pub condition: Condition,
    /// The programs.
    pub exchange: Exchange,
}

/// A way in which an exchange is known to fail because of the peer.
struct Limit {
    name: &'static str,
    touches: fn(&Meeting) -> bool,
    /// Output of rxe's side in that case.
    seen: &'static str,
}

/// Reason of the failure of perftest's `-R` when a lost message delays its server.
const TOO_EARLY: &str = "perftest's client connects before its server listens, and tries again with what it has freed";

/// With `-R`, server and client of perftest agree over a first connection that the one listens
/// again and the other connects again, and do both at once.
fn is_too_early(client: &Outcome) -> bool {
    const REFUSED: [&str; 2] = ["RDMA_CM_EVENT_REJECTED; error: 8.", "RDMA_CM_EVENT_UNREACHABLE; error: 1."];
    // Output after this line, if the client does not crash, belongs to its second try.
    client.output.contains("Failed to connect RDMA CM events")
        && REFUSED.iter().any(|words| client.output.contains(words))
}

/// Seen with Linux 6.1, also between two programs in the guest.
const LIMITS: [Limit; 5] = [
    Limit {
        name: "rxe refuses IPv6 groups",
        touches: |m| m.exchange.ready == Ready::Joined && m.ip == Ip::V6,
        seen: "failure joining: Unknown error 524",
    },
    Limit {
        name: "datagram rsockets find no device over rxe",
        touches: |m| m.exchange.client.starts_with("udpong"),
        seen: "rconnect: No such file or directory",
    },
    Limit {
        name: "librdmacm's rpoll reports a hang-up before its reader has the last bytes",
        touches: |m| m.exchange.client.contains("-T a"),
        seen: "[ended with 16]",
    },
    Limit { name: "rxe has no XRC", touches: |m| m.exchange.client.contains("-c x"), seen: "Operation not supported" },
    Limit {
        name: "rxe receives multicast unreliably",
        touches: |m| m.exchange.ready == Ready::Joined && m.direction == Direction::RoxeToRxe,
        seen: KILLED,
    },
];

/// All meetings. Exchanges without retransmission would wait forever on a lossy link.
pub fn all() -> Vec<Meeting> {
    let mut meetings = Vec::new();
    for condition in [Condition::Clean, Condition::Netem] {
        for ip in Ip::ALL {
            for direction in Direction::ALL {
                let list = list::all(Scale::Small)
                    .into_iter()
                    .chain(list::sockets(Scale::Small))
                    .filter(|e| e.ips.contains(&ip));
                let list = list.filter(|e| e.carrier == Carrier::Reliable || condition == Condition::Clean);
                // As a server it does not say why it cannot; as a client it does, see `LIMITS`.
                let list = list.filter(|e| direction == Direction::RxeToRoxe || !e.client.starts_with("udpong"));
                meetings.extend(list.map(|exchange| Meeting { direction, ip, condition, exchange }));
            }
        }
    }
    meetings
}

/// `rping` each way, for every change.
pub fn few() -> Vec<Meeting> {
    let mut list = slice();
    list.retain(|meeting| meeting.ip == Ip::V6);
    list
}

/// Each kind of connection, both ways.
pub fn slice() -> Vec<Meeting> {
    const FEW: [(Condition, Ip, &str); 4] = [
        (Condition::Clean, Ip::V6, "rping -c -a SERVER -V -v -C 100"),
        (Condition::Clean, Ip::V4, "ucmatose -s SERVER -c 4 -C 4"),
        (Condition::Clean, Ip::V4, "udaddy -s SERVER -c 4 -C 4"),
        (Condition::Clean, Ip::V4, "rdma_client -s SERVER"),
    ];
    let mut list = all();
    list.retain(|m| FEW.contains(&(m.condition, m.ip, m.exchange.to_string().as_str())));
    list
}

/// Runs `meetings`, those of each condition together, and prints each result.
pub fn run(meetings: &[Meeting], runner: &mut Runner, print: impl Fn(&Shown) + Sync) -> io::Result<Vec<Shown>> {
    let mut all = Vec::new();
    for part in meetings.chunk_by(|a, b| a.condition == b.condition) {
        let condition = part[0].condition;
        runner.set(condition)?;
        let lanes = if condition.lossy() { LANES } else { 1 };
        let runner = &*runner;
        // Start the longest first, so that the last one to start is short.
        let mut part: Vec<&Meeting> = part.iter().collect();
        part.sort_by_key(|meeting| Reverse(meeting.exchange.clients));
        all.extend(lanes::run(&part, lanes, |meeting| {
            let shown = meeting.run(runner);
            print(&shown);
            shown
        }));
    }
    Ok(all)
}

impl Meeting {
    /// Direction, condition and the client's command line.
    pub fn name(&self) -> String {
        format!("rdmacm {} {} {} {}", self.direction, self.ip, self.condition, self.exchange)
    }

    fn run(&self, runner: &Runner) -> Shown {
        let (name, start) = (self.name(), Instant::now());
        let missing = self.exchange.tools().into_iter().find(|tool| !pair::installed(tool));
        let mut tries = 0;
        let (ending, capture) = match missing {
            Some(tool) => (Ending::Skipped(format!("{tool} is not installed")), None),
            None => self.try_run(runner, &name, &mut tries).unwrap_or_else(|e| (Ending::Failed(e.to_string()), None)),
        };
        Shown { name, ending, seconds: start.elapsed().as_secs_f32(), tries, capture }
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
            let port = self.exchange.port.unwrap_or_else(|| runner.fresh_port());
            let [servers, clients] = self.hold(runner, port, file.as_deref())?;
            let copied = if self.exchange.copies() { self.copied(&runner.guest, port) } else { Ok(()) };
            match self.judge(&servers, &clients, copied) {
                Ending::Passed => return Ok((Ending::Passed, file.as_deref().map(capture::judge).transpose()?)),
                Ending::Failed(_) | Ending::Skipped(_) if *tries < TRIES && self.bad_luck(&servers, &clients) => {}
                // A failed one may have sent nothing; its output matters more.
                other => return Ok((other, None)),
            }
        }
    }

    /// Servers' side first.
    fn sides(&self) -> [Side; 2] {
        match self.direction {
            Direction::RoxeToRxe => [Side::Rxe, Side::Roxe],
            Direction::RxeToRoxe => [Side::Roxe, Side::Rxe],
        }
    }

    /// Runs servers and clients; returns their outcomes.
    fn hold(&self, runner: &Runner, port: u16, capture: Option<&Path>) -> io::Result<[Vec<Outcome>; 2]> {
        let envs = runner.environment(self.condition, capture);
        let ([server_side, client_side], exchange) = (self.sides(), &self.exchange);
        let guest = &runner.guest;
        let start = |guest: &Guest, side: Side, line: &str, count: usize| {
            let server = run::address(server_side, self.ip);
            let copy = &copy_of(guest, server_side, port).display().to_string();
            let words = Words { own: run::address(side, self.ip), server, group: group(self.ip), port, copy };
            let line = words.fill(line);
            (0..count).map(|_| Process::start(guest, side, &line, &envs)).collect::<io::Result<Vec<_>>>()
        };
        let mut servers = start(guest, server_side, &exchange.server, exchange.servers)?;
        self.await_ready(guest, &mut servers, port)?;
        let mut clients = Vec::new();
        // After one failure the other clients would each wait until their limit.
        while clients.len() < exchange.clients && clients.iter().all(|client: &Outcome| client.ok) {
            let next = if exchange.one_by_one { 1 } else { exchange.clients };
            let deadline = Instant::now() + LIMIT;
            for client in start(guest, client_side, &exchange.client, next)? {
                clients.push(self.client(guest, client, &mut servers, deadline)?);
            }
        }
        let good = clients.iter().all(|client| client.ok);
        self.await_farewells(guest, &mut servers, good)?;
        // A server that still runs has lost its client, or never exits without a signal.
        let servers = servers.into_iter().map(|s| s.wait(guest, Instant::now())).collect::<io::Result<Vec<_>>>()?;
        Ok([servers, clients])
    }

    /// Waits for a client: until its deadline, or until a while after the servers have ended.
    fn client(
        &self,
        guest: &Guest,
        mut client: Process,
        servers: &mut [Process],
        mut deadline: Instant,
    ) -> io::Result<Outcome> {
        let mut alone = false;
        while Instant::now() < deadline && !client.ended(guest, POLL_INTERVAL)? {
            if !alone && all_ended(guest, servers)? {
                (alone, deadline) = (true, deadline.min(Instant::now() + PARTING));
            }
        }
        client.wait(guest, Instant::now())
    }

    /// Until the servers may be asked, or one of them has ended.
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
            (Side::Roxe, Ready::Joined) => Ok(local::members(std::process::id(), self.ip) >= exchange.servers),
            (Side::Rxe, Ready::Listens) => {
                let ids = guest.run("rdma resource show cm_id")?;
                let listens = |line: &str| line.contains("LISTEN") && line.contains(&format!(":{port} "));
                Ok(ids.lines().any(listens))
            }
            (Side::Rxe, Ready::Joined) => {
                let table = guest.run(&format!("cat /proc/net/{}", group_table(self.ip)))?;
                Ok(members_in(&table, self.ip) >= exchange.servers)
            }
        }
    }

    /// Waits until the servers have ended, or those that stay have reported the end of their
    /// clients; only briefly if the clients are not `good`.
    fn await_farewells(&self, guest: &Guest, servers: &mut [Process], good: bool) -> io::Result<()> {
        let exchange = &self.exchange;
        let deadline = Instant::now() + if good { PARTING } else { Duration::from_secs(1) };
        for server in servers {
            let seen_all = |server: &Process| {
                exchange.stays && exchange.says.has_seen_all(&server.output_so_far(), exchange.clients)
            };
            while !seen_all(server) && Instant::now() < deadline && !server.ended(guest, POLL_INTERVAL)? {}
        }
        Ok(())
    }

    /// Checks that the servers' file equals the one that the client copied.
    fn copied(&self, guest: &Guest, port: u16) -> Judged {
        let [server_side, _] = self.sides();
        let (seen, shared) = (copy_of(guest, server_side, port), copy_of(guest, Side::Roxe, port));
        if server_side == Side::Rxe {
            let (from, to) = (seen.display(), format!("/mnt/{COPY}.{port}"));
            // Without a file, the next step says so.
            guest.run(&format!("[ ! -e {from} ] || mv {from} {to}")).map_err(|e| e.to_string())?;
        }
        take_copy(&shared)
    }

    fn judge(&self, servers: &[Outcome], clients: &[Outcome], copied: Judged) -> Ending {
        if let Some(why) = servers.iter().chain(clients).find_map(judge::refusal) {
            return Ending::Skipped(format!("the program says: {why}"));
        }
        if self.condition.lossy() && clients.iter().any(is_too_early) {
            return Ending::Skipped(TOO_EARLY.to_owned());
        }
        match self.says().judge(servers, clients, self.exchange.stays).and(copied) {
            Ok(()) => Ending::Passed,
            Err(why) => match self.explained(servers, clients) {
                Some(limit) => Ending::PeerBug(limit.to_owned()),
                None => Ending::Failed(why),
            },
        }
    }

    /// Required output. 20 clients in the guest each send their DREQ once and end. With 3 % loss,
    /// one DREQ is lost every other time, and more than three in 0.3 % of all runs.
    fn says(&self) -> Says {
        match self.exchange.says {
            Says::PingsOfMany { pings, .. } if self.condition.lossy() && self.direction == Direction::RxeToRoxe => {
                Says::PingsOfMany { pings, missed: 3 }
            }
            says => says,
        }
    }

    /// Returns true if the exchange failed by a loss that no program, card or kernel recovers from,
    /// or because the emulated processor stalled for longer than requests are retried.
    fn bad_luck(&self, servers: &[Outcome], clients: &[Outcome]) -> bool {
        clients.iter().any(is_too_early) || self.condition.lossy() && lost_goodbye(servers, clients)
    }

    /// The limit of rxe that shows in what its side says.
    fn explained(&self, servers: &[Outcome], clients: &[Outcome]) -> Option<&'static str> {
        let theirs = if self.direction == Direction::RoxeToRxe { servers } else { clients };
        let shows = |limit: &&Limit| (limit.touches)(self) && theirs.iter().any(|end| end.output.contains(limit.seen));
        LIMITS.iter().find(shows).map(|limit| limit.name)
    }
}

/// Returns true if one side exited with 0, and the other only missed its last message. A side that
/// ends a connection destroys its queue pair, so that a lost acknowledgement is never repeated. A
/// peer in the guest then waits forever: rxe takes the retry count of 7 that these programs use as
/// infinite. A guest that destroys its id does not repeat a DREQ either.
fn lost_goodbye(servers: &[Outcome], clients: &[Outcome]) -> bool {
    let finished = |ends: &[Outcome]| ends.iter().all(|end| end.ok);
    (finished(servers) || finished(clients)) && servers.iter().chain(clients).all(judge::merely_waited)
}

fn all_ended(guest: &Guest, servers: &mut [Process]) -> io::Result<bool> {
    for server in servers {
        if !server.ended(guest, Duration::ZERO)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Name of the file that servers may leave.
const COPY: &str = "copy";

/// That file as `side` names it. Here it is in the folder that both sides share; there it is not,
/// because rcopy writes to mapped memory, and what the guest maps of that folder it cannot write
/// to.
fn copy_of(guest: &Guest, side: Side, port: u16) -> PathBuf {
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
        let names: Vec<String> = slice().iter().map(Meeting::name).collect();
        assert_eq!(names.len(), 8, "{names:#?}");
    }

    #[test]
    fn limits_of_the_peer_excuse_no_other_failure() {
        let end = |ok, output: &str| Outcome { command: String::new(), ok, output: output.to_owned() };
        let of = |ip, tool: &str| {
            let fits =
                |m: &Meeting| m.ip == ip && m.direction == Direction::RoxeToRxe && m.exchange.client.starts_with(tool);
            all().into_iter().find(fits).expect("find a meeting")
        };
        let refused = [end(false, "mckey: failure joining: Unknown error 524")];
        let other = [end(false, "return status -1")];
        let key = of(Ip::V6, "mckey");
        assert!(matches!(key.judge(&refused, &other, Ok(())), Ending::PeerBug(_)));
        // If roxe prints this error, roxe has failed, not the peer.
        assert!(matches!(key.judge(&other, &refused, Ok(())), Ending::Failed(_)));
        assert!(matches!(of(Ip::V4, "mckey").judge(&refused, &other, Ok(())), Ending::Failed(_)));
        assert!(matches!(of(Ip::V6, "rping").judge(&refused, &other, Ok(())), Ending::Failed(_)));
    }
}
