//! One packet of our own: what it says and carries, and how it gets into the batch.
//!
//! Touches `segment`, the send queue's entries and the two traits that a payload passes: memory and
//! batch.

use crate::cx::{FlowControl, Memory, PacketNote, TxBatch, TxRoom};
use crate::qp::in_flight::charge_range;
use crate::qp::segment::{self, len_of};
use crate::qp::sq::SendWqe;
use crate::wr::{Av, SendData, SendOp};
use roxe_wire::{Form, Header, PathMtu, Request, Reth};

/// Packets that room is taken for at once. Asking for each of them cost as much as its headers.
const RUN: u32 = 16;

/// One packet of a message: what it says and carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) request: Request,
    /// Payload bytes.
    pub(crate) len: u32,
    /// Where in the message they start.
    pub(crate) offset: u32,
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
    /// What it counts for at the receiver.
    pub(crate) fn cost<F: FlowControl>(&self) -> u32 {
        // What has no payload costs the least either way.
        let is_alone = matches!(self.request, Request::SendOnly(_) | Request::WriteOnly(..));
        if is_alone { F::charge_alone(self.len) } else { F::charge(self.len) }
    }

    /// What those of the next [`RUN`] packets cost that belong to the message of this one, which is
    /// packet `index` of `wqe`.
    pub(crate) fn charge_behind<F: FlowControl>(&self, wqe: &SendWqe, index: u32, mtu: PathMtu) -> u32 {
        let next = index + self.span;
        charge_range::<F>(wqe.length, wqe.packets, mtu, next, wqe.packets.min(next + RUN))
    }

    /// Packet `index` of `wqe`; a local operation has none, nor has an atomic with a list of
    /// another length than its word.
    // A call would hand it over in memory, and whoever copies what was just written there waits for
    // it: 15 cycles.
    #[inline(always)]
    pub(crate) fn of(wqe: &SendWqe, index: u32, mtu: PathMtu) -> Option<Self> {
        if let SendOp::Read { remote_addr, rkey } = wqe.op {
            let end = segment::read_chunk_end(index, wqe.packets, mtu);
            let whole = Reth { va: remote_addr, rkey, dma_len: wqe.length };
            let part = segment::read_part(whole, mtu, index, end);
            return Some(Self::question(Request::Read(part), end - index, part.dma_len));
        }
        let position = segment::position(index, wqe.packets);
        let request = segment::request(&wqe.op, wqe.length, position)?;
        if wqe.awaits_response() {
            return Some(Self { len: wqe.question_len(), ..Self::question(request, 1, 0) });
        }
        // clause: SEND-ASK-LAST
        let asks_ack = index + 1 == wqe.packets;
        let next_len = if asks_ack { None } else { Some(segment::payload_len(wqe.length, mtu, index + 1)) };
        let len = segment::payload_len(wqe.length, mtu, index);
        // clause: BTH-SOLICITED
        let (offset, solicited) = (segment::offset(index, mtu), asks_ack && wqe.is_solicited());
        Some(Self { request, len, offset, span: 1, brings: 0, next_len, asks_ack, solicited })
    }

    /// From a packet in the middle of `wqe` to the next one, which is packet `index` and in the
    /// middle too; but the last packet differs in more.
    #[inline]
    pub(crate) fn go_on(&mut self, wqe: &SendWqe, index: u32, mtu: PathMtu) {
        self.offset = segment::offset(index, mtu);
        self.next_len = (index + 1 < wqe.packets).then(|| segment::payload_len(wqe.length, mtu, index + 1));
    }

    /// A request whose answer takes `span` PSNs; but for an ATOMIC WRITE it has no payload.
    fn question(request: Request, span: u32, brings: u32) -> Self {
        // clause: SEND-ASK-LAST
        Self { request, len: 0, offset: 0, span, brings, next_len: None, asks_ack: true, solicited: false }
    }
}

/// Outcome of [`Departing::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// The packet is in the batch.
    Done,
    /// The batch is full.
    Full,
    /// The payload could not be read; there is no packet.
    Fault,
}

/// A packet about to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departing<'a> {
    pub(crate) av: &'a Av,
    pub(crate) header: Header,
    pub(crate) payload: SendData<'a>,
    pub(crate) note: PacketNote,
}

