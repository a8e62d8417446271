//! Runs rdma-core's own tests of the verbs API (Debian's python3-pyverbs), unmodified.
//!
//! The tests run under `roxe run` without faults and with faults. There is a check for each run and
//! test file: no test fails, and every test in `tests/pyverbs.txt` passes. All runs must have the
//! same result of every test.
//!
//! ```text
//! pyverbs [--repeat N] [--faults RULES] [--seed N] [WORD...]
//!   --repeat N        every run N times, with another seed of the faults each time
//!   --faults RULES    fault rules instead of those in `LOSSY`; '' skips the runs with faults
//!   --seed N          the first seed of the random rules, default 1
//!   WORD...           only checks with one of the WORDs in their name
//! ```

use roxe_tests::guest::link;
use roxe_tests::pyverbs::{self, Run};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::unittest::TestResult;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

/// Time limit of a run. It takes two seconds without faults, and most of a minute with faults,
/// because every loss costs a timeout of 67 ms.
const TIME_LIMIT: Duration = Duration::from_secs(240);

/// Fault rules: 1 % of faults from which reliable services recover, and no losses of unreliable
/// services, because their tests wait for every message. Both ends are in one process, so `rx`
/// applies to every packet once.
///
/// NAKs other than RNR NAKs are not lost. A responder in the error state sends one NAK and then
/// nothing, so with any card the requester would exhaust its retries instead of reporting the NAK.
const LOSSY: &str = "drop rx 1% service=RC,XRC op=REQUEST,READ_RESPONSE,ATOMIC_ACK,ACK,RNR_NAK; \
                   duplicate rx 1% service=RC,XRC; reorder rx 1% service=RC,XRC; delay rx 5% service=UC,UD by=1ms";

/// Tests that assume that a SEND completes before the receive of the peer's reply. With any card
/// that is wrong if the acknowledgement of the SEND is lost or late. These tests run separately
/// with [`WITHOUT_ACK_LOSS`].
const NEED_ALL_ACKS: [&str; 1] = ["test_tag_matching.TMTest.test_tm_rndv"];

/// Fault rules without lost acknowledgements. The losses are fixed rather than random, because the
/// tests exchange only a hundred packets.
const WITHOUT_ACK_LOSS: &str = "drop rx service=RC op=REQUEST nth=2,5,9,14; drop rx service=RC op=READ_RESPONSE nth=2,6; \
                         duplicate rx service=RC nth=3,8,20";

pub(crate) fn main() -> ExitCode {
    if !pyverbs::is_installed() {
        return report::main(vec![Check::new("pyverbs", || Verdict::not_installed("python3-pyverbs"))]);
    }
    let prepared = Options::read(report::arguments()).and_then(|options| {
        pyverbs::unpack().map_err(|e| e.to_string())?;
        Ok(options)
    });
    match prepared {
        Ok(options) => report::run(checks(&options.passes()), &options.words),
        Err(e) => {
            println!("FAILED   pyverbs: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The command line.
struct Options {
    repeat: u64,
    faults: String,
    seed: u64,
    /// Words for [`report::run`].
    words: Vec<String>,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { repeat: 1, faults: LOSSY.into(), seed: 1, words: Vec::new() };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} wants a value"));
            let number = |text: String| text.parse::<u64>().map_err(|e| format!("{arg}: {e}"));
            match arg.as_str() {
                "--repeat" => options.repeat = value().and_then(number)?,
                "--faults" => options.faults = value()?,
                "--seed" => options.seed = value().and_then(number)?,
                _ => options.words.push(arg),
            }
        }
        Ok(options)
    }

    /// Returns the requested runs.
    fn passes(&self) -> Vec<Arc<Pass>> {
        let name = |kind: &str, n: u64| match (self.repeat, kind) {
            (1, "") => String::new(),
            (1, kind) => format!("{kind}: "),
            (_, "") => format!("run {n}: "),
            (_, kind) => format!("{kind}, run {n}: "),
        };
        let plain = (1..=self.repeat).map(|n| Pass::new(name("", n), None));
        let with_faults = (1..=self.repeat).filter(|_| !self.faults.trim().is_empty()).map(|n| {
            let seed = self.seed.wrapping_add(n - 1);
            let lossy = Pass::new(name("with faults", n), Some(format!("seed={seed}; {}", self.faults)));
            let acks =
                Pass::new(name("with faults, no lost acks", n), Some(format!("seed={seed}; {WITHOUT_ACK_LOSS}")));
            [Pass { tests: Tests::Lossy, ..lossy }, Pass { tests: Tests::NeedAllAcks, ..acks }]
        });
        plain.chain(with_faults.flatten()).map(Arc::new).collect()
    }
}

/// Returns the tests that must pass: the lines of `tests/pyverbs.txt` without comments, and without
/// those that need root unless this process is root.
fn must_pass() -> BTreeSet<&'static str> {
    let lines =
        include_str!("../../../pyverbs.txt").lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let is_root = link::is_root();
    lines.filter_map(|line| line.strip_suffix(" root").map_or(Some(line), |test| is_root.then_some(test))).collect()
}

/// The tests of a run.
#[derive(Clone, Copy)]
enum Tests {
    All,
    /// The tests that are not in [`NEED_ALL_ACKS`].
    Lossy,
    /// The tests in [`NEED_ALL_ACKS`].
    NeedAllAcks,
}

