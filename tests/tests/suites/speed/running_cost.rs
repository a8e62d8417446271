//! Checks the costs of a running device: no allocation per message, and little memory and no
//! processor time for idle queue pairs.
//!
//! A suite has no test harness, which would allocate on another thread.

use crate::ALLOCATOR;
use parking_lot::Mutex;
use roxe::{Access, CompletionQueue, Context, Error, MemoryRegion, QueuePair, WorkRequest};
use roxe_tests::report::{self, Check};
use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// Length of a message in bytes.
const MESSAGE_LEN: usize = 8192;
const TIME_LIMIT: Duration = Duration::from_secs(10);
const IDLE_QPS: usize = 1000;

pub(crate) fn main() -> ExitCode {
    report::main(vec![
        Check::new("10,000 round trips of two packets each allocate nothing", || round_trips().into()),
        Check::new("1,000 idle queue pairs take less than 16 KiB each and no processor time", || idle().into()),
    ])
}

fn round_trips() -> Result<(), String> {
    allocations().map_err(|e| e.to_string())?
}

fn allocations() -> Result<Result<(), String>, Error> {
    let context = Context::open_first()?;
    let pd = context.alloc_pd()?;
    let (alice, bob) = (Side::new(&pd, &context)?, Side::new(&pd, &context)?);
    alice.qp.connect(&bob.qp.endpoint())?;
    bob.qp.connect(&alice.qp.endpoint())?;
    // Warm up: threads start, and the queues touch their memory for the first time.
    contend();
    ping_pong(&alice, &bob, 2000)?;
    match ALLOCATOR.check_none_during(|| ping_pong(&alice, &bob, 10_000)) {
        Ok(result) => result.map(Ok),
        Err(backtrace) => Ok(Err(backtrace)),
    }
}

/// Lets several threads wait for one lock, so that parking_lot allocates its table of waiting
/// threads. It does so once per process, in the ping-pong at a random moment.
fn contend() {
    let lock = Mutex::new(());
    let held = lock.lock();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(lock.try_lock_for(Duration::from_millis(1)).is_none()));
        }
    });
    drop(held);
}

fn idle() -> Result<(), String> {
    let context = Context::open_first().map_err(|e| e.to_string())?;
    let resident = resident_bytes();
    let idle = connected_pairs(&context).map_err(|e| e.to_string())?;
    let each = resident_bytes().saturating_sub(resident) / IDLE_QPS;
    println!("         {each} bytes resident per connected idle queue pair");
    if each >= 16 * 1024 {
        return Err(format!("{each} bytes each"));
    }
    let wakeups = settled_wakeups()?;
    // In this second no thread of the device may run.
    thread::sleep(Duration::from_secs(1));
    let more = background_wakeups() - wakeups;
    drop(idle);
    if more == 0 { Ok(()) } else { Err(format!("the background thread ran {more} times without traffic")) }
}

fn connected_pairs(context: &Context) -> Result<Vec<QueuePair>, Error> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64)?;
    let mut all = Vec::with_capacity(IDLE_QPS);
    for _ in 0..IDLE_QPS / 2 {
        let (a, b) = (pd.create_qp(&cq, &cq).build()?, pd.create_qp(&cq, &cq).build()?);
        a.connect(&b.endpoint())?;
        b.connect(&a.endpoint())?;
        all.extend([a, b]);
    }
    Ok(all)
}

struct Side {
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
}

impl Side {
    fn new(pd: &roxe::ProtectionDomain, context: &Context) -> Result<Self, Error> {
        let cq = context.create_cq(64)?;
        // A timeout of 2 s: if this process stalls for longer, the background thread searches for
        // another process that may have received its packets, which allocates.
        let qp = pd.create_qp(&cq, &cq).timeout(19).build()?;
        Ok(Self { qp, cq, region: pd.alloc_mr(2 * MESSAGE_LEN, Access::LOCAL_WRITE)? })
    }

    fn send(&self) -> Result<(), Error> {
        self.qp.post_send(&WorkRequest::send(&[self.region.slice(MESSAGE_LEN..)?]))
    }

    fn post_recv(&self) -> Result<(), Error> {
        self.qp.post_recv(1, &[self.region.slice(..MESSAGE_LEN)?])
    }

    fn receive(&self) -> Result<(), Error> {
        self.cq.wait(TIME_LIMIT)?.check().map(drop)
    }
}

fn ping_pong(alice: &Side, bob: &Side, rounds: usize) -> Result<(), Error> {
    for _ in 0..rounds {
        for (from, to) in [(alice, bob), (bob, alice)] {
            to.post_recv()?;
            from.send()?;
            to.receive()?;
        }
    }
    Ok(())
}

/// Returns the resident memory of this process (`man 5 proc_pid_statm`: the second number, in
/// pages).
fn resident_bytes() -> usize {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<usize>().ok())
        .expect("Linux has /proc/self/statm");
    pages * 4096
}

/// Returns how often the device's own threads were scheduled.
fn background_wakeups() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux lists threads");
    tasks
        .flatten()
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("roxe")))
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().nth(2)?.parse::<u64>().ok())
        .sum()
}

/// Waits until the wake-ups do not change for half a second, because timers of earlier traffic must
/// expire first. Returns their number.
fn settled_wakeups() -> Result<u64, String> {
    let (mut last, mut still) = (0, 0);
    for _ in 0..1000 {
        thread::sleep(Duration::from_millis(20));
        let now = background_wakeups();
        still = if now == last && now > 0 { still + 1 } else { 0 };
        if still == 25 {
            return Ok(now);
        }
        last = now;
    }
    Err(format!("the background thread is never idle ({last} wake-ups)"))
}
