//! The standard error that the process began with, for lines that come when the program may have
//! closed it. **Unsafe room**: `fcntl` with a number.
//!
//! A program that closes descriptor 2 and opens a file gets that number for the file, and a report
//! must not end in it.

use std::fs::File;
use std::io::{self, Write, stderr};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Where the copy is put, if so many descriptors are allowed: programs count on the first numbers.
const OUT_OF_THE_WAY: libc::c_int = 200;

/// The copy; `None` where standard error was closed from the start.
static KEPT: OnceLock<Option<Kept>> = OnceLock::new();

/// A copy of standard error, and the device and inode numbers by which it is known again: a program
/// may also close all that it does not know.
#[derive(Debug)]
struct Kept {
    file: File,
    identity: (u64, u64),
}

/// Keeps standard error as it is now, once. To be called before `main`, where that can be done.
pub fn keep() {
    KEPT.get_or_init(|| copy().ok());
}

/// Writes to the standard error that was kept, or to the one of now if none was asked for. Text
/// that cannot be written is dropped.
pub fn write(text: &str) {
    let _ = match KEPT.get() {
        None => stderr().write_all(text.as_bytes()),
        Some(Some(kept)) if identity_of(&kept.file).is_ok_and(|now| now == kept.identity) => {
            (&kept.file).write_all(text.as_bytes())
        }
        Some(_) => Ok(()),
    };
}

fn copy() -> io::Result<Kept> {
    let duplicate = |least: libc::c_int| {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, least) };
        // SAFETY: just opened, and no other code knows it.
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
    };
    let file = File::from(duplicate(OUT_OF_THE_WAY).or_else(|_| duplicate(libc::STDERR_FILENO + 1))?);
    Ok(Kept { identity: identity_of(&file)?, file })
}

fn identity_of(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|found| (found.dev(), found.ino()))
}
