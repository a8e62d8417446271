//! Binds roxe's library over the system's rdma-core and over copies in the program's folders, and
//! this program over the `rdma` of iproute2, in this mount namespace. It serves programs that lose
//! or change the environment, name a full path, or have a copy under another name.

use super::sysfs::shows_other_cards;
use crate::asks::{self, CACHE, FOLDERS};
use crate::library::{RDMA, SYSTEM_COMMANDS, is_own_program, own_program};
use crate::program::{self, Elf};
use nix::mount::{MsFlags, mount};
use std::collections::{BTreeMap, BTreeSet};
use std::env::{split_paths, var_os};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Binds `library` over every file of `found`. Fails with the first file that failed, and the
/// reason.
pub(super) fn replace(library: &Path, found: &[PathBuf]) -> Result<(), (PathBuf, io::Error)> {
    let bind = |path: &PathBuf| {
        let mounted = mount(Some(library), path, None::<&str>, MsFlags::MS_BIND, None::<&str>);
        mounted.map_err(|cause| (path.clone(), cause.into()))
    };
    // The other files are bound even if one fails.
    found.iter().map(bind).fold(Ok(()), Result::and)
}

/// Binds this program over the command `rdma`, unless the kernel has devices. If it fails, programs
/// use the command that PATH finds.
pub(super) fn replace_rdma() {
    let Some(own) = own_program().filter(|_| !shows_other_cards()) else { return };
    let files = SYSTEM_COMMANDS.iter().filter_map(|folder| Path::new(folder).join(RDMA).canonicalize().ok());
    for command in files.filter(|file| !is_own_program(file)).collect::<BTreeSet<_>>() {
        _ = mount(Some(&own), &command, None::<&str>, MsFlags::MS_BIND, None::<&str>);
    }
}

/// Returns the files, without links, that `program` may load as libibverbs or librdmacm with this
/// environment and that `library` can replace.
pub(super) fn find(library: &Path, program: Option<&Path>) -> Vec<PathBuf> {
    let Some(kind) = Elf::open(library).map(|elf| elf.kind()) else { return Vec::new() };
    let folders = FOLDERS.iter().map(PathBuf::from).chain(program.map(program::run_path).unwrap_or_default());
    let folders = folders.chain(library_folders(program)).chain(wheels(&var_os("PYTHONPATH").unwrap_or_default()));
    let inside = folders.flat_map(|folder| entries(&folder));
    let cache = fs::read(CACHE).unwrap_or_default();
    let mut files = BTreeMap::new();
    for path in asks::cached_paths(&cache).chain(inside).filter(|path| is_name(path.file_name())) {
        let Ok(path) = path.canonicalize() else { continue };
        let Ok(meta) = path.metadata() else { continue };
        files.entry((meta.dev(), meta.ino())).or_insert(path);
    }
    if let Ok(meta) = library.metadata() {
        // An outer view may have bound the library already.
        files.remove(&(meta.dev(), meta.ino()));
    }
    files.into_values().filter(|path| Elf::open(path).is_some_and(|elf| elf.kind() == kind)).collect()
}

/// Returns true for names such as `libibverbs.so.1` and `librdmacm.so`, also with the hash of
/// Python's wheels: `libibverbs-1a2b3c4d.so.1.14.50.0`.
fn is_name(name: Option<&OsStr>) -> bool {
    let rest = name
        .and_then(OsStr::to_str)
        .and_then(|name| name.strip_prefix("libibverbs").or_else(|| name.strip_prefix("librdmacm")));
    let Some((hash, version)) = rest.and_then(|rest| rest.split_once(".so")) else { return false };
    let is_hash = |hash: &str| !hash.is_empty() && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (hash.is_empty() || hash.strip_prefix('-').is_some_and(is_hash))
        && version.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit())
}

/// Returns folders of libraries in the Python or conda environments of `program` and of PATH.
fn library_folders(program: Option<&Path>) -> impl Iterator<Item = PathBuf> {
    let path = var_os("PATH").unwrap_or_default();
    let path_prefixes = split_paths(&path).filter_map(|bin| Some(bin.parent()?.to_owned()));
    let mut prefixes: Vec<PathBuf> =
        program.map(own_prefixes).unwrap_or_default().into_iter().chain(path_prefixes).collect();
    prefixes.sort();
    prefixes.dedup();
    prefixes.into_iter().flat_map(|prefix| library_folders_of(&prefix))
}

