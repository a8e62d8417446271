//! The report as one page without anything from outside: every case that did not pass with the
//! packets that were on the wire, then the table by clause. Reads the date.

use super::{WORDS, escape, rows, sum};
use crate::conform::{Report, Tried};
use crate::craft::describe;
use std::fmt::Write;
use std::time::SystemTime;

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
         <style>{STYLE}</style></head><body>\n<h1>RoCEv2 conformance</h1>\n<p>{target}, {}: {} cases: {}</p>\n",
        date(SystemTime::now()),
        report.tried.len(),
        sum(WORDS.map(|word| report.count(word))),
    );
    if let Some(lost) = report.lost() {
        let _ = writeln!(page, "<p class=\"remark\">{}</p>", escape(&lost));
    }
    let mut failed: Vec<_> = report.tried.iter().filter(|tried| tried.outcome.verdict.failure().is_some()).collect();
    failed.sort_by_key(|tried| WORDS.iter().position(|word| *word == tried.outcome.verdict.word()).unwrap_or(0));
    let _ = writeln!(page, "<h2 id=\"cases\">Cases that did not pass: {}</h2>", failed.len());
    failed.iter().for_each(|tried| case(tried, &mut page));
    page.push_str("<h2 id=\"clauses\">Clauses</h2>\n");
    let _ = writeln!(page, "<p>{SOURCES}</p>");
    table(report, &failed, &mut page);
    page.push_str("</body></html>\n");
    page
}

/// The day of a time, in UTC: days since 1970 in the Gregorian calendar.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    // Counted from the first of March of the year 0, after which leap days come at the end.
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
    page.push_str(if section.is_empty() { "" } else { "</table>\n" });
}

/// A name as the target of a link.
fn anchor(name: &str) -> String {
    name.chars().map(|char| if char.is_ascii_alphanumeric() { char } else { '-' }).collect()
}

fn case(tried: &Tried, page: &mut String) {
    let verdict = &tried.outcome.verdict;
    let Some(failure) = verdict.failure() else { return };
    let (name, title) = (escape(&tried.name()), escape(&tried.title));
    let (step, expected, received) = (escape(&failure.step), escape(&failure.expected), escape(&failure.received));
    let links: Vec<_> =
        tried.clauses.iter().map(|clause| format!("<a href=\"#{0}\">{0}</a>", escape(clause))).collect();
    let reason = super::reason(verdict).map_or_else(String::new, |reason| format!("<p>{}</p>\n", escape(reason)));
    let _ = write!(
        page,
        "<details id=\"{}\"><summary><b>{}</b> {name}: {title}</summary>\n<p>Clauses: {}; script \
         <code>tests/conform/{}.drill</code></p>\n{reason}<table>\
         <tr><th>Step</th><td>{}: <code>{step}</code></td></tr><tr><th>Expected</th><td>{expected}</td></tr>\
         <tr><th>Received</th><td>{received}</td></tr></table>\n<pre>",
        anchor(&tried.name()),
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
    use std::time::Duration;

    #[test]
    fn date_is_that_of_the_gregorian_calendar() {
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
