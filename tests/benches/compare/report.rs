//! Formats the figures as text and as JSON.

use crate::line::human;
use crate::promises::Promise;
use crate::rounds::Measured;
use roxe_tests::measure::Series;
use std::fmt::Write as _;

/// Returns a table for each group.
pub(crate) fn text(all: &[Measured]) -> String {
    let mut text = String::new();
    let mut groups: Vec<&str> = all.iter().map(|m| m.line.group).collect();
    groups.dedup();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        _ = writeln!(
            text,
            "\n{group:<14} {:<44} {:>10}      {:^24} {:>9} {:>9} {:>9} {:>9} runs  others",
            "", "median", "least .. most", "average", "99 %", "99.9 %", "CPU us"
        );
        for measured in all.iter().filter(|m| m.line.group == group) {
            text.push_str(&row(measured));
        }
    }
    text
}

fn row(measured: &Measured) -> String {
    let Measured { line, others, failures, .. } = measured;
    let head = format!("{:>14} {:<44}", human(line.size), line.label());
    let series = measured.counting();
    let median_text = |series: &Series| series.median().map_or_else(|| "-".to_owned(), |figure| format!("{figure:.3}"));
    let [average, p99, p999, cost] =
        [&measured.averages, &measured.tails[0], &measured.tails[1], &measured.costs].map(median_text);
    let mark = if measured.is_disturbed() { "  disturbed" } else { "" };
    match (series.median(), series.range()) {
        _ if !failures.is_empty() => format!("{head}     FAILED\n"),
        (Some(median), Some((least, most))) => format!(
            "{head} {median:>10.3} {:<4} [{least:>9.3} .. {most:>9.3}] {average:>9} {p99:>9} {p999:>9} {cost:>9} {:>4} {:>5.0} %{mark}\n",
            line.unit.to_string(),
            series.len(),
            others * 100.0
        ),
        _ => format!("{head}     nothing measured\n"),
    }
}

/// Returns the table of the promises. A promise with a disturbed figure has no verdict.
pub(crate) fn verdicts(promises: &[Promise]) -> String {
    let mut text = format!("\n{:<62} {:>10} {:>10} {:>7}\n", "promise", "target", "reached", "ratio");
    for promise in promises {
        let number =
            |value: Option<f64>| value.filter(|v| !v.is_nan()).map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
        let ratio = promise.reached.map(|reached| reached / promise.target);
        let [target, reached] = [Some(promise.target), promise.reached].map(number);
        let verdict = match ratio {
            None => "not measured",
            Some(ratio) if ratio.is_nan() => "nothing to compare with",
            _ if promise.disturbed => "disturbed",
            _ if promise.holds() => "ok",
            _ => "MISSED",
        };
        _ = writeln!(text, "{:<62} {target:>10} {reached:>10} {:>7} {verdict}", promise.name, number(ratio));
    }
    text
}

/// Returns an object with every figure of every line, and the promises.
pub(crate) fn json(all: &[Measured], promises: &[Promise], skipped: &[String]) -> String {
    let lines: Vec<String> = all
        .iter()
        .map(|m| {
            format!(
                "{{\"group\":\"{}\",\"size\":{},\"who\":\"{}\",\"unit\":\"{}\",\"median\":{},\"average\":{},\"p99\":{},\"p99.9\":{},\"cpu_us\":{},\"figures\":{:?},\"disturbed\":{:?},\
                 \"others\":{:.3},\"failures\":{}}}",
                m.line.group,
                m.line.size,
                m.line.label(),
                m.line.unit,
                number(m.counting().median()),
                number(m.averages.median()),
                number(m.tails[0].median()),
                number(m.tails[1].median()),
                number(m.costs.median()),
                m.clean.figures(),
                m.disturbed.figures(),
                m.others,
                m.failures.len()
            )
        })
        .collect();
    let promises: Vec<String> = promises
        .iter()
        .map(|s| {
            let (target, reached) = (number(Some(s.target)), number(s.reached));
            format!(
                "{{\"name\":\"{}\",\"target\":{target},\"reached\":{reached},\"holds\":{},\"disturbed\":{}}}",
                s.name,
                s.holds(),
                s.disturbed
            )
        })
        .collect();
    let skipped: Vec<String> = skipped.iter().map(|name| format!("\"{name}\"")).collect();
    format!(
        "{{\"lines\":[\n{}\n],\n\"promises\":[\n{}\n],\n\"skipped\":[{}]}}\n",
        lines.join(",\n"),
        promises.join(",\n"),
        skipped.join(",")
    )
}

/// Formats a JSON number; null if there is none or it is not finite.
fn number(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| "null".to_owned(), |value| value.to_string())
}
