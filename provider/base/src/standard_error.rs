//! A copy of the standard error with which the process started. Unsafe code: `fcntl`.
//!
//! A program may close descriptor 2. The next file that it opens then gets that number, and a
//! report must not end up in that file.

use std::fs::File;
use std::io::{self, Write, stderr};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Lowest descriptor number of the copy, if the descriptor limit of the process allows it. The copy
/// takes no lower number, because some programs rely on the numbers that their own files get.
const MIN_COPY_NUMBER: libc::c_int = 200;

/// The copy; `Some(None)` if standard error was closed when [`save_copy`] was called.
static STDERR_COPY: OnceLock<Option<StderrCopy>> = OnceLock::new();

/// A copy of standard error, with its device and inode number. They show whether the program closed
/// the copy and another file got its descriptor number.
#[derive(Debug)]
struct StderrCopy {
    file: File,
    identity: (u64, u64),
}

/// Copies the current standard error; further calls do nothing. Call it before `main` if possible.
pub fn save_copy() {
    STDERR_COPY.get_or_init(|| copy().ok());
}

/// Writes to the saved copy, or to the current standard error if [`save_copy`] was not called.
/// Drops text that cannot be written.
pub fn write(text: &str) {
    let _ = match STDERR_COPY.get() {
        None => stderr().write_all(text.as_bytes()),
        Some(Some(stderr_copy))
            if identity_of(&stderr_copy.file).is_ok_and(|current| current == stderr_copy.identity) =>
        {
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
    let file = File::from(duplicate(MIN_COPY_NUMBER).or_else(|_| duplicate(libc::STDERR_FILENO + 1))?);
    Ok(StderrCopy { identity: identity_of(&file)?, file })
}

fn identity_of(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|meta| (meta.dev(), meta.ino()))
}
