//! Segmentation: cuts a message into packets, numbered from 0, and writes one packet into the
//! batch.

use crate::cx::{FlowControl, Memory, PacketNote, TxBatch, TxRoom};
use crate::qp::send_queue::SendWqe;
use crate::wr::{ATOMIC_LEN, Av, MAX_MESSAGE, SendData, SendOp};
use roxe_wire::opcode::Position;
use roxe_wire::{AtomicEth, Form, Header, Ieth, PathMtu, Request, Reth, SendTail};

/// Limits of one READ REQUEST, in response packets and bytes. A longer READ is a sequence of
/// requests, so that the responses never overrun the receive buffer of the local socket.
const READ_CHUNK_PACKETS: u32 = 64;
const READ_CHUNK_BYTES: u32 = 128 << 10;

/// Returns the length of a packet payload, or of a few joined ones: it always fits 32 bits.
pub(crate) fn len_of(payload: usize) -> u32 {
    u32::try_from(payload).unwrap_or(u32::MAX)
}

const fn shift(mtu: PathMtu) -> u32 {
    mtu.bytes().trailing_zeros()
}

/// Returns the number of packets, and so PSNs, of a message of `length` bytes: at least one.
// clause: PSN-SPAN
pub(crate) const fn packets(length: u32, mtu: PathMtu) -> u32 {
    match length.div_ceil(mtu.bytes()) {
        0 => 1,
        n => n,
    }
}

/// Returns the offset in the message of packet `index`, in bytes.
pub(crate) const fn offset(index: u32, mtu: PathMtu) -> u32 {
    index << shift(mtu)
}

pub(crate) fn payload_len(length: u32, mtu: PathMtu, index: u32) -> u32 {
    length.saturating_sub(offset(index, mtu)).min(mtu.bytes())
}

/// Returns the cost in bytes of packets `from..to` of a message of `length` bytes in `packets`
/// packets.
pub(crate) fn range_cost<F: FlowControl>(length: u32, packets: u32, mtu: PathMtu, from: u32, to: u32) -> u32 {
    if packets == 1 {
        return if from < to { F::lone_packet_cost(length) } else { 0 };
    }
    let full = to.min(packets - 1).saturating_sub(from);
    let last = if from < to && to == packets { F::packet_cost(length - (packets - 1) * mtu.bytes()) } else { 0 };
    full * F::packet_cost(mtu.bytes()) + last
}

pub(crate) const fn position(index: u32, packets: u32) -> Position {
    match (index == 0, index + 1 == packets) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

/// Returns the end, as a packet index, of the READ REQUEST that covers packet `index` of a READ.
/// Requests end at fixed places, even when a retry starts in the middle of one, so that a retry
/// always requests a tail of the original (IBA §9.7.5.1.3).
pub(crate) fn read_chunk_end(index: u32, packets: u32, mtu: PathMtu) -> u32 {
    let chunk = READ_CHUNK_PACKETS.min(READ_CHUNK_BYTES >> shift(mtu));
    ((index / chunk + 1) * chunk).min(packets)
}

/// Returns the part `index..end`, in packets, of the READ `whole`.
// clause: RETRY-READ-TAIL
pub(crate) fn read_part(whole: Reth, mtu: PathMtu, index: u32, end: u32) -> Reth {
    let from = offset(index, mtu);
    let until = (u64::from(end) << shift(mtu)).min(u64::from(whole.dma_len));
    let dma_len = u32::try_from(until).unwrap_or(MAX_MESSAGE).saturating_sub(from);
    Reth { va: whole.va.wrapping_add(u64::from(from)), dma_len, ..whole }
}

/// Returns the request of a packet at `position` of `op`; for a READ, the whole range. `None` for a
/// local operation.
// clause: SEND-TAIL
// Inlined: returning the struct through memory stalls on store forwarding.
#[inline(always)]
pub(crate) fn request(op: &SendOp, length: u32, position: Position) -> Option<Request> {
    let reth = |va, rkey| Reth { va, rkey, dma_len: length };
    Some(match *op {
        SendOp::Send => send(position, SendTail::Plain),
        SendOp::SendImm(imm) => send(position, SendTail::Imm(imm)),
        SendOp::SendInvalidate(rkey) => send(position, SendTail::Invalidate(Ieth(rkey))),
        SendOp::Write { remote_addr, rkey } => write(position, reth(remote_addr, rkey), None),
        SendOp::WriteImm { remote_addr, rkey, imm } => write(position, reth(remote_addr, rkey), Some(imm)),
        SendOp::Read { remote_addr, rkey } => Request::Read(reth(remote_addr, rkey)),
        SendOp::CompareSwap { remote_addr, rkey, compare, swap } if length == ATOMIC_LEN => {
            Request::CompareSwap(AtomicEth { va: remote_addr, rkey, swap_or_add: swap, compare })
        }
        SendOp::FetchAdd { remote_addr, rkey, add } if length == ATOMIC_LEN => {
            // clause: ATOMIC-OPERANDS
            Request::FetchAdd(AtomicEth { va: remote_addr, rkey, swap_or_add: add, compare: 0 })
        }
        SendOp::AtomicWrite { remote_addr, rkey } => Request::AtomicWrite(reth(remote_addr, rkey)),
        SendOp::Flush { remote_addr, rkey, length, feth } => {
            Request::Flush(feth, Reth { va: remote_addr, rkey, dma_len: length })
        }
        // clause: SEND-ATOMIC-LENGTH
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => return None,
        SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. } => return None,
    })
}

