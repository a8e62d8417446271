//! What many of everything cost: connected queue pairs, registered regions, threads.
//!
//! ```text
//! cargo bench -p roxe-tests --bench scale [-- [qps=N] [mrs=N] [threads=N] [rounds=N] [WORD...]]
//!   WORD   only "qps", "busy", "mrs" or "threads"
//! ```
//!
//! - `qps`: two processes; WRITEs go round all queue pairs, the same number under way with 16 of
//!   them and with N (10,000).
//! - `busy`: the same, and every queue pair always has four messages under way.
//! - `mrs`: one process; every message uses other keys out of 1, 1,000, ... N (1,000,000) regions.
//! - `threads`: one process; every thread has two queue pairs and a completion queue of its own.
//!
//! What is compared is interleaved in rounds, medians and ratios count, and it is told how many
//! figures others disturbed. `ROXE_*` variables reach all of it.

use roxe::{
    Access, CompletionQueue, Context, Endpoint, MemoryRegion, ProtectionDomain, QueuePair, RemoteAddr, Sge,
    WorkCompletion, WorkRequest,
};
use roxe_tests::guest::link;
use roxe_tests::measure::Series;
use roxe_tests::measure::load::Interval;
use roxe_tests::measure::pin::{self, End};
use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How long one figure is taken.
const TIME: Duration = Duration::from_millis(100);
/// Messages under way in all.
const UNDER_WAY: usize = 64;
/// On every queue pair, where all are busy.
const EACH: usize = 4;
/// Queue pairs that the many are compared with.
const FEW: usize = 16;
/// Message sizes, the last is the longest.
const SIZES: [usize; 3] = [64, 4 << 10, 64 << 10];
const LONGEST: usize = SIZES[SIZES.len() - 1];
const REMOTE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let result = match words.first().map(String::as_str) {
        Some("serve") => serve(words.get(1).and_then(|word| word.parse().ok()).unwrap_or(FEW)),
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
        Self { qps, mrs, threads: value("threads", 2), rounds: value("rounds", 15), only }
    }

    fn run(&self) -> Result<()> {
        let wants = |name: &str| self.only.is_empty() || self.only.iter().any(|word| word == name);
        if wants("threads") {
            threads(self.threads, self.rounds)?;
        }
        if wants("mrs") {
            regions(self.mrs, self.rounds)?;
        }
        // The last: from then on this process has one processor, and its servers have another.
        if wants("qps") || wants("busy") {
            pin::begin(true)?;
            let mut fleets = [Fleet::launch(FEW)?, Fleet::launch(self.qps)?];
            if wants("qps") {
                println!("WRITEs round all queue pairs of two processes, {UNDER_WAY} under way");
                queue_pairs(&mut fleets, |_| UNDER_WAY, self.rounds)?;
            }
            if wants("busy") {
                println!("WRITEs on all queue pairs of two processes, {EACH} under way on each");
                queue_pairs(&mut fleets, |fleet| EACH * fleet.qps.len(), self.rounds)?;
            }
        }
        Ok(())
    }
}

/// Alternatives of one comparison, measured in turns.
///
/// Each has a name, and may have a process beside this one that works for it.
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
    println!("  figures that others disturbed: {disturbed} of {}", rounds * names.len());
    Ok(medians)
}

/// The server process of a number of connected queue pairs, with the client's ends.
struct Fleet {
    qps: Vec<QueuePair>,
    cq: CompletionQueue,
    region: MemoryRegion,
    target: RemoteAddr,
    /// Which queue pair is next.
    turn: usize,
    /// Bytes that the process occupied before.
    resident: usize,
    server: Child,
    /// A line to the server: poll, or stop polling.
    input: ChildStdin,
}

