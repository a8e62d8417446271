//! Runs each command of docs/tutorials/first-mistakes.md, and compares the output with the page,
//! except for numbers and line breaks.
//!
//! `cargo test -p roxe-tests --test suites -- beginners [--write] [WORD...]`: `--write` updates the
//! page.

use roxe_tests::guest::link;
use roxe_tests::pair::{self, Launch, Program};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::{cc, misuse};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(60);
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tutorials/first-mistakes.md");
/// Start and end of a block of the page.
const FENCES: [&str; 2] = ["```console\n$ roxe run ", "\n```\n"];
/// Line length of the page in columns.
const COLUMNS: usize = 96;
/// Column at which the values of a report begin.
const VALUE_COLUMN: usize = 19;

pub(crate) fn main() -> ExitCode {
    let page = fs::read_to_string(PAGE).unwrap_or_default();
    let blocks: Vec<(String, String)> =
        blocks(&page).map(|(line, expected)| (line.to_owned(), expected.to_owned())).collect();
    if report::arguments().any(|arg| arg == "--write") {
        return write(page, &blocks);
    }
    let count_check = Check::new("page shows ten mistakes", {
        let count = blocks.len();
        move || if count == 10 { Verdict::Passed } else { Verdict::Failed(format!("it has {count}")) }
    });
    let checks = blocks.into_iter().map(|(line, expected)| Check::new(line.clone(), move || judge(&line, &expected)));
    report::main(checks.chain([count_check]).collect())
}

/// Returns the arguments of the page's `roxe run` commands, and their outputs.
fn blocks(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split(FENCES[0]).skip(1).filter_map(|rest| {
        let block = rest.split(FENCES[1]).next()?;
        Some(block.split_once('\n').unwrap_or((block, "")))
    })
}

fn judge(line: &str, expected: &str) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    if line.contains("mtu-over-port") && !link::is_root() {
        return Verdict::Skipped("needs root, for an interface with short packets".to_owned());
    }
    match run(line) {
        Ok(now) if !now.is_empty() && words(&now) == words(expected) => Verdict::Passed,
        Ok(now) => Verdict::Failed(format!("the page shows\n{expected}\nroxe prints\n{now}")),
        Err(why) => Verdict::Failed(why),
    }
}

/// Runs a command of the page and returns roxe's output.
fn run(line: &str) -> Result<String, String> {
    let (options, program) = line.split_once(" -- ./misuse ").ok_or("no command of the page")?;
    let program = Program { name: misuse::program()?, args: program.split(' ').map(str::to_owned).collect() };
    let launch = Launch { options: options.split(' ').map(str::to_owned).collect(), ..Launch::default() };
    let output = pair::run_with(&program, &launch, TIME_LIMIT).map_err(|e| e.to_string())?.output;
    Ok(page_lines(&output))
}

/// Returns roxe's lines that the page shows: without the last events of a queue pair, whose number
/// varies.
fn page_lines(output: &str) -> String {
    let is_roxes = |line: &&str| line.starts_with("roxe:") || line.starts_with("    ");
    let is_event = |line: &str| line.get(VALUE_COLUMN..).is_some_and(|value| value.contains(" ms  "));
    let lines = output.lines().filter(is_roxes).filter(|line| !is_event(line));
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/misuse/");
    lines.map(|line| line.replace(folder, "")).collect::<Vec<_>>().join("\n")
}

/// Returns the words of a text, with `#` for every number.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(without_numbers).collect()
}

fn without_numbers(word: &str) -> String {
    let mut plain = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        plain.push_str(&rest[..at]);
        plain.push('#');
        let digits = rest[at..].trim_start_matches("0x");
        rest = digits.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    plain + rest
}

/// Replaces the outputs in the page by the current ones.
fn write(mut page: String, blocks: &[(String, String)]) -> ExitCode {
    for (line, before) in blocks {
        let now = match run(line) {
            Ok(now) => now.lines().map(wrap).collect::<Vec<_>>().join("\n"),
            Err(why) => {
                println!("FAILED   {line}: {why}");
                return ExitCode::FAILURE;
            }
        };
        let before = if before.is_empty() { line.clone() } else { format!("{line}\n{before}") };
        page = page.replace(&before, &format!("{line}\n{now}"));
    }
    match fs::write(Path::new(PAGE), page) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("FAILED   {PAGE}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Wraps a line at [`COLUMNS`].
fn wrap(line: &str) -> String {
    let indent = if line.starts_with(' ') { VALUE_COLUMN } else { 2 };
    let (mut text, mut column) = (String::new(), 0);
    for word in line.split_inclusive(' ') {
        if column + word.trim_end().len() > COLUMNS && column > indent {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            column = indent;
        }
        text.push_str(word);
        column += word.len();
    }
    text
}
