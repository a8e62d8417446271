//! Every expectation of the catalogue can fail: each one, altered, makes its script fail with
//! roxe's own transport, and so does a card that sends or completes what a script forbids.

use crate::catalogue::scripts_of_the_folder;
use crate::fuzz::{Mistake, Wrong};
use roxe_drill::conform::{self, Deviations};
use roxe_drill::{Script, Target, Verdict, VirtualCard};
use std::fs;

/// Alterations that pass: a part of the script's name, the altered line (none: it is left out), and
/// the reason.
const UNTOLD: &[(&str, &str, &str)] = &[
    ("congestion/cnp", "", "other steps pass over CNPs, which a card may send for any packet"),
    ("congestion/marked", "", "other steps pass over CNPs, which a card may send for any packet"),
    ("requester/modify_timeout", "", "the answer that follows comes before the packet would be sent again"),
    ("requester/nak_then_timeout", "", "the answer that follows comes before the packets would be sent again"),
    ("requester/old_ack_timer", "", "the same packet, sent again, is counted later"),
    ("requester/retries_after_rnr", "", "the answer that follows comes before the packet would be sent again"),
    ("requester/retries_apart", "", "the next step expects the same packet, sent again"),
    ("requester/second_life_retries", "", "RESET comes before the packet would be sent again"),
    ("requester/second_life_rnr_retries", "", "the answer that follows comes before the packet would be sent again"),
    ("requester/retry_reload", "", "the next step expects the same packet, sent again"),
    ("requester/rnr_", "", "the answer that follows comes before the packet would be sent again"),
    ("requester/timer_among_requests", "", "the same packet, sent again, is counted later"),
    ("requester/timer_fresh", "", "the answer that follows comes before the packet would be sent again"),
    ("requester/timeout_long", "", "the answer that follows comes before the packet would be sent again"),
    ("responder/ack_within_message", "", "a later ACK covers it, as a card may send one for several packets"),
    ("responder/duplicate_in_", "", "a later ACK covers it, as a card may send one for several packets"),
    ("responder/mtu_exact", "", "a later ACK covers it, as a card may send one for several packets"),
    ("responder/srq_limit_below", "", "a later ACK covers it, as a card may send one for several packets"),
    ("responder/srq_limits", "", "a later ACK covers it, as a card may send one for several packets"),
    ("responder/wrap_", "", "a later ACK covers it, as a card may send one for several packets"),
    ("responder/write_imm_", "", "a later ACK covers it, as a card may send one for several packets"),
    ("robustness/flood_duplicates", "", "a later ACK covers it, as a card may send one for several packets"),
];

/// A changed script: the number of the changed line, its text, and the script.
struct Altered {
    line: usize,
    change: String,
    text: String,
}

fn scripts() -> Vec<(String, String)> {
    scripts_of_the_folder().into_iter().map(|(name, path)| (name, fs::read_to_string(path).unwrap())).collect()
}

/// Returns the altered lines that replace an expectation.
fn alterations(line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let replaced = |at: usize, word: String| {
        let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        words[at] = word;
        words.join(" ")
    };
    let mut altered = Vec::new();
    if let ["peer", verb @ .., "refused"] = &words[..] {
        altered.push(format!("peer {}", verb.join(" ")));
        return altered;
    }
    let numbers_from = match words[..] {
        ["expect", opcode, ..] => {
            altered.push(String::new());
            altered.push(replaced(1, if opcode == "CNP" { "ACK" } else { "CNP" }.to_owned()));
            2
        }
        ["count", ..] => {
            let range = words.iter().position(|word| word.starts_with("range="));
            altered.extend(range.map(|at| replaced(at, "range=9999..9999".to_owned())));
            return altered;
        }
        ["peer", "attributes" | "complete" | "memory" | "checksum" | "request" | "cm", ..] => 3,
        ["peer", "state", _, state, ..] => {
            altered.push(replaced(3, if state == "ERR" { "RTS" } else { "ERR" }.to_owned()));
            return altered;
        }
        ["peer", "event", event, ..] => {
            altered.push(replaced(2, if event == "COMM_EST" { "SQ_DRAINED" } else { "COMM_EST" }.to_owned()));
            return altered;
        }
        _ => return altered,
    };
    for (index, word) in words.iter().enumerate().skip(numbers_from) {
        if let Some((name, value)) = word.split_once('=') {
            let changed = match name {
                "as" | "of" | "since" => continue,
                "status" if value == "SUCCESS" => "LOC_LEN_ERR".to_owned(),
                "status" => "SUCCESS".to_owned(),
                "access" => if value == "none" { "all" } else { "none" }.to_owned(),
                "migration" => if value == "REARM" { "ARMED" } else { "REARM" }.to_owned(),
                "opcode" if value == "RECV" => "SEND".to_owned(),
                "opcode" => "RECV".to_owned(),
                "hex" => {
                    let last = if value.ends_with('0') { '1' } else { '0' };
                    value[..value.len() - 1].to_owned() + &last.to_string()
                }
                "data" => continue,
                // A longer or shifted range of equal bytes holds the same.
                "at" | "len" if line.contains("fill=") => continue,
                _ if value.starts_with('{') => continue,
                _ => format!("{value}+1"),
            };
            altered.push(replaced(index, format!("{name}={changed}")));
        } else if words[0] == "expect" && index == 2 && words[1] == "NAK" && !word.starts_with('{') {
            let other = if *word == "invalid_request" { "remote_access" } else { "invalid_request" };
            altered.push(replaced(index, other.to_owned()));
        } else if ["ackreq", "solicited", "migreq", "fecn", "becn"].contains(word) {
            altered.push(replaced(index, format!("{word}=0")));
        }
    }
    altered
}

