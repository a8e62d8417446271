//! Kills or stops peers at random moments under load, on both links. The survivor's requests fail
//! within 1.5 times the time that its attributes promise; a peer that is stopped for less continues
//! without errors; no file or object remains; and the survivor works with the next peer.
//!
//! ```text
//! cargo test -p roxe-tests --test suites -- kills [--all] [--seed N] [WORD...]
//!   --all      1,000 kills and 300 stops in all, instead of 40 and 24
//!   --seed N   the moments of an earlier run (a run prints its seed)
//!   WORD...    only what has one of them in its name, such as udp or killed
//! ```
//!
//! A process that waits for a processor cannot report an error. So the time that the survivor's
//! threads waited (`/proc/PID/schedstat`) is added to the limit; the suite prints how often that
//! was needed.

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

/// Pairs at once: most of the time one side is dead and the other waits.
const LANES: usize = 4;
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
        for how in [How::Killed, How::Stopped, How::Paused] {
            let rounds = match (how, all) {
                (How::Killed, true) => 500,
                (How::Killed, false) => 20,
                (_, true) => 75,
                (_, false) => 6,
            };
            let name = format!("peers are {} {rounds} times, link {link}", how.word());
            checks.push(Check::new(name, move || Run { link, how, rounds, seed }.verdict()));
        }
    }
    let words: Vec<String> = args.into_iter().filter(|arg| arg.parse::<u64>().is_err()).collect();
    report::run(checks, &words)
}

/// Fate of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// SIGKILL.
    Killed,
    /// SIGSTOP for longer than the survivor tries, then SIGCONT.
    Stopped,
    /// SIGSTOP for a moment, then SIGCONT.
    Paused,
}

impl How {
    const fn word(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::Paused => "paused",
        }
    }
}

/// Time that a requester retries, from its attributes: it waits for an acknowledgement twice for
/// its timeout, then for twice that, then for four times that, but then for 250 ms at most
/// (`transport/src/qp/reliability.rs`; IBA §9.7.6.1.3 allows up to four times each time).
fn promise() -> Duration {
    let one = Duration::from_nanos(4096 << TIMEOUT);
    let longest = one.max(Duration::from_millis(250));
    (0..=u32::from(RETRIES)).map(|tries| (one * (1 << tries.saturating_sub(1).min(2))).min(longest)).sum()
}

/// A check of the suite.
struct Run {
    link: &'static str,
    how: How,
    rounds: usize,
    seed: u64,
}

/// Time that a queue pair took to fail, and the part of it that its process waited for a processor.
struct Failure {
    took: Duration,
    waited: Duration,
}

