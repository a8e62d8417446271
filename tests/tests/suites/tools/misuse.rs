//! Tests the checker (`roxe run --check`) with twins in `tests/clients/misuse`: for every rule one
//! or more programs that break it, and the same programs without the mistake. On both links, each
//! wrong twin is reported with the line of its source, and no right twin is reported. Stock
//! programs have no errors. Two processes can write one valid report file.

use roxe_check::{EXIT_STATUS, Rule, Severity};
use roxe_tests::pair::{self, Launch, Program};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::{cc, misuse};
use serde_json::Value;
use std::fs;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Twins whose name is not that of their rule, with the rule.
const OTHER_TWINS: [(Rule, &str); 11] = [
    (Rule::MemoryGoneInFlight, "memory-unmapped"),
    (Rule::MemoryGoneInFlight, "memory-replaced"),
    (Rule::AttrGarbage, "garbage-ops"),
    (Rule::AttrGarbage, "garbage-cq"),
    (Rule::UseAfterDestroy, "closed-twice"),
    (Rule::PsnMismatch, "psn-mismatch-near"),
    (Rule::AtomicMixed, "atomic-mixed-xrc"),
    (Rule::EventUnread, "event-unread-async"),
    (Rule::SleepWithCompletions, "sleep-in-epoll"),
    (Rule::SleepWithCompletions, "sleep-in-poll"),
    (Rule::SleepWithCompletions, "sleep-armed-late"),
];

/// Twins whose report is only a warning, although their rule reports errors.
const WARNED: [&str; 3] = ["sleep-armed-late", "memory-unmapped", "memory-replaced"];

pub(crate) fn main() -> ExitCode {
    let rule_twins = Rule::ALL.iter().map(|rule| (*rule, rule.name()));
    let twins = rule_twins.chain(OTHER_TWINS).flat_map(|(rule, twins)| {
        ["auto", "udp"].into_iter().flat_map(move |link| {
            [true, false].map(|wrong| {
                let name = format!("{twins}, {}, link {link}", if wrong { "wrong" } else { "right" });
                Check::new(name, move || judge(rule, twins, wrong, link))
            })
        })
    });
    let clean = CLEAN.iter().flat_map(|pair| {
        ["auto", "udp"]
            .map(|link| Check::new(format!("clean: {}, link {link}", pair[1]), move || judge_clean(pair, link)))
    });
    let stops = Check::new("check=stop: SIGTRAP at the first error", || match cc::missing() {
        Some(why) => Verdict::Skipped(why),
        None => judge_stop(),
    });
    let documents = [("sarif", judge_sarif as fn(&str) -> Result<(), String>), ("xml", judge_junit)];
    let documents = documents.map(|(end, judge)| {
        Check::new(format!("report: two processes, one file .{end}"), move || judge_document(end, judge))
    });
    let closed = [("by the program", true), ("before it starts", false)].map(|(when, by_program)| {
        Check::new(format!("report: standard error closed {when}"), move || judge_closed(by_program))
    });
    report::main(twins.chain(clean).chain([stops]).chain(documents).chain(closed).collect())
}

/// Runs a program without standard error that opens a file, which gets descriptor 2. Reports must
/// not go to that file, but to the standard error at the start, if there was one.
fn judge_closed(by_program: bool) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    match misuse::program().and_then(|program| run_closed(&program, by_program)) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

fn run_closed(program: &str, by_program: bool) -> Result<(), String> {
    let data = std::env::temp_dir().join(format!("roxe-misuse-{}-data-{by_program}", std::process::id()));
    let close = if by_program { "" } else { "exec 2>&-; " };
    let script = format!("{close}MISUSE_DATA={} exec {program} attr-garbage wrong", data.display());
    let program = Program { name: "sh".to_owned(), args: vec!["-c".to_owned(), script] };
    let launch = Launch { options: ["--check".to_owned()].into(), ..Launch::default() };
    let outcome = pair::run_with(&program, &launch, TIME_LIMIT).map_err(|e| e.to_string())?;
    let text = fs::read_to_string(&data).map_err(|e| e.to_string())?;
    let _ = fs::remove_file(&data);
    let failed = outcome.output.contains(&format!("exit status: {EXIT_STATUS}"));
    let reported = outcome.output.contains("error [attr-garbage]") == by_program;
    if text.is_empty() && failed && reported { Ok(()) } else { Err(format!("{}\ndata: {text}", outcome.output)) }
}

