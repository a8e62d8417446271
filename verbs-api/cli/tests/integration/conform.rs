//! `roxe conform`: kept reports, their comparison, and a badge.

use crate::common::{Scratch, stderr, stdout};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Output};

fn conform(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roxe")).arg("conform").args(arguments).output().unwrap()
}

fn json_of(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Runs two cases, and writes their report with another verdict for the first one.
fn older(folder: &Scratch, verdict: &str) -> String {
    let path = folder.path("old.json");
    let output = conform(&["virtual", "responder/gap_nak", "--json", &path]);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut value = json_of(&path);
    value["cases"][0]["verdict"] = verdict.into();
    folder.file("old.json", value.to_string())
}

#[test]
fn comparison_with_a_better_report_exits_with_1() {
    let folder = Scratch::new("worse");
    let old = older(&folder, "pass");
    let page = folder.path("page.html");
    let mut value = json_of(&old);
    value["cases"][0]["verdict"] = "fail".into();
    let new = folder.file("new.json", value.to_string());
    let output = conform(&[&new, "--compare", &old]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("worse    responder/gap_nak [psn=100]: pass -> fail\n"), "{}", stdout(&output));
    assert_eq!(stderr(&output), "roxe conform: 1 case got worse\n");
    let output = conform(&["virtual", "responder/gap_nak", "--compare", &new, "--html", &page]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("\nbetter   responder/gap_nak [psn=100]: fail -> pass\n"), "{}", stdout(&output));
    assert!(stdout(&output).ends_with("0 worse, 0 unclear, 1 better, 0 new, 0 gone\n"), "{}", stdout(&output));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<td>better</td><td>responder/gap_nak [psn=100]</td><td>fail -&gt; pass</td>"), "{page}");
}

/// A card that fails as it did before passes.
#[test]
fn comparison_of_equal_reports_exits_with_0() {
    let folder = Scratch::new("equal");
    let old = older(&folder, "fail");
    let output = conform(&[&old, "--compare", &old]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn two_reports_are_compared_on_a_page() {
    let folder = Scratch::new("two");
    let (old, page) = (folder.path("old.json"), folder.path("page.html"));
    let output = conform(&["virtual", "requester/rnr_wait", "--json", &old]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = conform(&[&old, "--compare", &old, "--html", &page]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 1, "a plot of rnr_wait by its timer: {page}");
    assert_eq!(page.matches("<circle").count(), 16, "a point for each timer of both reports: {page}");
}

#[test]
fn case_that_becomes_inconclusive_is_unclear_and_exits_with_0() {
    let folder = Scratch::new("unclear");
    let old = older(&folder, "pass");
    let mut value = json_of(&old);
    value["cases"][0]["verdict"] = "inconclusive".into();
    let new = folder.file("new.json", value.to_string());
    let output = conform(&[&new, "--compare", &old]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("unclear  responder/gap_nak [psn=100]: pass -> inconclusive\n"));
    assert_eq!(stderr(&output), "roxe conform: 1 case is unclear: run it again\n");
    let output = conform(&[&old, "--compare", &new]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "it is clear now");
}

#[test]
fn options_of_runs_are_refused_for_two_reports() {
    let folder = Scratch::new("options");
    let old = older(&folder, "pass");
    for (option, value) in [
        ("--json", Some("x")),
        ("--junit", Some("x")),
        ("--badge", Some("x")),
        ("--captures", Some("x")),
        ("--tolerate", Some("x")),
        ("--skip", Some("x")),
        ("--near", Some("192.0.2.1")),
        ("--token-file", Some("x")),
        ("--list", None),
        ("--verbose", None),
        ("atomic", None),
    ] {
        let arguments: Vec<_> = [&old, "--compare", &old, option].into_iter().chain(value).collect();
        let output = conform(&arguments);
        let needs = if option == "atomic" { "a word for names of scripts" } else { option };
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(1), format!("roxe conform: the target {old} is a report: {needs} needs a run\n"))
        );
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn argument_that_is_not_utf_8_is_reported_with_replacements() {
    let folder = Scratch::new("bytes");
    let path = folder.path("report.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxe"));
    command.args(["conform", "virtual", "responder/gap_nak", "--json", &path, "--html"]);
    let page = Path::new(&folder.path("")).join(OsStr::from_bytes(b"\xff.html"));
    let output = command.arg(&page).output().unwrap();
    assert!(output.status.success() && page.exists(), "{}", stderr(&output));
    let value = json_of(&path);
    let line = value["facts"]["command"].as_str().unwrap();
    assert!(line.ends_with("/\u{fffd}.html"), "{line}");
}

#[test]
fn report_has_the_settings_of_the_environment_without_the_token() {
    let folder = Scratch::new("environment");
    let path = folder.path("report.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxe"));
    command.args(["conform", "virtual", "responder/gap_nak", "--json", &path]);
    let output = command.envs([("ROXE_DCQCN", "on"), ("ROXE_PEER_TOKEN", "0123456789abcdef")]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let run_info = json_of(&path)["facts"].clone();
    let settings = run_info["environment"].as_str().unwrap();
    assert!(settings.split(' ').any(|setting| setting == "ROXE_DCQCN=on"), "{settings}");
    assert!(!run_info.to_string().contains("0123456789abcdef"), "{run_info}");
}

#[test]
fn invalid_report_file_is_refused_before_the_run() {
    let folder = Scratch::new("refused");
    let (text, other) = (folder.file("text.json", "no JSON"), folder.file("other.json", "{\"format\": 2}"));
    let refusal = |arguments: &[&str]| {
        let output = conform(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(stdout(&output), "", "nothing ran");
        stderr(&output)
    };
    assert!(refusal(&["virtual", "--compare", &text]).contains("text.json is not a report of `roxe conform --json`: "));
    assert!(refusal(&[&other, "--compare", &other]).ends_with("json`: its format is 2, not 1\n"));
    assert!(refusal(&["virtual", "--compare", &other]).ends_with("json`: its format is 2, not 1\n"));
    assert!(refusal(&[&other]).ends_with("other.json is a report; --compare FILE compares it\n"));
}

#[test]
fn badge_names_the_passing_cases() {
    let folder = Scratch::new("badge");
    let path = folder.path("badge.json");
    let output = conform(&["virtual", "responder/gap_nak", "windows/bound", "--badge", &path]);
    assert!(output.status.success(), "{}", stderr(&output));
    let expected = json!({
        "schemaVersion": 1, "label": "RoCEv2 conformance", "message": "2 of 2 cases pass", "color": "brightgreen",
    });
    assert_eq!(json_of(&path), expected);
}
