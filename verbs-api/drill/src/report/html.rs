//! The report as a page of HTML.

use super::{WORDS, date, format_counts, plots, reason, rows, unsteady, value};
use crate::clauses::Class;
use crate::compare::{Change, ChangeKind, Comparison, FigureChange, printable};
use crate::conform::{Lost, Report, Tried};
use crate::craft::describe;
use crate::run::Verdict;
use roxe_dissect::escape;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::SystemTime;

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#222;--back:#fff;--line:#ddd;--soft:#f5f5f5;--faint:#666;--bad:#fdecea;\
--known:#fff6dd;--card:#0a7a45;--near:#0b5fc0;--remark:#b00020;--link:#0b5fc0;--before:#a35a00}\
@media(prefers-color-scheme:dark){:root{--text:#ddd;--back:#16181c;--line:#3a3d44;--soft:#22252b;--faint:#9aa0a8;\
--bad:#4a2020;--known:#42381a;--card:#5fd39a;--near:#7ab7ff;--remark:#ff8a80;--link:#7ab7ff;\
--before:#e3a857}}\
body{font:15px/1.4 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;color:var(--text);\
background:var(--back)}a{color:var(--link)}:focus-visible{outline:2px solid var(--link);outline-offset:2px}\
table{border-collapse:collapse;width:100%}.wide{overflow-x:auto}\
td,th{text-align:left;vertical-align:top;padding:.25em .6em;border-bottom:1px solid var(--line)}\
.facts{width:auto}.facts td{overflow-wrap:anywhere}\
td.n,th.n{text-align:right}tr.bad td{background:var(--bad)}tr.known td{background:var(--known)}\
h3{margin:1.5em 0 .2em}pre{background:var(--soft);padding:.6em;overflow-x:auto}\
.card{color:var(--card)}.near{color:var(--near)}.remark{color:var(--remark)}summary{cursor:pointer;margin:.4em 0}\
:target{scroll-margin-top:1em;outline:2px solid var(--link)}small{color:var(--faint)}";

/// Number of failures that are expanded at first; more would hide the list of cases.
const MAX_EXPANDED: usize = 20;

/// Note on the sources of clauses.
const SOURCES_NOTE: &str = "Clauses are in our own words, with their sources in parentheses. IBA is the InfiniBand \
                       Architecture Specification, whose text was not at hand: section numbers are pointers, not \
                       quotations.";

/// Returns the head of a page with this title.
fn head(title: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>\n\
         <style>{STYLE}{}</style></head><body>\n",
        escape(title),
        plots::STYLE,
    )
}

/// Returns the report as a page of HTML, with the comparison with an older report if there is one.
pub fn page(report: &Report, compared: Option<(&Comparison, &Value)>) -> String {
    let mut page = head(&format!("Conformance of {}", report.target));
    let counts = format_counts(WORDS.map(|word| report.count(word)));
    _ = writeln!(page, "<h1>RoCEv2 conformance</h1>\n<p>{} cases: {counts}</p>", report.tried.len());
    let card_and_date = [("card".to_owned(), report.target.clone()), ("date".to_owned(), date(SystemTime::now()))];
    page.push_str("<table class=\"facts\">\n");
    for (name, value) in card_and_date.iter().chain(&report.run_info) {
        _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    page.push_str("</table>\n");
    for remark in report.lost.as_ref().map(Lost::to_string).into_iter().chain(unsteady(report)) {
        _ = writeln!(page, "<p class=\"remark\">{}</p>", escape(&remark));
    }
    if let Some((compared, _)) = compared {
        comparison(compared, &mut page);
    }
    let mut failed: Vec<_> = report.tried.iter().filter(|tried| tried.outcome.verdict.failure().is_some()).collect();
    failed.sort_by_key(|tried| {
        let verdict = WORDS.iter().position(|word| *word == tried.outcome.verdict.word());
        (verdict.unwrap_or(0), tried.class)
    });
    _ = writeln!(page, "<h2 id=\"cases\">Cases that did not pass: {}</h2>\n<ul>", failed.len());
    for class in Class::ALL {
        let (word, count) = (class.word(), report.failed(class).count());
        let is_tolerated =
            |tried: &&Tried| tried.class == class && matches!(tried.outcome.verdict, Verdict::Tolerated(..));
        let tolerated = match report.tried.iter().filter(is_tolerated).count() {
            0 => String::new(),
            count => format!(", {count} tolerated"),
        };
        _ = writeln!(page, "<li>{word}: {count} failed{tolerated}. Each {word} case {}.</li>", class.text());
    }
    page.push_str("</ul>\n");
    failed.iter().enumerate().for_each(|(at, tried)| case(tried, at < MAX_EXPANDED, &mut page));
    unsupported(report, &mut page);
    plots::section(&value(report), compared.map(|(_, old)| old), &mut page);
    page.push_str("<h2 id=\"clauses\">Clauses</h2>\n");
    _ = writeln!(page, "<p>{SOURCES_NOTE}</p>");
    table(report, &failed, &mut page);
    page.push_str("</body></html>\n");
    page
}

/// Writes the unsupported cases by reason.
fn unsupported(report: &Report, page: &mut String) {
    let reasons = super::unsupported(report);
    let count = reasons.values().map(Vec::len).sum::<usize>();
    if count == 0 {
        return;
    }
    _ = writeln!(page, "<h2 id=\"unsupported\">Unsupported cases: {count}</h2>\n<table>");
    page.push_str("<tr><th>Reason</th><th>Cases</th></tr>\n");
    for (reason, names) in reasons {
        _ = writeln!(page, "<tr><td>{}</td><td>{}</td></tr>", escape(reason), escape(&names.join(", ")));
    }
    page.push_str("</table>\n");
}

/// Returns a page of HTML that compares two saved reports.
pub fn comparison_page(old: &Value, new: &Value, compared: &Comparison) -> String {
    let text = |report: &Value, name: &str| report[name].as_str().map(printable).unwrap_or_default();
    let mut page = head(&format!("Conformance of {}, compared", text(new, "target")));
    page.push_str("<h1>RoCEv2 conformance: two reports</h1>\n<table class=\"facts\">\n");
    _ = writeln!(page, "<tr><th></th><th>Before</th><th>Now</th></tr>");
    let mut line = |name: &str, values: [String; 2]| {
        let [before, now] = values.map(|value| escape(&value));
        _ = writeln!(page, "<tr><th>{}</th><td>{before}</td><td>{now}</td></tr>", escape(name));
    };
    line("card", [old, new].map(|report| text(report, "target")));
    line("date", [old, new].map(|report| text(report, "date")));
    let count = |report: &Value, word: &str| report["sums"][word].as_u64().filter(|count| *count > 0);
    for word in WORDS {
        let counts = [old, new].map(|report| count(report, &word.to_ascii_lowercase()));
        if counts != [None; 2] {
            line(word, counts.map(|count| count.unwrap_or_default().to_string()));
        }
    }
    let names = [old, new].into_iter().filter_map(|report| report["facts"].as_object());
    for name in names.flat_map(serde_json::Map::keys).collect::<BTreeSet<_>>() {
        line(&printable(name), [old, new].map(|report| text(&report["facts"], name)));
    }
    page.push_str("</table>\n");
    comparison(compared, &mut page);
    plots::section(new, Some(old), &mut page);
    page.push_str("</body></html>\n");
    page
}

/// Writes the changes. Cases of only one report are collapsed, because they may be hundreds.
fn comparison(comparison: &Comparison, page: &mut String) {
    _ = writeln!(page, "<h2 id=\"comparison\">Changes</h2>\n<p>{}</p>\n<table>", escape(&comparison.summary()));
    let row = |change: &Change| {
        let class = if change.kind == ChangeKind::Worse { " class=\"bad\"" } else { "" };
        let (kind, name, change) = (change.kind.word(), escape(&change.name), escape(&change.to_string()));
        format!("<tr{class}><td>{kind}</td><td>{name}</td><td>{change}</td></tr>\n")
    };
    let is_of_one = |change: &&Change| matches!(change.kind, ChangeKind::New | ChangeKind::Gone);
    page.extend(comparison.changes.iter().filter(|change| !is_of_one(change)).map(row));
    for FigureChange { name, medians: [old, new] } in &comparison.figure_changes {
        let (name, change) = (escape(name), escape(&format!("{old} -> {new}")));
        _ = writeln!(page, "<tr><td>figure</td><td>{name}</td><td>{change}</td></tr>");
    }
    page.push_str("</table>\n");
    let of_one: Vec<_> = comparison.changes.iter().filter(is_of_one).map(row).collect();
    if !of_one.is_empty() {
        let (count, rows) = (of_one.len(), of_one.concat());
        _ = writeln!(page, "<details><summary>{count} new or gone</summary><table>\n{rows}</table></details>");
    }
}

fn table(report: &Report, unpassed: &[&Tried], page: &mut String) {
    let mut section = String::new();
    for row in rows(report) {
        if row.clause.section != section {
            page.push_str(if section.is_empty() { "" } else { "</table></div>\n" });
            section.clone_from(&row.clause.section);
            _ = write!(
                page,
                "<h3>{}</h3><div class=\"wide\"><table><tr><th>Clause</th><th>Requirement</th>",
                escape(&section)
            );
            for word in WORDS {
                _ = write!(page, "<th class=\"n\">{word}</th>");
            }
            page.push_str("</tr>\n");
        }
        let [_, failed, tolerated, _, inconclusive] = row.counts;
        let class = match (failed + inconclusive, tolerated) {
            (0, 0) => "",
            (0, _) => " class=\"known\"",
            _ => " class=\"bad\"",
        };
        let (name, text, sources) = (&row.name, escape(&row.clause.text), escape(&row.clause.sources));
        _ = write!(page, "<tr{class} id=\"{name}\"><td>{name}</td><td>{text} <small>({sources})</small>");
        for tried in unpassed.iter().filter(|tried| tried.clauses.iter().any(|clause| clause == name)) {
            let case = escape(&tried.name());
            _ = write!(page, "<br><a href=\"#{}\">{case}</a>", anchor(&tried.name()));
        }
        page.push_str("</td>");
        for count in row.counts {
            _ = write!(page, "<td class=\"n\">{count}</td>");
        }
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
    _ = write!(
        page,
        "<details id=\"{}\"{}><summary><b>{}</b> ({}) {name}: {title}</summary>\n<p>Clauses: {}; script \
         <code>tests/conform/{}.drill</code></p>\n{reason}<table>\
         <tr><th>Step</th><td>{}: <code>{step}</code></td></tr><tr><th>Expected</th><td>{expected}</td></tr>\
         <tr><th>Received</th><td>{received}</td></tr></table>\n<pre>",
        anchor(&tried.name()),
        if is_open { " open" } else { "" },
        verdict.word(),
        tried.class.word(),
        links.join(", "),
        escape(&tried.script),
        escape(&failure.at),
    );
    let start = tried.outcome.log.packets().first().map_or_else(Default::default, |packet| packet.at);
    for logged in tried.outcome.log.packets() {
        let (class, arrow) = if logged.from_card { ("card", "&larr;") } else { ("near", "&rarr;") };
        let time = logged.at.saturating_sub(start).as_secs_f64();
        let packet = escape(&describe(&logged.datagram.bytes));
        _ = write!(page, "{time:10.6} <span class=\"{class}\">{arrow} {packet}</span>");
        if !logged.remark.is_empty() {
            _ = write!(page, " <span class=\"remark\">{}</span>", escape(&logged.remark));
        }
        page.push('\n');
    }
    page.push_str("</pre></details>\n");
}
