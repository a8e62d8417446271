//! Starts the hosts of a lab in their order, prints what they print, changes links at their times,
//! and decides when the lab ends.

use super::host::Host;
use super::net::{Net, status_of};
use super::scenario::{self, Event, Ready, Scenario};
use crate::child::ip;
use crate::output::Result;
use crate::status::Facts;
use roxe_provider::{Answer, ObjectKind, Query, ask_in};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Exit status of a lab that took too long, as of `timeout`.
const TOO_LATE: u8 = 124;
/// Time between two looks at the ports of hosts.
const PERIOD: Duration = Duration::from_millis(20);
/// Time limit for programs to tell of their listeners.
const LIMIT: Duration = Duration::from_millis(200);

/// A report of a thread that reads the output of a host, with the index of the host.
#[derive(Debug)]
enum News {
    /// The expected text was printed.
    Printed(usize),
    Ended(usize, u8),
}

/// State of a host.
#[derive(Debug)]
struct Member {
    /// Present until its command starts.
    waiting: Option<Host>,
    /// Process id of its first process.
    process: u32,
    /// Its network namespace.
    namespace: u64,
    is_ready: bool,
    has_ended: bool,
}

/// A lab that runs.
pub(super) struct Director {
    scenario: Scenario,
    members: Vec<Member>,
    /// Events that are still to come, the next one last.
    events: Vec<Event>,
    news: (Sender<News>, Receiver<News>),
}

impl Director {
    /// `hosts` are hosts with their network namespaces.
    pub(super) fn new(scenario: Scenario, hosts: impl Iterator<Item = (Host, u64)>) -> Self {
        let member = |(host, namespace): (Host, u64)| {
            let process = host.child.id();
            Member { waiting: Some(host), process, namespace, is_ready: false, has_ended: false }
        };
        let (members, events) = (hosts.map(member).collect(), scenario.events.iter().rev().copied().collect());
        Self { scenario, members, events, news: channel() }
    }

    /// Runs the hosts to the end. Returns the exit status of the first that failed, else 0.
    pub(super) fn run(mut self) -> Result<u8> {
        let begun = Instant::now();
        loop {
            self.start_hosts()?;
            self.change_links(begun.elapsed())?;
            if self.is_over() {
                return Ok(0);
            }
            let late = self.scenario.timeout.filter(|limit| begun.elapsed() >= *limit);
            if let Some(limit) = late {
                eprintln!("roxe lab: the scenario did not end within {limit:?}; the hosts are ended");
                return Ok(TOO_LATE);
            }
            match self.next_news(begun) {
                Some(News::Printed(at)) => self.members[at].is_ready = true,
                Some(News::Ended(at, 0)) => {
                    if let Some(missed) = self.missed(at) {
                        eprintln!("roxe lab: {missed}; the other hosts are ended");
                        return Ok(1);
                    }
                    (self.members[at].is_ready, self.members[at].has_ended) = (true, true);
                }
                Some(News::Ended(at, status)) => {
                    let name = Net::name(at as u8 + 1);
                    eprintln!("roxe lab: {name} failed with exit status {status}; the other hosts are ended");
                    return Ok(status);
                }
                None => self.look_at_ports(),
            }
        }
    }

    /// Returns a sentence if other hosts wait for a sign of readiness that this host, whose command
    /// has ended, never gave.
    fn missed(&self, at: usize) -> Option<String> {
        if self.members[at].is_ready {
            return None;
        }
        let sign = match &self.scenario.hosts[at].ready {
            Ready::Ended => return None,
            Ready::Prints(text) => format!("printed \"{text}\""),
            Ready::Listens(port) => format!("listened on port {port}"),
        };
        let waits = |host: &scenario::Host| host.after.iter().any(|host| usize::from(*host) == at + 1);
        let waiting = self.scenario.hosts.iter().position(waits)?;
        let (name, waiting) = (Net::name(at as u8 + 1), Net::name(waiting as u8 + 1));
        Some(format!("{name} has ended and never {sign}, for which {waiting} waits"))
    }

    /// Waits for news until the next event, the next look at ports or the end of time.
    fn next_news(&self, begun: Instant) -> Option<News> {
        let looks = self.awaits_port().next().is_some();
        let left = |at: Duration| at.saturating_sub(begun.elapsed());
        let times =
            [looks.then_some(PERIOD), self.events.last().map(|event| left(event.at)), self.scenario.timeout.map(left)];
        match times.into_iter().flatten().min() {
            Some(wait) => self.news.1.recv_timeout(wait).ok(),
            None => self.news.1.recv().ok(),
        }
    }

    /// Returns true if every command that the lab waits for has ended.
    fn is_over(&self) -> bool {
        let mut hosts = self.members.iter().zip(&self.scenario.hosts);
        hosts.all(|(member, host)| member.has_ended || host.daemon || self.is_idle(host))
    }

    /// Returns true for a host of a scenario without a command.
    fn is_idle(&self, host: &scenario::Host) -> bool {
        host.run.is_none() && self.scenario.hosts.iter().any(|host| host.run.is_some())
    }

    /// Starts the commands of the hosts whose predecessors are ready.
    fn start_hosts(&mut self) -> Result<()> {
        for at in 0..self.members.len() {
            let plan = &self.scenario.hosts[at];
            let is_due = plan.after.iter().all(|host| self.members[usize::from(*host) - 1].is_ready);
            if !is_due {
                continue;
            }
            let Some(mut host) = self.members[at].waiting.take() else { continue };
            host.go_on()?;
            let text = if let Ready::Prints(text) = &plan.ready { Some(text.clone()) } else { None };
            print(host, at, text, self.news.0.clone())?;
        }
        Ok(())
    }

