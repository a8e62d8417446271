//! Finds `libroxe.so`, and creates the folder in which the dynamic loader finds it under the names
//! of libibverbs and librdmacm.
//!
//! The program contains both shared objects and unpacks them if none lie next to it (`cargo
//! install`): to a folder that only this user can write, one for each version and content. Unpacked
//! files are compared byte by byte before use, and replaced by renaming if they differ.

use crate::files::{FolderError, base_folder, fnv1a, place, place_link, private_folder};
use nix::sys::statvfs::{FsFlags, statvfs};
use roxe_base::private_dir;
use roxe_bundle::shared_object;
use roxe_provider::config::variable;
use std::env::var_os;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names that programs are linked with.
pub(crate) const LINKS: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// Names without a version, which some programs pass to `dlopen`.
pub(crate) const BARE_LINKS: [&str; 2] = ["libibverbs.so", "librdmacm.so"];

/// A reason why no library can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LibraryError {
    #[error(
        "cannot unpack {LIBRARY}: {0}; set XDG_CACHE_HOME to a folder that only you can write, or ROXE_LIB to the full \
         path of {LIBRARY}"
    )]
    Unpack(String),
    #[error("cannot use ROXE_LIB: {}: {cause}; set it to the full path of {LIBRARY}, or unset it", path.display())]
    Override { path: PathBuf, cause: io::Error },
}

/// Returns the path of the library, with symbolic links resolved: the one in ROXE_LIB, else one
/// next to this program as built or installed, else the one that this program contains, unpacked.
pub(crate) fn find() -> Result<PathBuf, LibraryError> {
    if let Some(path) = variable("ROXE_LIB").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(|cause| LibraryError::Override { path, cause });
    }
    let places = own_program().map(|exe| candidates(&exe)).unwrap_or_default();
    // Another user may have put a library next to the program, for example in /tmp.
    let beside = places.iter().find_map(|path| private_dir::check(path).ok());
    beside.map_or_else(unpacked, |library| Ok(library.path))
}

/// Returns the path of the socket shim: the one next to `library`, else the one that this program
/// contains, unpacked.
pub(crate) fn shim(library: &Path) -> Result<PathBuf, LibraryError> {
    let beside = private_dir::check(&library.with_file_name(SHIM));
    beside.map_or_else(|_| Ok(unpacked()?.with_file_name(SHIM)), |shim| Ok(shim.path))
}

/// Unpacks the library and the shim. Returns the path of the library.
fn unpacked() -> Result<PathBuf, LibraryError> {
    let found = folder(&folder_name(&OBJECTS), |folder| unpack_into(folder, &OBJECTS));
    Ok(found.map_err(LibraryError::Unpack)?.join(LIBRARY))
}

/// Returns the file of this program: from /proc, else from its first argument.
pub(crate) fn own_program() -> Option<PathBuf> {
    let called = || found_as(Path::new(&std::env::args_os().next()?), var_os("PATH"));
    std::env::current_exe().ok().or_else(called)
}

pub(crate) fn is_own_program(file: &Path) -> bool {
    let identity = |file: &Path| file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    own_program().is_some_and(|own| identity(&own).is_some() && identity(&own) == identity(file))
}

/// Returns the file that a shell starts for the name `called`.
fn found_as(called: &Path, path: Option<OsString>) -> Option<PathBuf> {
    if called.components().count() > 1 {
        return called.canonicalize().ok();
    }
    std::env::split_paths(&path?).find_map(|folder| folder.join(called).canonicalize().ok())
}

/// Returns the paths where the library of the program `exe` may lie. `deps` is first: Cargo updates
/// the copy next to the program only if the library itself is built.
fn candidates(exe: &Path) -> Vec<PathBuf> {
    let Some(folder) = exe.parent() else { return Vec::new() };
    ["deps", "", "../lib/roxe", "../lib"].iter().map(|place| folder.join(place).join(LIBRARY)).collect()
}

/// Returns the folder with the links to `library`, creating it if necessary: the one it was
/// unpacked to, else one per library file, so that builds do not overwrite each other's links.
pub(crate) fn link_folder(library: &Path) -> Result<PathBuf, FolderError> {
    let link = |folder: &Path| {
        let mut names = LINKS.into_iter().chain(BARE_LINKS);
        let failed = |cause| format!("{}: {cause}", folder.display());
        names.try_for_each(|name| place_link(folder, name, library)).map_err(failed)
    };
    let unpacked = library.parent().filter(|folder| folder.ends_with(folder_name(&OBJECTS)));
    if let Some(folder) = unpacked.and_then(|folder| private_folder(folder).ok())
        && link(&folder).is_ok()
    {
        return Ok(folder);
    }
    let name = format!("lib-{:016x}", fnv1a(library.as_os_str().as_bytes()));
    folder(&name, link).map_err(FolderError::Links)
}

/// Returns the folder with the commands that this program stands in for, creating it if necessary;
/// `None` if this program's file is unknown.
pub(crate) fn commands(links: &Path) -> Result<Option<PathBuf>, FolderError> {
    let Some(own) = own_program() else { return Ok(None) };
    let folder = private_folder(&links.join("bin"))?;
    place_link(&folder, RDMA, &own).map_err(|cause| FolderError::Unusable { path: folder.clone(), cause })?;
    Ok(Some(folder))
}

