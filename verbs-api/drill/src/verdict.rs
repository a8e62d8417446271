//! What is said of a case. Pure data.

use std::fmt;

/// The verdict on a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As written.
    Pass,
    /// Otherwise than written.
    Fail(Failure),
    /// Otherwise than written, for a reason that is known.
    Tolerated(String, Failure),
    /// The card does not have what the case is about.
    Unsupported(String),
    /// Nothing can be said: the script or the way to the card is at fault.
    Inconclusive(Failure),
}

impl Verdict {
    /// One word.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail(_) => "FAIL",
            Self::Tolerated(..) => "tolerated",
            Self::Unsupported(_) => "unsupported",
            Self::Inconclusive(_) => "inconclusive",
        }
    }

    /// Whether the card did what is written, or what is known of it, or cannot do it at all.
    pub const fn is_good(&self) -> bool {
        matches!(self, Self::Pass | Self::Tolerated(..) | Self::Unsupported(_))
    }

    /// What went otherwise.
    pub const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Fail(failure) | Self::Tolerated(_, failure) | Self::Inconclusive(failure) => Some(failure),
            Self::Pass | Self::Unsupported(_) => None,
        }
    }
}

/// Where a card does something else, and what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// File and line.
    pub at: String,
    /// The line.
    pub step: String,
    /// What should have come.
    pub expected: String,
    /// What came.
    pub received: String,
    /// The newest packets, a line each.
    pub packets: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, step, expected, received, packets } = self;
        write!(f, "{at}: {step}\n    expected: {expected}\n    received: {received}")?;
        if packets.is_empty() { Ok(()) } else { write!(f, "\n  packets, `>` to the card:\n{}", packets.trim_end()) }
    }
}
