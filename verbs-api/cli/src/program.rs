//! The program that `roxe run` is about to become, looked at beforehand: where it is, and what
//! about it keeps it from being started, or from using roxe.
//!
//! Reads the file of the program and touches nothing.
//!
//! What a 64-bit ELF file says about how it is loaded (`man elf`) is read here as well.

use crate::library::LINKS;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Why a program could not be started. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error(
        "cannot start {}: there is no such program.\n  Check the spelling, or give its full path.",
        program.display()
    )]
    NotFound { program: PathBuf },
    #[error("cannot start {}: it is a folder.\n  Name a program in it.", program.display())]
    Folder { program: PathBuf },
    #[error(
        "cannot start {}: it is not marked as a program.\n  If it is one, `chmod +x {}`; if it is a script, name what \
         runs it first, for example `sh {}`.",
        program.display(), program.display(), program.display()
    )]
    NotExecutable { program: PathBuf },
    #[error(
        "cannot start {}: what should run it, {}, is not there.\n  \
         Install that, or correct the first line of the script.",
        program.display(), interpreter.display()
    )]
    NoInterpreter { program: PathBuf, interpreter: PathBuf },
    #[error("cannot start {}: {cause}.", program.display())]
    Other { program: PathBuf, cause: io::Error },
}

impl ProgramError {
    /// What kept the system from starting `program`, of which it only said `cause`.
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

/// Where the program is, as `execvp` finds it.
pub(crate) fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Whether a program runs as its owner or group, or with capabilities of its file, whoever starts
/// it.
pub(crate) fn gains_rights(program: &Path) -> bool {
    program.metadata().is_ok_and(|meta| meta.mode() & 0o6000 != 0) || roxe_provider::has_capabilities(program)
}

/// Whether a program is Python, or is run by it.
pub(crate) fn is_python(program: &Path) -> bool {
    let is = |path: &Path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"));
    is(program) || interpreter(program).is_some_and(|path| is(&path))
}

/// What the system starts in place of a script: the path behind `#!` in its first line.
fn interpreter(program: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(program).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii();
    line.split(u8::is_ascii_whitespace).next().map(|path| Path::new(OsStr::from_bytes(path)).to_owned())
}

/// Whether a program is linked statically: an ELF file that asks for no loader, so that nothing
/// leads it to roxe.
pub(crate) fn is_static(program: &Path) -> bool {
    Elf::open(program).is_some_and(|elf| !elf.asks_for_loader())
}

/// The folders of its own in which a program has its libraries looked for (`man ld.so`:
/// `DT_RUNPATH` and `DT_RPATH`).
pub(crate) fn own_folders(program: &Path) -> Vec<PathBuf> {
    Elf::open(program).and_then(|elf| elf.search_path()).map(|path| expand(program, &path)).unwrap_or_default()
}

fn expand(program: &Path, path: &SearchPath) -> Vec<PathBuf> {
    let real = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let origin = real.parent().map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
    let folders =
        path.folders.split(':').map(|folder| folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin));
    folders.map(PathBuf::from).filter(|folder| folder.is_absolute()).collect()
}

/// Why the loader of a program does not follow LD_LIBRARY_PATH to roxe, as far as its file tells.
pub(crate) fn goes_its_own_way(program: &Path) -> Option<String> {
    if gains_rights(program) {
        return Some("it gains rights when it starts, so its loader does not follow LD_LIBRARY_PATH".to_owned());
    }
    let path = Elf::open(program)?.search_path().filter(|path| path.first)?;
    let folder =
        expand(program, &path).into_iter().find(|folder| LINKS.iter().any(|name| folder.join(name).exists()))?;
    Some(format!("it was linked to look into {} first; `roxe run --preload` leads it to roxe", folder.display()))
}

const HEADER: usize = 64;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
/// More than any of these tables has.
const TABLE_BYTES: u64 = 65_536;

