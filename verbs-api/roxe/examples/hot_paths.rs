//! One hot path, walked again and again, for an instruction counter to look at: `hot_paths NAME
//! WARM_UP COUNTED [MANY]`.
//!
//! Both queue pairs live in this process and one thread does everything, so that every run walks
//! the same way. WARM_UP messages go first; [`mark`] is called before and after the COUNTED ones,
//! which tells `tests/tests/suites/speed/instructions.rs` what they cost. MANY is the number of
//! pairs of queue pairs, or of memory regions, on the paths that go round them.

use roxe::{
    Access, AddressHandle, CompletionQueue, Context, MemoryRegion, ProtectionDomain, Qkey, QueuePair, Service, Sge,
    WcStatus, WorkCompletion, WorkRequest,
};
use std::error::Error;

const REMOTE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
const LARGEST: usize = 64 << 10;
/// Requests of one list.
const LIST: u32 = 16;
const QKEY: Qkey = Qkey(0x1111_1111);

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Sends that many messages.
type Walk = Box<dyn Fn(u32) -> Outcome<()>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, name, warm_up, counted, many @ ..] = &args[..] else {
        return Err("usage: hot_paths NAME WARM_UP COUNTED [MANY]".into());
    };
    let walk = walk(name, many.first().map_or(Ok(1), |many| many.parse())?)?;
    walk(warm_up.parse()?)?;
    mark();
    walk(counted.parse()?)?;
    mark();
    Ok(())
}

/// The path of that name, with all that it needs.
fn walk(name: &str, many: usize) -> Outcome<Walk> {
    let round_qps = |len, under_way| {
        let crowd = Crowd::new(many)?;
        Ok(Box::new(move |messages| crowd.write(len, under_way, messages)) as Walk)
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
            Box::new(move |messages| pair.write_elsewhere(64, &regions, messages))
        }
        "rc_send_64" | "ud_send_64" => Box::new(move |messages| pair.send(64, messages)),
        "rc_send_64_list" => Box::new(move |messages| pair.send_lists(64, messages)),
        "rc_write_64_list" => Box::new(move |messages| pair.write_lists(64, messages)),
        "rc_write_64" => Box::new(move |messages| pair.write(64, messages)),
        "rc_write_64k" => Box::new(move |messages| pair.write(LARGEST, messages)),
        "rc_read_64k" => Box::new(move |messages| pair.read(LARGEST, messages)),
        other => return Err(format!("no path is called {other}").into()),
    })
}

/// Marks the start of a count for an instruction counter.
#[inline(never)]
fn mark() {
    // A function without a body might be made one with another.
    std::hint::black_box("mark");
}

/// Many pairs of queue pairs that know each other, with one completion queue.
struct Crowd {
    pairs: Vec<(QueuePair, QueuePair)>,
    cq: CompletionQueue,
    region: MemoryRegion,
}

impl Crowd {
    fn new(many: usize) -> Outcome<Self> {
        let context = Context::open_first()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(u32::try_from(many.max(64))?)?;
        // A second: under valgrind, and with others on the machine, an answer may take longer than
        // usual.
        let qp = || pd.create_qp(&cq, &cq).max_recv_wr(1).max_send_wr(8).timeout(18).build();
        let pair = || {
            let (from, to) = (qp()?, qp()?);
            from.connect(&to.endpoint())?;
            to.connect(&from.endpoint())?;
            Ok((from, to))
        };
        let pairs = (0..many).map(|_| pair()).collect::<Outcome<Vec<_>>>()?;
        let crowd = Self { pairs, cq, region: pd.alloc_mr(2 * LARGEST, REMOTE)? };
        // The first message of a queue pair reserves memory.
        crowd.write(64, 8, u32::try_from(many)?)?;
        Ok(crowd)
    }

    /// Writes on one queue pair after the other, `under_way` at a time.
    fn write(&self, len: usize, under_way: usize, messages: u32) -> Outcome<()> {
        let source = [self.region.slice(..len)?];
        let request = WorkRequest::write(&source, self.region.remote().offset(LARGEST as u64)).signaled();
        let mut turns = self.pairs.iter().cycle();
        let mut left = messages as usize;
        while left > 0 {
            let count = under_way.min(left);
            turns.by_ref().take(count).try_for_each(|(from, _)| from.post_send(&request))?;
            finish(&self.cq, count)?;
            left -= count;
        }
        Ok(())
    }
}

/// Two queue pairs that know each other, with one completion queue and memory for both.
struct Pair {
    /// For more memory.
    pd: ProtectionDomain,
    from: QueuePair,
    to: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    /// Address of datagrams to `to`.
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

    /// One message after the other, with its receive.
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

    /// Every message comes from and goes to another one of `regions`.
    fn write_elsewhere(&self, len: usize, regions: &[MemoryRegion], messages: u32) -> Outcome<()> {
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

    /// Lists of messages, with their receives: what a program does that has many under way.
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

    /// Lists of writes of which the last one tells that all are done.
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

    /// Polls until `count` requests are complete.
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