impl Fleet {
    fn launch(count: usize) -> Result<Self> {
        let (begun, resident) = (Instant::now(), resident()?);
        let mut words = pin::prefix(End::Server);
        words.extend([std::env::current_exe()?.to_string_lossy().into_owned(), "serve".to_owned(), count.to_string()]);
        let mut server =
            Command::new(&words[0]).args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (mut input, output) = (server.stdin.take().ok_or("no input")?, server.stdout.take().ok_or("no output")?);
        let (_, pd, cq) = open(EACH * count)?;
        let region = pd.alloc_mr(LONGEST, REMOTE)?;
        let qps = (0..count).map(|_| queue_pair(&pd, &cq)).collect::<Result<Vec<_>>>()?;
        let target = meet(&qps, &mut input, output)?;
        let fleet = Self { qps, cq, region, target, turn: 0, resident, server, input };
        println!(
            "{count} queue pairs connected in {:.1} s, {} bytes each",
            begun.elapsed().as_secs_f32(),
            fleet.each()?
        );
        Ok(fleet)
    }

    /// Bytes that each queue pair has added to what this process occupies.
    fn each(&self) -> Result<usize> {
        Ok(resident()?.saturating_sub(self.resident) / self.qps.len())
    }

    /// Million messages per second that go round all queue pairs. The server is awake meanwhile.
    fn rate(&mut self, size: usize, under_way: usize) -> Result<f64> {
        writeln!(self.input)?;
        let rate = self.go_round(size, under_way);
        writeln!(self.input)?;
        rate
    }