/// The command of iproute2 that this program stands in for.
pub(crate) const RDMA: &str = "rdma";
/// Folders in which distributions install commands.
pub(crate) const SYSTEM_COMMANDS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

pub(crate) const LIBRARY: &str = "libroxe.so";
/// The socket shim next to the library, under its name in rdma-core.
pub(crate) const SHIM: &str = "librspreload.so";

const OBJECTS: [(&str, &[u8]); 2] =
    [(LIBRARY, shared_object!("libroxe.so")), (SHIM, shared_object!("librspreload.so"))];

/// Creates the folder `name` for libraries and calls `fill` with it: in the cache of this user,
/// else in the runtime folder. The error names each folder that was tried, with the reason.
fn folder(name: &str, fill: impl Fn(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let within = |base: &Path| {
        let path = base.join(name);
        let made = private_dir::make_all(&path).map_err(|why| format!("{}: {why}", path.display()))?;
        fill(&made.path).map(|()| made.path)
    };
    let cache = cache_home(var_os("XDG_CACHE_HOME"), var_os("HOME"));
    let in_cache = cache.ok_or_else(|| "neither XDG_CACHE_HOME nor HOME is set".to_owned());
    let in_cache = in_cache.and_then(|cache| within(&cache.join("roxe")));
    in_cache.or_else(|first| {
        let second = base_folder().map_err(|error| error.to_string()).and_then(|base| within(&base));
        second.map_err(|second| format!("{first}, and {second}"))
    })
}

/// Returns the cache folder (XDG Base Directory Specification).
fn cache_home(named: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    named.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".cache")))
}

/// Returns a name with the version and a hash of the content. The hash takes eight bytes at a time:
/// FNV-1a would take longer than the rest of the start.
fn folder_name(objects: &[(&str, &[u8])]) -> String {
    let words = objects.iter().flat_map(|(_, bytes)| bytes.chunks(8));
    let hash = words.fold(0, |hash: u64, bytes| {
        let word = bytes.iter().fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
        (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    format!("lib-{}-{hash:016x}", env!("CARGO_PKG_VERSION"))
}

fn unpack_into(folder: &Path, objects: &[(&str, &[u8])]) -> Result<(), String> {
    if statvfs(folder).is_ok_and(|system| system.flags().contains(FsFlags::ST_NOEXEC)) {
        return Err(format!("{}: it is mounted noexec", folder.display()));
    }
    objects.iter().try_for_each(|(name, bytes)| {
        place(folder, name, bytes).map(drop).map_err(|cause| format!("{}: {cause}", folder.join(name).display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn library_is_searched_beside_the_program_then_in_lib() {
        let places = candidates(Path::new("/opt/bin/roxe"));
        let expected = [
            "/opt/bin/deps/libroxe.so",
            "/opt/bin/libroxe.so",
            "/opt/bin/../lib/roxe/libroxe.so",
            "/opt/bin/../lib/libroxe.so",
        ];
        assert_eq!(places, expected.map(PathBuf::from));
    }

    #[test]
    fn own_program_is_found_by_its_first_argument() {
        let folder = Scratch::new("own-program");
        let program = folder.file("roxe", "", 0o700);
        assert_eq!(found_as(&program, None), Some(program.clone()));
        let path = std::env::join_paths([Path::new("/nowhere"), &*folder]).unwrap();
        assert_eq!(found_as(Path::new("roxe"), Some(path)), Some(program));
        assert_eq!(found_as(Path::new("roxe"), None), None);
    }

    const TEST_OBJECTS: [(&str, &[u8]); 2] = [("libroxe.so", b"library"), ("librspreload.so", b"shim")];

    #[test]
    fn program_contains_both_libraries() {
        for (name, bytes) in OBJECTS {
            assert!(bytes.starts_with(b"\x7fELF") && bytes.len() > 100_000, "{name}: {} bytes", bytes.len());
        }
    }

    #[test]
    fn changed_library_is_replaced_unchanged_one_kept() {
        let folder = Scratch::new("bundled");
        unpack_into(&folder, &TEST_OBJECTS).unwrap();
        let library = folder.join(LIBRARY);
        let inode = fs::metadata(&library).unwrap().ino();
        unpack_into(&folder, &TEST_OBJECTS).unwrap();
        assert_eq!(fs::metadata(&library).unwrap().ino(), inode);
        fs::write(&library, b"planted").unwrap();
        unpack_into(&folder, &TEST_OBJECTS).unwrap();
        assert_eq!(fs::read(&library).unwrap(), b"library");
        assert_eq!(fs::read_dir(&*folder).unwrap().count(), 2, "a temporary file is left");
    }

    #[test]
    fn other_content_has_another_folder() {
        let other: [(&str, &[u8]); 2] = [("libroxe.so", b"libraru"), ("librspreload.so", b"shim")];
        assert_ne!(folder_name(&TEST_OBJECTS), folder_name(&other));
    }

    #[test]
    fn cache_folder_follows_xdg() {
        let home = || Some(OsString::from("/home/a"));
        assert_eq!(cache_home(Some("/c".into()), home()), Some("/c".into()));
        assert_eq!(cache_home(Some("relative".into()), home()), Some("/home/a/.cache".into()));
        assert_eq!(cache_home(None, home()), Some("/home/a/.cache".into()));
        assert_eq!(cache_home(None, Some("".into())), None);
    }
}
