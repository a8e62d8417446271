//! What is done when the process ends in good order. **Unsafe room**: `atexit`.
//!
//! A process that is killed, or leaves by `_exit`, does none of it.

use crate::lock::{Mutex, rank};
use std::panic::catch_unwind;

/// When a task is done: what may still move packets comes before what tells about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Peers are told.
    Part,
    /// The user is told.
    Report,
    /// What others could still find of this process goes away.
    Clean,
}

type Task = (Stage, fn());

/// What is to be done, in order.
static TASKS: Mutex<rank::ExitTasks, Vec<Task>> = Mutex::new(Vec::new());

/// Does `task` when the process ends, once however often it is asked for; those of one stage in the order of the calls.
pub fn at_exit(stage: Stage, task: fn()) {
    let mut tasks = TASKS.lock();
    if tasks.is_empty() {
        // SAFETY: `run` is a function of the type asked for that does not unwind. It lives in this library, whose
        // unloading runs and forgets it.
        unsafe { libc::atexit(run) };
    }
    note(&mut tasks, stage, task);
}

fn note(tasks: &mut Vec<Task>, stage: Stage, task: fn()) {
    if !tasks.iter().any(|(_, known)| std::ptr::fn_addr_eq(*known, task)) {
        let at = tasks.partition_point(|(earlier, _)| *earlier <= stage);
        tasks.insert(at, (stage, task));
    }
}

extern "C" fn run() {
    // A fork in another thread may hold the lock for ever; then nothing is told.
    let tasks = TASKS.try_lock().map(|tasks| tasks.clone()).unwrap_or_default();
    // There is nobody left to tell of a failure.
    tasks.into_iter().for_each(|(_, task)| _ = catch_unwind(task));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_told_before_the_user_however_late_they_are_asked_for() {
        fn count() {
            print!("counted");
        }
        fn rules() {
            print!("applied");
        }
        fn part() {
            print!("parted");
        }
        let mut tasks = Vec::new();
        for (stage, task) in [(Stage::Report, count as fn()), (Stage::Report, rules), (Stage::Part, part)] {
            note(&mut tasks, stage, task);
            note(&mut tasks, stage, task);
        }
        let order: Vec<_> = tasks.iter().map(|(_, task)| *task as usize).collect();
        assert_eq!(order, [part as fn() as usize, count as fn() as usize, rules as fn() as usize]);
    }
}
