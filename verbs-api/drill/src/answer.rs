//! What the far side answers. Pure data.

use std::fmt;

/// Why the far side did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What it says.
    pub text: String,
    /// The error number of the verb; 0: none, the target itself cannot be used.
    pub errno: i32,
}

impl Refused {
    /// What no verb is to blame for.
    pub fn broken(text: impl Into<String>) -> Self {
        Self { text: text.into(), errno: 0 }
    }

    /// What the card, or the way to it, does not do at all.
    pub(crate) fn unsupported(text: impl Into<String>) -> Self {
        Self { text: text.into(), errno: libc::EOPNOTSUPP }
    }

    /// Whether the card says that it does not do such things.
    pub(crate) const fn is_unsupported(&self) -> bool {
        matches!(self.errno, libc::EOPNOTSUPP | libc::ENOSYS)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if self.errno == 0 { Ok(()) } else { write!(f, " (errno {})", self.errno) }
    }
}

/// What the far side answers.
pub type Answer<T> = Result<T, Refused>;

/// An object of the far side.
pub type Handle = u64;
