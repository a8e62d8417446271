//! Scenarios: the hosts, commands and events of a lab in a file (TOML).

use super::link::Link;
use crate::files::read_text;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{Table, Value};

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scenario {
    pub(super) mtu: Option<u32>,
    pub(super) ipv6: bool,
    pub(super) hosts: Vec<Host>,
    /// Events in the order of their times.
    pub(super) events: Vec<LinkEvent>,
    /// Folder for the captures, one per link.
    pub(super) captures: Option<PathBuf>,
    /// Folder with the unpacked kernel for guests.
    pub(super) kernel: Option<PathBuf>,
    /// Time limit of the lab.
    pub(super) timeout: Option<Duration>,
}

/// A host of a lab.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Host {
    pub(super) link: Link,
    /// Command for `sh -c`; a host without one stays idle until the others have ended.
    pub(super) run: Option<String>,
    /// Numbers of the hosts that must be ready before this one starts.
    pub(super) after: Vec<u8>,
    pub(super) ready: Ready,
    /// True if the lab does not wait for the end of the command.
    pub(super) daemon: bool,
    /// True if the host is a guest with the kernel's rxe.
    pub(super) rxe: bool,
}

/// The sign of readiness for which later hosts wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Ready {
    /// Its command has ended.
    #[default]
    Ended,
    /// Its command has printed a line with this text.
    Prints(String),
    /// A program listens on this TCP or librdmacm port.
    Listens(u16),
}

/// A change of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkEvent {
    /// Time since the first command started.
    pub(super) at: Duration,
    pub(super) host: u8,
    /// True if the link is healed, false if it is cut.
    pub(super) heals: bool,
}

pub(super) fn read(file: &Path) -> Result<Scenario, String> {
    Scenario::parse(&read_text(file)?).map_err(|why| format!("wrong scenario: {}: {why}", file.display()))
}

/// Valid numbers of hosts in a lab.
pub(super) const HOSTS: RangeInclusive<i64> = 1..=64;
/// Valid MTUs of links.
pub(super) const MTUS: RangeInclusive<i64> = 1280..=65_535;

/// Parses the number or the name of a host: `2` or `host2`.
pub(super) fn parse_host(text: &str) -> Option<u8> {
    text.strip_prefix("host").unwrap_or(text).parse().ok()
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string().trim().to_owned())?;
        let mut keys = Keys { table, place: String::new() };
        let common = keys.take("link", link)?.unwrap_or_default();
        let count = keys.take("hosts", |value| integer(value, HOSTS))?;
        let mut scenario = Self {
            mtu: keys.take("mtu", |value| integer(value, MTUS))?.map(|mtu| mtu as u32),
            ipv6: keys.take("ipv6", boolean)?.unwrap_or_default(),
            captures: keys.take("captures", string)?.map(PathBuf::from),
            kernel: keys.take("kernel", string)?.map(PathBuf::from),
            timeout: keys.take("timeout", duration)?,
            ..Self::default()
        };
        let listed = keys.tables("host")?;
        let count = count.unwrap_or(listed.len() as i64);
        if !HOSTS.contains(&count) || listed.len() as i64 > count {
            let (tables, most) = (listed.len(), HOSTS.end());
            return Err(format!(
                "hosts: {tables} [[host]] tables for {count} hosts; 1 to {most} hosts are needed, and at most one \
                 table for each"
            ));
        }
        scenario.hosts = vec![Host { link: common.clone(), ..Host::default() }; count as usize];
        for (host, table) in scenario.hosts.iter_mut().zip(listed) {
            host.read(table, count as u8)?;
        }
        if scenario.hosts.iter().all(|host| host.run.is_none() || host.daemon) {
            return Err("no [[host]] has a command that ends: run = \"...\" without daemon = true".to_owned());
        }
        for mut table in keys.tables("event")? {
            let at = table.take("at", duration)?.ok_or_else(|| format!("{}needs at = \"2s\"", table.place))?;
            let cut = table.take("cut", |value| host_number(value, count as u8))?;
            let heal = table.take("heal", |value| host_number(value, count as u8))?;
            let event = match (cut, heal) {
                (Some(host), None) => LinkEvent { at, host, heals: false },
                (None, Some(host)) => LinkEvent { at, host, heals: true },
                _ => return Err(format!("{}needs cut = HOST or heal = HOST", table.place)),
            };
            table.end()?;
            scenario.events.push(event);
        }
        keys.end()?;
        scenario.events.sort_by_key(|event| event.at);
        scenario.check_order()?;
        Ok(scenario)
    }

    /// Refuses hosts that wait for each other.
    fn check_order(&self) -> Result<(), String> {
        let mut started = vec![false; self.hosts.len()];
        // Each round starts at least one host, unless all that are left wait for each other.
        for _ in &self.hosts {
            for (index, host) in self.hosts.iter().enumerate() {
                started[index] = host.after.iter().all(|host| started[usize::from(*host) - 1]);
            }
        }
        if started.contains(&false) {
            return Err("after: hosts wait for each other in a circle".to_owned());
        }
        Ok(())
    }
}

