//! Call stacks: captured as addresses ([`walk`]), symbolized when a report is printed.

#[allow(unsafe_code)]
pub(crate) mod fatal;
#[allow(unsafe_code)]
mod walk;

use std::ffi::c_void;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Prefixes of roxe's own functions; the program's frames begin after the last of them.
const OWN_PREFIXES: [&str; 2] = ["roxe", "<roxe"];
/// Headers with inline functions, whose frames are not calls of the program itself.
const HEADERS: [&str; 2] = ["infiniband/verbs.h", "rdma/rdma_verbs.h"];
/// Outermost frames, which belong to the C library.
const OUTERMOST: [&str; 3] = ["__libc_start", "_start", "start_thread"];

/// Return addresses, innermost first.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Stack(Arc<[usize]>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The function, or its address if the name is unknown.
    pub(crate) function: String,
    /// The source file, if there is debug information.
    pub(crate) file: Option<PathBuf>,
    pub(crate) line: Option<u32>,
}

impl Stack {
    /// Returns the stack of the calling thread.
    pub(crate) fn here() -> Self {
        Self(walk::addresses())
    }

    /// Creates the stack with these return addresses, innermost first.
    pub(crate) fn of(addresses: &[usize]) -> Self {
        Self(addresses.into())
    }

    /// Creates an empty stack, for events without a call.
    pub(crate) fn unknown() -> Self {
        Self([].into())
    }

    /// Returns the calls of the program, innermost first; empty if unknown.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        let mut frames = Vec::new();
        for &address in &*self.0 {
            // A return address points after the call; the address before it has the line of the
            // call.
            let address = address.wrapping_sub(1);
            // Skipped, because reading the debug information of these files can stall the card for
            // long.
            let is_in = |ranges: &[Range<usize>]| ranges.iter().any(|range| range.contains(&address));
            if is_in(&unsymbolized_code().own) {
                frames.push((Frame { function: String::new(), file: None, line: None }, true));
                continue;
            }
            if is_in(&unsymbolized_code().libc) {
                continue;
            }
            let before = frames.len();
            backtrace::resolve(std::ptr::without_provenance_mut::<c_void>(address), |symbol| {
                let function = symbol.name().map_or_else(|| file_and_offset(address), |name| format!("{name:#}"));
                let (file, line) = (symbol.filename().map(Into::into), symbol.lineno());
                frames.push((Frame { function, file, line }, false));
            });
            if frames.len() == before {
                frames.push((Frame { function: file_and_offset(address), file: None, line: None }, false));
            }
        }
        frames_of_program(frames)
    }
}

/// Names a call without a symbol: file and offset for other tools, or the address if no file is
/// mapped there.
fn file_and_offset(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let lines: Vec<_> = maps.lines().filter_map(mapping).collect();
    let found = lines.iter().position(|(range, _)| range.contains(&address)).and_then(|at| {
        let path = lines[at].1;
        // The mappings of a library are adjacent, and a copy mapped for reading does not count.
        // Non-PIE programs are linked at fixed addresses, so their offsets are absolute.
        let part = lines[..at].iter().rev().take_while(|(_, other)| *other == path).last().unwrap_or(&lines[at]);
        let begin = if has_fixed_addresses(path) { 0 } else { part.0.start };
        Some(format!("{}+{:#x}", Path::new(path).file_name()?.display(), address - begin))
    });
    found.unwrap_or_else(|| format!("{address:#x}"))
}

/// Returns true for an ELF file of type `ET_EXEC`, which is linked at fixed addresses.
fn has_fixed_addresses(path: &str) -> bool {
    const ET_EXEC: u16 = 2;
    let mut head = [0; 18];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && u16::from_ne_bytes([head[16], head[17]]) == ET_EXEC
}

