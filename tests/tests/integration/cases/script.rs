//! Runs the scripts of the cases in each configuration: through one of the two agents, in one
//! process or two, over one of the links. The language:
//!
//! ```text
//! pair q rc timeout=10 b.srq=s  connected queue pairs q of a and b; `b.` for b only
//! a fill 0+100 7                bytes 0 to 100 of the memory of a get the pattern 7
//! b recv q 1 200+50 300+50      a receive, number 1, of two parts; `200+50!`: with a wrong key
//! a send q 2 send 0+100 imm=9   a request: send, write, read, add, swap, bind, close, invalidate;
//!                               signaled by default
//! a send q 3 write 0+8 @500     to byte 500 of the peer's memory; `@500!`: with a wrong key
//! a send q 4 write 0+8 @w+8     to byte 8 of the window w of the peer
//! a sent 2 ok send              the next completion of a's send queue
//! b got 1 ok recv len=100       the next completion of the receive queue; `b got_any 1 2`: two,
//!                               in any order
//! b holds 200+50 7              the memory has this pattern
//! b blank 0+8 · b word 8 42     it has zeros, it has this number
//! a state q err · a event comm_est q · a modify q err · a destroy q
//! a arm receives · a woken receives
//! ! a attach q 127.0.0.1        the agent must refuse the line
//! ```
//!
//! Peers can access the memory from offset 1048576 on only through windows. At the end of a script,
//! every completion must have been polled.

use super::agent::pattern;
use super::configs::{Agents, Config, alone};
use super::line::Line;
use std::collections::HashMap;

const STATUSES: &[(&str, u32)] = &[
    ("ok", 0),
    ("loc_len", 1),
    ("loc_qp_op", 2),
    ("loc_prot", 4),
    ("flushed", 5),
    ("mw_bind", 6),
    ("loc_access", 8),
    ("rem_inv_req", 9),
    ("rem_access", 10),
    ("rem_op", 11),
    ("retry_exc", 12),
    ("rnr_retry_exc", 13),
];
const OPCODES: &[(&str, u32)] = &[
    ("send", 0),
    ("write", 1),
    ("read", 2),
    ("swap", 3),
    ("add", 4),
    ("bind", 5),
    ("invalidate", 6),
    ("recv", 128),
    ("recv_imm", 129),
];
const STATES: &[(&str, u32)] = &[("rts", 3), ("sqd", 4), ("sqe", 5), ("err", 6)];
const EVENTS: &[(&str, u32)] = &[
    ("cq_err", 0),
    ("qp_fatal", 1),
    ("qp_req_err", 2),
    ("qp_access_err", 3),
    ("comm_est", 4),
    ("sq_drained", 5),
    ("srq_limit", 15),
    ("last_wqe", 16),
];

fn value_of(names: &[(&str, u32)], name: &str) -> Result<u32, String> {
    let found = names.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| format!("unknown name {name:?}"))
}

/// Runs a script in every configuration.
pub(crate) fn in_every_config(script: &str) {
    run(script, Config::on_good_networks());
}

/// Runs a script in every configuration, and on a network that loses, duplicates and reorders
/// packets, which a reliable service hides.
pub(crate) fn on_every_network(script: &str) {
    run(script, Config::on_all_networks());
}

fn run(script: &str, configs: impl Iterator<Item = &'static Config> + Send) {
    let run = |config: &'static Config| Script::run(script, config).map_err(|why| format!("{}: {why}", config.name));
    let failures = configs.filter_map(|config| run(config).err());
    let failures: Vec<_> = alone(|| failures.collect());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A running script.
pub(crate) struct Script<'a> {
    agents: Agents<'a>,
    /// QPN or SRQ number by `END.NAME`.
    numbers: HashMap<String, u32>,
    /// Address and key of the memory of each end and of each window, by name.
    addresses: HashMap<String, (u64, u32)>,
}