fn altered(text: &str) -> Vec<Altered> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = line.split('#').next().unwrap_or_default().trim();
        for change in alterations(code) {
            let mut lines = lines.clone();
            lines[index] = &change;
            found.push(Altered { line: index + 1, text: lines.join("\n"), change: change.clone() });
        }
    }
    found
}

/// Returns the verdicts of all cases.
fn verdicts(name: &str, text: &str, card: &mut dyn Target) -> Vec<Verdict> {
    let Ok(script) = Script::parse(name, text) else { return Vec::new() };
    let report = conform::run(&[script], card, &Deviations::default(), |_| ());
    report.tried.into_iter().map(|tried| tried.outcome.verdict).collect()
}

fn passes(verdicts: &[Verdict]) -> bool {
    !verdicts.is_empty() && verdicts.iter().all(|verdict| matches!(verdict, Verdict::Pass))
}

#[test]
fn altered_expectations_fail() {
    let (mut tried, mut untold, mut used) = (0, Vec::new(), vec![false; UNTOLD.len()]);
    for (name, text) in scripts() {
        if !passes(&verdicts(&name, &text, &mut VirtualCard::default())) {
            continue;
        }
        for Altered { line, change, text } in altered(&text) {
            tried += 1;
            if !passes(&verdicts(&name, &text, &mut VirtualCard::default())) {
                continue;
            }
            // Only that a step is left out may be explained.
            let is_known = |(script, part, _): &(&str, &str, &str)| name.contains(script) && change == *part;
            let known = UNTOLD.iter().position(is_known);
            match known {
                Some(at) => used[at] = true,
                None => untold.push(format!("{name}:{line}: {change}")),
            }
        }
    }
    assert!(tried > 500, "{tried}");
    assert!(untold.is_empty(), "{} of {tried} pass:\n{}", untold.len(), untold.join("\n"));
    let unused: Vec<_> = UNTOLD.iter().zip(used).filter(|(_, used)| !used).map(|(entry, _)| entry).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

/// Runs a script with a card that makes a mistake at its n-th chance, for every n. Returns the
/// chances at which the script still passed, and how many there were.
fn unnoticed(name: &str, text: &str, mistake: fn(usize) -> Mistake) -> (Vec<usize>, usize) {
    let mut passed = Vec::new();
    for chance in 0.. {
        let mut card = Wrong::new(mistake(chance));
        let verdicts = verdicts(name, text, &mut card);
        if !card.has_erred() {
            return (passed, chance);
        }
        if verdicts.iter().all(|verdict| matches!(verdict, Verdict::Pass)) {
            passed.push(chance);
        }
    }
    unreachable!("a script ends")
}

#[test]
fn unexpected_packets_and_completions_fail() {
    let (mut tried, mut unseen) = (0, Vec::new());
    for (name, text) in scripts() {
        if !passes(&verdicts(&name, &text, &mut VirtualCard::default())) {
            continue;
        }
        // A step counts the repeated packet, and allows more of them.
        let is_counted = [
            "congestion/cnp_interval",
            "congestion/cnp_by_queue_pair",
            "requester/ack_restarts_timer",
            "requester/old_ack_timer",
            "requester/timer_among_requests",
        ]
        .contains(&name.as_str());
        // Steps pass over CNPs, and only `idle` forbids completions.
        let forbids_cnps = name == "congestion/not_marked";
        let forbids_completions = text.contains("peer idle");
        let mistakes = [
            ("packet", Mistake::Repeat as fn(usize) -> Mistake, !is_counted),
            ("CNP", Mistake::Cnp, forbids_cnps),
            ("completion", Mistake::Extra, forbids_completions),
        ];
        for (what, mistake, _) in mistakes.into_iter().filter(|(_, _, is_forbidden)| *is_forbidden) {
            let (passed, chances) = unnoticed(&name, &text, mistake);
            tried += chances;
            unseen.extend(passed.into_iter().map(|at| format!("{name}: {what} {at} of {chances}")));
        }
    }
    assert!(tried > 150, "{tried}");
    assert!(unseen.is_empty(), "{} of {tried} pass:\n{}", unseen.len(), unseen.join("\n"));
}
