//! The standard error that the process began with, for reports after the program may have closed
//! it. Unsafe code: `fcntl`.
//!
//! If a program closes descriptor 2, the next file that it opens gets that number, and a report
//! must not end up in that file.

use std::fs::File;
use std::io::{self, Write, stderr};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Lowest number of the copy, if the process may have that many descriptors: programs rely on
/// getting the first free numbers.
const MIN_NUMBER: libc::c_int = 200;

/// The copy; `None` if standard error was closed from the start.
static STDERR_COPY: OnceLock<Option<StderrCopy>> = OnceLock::new();

/// A copy of standard error, with its device and inode number: the program may close the copy too,
/// and reuse its number for another file.
#[derive(Debug)]
struct StderrCopy {
    file: File,
    identity: (u64, u64),
}

/// Copies the current standard error, on the first call only. Call it before `main` if possible.
pub fn keep() {
    STDERR_COPY.get_or_init(|| copy().ok());
}

/// Writes to the kept standard error, or to the current one if [`keep`] was not called. Drops text
/// that cannot be written.
pub fn write(text: &str) {
    let _ = match STDERR_COPY.get() {
        None => stderr().write_all(text.as_bytes()),
        Some(Some(stderr_copy)) if identity_of(&stderr_copy.file).is_ok_and(|now| now == stderr_copy.identity) => {
            (&stderr_copy.file).write_all(text.as_bytes())
        }
        Some(_) => Ok(()),
    };
}

fn copy() -> io::Result<StderrCopy> {
    let duplicate = |min: libc::c_int| {
        // SAFETY: `fcntl` with this command takes no pointers.
        let fd = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, min) };
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
    };
    let file = File::from(duplicate(MIN_NUMBER).or_else(|_| duplicate(libc::STDERR_FILENO + 1))?);
    Ok(StderrCopy { identity: identity_of(&file)?, file })
}

fn identity_of(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|meta| (meta.dev(), meta.ino()))
}
