//! Reads devices and queue pairs of running processes, for `roxe top` and `roxe metrics`.

use crate::output::Result;
use roxe_drill::compare::printable;
use roxe_provider::{Answer, ask, network_namespace};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

/// Time limit for an answer: a stopped process never answers.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// A device that a process has open; a process with two devices has two entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: String,
    /// Number of the process's network namespace; empty if it is the namespace of this process.
    /// Processes of two namespaces can have one PID.
    pub(crate) namespace: String,
    /// Name of the command, from `/proc`; empty in another network namespace, where the PID may be
    /// the PID of another process in this namespace.
    pub(crate) command: String,
    pub(crate) device: String,
    pub(crate) netdev: String,
    /// Names and values, in the order of the legend.
    pub(crate) counters: Vec<(String, u64)>,
    pub(crate) qps: Vec<KeyValues>,
    /// True if the process answered completely.
    pub(crate) answers: bool,
}

/// The words `name=value` of a line, such as the attributes of a queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyValues(pub(crate) BTreeMap<String, String>);

impl KeyValues {
    pub(crate) fn parse(line: &str) -> Self {
        let words = line.split(' ').filter_map(|word| word.split_once('='));
        Self(words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns a value as text; empty if it is unknown.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Returns a value, decimal or with 0x; 0 if it is unknown.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let text = self.text(name);
        let number = text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
        number.unwrap_or_default()
    }
}

impl Process {
    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
    }

    /// Parses an answer; `here` is the network namespace of this process.
    pub(crate) fn of(answer: &Answer, here: u64) -> Self {
        let is_here = answer.namespace == here;
        let mut process = Self {
            pid: answer.pid.to_string(),
            namespace: if is_here { String::new() } else { answer.namespace.to_string() },
            command: if is_here { command_of(answer.pid) } else { String::new() },
            answers: answer.is_whole,
            ..Self::default()
        };
        for line in answer.text.lines() {
            let mut words = line.split(' ');
            match (words.next(), words.next(), words.next()) {
                (Some("device"), Some(device), Some(netdev)) => {
                    (process.device, process.netdev) = (device.to_owned(), netdev.to_owned());
                }
                (Some("counter"), Some(name), Some(value)) => {
                    process.counters.push((name.to_owned(), value.parse().unwrap_or(0)));
                }
                (Some("qp"), ..) => process.qps.push(KeyValues::parse(line)),
                _ => {}
            }
        }
        process.qps.sort_by_key(|qp| qp.number("qpn"));
        process
    }
}

/// Returns the name of a process's command, which the program chooses; empty if the process has
/// ended.
pub(crate) fn command_of(pid: u32) -> String {
    let command = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    printable(String::from_utf8_lossy(&command).trim_end_matches('\n'))
}

/// Returns the devices of all processes of this user, or of the process `pid`.
pub(crate) fn processes(pid: Option<u32>) -> io::Result<Vec<Process>> {
    let here = network_namespace()?;
    Ok(ask(pid, ANSWER_TIMEOUT)?.iter().map(|answer| Process::of(answer, here)).collect())
}

/// Returns the devices as [`processes`] does, but fails if the given process has no device open.
pub(crate) fn find_processes(pid: Option<u32>) -> Result<Vec<Process>> {
    let found = processes(pid)?;
    match pid {
        Some(pid) if found.is_empty() => {
            Err(format!("process {pid} has no device of roxe open, or belongs to another user").into())
        }
        _ => Ok(found),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a process with this counter and line of a queue pair.
    pub(crate) fn process(sent_bytes: u64, qp: &str) -> Process {
        let text = format!(
            "device roxe0 lo\ncounter sent_packets 3\ncounter sent_bytes {sent_bytes}\n{qp}\na later kind of line\n"
        );
        // No process has this number.
        Process::of(&Answer { pid: u32::MAX, ifindex: 1, text, is_whole: true, ..Answer::default() }, 0)
    }

    /// Returns two processes with the PID of this process, the second one in another network
    /// namespace.
    pub(crate) fn equal_pids(sent_bytes: [u64; 2]) -> Vec<Process> {
        let answer = |(namespace, sent_bytes)| {
            let text = format!("device roxe0 eth0\ncounter sent_bytes {sent_bytes}\nqp qpn=0x11 sends=5\n");
            Answer { namespace, pid: std::process::id(), ifindex: 1, text, is_whole: true }
        };
        (7..).zip(sent_bytes).map(answer).map(|answer| Process::of(&answer, 7)).collect()
    }

    #[test]
    fn process_of_other_network_namespace_has_no_command() {
        let [here, other] = &equal_pids([1, 2])[..] else { panic!("two processes") };
        assert_eq!((here.namespace.as_str(), here.command.is_empty()), ("", false));
        assert_eq!((other.namespace.as_str(), other.command.as_str()), ("8", ""));
    }

    #[test]
    fn control_characters_in_program_names_are_escaped() {
        assert_eq!(printable("a\u{1b}[2J\u{9b}b\tü"), "a\\u{1b}[2J\\u{9b}b\\tü");
    }

    #[test]
    fn answer_is_parsed_and_unknown_lines_ignored() {
        let process = process(96, "qp qpn=0x11 service=RC sends=5 error=-");
        assert_eq!((process.device.as_str(), process.netdev.as_str(), process.command.as_str()), ("roxe0", "lo", ""));
        assert_eq!((process.counter("sent_bytes"), process.counter("unheard_of")), (96, 0));
        let qp = &process.qps[0];
        assert_eq!((qp.text("service"), qp.number("sends"), qp.text("window"), qp.number("window")), ("RC", 5, "", 0));
    }
}
