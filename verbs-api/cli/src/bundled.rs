//! The shared objects that this program carries, for where none lie beside it (`cargo install`):
//! unpacked to a folder that only this user can write, one for each version and content. Also where
//! such folders are.
//!
//! What is there is compared with what this program carries, byte by byte, before it is used, and
//! replaced by renaming if it differs. Touches the file system.

use crate::private_dir::{FolderError, base_folder, place};
use nix::sys::statvfs::{FsFlags, statvfs};
use roxe_base::private_dir::{self, Unfit};
use roxe_bundle::shared_object;
use std::env::var_os;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// The library, as Cargo names it.
pub(crate) const LIBRARY: &str = "libroxe.so";
/// The socket shim, which lies beside it, under the name that it has in rdma-core too.
pub(crate) const SHIM: &str = "librspreload.so";

const OBJECTS: [(&str, &[u8]); 2] =
    [(LIBRARY, shared_object!("libroxe.so")), (SHIM, shared_object!("librspreload.so"))];

/// Why one folder does not do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(transparent)]
    Base(FolderError),
    #[error("{}: {why}", path.display())]
    Folder { path: PathBuf, why: Unfit },
    #[error("{}: {cause}", path.display())]
    File { path: PathBuf, cause: io::Error },
    #[error("{}: nothing may be run from there (it is mounted noexec)", .0.display())]
    NoExec(PathBuf),
}

/// The library, ready to be loaded, with the shim beside it. The error names each folder that was
/// tried, and why it did not do.
pub(crate) fn unpack() -> Result<PathBuf, String> {
    Ok(folder(&folder_name(&OBJECTS), |folder| place_all(folder, &OBJECTS))?.join(LIBRARY))
}

/// The folder `name` for libraries, filled by `fill`: in the cache of this user, else in the folder
/// where processes find each other. The error names each that was tried, and why it did not do.
pub(crate) fn folder(name: &str, fill: impl Fn(&Path) -> Result<(), Refusal>) -> Result<PathBuf, String> {
    let within = |base: &Path| {
        let path = base.join(name);
        let made = private_dir::make_all(&path).map_err(|why| Refusal::Folder { path, why })?;
        fill(&made.path).map(|()| made.path)
    };
    let cache = cache_home(var_os("XDG_CACHE_HOME"), var_os("HOME"));
    let in_cache = cache.ok_or_else(|| "neither XDG_CACHE_HOME nor HOME is set".to_owned());
    let in_cache = in_cache.and_then(|cache| within(&cache.join("roxe")).map_err(|refusal| refusal.to_string()));
    in_cache.or_else(|first| {
        let second = base_folder().map_err(Refusal::Base).and_then(|base| within(&base));
        second.map_err(|second| format!("{first}\n  {second}"))
    })
}

/// Returns true if the libraries in `folder` were unpacked by this program.
pub(crate) fn is_unpacked(folder: &Path) -> bool {
    folder.ends_with(folder_name(&OBJECTS))
}

/// The folder for what can be made anew (XDG Base Directory Specification).
fn cache_home(named: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    named.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".cache")))
}

fn folder_name(objects: &[(&str, &[u8])]) -> String {
    format!("lib-{}-{:016x}", env!("CARGO_PKG_VERSION"), content_hash(objects))
}

fn place_all(folder: &Path, objects: &[(&str, &[u8])]) -> Result<(), Refusal> {
    if statvfs(folder).is_ok_and(|system| system.flags().contains(FsFlags::ST_NOEXEC)) {
        return Err(Refusal::NoExec(folder.into()));
    }
    objects.iter().try_for_each(|(name, bytes)| {
        place(folder, name, bytes).map(drop).map_err(|cause| Refusal::File { path: folder.join(name), cause })
    })
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
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    const SOME: [(&str, &[u8]); 2] = [("libroxe.so", b"library"), ("librspreload.so", b"shim")];

    #[test]
    fn this_program_carries_both_libraries() {
        for (name, bytes) in OBJECTS {
            assert!(bytes.starts_with(b"\x7fELF") && bytes.len() > 100_000, "{name}: {} bytes", bytes.len());
        }
    }

    #[test]
    fn changed_libraries_are_replaced_and_right_ones_kept() {
        let folder = std::env::temp_dir().join(format!("roxe-cli-bundled-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        place_all(&folder, &SOME).unwrap();
        let library = folder.join(LIBRARY);
        let inode = fs::metadata(&library).unwrap().ino();
        place_all(&folder, &SOME).unwrap();
        assert_eq!(fs::metadata(&library).unwrap().ino(), inode);
        fs::write(&library, b"planted").unwrap();
        place_all(&folder, &SOME).unwrap();
        assert_eq!(fs::read(&library).unwrap(), b"library");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no temporary file is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn other_contents_have_another_folder() {
        let other: [(&str, &[u8]); 2] = [("libroxe.so", b"libraru"), ("librspreload.so", b"shim")];
        assert_ne!(folder_name(&SOME), folder_name(&other));
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
