//! Suppressions: known reports that the user does not want to see.
//!
//! A line is `RULE PATTERN # REASON`; the reason is mandatory. Patterns have `*` and `?` and match
//! functions, files and objects of a report; `topN:PATTERN` matches the N innermost calls of each
//! stack only (`top:` is one). The rule may be a pattern too.

use crate::report::SymbolizedReport;
use crate::rule::Rule;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Suppression {
    rule: String,
    pattern: String,
    /// Number of innermost calls to match; `None` for all calls and the objects.
    top: Option<usize>,
}

/// Parsed lines of a suppression file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions(Vec<Suppression>);

impl Suppressions {
    /// Parses the text of a file; an error begins with the line number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(|(number, line)| parse(line).map_err(|why| format!("line {number}: {why}")))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Returns true if a line matches the report.
    pub(crate) fn cover(&self, report: &SymbolizedReport) -> bool {
        let rule = report.report.rule.name();
        let covers = |line: &Suppression| match line.top {
            None => report.words().any(|word| matches(&line.pattern, &word)),
            Some(top) => report.top_words(top).any(|word| matches(&line.pattern, &word)),
        };
        self.0.iter().filter(|line| matches(&line.rule, rule)).any(covers)
    }
}

fn parse(line: &str) -> Result<Suppression, String> {
    let (selection, reason) = line.split_once('#').ok_or("the reason is missing; write it after a #")?;
    if reason.trim().is_empty() {
        return Err("the reason after the # is empty".to_owned());
    }
    match selection.split_whitespace().collect::<Vec<_>>()[..] {
        [rule, _] if !Rule::ALL.iter().any(|known| matches(rule, known.name())) => {
            Err(format!("there is no rule '{rule}'; `roxe rules` lists them"))
        }
        [rule, pattern] => {
            let (top, pattern) = top_of(pattern).map_or((None, pattern), |(top, pattern)| (Some(top), pattern));
            Ok(Suppression { rule: rule.to_owned(), pattern: pattern.to_owned(), top })
        }
        _ => Err(format!("'{}' is not a rule and a pattern", selection.trim())),
    }
}

/// Splits a pattern that begins with `topN:`.
fn top_of(pattern: &str) -> Option<(usize, &str)> {
    let (number, rest) = pattern.strip_prefix("top")?.split_once(':')?;
    let number = if number.is_empty() { 1 } else { number.parse().ok()? };
    Some((number, rest))
}

/// Returns the line that suppresses `report` and other reports of the same rule in the same
/// function.
pub(crate) fn suggestion(report: &SymbolizedReport) -> String {
    let rule = report.report.rule;
    let first = report.top_words(1).next().filter(|word| !word.contains(char::is_whitespace));
    let pattern = first.map_or_else(|| "*".to_owned(), |function| format!("top:{function}"));
    format!("    {:<14} {rule} {pattern} # why it is wanted\n", "suppression")
}

/// Returns true if `text` matches `pattern`: `*` stands for any characters, `?` for one.
fn matches(pattern: &str, text: &str) -> bool {
    let mut chars = pattern.chars();
    match chars.next() {
        None => text.is_empty(),
        Some('*') => {
            let rest = chars.as_str();
            text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| matches(rest, &text[at..]))
        }
        Some(wanted) => {
            let mut others = text.chars();
            others.next().is_some_and(|c| (c == wanted || wanted == '?') && matches(chars.as_str(), others.as_str()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;
    use crate::stack::Frame;

    #[test]
    fn pattern_matches_star_and_question_mark() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("send_*", "send_all", true),
            ("*/ucx/*.c", "/src/ucx/rc.c", true),
            ("r?", "rc", true),
            ("r?", "r", false),
            ("send", "sender", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn top_pattern_matches_innermost_calls_only() {
        let frame = |function: &str| Frame { function: function.into(), file: None, line: None };
        let stacks = vec![("posted at", ["send_one", "send_all", "main"].map(frame).to_vec())];
        let report =
            SymbolizedReport { report: Report::new(Rule::KeyStale, "x").labelled("queue", "send_one"), stacks };
        for (pattern, expected) in [
            ("top:send_one", true),
            ("top:send_all", false),
            ("top2:send_all", true),
            ("top2:main", false),
            ("main", true),
        ] {
            let suppressions = Suppressions::parse(&format!("key-stale {pattern} # why")).unwrap();
            assert_eq!(suppressions.cover(&report), expected, "{pattern}");
        }
        assert_eq!(suggestion(&report), "    suppression    key-stale top:send_one # why it is wanted\n");
        let line = suggestion(&report).trim().strip_prefix("suppression").unwrap().trim().to_owned();
        assert!(Suppressions::parse(&line).unwrap().cover(&report), "the suggested line suppresses its report");
    }

    #[test]
    fn line_without_rule_pattern_or_reason_is_an_error() {
        let good = Suppressions::parse("# known\n\nleak *ucp_init* # freed by the system\n").unwrap();
        assert_eq!(good.0, [Suppression { rule: "leak".into(), pattern: "*ucp_init*".into(), top: None }]);
        for (text, part) in [
            ("leak x", "line 1: the reason is missing"),
            ("\nleak x #", "line 2"),
            ("leak # x", "'leak'"),
            ("leek x # y", "no rule 'leek'"),
        ] {
            let error = Suppressions::parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
