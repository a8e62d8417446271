//! Formats of a [`Report`]: text, JUnit, JSON (`json.rs`) and a page of HTML (`html.rs`).

mod html;
mod json;
mod plots;

pub use html::{comparison_page, page};
pub(crate) use json::FORMAT;
pub use json::{badge, value};

use crate::clauses::{self, Class, Clause};
use crate::conform::{LOSSY_FAILURES, Report, Tried};
use crate::figures::Series;
use crate::run::Verdict;
use roxe_dissect::escape;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::SystemTime;

/// Words of all verdicts, in the order of the columns.
const WORDS: [&str; 5] = ["pass", "FAIL", "tolerated", "unsupported", "inconclusive"];

/// A clause with the number of its cases by verdict.
struct ClauseRow {
    name: String,
    clause: Clause,
    counts: [usize; 5],
}

/// Returns a row for each clause in the report, sorted by section.
fn rows(report: &Report) -> Vec<ClauseRow> {
    let known = clauses::all();
    let mut counts = BTreeMap::<&str, [usize; 5]>::new();
    for tried in &report.tried {
        let word = tried.outcome.verdict.word();
        let column = WORDS.iter().position(|known| *known == word).unwrap_or(WORDS.len() - 1);
        for clause in &tried.clauses {
            counts.entry(clause).or_default()[column] += 1;
        }
    }
    let row = |(name, counts): (&str, [usize; 5])| ClauseRow {
        name: name.into(),
        clause: known.get(name).cloned().unwrap_or_default(),
        counts,
    };
    let mut rows: Vec<_> = counts.into_iter().map(row).collect();
    rows.sort_by(|a, b| (&a.clause.section, &a.name).cmp(&(&b.clause.section, &b.name)));
    rows
}

/// Formats counts such as `12 pass, 1 FAIL`.
fn format_counts(counts: [usize; 5]) -> String {
    let shown = WORDS.iter().zip(counts).filter(|(_, count)| *count > 0);
    shown.map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// Returns the unsupported cases by reason.
fn unsupported(report: &Report) -> BTreeMap<&str, Vec<String>> {
    let mut reasons = BTreeMap::<&str, Vec<String>>::new();
    for tried in &report.tried {
        if let Verdict::Unsupported(reason) = &tried.outcome.verdict {
            reasons.entry(reason).or_default().push(tried.name());
        }
    }
    reasons
}

/// Returns each figure with its case.
fn figures<'r>(report: &'r Report) -> Vec<(Series, &'r Tried)> {
    let series_of =
        |tried: &'r Tried| Series::of(&tried.outcome.figures).into_iter().map(move |series| (series, tried));
    let mut all: Vec<(Series, &Tried)> = report.tried.iter().flat_map(series_of).collect();
    all.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    all
}

/// Returns the note of a report with cases that both failed and passed.
fn unsteady(report: &Report) -> Option<String> {
    let count = report.unsteady;
    (count > 0).then(|| format!("{count} cases failed and passed, so FAIL means {LOSSY_FAILURES} failures"))
}

/// Returns a table by clause, failed cases by class, reasons, figures, and sums.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut section = String::new();
    for row in rows(report) {
        if row.clause.section != section {
            section.clone_from(&row.clause.section);
            _ = writeln!(text, "\n{section}");
        }
        let source = row.clause.sources.split(';').next().unwrap_or_default();
        _ = writeln!(text, "  {:24} {source:22} {}", row.name, format_counts(row.counts));
    }
    for class in Class::ALL {
        for (index, tried) in report.failed(class).enumerate() {
            if index == 0 {
                _ = writeln!(text, "\nFailed, {}: each {}", class.word(), class.text());
            }
            let clause = tried.clauses.first().map_or("", String::as_str);
            _ = writeln!(text, "  {}: {clause} ({})", tried.name(), tried.sources);
        }
    }
    for (index, (reason, names)) in unsupported(report).into_iter().enumerate() {
        _ = writeln!(text, "{}{:4} unsupported: {reason}", if index == 0 { "\n" } else { "" }, names.len());
    }
    for (index, (series, tried)) in figures(report).into_iter().enumerate() {
        if index == 0 {
            _ = writeln!(text, "\nFigures: least, median and largest value");
        }
        let [least, median, most] = series.range().map(|value| series.unit.show(value));
        _ = writeln!(text, "  {:22} {least:>9} {median:>9} {most:>9}  {}", series.name, tried.name());
    }
    let scripts = report.tried.chunk_by(|a, b| a.script == b.script).count();
    let counts = WORDS.map(|word| report.count(word));
    let again = report.tried.iter().filter(|tried| tried.tries > 1).count();
    if again > 0 {
        _ = writeln!(text, "\n{again} cases ran more than once: they failed, or the judge was late");
    }
    if let Some(note) = unsteady(report) {
        _ = writeln!(text, "{note}");
    }
    _ = writeln!(
        text,
        "\n{}: {scripts} scripts, {} cases: {}",
        report.target,
        report.tried.len(),
        format_counts(counts)
    );
    text
}

const fn reason(verdict: &Verdict) -> Option<&String> {
    match verdict {
        Verdict::Tolerated(reason, _) | Verdict::Unsupported(reason) => Some(reason),
        Verdict::Pass | Verdict::Fail(_) | Verdict::Inconclusive(_) => None,
    }
}

