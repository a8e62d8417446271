//! One end of the connection that a case runs over: queue pair, memory, and the moves that both
//! sides make with them.
//!
//! Touches the Rust API only.

use super::case::{Case, GRH, Op, REGION, pattern};
use super::failure::Failure;
use roxe::{
    Access, AddressHandle, CompletionQueue, Context, Endpoint, MemoryRegion, ProtectionDomain, Qkey, QueuePair,
    RemoteAddr, Service, Sge, WcOpcode, WorkCompletion, WorkRequest,
};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// What memory holds that nobody should write to.
const UNTOUCHED: u8 = 0xa5;
const QKEY: Qkey = Qkey(0x0720_0610);
/// Requests that either queue holds.
const DEPTH: u32 = 64;

/// What all connections of a process share. Regions are large, so they are registered once.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) context: Context,
    pd: ProtectionDomain,
    inbox: MemoryRegion,
    outbox: MemoryRegion,
}

impl Resources {
    pub(super) fn open() -> Result<Self, roxe::Error> {
        let context = Context::open_first()?;
        let pd = context.alloc_pd()?;
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let inbox = pd.alloc_mr(REGION, Access::LOCAL_WRITE | remote)?;
        let outbox = pd.alloc_mr(REGION, Access::LOCAL_WRITE)?;
        Ok(Self { context, pd, inbox, outbox })
    }

    /// Where the peer's WRITEs, READs and atomics go.
    pub(super) fn remote(&self) -> RemoteAddr {
        self.inbox.remote()
    }

    /// A fresh queue pair; it is not connected yet.
    pub(super) fn connection(&self, service: Service) -> Result<Connection<'_>, roxe::Error> {
        let cq = self.context.create_cq(4 * DEPTH)?;
        let builder = self.pd.create_qp(&cq, &cq).service(service).max_send_wr(DEPTH).max_recv_wr(DEPTH);
        let qp = builder.qkey(QKEY).build()?;
        Ok(Connection { resources: self, cq, qp, peer: None, done: Vec::new(), outstanding: 0 })
    }
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
struct Peer {
    endpoint: Endpoint,
    remote: RemoteAddr,
    ah: Option<AddressHandle>,
}

/// A queue pair and its memory.
#[derive(Debug)]
pub(super) struct Connection<'s> {
    resources: &'s Resources,
    cq: CompletionQueue,
    qp: QueuePair,
    peer: Option<Peer>,
    /// Completions polled and not yet handed out, newest first.
    done: Vec<WorkCompletion>,
    /// Own requests that have not completed.
    outstanding: u32,
}

