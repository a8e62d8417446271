//! Detects other processes that disturbed a measurement.
//!
//! Two things together make a disturbance: what the processors did (`/proc/stat`) less what this
//! process and its children did is what others did; and our processes waited for a processor
//! (`/proc/PID/schedstat`). Others alone may have taken what we left to them, and waiting alone may
//! be for another thread of ours. Children count when they have been waited for, so all of them
//! must have ended at both ends of the interval, but for one that is named.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Up to this share of the machine's time other processes may use: the system itself uses as much,
/// and what the coarse clock of `/proc/stat` (10 ms) makes up.
pub const OTHERS: f64 = 0.08;
/// Up to this share of the time our processes may wait for a processor, all together.
pub const WAITING: f64 = 0.05;

/// Load of the machine during an interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disturbance {
    /// Other processes: share of the time of all processors.
    pub used: f64,
    /// The hypervisor, for other machines: the same.
    pub stolen: f64,
    /// Time that our processes waited for a processor: share of the interval.
    pub waited: f64,
    /// Processor time of our own processes in seconds.
    pub own: f64,
}

impl Disturbance {
    /// Returns true if a figure taken meanwhile is unreliable.
    pub fn disturbs(&self) -> bool {
        self.stolen > OTHERS || (self.used > OTHERS && self.waited > WAITING)
    }
}

/// Time in nanoseconds that children waited for a processor since this process began.
static WAITED: AtomicU64 = AtomicU64::new(0);

/// Counts what a child waited for a processor, or its first thread did. Call it once for each,
/// before the child is reaped.
pub fn note(child: u32) {
    let waited = waited(&format!("/proc/{child}/schedstat")).unwrap_or(0);
    WAITED.fetch_add(waited, Ordering::Relaxed);
}

/// Returns true if a child has ended and has not been reaped.
pub fn has_ended(child: u32) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the kernel writes at most the whole structure, and zeros are one, too.
    unsafe { libc::waitid(libc::P_PID, child, info.as_mut_ptr(), how) == 0 && info.assume_init().si_pid() != 0 }
}

/// Time in nanoseconds that a thread has waited for a processor: the second number of its
/// `schedstat`.
fn waited(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.split(' ').nth(1)?.parse().ok()
}

/// Waiting time of all threads of a process, like [`waited`].
fn waited_of_all(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| waited(thread.path().join("schedstat").to_str()?)).sum()
}

/// The beginning of an interval.
#[derive(Debug)]
pub struct Interval {
    start: Instant,
    machine: Machine,
    other: Option<u32>,
    ours: f64,
    waited: u64,
}

impl Interval {
    /// Starts an interval. `other` is another process of ours, which continues.
    pub fn begin(other: Option<u32>) -> io::Result<Self> {
        let (ours, waited) = (ours(other)?, Self::waited(other));
        Ok(Self { start: Instant::now(), machine: Machine::now()?, other, ours, waited })
    }

    /// Ends the interval and returns what other processes used since its start.
    pub fn end(self) -> io::Result<Disturbance> {
        let now = Machine::now()?;
        let seconds = self.start.elapsed().as_secs_f64();
        let capacity = seconds * now.processors;
        let own = ours(self.other)? - self.ours;
        let others = (now.busy - self.machine.busy) - own;
        let stolen = now.stolen - self.machine.stolen;
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a benchmark")]
        let waited = Self::waited(self.other).saturating_sub(self.waited) as f64 / 1e9;
        Ok(Disturbance { used: (others / capacity).max(0.0), stolen: stolen / capacity, waited: waited / seconds, own })
    }

    /// Time in nanoseconds that the children, this process's first thread and the process `other`
    /// waited.
    fn waited(other: Option<u32>) -> u64 {
        let of_other = other.map_or(0, waited_of_all);
        WAITED.load(Ordering::Relaxed) + waited("/proc/self/schedstat").unwrap_or(0) + of_other
    }
}

