//! rdma-core's own tests of the verbs API (Debian's python3-pyverbs), unmodified.
//!
//! The tests run twice under `roxe run`: without faults, and on a bad network ([`ANSWERED`] on one
//! of its own). One check per run and file: no test fails, and every test in `tests/pyverbs.txt`
//! passes. All runs must agree about every test. As root they run in a network namespace of their
//! own.
//!
//! ```text
//! pyverbs [--repeat N] [--faults RULES] [--seed N] [WORD...]
//!   --repeat N        each of the two runs N times, the bad network with another seed each time
//!   --faults RULES    faults of the bad network, instead of [`BAD`]; '' skips that run
//!   --seed N          the first seed of the random rules, default 1
//!   WORD              only the checks whose name contains a word
//! ```

use roxe_tests::guest::link;
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::pyverbs::{self, Run};
use roxe_tests::unittest::TestResult;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

/// A run takes two seconds, on a bad network most of a minute: every loss costs a timeout of 67 ms.
const LIMIT: Duration = Duration::from_secs(240);

/// The bad network: 1 % of faults that reliable services recover from, and none that unreliable
/// services lose messages by, because their tests wait for every message. Both ends are one
/// process, so `rx` means every packet once.
///
/// Refusals are not lost, only late or duplicate: the queue pair that refuses sends one NAK and
/// then nothing, so that with any card the peer of a lost NAK would exhaust its retries. The tests
/// of refusals expect their reasons.
const BAD: &str = "drop rx 1% service=RC,XRC op=REQUEST,READ_RESPONSE,ATOMIC_ACK,ACK,RNR_NAK; \
                   duplicate rx 1% service=RC,XRC; reorder rx 1% service=RC,XRC; delay rx 5% service=UC,UD by=1ms";

/// Tests that assume that a SEND completes before the receive of the peer's answer. With any card
/// that is not so if the acknowledgement of the SEND is lost or late. They run separately on the
/// network `ACKS_KEPT`.
const ANSWERED: [&str; 1] = ["test_tag_matching.TMTest.test_tm_rndv"];

/// A bad network that delivers every acknowledgement. It carries a hundred packets, so its losses
/// are fixed rather than random.
const ACKS_KEPT: &str = "drop rx service=RC op=REQUEST nth=2,5,9,14; drop rx service=RC op=READ_RESPONSE nth=2,6; \
                         duplicate rx service=RC nth=3,8,20";

pub(crate) fn main() -> ExitCode {
    if !pyverbs::is_installed() {
        return report::main(vec![Check::new("pyverbs", || {
            Verdict::not_installed("python3-pyverbs")
        })]);
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
    /// Arguments of [`report`].
    words: Vec<String>,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { repeat: 1, faults: BAD.into(), seed: 1, words: Vec::new() };
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

    /// The requested runs.
    fn passes(&self) -> Vec<Arc<Pass>> {
        let name = |kind: &str, n: u64| match (self.repeat, kind) {
            (1, "") => String::new(),
            (1, kind) => format!("{kind}: "),
            (_, "") => format!("run {n}: "),
            (_, kind) => format!("{kind}, run {n}: "),
        };
        let plain = (1..=self.repeat).map(|n| Pass::new(name("", n), None));
        let bad = (1..=self.repeat).filter(|_| !self.faults.trim().is_empty()).map(|n| {
            let seed = self.seed.wrapping_add(n - 1);
            let lossy = Pass::new(name("bad network", n), Some(format!("seed={seed}; {}", self.faults)));
            let kept = Pass::new(name("acknowledgements kept", n), Some(format!("seed={seed}; {ACKS_KEPT}")));
            [Pass { which: Which::AllButAnswered, ..lossy }, Pass { which: Which::Answered, ..kept }]
        });
        plain.chain(bad.flatten()).map(Arc::new).collect()
    }
}

/// The tests that must pass: the lines of `tests/pyverbs.txt` that are not comments, without those
/// for root unless we are it.
fn must_pass() -> BTreeSet<&'static str> {
    let lines =
        include_str!("../../../pyverbs.txt").lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let is_root = link::is_root();
    lines.filter_map(|line| line.strip_suffix(" root").map_or(Some(line), |test| is_root.then_some(test))).collect()
}

/// Which tests a run is about.
#[derive(Clone, Copy)]
enum Which {
    All,
    AllButAnswered,
    Answered,
}

