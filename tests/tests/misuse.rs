//! The checker of `roxe run --check` on twins: for every rule a program that does what the rule
//! forbids, and one that does the same work as it has to be done (`tests/clients/misuse`). Each
//! wrong twin is reported, with the place in its source; no right twin is. With the link of one
//! host and with sockets.
//!
//! `cargo test -p roxe-tests --test misuse -- WORD...` runs the checks whose name contains a word.

use roxe_check::{EXIT_STATUS, Rule, Severity};
use roxe_tests::pair::{self, Place, Program};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::{cc, misuse};
use serde_json::Value;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let twins = Rule::ALL.iter().flat_map(|rule| {
        ["auto", "udp"].into_iter().flat_map(move |link| {
            [true, false].map(|wrong| {
                let name = format!("{rule}, {}, link {link}", if wrong { "wrong" } else { "right" });
                Check::new(name, move || judge(*rule, wrong, link))
            })
        })
    });
    report::main(twins.collect())
}

fn judge(rule: Rule, wrong: bool, link: &str) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    match misuse::program().and_then(|program| run(program, rule, wrong, link)) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

fn run(program: String, rule: Rule, wrong: bool, link: &str) -> Result<(), String> {
    let twin = if wrong { "wrong" } else { "right" };
    let reports = std::env::temp_dir().join(format!("roxe-misuse-{}-{rule}-{twin}-{link}", std::process::id()));
    let program = Program { name: program, args: vec![rule.to_string(), twin.to_owned()] };
    let options = ["--check".to_owned(), "--report".to_owned(), reports.display().to_string()].into();
    let envs = vec![("ROXE_LINK".to_owned(), link.to_owned())];
    let outcome = pair::run_at(&program, &Place { envs, options, ..Place::default() }, LIMIT);
    let outcome = outcome.map_err(|e| e.to_string())?;
    let text = fs::read_to_string(&reports).unwrap_or_default();
    let _ = fs::remove_file(&reports);
    let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let fails = wrong && rule.severity() == Severity::Error;
    let ended = if fails { outcome.output.contains(&format!("exit status: {EXIT_STATUS}")) } else { outcome.ok };
    let is_it = |report: &Value| report["rule"] == rule.name();
    let as_expected =
        if wrong { found.iter().any(|report| is_it(report) && names_the_source(report)) } else { found.is_empty() };
    if ended && as_expected { Ok(()) } else { Err(outcome.output) }
}

/// Whether a report leads to a line of the twin.
fn names_the_source(report: &Value) -> bool {
    report["stacks"].as_array().is_some_and(|stacks| {
        stacks.iter().filter_map(|stack| stack["calls"].as_array()).flatten().any(|call| {
            call["file"].as_str().is_some_and(|file| file.contains("clients/misuse/")) && call["line"].is_u64()
        })
    })
}
