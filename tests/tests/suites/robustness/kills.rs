//! Kills or stops peers at random moments under load, on both links. The survivor's requests fail
//! within 1.5 times the time in which its attributes let it retry. A peer that is stopped for less
//! continues without errors. No file or object remains, and the survivor works with the next peer.
//!
//! ```text
//! cargo test -p roxe-tests --test suites -- kills [--all] [--seed N] [WORD...]
//!   --all      1,000 kills and 300 stops in all, instead of 40 and 24
//!   --seed N   the moments of an earlier run (a run prints its seed)
//!   WORD...    only checks with one of the WORDs in their name, such as udp or killed
//! ```
//!
//! A process that waits for a processor cannot report an error. So the limit grows by the time that
//! the survivor's threads waited (`/proc/PID/schedstat`). The suite prints how often that was
//! needed.

mod load;
mod peer;

use load::{RETRIES, TIMEOUT, monotonic};
use peer::Peer;
use roxe_tests::guest::link;
use roxe_tests::parallel;
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// Number of sequences that run at once. Most of the time one side is dead and the other waits.
const SEQUENCES: usize = 4;
/// Limit of every wait, in milliseconds.
const LIMIT_MS: u64 = 20_000;
/// Status of a request whose peer does not respond.
const RETRY_EXC: u32 = 12;

pub(crate) fn main() -> ExitCode {
    let args: Vec<String> = report::arguments().collect();
    if args.iter().any(|arg| arg == peer::ROLE) {
        return match peer::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("kills: a peer: {e}");
                ExitCode::FAILURE
            }
        };
    }
    crate::alone("kills", || run_checks(args))
}

fn run_checks(args: Vec<String>) -> ExitCode {
    let seed = args.iter().skip_while(|arg| *arg != "--seed").nth(1).and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    let all = args.iter().any(|arg| arg == "--all");
    println!("seed {seed} (--seed {seed} repeats it)");
    let mut checks = Vec::new();
    for link in ["auto", "udp"] {
        for fate in [Fate::Killed, Fate::Stopped, Fate::Paused] {
            let rounds = match (fate, all) {
                (Fate::Killed, true) => 500,
                (Fate::Killed, false) => 20,
                (_, true) => 75,
                (_, false) => 6,
            };
            let name = format!("peers are {} {rounds} times, link {link}", fate.word());
            checks.push(Check::new(name, move || Run { link, fate, rounds, seed }.verdict()));
        }
    }
    let words: Vec<String> = args.into_iter().filter(|arg| arg.parse::<u64>().is_err()).collect();
    report::run(checks, &words)
}

/// Fate of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// SIGKILL.
    Killed,
    /// SIGSTOP for longer than the survivor tries, then SIGCONT.
    Stopped,
    /// SIGSTOP for a moment, then SIGCONT.
    Paused,
}

impl Fate {
    const fn word(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::Paused => "paused",
        }
    }
}

/// Returns the time after which a requester with these attributes gives up. It waits twice for its
/// timeout, once for twice that, and then for four times that, but at most 250 ms unless the
/// timeout is longer (`transport/src/qp/reliability.rs`; IBA §9.7.6.1.3 allows four times for each
/// wait).
fn retry_time() -> Duration {
    let one = Duration::from_nanos(4096 << TIMEOUT);
    let longest = one.max(Duration::from_millis(250));
    (0..=u32::from(RETRIES)).map(|tries| (one * (1 << tries.saturating_sub(1).min(2))).min(longest)).sum()
}

/// A check of the suite.
struct Run {
    link: &'static str,
    fate: Fate,
    rounds: usize,
    seed: u64,
}

/// The failure of a queue pair.
struct Failure {
    /// Time from the peer's death or stop to the failure.
    took: Duration,
    /// Time that the process waited for a processor meanwhile.
    waited: Duration,
}

