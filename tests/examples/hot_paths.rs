//! One hot path, walked again and again, for an instruction counter to look at: `hot_paths NAME MESSAGES`.
//!
//! Both queue pairs live in this process and one thread does everything, so that every run walks the same way. The count of
//! `tests/tests/instructions.rs` is the difference of two runs: setting up and taking down cancel out.

use roxe::{
    Access, AddressHandle, CompletionQueue, Context, MemoryRegion, Qkey, QueuePair, Service, Sge, WcStatus,
    WorkCompletion, WorkRequest,
};
use std::error::Error;

const REMOTE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
const LARGEST: usize = 64 << 10;
/// Requests of one list.
const LIST: u32 = 16;
const QKEY: Qkey = Qkey(0x1111_1111);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, name, messages] = &args[..] else { return Err("usage: hot_paths NAME MESSAGES".into()) };
    let messages = messages.parse()?;
    match name.as_str() {
        "rc_send_64" => Pair::new(Service::Rc)?.send(64, messages),
        "rc_send_64_list" => Pair::new(Service::Rc)?.send_lists(64, messages),
        "rc_write_64_list" => Pair::new(Service::Rc)?.write_lists(64, messages),
        "ud_send_64" => Pair::new(Service::Ud)?.send(64, messages),
        "rc_write_64" => Pair::new(Service::Rc)?.write(64, messages),
        "rc_write_64k" => Pair::new(Service::Rc)?.write(LARGEST, messages),
        "rc_read_64k" => Pair::new(Service::Rc)?.read(LARGEST, messages),
        other => Err(format!("no path is called {other}").into()),
    }
}

/// Two queue pairs that know each other, with one completion queue and memory for both.
struct Pair {
    from: QueuePair,
    to: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    /// How datagrams find `to`.
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
        Ok(Self { from, to, cq, region, ah })
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
        let (mut done, mut out) = (0, [WorkCompletion::default(); 16]);
        while done < count {
            let found = self.cq.poll(&mut out)?;
            if let Some(failed) = found.iter().find(|completion| completion.status() != WcStatus::Success) {
                return Err(format!("a request ended with {:?}", failed.status()).into());
            }
            done += found.len();
        }
        Ok(())
    }
}
