//! Pins processes to processors: servers to one, clients to another, each with all its threads.
//!
//! Unpinned, two processes that spin may share a processor for a whole measurement while the other
//! one is idle or busy with other processes, which makes figures a matter of luck.

use crate::pair;
use std::io;
use std::sync::OnceLock;
use std::thread;

/// True if processes are pinned in this run.
static PINNED: OnceLock<bool> = OnceLock::new();

/// The two ends of a pair.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Started first; waits for the other.
    Server,
    /// Measures.
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

/// From now on every process of the benchmark has its processor, if `wanted` and if the machine has
/// two. This one is a client.
pub fn begin(wanted: bool) -> io::Result<bool> {
    let possible = thread::available_parallelism()?.get() >= 2 && pair::installed("taskset");
    let pinned = *PINNED.get_or_init(|| wanted && possible);
    if pinned {
        pin_self(End::Client.processor())?;
    }
    Ok(pinned)
}

/// The command before a command that puts it on its processor.
pub fn prefix(end: End) -> Vec<String> {
    if *PINNED.get().unwrap_or(&false) { always(end) } else { Vec::new() }
}

/// Pins a program in a guest, which has two processors of its own.
pub fn always(end: End) -> Vec<String> {
    ["taskset", "-c", &end.processor().to_string()].map(str::to_owned).into()
}

fn pin_self(processor: usize) -> io::Result<()> {
    let mut set = std::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: zeros are the empty set; the number is 0 or 1, which every set has room for; the
    // kernel reads the set whole.
    let rc = unsafe {
        libc::CPU_SET(processor, set.assume_init_mut());
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set.as_ptr())
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