/// Returns the environments that a program belongs to, by its name, by its file without links, and
/// by VIRTUAL_ENV.
fn own_prefixes(program: &Path) -> Vec<PathBuf> {
    let prefix_of = |path: PathBuf| Some(path.parent()?.parent()?.to_owned());
    let environment = var_os("VIRTUAL_ENV").map(PathBuf::from);
    let named = std::path::absolute(program).ok();
    let prefixes = [named.and_then(prefix_of), program.canonicalize().ok().and_then(prefix_of), environment];
    prefixes.into_iter().flatten().filter(|prefix| prefix.is_absolute()).collect()
}

/// Returns a copy of libibverbs in a wheel of the program's environment.
pub(super) fn packaged(program: &Path) -> Option<PathBuf> {
    let of_environment = own_prefixes(program).into_iter().flat_map(|prefix| library_folders_of(&prefix));
    let folders = wheels(&var_os("PYTHONPATH").unwrap_or_default()).into_iter();
    let folders = folders.chain(of_environment.filter(|folder| is_bundle(folder)));
    folders.flat_map(|folder| entries(&folder)).find(|path| is_name(path.file_name()))
}

/// Returns the library folders of wheels on a search path of Python, such as PYTHONPATH.
fn wheels(path: &OsStr) -> Vec<PathBuf> {
    split_paths(path).flat_map(|packages| entries(&packages)).filter(|folder| is_bundle(folder)).collect()
}

/// Returns true for the library folder of a wheel: `nixl.libs` of `nixl`.
fn is_bundle(folder: &Path) -> bool {
    folder.extension().is_some_and(|end| end == "libs")
}

/// Returns `lib`, and the folders `lib/python3*/{site,dist}-packages/*.libs`.
fn library_folders_of(prefix: &Path) -> Vec<PathBuf> {
    let lib = prefix.join("lib");
    let starts =
        |path: &Path, begin: &str| path.file_name().is_some_and(|name| name.as_bytes().starts_with(begin.as_bytes()));
    let pythons = entries(&lib).into_iter().filter(|path| starts(path, "python3"));
    let packages = pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|folder| python.join(folder)));
    packages.flat_map(|folder| wheels(folder.as_os_str())).chain([lib.clone()]).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map(|list| list.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;

    #[test]
    fn library_names_are_recognized() {
        let is = |name: &str| is_name(Some(OsStr::new(name)));
        for name in ["libibverbs.so", "libibverbs.so.1", "librdmacm.so.1.3.44.0", "libibverbs-1a2b3c4d.so.1.14.50.0"] {
            assert!(is(name), "{name}");
        }
        for name in [
            "libibverbs-hfi1.so",
            "libibverbs.a",
            "libibverbs.so.1.bak",
            "libibverbs-.so.1",
            "libmlx5.so.1",
            "librdmacm",
        ] {
            assert!(!is(name), "{name}");
        }
    }

    #[test]
    fn loader_cache_lists_paths() {
        let cache = b"glibc-ld.so.cache1.1\x02\0\0libibverbs.so.1\0/lib/x/libibverbs.so.1\0/lib/x/libc.so.6\0";
        assert_eq!(asks::cached_paths(cache).next(), Some(PathBuf::from("/lib/x/libibverbs.so.1")));
    }

    #[test]
    fn wheels_on_pythonpath_are_found() {
        let packages = Scratch::new("packages");
        fs::create_dir_all(packages.join("nixl.libs")).unwrap();
        fs::create_dir_all(packages.join("nixl")).unwrap();
        let path = std::env::join_paths([Path::new("/nonexistent"), &*packages]).unwrap();
        assert_eq!(wheels(&path), [packages.join("nixl.libs")]);
    }

    #[test]
    fn relative_program_has_the_environment_of_its_folder() {
        let here = std::env::current_dir().unwrap();
        assert!(own_prefixes(Path::new("venv/bin/python3")).contains(&here.join("venv")));
        assert!(own_prefixes(Path::new("bin/python3")).contains(&here));
    }

    #[test]
    fn wheels_of_an_environment_are_found() {
        let prefix = Scratch::new("prefix");
        let libs = prefix.join("lib/python3.11/site-packages/nixl.libs");
        fs::create_dir_all(&libs).unwrap();
        fs::create_dir_all(prefix.join("bin")).unwrap();
        // The file of this test stands in for a library of this machine.
        let own = std::env::current_exe().unwrap();
        let copy = libs.join("libibverbs-1a2b3c4d.so.1.14.50.0");
        fs::copy(&own, &copy).unwrap();
        fs::write(libs.join("librdmacm-1a2b3c4d.so.1"), "no library").unwrap();
        let found = find(&own, Some(&prefix.join("bin/python3")));
        assert!(found.contains(&copy), "{found:?}");
        assert!(!found.iter().any(|path| path.ends_with("librdmacm-1a2b3c4d.so.1")), "{found:?}");
    }
}
