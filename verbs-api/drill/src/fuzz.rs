//! `roxe fuzz`: runs generated cases on a card and on roxe's transport, the model. Shortens cases
//! in which the two differ to scripts.
//!
//! `generate` makes cases as lines of a script. `compare` ignores differences that the standard
//! allows, `title` describes the others. The fewest lines that still show a difference become a
//! script that expects the model's behaviour. Every case has an honest connection, whose packets
//! the card must acknowledge. Cases are pipelined (`Target::pipeline`); a difference must occur
//! again with new objects, as when its script runs.

mod compare;
mod generate;
mod title;

use crate::run::trace::{Trace, shared_queue, trace};
use crate::script::Script;
use crate::target::Target;
use crate::virtual_card::VirtualCard;
use compare::{Difference, DifferenceKind, describe, differences};
use generate::{NAMES, Random};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Maximum number of cases.
    pub cases: u64,
    /// Time without a packet that ends a case.
    pub settle: Duration,
    /// True if packets that are known to crash a kernel are left out.
    pub spares: bool,
}

/// A difference between the card and the model.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Description without numbers, equal for all cases with this difference.
    pub cause: String,
    /// Behaviour of the model and of the card in the script.
    pub example: [String; 2],
    /// Seed of the first case.
    pub seed: u64,
    /// Number of cases.
    pub count: u64,
    /// The shortest script, which fails on the card and passes on the model.
    pub script: String,
}

/// A difference that does not occur again when its case is repeated.
#[derive(Clone, Debug, Default)]
pub struct Unreproduced {
    /// Number of cases.
    pub count: u64,
    /// Seed of the last case.
    pub seed: u64,
    /// Behaviour of the model and of the card in that case.
    pub example: [String; 2],
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
    /// Additional time for the card, and time of reproducing and shortening; included in `took`.
    pub shortening: Duration,
    /// Packets of reproducing and shortening, included in `packets`.
    pub shortening_packets: u64,
    /// Cases with a difference that does not occur again, such as a lost packet.
    pub passing: u64,
    /// Differences that do not occur again, by their causes.
    pub once: BTreeMap<String, Unreproduced>,
    /// Cases in which the card behaved like the model only in its additional time.
    pub late: u64,
    /// Cases that the card refused.
    pub refused: u64,
    /// Findings, most frequent first.
    pub findings: Vec<Finding>,
}

/// Minimum time without a packet that ends a run to reproduce a difference.
const MIN_SETTLE_TO_REPRODUCE: Duration = Duration::from_millis(150);

/// The card, and counts of the cases that ran on it.
struct CardRunner<'a> {
    card: &'a mut dyn Target,
    packets: u64,
    /// Cases that the card refused.
    refused: u64,
    /// Cases in which the card was late.
    late: u64,
    /// Additional time that the card got.
    waited: Duration,
}

/// A function that returns true if the card needs no additional time because of a difference.
type IsKnown<'a> = &'a dyn Fn(&Difference) -> bool;

impl CardRunner<'_> {
    /// Runs these lines on card and model, and returns the differences. A card with an unknown
    /// difference gets additional time. Fails if the card is lost.
    fn differences(
        &mut self,
        lines: &[String],
        settle: Duration,
        is_known: IsKnown<'_>,
    ) -> Result<Vec<Difference>, String> {
        // A shortened case may be invalid.
        let Ok(script) = Script::parse("fuzz", &lines.join("\n")) else { return Ok(Vec::new()) };
        let [case] = script.cases() else { return Ok(Vec::new()) };
        // A panic of roxe's transport is a finding, too.
        let model = catch_unwind(|| trace(case, &mut VirtualCard::default(), settle, None));
        let Ok(model) = model else { return Ok(vec![Difference::panic()]) };
        let Some(model) = model? else { return Ok(Vec::new()) };
        let is_enough = |card: &Trace| differences(case, &model, card).iter().all(is_known);
        let expected = Some((&model, &is_enough as &dyn Fn(&Trace) -> bool));
        let card = catch_unwind(AssertUnwindSafe(|| trace(case, self.card, settle, expected)));
        let Ok(card) = card else { return Ok(vec![Difference::panic()]) };
        let Some(card) = card? else {
            self.refused += 1;
            return Ok(Vec::new());
        };
        self.packets += card.sent as u64;
        self.late += u64::from(card.is_late);
        self.waited += card.waited;
        Ok(differences(case, &model, &card))
    }

    /// Runs these lines with new objects and more time, and returns the difference that `is_same`.
    /// Fails if the card is lost.
    fn reproduce(
        &mut self,
        lines: &[String],
        is_same: IsKnown<'_>,
        settle: Duration,
    ) -> Result<Option<Difference>, String> {
        self.card.renew().map_err(|refused| refused.to_string())?;
        let found = self.differences(lines, MIN_SETTLE_TO_REPRODUCE.max(settle), &|_| false)?;
        Ok(found.into_iter().find(is_same))
    }

    /// Returns the fewest of these lines that show the difference `found`, and their difference;
    /// `None` if the difference does not occur again. Fails if the card is lost.
    fn shortest(
        &mut self,
        lines: &[String],
        found: &Difference,
        is_same: IsKnown<'_>,
        settle: Duration,
    ) -> Result<Option<(Vec<String>, Difference)>, String> {
        if self.reproduce(lines, is_same, settle)?.is_none() {
            return Ok(None);
        }
        let short = shorten(lines, &found.qp, |lines| {
            self.differences(lines, settle, &|_| true).map(|all| all.iter().any(is_same))
        })?;
        let reproduced = self.reproduce(&short, is_same, settle)?;
        Ok(reproduced.map(|difference| (short, difference)))
    }
}

