//! Writes results as JUnit XML, which continuous integration servers display.

use crate::report::Verdict;
use roxe_dissect::escape;
use std::fmt::Write;

/// The result of a check.
pub struct Case<'a> {
    /// Name of the check.
    pub name: String,
    /// Duration in seconds.
    pub seconds: f32,
    /// Verdict of the check.
    pub verdict: &'a Verdict,
}

/// Returns the document that contains `suites`.
pub fn document(suites: &[String]) -> String {
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n{}</testsuites>\n", suites.concat())
}

/// Returns the suite `name`, with the output that its cases share.
pub fn suite(name: &str, cases: &[Case<'_>], output: Option<&str>) -> String {
    let count = |is_counted: fn(&Verdict) -> bool| cases.iter().filter(|case| is_counted(case.verdict)).count();
    let (name, tests) = (escape(name), cases.len());
    let failures = count(|verdict| matches!(verdict, Verdict::Failed(_)));
    let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
    let mut text =
        format!("<testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" skipped=\"{skipped}\">\n");
    for Case { name: case, seconds, verdict } in cases {
        _ = write!(text, "<testcase classname=\"{name}\" name=\"{}\" time=\"{seconds:.3}\"", escape(case));
        _ = match verdict {
            Verdict::Passed => writeln!(text, "/>"),
            Verdict::Failed(why) => writeln!(text, "><failure>{}</failure></testcase>", escape(why)),
            Verdict::Skipped(why) => writeln!(text, "><skipped message=\"{}\"/></testcase>", escape(why)),
        };
    }
    if let Some(output) = output {
        _ = writeln!(text, "<system-out>{}</system-out>", escape(output));
    }
    text + "</testsuite>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_counts_failures_and_skips_and_escapes_text() {
        let verdicts =
            [Verdict::Passed, Verdict::Failed("wrong \"byte\" <5>\u{1}".into()), Verdict::Skipped("a & b".into())];
        let cases = [("one", 0), ("two", 1), ("three", 2)].map(|(name, at)| Case {
            name: name.to_owned(),
            seconds: 0.5,
            verdict: &verdicts[at],
        });
        let text = document(&[suite("s", &cases, Some("7 packets"))]);
        assert!(text.contains("<testsuite name=\"s\" tests=\"3\" failures=\"1\" skipped=\"1\">"), "{text}");
        assert!(text.contains("<testcase classname=\"s\" name=\"one\" time=\"0.500\"/>"), "{text}");
        assert!(text.contains("<failure>wrong &quot;byte&quot; &lt;5&gt;?</failure>"), "{text}");
        assert!(text.contains("<skipped message=\"a &amp; b\"/>") && text.contains("<system-out>7 packets<"), "{text}");
    }
}
