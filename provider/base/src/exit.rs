//! Tasks for the end of a process that returns from `main` or calls `exit`; waiting for the end of
//! another process. Unsafe code: `on_exit` or `atexit`, `pidfd_open`.
//!
//! A process that is killed, or ends by `_exit`, runs no task.

use crate::lock::{Mutex, rank};
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::panic::catch_unwind;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    /// `man on_exit`: like `atexit`, with the exit status as an argument.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// The order of tasks: tasks that move packets run before tasks that report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Informs peers that this process ends.
    Shutdown,
    /// Counters and reports are written for the user.
    Report,
    /// Names by which other processes could find this one are removed.
    Clean,
}

/// The way to halt the calling thread for a debugger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTRAP, as a breakpoint raises: a process without a debugger ends.
    Trap,
    /// SIGSTOP: the whole process stops until SIGCONT.
    Stop,
}

/// Halts the calling thread, even if it blocks SIGTRAP.
pub fn halt(signal: Signal) {
    // SAFETY: `sigemptyset` initialises the set before its use; `raise` takes no pointers.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTRAP);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(if signal == Signal::Trap { libc::SIGTRAP } else { libc::SIGSTOP });
    }
}

type Task = (Stage, fn());

/// All tasks, in the order in which they run.
static TASKS: Mutex<rank::ExitTasks, Vec<Task>> = Mutex::new(Vec::new());

/// Exit status that replaces 0; 0 for no replacement.
static STATUS: AtomicI32 = AtomicI32::new(0);

/// Registers the exit handler that runs the tasks. Handlers that the program registers later run
/// before this one.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `run` has the required type, does not unwind and ignores its argument. Unloading
        // this library runs and removes the handler.
        #[cfg(target_env = "gnu")]
        unsafe {
            on_exit(run, std::ptr::null_mut())
        };
        // SAFETY: as for `on_exit`, without an argument.
        #[cfg(not(target_env = "gnu"))]
        unsafe {
            libc::atexit(run_without_status)
        };
    });
}

/// Ends the process with `status` instead of 0. On a C library without `on_exit` (musl) the
/// program's status is unknown, so `status` replaces any.
pub fn fail_with(status: i32) {
    STATUS.store(status, Ordering::Relaxed);
}

/// Runs `task` once at the end of the process. Tasks of one stage run in the order of the calls.
pub fn at_exit(stage: Stage, task: fn()) {
    install();
    note(&mut TASKS.lock(), stage, task);
}

fn note(tasks: &mut Vec<Task>, stage: Stage, task: fn()) {
    if !tasks.iter().any(|(_, known)| std::ptr::fn_addr_eq(*known, task)) {
        let at = tasks.partition_point(|(earlier, _)| *earlier <= stage);
        tasks.insert(at, (stage, task));
    }
}

#[cfg(not(target_env = "gnu"))]
extern "C" fn run_without_status() {
    run(0, std::ptr::null_mut());
}

extern "C" fn run(status: c_int, _: *mut c_void) {
    // Skips the tasks if the lock is not free: a thread that did not survive a fork may hold it for
    // ever.
    let tasks = TASKS.try_lock().map(|tasks| tasks.clone()).unwrap_or_default();
    // A failure can no longer be reported.
    tasks.into_iter().for_each(|(_, task)| _ = catch_unwind(task));
    let replacement = STATUS.load(Ordering::Relaxed);
    if status == 0 && replacement != 0 {
        // SAFETY: `fflush` of null flushes all output streams, as `exit` would do next; `_exit`
        // ends the process.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(replacement);
        }
    }
}

/// Returns a descriptor that is readable when the last thread of process `pid` has ended (`man
/// pidfd_open`).
///
/// # Errors
/// `ESRCH` if there is no such process, `ENOSYS` on kernels before 5.3.
pub fn process_end(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::pid_t::try_from(pid).unwrap_or(-1), 0) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_once_and_by_stage() {
        fn count() {
            print!("counted");
        }
        fn rules() {
            print!("applied");
        }
        fn shut_down() {
            print!("shut down");
        }
        let mut tasks = Vec::new();
        for (stage, task) in [(Stage::Report, count as fn()), (Stage::Report, rules), (Stage::Shutdown, shut_down)] {
            note(&mut tasks, stage, task);
            note(&mut tasks, stage, task);
        }
        let order: Vec<_> = tasks.iter().map(|(_, task)| *task as usize).collect();
        assert_eq!(order, [shut_down as fn() as usize, count as fn() as usize, rules as fn() as usize]);
    }
}