impl Run {
    fn verdict(&self) -> Verdict {
        let tag = format!("roxe-kills-{}-{}-{}", self.link, self.how.word(), std::process::id());
        let runtime = std::env::temp_dir().join(tag);
        let result = fs::DirBuilder::new().mode(0o700).create(&runtime).map_err(|e| e.to_string());
        let result = result.and_then(|()| self.all_lanes(&runtime)).and_then(|failures| {
            self.leave_nothing(&runtime)?;
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

    fn all_lanes(&self, runtime: &Path) -> Result<Vec<Failure>, String> {
        let shares: Vec<(u64, usize)> =
            (0..LANES).map(|lane| (lane as u64, (self.rounds + lane) / LANES)).filter(|(_, n)| *n > 0).collect();
        let results = parallel::run(&shares, LANES, |(lane, rounds)| {
            Lane::new(self, runtime, *lane).and_then(|lane| lane.run(*rounds))
        });
        Ok(results.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// After a last pair that ends regularly, no names in the runtime folder and no sockets are
    /// left.
    fn leave_nothing(&self, runtime: &Path) -> Result<(), String> {
        let mut lane = Lane::new(self, runtime, u64::MAX)?;
        lane.in_peace()?;
        lane.survivor.end()?;
        let left = sockets_in(runtime);
        if !left.is_empty() {
            return Err(format!("{} names are left: {left:?}", left.len()));
        }
        if !link::is_root() {
            // Others use this network namespace as well.
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
        let late = failures.iter().filter(|failure| failure.took > allowed(Duration::ZERO)).count();
        let waited = failures.iter().map(|failure| failure.waited).max().unwrap_or_default();
        format!(
            "{} rounds, {} queue pairs failed after {:.2} s (least), {:.2} (median), {:.2} (99 %), {:.2} (most); promised \
             {:.2} s; {late} took more than half as much again, with up to {:.2} s of waiting for a processor",
            self.rounds,
            failures.len(),
            at(0),
            at(50),
            at(99),
            at(100),
            promise().as_secs_f64(),
            waited.as_secs_f64(),
        )
    }
}

/// Time in which a failure is accepted if threads waited that long for a processor.
fn allowed(waited: Duration) -> Duration {
    promise().mul_f64(1.5) + waited
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

/// A process that survives, and its peers, one after the other.
struct Lane<'a> {
    run: &'a Run,
    runtime: &'a Path,
    survivor: Peer,
    random: Random,
}

impl<'a> Lane<'a> {
    fn new(run: &'a Run, runtime: &'a Path, number: u64) -> Result<Self, String> {
        let random = Random(run.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Ok(Self { run, runtime, survivor: Peer::start(run.link, runtime)?, random })
    }

    fn run(mut self, rounds: usize) -> Result<Vec<Failure>, String> {
        // Before the baseline is taken, objects that exist once per process are created: also the
        // socket for packets outside rings, which the first peer without a ring brings about.
        self.without_ring().map_err(|why| format!("a peer that is stopped from the start: {why}"))?;
        self.round().map_err(|why| format!("first round: {why}"))?;
        self.in_peace()?;
        let before = self.survivor.ask("census")?;
        let mut failures = Vec::new();
        for round in 0..rounds {
            let failed = self.round().map_err(|why| format!("round {round}: {why}"))?;
            failures.extend(failed);
        }
        self.in_peace()?;
        self.holds_no_more_than(&before)?;
        self.survivor.end()?;
        Ok(failures)
    }

    fn round(&mut self) -> Result<Vec<Failure>, String> {
        let peer = self.busy_pair()?;
        thread::sleep(self.random.below(Duration::from_millis(150)));
        match self.run.how {
            How::Killed => {
                let (waited, killed) = (self.survivor.waited(), monotonic());
                peer.kill()?;
                let failures = survived(&mut self.survivor, killed, waited)?;
                self.survivor.ask("close")?;
                Ok(failures)
            }
            How::Stopped => self.stop(peer),
            How::Paused => {
                peer.stop();
                thread::sleep(self.random.below(promise() / 5));
                peer.signal(libc::SIGCONT);
                thread::sleep(self.random.below(Duration::from_millis(50)));
                self.part_in_peace(peer).map(|()| Vec::new())
            }
        }
    }

    /// Checks that both sides fail: the running side while the other is stopped, and the stopped
    /// side once it continues.
    fn stop(&mut self, mut peer: Peer) -> Result<Vec<Failure>, String> {
        let waited = self.survivor.waited();
        peer.stop();
        let mut failures = survived(&mut self.survivor, monotonic(), waited)?;
        self.survivor.ask("close")?;
        let (waited, resumed) = (peer.waited(), monotonic());
        peer.signal(libc::SIGCONT);
        failures.extend(survived(&mut peer, resumed, waited).map_err(|why| format!("after SIGCONT: {why}"))?);
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
        survived(&mut self.survivor, since, waited)?;
        self.survivor.ask("close")?;
        peer.kill()
    }

    /// Runs a pair that works and ends regularly.
    fn in_peace(&mut self) -> Result<(), String> {
        let peer = self.busy_pair()?;
        self.part_in_peace(peer).map_err(|why| format!("an undisturbed pair: {why}"))
    }

    /// Starts a new peer and connects it to the survivor.
    fn busy_pair(&mut self) -> Result<Peer, String> {
        let mut peer = Peer::start(self.run.link, self.runtime)?;
        let ends = [self.survivor.ask("open")?, peer.ask("open")?];
        // The side connected first sends to one that is not ready yet, and retransmits.
        peer.ask(&format!("start {}", ends[0]))?;
        self.survivor.ask(&format!("start {}", ends[1]))?;
        Ok(peer)
    }

    /// Checks that both sides make progress without failures and that every sent message arrived;
    /// then disconnects both.
    fn part_in_peace(&mut self, mut peer: Peer) -> Result<(), String> {
        self.survivor.ask(&format!("working {LIMIT_MS}"))?;
        peer.ask(&format!("working {LIMIT_MS}"))?;
        self.survivor.ask(&format!("quiet {LIMIT_MS}"))?;
        peer.ask(&format!("quiet {LIMIT_MS}"))?;
        let ours = Heard::parse(&self.survivor.ask("close")?)?;
        let theirs = Heard::parse(&peer.ask("close")?)?;
        if ours.failed.iter().chain(&theirs.failed).any(Option::is_some) {
            return Err(format!("a request has failed: {ours:?}, {theirs:?}"));
        }
        let arrived = ours.sent == theirs.received && theirs.sent == ours.received;
        if !arrived || ours.completed == 0 || theirs.completed == 0 || ours.outstanding + theirs.outstanding > 0 {
            return Err(format!("not all has arrived: {ours:?}, {theirs:?}"));
        }
        peer.end()
    }

    /// Waits until the survivor has as many descriptors, rings and threads as `before`. The engine
    /// releases the resources of a dead peer periodically.
    fn holds_no_more_than(&mut self, before: &str) -> Result<(), String> {
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

/// Checks that every queue pair of `survivor` failed for lack of acknowledgements, within the limit
/// after `since`.
fn survived(survivor: &mut Peer, since: u64, waited: Duration) -> Result<Vec<Failure>, String> {
    let heard = Heard::parse(&survivor.ask(&format!("failed {LIMIT_MS}"))?)?;
    let waited = survivor.waited().saturating_sub(waited);
    let judge = |failed: &Option<(u32, u64)>| match *failed {
        None => Err(format!("a queue pair has not failed in {LIMIT_MS} ms: {heard:?}")),
        Some((RETRY_EXC, at)) => {
            let took = Duration::from_nanos(at.saturating_sub(since));
            if took <= allowed(waited) {
                Ok(Failure { took, waited })
            } else {
                Err(format!("a queue pair failed after {took:?}; its process waited {waited:?} for a processor"))
            }
        }
        Some((status, _)) => Err(format!("a queue pair failed with status {status}, not {RETRY_EXC}")),
    };
    heard.failed.iter().map(judge).collect()
}

/// Progress that a peer reports.
#[derive(Debug)]
struct Heard {
    completed: u64,
    sent: u64,
    received: u64,
    outstanding: u64,
    /// Status and time for each queue pair.
    failed: Vec<Option<(u32, u64)>>,
}

impl Heard {
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

/// Random moments, from a seed.
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
