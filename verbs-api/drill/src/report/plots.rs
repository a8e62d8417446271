//! Figures of a report, or of two that are compared, as a table and as plots (SVG).
//!
//! A figure that cases measure for several values of a loop has a plot. The innermost loop is its
//! horizontal axis; each combination of the other loops has its own plot.

use crate::compare::printable;
use crate::conform::case_name;
use crate::figures::Unit;
use roxe_dissect::escape;
use serde_json::Value;
use std::fmt::Write;

/// Size of a plot, and the part of it for values, in pixels.
const WIDTH: f64 = 540.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 52.0;
/// Width of a letter, in pixels.
const LETTER_WIDTH: f64 = 7.5;
/// Horizontal distance of a report's points from the middle of their column, in pixels.
const REPORT_OFFSET: f64 = 4.0;
/// Ratio of the largest to the smallest value from which on the axis is logarithmic.
const MIN_LOG_RATIO: u64 = 20;
/// Maximum number of intervals between marks of a linear axis.
const MAX_INTERVALS: u64 = 5;

/// Styles of plots, which use colours of the page.
pub(super) const STYLE: &str = "\
.plots{display:flex;flex-wrap:wrap;gap:0 1em}.plots figure{margin:.5em 0}.plots svg{max-width:100%;height:auto}\
.plots text{font:12px system-ui,sans-serif;fill:var(--text)}.plots .grid{stroke:var(--line)}\
.now{stroke:var(--near);fill:var(--near)}.before{stroke:var(--before);fill:var(--back)}\
.plots polyline{fill:none;stroke-width:1.5}polyline.before{stroke-dasharray:5 3}";

/// The values of a figure in one case of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Values {
    count: u64,
    /// Smallest value, median and largest value.
    range: [u64; 3],
}

/// A figure of a case, before and now.
#[derive(Clone, Debug)]
struct FigureRow {
    figure: String,
    unit: Unit,
    script: String,
    parameters: String,
    title: String,
    values: [Option<Values>; 2],
}

impl FigureRow {
    fn is_same(&self, other: &Self) -> bool {
        (&self.figure, self.unit, &self.script, &self.parameters)
            == (&other.figure, other.unit, &other.script, &other.parameters)
    }
}

/// Returns the figures of a report; `place` is 0 for the old report and 1 for the new one.
fn figures(report: &Value, place: usize) -> Vec<FigureRow> {
    let cases = report["cases"].as_array().map_or(&[][..], Vec::as_slice);
    let of_case = |case: &Value| {
        let text = |name: &str| case[name].as_str().map(printable).unwrap_or_default();
        let (script, parameters, title) = (text("script"), text("parameters"), text("title"));
        let figures = case["figures"].as_array().map_or(&[][..], Vec::as_slice);
        let row = |figure: &Value| {
            let number = |name: &str| figure[name].as_u64();
            let cell =
                Values { count: number("count")?, range: [number("least")?, number("median")?, number("most")?] };
            let mut values = [None; 2];
            values[place] = Some(cell);
            Some(FigureRow {
                figure: printable(figure["name"].as_str()?),
                unit: Unit::of(figure["unit"].as_str()?)?,
                script: script.clone(),
                parameters: parameters.clone(),
                title: title.clone(),
                values,
            })
        };
        figures.iter().filter_map(row).collect::<Vec<_>>()
    };
    cases.iter().flat_map(of_case).collect()
}

/// Returns the figures of both reports by name, each in the order of its cases.
fn rows(now: &Value, before: Option<&Value>) -> Vec<FigureRow> {
    let mut rows = figures(now, 1);
    for old in before.map(|before| figures(before, 0)).unwrap_or_default() {
        match rows.iter_mut().find(|row| row.is_same(&old)) {
            Some(row) => row.values[0] = old.values[0],
            None => rows.push(old),
        }
    }
    rows.sort_by(|a, b| a.figure.cmp(&b.figure));
    rows
}

/// Returns names and values of loops, in their order. A value may have several words.
fn loops(parameters: &str) -> Vec<(&str, String)> {
    let mut loops: Vec<(&str, String)> = Vec::new();
    for word in parameters.split_whitespace() {
        match (word.split_once('='), loops.last_mut()) {
            (Some((name, value)), _) => loops.push((name, value.to_owned())),
            (None, Some((_, value))) => {
                value.push(' ');
                value.push_str(word);
            }
            (None, None) => {}
        }
    }
    loops
}

