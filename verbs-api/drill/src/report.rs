//! What came of a catalogue, for people and for machines: text, JSON, JUnit, one HTML page.
//!
//! Each takes a [`Report`] and makes a text of it.

mod html;

use crate::clauses::{self, Clause};
use crate::conform::{Report, Tried};
use crate::verdict::Verdict;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

pub use html::html;

/// The words of all verdicts, in the order of columns.
const WORDS: [&str; 5] = ["pass", "FAIL", "tolerated", "unsupported", "inconclusive"];

/// A clause, and how many of its cases have which verdict.
struct Row {
    name: String,
    clause: Clause,
    counts: [usize; 5],
}

/// One row for each clause that was tried, by sections of the protocol.
fn rows(report: &Report) -> Vec<Row> {
    let known = clauses::all();
    let mut counts = BTreeMap::<&str, [usize; 5]>::new();
    for tried in &report.tried {
        let word = tried.outcome.verdict.word();
        let column = WORDS.iter().position(|known| *known == word).unwrap_or(WORDS.len() - 1);
        for clause in &tried.clauses {
            counts.entry(clause).or_default()[column] += 1;
        }
    }
    let row = |(name, counts): (&str, [usize; 5])| Row {
        name: name.into(),
        clause: known.get(name).cloned().unwrap_or_default(),
        counts,
    };
    let mut rows: Vec<_> = counts.into_iter().map(row).collect();
    rows.sort_by(|a, b| (&a.clause.section, &a.name).cmp(&(&b.clause.section, &b.name)));
    rows
}

/// `12 pass, 1 FAIL`.
fn sum(counts: [usize; 5]) -> String {
    let some = WORDS.iter().zip(counts).filter(|(_, count)| *count > 0);
    some.map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// The table by clause, and the sums.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut section = String::new();
    for row in rows(report) {
        if row.clause.section != section {
            section.clone_from(&row.clause.section);
            let _ = writeln!(text, "\n{section}");
        }
        let source = row.clause.sources.split(';').next().unwrap_or_default();
        let _ = writeln!(text, "  {:24} {source:22} {}", row.name, sum(row.counts));
    }
    let scripts = report.tried.chunk_by(|a, b| a.script == b.script).count();
    let counts = WORDS.map(|word| report.count(word));
    let again = report.tried.iter().filter(|tried| tried.tries > 1).count();
    if again > 0 {
        let _ = writeln!(text, "\n{again} cases were run more than once: they failed, or the judge was late");
    }
    let _ = writeln!(text, "\n{}: {scripts} scripts, {} cases: {}", report.target, report.tried.len(), sum(counts));
    text
}

/// One object: the target, the sums, every case.
pub fn json(report: &Report) -> String {
    let case = |tried: &Tried| {
        let verdict = &tried.outcome.verdict;
        let failure = verdict.failure().map(|failure| {
            json!({"at": failure.at, "step": failure.step, "expected": failure.expected,
                   "received": failure.received, "packets": failure.packets})
        });
        json!({
            "script": tried.script, "parameters": tried.parameters, "title": tried.title, "clauses": tried.clauses,
            "verdict": verdict.word().to_ascii_lowercase(), "reason": reason(verdict), "failure": failure,
            "packets": tried.outcome.log.packets().len(), "tries": tried.tries,
            "seconds": tried.took.as_secs_f64(),
        })
    };
    let sums: Value = WORDS.iter().map(|word| (word.to_ascii_lowercase(), json!(report.count(word)))).collect();
    let cases: Vec<_> = report.tried.iter().map(case).collect();
    format!("{:#}\n", json!({"target": report.target, "sums": sums, "not_run": report.not_run, "cases": cases}))
}

/// Why a case is tolerated, or unsupported.
const fn reason(verdict: &Verdict) -> Option<&String> {
    match verdict {
        Verdict::Tolerated(reason, _) | Verdict::Unsupported(reason) => Some(reason),
        Verdict::Pass | Verdict::Fail(_) | Verdict::Inconclusive(_) => None,
    }
}

