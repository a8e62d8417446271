//! Conversion of errors to the errno of a socket call.

use roxe::{EnvironmentError, Error, Refusal, ResourceError};
use std::io;

/// Returns an I/O error with this errno.
pub(crate) fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Returns an I/O error with the errno that the C call sets for `error`.
pub(crate) fn io_error(error: Error) -> io::Error {
    match error {
        Error::Resources(ResourceError::OutOfMemory { .. }) | Error::Environment(EnvironmentError::NoDevice { .. }) => {
            os(error.errno())
        }
        _ => os(error.refusal().map_or(libc::EIO, Refusal::errno)),
    }
}