/// A plot: its title, the name of its horizontal axis, and a value there with its row.
struct Plot<'r> {
    title: String,
    axis: String,
    points: Vec<(String, &'r FigureRow)>,
}

/// Returns the plots of a figure: one for each combination of the outer loops. A loop whose values
/// are paired with those of the axis does not count as an outer loop.
fn plots<'r>(rows: &[&'r FigureRow]) -> Vec<Plot<'r>> {
    let cases: Vec<_> = rows.iter().map(|row| (loops(&row.parameters), *row)).collect();
    let mut plots: Vec<(String, Plot<'r>)> = Vec::new();
    for (loops, row) in &cases {
        let Some(((axis, at), outer)) = loops.split_last() else { continue };
        let is_paired = |name: &str, value: &str| {
            let same = cases.iter().filter(|(loops, other)| {
                other.script == row.script && loops.iter().any(|(n, v)| (*n, v.as_str()) == (name, value))
            });
            same.map(|(loops, _)| loops.last()).all(|last| last.is_some_and(|(_, other)| other == at))
        };
        let outer = outer.iter().filter(|(name, value)| !is_paired(name, value));
        let outer: Vec<_> = outer.map(|(name, value)| format!("{name}={value}")).collect();
        let (title, key) = (outer.join(" "), format!("{} {axis} {}", row.script, outer.join(" ")));
        match plots.iter_mut().find(|(known, _)| *known == key) {
            Some((_, plot)) => plot.points.push((at.clone(), row)),
            None => {
                let points = vec![(at.clone(), *row)];
                plots.push((key, Plot { title, axis: (*axis).to_owned(), points }));
            }
        }
    }
    plots.into_iter().map(|(_, plot)| plot).filter(|plot| plot.points.len() > 1).collect()
}

/// Vertical axis of a plot.
struct Scale {
    is_log: bool,
    /// Values of its ends.
    ends: [f64; 2],
    marks: Vec<u64>,
}

impl Scale {
    /// Returns a scale for values from `least` to `most`: logarithmic if they differ much, else
    /// linear from 0 on.
    fn of(least: u64, most: u64) -> Self {
        if least > 0 && most / least >= MIN_LOG_RATIO {
            let (low, high) = (least.ilog10(), most.ilog10() + u32::from(most != 10_u64.pow(most.ilog10())));
            let marks = (low..=high).filter_map(|exponent| 10_u64.checked_pow(exponent)).collect();
            return Self { is_log: true, ends: [f64::from(low), f64::from(high)], marks };
        }
        let steps = (0..19).flat_map(|exponent| [1, 2, 5].map(|digit| digit * 10_u64.pow(exponent)));
        let step = steps.into_iter().find(|step| most.div_ceil(*step) <= MAX_INTERVALS).unwrap_or(u64::MAX);
        let intervals = most.div_ceil(step).max(1);
        let marks: Vec<_> = (0..=intervals).filter_map(|mark| step.checked_mul(mark)).collect();
        Self { is_log: false, ends: [0.0, step.saturating_mul(intervals) as f64], marks }
    }

    /// Returns the height of a value in pixels from the top.
    fn y(&self, value: u64) -> f64 {
        let value = if self.is_log { (value.max(1) as f64).log10() } else { value as f64 };
        let [low, high] = self.ends;
        HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)
    }
}

/// Writes table and plots of all figures. `before` is an older report.
pub(super) fn section(now: &Value, before: Option<&Value>, page: &mut String) {
    let rows = rows(now, before);
    if rows.is_empty() {
        return;
    }
    page.push_str("<h2 id=\"figures\">Figures</h2>\n");
    let figures: Vec<Vec<&FigureRow>> =
        rows.chunk_by(|a, b| a.figure == b.figure).map(|figure| figure.iter().collect()).collect();
    let plotted: Vec<_> =
        figures.iter().map(|rows| (rows, plots(rows))).filter(|(_, plots)| !plots.is_empty()).collect();
    if !plotted.is_empty() {
        let reports =
            if before.is_some() { " Full points and lines: now. Hollow points and broken lines: before." } else { "" };
        _ = writeln!(
            page,
            "<p>A point is a median, a bar goes from the least to the largest value.{reports}</p>\n<div class=\"plots\">"
        );
        for (rows, plots) in plotted {
            let values = || rows.iter().flat_map(|row| row.values.iter().flatten());
            let least = values().map(|values| values.range[0]).min().unwrap_or_default();
            let most = values().map(|values| values.range[2]).max().unwrap_or_default();
            let scale = Scale::of(least, most);
            plots.iter().for_each(|plot| draw(plot, &scale, page));
        }
        page.push_str("</div>\n");
    }
    table(&rows, before.is_some(), page);
}