/// A JUnit file, a suite for each folder of scripts.
pub fn junit(report: &Report) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"roxe conform\">\n");
    let folder = |tried: &Tried| tried.script.split('/').next().unwrap_or_default().to_owned();
    for suite in report.tried.chunk_by(|a, b| folder(a) == folder(b)) {
        let count = |word| suite.iter().filter(|tried| tried.outcome.verdict.word() == word).count();
        let _ = writeln!(
            text,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\">",
            escape(&folder(&suite[0])),
            suite.len(),
            count("FAIL"),
            count("inconclusive"),
            count("tolerated") + count("unsupported"),
        );
        for tried in suite {
            let (name, title, time) = (escape(&tried.name()), escape(&tried.title), tried.took.as_secs_f64());
            let _ = write!(text, "    <testcase name=\"{name}\" classname=\"{title}\" time=\"{time:.6}\">");
            let _ = match &tried.outcome.verdict {
                Verdict::Pass => Ok(()),
                Verdict::Fail(failure) => write!(text, "<failure>{}</failure>", escape(&failure.to_string())),
                Verdict::Inconclusive(failure) => write!(text, "<error>{}</error>", escape(&failure.to_string())),
                Verdict::Tolerated(reason, _) | Verdict::Unsupported(reason) => {
                    write!(text, "<skipped message=\"{}\"/>", escape(reason))
                }
            };
            text.push_str("</testcase>\n");
        }
        text.push_str("  </testsuite>\n");
    }
    text.push_str("</testsuites>\n");
    text
}

/// Text for XML and HTML, in elements and in attributes.
fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // No other control character may stand in XML.
            c if c.is_control() && c != '\n' && c != '\t' => escaped.push('?'),
            c => escaped.push(c),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deviations::Deviations;
    use crate::script::Script;
    use crate::virtual_card::VirtualCard;
    use crate::{Target, conform};

    /// One case of each verdict but `inconclusive`.
    fn report() -> Report {
        let script = |name: &str, body: &str| {
            let text = format!("title T <{name}>\nclause GAP-NAK, DUP-READ\npeer qp q\n{body}");
            Script::parse(name, &text).expect("a script")
        };
        let scripts = [
            script("a/good", "silence 1ms"),
            script("a/bad", "send WRITE_ONLY psn=100 ackreq\nexpect ACK psn=100 msn=9"),
            script("b/known", "send WRITE_ONLY psn=100 ackreq\nexpect ACK psn=100 msn=9"),
            script("b/other", "peer qp r type=RD"),
        ];
        let deviations = Deviations::parse("b/known: it counts & counts").expect("a file");
        conform::run(&scripts, &mut VirtualCard::default(), &deviations, |_| ())
    }

    #[test]
    fn the_text_has_a_row_for_each_clause_and_the_sums() {
        let text = text(&report());
        let card = VirtualCard::default().card(false).expect("a card");
        let sums = "1 pass, 1 FAIL, 1 tolerated, 1 unsupported";
        for line in [
            format!("  DUP-READ                 IBA 9.7.5.1            {sums}\n"),
            format!("  GAP-NAK                  IBA 9.7.5              {sums}\n"),
            format!("\n{}: 4 scripts, 4 cases: {sums}\n", card.name),
            "\nResponder: duplicates\n".into(),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_json_has_every_case() {
        let value: Value = serde_json::from_str(&json(&report())).expect("JSON");
        let verdicts: Vec<_> = value["cases"].as_array().expect("cases").iter().map(|case| &case["verdict"]).collect();
        assert_eq!(verdicts, ["pass", "fail", "tolerated", "unsupported"]);
        assert_eq!(value["sums"]["fail"], 1);
        assert_eq!(value["cases"][1]["failure"]["expected"], "ACK psn=100 msn=9");
        assert_eq!(value["cases"][2]["reason"], "it counts & counts");
    }

    #[test]
    fn the_junit_file_counts_by_folder_and_escapes() {
        let text = junit(&report());
        assert!(
            text.contains("<testsuite name=\"a\" tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\">"),
            "{text}"
        );
        assert!(
            text.contains("<testsuite name=\"b\" tests=\"2\" failures=\"0\" errors=\"0\" skipped=\"2\">"),
            "{text}"
        );
        assert!(text.contains("<skipped message=\"it counts &amp; counts\"/>"), "{text}");
        assert!(text.contains("classname=\"T &lt;a/bad&gt;\""), "{text}");
        assert_eq!(text.matches("<testcase").count(), text.matches("</testcase>").count());
    }

    #[test]
    fn the_page_shows_each_clause_and_the_packets_of_what_did_not_pass() {
        let page = html(&report());
        assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
        assert!(page.contains("not quotations"), "what section numbers rest on");
        assert_eq!(page.matches("<details").count(), 2, "two cases did not pass and went on");
        assert!(page.contains("RC ACK dqpn=0x2a psn=100 migreq ack msn=1 len=0"), "{page}");
        assert!(page.contains("A gap is answered with one sequence NAK"), "the clause itself: {page}");
        assert!(!page.contains("<script") && !page.contains("http"), "self-contained");
        assert!(page.find("id=\"cases\"") < page.find("id=\"clauses\""), "what failed comes first");
        for target in page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(page.contains(&format!("id=\"{target}\"")), "#{target} leads nowhere: {page}");
        }
        assert!(page.contains("href=\"#"), "{page}");
    }
}
