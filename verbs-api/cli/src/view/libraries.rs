//! The libraries of others that roxe's stands for in a view: in place of the files of the system's
//! rdma-core, and of copies that programs bring along. So whoever loses or overwrites the
//! environment, names a full path, or has a copy under a name of its own gets roxe's all the same.
//!
//! Looks at the loader's cache and at folders of the program, and mounts over files, in this mount
//! namespace.

use crate::asks::{self, CACHE, FOLDERS};
use crate::program;
use crate::program::Elf;
use nix::mount::{MsFlags, mount};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Puts `library` in place of every file of `found`; of those that could not be replaced, the first
/// with the reason.
pub(super) fn replace(library: &Path, found: &[PathBuf]) -> Result<(), (PathBuf, io::Error)> {
    let bind = |path: &PathBuf| {
        let mounted = mount(Some(library), path, None::<&str>, MsFlags::MS_BIND, None::<&str>);
        mounted.map_err(|cause| (path.clone(), cause.into()))
    };
    // All that can be had.
    found.iter().map(bind).fold(Ok(()), Result::and)
}

/// The files that programs may load for `libibverbs` and `librdmacm` when `program` is started with
/// this environment, and that `library` can stand for; links resolved.
pub(super) fn find(library: &Path, program: Option<&Path>) -> Vec<PathBuf> {
    let Some(kind) = Elf::open(library).map(|elf| elf.kind()) else { return Vec::new() };
    let folders = FOLDERS.iter().map(PathBuf::from).chain(of_program(program)).chain(of_prefixes(program));
    let folders = folders.chain(of_search_path(&search_path()));
    let inside = folders.flat_map(|folder| entries(&folder)).filter(|path| is_name(path.file_name()));
    let mut files = BTreeMap::new();
    for path in cached(&fs::read(CACHE).unwrap_or_default()).chain(inside) {
        let Ok(path) = path.canonicalize() else { continue };
        let Ok(meta) = path.metadata() else { continue };
        files.entry((meta.dev(), meta.ino())).or_insert(path);
    }
    if let Ok(meta) = library.metadata() {
        // Of the view around this one, or already in its place.
        files.remove(&(meta.dev(), meta.ino()));
    }
    files.into_values().filter(|path| Elf::open(path).is_some_and(|elf| elf.kind() == kind)).collect()
}

/// Whether a file has the name of one of the libraries: `libibverbs.so.1`, `librdmacm.so`, or with
/// the hash that tools for Python's wheels put into it, `libibverbs-1a2b3c4d.so.1.14.50.0`.
fn is_name(name: Option<&OsStr>) -> bool {
    let rest = name
        .and_then(OsStr::to_str)
        .and_then(|name| name.strip_prefix("libibverbs").or_else(|| name.strip_prefix("librdmacm")));
    let Some((hash, version)) = rest.and_then(|rest| rest.split_once(".so")) else { return false };
    let is_hash = |hash: &str| !hash.is_empty() && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (hash.is_empty() || hash.strip_prefix('-').is_some_and(is_hash))
        && version.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit())
}

/// The paths of the libraries in the loader's cache.
fn cached(cache: &[u8]) -> impl Iterator<Item = PathBuf> {
    asks::cached(cache).filter(|path| is_name(path.file_name()))
}

/// Where the program itself has its libraries looked for.
fn of_program(program: Option<&Path>) -> impl Iterator<Item = PathBuf> {
    program.map(program::own_folders).unwrap_or_default().into_iter()
}

/// Folders of libraries in the environments of Python, conda and the like that are in use: those to
/// which `program` and PATH belong, and VIRTUAL_ENV.
fn of_prefixes(program: Option<&Path>) -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_path = std::env::split_paths(&path).filter_map(|bin| Some(bin.parent()?.to_owned()));
    let mut prefixes: Vec<PathBuf> = program.map(own_prefixes).unwrap_or_default().into_iter().chain(of_path).collect();
    prefixes.sort();
    prefixes.dedup();
    prefixes.into_iter().flat_map(|prefix| of_prefix(&prefix))
}