impl Host {
    fn read(&mut self, mut table: Keys, hosts: u8) -> Result<(), String> {
        if let Some(own) = table.take("link", link)? {
            self.link = own;
        }
        self.run = table.take("run", string)?;
        self.daemon = table.take("daemon", boolean)?.unwrap_or_default();
        self.rxe = table.take("rxe", boolean)?.unwrap_or_default();
        self.after = table
            .take("after", |value| match value {
                Value::Array(list) => list.iter().map(|value| host_number(value, hosts)).collect(),
                value => Ok(vec![host_number(value, hosts)?]),
            })?
            .unwrap_or_default();
        let (prints, listens) =
            (table.take("prints", string)?, table.take("listens", |value| integer(value, 1..=65_535))?);
        self.ready = match (prints, listens) {
            (Some(_), Some(_)) => {
                return Err(format!("{}has prints and listens; only one of them is allowed", table.place));
            }
            (Some(text), None) => Ready::Prints(text),
            (None, Some(port)) => Ready::Listens(port as u16),
            (None, None) => Ready::Ended,
        };
        let takes_command = self.daemon || self.rxe || self.ready != Ready::Ended || !self.after.is_empty();
        if self.run.is_none() && takes_command {
            return Err(format!("{}has no command: run = \"...\"", table.place));
        }
        table.end()
    }
}

/// A TOML table. Keys are removed as they are read, so that the remaining ones are unknown keys.
#[derive(Debug)]
struct Keys {
    table: Table,
    /// Prefix of messages, such as `host 2: `.
    place: String,
}

impl Keys {
    fn take<T>(&mut self, key: &str, read: impl FnOnce(&Value) -> Result<T, String>) -> Result<Option<T>, String> {
        let value = self.table.remove(key);
        value.map(|value| read(&value).map_err(|why| format!("{}{key}: {why}", self.place))).transpose()
    }

    /// Removes and returns the tables `[[key]]`.
    fn tables(&mut self, key: &str) -> Result<Vec<Self>, String> {
        let wrong = || format!("{key}: write one [[{key}]] table for each {key}");
        let Some(value) = self.table.remove(key) else { return Ok(Vec::new()) };
        let Value::Array(list) = value else { return Err(wrong()) };
        let table = |(number, value)| match value {
            Value::Table(table) => Ok(Self { table, place: format!("{key} {number}: ") }),
            _ => Err(wrong()),
        };
        (1..).zip(list).map(table).collect()
    }

    /// Refuses unknown keys, once all known keys are removed.
    fn end(self) -> Result<(), String> {
        let unknown = self.table.keys().next();
        unknown.map_or(Ok(()), |key| Err(format!("{}unknown key {key}", self.place)))
    }
}

fn string(value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| "a string is needed".to_owned())
}

fn boolean(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| "true or false is needed".to_owned())
}

fn integer(value: &Value, range: RangeInclusive<i64>) -> Result<i64, String> {
    let found = value.as_integer().filter(|number| range.contains(number));
    found.ok_or_else(|| format!("a number from {} to {} is needed", range.start(), range.end()))
}

fn link(value: &Value) -> Result<Link, String> {
    string(value)?.parse()
}

/// Parses a duration such as `500ms` or `2s`.
fn duration(value: &Value) -> Result<Duration, String> {
    let text = string(value)?;
    let units = [("ms", 1e-3), ("s", 1.0), ("min", 60.0)];
    let number_and_unit =
        units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?.parse::<f64>().ok()?, seconds)));
    let parsed = number_and_unit.and_then(|(number, seconds)| Duration::try_from_secs_f64(number * seconds).ok());
    parsed.ok_or_else(|| format!("{text:?} is no duration, such as 500ms or 2s"))
}