/// Stock programs without mistakes: command lines of server and client.
const CLEAN: [[&str; 2]; 10] = [
    ["ibv_rc_pingpong -g 0 -p PORT", "ibv_rc_pingpong -g 0 -p PORT 127.0.0.1"],
    ["ibv_rc_pingpong -g 0 -e -p PORT", "ibv_rc_pingpong -g 0 -e -p PORT 127.0.0.1"],
    ["ibv_ud_pingpong -g 0 -p PORT", "ibv_ud_pingpong -g 0 -p PORT 127.0.0.1"],
    ["ibv_srq_pingpong -g 0 -p PORT", "ibv_srq_pingpong -g 0 -p PORT 127.0.0.1"],
    ["ib_write_bw -F -x 0 -n 500 -p PORT", "ib_write_bw -F -x 0 -n 500 -p PORT 127.0.0.1"],
    ["ib_send_bw -F -x 0 -n 500 -p PORT", "ib_send_bw -F -x 0 -n 500 -p PORT 127.0.0.1"],
    ["ib_read_bw -F -x 0 -n 500 -p PORT", "ib_read_bw -F -x 0 -n 500 -p PORT 127.0.0.1"],
    ["ib_send_lat -F -x 0 -n 500 -e -p PORT", "ib_send_lat -F -x 0 -n 500 -e -p PORT 127.0.0.1"],
    ["ib_atomic_bw -F -x 0 -n 500 -p PORT", "ib_atomic_bw -F -x 0 -n 500 -p PORT 127.0.0.1"],
    ["ib_write_lat -F -x 0 -n 500 -I 64 -p PORT", "ib_write_lat -F -x 0 -n 500 -I 64 -p PORT 127.0.0.1"],
];

