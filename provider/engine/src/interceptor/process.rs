//! The recorder and the fault rules of this process.
//!
//! They are made with the first device that is opened and stay until the process ends, because it
//! reports then. In the child of a fork they belong to the parent until the child makes its first
//! queue pair.

use super::faults::Faults;
use super::recorder::Recorder;
use roxe_base::config::Config;
use roxe_base::error::Error;
use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Lockable, Mutex, rank};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Held while something is made or started anew.
static STARTING: Mutex<rank::InterceptorStarting, ()> = Mutex::new(());
static RECORDER: OnceLock<Recorder> = OnceLock::new();
static FAULTS: OnceLock<Faults> = OnceLock::new();
/// This process is the child of a fork and has not started anew.
static ABANDONED: AtomicBool = AtomicBool::new(false);

/// What `config` asks for; made on the first call.
pub(crate) fn open(config: &Config) -> Result<(Option<&'static Recorder>, Option<&'static Faults>), Error> {
    let _starting = STARTING.lock();
    if let (None, Some(path)) = (RECORDER.get(), &config.capture) {
        let recorder = Recorder::create(path).map_err(|e| cannot_write(path, &e))?;
        RECORDER.get_or_init(|| recorder);
    }
    if FAULTS.get().is_none()
        && let Some(faults) = Faults::start(config.faults.as_ref())?
    {
        FAULTS.get_or_init(|| faults);
        at_exit(Stage::Report, || FAULTS.get().into_iter().for_each(Faults::report));
    }
    Ok((RECORDER.get(), FAULTS.get()))
}

fn cannot_write(path: &Path, cause: &std::io::Error) -> Error {
    Error::os(format!("cannot write the capture file {} (ROXE_CAPTURE)", path.display()), cause)
}

/// In the child of a fork: nothing is recorded and counted until `resume`.
pub fn abandon() {
    ABANDONED.store(true, Ordering::Relaxed);
    RECORDER.get().into_iter().for_each(Recorder::abandon);
    FAULTS.get().into_iter().for_each(Faults::abandon);
}

/// Starts anew in the child of a fork; does nothing elsewhere.
pub(crate) fn resume() -> Result<(), Error> {
    let _starting = STARTING.lock();
    if !ABANDONED.load(Ordering::Relaxed) {
        return Ok(());
    }
    if let Some(recorder) = RECORDER.get() {
        recorder.resume().map_err(|e| cannot_write(recorder.wanted(), &e))?;
    }
    FAULTS.get().into_iter().for_each(Faults::resume);
    ABANDONED.store(false, Ordering::Relaxed);
    Ok(())
}

/// The lock outside of all others here, for the fork handlers. While it is held [`inner_locks`]
/// stay the same.
pub fn outer_lock() -> &'static dyn Lockable {
    &STARTING
}

/// The other locks, none of which is taken while another of them is held.
pub fn inner_locks() -> impl Iterator<Item = &'static dyn Lockable> {
    let recorder = RECORDER.get().map(|recorder| recorder.raw() as &dyn Lockable);
    recorder.into_iter().chain(FAULTS.get().map(|faults| faults.raw() as &dyn Lockable))
}