/// An ELF file of 64 bits.
pub(crate) struct Elf {
    file: File,
    head: [u8; HEADER],
    segments: Vec<Segment>,
}

#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    len: u64,
}

/// Where a program has its libraries looked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SearchPath {
    /// The folders, separated by colons, as they are written.
    pub(crate) folders: String,
    /// Whether they come before those of LD_LIBRARY_PATH.
    pub(crate) first: bool,
}

impl Elf {
    /// `None` for all other files.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        const CLASS_64: u8 = 2;
        let file = File::open(path).ok()?;
        let mut head = [0; HEADER];
        file.read_exact_at(&mut head, 0).ok()?;
        if !head.starts_with(b"\x7fELF") || head[4] != CLASS_64 {
            return None;
        }
        let offset = u64::from_ne_bytes(*head[32..].first_chunk()?);
        let (size, count) = (u16::from_ne_bytes([head[54], head[55]]), u16::from_ne_bytes([head[56], head[57]]));
        let places = (0..count).map(|at| offset.checked_add(u64::from(at) * u64::from(size)));
        let segments = places.map_while(|at| Segment::read(&file, at?)).collect();
        Some(Self { file, head, segments })
    }

    fn asks_for_loader(&self) -> bool {
        self.segments.iter().any(|segment| segment.kind == PT_INTERP)
    }

    /// Byte order and machine: a library of another kind cannot stand for this one.
    pub(crate) fn kind(&self) -> [u8; 4] {
        [self.head[4], self.head[5], self.head[18], self.head[19]]
    }

    /// `DT_RUNPATH`, or `DT_RPATH` where there is none (`man ld.so`).
    pub(crate) fn search_path(&self) -> Option<SearchPath> {
        let dynamic = self.dynamic()?;
        let of = |tag| dynamic.texts(tag).next();
        let (folders, first) = of(DT_RUNPATH).map(|text| (text, false)).or_else(|| Some((of(DT_RPATH)?, true)))?;
        Some(SearchPath { folders, first })
    }

    /// The names of the libraries that are loaded with it.
    pub(crate) fn needed(&self) -> Vec<String> {
        self.dynamic().map(|dynamic| dynamic.texts(DT_NEEDED).collect()).unwrap_or_default()
    }

    fn dynamic(&self) -> Option<Dynamic<'_>> {
        let segment = self.segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
        let table = self.bytes(segment.offset, segment.len)?;
        let strings = Dynamic::values(&table, DT_STRTAB).next()?;
        Some(Dynamic { elf: self, strings: self.offset_of(strings)?, table })
    }

    /// Where in the file is what will be at `address`.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let load = |segment: &&Segment| segment.kind == PT_LOAD && (segment.address..).contains(&address);
        let segment = self.segments.iter().filter(load).find(|segment| address - segment.address < segment.len)?;
        (address - segment.address).checked_add(segment.offset)
    }

    /// Up to `len` bytes; fewer where the file ends.
    fn bytes(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len.min(TABLE_BYTES)).ok()?];
        let got = self.file.read_at(&mut bytes, offset).ok()?;
        bytes.truncate(got);
        Some(bytes)
    }
}

/// What is for the loader.
struct Dynamic<'a> {
    elf: &'a Elf,
    table: Vec<u8>,
    /// Where in the file the texts begin.
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
        Self::values(&self.table, tag).filter_map(|place| {
            let mut text = self.elf.bytes(self.strings.checked_add(place)?, 4096)?;
            text.truncate(text.iter().position(|byte| *byte == 0)?);
            String::from_utf8(text).ok()
        })
    }
}

