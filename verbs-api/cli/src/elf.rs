//! What an ELF file of 64 bits says about how it is loaded (`man elf`): whether it asks for a
//! loader, where it has its libraries looked for, for which machine it is.
//!
//! Reads the file and touches nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

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

    pub(crate) fn asks_for_loader(&self) -> bool {
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
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for len in [0, 20, HEADER, HEADER + 100] {
            std::fs::write(&path, &own[..len]).unwrap();
            let elf = Elf::open(&path);
            assert_eq!(elf.is_some(), len >= HEADER, "{len}");
            assert!(elf.is_none_or(|elf| elf.search_path().is_none()), "{len}");
        }
        std::fs::remove_file(path).unwrap();
    }
}
