//! Measures what many objects cost: connected queue pairs, registered regions, threads, processes.
//!
//! ```text
//! cargo bench -p roxe-tests --bench scale [-- [OPTION=N...] [WORD...]]
//!   OPTION  qps, mrs, threads, processes or rounds
//!   WORD    only "qps", "busy", "mrs", "threads", "pairs" or "processes"
//! ```
//!
//! - `qps`: two processes; WRITEs on all queue pairs in turn, compared between 16 and N (10,000)
//!   queue pairs, with the same total of outstanding messages.
//! - `busy`: the same, but every queue pair always has four messages outstanding.
//! - `mrs`: one process; every message uses other keys out of 1, 1,000, ... N (1,000,000) regions.
//! - `threads`: one process; every thread has two queue pairs and a completion queue of its own.
//! - `pairs`: two processes; every thread has a queue pair and a completion queue of its own, and
//!   sends to a polling thread of the other process. Not pinned: a pair of threads needs two
//!   processors.
//! - `processes`: the time in which N (1,000) processes start together and each writes to another.
//!
//! Compared runs take turns in every round; the report gives their medians and ratios, and how many
//! measurements other processes disturbed. `ROXE_*` variables apply to all processes.

mod fleet;
mod processes;

use fleet::{Fleet, Server, serve};
use roxe::{
    Access, CompletionQueue, Context, ProtectionDomain, QueuePair, RemoteAddr, Sge, WorkCompletion, WorkRequest,
};
use roxe_tests::guest::link;
use roxe_tests::measure::Series;
use roxe_tests::measure::load::Interval;
use roxe_tests::measure::pin;
use std::error::Error;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Duration of one measurement.
const TIME: Duration = Duration::from_millis(100);
/// Outstanding messages of all queue pairs together.
const OUTSTANDING: usize = 64;
/// Outstanding messages of each queue pair in the comparison `busy`.
const OUTSTANDING_EACH: usize = 4;
/// Number of queue pairs of the baseline.
const BASELINE_QPS: usize = 16;
/// Message sizes in bytes, ascending.
const SIZES: [usize; 3] = [64, 4 << 10, 64 << 10];
const MAX_SIZE: usize = SIZES[SIZES.len() - 1];
const REMOTE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let result = match words.first().map(String::as_str) {
        Some("serve") => {
            let number = |at: usize| words.get(at).and_then(|word| word.parse().ok());
            serve(number(1).unwrap_or(BASELINE_QPS), number(2).unwrap_or(1))
        }
        Some("member") => processes::member(),
        _ => link::isolate().map_err(Into::into).and_then(|()| Options::read(&words).run()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("scale: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The command line.
struct Options {
    qps: usize,
    mrs: usize,
    threads: usize,
    processes: usize,
    rounds: usize,
    only: Vec<String>,
}

impl Options {
    fn read(words: &[String]) -> Self {
        let value = |name: &str, default| {
            let value = words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
            value.unwrap_or(default)
        };
        let only = words.iter().filter(|word| !word.contains('=')).cloned().collect();
        let [qps, mrs] = [value("qps", 10_000), value("mrs", 1_000_000)];
        let [threads, processes] = [value("threads", 2), value("processes", 1000)];
        Self { qps, mrs, threads, processes, rounds: value("rounds", 15), only }
    }

    fn run(&self) -> Result<()> {
        let wants = |name: &str| self.only.is_empty() || self.only.iter().any(|word| word == name);
        if wants("threads") {
            threads(self.threads, self.rounds)?;
        }
        if wants("pairs") {
            pairs(self.threads, self.rounds)?;
        }
        if wants("processes") {
            processes::processes(self.processes)?;
        }
        if wants("mrs") {
            regions(self.mrs, self.rounds)?;
        }
        // Last, because from then on this process has one processor, and its servers have another.
        if wants("qps") || wants("busy") {
            pin::begin(true)?;
            let mut both = [ServedFleet::launch(BASELINE_QPS)?, ServedFleet::launch(self.qps)?];
            if wants("qps") {
                println!("WRITEs on all queue pairs of two processes in turn, {OUTSTANDING} outstanding");
                queue_pairs(&mut both, |_| OUTSTANDING, self.rounds)?;
            }
            if wants("busy") {
                println!("WRITEs on all queue pairs of two processes, {OUTSTANDING_EACH} outstanding on each");
                queue_pairs(&mut both, |fleet| OUTSTANDING_EACH * fleet.qps.len(), self.rounds)?;
            }
        }
        Ok(())
    }
}

/// Measures each alternative once per round, prints medians and ranges, and returns the medians.
///
/// Each has a name and, optionally, the id of its server process.
fn compare(
    names: &[(String, Option<u32>)],
    rounds: usize,
    mut measure: impl FnMut(usize) -> Result<f64>,
) -> Result<Vec<f64>> {
    let mut all = vec![Series::default(); names.len()];
    let mut disturbed = 0;
    for _ in 0..rounds {
        for (index, series) in all.iter_mut().enumerate() {
            let interval = Interval::begin(names[index].1)?;
            series.push(measure(index)?);
            disturbed += u32::from(interval.end()?.disturbs());
        }
    }
    let medians: Vec<f64> = all.iter().filter_map(Series::median).collect();
    for (((name, _), series), median) in names.iter().zip(&all).zip(&medians) {
        let (least, most) = series.range().unwrap_or_default();
        println!("  {name:<28} {median:>9.3} M/s  [{least:.3} .. {most:.3}]  {:.2} of the first", median / medians[0]);
    }
    println!("  measurements disturbed by other processes: {disturbed} of {}", rounds * names.len());
    Ok(medians)
}

/// A server of one thread, and the queue pairs of this process that are connected with it.
struct ServedFleet {
    server: Server,
    fleet: Fleet,
    /// Resident bytes of this process before it made the queue pairs.
    resident_before: usize,
}

impl ServedFleet {
    fn launch(count: usize) -> Result<Self> {
        let (start, resident_before) = (Instant::now(), resident()?);
        let mut server = Server::launch(count, 1)?;
        let fleet = Fleet::connect(count, &mut server)?;
        let served = Self { server, fleet, resident_before };
        println!(
            "{count} queue pairs connected in {:.1} s, {} bytes each",
            start.elapsed().as_secs_f32(),
            served.bytes_per_qp()?
        );
        Ok(served)
    }

    /// Returns how many resident bytes each queue pair has added.
    fn bytes_per_qp(&self) -> Result<usize> {
        Ok(resident()?.saturating_sub(self.resident_before) / self.fleet.qps.len())
    }

    /// Measures the rate, in million messages per second, while the server polls.
    fn rate(&mut self, size: usize, outstanding: usize) -> Result<f64> {
        self.server.toggle(&self.fleet)?;
        let rate = self.fleet.rate(size, outstanding);
        self.server.toggle(&self.fleet)?;
        rate
    }
}

/// Returns the resident bytes of this process.
fn resident() -> Result<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm.split(' ').nth(1).ok_or("statm is short")?.parse()?;
    Ok(pages * 4096)
}

/// Opens the first device, with a completion queue of at least this capacity.
fn open(completions: usize) -> Result<(Context, ProtectionDomain, CompletionQueue)> {
    let context = Context::open_first()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(u32::try_from(completions.max(OUTSTANDING * 2))?)?;
    Ok((context, pd, cq))
}

fn queue_pair(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<QueuePair> {
    Ok(pd.create_qp(cq, cq).max_send_wr(OUTSTANDING as u32).max_recv_wr(1).build()?)
}

fn queue_pairs(both: &mut [ServedFleet; 2], outstanding: impl Fn(&Fleet) -> usize, rounds: usize) -> Result<()> {
    // The first messages of a queue pair allocate its memory.
    for served in both.iter_mut() {
        let all = served.fleet.qps.len();
        while served.fleet.turn < OUTSTANDING_EACH * all {
            served.rate(SIZES[0], outstanding(&served.fleet))?;
        }
    }
    let [_, many] = &*both;
    println!(
        "  {} queue pairs take {} bytes each once they have sent {OUTSTANDING_EACH} messages",
        many.fleet.qps.len(),
        many.bytes_per_qp()?
    );
    for size in SIZES {
        println!(" {size} bytes");
        let names =
            both.each_ref().map(|served| (format!("{} queue pairs", served.fleet.qps.len()), Some(served.server.id())));
        let outstanding = both.each_ref().map(|served| outstanding(&served.fleet));
        let medians = compare(&names, rounds, |index| both[index].rate(size, outstanding[index]))?;
        let ratio = medians[1] / medians[0];
        println!(
            "  {ratio:.2} of the rate with {BASELINE_QPS} (0.80 promised): {}",
            if ratio >= 0.8 { "ok" } else { "MISSED" }
        );
    }
    Ok(())
}

/// Two connected queue pairs of this process.
struct Pair {
    from: QueuePair,
    /// Keeps the peer of `from` alive.
    _to: QueuePair,
    cq: CompletionQueue,
}

impl Pair {
    fn new(pd: &ProtectionDomain, context: &Context) -> Result<Self> {
        let cq = context.create_cq(OUTSTANDING as u32)?;
        let (from, to) = (queue_pair(pd, &cq)?, queue_pair(pd, &cq)?);
        from.connect(&to.endpoint())?;
        to.connect(&from.endpoint())?;
        Ok(Self { from, _to: to, cq })
    }

    /// Measures the rate, in million messages per second, of one message after the other; `ends`
    /// returns source and target of the next one.
    fn rate<'r>(&self, mut ends: impl FnMut() -> &'r ([Sge; 1], RemoteAddr)) -> Result<f64> {
        let (start, mut done, mut out) = (Instant::now(), 0, [WorkCompletion::default(); 4]);
        while start.elapsed() < TIME {
            let (source, target) = ends();
            self.from.post_send(&WorkRequest::write(source, *target).signaled())?;
            loop {
                let found = self.cq.poll(&mut out)?;
                if let Some(completion) = found.first() {
                    completion.check()?;
                    break;
                }
            }
            done += 1;
        }
        Ok(f64::from(done) / start.elapsed().as_secs_f64() / 1e6)
    }
}

/// A page of memory, which all regions register.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// Compares WRITEs that use the keys of few and of many regions.
fn regions(most: usize, rounds: usize) -> Result<()> {
    println!("WRITEs of 64 bytes within a process, every one with other keys");
    let (context, pd, _cq) = open(0)?;
    let pair = Pair::new(&pd, &context)?;
    let mut page = Box::new(Page([0; 4096]));
    let address = NonNull::from(&mut page.0).cast::<u8>();
    let start = Instant::now();
    // SAFETY: the page outlives the regions, and nothing else accesses it.
    let region = || unsafe { pd.register_raw(address, 64, REMOTE) };
    let all = (0..most).map(|_| region()).collect::<std::result::Result<Vec<_>, _>>()?;
    println!("  {most} regions registered in {:.1} s", start.elapsed().as_secs_f32());
    let mut counts: Vec<usize> = [1, 1000, 100_000, most].into_iter().filter(|count| *count <= most).collect();
    counts.dedup();
    let names: Vec<_> = counts.iter().map(|count| (format!("keys of {count} regions"), None)).collect();
    // The keys lie in the order of the messages, so that the lookup of a key is measured, and not
    // the program's access to its own list. The prime step visits all regions, far apart.
    let ends = |count: usize| {
        let at = (0..count).map(|at| at * 7_919 % count);
        at.map(|at| Ok(([all[at].slice(..64)?], all[count - 1 - at].remote()))).collect::<Result<Vec<_>>>()
    };
    let ends = counts.iter().map(|count| ends(*count)).collect::<Result<Vec<_>>>()?;
    let mut turns: Vec<_> = ends.iter().map(|ends| ends.iter().cycle()).collect();
    compare(&names, rounds, |index| pair.rate(|| turns[index].next().unwrap_or(&ends[index][0])))?;
    let start = Instant::now();
    drop(all);
    println!("  and deregistered in {:.1} s", start.elapsed().as_secs_f32());
    Ok(())
}

/// Compares numbers of threads, each of which writes within this process, on its own queues.
fn threads(most: usize, rounds: usize) -> Result<()> {
    println!("WRITEs of 64 bytes within a process, every thread with queues of its own; the sum of all threads");
    let context = Context::open_first()?;
    let pd = context.alloc_pd()?;
    let (context, pd) = (&context, &pd);
    let worker = || {
        let (pair, region) = (Pair::new(pd, context)?, pd.alloc_mr(4096, REMOTE)?);
        Ok(move |size| {
            let ends = ([region.slice(..size)?], region.remote());
            pair.rate(|| &ends)
        })
    };
    let counts: Vec<usize> = (1..=most).collect();
    side_by_side(&counts, rounds, &[64], worker)
}

/// Compares numbers of threads, each of which writes to a thread of another process.
fn pairs(most: usize, rounds: usize) -> Result<()> {
    println!("WRITEs from threads to threads of another process, each with queues of its own; the sum of all threads");
    let server = Mutex::new(Server::launch(1, most)?);
    let server = || server.lock().map_err(|_| "another thread has failed");
    let worker = || {
        let mut fleet = Fleet::connect(1, &mut *server()?)?;
        Ok(move |size| {
            server()?.toggle(&fleet)?;
            let rate = fleet.rate(size, OUTSTANDING);
            server()?.toggle(&fleet)?;
            rate
        })
    };
    let counts: Vec<usize> = (0..).map(|doubled| 1 << doubled).take_while(|count| *count <= most).collect();
    side_by_side(&counts, rounds, &SIZES, worker)
}

/// Compares the sums of the rates of these numbers of parallel threads, for each message size.
///
/// Each thread calls `worker` once, which returns a function that measures the thread's rate.
fn side_by_side<R: FnMut(usize) -> Result<f64>>(
    counts: &[usize],
    rounds: usize,
    sizes: &[usize],
    worker: impl Fn() -> Result<R> + Sync,
) -> Result<()> {
    let work = |sizes: &Receiver<usize>, results: &Sender<std::result::Result<f64, String>>| -> Result<()> {
        let mut rate = worker()?;
        // Signals that it is ready.
        results.send(Ok(0.0))?;
        while let Ok(size) = sizes.recv() {
            results.send(rate(size).map_err(|e| e.to_string()))?;
        }
        Ok(())
    };
    let names: Vec<_> = counts.iter().map(|count| (format!("{count} threads"), None)).collect();
    let sum = |results: &[(Sender<usize>, Receiver<_>)]| -> Result<f64> {
        let rates = results.iter().map(|(_, results)| results.recv().map_err(|e| e.to_string())?);
        Ok(rates.collect::<std::result::Result<Vec<f64>, String>>()?.iter().sum())
    };
    thread::scope(|scope| {
        let spawn = |_| {
            let ((start, starts), (senders, results)) = (channel(), channel());
            let work = &work;
            scope.spawn(move || work(&starts, &senders).inspect_err(|e| eprintln!("scale: {e}")).is_ok());
            (start, results)
        };
        let workers: Vec<_> = (0..counts.iter().copied().max().unwrap_or(0)).map(spawn).collect();
        // All of them are ready before any of them starts.
        sum(&workers)?;
        for size in sizes {
            println!(" {size} bytes");
            compare(&names, rounds, |index| {
                let working = &workers[..counts[index]];
                working.iter().try_for_each(|(start, _)| start.send(*size).map_err(|e| e.to_string()))?;
                sum(working)
            })?;
        }
        Ok(())
    })
}
