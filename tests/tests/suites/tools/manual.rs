//! Runs the commands of the manual and compares their output with the pages.
//!
//! Each page is one shell session in an empty folder, with only `roxe` and the system's programs in
//! PATH. A block ```` ```LANGUAGE,file=NAME ```` becomes a file. In a block ```` ```console ````,
//! lines that begin with `$ ` are commands. The lines below a command must be its output, except
//! for numbers and spaces; a line `...` matches any lines. A block after `<!-- not run: REASON -->`
//! is skipped. `<!-- uses: PAGE -->` adds the files of another page. Commands in tables of the
//! README run one by one.
//!
//! `cargo test -p roxe-tests --test suites -- manual [--write] [WORD...]`: `--write` updates the
//! outputs in the pages.

use roxe_tests::build;
use roxe_tests::files::Scratch;
use roxe_tests::pair::installed;
use roxe_tests::report::{self, Check, Verdict};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Folders whose pages are run, in addition to the README.
const FOLDERS: &[&str] = &["docs/tutorials", "docs/how-to"];
/// Pages whose commands another suite runs.
const OTHER_SUITES: &[(&str, &str)] = &[("first-mistakes.md", "the suite `beginners` runs it")];
/// Programs that a page may need.
const TOOLS: &[&str] = &["ibv_rc_pingpong", "rping", "gcc", "cmake", "pytest-3", "mpicc.openmpi", "mpicc.mpich"];
/// Mark before the output of each command.
const OUTPUT_MARK: char = '\u{1}';
/// Mark around the exit status after the output. Later output, such as that of `roxe run
/// --explain`, follows it.
const STATUS_MARK: char = '\u{2}';

/// Placeholders in the README's table of commands, and their values.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("PROGRAM ARGS...", "ibv_devices"),
    ("--hosts N -- ...", "--hosts 3 -- ibv_devices"),
    ("-- ...", "-- ibv_devices"),
    ("--faults RULES", "--faults 'seed=1; drop 1%'"),
    ("--capture FILE", "--capture new.pcapng"),
    ("--trace FILE", "--trace trace.json"),
    ("drill TARGET FILE...", "drill virtual $SCRIPT"),
    ("conform TARGET", "conform virtual atomic"),
    ("fuzz TARGET", "fuzz virtual --cases 5"),
];
/// Beginnings of commands that other lanes run, because they build for minutes or are this test.
const OTHER_LANES: &[&str] = &["cargo ", "tests/run", "mdbook "];

pub(crate) fn main() -> ExitCode {
    let root = root();
    let folders = FOLDERS.iter().map(|folder| fs::read_dir(root.join(folder)).expect("list the folder of pages"));
    let mut pages: Vec<PathBuf> =
        folders.flatten().map(|entry| entry.expect("read an entry of the folder").path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.push(root.join("README.md"));
    pages.sort();
    if report::arguments().any(|word| word == "--write") {
        return write(&pages);
    }
    let mut checks = Vec::new();
    for page in pages {
        let name = page.strip_prefix(&root).expect("find the page in the project").display().to_string();
        let other_suite = OTHER_SUITES.iter().find(|(page, _)| name.ends_with(page));
        if let Some((_, reason)) = other_suite {
            checks.push(Check::new(name, move || Verdict::Skipped((*reason).to_owned())));
            continue;
        }
        let text = fs::read_to_string(&page).expect("read the page");
        if name == "README.md" {
            for command in commands_of_tables(&text) {
                let script =
                    PLACEHOLDERS.iter().fold(command.clone(), |script, (from, to)| script.replacen(from, to, 1));
                checks.push(Check::new(format!("{name}: {command}"), move || {
                    session(&[Step::Command { line: script.clone(), expected: Vec::new() }]).map(|_| ()).into()
                }));
            }
        }
        let steps = steps(&page, &text);
        if commands(&steps).next().is_some() {
            checks.push(Check::new(name, move || judge(&steps)));
        }
    }
    report::main(checks)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("find the project").to_owned()
}

/// A step that a reader of the page does.
enum Step {
    Save { name: String, text: String },
    Command { line: String, expected: Vec<String> },
}

/// Returns the steps of a page in order.
fn steps(path: &Path, page: &str) -> Vec<Step> {
    let (mut found, mut is_run) = (Vec::new(), true);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("<!-- uses: ").and_then(|name| name.strip_suffix(" -->")) {
            let other = path.with_file_name(name);
            let text = fs::read_to_string(&other).expect("read the other page");
            found.extend(steps(&other, &text).into_iter().filter(|step| matches!(step, Step::Save { .. })));
        }
        if line.starts_with("<!-- not run: ") {
            is_run = false;
        }
        let Some(info) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if !std::mem::replace(&mut is_run, true) {
            continue;
        }
        if let Some((_, name)) = info.split_once(",file=") {
            found.push(Step::Save { name: name.to_owned(), text: block.join("\n") + "\n" });
        } else if info == "console" {
            let mut is_continued = false;
            for line in block {
                match (line.strip_prefix("$ "), found.last_mut()) {
                    (_, Some(Step::Command { line: command, .. })) if is_continued => *command += &format!("\n{line}"),
                    (Some(line), _) => found.push(Step::Command { line: line.to_owned(), expected: Vec::new() }),
                    (None, Some(Step::Command { expected, .. })) => expected.push(line.to_owned()),
                    (None, _) => (),
                }
                is_continued = line.ends_with('\\');
            }
        }
    }
    found.retain(|step| !matches!(step, Step::Command { line, .. } if is_in_other_lane(line)));
    found
}

