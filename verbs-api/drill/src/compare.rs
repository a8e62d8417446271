//! Compares a report with an older one that was saved as JSON.

use crate::conform::case_name;
use crate::figures::Unit;
use crate::report::FORMAT;
use serde_json::Value;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt::{self, Write};

/// Verdicts from the best to the worst.
const VERDICTS: [&str; 5] = ["pass", "tolerated", "unsupported", "inconclusive", "fail"];
/// Rank of a verdict that may be caused by the host that runs the test instead of the card.
const INCONCLUSIVE: usize = 3;
/// Maximum number of lines about new cases, and about missing ones.
const MAX_CASE_LINES: usize = 20;
/// A changed figure is shown if its medians differ by at least this factor.
const NOTABLE_FACTOR: u64 = 2;

/// The kind of change of a case between two reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// The verdict is worse.
    Worse,
    /// The case was or is inconclusive: another run may give another verdict.
    Unclear,
    /// The verdict is better.
    Better,
    /// Only the newer report has the case.
    New,
    /// Only the older report has the case.
    Gone,
}

impl ChangeKind {
    const ALL: [Self; 5] = [Self::Worse, Self::Unclear, Self::Better, Self::New, Self::Gone];

    /// Returns the word for this kind in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Worse => "worse",
            Self::Unclear => "unclear",
            Self::Better => "better",
            Self::New => "new",
            Self::Gone => "gone",
        }
    }
}

/// A case whose verdicts in the two reports differ, or that only one report has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The direction of the change, or the report that has the case.
    pub kind: ChangeKind,
    /// Script, with the values of its loop variables.
    pub name: String,
    /// Verdicts in the older and the newer report.
    pub verdicts: [Option<String>; 2],
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdicts {
            [Some(old), Some(new)] => write!(f, "{old} -> {new}"),
            [old, new] => f.write_str(new.as_ref().or(old.as_ref()).map_or("", String::as_str)),
        }
    }
}

/// A figure that has changed notably.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FigureChange {
    /// Names of the figure and its case.
    pub name: String,
    /// Medians with their unit, in the older and the newer report.
    pub medians: [String; 2],
}

/// Checks that `report` is a report of this version. Fails if it has another format.
pub fn check(report: &Value) -> Result<(), String> {
    SavedReport::of(report).map(drop)
}

/// A report compared with an older one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Card and date of the older report.
    pub with: String,
    /// Changes ordered by kind, then by name.
    pub changes: Vec<Change>,
    /// Changed figures in the order of their cases.
    pub figure_changes: Vec<FigureChange>,
}

impl Comparison {
    /// Compares two reports. Fails if one of them has another format.
    pub fn of(old: &Value, new: &Value) -> Result<Self, String> {
        let (before, now) = (SavedReport::of(old)?, SavedReport::of(new)?);
        let mut changes = Vec::new();
        for (name, new) in &now.cases {
            let old = before.cases.get(name);
            let kind = match old.map(|old| old.rank) {
                None => ChangeKind::New,
                Some(old) if new.rank == old => continue,
                Some(old) if [old, new.rank].contains(&INCONCLUSIVE) => ChangeKind::Unclear,
                Some(old) if new.rank > old => ChangeKind::Worse,
                Some(_) => ChangeKind::Better,
            };
            let verdict = |case: &SavedCase<'_>| VERDICTS[case.rank].to_owned();
            changes.push(Change { kind, name: name.clone(), verdicts: [old.map(verdict), Some(verdict(new))] });
        }
        let gone = before.cases.iter().filter(|(name, _)| !now.cases.contains_key(*name));
        changes.extend(gone.map(|(name, case)| Change {
            kind: ChangeKind::Gone,
            name: name.clone(),
            verdicts: [Some(VERDICTS[case.rank].to_owned()), None],
        }));
        changes.sort_by_key(|change| change.kind);
        let both = now.cases.iter().filter_map(|(name, new)| Some((name, before.cases.get(name)?, new)));
        let figure_changes = both.flat_map(|(name, old, new)| figure_changes(name, old, new)).collect();
        Ok(Self { with: before.name, changes, figure_changes })
    }

    /// Returns the number of changes of this kind.
    pub fn count(&self, kind: ChangeKind) -> usize {
        self.changes.iter().filter(|change| change.kind == kind).count()
    }

