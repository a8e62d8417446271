//! Bandwidth and latency of RDMA WRITE between two processes on the loopback device.
//!
//! `write_bw [SIZE] [SECONDS]` starts its own peer. It posts WRITEs of SIZE bytes (default 1 MiB)
//! for SECONDS seconds (default 2) and prints their bandwidth in GB/s, then the median time from
//! posting an 8-byte WRITE to its completion.

use roxe_provider::wire::{PathMtu, Psn, Qpn, RKey};
use roxe_provider::{
    Access, AhAttr, AttrMask, Context, Cq, CqInit, Mr, Pd, Qp, QpAttr, QpCaps, QpInit, QpState, SendData, SendFlags,
    SendOp, SendRequest, Service, Sge, WcStatus, devices,
};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Work requests in flight at a time.
const DEPTH: usize = 32;

/// One end of the connection: a queue pair and the memory of its WRITEs.
struct End {
    context: Arc<Context>,
    _pd: Arc<Pd>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    mr: Arc<Mr>,
}

impl End {
    fn open(size: usize) -> Result<Self> {
        let context = devices()?.first().ok_or("no device")?.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(CqInit { cqe: 1024, ..CqInit::default() })?;
        let memory = Vec::leak(vec![1u8; size.max(4096)]);
        let addr = memory.as_ptr() as u64;
        // SAFETY: the memory is leaked, so it stays valid, and only the card accesses it.
        let mr = unsafe { pd.reg_mr(addr, memory.len() as u64, addr, Access::LOCAL_WRITE | Access::REMOTE_WRITE)? };
        let caps = QpCaps { max_send_wr: 64, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        let qp = pd.create_qp(QpInit {
            service: Service::Rc,
            caps,
            sq_sig_all: true,
            send_cq,
            recv_cq,
            srq: None,
            user_context: 0,
        })?;
        Ok(Self { context, _pd: pd, cq, qp, mr })
    }

    /// Returns a line for the peer: QPN, address and rkey.
    fn address_line(&self) -> String {
        format!("{} {} {}", self.qp.qpn().get(), self.mr.addr(), self.mr.rkey().0)
    }

    fn connect(&self, dest_qpn: Qpn) -> Result<()> {
        let gid = self.context.gid(1, 0)?;
        let av = self.context.resolve_av(&AhAttr { dgid: gid, port: 1, has_grh: true, ..AhAttr::default() })?;
        let init = QpAttr { state: QpState::Init, port: 1, access: Access::REMOTE_WRITE, ..QpAttr::default() };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        self.qp.modify(&init, mask)?;
        let rtr = QpAttr { state: QpState::Rtr, av, dest_qpn, path_mtu: PathMtu::Mtu4096, rq_psn: Psn::new(1), ..init };
        let mask = AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        self.qp.modify(&rtr, mask | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER)?;
        let rts = QpAttr { state: QpState::Rts, sq_psn: Psn::new(1), timeout: 14, retry_cnt: 7, rnr_retry: 7, ..rtr };
        let mask = AttrMask::STATE | AttrMask::SQ_PSN | AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY;
        Ok(self.qp.modify(&rts, mask | AttrMask::MAX_QP_RD_ATOMIC)?)
    }
}

/// Parses the line of [`End::address_line`].
fn parse_address_line(line: &str) -> Result<(Qpn, u64, RKey)> {
    let mut words = line.split_whitespace().map(str::parse::<u64>);
    let mut next = || words.next().ok_or("the peer's line is too short");
    Ok((Qpn::new(next()?? as u32), next()??, RKey(next()?? as u32)))
}

/// Runs the passive end. Like an application, it polls its CQ until the process is killed.
fn serve(size: usize) -> Result<()> {
    let end = End::open(size)?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    end.connect(parse_address_line(&line)?.0)?;
    println!("{}", end.address_line());
    loop {
        end.cq.poll(16, |_| {})?;
    }
}

fn start_peer(size: usize, own_address: &str) -> Result<(Child, String)> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.args(["serve", &size.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    writeln!(child.stdin.as_mut().ok_or("no pipe")?, "{own_address}")?;
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().ok_or("no pipe")?).read_line(&mut line)?;
    Ok((child, line))
}

/// Posts requests for `time`; returns the number of completions per second.
fn message_rate(end: &End, request: &SendRequest<'_>, time: Duration) -> Result<f64> {
    let (start, mut posted, mut done) = (Instant::now(), 0usize, 0usize);
    while start.elapsed() < time || done < posted {
        while start.elapsed() < time && posted - done < DEPTH {
            end.qp.post_send(std::slice::from_ref(request)).map_err(|(_, e)| e)?;
            posted += 1;
        }
        done += end.cq.poll(DEPTH, |cqe| assert_eq!(cqe.status, WcStatus::Success))?;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// Returns the median time from posting one request to its completion.
fn median_latency(end: &End, request: &SendRequest<'_>, rounds: usize) -> Result<Duration> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        end.qp.post_send(std::slice::from_ref(request)).map_err(|(_, e)| e)?;
        while end.cq.poll(1, |cqe| assert_eq!(cqe.status, WcStatus::Success))? == 0 {}
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[rounds / 2])
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| args.get(at).map_or(Ok(default), |word| word.parse::<usize>());
    if args.first().is_some_and(|word| word == "serve") {
        return serve(number(1, 1 << 20)?);
    }
    let (size, seconds) = (number(0, 1 << 20)?, number(1, 2)?);
    let end = End::open(size)?;
    let (mut child, line) = start_peer(size, &end.address_line())?;
    let (qpn, remote_addr, rkey) = parse_address_line(&line)?;
    end.connect(qpn)?;
    let sge = |length| [Sge { addr: end.mr.addr(), length, lkey: end.mr.lkey() }];
    let (large, small) = (sge(size as u32), sge(8));
    let op = SendOp::Write { remote_addr, rkey };
    let request = |sges| SendRequest { wr_id: 0, op, flags: SendFlags::empty(), data: SendData::Sges(sges), ud: None };
    let time = Duration::from_secs(seconds as u64);
    // Warm up; the result is not used.
    message_rate(&end, &request(&large), time / 10)?;
    let rate = message_rate(&end, &request(&large), time)?;
    println!("{size} bytes: {:.2} GB/s, {rate:.0} messages/s", rate * size as f64 / 1e9);
    println!(
        "8 bytes: {:.2} µs from post to completion",
        median_latency(&end, &request(&small), 20_000)?.as_secs_f64() * 1e6
    );
    for (name, value) in end.context.counters().iter().filter(|(_, value)| *value != 0) {
        println!("  {name} {value}");
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}
