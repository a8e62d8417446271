//! Threads of roxe, which must not keep a process alive. Unsafe code: a key of thread-specific
//! data, because the C library runs no thread-local destructors when the main thread calls
//! `pthread_exit`.
//!
//! A process lives as long as it has a thread. When `main` ends by `pthread_exit` and the last
//! thread of the program returns, roxe's threads have to end too. The system does not report the
//! end of a thread that never called roxe. So once a thread that started one of roxe's threads has
//! ended, roxe's threads check the thread list periodically. Without `/proc` such a process does
//! not end.

use std::ffi::c_void;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{LazyLock, Weak};
use std::time::Duration;

const CHECK_INTERVAL: Duration = Duration::from_millis(200);

static THREADS: AtomicUsize = AtomicUsize::new(0);
/// True once a thread of the program has ended that had started one of roxe's threads.
static STARTER_ENDED: AtomicBool = AtomicBool::new(false);

/// The registration of a thread of roxe, which holds it as long as it runs.
#[derive(Debug)]
pub struct OwnThread(());

impl OwnThread {
    /// Registers the calling thread as one of roxe's.
    pub fn begin() -> Self {
        THREADS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// Returns the time that the thread may sleep before it calls [`OwnThread::is_left_over`];
    /// `None` for no limit.
    pub fn look_again_after(&self) -> Option<Duration> {
        STARTER_ENDED.load(Ordering::Relaxed).then_some(CHECK_INTERVAL)
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

/// Returns the number of threads of this process, including a main thread that has ended before
/// others.
fn threads() -> Option<usize> {
    // A folder has two links, and one more for each folder in it.
    let links = fs::metadata("/proc/self/task").ok()?.nlink();
    usize::try_from(links).ok()?.checked_sub(2)
}

/// Returns true if the main thread has ended while others run: it stays as a zombie.
fn has_main_ended() -> bool {
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return false };
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

/// The object that a thread of roxe sleeps on.
pub trait Wake: Send + Sync {
    /// Wakes the thread, or keeps it from going to sleep the next time.
    fn wake(&self);
}

/// The threads of roxe that one thread of the program has started. The end of that thread wakes
/// them.
type StartedThreads = Vec<Weak<dyn Wake>>;

/// The thread-specific data key of [`StartedThreads`]; `None` if the process has no more keys.
static KEY: LazyLock<Option<libc::pthread_key_t>> = LazyLock::new(|| {
    let mut key = 0;
    // SAFETY: the call writes `key`. The destructor lives as long as the process, because the
    // library is never unloaded while the program runs.
    let result = unsafe { libc::pthread_key_create(&raw mut key, Some(end)) };
    (result == 0).then_some(key)
});

/// Called at the end of a thread that has [`StartedThreads`].
unsafe extern "C" fn end(started_threads: *mut c_void) {
    STARTER_ENDED.store(true, Ordering::Relaxed);
    // SAFETY: `started_by_caller` stored a box under the key, and the C library passes it to one
    // call only.
    let started_threads = unsafe { Box::from_raw(started_threads.cast::<StartedThreads>()) };
    started_threads.iter().filter_map(Weak::upgrade).for_each(|thread| thread.wake());
}

/// Records that the calling thread has started a thread of roxe. The end of the caller wakes the
/// started thread, which then checks if the program has ended.
pub fn started_by_caller(started: Weak<dyn Wake>) {
    let Some(key) = *KEY else { return };
    // SAFETY: the value of the key is null or a box that this function has stored for this thread,
    // and no reference to the box exists.
    unsafe {
        let mut started_threads = libc::pthread_getspecific(key).cast::<StartedThreads>();
        if started_threads.is_null() {
            started_threads = Box::into_raw(Box::default());
            if libc::pthread_setspecific(key, started_threads.cast()) != 0 {
                return drop(Box::from_raw(started_threads));
            }
        }
        (*started_threads).retain(|thread| thread.strong_count() > 0);
        (*started_threads).push(started);
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
    fn end_of_starter_wakes_the_started_thread() {
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
