//! `roxe fuzz`: runs generated cases on a card and on roxe's transport, the model, and shortens
//! those that differ to scripts.
//!
//! `generate` makes cases as lines of a script. `compare` ignores differences that the standard
//! allows. The shortest lines that still differ become a script that expects the model's behaviour.
//! Every case has an honest connection, whose last packet the card must acknowledge. Cases are
//! pipelined (`Target::pipeline`); a difference must show again with new objects, as in its script.

mod generate;

use crate::layout;
use crate::run::trace::{Trace, trace};
use crate::script::steps::Step;
use crate::script::{Case, Script};
use crate::target::Target;
use crate::virtual_card::VirtualCard;
use generate::{NAMES, Random};
use roxe_peer::protocol::to_hex;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Options of [`fuzz`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Seed of the cases.
    pub seed: u64,
    /// Time after which no case begins.
    pub time: Duration,
    /// Largest number of cases.
    pub cases: u64,
    /// Time without a packet that ends a case.
    pub settle: Duration,
    /// True to leave out packets that are known to crash a kernel.
    pub spares: bool,
}

/// A difference between the card and the model.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Description without numbers, equal for all cases with this difference.
    pub cause: String,
    /// Seed of the first case.
    pub seed: u64,
    /// Number of cases.
    pub count: u64,
    /// The shortest script, which fails on the card and passes on the model.
    pub script: String,
}

/// The result of [`fuzz`].
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Number of cases, without runs to shorten them.
    pub cases: u64,
    /// Number of packets sent to the card.
    pub packets: u64,
    /// Total time.
    pub took: Duration,
    /// Time of reproducing and shortening, included in `took`.
    pub shortening: Duration,
    /// Packets of reproducing and shortening, included in `packets`.
    pub shortening_packets: u64,
    /// Differences that could not be reproduced, such as lost packets.
    pub passing: u64,
    /// Cases that the card refused.
    pub refused: u64,
    /// Findings, most frequent first.
    pub findings: Vec<Finding>,
}

/// Shortest time without a packet that ends a run to reproduce a difference.
const PATIENCE: Duration = Duration::from_millis(150);

struct Lab<'a> {
    card: &'a mut dyn Target,
    packets: u64,
    /// Cases that the card refused.
    refused: u64,
}

impl Lab<'_> {
    /// Runs these lines on card and model, and returns the difference.
    ///
    /// # Errors
    /// If the card is lost.
    fn difference(&mut self, lines: &[String], settle: Duration) -> Result<Option<Difference>, String> {
        // A shortened case may be invalid.
        let Ok(script) = Script::parse("fuzz", &lines.join("\n")) else { return Ok(None) };
        let [case] = script.cases() else { return Ok(None) };
        // A panic of roxe's transport is a finding, too.
        let model = catch_unwind(|| trace(case, &mut VirtualCard::default(), settle));
        let Ok(model) = model else { return Ok(Some(Difference::panic())) };
        let Some(model) = model? else { return Ok(None) };
        let card = catch_unwind(AssertUnwindSafe(|| trace(case, self.card, settle)));
        let Ok(card) = card else { return Ok(Some(Difference::panic())) };
        let Some(card) = card? else {
            self.refused += 1;
            return Ok(None);
        };
        self.packets += card.sent as u64;
        Ok(compare(case, &model, &card))
    }

    /// As [`Self::difference`], with new objects.
    fn difference_of_new(&mut self, lines: &[String], settle: Duration) -> Result<Option<Difference>, String> {
        self.card.renew().map_err(|refused| refused.to_string())?;
        self.difference(lines, settle)
    }

    /// Returns the fewest of these lines that differ as `found`, and their difference; `None` if it
    /// is not reproduced because a packet was lost or late.
    ///
    /// # Errors
    /// If the card is lost.
    fn shortest(
        &mut self,
        lines: &[String],
        found: &Difference,
        is_same: impl Fn(&Difference) -> bool,
        settle: Duration,
    ) -> Result<Option<(Vec<String>, Difference)>, String> {
        let patient = PATIENCE.max(settle);
        if !self.difference_of_new(lines, patient)?.is_some_and(|other| is_same(&other)) {
            return Ok(None);
        }
        let short = shorten(lines, found.qp.trim_start_matches('m'), |lines| {
            self.difference(lines, settle).map(|other| other.is_some_and(|other| is_same(&other)))
        })?;
        let sure = self.difference_of_new(&short, patient)?.filter(is_same);
        Ok(sure.map(|sure| (short, sure)))
    }
}