impl Connection<'_> {
    pub(super) fn endpoint(&self) -> Endpoint {
        self.qp.endpoint()
    }

    pub(super) fn connect(&mut self, endpoint: Endpoint, remote: RemoteAddr) -> Result<(), roxe::Error> {
        let ah = match self.qp.service() {
            Service::Ud => {
                self.qp.activate()?;
                Some(self.resources.pd.create_ah(endpoint.gid, 0)?)
            }
            _ => {
                self.qp.connect(&endpoint)?;
                None
            }
        };
        self.peer = Some(Peer { endpoint, remote, ah });
        Ok(())
    }

    /// Bytes in front of the data of a received message.
    pub(super) fn header(&self) -> usize {
        if self.qp.service() == Service::Ud { GRH } else { 0 }
    }

    fn peer(&self) -> Result<Peer, Failure> {
        self.peer.ok_or_else(|| Failure::new("no peer is connected"))
    }

    /// Posts message `index` of `case`: `length` bytes of the outbox (or into the inbox, if data is
    /// fetched). The number `imm` goes along where the operation carries one.
    pub(super) fn post(&mut self, case: &Case, index: usize, length: usize, imm: u32) -> Result<(), Failure> {
        let data = case.data(index, length);
        let local = if case.op.is_fetch() { &self.resources.inbox } else { &self.resources.outbox };
        let (list, remote) = ([local.slice(data.clone())?], self.peer()?.remote.offset(data.start as u64));
        let request = match case.op {
            Op::Send => WorkRequest::send(&list),
            Op::SendImm => WorkRequest::send(&list).imm(imm),
            Op::Write => WorkRequest::write(&list, remote),
            Op::WriteImm => WorkRequest::write(&list, remote).imm(imm),
            Op::Read => WorkRequest::read(&list, remote),
            Op::CompareSwap | Op::FetchAdd => return Err(Failure::new("atomics have operands: see post_atomic")),
        };
        self.submit(request, index)
    }

    /// Posts an atomic on word 0 of the peer; the old value lands in slot `index`.
    pub(super) fn post_atomic(&mut self, case: &Case, index: usize, operands: (u64, u64)) -> Result<(), Failure> {
        let list = [self.resources.inbox.slice(case.data(index, 8))?];
        let remote = self.peer()?.remote;
        let request = match case.op {
            Op::CompareSwap => WorkRequest::compare_swap(&list, remote, operands.0, operands.1),
            _ => WorkRequest::fetch_add(&list, remote, operands.0),
        };
        self.submit(request, index)
    }

    /// Posts an empty SEND that carries a number.
    pub(super) fn post_credit(&mut self, number: u32) -> Result<(), Failure> {
        self.submit(WorkRequest::send(&[]).imm(number), 0)
    }

    fn submit(&mut self, request: WorkRequest<'_>, index: usize) -> Result<(), Failure> {
        let peer = self.peer()?;
        let request = request.wr_id(index as u64).signaled();
        let request = match &peer.ah {
            Some(ah) => request.to(ah, peer.endpoint.qpn, QKEY),
            None => request,
        };
        self.qp.post_send(&request)?;
        self.outstanding += 1;
        Ok(())
    }

    /// Whether the send queue takes one more request.
    pub(super) const fn has_room(&self) -> bool {
        self.outstanding < DEPTH
    }

    /// Waits until every own request has completed.
    pub(super) fn settle(&mut self) -> Result<(), Failure> {
        while self.outstanding > 0 {
            self.wait(false)?;
        }
        Ok(())
    }

    /// Posts a receive request for message `index` of `case`. It is exactly as long as the message.
    pub(super) fn post_recv(&self, case: &Case, index: usize, length: usize) -> Result<(), Failure> {
        let data = case.data(index, length);
        let place = match case.op {
            // The data of a WRITE goes where its sender says; the request only reports it.
            Op::Write | Op::WriteImm => data.start..data.start,
            _ => data.start - self.header()..data.end,
        };
        Ok(self.qp.post_recv(index as u64, &[self.resources.inbox.slice(place)?])?)
    }

    /// Posts a receive request for an empty message.
    pub(super) fn post_recv_empty(&self) -> Result<(), Failure> {
        let list: [Sge; 1] = [self.resources.inbox.slice(REGION - self.header()..REGION)?];
        Ok(self.qp.post_recv(0, &list)?)
    }

    /// The next completion, if there is one now. A failed one is a failure.
    pub(super) fn poll(&mut self) -> Result<Option<WorkCompletion>, Failure> {
        if self.done.is_empty() {
            let mut batch = [WorkCompletion::default(); 16];
            self.done.extend(self.cq.poll(&mut batch)?.iter().rev());
        }
        let Some(completion) = self.done.pop() else { return Ok(None) };
        completion.check()?;
        if !is_received(&completion) {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        Ok(Some(completion))
    }

    /// The next completion of a received message (`received`) or of an own request; others are
    /// passed over.
    pub(super) fn wait(&mut self, received: bool) -> Result<WorkCompletion, Failure> {
        let mut deadline = Deadline::new(self.qp.service());
        loop {
            match self.poll()? {
                Some(completion) if is_received(&completion) == received => return Ok(completion),
                Some(_) => deadline.renew(),
                None => deadline.check("no completion came")?,
            }
        }
    }

    /// Puts the bytes of message `index` where they are sent from, or where the peer READs them.
    pub(super) fn load(&self, case: &Case, index: usize, length: usize, seed: u64) -> Result<(), Failure> {
        Ok(self.resources.outbox.write(case.data(index, length).start, &pattern(seed, length))?)
    }

    /// As [`load`](Self::load), into the memory that the peer reaches.
    pub(super) fn offer(&self, case: &Case, index: usize, length: usize, seed: u64) -> Result<(), Failure> {
        Ok(self.resources.inbox.write(case.data(index, length).start, &pattern(seed, length))?)
    }

    /// Marks all of slot `index` as untouched.
    pub(super) fn clear(&self, case: &Case, index: usize) -> Result<(), Failure> {
        let slot = case.slot(index);
        Ok(self.resources.inbox.write(slot.start, &vec![UNTOUCHED; slot.len()])?)
    }

    /// What slot `index` holds, compared with the message that belongs there and nothing around it.
    pub(super) fn look(&self, case: &Case, index: usize, length: usize, seed: u64) -> Result<Found, Failure> {
        let (slot, data) = (case.slot(index), case.data(index, length));
        let found = self.resources.inbox.to_vec(slot.clone())?;
        let mut expected = vec![UNTOUCHED; slot.len()];
        let (start, header) = (data.start - slot.start, self.header());
        // The network header in front of a datagram is not ours to foresee.
        expected[start - header..start].copy_from_slice(&found[start - header..start]);
        expected[start..start + length].copy_from_slice(&pattern(seed, length));
        let fits = |(found, expected): (&u8, &u8)| found == expected || *found == UNTOUCHED;
        Ok(match found == expected {
            true => Found::Right,
            false if found.iter().zip(&expected).all(fits) => Found::Incomplete,
            false => Found::Wrong,
        })
    }

    /// Waits until slot `index` holds the message: a WRITE over UC reports nothing when it arrives.
    pub(super) fn wait_holds(&mut self, case: &Case, index: usize, length: usize, seed: u64) -> Result<(), Failure> {
        let deadline = Deadline::new(self.qp.service());
        loop {
            match self.look(case, index, length, seed)? {
                Found::Right => return Ok(()),
                Found::Wrong => return Err(Failure::new(format!("wrong bytes in slot {index}"))),
                Found::Incomplete => deadline.check(&format!("the bytes of slot {index} did not come"))?,
            }
            self.poll()?;
        }
    }

    /// Sets the last byte of the message to send.
    pub(super) fn set_mark(&self, case: &Case, mark: u8) -> Result<(), Failure> {
        Ok(self.resources.outbox.write(case.data(0, case.size).end - 1, &[mark])?)
    }

    /// Waits until the last byte of the message in slot 0 is `mark`, as a program does that polls
    /// on memory.
    pub(super) fn wait_mark(&mut self, case: &Case, mark: u8) -> Result<(), Failure> {
        let at = case.data(0, case.size).end - 1;
        let mut deadline = Deadline::new(self.qp.service());
        loop {
            match self.poll()? {
                Some(_) => deadline.renew(),
                None => deadline.check("the last byte of a WRITE did not come")?,
            }
            if self.resources.inbox.load_u8(at)? == mark {
                return Ok(());
            }
        }
    }

    pub(super) fn clear_mark(&self, case: &Case) -> Result<(), Failure> {
        Ok(self.resources.inbox.write(case.data(0, case.size).end - 1, &[0])?)
    }

    /// The word that the peer's atomics work on.
    pub(super) fn word(&self) -> Result<u64, Failure> {
        Ok(self.resources.inbox.load_u64(0)?)
    }

    pub(super) fn set_word(&self, value: u64) -> Result<(), Failure> {
        Ok(self.resources.inbox.store_u64(0, value)?)
    }

    /// The old value that an atomic brought back into slot `index`.
    pub(super) fn fetched(&self, case: &Case, index: usize) -> Result<u64, Failure> {
        Ok(self.resources.inbox.load_u64(case.data(index, 8).start)?)
    }
}

