//! Starts the hosts of a lab in the order of their dependencies, prints their output, cuts and
//! heals links on schedule, and ends the lab.

use super::host::Host;
use super::net::{Net, status_of};
use super::scenario::{self, LinkEvent, Ready, Scenario};
use crate::child::ip;
use crate::output::Result;
use crate::status::KeyValues;
use roxe_provider::{Answer, ObjectKind, Query, ask_in};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Exit status of a lab that reached its time limit; the command `timeout` returns the same.
const TIMED_OUT: u8 = 124;
/// Interval between two checks for listeners on the ports of hosts.
const PORT_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit for programs to answer a query for their listeners.
const QUERY_TIMEOUT: Duration = Duration::from_millis(200);

/// A report of the thread that reads the output of a host. The first field is the index of the
/// host.
#[derive(Debug)]
enum HostReport {
    /// The expected text was printed.
    Printed(usize),
    /// The host has ended with this exit status.
    Ended(usize, u8),
}

/// State of a host.
#[derive(Debug)]
struct HostState {
    /// The host, until its command starts.
    unstarted: Option<Host>,
    /// Process id of the first process of the host.
    pid: u32,
    /// Inode number of the network namespace of the host.
    namespace: u64,
    is_ready: bool,
    has_ended: bool,
}

/// A running lab.
pub(super) struct Director {
    scenario: Scenario,
    states: Vec<HostState>,
    /// Future events, the next one last.
    events: Vec<LinkEvent>,
    reports: (Sender<HostReport>, Receiver<HostReport>),
}

impl Director {
    /// `hosts` yields each host with its network namespace.
    pub(super) fn new(scenario: Scenario, hosts: impl Iterator<Item = (Host, u64)>) -> Self {
        let state = |(host, namespace): (Host, u64)| {
            let pid = host.child.id();
            HostState { unstarted: Some(host), pid, namespace, is_ready: false, has_ended: false }
        };
        let (states, events) = (hosts.map(state).collect(), scenario.events.iter().rev().copied().collect());
        Self { scenario, states, events, reports: channel() }
    }

    /// Runs the hosts until the lab ends. Returns the exit status of the first host that failed,
    /// else 0.
    pub(super) fn run(mut self) -> Result<u8> {
        let started_at = Instant::now();
        loop {
            self.start_hosts()?;
            self.change_links(started_at.elapsed())?;
            if self.is_over() {
                return Ok(0);
            }
            let exceeded = self.scenario.timeout.filter(|limit| started_at.elapsed() >= *limit);
            if let Some(limit) = exceeded {
                eprintln!("roxe lab: the scenario did not end within {limit:?}; the hosts are ended");
                return Ok(TIMED_OUT);
            }
            match self.next_report(started_at) {
                Some(HostReport::Printed(index)) => self.states[index].is_ready = true,
                Some(HostReport::Ended(index, 0)) => {
                    if let Some(error) = self.missing_sign(index) {
                        eprintln!("roxe lab: {error}; the other hosts are ended");
                        return Ok(1);
                    }
                    (self.states[index].is_ready, self.states[index].has_ended) = (true, true);
                }
                Some(HostReport::Ended(index, status)) => {
                    let name = Net::name(index as u8 + 1);
                    eprintln!("roxe lab: {name} failed with exit status {status}; the other hosts are ended");
                    return Ok(status);
                }
                None => self.poll_ports(),
            }
        }
    }

    /// Returns an error text if the command of this host has ended without its sign of readiness
    /// and another host waits for that sign.
    fn missing_sign(&self, index: usize) -> Option<String> {
        if self.states[index].is_ready {
            return None;
        }
        let sign = match &self.scenario.hosts[index].ready {
            Ready::Ended => return None,
            Ready::Prints(text) => format!("printed \"{text}\""),
            Ready::Listens(port) => format!("listened on port {port}"),
        };
        let waits = |host: &scenario::Host| host.after.iter().any(|host| usize::from(*host) == index + 1);
        let waiting = self.scenario.hosts.iter().position(waits)?;
        let (name, waiting) = (Net::name(index as u8 + 1), Net::name(waiting as u8 + 1));
        Some(format!("{name} has ended and never {sign}, for which {waiting} waits"))
    }

    /// Waits for a report. Returns `None` when the next event, the next check of ports or the time
    /// limit is due.
    fn next_report(&self, started_at: Instant) -> Option<HostReport> {
        let polls_ports = self.hosts_awaiting_port().next().is_some();
        let left = |at: Duration| at.saturating_sub(started_at.elapsed());
        let times = [
            polls_ports.then_some(PORT_POLL_INTERVAL),
            self.events.last().map(|event| left(event.at)),
            self.scenario.timeout.map(left),
        ];
        match times.into_iter().flatten().min() {
            Some(wait) => self.reports.1.recv_timeout(wait).ok(),
            None => self.reports.1.recv().ok(),
        }
    }

    /// Returns true if every command that the lab waits for has ended.
    fn is_over(&self) -> bool {
        let mut hosts = self.states.iter().zip(&self.scenario.hosts);
        hosts.all(|(state, host)| state.has_ended || host.daemon || self.is_idle(host))
    }

    /// Returns true if the host has no command while others have one.
    fn is_idle(&self, host: &scenario::Host) -> bool {
        host.run.is_none() && self.scenario.hosts.iter().any(|host| host.run.is_some())
    }

