//! The one error of this crate: what happened, to what, what to do, and the errno a C caller gets.
//!
//! Touches nothing. Outcomes of the protocol are not errors: they are completions, events and counters.

use crate::config::ConfigError;
use std::borrow::Cow;
use std::io;

/// Why a verb was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    errno: i32,
    text: Cow<'static, str>,
}

impl Error {
    /// An error with the errno that the C interface returns for it.
    pub(crate) fn new(errno: i32, text: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, text: text.into() }
    }

    /// An argument that the caller has to change.
    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EINVAL, text)
    }

    /// The object still has users, which have to be destroyed first.
    pub(crate) fn busy(what: &str, users: &str, count: u32) -> Self {
        Self::new(libc::EBUSY, format!("the {what} is still used by {count} {users}; destroy them first"))
    }

    /// A failed system call; keeps its errno.
    pub(crate) fn os(what: impl std::fmt::Display, cause: &io::Error) -> Self {
        Self::new(cause.raw_os_error().unwrap_or(libc::EIO), format!("{what}: {cause}"))
    }

    /// The errno of `<errno.h>`, positive.
    pub fn errno(&self) -> i32 {
        self.errno
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::invalid(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_keep_their_number() {
        let error = Error::os("cannot open x", &io::Error::from_raw_os_error(libc::EMFILE));
        assert_eq!(error.errno(), libc::EMFILE);
        assert!(error.to_string().starts_with("cannot open x: "));
    }

    #[test]
    fn busy_names_the_users() {
        let error = Error::busy("protection domain", "objects", 2);
        assert_eq!(error.errno(), libc::EBUSY);
        assert_eq!(error.to_string(), "the protection domain is still used by 2 objects; destroy them first");
    }
}
