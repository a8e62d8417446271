//! The report as JSON, which `docs/reference/conformance-report.md` describes, and as a badge.

use super::{WORDS, date, reason};
use crate::clauses::Class;
use crate::conform::{Report, Tried};
use crate::figures::Series;
use serde_json::{Value, json};
use std::time::SystemTime;

/// Version of the format; readers refuse other versions.
pub(crate) const FORMAT: u64 = 1;

/// Returns the report as a JSON object.
pub fn value(report: &Report) -> Value {
    let sums: Value = WORDS.iter().map(|word| (word.to_ascii_lowercase(), json!(report.count(word)))).collect();
    let failed: Value =
        Class::ALL.iter().map(|class| (class.word().to_owned(), json!(report.failed(*class).count()))).collect();
    let run_info: Value = report.run_info.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let cases: Vec<_> = report.tried.iter().map(case).collect();
    json!({
        "format": FORMAT, "target": report.target, "date": date(SystemTime::now()), "facts": run_info, "sums": sums,
        "failed": failed, "unsteady": report.unsteady, "not_run": report.lost.as_ref().map(|lost| lost.not_run), "cases": cases,
    })
}

fn case(tried: &Tried) -> Value {
    let verdict = &tried.outcome.verdict;
    let failure = verdict.failure().map(|failure| {
        json!({
            "at": failure.at, "step": failure.step, "expected": failure.expected, "received": failure.received,
            "packets": failure.packets,
        })
    });
    let figure = |series: Series| {
        let [least, median, most] = series.range();
        json!({
            "name": series.name, "unit": series.unit.word(), "count": series.count(), "least": least,
            "median": median, "most": most,
        })
    };
    let figures: Vec<_> = Series::of(&tried.outcome.figures).into_iter().map(figure).collect();
    json!({
        "script": tried.script, "parameters": tried.parameters, "title": tried.title, "clauses": tried.clauses,
        "class": tried.class.word(), "sources": tried.sources, "verdict": verdict.word().to_ascii_lowercase(),
        "reason": reason(verdict), "failure": failure, "figures": figures,
        "packets": tried.outcome.log.packets().len(), "tries": tried.tries, "seconds": tried.took.as_secs_f64(),
    })
}

