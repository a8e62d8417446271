//! One report: the mistake, the objects, the calls and the advice, as text and as JSON; the
//! submodules embed it in documents. A report stands alone. Names of functions are looked up only
//! when it is written.

pub(crate) mod file;
mod junit;
mod sarif;

use crate::rule::{Rule, Severity};
use crate::stack::{Frame, Stack};
use serde_json::{Value, json};
use std::fmt::Write;

/// Maximum number of calls of a stack in the text.
const MAX_CALLS: usize = 8;

/// A finding of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) rule: Rule,
    pub(crate) severity: Severity,
    sentence: String,
    labelled_values: Vec<(&'static str, String)>,
    stacks: Vec<(&'static str, Stack)>,
    advice: String,
}

/// A report with symbolized stacks.
#[derive(Clone, Debug)]
pub(crate) struct SymbolizedReport {
    pub(crate) report: Report,
    pub(crate) stacks: Vec<(&'static str, Vec<Frame>)>,
}

impl Report {
    /// Begins a report with one sentence about the objects.
    pub(crate) fn new(rule: Rule, sentence: impl Into<String>) -> Self {
        Self {
            rule,
            severity: rule.severity(),
            sentence: sentence.into(),
            labelled_values: vec![],
            stacks: vec![],
            advice: String::new(),
        }
    }

    /// Lowers the severity to a warning, for a use that fails on some cards only.
    pub(crate) fn warned(self) -> Self {
        Self { severity: Severity::Warning, ..self }
    }

    /// Adds a label and its value.
    pub(crate) fn labelled(mut self, label: &'static str, value: impl Into<String>) -> Self {
        self.labelled_values.push((label, value.into()));
        self
    }

    /// Adds a call of the program, if it is known.
    pub(crate) fn at<'s>(mut self, label: &'static str, stack: impl Into<Option<&'s Stack>>) -> Self {
        self.stacks.extend(stack.into().map(|stack| (label, stack.clone())));
        self
    }

    /// Sets the advice.
    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }

    /// Returns the place in the program; one rule reports each place once.
    pub(crate) fn place(&self) -> Option<&Stack> {
        self.stacks.first().map(|(_, stack)| stack)
    }

    /// Symbolizes the stacks.
    pub(crate) fn symbolized(self) -> SymbolizedReport {
        let stacks = self.stacks.iter().map(|(label, stack)| (*label, stack.frames())).collect();
        SymbolizedReport { report: self, stacks }
    }
}

impl SymbolizedReport {
    /// Returns the words that suppressions match: functions, files and labelled values.
    pub(crate) fn words(&self) -> impl Iterator<Item = String> {
        self.top_words(usize::MAX).chain(self.report.labelled_values.iter().map(|(_, value)| value.clone()))
    }

    /// Functions and files of the `count` innermost calls of each stack.
    pub(crate) fn top_words(&self, count: usize) -> impl Iterator<Item = String> {
        let frames = self.stacks.iter().flat_map(move |(_, frames)| frames.iter().take(count));
        frames.flat_map(|frame| {
            let file = frame.file.as_ref().map(|file| file.display().to_string());
            [Some(frame.function.clone()), file].into_iter().flatten()
        })
    }

    pub(crate) fn text(&self) -> String {
        let Report { rule, severity, sentence, labelled_values, advice, .. } = &self.report;
        let mut text = format!("roxe: {severity} [{rule}]: {sentence}\n");
        let mut line = |label: &str, value: &str| {
            let _ = writeln!(text, "    {label:<14} {value}");
        };
        labelled_values.iter().for_each(|(label, value)| line(label, value));
        for (label, frames) in &self.stacks {
            let calls = frames.iter().take(MAX_CALLS).map(ToString::to_string);
            let calls: Vec<_> = if frames.is_empty() { vec!["unknown".to_owned()] } else { calls.collect() };
            for (index, call) in calls.iter().enumerate() {
                line(if index == 0 { label } else { "" }, call);
            }
        }
        line("what to do", advice);
        line("see", rule.source());
        text
    }

    pub(crate) fn json(&self) -> Value {
        let Report { rule, severity, sentence, labelled_values, advice, .. } = &self.report;
        let labelled_values: serde_json::Map<_, _> =
            labelled_values.iter().map(|(label, value)| ((*label).to_owned(), json!(value))).collect();
        let calls = |frames: &[Frame]| -> Vec<Value> {
            let call = |frame: &Frame| json!({"function": frame.function, "file": frame.file, "line": frame.line});
            frames.iter().map(call).collect()
        };
        let stacks: Vec<_> =
            self.stacks.iter().map(|(label, frames)| json!({"what": label, "calls": calls(frames)})).collect();
        json!({
            "rule": rule.name(),
            "severity": severity.to_string(),
            "process": std::process::id(),
            "message": sentence,
            "facts": labelled_values,
            "stacks": stacks,
            "advice": advice,
            "source": rule.source(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> SymbolizedReport {
        let report =
            Report::new(Rule::KeyStale, "The key 0x7 is dead.").labelled("queue pair", "queue pair 0x00011 (RC)");
        let frame = Frame { function: "send_all".into(), file: Some("a.c".into()), line: Some(12) };
        SymbolizedReport { report: report.advice("Register it again."), stacks: vec![("posted at", vec![frame])] }
    }

    #[test]
    fn text_has_rule_place_and_advice() {
        let text = report().text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "roxe: error [key-stale]: The key 0x7 is dead.");
        assert_eq!(lines[1], "    queue pair     queue pair 0x00011 (RC)");
        assert_eq!(lines[2], "    posted at      send_all (a.c:12)");
        assert_eq!(lines[3], "    what to do     Register it again.");
        assert!(lines[4].contains("ibv_dereg_mr"), "{text}");
    }

    #[test]
    fn json_has_rule_place_and_facts() {
        let json = report().json();
        assert_eq!((&json["rule"], &json["severity"]), (&json!("key-stale"), &json!("error")));
        assert_eq!(json["stacks"][0]["calls"][0]["line"], json!(12));
        assert_eq!(json["facts"]["queue pair"], json!("queue pair 0x00011 (RC)"));
    }

    #[test]
    fn suppression_words_are_functions_files_and_values() {
        let words: Vec<_> = report().words().collect();
        assert_eq!(words, ["send_all", "a.c", "queue pair 0x00011 (RC)"]);
    }
}
