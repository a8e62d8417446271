//! Folders and files that only this user can write: the loader of the program will run code from
//! them.
//!
//! Any number of starts may make them at once: every step is either atomic or harmless when another
//! process was faster. Touches the file system.

use roxe_base::private_dir;
use roxe_provider::runtime_dir;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process;

/// Why there is no such folder. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FolderError {
    #[error("{0}.")]
    None(io::Error),
    #[error(
        "libraries in {} cannot be trusted: {why}.\n  \
         Remove it, or set XDG_RUNTIME_DIR to a folder that only you can write.",
        path.display()
    )]
    Untrusted { path: PathBuf, why: private_dir::Unfit },
    #[error("cannot prepare {}: {cause}.\n  Set XDG_RUNTIME_DIR to a folder that only you can write.", path.display())]
    Unusable { path: PathBuf, cause: io::Error },
    #[error(
        "there is no folder for links to the library:\n  {0}\n  Set XDG_CACHE_HOME to a folder that only you can write."
    )]
    Links(String),
}

/// The folder that only this user can enter: the loader will run code from it.
pub(crate) fn base_folder() -> Result<PathBuf, FolderError> {
    runtime_dir().map_err(FolderError::None)
}

/// Makes `path`, and what is missing above it, with mode 0700, and checks that only this user and
/// root can change or exchange what it holds. Returns the path without links.
pub(crate) fn private_folder(path: &Path) -> Result<PathBuf, FolderError> {
    let untrusted = |why| FolderError::Untrusted { path: path.into(), why };
    Ok(private_dir::make_all(path).map_err(untrusted)?.path)
}

/// Makes `folder/name` a link to `target`. A wrong or missing link is replaced by renaming a new
/// one over it, so that a program that starts meanwhile sees the old or the new link, never none.
pub(crate) fn place_link(folder: &Path, name: &str, target: &Path) -> io::Result<()> {
    let link = folder.join(name);
    if fs::read_link(&link).is_ok_and(|current| current == target) {
        return Ok(());
    }
    let fresh = folder.join(format!(".{name}.{}", process::id()));
    // Left behind by a process that had our id and died between the two steps.
    let _ = fs::remove_file(&fresh);
    symlink(target, &fresh)?;
    fs::rename(&fresh, &link)
}

/// Writes `folder/name` unless it is there as it must be; others can read it at most. A program
/// that starts meanwhile sees the old or the new file, whole.
pub(crate) fn place(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
    let path = folder.join(name);
    if !fs::read(&path).is_ok_and(|old| old == content.as_ref()) {
        let fresh = folder.join(format!(".{name}.{}", process::id()));
        // Left behind by a process that had our id and died between the two steps.
        let _ = fs::remove_file(&fresh);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&fresh)?;
        file.write_all(content.as_ref()).and_then(|()| fs::rename(&fresh, &path)).inspect_err(|_| {
            let _ = fs::remove_file(&fresh);
        })?;
    }
    Ok(path)
}

/// FNV-1a, 64 bits: a name for a folder, the same in every process (the standard hasher does not
/// promise that).
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("roxe-cli-test-{}-{name}", process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_wrong_link_is_replaced_and_a_right_one_is_kept() {
        let folder = scratch("links");
        symlink("/nowhere", folder.join("libibverbs.so.1")).unwrap();
        place_link(&folder, "libibverbs.so.1", Path::new("/somewhere")).unwrap();
        place_link(&folder, "libibverbs.so.1", Path::new("/somewhere")).unwrap();
        assert_eq!(fs::read_link(folder.join("libibverbs.so.1")).unwrap(), Path::new("/somewhere"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no temporary link is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn many_starts_at_once_agree() {
        let folder = scratch("race").join("new");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| private_folder(&folder).unwrap());
            }
        });
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let folder = scratch("open");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(private_folder(&folder), Err(FolderError::Untrusted { .. })));
        fs::remove_dir_all(folder).unwrap();
    }
}
