//! Why a request was not carried out. Touches nothing.

use std::{fmt, io};

/// Why a request was not carried out: by the agent, or by the verb that it called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} (errno {errno})")]
pub struct Refusal {
    /// What happened, to what.
    pub text: String,
    /// What the verb reported; `EINVAL` if the agent refused the request itself.
    pub errno: i32,
}

impl Refusal {
    /// A request that makes no sense: `EINVAL`.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self { text: text.into(), errno: libc::EINVAL }
    }

    /// What the system said to `what`.
    pub(crate) fn os(what: impl fmt::Display, error: &io::Error) -> Self {
        let (mut text, errno) = (format!("{what}: {error}"), error.raw_os_error().unwrap_or(libc::EIO));
        // The number is told once, behind the text.
        let end = format!(" (os error {errno})");
        text.truncate(text.strip_suffix(&end).unwrap_or(&text).len());
        Self { text, errno }
    }
}

/// The result of reading, or carrying out, a request.
pub type Result<T> = std::result::Result<T, Refusal>;

/// As much of a text from outside as belongs into a message.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_the_system_tells_its_errno_once() {
        let text = Refusal::os("cannot listen", &io::Error::from_raw_os_error(libc::EACCES)).to_string();
        assert_eq!(text, "cannot listen: Permission denied (errno 13)");
    }
}
