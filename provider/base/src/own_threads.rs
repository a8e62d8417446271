//! Threads of this library, which must not keep a process alive. **Unsafe room**: a key of
//! thread-specific data, because the C library runs no thread-local destructors when the first
//! thread calls `pthread_exit`.
//!
//! A process lives as long as it has a thread. When `main` ends by `pthread_exit` and the last
//! thread of the program returns, the threads of this library have to end too. The end of a thread
//! that never called this library is not reported, so a thread of the library checks the thread
//! list now and then, once a thread that started one of them has ended. Without `/proc` such a
//! process does not end.

use std::ffi::c_void;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{LazyLock, Weak};
use std::time::Duration;

/// Between two looks whether the program has ended.
const LOOK: Duration = Duration::from_millis(200);

static THREADS: AtomicUsize = AtomicUsize::new(0);
/// A thread of the program that has started one of them has ended.
static STARTER_ENDED: AtomicBool = AtomicBool::new(false);

/// Held by a thread of this library as long as it runs.
#[derive(Debug)]
pub struct OwnThread(());

impl OwnThread {
    /// The calling thread is one of this library.
    pub fn begin() -> Self {
        THREADS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// Time that the thread may sleep before it calls [`OwnThread::is_left_over`]; `None` for no
    /// limit.
    pub fn look_again_after(&self) -> Option<Duration> {
        STARTER_ENDED.load(Ordering::Relaxed).then_some(LOOK)
    }

    /// Returns true if no thread of the program is left.
    pub fn is_left_over(&self) -> bool {
        STARTER_ENDED.load(Ordering::Relaxed)
            && threads().is_some_and(|all| all <= THREADS.load(Ordering::Relaxed) + usize::from(has_main_ended()))
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of threads of this process, including a first thread that has ended before others.
fn threads() -> Option<usize> {
    // The folder has two links besides those of its folders.
    let links = fs::metadata("/proc/self/task").ok()?.nlink();
    usize::try_from(links).ok()?.checked_sub(2)
}

/// Returns true if the first thread has ended while others run: it stays as a zombie.
fn has_main_ended() -> bool {
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return false };
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

/// The object that a thread of this library sleeps on.
pub trait Wake: Send + Sync {
    /// Wakes the thread, or keeps it from going to sleep the next time.
    fn wake(&self);
}

/// The threads that are woken at the end of the thread that has started them.
type AtEnd = Vec<Weak<dyn Wake>>;

/// The key of the [`AtEnd`] of each thread that has one; `None`: the process has no more keys.
static KEY: LazyLock<Option<libc::pthread_key_t>> = LazyLock::new(|| {
    let mut key = 0;
    // SAFETY: the call writes `key`; the destructor lives as long as the process, because this
    // library is never unloaded while the program runs.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(end)) };
    (made == 0).then_some(key)
});

/// Called at the end of a thread that has an [`AtEnd`].
unsafe extern "C" fn end(at_end: *mut c_void) {
    STARTER_ENDED.store(true, Ordering::Relaxed);
    // SAFETY: `started_by_caller` has made the value of the key so, and the C library gives it to
    // one call only.
    let at_end = unsafe { Box::from_raw(at_end.cast::<AtEnd>()) };
    at_end.iter().filter_map(Weak::upgrade).for_each(|thread| thread.wake());
}

/// The calling thread has started a thread of this library, which looks at the end of the caller
/// whether the program has ended.
pub fn started_by_caller(started: Weak<dyn Wake>) {
    let Some(key) = *KEY else { return };
    // SAFETY: the value of the key is null or a box that this function has made for this thread,
    // which no reference points to.
    unsafe {
        let mut at_end = libc::pthread_getspecific(key).cast::<AtEnd>();
        if at_end.is_null() {
            at_end = Box::into_raw(Box::default());
            if libc::pthread_setspecific(key, at_end.cast()) != 0 {
                return drop(Box::from_raw(at_end));
            }
        }
        (*at_end).retain(|started| started.strong_count() > 0);
        (*at_end).push(started);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

    #[test]
    fn threads_are_counted_and_main_runs() {
        let before = threads().unwrap();
        let (end, ends) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ends.recv());
        // Other tests start and end threads meanwhile, so only the order of magnitude is certain.
        assert!(before >= 1 && threads().unwrap() >= 2);
        end.send(()).unwrap();
        thread.join().unwrap().unwrap();
        assert!(!has_main_ended());
    }

    impl Wake for mpsc::SyncSender<()> {
        fn wake(&self) {
            self.send(()).unwrap();
        }
    }

    #[test]
    fn end_of_starter_wakes_and_is_no_end_of_program() {
        let own = OwnThread::begin();
        let (woken, is_woken) = mpsc::sync_channel(1);
        let woken: Arc<dyn Wake> = Arc::new(woken);
        let started = Arc::downgrade(&woken);
        std::thread::spawn(move || started_by_caller(started)).join().unwrap();
        is_woken.recv().unwrap();
        assert!(own.look_again_after().is_some());
        assert!(!own.is_left_over(), "the thread of this test is one of the program");
    }
}