    fn change_links(&mut self, now: Duration) -> Result<()> {
        while let Some(event) = self.events.pop_if(|event| event.at <= now) {
            set_link(event.host, event.heals)?;
            let done = if event.heals { "healed" } else { "cut" };
            eprintln!("roxe lab: {} s: the link of {} is {done}", event.at.as_secs_f64(), Net::name(event.host));
        }
        Ok(())
    }

    /// Hosts that run and are ready once a program listens, and their ports.
    fn awaits_port(&self) -> impl Iterator<Item = (usize, u16)> {
        let hosts = self.members.iter().zip(&self.scenario.hosts).enumerate();
        hosts.filter_map(|(at, (member, host))| match host.ready {
            Ready::Listens(port) if member.waiting.is_none() && !member.is_ready => Some((at, port)),
            _ => None,
        })
    }

    /// Notes the hosts on which a program listens. The kernel's tables answer for TCP; one query to
    /// the programs of the other hosts answers for librdmacm.
    fn look_at_ports(&mut self) {
        let (mut found, others): (Vec<_>, Vec<_>) =
            self.awaits_port().partition(|(at, port)| listens_by_tcp(self.members[*at].process, *port));
        if !others.is_empty() {
            let namespaces: Vec<u64> = others.iter().map(|(at, _)| self.members[*at].namespace).collect();
            let answers = ask_in(&namespaces, &Query::Objects(ObjectKind::CmId), LIMIT).unwrap_or_default();
            let is_found = |(at, port): &(usize, u16)| listens_by_rdma(&answers, self.members[*at].namespace, *port);
            found.extend(others.into_iter().filter(is_found));
        }
        found.into_iter().for_each(|(at, _)| self.members[at].is_ready = true);
    }
}

/// Cuts or heals the link of a host, in the network namespace of the switch.
fn set_link(host: u8, heals: bool) -> Result<()> {
    ip(&format!("link set v{host} {}\n", if heals { "up" } else { "down" }))
}

/// Returns true if a program in the network namespace of `process` listens on a port of TCP.
fn listens_by_tcp(process: u32, port: u16) -> bool {
    let tables =
        ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default());
    tables.iter().any(|table| has_listener(table, port))
}

/// Returns true if the table (`man 5 proc`, `/proc/net/tcp`) has a listener on a port.
fn has_listener(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_port = words.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}")));
        // The state LISTEN.
        is_port && words.nth(1) == Some("0A")
    })
}

/// Returns true if a program in this network namespace listens on a port of librdmacm. Process
/// numbers are not compared: programs in process namespaces of their own may have equal ones.
fn listens_by_rdma(answers: &[Answer], namespace: u64, port: u16) -> bool {
    let of_host = answers.iter().filter(|answer| answer.namespace == namespace);
    let end = format!(":{port}");
    let is_listener = |line: &str| {
        let id = Facts::of(line);
        id.text("state") == "LISTEN" && id.text("src").ends_with(&end)
    };
    of_host.flat_map(|answer| answer.text.lines()).any(is_listener)
}

/// Prints the lines of a host behind its name until it ends, then reports its exit status. Reports
/// the first line with `text`.
fn print(mut host: Host, at: usize, text: Option<String>, report: Sender<News>) -> Result<()> {
    let (name, errors) = (host.name.clone(), host.child.stderr.take());
    let note = |text: Option<String>, report: Sender<News>| {
        let mut left = text;
        move |line: &str| {
            if left.take_if(|text| line.contains(text.as_str())).is_some() {
                // Nothing reads this any more once another host has failed.
                let _ = report.send(News::Printed(at));
            }
        }
    };
    let (mut of_errors, mut of_output) = (note(text.clone(), report.clone()), note(text, report.clone()));
    let copy_errors = thread::Builder::new().spawn(move || {
        for line in lines(errors) {
            of_errors(&line);
            // In one write, because standard output may be the same file and has a lock of its own.
            let line = format!("{name} | {line}\n");
            eprint!("{line}");
        }
    })?;
    thread::Builder::new().spawn(move || {
        let Host { name, mut child, input, output } = host;
        for line in lines(Some(output)) {
            of_output(&line);
            println!("{name} | {line}");
        }
        let _ = copy_errors.join();
        let _ = report.send(News::Ended(at, child.wait().map_or(1, status_of)));
        // An idle host ends when this closes.
        drop(input);
    })?;
    Ok(())
}

/// Returns the lines of a stream until it ends or fails.
fn lines(stream: Option<impl Read>) -> impl Iterator<Item = String> {
    let lines = stream.into_iter().flat_map(|stream| BufReader::new(stream).split(b'\n')).map_while(|line| line.ok());
    lines.map(|line| String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_is_found_in_the_table_of_the_kernel() {
        let table = "  sl  local_address rem_address   st\n   0: 00000000:1C06 00000000:0000 0A 00000000:00000000\n   1: \
                     0100007F:4853 0100007F:9999 01 0\n";
        assert!(has_listener(table, 7174));
        assert!(!has_listener(table, 18515) && !has_listener(table, 9999) && !has_listener("", 7174));
    }

    #[test]
    fn listener_of_librdmacm_counts_for_its_namespace() {
        let text = "device roxe0 eth0\ncm_id n=1 state=LISTEN ps=TCP src=10.89.0.1:7174 dst=0.0.0.0:0\n".to_owned();
        let answers = [Answer { namespace: 5, text, ..Answer::default() }];
        assert!(listens_by_rdma(&answers, 5, 7174));
        assert!(!listens_by_rdma(&answers, 6, 7174) && !listens_by_rdma(&answers, 5, 71));
    }
}
