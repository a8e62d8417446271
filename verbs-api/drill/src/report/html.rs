//! The report as one page without anything from outside: the table by clause, then every case that
//! did not pass with the packets that were on the wire.

use super::{WORDS, escape, rows, sum};
use crate::conform::{Report, Tried};
use crate::craft::describe;
use std::fmt::Write;

const STYLE: &str = "\
body{font:15px/1.4 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;color:#222;background:#fff}\
table{border-collapse:collapse;width:100%}\
td,th{text-align:left;vertical-align:top;padding:.25em .6em;border-bottom:1px solid #ddd}\
td.n,th.n{text-align:right}tr.bad td{background:#fdecea}tr.known td{background:#fff6dd}\
h3{margin:1.5em 0 .2em}pre{background:#f5f5f5;padding:.6em;overflow-x:auto}\
.card{color:#0a5}.near{color:#06c}.remark{color:#b00}summary{cursor:pointer;margin:.4em 0}\
small{color:#666}";

/// What the sources of clauses are worth.
const SOURCES: &str = "Clauses are in our own words, with their sources in parentheses. IBA is the InfiniBand \
                       Architecture Specification, whose text was not at hand: section numbers are pointers, not \
                       quotations.";

/// The page.
pub fn html(report: &Report) -> String {
    let target = escape(&report.target);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Conformance of {target}</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>RoCEv2 conformance</h1>\n<p>{target}: {} cases: {}</p>\n",
        report.tried.len(),
        sum(WORDS.map(|word| report.count(word))),
    );
    if let Some(lost) = report.lost() {
        let _ = writeln!(page, "<p class=\"remark\">{}</p>", escape(&lost));
    }
    let _ = writeln!(page, "<p>{SOURCES}</p>");
    table(report, &mut page);
    page.push_str("<h2>Cases that did not pass</h2>\n");
    for tried in &report.tried {
        case(tried, &mut page);
    }
    page.push_str("</body></html>\n");
    page
}

fn table(report: &Report, page: &mut String) {
    let mut section = String::new();
    for row in rows(report) {
        if row.clause.section != section {
            page.push_str(if section.is_empty() { "" } else { "</table>\n" });
            section.clone_from(&row.clause.section);
            let _ = write!(page, "<h3>{}</h3><table><tr><th>Clause</th><th>What it asks</th>", escape(&section));
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
        let _ = write!(page, "<tr{class}><td>{name}</td><td>{text} <small>({sources})</small></td>");
        row.counts.iter().for_each(|count| {
            let _ = write!(page, "<td class=\"n\">{count}</td>");
        });
        page.push_str("</tr>\n");
    }
    page.push_str(if section.is_empty() { "" } else { "</table>\n" });
}

fn case(tried: &Tried, page: &mut String) {
    let verdict = &tried.outcome.verdict;
    let Some(failure) = verdict.failure() else { return };
    let (name, title) = (escape(&tried.name()), escape(&tried.title));
    let (step, expected, received) = (escape(&failure.step), escape(&failure.expected), escape(&failure.received));
    let reason = super::reason(verdict).map_or_else(String::new, |reason| format!("<p>{}</p>\n", escape(reason)));
    let _ = write!(
        page,
        "<details><summary><b>{}</b> {name}: {title}</summary>\n{reason}<table>\
         <tr><th>Step</th><td>{}: <code>{step}</code></td></tr><tr><th>Expected</th><td>{expected}</td></tr>\
         <tr><th>Received</th><td>{received}</td></tr></table>\n<pre>",
        verdict.word(),
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
