//! Files that show the device's counters to other programs (`ROXE_COUNTERS=FOLDER`).
//!
//! `roxe run` creates the files, one per counter, in the program's `/sys/class/infiniband`. All
//! processes of the run add to them, so they hold the sum, including processes that have exited. A
//! process adds `MIN_PAUSE` after a change at the latest, less often where writing is slow, and its
//! last changes when it exits in order. The lock of the directory (`man flock`) serializes the
//! processes. Without writable files the process counts only for itself and reports no error.

use crate::counters::{Counters, FILES};
use crate::stats_file::StatsFile;
use roxe_base::clock;
use roxe_base::lock::{Lockable, Mutex, rank};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Minimum time between two writes, equal to the age of counters in the kernel
/// (`hw_counters/lifespan`).
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// Factor from the duration of a write to the pause after it; `MAX_PAUSE` limits the pause.
const PAUSE_FACTOR: u32 = 512;
const MAX_PAUSE: Duration = Duration::from_millis(100);

type Values = [u64; FILES.len()];

/// Paths of the files of a device, below its port.
pub fn counter_files() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(path, _)| *path)
}

/// Returns the counters of a port that `rdma statistic` shows, by the names of their files.
pub fn port_counters(counters: &Counters) -> impl Iterator<Item = (&'static str, u64)> {
    let named = FILES.iter().filter_map(|(path, value)| Some((path.strip_prefix("hw_counters/")?, value)));
    named.map(|(name, value)| (name, value(counters)))
}

/// The counter files of one device.
#[derive(Debug)]
pub struct CounterFiles {
    folder: PathBuf,
    /// File for a process that prints the counters of one that cannot.
    stats: Option<StatsFile>,
    written: Mutex<rank::CountersWritten, Values>,
    /// True if the files of the port cannot be written.
    lacks_files: AtomicBool,
    is_closed: AtomicBool,
    /// Pause from a change to its write in nanoseconds.
    pause: AtomicU64,
}

impl CounterFiles {
    /// Creates the files of port 1 of `device` in the directory `root`, and a file in `stats`, if
    /// given.
    pub fn new(root: Option<&Path>, stats: Option<&Path>, device: &str) -> Self {
        Self {
            folder: root.map(|root| root.join(device).join("ports/1")).unwrap_or_default(),
            stats: stats.map(|folder| StatsFile::new(folder, device)),
            written: Mutex::new([0; FILES.len()]),
            lacks_files: AtomicBool::new(root.is_none()),
            is_closed: AtomicBool::new(false),
            pause: AtomicU64::new(pause_after(Duration::ZERO)),
        }
    }

    /// Returns true if counters have changed since the last write. `counters` is called only if
    /// there are readers.
    pub fn is_behind(&self, counters: impl FnOnce() -> Counters) -> bool {
        let has_readers = self.stats.is_some() || !self.lacks_files.load(Ordering::Relaxed);
        has_readers && !self.is_closed.load(Ordering::Relaxed) && *self.written.lock() != values(&counters())
    }

    /// Adds the changes to the files, or later if another process holds the lock. `counters` is
    /// called under the lock: a sum older than the last one would count twice.
    pub fn publish(&self, counters: impl FnOnce() -> Counters) {
        let start = clock::spent();
        let mut written = self.written.lock();
        // Later changes wait, so that the line and the files agree.
        let now = counters();
        if let Some(stats) = self.stats.as_ref().filter(|_| !self.is_closed.load(Ordering::Relaxed)) {
            stats.write(&now);
        }
        self.add_new(&mut written, &now, |folder| folder.try_lock().is_ok());
        drop(written);
        self.pause.store(pause_after(clock::spent().saturating_sub(start)), Ordering::Relaxed);
    }

    /// Adds the changes for the last time and returns the values shown for this process.
    pub fn close(&self, counters: &Counters) -> Counters {
        let mut written = self.written.lock();
        let last = counters.clone();
        self.add_new(&mut written, &last, |folder| folder.lock().is_ok());
        self.is_closed.store(true, Ordering::Relaxed);
        self.stats.iter().for_each(StatsFile::remove);
        last
    }

    /// Adds the changes to the files if `is_locked` locks the directory.
    fn add_new(&self, written: &mut Values, counters: &Counters, is_locked: impl FnOnce(&File) -> bool) {
        if self.is_closed.load(Ordering::Relaxed) {
            return;
        }
        if self.lacks_files.load(Ordering::Relaxed) {
            *written = values(counters);
            return;
        }
        match File::open(&self.folder) {
            // Unlocked when dropped.
            Ok(folder) if is_locked(&folder) => {
                for (((path, _), written), now) in FILES.iter().zip(written).zip(values(counters)) {
                    let grown = now.wrapping_sub(*written);
                    // A file that was removed has no reader; the others are still written.
                    if grown > 0 && add(&self.folder.join(path), grown).is_ok() {
                        *written = now;
                    }
                }
            }
            Ok(_) => {}
            Err(_) => self.lacks_files.store(true, Ordering::Relaxed),
        }
    }

    /// Returns the pause from a change to its write.
    pub fn pause(&self) -> Duration {
        Duration::from_nanos(self.pause.load(Ordering::Relaxed))
    }

    /// Resets the state in the child of a fork. If a thread missing in the child held the lock, the
    /// child writes nothing.
    pub fn reset_after_fork(&self) {
        match self.written.try_lock() {
            Some(mut written) => *written = [0; FILES.len()],
            None => self.is_closed.store(true, Ordering::Relaxed),
        }
        self.stats.iter().for_each(StatsFile::abandon);
    }

    /// Returns the lock, for the fork handlers.
    pub fn lockable(&self) -> &impl Lockable {
        &self.written
    }
}

