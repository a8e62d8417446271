//! One end of a pair under load: four reliable queue pairs with full queues of WRITEs, SENDs,
//! READs, and WRITEs that are read back. Checks every received byte.

use roxe::{
    Access, CompletionQueue, Context, Endpoint, Error, MemoryRegion, Qpn, QueuePair, RemoteAddr, WcOpcode, WcStatus,
    WorkCompletion, WorkRequest,
};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Operations of the queue pairs.
pub(crate) const WORKS: [Work; 4] = [Work::Write, Work::Send, Work::Read, Work::WriteAndRead];
/// Acknowledgement timeout of every queue pair, as its code in the standard.
pub(crate) const TIMEOUT: u8 = 14;
/// Retry count of every queue pair.
pub(crate) const RETRIES: u8 = 7;

/// Number of outstanding requests of a queue pair.
const DEPTH: usize = 8;
/// Number of posted receives of a queue pair.
const RECEIVES: usize = 4 * DEPTH;
/// Maximum length of a WRITE and READ in bytes.
const LARGE: usize = 64 << 10;
/// Length of a SEND in bytes.
const SMALL: usize = 1 << 10;
/// Offsets in the memory of a queue pair: data to send, target of the peer's WRITEs, READ
/// responses, received SENDs.
const SOURCE: usize = 0;
const TARGET: usize = LARGE;
const SINK: usize = 2 * LARGE;
const INBOX: usize = 3 * LARGE;
const PER_PAIR: usize = INBOX + RECEIVES * SMALL;
/// Time that an idle thread sleeps.
const PAUSE: Duration = Duration::from_micros(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Write,
    Send,
    Read,
    WriteAndRead,
}

/// Activity of the load.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Posts requests to all queue pairs.
    Busy,
    /// Posts no requests, but receives.
    Quiet,
    /// The load stops.
    Over,
}

/// Progress of a load, and the failures of its queue pairs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) completed: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) outstanding: usize,
    /// True once the load posts no more requests.
    pub(crate) quiet: bool,
    /// First failed status of each queue pair, and its time by [`monotonic`].
    pub(crate) failed: [Option<(WcStatus, u64)>; 4],
    /// Error of the load: wrong data or a wrong completion.
    pub(crate) wrong: Option<String>,
}

impl Progress {
    pub(crate) fn is_broken(&self) -> bool {
        self.wrong.is_some() || self.failed.iter().all(Option::is_some)
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.quiet && self.outstanding == 0
    }
}

/// Formats the answer of a peer: counts, then for each queue pair `-` or status and time.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.completed, self.sent, self.received, self.outstanding)?;
        for failed in &self.failed {
            match failed {
                None => write!(f, " -")?,
                Some((status, at)) => write!(f, " {}:{at}", *status as u32)?,
            }
        }
        self.wrong.iter().try_for_each(|wrong| write!(f, " wrong: {wrong}"))
    }
}

/// Returns the time in nanoseconds of the monotonic clock, which all processes share.
pub(crate) fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the whole structure; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// An end that is not connected yet.
pub(crate) struct End {
    cq: CompletionQueue,
    region: MemoryRegion,
    qps: Vec<QueuePair>,
}

impl End {
    pub(crate) fn new(context: &Context) -> Result<Self, Error> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(u32::try_from(WORKS.len() * (DEPTH + RECEIVES)).unwrap_or(u32::MAX))?;
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.alloc_mr(WORKS.len() * PER_PAIR, all)?;
        let one = |_| pd.create_qp(&cq, &cq).timeout(TIMEOUT).retry_cnt(RETRIES).build();
        let qps = WORKS.iter().map(one).collect::<Result<Vec<_>, _>>()?;
        for index in 0..WORKS.len() {
            region.write(index * PER_PAIR + SOURCE, &pattern(index, 0..LARGE))?;
        }
        let end = Self { cq, region, qps };
        (0..RECEIVES).try_for_each(|slot| end.post_receive(slot))?;
        Ok(end)
    }

    /// Returns the addresses, keys and queue pair numbers that the peer needs.
    pub(crate) fn describe(&self) -> String {
        let endpoints: Vec<String> = self.qps.iter().map(|qp| qp.endpoint().to_string()).collect();
        format!("{} {}", self.region.remote(), endpoints.join(" "))
    }

    /// Connects to the end with this description, and starts the load.
    pub(crate) fn start(self, peer: &[&str]) -> Result<Load, Box<dyn std::error::Error>> {
        let (remote, endpoints) = peer.split_first().ok_or("no peer")?;
        let remote: RemoteAddr = remote.parse()?;
        for (qp, endpoint) in self.qps.iter().zip(endpoints) {
            qp.connect(&endpoint.parse::<Endpoint>()?)?;
        }
        let (phase, progress) = (Arc::new(AtomicU8::new(Phase::Busy as u8)), Arc::default());
        let mut worker = Worker {
            remote,
            qpns: self.qps.iter().map(QueuePair::qp_num).collect(),
            end: self,
            phase: Arc::clone(&phase),
            shared: Arc::clone(&progress),
            progress: Progress::default(),
            posted: [0; 4],
            done: [0; 4],
        };
        let thread = thread::spawn(move || worker.run());
        Ok(Load { phase, progress, thread })
    }

    fn post_receive(&self, slot: usize) -> Result<(), Error> {
        let index = WORKS.iter().position(|work| *work == Work::Send).unwrap_or_default();
        let at = index * PER_PAIR + INBOX + slot * SMALL;
        self.qps[index].post_recv(slot as u64, &[self.region.slice(at..at + SMALL)?])
    }
}

