//! What is done when the process ends in good order. **Unsafe room**: `atexit`.
//!
//! A process that is killed, or leaves by `_exit`, does none of it.

use parking_lot::Mutex;
use std::panic::catch_unwind;

/// What is to be done, in order.
static TASKS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Does `task` when the process ends, once however often it is asked for.
pub(crate) fn at_exit(task: fn()) {
    let mut tasks = TASKS.lock();
    if tasks.is_empty() {
        // SAFETY: `run` is a function of the type asked for that does not unwind. It lives in this library, whose
        // unloading runs and forgets it.
        unsafe { libc::atexit(run) };
    }
    if !tasks.iter().any(|known| std::ptr::fn_addr_eq(*known, task)) {
        tasks.push(task);
    }
}

extern "C" fn run() {
    // A fork in another thread may hold the lock for ever; then nothing is told.
    let tasks = TASKS.try_lock().map(|tasks| tasks.clone()).unwrap_or_default();
    // There is nobody left to tell of a failure.
    tasks.into_iter().for_each(|task| _ = catch_unwind(task));
}
