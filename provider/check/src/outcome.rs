//! The fate of a process for `roxe sweep` (`ROXE_OUTCOME`): that it began and ended, the faults
//! that hit it, and its stacks when a signal ended it or when the sweep asks where it hangs.
//!
//! Lines with words separated by tabs go to a file that the processes of a run share: `begin
//! PROGRAM PID`, `fault PID RULE STACK`, `polled PID STACK`, `stack PID THREAD SIGNAL STACK`, `end
//! PID DESTROYED TRIED UNREAD POLLED`. DESTROYED and TRIED count calls after the first fault: calls
//! that destroy something, and calls that try again. UNREAD counts asynchronous events of a program
//! that read none, POLLED failed completions that it has polled.

use crate::stack::{Frame, Stack, fatal};
use roxe_base::config::config;
use roxe_base::own_threads::OwnThread;
use roxe_transport::fault::{Process, Verb};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Calls that destroy an object, since the first fault.
static DESTROYED: AtomicU64 = AtomicU64::new(0);
/// Calls of [`RETRIED_VERBS`] since the first fault.
static TRIED: AtomicU64 = AtomicU64::new(0);
/// Failed completions that the program has polled.
static POLLED: AtomicU64 = AtomicU64::new(0);
/// Asynchronous events that were raised and whose objects were not destroyed.
static RAISED: AtomicU64 = AtomicU64::new(0);
/// Asynchronous events that the program has read.
static READ: AtomicU64 = AtomicU64::new(0);
/// Faults so far.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Calls that a program makes again to get over a failure.
const RETRIED_VERBS: [&str; 8] = [
    "ibv_create_qp",
    "ibv_modify_qp",
    "ibv_post_send",
    "ibv_post_recv",
    "ibv_post_srq_recv",
    "ibv_wr_complete",
    "rdma_connect",
    "rdma_resolve_addr",
];

/// Returns true if the process notes its fate.
pub(crate) fn is_wanted() -> bool {
    config().is_ok_and(|config| config.outcome.is_some())
}

/// Notes that the program polls a failed completion.
#[cold]
pub fn polled_failure() {
    if is_wanted() && POLLED.fetch_add(1, Ordering::Relaxed) == 0 {
        note(&format!("polled\t{}\t{}", std::process::id(), stack_field(&Stack::here().frames())));
    }
}

/// Counts an asynchronous event that is raised.
pub fn raised_event() {
    RAISED.fetch_add(1, Ordering::Relaxed);
}

/// Counts asynchronous events that are dropped with the object that they are about.
pub fn forgot_events(count: usize) {
    RAISED.fetch_sub(count as u64, Ordering::Relaxed);
}

/// Counts an asynchronous event that the program reads.
pub fn took_event() {
    READ.fetch_add(1, Ordering::Relaxed);
}

/// Asks the threads of process `pid`, of this user, for their stacks; it must note its outcome.
pub fn ask_for_stacks(pid: u32) {
    fatal::ask(pid);
}

/// Begins to note the fate of this process, which is `process`.
pub(crate) fn start(process: &Process) {
    note(&format!("begin\t{process}\t{}", std::process::id()));
    // A thread of its own: if the program has corrupted its heap, that is usually the arena of its
    // own threads, not of this one.
    let writer = || {
        let _own = OwnThread::begin();
        fatal::serve(|thread, signal, addresses| {
            let frames = Stack::of(addresses).frames();
            note(&format!("stack\t{}\t{thread}\t{signal}\t{}", std::process::id(), stack_field(&frames)));
        });
    };
    // Without the thread, stacks are missing.
    _ = thread::Builder::new().name("roxe-outcome".to_owned()).spawn(writer);
}

/// Notes a fault of `rule`, at the call that it hit.
pub(crate) fn fault(rule: &str, frames: &[Frame]) {
    FAULTS.fetch_add(1, Ordering::Relaxed);
    note(&format!("fault\t{}\t{rule}\t{}", std::process::id(), stack_field(frames)));
}

/// Counts a call after a fault.
pub(crate) fn called(verb: &Verb) {
    if FAULTS.load(Ordering::Relaxed) == 0 {
        return;
    }
    if verb.can_fail_in_correct_use {
        TRIED.fetch_add(RETRIED_VERBS.contains(&verb.name).into(), Ordering::Relaxed);
    } else {
        DESTROYED.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn end() {
    let [destroyed, tried, polled] = [&DESTROYED, &TRIED, &POLLED].map(|count| count.load(Ordering::Relaxed));
    // A program that reads events at all may end before the last one.
    let unread = if READ.load(Ordering::Relaxed) > 0 { 0 } else { RAISED.load(Ordering::Relaxed) };
    note(&format!("end\t{}\t{destroyed}\t{tried}\t{unread}\t{polled}", std::process::id()));
}

/// Returns a stack as a field without tabs, innermost call first; `-` if it is unknown.
pub(crate) fn stack_field(frames: &[Frame]) -> String {
    let calls: Vec<_> = frames.iter().map(|frame| frame.to_string().replace(['\t', '\n'], " ")).collect();
    if calls.is_empty() { "-".to_owned() } else { calls.join(" < ") }
}

fn note(line: &str) {
    if let Ok(Some(path)) = config().map(|config| config.outcome.as_deref()) {
        // Without the line the sweep counts the fault as not reached.
        let _ = append(path, &format!("{line}\n"));
    }
}

/// Adds `text` to a file that several processes share, in one write.
pub fn append(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}
