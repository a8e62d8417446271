//! The catalogue of conformance cases is complete and valid, and roxe's transport passes it.

use crate::fuzz::{Mistake, Wrong};
use roxe_drill::conform::{self, Progress, Report};
use roxe_drill::{Deviations, Script, VirtualCard, run};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/conform");

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("list the folder of scripts") {
        let path = entry.expect("read an entry of the folder").path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// Returns names and paths of the scripts in the folder, sorted by name.
pub(crate) fn scripts_of_the_folder() -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    files(Path::new(FOLDER), &mut found);
    let name = |path: &PathBuf| Some(path.strip_prefix(FOLDER).ok()?.to_str()?.strip_suffix(".drill")?.to_owned());
    let mut scripts: Vec<_> = found.into_iter().filter_map(|path| Some((name(&path)?, path))).collect();
    scripts.sort();
    scripts
}

#[test]
fn catalogue_lists_every_script_of_the_folder() {
    let names: Vec<_> = scripts_of_the_folder().into_iter().map(|(name, _)| name).collect();
    let scripts = conform::catalogue(&[]).expect("scripts that can be read");
    let listed: Vec<_> = scripts.iter().map(|script| script.name().to_owned()).collect();
    assert_eq!(listed, names, "build.rs lists other scripts than tests/conform has");
}

/// A comparison of reports finds a case by its name.
#[test]
fn cases_of_the_catalogue_have_different_names() {
    let scripts = conform::catalogue(&[]).expect("scripts that can be read");
    for script in &scripts {
        let names: BTreeSet<_> = script.cases().iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), script.cases().len(), "{}", script.name());
    }
}

#[test]
fn deviation_of_rxe_names_a_script_and_a_place_in_its_source() {
    let scripts = conform::catalogue(&[]).expect("scripts that can be read");
    let names: Vec<_> = scripts.iter().map(Script::name).collect();
    let list = include_str!("../../../../tests/conform/rxe-6.1.txt");
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let (case, reason) = line.split_once(": ").expect(line);
        let script = case.split(" [").next().unwrap_or_default();
        let is_it = |name: &&str| script.strip_suffix('*').map_or(*name == script, |start| name.starts_with(start));
        assert!(names.iter().any(is_it), "no script of this name: {line}");
        let (_, place) = reason.rsplit_once('(').expect(line);
        let is_place = |part: &str| part.split(' ').any(|word| word.contains(".c"));
        assert!(place.ends_with(')') && is_place(place), "no place: {line}");
    }
}

/// Transcripts of earlier runs keep the number of their day.
#[test]
fn manual_has_the_number_of_cases() {
    let scripts = conform::catalogue(&[]).expect("scripts that can be read");
    let count = scripts.iter().map(|script| script.cases().len()).sum::<usize>();
    let readme = include_str!("../../../../README.md");
    assert!(
        readme.contains(&format!(" {count} cases, reported by clause")),
        "README.md: the catalogue has {count} cases"
    );
    let manual = include_str!("../../../../docs/reference/scripts.md");
    assert!(
        manual.contains(&format!("all {count} cases pass")),
        "docs/reference/scripts.md: the catalogue has {count} cases"
    );
}

#[test]
fn scripts_cite_existing_clauses() {
    let clauses = include_str!("../../../../tests/clauses.txt");
    for script in conform::catalogue(&[]).expect("scripts that can be read") {
        assert!(!script.clauses().is_empty(), "{} cites no clause", script.name());
        for clause in script.clauses() {
            let line = format!("\n{clause} (");
            assert!(clauses.contains(&line), "{} cites {clause}, which tests/clauses.txt lacks", script.name());
        }
    }
}

#[test]
fn manual_names_the_figures_of_the_catalogue() {
    let text = |(_, path)| std::fs::read_to_string(path).expect("read the script");
    let texts: String = scripts_of_the_folder().into_iter().map(text).collect();
    let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let measured: BTreeSet<_> = texts.lines().filter_map(|line| line.strip_prefix("figure ")).map(name).collect();
    let manual = include_str!("../../../../docs/reference/conformance-report.md");
    let (_, table) = manual.split_once("\n## Figures of the catalogue\n").expect("find the section of figures");
    let table = table.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let named: BTreeSet<_> = rows.map(|(name, _)| name.to_owned()).collect();
    assert_eq!(measured, named);
}

