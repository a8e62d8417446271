//! The fewest lines of a case that still show a difference, and the script that they become.

use super::compare::{Difference, describe};
use super::generate::NAMES;
use crate::run::trace::{Trace, trace};
use crate::script::Script;
use crate::virtual_card::VirtualCard;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// The most tries to leave something out, and the longest time for them.
const TRIES: usize = 150;
const TIME: Duration = Duration::from_secs(10);
/// Long enough for what the model does by itself, which takes no time.
const SETTLE: Duration = Duration::from_millis(5);

/// Leaves out lines as long as `shows` says that what is left shows the same: connections other
/// than `qp` first, then what a connection has sent before some packet, then halves, quarters and
/// so on of what may go (delta debugging).
///
/// # Errors
/// That of `shows`.
pub(super) fn shorten(
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

/// The case with a connection that expects one of its later packets first, the last one, the one
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

/// What a case can do without. The honest connection stays, and what objects are made from.
fn may_go(line: &str) -> bool {
    (line.starts_with("send ") && !is_about(line, "h"))
        || line.starts_with("peer recv ")
        || line.starts_with("peer post ")
        || line.starts_with("peer reg ro ")
}

/// The script of a case: it expects what the model does, and nothing more, and says what all this
/// is about. Of memory it looks at the byte that differs.
pub(super) fn script(lines: &[String], difference: &Difference, cause: &str, seed: u64) -> String {
    let all = traced(lines).unwrap_or_default();
    let answers: Vec<_> = all.answers.iter().filter(|(qp, _)| qp != "h").collect();
    let mut text = format!("# {cause}\n# Found by `roxe fuzz --seed {seed} --cases 1`.\n");
    let mut told = 0;
    for (at, line) in lines.iter().enumerate() {
        let _ = writeln!(text, "{line}");
        if line.starts_with("send ") && !is_about(line, "h") {
            // What the model answers to this line is what it does not answer without it.
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

/// The model's trace.
fn traced(lines: &[String]) -> Option<Trace> {
    let script = Script::parse("fuzz", &lines.join("\n")).ok()?;
    trace(script.cases().first()?, &mut VirtualCard::default(), SETTLE).ok().flatten()
}

/// The model's answers to all lines up to `at`, and to the honest connection.
fn with_honest(lines: &[String], at: usize) -> Vec<(String, Vec<u8>)> {
    let honest = lines[at + 1..].iter().filter(|line| line.starts_with("service ") || is_about(line, "h"));
    let lines: Vec<_> = lines[..=at].iter().chain(honest).cloned().collect();
    let mut answers = traced(&lines).unwrap_or_default().answers;
    answers.retain(|(qp, _)| qp != "h");
    answers
}

/// How many of the first answers are the same.
fn common(all: &[&(String, Vec<u8>)], some: &[(String, Vec<u8>)]) -> usize {
    all.iter().zip(some).take_while(|(all, some)| **all == *some).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let lines: Vec<_> = ["peer qp q", "peer recv q id=1", "send A of=q", "send B of=q", "send C of=r", "peer qp r"]
            .map(str::to_owned)
            .into();
        let shows =
            |lines: &[String]| Ok(["peer qp q", "send B of=q"].iter().all(|line| lines.contains(&(*line).to_owned())));
        assert_eq!(shorten(&lines, "q", shows).unwrap(), ["peer qp q", "send B of=q"]);
    }

    #[test]
    fn a_connection_begins_with_the_packet_that_matters() {
        let lines = ["peer qp q rq_psn=5", "send A psn=5 of=q", "send B psn=6 of=q", "send C psn=7 of=q"];
        let lines: Vec<_> = lines.map(str::to_owned).into();
        let shows =
            |lines: &[String]| Ok(lines.starts_with(&["peer qp q rq_psn=6", "send B psn=6 of=q"].map(str::to_owned)));
        assert_eq!(shorten(&lines, "q", shows).unwrap(), ["peer qp q rq_psn=6", "send B psn=6 of=q"]);
    }
}
