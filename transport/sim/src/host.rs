//! The environment of one QP: memory, completion queues, a shared receive queue, flow control and a
//! clock set by the test.
//!
//! It uses only public types of `roxe_transport`, whose unit tests compile this file as a module of
//! their own. It checks what a real host would trust: keys, ranges, rights and alignment, the kinds
//! of payload and room, and that reservations match what the QP has in flight.

use roxe_transport::cx::{
    AtomicOp, Completions, Ending, FlowControl, Host, MemError, Memory, RxPayload, SharedReceives, Side, TagFit, TxRoom,
};
use roxe_transport::tags::TagList;
use roxe_transport::time::Instant;
use roxe_transport::wr::{Access, Av, Bind, Cqe, RecvRequest, Sge};
use roxe_wire::{LKey, Qpn, RKey};
use std::collections::VecDeque;

/// Minimum cost of a packet in bytes. A whole message costs twice its payload, other packets their
/// payload and `HEADERS_COST`.
pub const LEAST_COST: u32 = 832;
/// Cost of the headers of a packet in bytes.
const HEADERS_COST: u32 = 96;

/// Maximum number of tags of a shared receive queue.
pub const MAX_TAGS: u32 = 16;

/// Maximum number of elements of a shared receive.
pub const SRQ_MAX_SGE: usize = 4;

#[derive(Clone, Copy, Debug)]
struct SharedRecv {
    wr_id: u64,
    sges: [Sge; SRQ_MAX_SGE],
    count: usize,
}

/// A shared receive queue with its limit (IBA §11.6.3: the event is raised once, then disarmed).
#[derive(Debug, Default)]
pub struct Srq {
    ring: VecDeque<SharedRecv>,
    limit: usize,
    pub limit_events: u32,
}

impl Srq {
    /// Adds a receive of at most [`SRQ_MAX_SGE`] elements.
    pub fn post(&mut self, req: &RecvRequest<'_>) {
        let mut sges = [Sge::default(); SRQ_MAX_SGE];
        sges[..req.sges.len()].copy_from_slice(req.sges);
        self.ring.push_back(SharedRecv { wr_id: req.wr_id, sges, count: req.sges.len() });
    }