/// Parses the number or the name of one of `hosts` hosts.
fn host_number(value: &Value, hosts: u8) -> Result<u8, String> {
    let integer = value.as_integer().and_then(|number| u8::try_from(number).ok());
    integer
        .or_else(|| parse_host(value.as_str()?))
        .filter(|number| (1..=hosts).contains(number))
        .ok_or_else(|| format!("no such host; they are 1 to {hosts}, or host1 to host{hosts}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        mtu = 9000
        link = "20us"
        captures = "pcaps"
        kernel = "unpacked"
        timeout = "1min"
        hosts = 3

        [[host]]
        run = "rping -s -a host1"
        listens = 7174
        daemon = true

        [[host]]
        run = "rping -c -a host1"
        after = "host1"
        link = "1ms loss 1%"
        rxe = true

        [[event]]
        at = "4s"
        heal = 2

        [[event]]
        at = "2s"
        cut = "host2"
    "#;

    #[test]
    fn scenario_is_read() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let link = |text: &str| text.parse::<Link>().unwrap();
        let run = |text: &str| Some(text.to_owned());
        let server = Host {
            link: link("20us"),
            run: run("rping -s -a host1"),
            ready: Ready::Listens(7174),
            daemon: true,
            ..Host::default()
        };
        let client = Host {
            link: link("1ms loss 1%"),
            run: run("rping -c -a host1"),
            after: vec![1],
            rxe: true,
            ..Host::default()
        };
        let seconds = Duration::from_secs;
        let expected = Scenario {
            mtu: Some(9000),
            ipv6: false,
            hosts: vec![server, client, Host { link: link("20us"), ..Host::default() }],
            events: vec![
                LinkEvent { at: seconds(2), host: 2, heals: false },
                LinkEvent { at: seconds(4), host: 2, heals: true },
            ],
            captures: Some("pcaps".into()),
            kernel: Some("unpacked".into()),
            timeout: Some(seconds(60)),
        };
        assert_eq!(scenario, expected);
    }

    #[test]
    fn wrong_scenario_is_refused_with_place_and_reason() {
        for (text, why) in [
            ("[[host]]\nrun = \"true\"\ncolour = 1", "host 1: unknown key colour"),
            ("[[host]]\nrun = 7", "host 1: run: a string"),
            ("colour = 1\n[[host]]\nrun = \"true\"", "unknown key colour"),
            ("hosts = 2", "no [[host]] has a command"),
            ("[[host]]\nrun = \"true\"\ndaemon = true", "no [[host]] has a command that ends"),
            ("[[host]]\nrun = \"true\"\nafter = 2", "host 1: after: no such host; they are 1 to 1"),
            ("[[host]]\nrun = \"a\"\nafter = 2\n[[host]]\nrun = \"b\"\nafter = 1", "circle"),
            ("[[host]]\nrun = \"a\"\nprints = \"x\"\nlistens = 1", "host 1: has prints and listens"),
            ("[[host]]\nrun = \"a\"\n[[event]]\nat = \"2 hours\"\ncut = 1", "event 1: at: \"2 hours\" is no duration"),
            ("[[host]]\nrun = \"a\"\n[[event]]\nat = \"2s\"", "event 1: needs cut = HOST or heal = HOST"),
            ("[[host]]\nrun = \"a\"\n[[host]]\nrxe = true", "host 2: has no command"),
            ("[[host]]\nrun = \"a\"\nlink = \"fast\"", "host 1: link: \"fast\" is no rate"),
            ("hosts = 1\n[[host]]\nrun = \"a\"\n[[host]]\n", "hosts: 2 [[host]] tables"),
            ("hosts = 0", "hosts: a number from 1 to 64"),
            ("host = 3", "host: write one [[host]] table"),
            ("[[host]", "TOML parse error"),
        ] {
            let error = Scenario::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn durations_have_units() {
        let read = |text: &str| duration(&Value::from(text));
        assert_eq!(read("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(read("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(read("2min"), Ok(Duration::from_secs(120)));
        assert!(["2", "s", "-1s", "1h"].iter().all(|text| read(text).is_err()));
    }
}
