//! `rdma` of iproute2 (`man 8 rdma`) for roxe's devices: links, devices, live objects and counters.
//!
//! The kernel answers the command of iproute2 over netlink and does not know roxe. `roxe run` and
//! `roxe env` put a folder first in PATH in which `rdma` is a link to this program, and the view
//! binds this program over the command. Devices of the kernel precede those of roxe ([`real`]).

mod objects;
mod real;
mod record;

use crate::library::RDMA;
use crate::output::Result;
use objects::{Card, PORT, answers, cards};
use real::Tool;
use record::Record;
use roxe_provider::{ObjectKind, Query};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{Write, stdout};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// Arguments of `roxe rdma`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Options and command of rdma, such as -j link.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

/// Returns true if this program was called as `rdma`.
pub(crate) fn is_called(program: Option<&OsString>) -> bool {
    program.is_some_and(|program| Path::new(program).file_name().is_some_and(|name| name == RDMA))
}

pub(crate) fn run(args: &Args) -> Result {
    main(&args.args)
}

/// Runs the command with these arguments.
pub(crate) fn main(args: &[OsString]) -> Result {
    let words =
        args.iter().map(|word| word.to_str().ok_or("an argument is not UTF-8")).collect::<Result<Vec<_>, _>>()?;
    let (options, words) = RdmaOptions::parse(&words)?;
    if options.prints_version {
        return print(&format!("rdma utility, roxe-{}\n", env!("CARGO_PKG_VERSION")));
    }
    if options.prints_help {
        return print(USAGE);
    }
    let Some(file) = options.batch else { return Session { options: &options, args }.command(&words) };
    let mut result = Ok(());
    let text = fs::read_to_string(file).map_err(|cause| format!("cannot read {file}: {cause}"))?;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
        // The arguments of this line, for the command of iproute2.
        let args: Vec<_> = options.words().chain(words.iter().copied()).map(OsString::from).collect();
        let done = if words.is_empty() { Ok(()) } else { Session { options: &options, args: &args }.command(&words) };
        if let Err(error) = done {
            if !options.force {
                return Err(error);
            }
            eprintln!("rdma: {error}");
            result = Err("a command of the batch failed".into());
        }
    }
    result
}

const USAGE: &str = "\
Usage: rdma [ OPTIONS ] OBJECT { COMMAND | help }
       rdma [ -f[orce] ] -b[atch] filename
where  OBJECT := { dev | link | resource | monitor | system | statistic | help }
       OPTIONS := { -V[ersion] | -d[etails] | -j[son] | -p[retty] }
       dev show [ DEV ]
       link show [ DEV/PORT ]
       resource show [ DEV ]
       resource show { qp | cm_id } [ link DEV/PORT ] [ NAME VALUE ]...
       resource show { cq | pd | mr | ctx | srq } [ dev DEV ] [ NAME VALUE ]...
       statistic [ qp ] show [ link DEV/PORT ]
       statistic qp mode [ link DEV/PORT ]
       system show
roxe replaces this command: it lists its own devices after those of the kernel, and the objects
of this user's programs that run on them.
";

#[derive(Debug, Default, PartialEq)]
struct RdmaOptions<'a> {
    json: bool,
    pretty: bool,
    details: bool,
    force: bool,
    prints_version: bool,
    prints_help: bool,
    batch: Option<&'a str>,
}