impl Departing<'_> {
    /// Puts it into the batch as what `packet` says.
    #[inline]
    pub(crate) fn put<M: Memory, T: TxBatch>(&self, memory: &mut M, tx: &mut T, packet: &Outgoing) -> Put {
        match self.header.form(packet.len as usize) {
            Some(form) => self.put_as(memory, tx, &form, packet.offset),
            None => Put::Fault,
        }
    }

    /// Puts the packet into the batch when its form is known; `offset` is where in the message its
    /// payload starts.
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

    /// Puts `packet`, and those behind it up to `count`, behind a packet from which they differ by
    /// their PSNs. Returns how many; 0: the batch does not join packets, or not these, or not all
    /// of them could be read.
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
    /// Copies `out.len()` bytes from `offset` on; whether that was possible.
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
mod tests {
    use crate::sim::{Pair, Peer, Rng, Setup};
    use crate::wr::{Access, SendData, SendFlags, SendOp, SendRequest};
    use roxe_wire::{Feth, Kind, Operation, Placement, Selectivity};

    /// What a requester at MTU 256 sends for one request: opcode, payload bytes, AckReq, SE.
    fn packets(op: SendOp, len: u32) -> Vec<(Operation, usize, bool, bool)> {
        let mut pair = Pair::idle(Setup::default(), Rng::new(1));
        pair.bring_to(Peer::A, crate::qp::QpState::Rts);
        let mr = pair.end(Peer::A).host.memory.register(8192, Access::LOCAL_WRITE);
        let flags = SendFlags::SOLICITED;
        let req = SendRequest { wr_id: 1, op, flags, data: SendData::Sges(&[mr.sge(0, len)]), ud: None };
        assert_eq!(pair.post_send(Peer::A, &req), Ok(()));
        pair.transmit(Peer::A);
        assert!(pair.log.iter().all(|p| p.header.bth.mig_req && matches!(p.header.kind, Kind::RcRequest(_))));
        let facts = |p: &crate::sim::Logged| {
            (p.header.opcode().operation(), p.len, p.header.bth.ack_req, p.header.bth.solicited)
        };
        pair.log.iter().map(facts).collect()
    }

    // clause: BTH-SOLICITED, SEND-ASK-LAST
    #[test]
    fn a_message_asks_for_an_acknowledgement_and_solicits_at_its_end() {
        let sent = packets(SendOp::Send, 17 * 256 + 3);
        assert_eq!(sent.len(), 18);
        for (index, packet) in sent.into_iter().enumerate() {
            let expected = match index {
                0 => (Operation::SendFirst, 256, false, false),
                17 => (Operation::SendLast, 3, true, true),
                _ => (Operation::SendMiddle, 256, false, false),
            };
            assert_eq!(packet, expected, "packet {index}");
        }
    }

    // clause: BTH-SOLICITED, SEND-ASK-LAST
    #[test]
    fn a_write_solicits_only_with_immediate_and_questions_always_ask() {
        let (remote_addr, rkey) = (0, roxe_wire::RKey(1));
        let one = |op, len| packets(op, len)[0];
        let imm = roxe_wire::ImmDt([0; 4]);
        assert_eq!(one(SendOp::Write { remote_addr, rkey }, 4), (Operation::WriteOnly, 4, true, false));
        assert_eq!(one(SendOp::WriteImm { remote_addr, rkey, imm }, 4), (Operation::WriteOnlyImm, 4, true, true));
        assert_eq!(one(SendOp::Read { remote_addr, rkey }, 4096), (Operation::ReadRequest, 0, true, false));
        assert_eq!(one(SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8), (Operation::FetchAdd, 0, true, false));
        assert_eq!(one(SendOp::AtomicWrite { remote_addr, rkey }, 8), (Operation::AtomicWrite, 8, true, false));
        let feth = Feth { selectivity: Selectivity::Range, placement: Placement::GLOBAL_VISIBILITY };
        let flush = SendOp::Flush { remote_addr, rkey, length: 1 << 20, feth };
        assert_eq!(packets(flush, 0), [(Operation::Flush, 0, true, false)], "one packet, whatever it covers");
    }
}