/// Searches for differences between `card` and the model, and calls `progress` for each new cause.
/// Fails if the card or its agent is lost; the text names the last case.
pub fn fuzz(card: &mut dyn Target, options: &Options, mut progress: impl FnMut(&Finding)) -> Result<Summary, String> {
    let start = Instant::now();
    let mut runner = CardRunner { card, packets: 0, refused: 0, late: 0, waited: Duration::ZERO };
    let mut found: BTreeMap<String, Finding> = BTreeMap::new();
    let mut summary = Summary::default();
    runner.card.pipeline().map_err(|refused| refused.to_string())?;
    let card = runner.card.card(false).ok_or("the card has no IPv4 address")?;
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
        let with_seed = |why: String| format!("{why}; the last case is that of --seed {seed}");
        let cause_of = |difference: &Difference| difference.cause(service(&lines), is_requester(&lines));
        summary.cases += 1;
        let (refused, late, waited) = (runner.refused, runner.late, runner.waited);
        let is_known = |difference: &Difference| found.contains_key(&cause_of(difference));
        let differing = runner.differences(&lines, options.settle, &is_known).map_err(with_seed)?;
        summary.refused += runner.refused - refused;
        summary.late += runner.late - late;
        summary.shortening += runner.waited - waited;
        let (mut causes, mut is_unreproduced) = (BTreeSet::new(), false);
        for difference in differing {
            let cause = cause_of(&difference);
            if !causes.insert(cause.clone()) {
                continue;
            }
            if let Some(known) = found.get_mut(&cause) {
                known.count += 1;
                continue;
            }
            let (begin, sent) = (Instant::now(), runner.packets);
            let is_same = |other: &Difference| cause_of(other) == cause;
            let shortest = runner.shortest(&lines, &difference, &is_same, options.settle).map_err(with_seed)?;
            summary.shortening += begin.elapsed();
            summary.shortening_packets += runner.packets - sent;
            let Some((short, difference)) = shortest else {
                is_unreproduced = true;
                let once = summary.once.entry(cause).or_default();
                *once = Unreproduced { count: once.count + 1, seed, example: [difference.model, difference.card] };
                continue;
            };
            let script = script(&short, &difference, &cause, seed);
            let example = [difference.model, difference.card];
            let finding = Finding { cause: cause.clone(), example, seed, count: 1, script };
            progress(&finding);
            found.insert(cause, finding);
        }
        summary.passing += u64::from(is_unreproduced);
    }
    summary.findings = found.into_values().collect();
    summary.findings.sort_by_key(|finding| std::cmp::Reverse(finding.count));
    (summary.packets, summary.took) = (runner.packets, start.elapsed());
    Ok(summary)
}

/// Returns true if the card is the requester.
fn is_requester(lines: &[String]) -> bool {
    lines.iter().any(|line| line.starts_with("peer post "))
}

/// Returns the service of the misbehaving connections.
fn service(lines: &[String]) -> &str {
    let services = lines.iter().filter_map(|line| line.strip_prefix("service "));
    services.clone().find(|service| *service != "RC").or_else(|| services.clone().next()).unwrap_or_default()
}

/// Maximum number of runs that shorten a case.
const MAX_TRIES: usize = 150;
/// Time limit for shortening a case.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Time without a packet that ends a run of the model, on the virtual clock.
const MODEL_SETTLE: Duration = Duration::from_millis(5);