impl<'a> RdmaOptions<'a> {
    /// Parses the options, which may stand anywhere before `--` (`man 3 getopt`); returns the
    /// other words.
    fn parse(words: &[&'a str]) -> Result<(Self, Vec<&'a str>)> {
        let (mut options, mut others, mut words) = (Self::default(), Vec::new(), words.iter().copied());
        while let Some(word) = words.next() {
            match word.strip_prefix('-') {
                Some("-") => others.extend(words.by_ref()),
                Some(letters) if !letters.is_empty() => options.set(word, letters, &mut words)?,
                _ => others.push(word),
            }
        }
        Ok((options, others))
    }

    /// Sets the options of one word; `letters` follow its dash, `rest` the word.
    fn set(&mut self, word: &str, letters: &'a str, rest: &mut impl Iterator<Item = &'a str>) -> Result {
        let unknown = || Err(format!("unknown option {word}; see rdma -h").into());
        let letters = match letters.strip_prefix('-') {
            Some(name) => match LONG_OPTIONS.iter().find(|(long, _)| *long == name) {
                Some((_, letter)) => *letter,
                None => return unknown(),
            },
            None => letters,
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                'j' => self.json = true,
                'p' => self.pretty = true,
                'd' => self.details = true,
                'f' => self.force = true,
                'V' => self.prints_version = true,
                'h' => self.prints_help = true,
                // The output has one line for each object anyway.
                'o' => {}
                'b' => {
                    let value = Some(&letters[at + 1..]).filter(|value| !value.is_empty()).or_else(|| rest.next());
                    self.batch = Some(value.ok_or("-b needs the name of a file")?);
                    break;
                }
                'r' => return Err("-r: roxe's objects have no raw data".into()),
                _ => return unknown(),
            }
        }
        Ok(())
    }

    /// Returns the options of single commands as words.
    fn words(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let options = [(self.json, "-j"), (self.pretty, "-p"), (self.details, "-d")];
        options.into_iter().filter_map(|(is_set, word)| is_set.then_some(word))
    }
}

/// Long options and their letters.
const LONG_OPTIONS: [(&str, &str); 9] = [
    ("version", "V"),
    ("help", "h"),
    ("json", "j"),
    ("oneline", "o"),
    ("pretty", "p"),
    ("details", "d"),
    ("raw", "r"),
    ("force", "f"),
    ("batch", "b"),
];

/// Returns the command that a word begins, as iproute2 abbreviates: the first of the list.
fn choose<'a>(word: &str, commands: &[&'a str]) -> Option<&'a str> {
    commands.iter().copied().find(|command| !word.is_empty() && command.starts_with(word))
}

fn unknown(what: &str, word: &str) -> Result {
    Err(format!("unknown {what} '{word}'; see rdma help").into())
}

fn print(text: &str) -> Result {
    Ok(stdout().lock().write_all(text.as_bytes())?)
}

struct Session<'a> {
    options: &'a RdmaOptions<'a>,
    /// The command line, for the command of iproute2.
    args: &'a [OsString],
}