    /// Only what completes in the time counts, as with many under way the end of the last takes
    /// long.
    fn go_round(&mut self, size: usize, under_way: usize) -> Result<f64> {
        let source = [self.region.slice(..size)?];
        let (begun, mut posted, mut done, mut rate) = (Instant::now(), 0_u32, 0_u32, None);
        let mut out = [WorkCompletion::default(); UNDER_WAY];
        while rate.is_none() || posted > done {
            let taken = begun.elapsed();
            if taken >= TIME && rate.is_none() {
                rate = Some(f64::from(done) / taken.as_secs_f64() / 1e6);
            }
            // No more than a few between two looks at what is done.
            let room = if rate.is_none() { under_way - (posted - done) as usize } else { 0 };
            for _ in 0..room.min(UNDER_WAY) {
                let qp = &self.qps[self.turn % self.qps.len()];
                qp.post_send(&WorkRequest::write(&source, self.target).signaled())?;
                self.turn += 1;
                posted += 1;
            }
            for completion in self.cq.poll(&mut out)? {
                completion.ok()?;
                done += 1;
            }
        }
        rate.ok_or_else(|| "the time never passed".into())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Bytes of memory that this process occupies.
fn resident() -> Result<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm.split(' ').nth(1).ok_or("statm is short")?.parse()?;
    Ok(pages * 4096)
}

/// A completion queue has room for `completions`, and for those of [`UNDER_WAY`].
fn open(completions: usize) -> Result<(Context, ProtectionDomain, CompletionQueue)> {
    let context = Context::open_first()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(u32::try_from(completions.max(UNDER_WAY * 2))?)?;
    Ok((context, pd, cq))
}

fn queue_pair(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<QueuePair> {
    Ok(pd.create_qp(cq, cq).max_send_wr(UNDER_WAY as u32).max_recv_wr(1).build()?)
}

/// Connects all queue pairs with those of the server, which tells them on a line each, and its
/// memory on the first.
fn meet(qps: &[QueuePair], input: &mut ChildStdin, output: ChildStdout) -> Result<RemoteAddr> {
    let mut lines = BufReader::new(output).lines();
    let mut line = || lines.next().ok_or("the server ended early")?.map_err(Box::<dyn Error>::from);
    let target = line()?.parse()?;
    let peers = qps.iter().map(|_| Ok(line()?.parse()?)).collect::<Result<Vec<Endpoint>>>()?;
    for (qp, peer) in qps.iter().zip(&peers) {
        writeln!(input, "{}", qp.endpoint())?;
        qp.connect(peer)?;
    }
    input.flush()?;
    // "connected".
    line()?;
    Ok(target)
}

/// The passive side: its queue pairs and memory, until killed.
fn serve(count: usize) -> Result<()> {
    let (_context, pd, cq) = open(0)?;
    let region = pd.alloc_mr(LONGEST, REMOTE)?;
    let qps = (0..count).map(|_| queue_pair(&pd, &cq)).collect::<Result<Vec<_>>>()?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    writeln!(out, "{}", region.remote())?;
    qps.iter().try_for_each(|qp| writeln!(out, "{}", qp.endpoint()))?;
    out.flush()?;
    let mut lines = io::stdin().lock().lines();
    for qp in &qps {
        qp.connect(&lines.next().ok_or("the client ended early")??.parse()?)?;
    }
    writeln!(out, "connected")?;
    out.flush()?;
    drop(out);
    // Every line starts or stops polling, which is what a busy server does; idle ones are not in
    // the way of the others.
    let polls = AtomicBool::new(false);
    thread::scope(|scope| {
        let poller = scope.spawn(|| poll_while(&polls, &cq));
        for _line in lines {
            polls.fetch_xor(true, Ordering::Relaxed);
            poller.thread().unpark();
        }
        // The client is gone.
        std::process::exit(0);
    })
}

/// Polls whenever it is to; what comes out is of no interest, but an error ends the process.
fn poll_while(polls: &AtomicBool, cq: &CompletionQueue) {
    let mut completions = [WorkCompletion::default(); 4];
    loop {
        if !polls.load(Ordering::Relaxed) {
            thread::park();
        } else if let Err(e) = cq.poll(&mut completions) {
            eprintln!("scale: {e}");
            std::process::exit(1);
        }
    }
}

fn queue_pairs(fleets: &mut [Fleet; 2], under_way: impl Fn(&Fleet) -> usize, rounds: usize) -> Result<()> {
    // The first messages of a queue pair reserve its memory.
    for fleet in fleets.iter_mut() {
        let all = fleet.qps.len();
        while fleet.turn < EACH * all {
            fleet.rate(SIZES[0], under_way(fleet))?;
        }
    }
    let [_, many] = &*fleets;
    println!("  {} queue pairs take {} bytes each once they have sent {EACH} messages", many.qps.len(), many.each()?);
    for size in SIZES {
        println!(" {size} bytes");
        let names =
            fleets.each_ref().map(|fleet| (format!("{} queue pairs", fleet.qps.len()), Some(fleet.server.id())));
        let under_way = fleets.each_ref().map(&under_way);
        let medians = compare(&names, rounds, |index| fleets[index].rate(size, under_way[index]))?;
        let ratio = medians[1] / medians[0];
        println!("  show: {ratio:.2} of {FEW} (0.80 promised): {}", if ratio >= 0.8 { "ok" } else { "MISSED" });
    }
    Ok(())
}

/// Two queue pairs of this process that know each other, and what they need.
struct Pair {
    from: QueuePair,
    /// Kept for `from`.
    _to: QueuePair,
    cq: CompletionQueue,
}

impl Pair {
    fn new(pd: &ProtectionDomain, context: &Context) -> Result<Self> {
        let cq = context.create_cq(UNDER_WAY as u32)?;
        let (from, to) = (queue_pair(pd, &cq)?, queue_pair(pd, &cq)?);
        from.connect(&to.endpoint())?;
        to.connect(&from.endpoint())?;
        Ok(Self { from, _to: to, cq })
    }

    /// Million messages of 64 bytes per second, one after the other, each from and to other memory.
    fn rate<'r>(&self, mut ends: impl FnMut() -> &'r ([Sge; 1], RemoteAddr)) -> Result<f64> {
        let (begun, mut done, mut out) = (Instant::now(), 0, [WorkCompletion::default(); 4]);
        while begun.elapsed() < TIME {
            let (source, target) = ends();
            self.from.post_send(&WorkRequest::write(source, *target).signaled())?;
            loop {
                let found = self.cq.poll(&mut out)?;
                if let Some(completion) = found.first() {
                    completion.ok()?;
                    break;
                }
            }
            done += 1;
        }
        Ok(f64::from(done) / begun.elapsed().as_secs_f64() / 1e6)
    }
}

/// A page that regions are made on.
#[repr(align(4096))]
struct Page([u8; 4096]);

fn regions(most: usize, rounds: usize) -> Result<()> {
    println!("WRITEs of 64 bytes within a process, every one with other keys");
    let (context, pd, _cq) = open(0)?;
    let pair = Pair::new(&pd, &context)?;
    let mut page = Box::new(Page([0; 4096]));
    let start = NonNull::from(&mut page.0).cast::<u8>();
    let begun = Instant::now();
    // SAFETY: the page lives until the regions are gone, and nobody else looks at it.
    let region = || unsafe { pd.register_raw(start, 64, REMOTE) };
    let all = (0..most).map(|_| region()).collect::<std::result::Result<Vec<_>, _>>()?;
    println!("  {most} regions registered in {:.1} s", begun.elapsed().as_secs_f32());
    let mut counts: Vec<usize> = [1, 1000, 100_000, most].into_iter().filter(|count| *count <= most).collect();
    counts.dedup();
    let names: Vec<_> = counts.iter().map(|count| (format!("keys of {count} regions"), None)).collect();
    // In the order of the messages: what is measured is how the keys are found, not where the
    // program keeps them. The step visits all of them, far apart.
    let ends = |count: usize| {
        let at = (0..count).map(|at| at * 7_919 % count);
        at.map(|at| Ok(([all[at].slice(..64)?], all[count - 1 - at].remote()))).collect::<Result<Vec<_>>>()
    };
    let ends = counts.iter().map(|count| ends(*count)).collect::<Result<Vec<_>>>()?;
    let mut turns: Vec<_> = ends.iter().map(|ends| ends.iter().cycle()).collect();
    compare(&names, rounds, |index| pair.rate(|| turns[index].next().unwrap_or(&ends[index][0])))?;
    let begun = Instant::now();
    drop(all);
    println!("  and deregistered in {:.1} s", begun.elapsed().as_secs_f32());
    Ok(())
}

/// Every thread makes its own queues.
fn threads(most: usize, rounds: usize) -> Result<()> {
    println!("WRITEs of 64 bytes within a process, every thread with queues of its own; the sum of all threads");
    let context = Context::open_first()?;
    let pd = context.alloc_pd()?;
    let measure = |start: &Receiver<()>, told: &Sender<std::result::Result<f64, String>>| -> Result<()> {
        let (pair, region) = (Pair::new(&pd, &context)?, pd.alloc_mr(4096, REMOTE)?);
        let ends = ([region.slice(..64)?], region.remote());
        while start.recv().is_ok() {
            told.send(pair.rate(|| &ends).map_err(|e| e.to_string()))?;
        }
        Ok(())
    };
    let names: Vec<_> = (1..=most).map(|count| (format!("{count} threads"), None)).collect();
    thread::scope(|scope| {
        let spawn = || {
            let ((start, starts), (tells, told)) = (channel(), channel());
            let measure = &measure;
            scope.spawn(move || measure(&starts, &tells).inspect_err(|e| eprintln!("scale: {e}")).is_ok());
            (start, told)
        };
        let workers: Vec<_> = (0..most).map(|_| spawn()).collect();
        compare(&names, rounds, |index| {
            let working = &workers[..=index];
            working.iter().try_for_each(|(start, _)| start.send(()).map_err(|e| e.to_string()))?;
            let rates = working.iter().map(|(_, told)| told.recv().map_err(|e| e.to_string())?);
            Ok(rates.collect::<std::result::Result<Vec<f64>, String>>()?.iter().sum())
        })
    })?;
    Ok(())
}