fn send(position: Position, tail: SendTail) -> Request {
    match position {
        Position::Only => Request::SendOnly(tail),
        Position::First => Request::SendFirst,
        Position::Middle => Request::SendMiddle,
        Position::Last => Request::SendLast(tail),
    }
}

fn write(position: Position, reth: Reth, imm: Option<roxe_wire::ImmDt>) -> Request {
    match position {
        Position::Only => Request::WriteOnly(reth, imm),
        Position::First => Request::WriteFirst(reth),
        Position::Middle => Request::WriteMiddle,
        Position::Last => Request::WriteLast(imm),
    }
}

/// Number of packets for which room is reserved at once.
const RUN: u32 = 16;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) request: Request,
    /// Payload bytes.
    pub(crate) len: u32,
    /// Offset of the payload in the message, in bytes.
    pub(crate) offset: u32,
    /// Number of PSNs.
    pub(crate) span: u32,
    /// Payload bytes of the next packet; `None` if this one requests a response.
    pub(crate) next_len: Option<u32>,
    /// READ data in the responses, in bytes.
    pub(crate) read_bytes: u32,
    pub(crate) asks_ack: bool,
    pub(crate) solicited: bool,
}

impl Outgoing {
    pub(crate) fn cost<F: FlowControl>(&self) -> u32 {
        // For a packet without payload, both costs are the minimum.
        let is_alone = matches!(self.request, Request::SendOnly(_) | Request::WriteOnly(..));
        if is_alone { F::lone_packet_cost(self.len) } else { F::packet_cost(self.len) }
    }

    /// Returns the cost in bytes of the next [`RUN`] packets of the same message; this is packet
    /// `index` of `wqe`.
    pub(crate) fn next_run_cost<F: FlowControl>(&self, wqe: &SendWqe, index: u32, mtu: PathMtu) -> u32 {
        let next = index + self.span;
        range_cost::<F>(wqe.length, wqe.packets, mtu, next, wqe.packets.min(next + RUN))
    }