    /// Returns the number of cases that have become inconclusive.
    pub fn newly_inconclusive(&self) -> usize {
        let is_now = |change: &&Change| change.verdicts[1].as_deref() == Some(VERDICTS[INCONCLUSIVE]);
        self.changes.iter().filter(|change| change.kind == ChangeKind::Unclear).filter(is_now).count()
    }

    /// Returns one line with the number of changes of each kind.
    pub fn summary(&self) -> String {
        let counts = ChangeKind::ALL.map(|kind| format!("{} {}", self.count(kind), kind.word()));
        format!("compared with {}: {}", self.with, counts.join(", "))
    }

    /// Returns a line for each change, then the summary.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for kind in ChangeKind::ALL {
            let lines = if matches!(kind, ChangeKind::New | ChangeKind::Gone) { MAX_CASE_LINES } else { usize::MAX };
            let of_kind = self.changes.iter().filter(|change| change.kind == kind);
            for change in of_kind.clone().take(lines) {
                _ = writeln!(text, "{:8} {}: {change}", kind.word(), change.name);
            }
            let rest = of_kind.count().saturating_sub(lines);
            if rest > 0 {
                _ = writeln!(text, "{:8} {rest} more", kind.word());
            }
        }
        for FigureChange { name, medians: [old, new] } in &self.figure_changes {
            _ = writeln!(text, "figure   {name}: {old} -> {new}");
        }
        _ = writeln!(text, "{}", self.summary());
        text
    }
}

/// Escapes control characters of untrusted text, because terminals execute them.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// A case of a saved report.
struct SavedCase<'a> {
    /// Index of its verdict in [`VERDICTS`].
    rank: usize,
    figures: &'a [Value],
}

/// The parts of a saved report that are compared.
struct SavedReport<'a> {
    name: String,
    cases: BTreeMap<String, SavedCase<'a>>,
}

impl<'a> SavedReport<'a> {
    fn of(report: &'a Value) -> Result<Self, String> {
        if report["format"] != FORMAT {
            let format_found = report.get("format").map_or_else(|| "none".to_owned(), Value::to_string);
            return Err(format!("its format is {}, not {FORMAT}", printable(&format_found)));
        }
        let text =
            |value: &Value, name: &str| value[name].as_str().map(printable).ok_or_else(|| format!("it lacks {name}"));
        let mut cases = BTreeMap::new();
        for case in report["cases"].as_array().ok_or("it lacks cases")? {
            let (script, parameters, verdict) =
                (text(case, "script")?, text(case, "parameters")?, text(case, "verdict")?);
            let name = case_name(&script, &parameters);
            let rank = VERDICTS.iter().position(|known| *known == verdict);
            let rank = rank.ok_or_else(|| format!("there is no verdict `{verdict}`"))?;
            let figures = case["figures"].as_array().map_or(&[][..], Vec::as_slice);
            match cases.entry(name) {
                Entry::Vacant(place) => _ = place.insert(SavedCase { rank, figures }),
                Entry::Occupied(place) => return Err(format!("it has {} twice", place.key())),
            }
        }
        Ok(Self { name: format!("{} of {}", text(report, "target")?, text(report, "date")?), cases })
    }
}

