//! The error type of the provider: a text with the failure and the remedy, and the errno for a
//! C caller.
//!
//! Outcomes of the protocol are not errors: they are completions, events and counters.

use crate::config::ConfigError;
use std::borrow::Cow;
use std::io;

/// Reason why a verb was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    errno: i32,
    text: Cow<'static, str>,
    is_about_host: bool,
}

impl Error {
    /// Creates an error with the errno that the C interface returns for it.
    pub fn new(errno: i32, text: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, text: text.into(), is_about_host: false }
    }

    /// Creates an error whose cause is this host. Its text must reach the user, because an errno
    /// does not name the cause.
    pub fn host(errno: i32, text: impl Into<Cow<'static, str>>) -> Self {
        Self { is_about_host: true, ..Self::new(errno, text) }
    }

    /// Marks this error as one about this host, and appends advice for errnos that have some.
    pub fn about_host(self) -> Self {
        let advice = match self.errno {
            libc::EMFILE => "; allow this process more open files (ulimit -n), 64 are enough for a small one",
            libc::ENFILE => "; the whole system may not have more open files (sysctl fs.file-max)",
            libc::EAGAIN => "; allow this user more processes and threads (ulimit -u)",
            _ => "",
        };
        let text = if self.is_about_host { self.text } else { format!("{}{advice}", self.text).into() };
        Self { is_about_host: true, text, ..self }
    }

    /// Creates EINVAL for an argument that the caller has to change.
    pub fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EINVAL, text)
    }

    /// Creates EBUSY for an object with `count` users, which have to be destroyed first.
    pub fn busy(what: &str, users: &str, count: u32) -> Self {
        let (users, them) = if count == 1 { (users.trim_end_matches('s'), "it") } else { (users, "them") };
        Self::new(libc::EBUSY, format!("the {what} is still used by {count} {users}; destroy {them} first"))
    }

    /// Creates the error of a failed system call, with its errno. Without an errno, a refused
    /// permission is EACCES about the host, any other failure EIO.
    pub fn os(what: impl std::fmt::Display, cause: &io::Error) -> Self {
        let text = format!("{what}: {cause}");
        match (cause.raw_os_error(), cause.kind()) {
            (Some(errno), _) => Self::new(errno, text),
            (None, io::ErrorKind::PermissionDenied) => Self::host(libc::EACCES, text),
            (None, _) => Self::new(libc::EIO, text),
        }
    }

    /// Returns the errno, positive.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// Returns true if the cause is this host ([`Error::host`]).
    pub fn is_about_host(&self) -> bool {
        self.is_about_host
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
    fn host_error_advises_once() {
        let error = Error::os("cannot open x", &io::Error::from_raw_os_error(libc::EMFILE)).about_host();
        assert!(error.is_about_host() && error.to_string().contains("ulimit -n"), "{error}");
        assert_eq!(error.clone().about_host(), error);
    }

    #[test]
    fn busy_names_the_users() {
        let error = Error::busy("protection domain", "objects", 2);
        assert_eq!(error.errno(), libc::EBUSY);
        assert_eq!(error.to_string(), "the protection domain is still used by 2 objects; destroy them first");
    }
}