impl Session<'_> {
    fn command(&self, words: &[&str]) -> Result {
        let [object, rest @ ..] = words else { return print(USAGE) };
        match choose(object, &["help", "dev", "link", "resource", "system", "statistic", "monitor"]) {
            Some("help") => print(USAGE),
            Some("dev") => self.dev(rest),
            Some("link") => self.link(rest),
            Some("resource") => self.resource(rest),
            Some("system") => self.system(rest),
            Some("statistic") => self.statistic(rest),
            Some(_) => self.monitor(rest),
            None => unknown("object", object),
        }
    }

    fn dev(&self, words: &[&str]) -> Result {
        let (word, rest) = words.split_first().unwrap_or((&"show", &[]));
        match choose(word, &["add", "delete", "show", "list", "set", "help"]) {
            Some("show" | "list") => self.show(rest.first().copied(), |cards| {
                Ok(cards.iter().map(|card| card.dev(self.options.details)).collect())
            }),
            Some("help") => print(USAGE),
            Some(change) => self.refuse(
                &format!("dev {change}"),
                "roxe run --netdev chooses the interfaces, ROXE_DEVICE_NAME the names",
            ),
            None => unknown("dev command", word),
        }
    }

    fn link(&self, words: &[&str]) -> Result {
        let (word, rest) = words.split_first().unwrap_or((&"show", &[]));
        match choose(word, &["add", "delete", "show", "list", "help"]) {
            Some("show" | "list") => self.show_link(rest.first().copied(), true, |cards| {
                Ok(cards.iter().map(|card| card.link(self.options.details)).collect())
            }),
            Some("help") => print(USAGE),
            Some(change) => self.refuse(
                &format!("link {change}"),
                "roxe run --netdev NAME gives the program a device on an interface, until it ends",
            ),
            None => unknown("link command", word),
        }
    }

    fn resource(&self, words: &[&str]) -> Result {
        let rest = match words {
            [] => return self.summary(None),
            [word, rest @ ..] => match choose(word, &["show", "set", "list", "help"]) {
                Some("help") => return print(USAGE),
                Some("set") => return self.refuse("resource set", "roxe has no pools of regions"),
                Some(_) => rest,
                None => return unknown("resource command", word),
            },
        };
        let Some((word, rest)) = rest.split_first() else { return self.summary(None) };
        let kinds = ["qp", "cm_id", "cq", "mr", "pd", "ctx", "srq", "help"];
        let Some(kind) = choose(word, &kinds) else {
            return if rest.is_empty() { self.summary(Some(word)) } else { unknown("parameter", word) };
        };
        let Some(kind) = ObjectKind::of(kind) else { return print(USAGE) };
        let (place, filters) = KeyFilter::parse(rest, allowed(kind))?;
        self.show_link(place, false, |cards| {
            let qps = if kind == ObjectKind::Srq { answers(Query::Objects(ObjectKind::Qp))? } else { Vec::new() };
            let all = answers(Query::Objects(kind))?;
            Ok(select(cards.iter().flat_map(|card| card.objects(kind, &all, &qps)), &filters))
        })
    }

    fn summary(&self, device: Option<&str>) -> Result {
        self.show(device, |cards| {
            let counts = answers(Query::Counts)?;
            Ok(cards.iter().map(|card| card.summary(&counts)).collect())
        })
    }

    fn statistic(&self, words: &[&str]) -> Result {
        let [word, rest @ ..] = words else { return self.counters(None) };
        match choose(word, &["show", "list", "help", "qp", "mr", "mode", "set", "unset"]) {
            Some("help") => print(USAGE),
            Some("qp") => self.statistic_of_qps(rest),
            Some("set" | "unset") => self.refuse("statistic set", "roxe has no optional counters"),
            // Regions have no counters, and there are no optional ones.
            Some("mr" | "mode") => self.show(None, |_| Ok(vec![])),
            Some(_) => self.counters(KeyFilter::parse(rest, &[])?.0),
            None => unknown("statistic command", word),
        }
    }

    fn statistic_of_qps(&self, words: &[&str]) -> Result {
        let (word, rest) = words.split_first().unwrap_or((&"show", &[]));
        match choose(word, &["link", "show", "list", "mode", "set", "bind", "unbind", "help"]) {
            Some("help") => print(USAGE),
            Some("set" | "bind" | "unbind") => self
                .refuse("statistic qp", "every queue pair of roxe has counters of its own; there is nothing to bind"),
            Some("mode") => {
                let place = KeyFilter::parse(rest, &[])?.0;
                self.show_link(place, false, |cards| Ok(cards.iter().map(|card| card.counter_mode()).collect()))
            }
            Some(command) => {
                let rest = if command == "link" { words } else { rest };
                let (place, filters) = KeyFilter::parse(rest, &["cntn", "lqpn", "pid", "qp-type"])?;
                self.show_link(place, false, |cards| {
                    let qps = answers(Query::Objects(ObjectKind::Qp))?;
                    Ok(select(cards.iter().flat_map(|card| card.qp_counters(&qps)), &filters))
                })
            }
            None => unknown("parameter", word),
        }
    }

    fn counters(&self, place: Option<&str>) -> Result {
        self.show_link(place, false, |cards| {
            let counts = answers(Query::Counts)?;
            Ok(cards.iter().map(|card| card.counters(&counts)).collect())
        })
    }

    fn system(&self, words: &[&str]) -> Result {
        match words {
            [] | ["show", ..] => match real::find() {
                Some(tool) => tool.exec(self.args),
                // A device belongs to the network namespace of its interface.
                None => print("netns exclusive copy-on-fork on\n"),
            },
            ["help"] => print(USAGE),
            [word, ..] if choose(word, &["set"]).is_some() => {
                self.refuse("system set", "a device of roxe belongs to the network namespace of its interface")
            }
            [word, ..] => unknown("system command", word),
        }
    }

    /// Prints devices as they appear and vanish with their interfaces, until this process is
    /// killed.
    fn monitor(&self, words: &[&str]) -> Result {
        if let Some(word) = words.first() {
            return if choose(word, &["help"]).is_some() { print(USAGE) } else { unknown("mon command", word) };
        }
        if let Some(tool) = real::find() {
            return tool.exec(self.args);
        }
        let names = || -> Result<BTreeMap<String, (u32, String)>> {
            let name_and_netdev = |card: Card| (card.name().to_owned(), (card.index, card.device.netdev().to_owned()));
            Ok(cards(0)?.into_iter().map(name_and_netdev).collect())
        };
        let mut before = names()?;
        loop {
            sleep(MONITOR_INTERVAL);
            let now = names()?;
            let changes = [("[REGISTER]", &now, &before), ("[UNREGISTER]", &before, &now)];
            for (event, with, without) in changes {
                for (name, (index, netdev)) in with.iter().filter(|(name, _)| !without.contains_key(*name)) {
                    let mut record = Record::default();
                    record.shown_as("event_type", event, format!("{event}\t"));
                    record.shown_as("rdma_index", *index, format!("dev {index}"));
                    record.shown_as("rdma_dev", name.as_str(), format!(" {name}"));
                    record.shown_as("netdev_name", netdev.as_str(), format!(" netdev {netdev}"));
                    let text =
                        if self.options.json { record::array(&[record], "", false) } else { record.text() + "\n" };
                    print(&text)?;
                }
            }
            before = now;
        }
    }

    /// Refuses a change, unless the kernel has devices.
    fn refuse(&self, what: &str, why: &str) -> Result {
        match real::find() {
            Some(tool) => tool.exec(self.args),
            None => Err(format!("{what}: {why}").into()),
        }
    }

    /// Prints the records of the device with this name, or of all devices.
    fn show(&self, device: Option<&str>, records: impl Fn(&[&Card]) -> Result<Vec<Record>>) -> Result {
        let tool = real::find();
        let first = tool.as_ref().map_or(Ok(0), Tool::next_index)?;
        let all = cards(first)?;
        let chosen: Vec<&Card> = all.iter().filter(|card| device.is_none_or(|name| name == card.name())).collect();
        let mut others = String::new();
        match (device, &tool) {
            (Some(_), _) if !chosen.is_empty() => {}
            (Some(_), Some(tool)) => return tool.exec(self.args),
            (Some(name), None) => return Err(wrong_name(name)),
            (None, Some(tool)) => others = tool.output(self.args)?,
            (None, None) => {}
        }
        let records = records(&chosen)?;
        let RdmaOptions { json, pretty, .. } = *self.options;
        if json {
            return print(&record::array(&records, real::objects(&others), pretty));
        }
        print(&(others + &records.iter().map(|record| record.text() + "\n").collect::<String>()))
    }

    /// Prints records as [`Session::show`] does, for the place `DEV`, `DEV/` or `DEV/1`. Fails
    /// without a port number if `needs_port`. Port 0 and `-` have no records.
    fn show_link(
        &self,
        place: Option<&str>,
        needs_port: bool,
        records: impl Fn(&[&Card]) -> Result<Vec<Record>>,
    ) -> Result {
        let Some(place) = place else { return self.show(None, records) };
        let (device, port) = place.split_once('/').unwrap_or((place, ""));
        self.show(Some(device), |cards| match (port, port.parse::<u32>()) {
            ("", _) if !needs_port => records(cards),
            ("-", _) if !needs_port => Ok(vec![]),
            (_, Ok(0)) => Ok(vec![]),
            (_, Ok(number)) if number <= PORT => records(cards),
            _ => Err(wrong_name(place)),
        })
    }
}