impl Segment {
    fn read(file: &File, at: u64) -> Option<Self> {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, at).ok()?;
        let number = |place: usize| Some(u64::from_ne_bytes(*entry[place..].first_chunk()?));
        let kind = u32::from_ne_bytes(*entry.first_chunk()?);
        Some(Self { kind, offset: number(8)?, address: number(16)?, len: number(32)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A file of this test, removed in the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, text: &[u8], mode: u32) -> Self {
            let path = std::env::temp_dir().join(format!("roxe-program-{}-{name}", std::process::id()));
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Self(path)
        }

        fn explained(&self, cause: i32) -> String {
            ProgramError::explain(self.0.as_os_str(), io::Error::from_raw_os_error(cause)).to_string()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    /// `EACCES` and `ENOENT`.
    const DENIED: i32 = 13;
    const NO_ENTRY: i32 = 2;

    #[test]
    fn programs_that_change_their_user_are_told_apart() {
        let file = std::env::temp_dir().join(format!("roxe-view-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        assert!(!gains_rights(&file));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(gains_rights(&file));
        fs::remove_file(&file).unwrap();
        assert!(!gains_rights(&file));
    }

    #[test]
    fn programs_are_found_as_the_system_does() {
        assert!(find(OsStr::new("sh")).is_some_and(|path| path.is_absolute() && path.ends_with("sh")));
        assert_eq!(find(OsStr::new("./sh")), Some("./sh".into()));
        assert_eq!(find(OsStr::new("no-such-program-anywhere")), None);
    }

    #[test]
    fn a_file_that_is_no_program_says_how_to_make_it_one() {
        let text = Scratch::new("text", b"echo", 0o644).explained(DENIED);
        assert!(text.contains("not marked as a program") && text.contains("chmod +x"), "{text}");
        let folder = ProgramError::explain(OsStr::new("/"), io::Error::from_raw_os_error(DENIED)).to_string();
        assert!(folder.contains("it is a folder"), "{folder}");
    }

    #[test]
    fn a_script_names_the_interpreter_that_is_missing() {
        let text = Scratch::new("script", b"#! /no/such/shell -e\nexit\n", 0o755).explained(NO_ENTRY);
        assert!(text.contains("/no/such/shell, is not there"), "{text}");
    }

    #[test]
    fn a_program_that_is_nowhere_is_not_found() {
        let cause = io::Error::from_raw_os_error(NO_ENTRY);
        let error = ProgramError::explain(OsStr::new("no-such-program-anywhere"), cause);
        assert!(matches!(error, ProgramError::NotFound { .. }), "{error}");
    }

    #[test]
    fn only_elf_files_without_a_loader_are_static() {
        assert!(!is_static(&find(OsStr::new("sh")).unwrap()), "the shell of the system is linked dynamically");
        let mut head = [0; 64];
        head[..5].copy_from_slice(b"\x7fELF\x02");
        assert!(is_static(&Scratch::new("static", &head, 0o755).0), "no program headers at all");
        assert!(!is_static(&Scratch::new("short", &head[..20], 0o755).0), "no ELF file");
        assert!(!is_static(Path::new("/nowhere/at/all")));
    }

    #[test]
    fn this_very_test_is_loaded_and_of_this_machine() {
        let own = Elf::open(&std::env::current_exe().unwrap()).unwrap();
        assert!(own.asks_for_loader());
        assert_eq!(own.kind()[0], 2);
        assert_eq!(own.search_path(), None, "Cargo sets none");
        assert!(own.needed().iter().any(|name| name.starts_with("libc.so")), "{:?}", own.needed());
    }

    #[test]
    fn what_is_cut_short_or_no_elf_file_is_none_or_has_nothing() {
        let path = std::env::temp_dir().join(format!("roxe-elf-{}", std::process::id()));
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        for len in [0, 20, HEADER, HEADER + 100] {
            fs::write(&path, &own[..len]).unwrap();
            let elf = Elf::open(&path);
            assert_eq!(elf.is_some(), len >= HEADER, "{len}");
            assert!(elf.is_none_or(|elf| elf.search_path().is_none()), "{len}");
        }
        fs::remove_file(path).unwrap();
    }
}
