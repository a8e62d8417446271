//! Formats of a [`Report`]: text, JSON, JUnit and a page of HTML. The texts of clauses come from
//! `tests/clauses.txt`.

use crate::conform::{Report, Tried};
use crate::craft::describe;
use crate::run::Verdict;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::SystemTime;

/// Words of all verdicts, in the order of columns.
const WORDS: [&str; 5] = ["pass", "FAIL", "tolerated", "unsupported", "inconclusive"];

/// A clause with the number of its cases by verdict.
struct Row {
    name: String,
    clause: Clause,
    counts: [usize; 5],
}

/// Returns a row for each clause in the report, sorted by section.
fn rows(report: &Report) -> Vec<Row> {
    let known = known_clauses();
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

/// Returns counts such as `12 pass, 1 FAIL`.
fn sum(counts: [usize; 5]) -> String {
    let some = WORDS.iter().zip(counts).filter(|(_, count)| *count > 0);
    some.map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// Returns a table by clause, and sums.
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
        let _ = writeln!(text, "\n{again} cases ran more than once: they failed, or the judge was late");
    }
    for (_, fact) in report.facts.iter().filter(|(name, _)| name == "steadiness") {
        let _ = writeln!(text, "{fact}");
    }
    let _ = writeln!(text, "\n{}: {scripts} scripts, {} cases: {}", report.target, report.tried.len(), sum(counts));
    text
}

/// Returns a JSON object: the target, sums, and every case.
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
    let facts: Value = report.facts.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    format!(
        "{:#}\n",
        json!({"target": report.target, "facts": facts, "date": date(SystemTime::now()), "sums": sums, "not_run": report.not_run, "cases": cases})
    )
}

const fn reason(verdict: &Verdict) -> Option<&String> {
    match verdict {
        Verdict::Tolerated(reason, _) | Verdict::Unsupported(reason) => Some(reason),
        Verdict::Pass | Verdict::Fail(_) | Verdict::Inconclusive(_) => None,
    }
}

/// Returns a JUnit file with a suite for each folder of scripts.
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

/// Escapes text for elements and attributes of XML and HTML.
fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML allows no other control character.
            c if c.is_control() && c != '\n' && c != '\t' => escaped.push('?'),
            c => escaped.push(c),
        }
        escaped
    })
}

const LIST: &str = include_str!("../clauses.txt");

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Clause {
    /// Part of the protocol.
    section: String,
    /// Sections of the specification, drivers, captures.
    sources: String,
    /// The requirement.
    text: String,
}