fn select(found: impl Iterator<Item = Record>, filters: &[KeyFilter<'_>]) -> Vec<Record> {
    found.filter(|record| filters.iter().all(|filter| filter.takes(record))).collect()
}

/// Interval at which `rdma monitor` lists the devices.
const MONITOR_INTERVAL: Duration = Duration::from_millis(200);

fn wrong_name(name: &str) -> Box<dyn std::error::Error> {
    format!("wrong device name: {name}; see rdma link, and roxe run --netdev for other interfaces").into()
}

/// Returns the keys by which objects of a kind can be selected.
fn allowed(kind: ObjectKind) -> &'static [&'static str] {
    match kind {
        ObjectKind::Qp => &["lqpn", "rqpn", "pid", "sq-psn", "rq-psn", "type", "path-mig-state", "state", "pdn"],
        ObjectKind::CmId => {
            &["lqpn", "qp-type", "state", "ps", "pid", "src-addr", "src-port", "dst-addr", "dst-port", "cm-idn"]
        }
        ObjectKind::Cq => &["users", "poll-ctx", "pid", "cqn", "ctxn"],
        ObjectKind::Mr => &["rkey", "lkey", "mrlen", "pid", "mrn", "pdn"],
        ObjectKind::Pd => &["users", "pid", "pdn", "ctxn"],
        ObjectKind::Ctx => &["pid", "ctxn"],
        ObjectKind::Srq => &["pid", "srqn", "type", "pdn", "cqn", "lqpn"],
    }
}

