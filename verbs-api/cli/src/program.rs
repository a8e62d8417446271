//! Inspects the file of the program that `roxe run` becomes: where it is, and what keeps it from
//! starting or from using roxe. Parses the loader's part of 64-bit ELF files (`man elf`).

use crate::library::LINKS;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A reason why a program could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("cannot start {}: there is no such program; check the spelling, or give its full path", program.display())]
    NotFound { program: PathBuf },
    #[error("cannot start {}: it is a folder; name a program in it", program.display())]
    Folder { program: PathBuf },
    #[error("cannot start {}: it is not executable; `chmod +x` it, or run it by its interpreter", program.display())]
    NotExecutable { program: PathBuf },
    #[error(
        "cannot start {}: its interpreter {} does not exist; install it, or correct the first line of the script",
        program.display(), interpreter.display()
    )]
    NoInterpreter { program: PathBuf, interpreter: PathBuf },
    #[error("cannot start {}: {cause}", program.display())]
    Other { program: PathBuf, cause: io::Error },
}

impl ProgramError {
    /// Explains why the system did not start `program` but failed with `cause`.
    pub(crate) fn explain(program: &OsStr, cause: io::Error) -> Self {
        let (found, program) = (find(program), PathBuf::from(program));
        let interpreter = found.as_deref().and_then(interpreter).filter(|interpreter| !interpreter.exists());
        let meta = fs::metadata(found.as_ref().unwrap_or(&program));
        match (cause.kind(), meta, interpreter) {
            (io::ErrorKind::NotFound, Ok(_), Some(interpreter)) => Self::NoInterpreter { program, interpreter },
            (io::ErrorKind::NotFound, ..) => Self::NotFound { program },
            (io::ErrorKind::PermissionDenied, Ok(meta), _) if meta.is_dir() => Self::Folder { program },
            (io::ErrorKind::PermissionDenied, Ok(meta), _) if meta.mode() & 0o111 == 0 => {
                Self::NotExecutable { program }
            }
            _ => Self::Other { program, cause },
        }
    }
}

/// Finds the program as `execvp` does.
pub(crate) fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Returns true if a program is set-uid or set-gid, or its file has capabilities.
pub(crate) fn gains_rights(program: &Path) -> bool {
    program.metadata().is_ok_and(|meta| meta.mode() & 0o6000 != 0) || roxe_provider::has_capabilities(program)
}

/// Returns true if a program is Python or a Python script.
pub(crate) fn is_python(program: &Path) -> bool {
    let is = |path: &Path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"));
    is(program) || interpreter(program).is_some_and(|path| is(&path))
}

/// Returns the interpreter of a script, from its first line.
fn interpreter(program: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(program).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii();
    line.split(u8::is_ascii_whitespace).next().map(|path| Path::new(OsStr::from_bytes(path)).to_owned())
}

/// Returns true if a program is an ELF file without a loader.
pub(crate) fn is_static(program: &Path) -> bool {
    Elf::open(program).is_some_and(|elf| !elf.has_loader())
}

/// Returns the folders that a program names for the loader to search (`man ld.so`: `DT_RUNPATH` and
/// `DT_RPATH`).
pub(crate) fn run_path(program: &Path) -> Vec<PathBuf> {
    Elf::open(program).and_then(|elf| elf.search_path()).map(|path| expand(program, &path)).unwrap_or_default()
}

fn expand(program: &Path, path: &SearchPath) -> Vec<PathBuf> {
    let real = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let origin = real.parent().map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
    let folders =
        path.folders.split(':').map(|folder| folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin));
    folders.map(PathBuf::from).filter(|folder| folder.is_absolute()).collect()
}

