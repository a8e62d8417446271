//! One packet of our own: what it says and carries, and how it gets into the batch.
//!
//! Touches `segment`, the send queue's entries and the two doors that a payload passes: memory and batch.

use crate::cx::{Memory, TxBatch};
use crate::qp::segment::{self, Place};
use crate::qp::sq::{Payload, SendWqe};
use crate::wr::{Av, SendOp};
use roxe_wire::{Header, PathMtu, Request, Reth};

/// One packet of a message: what it says and carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) request: Request,
    /// Payload bytes.
    pub(crate) len: u32,
    /// Where in the message they start.
    offset: u32,
    /// PSNs it takes.
    pub(crate) span: u32,
    /// Payload bytes of the next packet, while the responder is not asked for an answer before it.
    pub(crate) next_len: Option<u32>,
    /// Bytes of READ data that its answers carry.
    pub(crate) brings: u32,
    /// The responder must answer.
    pub(crate) asks_ack: bool,
    pub(crate) solicited: bool,
}

impl Outgoing {
    /// Packet `index` of `wqe`.
    pub(crate) fn of(wqe: &SendWqe, index: u32, mtu: PathMtu) -> Self {
        if let SendOp::Read { remote_addr, rkey } = wqe.op {
            let end = segment::read_chunk_end(index, wqe.packets, mtu);
            let whole = Reth { va: remote_addr, rkey, dma_len: wqe.length };
            let part = segment::read_part(whole, mtu, index, end);
            return Self::question(Request::Read(part), end - index, part.dma_len);
        }
        let place = Place::of(index, wqe.packets);
        let request = segment::request(&wqe.op, wqe.length, place);
        if wqe.is_atomic() {
            return Self::question(request, 1, 0);
        }
        let asks_ack = place.ends() || segment::is_ack_point(index);
        let next_len = if asks_ack { None } else { Some(segment::payload_len(wqe.length, mtu, index + 1)) };
        let len = segment::payload_len(wqe.length, mtu, index);
        let (offset, solicited) = (segment::offset(index, mtu), place.ends() && wqe.is_solicited());
        Self { request, len, offset, span: 1, brings: 0, next_len, asks_ack, solicited }
    }

    /// A request without payload whose answer takes `span` PSNs.
    fn question(request: Request, span: u32, brings: u32) -> Self {
        Self { request, len: 0, offset: 0, span, brings, next_len: None, asks_ack: true, solicited: false }
    }
}

/// Outcome of [`put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// The packet is in the batch.
    Done,
    /// The batch is full.
    Full,
    /// The payload could not be read; there is no packet.
    Fault,
}

/// Puts a packet into the batch.
pub(crate) fn put<M: Memory, T: TxBatch>(
    memory: &mut M,
    tx: &mut T,
    av: &Av,
    header: &Header,
    payload: Payload<'_>,
    packet: &Outgoing,
) -> Put {
    let len = packet.len as usize;
    let Some(slot) = tx.slot(av, header.padded_len(len)) else { return Put::Full };
    let written = header.emit(len, slot).is_some_and(|room| payload.read(memory, packet.offset, room));
    if written {
        return Put::Done;
    }
    tx.retract();
    Put::Fault
}

impl Payload<'_> {
    /// Copies `out.len()` bytes from `offset` on; whether that was possible.
    fn read<M: Memory>(self, memory: &mut M, offset: u32, out: &mut [u8]) -> bool {
        match self {
            _ if out.is_empty() => true,
            Self::Sges(sges) => memory.gather(sges, offset, out).is_ok(),
            Self::Inline(bytes) => match bytes.get(offset as usize..).and_then(|rest| rest.get(..out.len())) {
                Some(bytes) => {
                    out.copy_from_slice(bytes);
                    true
                }
                None => false,
            },
        }
    }
}