/// The environments that a program belongs to: by the name that it is called by, by that of its
/// file, and by VIRTUAL_ENV.
fn own_prefixes(program: &Path) -> Vec<PathBuf> {
    let of = |path: PathBuf| Some(path.parent()?.parent()?.to_owned());
    let environment = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let prefixes = [of(program.to_owned()), program.canonicalize().ok().and_then(of), environment];
    prefixes.into_iter().flatten().filter(|prefix| prefix.is_absolute()).collect()
}

/// A copy of libibverbs that a package of the program's environment brings along.
pub(super) fn packaged(program: &Path) -> Option<PathBuf> {
    let of_environment = own_prefixes(program).into_iter().flat_map(|prefix| of_prefix(&prefix));
    let folders = of_search_path(&search_path()).into_iter().chain(of_environment.filter(|folder| is_bundle(folder)));
    folders.flat_map(|folder| entries(&folder)).find(|path| is_name(path.file_name()))
}

/// Where Python looks for packages first (`pip install --target`).
fn search_path() -> OsString {
    std::env::var_os("PYTHONPATH").unwrap_or_default()
}

/// The libraries of the packages in the folders of a search path.
fn of_search_path(path: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path).flat_map(|packages| bundles(&packages)).collect()
}

/// What the packages of a folder bring along: the libraries of `nixl` are in `nixl.libs`.
fn bundles(packages: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    entries(packages).into_iter().filter(|folder| is_bundle(folder))
}

fn is_bundle(folder: &Path) -> bool {
    folder.extension().is_some_and(|end| end == "libs")
}

/// `lib`, and the folders `lib/python3*/{site,dist}-packages/*.libs`.
fn of_prefix(prefix: &Path) -> Vec<PathBuf> {
    let lib = prefix.join("lib");
    let starts =
        |path: &Path, begin: &str| path.file_name().is_some_and(|name| name.as_bytes().starts_with(begin.as_bytes()));
    let pythons = entries(&lib).into_iter().filter(|path| starts(path, "python3"));
    let packages = pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|folder| python.join(folder)));
    packages.flat_map(|folder| bundles(&folder)).chain([lib.clone()]).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map(|list| list.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_libraries_are_told_from_those_of_others() {
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
    fn the_cache_of_the_loader_names_files() {
        let cache = b"glibc-ld.so.cache1.1\x02\0\0libibverbs.so.1\0/lib/x/libibverbs.so.1\0/lib/x/libc.so.6\0";
        assert_eq!(cached(cache).collect::<Vec<_>>(), [PathBuf::from("/lib/x/libibverbs.so.1")]);
    }

    #[test]
    fn wheels_on_the_search_path_of_python_are_looked_into() {
        let packages = std::env::temp_dir().join(format!("roxe-view-packages-{}", std::process::id()));
        fs::create_dir_all(packages.join("nixl.libs")).unwrap();
        fs::create_dir_all(packages.join("nixl")).unwrap();
        let path = std::env::join_paths([Path::new("/nonexistent"), &packages]).unwrap();
        let found = of_search_path(&path);
        fs::remove_dir_all(&packages).unwrap();
        assert_eq!(found, [packages.join("nixl.libs")]);
    }

    #[test]
    fn wheels_of_an_environment_are_looked_into() {
        let prefix = std::env::temp_dir().join(format!("roxe-view-prefix-{}", std::process::id()));
        let libs = prefix.join("lib/python3.11/site-packages/nixl.libs");
        fs::create_dir_all(&libs).unwrap();
        fs::create_dir_all(prefix.join("bin")).unwrap();
        // This test is an ELF file of this machine, as a library would be.
        let own = std::env::current_exe().unwrap();
        let copy = libs.join("libibverbs-1a2b3c4d.so.1.14.50.0");
        fs::copy(&own, &copy).unwrap();
        fs::write(libs.join("librdmacm-1a2b3c4d.so.1"), "no library").unwrap();
        let found = find(&own, Some(&prefix.join("bin/python3")));
        fs::remove_dir_all(&prefix).unwrap();
        assert!(found.contains(&copy), "{found:?}");
        assert!(!found.iter().any(|path| path.ends_with("librdmacm-1a2b3c4d.so.1")), "{found:?}");
    }
}
