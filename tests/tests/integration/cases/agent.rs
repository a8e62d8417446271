//! The agent of the Rust configurations: runs the lines of a script through the Rust API.
//! `c_abi.rs` runs them through the C functions; `script.rs` describes the language.

use super::line::Line;
use roxe::{
    Access, AddressHandle, AttrMask, CompletionChannel, CompletionQueue, Context, MemoryRegion, MemoryWindow, ObjectId,
    PathMtu, ProtectionDomain, Psn, Qkey, QpAttr, QpState, Qpn, QueuePair, RKey, RemoteAddr, Service, Sge,
    SharedReceiveQueue, SrqNumber, WindowBinding, WindowKind, WorkCompletion, WorkRequest, XrcDomain,
};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Prefix of answers, by which [`super::configs`] distinguishes them from libtest's output on the
/// same pipe.
pub(crate) const MARK: &str = "agent: ";
/// Time limit for a completion or an event.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);
/// Length in bytes of the first region, which peers can access.
pub(crate) const OPEN_LEN: usize = 1 << 20;
/// Length in bytes of the second region, which peers can access only through windows.
pub(crate) const CLOSED_LEN: usize = 1 << 16;
pub(crate) const QKEY: Qkey = Qkey(0x1111_1111);

type Answer = Result<String, Box<dyn std::error::Error>>;

/// Executes the lines of the standard input until its end, and prints an answer to each.
pub(crate) fn run() {
    let mut ends = HashMap::new();
    for line in std::io::stdin().lines() {
        let text = line.expect("read a line from standard input");
        let line = Line::parse(&text);
        let end = ends.entry(line.end.to_owned()).or_insert_with(|| End::open().expect("open a device"));
        match end.execute(&line) {
            Ok(answer) => println!("\n{MARK}{answer}"),
            Err(e) => println!("\n{MARK}refused {e}"),
        }
    }
}

/// One end of a script: a context with memory and queues.
struct End {
    pd: ProtectionDomain,
    channel: CompletionChannel,
    sends: CompletionQueue,
    receives: CompletionQueue,
    open: MemoryRegion,
    closed: MemoryRegion,
    domain: XrcDomain,
    qps: HashMap<String, QueuePair>,
    srqs: HashMap<String, SharedReceiveQueue>,
    windows: HashMap<String, MemoryWindow>,
    bindings: HashMap<String, WindowBinding>,
}

impl End {
    fn open() -> Result<Self, roxe::Error> {
        let context = Context::open_first()?;
        let (pd, channel) = (context.alloc_pd()?, context.create_comp_channel()?);
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        Ok(Self {
            sends: context.create_cq_with_channel(256, &channel)?,
            receives: context.create_cq_with_channel(256, &channel)?,
            open: pd.alloc_mr(OPEN_LEN, Access::LOCAL_WRITE | remote)?,
            closed: pd.alloc_mr(CLOSED_LEN, Access::LOCAL_WRITE | Access::MW_BIND)?,
            domain: context.open_xrc_domain()?,
            pd,
            channel,
            qps: HashMap::new(),
            srqs: HashMap::new(),
            windows: HashMap::new(),
            bindings: HashMap::new(),
        })
    }

    fn execute(&mut self, line: &Line<'_>) -> Answer {
        let done = Ok(String::new());
        match line.verb {
            "qp" => return self.create_qp(line),
            "connect" => self.connect(line)?,
            "srq" => drop(self.srqs.insert(line.name(0).into(), self.pd.create_srq(16, 4)?)),
            "xsrq" => {
                let srq = self.domain.create_srq(&self.pd, &self.receives, 16, 4)?;
                let number = srq.number().ok_or("the XRC SRQ has no number")?.0;
                self.srqs.insert(line.name(0).into(), srq);
                return Ok(number.to_string());
            }
            "limit" => self.srqs[line.name(0)].set_limit(line.number(1))?,
            "memory" => return Ok(self.memory(&self.open)),
            "window" => {
                let kind = if line.number(1) == 1 { WindowKind::Domain } else { WindowKind::QueuePair };
                drop(self.windows.insert(line.name(0).into(), self.pd.alloc_mw(kind)?));
            }
            "recv" => self.receive(line)?,
            "send" => return self.send(line),
            "sent" => return Ok(self.next(&self.sends)),
            "got" => return Ok(self.next(&self.receives)),
            "left" => return Ok(self.unpolled()?.to_string()),
            "arm" => self.queue(line.name(0)).req_notify(line.has("solicited")),
            "woken" => return Ok(self.completion_event()),
            "event" => return Ok(self.event()),
            "state" => return Ok((self.qps[line.name(0)].state() as u32).to_string()),
            "modify" => self.modify(line)?,
            "attach" => self.qps[line.name(0)].attach_mcast(line.group(1))?,
            "detach" => self.qps[line.name(0)].detach_mcast(line.group(1))?,
            "destroy" => self.destroy(line.name(0)),
            "fill" => self.write(line.part(0), &pattern(line.part(0).1, line.number(0)))?,
            "bytes" => return Ok(self.read(line.part(0))?.iter().map(|byte| format!("{byte:02x}")).collect()),
            other => return Err(format!("there is no verb {other}").into()),
        }
        done
    }

