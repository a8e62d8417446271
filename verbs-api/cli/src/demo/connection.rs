//! One end of a connection over the Rust API: queue pair, memory, and the operations that client
//! and server share.

use super::case::{Case, GRH_LEN, REGION_LEN};
use super::failure::Failure;
use roxe::{
    Access, AddressHandle, CompletionQueue, Context, Endpoint, MemoryRegion, ProtectionDomain, Qkey, QueuePair,
    RemoteAddr, Sge, WcOpcode, WorkCompletion, WorkRequest,
};
use roxe_peer::plan::{self, Op, Service, UNTOUCHED};
use std::cell::Cell;
use std::time::{Duration, Instant};

const QKEY: Qkey = Qkey(0x0720_0610);
/// Entries of the send queue and of the receive queue.
const DEPTH: u32 = 64;

/// Objects that all connections of a process share. Regions are large, so they are registered once.
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
        let inbox = pd.alloc_mr(REGION_LEN, Access::LOCAL_WRITE | remote)?;
        let outbox = pd.alloc_mr(REGION_LEN, Access::LOCAL_WRITE)?;
        Ok(Self { context, pd, inbox, outbox })
    }

    /// Returns the memory that the peer's WRITEs, READs and atomics target.
    pub(super) fn remote(&self) -> RemoteAddr {
        self.inbox.remote()
    }

    /// Creates an unconnected queue pair.
    pub(super) fn connection(&self, service: Service) -> Result<Connection<'_>, roxe::Error> {
        let cq = self.context.create_cq(4 * DEPTH)?;
        let kind = match service {
            Service::Rc => roxe::Service::Rc,
            Service::Uc => roxe::Service::Uc,
            Service::Ud => roxe::Service::Ud,
        };
        let builder = self.pd.create_qp(&cq, &cq).service(kind).max_send_wr(DEPTH).max_recv_wr(DEPTH);
        let qp = builder.qkey(QKEY).build()?;
        Ok(Connection { resources: self, service, cq, qp, peer: None, done: Vec::new(), outstanding: 0 })
    }
}

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
    service: Service,
    cq: CompletionQueue,
    qp: QueuePair,
    peer: Option<Peer>,
    /// Completions polled and not yet returned, newest first.
    done: Vec<WorkCompletion>,
    /// Send requests that have not completed.
    outstanding: u32,
}

