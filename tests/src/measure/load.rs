//! Detects other processes that disturbed a measurement.
//!
//! This process and its children are *own* processes. A measurement is disturbed if the hypervisor
//! ran other machines, or if two conditions hold: other processes used the processors, and own
//! processes waited for a processor (`/proc/PID/schedstat`). Either condition alone is harmless:
//! others may have used idle processors, and an own thread may have waited for another own thread.
//!
//! The time of other processes is that of all processes (`/proc/stat`) less that of own processes.
//! The kernel adds a child's time when the child is reaped, so no child may run when an interval
//! begins or ends, except a server process that the caller names.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Largest harmless share of all processors' time that other processes or machines use. An idle
/// system uses about this much, including the error of the coarse clock of `/proc/stat` (10 ms).
pub const MAX_OTHERS: f64 = 0.08;
/// Largest harmless share of the interval that own processes, added up, wait for a processor.
pub const MAX_WAITING: f64 = 0.05;

/// Load of the machine during an interval. Harmless unless [`Disturbance::disturbs`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Disturbance {
    /// Share of all processors' time that other processes used.
    pub used: f64,
    /// Share of all processors' time that the hypervisor gave to other machines.
    pub stolen: f64,
    /// Time that own processes waited for a processor, as a share of the interval.
    pub waited: f64,
    /// Processor time of own processes in seconds.
    pub own: f64,
}

impl Disturbance {
    /// Returns true if a figure measured in the interval is unreliable.
    pub fn disturbs(&self) -> bool {
        self.stolen > MAX_OTHERS || (self.used > MAX_OTHERS && self.waited > MAX_WAITING)
    }
}

/// Time in nanoseconds that children waited for a processor since this process began.
static WAITED: AtomicU64 = AtomicU64::new(0);

/// Records how long the first thread of a child waited for a processor. Call it once for each
/// child, before it is reaped.
pub fn record_wait(child: u32) {
    let waited = waited(&format!("/proc/{child}/schedstat")).unwrap_or(0);
    WAITED.fetch_add(waited, Ordering::Relaxed);
}

/// Returns true if a child has ended and is not reaped yet.
pub fn has_ended(child: u32) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the kernel writes at most the whole structure, and zeros are a valid value of it.
    unsafe { libc::waitid(libc::P_PID, child, info.as_mut_ptr(), options) == 0 && info.assume_init().si_pid() != 0 }
}

/// Returns the time in nanoseconds that a thread has waited for a processor: the second number of
/// its `schedstat`.
fn waited(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.split(' ').nth(1)?.parse().ok()
}

/// Returns the time in nanoseconds that all threads of a process have waited for a processor.
fn waited_by_process(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| waited(thread.path().join("schedstat").to_str()?)).sum()
}

/// The state at the beginning of an interval.
#[derive(Debug)]
pub struct Interval {
    start: Instant,
    machine: Machine,
    /// Process id of the server.
    server: Option<u32>,
    /// Processor seconds of own processes.
    own: f64,
    /// Nanoseconds that own processes have waited for a processor.
    waited: u64,
}

impl Interval {
    /// Starts an interval. `server` is a child that still runs when the interval ends.
    pub fn begin(server: Option<u32>) -> io::Result<Self> {
        let (own, waited) = (own_seconds(server)?, Self::waited(server));
        Ok(Self { start: Instant::now(), machine: Machine::now()?, server, own, waited })
    }

    /// Ends the interval and returns the load of the machine since its start.
    pub fn end(self) -> io::Result<Disturbance> {
        let now = Machine::now()?;
        let seconds = self.start.elapsed().as_secs_f64();
        let capacity = seconds * now.processors;
        let own = own_seconds(self.server)? - self.own;
        let others = (now.busy - self.machine.busy) - own;
        let stolen = now.stolen - self.machine.stolen;
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a benchmark")]
        let waited = Self::waited(self.server).saturating_sub(self.waited) as f64 / 1e9;
        Ok(Disturbance { used: (others / capacity).max(0.0), stolen: stolen / capacity, waited: waited / seconds, own })
    }

