//! Call stacks: captured as addresses, which costs about a microsecond, and named when a report is
//! printed.
//!
//! Touches the stack of the calling thread, and for names the debug information of the program.

use std::ffi::c_void;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Frames that are kept, from the call into the verbs library on outwards, with those inside of it.
const MOST: usize = 24;

/// How the names of the product's own functions begin, behind which the program's begin.
const OWN: [&str; 2] = ["roxe", "<roxe"];
/// Headers whose functions are part of the program, and say nothing about it.
const HEADERS: [&str; 2] = ["infiniband/verbs.h", "rdma/rdma_verbs.h"];
/// Behind these nothing is the program's.
const OUTERMOST: [&str; 3] = ["__libc_start", "_start", "start_thread"];

/// Where a call came from.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Stack(Arc<[usize]>);

/// One call of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The function; its address where nobody knows the name.
    pub(crate) function: String,
    /// The file, where the program has debug information.
    pub(crate) file: Option<PathBuf>,
    /// The line in it.
    pub(crate) line: Option<u32>,
}

impl Stack {
    /// That of the calling thread.
    pub(crate) fn here() -> Self {
        let mut addresses = Vec::with_capacity(MOST);
        backtrace::trace(|frame| {
            // What is called returns behind the call; the line of the call is what people look for.
            addresses.push(frame.ip().addr().wrapping_sub(1));
            addresses.len() < MOST
        });
        Self(addresses.into())
    }

    /// That of a call which nobody asked for.
    pub(crate) fn unknown() -> Self {
        Self([].into())
    }

    /// The calls of the program, innermost first; empty if nothing is known.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        let mut frames = Vec::new();
        for &address in &*self.0 {
            let before = frames.len();
            backtrace::resolve(std::ptr::without_provenance_mut::<c_void>(address), |symbol| {
                let function = symbol.name().map_or_else(|| format!("{address:#x}"), |name| format!("{name:#}"));
                let (file, line) = (symbol.filename().map(Into::into), symbol.lineno());
                frames.push(Frame { function, file, line });
            });
            if frames.len() == before {
                frames.push(Frame { function: format!("{address:#x}"), file: None, line: None });
            }
        }
        cut(frames)
    }
}

/// Leaves the program's part.
fn cut(frames: Vec<Frame>) -> Vec<Frame> {
    let is_header = |file: &PathBuf| HEADERS.iter().any(|header| file.ends_with(header));
    let is_own = |frame: &Frame| {
        OWN.iter().any(|prefix| frame.function.starts_with(prefix)) || frame.file.as_ref().is_some_and(is_header)
    };
    let inside = frames.iter().rposition(is_own).map_or(0, |last| last + 1);
    let rest = frames.into_iter().skip(inside);
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
    fn a_stack_begins_where_the_program_called_the_library_and_ends_with_main() {
        let names =
            ["backtrace::trace", "roxe_check::observe", "ibv_post_send", "send_all", "main", "__libc_start_main"];
        let mut frames = names.map(frame);
        frames[2].file = Some("/usr/include/infiniband/verbs.h".into());
        let left: Vec<_> = cut(frames.into()).into_iter().map(|frame| frame.function).collect();
        assert_eq!(left, ["send_all", "main"]);
    }

    #[test]
    fn a_captured_stack_names_its_functions() {
        let addresses = Stack::here();
        assert!(addresses.0.len() > 1 && addresses == addresses.clone());
    }

    #[test]
    fn a_frame_is_printed_with_what_is_known_of_it() {
        assert_eq!(frame("f").to_string(), "f");
        assert_eq!(Frame { file: Some("a.c".into()), line: Some(3), ..frame("f") }.to_string(), "f (a.c:3)");
    }
}