/// What is where a message belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The message, and nothing beside it.
    Right,
    /// Nothing wrong, but some bytes are still missing.
    Incomplete,
    /// Other bytes.
    Wrong,
}

/// Whether this reports a message from the peer, not an own request.
pub(super) fn is_received(completion: &WorkCompletion) -> bool {
    matches!(completion.opcode(), WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
}

/// A bound on waiting without progress. Looks at the clock only now and then.
#[derive(Debug)]
pub(super) struct Deadline {
    limit: Duration,
    since: Instant,
    asked: Cell<u32>,
}

impl Deadline {
    /// RC repeats lost packets, which takes longer than to find out that a datagram was lost.
    pub(super) fn new(service: Service) -> Self {
        let limit = Duration::from_secs(if service == Service::Rc { 4 } else { 1 });
        Self { limit, since: Instant::now(), asked: Cell::new(0) }
    }

    /// There was progress: the time starts again.
    pub(super) fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// Fails with `what` when there was no progress for too long.
    pub(super) fn check(&self, what: &str) -> Result<(), Failure> {
        let asked = self.asked.get().wrapping_add(1);
        self.asked.set(asked);
        if asked.is_multiple_of(64) && self.since.elapsed() > self.limit {
            return Err(Failure::lost(format!("{what} within {:?}", self.limit)));
        }
        Ok(())
    }
}