impl Connection<'_> {
    pub(super) fn endpoint(&self) -> Endpoint {
        self.qp.endpoint()
    }

    pub(super) fn connect(&mut self, endpoint: Endpoint, remote: RemoteAddr) -> Result<(), roxe::Error> {
        let ah = match self.service {
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

    /// Returns the bytes before the data of a received message: the GRH for UD, else 0.
    pub(super) fn header_len(&self) -> usize {
        if self.service == Service::Ud { GRH_LEN } else { 0 }
    }

    fn peer(&self) -> Result<Peer, Failure> {
        self.peer.ok_or_else(|| Failure::new("no peer is connected"))
    }

    /// Posts message `index` of `case`: `length` bytes from the outbox, or of a READ into the
    /// inbox. `imm` is sent where the operation carries immediate data.
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
            Op::CmpSwap | Op::FetchAdd => return Err(Failure::new("atomics have operands: see post_atomic")),
        };
        self.submit(request, index)
    }

    /// Posts an atomic on word 0 of the peer; the old value is stored in slot `index`.
    pub(super) fn post_atomic(&mut self, case: &Case, index: usize, operands: (u64, u64)) -> Result<(), Failure> {
        let list = [self.resources.inbox.slice(case.data(index, 8))?];
        let remote = self.peer()?.remote;
        let request = match case.op {
            Op::CmpSwap => WorkRequest::compare_swap(&list, remote, operands.0, operands.1),
            _ => WorkRequest::fetch_add(&list, remote, operands.0),
        };
        self.submit(request, index)
    }

    /// Posts an empty SEND with immediate data.
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

    /// Returns true if the send queue has room for one more request.
    pub(super) const fn has_room(&self) -> bool {
        self.outstanding < DEPTH
    }

    /// Waits until every send request has completed.
    pub(super) fn wait_sends(&mut self) -> Result<(), Failure> {
        while self.outstanding > 0 {
            self.wait(false)?;
        }
        Ok(())
    }

    /// Posts a receive request for message `index` of `case`. It is exactly as long as the message.
    pub(super) fn post_recv(&self, case: &Case, index: usize, length: usize) -> Result<(), Failure> {
        let data = case.data(index, length);
        let place = match case.op {
            // A WRITE names its target; the receive only completes.
            Op::Write | Op::WriteImm => data.start..data.start,
            _ => data.start - self.header_len()..data.end,
        };
        Ok(self.qp.post_recv(index as u64, &[self.resources.inbox.slice(place)?])?)
    }

    /// Posts a receive request for an empty message.
    pub(super) fn post_recv_empty(&self) -> Result<(), Failure> {
        let list: [Sge; 1] = [self.resources.inbox.slice(REGION_LEN - self.header_len()..REGION_LEN)?];
        Ok(self.qp.post_recv(0, &list)?)
    }

    /// Polls for a completion. Fails if its status is an error.
    pub(super) fn poll(&mut self) -> Result<Option<WorkCompletion>, Failure> {
        if self.done.is_empty() {
            let mut batch = [WorkCompletion::default(); 16];
            self.done.extend(self.cq.poll(&mut batch)?.iter().rev());
        }
        let Some(completion) = self.done.pop() else { return Ok(None) };
        completion.check()?;
        if !is_receive(&completion) {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        Ok(Some(completion))
    }

    /// Waits for the next completion of a receive if `received`, else of a send request. Discards
    /// completions of the other kind.
    pub(super) fn wait(&mut self, received: bool) -> Result<WorkCompletion, Failure> {
        let mut deadline = ProgressLimit::new(self.service);
        loop {
            match self.poll()? {
                Some(completion) if is_receive(&completion) == received => return Ok(completion),
                Some(_) => deadline.renew(),
                None => deadline.check("no completion arrived")?,
            }
        }
    }

    /// Writes the bytes of message `index` into the outbox.
    pub(super) fn fill_outbox(&self, case: &Case, index: usize, length: usize, seed: u64) -> Result<(), Failure> {
        Ok(self.resources.outbox.write(case.data(index, length).start, &plan::message(seed, length))?)
    }

    /// Writes the bytes of message `index` where the peer READs them.
    pub(super) fn fill_inbox(&self, case: &Case, index: usize, length: usize, seed: u64) -> Result<(), Failure> {
        Ok(self.resources.inbox.write(case.data(index, length).start, &plan::message(seed, length))?)
    }

    /// Marks all of slot `index` as untouched.
    pub(super) fn clear(&self, case: &Case, index: usize) -> Result<(), Failure> {
        let slot = case.slot(index);
        Ok(self.resources.inbox.write(slot.start, &vec![UNTOUCHED; slot.len()])?)
    }

    /// Compares slot `index` with its message and the untouched guard around it.
    pub(super) fn compare_slot(
        &self,
        case: &Case,
        index: usize,
        length: usize,
        seed: u64,
    ) -> Result<SlotContent, Failure> {
        let (slot, data) = (case.slot(index), case.data(index, length));
        let found = self.resources.inbox.to_vec(slot.clone())?;
        let mut expected = vec![UNTOUCHED; slot.len()];
        let (start, header) = (data.start - slot.start, self.header_len());
        // The bytes of the GRH are not compared.
        expected[start - header..start].copy_from_slice(&found[start - header..start]);
        expected[start..start + length].copy_from_slice(&plan::message(seed, length));
        let fits = |(found, expected): (&u8, &u8)| found == expected || *found == UNTOUCHED;
        Ok(match found == expected {
            true => SlotContent::Right,
            false if found.iter().zip(&expected).all(fits) => SlotContent::Incomplete,
            false => SlotContent::Wrong,
        })
    }

    /// Waits until slot `index` holds the message: a WRITE over UC has no completion at the
    /// responder.
    pub(super) fn wait_slot(&mut self, case: &Case, index: usize, length: usize, seed: u64) -> Result<(), Failure> {
        let deadline = ProgressLimit::new(self.service);
        loop {
            match self.compare_slot(case, index, length, seed)? {
                SlotContent::Right => return Ok(()),
                SlotContent::Wrong => return Err(Failure::new(format!("wrong bytes in slot {index}"))),
                SlotContent::Incomplete => deadline.check(&format!("the bytes of slot {index} did not arrive"))?,
            }
            self.poll()?;
        }
    }

    /// Sets the last byte of the message in the outbox.
    pub(super) fn set_mark(&self, case: &Case, mark: u8) -> Result<(), Failure> {
        Ok(self.resources.outbox.write(case.data(0, case.size).end - 1, &[mark])?)
    }

    /// Polls memory until the last byte of the message in slot 0 is `mark`.
    pub(super) fn wait_mark(&mut self, case: &Case, mark: u8) -> Result<(), Failure> {
        let at = case.data(0, case.size).end - 1;
        let mut deadline = ProgressLimit::new(self.service);
        loop {
            match self.poll()? {
                Some(_) => deadline.renew(),
                None => deadline.check("the last byte of a WRITE did not arrive")?,
            }
            if self.resources.inbox.load_u8(at)? == mark {
                return Ok(());
            }
        }
    }

    pub(super) fn clear_mark(&self, case: &Case) -> Result<(), Failure> {
        Ok(self.resources.inbox.write(case.data(0, case.size).end - 1, &[0])?)
    }

    /// Returns the word that the peer's atomics change.
    pub(super) fn atomic_word(&self) -> Result<u64, Failure> {
        Ok(self.resources.inbox.load_u64(0)?)
    }

    pub(super) fn set_atomic_word(&self, value: u64) -> Result<(), Failure> {
        Ok(self.resources.inbox.store_u64(0, value)?)
    }

    /// Returns the old value that an atomic stored in slot `index`.
    pub(super) fn old_value(&self, case: &Case, index: usize) -> Result<u64, Failure> {
        Ok(self.resources.inbox.load_u64(case.data(index, 8).start)?)
    }
}