/// Returns a badge for a README in the format of endpoints of shields.io.
pub fn badge(report: &Report) -> String {
    let passed = report.count("pass");
    let ran = report.tried.len() - report.count("unsupported");
    let strict = report.failed(Class::Strict).count();
    let color = match (report.is_good(), strict) {
        _ if ran == 0 => "lightgrey",
        (true, _) => "brightgreen",
        (false, 0) => "yellow",
        _ => "red",
    };
    let failed = match strict {
        0 => String::new(),
        1 => ", 1 strict failure".into(),
        _ => format!(", {strict} strict failures"),
    };
    let not_run = report.lost.as_ref().map_or(0, |lost| lost.not_run);
    let not_run = if not_run > 0 { format!(", {not_run} not run") } else { String::new() };
    let message = format!("{passed} of {ran} cases pass{failed}{not_run}");
    format!("{:#}\n", json!({"schemaVersion": 1, "label": "RoCEv2 conformance", "message": message, "color": color}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conform::Lost;
    use crate::report::tests::report;
    use crate::run::Verdict;
    use std::collections::BTreeSet;

    #[test]
    fn json_report_has_every_case() {
        let value = value(&report());
        let verdicts: Vec<_> = value["cases"].as_array().unwrap().iter().map(|case| &case["verdict"]).collect();
        assert_eq!(verdicts, ["pass", "fail", "tolerated", "unsupported"]);
        assert_eq!((&value["sums"]["fail"], &value["failed"]["strict"]), (&json!(1), &json!(1)));
        assert_eq!(value["cases"][1]["failure"]["expected"], "ACK psn=100 msn=9");
        assert_eq!(value["cases"][1]["sources"], "IBA 9.7.5");
        assert_eq!(value["cases"][2]["reason"], "it counts & counts");
        let figure = json!({"name": "acks", "unit": "number", "count": 3, "least": 1, "median": 2, "most": 3});
        assert_eq!(value["cases"][0]["figures"], json!([figure]));
    }

    #[test]
    fn badge_counts_what_the_card_supports() {
        let mut report = report();
        let badge = |report: &Report| serde_json::from_str::<Value>(&badge(report)).unwrap();
        let is = |report: &Report, message: &str, color: &str| {
            let is = badge(report);
            assert_eq!((&is["message"], &is["color"]), (&json!(message), &json!(color)));
        };
        is(&report, "1 of 3 cases pass, 1 strict failure", "red");
        report.tried.push(report.tried[1].clone());
        is(&report, "1 of 4 cases pass, 2 strict failures", "red");
        report.tried.retain(|tried| !matches!(tried.outcome.verdict, Verdict::Fail(_)));
        is(&report, "1 of 2 cases pass", "brightgreen");
    }

    #[test]
    fn badge_of_an_incomplete_run_is_not_green() {
        let mut report = report();
        let badge = |report: &Report| {
            let is = serde_json::from_str::<Value>(&badge(report)).unwrap();
            [is["message"].as_str().unwrap().to_owned(), is["color"].as_str().unwrap().to_owned()]
        };
        report.tried.retain(|tried| matches!(tried.outcome.verdict, Verdict::Pass));
        report.lost = Some(Lost { not_run: 836, ..Lost::default() });
        assert_eq!(badge(&report), ["1 of 1 cases pass, 836 not run", "yellow"]);
        report.tried.clear();
        assert_eq!(badge(&report), ["0 of 0 cases pass, 836 not run", "lightgrey"]);
        report.lost = None;
        assert_eq!(badge(&report), ["0 of 0 cases pass", "lightgrey"]);
    }

    /// Returns the fields of a table of the manual, with their types.
    fn documented(title: &str) -> BTreeSet<(String, String)> {
        const MANUAL: &str = include_str!("../../../../docs/reference/conformance-report.md");
        let (_, section) = MANUAL.split_once(&format!("\n## {title}\n")).expect(title);
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        rows.map(|(name, rest)| (name.to_owned(), rest.split(" |").next().unwrap_or_default().to_owned())).collect()
    }

    /// Returns the fields of objects with their types; `or null` if a field is null in some.
    fn written<'v>(objects: impl IntoIterator<Item = &'v Value>) -> BTreeSet<(String, String)> {
        let mut types = std::collections::BTreeMap::<&String, BTreeSet<&str>>::new();
        for (name, value) in objects.into_iter().flat_map(|object| object.as_object().unwrap()) {
            types.entry(name).or_default().insert(match value {
                Value::Null => "or null",
                Value::Bool(_) => "bool",
                Value::Number(number) if number.is_u64() => "integer",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            });
        }
        let name = |types: BTreeSet<&str>| {
            let (null, mut some): (Vec<&str>, Vec<&str>) = types.into_iter().partition(|word| *word == "or null");
            some.extend(null);
            some.join(" ")
        };
        types.into_iter().map(|(field, types)| (field.clone(), name(types))).collect()
    }

    #[test]
    fn manual_names_the_fields_that_are_written() {
        let [mut whole, mut lost] = [report(), report()];
        whole.tried[0].took = std::time::Duration::from_millis(1500);
        lost.lost = Some(Lost { not_run: 3, ..Lost::default() });
        let [whole, lost] = [value(&whole), value(&lost)];
        let cases = || whole["cases"].as_array().unwrap().iter();
        assert_eq!(documented("Report"), written([&whole, &lost]));
        assert_eq!(documented("Case"), written(cases()));
        assert_eq!(documented("Failure"), written(cases().map(|case| &case["failure"]).filter(|is| !is.is_null())));
        assert_eq!(documented("Figure"), written(cases().flat_map(|case| case["figures"].as_array().unwrap())));
    }
}
