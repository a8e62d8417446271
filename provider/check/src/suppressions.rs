//! Suppressions: reports that are known, and why they are not wanted.
//!
//! A line is `RULE PATTERN # REASON`. The pattern has `*` and `?`; it is compared with the
//! functions, the files and the objects of a report. A rule may be a pattern too. The reason is not
//! optional. Pure.

use crate::report::Named;
use crate::rule::Rule;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Suppression {
    rule: String,
    pattern: String,
}

/// The lines of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions(Vec<Suppression>);

impl Suppressions {
    /// Reads the text of a file; the error names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(|(number, line)| parse(line).map_err(|why| format!("line {number}: {why}")))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether nobody wants to see this report.
    pub(crate) fn cover(&self, report: &Named) -> bool {
        let rule = report.report.rule.name();
        let for_rule = self.0.iter().filter(|line| matches(&line.rule, rule));
        for_rule.into_iter().any(|line| report.words().any(|word| matches(&line.pattern, &word)))
    }
}

fn parse(line: &str) -> Result<Suppression, String> {
    let (what, reason) = line.split_once('#').ok_or("there is no reason; write it behind a #")?;
    if reason.trim().is_empty() {
        return Err("the reason behind the # is empty".to_owned());
    }
    match what.split_whitespace().collect::<Vec<_>>()[..] {
        [rule, _] if !Rule::ALL.iter().any(|known| matches(rule, known.name())) => {
            Err(format!("there is no rule '{rule}'; `roxe rules` lists them"))
        }
        [rule, pattern] => Ok(Suppression { rule: rule.to_owned(), pattern: pattern.to_owned() }),
        _ => Err(format!("'{}' is not a rule and a pattern", what.trim())),
    }
}

/// Whether `text` is what `pattern` describes; `*` stands for any characters, `?` for one.
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

    #[test]
    fn patterns_have_stars_and_question_marks() {
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
    fn a_line_needs_a_rule_a_pattern_and_a_reason() {
        let good = Suppressions::parse("# known\n\nleak *ucp_init* # freed by the system\n").unwrap();
        assert_eq!(good.0, [Suppression { rule: "leak".into(), pattern: "*ucp_init*".into() }]);
        for (text, part) in [
            ("leak x", "line 1: there is no reason"),
            ("\nleak x #", "line 2"),
            ("leak # x", "'leak'"),
            ("leek x # y", "no rule 'leek'"),
        ] {
            let error = Suppressions::parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