/// A condition `KEY VALUES`: single values and ranges such as `3,5-9`.
#[derive(Debug, PartialEq)]
struct KeyFilter<'a> {
    key: &'a str,
    values: &'a str,
}

impl<'a> KeyFilter<'a> {
    /// Parses pairs of key and value; `link` and `dev` name the place.
    fn parse(words: &[&'a str], allowed: &[&str]) -> Result<(Option<&'a str>, Vec<Self>)> {
        let (mut place, mut filters) = (None, Vec::new());
        for pair in words.chunks(2) {
            match pair {
                ["link" | "dev", name] => place = Some(*name),
                [key, values] if allowed.contains(key) => filters.push(Self { key, values }),
                [key, _] => {
                    return Err(format!("unsupported filter option: {key}; there are: {}", allowed.join(" ")).into());
                }
                [key, ..] => return Err(format!("{key}: no value follows").into()),
                [] => {}
            }
        }
        Ok((place, filters))
    }

    fn takes(&self, record: &Record) -> bool {
        let part = |key: &str, of_port: bool| {
            let (address, port) = record.get(key)?.as_str()?.rsplit_once(':')?;
            Some(Value::from(if of_port { port } else { address }))
        };
        let value = match self.key {
            "src-addr" | "dst-addr" => part(self.key, false),
            "src-port" => part("src-addr", true),
            "dst-port" => part("dst-addr", true),
            key => record.get(key).cloned(),
        };
        // An object without this key passes.
        value.is_none_or(|value| match &value {
            Value::Array(values) => values.iter().any(|value| self.takes_value(value)),
            value => self.takes_value(value),
        })
    }

    fn takes_value(&self, value: &Value) -> bool {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let range = |text: &str| -> Option<(u64, u64)> {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        self.values.split(',').any(|wanted| match (range(wanted), range(&text)) {
            (Some((first, last)), Some((low, high))) => first <= high && low <= last,
            _ => wanted.eq_ignore_ascii_case(&text),
        })
    }
}

#[cfg(test)]
mod tests;