#[test]
fn virtual_card_passes_every_case() {
    let scripts = conform::catalogue(&[]).expect("scripts that can be read");
    let mut failures = Vec::new();
    let report = conform::run(&scripts, &mut VirtualCard::default(), &Deviations::default(), |progress| {
        if let Progress::Ended(tried) = progress
            && let Some(failure) = tried.outcome.verdict.failure()
        {
            failures.push(format!("{}: {}\n{failure}", tried.name(), tried.outcome.verdict.word()));
        }
    });
    println!("{} scripts, {} cases, {} passed", scripts.len(), report.tried.len(), report.count("pass"));
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), report.tried.len(), failures.join("\n\n"));
}

/// One of 100 packets is lost.
#[test]
fn lossy_path_fails_no_case() {
    let scripts = conform::catalogue(&["responder".to_owned(), "requester".to_owned()]).expect("parse the scripts");
    let mut card = Wrong::new(Mistake::Loss(100));
    let report = conform::run(&scripts, &mut card, &Deviations::default(), |_| ());
    let failed: Vec<_> = report.tried.iter().filter(|tried| tried.outcome.verdict.word() == "FAIL").collect();
    let names: Vec<_> = failed.iter().map(|tried| tried.name()).collect();
    assert!(names.is_empty(), "{names:?}");
    assert!(report.tried.iter().filter(|tried| tried.tries > 1).count() > 8);
    assert!(report.unsteady > 0);
}

/// `wrong` fails in the first two runs and `lossy` in the third one; the sixth run is that of
/// `wrong` again.
#[test]
fn agent_lost_on_retry_keeps_the_failure() {
    let script = |name: &str, msn| {
        let text = format!("title t\nclause GAP-NAK\npeer qp q\nsend WRITE_ONLY psn=100 ackreq\nexpect ACK msn={msn}");
        Script::parse(name, &text).expect("parse the script")
    };
    let scripts = [script("wrong", 9), script("lossy", 1)];
    let mut again = 0;
    let report = |lost, again: &mut usize| {
        let mut card = Wrong::new(Mistake::LostAgent { lossy: 3, lost });
        conform::run(&scripts, &mut card, &Deviations::default(), |progress| {
            *again += usize::from(matches!(progress, Progress::Again(_)));
        })
    };
    let words = |report: &Report| report.tried.iter().map(|tried| tried.outcome.verdict.word()).collect::<Vec<_>>();
    let steady = report(usize::MAX, &mut again);
    assert_eq!((words(&steady), steady.unsteady, steady.lost, again), (vec!["FAIL", "pass"], 1, None, 1));
    let report = report(6, &mut again);
    assert_eq!((words(&report), report.tried[0].tries, again), (vec!["FAIL", "pass"], 3, 1), "{:?}", report.tried);
    let lost = report.lost.as_ref().expect("find the loss");
    assert_eq!((lost.script.as_str(), lost.not_run, report.is_good()), ("wrong", 0, false));
}

/// Returns the cases of a verdict, if the judge and the posts of the card's host are late.
fn judged_late(late: Duration, word: &str) -> Vec<String> {
    let mut late = Wrong::new(Mistake::Late(late));
    let scripts = conform::catalogue(&[]).expect("scripts that can be read");
    let report = conform::run(&scripts, &mut late, &Deviations::default(), |_| ());
    let are = report.tried.iter().filter(|tried| tried.outcome.verdict.word() == word);
    are.map(|tried| format!("{}: {:?}", tried.name(), tried.outcome.verdict)).collect()
}

/// The judge's own measurement still takes this delay for punctual.
#[test]
fn judge_that_is_late_by_15_ms_fails_no_case() {
    for word in ["FAIL", "inconclusive"] {
        let are = judged_late(Duration::from_millis(15), word);
        assert!(are.is_empty(), "{} cases {word}:\n{}", are.len(), are.join("\n"));
    }
}

#[test]
fn judge_that_is_late_by_300_ms_blames_no_card() {
    let late = Duration::from_millis(300);
    let failed = judged_late(late, "FAIL");
    assert!(failed.is_empty(), "{} cases:\n{}", failed.len(), failed.join("\n"));
    assert!(judged_late(late, "inconclusive").len() > 10);
}

#[test]
fn slow_setup_before_the_first_packet_is_not_late() {
    let text = "title t\npeer qp q\nsend WRITE_ONLY psn=100 ackreq\nexpect ACK psn=100\npeer qp r";
    let late = |text: &str| {
        let script = Script::parse("a", text).expect("parse the script");
        run("a", &script.cases()[0], &mut Wrong::new(Mistake::SlowSetup(Duration::from_millis(80)))).late
    };
    assert_eq!(late(text), Duration::ZERO);
    let later = format!("{text}\nsend WRITE_ONLY psn=101 ackreq\nexpect ACK psn=101");
    assert_eq!(late(&later), Duration::from_millis(80), "the card may wait for the packet");
}