/// Returns the command lines, each with the output that the page shows.
fn commands(steps: &[Step]) -> impl Iterator<Item = (&String, &Vec<String>)> {
    steps.iter().filter_map(|step| match step {
        Step::Command { line, expected } => Some((line, expected)),
        Step::Save { .. } => None,
    })
}

fn is_in_other_lane(command: &str) -> bool {
    OTHER_LANES.iter().any(|start| command.starts_with(start))
}

/// Returns roxe's commands in the second column of tables.
fn commands_of_tables(page: &str) -> Vec<String> {
    let cells = page.lines().filter(|line| line.starts_with("| ")).filter_map(|row| row.split('|').nth(2));
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    quoted.filter(|text| text.starts_with("roxe ") && !text.contains("--rsocket")).map(str::to_owned).collect()
}

fn judge(steps: &[Step]) -> Verdict {
    let is_named = |tool: &str| commands(steps).any(|(line, _)| line.split(' ').any(|word| word == tool));
    let missing = TOOLS.iter().find(|tool| is_named(tool) && !installed(tool));
    if let Some(tool) = missing {
        return Verdict::not_installed(tool);
    }
    let outputs = match session(steps) {
        Ok(outputs) => outputs,
        Err(why) => return Verdict::Failed(why),
    };
    for ((line, expected), output) in commands(steps).zip(&outputs) {
        let printed: Vec<&str> = output.lines().collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        if !expected.is_empty() && !matches(&expected, &printed) {
            return Verdict::Failed(format!("$ {line}\nthe page shows\n{}\nit printed\n{output}", expected.join("\n")));
        }
    }
    Verdict::Passed
}

/// Returns true if the printed lines are the expected ones, of which `...` stands for any lines.
fn matches(expected: &[&str], printed: &[&str]) -> bool {
    match (expected, printed) {
        ([], rest) => rest.iter().all(|line| line.is_empty()),
        (["...", expected @ ..], printed) => (0..=printed.len()).any(|skipped| matches(expected, &printed[skipped..])),
        (_, []) => false,
        ([first, expected @ ..], [line, printed @ ..]) => {
            without_numbers(first) == without_numbers(line) && matches(expected, printed)
        }
    }
}

/// Returns the words of a line, with `#` for each part that contains a digit.
fn without_numbers(line: &str) -> Vec<String> {
    let is_number = |word: &str| word.contains(|c: char| c.is_ascii_digit());
    let split = |word: &str| {
        let parts = word.split_inclusive(|c: char| !c.is_alphanumeric());
        let parts = parts.map(|part| if is_number(part) { "#".to_owned() } else { part.to_owned() });
        let text = parts.collect::<String>();
        // The number of parts and signs of a number may vary, too.
        text.replace("##", "#").replace("##", "#").replace("-#", "#")
    };
    line.split_whitespace().map(split).collect()
}