    fn create_qp(&mut self, line: &Line<'_>) -> Answer {
        let service = match line.name(1) {
            "rc" => Service::Rc,
            "uc" => Service::Uc,
            "ud" => Service::Ud,
            "xrc" => Service::XrcIni,
            _ => Service::XrcTgt,
        };
        let builder = match service {
            Service::XrcTgt => self.domain.create_target(),
            _ => self.pd.create_qp(&self.sends, &self.receives).service(service),
        };
        let set = |key, default| line.value(key).unwrap_or(default);
        let access = Access::from_bits_retain(set("access", 0xe));
        let builder = builder.max_send_wr(64).max_inline_data(64).access(access);
        let builder = builder.path_mtu(mtu(set("mtu", 1024))).min_rnr_timer(1);
        let builder = builder.timeout(set("timeout", 16) as u8).retry_cnt(set("retry", 7) as u8);
        let builder = builder.rnr_retry(set("rnr", 7) as u8).max_rd_atomic(4, 4);
        let builder = if line.has("all_signaled") { builder.sq_sig_all() } else { builder };
        let qp = match line.text("srq") {
            Some(name) => builder.srq(&self.srqs[name]).build()?,
            None => builder.build()?,
        };
        let answer = format!("{} {}", qp.qp_num().get(), qp.endpoint().psn.get());
        self.qps.insert(line.name(0).into(), qp);
        Ok(answer)
    }

    fn connect(&self, line: &Line<'_>) -> Result<(), roxe::Error> {
        let qp = &self.qps[line.name(0)];
        if qp.service() == Service::Ud {
            return qp.activate();
        }
        let own = qp.endpoint();
        qp.connect(&roxe::Endpoint { qpn: Qpn::new(line.number(1)), psn: Psn::new(line.number(2)), ..own })
    }

    fn memory(&self, region: &MemoryRegion) -> String {
        let RemoteAddr { addr, rkey } = region.remote();
        format!("{addr} {}", rkey.0)
    }

    /// Returns the region of this part of the memory, and the part's range in the region.
    fn region(&self, (offset, len): (usize, usize)) -> (&MemoryRegion, std::ops::Range<usize>) {
        match offset.checked_sub(OPEN_LEN) {
            Some(offset) => (&self.closed, offset..offset + len),
            None => (&self.open, offset..offset + len),
        }
    }

    fn sges(&self, line: &Line<'_>) -> Result<Vec<Sge>, roxe::Error> {
        let parts = line.parts.iter().map(|part| {
            let (region, range) = self.region((part.offset, part.len));
            let sge = region.slice(range)?;
            Ok(if part.bad_key { Sge { lkey: roxe::LKey(sge.lkey.0 ^ 1), ..sge } } else { sge })
        });
        parts.collect()
    }

    fn write(&self, part: (usize, usize), bytes: &[u8]) -> Result<(), roxe::Error> {
        let (region, range) = self.region(part);
        region.write(range.start, bytes)
    }

    fn read(&self, part: (usize, usize)) -> Result<Vec<u8>, roxe::Error> {
        let (region, range) = self.region(part);
        region.to_vec(range)
    }

    fn receive(&self, line: &Line<'_>) -> Result<(), roxe::Error> {
        let (name, id, sges) = (line.name(0), line.number(1).into(), self.sges(line)?);
        match self.srqs.get(name) {
            Some(srq) => srq.post_recv(id, &sges),
            None => self.qps[name].post_recv(id, &sges),
        }
    }

