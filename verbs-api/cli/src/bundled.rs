//! The shared objects that this program carries, for where none lie beside it (`cargo install`):
//! unpacked to a folder that only this user can write, one for each version and content.
//!
//! What is there is compared with what this program carries, byte by byte, before it is used, and
//! replaced by renaming if it differs. Touches the file system.

use crate::private_dir::{FolderError, base_folder, place, private_folder};
use nix::sys::statvfs::{FsFlags, statvfs};
use roxe_bundle::shared_object;
use std::env::var_os;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The library, as Cargo names it.
pub(crate) const LIBRARY: &str = "libroxe.so";
/// The socket shim, which lies beside it, under the name that it has in rdma-core too.
pub(crate) const SHIM: &str = "librspreload.so";

const OBJECTS: [(&str, &[u8]); 2] =
    [(LIBRARY, shared_object!("libroxe.so")), (SHIM, shared_object!("librspreload.so"))];

/// Why one folder does not do.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("{}: {cause}", path.display())]
    File { path: PathBuf, cause: io::Error },
    #[error("{}: nothing may be run from there (it is mounted noexec)", .0.display())]
    NoExec(PathBuf),
}

/// The library, ready to be loaded, with the shim beside it. The error names each folder that was
/// tried, and why it did not do.
pub(crate) fn unpack() -> Result<PathBuf, String> {
    let cache = cache_home(var_os("XDG_CACHE_HOME"), var_os("HOME"));
    let in_cache = cache.ok_or_else(|| "neither XDG_CACHE_HOME nor HOME is set".to_owned()).and_then(|cache| {
        // Who may write there is looked at below.
        let made = fs::create_dir_all(&cache).map_err(|cause| Refusal::File { path: cache.clone(), cause });
        made.and_then(|()| Ok(private_folder(&cache.join("roxe"))?))
            .and_then(|base| unpack_to(&base, &OBJECTS))
            .map_err(|refusal| refusal.to_string())
    });
    in_cache.or_else(|first| {
        let second = base_folder().map_err(Refusal::from).and_then(|base| unpack_to(&base, &OBJECTS));
        second.map_err(|second| format!("{first}\n  {second}"))
    })
}

/// The folder for what can be made anew (XDG Base Directory Specification).
fn cache_home(named: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    named.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".cache")))
}

fn unpack_to(base: &Path, objects: &[(&str, &[u8])]) -> Result<PathBuf, Refusal> {
    let version = env!("CARGO_PKG_VERSION");
    let folder = private_folder(&base.join(format!("lib-{version}-{:016x}", content_hash(objects))))?;
    if statvfs(&folder).is_ok_and(|system| system.flags().contains(FsFlags::ST_NOEXEC)) {
        return Err(Refusal::NoExec(folder));
    }
    for (name, bytes) in objects {
        place(&folder, name, bytes).map_err(|cause| Refusal::File { path: folder.join(name), cause })?;
    }
    Ok(folder.join(LIBRARY))
}

/// A name for what `objects` hold. FNV-1a takes the bytes of a library one by one, which is longer
/// than all else of a start; here they are taken by eights.
fn content_hash(objects: &[(&str, &[u8])]) -> u64 {
    let words = objects.iter().flat_map(|(_, bytes)| bytes.chunks(8));
    words.fold(0, |hash: u64, bytes| {
        let word = bytes.iter().fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
        (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    const SOME: [(&str, &[u8]); 2] = [("libroxe.so", b"library"), ("librspreload.so", b"shim")];

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("roxe-cli-bundled-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn this_program_carries_both_libraries() {
        for (name, bytes) in OBJECTS {
            assert!(bytes.starts_with(b"\x7fELF") && bytes.len() > 100_000, "{name}: {} bytes", bytes.len());
        }
    }

    #[test]
    fn what_somebody_changed_is_replaced_and_what_is_right_is_kept() {
        let base = scratch("changed");
        let library = unpack_to(&base, &SOME).unwrap();
        let inode = fs::metadata(&library).unwrap().ino();
        assert_eq!(unpack_to(&base, &SOME).unwrap(), library);
        assert_eq!(fs::metadata(&library).unwrap().ino(), inode);
        fs::write(&library, b"planted").unwrap();
        unpack_to(&base, &SOME).unwrap();
        assert_eq!(fs::read(&library).unwrap(), b"library");
        let folder = library.parent().unwrap();
        assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 2, "no temporary file is left");
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_folder_that_others_may_write_is_not_used() {
        let base = scratch("open");
        let folder = unpack_to(&base, &SOME).unwrap().parent().unwrap().to_owned();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(unpack_to(&base, &SOME), Err(Refusal::Folder(FolderError::Untrusted { .. }))));
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn other_contents_have_another_folder() {
        let other: [(&str, &[u8]); 2] = [("libroxe.so", b"libraru"), ("librspreload.so", b"shim")];
        assert_ne!(content_hash(&SOME), content_hash(&other));
    }

    #[test]
    fn the_cache_is_where_the_base_directories_say() {
        let home = || Some(OsString::from("/home/a"));
        assert_eq!(cache_home(Some("/c".into()), home()), Some("/c".into()));
        assert_eq!(cache_home(Some("relative".into()), home()), Some("/home/a/.cache".into()));
        assert_eq!(cache_home(None, home()), Some("/home/a/.cache".into()));
        assert_eq!(cache_home(None, Some("".into())), None);
    }
}