/// Returns why the loader of a program does not follow LD_LIBRARY_PATH, judged by the program's
/// file.
pub(crate) fn bypass_by_loader(program: &Path) -> Option<String> {
    if gains_rights(program) {
        return Some("it gains rights when it starts, so its loader does not follow LD_LIBRARY_PATH".to_owned());
    }
    let path = Elf::open(program)?.search_path().filter(|path| path.is_first)?;
    let folder =
        expand(program, &path).into_iter().find(|folder| LINKS.iter().any(|name| folder.join(name).exists()))?;
    Some(format!("it was linked to look into {} first; `roxe run --preload` leads it to roxe", folder.display()))
}

const HEADER_LEN: usize = 64;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
/// Maximum size of a table, in bytes.
const MAX_TABLE: u64 = 65_536;

/// A 64-bit ELF file.
pub(crate) struct Elf {
    file: File,
    head: [u8; HEADER_LEN],
    segments: Vec<Segment>,
}

#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    len: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct SearchPath {
    /// Folders separated by colons, verbatim.
    folders: String,
    /// True if the loader searches them before LD_LIBRARY_PATH.
    is_first: bool,
}

impl Elf {
    /// Opens the file; returns `None` if it is not a 64-bit ELF file.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        const CLASS_64: u8 = 2;
        let file = File::open(path).ok()?;
        let mut head = [0; HEADER_LEN];
        file.read_exact_at(&mut head, 0).ok()?;
        if !head.starts_with(b"\x7fELF") || head[4] != CLASS_64 {
            return None;
        }
        let offset = u64::from_ne_bytes(*head[32..].first_chunk()?);
        let (size, count) = (u16::from_ne_bytes([head[54], head[55]]), u16::from_ne_bytes([head[56], head[57]]));
        let offsets = (0..count).map(|index| offset.checked_add(u64::from(index) * u64::from(size)));
        let segments = offsets.map_while(|offset| Segment::read(&file, offset?)).collect();
        Some(Self { file, head, segments })
    }

    fn has_loader(&self) -> bool {
        self.segments.iter().any(|segment| segment.kind == PT_INTERP)
    }

    /// Returns class, byte order and machine; a library can replace only one of equal kind.
    pub(crate) fn kind(&self) -> [u8; 4] {
        [self.head[4], self.head[5], self.head[18], self.head[19]]
    }

    /// Returns `DT_RUNPATH`, or `DT_RPATH` without one (`man ld.so`).
    fn search_path(&self) -> Option<SearchPath> {
        let dynamic = self.dynamic()?;
        let first_text = |tag| dynamic.texts(tag).next();
        let (folders, is_first) =
            first_text(DT_RUNPATH).map(|text| (text, false)).or_else(|| Some((first_text(DT_RPATH)?, true)))?;
        Some(SearchPath { folders, is_first })
    }

    /// Returns the names of the libraries that the file links.
    pub(crate) fn needed(&self) -> Vec<String> {
        self.dynamic().map(|dynamic| dynamic.texts(DT_NEEDED).collect()).unwrap_or_default()
    }

    fn dynamic(&self) -> Option<Dynamic<'_>> {
        let segment = self.segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
        let table = self.bytes(segment.offset, segment.len)?;
        let strings = Dynamic::values(&table, DT_STRTAB).next()?;
        Some(Dynamic { elf: self, strings: self.offset_of(strings)?, table })
    }

    /// Returns the file offset of the byte that is loaded at `address`.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let load = |segment: &&Segment| segment.kind == PT_LOAD && (segment.address..).contains(&address);
        let segment = self.segments.iter().filter(load).find(|segment| address - segment.address < segment.len)?;
        (address - segment.address).checked_add(segment.offset)
    }

    /// Reads up to `len` bytes; fewer at the end of the file.
    fn bytes(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len.min(MAX_TABLE)).ok()?];
        let got = self.file.read_at(&mut bytes, offset).ok()?;
        bytes.truncate(got);
        Some(bytes)
    }
}

/// The dynamic section.
struct Dynamic<'a> {
    elf: &'a Elf,
    table: Vec<u8>,
    /// Offset of the string table in the file.
    strings: u64,
}

