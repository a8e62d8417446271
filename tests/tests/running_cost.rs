//! What a running device costs: no allocation per message, and next to nothing for queue pairs that wait.
//!
//! One test function, because the counters are those of the whole process.

use roxe::{Access, CompletionQueue, Context, Error, MemoryRegion, QueuePair, WorkRequest};
use roxe_tests::counting::Counting;
use std::fs;
use std::thread;
use std::time::Duration;

#[global_allocator]
static COUNTER: Counting = Counting::new();

const MESSAGE: usize = 8192;
const PATIENCE: Duration = Duration::from_secs(10);
const IDLE_QPS: usize = 1000;

#[test]
fn messages_allocate_nothing_and_waiting_queue_pairs_cost_little() -> Result<(), Error> {
    let context = Context::open_first()?;
    let pd = context.alloc_pd()?;
    let (alice, bob) = (Side::new(&pd, &context)?, Side::new(&pd, &context)?);
    alice.qp.connect(&bob.qp.endpoint())?;
    bob.qp.connect(&alice.qp.endpoint())?;

    // The first lap through the queues touches memory that was only reserved, and threads start.
    ping_pong(&alice, &bob, 2000)?;
    let before = COUNTER.count();
    ping_pong(&alice, &bob, 10_000)?;
    assert_eq!(COUNTER.count() - before, 0, "allocations in 10,000 round trips of two packets each");

    let cq = context.create_cq(64)?;
    let resident = resident_bytes();
    let mut idle = Vec::with_capacity(IDLE_QPS);
    for _ in 0..IDLE_QPS / 2 {
        let (a, b) = (pd.create_qp(&cq, &cq).build()?, pd.create_qp(&cq, &cq).build()?);
        a.connect(&b.endpoint())?;
        b.connect(&a.endpoint())?;
        idle.extend([a, b]);
    }
    let each = resident_bytes().saturating_sub(resident) / IDLE_QPS;
    println!("{each} bytes resident per connected idle queue pair");
    assert!(each < 16 * 1024, "{each} bytes per idle queue pair");

    let wakeups = settled_wakeups();
    // An observation, not a wait: in this second no thread of the device may run.
    thread::sleep(Duration::from_secs(1));
    assert_eq!(background_wakeups(), wakeups, "the background thread ran although nothing happened");
    drop(idle);
    Ok(())
}

struct Side {
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
}

impl Side {
    fn new(pd: &roxe::ProtectionDomain, context: &Context) -> Result<Self, Error> {
        let cq = context.create_cq(64)?;
        let qp = pd.create_qp(&cq, &cq).build()?;
        Ok(Self { qp, cq, region: pd.alloc_mr(2 * MESSAGE, Access::LOCAL_WRITE)? })
    }

    fn send(&self) -> Result<(), Error> {
        self.qp.post_send(&WorkRequest::send(&[self.region.slice(MESSAGE..)?]))
    }

    fn post_recv(&self) -> Result<(), Error> {
        self.qp.post_recv(1, &[self.region.slice(..MESSAGE)?])
    }

    fn receive(&self) -> Result<(), Error> {
        self.cq.wait(PATIENCE)?.ok().map(drop)
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

/// Resident memory of this process (`man 5 proc_pid_statm`: the second number, in pages).
fn resident_bytes() -> usize {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<usize>().ok())
        .expect("Linux has /proc/self/statm");
    pages * 4096
}

/// How often the device's own threads were given a processor.
fn background_wakeups() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux lists threads");
    tasks
        .flatten()
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("roxe")))
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().nth(2)?.parse::<u64>().ok())
        .sum()
}

/// The count once it stands still: the pollers' last visit lets the background thread look a few times more.
fn settled_wakeups() -> u64 {
    assert!(background_wakeups() > 0, "there is no background thread to observe");
    let mut last = background_wakeups();
    for _ in 0..1000 {
        thread::sleep(Duration::from_millis(20));
        let now = background_wakeups();
        if now == last {
            return now;
        }
        last = now;
    }
    panic!("the background thread never comes to rest");
}
