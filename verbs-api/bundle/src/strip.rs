//! Removes the sections that are not loaded from a shared object (`man elf`), such as the symbol
//! table and the debug information, which is the largest of them. The loader needs the segments;
//! valgrind and unwinders also need the sections inside the segments.

// Offsets in the header of a 64-bit ELF file, named as its fields.
const E_PHOFF: usize = 0x20;
const E_SHOFF: usize = 0x28;
const E_PHNUM: usize = 0x38;
const E_SHNUM: usize = 0x3c;
const E_SHSTRNDX: usize = 0x3e;

// Offsets in a program header.
const P_OFFSET: usize = 8;
const P_FILESZ: usize = 32;
const PROGRAM_HEADER_LEN: usize = 56;

// Offsets in a section header.
const SH_FLAGS: usize = 8;
const SH_OFFSET: usize = 24;
const SH_SIZE: usize = 32;
const SECTION_HEADER_LEN: usize = 64;

/// Flag of a section that is loaded.
const SHF_ALLOC: u64 = 2;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn usize_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64_at(bytes, at)?).ok()
}

fn write_at(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    bytes.get_mut(at..)?.get_mut(..value.len())?.copy_from_slice(value);
    Some(())
}

/// Returns `object` without the sections that are not loaded; `None` if it is not a valid
/// little-endian 64-bit ELF file. The result is the object up to the end of its last segment, then
/// the names of sections, and a section table in which the entries of removed sections are zero.
pub(crate) fn stripped(object: &[u8]) -> Option<Vec<u8>> {
    const CLASS_64_LITTLE_ENDIAN: &[u8] = b"\x7fELF\x02\x01";
    if !object.starts_with(CLASS_64_LITTLE_ENDIAN) {
        return None;
    }
    let mut out = object.get(..end_of_segments(object)?)?.to_vec();
    let (table, names_index) = (sections(object)?, u16_at(object, E_SHSTRNDX)?);
    let is_loaded = |section: &[u8]| u64_at(section, SH_FLAGS).is_some_and(|flags| flags & SHF_ALLOC != 0);
    // Sections refer to each other by index, so the remaining sections keep their indices.
    let kept_len = table.iter().rposition(|section| is_loaded(section))? + 1;
    let mut names_section = table.get(usize::from(names_index))?.to_vec();
    let (begin, len) = (usize_at(&names_section, SH_OFFSET)?, usize_at(&names_section, SH_SIZE)?);
    write_at(&mut names_section, SH_OFFSET, &u64::try_from(out.len()).ok()?.to_le_bytes())?;
    out.extend(object.get(begin..begin.checked_add(len)?)?);
    out.resize(out.len().next_multiple_of(8), 0);
    let table_offset = u64::try_from(out.len()).ok()?;
    for section in &table[..kept_len] {
        out.extend(if is_loaded(section) { *section } else { &[0; SECTION_HEADER_LEN] });
    }
    out.extend(names_section);
    write_at(&mut out, E_SHOFF, &table_offset.to_le_bytes())?;
    write_at(&mut out, E_SHNUM, &u16::try_from(kept_len + 1).ok()?.to_le_bytes())?;
    write_at(&mut out, E_SHSTRNDX, &u16::try_from(kept_len).ok()?.to_le_bytes())?;
    Some(out)
}

fn sections(object: &[u8]) -> Option<Vec<&[u8]>> {
    let (offset, count) = (usize_at(object, E_SHOFF)?, u16_at(object, E_SHNUM)?);
    let table = object.get(offset..)?.get(..usize::from(count).checked_mul(SECTION_HEADER_LEN)?)?;
    Some(table.chunks_exact(SECTION_HEADER_LEN).collect())
}

fn end_of_segments(object: &[u8]) -> Option<usize> {
    let (offset, count) = (usize_at(object, E_PHOFF)?, u16_at(object, E_PHNUM)?);
    let table = object.get(offset..)?.get(..usize::from(count).checked_mul(PROGRAM_HEADER_LEN)?)?;
    let headers = table.chunks_exact(PROGRAM_HEADER_LEN);
    let ends = headers.map(|header| usize_at(header, P_OFFSET)?.checked_add(usize_at(header, P_FILESZ)?));
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ELF file of this test program.
    fn object() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn stripped_object_keeps_segments_and_is_smaller() {
        let original = object();
        let stripped = stripped(&original).unwrap();
        assert!(stripped.len() < original.len() * 2 / 3, "{} of {}", stripped.len(), original.len());
        let end = end_of_segments(&original).unwrap();
        assert_eq!(stripped[64..end], original[64..end]);
        assert_eq!(stripped[..E_SHOFF], original[..E_SHOFF]);
    }

    #[test]
    fn stripped_program_runs() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("roxe-bundle-strip-{}", std::process::id()));
        std::fs::write(&path, stripped(&object()).unwrap()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let output = std::process::Command::new(&path).arg("--list").output().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("stripped_program_runs"), "{output:?}");
    }

    #[test]
    fn invalid_or_truncated_object_is_not_stripped() {
        assert_eq!(stripped(b"#!/bin/sh"), None);
        let object = object();
        assert!([6, 63, 64, 100, object.len() / 2].iter().all(|len| stripped(&object[..*len]).is_none()));
    }
}
