//! The file of a trace: an array of events in JSON, to which processes append whole lines.
//!
//! Viewers take an array without its closing bracket, so nobody has to be the last. The first one
//! writes the opening bracket: every process holds a shared lock on the file while it lives, and
//! who gets it alone is the first. Touches the file.

use roxe_base::private_file::{self, with_process_id};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::Path;

/// What the array begins with.
const START: &[u8] = b"[\n";

/// Opens the file `wanted`. An existing one is overwritten, unless another process is writing it.
pub(super) fn open(wanted: &Path) -> io::Result<File> {
    let mut file = private_file::open(OpenOptions::new().append(true), &with_process_id(wanted))?;
    match file.try_lock() {
        Ok(()) => {
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(START)?;
            // Nothing of this process is there yet: if another one gets the lock alone before this
            // one shares it, the file begins anew.
            file.lock_shared()?;
        }
        Err(TryLockError::WouldBlock) => file.lock_shared()?,
        // A file system without locks: then the first is who finds it empty.
        Err(TryLockError::Error(_)) if file.metadata()?.len() == 0 => file.write_all(START)?,
        Err(TryLockError::Error(_)) => {}
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::PathBuf;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("roxe-trace-{}-{name}", std::process::id()))
    }

    #[test]
    fn processes_share_a_file_that_begins_once_and_the_next_run_begins_anew() {
        let path = scratch("shared");
        fs::write(&path, "an old trace").unwrap();
        let (mut first, mut second) = (open(&path).unwrap(), open(&path).unwrap());
        first.write_all(b"1\n").unwrap();
        second.write_all(b"2\n").unwrap();
        drop(first);
        open(&path).unwrap().write_all(b"3\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"[\n1\n2\n3\n");
        drop(second);
        drop(open(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), START);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_new_trace_is_for_its_owner_only_and_never_opened_through_a_link() {
        let (path, link) = (scratch("private"), scratch("link"));
        drop(open(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        symlink(&path, &link).unwrap();
        assert_eq!(open(&link).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::remove_file(link).unwrap();
        fs::remove_file(path).unwrap();
    }
}
