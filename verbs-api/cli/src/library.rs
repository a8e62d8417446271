//! Where `libroxe.so` is, and the folder in which the program's loader finds it under the names of
//! the libraries that it stands for.
//!
//! Touches the file system and the environment.

use crate::bundled::{self, LIBRARY, Refusal, SHIM};
use crate::private_dir::{FolderError, fnv1a, place_link, private_folder};
use roxe_base::private_dir;
use roxe_provider::config::variable;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The names that programs were linked with.
pub(crate) const LINKS: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// Names by which programs load the libraries at run time.
pub(crate) const BARE_LINKS: [&str; 2] = ["libibverbs.so", "librdmacm.so"];

/// Why there is no library. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LibraryError {
    #[error(
        "{LIBRARY} cannot be unpacked:\n  {0}\n  Set XDG_CACHE_HOME to a folder that only you can write, or say where \
         the library is with ROXE_LIB=/path/to/{LIBRARY}."
    )]
    Packed(String),
    #[error(
        "ROXE_LIB names {}, which cannot be used: {cause}.\n  Set it to the full path of {LIBRARY}, or unset it.",
        path.display()
    )]
    Bad { path: PathBuf, cause: io::Error },
}

/// The library, with all links resolved: the one that ROXE_LIB names, else one beside this
/// program, as it is built or installed, else the one in this program.
pub(crate) fn find() -> Result<PathBuf, LibraryError> {
    if let Some(path) = variable("ROXE_LIB").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(|cause| LibraryError::Bad { path, cause });
    }
    let places = own_program().map(|exe| candidates(&exe)).unwrap_or_default();
    // Nobody else may have put it there, as in /tmp. Without it there is still the one in this
    // program.
    let beside = places.iter().find_map(|path| private_dir::check(path).ok());
    beside.map_or_else(unpacked, |library| Ok(library.path))
}

/// The socket shim: the one beside `library`, else the one in this program.
pub(crate) fn shim(library: &Path) -> Result<PathBuf, LibraryError> {
    let beside = private_dir::check(&library.with_file_name(SHIM));
    beside.map_or_else(|_| Ok(unpacked()?.with_file_name(SHIM)), |shim| Ok(shim.path))
}

fn unpacked() -> Result<PathBuf, LibraryError> {
    bundled::unpack().map_err(LibraryError::Packed)
}

/// This very program: as the kernel says it, or, where there is no /proc, as it was called.
pub(crate) fn own_program() -> Option<PathBuf> {
    let called = || found_as(Path::new(&std::env::args_os().next()?), std::env::var_os("PATH"));
    std::env::current_exe().ok().or_else(called)
}

/// The file that is started by the name `called`: that name if it has a folder, else in the first
/// folder of `path` that has it.
fn found_as(called: &Path, path: Option<OsString>) -> Option<PathBuf> {
    if called.components().count() > 1 {
        return called.canonicalize().ok();
    }
    std::env::split_paths(&path?).find_map(|folder| folder.join(called).canonicalize().ok())
}

/// Where the library may be when the program is `exe`: in `deps`, where Cargo always leaves the
/// newest; beside the program, where it puts another link when asked for the library itself; in
/// `../lib/roxe` or `../lib`, when installed.
fn candidates(exe: &Path) -> Vec<PathBuf> {
    let Some(folder) = exe.parent() else { return Vec::new() };
    ["deps", "", "../lib/roxe", "../lib"].iter().map(|place| folder.join(place).join(LIBRARY)).collect()
}

/// The folder with the links to `library`, made if need be: where the library was unpacked, else
/// one per library file, so that two builds do not take each other's links away.
///
/// Any number of starts may do this at once: every step is either atomic or harmless when another
/// process was faster.
pub(crate) fn link_folder(library: &Path) -> Result<PathBuf, FolderError> {
    let link = |folder: &Path| {
        let mut names = LINKS.into_iter().chain(BARE_LINKS);
        let failed = |cause| Refusal::File { path: folder.into(), cause };
        names.try_for_each(|name| place_link(folder, name, library)).map_err(failed)
    };
    let unpacked = library.parent().filter(|folder| bundled::is_unpacked(folder));
    if let Some(folder) = unpacked.and_then(|folder| private_folder(folder).ok())
        && link(&folder).is_ok()
    {
        return Ok(folder);
    }
    let name = format!("lib-{:016x}", fnv1a(library.as_os_str().as_bytes()));
    bundled::folder(&name, link).map_err(FolderError::Links)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn library_is_looked_for_beside_the_program_then_in_lib() {
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
    fn without_proc_the_program_is_found_as_it_was_called() {
        let folder = std::env::temp_dir().join(format!("roxe-cli-library-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let program = folder.join("roxe");
        fs::write(&program, "").unwrap();
        assert_eq!(found_as(&program, None), Some(program.clone()));
        let path = std::env::join_paths([Path::new("/nowhere"), &folder]).unwrap();
        assert_eq!(found_as(Path::new("roxe"), Some(path)), Some(program));
        assert_eq!(found_as(Path::new("roxe"), None), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