/// Returns the pause in nanoseconds after a write that took `cost`.
fn pause_after(cost: Duration) -> u64 {
    (cost * PAUSE_FACTOR).clamp(MIN_PAUSE, MAX_PAUSE).as_nanos() as u64
}

fn values(counters: &Counters) -> Values {
    FILES.map(|(_, value)| value(counters))
}

/// Adds to the number in a file, without following symlinks. The text never gets shorter, so one
/// write suffices.
fn add(path: &Path, grown: u64) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    let mut text = [0; 32];
    let len = file.read_at(&mut text, 0)?;
    let before = str::from_utf8(&text[..len]).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let sum = before.unwrap_or(0).wrapping_add(grown);
    file.write_all_at(format!("{sum}\n").as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The files of a device, all 0; removed when dropped.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("roxe-counters-{}-{name}", std::process::id()));
            for path in counter_files().map(|path| root.join("roxe0/ports/1").join(path)) {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "0\n").unwrap();
            }
            Self(root)
        }

        fn sent(&self) -> String {
            fs::read_to_string(self.0.join("roxe0/ports/1/hw_counters/sent_pkts")).unwrap()
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn changes_are_added_once() {
        let files = Files::new("once");
        let (live, counters) = (CounterFiles::new(Some(&files.0), None, "roxe0"), Counters::default());
        assert!(!live.is_behind(|| counters.clone()));
        counters.sent_packets.add(9);
        assert!(live.is_behind(|| counters.clone()));
        live.publish(|| counters.clone());
        live.publish(|| counters.clone());
        assert_eq!((files.sent().as_str(), live.is_behind(|| counters.clone())), ("9\n", false));
        counters.sent_packets.add(91);
        live.publish(|| counters.clone());
        assert_eq!(files.sent(), "100\n");
    }

    #[test]
    fn processes_add_up_and_take_turns() {
        let files = Files::new("sum");
        let (first, second) =
            (CounterFiles::new(Some(&files.0), None, "roxe0"), CounterFiles::new(Some(&files.0), None, "roxe0"));
        let counters = Counters::default();
        counters.sent_packets.add(5);
        first.publish(|| counters.clone());
        let turn = File::open(files.0.join("roxe0/ports/1")).unwrap();
        assert!(turn.try_lock().is_ok());
        second.publish(|| counters.clone());
        assert_eq!((files.sent().as_str(), second.is_behind(|| counters.clone())), ("5\n", true));
        drop(turn);
        second.publish(|| counters.clone());
        assert_eq!(files.sent(), "10\n");
    }

    #[test]
    fn changes_after_close_are_not_added() {
        let files = Files::new("last");
        let (live, counters) = (CounterFiles::new(Some(&files.0), None, "roxe0"), Counters::default());
        counters.sent_packets.add(5);
        live.publish(|| counters.clone());
        counters.sent_packets.add(2);
        let last = live.close(&counters);
        counters.sent_packets.add(1);
        live.publish(|| counters.clone());
        assert_eq!((files.sent().as_str(), last.sent_packets.get()), ("7\n", 7));
        assert!(!live.is_behind(|| counters.clone()));
    }

    #[test]
    fn reset_counters_are_added_from_0() {
        let files = Files::new("anew");
        let (live, counters) = (CounterFiles::new(Some(&files.0), None, "roxe0"), Counters::default());
        counters.sent_packets.add(5);
        live.publish(|| counters.clone());
        counters.clear();
        live.reset_after_fork();
        counters.sent_packets.add(1);
        live.publish(|| counters.clone());
        assert_eq!(files.sent(), "6\n");
    }

    #[test]
    fn concurrent_changes_are_in_line_and_files_or_neither() {
        let files = Files::new("meanwhile");
        let line = files.0.join(format!("{}-roxe0", std::process::id()));
        let (live, counters) = (CounterFiles::new(Some(&files.0), Some(&files.0), "roxe0"), Counters::default());
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    counters.sent_packets.add(1);
                }
            });
            let mut seen = 0;
            for _ in 0..200 {
                while counters.sent_packets.get() == seen {
                    std::thread::yield_now();
                }
                live.publish(|| counters.clone());
                seen = counters.sent_packets.get();
                let text = fs::read_to_string(&line).unwrap();
                let in_line = text.trim().rsplit('=').next().unwrap();
                if in_line != files.sent().trim() {
                    is_done.store(true, Ordering::Relaxed);
                    panic!("{in_line} in the line, {} in the files", files.sent());
                }
            }
            is_done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn slow_writes_take_a_512th_of_the_time() {
        let after = |micros| Duration::from_nanos(pause_after(Duration::from_micros(micros)));
        assert_eq!([0, 10, 100, 1000].map(after).map(|pause| pause.as_millis()), [10, 10, 51, 100]);
    }

    #[test]
    fn nothing_is_added_through_a_symlink() {
        let files = Files::new("link");
        let (file, target) = (files.0.join("roxe0/ports/1/hw_counters/sent_pkts"), files.0.join("precious"));
        fs::rename(&file, &target).unwrap();
        std::os::unix::fs::symlink(&target, &file).unwrap();
        assert!(add(&file, 7).is_err());
        assert_eq!(fs::read_to_string(&target).unwrap(), "0\n");
    }

    #[test]
    fn missing_files_are_given_up() {
        let (live, counters) = (CounterFiles::new(Some(Path::new("/nonexistent")), None, "roxe0"), Counters::default());
        counters.sent_packets.add(1);
        assert!(live.is_behind(|| counters.clone()));
        live.publish(|| counters.clone());
        assert!(!live.is_behind(|| counters.clone()));
    }
}