/// Code ranges that are not symbolized.
#[derive(Debug)]
struct UnsymbolizedCode {
    /// Code of this library; empty if linked into the program, where names distinguish its
    /// functions.
    own: Vec<Range<usize>>,
    /// The C library, which calls `main`, threads and callbacks such as that of `qsort`.
    libc: Vec<Range<usize>>,
}

fn unsymbolized_code() -> &'static UnsymbolizedCode {
    static CODE: OnceLock<UnsymbolizedCode> = OnceLock::new();
    CODE.get_or_init(|| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        let lines: Vec<_> = maps.lines().filter_map(mapping).collect();
        let file_of = |code: usize| {
            let path = lines.iter().find(|(range, _)| range.contains(&code)).map(|(_, path)| *path);
            path.filter(|path| Path::new(path) != program)
        };
        let ranges_of = |code| {
            let file = file_of(code);
            lines.iter().filter(|(_, path)| Some(*path) == file).map(|(range, _)| range.clone()).collect()
        };
        UnsymbolizedCode {
            own: ranges_of(unsymbolized_code as fn() -> &'static UnsymbolizedCode as usize),
            libc: ranges_of(libc::abort as unsafe extern "C" fn() -> ! as usize),
        }
    })
}

/// Parses the range and the file of a line of `/proc/PID/maps` (`man proc_pid_maps`).
fn mapping(line: &str) -> Option<(Range<usize>, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (begin, end) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(begin)?..number(end)?, rest.get(rest.find('/')?..)?))
}

/// Returns the frames of the program. The bool marks frames that are known to be roxe's.
fn frames_of_program(frames: Vec<(Frame, bool)>) -> Vec<Frame> {
    let is_header = |file: &PathBuf| HEADERS.iter().any(|header| file.ends_with(header));
    let is_own = |(frame, is_of_roxe): &(Frame, bool)| {
        let named = OWN_PREFIXES.iter().any(|prefix| frame.function.starts_with(prefix));
        *is_of_roxe || named || frame.file.as_ref().is_some_and(is_header)
    };
    let inside = frames.iter().rposition(is_own).map_or(0, |last| last + 1);
    let rest = frames.into_iter().skip(inside).map(|(frame, _)| frame);
    rest.take_while(|frame| !OUTERMOST.iter().any(|name| frame.function.starts_with(name))).collect()
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stack({} frames)", self.0.len())
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.function)?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " ({}:{line})", file.display()),
            (Some(file), None) => write!(f, " ({})", file.display()),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str) -> Frame {
        Frame { function: function.into(), file: None, line: None }
    }

    #[test]
    fn frames_span_from_the_verbs_call_to_main() {
        let names =
            ["backtrace::trace", "roxe_check::observe", "ibv_post_send", "send_all", "main", "__libc_start_main"];
        let mut frames = names.map(frame);
        frames[2].file = Some("/usr/include/infiniband/verbs.h".into());
        let frames = frames.map(|frame| (frame, false)).into();
        let left: Vec<_> = frames_of_program(frames).into_iter().map(|frame| frame.function).collect();
        assert_eq!(left, ["send_all", "main"]);
    }

    #[test]
    fn captured_stack_has_several_frames() {
        let addresses = Stack::here();
        assert!(addresses.0.len() > 1 && addresses == addresses.clone());
    }

    #[test]
    fn unnamed_call_is_file_plus_offset() {
        let here = file_and_offset as fn(usize) -> String as usize;
        let program = std::env::current_exe().unwrap();
        let name = program.file_name().unwrap().to_str().unwrap();
        assert!(file_and_offset(here).starts_with(&format!("{name}+0x")), "{}", file_and_offset(here));
        assert_eq!(file_and_offset(1), "0x1");
    }

    #[test]
    fn frame_display_omits_unknown_parts() {
        assert_eq!(frame("f").to_string(), "f");
        assert_eq!(Frame { file: Some("a.c".into()), line: Some(3), ..frame("f") }.to_string(), "f (a.c:3)");
    }
}
