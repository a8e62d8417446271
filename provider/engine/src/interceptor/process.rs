//! The recorder and the fault rules of this process.
//!
//! Both are created with the first opened device and kept until the process exits, when the rules
//! report their counts. The child of a fork uses them again once it creates its first queue pair.

use super::faults::Faults;
use super::recorder::Recorder;
use roxe_base::config::Config;
use roxe_base::error::Error;
use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_check::faults;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static STARTING: Mutex<rank::InterceptorStarting, ()> = Mutex::new(());
static RECORDER: OnceLock<Recorder> = OnceLock::new();
static FAULTS: OnceLock<Faults> = OnceLock::new();
/// True in the child of a fork until [`resume`].
static ABANDONED: AtomicBool = AtomicBool::new(false);

/// Returns the recorder and the rules that `config` demands, created on the first call.
pub(crate) fn open(config: &Config) -> Result<(Option<&'static Recorder>, Option<&'static Faults>), Error> {
    let _starting = STARTING.lock();
    if let (None, Some(path)) = (RECORDER.get(), &config.capture) {
        let recorder = Recorder::create(path).map_err(|e| cannot_write(path, &e))?;
        RECORDER.get_or_init(|| recorder);
    }
    if FAULTS.get().is_none()
        && let Some(faults) = Faults::start()?
    {
        FAULTS.get_or_init(|| faults);
        at_exit(Stage::Report, || {
            if let Some(faults) = FAULTS.get() {
                faults.report();
            }
        });
    }
    Ok((RECORDER.get(), FAULTS.get()))
}

/// Replaces the fault rules by those of `text`, if any. Returns `faults` and `rule TEXT` lines with
/// counts, or `refused REASON`.
pub(crate) fn answer(text: Option<&str>) -> String {
    if let Err(why) = text.map_or_else(faults::check_changeable, replace_rules) {
        return format!("refused {why}\n");
    }
    let rules = FAULTS.get().map_or_else(Vec::new, Faults::counts).into_iter().chain(faults::counts());
    std::iter::once("faults\n".to_owned()).chain(rules.map(|rule| format!("rule {rule}\n"))).collect()
}

fn replace_rules(text: &str) -> Result<(), String> {
    let rules = faults::parse_replacement(text)?;
    let starting = STARTING.lock();
    let mut old = match FAULTS.get() {
        Some(faults) => faults.replace(&rules).map_err(|e| e.to_string())?,
        None if rules.list().is_empty() => Vec::new(),
        None => {
            return Err(
                "it was started with rules about calls only, so its packets are not judged; start it with `roxe run \
                        --faults none` or with a rule about packets"
                    .to_owned(),
            );
        }
    };
    old.extend(faults::replace(&rules));
    // Writing to standard error blocks if it is a full pipe, so the lock is released first.
    drop(starting);
    faults::announce(&old, &rules);
    Ok(())
}

fn cannot_write(path: &Path, cause: &std::io::Error) -> Error {
    Error::os(format!("cannot write the capture file {} (ROXE_CAPTURE)", path.display()), cause)
}

/// Stops recording and counting in the child of a fork until `resume`.
pub fn abandon() {
    ABANDONED.store(true, Ordering::Relaxed);
    if let Some(recorder) = RECORDER.get() {
        recorder.abandon();
    }
    if let Some(faults) = FAULTS.get() {
        faults.abandon();
    }
}

/// Resumes in the child of a fork; does nothing in other processes.
pub(crate) fn resume() -> Result<(), Error> {
    let _starting = STARTING.lock();
    if !ABANDONED.load(Ordering::Relaxed) {
        return Ok(());
    }
    if let Some(recorder) = RECORDER.get() {
        recorder.resume().map_err(|e| cannot_write(recorder.configured(), &e))?;
    }
    if let Some(faults) = FAULTS.get() {
        faults.resume();
    }
    ABANDONED.store(false, Ordering::Relaxed);
    Ok(())
}

/// Returns the outermost lock of the interceptor, for the fork handlers. While held,
/// [`inner_locks`] does not change.
pub fn outer_lock() -> &'static dyn Lockable {
    &STARTING
}

/// Returns the other locks, of which at most one is held at a time.
pub fn inner_locks() -> impl Iterator<Item = &'static dyn Lockable> {
    let recorder = RECORDER.get().map(|recorder| recorder.lockable() as &dyn Lockable);
    recorder.into_iter().chain(FAULTS.get().map(|faults| faults.lockable() as &dyn Lockable))
}