/// Searches for differences between `card` and the model, and calls `progress` for each new cause.
///
/// # Errors
/// If the card or its agent is lost; the text names the last case.
pub fn fuzz(card: &mut dyn Target, options: &Options, mut progress: impl FnMut(&Finding)) -> Result<Summary, String> {
    let start = Instant::now();
    let mut lab = Lab { card, packets: 0, refused: 0 };
    let mut found: BTreeMap<String, Finding> = BTreeMap::new();
    let mut summary = Summary::default();
    lab.card.pipeline().map_err(|refused| refused.to_string())?;
    let card = lab.card.card(false).ok_or("the card has no IPv4 address")?;
    while summary.cases < options.cases && start.elapsed() < options.time {
        let seed = options.seed.wrapping_add(summary.cases);
        let mut lines = generate::case(&mut Random::new(seed));
        if options.spares {
            generate::spare(&mut lines);
        }
        if card.near[1].is_zero() {
            generate::without_stranger(&mut lines);
        }
        generate::shorten_datagrams(&mut lines, card.max_datagram);
        let gone = |why: String| format!("{why}; the last case is that of --seed {seed}");
        summary.cases += 1;
        let refused = lab.refused;
        let difference = lab.difference(&lines, options.settle).map_err(gone)?;
        summary.refused += lab.refused - refused;
        let Some(difference) = difference else { continue };
        let cause = difference.cause(service(&lines));
        if let Some(known) = found.get_mut(&cause) {
            known.count += 1;
            continue;
        }
        let (begin, sent) = (Instant::now(), lab.packets);
        let is_same = |other: &Difference| other.cause(service(&lines)) == cause;
        let shown = lab.shortest(&lines, &difference, is_same, options.settle).map_err(gone)?;
        summary.shortening += begin.elapsed();
        summary.shortening_packets += lab.packets - sent;
        let Some((short, sure)) = shown else {
            summary.passing += 1;
            continue;
        };
        let script = script(&short, &sure, &cause, seed);
        let finding = Finding { cause: cause.clone(), seed, count: 1, script };
        progress(&finding);
        found.insert(cause, finding);
    }
    summary.findings = found.into_values().collect();
    summary.findings.sort_by_key(|finding| std::cmp::Reverse(finding.count));
    (summary.packets, summary.took) = (lab.packets, start.elapsed());
    Ok(summary)
}

/// Returns the service of the misbehaving connections.
fn service(lines: &[String]) -> &str {
    let services = lines.iter().filter_map(|line| line.strip_prefix("service "));
    services.clone().find(|service| *service != "RC").or_else(|| services.clone().next()).unwrap_or_default()
}

/// Most tries to shorten a case, and their time limit.
const TRIES: usize = 150;
const TIME: Duration = Duration::from_secs(10);
/// Settle time for the model, in virtual time.
const SETTLE: Duration = Duration::from_millis(5);

/// Removes lines while `shows` returns true for the rest: first connections other than `qp`, then
/// the earlier packets of a connection, then halves, quarters and so on (delta debugging).
///
/// # Errors
/// As `shows`.
fn shorten(
    lines: &[String],
    qp: &str,
    mut shows: impl FnMut(&[String]) -> Result<bool, String>,
) -> Result<Vec<String>, String> {
    let (mut tries, begin) = (0, Instant::now());
    let mut try_instead = |lines: &mut Vec<String>, rest: Vec<String>| {
        if rest.len() >= lines.len() || tries >= TRIES || begin.elapsed() > TIME {
            return Ok(false);
        }
        tries += 1;
        let is_enough = shows(&rest)?;
        if is_enough {
            *lines = rest;
        }
        Ok::<_, String>(is_enough)
    };
    let mut lines = lines.to_vec();
    let without = |lines: &[String], names: &[&str]| {
        let goes = |line: &&String| !names.iter().any(|name| is_about(line, name));
        lines.iter().filter(goes).cloned().collect()
    };
    let others: Vec<_> = NAMES.into_iter().filter(|name| *name != qp).collect();
    let rest = without(&lines, &others);
    if !try_instead(&mut lines, rest)? {
        for name in NAMES {
            let rest = without(&lines, &[name]);
            try_instead(&mut lines, rest)?;
        }
    }
    for name in NAMES {
        for rest in later_beginnings(&lines, name) {
            if try_instead(&mut lines, rest)? {
                break;
            }
        }
    }
    let mut size = lines.len().next_power_of_two();
    while size > 1 {
        size /= 2;
        let mut at = 0;
        while at < lines.len() {
            let end = at + size;
            let stays = |(place, line): &(usize, &String)| !(at..end).contains(place) || !may_go(line);
            let rest = lines.iter().enumerate().filter(stays).map(|(_, line)| line.clone()).collect();
            if !try_instead(&mut lines, rest)? {
                at = end;
            }
        }
    }
    Ok(lines)
}

