//! Files of the user, with errors that name them, and folders that only this user can write,
//! because programs load libraries from them.
//!
//! Several processes may fill such a folder at once, so every step is atomic or harmless when
//! another process was faster.

use crate::output::Result;
use roxe_base::{private_dir, private_file};
use roxe_provider::runtime_dir;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process;

/// A reason why no private folder can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FolderError {
    #[error("{0}")]
    NoRuntimeDir(io::Error),
    #[error(
        "cannot trust libraries in a folder: {}: {why}; remove it, or set XDG_RUNTIME_DIR to a folder that only you \
         can write",
        path.display()
    )]
    Untrusted { path: PathBuf, why: private_dir::Unfit },
    #[error(
        "cannot prepare a folder: {}: {cause}; set XDG_RUNTIME_DIR to a folder that only you can write",
        path.display()
    )]
    Unusable { path: PathBuf, cause: io::Error },
    #[error("cannot link the libraries: {0}; set XDG_CACHE_HOME to a folder that only you can write")]
    Links(String),
}

/// Returns the runtime folder of this user.
pub(crate) fn base_folder() -> Result<PathBuf, FolderError> {
    runtime_dir().map_err(FolderError::NoRuntimeDir)
}

/// Creates `path` and missing parents with mode 0700, and checks that only this user and root can
/// change or replace its content. Returns the path without links.
pub(crate) fn private_folder(path: &Path) -> Result<PathBuf, FolderError> {
    let untrusted = |why| FolderError::Untrusted { path: path.into(), why };
    Ok(private_dir::make_all(path).map_err(untrusted)?.path)
}

/// Makes `folder/name` a link to `target`. A program that starts meanwhile sees the old or the new
/// link, never none.
pub(crate) fn place_link(folder: &Path, name: &str, target: &Path) -> io::Result<()> {
    let link = folder.join(name);
    if fs::read_link(&link).is_ok_and(|current| current == target) {
        return Ok(());
    }
    let fresh = fresh_name(folder, name);
    symlink(target, &fresh)?;
    fs::rename(&fresh, &link)
}

/// Writes `folder/name`, readable by other users, unless it has this content already. A program
/// that starts meanwhile sees the old or the new file, whole.
pub(crate) fn place(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
    let path = folder.join(name);
    if !fs::read(&path).is_ok_and(|old| old == content.as_ref()) {
        let fresh = fresh_name(folder, name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&fresh)?;
        file.write_all(content.as_ref())
            .and_then(|()| fs::rename(&fresh, &path))
            .inspect_err(|_| _ = fs::remove_file(&fresh))?;
    }
    Ok(path)
}

/// Returns the name of a new file, to be renamed. Removes a file that an earlier process with this
/// id left.
fn fresh_name(folder: &Path, name: &str) -> PathBuf {
    let fresh = folder.join(format!(".{name}.{}", process::id()));
    _ = fs::remove_file(&fresh);
    fresh
}

/// Returns the 64-bit FNV-1a hash, for names of folders. The standard hasher may differ between
/// processes.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|cause| format!("cannot read {}: {cause}", path.display()))
}

pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|cause| format!("cannot read {}: {cause}", path.display()))
}

/// Writes a file that only this user can read.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), String> {
    private_file::write(path, content.as_ref()).map_err(|cause| format!("cannot write {}: {cause}", path.display()))
}

pub(crate) fn create_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|cause| format!("cannot create the folder {}: {cause}", path.display()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::ops::Deref;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// A folder for one test, removed at its end.
    pub(crate) struct Scratch(PathBuf);

    impl Scratch {
        pub(crate) fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("roxe-cli-{}-{name}", process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path.canonicalize().unwrap())
        }

        /// Writes a file with this mode.
        pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
            let path = self.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Deref for Scratch {
        type Target = Path;

        fn deref(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn wrong_link_is_replaced_and_right_one_kept() {
        let folder = Scratch::new("links");
        symlink("/nowhere", folder.join("libibverbs.so.1")).unwrap();
        place_link(&folder, "libibverbs.so.1", Path::new("/somewhere")).unwrap();
        place_link(&folder, "libibverbs.so.1", Path::new("/somewhere")).unwrap();
        assert_eq!(fs::read_link(folder.join("libibverbs.so.1")).unwrap(), Path::new("/somewhere"));
        assert_eq!(fs::read_dir(&*folder).unwrap().count(), 1, "a temporary link is left");
    }

    #[test]
    fn concurrent_private_folders_succeed() {
        let scratch = Scratch::new("race");
        let folder = scratch.join("new");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| private_folder(&folder).unwrap());
            }
        });
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn world_writable_folder_is_untrusted() {
        let folder = Scratch::new("open");
        fs::set_permissions(&*folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(private_folder(&folder), Err(FolderError::Untrusted { .. })));
    }
}