/// Runs the steps in one shell in an empty folder, and returns the output of each command. A
/// command without expected output must succeed.
fn session(steps: &[Step]) -> Result<Vec<String>, String> {
    let scratch = Scratch::new("manual")?;
    let (mut script, mut is_server) = (String::new(), false);
    for step in steps {
        match step {
            Step::Save { name, text } => {
                let path = scratch.join(name);
                fs::create_dir_all(path.parent().expect("find the folder of the file")).map_err(|e| e.to_string())?;
                fs::write(path, text).map_err(|e| e.to_string())?;
            }
            Step::Command { line, .. } => {
                let is_client = std::mem::replace(&mut is_server, line.ends_with('&'));
                _ = writeln!(script, "printf '{OUTPUT_MARK}'");
                // Repeat a client until its server listens, as a reader would.
                _ = match (is_client, is_server) {
                    (true, false) => writeln!(
                        script,
                        "for i in $(seq 300); do {line} > .out 2>&1; s=$?; [ $s = 0 ] && break; sleep 0.1; done; cat .out; (exit $s)"
                    ),
                    (_, true) => writeln!(script, "{} >> .background 2>&1 &", line.trim_end_matches('&')),
                    (_, false) => writeln!(script, "{line}"),
                };
                _ = writeln!(script, "printf '{STATUS_MARK}%d{STATUS_MARK}' $?");
            }
        }
    }
    let (bin, sources) = (build::roxe(), build::sources());
    let own = bin.parent().expect("find the folder of the program").display();
    let mut shell = Command::new("timeout");
    shell.args(["120", "sh", "-c", &format!("exec 2>&1\n{script}wait")]);
    shell.current_dir(&*scratch).stdin(Stdio::null()).env_clear();
    shell.env("PATH", format!("{own}:/usr/bin:/bin:/usr/sbin:/sbin")).env("HOME", &*scratch).env("LANG", "C.UTF-8");
    shell.env("GITHUB_ENV", scratch.join("github"));
    shell.env("SCRIPT", sources.join("tests/conform/ud/receive_too_short.drill"));
    shell.env("CHECKOUT", &sources);
    let output = shell.output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).replace(&format!("{}/", scratch.display()), "");
    if !output.status.success() {
        return Err(format!("{script}{}\n{text}", output.status));
    }
    let ended = text.split(OUTPUT_MARK).skip(1).zip(commands(steps)).map(|(printed, (line, expected))| {
        let mut parts = printed.split(STATUS_MARK);
        let (output, status) = (parts.next().unwrap_or_default(), parts.next().unwrap_or("unknown"));
        let is_good = !expected.is_empty() || status == "0";
        if is_good { Ok(output.to_owned()) } else { Err(format!("$ {line}\n{output}\nits exit status is {status}")) }
    });
    ended.collect()
}

/// Replaces the outputs in the pages that differ from those of the commands.
fn write(pages: &[PathBuf]) -> ExitCode {
    let words: Vec<String> = report::arguments().filter(|word| !word.starts_with('-')).collect();
    let chosen = |page: &PathBuf| words.is_empty() || words.iter().any(|w| page.display().to_string().contains(w));
    for page in pages.iter().filter(|page| chosen(page)) {
        let mut text = fs::read_to_string(page).expect("read the page");
        let steps = steps(page, &text);
        let outputs = match session(&steps) {
            Ok(outputs) => outputs,
            Err(why) => {
                println!("FAILED   {}: {why}", page.display());
                return ExitCode::FAILURE;
            }
        };
        for ((line, expected), output) in commands(&steps).zip(&outputs) {
            let (lines, output) = (expected.join("\n"), output.trim_end());
            let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
            if !expected.is_empty() && !matches(&expected, &output.lines().collect::<Vec<_>>()) {
                text = text.replacen(&format!("$ {line}\n{lines}"), &format!("$ {line}\n{output}"), 1);
            }
        }
        fs::write(page, text).expect("write the page");
    }
    ExitCode::SUCCESS
}
