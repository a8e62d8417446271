//! Writes reports to standard error and the report file, and sums them up for the exit status.
//! Repeated reports are counted, not printed.

use crate::report::Report;
use crate::report::file::ReportFile;
use crate::rule::{Halt, Rule, Selection, Severity};
use crate::stack::Stack;
use crate::suppressions::{Suppressions, suggestion};
use roxe_base::standard_error;
use std::collections::HashMap;

/// Maximum number of printed reports of one rule, from different places of the program.
const MAX_PRINTED: u32 = 10;

#[derive(Debug)]
pub(crate) struct Sink {
    selection: Selection,
    suppressions: Suppressions,
    file: Option<ReportFile>,
    /// Reports so far, by rule and place.
    seen: HashMap<(Rule, Option<Stack>), u64>,
    /// Reports that passed the filters, by rule.
    printed: HashMap<Rule, u32>,
    suppressed: u64,
    errors: u64,
    /// True from the first error until the program is halted for it.
    is_halt_due: bool,
}

impl Sink {
    pub(crate) fn new(selection: Selection, suppressions: Suppressions, file: Option<ReportFile>) -> Self {
        let (seen, printed) = (HashMap::new(), HashMap::new());
        Self { selection, suppressions, file, seen, printed, suppressed: 0, errors: 0, is_halt_due: false }
    }

    /// Prints a report unless it is deselected, suppressed or repeated.
    pub(crate) fn add(&mut self, report: Report) {
        let rule = report.rule;
        if !self.selection.contains(rule) {
            return;
        }
        let count = self.seen.entry((rule, report.place().cloned())).or_default();
        *count += 1;
        if *count > 1 {
            return;
        }
        let named = report.symbolized();
        if self.suppressions.cover(&named) {
            self.suppressed += 1;
            return;
        }
        let is_error = named.report.severity == Severity::Error;
        self.is_halt_due |= is_error && self.errors == 0;
        self.errors += u64::from(is_error);
        let printed = self.printed.entry(rule).or_default();
        *printed += 1;
        if *printed > MAX_PRINTED {
            return;
        }
        // Errors are ignored: if one of the two outputs fails, the other may work.
        let mut text = named.text();
        if self.selection.suggests {
            text.push_str(&suggestion(&named));
        }
        standard_error::write(&text);
        if let Some(file) = &mut self.file {
            let _ = file.add(&named);
        }
    }

    /// Returns the summary of the run; `None` if nothing was reported.
    pub(crate) fn summary(&self) -> Option<String> {
        let reports: u32 = self.printed.values().sum();
        if reports == 0 {
            return None;
        }
        let repeated: u64 = self.seen.values().map(|count| count - 1).sum();
        let unprinted: u32 = self.printed.values().map(|printed| printed.saturating_sub(MAX_PRINTED)).sum();
        let what = if reports == 1 { "report" } else { "reports" };
        let mut text = format!("roxe: {reports} {what} of the checker on process {}", std::process::id());
        for (count, what) in
            [(repeated, "repeated"), (unprinted.into(), "beyond ten of one rule"), (self.suppressed, "suppressed")]
        {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        text.push('\n');
        Some(text)
    }

    /// Returns how to halt the program for its first error, once.
    pub(crate) fn take_halt(&mut self) -> Halt {
        if std::mem::take(&mut self.is_halt_due) { self.selection.halt } else { Halt::No }
    }

    /// Returns true if the exit status has to report errors.
    pub(crate) fn fails(&self) -> bool {
        self.selection.fails && self.errors > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(selection: &str, suppressions: &str) -> Sink {
        Sink::new(Selection::parse(selection).unwrap(), Suppressions::parse(suppressions).unwrap(), None)
    }

    #[test]
    fn repeated_report_is_counted() {
        let mut sink = sink("all", "");
        (0..3).for_each(|_| sink.add(Report::new(Rule::KeyStale, "x")));
        let text = sink.summary().unwrap();
        assert!(text.contains(" 1 report of") && text.contains("2 repeated"), "{text}");
        assert!(sink.fails());
    }

    #[test]
    fn exit_status_ignores_warnings_and_errors_under_warn() {
        let mut warned = sink("all", "");
        warned.add(Report::new(Rule::Leak, "x"));
        assert!(!warned.fails() && warned.summary().is_some());
        let mut lenient = sink("warn", "");
        lenient.add(Report::new(Rule::KeyStale, "x"));
        assert!(!lenient.fails());
    }

    #[test]
    fn deselected_and_suppressed_reports_are_not_printed() {
        let mut sink = sink("-leak", "key-* *domain* # known");
        sink.add(Report::new(Rule::Leak, "x"));
        sink.add(Report::new(Rule::KeyStale, "x").labelled("domain", "protection domain"));
        assert_eq!(sink.summary(), None);
        assert!(!sink.fails());
    }
}