    /// Arms the limit: an event is raised when fewer than `limit` receives are left.
    pub fn arm(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub fn len(&self) -> usize {
        self.ring.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
}

/// A shared receive queue of an XRC domain.
#[derive(Debug, Default)]
pub struct XrcQueue {
    pub number: u32,
    pub srq: Srq,
    pub done: VecDeque<Cqe>,
}

#[derive(Debug, Default)]
pub struct Flow {
    /// Window in bytes; `None`: unlimited.
    pub limit: Option<u32>,
    /// Bytes by which the remaining packets of a run may exceed the window.
    pub in_run: u32,
    /// Bytes reserved by this QP.
    pub reserved: u32,
    /// Bytes reserved by other QPs of this node in the same window.
    pub others: u32,
    /// Maximum of `reserved`.
    pub peak: u32,
    /// True if a reservation was refused.
    pub refused: bool,
    /// True if the QP releases its reservations (RC). Its own count must then equal `reserved`.
    pub releases: bool,
}

impl Flow {
    /// Reserves `bytes` if they exceed the limit by at most `slack` bytes. Returns true if so.
    fn try_reserve(&mut self, bytes: u32, slack: u32) -> bool {
        let fits = self.limit.is_none_or(|limit| self.reserved + self.others + bytes <= limit.saturating_add(slack));
        if fits {
            self.reserved = self.reserved.saturating_add(bytes);
            self.peak = self.peak.max(self.reserved);
        }
        fits
    }
}

#[derive(Debug, Default)]
pub struct SimHost {
    pub clock: Instant,
    pub memory: VecMemory,
    pub sends: VecDeque<Cqe>,
    pub recvs: VecDeque<Cqe>,
    /// Capacity of the completion queues, `[send, receive]`; `None`: unlimited.
    pub cq_room: [Option<usize>; 2],
    pub overruns: u32,
    pub srq: Srq,
    /// The tags of that queue, if it matches tags.
    pub tags: Option<TagList>,
    /// The SRQs of the XRC domain of a target.
    pub xrc: Vec<XrcQueue>,
    pub selected: Option<usize>,
    pub flow: Flow,
}

impl SimHost {
    /// Creates a host whose completion queues hold `depth` entries without allocating.
    pub fn with_depth(depth: usize) -> Self {
        let queue = || VecDeque::with_capacity(depth);
        Self { sends: queue(), recvs: queue(), ..Self::default() }
    }
}

impl Memory for SimHost {
    fn gather(&mut self, sges: &[Sge], offset: u32, out: TxRoom<'_>) -> Result<(), MemError> {
        let TxRoom::Own(out) = out else { panic!("the room is not this process's own") };
        self.memory.walk(sges, offset, out.len(), Access::empty(), |at, piece| {
            out[at..at + piece.len()].copy_from_slice(piece)
        })
    }

    fn scatter(&mut self, _side: Side, sges: &[Sge], offset: u32, data: RxPayload<'_>) -> Result<(), MemError> {
        let data = data.bytes().expect("own memory can be borrowed as bytes");
        let put = |at: usize, piece: &mut [u8]| piece.copy_from_slice(&data[at..at + piece.len()]);
        self.memory.walk(sges, offset, data.len(), Access::LOCAL_WRITE, put)
    }

    fn check_remote(&mut self, rkey: RKey, va: u64, len: u64, access: Access) -> Result<(), MemError> {
        self.memory.access(rkey.0, va, len, access).map(|_| ())
    }

    fn read_remote(&mut self, rkey: RKey, va: u64, out: TxRoom<'_>) -> Result<(), MemError> {
        let bytes = self.memory.access(rkey.0, va, out.len() as u64, Access::REMOTE_READ)?;
        out.put(bytes).expect("as many as there is room for");
        Ok(())
    }

    fn write_remote(&mut self, rkey: RKey, va: u64, data: RxPayload<'_>) -> Result<(), MemError> {
        let data = data.bytes().expect("own memory can be borrowed as bytes");
        self.memory.access(rkey.0, va, data.len() as u64, Access::REMOTE_WRITE)?.copy_from_slice(data);
        Ok(())
    }

    fn atomic_remote(&mut self, rkey: RKey, va: u64, op: AtomicOp) -> Result<u64, MemError> {
        assert_eq!(va % 8, 0, "the responder let a misaligned atomic through");
        let word = self.memory.access(rkey.0, va, 8, Access::REMOTE_ATOMIC)?;
        let old = u64::from_ne_bytes((&*word).try_into().expect("eight bytes"));
        word.copy_from_slice(&op.applied(old).to_ne_bytes());
        Ok(old)
    }

    fn store_remote(&mut self, rkey: RKey, va: u64, data: [u8; 8]) -> Result<(), MemError> {
        assert_eq!(va % 8, 0, "the responder let a misaligned ATOMIC WRITE through");
        self.write_remote(rkey, va, RxPayload::Bytes(&data))
    }

    fn flush_remote(&mut self, rkey: RKey, range: Option<(u64, u64)>, access: Access) -> Result<(), MemError> {
        assert!(!access.is_empty(), "a FLUSH needs a right");
        let (va, len) = range.unwrap_or_else(|| (self.memory.base_of(rkey), 0));
        self.memory.access(rkey.0, va, len, access)?;
        self.memory.flushes += 1;
        Ok(())
    }

    fn invalidate_remote(&mut self, rkey: RKey) -> Result<(), MemError> {
        self.memory.invalidate(rkey)
    }

    fn invalidate_local(&mut self, rkey: RKey) -> Result<(), MemError> {
        self.memory.invalidate(rkey)
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), MemError> {
        self.memory.bind_window(bind)
    }
}

impl Completions for SimHost {
    fn complete(&mut self, side: Side, cqe: Cqe) -> Result<(), Ending> {
        if let (Side::Recv, Some(queue)) = (side, self.selected.and_then(|at| self.xrc.get_mut(at))) {
            queue.done.push_back(cqe);
            return Ok(());
        }
        let (queue, room) = match side {
            Side::Send => (&mut self.sends, self.cq_room[0]),
            Side::Recv => (&mut self.recvs, self.cq_room[1]),
        };
        if room.is_some_and(|room| queue.len() >= room) {
            self.overruns += 1;
            return Err(Ending::Fatal);
        }
        queue.push_back(cqe);
        Ok(())
    }
}

impl SharedReceives for SimHost {
    fn take_shared(&mut self, sges: &mut Vec<Sge>) -> Option<u64> {
        let srq = match self.selected {
            Some(at) => &mut self.xrc.get_mut(at)?.srq,
            None => &mut self.srq,
        };
        let taken = srq.ring.pop_front()?;
        if srq.ring.len() < srq.limit {
            srq.limit = 0;
            srq.limit_events += 1;
        }
        sges.clear();
        sges.extend_from_slice(&taken.sges[..taken.count]);
        Some(taken.wr_id)
    }

    fn take_tagged(&mut self, tag: Option<u64>, sges: &mut Vec<Sge>) -> Option<(u64, TagFit)> {
        let matched = self.tags.as_mut().zip(tag).and_then(|(tags, tag)| tags.take(tag, sges));
        if let Some(wr_id) = matched {
            return Some((wr_id, TagFit::Matched));
        }
        let wr_id = self.take_shared(sges)?;
        let unexpected = self.tags.as_mut().filter(|_| tag.is_some());
        let fit = unexpected.map(|tags| TagFit::Unexpected { asks_sync: tags.note_unexpected() });
        Some((wr_id, fit.unwrap_or(TagFit::Untagged)))
    }

    fn forget_unexpected(&mut self) {
        if let Some(tags) = &mut self.tags {
            tags.forget_unexpected();
        }
    }

    fn select_srq(&mut self, srqn: u32) -> bool {
        self.selected = self.xrc.iter().position(|queue| queue.number == srqn);
        self.selected.is_some()
    }
}

impl FlowControl for SimHost {
    fn packet_cost(payload: u32) -> u32 {
        (payload + HEADERS_COST).max(LEAST_COST)
    }

    fn lone_packet_cost(payload: u32) -> u32 {
        (2 * payload).max(LEAST_COST)
    }

    fn reserve(&mut self, _av: &Av, _qpn: Qpn, bytes: u32, own: u32) -> bool {
        let flow = &mut self.flow;
        assert!(!flow.releases || own == flow.reserved, "QP claims {own} bytes in flight, reserved {}", flow.reserved);
        let fits = flow.try_reserve(bytes, if own == 0 { u32::MAX } else { 0 });
        flow.refused |= !fits;
        fits
    }

    fn reserve_in_run(&mut self, _av: &Av, _qpn: Qpn, bytes: u32) -> bool {
        self.flow.try_reserve(bytes, self.flow.in_run)
    }

    fn reserve_ahead(&mut self, _av: &Av, _qpn: Qpn, bytes: u32) -> bool {
        self.flow.try_reserve(bytes, 0)
    }

    fn release(&mut self, _av: &Av, _qpn: Qpn, bytes: u32) {
        let left = self.flow.reserved.checked_sub(bytes);
        self.flow.reserved = left.expect("a QP releases at most what it has reserved");
    }

    fn ack_interval(&mut self, _av: &Av, _qpn: Qpn) -> u32 {
        self.flow.limit.unwrap_or(64 << 10) / 4
    }
}

impl Host for SimHost {
    fn now(&self) -> Instant {
        self.clock
    }
}

/// Protection domain of the QP of a [`VecMemory`].
pub const OWN_PD: u32 = 1;

const FIRST_ADDR: u64 = 0x10_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr {
    /// Local and remote key: 24 bits of index, 8 bits of tag.
    pub key: u32,
    pub addr: u64,
    pub len: u32,
}

impl Mr {
    pub const fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// Returns the element for `len` bytes at `offset` in the region.
    pub const fn sge(&self, offset: u32, len: u32) -> Sge {
        Sge { addr: self.addr + offset as u64, length: len, lkey: LKey(self.key) }
    }

    pub const fn all(&self) -> Sge {
        self.sge(0, self.len)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Good,
    Invalid,
    Unmapped,
}

#[derive(Debug)]
struct Region {
    mr: Mr,
    pd: u32,
    access: Access,
    /// True if a peer may invalidate it, like a memory window.
    window: bool,
    condition: Condition,
    bytes: Vec<u8>,
}

/// Registered regions of one QP in domain [`OWN_PD`].
#[derive(Debug, Default)]
pub struct VecMemory {
    regions: Vec<Region>,
    /// Bound windows.
    windows: Vec<Bind>,
    pub flushes: u32,
}

impl VecMemory {
    /// Registers `len` zero bytes with these rights in the QP's domain.
    pub fn register(&mut self, len: u32, access: Access) -> Mr {
        self.register_in(OWN_PD, len, access)
    }

    /// Registers `len` zero bytes in the domain `pd`.
    pub fn register_in(&mut self, pd: u32, len: u32, access: Access) -> Mr {
        self.register_across(pd, len, access, None)
    }

    /// Registers `len` zero bytes in the domain `pd`, so that the address of byte `edge` is a
    /// multiple of 4 GiB.
    pub fn register_across(&mut self, pd: u32, len: u32, access: Access, edge: Option<u64>) -> Mr {
        let index = u32::try_from(self.regions.len()).expect("few regions");
        // An unmapped page between regions catches overruns.
        let addr =
            self.regions.last().map_or(FIRST_ADDR, |r| (r.mr.addr + u64::from(r.mr.len)).next_multiple_of(4096) + 4096);
        let addr = edge.map_or(addr, |edge| (addr + edge).next_multiple_of(1 << 32) - edge);
        let mr = Mr { key: (index + 1) << 8 | (index.wrapping_mul(37) & 0xff), addr, len };
        let bytes = vec![0; len as usize];
        self.regions.push(Region { mr, pd, access, window: false, condition: Condition::Good, bytes });
        mr
    }

    /// Lets a peer invalidate `mr`, as if it were a memory window.
    pub fn make_window(&mut self, mr: Mr) {
        self.region_mut(mr).window = true;
    }

    pub fn deregister(&mut self, mr: Mr) {
        self.region_mut(mr).condition = Condition::Invalid;
    }

    /// Unmaps the memory of `mr`, which stays registered: accesses fault.
    pub fn unmap(&mut self, mr: Mr) {
        self.region_mut(mr).condition = Condition::Unmapped;
    }

    pub fn windows(&self) -> usize {
        self.windows.len()
    }

    pub fn bytes(&self, mr: Mr) -> &[u8] {
        &self.regions[index_of(mr.key).expect("find the region of the key")].bytes
    }

    pub fn bytes_mut(&mut self, mr: Mr) -> &mut [u8] {
        &mut self.region_mut(mr).bytes
    }

    /// Returns the 8-byte word at `offset` of `mr`, in native byte order.
    pub fn word(&self, mr: Mr, offset: u32) -> u64 {
        let at = offset as usize;
        u64::from_ne_bytes(self.bytes(mr)[at..at + 8].try_into().expect("eight bytes"))
    }

    fn region_mut(&mut self, mr: Mr) -> &mut Region {
        &mut self.regions[index_of(mr.key).expect("find the region of the key")]
    }

    /// Returns the bytes `addr..addr + len` under `key`, after every check.
    fn access(&mut self, key: u32, addr: u64, len: u64, need: Access) -> Result<&mut [u8], MemError> {
        let Some(window) = self.windows.iter().find(|window| window.rkey.0 == key).copied() else {
            return self.access_region(key, addr, len, need);
        };
        if need == Access::LOCAL_WRITE || !window.access.contains(need) {
            return Err(MemError::Access);
        }
        let inside =
            addr.checked_sub(window.addr).and_then(|at| at.checked_add(len)).is_some_and(|at| at <= window.length);
        if !inside {
            return Err(MemError::Range);
        }
        self.access_region(window.lkey.0, addr, len, Access::empty())
    }

    fn access_region(&mut self, key: u32, addr: u64, len: u64, need: Access) -> Result<&mut [u8], MemError> {
        let region = index_of(key).and_then(|i| self.regions.get_mut(i)).ok_or(MemError::BadKey)?;
        if region.mr.key != key || region.condition == Condition::Invalid {
            return Err(MemError::BadKey);
        }
        if region.pd != OWN_PD {
            return Err(MemError::WrongDomain);
        }
        if !region.access.contains(need) {
            return Err(MemError::Access);
        }
        let start = addr.checked_sub(region.mr.addr).ok_or(MemError::Range)?;
        let end = start.checked_add(len).filter(|&end| end <= u64::from(region.mr.len)).ok_or(MemError::Range)?;
        if region.condition == Condition::Unmapped {
            return Err(MemError::Fault);
        }
        Ok(&mut region.bytes[usize::try_from(start).expect("in range")..usize::try_from(end).expect("in range")])
    }

    /// Calls `f` for each piece of `len` bytes at `offset` in `sges`, with its place in the data.
    fn walk(
        &mut self,
        sges: &[Sge],
        offset: u32,
        len: usize,
        need: Access,
        mut f: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), MemError> {
        let (mut skip, mut done) = (u64::from(offset), 0);
        for sge in sges {
            let sge_len = u64::from(sge.length);
            if skip >= sge_len {
                skip -= sge_len;
                continue;
            }
            let take = (sge_len - skip).min((len - done) as u64);
            if take == 0 {
                break;
            }
            let addr = sge.addr.checked_add(skip).ok_or(MemError::Range)?;
            let piece = self.access(sge.lkey.0, addr, take, need)?;
            f(done, piece);
            done += piece.len();
            skip = 0;
        }
        if done == len { Ok(()) } else { Err(MemError::Range) }
    }

    /// Returns the start of the region with this key; 0 if there is none.
    fn base_of(&self, rkey: RKey) -> u64 {
        index_of(rkey.0).and_then(|i| self.regions.get(i)).map_or(0, |r| r.mr.addr)
    }

    /// Invalidates a window, or a region that a peer may invalidate.
    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemError> {
        if self.windows.iter().any(|window| window.rkey == rkey) {
            self.windows.retain(|window| window.rkey != rkey);
            return Ok(());
        }
        self.access(rkey.0, self.base_of(rkey), 0, Access::empty())?;
        let region = index_of(rkey.0).and_then(|i| self.regions.get_mut(i)).ok_or(MemError::BadKey)?;
        if !region.window {
            return Err(MemError::Access);
        }
        region.condition = Condition::Invalid;
        Ok(())
    }

    /// Binds a window, unless its index is in use.
    fn bind_window(&mut self, bind: &Bind) -> Result<(), MemError> {
        self.access_region(bind.lkey.0, bind.addr, bind.length, Access::MW_BIND)?;
        if self.windows.iter().any(|window| window.rkey.0 >> 8 == bind.rkey.0 >> 8) {
            return Err(MemError::Access);
        }
        self.windows.push(*bind);
        Ok(())
    }
}

/// Returns the table index of a key; `None` for key 0, which is invalid.
fn index_of(key: u32) -> Option<usize> {
    (key >> 8).checked_sub(1).map(|i| i as usize)
}
