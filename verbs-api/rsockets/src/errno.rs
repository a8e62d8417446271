//! Failures as errno: what a socket call would say.

use roxe::{EnvironmentError, Error, Refusal, ResourceError};
use std::io;

/// An error of this errno.
pub(crate) fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// What went wrong in the card: its errno if it has one.
pub(crate) fn of(error: Error) -> io::Error {
    match error {
        Error::Resources(ResourceError::OutOfMemory { .. }) | Error::Environment(EnvironmentError::NoDevice { .. }) => {
            os(error.errno())
        }
        _ => os(error.refusal().map_or(libc::EIO, Refusal::errno)),
    }
}