fn judge_clean(pair: &[&str; 2], link: &str) -> Verdict {
    let name = pair[0].split(' ').next().unwrap_or_default();
    if !pair::installed(name) {
        return Verdict::not_installed(name);
    }
    match run_clean(pair, link) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

fn run_clean(pair: &[&str; 2], link: &str) -> Result<(), String> {
    static PORT: AtomicU16 = AtomicU16::new(21_300);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let reports = std::env::temp_dir().join(format!("roxe-clean-{}-{port}", std::process::id()));
    let options = ["--check".to_owned(), "--report".to_owned(), reports.display().to_string()].into();
    let launch = Launch { envs: vec![("ROXE_LINK".to_owned(), link.to_owned())], options, ..Launch::default() };
    let [server, client] = pair.map(|line| Program::parse(&line.replace("PORT", &port.to_string())));
    let both = [(&server, &launch), (&client, &launch)];
    let outcomes = pair::run_pair_with(both, &port.to_string(), || pair::listens(port), TIME_LIMIT);
    let outcomes = outcomes.map_err(|e| e.to_string())?;
    let text = fs::read_to_string(&reports).unwrap_or_default();
    let _ = fs::remove_file(&reports);
    let error = text.lines().find(|line| line.contains(r#""severity":"error""#));
    match error {
        None if outcomes.iter().all(|outcome| outcome.ok) => Ok(()),
        _ => Err(outcomes.map(|outcome| outcome.output).join("\n")),
    }
}

fn judge(rule: Rule, twins: &str, wrong: bool, link: &str) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    match misuse::program().and_then(|program| run(program, (rule, twins), wrong, link)) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

fn run(program: String, (rule, twins): (Rule, &str), wrong: bool, link: &str) -> Result<(), String> {
    let twin = if wrong { "wrong" } else { "right" };
    let reports = std::env::temp_dir().join(format!("roxe-misuse-{}-{twins}-{twin}-{link}", std::process::id()));
    let program = Program { name: program, args: vec![twins.to_owned(), twin.to_owned()] };
    // Rules of the severity `advice` are off unless they are named.
    let check = if rule.severity() == Severity::Advice { format!("--check={rule},on") } else { "--check".to_owned() };
    let options = [check, "--report".to_owned(), reports.display().to_string()].into();
    let envs = vec![("ROXE_LINK".to_owned(), link.to_owned())];
    let outcome = pair::run_with(&program, &Launch { envs, options, ..Launch::default() }, TIME_LIMIT);
    let outcome = outcome.map_err(|e| e.to_string())?;
    let text = fs::read_to_string(&reports).unwrap_or_default();
    let _ = fs::remove_file(&reports);
    let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("parse a report")).collect();
    let fails = wrong && rule.severity() == Severity::Error && !WARNED.contains(&twins);
    let ended = if fails { outcome.output.contains(&format!("exit status: {EXIT_STATUS}")) } else { outcome.ok };
    let matches = |report: &Value| report["rule"] == rule.name();
    let as_expected =
        if wrong { found.iter().any(|report| matches(report) && names_the_source(report)) } else { found.is_empty() };
    if ended && as_expected { Ok(()) } else { Err(outcome.output) }
}

/// Returns true if a report contains a line of the twin.
fn names_the_source(report: &Value) -> bool {
    report["stacks"].as_array().is_some_and(|stacks| {
        stacks.iter().filter_map(|stack| stack["calls"].as_array()).flatten().any(|call| {
            call["file"].as_str().is_some_and(|file| file.contains("clients/misuse/")) && call["line"].is_u64()
        })
    })
}

/// Checks that a program without a debugger ends at its first error.
fn judge_stop() -> Verdict {
    let launch = Launch { options: ["--check=stop".to_owned()].into(), ..Launch::default() };
    let outcome = misuse::program().and_then(|program| {
        let program = Program { name: program, args: ["key-stale", "wrong"].map(str::to_owned).to_vec() };
        pair::run_with(&program, &launch, TIME_LIMIT).map_err(|e| e.to_string())
    });
    match outcome {
        Ok(outcome) if !outcome.ok && outcome.output.contains("stops at its first error (SIGTRAP)") => Verdict::Passed,
        Ok(outcome) => Verdict::Failed(outcome.output),
        Err(why) => Verdict::Failed(why),
    }
}

/// Runs two wrong programs at the same time, and judges the file of their reports.
fn judge_document(end: &str, judge: fn(&str) -> Result<(), String>) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    match misuse::program().and_then(|program| run_both(&program, end)).and_then(|text| judge(&text)) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

fn run_both(program: &str, end: &str) -> Result<String, String> {
    let reports = std::env::temp_dir().join(format!("roxe-document-{}.{end}", std::process::id()));
    let options = ["--check".to_owned(), "--report".to_owned(), reports.display().to_string()].into();
    let launch = Launch { options, ..Launch::default() };
    let [first, second] = ["key-stale", "leak"].map(|rule| Program::parse(&format!("{program} {rule} wrong")));
    let outcomes = pair::run_pair_with([(&first, &launch), (&second, &launch)], end, || true, TIME_LIMIT);
    let outcomes = outcomes.map_err(|e| e.to_string())?.map(|outcome| outcome.output).join("\n");
    let text = fs::read_to_string(&reports).map_err(|e| format!("{e}\n{outcomes}"));
    let _ = fs::remove_file(&reports);
    text
}

/// Checks the standard's requirements for a SARIF log (3.13, 3.14, 3.19, 3.27, 3.28, 3.49).
fn judge_sarif(text: &str) -> Result<(), String> {
    let document: Value = serde_json::from_str(text).map_err(|e| format!("{e}\n{text}"))?;
    let lists = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let runs = lists(&document, "runs");
    let [run] = &runs[..] else { return Err(format!("there is not one run in\n{text}")) };
    let driver = &run["tool"]["driver"];
    let is_described = |rule: &Value| rule["id"].is_string() && rule["help"]["text"].is_string();
    let rules = lists(driver, "rules");
    let head = document["version"] == "2.1.0" && driver["name"].is_string() && rules.iter().all(is_described);
    let is_level = |level: &Value| ["error", "warning", "note"].iter().any(|known| level == known);
    let in_source = |place: &Value| {
        let place = &place["physicalLocation"];
        let uri = place["artifactLocation"]["uri"].as_str().unwrap_or_default();
        uri.contains("clients/misuse/") && place["region"]["startLine"].as_u64().is_some_and(|line| line > 0)
    };
    let is_complete = |result: &Value| {
        rules.iter().any(|rule| rule["id"] == result["ruleId"])
            && is_level(&result["level"])
            && result["message"]["text"].is_string()
            && lists(result, "locations").iter().all(in_source)
            && result["partialFingerprints"].is_object()
    };
    let results = lists(run, "results");
    let found = |rule| results.iter().any(|result| result["ruleId"] == rule && !lists(result, "locations").is_empty());
    let has_related = results.iter().any(|result| lists(result, "relatedLocations").iter().any(in_source));
    let good = head && results.iter().all(is_complete) && found("key-stale") && found("leak") && has_related;
    if good { Ok(()) } else { Err(text.to_owned()) }
}

/// Checks that the error is a failure, the warning is not, and every element is closed.
fn judge_junit(text: &str) -> Result<(), String> {
    let failed =
        r#"<testcase classname="misuse" name="key-stale in write_with">"#.to_owned() + "\n<failure type=\"key-stale\"";
    let warned = r#"<testcase classname="misuse" name="leak in "#;
    let closed = |element: &str| text.matches(&format!("</{element}>")).count();
    let opened = |element: &str| text.matches(&format!("<{element} ")).count() - text.matches("\"/>").count();
    let good = text.contains(&failed)
        && text.contains(warned)
        && text.contains("failures=\"1\"")
        && closed("failure") == 1
        && opened("testcase") == closed("testcase")
        && text.ends_with("</testsuites>\n");
    if good { Ok(()) } else { Err(text.to_owned()) }
}
