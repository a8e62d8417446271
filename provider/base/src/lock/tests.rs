//! The order of locks: what is allowed, and how a violation ends a process.

use super::rank::{Qp, RingSender, RingsOut};
use super::*;
use std::io::Read;
use std::os::fd::FromRawFd;

/// Returns the output of a forked child that runs `violation`, and the signal that ends the child.
fn in_child(violation: impl FnOnce()) -> (String, i32) {
    let (mut pipe, mut status) = ([0; 2], 0);
    // SAFETY: `pipe` has room for two descriptors; the child ends with `_exit` at the latest, and
    // only the returned file owns the reading end.
    let (reader, pid) = unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let pid = libc::fork();
        if pid == 0 {
            libc::dup2(pipe[1], 2);
            violation();
            libc::_exit(0);
        }
        libc::close(pipe[1]);
        (std::fs::File::from_raw_fd(pipe[0]), pid)
    };
    let mut output = String::new();
    (&reader).read_to_string(&mut output).unwrap();
    // SAFETY: the call waits for a child of this test and writes `status`, which outlives it.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    (output, if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 })
}

#[test]
fn lock_order_violation_aborts_with_both_sites() {
    let (outer, inner) = (Mutex::<Qp, _>::new(()), RwLock::<RingsOut, _>::new(()));
    let (output, signal) = in_child(|| {
        let _inner = inner.read();
        let _outer = outer.lock();
    });
    assert_eq!(signal, libc::SIGABRT, "{output}");
    assert!(output.contains("rank::Qp is waited for at") && output.contains("rank::RingsOut is held"), "{output}");
    assert_eq!(output.matches(file!()).count(), 2, "{output}");
}

#[test]
fn locks_in_order_or_tried_release_in_any_order() {
    let (outer, middle, inner) =
        (Mutex::<Qp, _>::new(()), Mutex::<RingSender, _>::new(()), Sharded::<RingsOut, _>::new(()));
    let (first, second, third) = (outer.lock(), middle.lock(), inner.read());
    drop(second);
    let second = middle.try_lock().unwrap();
    drop(first);
    drop(outer.try_lock_for(Duration::ZERO).unwrap());
    drop(third);
    drop(second);
    drop((outer.lock(), inner.write()));
}

#[test]
fn same_rank_locks_abort_except_in_lock_raw() {
    let [a, b] = [(); 2].map(|()| Mutex::<Qp, _>::new(()));
    let (output, signal) = in_child(|| drop((a.lock(), b.lock())));
    assert_eq!(signal, libc::SIGABRT, "{output}");
    let (output, signal) = in_child(|| drop((a.lock(), a.lock())));
    assert_eq!(signal, libc::SIGABRT, "a thread would wait for itself: {output}");
    [&a, &b].into_iter().for_each(Lockable::lock_raw);
    // SAFETY: this thread has just taken both locks.
    [&a, &b].into_iter().for_each(|lock| unsafe { lock.unlock_raw() });
    drop(b.lock());
}
