//! Deviations of a card that are known and explained: a file that says which cases may fail, and
//! why.
//!
//! A line is `SCRIPT: REASON` or `SCRIPT [PARAMETERS]: REASON`; `SCRIPT` may end in `*`; `#` begins
//! a comment. Pure data.

/// What a file of deviations says.
#[derive(Clone, Debug, Default)]
pub struct Deviations(Vec<Deviation>);

#[derive(Clone, Debug)]
struct Deviation {
    script: String,
    parameters: Option<String>,
    reason: String,
}

impl Deviations {
    /// Reads a file.
    ///
    /// # Errors
    /// The first line that is no deviation.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
        let read = lines.filter(|(_, line)| !line.starts_with('#')).map(|(number, line)| {
            let wrong = || format!("line {number} is not `SCRIPT: REASON`: {line}");
            let (case, reason) = line.split_once(": ").ok_or_else(wrong)?;
            let (script, parameters) = match case.split_once(" [") {
                Some((script, rest)) => (script, Some(rest.strip_suffix(']').ok_or_else(wrong)?.to_owned())),
                None => (case, None),
            };
            Ok(Deviation { script: script.into(), parameters, reason: reason.trim().into() })
        });
        read.collect::<Result<_, String>>().map(Self)
    }

    /// Why this case may fail, if it may.
    pub(crate) fn reason(&self, script: &str, parameters: &str) -> Option<&str> {
        let is_it = |deviation: &&Deviation| {
            let named = match deviation.script.strip_suffix('*') {
                Some(start) => script.starts_with(start),
                None => script == deviation.script,
            };
            named && deviation.parameters.as_ref().is_none_or(|wanted| wanted == parameters)
        };
        self.0.iter().find(is_it).map(|deviation| deviation.reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_names_a_script_some_scripts_or_one_case() {
        let text = "# rxe\nud/*: no groups\n\nresponder/rnr [timer=0]: rounds up\nresponder/gap: never\n";
        let deviations = Deviations::parse(text).unwrap();
        assert_eq!(deviations.reason("ud/group", "a=1"), Some("no groups"));
        assert_eq!(deviations.reason("responder/rnr", "timer=0"), Some("rounds up"));
        assert_eq!(deviations.reason("responder/rnr", "timer=1"), None);
        assert_eq!(deviations.reason("responder/gap", "psn=3"), Some("never"));
        assert_eq!(deviations.reason("responder/gap_nak", ""), None);
    }

    #[test]
    fn a_line_without_a_reason_is_refused() {
        let error = Deviations::parse("\nresponder/rnr\n").unwrap_err();
        assert_eq!(error, "line 2 is not `SCRIPT: REASON`: responder/rnr");
    }
}
