//! Draws the figures as a picture (SVG): a panel for each program, message sizes on the x axis, one
//! curve for each implementation.

use crate::line::{Unit, human};
use crate::rounds::Measured;
use std::fmt::Write as _;

/// Width and height of a panel's plot area.
const AREA: (f64, f64) = (460.0, 300.0);
/// Minimum height of a panel.
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 34.0;
/// Distance of the legend's names from the plot area.
const LEGEND: f64 = 56.0;
/// Height of a name in the legend.
const NAME: f64 = 17.0;
/// Width of a letter in the legend.
const LETTER: f64 = 7.0;
/// Distinguishable colours, also for colour-blind readers.
const COLOURS: [&str; 9] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999", "#8c510a"];
/// Line styles, for more curves than there are colours.
const DASHES: [&str; 4] = ["none", "6 3", "2 3", "9 3 2 3"];

/// Points of one implementation.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Returns the picture of all groups.
pub(crate) fn svg(all: &[Measured]) -> String {
    let mut groups: Vec<&str> = all.iter().map(|m| m.line.group).collect();
    groups.sort_unstable();
    groups.dedup();
    let groups: Vec<_> = groups.into_iter().map(|group| (group, curves(all, group))).collect();
    let names = groups.iter().flat_map(|(_, curves)| curves).map(|curve| curve.name.len());
    let width = LEFT + AREA.0 + LEGEND + LETTER * float(names.max().unwrap_or(0));
    let (mut panels, mut height) = (String::new(), 0.0);
    for row in groups.chunks(2) {
        for ((group, curves), left) in row.iter().zip([0.0, width]) {
            panels += &panel(group, curves, (left + LEFT, height + TOP));
        }
        let names = row.iter().map(|(_, curves)| curves.len()).max().unwrap_or(0);
        height += HEIGHT.max(2.0 * TOP + NAME * float(names));
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{0}\" height=\"{height}\" fill=\"white\"/>\n{1}</svg>\n",
        2.0 * width,
        panels
    )
}

#[expect(clippy::cast_precision_loss, reason = "few")]
const fn float(count: usize) -> f64 {
    count as f64
}

/// Returns the curves of a group, with message rates as gigabytes per second.
fn curves(all: &[Measured], group: &str) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for measured in all.iter().filter(|m| m.line.group == group && m.failures.is_empty()) {
        let Some(median) = measured.counting().median() else { continue };
        #[expect(clippy::cast_precision_loss, reason = "sizes are small")]
        let size = measured.line.size as f64;
        let value = if measured.line.unit == Unit::MillionsPerSecond { median * size / 1e3 } else { median };
        let name = measured.line.label();
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push((size, value)),
            None => curves.push(Curve { name, points: vec![(size, value)] }),
        }
    }
    for curve in &mut curves {
        curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    curves
}

/// A logarithmic axis between two powers of its base.
struct Axis {
    base: f64,
    first: f64,
    last: f64,
    length: f64,
}

impl Axis {
    fn new(base: f64, values: impl Iterator<Item = f64> + Clone, length: f64) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min).log(base);
        let most = values.fold(f64::NEG_INFINITY, f64::max).log(base);
        // A tolerance, because the computed logarithm of a power is rarely a whole number.
        let (first, last) = ((least + 1e-9).floor(), (most - 1e-9).ceil());
        Self { base, first, last: last.max(first + 1.0), length }
    }

    fn place(&self, value: f64) -> f64 {
        (value.log(self.base) - self.first) / (self.last - self.first) * self.length
    }

    /// Returns the powers of the base on the axis.
    fn marks(&self) -> impl Iterator<Item = f64> {
        let (base, last) = (self.base, self.last);
        std::iter::successors(Some(self.first), |power| Some(power + 1.0))
            .take_while(move |power| *power <= last)
            .map(move |power| base.powf(power))
    }
}

fn panel(group: &str, curves: &[Curve], corner: (f64, f64)) -> String {
    let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let (x, y) = (Axis::new(8.0, points().map(|p| p.0), AREA.0), Axis::new(10.0, points().map(|p| p.1), AREA.1));
    let unit = if group.ends_with("_lat") { "us one way" } else { "GB/s" };
    let mut text = format!("<g transform=\"translate({},{})\">\n", corner.0, corner.1);
    _ = writeln!(text, "<text x=\"0\" y=\"-12\" font-weight=\"bold\">{group}, {unit} over bytes of a message</text>");
    grid(&mut text, &x, &y);
    for (index, curve) in curves.iter().enumerate() {
        draw(&mut text, curve, index, (&x, &y));
    }
    text + "</g>\n"
}

fn grid(text: &mut String, x: &Axis, y: &Axis) {
    for mark in x.marks() {
        let at = x.place(mark);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size")]
        let label = human(mark.round() as usize);
        _ = writeln!(
            text,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            AREA.1,
            AREA.1 + 16.0
        );
    }
    for mark in y.marks() {
        let at = AREA.1 - y.place(mark);
        _ = writeln!(
            text,
            "<line x1=\"0\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"-6\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            AREA.0,
            at + 4.0,
            // Powers of ten below one have rounding errors.
            if mark < 1.0 { format!("{mark:.4}").trim_end_matches('0').to_owned() } else { format!("{mark:.0}") }
        );
    }
}

fn draw(text: &mut String, curve: &Curve, index: usize, (x, y): (&Axis, &Axis)) {
    let colour = COLOURS[index % COLOURS.len()];
    let dash = DASHES[index / COLOURS.len() % DASHES.len()];
    let places: Vec<(f64, f64)> = curve.points.iter().map(|p| (x.place(p.0), AREA.1 - y.place(p.1))).collect();
    let line: String = places.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
    _ = writeln!(
        text,
        "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\"/>"
    );
    for (x, y) in &places {
        _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
    let (left, top) = (AREA.0 + LEGEND, 10.0 + NAME * float(index));
    _ = writeln!(
        text,
        "<line x1=\"{}\" x2=\"{}\" y1=\"{top}\" y2=\"{top}\" stroke=\"{colour}\" stroke-width=\"2.5\" stroke-dasharray=\"{dash}\"/><text x=\"{left}\" y=\"{}\">{}</text>",
        left - 28.0,
        left - 6.0,
        top + 4.0,
        curve.name
    );
}
