//! Runs one hot path repeatedly, so that a test can count its instructions: `hot_paths NAME WARM_UP
//! COUNTED [MANY]`.
//!
//! Both queue pairs are in this process and one thread runs everything, so that every run executes
//! the same instructions. The program first sends WARM_UP messages, then calls [`mark`], sends
//! COUNTED messages, and calls [`mark`] again. `tests/tests/suites/speed/instructions.rs` counts
//! the instructions between the two calls. Some paths alternate between MANY pairs of queue pairs,
//! or MANY memory regions.

use roxe::{
    Access, AddressHandle, CompletionQueue, Context, MemoryRegion, ProtectionDomain, Qkey, QueuePair, Service, Sge,
    WcStatus, WorkCompletion, WorkRequest,
};
use std::error::Error;

const REMOTE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
/// Bytes of the longest message.
const LARGEST: usize = 64 << 10;
/// Requests of a posted list.
const LIST: u32 = 16;
const QKEY: Qkey = Qkey(0x1111_1111);

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A hot path. Its argument is the number of messages to send.
type Path = Box<dyn Fn(u32) -> Outcome<()>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, name, warm_up, counted, many @ ..] = &args[..] else {
        return Err("usage: hot_paths NAME WARM_UP COUNTED [MANY]".into());
    };
    let path = path(name, many.first().map_or(Ok(1), |many| many.parse())?)?;
    path(warm_up.parse()?)?;
    mark();
    path(counted.parse()?)?;
    mark();
    Ok(())
}

fn path(name: &str, many: usize) -> Outcome<Path> {
    let round_qps = |len, outstanding| {
        let pairs = Pairs::new(many)?;
        Ok(Box::new(move |messages| pairs.write(len, outstanding, messages)) as Path)
    };
    match name {
        "round_qps_64" => return round_qps(64, 64),
        "all_qps_4k" => return round_qps(4096, many),
        _ => (),
    }
    let pair = Pair::new(if name.starts_with("ud_") { Service::Ud } else { Service::Rc })?;
    Ok(match name {
        "round_mrs_64" => {
            let regions = (0..many).map(|_| pair.pd.alloc_mr(64, REMOTE)).collect::<Result<Vec<_>, _>>()?;
            Box::new(move |messages| pair.write_between(64, &regions, messages))
        }
        "rc_send_64" | "ud_send_64" => Box::new(move |messages| pair.send(64, messages)),
        "rc_send_64_list" => Box::new(move |messages| pair.send_lists(64, messages)),
        "rc_write_64_list" => Box::new(move |messages| pair.write_lists(64, messages)),
        "rc_write_64" => Box::new(move |messages| pair.write(64, messages)),
        "rc_write_64k" => Box::new(move |messages| pair.write(LARGEST, messages)),
        "rc_read_64k" => Box::new(move |messages| pair.read(LARGEST, messages)),
        other => return Err(format!("there is no path {other}").into()),
    })
}

/// Marks the start and the end of the counted instructions. The test looks for this name.
#[inline(never)]
fn mark() {
    // Keeps the compiler from merging this function with another empty one.
    std::hint::black_box("mark");
}

/// Many connected pairs of queue pairs, with one completion queue.
struct Pairs {
    pairs: Vec<(QueuePair, QueuePair)>,
    cq: CompletionQueue,
    region: MemoryRegion,
}

impl Pairs {
    fn new(many: usize) -> Outcome<Self> {
        let context = Context::open_first()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(u32::try_from(many.max(64))?)?;
        // A timeout of one second: under valgrind, on a busy machine, acknowledgements are slow.
        let qp = || pd.create_qp(&cq, &cq).max_recv_wr(1).max_send_wr(8).timeout(18).build();
        let pair = || {
            let (from, to) = (qp()?, qp()?);
            from.connect(&to.endpoint())?;
            to.connect(&from.endpoint())?;
            Ok((from, to))
        };
        let pairs = (0..many).map(|_| pair()).collect::<Outcome<Vec<_>>>()?;
        let pairs = Self { pairs, cq, region: pd.alloc_mr(2 * LARGEST, REMOTE)? };
        // The first message of a queue pair allocates memory.
        pairs.write(64, 8, u32::try_from(many)?)?;
        Ok(pairs)
    }

    /// Posts WRITEs to the queue pairs in turn, `outstanding` at a time.
    fn write(&self, len: usize, outstanding: usize, messages: u32) -> Outcome<()> {
        let source = [self.region.slice(..len)?];
        let request = WorkRequest::write(&source, self.region.remote().offset(LARGEST as u64)).signaled();
        let mut turns = self.pairs.iter().cycle();
        let mut left = messages as usize;
        while left > 0 {
            let count = outstanding.min(left);
            turns.by_ref().take(count).try_for_each(|(from, _)| from.post_send(&request))?;
            finish(&self.cq, count)?;
            left -= count;
        }
        Ok(())
    }
}