impl Dynamic<'_> {
    fn values(table: &[u8], tag: u64) -> impl Iterator<Item = u64> {
        let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        table
            .chunks_exact(16)
            .filter(move |entry| number(entry) == Some(tag))
            .filter_map(move |entry| number(&entry[8..]))
    }

    fn texts(&self, tag: u64) -> impl Iterator<Item = String> {
        Self::values(&self.table, tag).filter_map(|offset| {
            let mut text = self.elf.bytes(self.strings.checked_add(offset)?, 4096)?;
            text.truncate(text.iter().position(|byte| *byte == 0)?);
            String::from_utf8(text).ok()
        })
    }
}

impl Segment {
    fn read(file: &File, offset: u64) -> Option<Self> {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, offset).ok()?;
        let number = |at: usize| Some(u64::from_ne_bytes(*entry[at..].first_chunk()?));
        let kind = u32::from_ne_bytes(*entry.first_chunk()?);
        Some(Self { kind, offset: number(8)?, address: number(16)?, len: number(32)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;
    use nix::libc::{EACCES, ENOENT};

    fn explain(program: &Path, errno: i32) -> String {
        ProgramError::explain(program.as_os_str(), io::Error::from_raw_os_error(errno)).to_string()
    }

    #[test]
    fn setuid_program_gains_rights() {
        let scratch = Scratch::new("setuid");
        assert!(!gains_rights(&scratch.file("x", "", 0o755)));
        assert!(gains_rights(&scratch.file("x", "", 0o4755)));
        assert!(!gains_rights(&scratch.join("missing")));
    }

    #[test]
    fn program_is_found_by_path() {
        assert!(find(OsStr::new("sh")).is_some_and(|path| path.is_absolute() && path.ends_with("sh")));
        assert_eq!(find(OsStr::new("./sh")), Some("./sh".into()));
        assert_eq!(find(OsStr::new("no-such-program-anywhere")), None);
    }

    #[test]
    fn start_failures_say_what_to_do() {
        let scratch = Scratch::new("program");
        let text = explain(&scratch.file("text", "echo", 0o644), EACCES);
        assert!(text.contains("not executable") && text.contains("chmod +x"), "{text}");
        let text = explain(Path::new("/"), EACCES);
        assert!(text.contains("it is a folder"), "{text}");
        let text = explain(&scratch.file("script", "#! /no/such/shell -e\nexit\n", 0o755), ENOENT);
        assert!(text.contains("interpreter /no/such/shell does not exist"), "{text}");
        let text = explain(Path::new("no-such-program-anywhere"), ENOENT);
        assert!(text.contains("there is no such program"), "{text}");
    }

    #[test]
    fn elf_file_without_loader_is_static() {
        let scratch = Scratch::new("static");
        assert!(!is_static(&find(OsStr::new("sh")).unwrap()), "the shell of the system is linked dynamically");
        let mut head = [0; 64];
        head[..5].copy_from_slice(b"\x7fELF\x02");
        assert!(is_static(&scratch.file("static", head, 0o755)), "no program headers at all");
        assert!(!is_static(&scratch.file("short", &head[..20], 0o755)), "no ELF file");
        assert!(!is_static(Path::new("/nowhere/at/all")));
    }

    #[test]
    fn elf_of_this_test_names_its_libraries() {
        let own = Elf::open(&std::env::current_exe().unwrap()).unwrap();
        assert!(own.has_loader());
        assert_eq!(own.kind()[0], 2);
        assert_eq!(own.search_path(), None, "Cargo sets none");
        assert!(own.needed().iter().any(|name| name.starts_with("libc.so")), "{:?}", own.needed());
    }

    #[test]
    fn truncated_elf_file_has_no_search_path() {
        let scratch = Scratch::new("elf");
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        for len in [0, 20, HEADER_LEN, HEADER_LEN + 100] {
            let elf = Elf::open(&scratch.file("elf", &own[..len], 0o644));
            assert_eq!(elf.is_some(), len >= HEADER_LEN, "{len}");
            assert!(elf.is_none_or(|elf| elf.search_path().is_none()), "{len}");
        }
    }
}