    /// Returns the time in nanoseconds that recorded children, this process's first thread and
    /// `server` waited for a processor.
    fn waited(server: Option<u32>) -> u64 {
        let server_time = server.map_or(0, waited_by_process);
        WAITED.load(Ordering::Relaxed) + waited("/proc/self/schedstat").unwrap_or(0) + server_time
    }
}

/// Times in seconds since the machine was started, summed over all processors, and their number.
#[derive(Debug, PartialEq)]
struct Machine {
    busy: f64,
    stolen: f64,
    processors: f64,
}

impl Machine {
    fn now() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        Self::parse(&text, ticks_per_second()).ok_or_else(|| io::Error::other("/proc/stat has an unknown format"))
    }

    /// Parses the first line of `/proc/stat`: user, nice, system, idle, waiting for disks,
    /// interrupts, soft interrupts, stolen, in ticks.
    fn parse(text: &str, ticks_per_second: f64) -> Option<Self> {
        let ticks: Vec<f64> =
            text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [user, nice, system, _idle, _waiting, hard, soft, stolen, ..] = ticks[..] else { return None };
        let is_processor = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        #[expect(clippy::cast_precision_loss, reason = "a number of processors")]
        let processors = text.lines().filter(is_processor).count() as f64;
        let busy = (user + nice + system + hard + soft) / ticks_per_second;
        Some(Self { busy, stolen: stolen / ticks_per_second, processors })
    }
}

/// Returns the number of ticks in a second, the unit of times in `/proc`.
fn ticks_per_second() -> f64 {
    // SAFETY: takes no pointers.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    #[expect(clippy::cast_precision_loss, reason = "a hundred")]
    let ticks = ticks as f64;
    ticks
}

/// Returns the processor seconds of this process, its reaped children and `server`.
fn own_seconds(server: Option<u32>) -> io::Result<f64> {
    let server_time = server.map_or(Ok(0.0), process_seconds)?;
    Ok(usage(libc::RUSAGE_SELF)? + usage(libc::RUSAGE_CHILDREN)? + server_time)
}

/// Returns the processor seconds of a process with all its threads.
fn process_seconds(pid: u32) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may contain spaces and parentheses. After it follow: state, ten numbers, user time,
    // system time.
    let words = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let ticks: Vec<f64> = words.skip(11).take(2).filter_map(|word| word.parse().ok()).collect();
    Ok(ticks.iter().sum::<f64>() / ticks_per_second())
}

fn usage(whose: libc::c_int) -> io::Result<f64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel fills the whole structure, or the call fails.
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
    fn own_work_counts_as_own() {
        let interval = Interval::begin(None).unwrap();
        let before = own_seconds(None).unwrap();
        while own_seconds(None).unwrap() == before {}
        let disturbance = interval.end().unwrap();
        assert!(disturbance.used >= 0.0 && disturbance.stolen >= 0.0 && disturbance.own > 0.0, "{disturbance:?}");
    }

    #[test]
    fn other_processes_disturb_only_if_own_processes_wait() {
        let disturbance = |used, stolen, waited| Disturbance { used, stolen, waited, own: 0.0 };
        assert!(disturbance(0.3, 0.0, 0.2).disturbs() && disturbance(0.0, 0.2, 0.0).disturbs());
        assert!(!disturbance(0.3, 0.0, 0.01).disturbs() && !disturbance(0.0, 0.0, 0.4).disturbs());
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
    fn process_time_agrees_with_getrusage() {
        let before = process_seconds(std::process::id()).unwrap();
        assert!(before <= usage(libc::RUSAGE_SELF).unwrap() + 0.02, "{before}");
        assert!(process_seconds(u32::MAX).is_err());
    }
}