impl Run {
    fn verdict(&self) -> Verdict {
        let tag = format!("roxe-kills-{}-{}-{}", self.link, self.fate.word(), std::process::id());
        let runtime = std::env::temp_dir().join(tag);
        let result = fs::DirBuilder::new().mode(0o700).create(&runtime).map_err(|e| e.to_string());
        let result = result.and_then(|()| self.run_all(&runtime)).and_then(|failures| {
            self.check_leftovers(&runtime)?;
            Ok(failures)
        });
        // A leftover folder is harmless.
        let _ = fs::remove_dir_all(&runtime);
        match result {
            Ok(failures) => {
                println!("         {}", self.figures(failures));
                Verdict::Passed
            }
            Err(why) => Verdict::Failed(why),
        }
    }

    fn run_all(&self, runtime: &Path) -> Result<Vec<Failure>, String> {
        let shares: Vec<(u64, usize)> = (0..SEQUENCES)
            .map(|n| (n as u64, (self.rounds + n) / SEQUENCES))
            .filter(|(_, rounds)| *rounds > 0)
            .collect();
        let results = parallel::run(&shares, SEQUENCES, |(number, rounds)| {
            Sequence::new(self, runtime, *number).and_then(|sequence| sequence.run(*rounds))
        });
        Ok(results.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Checks that no names in the runtime folder and no sockets are left after a last pair that
    /// ends regularly.
    fn check_leftovers(&self, runtime: &Path) -> Result<(), String> {
        let mut sequence = Sequence::new(self, runtime, u64::MAX)?;
        sequence.undisturbed_pair()?;
        sequence.survivor.end()?;
        let left = sockets_in(runtime);
        if !left.is_empty() {
            return Err(format!("{} names are left: {left:?}", left.len()));
        }
        if !link::is_root() {
            // Other programs use this network namespace, too.
            return Ok(());
        }
        let read = |table: &str| fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let named = |line: &&str| line.contains("roxe");
        let port = |line: &&str| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(":12B7"));
        let (unix, udp) = (read("unix"), read("udp") + &read("udp6"));
        let left: Vec<&str> = unix.lines().filter(named).chain(udp.lines().filter(port)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("sockets are left: {left:?}")) }
    }

    fn figures(&self, mut failures: Vec<Failure>) -> String {
        if failures.is_empty() {
            return format!("{} rounds, no request failed", self.rounds);
        }
        failures.sort_by_key(|failure| failure.took);
        let at = |percent: usize| failures[(failures.len() - 1) * percent / 100].took.as_secs_f64();
        let late = failures.iter().filter(|failure| failure.took > failure_limit(Duration::ZERO)).count();
        let waited = failures.iter().map(|failure| failure.waited).max().unwrap_or_default();
        format!(
            "{} rounds, {} queue pairs failed after {:.2} s (least), {:.2} s (median), {:.2} s (99 %), {:.2} s (most); \
             retry time {:.2} s; {late} took over 1.5 times that, with up to {:.2} s of waiting for a processor",
            self.rounds,
            failures.len(),
            at(0),
            at(50),
            at(99),
            at(100),
            retry_time().as_secs_f64(),
            waited.as_secs_f64(),
        )
    }
}

/// Returns the time limit of a failure if threads waited this long for a processor.
fn failure_limit(waited: Duration) -> Duration {
    retry_time().mul_f64(1.5) + waited
}

/// Returns the sockets in a folder and its subfolders.
fn sockets_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let within = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => sockets_in(&entry.path()),
        Ok(kind) if kind.is_socket() => vec![entry.path()],
        _ => Vec::new(),
    };
    entries.flat_map(within).collect()
}

/// A surviving process with its peers, one after the other.
struct Sequence<'a> {
    run: &'a Run,
    runtime: &'a Path,
    survivor: Peer,
    random: Random,
}