/// Returns cases in which the connection `qp` begins with a later packet: the last one, the one
/// before it, and so on.
fn later_beginnings(lines: &[String], qp: &str) -> Vec<Vec<String>> {
    let of = format!("of={qp}");
    let is_send = |line: &str| line.starts_with("send ") && line.split_whitespace().any(|word| word == of);
    let sends: Vec<_> = lines.iter().enumerate().filter(|(_, line)| is_send(line)).map(|(at, _)| at).collect();
    let value =
        |line: &'_ str, name: &str| line.split_whitespace().find_map(|word| Some(word.strip_prefix(name)?.to_owned()));
    let begins_at = |first: &usize| {
        let psn = value(&lines[*first], "psn=")?;
        let kept = lines.iter().enumerate().filter(|(at, line)| at >= first || !is_send(line));
        let begun = kept.map(|(_, line)| match value(line, "rq_psn=") {
            Some(old) if line.starts_with(&format!("peer qp {qp} ")) => {
                line.replace(&format!("rq_psn={old}"), &format!("rq_psn={psn}"))
            }
            _ => line.clone(),
        });
        Some(begun.collect())
    };
    sends.iter().skip(1).rev().filter_map(begins_at).collect()
}

fn is_about(line: &str, qp: &str) -> bool {
    let region = format!("m{qp}");
    line.split_whitespace().any(|word| word == qp || word.strip_prefix("of=") == Some(qp) || word == region)
}

/// Returns true for a line that may be removed. The honest connection and creations of objects
/// stay.
fn may_go(line: &str) -> bool {
    (line.starts_with("send ") && !is_about(line, "h"))
        || line.starts_with("peer recv ")
        || line.starts_with("peer post ")
        || line.starts_with("peer reg ro ")
}

/// Returns the script of a case, which expects exactly the model's behaviour. It checks only the
/// byte of memory that differs.
fn script(lines: &[String], difference: &Difference, cause: &str, seed: u64) -> String {
    let all = traced(lines).unwrap_or_default();
    let answers: Vec<_> = all.answers.iter().filter(|(qp, _)| qp != "h").collect();
    let mut text = format!("# {cause}\n# Found by `roxe fuzz --seed {seed} --cases 1`.\n");
    let mut told = 0;
    for (at, line) in lines.iter().enumerate() {
        let _ = writeln!(text, "{line}");
        if line.starts_with("send ") && !is_about(line, "h") {
            // The model's answers to this line are those that it does not send without the line.
            let known = common(&answers, &with_honest(lines, at));
            tell(&mut text, &answers[told..known.max(told)]);
            told = known.max(told);
        }
        if line.starts_with("send ") && is_about(line, "h") {
            tell(&mut text, &answers[told..]);
            told = answers.len();
            text += "expect ACK psn=100 of=h\n";
        }
    }
    for (qp, done) in all.completions.iter().filter(|(qp, _)| *qp != "h") {
        done.iter().for_each(|done| {
            let _ = writeln!(text, "peer complete {qp} {done}");
        });
        let _ = writeln!(text, "peer idle {qp} for 100ms\npeer state {qp} {}", all.states[qp]);
    }
    if let Some((at, value)) = difference.byte {
        let _ = writeln!(text, "peer memory {} at={at} hex={value:02x}", difference.qp);
    }
    text
}

