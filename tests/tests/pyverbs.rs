//! rdma-core's own tests (Debian's python3-pyverbs), unmodified, judge the whole verbs API.
//!
//! One run of the suite under `roxe run`, without the files that name a vendor or need a connection manager. Then one
//! check per file: no test of it fails, and every test that `tests/pyverbs.txt` lists passes. As root all of it happens in
//! a network namespace of its own.

use roxe_tests::build;
use roxe_tests::guest::link;
use roxe_tests::pair::{self, Outcome, Program};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::unittest::{self, Ending};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

/// Where Debian keeps the suite, half of it compressed.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// The interpreter that Debian's extension modules are made for.
const PYTHON: &str = "/usr/bin/python3";
/// Files that test one vendor's hardware, and the one that needs librdmacm.
const LEFT_OUT: [&str; 4] = ["test_mlx5_", "test_efa", "test_cuda", "test_rdmacm"];
/// The run takes seconds.
const LIMIT: Duration = Duration::from_secs(110);

fn main() -> ExitCode {
    if !Path::new(SUITE).is_dir() || !Path::new("/usr/lib/python3/dist-packages/pyverbs").is_dir() {
        return report::main(vec![Check::new("pyverbs", || {
            Verdict::Skipped("python3-pyverbs is not installed (see the README's test command)".into())
        })]);
    }
    if let Err(e) = isolate().and_then(|()| unpack()) {
        println!("FAILED   pyverbs: {e}");
        return ExitCode::FAILURE;
    }
    let suite = Rc::new(Suite::default());
    let mut checks: Vec<Check> = modules().into_iter().map(|module| module_check(&suite, module)).collect();
    checks.push(Check::new("score", move || suite.score()));
    report::main(checks)
}

/// As root, moves into a network namespace where nothing but this run sends packets.
fn isolate() -> io::Result<()> {
    // SAFETY: takes no pointers.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(());
    }
    link::enter()?;
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
    if up.success() { Ok(()) } else { Err(io::Error::other("`ip link set lo up` failed")) }
}

/// The copy of the suite that runs; the tests must lie in a folder of this name.
fn folder() -> PathBuf {
    build::target_dir().join("pyverbs/tests")
}

/// Copies the suite, uncompressed, without what is left out.
fn unpack() -> io::Result<()> {
    let to = folder();
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    fs::create_dir_all(&to)?;
    for entry in fs::read_dir(SUITE)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if LEFT_OUT.iter().any(|prefix| name.starts_with(prefix)) || path.is_dir() {
            continue;
        }
        match name.strip_suffix(".gz") {
            Some(plain) => fs::write(to.join(plain), gunzip(&path)?)?,
            None => fs::copy(&path, to.join(&name)).map(drop)?,
        }
    }
    Ok(())
}

fn gunzip(path: &Path) -> io::Result<Vec<u8>> {
    let output = Command::new("gzip").arg("-dc").arg(path).output()?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(io::Error::other(format!("gzip -dc {} failed", path.display())))
    }
}

/// The files of the copy that hold tests, without their ending.
fn modules() -> BTreeSet<String> {
    let entries = fs::read_dir(folder()).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.path()).filter(|path| path.extension() == Some(OsStr::new("py")));
    let stems = names.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    stems.filter(|stem| stem.starts_with("test_")).collect()
}

/// The tests that must pass: the lines of `tests/pyverbs.txt` that are no comments.
fn must_pass() -> BTreeSet<&'static str> {
    include_str!("../pyverbs.txt").lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).collect()
}

fn in_module(test: &str, module: &str) -> bool {
    test.split('.').next() == Some(module)
}

/// One run of all tests, made when the first check asks for it.
#[derive(Default)]
struct Suite {
    run: OnceLock<(Outcome, BTreeMap<String, Ending>)>,
}

impl Suite {
    fn run(&self) -> &(Outcome, BTreeMap<String, Ending>) {
        self.run.get_or_init(|| {
            let script = folder().join("run_tests.py").to_string_lossy().into_owned();
            let args = [script.as_str(), "--dev", "roxe0", "--gid", "0", "-v"].map(str::to_owned).to_vec();
            let outcome = pair::run(&Program { name: PYTHON.into(), args }, &[], LIMIT).unwrap_or_else(|e| Outcome {
                command: PYTHON.into(),
                ok: false,
                output: e.to_string(),
            });
            let endings = unittest::parse(&outcome.output);
            (outcome, endings)
        })
    }

    /// Every test in its place, the reasons of those that were skipped, and whether unittest saw the same number.
    fn score(&self) -> Verdict {
        let (outcome, endings) = self.run();
        let mut skipped: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut passed, mut failed) = (0, 0);
        for ending in endings.values() {
            match ending {
                Ending::Passed => passed += 1,
                Ending::Skipped(why) => *skipped.entry(why).or_default() += 1,
                Ending::Failed(_) | Ending::Unknown => failed += 1,
            }
        }
        println!(
            "{} tests: {passed} passed, {} skipped, {failed} failed",
            endings.len(),
            skipped.values().sum::<usize>()
        );
        for (why, count) in skipped {
            println!("{count:4} skipped: {why}");
        }
        match unittest::counted(&outcome.output) {
            Some(count) if count == endings.len() && outcome.ok => Verdict::Passed,
            counted => Verdict::Failed(format!("unittest counted {counted:?} tests; it ended with\n{}", tail(outcome))),
        }
    }
}

/// The last lines, where tracebacks and the reason of an early end are.
fn tail(outcome: &Outcome) -> String {
    let lines: Vec<&str> = outcome.output.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

fn module_check(suite: &Rc<Suite>, module: String) -> Check {
    let suite = Rc::clone(suite);
    Check::new(module.clone(), move || {
        let (outcome, endings) = suite.run();
        let must = must_pass();
        let mut wrong = Vec::new();
        for (test, ending) in endings.iter().filter(|(test, _)| in_module(test, &module)) {
            match ending {
                Ending::Passed if !must.contains(test.as_str()) => {
                    println!("passes, but is not in pyverbs.txt: {test}")
                }
                Ending::Failed(_) | Ending::Unknown => {
                    wrong.push(format!("{test}: {ending:?}{}", traceback(outcome, test)))
                }
                Ending::Skipped(why) if must.contains(test.as_str()) => wrong.push(format!("{test}: skipped: {why}")),
                Ending::Passed | Ending::Skipped(_) => {}
            }
        }
        let lost = must.iter().filter(|test| in_module(test, &module) && !endings.contains_key(**test));
        wrong.extend(lost.map(|test| format!("{test}: did not run\n{}", tail(outcome))));
        if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed(wrong.join("\n")) }
    })
}

/// What unittest printed about a test that failed.
fn traceback(outcome: &Outcome, test: &str) -> String {
    let blocks = outcome.output.split("\n======").skip(1);
    let about = format!("(tests.{test})");
    blocks.filter(|block| block.contains(&about)).map(|block| format!("\n{}", block.trim_matches('='))).collect()
}