/// Parses the list of clauses, by name.
fn known_clauses() -> BTreeMap<String, Clause> {
    let mut clauses = BTreeMap::<String, Clause>::new();
    let (mut section, mut open) = ("", String::new());
    for line in LIST.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        } else if let Some(told) = line.strip_prefix("    ") {
            let is_remark = told.starts_with("uncited:") || told.starts_with("untested:");
            if is_remark {
                open.clear();
            } else if let Some(clause) = clauses.get_mut(&open) {
                clause.text += if clause.text.is_empty() { "" } else { " " };
                clause.text += told.trim();
            }
        } else if let Some((id, sources)) = line.strip_suffix(')').and_then(|line| line.split_once(" ("))
            && !line.starts_with('#')
        {
            open = id.into();
            let clause = Clause { section: section.into(), sources: sources.into(), text: String::new() };
            clauses.insert(id.into(), clause);
        }
    }
    clauses
}

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#222;--back:#fff;--line:#ddd;--soft:#f5f5f5;--faint:#666;--bad:#fdecea;\
--known:#fff6dd;--card:#0a7a45;--near:#0b5fc0;--remark:#b00020;--link:#0b5fc0}\
@media(prefers-color-scheme:dark){:root{--text:#ddd;--back:#16181c;--line:#3a3d44;--soft:#22252b;--faint:#9aa0a8;\
--bad:#4a2020;--known:#42381a;--card:#5fd39a;--near:#7ab7ff;--remark:#ff8a80;--link:#7ab7ff}}\
body{font:15px/1.4 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;color:var(--text);\
background:var(--back)}a{color:var(--link)}:focus-visible{outline:2px solid var(--link);outline-offset:2px}\
table{border-collapse:collapse;width:100%}.wide{overflow-x:auto}\
td,th{text-align:left;vertical-align:top;padding:.25em .6em;border-bottom:1px solid var(--line)}\
.facts{width:auto}.facts td{overflow-wrap:anywhere}\
td.n,th.n{text-align:right}tr.bad td{background:var(--bad)}tr.known td{background:var(--known)}\
h3{margin:1.5em 0 .2em}pre{background:var(--soft);padding:.6em;overflow-x:auto}\
.card{color:var(--card)}.near{color:var(--near)}.remark{color:var(--remark)}summary{cursor:pointer;margin:.4em 0}\
:target{scroll-margin-top:1em;outline:2px solid var(--link)}small{color:var(--faint)}";

/// Number of failures that are expanded initially; more would hide the list.
const OPEN: usize = 20;

/// Note on the sources of clauses.
const SOURCES: &str = "Clauses are in our own words, with their sources in parentheses. IBA is the InfiniBand \
                       Architecture Specification, whose text was not at hand: section numbers are pointers, not \
                       quotations.";

/// Returns a page of HTML.
pub fn html(report: &Report) -> String {
    let target = escape(&report.target);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Conformance of {target}</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>RoCEv2 conformance</h1>\n<p>{} cases: {}</p>\n",
        report.tried.len(),
        sum(WORDS.map(|word| report.count(word))),
    );
    let facts = [("card".to_owned(), report.target.clone()), ("date".to_owned(), date(SystemTime::now()))];
    page.push_str("<table class=\"facts\">\n");
    for (name, value) in facts.iter().chain(&report.facts) {
        let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    page.push_str("</table>\n");
    if let Some(lost) = report.lost() {
        let _ = writeln!(page, "<p class=\"remark\">{}</p>", escape(&lost));
    }
    let mut failed: Vec<_> = report.tried.iter().filter(|tried| tried.outcome.verdict.failure().is_some()).collect();
    failed.sort_by_key(|tried| WORDS.iter().position(|word| *word == tried.outcome.verdict.word()).unwrap_or(0));
    let _ = writeln!(page, "<h2 id=\"cases\">Cases that did not pass: {}</h2>", failed.len());
    failed.iter().enumerate().for_each(|(at, tried)| case(tried, at < OPEN, &mut page));
    unsupported(report, &mut page);
    page.push_str("<h2 id=\"clauses\">Clauses</h2>\n");
    let _ = writeln!(page, "<p>{SOURCES}</p>");
    table(report, &failed, &mut page);
    page.push_str("</body></html>\n");
    page
}

/// Writes the unsupported cases by reason.
fn unsupported(report: &Report, page: &mut String) {
    let mut reasons = BTreeMap::<&str, Vec<String>>::new();
    for tried in &report.tried {
        if let Verdict::Unsupported(reason) = &tried.outcome.verdict {
            reasons.entry(reason).or_default().push(tried.name());
        }
    }
    let count = reasons.values().map(Vec::len).sum::<usize>();
    if count == 0 {
        return;
    }
    let _ = writeln!(page, "<h2 id=\"unsupported\">Unsupported cases: {count}</h2>\n<table>");
    page.push_str("<tr><th>Reason</th><th>Cases</th></tr>\n");
    for (reason, names) in reasons {
        let _ = writeln!(page, "<tr><td>{}</td><td>{}</td></tr>", escape(reason), escape(&names.join(", ")));
    }
    page.push_str("</table>\n");
}

/// Returns the date in UTC.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    // Days since 1 March of year 0: years from March on end with their leap day.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (of_month, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year}-{month:02}-{of_month:02}")
}

fn table(report: &Report, unpassed: &[&Tried], page: &mut String) {
    let mut section = String::new();
    for row in rows(report) {
        if row.clause.section != section {
            page.push_str(if section.is_empty() { "" } else { "</table></div>\n" });
            section.clone_from(&row.clause.section);
            let _ = write!(
                page,
                "<h3>{}</h3><div class=\"wide\"><table><tr><th>Clause</th><th>Requirement</th>",
                escape(&section)
            );
            WORDS.iter().for_each(|word| {
                let _ = write!(page, "<th class=\"n\">{word}</th>");
            });
            page.push_str("</tr>\n");
        }
        let [_, failed, tolerated, _, inconclusive] = row.counts;
        let class = match (failed + inconclusive, tolerated) {
            (0, 0) => "",
            (0, _) => " class=\"known\"",
            _ => " class=\"bad\"",
        };
        let (name, text, sources) = (&row.name, escape(&row.clause.text), escape(&row.clause.sources));
        let _ = write!(page, "<tr{class} id=\"{name}\"><td>{name}</td><td>{text} <small>({sources})</small>");
        for tried in unpassed.iter().filter(|tried| tried.clauses.iter().any(|clause| clause == name)) {
            let case = escape(&tried.name());
            let _ = write!(page, "<br><a href=\"#{}\">{case}</a>", anchor(&tried.name()));
        }
        page.push_str("</td>");
        row.counts.iter().for_each(|count| {
            let _ = write!(page, "<td class=\"n\">{count}</td>");
        });
        page.push_str("</tr>\n");
    }
    page.push_str(if section.is_empty() { "" } else { "</table></div>\n" });
}

fn anchor(name: &str) -> String {
    name.chars().map(|char| if char.is_ascii_alphanumeric() { char } else { '-' }).collect()
}

fn case(tried: &Tried, is_open: bool, page: &mut String) {
    let verdict = &tried.outcome.verdict;
    let Some(failure) = verdict.failure() else { return };
    let (name, title) = (escape(&tried.name()), escape(&tried.title));
    let (step, expected, received) = (escape(&failure.step), escape(&failure.expected), escape(&failure.received));
    let links: Vec<_> =
        tried.clauses.iter().map(|clause| format!("<a href=\"#{0}\">{0}</a>", escape(clause))).collect();
    let reason = reason(verdict).map_or_else(String::new, |reason| format!("<p>{}</p>\n", escape(reason)));
    let _ = write!(
        page,
        "<details id=\"{}\"{}><summary><b>{}</b> {name}: {title}</summary>\n<p>Clauses: {}; script \
         <code>tests/conform/{}.drill</code></p>\n{reason}<table>\
         <tr><th>Step</th><td>{}: <code>{step}</code></td></tr><tr><th>Expected</th><td>{expected}</td></tr>\
         <tr><th>Received</th><td>{received}</td></tr></table>\n<pre>",
        anchor(&tried.name()),
        if is_open { " open" } else { "" },
        verdict.word(),
        links.join(", "),
        escape(&tried.script),
        escape(&failure.at),
    );
    let start = tried.outcome.log.packets().first().map_or_else(Default::default, |seen| seen.at);
    for seen in tried.outcome.log.packets() {
        let (class, arrow) = if seen.from_card { ("card", "&larr;") } else { ("near", "&rarr;") };
        let time = seen.at.saturating_sub(start).as_secs_f64();
        let packet = escape(&describe(&seen.datagram.bytes));
        let _ = write!(page, "{time:10.6} <span class=\"{class}\">{arrow} {packet}</span>");
        if !seen.remark.is_empty() {
            let _ = write!(page, " <span class=\"remark\">{}</span>", escape(&seen.remark));
        }
        page.push('\n');
    }
    page.push_str("</pre></details>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conform::Deviations;
    use crate::script::Script;
    use crate::virtual_card::VirtualCard;
    use crate::{Target, conform};
    use std::time::Duration;

    /// Returns a report with each verdict but `inconclusive`.
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
    fn text_report_has_rows_for_clauses_and_sums() {
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
    fn json_report_has_every_case() {
        let value: Value = serde_json::from_str(&json(&report())).expect("JSON");
        let verdicts: Vec<_> = value["cases"].as_array().expect("cases").iter().map(|case| &case["verdict"]).collect();
        assert_eq!(verdicts, ["pass", "fail", "tolerated", "unsupported"]);
        assert_eq!(value["sums"]["fail"], 1);
        assert_eq!(value["cases"][1]["failure"]["expected"], "ACK psn=100 msn=9");
        assert_eq!(value["cases"][2]["reason"], "it counts & counts");
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
        let page = html(&report());
        assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
        assert!(page.contains("not quotations"), "the note on section numbers");
        assert_eq!(page.matches("<details").count(), 2, "two cases did not pass and went on");
        assert!(page.contains("RC ACK dqpn=0x2a psn=100 migreq ack msn=1 len=0"), "{page}");
        assert!(page.contains("A gap is answered with one sequence NAK"), "the clause itself: {page}");
        assert!(page.contains("Unsupported cases: 1") && page.contains("b/other"), "{page}");
        assert!(!page.contains("<script") && !page.contains("http"), "self-contained");
        assert!(page.find("id=\"cases\"") < page.find("id=\"clauses\""), "what failed comes first");
        for target in page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(page.contains(&format!("id=\"{target}\"")), "#{target} leads nowhere: {page}");
        }
        assert!(page.contains("href=\"#"), "{page}");
    }

    #[test]
    fn clauses_are_parsed_with_their_texts() {
        let clauses = known_clauses();
        assert!(clauses.len() > 150);
        let clause = &clauses["CHECK-ATOMIC-ALIGNED"];
        assert_eq!(clause.section, "Responder: checks and refusals");
        assert_eq!(clause.sources, "IBA 9.7.4");
        assert_eq!(clause.text, "An atomic on an address that is not a multiple of 8 is an invalid request.");
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