/// Returns a part of the initial data of queue pair `index`, which READs return.
fn pattern(index: usize, range: Range<usize>) -> Vec<u8> {
    #[expect(clippy::cast_possible_truncation, reason = "any byte will do")]
    range.map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ (index as u8).wrapping_mul(91)).collect()
}

/// A running load.
pub(crate) struct Load {
    phase: Arc<AtomicU8>,
    progress: Arc<Mutex<Progress>>,
    thread: thread::JoinHandle<()>,
}

impl Load {
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the load and destroys its objects.
    pub(crate) fn close(self) -> Progress {
        self.enter(Phase::Over);
        let joined = self.thread.join();
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if joined.is_err() {
            progress.wrong = Some("the load panicked".to_owned());
        }
        progress
    }
}

/// The thread of a load.
struct Worker {
    remote: RemoteAddr,
    qpns: Vec<Qpn>,
    end: End,
    phase: Arc<AtomicU8>,
    shared: Arc<Mutex<Progress>>,
    progress: Progress,
    /// Number of posted requests of each queue pair.
    posted: [usize; 4],
    /// Number of completed requests of each queue pair.
    done: [usize; 4],
}

impl Worker {
    fn run(&mut self) {
        let mut completions = [WorkCompletion::default(); 32];
        loop {
            let over = self.phase.load(Ordering::Relaxed) == Phase::Over as u8;
            let worked = self.step(&mut completions);
            let idle = worked.unwrap_or_else(|why| {
                self.progress.wrong.get_or_insert(why);
                true
            });
            self.progress.outstanding = self.posted.iter().sum::<usize>() - self.done.iter().sum::<usize>();
            self.shared.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&self.progress);
            // End only once the queue is empty: the peer counts the messages in it as delivered.
            if idle && over {
                return;
            }
            if idle {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Posts requests and polls once. Returns true if the poll was empty.
    fn step(&mut self, completions: &mut [WorkCompletion]) -> Result<bool, String> {
        self.progress.quiet = self.phase.load(Ordering::Relaxed) != Phase::Busy as u8;
        if !self.progress.quiet {
            self.post()?;
        }
        let cq = self.end.cq.clone();
        let taken = cq.poll(completions).map_err(|e| e.to_string())?;
        taken.iter().try_for_each(|completion| self.judge(completion))?;
        Ok(taken.is_empty())
    }

    fn post(&mut self) -> Result<(), String> {
        for index in 0..WORKS.len() {
            while self.progress.failed[index].is_none() && self.posted[index] - self.done[index] < DEPTH {
                self.post_one(index).map_err(|e| e.to_string())?;
                self.posted[index] += 1;
            }
        }
        Ok(())
    }

    /// Posts the next request of a queue pair. Its number determines its operation, so that its
    /// completion can be checked.
    fn post_one(&self, index: usize) -> Result<(), Error> {
        let (region, serial, base) = (&self.end.region, self.posted[index], index * PER_PAIR);
        let work = WORKS[index];
        let reads = work == Work::Read || (work == Work::WriteAndRead && !serial.is_multiple_of(2));
        let (at, len) = match work {
            Work::Write | Work::Read => place(serial),
            Work::Send => (serial % DEPTH * SMALL, SMALL),
            Work::WriteAndRead => word_place(serial),
        };
        match work {
            Work::Send => region.write(base + SOURCE + at, &message(serial))?,
            Work::WriteAndRead if !reads => region.write(base + SOURCE + at, &word(serial))?,
            _ => {}
        }
        let local = base + at + if reads { SINK } else { SOURCE };
        let remote = self.remote.offset((base + at + if work == Work::Read { SOURCE } else { TARGET }) as u64);
        let list = [region.slice(local..local + len)?];
        let request = match work {
            Work::Send => WorkRequest::send(&list),
            _ if reads => WorkRequest::read(&list, remote),
            _ => WorkRequest::write(&list, remote),
        };
        self.end.qps[index].post_send(&request.wr_id(serial as u64).signaled())
    }

    fn judge(&mut self, completion: &WorkCompletion) -> Result<(), String> {
        let index = self
            .qpns
            .iter()
            .position(|qpn| *qpn == completion.qp_num())
            .ok_or("a completion of an unknown queue pair")?;
        let is_receive = completion.opcode() == WcOpcode::Recv;
        if completion.status() != WcStatus::Success {
            // Flushed requests and receives are a consequence of the failure, not the failure.
            if !is_receive && completion.status() != WcStatus::WrFlushErr {
                self.progress.failed[index].get_or_insert_with(|| (completion.status(), monotonic()));
            }
            self.done[index] += usize::from(!is_receive && self.done[index] < self.posted[index]);
            return Ok(());
        }
        #[expect(clippy::cast_possible_truncation, reason = "given as usize")]
        let wr_id = completion.wr_id() as usize;
        if is_receive {
            return self.check_message(index, wr_id);
        }
        if wr_id != self.done[index] {
            return Err(format!("request {wr_id} of {:?} ended before request {}", WORKS[index], self.done[index]));
        }
        self.done[index] += 1;
        self.progress.completed += 1;
        self.progress.sent += u64::from(WORKS[index] == Work::Send);
        self.check_read(index, wr_id)
    }

    /// Checks that a READ returned the peer's bytes.
    fn check_read(&self, index: usize, serial: usize) -> Result<(), String> {
        let base = index * PER_PAIR + SINK;
        let (at, expected) = match WORKS[index] {
            Work::Read => {
                let (at, len) = place(serial);
                (at, pattern(index, at..at + len))
            }
            Work::WriteAndRead if !serial.is_multiple_of(2) => (word_place(serial).0, word(serial).to_vec()),
            _ => return Ok(()),
        };
        let got = self.end.region.to_vec(base + at..base + at + expected.len()).map_err(|e| e.to_string())?;
        if got == expected { Ok(()) } else { Err(format!("request {serial} of {:?} read other bytes", WORKS[index])) }
    }

    /// Checks that a message is complete and the next in order, and posts its receive again.
    fn check_message(&mut self, index: usize, slot: usize) -> Result<(), String> {
        let at = index * PER_PAIR + INBOX + slot * SMALL;
        let got = self.end.region.to_vec(at..at + SMALL).map_err(|e| e.to_string())?;
        #[expect(clippy::cast_possible_truncation, reason = "a count of messages")]
        let serial = self.progress.received as usize;
        if got != message(serial) {
            return Err(format!("message {serial} is out of order or incomplete"));
        }
        self.progress.received += 1;
        // A failed queue pair accepts no receives; its requests report the failure.
        let posted = self.end.post_receive(slot);
        if self.progress.failed[index].is_some() { Ok(()) } else { posted.map_err(|e| e.to_string()) }
    }
}

/// Returns offset and length of the access of request `serial`, from a few bytes to many packets.
/// The accesses of [`DEPTH`] consecutive requests do not overlap.
fn place(serial: usize) -> (usize, usize) {
    const SHARE: usize = LARGE / DEPTH;
    (serial % DEPTH * SHARE, [64, 4096, SHARE, 1000][serial / DEPTH % 4])
}

/// Returns offset and length of the word that an even request writes and the next odd request reads
/// back.
fn word_place(serial: usize) -> (usize, usize) {
    (serial / 2 % DEPTH * 8, 8)
}

/// Returns the word of request `serial`.
fn word(serial: usize) -> [u8; 8] {
    (serial as u64 / 2 + 1).to_le_bytes()
}

/// Returns the bytes of message `serial`.
fn message(serial: usize) -> Vec<u8> {
    #[expect(clippy::cast_possible_truncation, reason = "any byte will do")]
    (0..SMALL).map(|at| (serial.wrapping_mul(7) + at * 3 + (serial >> 8)) as u8).collect()
}
