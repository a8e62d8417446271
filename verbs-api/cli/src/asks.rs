//! How the file of a program comes to libibverbs, if at all: by the libraries that it needs, and
//! those that these need, or by naming it for `dlopen`. So that nothing is said of programs that
//! have nothing to do with verbs.
//!
//! Reads files and touches nothing.

use crate::program;
use crate::program::Elf;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What the loader keeps of its folders (`man ldconfig`).
pub(crate) const CACHE: &str = "/etc/ld.so.cache";
/// Where it looks without.
pub(crate) const FOLDERS: [&str; 5] = ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"];
/// The beginnings of the names of libraries that are, or need, libibverbs.
const VERBS: [&str; 2] = ["libibverbs", "librdmacm"];
/// What stands in a file that opens one of them, or that has libibverbs in it.
const NAME: &[u8] = b"libibverbs";
/// How the messages begin that only the code of rdma-core's libibverbs has.
const MESSAGE: &[u8] = b"libibverbs: ";
/// Longer files are not searched for it.
const SEARCHED: u64 = 256 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// Its loader loads libibverbs before it runs.
    Links,
    /// It may open it later, or has it in itself.
    Names,
}

/// How `program` comes to libibverbs; `None` if it does not.
pub(crate) fn of(program: &Path) -> Option<Asks> {
    let elf = Elf::open(program)?;
    if links(program, &elf, &VERBS) { Some(Asks::Links) } else { has(program, NAME).then_some(Asks::Names) }
}

/// True if one of the libraries with these beginnings of names is loaded with `program`.
pub(crate) fn needs(program: &Path, names: &[&str]) -> bool {
    Elf::open(program).is_some_and(|elf| links(program, &elf, names))
}

/// Whether one of `names` is among the libraries that are loaded with `program`.
fn links(program: &Path, elf: &Elf, names: &[&str]) -> bool {
    let cache = std::fs::read(CACHE).unwrap_or_default();
    let mut folders = program::own_folders(program);
    let mut seen = BTreeSet::new();
    let mut open: Vec<String> = elf.needed();
    while let Some(name) = open.pop() {
        if names.iter().any(|begin| name.starts_with(begin)) {
            return true;
        }
        if let Some(path) = find(&name, &folders, &cache).filter(|_| seen.insert(name)) {
            open.extend(Elf::open(&path).map(|elf| elf.needed()).unwrap_or_default());
            folders.extend(program::own_folders(&path));
        }
    }
    false
}

/// The file of a library.
fn find(name: &str, folders: &[PathBuf], cache: &[u8]) -> Option<PathBuf> {
    let system = FOLDERS.iter().map(Path::new);
    let inside = |folder: &Path| Some(folder.join(name)).filter(|path| path.is_file());
    let own = folders.iter().find_map(|folder| inside(folder));
    own.or_else(|| cached(cache).find(|path| path.ends_with(name))).or_else(|| system.into_iter().find_map(inside))
}

/// The paths in the loader's cache, in which strings end with zeros.
pub(crate) fn cached(cache: &[u8]) -> impl Iterator<Item = PathBuf> {
    let paths = cache.split(|byte| *byte == 0).filter(|text| text.starts_with(b"/"));
    paths.map(|text| PathBuf::from(OsStr::from_bytes(text)))
}

/// True if rdma-core's libibverbs is linked into this file.
pub(crate) fn has_verbs_inside(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.len() <= SEARCHED) && has(file, MESSAGE)
}

/// True if this text stands anywhere in a file.
fn has(file: &Path, text: &[u8]) -> bool {
    let Ok(mut file) = File::open(file) else { return false };
    let (mut bytes, mut kept) = (vec![0; 1 << 16], 0);
    while let Some(got) = file.read(&mut bytes[kept..]).ok().filter(|got| *got > 0) {
        let len = kept + got;
        let first = bytes[..len].iter().enumerate().filter(|(_, byte)| **byte == text[0]);
        if first.into_iter().any(|(at, _)| bytes[at..len].starts_with(text)) {
            return true;
        }
        // A name may lie across the end of what was read.
        kept = len.min(text.len() - 1);
        bytes.copy_within(len - kept..len, 0);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_wherever_it_lies_in_the_file() {
        let path = std::env::temp_dir().join(format!("roxe-asks-{}", std::process::id()));
        for at in [0, 100, 65_530, 65_536, 131_070] {
            let mut text = vec![b'l'; at];
            std::fs::write(&path, &text).unwrap();
            assert!(!has(&path, NAME), "{at}");
            text.extend(NAME);
            std::fs::write(&path, &text).unwrap();
            assert!(has(&path, NAME), "{at}");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn programs_without_verbs_ask_for_nothing() {
        assert_eq!(of(Path::new("/bin/sh")), None);
        assert_eq!(of(Path::new("/etc/passwd")), None);
    }
}
