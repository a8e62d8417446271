//! The trace: what queue pairs do over time, for a viewer of Chrome's Trace Event format
//! (docs/trace.md).
//!
//! ```text
//! device, capi  tell(|| Event)       -> Tracks: a track for each queue pair -> Lines -> File
//! engine        packets(&[packet])   ->                                    (lines)   (file)
//! ```
//!
//! A further listener to the events of the checker; packets come as captures see them. What is told
//! becomes lines in memory; the background thread of an engine writes them out every
//! [`INTERVAL`], so that a process that is killed loses no more than that, and whoever finds
//! a megabyte waiting writes it itself. Touches the file of the trace and standard error.

mod file;
mod lines;
mod packet;
mod pair;
mod tracks;

pub use crate::listeners::is_tracing as is_on;
pub use packet::TracedPacket;

use crate::event::Event;
use crate::listeners;
use lines::Lines;
use roxe_base::cancel::uncancelled;
use roxe_base::clock;
use roxe_base::config::Config;
use roxe_base::error::Error;
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::private_file::names_process;
use roxe_base::standard_error;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracks::Tracks;

/// How long lines wait in memory at most while the process runs.
pub const INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of lines that wait in memory.
const LIMIT: usize = 1 << 20;

static FILE: Mutex<rank::TraceFile, Option<Output>> = Mutex::new(None);
static TRACE: Mutex<rank::Trace, Option<Trace>> = Mutex::new(None);

/// Where lines go.
#[derive(Debug)]
struct Output {
    wanted: PathBuf,
    /// `None`: the child of a fork has not written yet, and its file is another one.
    file: Option<File>,
    /// What is written now; kept for its room.
    writing: String,
}

/// What waits to be written.
#[derive(Debug)]
struct Trace {
    lines: Lines,
    tracks: Tracks,
}

/// Opens the file, once; whether there is to be a trace. EINVAL and others: it cannot be used.
pub(crate) fn start(config: &Config) -> Result<bool, Error> {
    let Some(wanted) = &config.trace else { return Ok(false) };
    begin(wanted).map_err(|e| Error::os(format!("cannot write the trace {} (ROXE_TRACE)", wanted.display()), &e))?;
    Ok(true)
}

fn begin(wanted: &Path) -> io::Result<()> {
    let mut output = FILE.lock();
    if output.is_none() {
        let file = Some(file::open(wanted)?);
        *output = Some(Output { wanted: wanted.into(), file, writing: String::new() });
        *TRACE.lock() = Some(Trace::new());
    }
    Ok(())
}

impl Trace {
    fn new() -> Self {
        Self { lines: Lines::new(std::process::id()), tracks: Tracks::default() }
    }
}

/// Adds what happened.
pub(crate) fn observe(event: &Event<'_>) {
    add(|lines, tracks| tracks.event(lines, event, clock::now()));
}

/// Adds packets.
pub fn packets(packets: &[TracedPacket]) {
    if !packets.is_empty() {
        add(|lines, tracks| packets.iter().for_each(|packet| tracks.packet(lines, packet, clock::now())));
    }
}

fn add(what: impl FnOnce(&mut Lines, &mut Tracks)) {
    let is_full = {
        let mut trace = TRACE.lock();
        let Some(Trace { lines, tracks }) = &mut *trace else { return };
        what(lines, tracks);
        lines.len() >= LIMIT
    };
    if is_full {
        write_out();
    }
}

/// Writes what waits, if there is a trace.
pub fn write_out() {
    if !is_on() {
        return;
    }
    let mut output = FILE.lock();
    let Some(Output { wanted, file, writing }) = &mut *output else { return };
    if let Some(Trace { lines, .. }) = &mut *TRACE.lock() {
        lines.swap(writing);
    }
    if writing.is_empty() {
        return;
    }
    let written = uncancelled(|| {
        let file = match file {
            Some(file) => file,
            None => file.insert(file::open(wanted)?),
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

/// The program ends: what is open ends with it.
pub(crate) fn end() {
    add(|lines, tracks| tracks.end(lines, clock::now()));
    write_out();
}

/// The locks, for a fork.
pub(crate) fn locks() -> [&'static dyn Lockable; 2] {
    [&FILE, &TRACE]
}

/// In the child of a fork: what waits belongs to the parent, and so do its objects. The file is
/// shared, unless each process has its own.
pub(crate) fn abandon() {
    if let Some(output) = FILE.try_lock().as_deref_mut().and_then(Option::as_mut) {
        output.writing.clear();
        output.file.take_if(|_| names_process(&output.wanted));
    }
    if let Some(trace) = TRACE.try_lock().as_deref_mut().and_then(Option::as_mut) {
        *trace = Trace::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Alone with the trace of this process.
    #[test]
    fn what_waits_at_a_fork_is_left_to_the_parent_and_the_child_names_itself() {
        let path = std::env::temp_dir().join(format!("roxe-trace-{}-fork", std::process::id()));
        begin(&path).unwrap();
        listeners::add(listeners::TRACE);
        observe(&Event::Announced { cq: roxe_base::uses::ObjectId::next() });
        abandon();
        observe(&Event::Exit);
        end();
        let text = std::fs::read_to_string(&path).unwrap();
        listeners::remove(listeners::TRACE);
        std::fs::remove_file(path).unwrap();
        assert_eq!((text.matches("process_name").count(), text.lines().count()), (1, 3), "{text}");
    }
}
