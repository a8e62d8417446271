//! Failures of a check, and their text form on the pipe between the two processes.

use std::error::Error;
use std::fmt;

/// The reason why a check did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    text: String,
    /// True if the only failure is a lost message, which UC and UD allow.
    pub(super) lost: bool,
}

impl Failure {
    /// Prefix of a loss on the pipe.
    const LOST: &str = "lost: ";

    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), lost: false }
    }

    pub(super) fn lost(text: impl Into<String>) -> Self {
        Self { text: text.into(), lost: true }
    }

    /// Returns a line for the pipe.
    pub(super) fn to_line(&self) -> String {
        let mark = if self.lost { Self::LOST } else { "" };
        format!("{mark}{}", self.text.replace('\n', " "))
    }

    pub(super) fn from_line(line: &str) -> Self {
        match line.strip_prefix(Self::LOST) {
            Some(text) => Self::lost(format!("server: {text}")),
            None => Self::new(format!("server: {line}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Failure {}

impl From<roxe::Error> for Failure {
    fn from(error: roxe::Error) -> Self {
        Self::new(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Splits a line of the pipe into exactly `N` words.
pub(super) fn words<const N: usize>(line: &str) -> Result<[&str; N], Failure> {
    let words: Vec<&str> = line.split(' ').collect();
    words.try_into().map_err(|_| Failure::new(format!("the other process sent the unknown line {line:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_line_roundtrips() {
        let lost = Failure::from_line(&Failure::lost("a\nb").to_line());
        assert_eq!(lost, Failure::lost("server: a b"));
        assert!(!Failure::from_line(&Failure::new("x").to_line()).lost);
    }

    #[test]
    fn lines_have_a_fixed_number_of_words() {
        assert_eq!(words::<2>("a b"), Ok(["a", "b"]));
        assert!(words::<2>("a b c").is_err());
    }
}