/// Returns JUnit XML with a suite for each folder of scripts.
pub fn junit(report: &Report) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"roxe conform\">\n");
    let folder = |tried: &Tried| tried.script.split('/').next().unwrap_or_default().to_owned();
    for suite in report.tried.chunk_by(|a, b| folder(a) == folder(b)) {
        let count = |word| suite.iter().filter(|tried| tried.outcome.verdict.word() == word).count();
        _ = writeln!(
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
            _ = write!(text, "    <testcase name=\"{name}\" classname=\"{title}\" time=\"{time:.6}\">");
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

/// Returns the date in UTC.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    // Counts from 1 March of year 0, so that a leap day is the last day of its year.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (of_month, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year}-{month:02}-{of_month:02}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::conform::Deviations;
    use crate::script::Script;
    use crate::virtual_card::VirtualCard;
    use crate::{Target, conform};
    use std::time::Duration;

    /// Returns a report with each verdict but `inconclusive`.
    pub(crate) fn report() -> Report {
        let script = |name: &str, body: &str| {
            let text = format!("title T <{name}>\nclause GAP-NAK, DUP-READ\npeer qp q\n{body}");
            Script::parse(name, &text).expect("parse the script")
        };
        let scripts = [
            script("a/good", "figure acks number 3\nfigure acks number 1\nfigure acks number 2"),
            script("a/bad", "send WRITE_ONLY psn=100 ackreq\nexpect ACK psn=100 msn=9"),
            script("b/known", "send WRITE_ONLY psn=100 ackreq\nexpect ACK psn=100 msn=9"),
            script("b/other", "peer qp r type=RD"),
        ];
        let deviations = Deviations::parse("b/known: it counts & counts").expect("parse the deviations");
        conform::run(&scripts, &mut VirtualCard::default(), &deviations, |_| ())
    }

    #[test]
    fn text_report_has_rows_for_clauses_and_sums() {
        let text = text(&report());
        let card = VirtualCard::default().card(false).expect("get the card");
        let sums = "1 pass, 1 FAIL, 1 tolerated, 1 unsupported";
        for line in [
            format!("  DUP-READ                 IBA 9.7.5.1            {sums}\n"),
            format!("  GAP-NAK                  IBA 9.7.5              {sums}\n"),
            format!("\n{}: 4 scripts, 4 cases: {sums}\n", card.name),
            "\nResponder: duplicates\n".into(),
            "\nFailed, strict: each rests on the standard, as public sources give it\n  a/bad: GAP-NAK (IBA 9.7.5".into(),
            "\n   1 unsupported: the virtual card has no RD queue pairs (errno 95)\n".into(),
            "\nFigures: least, median and largest value\n  acks                           1         2         3  a/good\n".into(),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }

    #[test]
    fn junit_report_counts_by_folder_and_escapes() {
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
    fn html_report_shows_clauses_and_packets_of_failures() {
        let page = page(&report(), None);
        assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
        assert!(page.contains("not quotations"), "the note on section numbers");
        assert_eq!(page.matches("<details").count(), 2, "two cases did not pass and went on");
        assert!(page.contains("RC ACK dqpn=0x2a psn=100 migreq ack msn=1 len=0"), "{page}");
        assert!(page.contains("A gap is answered with one sequence NAK"), "the clause itself: {page}");
        assert!(page.contains("Unsupported cases: 1") && page.contains("b/other"), "{page}");
        assert!(!page.contains("<script") && !page.contains("http"), "self-contained");
        assert!(
            page.contains("strict: 1 failed, 1 tolerated. ") && page.contains("<b>FAIL</b> (strict) a/bad: T"),
            "{page}"
        );
        assert!(!page.contains("<svg"), "no figure of several cases");
        assert!(page.contains("<td>acks</td><td>a/good <small>T &lt;a/good&gt;</small></td><td class=\"n\">3</td>"));
        assert!(page.find("id=\"cases\"") < page.find("id=\"clauses\""), "what failed comes first");
        for target in page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(page.contains(&format!("id=\"{target}\"")), "#{target} leads nowhere: {page}");
        }
        assert!(page.contains("href=\"#"), "{page}");
    }

    #[test]
    fn comparison_page_shows_both_reports_side_by_side() {
        let new = value(&report());
        let mut old = new.clone();
        (old["target"], old["date"]) = ("<old>".into(), "2026-01-02".into());
        (old["facts"]["kernel"], old["cases"][1]["verdict"]) = ("6.1".into(), "pass".into());
        let compared = crate::compare::Comparison::of(&old, &new).unwrap();
        let page = comparison_page(&old, &new, &compared);
        assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
        let target = new["target"].as_str().unwrap();
        for part in [
            format!("<tr><th>card</th><td>&lt;old&gt;</td><td>{target}</td></tr>"),
            "<tr><th>FAIL</th><td>1</td><td>1</td></tr>".into(),
            "<tr><th>kernel</th><td>6.1</td><td></td></tr>".into(),
            "<td>worse</td><td>a/bad</td><td>pass -&gt; fail</td>".into(),
            "<th class=\"n\">Median before</th>".into(),
        ] {
            assert!(page.contains(&part), "{part}\n{page}");
        }
        assert!(!page.contains("<script") && !page.contains("http"), "self-contained");
    }

    #[test]
    fn date_follows_the_gregorian_calendar() {
        let on = |days: u64| date(SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400 + 86_399));
        let known = [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_819, "2027-01-01"),
        ];
        known.iter().for_each(|(days, expected)| assert_eq!(on(*days), *expected));
    }
}