    fn send(&mut self, line: &Line<'_>) -> Answer {
        let sges = self.sges(line)?;
        let bytes = line.parts.iter().map(|part| self.read((part.offset, part.len)));
        let bytes: Vec<u8> = bytes.collect::<Result<Vec<_>, _>>()?.concat();
        let inline = line.has("inline");
        let wide = |key| line.text(key).map_or(0, |text| text.parse().expect("parse a number"));
        let (key, value) = (RKey(line.value("key").unwrap_or(0)), line.value("imm"));
        let remote = RemoteAddr { addr: wide("at"), rkey: key };
        let mut request = match line.name(2) {
            "send" if inline => WorkRequest::send_inline(&bytes),
            "send" => WorkRequest::send(&sges),
            "write" if inline => WorkRequest::write_inline(&bytes, remote),
            "write" => WorkRequest::write(&sges, remote),
            "read" => WorkRequest::read(&sges, remote),
            "add" => WorkRequest::fetch_add(&sges, remote, wide("add")),
            "swap" => WorkRequest::compare_swap(&sges, remote, wide("compare"), wide("swap")),
            "bind" => WorkRequest::bind(self.bind(line)?),
            "close" => self.windows[line.text("window").ok_or("the line has no window=NAME")?].close(),
            "invalidate" => WorkRequest::local_invalidate(key),
            other => return Err(format!("there is no operation {other}").into()),
        };
        request = request.wr_id(line.number(1).into());
        request = if line.has("unsignaled") { request } else { request.signaled() };
        request = if line.has("solicited") { request.solicited() } else { request };
        request = if line.has("fence") { request.fence() } else { request };
        request = value.map_or(request, |imm| request.imm(imm));
        request = line.value("closes").map_or(request, |key| request.invalidate(RKey(key)));
        request = line.value("srqn").map_or(request, |number| request.to_srq(SrqNumber(number)));
        let ah: AddressHandle;
        if let Some(number) = line.value("to") {
            let own = self.pd.context().gid(0)?;
            ah = self.pd.create_ah(line.text("group").map_or(own, |_| line.group_of("group")), 0)?;
            request = request.to(&ah, Qpn::new(number), line.value("qkey").map_or(QKEY, Qkey));
        }
        self.qps[line.name(0)].post_send(&request)?;
        let binding = line.text("window").and_then(|name| self.bindings.get(name));
        Ok(binding.map_or_else(String::new, |binding| {
            let RemoteAddr { addr, rkey } = binding.remote();
            format!("{addr} {}", rkey.0)
        }))
    }

    /// Creates the next binding of the line's window, to the line's part of the memory.
    fn bind(&mut self, line: &Line<'_>) -> Result<&WindowBinding, Box<dyn std::error::Error>> {
        let name = line.text("window").ok_or("the line has no window=NAME")?;
        let access = Access::from_bits_retain(line.value("access").unwrap_or(0xe));
        let (region, range) = self.region(line.part(0));
        let binding = self.windows[name].bind(region, range, access)?;
        self.bindings.insert(name.to_owned(), binding);
        Ok(&self.bindings[name])
    }

    fn queue(&self, name: &str) -> &CompletionQueue {
        if name == "sends" { &self.sends } else { &self.receives }
    }

    fn next(&self, queue: &CompletionQueue) -> String {
        let Ok(done) = queue.wait(TIME_LIMIT) else { return "none".into() };
        let extra = done.imm_data().or_else(|| done.invalidated_rkey().map(|key| key.0));
        let values = [
            done.status() as u32,
            done.opcode() as u32,
            done.byte_len(),
            extra.unwrap_or(0),
            done.qp_num().get(),
            done.src_qp().get(),
            done.vendor_err(),
        ];
        values.iter().fold(done.wr_id().to_string(), |line, value| format!("{line} {value}"))
    }

    /// Polls and returns the number of remaining completions.
    fn unpolled(&self) -> Result<usize, roxe::Error> {
        let mut room = [WorkCompletion::default(); 16];
        Ok(self.sends.poll(&mut room)?.len() + self.receives.poll(&mut room)?.len())
    }

    fn completion_event(&self) -> String {
        let Some(id) = wait(|| self.channel.try_get_event()) else { return "none".into() };
        (if id == self.sends.id() { "sends" } else { "receives" }).into()
    }

    fn event(&self) -> String {
        let Some(event) = wait(|| self.pd.context().try_next_async_event()) else { return "none".into() };
        let named = |id: ObjectId| {
            let qps = self.qps.iter().map(|(name, qp)| (name, qp.id()));
            let srqs = self.srqs.iter().map(|(name, srq)| (name, srq.id()));
            qps.chain(srqs).find(|(_, other)| *other == id).map(|(name, _)| name.clone())
        };
        format!("{} {}", event.kind as u32, event.object.and_then(named).unwrap_or_else(|| "cq".into()))
    }

    fn modify(&self, line: &Line<'_>) -> Result<(), roxe::Error> {
        let state = match line.name(1) {
            "err" => QpState::Err,
            "sqd" => QpState::Sqd,
            "rts" => QpState::Rts,
            _ => QpState::Reset,
        };
        let notify = line.has("notify");
        let mask = if notify { AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY } else { AttrMask::STATE };
        self.qps[line.name(0)].modify(&QpAttr { state, en_sqd_async_notify: notify, ..QpAttr::default() }, mask)
    }

    fn destroy(&mut self, name: &str) {
        self.qps.remove(name);
        self.srqs.remove(name);
    }
}

fn mtu(bytes: u32) -> PathMtu {
    match bytes {
        256 => PathMtu::Mtu256,
        1024 => PathMtu::Mtu1024,
        _ => PathMtu::Mtu4096,
    }
}

/// Calls `poll` until it returns a value or the time limit has passed.
fn wait<T>(mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        match poll() {
            None if start.elapsed() < TIME_LIMIT => std::thread::sleep(Duration::from_micros(200)),
            found => return found,
        }
    }
}

/// Returns bytes that differ from their neighbours and from the bytes of other seeds.
pub(crate) fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed as u8)).collect()
}