impl<'a> Script<'a> {
    pub(crate) fn run(script: &str, config: &'a Config) -> Result<(), String> {
        let mut run = Self { agents: Agents::new(config)?, numbers: HashMap::new(), addresses: HashMap::new() };
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            run.line(line).map_err(|why| format!("{line}: {why}"))?;
        }
        for end in ["a", "b"] {
            let left = run.agents.ask(&format!("{end} left"))?;
            if left != "0" {
                return Err(format!("{left} completions of {end} were not polled"));
            }
        }
        Ok(())
    }

    fn line(&mut self, text: &str) -> Result<(), String> {
        if let Some(refused) = text.strip_prefix("! ") {
            let line = self.translate(refused)?;
            return match self.agents.ask(&line) {
                Ok(answer) => Err(format!("not refused: {answer}")),
                Err(why) if why.starts_with("refused") => Ok(()),
                Err(why) => Err(why),
            };
        }
        let line = Line::parse(text);
        match (line.end, line.verb) {
            ("pair", name) => self.pair(name, text),
            (_, "sent" | "got") => self.completion(&line),
            (_, "got_any") => self.any_order(&line),
            (_, "holds") => self.memory(&line, &pattern(line.part(0).1, line.number(0))),
            (_, "blank") => self.memory(&line, &vec![0; line.part(0).1]),
            (end, "word") => {
                let value: u64 = line.name(1).parse().map_err(|_| format!("{} is not a number", line.name(1)))?;
                let bytes = format!("{end} bytes {}+8", line.name(0));
                self.memory(&Line::parse(&bytes), &value.to_ne_bytes())
            }
            (_, "state") => {
                let state = value_of(STATES, line.name(1))?;
                self.expect(&format!("{} state {}", line.end, line.name(0)), &state.to_string())
            }
            (_, "event") => {
                let kind = value_of(EVENTS, line.name(0))?;
                self.expect(&format!("{} event", line.end), &format!("{kind} {}", line.name(1)))
            }
            (_, "woken") => self.expect(&format!("{} woken", line.end), line.name(0)),
            _ => self.command(text),
        }
    }

    fn expect(&mut self, request: &str, expected: &str) -> Result<(), String> {
        let answer = self.agents.ask(request)?;
        if answer == expected { Ok(()) } else { Err(format!("{answer} instead of {expected}")) }
    }

    /// Executes a line and records its results.
    fn command(&mut self, text: &str) -> Result<(), String> {
        let translated = self.translate(text)?;
        let answer = self.agents.ask(&translated)?;
        let (line, numbers) = (Line::parse(text), answer.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>());
        match (line.verb, numbers.as_deref()) {
            ("qp", Ok([number, _])) | ("xsrq", Ok([number])) => {
                self.numbers.insert(format!("{}.{}", line.end, line.name(0)), *number as u32);
            }
            ("send", Ok([addr, key])) => {
                let window = line.text("window").unwrap_or_default();
                self.addresses.insert(window.to_owned(), (*addr, *key as u32));
            }
            _ => {}
        }
        Ok(())
    }

    /// Creates a queue pair at each end and connects them.
    fn pair(&mut self, name: &str, text: &str) -> Result<(), String> {
        let line = Line::parse(text);
        let services = match line.name(0) {
            "xrc" => ["xrc", "xrc_target"],
            service => [service; 2],
        };
        let mut created = Vec::new();
        for (end, service) in ["a", "b"].into_iter().zip(services) {
            let own = |(key, value): &(&str, &str)| match key.split_once('.') {
                Some((of, key)) => (of == end).then(|| format!(" {key}={value}")),
                None => Some(format!(" {key}={value}")),
            };
            // On a lossy network retransmit after 67 ms instead of 268 ms.
            let timeout = if self.agents.loses() { " timeout=14" } else { "" };
            let values = line.values().iter().filter_map(own).chain([timeout.to_owned()]).collect::<String>();
            let words = if line.has("all_signaled") { " all_signaled" } else { "" };
            created.push(self.agents.ask(&format!("{end} qp {name} {service}{words}{values}"))?);
        }
        for (end, peer) in ["a", "b"].into_iter().zip(created.iter().rev()) {
            self.agents.ask(&format!("{end} connect {name} {peer}"))?;
        }
        for (end, own) in ["a", "b"].into_iter().zip(&created) {
            let number = own.split(' ').next().and_then(|number| number.parse().ok());
            self.numbers.insert(
                format!("{end}.{name}"),
                number.ok_or_else(|| format!("{own} does not begin with a queue pair number"))?,
            );
        }
        Ok(())
    }

    /// Replaces names in a line by the addresses, numbers and keys that an agent needs.
    fn translate(&mut self, text: &str) -> Result<String, String> {
        let end = text.split(' ').next().unwrap_or_default();
        let peer = if end == "a" { "b" } else { "a" };
        let mut words = Vec::new();
        for word in text.split_whitespace() {
            let wrong = u32::from(word.ends_with('!'));
            let bare = word.trim_end_matches('!');
            words.push(match (bare.strip_prefix('@'), bare.split_once('=')) {
                (Some(target), _) => {
                    let (name, offset) = target.split_once('+').unwrap_or((peer, target));
                    let (addr, key) = self.address(name)?;
                    let offset: u64 = offset.parse().map_err(|_| format!("{offset} is not a number"))?;
                    format!("at={} key={}", addr + offset, key ^ wrong)
                }
                (_, Some((key @ ("to" | "srqn"), name))) if name.contains('.') => {
                    format!("{key}={}", self.numbers.get(name).ok_or_else(|| format!("there is no {name}"))?)
                }
                (_, Some((key @ ("closes" | "key"), name))) if name.parse::<u32>().is_err() => {
                    format!("{key}={}", self.address(name)?.1 ^ wrong)
                }
                (_, Some(("group", last))) if last.parse::<u8>().is_ok() => format!("group={}", group(last)),
                _ if ["attach", "detach"].contains(&words.get(1).map_or("", String::as_str)) && words.len() == 3 => {
                    if word.contains('.') {
                        word.to_owned()
                    } else {
                        group(word)
                    }
                }
                _ => word.to_owned(),
            });
        }
        Ok(words.join(" "))
    }

    /// Returns address and key of an end's memory or of a window.
    fn address(&mut self, name: &str) -> Result<(u64, u32), String> {
        if let Some(address) = self.addresses.get(name) {
            return Ok(*address);
        }
        if !["a", "b"].contains(&name) {
            return Err(format!("the window {name} is not bound"));
        }
        let answer = self.agents.ask(&format!("{name} memory"))?;
        let address = answer.split_once(' ').and_then(|(addr, key)| Some((addr.parse().ok()?, key.parse().ok()?)));
        let address = address.ok_or_else(|| format!("{answer} is not an address and a key"))?;
        self.addresses.insert(name.to_owned(), address);
        Ok(address)
    }

    /// Checks the next completion of an end: number, status and, on success, operation and values.
    fn completion(&mut self, line: &Line<'_>) -> Result<(), String> {
        let answer = self.agents.ask(&format!("{} {}", line.end, line.verb))?;
        let values: Vec<u32> = answer.split(' ').map_while(|value| value.parse().ok()).collect();
        let [id, status, opcode, len, extra, qp, from, vendor] = values[..] else {
            return Err(format!("{answer} instead of a completion"));
        };
        let expected = value_of(STATUSES, line.name(1))?;
        if (id, status) != (line.number(0), expected) {
            return Err(format!("completion {id} with status {status}"));
        }
        if status == 0 && opcode != value_of(OPCODES, line.name(2))? {
            return Err(format!("operation {opcode}"));
        }
        for (key, value) in line.values() {
            let expected = match value.contains('.') {
                true => *self.numbers.get(*value).ok_or_else(|| format!("there is no {value}"))?,
                false if *key == "closed" => self.address(value)?.1,
                false => value.parse().map_err(|_| format!("{value} is not a number"))?,
            };
            let found = match *key {
                "len" => len,
                "imm" | "closed" => extra,
                "qp" => qp,
                "from" => from,
                "vendor" => vendor,
                other => return Err(format!("a completion has no {other}")),
            };
            if found != expected {
                return Err(format!("{key} is {found}, not {expected}"));
            }
        }
        Ok(())
    }

    /// Checks that the next two receives succeed with the numbers of the line, in any order.
    fn any_order(&mut self, line: &Line<'_>) -> Result<(), String> {
        let mut answers = [String::new(), String::new()];
        for answer in &mut answers {
            *answer = self.agents.ask(&format!("{} got", line.end))?;
        }
        let has_receive = |at| answers.iter().any(|answer| answer.starts_with(&format!("{} 0 128 ", line.name(at))));
        if has_receive(0) && has_receive(1) { Ok(()) } else { Err(format!("{answers:?}")) }
    }

    fn memory(&mut self, line: &Line<'_>, expected: &[u8]) -> Result<(), String> {
        let (offset, len) = line.part(0);
        let found = self.agents.ask(&format!("{} bytes {offset}+{len}", line.end))?;
        let expected: String = expected.iter().map(|byte| format!("{byte:02x}")).collect();
        match found.bytes().zip(expected.bytes()).position(|(one, other)| one != other) {
            None if found.len() == expected.len() => Ok(()),
            digit => Err(format!("byte {} of {len} differs", digit.map_or(len, |digit| digit / 2))),
        }
    }
}

/// Returns the address of a multicast group that only this process uses.
fn group(last: &str) -> String {
    let [one, other, ..] = std::process::id().to_le_bytes();
    format!("239.{one}.{other}.{last}")
}
