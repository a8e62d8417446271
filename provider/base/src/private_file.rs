//! Files that the user names for what a process writes down: captures and traces.
//!
//! They hold what programs send each other and the keys of their memory, so a new one is for its
//! owner only, and none is written where somebody else could have put a file or a link. Touches
//! the file system.

use crate::privilege::effective_uid;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Opens `path` as `options` say, which must not truncate it, and makes it if it is not there.
/// EPERM: it is a link, has another name as well, or belongs to another user; devices may belong to
/// anybody.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Before it is opened: to open a pipe that nobody reads would wait.
    match fs::symlink_metadata(path) {
        Ok(meta) => check_is_ours(&meta)?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
        Err(cause) => return Err(cause),
    }
    let file = options.create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)?;
    check_is_ours(&file.metadata()?)?;
    Ok(file)
}

fn check_is_ours(meta: &Metadata) -> io::Result<()> {
    let kind = meta.file_type();
    let refuse = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if kind.is_symlink() {
        refuse("it is a link, which is not followed; name the file itself".to_owned())
    } else if kind.is_file() && meta.nlink() > 1 {
        refuse("the file has several names; remove this one, or choose another".to_owned())
    } else if !kind.is_char_device() && meta.uid() != effective_uid() {
        refuse(format!("it belongs to user {}; remove it, or choose another name", meta.uid()))
    } else {
        Ok(())
    }
}

/// Whether each process writes a file of its own.
pub fn names_process(path: &Path) -> bool {
    path.to_string_lossy().contains("%p")
}

/// The process id in place of `%p`.
pub fn with_process_id(path: &Path) -> PathBuf {
    if !names_process(path) {
        return path.into();
    }
    path.to_string_lossy().replace("%p", &std::process::id().to_string()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_the_process_id_where_asked_for() {
        let id = std::process::id();
        assert_eq!(with_process_id(Path::new("/tmp/a-%p.pcapng")), PathBuf::from(format!("/tmp/a-{id}.pcapng")));
        assert_eq!(with_process_id(Path::new("a.pcapng")), Path::new("a.pcapng"));
    }
}
