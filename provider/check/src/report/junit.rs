//! Reports as JUnit XML, for CI servers. Each rule is a test case that passes if the rule found
//! nothing. Each report is a test case whose class is the program and whose name is the rule and
//! the function. Errors fail; warnings and advice are the output of a passing test.

use super::SymbolizedReport;
use crate::rule::{Rule, Severity};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The text before the number of tests.
const HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"roxe\"";
const TAIL: &str = "</testsuite>\n</testsuites>\n";
/// The start of each test case, and of the test case of a rule.
const CASE: &str = "<testcase classname=\"";
const OF_RULE: &str = "<testcase classname=\"roxe\" name=\"";

/// Adds a report to a document, which is empty if there is none yet.
pub(super) fn add(text: &str, report: Option<&SymbolizedReport>) -> Option<String> {
    let mut cases = if text.is_empty() {
        Rule::ALL.iter().copied().map(passed).collect()
    } else {
        let (_, cases) = text.strip_prefix(HEAD)?.strip_suffix(TAIL)?.split_once(">\n")?;
        cases.to_owned()
    };
    if let Some(report) = report {
        let passed = passed(report.report.rule);
        match cases.find(&passed) {
            Some(at) => cases.replace_range(at..at + passed.len(), &found(report)),
            None => cases.push_str(&found(report)),
        }
    }
    let (tests, failures) = (cases.matches(CASE).count(), cases.matches("<failure ").count());
    Some(format!("{HEAD} tests=\"{tests}\" failures=\"{failures}\" errors=\"0\" skipped=\"0\">\n{cases}{TAIL}"))
}

fn passed(rule: Rule) -> String {
    format!("{OF_RULE}{rule}\"/>\n")
}

fn found(named: &SymbolizedReport) -> String {
    let (rule, text) = (named.report.rule, escaped(&named.text()));
    let outcome = if named.report.severity == Severity::Error {
        format!("<failure type=\"{rule}\" message=\"{}\">{text}</failure>", escaped(&named.report.sentence))
    } else {
        format!("<system-out>{text}</system-out>")
    };
    let function = named.top_words(1).next().map(|name| format!(" in {}", escaped(&name))).unwrap_or_default();
    format!("{CASE}{}\" name=\"{rule}{function}\">\n{outcome}\n</testcase>\n", escaped(&program()))
}

fn program() -> String {
    let program = std::env::args_os().next().map(PathBuf::from);
    let name = program.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "program".to_owned())
}

/// Escapes XML 1.0, and drops characters that no document may contain.
fn escaped(text: &str) -> String {
    let allowed =
        text.chars().filter(|c| *c >= ' ' && !matches!(c, '\u{fffe}' | '\u{ffff}') || matches!(c, '\t' | '\n'));
    allowed.fold(String::new(), |mut escaped, c| {
        match c {
            '&' | '<' | '>' | '"' => _ = write!(escaped, "&#{};", u32::from(c)),
            c => escaped.push(c),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    fn report(rule: Rule) -> SymbolizedReport {
        Report::new(rule, "a < b & \"c\"\u{1}").symbolized()
    }

    #[test]
    fn rule_is_a_test_that_fails_after_its_first_error() {
        let all = Rule::ALL.len();
        let mut text = add("", None).unwrap();
        assert!(text.contains(&format!("tests=\"{all}\" failures=\"0\"")), "{text}");
        for (rule, tests, failures) in
            [(Rule::KeyStale, all, 1), (Rule::KeyStale, all + 1, 2), (Rule::Leak, all + 1, 2)]
        {
            text = add(&text, Some(&report(rule))).unwrap();
            assert!(text.contains(&format!("tests=\"{tests}\" failures=\"{failures}\"")), "{text}");
        }
        assert!(text.contains("message=\"a &#60; b &#38; &#34;c&#34;\""), "{text}");
        assert!(text.contains("<system-out>roxe: warning [leak]: a &#60; b"), "{text}");
    }

    #[test]
    fn foreign_document_is_rejected() {
        assert_eq!(add("<testsuites></testsuites>\n", None), None);
    }
}
