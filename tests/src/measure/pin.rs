//! Pins processes with all their threads to processors: servers to one, clients to another.
//!
//! Unpinned, two processes that spin may share a processor for a whole measurement while another
//! processor is idle, so that figures vary between runs.

use crate::pair;
use std::io;
use std::sync::OnceLock;
use std::thread;

/// True if processes are pinned in this run.
static PINNED: OnceLock<bool> = OnceLock::new();

/// The ends of a pair.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// The end that is started first and waits for the client.
    Server,
    /// The end that measures.
    Client,
}

impl End {
    const fn processor(self) -> usize {
        match self {
            Self::Server => 1,
            Self::Client => 0,
        }
    }
}

/// Pins this process as a client, and later processes of the benchmark through [`prefix`], if
/// `wanted` and if the machine has two processors. Returns true if processes are pinned.
pub fn begin(wanted: bool) -> io::Result<bool> {
    let possible = thread::available_parallelism()?.get() >= 2 && pair::installed("taskset");
    let pinned = *PINNED.get_or_init(|| wanted && possible);
    if pinned {
        pin_self(End::Client.processor())?;
    }
    Ok(pinned)
}

/// Returns the command prefix that pins a process; empty if processes are not pinned.
pub fn prefix(end: End) -> Vec<String> {
    if *PINNED.get().unwrap_or(&false) { always(end) } else { Vec::new() }
}

/// Returns the command prefix that pins a process even if [`begin`] has not pinned this one: for a
/// guest, which has two processors of its own.
pub fn always(end: End) -> Vec<String> {
    ["taskset", "-c", &end.processor().to_string()].map(str::to_owned).into()
}

fn pin_self(processor: usize) -> io::Result<()> {
    let mut set = std::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: zeros are the empty set; the processor is 0 or 1, which a set can hold; the kernel
    // reads exactly the size of the set.
    let rc = unsafe {
        libc::CPU_SET(processor, set.assume_init_mut());
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set.as_ptr())
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