impl Tests {
    fn has(self, test: &str) -> bool {
        match self {
            Self::All => true,
            Self::Lossy => !NEED_ALL_ACKS.contains(&test),
            Self::NeedAllAcks => NEED_ALL_ACKS.contains(&test),
        }
    }

    /// Returns true if tests of this file are among them.
    fn has_module(self, module: &str) -> bool {
        !matches!(self, Self::NeedAllAcks) || NEED_ALL_ACKS.iter().any(|test| pyverbs::in_module(test, module))
    }

    /// Returns the names of the tests; none stands for all.
    fn names(self) -> Vec<String> {
        match self {
            Self::All => Vec::new(),
            _ => pyverbs::names().into_iter().filter(|test| self.has(test)).collect(),
        }
    }
}

/// A run of the tests, which the first check that needs it starts.
struct Pass {
    /// Prefix of its checks' names.
    name: String,
    /// The fault rules, if there are any.
    faults: Option<String>,
    tests: Tests,
    run: OnceLock<Run>,
}

impl Pass {
    fn new(name: String, faults: Option<String>) -> Self {
        Self { name, faults, tests: Tests::All, run: OnceLock::new() }
    }

    fn run(&self) -> &Run {
        self.run.get_or_init(|| {
            let envs: Vec<_> = self.faults.iter().map(|rules| ("ROXE_FAULTS", rules.as_str())).collect();
            Run::new(&self.tests.names(), &envs, TIME_LIMIT)
        })
    }

    /// Checks that no test of `module` fails, and that those that must pass do.
    fn judge(&self, module: &str) -> Verdict {
        let (run, must) = (self.run(), must_pass());
        let mut wrong = Vec::new();
        for (test, result) in run.results().iter().filter(|(test, _)| pyverbs::in_module(test, module)) {
            match result {
                TestResult::Passed if !must.contains(test.as_str()) => {
                    println!("passes, but is not in pyverbs.txt: {test}")
                }
                TestResult::Failed(_) | TestResult::Unknown => {
                    wrong.push(format!("{test}: {result:?}{}", run.traceback(test)))
                }
                TestResult::Skipped(why) if must.contains(test.as_str()) => {
                    wrong.push(format!("{test}: skipped: {why}"))
                }
                TestResult::Passed | TestResult::Skipped(_) => {}
            }
        }
        let expected = must.iter().filter(|test| pyverbs::in_module(test, module) && self.tests.has(test));
        let missing = expected.filter(|test| !run.results().contains_key(**test));
        wrong.extend(missing.map(|test| format!("{test}: did not run\n{}", run.tail())));
        if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed(wrong.join("\n")) }
    }

    /// Prints the numbers of results and the reasons of skipped tests. Checks that unittest counted
    /// the same number of tests, and that every fault rule made a fault.
    fn score(&self) -> Verdict {
        let run = self.run();
        let mut skipped: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut passed, mut failed) = (0, 0);
        for result in run.results().values() {
            match result {
                TestResult::Passed => passed += 1,
                TestResult::Skipped(why) => *skipped.entry(why).or_default() += 1,
                TestResult::Failed(_) | TestResult::Unknown => failed += 1,
            }
        }
        let (count, sum) = (run.results().len(), skipped.values().sum::<usize>());
        println!("{}{count} tests: {passed} passed, {sum} skipped, {failed} failed", self.name);
        for (why, count) in skipped {
            println!("{count:4} skipped: {why}");
        }
        match run.check_count().and_then(|()| self.check_faults(run)) {
            Ok(()) => Verdict::Passed,
            Err(why) => Verdict::Failed(why),
        }
    }

    /// Checks that every fault rule made a fault.
    fn check_faults(&self, run: &Run) -> Result<(), String> {
        let Some(rules) = &self.faults else { return Ok(()) };
        let made = run.faults();
        made.iter().for_each(|(rule, count)| println!("{count:4} faults: {rule}"));
        if made.is_empty() || made.iter().any(|(_, count)| *count == 0) {
            return Err(format!("a rule of {rules:?} made no fault: {made:?}\n{}", run.tail()));
        }
        Ok(())
    }
}

/// Returns the checks: one for each run and file, one for each run, and the comparison of all runs.
fn checks(passes: &[Arc<Pass>]) -> Vec<Check> {
    let mut checks = Vec::new();
    for pass in passes {
        for module in pyverbs::modules().into_iter().filter(|module| pass.tests.has_module(module)) {
            let pass = Arc::clone(pass);
            checks.push(Check::new(format!("{}{module}", pass.name), move || pass.judge(&module)));
        }
        let pass = Arc::clone(pass);
        checks.push(Check::new(format!("{}score", pass.name), move || pass.score()));
    }
    let passes = passes.to_vec();
    checks.push(Check::new("all runs agree", move || compare_runs(&passes)));
    checks
}

/// Checks that every test has the same result in every run.
fn compare_runs(passes: &[Arc<Pass>]) -> Verdict {
    let Some((first, others)) = passes.split_first() else { return Verdict::Passed };
    let mut wrong = Vec::new();
    for other in others {
        let names: BTreeSet<_> = first.run().results().keys().chain(other.run().results().keys()).collect();
        for name in names.into_iter().filter(|name| other.tests.has(name)) {
            let [one, two] = [first, other].map(|pass| pass.run().results().get(name));
            if one != two {
                wrong.push(format!("{name}: {one:?}; {}{two:?}", other.name));
            }
        }
    }
    if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed(wrong.join("\n")) }
}