/// Seconds since the machine was started, over all processors.
#[derive(Debug, PartialEq)]
struct Machine {
    busy: f64,
    stolen: f64,
    processors: f64,
}

impl Machine {
    fn now() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        Self::parse(&text, ticks_per_second()).ok_or_else(|| io::Error::other("/proc/stat is not understood"))
    }

    /// The first line: user, nice, system, idle, waiting for disks, interrupts, soft interrupts,
    /// stolen.
    fn parse(text: &str, per_second: f64) -> Option<Self> {
        let ticks: Vec<f64> =
            text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [user, nice, system, _idle, _waiting, hard, soft, stolen, ..] = ticks[..] else { return None };
        let one = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        #[expect(clippy::cast_precision_loss, reason = "few")]
        let processors = text.lines().filter(one).count() as f64;
        Some(Self { busy: (user + nice + system + hard + soft) / per_second, stolen: stolen / per_second, processors })
    }
}

/// Unit of times in `/proc`.
fn ticks_per_second() -> f64 {
    // SAFETY: takes no pointers.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    #[expect(clippy::cast_precision_loss, reason = "a hundred")]
    let ticks = ticks as f64;
    ticks
}

/// Processor seconds of this process, of its children that have ended, and of the process `other`.
fn ours(other: Option<u32>) -> io::Result<f64> {
    let of_other = other.map_or(Ok(0.0), of_process)?;
    Ok(usage(libc::RUSAGE_SELF)? + usage(libc::RUSAGE_CHILDREN)? + of_other)
}

/// Processor seconds of a process with all its threads.
fn of_process(pid: u32) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Behind the name, which may hold anything: state, ten numbers, and the time in the program and
    // in the system.
    let words = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let ticks: Vec<f64> = words.skip(11).take(2).filter_map(|word| word.parse().ok()).collect();
    Ok(ticks.iter().sum::<f64>() / ticks_per_second())
}

fn usage(whose: libc::c_int) -> io::Result<f64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel fills the structure whole, or the call fails.
    let usage = unsafe {
        if libc::getrusage(whose, usage.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        usage.assume_init()
    };
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a process")]
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_of_proc_stat_is_parsed() {
        let text = "cpu  100 200 300 9000 50 1 2 40 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 2 3 4 5 6 7 8 0 0\nintr 5\n";
        assert_eq!(Machine::parse(text, 100.0), Some(Machine { busy: 6.03, stolen: 0.4, processors: 2.0 }));
        assert_eq!(Machine::parse("intr 5\n", 100.0), None);
    }

    #[test]
    fn own_work_is_not_foreign() {
        let interval = Interval::begin(None).unwrap();
        let before = ours(None).unwrap();
        while ours(None).unwrap() == before {}
        let foreign = interval.end().unwrap();
        assert!(foreign.used >= 0.0 && foreign.stolen >= 0.0 && foreign.own > 0.0, "{foreign:?}");
    }

    #[test]
    fn other_processes_disturb_only_if_ours_wait() {
        let foreign = |used, stolen, waited| Disturbance { used, stolen, waited, own: 0.0 };
        assert!(foreign(0.3, 0.0, 0.2).disturbs() && foreign(0.0, 0.2, 0.0).disturbs());
        assert!(!foreign(0.3, 0.0, 0.01).disturbs() && !foreign(0.0, 0.0, 0.4).disturbs());
    }

    #[test]
    fn waiting_time_is_read_before_child_is_reaped() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !has_ended(child.id()) {}
        assert!(waited(&format!("/proc/{}/schedstat", child.id())).is_some());
        child.wait().unwrap();
        assert!(!has_ended(child.id()));
    }

    #[test]
    fn process_time_equals_getrusage() {
        let before = of_process(std::process::id()).unwrap();
        assert!(before <= usage(libc::RUSAGE_SELF).unwrap() + 0.02, "{before}");
        assert!(of_process(u32::MAX).is_err());
    }
}