impl<'a> Sequence<'a> {
    fn new(run: &'a Run, runtime: &'a Path, number: u64) -> Result<Self, String> {
        let random = Random(run.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Ok(Self { run, runtime, survivor: Peer::start(run.link, runtime)?, random })
    }

    fn run(mut self, rounds: usize) -> Result<Vec<Failure>, String> {
        // Create the objects that exist once per process before the first census. A peer without a
        // ring creates the socket for packets outside rings.
        self.without_ring().map_err(|why| format!("a peer that is stopped from the start: {why}"))?;
        self.round().map_err(|why| format!("first round: {why}"))?;
        self.undisturbed_pair()?;
        let before = self.survivor.ask("census")?;
        let mut failures = Vec::new();
        for round in 0..rounds {
            let failed = self.round().map_err(|why| format!("round {round}: {why}"))?;
            failures.extend(failed);
        }
        self.undisturbed_pair()?;
        self.check_census(&before)?;
        self.survivor.end()?;
        Ok(failures)
    }

    fn round(&mut self) -> Result<Vec<Failure>, String> {
        let peer = self.busy_pair()?;
        thread::sleep(self.random.below(Duration::from_millis(150)));
        match self.run.fate {
            Fate::Killed => {
                let (waited, killed) = (self.survivor.waited(), monotonic());
                peer.kill()?;
                let failures = check_failures(&mut self.survivor, killed, waited)?;
                self.survivor.ask("close")?;
                Ok(failures)
            }
            Fate::Stopped => self.stop(peer),
            Fate::Paused => {
                peer.stop();
                thread::sleep(self.random.below(retry_time() / 5));
                peer.signal(libc::SIGCONT);
                thread::sleep(self.random.below(Duration::from_millis(50)));
                self.end_undisturbed(peer).map(|()| Vec::new())
            }
        }
    }

    /// Checks that both sides fail: the running side while the other is stopped, and the stopped
    /// side once it continues.
    fn stop(&mut self, mut peer: Peer) -> Result<Vec<Failure>, String> {
        let waited = self.survivor.waited();
        peer.stop();
        let mut failures = check_failures(&mut self.survivor, monotonic(), waited)?;
        self.survivor.ask("close")?;
        let (waited, resumed) = (peer.waited(), monotonic());
        peer.signal(libc::SIGCONT);
        failures.extend(check_failures(&mut peer, resumed, waited).map_err(|why| format!("after SIGCONT: {why}"))?);
        peer.ask("close")?;
        peer.end()?;
        Ok(failures)
    }

    /// Runs a pair whose peer is stopped before it can agree to a ring, so packets use the socket.
    fn without_ring(&mut self) -> Result<(), String> {
        let mut peer = Peer::start(self.run.link, self.runtime)?;
        let ends = [self.survivor.ask("open")?, peer.ask("open")?];
        peer.stop();
        let (waited, since) = (self.survivor.waited(), monotonic());
        self.survivor.ask(&format!("start {}", ends[1]))?;
        check_failures(&mut self.survivor, since, waited)?;
        self.survivor.ask("close")?;
        peer.kill()
    }

    /// Runs a pair that works and ends regularly.
    fn undisturbed_pair(&mut self) -> Result<(), String> {
        let peer = self.busy_pair()?;
        self.end_undisturbed(peer).map_err(|why| format!("an undisturbed pair: {why}"))
    }

    /// Starts a new peer and connects it to the survivor.
    fn busy_pair(&mut self) -> Result<Peer, String> {
        let mut peer = Peer::start(self.run.link, self.runtime)?;
        let ends = [self.survivor.ask("open")?, peer.ask("open")?];
        // The side that starts first sends to a side that is not ready yet, and retransmits.
        peer.ask(&format!("start {}", ends[0]))?;
        self.survivor.ask(&format!("start {}", ends[1]))?;
        Ok(peer)
    }

    /// Checks that both sides make progress without failures and that every sent message arrived;
    /// then disconnects both.
    fn end_undisturbed(&mut self, mut peer: Peer) -> Result<(), String> {
        self.survivor.ask(&format!("working {LIMIT_MS}"))?;
        peer.ask(&format!("working {LIMIT_MS}"))?;
        self.survivor.ask(&format!("quiet {LIMIT_MS}"))?;
        peer.ask(&format!("quiet {LIMIT_MS}"))?;
        let own = Report::parse(&self.survivor.ask("close")?)?;
        let peers = Report::parse(&peer.ask("close")?)?;
        if own.failed.iter().chain(&peers.failed).any(Option::is_some) {
            return Err(format!("a request has failed: {own:?}, {peers:?}"));
        }
        let arrived = own.sent == peers.received && peers.sent == own.received;
        if !arrived || own.completed == 0 || peers.completed == 0 || own.outstanding + peers.outstanding > 0 {
            return Err(format!("messages are missing: {own:?}, {peers:?}"));
        }
        peer.end()
    }

    /// Waits until the survivor has no more descriptors, rings and threads than `before`. The
    /// engine releases the resources of dead peers periodically, not at once.
    fn check_census(&mut self, before: &str) -> Result<(), String> {
        let numbers = |text: &str| text.split(' ').filter_map(|word| word.parse::<u64>().ok()).collect::<Vec<_>>();
        let (limit, start) = (numbers(before), Instant::now());
        loop {
            let now = self.survivor.ask("census")?;
            if numbers(&now).iter().zip(&limit).all(|(now, limit)| now <= limit) {
                return Ok(());
            }
            if start.elapsed() > Duration::from_millis(LIMIT_MS) {
                return Err(format!("descriptors, rings and threads: {before} before, {now} after"));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Checks that every queue pair of `survivor` failed with an exceeded retry count, within the limit
/// after `since`.
fn check_failures(survivor: &mut Peer, since: u64, waited: Duration) -> Result<Vec<Failure>, String> {
    let report = Report::parse(&survivor.ask(&format!("failed {LIMIT_MS}"))?)?;
    let waited = survivor.waited().saturating_sub(waited);
    let judge = |failed: &Option<(u32, u64)>| match *failed {
        None => Err(format!("a queue pair has not failed in {LIMIT_MS} ms: {report:?}")),
        Some((RETRY_EXC, at)) => {
            let took = Duration::from_nanos(at.saturating_sub(since));
            if took <= failure_limit(waited) {
                Ok(Failure { took, waited })
            } else {
                Err(format!("a queue pair failed after {took:?}; its process waited {waited:?} for a processor"))
            }
        }
        Some((status, _)) => Err(format!("a queue pair failed with status {status}, not {RETRY_EXC}")),
    };
    report.failed.iter().map(judge).collect()
}

/// Progress that a peer reports.
#[derive(Debug)]
struct Report {
    completed: u64,
    sent: u64,
    received: u64,
    outstanding: u64,
    /// Status and time of each queue pair's failure.
    failed: Vec<Option<(u32, u64)>>,
}

impl Report {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some((_, wrong)) = text.split_once("wrong: ") {
            return Err(wrong.to_owned());
        }
        let words: Vec<&str> = text.split(' ').collect();
        let parsed = || {
            let (counts, failed) = words.split_at_checked(4)?;
            let [completed, sent, received, outstanding] = counts else { return None };
            let failed = failed.iter().map(|word| match word.split_once(':') {
                None => Some(None),
                Some((status, at)) => Some(Some((status.parse().ok()?, at.parse().ok()?))),
            });
            Some(Self {
                completed: completed.parse().ok()?,
                sent: sent.parse().ok()?,
                received: received.parse().ok()?,
                outstanding: outstanding.parse().ok()?,
                failed: failed.collect::<Option<_>>()?,
            })
        };
        parsed().ok_or_else(|| format!("a peer sent {text:?}"))
    }
}

/// A pseudorandom generator of durations.
struct Random(u64);

impl Random {
    fn below(&mut self, longest: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        let longest = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(mixed % longest.max(1))
    }
}
