//! `ROXE_COUNTERS=FOLDER`: files that show other programs what the devices count, while they count
//! it.
//!
//! `roxe run` makes the files, one per counter, in the `/sys/class/infiniband` that the program
//! sees. All processes of the run add to the same ones, so they show the sum, also of processes
//! that have ended. A process writes what it has counted at most `PERIOD` after it has, and the
//! rest when it ends in good order; the kernel's own `hw_counters` may be as old. Where writing
//! takes more than 20 us it does so less often: 1/512 of its time if 100 ms is enough for that. The
//! lock of the folder (`man flock`) keeps two processes from adding at the same time.
//!
//! Where the files are not there or may not be written, the program counts for itself only and is
//! not told: it did not ask for them. Touches the files and the lock.

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

/// The oldest that a file may be, as in the kernel (`hw_counters/lifespan`).
const PERIOD: Duration = Duration::from_millis(10);

/// How old they may be where writing them takes long: this many times as long as it takes, up to a
/// limit. It takes 60 to 100 us from a program that shares the thread's processor.
const SHARE: u32 = 512;
const LONGEST: Duration = Duration::from_millis(100);

/// One number for every file.
type Values = [u64; FILES.len()];

/// The files of a device below a port: those of `FILES`, by name.
pub fn counter_files() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(path, _)| *path)
}

/// The files of one device.
#[derive(Debug)]
pub struct CounterFiles {
    /// The folder of the port.
    folder: PathBuf,
    /// For whoever prints the counters of a process that cannot.
    stats: Option<StatsFile>,
    /// What was added to the files so far.
    told: Mutex<rank::Told, Values>,
    /// The files of the port cannot be written.
    lacks_files: AtomicBool,
    /// All has been written for the last time.
    is_closed: AtomicBool,
    /// How long after something was counted to write it, nanoseconds.
    pause: AtomicU64,
}

impl CounterFiles {
    /// The files of port 1 of `device` in the folder `root`, if there is one, and what is left in
    /// the folder `stats`.
    pub fn new(root: Option<&Path>, stats: Option<&Path>, device: &str) -> Self {
        Self {
            folder: root.map(|root| root.join(device).join("ports/1")).unwrap_or_default(),
            stats: stats.map(|folder| StatsFile::new(folder, device)),
            told: Mutex::new([0; FILES.len()]),
            lacks_files: AtomicBool::new(root.is_none()),
            is_closed: AtomicBool::new(false),
            pause: AtomicU64::new(pause_after(Duration::ZERO)),
        }
    }

    /// Whether something was counted that the files do not show. `counters` adds up what was, which
    /// is asked for only if anybody reads it.
    pub fn is_behind(&self, counters: impl FnOnce() -> Counters) -> bool {
        let has_readers = self.stats.is_some() || !self.lacks_files.load(Ordering::Relaxed);
        has_readers && !self.is_closed.load(Ordering::Relaxed) && *self.told.lock() != values(&counters())
    }

    /// Adds what the files do not show yet, later if another process is at it. `counters` are read
    /// under the lock: a sum that is older than the last one would count twice.
    pub fn publish(&self, counters: impl FnOnce() -> Counters) {
        let begun = clock::spent();
        let mut told = self.told.lock();
        // What is counted meanwhile waits, so that the line and the files show the same.
        let now = counters();
        if let Some(stats) = self.stats.as_ref().filter(|_| !self.is_closed.load(Ordering::Relaxed)) {
            stats.write(&now);
        }
        self.add_new(&mut told, &now, |folder| folder.try_lock().is_ok());
        drop(told);
        self.pause.store(pause_after(clock::spent().saturating_sub(begun)), Ordering::Relaxed);
    }

    /// The end: adds what the files do not show yet, and nothing any more from then on. What they
    /// show of this process.
    pub fn close(&self, counters: &Counters) -> Counters {
        let mut told = self.told.lock();
        let last = counters.clone();
        self.add_new(&mut told, &last, |folder| folder.lock().is_ok());
        self.is_closed.store(true, Ordering::Relaxed);
        self.stats.iter().for_each(StatsFile::remove);
        last
    }