/// Returns the figures of a case that have changed by at least the factor [`NOTABLE_FACTOR`].
fn figure_changes(case: &str, old: &SavedCase<'_>, new: &SavedCase<'_>) -> Vec<FigureChange> {
    let median = |figure: &Value| figure["median"].as_u64();
    let pairs = new.figures.iter().filter_map(|now| {
        let before =
            old.figures.iter().find(|before| before["name"] == now["name"] && before["unit"] == now["unit"])?;
        let unit = Unit::of(now["unit"].as_str()?)?;
        let (old, new) = (median(before)?, median(now)?);
        let is_notable = old.max(new) / NOTABLE_FACTOR >= old.min(new) && old != new;
        let name = format!("{} of {case}", printable(now["name"].as_str()?));
        is_notable.then(|| FigureChange { name, medians: [unit.show(old), unit.show(new)] })
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report(cases: &[(&str, &str, u64)]) -> Value {
        let case = |(script, verdict, median): &(&str, &str, u64)| {
            let figures = json!([{"name": "wait", "unit": "time", "median": median}]);
            json!({"script": script, "parameters": "n=1", "verdict": verdict, "figures": figures})
        };
        let cases: Vec<_> = cases.iter().map(case).collect();
        json!({"format": FORMAT, "target": "card", "date": "2026-11-28", "cases": cases})
    }

    #[test]
    fn changes_are_grouped_worst_first() {
        let old = report(&[
            ("a", "fail", 10),
            ("b", "pass", 1_000_000),
            ("c", "pass", 10),
            ("d", "fail", 10),
            ("e", "pass", 10),
            ("f", "tolerated", 10),
            ("h", "pass", 10),
            ("i", "inconclusive", 10),
        ]);
        let new = report(&[
            ("a", "pass", 10),
            ("b", "fail", 2_000_000),
            ("d", "inconclusive", 10),
            ("e", "pass", 19),
            ("f", "unsupported", 10),
            ("g", "fail", 10),
            ("h", "inconclusive", 10),
            ("i", "fail", 10),
        ]);
        let compared = Comparison::of(&old, &new).unwrap();
        assert_eq!(
            compared.text(),
            "worse    b [n=1]: pass -> fail\nworse    f [n=1]: tolerated -> unsupported\nunclear  d [n=1]: fail -> \
             inconclusive\nunclear  h [n=1]: pass -> inconclusive\nunclear  i [n=1]: inconclusive -> fail\nbetter   a [n=1]: fail -> pass\nnew      g [n=1]: fail\ngone     c [n=1]: pass\nfigure   \
             wait of b [n=1]: 1.0ms -> 2.0ms\ncompared with card of 2026-11-28: 2 worse, 3 unclear, 1 better, 1 new, 1 \
             gone\n"
        );
        assert_eq!(compared.newly_inconclusive(), 2, "d and h");
        assert_eq!(Comparison::of(&new, &new).unwrap().count(ChangeKind::Worse), 0);
    }

    #[test]
    fn control_characters_of_a_report_are_escaped() {
        let hostile = "a\u{1b}[2J\u{9b}b";
        let mut old = report(&[(hostile, "pass", 1)]);
        (old["target"], old["date"]) = (hostile.into(), hostile.into());
        let mut new = report(&[(hostile, "fail", 9)]);
        for report in [&mut old, &mut new] {
            report["cases"][0]["figures"][0]["name"] = hostile.into();
        }
        let text = Comparison::of(&old, &new).unwrap().text();
        let escaped = "a\\u{1b}[2J\\u{9b}b";
        assert_eq!(text.matches(escaped).count(), 5, "{text}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text}");
        for old in [report(&[("a", hostile, 1)]), json!({"format": hostile})] {
            let why = Comparison::of(&old, &new).unwrap_err();
            assert!(why.contains("2J") && !why.contains(char::is_control), "{why}");
        }
    }

    #[test]
    fn new_cases_beyond_limit_are_counted() {
        let names: Vec<_> = (0..25).map(|number| format!("s{number:02}")).collect();
        let cases: Vec<_> = names.iter().map(|name| (name.as_str(), "pass", 1)).collect();
        let compared = Comparison::of(&report(&[]), &report(&cases)).unwrap();
        let text = compared.text();
        assert!(text.contains("new      s19 [n=1]: pass\nnew      5 more\n"), "{text}");
        assert_eq!(compared.count(ChangeKind::Worse), 0, "a new case is not worse");
    }

    #[test]
    fn report_of_another_format_is_refused() {
        let good = report(&[("a", "pass", 1)]);
        for (old, why) in [
            (json!({"cases": []}), "its format is none, not 1"),
            (json!({"format": 2}), "its format is 2, not 1"),
            (json!([]), "its format is none, not 1"),
            (json!({"format": 1, "cases": 3}), "it lacks cases"),
            (json!({"format": 1, "cases": [{"script": "a"}]}), "it lacks parameters"),
            (report(&[("a", "pass", 1), ("a", "fail", 1)]), "it has a [n=1] twice"),
            (report(&[("a", "good", 1)]), "there is no verdict `good`"),
        ] {
            assert_eq!(Comparison::of(&old, &good), Err(why.to_owned()));
        }
    }
}