    /// Returns packet `index` of `wqe`; `None` for a local operation, and for an atomic whose list
    /// is not 8 bytes.
    // Inlined: returning the struct through memory stalls on store forwarding.
    #[inline(always)]
    pub(crate) fn of(wqe: &SendWqe, index: u32, mtu: PathMtu) -> Option<Self> {
        if let SendOp::Read { remote_addr, rkey } = wqe.op {
            let end = read_chunk_end(index, wqe.packets, mtu);
            let whole = Reth { va: remote_addr, rkey, dma_len: wqe.length };
            let part = read_part(whole, mtu, index, end);
            return Some(Self::non_posted(Request::Read(part), end - index, part.dma_len));
        }
        let position = position(index, wqe.packets);
        let request = request(&wqe.op, wqe.length, position)?;
        if wqe.op.awaits_response() {
            return Some(Self { len: wqe.request_len(), ..Self::non_posted(request, 1, 0) });
        }
        // clause: SEND-ASK-LAST
        let asks_ack = index + 1 == wqe.packets;
        let next_len = if asks_ack { None } else { Some(payload_len(wqe.length, mtu, index + 1)) };
        let len = payload_len(wqe.length, mtu, index);
        // clause: BTH-SOLICITED
        let (offset, solicited) = (offset(index, mtu), asks_ack && wqe.is_solicited());
        Some(Self { request, len, offset, span: 1, read_bytes: 0, next_len, asks_ack, solicited })
    }

    /// Advances from one MIDDLE packet of `wqe` to the next, `index`.
    #[inline]
    pub(crate) fn advance(&mut self, wqe: &SendWqe, index: u32, mtu: PathMtu) {
        self.offset = offset(index, mtu);
        self.next_len = (index + 1 < wqe.packets).then(|| payload_len(wqe.length, mtu, index + 1));
    }

    /// Returns a request whose response occupies `span` PSNs; only an ATOMIC WRITE has a payload.
    fn non_posted(request: Request, span: u32, read_bytes: u32) -> Self {
        // clause: SEND-ASK-LAST
        Self { request, len: 0, offset: 0, span, read_bytes, next_len: None, asks_ack: true, solicited: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Done,
    Full,
    /// The payload could not be read; the batch is unchanged.
    Fault,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TxPacket<'a> {
    pub(crate) av: &'a Av,
    pub(crate) header: Header,
    pub(crate) payload: SendData<'a>,
    pub(crate) note: PacketNote,
}

impl TxPacket<'_> {
    #[inline]
    pub(crate) fn put<M: Memory, T: TxBatch>(&self, memory: &mut M, tx: &mut T, packet: &Outgoing) -> Put {
        match self.header.form(packet.len as usize) {
            Some(form) => self.put_as(memory, tx, &form, packet.offset),
            None => Put::Fault,
        }
    }

    /// Writes the packet like [`Self::put`], with a known form; `offset` is that of the payload in
    /// the message.
    #[inline]
    pub(crate) fn put_as<M: Memory, T: TxBatch>(&self, memory: &mut M, tx: &mut T, form: &Form, offset: u32) -> Put {
        let Self { av, header, payload, note } = self;
        let Some(slot) = tx.slot(av, header.bth.dest_qpn, form.len(), note) else { return Put::Full };
        let written = slot.put_header(header, form).is_some_and(|room| payload.read(memory, offset, room));
        if written {
            return Put::Done;
        }
        tx.retract();
        Put::Fault
    }

    /// Joins `packet` and up to `count` - 1 packets after it to the last packet in the batch.
    /// Returns the number joined; 0 if the batch does not join packets or a payload could not be
    /// read.
    #[inline]
    pub(crate) fn join<M: Memory, T: TxBatch>(&self, memory: &mut M, tx: &mut T, packet: &Outgoing, count: u32) -> u32 {
        let Some(room) = tx.extend(packet.len as usize, count) else { return 0 };
        let joined = len_of(room.len()) / packet.len;
        if self.payload.read(memory, packet.offset, room) {
            return joined;
        }
        tx.retract();
        0
    }
}

impl SendData<'_> {
    /// Copies `out.len()` bytes from `offset` on. Returns false on failure.
    #[inline]
    pub(crate) fn read<M: Memory>(&self, memory: &mut M, offset: u32, out: TxRoom<'_>) -> bool {
        match self {
            _ if out.is_empty() => true,
            // clause: RETRY-DATA
            Self::Sges(sges) => memory.gather(sges, offset, out).is_ok(),
            Self::Inline(bytes) => match bytes.get(offset as usize..).and_then(|rest| rest.get(..out.len())) {
                Some(bytes) => out.put(bytes).is_some(),
                None => false,
            },
        }
    }
}

#[cfg(test)]
mod tests;