    /// Adds what the files do not show yet if the folder `is_locked` then; if not, it is another
    /// process's turn.
    fn add_new(&self, told: &mut Values, counters: &Counters, is_locked: impl FnOnce(&File) -> bool) {
        if self.is_closed.load(Ordering::Relaxed) {
            return;
        }
        if self.lacks_files.load(Ordering::Relaxed) {
            *told = values(counters);
            return;
        }
        match File::open(&self.folder) {
            // Others wait until it is dropped.
            Ok(folder) if is_locked(&folder) => self.add_all(told, values(counters)),
            Ok(_) => {}
            Err(_) => self.lacks_files.store(true, Ordering::Relaxed),
        }
    }

    /// How long after something was counted to write it.
    pub fn pause(&self) -> Duration {
        Duration::from_nanos(self.pause.load(Ordering::Relaxed))
    }

    fn add_all(&self, told: &mut Values, now: Values) {
        for (((path, _), told), now) in FILES.iter().zip(told).zip(now) {
            let grown = now.wrapping_sub(*told);
            // A file that somebody removed has no reader; the others go on.
            if grown > 0 && add(&self.folder.join(path), grown).is_ok() {
                *told = now;
            }
        }
    }

    /// The counters begin anew, in the child of a fork. A thread that the child lacks may have been
    /// writing for an engine that is gone, so that nobody held it up: then the child tells nothing.
    pub fn begin_anew(&self) {
        match self.told.try_lock() {
            Some(mut told) => *told = [0; FILES.len()],
            None => self.is_closed.store(true, Ordering::Relaxed),
        }
        self.stats.iter().for_each(StatsFile::abandon);
    }

    /// Its lock, for the fork handlers.
    pub fn raw(&self) -> &impl Lockable {
        &self.told
    }
}

/// Nanoseconds until the next time, when it has taken `cost`.
fn pause_after(cost: Duration) -> u64 {
    (cost * SHARE).clamp(PERIOD, LONGEST).as_nanos() as u64
}

fn values(counters: &Counters) -> Values {
    FILES.map(|(_, value)| value(counters))
}

/// Adds to the number in a file, which is no link. It never gets shorter, so that writing it at
/// once is enough.
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

    /// The files of a device, all 0; removed in the end.
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
    fn what_was_counted_is_added_once() {
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
    fn several_processes_are_summed_up_and_take_turns() {
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
    fn what_is_counted_behind_the_last_time_is_told_nowhere() {
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
    fn counters_that_begin_anew_are_added_from_0_on() {
        let files = Files::new("anew");
        let (live, counters) = (CounterFiles::new(Some(&files.0), None, "roxe0"), Counters::default());
        counters.sent_packets.add(5);
        live.publish(|| counters.clone());
        counters.clear();
        live.begin_anew();
        counters.sent_packets.add(1);
        live.publish(|| counters.clone());
        assert_eq!(files.sent(), "6\n");
    }

    #[test]
    fn what_is_counted_while_it_is_written_is_in_the_line_and_in_the_files_or_in_neither() {
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
    fn a_512th_of_the_time_goes_into_writing_where_that_takes_long() {
        let after = |micros| Duration::from_nanos(pause_after(Duration::from_micros(micros)));
        assert_eq!([0, 10, 100, 1000].map(after).map(|pause| pause.as_millis()), [10, 10, 51, 100]);
    }

    #[test]
    fn nothing_is_added_through_a_link() {
        let files = Files::new("link");
        let (file, target) = (files.0.join("roxe0/ports/1/hw_counters/sent_pkts"), files.0.join("precious"));
        fs::rename(&file, &target).unwrap();
        std::os::unix::fs::symlink(&target, &file).unwrap();
        assert!(add(&file, 7).is_err());
        assert_eq!(fs::read_to_string(&target).unwrap(), "0\n");
    }

    #[test]
    fn files_that_are_not_there_are_given_up() {
        let (live, counters) = (CounterFiles::new(Some(Path::new("/nonexistent")), None, "roxe0"), Counters::default());
        counters.sent_packets.add(1);
        assert!(live.is_behind(|| counters.clone()));
        live.publish(|| counters.clone());
        assert!(!live.is_behind(|| counters.clone()));
    }
}