fn tell(text: &mut String, answers: &[&(String, Vec<u8>)]) {
    for (qp, packet) in answers {
        if let Some(packet) = describe(packet) {
            let _ = writeln!(text, "expect {packet} of={qp}");
        }
    }
}

fn traced(lines: &[String]) -> Option<Trace> {
    let script = Script::parse("fuzz", &lines.join("\n")).ok()?;
    trace(script.cases().first()?, &mut VirtualCard::default(), SETTLE).ok().flatten()
}

/// Returns the model's answers to the lines up to `at`.
fn with_honest(lines: &[String], at: usize) -> Vec<(String, Vec<u8>)> {
    let honest = lines[at + 1..].iter().filter(|line| line.starts_with("service ") || is_about(line, "h"));
    let lines: Vec<_> = lines[..=at].iter().chain(honest).cloned().collect();
    let mut answers = traced(&lines).unwrap_or_default().answers;
    answers.retain(|(qp, _)| qp != "h");
    answers
}

/// Returns the number of equal answers at the beginning.
fn common(all: &[&(String, Vec<u8>)], some: &[(String, Vec<u8>)]) -> usize {
    all.iter().zip(some).take_while(|(all, some)| **all == *some).count()
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Difference {
    /// Answers, completions, the state, memory, or the honest connection.
    what: &'static str,
    qp: String,
    model: String,
    card: String,
    /// Offset of the first byte of memory that differs, and its value on the model.
    byte: Option<(usize, u8)>,
}

impl Difference {
    /// Returns the difference of a case in which roxe's transport panics.
    fn panic() -> Self {
        let nothing = String::new();
        Self { what: "panic", qp: nothing.clone(), model: nothing.clone(), card: nothing, byte: None }
    }

    /// Describes the difference without numbers, which vary between cases of one cause.
    fn cause(&self, service: &str) -> String {
        let words = |text: &str| {
            let keep = |word: &&str| !word.contains('=') || word.starts_with("status=") || word.starts_with("opcode=");
            text.split_whitespace().filter(keep).collect::<Vec<_>>().join(" ")
        };
        format!("{service} {}: model: {}; card: {}", self.what, words(&self.model), words(&self.card))
    }
}

/// Returns the first difference.
fn compare(case: &Case, model: &Trace, card: &Trace) -> Option<Difference> {
    let difference = |what, qp: &str, model: &str, card: &str| {
        Some(Difference { what, qp: qp.to_owned(), model: model.to_owned(), card: card.to_owned(), byte: None })
    };
    if !card.is_alive {
        return difference("the honest connection", "h", "ACK", "nothing");
    }
    let (ours, theirs) = (answers(model), answers(card));
    let nothing = Vec::new();
    for qp in model.states.keys() {
        let of = |all: &BTreeMap<String, Vec<String>>| all.get(qp).unwrap_or(&nothing).clone();
        let (mut ours, mut theirs) = (of(&ours), of(&theirs));
        let asked = last_asked(case, qp);
        let is_free = |list: &[String]| {
            list.last().is_some_and(|last| last.starts_with("ACK ") && !last.contains(&format!("psn={asked} ")))
        };
        for list in [&mut ours, &mut theirs] {
            if is_free(list) {
                list.pop();
            }
        }
        if let Some((ours, theirs)) = first(&ours, &theirs) {
            return difference("answers", qp, &ours, &theirs);
        }
        if let Some((ours, theirs)) = first(&model.completions[qp], card.completions.get(qp).unwrap_or(&nothing)) {
            return difference("completions", qp, &ours, &theirs);
        }
        let (ours, theirs) = (&model.states[qp], card.states.get(qp).map_or("", String::as_str));
        if ours != theirs {
            return difference("state", qp, ours, theirs);
        }
    }
    for (name, ours) in &model.memory {
        let theirs = card.memory.get(name).map_or(&[][..], Vec::as_slice);
        if let Some(at) = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs) {
            let (model, card) = (format!("byte at={at} value={}", ours[at]), format!("byte value={}", theirs[at]));
            return Some(Difference { what: "memory", qp: name.clone(), model, card, byte: Some((at, ours[at])) });
        }
    }
    None
}