fn draw(plot: &Plot<'_>, scale: &Scale, page: &mut String) {
    let row = plot.points[0].1;
    let (figure, label) = (escape(&row.figure), escape(format!("{} {}", row.script, plot.title).trim()));
    _ = writeln!(
        page,
        "<figure><figcaption><b>{figure}</b> <small>{label}</small></figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{figure} of {label}\">",
    );
    for mark in &scale.marks {
        let (y, text) = (scale.y(*mark), escape(&row.unit.show(*mark)));
        _ = writeln!(page, "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>", WIDTH - RIGHT);
        _ = writeln!(page, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", LEFT - 6.0, y + 4.0);
    }
    let place = (WIDTH - LEFT - RIGHT) / plot.points.len() as f64;
    let x = |at: usize| LEFT + place * (at as f64 + 0.5);
    let longest = plot.points.iter().map(|(value, _)| value.chars().count()).max().unwrap_or_default();
    let is_narrow = longest as f64 * LETTER_WIDTH > place;
    for (index, (value, _)) in plot.points.iter().enumerate() {
        let lower = if is_narrow && index % 2 == 1 { 12.0 } else { 0.0 };
        let (x, y) = (x(index), HEIGHT - BOTTOM + 16.0 + lower);
        _ = writeln!(page, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>", escape(value));
    }
    _ = writeln!(
        page,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        f64::midpoint(LEFT, WIDTH - RIGHT),
        HEIGHT - 8.0,
        escape(&plot.axis)
    );
    for (report, (class, apart)) in [("before", -REPORT_OFFSET), ("now", REPORT_OFFSET)].into_iter().enumerate() {
        let points = plot.points.iter().enumerate();
        let points = points.filter_map(|(at, (value, row))| Some((x(at) + apart, value, row.values[report]?)));
        let line: Vec<_> =
            points.clone().map(|(x, _, values)| format!("{x:.1},{:.1}", scale.y(values.range[1]))).collect();
        if line.len() > 1 {
            _ = writeln!(page, "<polyline class=\"{class}\" points=\"{}\"/>", line.join(" "));
        }
        for (x, value, Values { count, range }) in points {
            let [low, middle, high] = range.map(|value| scale.y(value));
            let [least, median, most] = range.map(|value| row.unit.show(value));
            _ = writeln!(
                page,
                "<g class=\"{class}\"><title>{}={}, {class}: {median} ({least} to {most}, {count} values)</title>\
                 <line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{middle:.1}\" r=\"3.5\"/></g>",
                escape(&plot.axis),
                escape(value),
            );
        }
    }
    page.push_str("</svg></figure>\n");
}

fn table(rows: &[FigureRow], is_compared: bool, page: &mut String) {
    let reports: &[(usize, &str)] = if is_compared { &[(0, " before"), (1, " now")] } else { &[(1, "")] };
    page.push_str("<h3>All figures</h3>\n<div class=\"wide\"><table><tr><th>Figure</th><th>Case</th>");
    for (_, when) in reports {
        for head in ["Values", "Least", "Median", "Largest"] {
            _ = write!(page, "<th class=\"n\">{head}{when}</th>");
        }
    }
    page.push_str("</tr>\n");
    for row in rows {
        let (figure, case, title) =
            (escape(&row.figure), escape(&case_name(&row.script, &row.parameters)), escape(&row.title));
        _ = write!(page, "<tr><td>{figure}</td><td>{case} <small>{title}</small></td>");
        for (report, _) in reports {
            let Some(Values { count, range }) = row.values[*report] else {
                page.push_str("<td class=\"n\" colspan=\"4\"></td>");
                continue;
            };
            _ = write!(page, "<td class=\"n\">{count}</td>");
            for value in range {
                _ = write!(page, "<td class=\"n\">{}</td>", row.unit.show(value));
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report(cases: &[(&str, &str, [u64; 3])]) -> Value {
        let case = |(parameters, figure, [least, median, most]): &(&str, &str, [u64; 3])| {
            let figure = json!({
                "name": figure, "unit": "time", "count": 3, "least": least, "median": median, "most": most,
            });
            json!({"script": "a/b", "parameters": parameters, "title": "T", "figures": [figure]})
        };
        json!({"cases": cases.iter().map(case).collect::<Vec<_>>()})
    }

    /// Returns title, axis and places of each plot.
    fn plots_of(report: &Value) -> Vec<(String, String, String)> {
        let rows = rows(report, None);
        let plots = plots(&rows.iter().collect::<Vec<_>>());
        let places = |plot: &Plot<'_>| plot.points.iter().map(|(at, _)| at.as_str()).collect::<Vec<_>>().join(" ");
        plots.iter().map(|plot| (plot.title.clone(), plot.axis.clone(), places(plot))).collect()
    }

    #[test]
    fn outer_loop_makes_a_plot_for_each_of_its_values() {
        let cases = ["n=1 t=1ms", "n=1 t=2ms", "n=8 t=1ms", "n=8 t=2ms"].map(|parameters| (parameters, "f", [1; 3]));
        let plot = |title: &str| (title.to_owned(), "t".to_owned(), "1ms 2ms".to_owned());
        assert_eq!(plots_of(&report(&cases)), [plot("n=1"), plot("n=8")]);
    }

    #[test]
    fn loop_over_pairs_makes_one_plot() {
        let cases = ["timer=1 t=10us", "timer=12 t=640us"].map(|parameters| (parameters, "f", [1; 3]));
        assert_eq!(plots_of(&report(&cases)), [(String::new(), "t".to_owned(), "10us 640us".to_owned())]);
    }

    #[test]
    fn figure_of_one_case_has_no_plot() {
        assert_eq!(plots_of(&report(&[("", "f", [1; 3])])), []);
        assert_eq!(plots_of(&report(&[("t=1", "f", [1; 3])])), []);
    }

    #[test]
    fn scale_is_logarithmic_only_for_values_that_differ_much() {
        let scale = Scale::of(3, 47);
        assert_eq!((scale.is_log, scale.marks.as_slice()), (false, &[0, 10, 20, 30, 40, 50][..]));
        let scale = Scale::of(30, 100_000);
        assert_eq!((scale.is_log, scale.marks.as_slice()), (true, &[10, 100, 1000, 10_000, 100_000][..]));
        assert!(!Scale::of(0, 1_000_000).is_log);
        for (least, most) in [(0, 0), (1, u64::MAX), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            let scale = Scale::of(least, most);
            let inside = TOP - 1.0..=HEIGHT - BOTTOM + 1.0;
            assert!([least, most].iter().all(|value| inside.contains(&scale.y(*value))), "{least} to {most}");
        }
    }

    #[test]
    fn section_shows_both_reports() {
        let old = report(&[("t=1", "f", [1000, 2000, 3000]), ("t=2", "f", [4000; 3])]);
        let new = report(&[("t=1", "f", [1000, 1500, 3000]), ("t=3", "<g>", [5000; 3])]);
        let mut page = String::new();
        section(&new, Some(&old), &mut page);
        for part in [
            "<title>t=1, before: 2.0us (1.0us to 3.0us, 3 values)</title>",
            "<title>t=1, now: 1.5us (1.0us to 3.0us, 3 values)</title>",
            "<title>t=2, before: 4.0us (4.0us to 4.0us, 3 values)</title>",
            "<td class=\"n\">3</td><td class=\"n\">1.0us</td><td class=\"n\">2.0us</td><td class=\"n\">3.0us</td>",
            "<td class=\"n\" colspan=\"4\"></td>",
            "<td>&lt;g&gt;</td>",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
        assert_eq!(page.matches("<svg").count(), 1, "{page}");
    }

    #[test]
    fn hostile_report_is_escaped() {
        let hostile = report(&[("t=<s>\u{1b}", "<i>", [1; 3]), ("t=\"2", "<i>", [u64::MAX; 3])]);
        let mut page = String::new();
        section(&hostile, Some(&json!([])), &mut page);
        assert!(!page.contains("<s>") && !page.contains("<i>") && !page.contains("[t=\"2"), "{page}");
        assert!(!page.contains(|c: char| c.is_control() && c != '\n'), "{page}");
    }
}