/// Removes lines while `shows` returns true for the rest. Removes connections other than `qp`
/// first, then the earlier packets of a connection, then halves, quarters and so on (delta
/// debugging). Fails like `shows`.
fn shorten(
    lines: &[String],
    qp: &str,
    mut shows: impl FnMut(&[String]) -> Result<bool, String>,
) -> Result<Vec<String>, String> {
    let (mut tries, begin) = (0, Instant::now());
    let mut try_instead = |lines: &mut Vec<String>, rest: Vec<String>| {
        if rest.len() >= lines.len() || tries >= MAX_TRIES || begin.elapsed() > MAX_TIME {
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
        let stays = |line: &&String| !names.iter().any(|name| is_about(line, name));
        lines.iter().filter(stays).cloned().collect()
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
            let stays = |(place, line): &(usize, &String)| !(at..end).contains(place) || !is_removable(line);
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
    let of_qp = format!("of={qp}");
    let is_send = |line: &str| line.starts_with("send ") && line.split_whitespace().any(|word| word == of_qp);
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
    let own = [qp, &format!("m{qp}"), &shared_queue(qp)];
    line.split_whitespace().any(|word| own.contains(&word) || word.strip_prefix("of=") == Some(qp))
}

/// Returns true for a line that may be removed. Lines that create objects, and those of the honest
/// connection, stay.
fn is_removable(line: &str) -> bool {
    (line.starts_with("send ") && !is_about(line, "h"))
        || line.starts_with("peer recv ")
        || line.starts_with("peer post ")
        || line.starts_with("peer limit ")
        || line.starts_with("peer reg ro ")
}

/// Returns the script of a case, which expects exactly the model's behaviour. The script checks
/// only the bytes of memory that differ, and checks events only if they differ.
fn script(lines: &[String], difference: &Difference, cause: &str, seed: u64) -> String {
    let all = model_trace(lines).unwrap_or_default();
    let answers: Vec<_> = all.answers.iter().filter(|(qp, _)| qp != "h").collect();
    let mut text = format!("# {cause}\n# Found by `roxe fuzz --seed {seed} --cases 1`.\n");
    let mut written = 0;
    for (index, line) in lines.iter().enumerate() {
        _ = writeln!(text, "{line}");
        if line.starts_with("send ") && !is_about(line, "h") {
            // Writes the answers that the model has sent up to this line and that are not written.
            let known = common_len(&answers, &model_answers(lines, index));
            write_expected(&mut text, &answers[written..known.max(written)]);
            written = known.max(written);
        }
        if line.starts_with("send ") && is_about(line, "h") {
            write_expected(&mut text, &answers[written..]);
            written = answers.len();
            text += "expect ACK psn=100 of=h\n";
        }
    }
    for (qp, done) in all.completions.iter().filter(|(qp, _)| *qp != "h") {
        done.iter().for_each(|done| {
            _ = writeln!(text, "peer complete {qp} {done}");
        });
        _ = writeln!(text, "peer idle {qp} for 100ms\npeer state {qp} {}", all.states[qp]);
    }
    if let Some(check) = &difference.check {
        _ = writeln!(text, "{check}");
    }
    if difference.kind == DifferenceKind::Events {
        for (qp, events) in &all.events {
            for event in events {
                let source = if event.starts_with("SRQ_") { shared_queue(qp) } else { qp.clone() };
                _ = writeln!(text, "peer event {event} of={source}");
            }
        }
        text += "peer event none for 100ms\n";
    }
    text
}

fn write_expected(text: &mut String, answers: &[&(String, Vec<u8>)]) {
    for (qp, packet) in answers {
        if let Some(packet) = describe(packet) {
            _ = writeln!(text, "expect {packet} of={qp}");
        }
    }
}

fn model_trace(lines: &[String]) -> Option<Trace> {
    let script = Script::parse("fuzz", &lines.join("\n")).ok()?;
    trace(script.cases().first()?, &mut VirtualCard::default(), MODEL_SETTLE, None).ok().flatten()
}

/// Returns the model's answers if the case ends with line `at` and the honest connection.
fn model_answers(lines: &[String], at: usize) -> Vec<(String, Vec<u8>)> {
    let honest = lines[at + 1..].iter().filter(|line| line.starts_with("service ") || is_about(line, "h"));
    let lines: Vec<_> = lines[..=at].iter().chain(honest).cloned().collect();
    let mut answers = model_trace(&lines).unwrap_or_default().answers;
    answers.retain(|(qp, _)| qp != "h");
    answers
}

/// Returns the number of equal answers at the beginning.
fn common_len(all: &[&(String, Vec<u8>)], some: &[(String, Vec<u8>)]) -> usize {
    all.iter().zip(some).take_while(|(all, some)| **all == *some).count()
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
