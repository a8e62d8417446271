//! The commands of the documentation: blocks exactly as typed, those of its tables with something
//! in place of what the reader fills in ([`PLACES`]). In a shell, with nothing but `roxe` and the
//! system's programs to find. What a block shows below its commands is not compared.

use roxe_tests::build;
use roxe_tests::pair::installed;
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The pages, and the commands that are typed there and not here, with the reason.
const PAGES: &[&str] = &["README.md", "docs/how-to/install.md", "docs/reference/use.md"];
const NOT_HERE: &[(&str, &str)] = &[
    ("cargo install", "the test `install -- --all` does it"),
    ("cargo run", "the lane `clients` does it"),
    ("roxe demo", "the lane `clients` does it"),
    ("tests/run", "it is what runs this"),
    ("verbs-api/packaging/build", "it builds for minutes"),
    ("mdbook", "it is no part of roxe"),
];
/// What stands for something of the reader's, in a table of commands, and what it is here.
const PLACES: &[(&str, &str)] = &[
    ("PROGRAM ARGS...", "ibv_devices"),
    ("PROGRAM", "ibv_devices"),
    ("-- ...", "-- ibv_devices"),
    ("--faults RULES", "--faults 'seed=1; drop 1%'"),
    ("--html OUT FILE", "--html out.html $CAPTURE"),
    ("[--check] FILE", "--check $CAPTURE"),
    ("--capture FILE", "--capture new.pcapng"),
    ("--trace FILE", "--trace trace.json"),
    ("replay FILE TARGET", "replay $CAPTURE virtual"),
    ("drill TARGET FILE...", "drill virtual $SCRIPT"),
    ("conform TARGET", "conform virtual atomic"),
    ("fuzz TARGET", "fuzz virtual --cases 5"),
    ("roxe top [PID]", "roxe top --help"),
    ("check-peer TARGET", "check-peer --help"),
    ("install-lib DIR", "install-lib dir"),
    ("generate-docs DIR", "generate-docs dir"),
];
/// Commands of that table that do not end by themselves: that they begin is shown elsewhere.
const STAYS: &[&str] = &["roxe peer", "roxe top"];

pub(crate) fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut checks = Vec::new();
    for page in PAGES {
        let text = fs::read_to_string(root.join(page)).expect("the page is there");
        for (number, script) in typed(&text).into_iter().enumerate() {
            checks.push(Check::new(format!("{page}: block {}", number + 1), move || run(&script)));
        }
        for command in commands(&text) {
            let script = filled(&command);
            checks.push(Check::new(format!("{page}: {command}"), move || run(&script)));
        }
    }
    report::main(checks)
}

/// What is typed in each block of a page: the lines behind a `$`, but those that are not for here.
fn typed(page: &str) -> Vec<String> {
    let blocks = page.split("```").skip(1).step_by(2);
    let lines = |block: &str| {
        let lines = block.lines().filter_map(|line| line.strip_prefix("$ "));
        lines.filter(|line| is_for_here(line)).map(|line| format!("{line}\n")).collect()
    };
    blocks.map(lines).filter(|script: &String| !script.is_empty()).collect()
}

fn is_for_here(command: &str) -> bool {
    NOT_HERE.iter().all(|(start, _)| !command.starts_with(start))
}

/// The commands of roxe in the first two columns of the tables of a page.
fn commands(page: &str) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let cells = rows.flat_map(|row| row.split('|').skip(1).take(2));
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let own = quoted.filter(|text| text.starts_with("roxe ") || text.contains("$(roxe "));
    own.filter(|text| !STAYS.contains(text) && is_for_here(text)).map(str::to_owned).collect()
}

/// A command with something in place of what its reader fills in.
fn filled(command: &str) -> String {
    PLACES.iter().fold(command.to_owned(), |command, (from, to)| command.replacen(from, to, 1))
}

/// Runs a script in an empty folder; jobs in the background are pairs, and end with their partner.
fn run(script: &str) -> Verdict {
    let missing = ["ibv_rc_pingpong", "rping"].into_iter().find(|tool| script.contains(tool) && !installed(tool));
    if let Some(tool) = missing {
        return Verdict::Skipped(format!("{tool} is not installed (tests/run installs it)"));
    }
    let scratch = Scratch::new();
    let bin = build::roxe();
    let tests = build::sources().join("tests");
    let own = bin.parent().expect("a program lies in a folder").display();
    let mut shell = Command::new("timeout");
    shell.args(["60", "sh", "-ec", &patient(script)]).current_dir(&scratch.0).stdin(Stdio::null()).env_clear();
    shell.env("PATH", format!("{own}:/usr/bin:/bin:/usr/sbin:/sbin")).env("HOME", &scratch.0);
    shell.env("GITHUB_ENV", scratch.0.join("github"));
    shell.env("CAPTURE", tests.join("captures/rping.pcap"));
    shell.env("SCRIPT", tests.join("conform/ud/receive_too_short.drill"));
    match shell.output() {
        Ok(output) if output.status.success() => Verdict::Passed,
        Ok(output) => Verdict::Failed(format!(
            "{script}{}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(e) => Verdict::Failed(e.to_string()),
    }
}

/// The script, in which who comes too early for a server comes again, as a reader does.
fn patient(script: &str) -> String {
    let again = |line: &str| format!("for i in $(seq 200); do {line} && break; done");
    let mut serves = false;
    let lines = script.lines().map(|line| {
        let follows = std::mem::replace(&mut serves, line.ends_with('&'));
        if follows { again(line) } else { line.to_owned() }
    });
    format!("{}\nwait", lines.collect::<Vec<_>>().join("\n"))
}

/// An empty folder, removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("roxe-examples-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
