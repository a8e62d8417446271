//! The trace: the activity of queue pairs over time, in Chrome's Trace Event format
//! (docs/how-to/trace.md).
//!
//! Subscribes to the events of the checker, and to packets as captures see them. Lines collect in
//! memory; the background thread of an engine writes them every [`WRITE_INTERVAL`], and a thread
//! that finds a megabyte writes it itself. The file is a JSON array without its closing bracket,
//! which viewers accept, so processes can append whole lines. Each process holds a shared lock on
//! the file; the one that gets the exclusive lock is first and writes the opening bracket.

mod tracks;

pub use crate::listeners::is_tracing as is_on;
pub use tracks::TracedPacket;

use crate::event::Event;
use crate::listeners;
use roxe_base::cancel::uncancelled;
use roxe_base::clock;
use roxe_base::config::Config;
use roxe_base::error::Error;
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::private_file::{self, names_process, with_process_id};
use roxe_base::standard_error;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracks::{Lines, Tracks};

/// Longest time that lines stay in memory while the process runs.
pub const WRITE_INTERVAL: Duration = Duration::from_millis(20);
/// Number of buffered bytes from which on they are written at once.
const MAX_BUFFERED: usize = 1 << 20;
/// Start of the array.
const START: &[u8] = b"[\n";

static FILE: Mutex<rank::TraceFile, Option<Output>> = Mutex::new(None);
static TRACE: Mutex<rank::Trace, Option<Trace>> = Mutex::new(None);

#[derive(Debug)]
struct Output {
    configured: PathBuf,
    /// `None` in the child of a fork until it writes to its own file.
    file: Option<File>,
    /// Lines being written; kept for its capacity.
    writing: String,
}

#[derive(Debug)]
struct Trace {
    lines: Lines,
    tracks: Tracks,
}

/// Opens the file once; returns false if no trace is wanted.
pub(crate) fn start(config: &Config) -> Result<bool, Error> {
    let Some(configured) = &config.trace else { return Ok(false) };
    begin(configured)
        .map_err(|e| Error::os(format!("cannot write the trace {} (ROXE_TRACE)", configured.display()), &e))?;
    Ok(true)
}

fn begin(configured: &Path) -> io::Result<()> {
    let mut output = FILE.lock();
    if output.is_none() {
        let file = Some(open(configured)?);
        *output = Some(Output { configured: configured.into(), file, writing: String::new() });
        *TRACE.lock() = Some(Trace::new());
    }
    Ok(())
}

/// Opens the file `configured`. An existing one is overwritten, unless another process is writing
/// it.
fn open(configured: &Path) -> io::Result<File> {
    let mut file = private_file::open(OpenOptions::new().append(true), &with_process_id(configured))?;
    match file.try_lock() {
        Ok(()) => {
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(START)?;
            // Nothing of this process is written yet, so another process may get the exclusive lock
            // in between and truncate the file.
            file.lock_shared()?;
        }
        Err(TryLockError::WouldBlock) => file.lock_shared()?,
        // On a file system without locks, the process that finds the file empty is the first.
        Err(TryLockError::Error(_)) if file.metadata()?.len() == 0 => file.write_all(START)?,
        Err(TryLockError::Error(_)) => {}
    }
    Ok(file)
}

impl Trace {
    fn new() -> Self {
        Self { lines: Lines::new(std::process::id()), tracks: Tracks::default() }
    }
}

pub(crate) fn observe(event: &Event<'_>) {
    add(|lines, tracks| tracks.event(lines, event, clock::now()));
}

/// Adds packets.
pub fn packets(packets: &[TracedPacket]) {
    if !packets.is_empty() {
        add(|lines, tracks| packets.iter().for_each(|packet| tracks.packet(lines, packet, clock::now())));
    }
}

fn add(record: impl FnOnce(&mut Lines, &mut Tracks)) {
    let is_full = {
        let mut trace = TRACE.lock();
        let Some(Trace { lines, tracks }) = &mut *trace else { return };
        record(lines, tracks);
        lines.len() >= MAX_BUFFERED
    };
    if is_full {
        write_out();
    }
}

/// Writes the collected lines, if the trace is on.
pub fn write_out() {
    if !is_on() {
        return;
    }
    let mut output = FILE.lock();
    let Some(Output { configured, file, writing }) = &mut *output else { return };
    if let Some(Trace { lines, .. }) = &mut *TRACE.lock() {
        lines.swap(writing);
    }
    if writing.is_empty() {
        return;
    }
    let written = uncancelled(|| {
        let file = match file {
            Some(file) => file,
            None => file.insert(open(configured)?),
        };
        file.write_all(writing.as_bytes())
    });
    writing.clear();
    if let Err(cause) = written {
        standard_error::write(&format!("roxe: trace: cannot write, the trace ends here: {cause}\n"));
        *output = None;
        *TRACE.lock() = None;
        listeners::remove(listeners::TRACE);
    }
}

/// Closes all open slices at the end of the program.
pub(crate) fn end() {
    add(|lines, tracks| tracks.end(lines, clock::now()));
    write_out();
}

pub(crate) fn locks() -> [&'static dyn Lockable; 2] {
    [&FILE, &TRACE]
}

/// Drops the collected lines and objects in the child of a fork, because they belong to the parent.
/// Also drops the file if each process has its own.
pub(crate) fn abandon() {
    if let Some(output) = FILE.try_lock().as_deref_mut().and_then(Option::as_mut) {
        output.writing.clear();
        output.file.take_if(|_| names_process(&output.configured));
    }
    if let Some(trace) = TRACE.try_lock().as_deref_mut().and_then(Option::as_mut) {
        *trace = Trace::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    /// The only test that uses the trace of this process.
    #[test]
    fn fork_child_drops_lines_of_parent_and_names_itself() {
        let path = std::env::temp_dir().join(format!("roxe-trace-{}-fork", std::process::id()));
        begin(&path).unwrap();
        listeners::add(listeners::TRACE);
        observe(&Event::CqEventQueued { cq: roxe_base::uses::ObjectId::next() });
        abandon();
        observe(&Event::Exit);
        end();
        let text = fs::read_to_string(&path).unwrap();
        listeners::remove(listeners::TRACE);
        fs::remove_file(path).unwrap();
        assert_eq!((text.matches("process_name").count(), text.lines().count()), (1, 3), "{text}");
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("roxe-trace-{}-{name}", std::process::id()))
    }

    #[test]
    fn processes_share_a_file_and_the_next_run_truncates_it() {
        let path = scratch("shared");
        fs::write(&path, "an old trace").unwrap();
        let (mut first, mut second) = (open(&path).unwrap(), open(&path).unwrap());
        first.write_all(b"1\n").unwrap();
        second.write_all(b"2\n").unwrap();
        drop(first);
        open(&path).unwrap().write_all(b"3\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"[\n1\n2\n3\n");
        drop(second);
        drop(open(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), START);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn trace_file_is_private_and_rejects_symlinks() {
        let (path, link) = (scratch("private"), scratch("link"));
        drop(open(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        symlink(&path, &link).unwrap();
        assert_eq!(open(&link).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::remove_file(link).unwrap();
        fs::remove_file(path).unwrap();
    }
}