    /// Starts the commands of the hosts whose predecessors are ready.
    fn start_hosts(&mut self) -> Result<()> {
        for index in 0..self.states.len() {
            let plan = &self.scenario.hosts[index];
            let is_due = plan.after.iter().all(|host| self.states[usize::from(*host) - 1].is_ready);
            if !is_due {
                continue;
            }
            let Some(mut host) = self.states[index].unstarted.take() else { continue };
            host.proceed()?;
            let text = if let Ready::Prints(text) = &plan.ready { Some(text.clone()) } else { None };
            spawn_printers(host, index, text, self.reports.0.clone())?;
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

    /// Returns the running hosts that wait for a listener, with its port.
    fn hosts_awaiting_port(&self) -> impl Iterator<Item = (usize, u16)> {
        let hosts = self.states.iter().zip(&self.scenario.hosts).enumerate();
        hosts.filter_map(|(index, (state, host))| match host.ready {
            Ready::Listens(port) if state.unstarted.is_none() && !state.is_ready => Some((index, port)),
            _ => None,
        })
    }

    /// Marks each host as ready on which a program listens on the awaited port. TCP listeners are
    /// read from the kernel's tables. One query to the programs of the remaining hosts finds
    /// librdmacm listeners.
    fn poll_ports(&mut self) {
        let (mut found, others): (Vec<_>, Vec<_>) =
            self.hosts_awaiting_port().partition(|(index, port)| listens_by_tcp(self.states[*index].pid, *port));
        if !others.is_empty() {
            let namespaces: Vec<u64> = others.iter().map(|(index, _)| self.states[*index].namespace).collect();
            let answers = ask_in(&namespaces, &Query::Objects(ObjectKind::CmId), QUERY_TIMEOUT).unwrap_or_default();
            let is_found =
                |(index, port): &(usize, u16)| listens_by_rdma(&answers, self.states[*index].namespace, *port);
            found.extend(others.into_iter().filter(is_found));
        }
        found.into_iter().for_each(|(index, _)| self.states[index].is_ready = true);
    }
}

/// Cuts or heals the link of a host, in the network namespace of the switch.
fn set_link(host: u8, heals: bool) -> Result<()> {
    ip(&format!("link set v{host} {}\n", if heals { "up" } else { "down" }))
}

/// Returns true if a program in the network namespace of process `pid` listens on this TCP port.
fn listens_by_tcp(pid: u32, port: u16) -> bool {
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default());
    tables.iter().any(|table| has_listener(table, port))
}

/// Returns true if a table with the format of `/proc/net/tcp` has a listener on this port.
fn has_listener(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_port = words.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}")));
        // 0A is the state LISTEN.
        is_port && words.nth(1) == Some("0A")
    })
}

/// Returns true if a program in this network namespace listens on this librdmacm port. The
/// namespace identifies the host: process ids may be equal in different PID namespaces.
fn listens_by_rdma(answers: &[Answer], namespace: u64, port: u16) -> bool {
    let host_answers = answers.iter().filter(|answer| answer.namespace == namespace);
    let end = format!(":{port}");
    let is_listener = |line: &str| {
        let id = KeyValues::parse(line);
        id.text("state") == "LISTEN" && id.text("src").ends_with(&end)
    };
    host_answers.flat_map(|answer| answer.text.lines()).any(is_listener)
}

/// Spawns threads that print the output of a host, each line prefixed with its name. They report
/// the first line that contains `text`, and the exit status when the host ends.
fn spawn_printers(mut host: Host, index: usize, text: Option<String>, report: Sender<HostReport>) -> Result<()> {
    let (name, errors) = (host.name.clone(), host.child.stderr.take());
    let watch_for = |text: Option<String>, report: Sender<HostReport>| {
        let mut awaited = text;
        move |line: &str| {
            if awaited.take_if(|text| line.contains(text.as_str())).is_some() {
                // Fails once another host has failed: the receiver no longer exists.
                let _ = report.send(HostReport::Printed(index));
            }
        }
    };
    let (mut watch_errors, mut watch_output) =
        (watch_for(text.clone(), report.clone()), watch_for(text, report.clone()));
    let copy_errors = thread::Builder::new().spawn(move || {
        for line in lines(errors) {
            watch_errors(&line);
            // One write per line: standard output, which has another lock, may be the same file.
            let line = format!("{name} | {line}\n");
            eprint!("{line}");
        }
    })?;
    thread::Builder::new().spawn(move || {
        let Host { name, mut child, input, output } = host;
        for line in lines(Some(output)) {
            watch_output(&line);
            println!("{name} | {line}");
        }
        let _ = copy_errors.join();
        let _ = report.send(HostReport::Ended(index, child.wait().map_or(1, status_of)));
        // An idle host ends when its standard input closes.
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
    fn tcp_listener_is_found_in_kernel_table() {
        let table = "  sl  local_address rem_address   st\n   0: 00000000:1C06 00000000:0000 0A 00000000:00000000\n   1: \
                     0100007F:4853 0100007F:9999 01 0\n";
        assert!(has_listener(table, 7174));
        assert!(!has_listener(table, 18515) && !has_listener(table, 9999) && !has_listener("", 7174));
    }

    #[test]
    fn librdmacm_listener_counts_for_its_namespace_only() {
        let text = "device roxe0 eth0\ncm_id n=1 state=LISTEN ps=TCP src=10.89.0.1:7174 dst=0.0.0.0:0\n".to_owned();
        let answers = [Answer { namespace: 5, text, ..Answer::default() }];
        assert!(listens_by_rdma(&answers, 5, 7174));
        assert!(!listens_by_rdma(&answers, 6, 7174) && !listens_by_rdma(&answers, 5, 71));
    }
}