/// Returns the first elements that differ.
fn first(ours: &[String], theirs: &[String]) -> Option<(String, String)> {
    let at = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))?;
    let get = |list: &[String]| list.get(at).cloned().unwrap_or_else(|| "nothing".to_owned());
    Some((get(ours), get(theirs)))
}

/// Describes the answers by queue pair, without differences that the standard allows.
fn answers(trace: &Trace) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (qp, packet) in &trace.answers {
        let Some(text) = describe(packet) else { continue };
        let list = all.entry(qp.clone()).or_default();
        if list.last().is_some_and(|last| last.starts_with("ACK ")) {
            list.pop();
        }
        let is_request = packet[0] & 0x1f < 0x0d || packet[0] & 0x1f > 0x12;
        if !is_request || !list.contains(&text) {
            list.push(text);
        }
    }
    all
}

/// Returns a packet in the notation of scripts; `None` for a CNP.
fn describe(packet: &[u8]) -> Option<String> {
    let opcode = *packet.first()?;
    if opcode == 0x81 {
        return None;
    }
    let get = |name| layout::get(packet, name).unwrap_or_default();
    let (_, len) = layout::fields(opcode);
    let payload = layout::payload(packet, len).unwrap_or_default();
    let name = roxe_wire::Opcode::from_u8(opcode)
        .map_or_else(|| format!("{opcode:#04x}"), |opcode| opcode.facts().name.to_owned());
    let (psn, syndrome, msn) = (get("psn"), get("syndrome"), get("msn"));
    Some(match (opcode & 0x1f, syndrome) {
        (0x11, 0..0x20) => format!("ACK psn={psn} msn={msn}"),
        (0x11, 0x20..0x40) => format!("RNR psn={psn} timer={} msn={msn}", syndrome & 0x1f),
        (0x11, 0x60..0x65) => format!("NAK {} psn={psn} msn={msn}", layout::NAKS[(syndrome & 7) as usize]),
        (0x11, _) => format!("ACK psn={psn} syndrome={syndrome:#x}"),
        (0x12, _) => format!("ATOMIC_ACK psn={psn} original={}", get("original")),
        (0x0d..=0x10, _) if payload.len() <= 64 && !payload.is_empty() => {
            format!("{name} psn={psn} hex={}", to_hex(payload))
        }
        _ => format!("{name} psn={psn}"),
    })
}

/// Returns the PSN of the last packet to `qp`, if that requests an acknowledgement.
fn last_asked(case: &Case, qp: &str) -> String {
    let sends = case.lines.iter().rev().filter_map(|line| match &line.step {
        Step::Send(spec) if spec.qp.as_deref() == Some(qp) => Some(spec),
        _ => None,
    });
    let asked = sends.take(1).find_map(|spec| {
        let value = |name: &str| {
            let (_, number) = spec.fields.iter().find(|(known, _)| known == name)?;
            number.value(&case.names).ok()
        };
        value("ackreq").filter(|asks| *asks == 1).and_then(|_| value("psn"))
    });
    asked.map_or_else(|| "-".to_owned(), |psn| psn.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorten_removes_irrelevant_lines() {
        let lines: Vec<_> = ["peer qp q", "peer recv q id=1", "send A of=q", "send B of=q", "send C of=r", "peer qp r"]
            .map(str::to_owned)
            .into();
        let shows =
            |lines: &[String]| Ok(["peer qp q", "send B of=q"].iter().all(|line| lines.contains(&(*line).to_owned())));
        assert_eq!(shorten(&lines, "q", shows).unwrap(), ["peer qp q", "send B of=q"]);
    }

    #[test]
    fn shorten_starts_connection_with_relevant_packet() {
        let lines = ["peer qp q rq_psn=5", "send A psn=5 of=q", "send B psn=6 of=q", "send C psn=7 of=q"];
        let lines: Vec<_> = lines.map(str::to_owned).into();
        let shows =
            |lines: &[String]| Ok(lines.starts_with(&["peer qp q rq_psn=6", "send B psn=6 of=q"].map(str::to_owned)));
        assert_eq!(shorten(&lines, "q", shows).unwrap(), ["peer qp q rq_psn=6", "send B psn=6 of=q"]);
    }
}
