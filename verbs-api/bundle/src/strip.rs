//! Removes the sections that are not loaded from a shared object (`man elf`): debug information,
//! its largest part, and the symbol table. The loader needs the segments; valgrind and unwinders
//! also need the sections inside of them.

/// Offsets in the header of a 64-bit ELF file, and sizes of table entries.
const SECTION_OFFSET: usize = 0x28;
const SECTION_COUNT: usize = 0x3c;
const NAMES_INDEX: usize = 0x3e;
const SECTION: usize = 64;
const SEGMENT: usize = 56;
/// `SHF_ALLOC`: a section that is loaded.
const ALLOC: u64 = 2;

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?).into())
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn usize_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64_at(bytes, at)?).ok()
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    bytes.get_mut(at..)?.get_mut(..value.len())?.copy_from_slice(value);
    Some(())
}

/// Returns `object` up to the end of its last segment, then the names of sections and a section
/// table in which the entries of removed sections are zero; `None` if it is not a valid
/// little-endian 64-bit ELF file.
pub(crate) fn stripped(object: &[u8]) -> Option<Vec<u8>> {
    const CLASS_64_LITTLE_ENDIAN: &[u8] = b"\x7fELF\x02\x01";
    if !object.starts_with(CLASS_64_LITTLE_ENDIAN) {
        return None;
    }
    let mut out = object.get(..end_of_segments(object)?)?.to_vec();
    let (table, names) = (sections(object)?, u16_at(object, NAMES_INDEX)?);
    let is_loaded = |section: &[u8]| u64_at(section, 8).is_some_and(|flags| flags & ALLOC != 0);
    // Sections refer to each other by index, so the remaining ones keep theirs.
    let kept = table.iter().rposition(|section| is_loaded(section))? + 1;
    let mut names_section = table.get(names)?.to_vec();
    let (begin, len) = (usize_at(&names_section, 24)?, usize_at(&names_section, 32)?);
    put(&mut names_section, 24, &u64::try_from(out.len()).ok()?.to_le_bytes())?;
    out.extend(object.get(begin..begin.checked_add(len)?)?);
    out.resize(out.len().next_multiple_of(8), 0);
    let offset = u64::try_from(out.len()).ok()?;
    for section in &table[..kept] {
        out.extend(if is_loaded(section) { *section } else { &[0; SECTION] });
    }
    out.extend(names_section);
    put(&mut out, SECTION_OFFSET, &offset.to_le_bytes())?;
    put(&mut out, SECTION_COUNT, &u16::try_from(kept + 1).ok()?.to_le_bytes())?;
    put(&mut out, NAMES_INDEX, &u16::try_from(kept).ok()?.to_le_bytes())?;
    Some(out)
}

fn sections(object: &[u8]) -> Option<Vec<&[u8]>> {
    let (offset, count) = (usize_at(object, SECTION_OFFSET)?, u16_at(object, SECTION_COUNT)?);
    let table = object.get(offset..)?.get(..count.checked_mul(SECTION)?)?;
    Some(table.chunks_exact(SECTION).collect())
}

fn end_of_segments(object: &[u8]) -> Option<usize> {
    let (offset, count) = (usize_at(object, 0x20)?, u16_at(object, 0x38)?);
    let table = object.get(offset..)?.get(..count.checked_mul(SEGMENT)?)?;
    let ends = table.chunks_exact(SEGMENT).map(|segment| usize_at(segment, 8)?.checked_add(usize_at(segment, 32)?));
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ELF file of this test.
    fn object() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn stripped_object_keeps_segments_and_is_smaller() {
        let (whole, less) = (object(), stripped(&object()).unwrap());
        assert!(less.len() < whole.len() * 2 / 3, "{} of {}", less.len(), whole.len());
        let end = end_of_segments(&whole).unwrap();
        assert_eq!(less[64..end], whole[64..end]);
        assert_eq!(less[..SECTION_OFFSET], whole[..SECTION_OFFSET]);
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