/// Two connected queue pairs, with one completion queue and one region.
struct Pair {
    pd: ProtectionDomain,
    from: QueuePair,
    to: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    /// Address of `to`, on UD.
    ah: Option<AddressHandle>,
}

impl Pair {
    fn new(service: Service) -> Outcome<Self> {
        let context = Context::open_first()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(64)?;
        let qp = || pd.create_qp(&cq, &cq).service(service).qkey(QKEY).max_recv_wr(32).max_send_wr(32).build();
        let (from, to) = (qp()?, qp()?);
        let ah = if service == Service::Ud {
            from.activate()?;
            to.activate()?;
            Some(pd.create_ah(to.endpoint().gid, 0)?)
        } else {
            from.connect(&to.endpoint())?;
            to.connect(&from.endpoint())?;
            None
        };
        let region = pd.alloc_mr(2 * LARGEST, REMOTE)?;
        Ok(Self { pd, from, to, cq, region, ah })
    }

    /// Sends one message at a time, each to a new receive request.
    fn send(&self, len: usize, messages: u32) -> Outcome<()> {
        let (source, landing) = (self.source(len)?, [self.region.slice(LARGEST..LARGEST + len + 40)?]);
        for _ in 0..messages {
            self.to.post_recv(1, &landing)?;
            let request = WorkRequest::send(&source).signaled();
            match &self.ah {
                Some(ah) => self.from.post_send(&request.to(ah, self.to.qp_num(), QKEY))?,
                None => self.from.post_send(&request)?,
            }
            self.finish(2)?;
        }
        Ok(())
    }

    fn write(&self, len: usize, messages: u32) -> Outcome<()> {
        let source = self.source(len)?;
        for _ in 0..messages {
            self.from
                .post_send(&WorkRequest::write(&source, self.region.remote().offset(LARGEST as u64)).signaled())?;
            self.finish(1)?;
        }
        Ok(())
    }

    /// Writes from one region to another, alternating between all.
    fn write_between(&self, len: usize, regions: &[MemoryRegion], messages: u32) -> Outcome<()> {
        let turns = regions.iter().zip(regions.iter().rev()).cycle();
        for (source, target) in turns.take(messages as usize) {
            self.from.post_send(&WorkRequest::write(&[source.slice(..len)?], target.remote()).signaled())?;
            self.finish(1)?;
        }
        Ok(())
    }

    fn read(&self, len: usize, messages: u32) -> Outcome<()> {
        let landing = self.source(len)?;
        for _ in 0..messages {
            self.from
                .post_send(&WorkRequest::read(&landing, self.region.remote().offset(LARGEST as u64)).signaled())?;
            self.finish(1)?;
        }
        Ok(())
    }

    fn send_lists(&self, len: usize, messages: u32) -> Outcome<()> {
        let (source, landing) = (self.source(len)?, [self.region.slice(LARGEST..LARGEST + len)?]);
        let list = [WorkRequest::send(&source).signaled(); LIST as usize];
        for _ in 0..messages / LIST {
            (0..LIST).try_for_each(|_| self.to.post_recv(1, &landing))?;
            self.from.post_send_list(&list)?;
            self.finish(2 * list.len())?;
        }
        Ok(())
    }

    /// Writes lists of messages, of which only the last is signaled.
    fn write_lists(&self, len: usize, messages: u32) -> Outcome<()> {
        let source = self.source(len)?;
        let write = WorkRequest::write(&source, self.region.remote().offset(LARGEST as u64));
        let mut list = [write; LIST as usize];
        list[list.len() - 1] = write.signaled();
        for _ in 0..messages / LIST {
            self.from.post_send_list(&list)?;
            self.finish(1)?;
        }
        Ok(())
    }

    fn source(&self, len: usize) -> Outcome<[Sge; 1]> {
        Ok([self.region.slice(..len)?])
    }

    fn finish(&self, count: usize) -> Outcome<()> {
        finish(&self.cq, count)
    }
}

/// Polls `cq` until `count` requests are complete.
fn finish(cq: &CompletionQueue, count: usize) -> Outcome<()> {
    let (mut done, mut out) = (0, [WorkCompletion::default(); 16]);
    while done < count {
        let found = cq.poll(&mut out)?;
        if let Some(failed) = found.iter().find(|completion| completion.status() != WcStatus::Success) {
            return Err(format!("a request ended with {:?}", failed.status()).into());
        }
        done += found.len();
    }
    Ok(())
}