/// The result of comparing a slot with its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotContent {
    /// The whole message, and an untouched guard.
    Right,
    /// Some bytes are still untouched, the others are right.
    Incomplete,
    /// A byte is neither untouched nor right.
    Wrong,
}

/// Returns true if this is the completion of a receive.
pub(super) fn is_receive(completion: &WorkCompletion) -> bool {
    matches!(completion.opcode(), WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
}

/// A time limit for waiting without progress. Reads the clock only at every 64th check.
#[derive(Debug)]
pub(super) struct ProgressLimit {
    limit: Duration,
    since: Instant,
    checks: Cell<u32>,
}

impl ProgressLimit {
    /// RC retransmits lost packets, so it gets more time than UC and UD.
    pub(super) fn new(service: Service) -> Self {
        let limit = Duration::from_secs(if service == Service::Rc { 4 } else { 1 });
        Self { limit, since: Instant::now(), checks: Cell::new(0) }
    }

    /// Restarts the time limit after progress.
    pub(super) fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// Fails with the text `what` if there was no progress within the time limit.
    pub(super) fn check(&self, what: &str) -> Result<(), Failure> {
        let checks = self.checks.get().wrapping_add(1);
        self.checks.set(checks);
        if checks.is_multiple_of(64) && self.since.elapsed() > self.limit {
            return Err(Failure::lost(format!("{what} within {:?}", self.limit)));
        }
        Ok(())
    }
}