impl Which {
    fn has(self, test: &str) -> bool {
        match self {
            Self::All => true,
            Self::AllButAnswered => !ANSWERED.contains(&test),
            Self::Answered => ANSWERED.contains(&test),
        }
    }

    /// Returns true if tests of this file may run.
    fn has_module(self, module: &str) -> bool {
        !matches!(self, Self::Answered) || ANSWERED.iter().any(|test| pyverbs::in_module(test, module))
    }

    /// Arguments of the suite: none for all tests.
    fn names(self) -> Vec<String> {
        match self {
            Self::All => Vec::new(),
            _ => pyverbs::names().into_iter().filter(|test| self.has(test)).collect(),
        }
    }
}

/// A run, started by the first check that needs it.
struct Pass {
    /// Prefix of its checks' names.
    name: String,
    /// The fault rules, if the network is bad.
    faults: Option<String>,
    which: Which,
    run: OnceLock<Run>,
}

impl Pass {
    fn new(name: String, faults: Option<String>) -> Self {
        Self { name, faults, which: Which::All, run: OnceLock::new() }
    }

    fn run(&self) -> &Run {
        self.run.get_or_init(|| {
            let envs: Vec<_> = self.faults.iter().map(|rules| ("ROXE_FAULTS", rules.as_str())).collect();
            Run::new(&self.which.names(), &envs, LIMIT)
        })
    }

    /// No test of `module` fails, and those that must pass do.
    fn judge(&self, module: &str) -> Verdict {
        let (run, must) = (self.run(), must_pass());
        let mut wrong = Vec::new();
        for (test, result) in run.results().iter().filter(|(test, _)| pyverbs::in_module(test, module)) {
            match result {
                TestResult::Passed if !must.contains(test.as_str()) => {
                    println!("passes, but is not in pyverbs.txt: {test}")
                }
                TestResult::Failed(_) | TestResult::Unknown => wrong.push(format!("{test}: {result:?}{}", run.traceback(test))),
                TestResult::Skipped(why) if must.contains(test.as_str()) => wrong.push(format!("{test}: skipped: {why}")),
                TestResult::Passed | TestResult::Skipped(_) => {}
            }
        }
        let expected = must.iter().filter(|test| pyverbs::in_module(test, module) && self.which.has(test));
        let lost = expected.filter(|test| !run.results().contains_key(**test));
        wrong.extend(lost.map(|test| format!("{test}: did not run\n{}", run.tail())));
        if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed(wrong.join("\n")) }
    }

    /// Every test in its place, the reasons of those that were skipped, whether unittest saw the
    /// same number, and whether the bad network was one.
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
        let (tests, sum) = (run.results().len(), skipped.values().sum::<usize>());
        println!("{}{tests} tests: {passed} passed, {sum} skipped, {failed} failed", self.name);
        for (why, count) in skipped {
            println!("{count:4} skipped: {why}");
        }
        match run.check_count().and_then(|()| self.check_faults(run)) {
            Ok(()) => Verdict::Passed,
            Err(why) => Verdict::Failed(why),
        }
    }

    /// Every rule of the bad network made a fault.
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

/// One check for each run and file, the scores, and the comparison.
fn checks(passes: &[Arc<Pass>]) -> Vec<Check> {
    let mut checks = Vec::new();
    for pass in passes {
        for module in pyverbs::modules().into_iter().filter(|module| pass.which.has_module(module)) {
            let pass = Arc::clone(pass);
            checks.push(Check::new(format!("{}{module}", pass.name), move || pass.judge(&module)));
        }
        let pass = Arc::clone(pass);
        checks.push(Check::new(format!("{}score", pass.name), move || pass.score()));
    }
    let passes = passes.to_vec();
    checks.push(Check::new("all runs agree", move || agree(&passes)));
    checks
}

/// Every run ended every test as the first one did.
fn agree(passes: &[Arc<Pass>]) -> Verdict {
    let Some((first, others)) = passes.split_first() else { return Verdict::Passed };
    let mut wrong = Vec::new();
    for other in others {
        let names: BTreeSet<_> = first.run().results().keys().chain(other.run().results().keys()).collect();
        for name in names.into_iter().filter(|name| other.which.has(name)) {
            let [one, two] = [first, other].map(|pass| pass.run().results().get(name));
            if one != two {
                wrong.push(format!("{name}: {one:?}; {}{two:?}", other.name));
            }
        }
    }
    if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed(wrong.join("\n")) }
}
