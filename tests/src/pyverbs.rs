//! Unpacks rdma-core's Python tests and runs them under `roxe run`.
//!
//! The copy lacks the tests of single vendors. Touches the folder `target/pyverbs`.

use crate::build;
use crate::pair::{self, Outcome, Program};
use crate::report::last_lines;
use crate::unittest::{self, TestResult};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Debian's copy of the suite; half of its files are compressed.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// The interpreter that Debian's extension modules are built for.
const PYTHON: &str = "/usr/bin/python3";
/// Prefixes of the files that test one vendor's hardware.
const VENDOR_FILES: [&str; 3] = ["test_mlx5_", "test_efa", "test_cuda"];

/// Returns true if the suite and its modules are installed.
pub fn is_installed() -> bool {
    Path::new(SUITE).is_dir() && Path::new("/usr/lib/python3/dist-packages/pyverbs").is_dir()
}

/// Returns the folder of the copy that runs. Its name must be `tests`, the package of the tests.
fn folder() -> PathBuf {
    build::target_dir().join("pyverbs/tests")
}

/// Copies the suite, uncompressed, without the tests of single vendors.
pub fn unpack() -> io::Result<()> {
    let to = folder();
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    fs::create_dir_all(&to)?;
    for entry in fs::read_dir(SUITE)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if VENDOR_FILES.iter().any(|prefix| name.starts_with(prefix)) || path.is_dir() {
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

/// Returns the names of the copied test files, without `.py`.
pub fn modules() -> BTreeSet<String> {
    let entries = fs::read_dir(folder()).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.path()).filter(|path| path.extension() == Some(OsStr::new("py")));
    let stems = names.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    stems.filter(|stem| stem.starts_with("test_")).collect()
}

/// Returns true if `test` is in the file `module`.
pub fn in_module(test: &str, module: &str) -> bool {
    test.split('.').next() == Some(module)
}

/// Returns the names of all tests, as in [`Run::results`].
pub fn names() -> Vec<String> {
    let outcome = run_tests(vec!["--list-tests".into()], &[], Duration::from_secs(30));
    outcome.output.lines().filter_map(|line| Some(line.strip_prefix("tests.")?.to_owned())).collect()
}

/// Runs the suite's program, `run_tests.py`.
fn run_tests(mut args: Vec<String>, envs: &[(&str, &str)], limit: Duration) -> Outcome {
    args.insert(0, folder().join("run_tests.py").to_string_lossy().into_owned());
    let failed = |e: io::Error| Outcome { command: PYTHON.into(), ok: false, output: e.to_string() };
    pair::run(&Program { name: PYTHON.into(), args }, envs, limit).unwrap_or_else(failed)
}

/// A run of the suite or of a part of it.
#[derive(Debug)]
pub struct Run {
    outcome: Outcome,
    results: BTreeMap<String, TestResult>,
}

impl Run {
    /// Runs `tests` (all, if the list is empty) on `roxe0` with the environment variables `envs`,
    /// for at most `limit`.
    pub fn new(tests: &[String], envs: &[(&str, &str)], limit: Duration) -> Self {
        let mut args = ["--dev", "roxe0", "--gid", "0", "-v"].map(str::to_owned).to_vec();
        args.extend(tests.iter().map(|test| format!("tests.{test}")));
        let outcome = run_tests(args, envs, limit);
        let results = unittest::parse(&outcome.output);
        Self { outcome, results }
    }

    /// Returns the result of each test, by its name without the package `tests`.
    pub fn results(&self) -> &BTreeMap<String, TestResult> {
        &self.results
    }

    /// Checks that unittest's summary has as many tests as [`Self::results`], and that it exited
    /// with 0.
    ///
    /// # Errors
    /// The count in the summary, and the last lines of the output.
    pub fn check_count(&self) -> Result<(), String> {
        match unittest::summary_count(&self.outcome.output) {
            Some(count) if count == self.results.len() && self.outcome.ok => Ok(()),
            counted => Err(format!("unittest counted {counted:?} tests; it ended with\n{}", self.tail())),
        }
    }

    /// Returns the last lines of the output, which explain an early exit.
    pub fn tail(&self) -> String {
        last_lines(&self.outcome.output, 40)
    }

    /// Returns the traceback that unittest printed for a failed test.
    pub fn traceback(&self, test: &str) -> String {
        let blocks = self.outcome.output.split("\n======").skip(1);
        let about = format!("(tests.{test})");
        blocks.filter(|block| block.contains(&about)).map(|block| format!("\n{}", block.trim_matches('='))).collect()
    }

    /// Returns every fault rule with the number of faults that it injected in the process that ran
    /// the tests.
    pub fn faults(&self) -> Vec<(&str, u64)> {
        faults(&self.outcome.output)
    }
}

/// Parses lines `roxe: faults: RULE: N packets matched, M faults`.
fn faults(output: &str) -> Vec<(&str, u64)> {
    output.lines().filter_map(rule_and_faults).collect()
}

fn rule_and_faults(line: &str) -> Option<(&str, u64)> {
    let (rule, counts) = line.strip_prefix("roxe: faults: ")?.rsplit_once(": ")?;
    Some((rule, counts.strip_suffix(" faults")?.rsplit_once(' ')?.1.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_their_faults_are_found() {
        let output = "roxe: faults: seed=1; drop 1%; delay by=1ms\nOK\n\
                      roxe: faults: drop 1%: 1094 packets matched, 92 faults\n\
                      roxe: faults: drop from=::1: 0 packets matched, 0 faults\n";
        assert_eq!(faults(output), [("drop 1%", 92), ("drop from=::1", 0)]);
    }
}
