//! Parses the output of Python's `unittest -v`.

use std::collections::BTreeMap;

/// Result of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestResult {
    /// `ok`.
    Passed,
    /// `skipped`, with the reason.
    Skipped(String),
    /// `FAIL`, `ERROR`, or another result that is not a success.
    Failed(String),
    /// The run ended before the test did.
    Unknown,
}

/// Returns the result of every test in `output` by its name, `module.Class.test`, without the
/// package `tests`.
///
/// unittest prints `test_x (tests.module.Class.test_x)`, the first line of the test's description
/// if it has one, ` ... ` and the result. Output of the test itself comes before the result, whose
/// line then has no ` ... `.
pub fn parse(output: &str) -> BTreeMap<String, TestResult> {
    let mut results = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in output.lines() {
        if let Some(name) = announced(line) {
            results.insert(name.clone(), TestResult::Unknown);
            current = Some(name);
        }
        let result = line.rsplit_once(" ... ").map_or(line, |(_, result)| result);
        if let Some(name) = &current
            && let Some(result) = parse_result(result)
        {
            results.insert(name.clone(), result);
            current = None;
        }
    }
    results
}

fn announced(line: &str) -> Option<String> {
    let (name, rest) = line.split_once(" (tests.")?;
    let (path, _) = rest.split_once(')')?;
    (name.starts_with("test_") && path.ends_with(name)).then(|| path.to_owned())
}

fn parse_result(text: &str) -> Option<TestResult> {
    match text {
        "ok" => Some(TestResult::Passed),
        "FAIL" | "ERROR" | "unexpected success" | "expected failure" => Some(TestResult::Failed(text.to_owned())),
        _ => text.strip_prefix("skipped ").map(|why| TestResult::Skipped(why.trim_matches(['\'', '"']).to_owned())),
    }
}

/// Returns the number of tests in unittest's summary, `Ran 160 tests in 0.591s`; `None` if the run
/// was aborted.
pub fn summary_count(output: &str) -> Option<usize> {
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
    fn every_test_has_its_result() {
        let results = parse(OUTPUT);
        assert_eq!(results.len(), 4);
        assert_eq!(results["test_x.T.test_a"], TestResult::Passed);
        assert_eq!(results["test_x.T.test_b"], TestResult::Skipped("no (real) reason".into()));
        assert_eq!(results["test_x.T.test_c"], TestResult::Failed("ERROR".into()));
        assert_eq!(results["test_y.T.test_d"], TestResult::Failed("FAIL".into()));
        assert_eq!(summary_count(OUTPUT), Some(4));
    }

    #[test]
    fn aborted_test_has_unknown_result() {
        let results =
            parse("test_a (tests.test_x.T.test_a) ... ok\ntest_b (tests.test_x.T.test_b) ... Segmentation fault");
        assert_eq!(results["test_x.T.test_b"], TestResult::Unknown);
        assert_eq!(summary_count("nothing"), None);
    }
}
