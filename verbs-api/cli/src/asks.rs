//! Determines from the file of a program if and how it loads libibverbs: as a linked library, or by
//! a name for `dlopen`. `roxe run` reports nothing about programs without verbs.

use crate::program::{self, Elf};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The loader's cache of library paths (`man ldconfig`).
pub(crate) const CACHE: &str = "/etc/ld.so.cache";
/// Folders that the loader searches for libraries missing from the cache.
pub(crate) const FOLDERS: [&str; 5] = ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"];
/// Name prefixes of libraries that are, or need, libibverbs.
const VERBS: [&str; 2] = ["libibverbs", "librdmacm"];
/// A text in every file that opens libibverbs with `dlopen` or has it linked in statically.
const VERBS_NAME: &[u8] = b"libibverbs";
/// Prefix of messages that only the code of rdma-core's libibverbs contains.
const VERBS_MESSAGE: &[u8] = b"libibverbs: ";
/// Maximum size of a file that is searched for [`VERBS_MESSAGE`], in bytes.
const MAX_SEARCHED: u64 = 256 << 20;

/// Functions of libibumad, libibmad, libibnetdisc and libosmvendor that open /dev/infiniband/umad.
/// ibstat links the same libraries, but only reads files.
const OPEN_UMAD: [&str; 4] = ["umad_open_port", "mad_rpc_open_port", "ibnd_discover_fabric", "osm_vendor_new"];
/// Name prefixes of the libraries that contain [`OPEN_UMAD`].
const UMAD_LIBRARIES: [&str; 4] = ["libibumad", "libibmad", "libibnetdisc", "libosmvendor"];
/// The program that scripts of infiniband-diags, such as ibhosts, start.
const DISCOVERY: &str = "ibnetdiscover";
/// Maximum size of a script that is searched for [`DISCOVERY`], in bytes.
const MAX_SCRIPT: u64 = 64 << 10;

/// The way in which a program gets libibverbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VerbsUse {
    /// The loader loads libibverbs with the program.
    Links,
    /// The program may open libibverbs later, or contain it.
    Names,
}

/// Returns the way in which `program` gets libibverbs; `None` if it uses none or is not an ELF
/// file.
pub(crate) fn verbs_use(program: &Path) -> Option<VerbsUse> {
    Elf::open(program)?;
    if needs(program, &VERBS) {
        Some(VerbsUse::Links)
    } else {
        contains(program, VERBS_NAME).then_some(VerbsUse::Names)
    }
}

/// Returns true for programs and scripts of infiniband-diags, opensm and others that send
/// management datagrams by umad.
pub(crate) fn sends_mads(program: &Path) -> bool {
    match Elf::open(program) {
        Some(elf) => {
            let links = |name: &String| UMAD_LIBRARIES.iter().any(|prefix| name.starts_with(prefix));
            elf.needed().iter().any(links) && OPEN_UMAD.iter().any(|name| contains(program, name.as_bytes()))
        }
        None => {
            program.metadata().is_ok_and(|meta| meta.len() <= MAX_SCRIPT) && contains(program, DISCOVERY.as_bytes())
        }
    }
}

/// Returns true if the loader loads a library with one of these name prefixes with `program`.
pub(crate) fn needs(program: &Path, prefixes: &[&str]) -> bool {
    let cache = std::fs::read(CACHE).unwrap_or_default();
    let mut folders = program::run_path(program);
    let mut seen = BTreeSet::new();
    let mut pending = Elf::open(program).map(|elf| elf.needed()).unwrap_or_default();
    while let Some(name) = pending.pop() {
        if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            return true;
        }
        if let Some(path) = find(&name, &folders, &cache).filter(|_| seen.insert(name)) {
            pending.extend(Elf::open(&path).map(|elf| elf.needed()).unwrap_or_default());
            folders.extend(program::run_path(&path));
        }
    }
    false
}

/// Returns the path of the library `name`.
fn find(name: &str, folders: &[PathBuf], cache: &[u8]) -> Option<PathBuf> {
    let inside = |folder: &Path| Some(folder.join(name)).filter(|path| path.is_file());
    let own = folders.iter().find_map(|folder| inside(folder));
    let in_cache = || cached_paths(cache).find(|path| path.ends_with(name));
    own.or_else(in_cache).or_else(|| FOLDERS.iter().map(Path::new).find_map(inside))
}

/// Returns the paths in the loader's cache, which are NUL-terminated.
pub(crate) fn cached_paths(cache: &[u8]) -> impl Iterator<Item = PathBuf> {
    let paths = cache.split(|byte| *byte == 0).filter(|text| text.starts_with(b"/"));
    paths.map(|text| PathBuf::from(OsStr::from_bytes(text)))
}

/// Returns true if rdma-core's libibverbs is linked into this file.
pub(crate) fn has_verbs_inside(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.len() <= MAX_SEARCHED) && contains(file, VERBS_MESSAGE)
}

/// Returns true if the file contains this text.
fn contains(file: &Path, text: &[u8]) -> bool {
    let Ok(mut file) = File::open(file) else { return false };
    let (mut bytes, mut kept) = (vec![0; 1 << 16], 0);
    while let Some(got) = file.read(&mut bytes[kept..]).ok().filter(|got| *got > 0) {
        let len = kept + got;
        let mut starts = (0..len).filter(|at| bytes[*at] == text[0]);
        if starts.any(|at| bytes[at..len].starts_with(text)) {
            return true;
        }
        // The text may cross the end of this chunk.
        kept = len.min(text.len() - 1);
        bytes.copy_within(len - kept..len, 0);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;

    #[test]
    fn text_is_found_across_chunk_boundaries() {
        let scratch = Scratch::new("asks");
        for at in [0, 100, 65_530, 65_536, 131_070] {
            let mut text = vec![b'l'; at];
            assert!(!contains(&scratch.file("x", &text, 0o600), VERBS_NAME), "{at}");
            text.extend(VERBS_NAME);
            assert!(contains(&scratch.file("x", &text, 0o600), VERBS_NAME), "{at}");
        }
    }

    #[test]
    fn program_without_verbs_has_no_verbs_use() {
        assert_eq!(verbs_use(Path::new("/bin/sh")), None);
        assert_eq!(verbs_use(Path::new("/etc/passwd")), None);
    }
}
