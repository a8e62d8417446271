//! Reads what Python's `unittest -v` prints.

use std::collections::BTreeMap;

/// Result of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// `ok`.
    Passed,
    /// `skipped`, and why.
    Skipped(String),
    /// `FAIL`, `ERROR`, or another result that is not a success.
    Failed(String),
    /// The run ended before the test did.
    Unknown,
}

/// Every test that `output` names, as `module.Class.test`, without the package `tests`.
///
/// A test is announced by `test_x (tests.module.Class.test_x)`, then the first line of its
/// description if it has one, then ` ... ` and how it ended. What the test itself prints stands
/// before that last word, which then has no ` ... ` in its line.
pub fn parse(output: &str) -> BTreeMap<String, Ending> {
    let mut endings = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in output.lines() {
        if let Some(name) = announced(line) {
            endings.insert(name.clone(), Ending::Unknown);
            current = Some(name);
        }
        let result = line.rsplit_once(" ... ").map_or(line, |(_, result)| result);
        if let Some(name) = &current
            && let Some(ending) = ending(result)
        {
            endings.insert(name.clone(), ending);
            current = None;
        }
    }
    endings
}

fn announced(line: &str) -> Option<String> {
    let (name, rest) = line.split_once(" (tests.")?;
    let (path, _) = rest.split_once(')')?;
    (name.starts_with("test_") && path.ends_with(name)).then(|| path.to_owned())
}

fn ending(result: &str) -> Option<Ending> {
    match result {
        "ok" => Some(Ending::Passed),
        "FAIL" | "ERROR" | "unexpected success" | "expected failure" => Some(Ending::Failed(result.to_owned())),
        _ => result.strip_prefix("skipped ").map(|why| Ending::Skipped(why.trim_matches(['\'', '"']).to_owned())),
    }
}

/// The number of tests that unittest itself counted: `Ran 160 tests in 0.591s`. Nothing if the run
/// did not get there.
pub fn counted(output: &str) -> Option<usize> {
    output.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
test_a (tests.test_x.T.test_a) ... ok
test_b (tests.test_x.T.test_b)
With a description: ... means nothing ... skipped 'no (real) reason'
test_c (tests.test_x.T.test_c) ... it talks
and talks
ERROR
test_d (tests.test_y.T.test_d) ... FAIL

======================================================================
ERROR: test_c (tests.test_x.T.test_c)
----------------------------------------------------------------------
Ran 4 tests in 0.5s
";

    #[test]
    fn every_test_has_its_own_ending() {
        let endings = parse(OUTPUT);
        assert_eq!(endings.len(), 4);
        assert_eq!(endings["test_x.T.test_a"], Ending::Passed);
        assert_eq!(endings["test_x.T.test_b"], Ending::Skipped("no (real) reason".into()));
        assert_eq!(endings["test_x.T.test_c"], Ending::Failed("ERROR".into()));
        assert_eq!(endings["test_y.T.test_d"], Ending::Failed("FAIL".into()));
        assert_eq!(counted(OUTPUT), Some(4));
    }

    #[test]
    fn aborted_run_leaves_its_test_open() {
        let endings =
            parse("test_a (tests.test_x.T.test_a) ... ok\ntest_b (tests.test_x.T.test_b) ... Segmentation fault");
        assert_eq!(endings["test_x.T.test_b"], Ending::Unknown);
        assert_eq!(counted("nothing"), None);
    }
}
