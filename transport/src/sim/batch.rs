//! The packets of one `poll_transmit`, and the buffers they are written into.
//!
//! May touch: `cx`, `roxe_wire`. Buffers go round between the pool, a batch and the network: once
//! there are enough, nothing allocates.

use crate::cx::{PacketNote, TxBatch, TxRoom};
use crate::wr::Av;
use roxe_wire::{NetHeader, Packet, Qpn, icrc};

/// What a fresh slot holds, so that bytes a QP forgot to write are not zero by luck.
const POISON: u8 = 0xa5;

/// Bytes that hold any packet.
const BUFFER: usize = 4096 + 64;

/// Buffers that nobody uses.
#[derive(Debug, Default)]
pub struct Pool(Vec<Vec<u8>>);

impl Pool {
    /// Makes sure that `buffers` can be taken without allocating.
    pub fn reserve(&mut self, buffers: usize) {
        let missing = buffers.saturating_sub(self.0.len());
        self.0.extend((0..missing).map(|_| Vec::with_capacity(BUFFER)));
    }

    /// An empty buffer.
    pub fn take(&mut self) -> Vec<u8> {
        let mut bytes = self.0.pop().unwrap_or_else(|| Vec::with_capacity(BUFFER));
        bytes.clear();
        bytes
    }

    /// A copy of `bytes`.
    pub fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.take();
        copy.extend_from_slice(bytes);
        copy
    }

    /// Gives a buffer back.
    pub fn put(&mut self, bytes: Vec<u8>) {
        self.0.push(bytes);
    }
}

/// The packets of one `poll_transmit`, in order.
#[derive(Debug, Default)]
pub struct Batch {
    packets: Vec<(Av, PacketNote, Vec<u8>)>,
    room: usize,
}

impl Batch {
    /// Makes room for `packets` packets, whose buffers are drawn from `pool`; whether it `joins`
    /// them, and how many of one size leave together, 0 for none.
    pub fn open<'b>(&'b mut self, pool: &'b mut Pool, packets: usize, joins: bool, run: u32) -> OpenBatch<'b> {
        self.room = packets;
        self.packets.reserve(packets);
        OpenBatch { batch: self, pool, joins, joined: Joined::default(), run }
    }

    /// Takes the packets out, sealed.
    pub fn drain(&mut self) -> impl Iterator<Item = (NetHeader, PacketNote, Vec<u8>)> + '_ {
        self.packets.drain(..).map(|(av, note, mut bytes)| {
            let net = net_header(&av);
            icrc::seal(&net, &mut bytes);
            (net, note, bytes)
        })
    }

    /// Packets in it.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

/// A batch with the pool it takes buffers from.
pub struct OpenBatch<'b> {
    batch: &'b mut Batch,
    pool: &'b mut Pool,
    joins: bool,
    joined: Joined,
    /// Packets of one size that leave together; 0: each leaves alone.
    run: u32,
}

/// What shares the header of the last packet.
#[derive(Clone, Copy, Debug, Default)]
struct Joined {
    /// Payload of each.
    len: usize,
    /// Packets, and how many of them the last extension brought.
    packets: usize,
    newest: usize,
}

impl OpenBatch<'_> {
    /// Takes the last packets apart, as they would travel.
    fn part(&mut self) {
        let Joined { len, packets, .. } = core::mem::take(&mut self.joined);
        let Some((av, note, mut all)) = (if packets > 0 { self.batch.packets.pop() } else { None }) else { return };
        let rest = all.split_off(all.len() - icrc::LEN - packets * len);
        all.resize(all.len() + icrc::LEN, POISON);
        let mut header = Packet::parse(&all).expect("what others are joined to does not parse").header;
        self.batch.packets.push((av, note, all));
        for payload in rest[..packets * len].chunks(len) {
            header.bth = header.bth.next_joined();
            let mut bytes = self.pool.take();
            let end = header.padded_len(len);
            bytes.resize(end + icrc::LEN, POISON);
            header.emit(len, &mut bytes[..end]).expect("there is room").copy_from_slice(payload);
            self.batch.packets.push((av, note, bytes));
        }
    }
}

impl Drop for OpenBatch<'_> {
    fn drop(&mut self) {
        self.part();
    }
}

impl TxBatch for OpenBatch<'_> {
    fn slot(&mut self, av: &Av, _to: Qpn, len: usize, note: &PacketNote) -> Option<TxRoom<'_>> {
        self.part();
        if self.batch.packets.len() >= self.batch.room {
            return None;
        }
        let mut bytes = self.pool.take();
        bytes.resize(len + icrc::LEN, POISON);
        self.batch.packets.push((*av, *note, bytes));
        let (.., bytes) = self.batch.packets.last_mut()?;
        bytes.get_mut(..len).map(TxRoom::Own)
    }

    fn joins(&self) -> bool {
        self.joins
    }

    fn extend(&mut self, len: usize, count: u32) -> Option<TxRoom<'_>> {
        let room = self.batch.room - self.batch.packets.len() - self.joined.packets;
        let (.., bytes) = self.batch.packets.last_mut().filter(|_| self.joins)?;
        let more = room.min(count as usize).min(BUFFER.saturating_sub(bytes.len()) / len);
        if more == 0 {
            return None;
        }
        self.joined = Joined { len, packets: self.joined.packets + more, newest: more };
        let end = bytes.len() + more * len;
        bytes.resize(end, POISON);
        bytes.get_mut(end - icrc::LEN - more * len..end - icrc::LEN).map(TxRoom::Own)
    }

    fn fits_same_send(&self, len: usize, count: usize) -> bool {
        let total = len + icrc::LEN;
        let same = |(.., bytes): &&(Av, PacketNote, Vec<u8>)| bytes.len() == total;
        let before = self.batch.packets.iter().rev().take_while(same).count();
        before + count <= before.next_multiple_of(self.run.max(1) as usize)
    }

    fn retract(&mut self) {
        let (av, note, mut bytes) = self.batch.packets.pop().expect("a QP retracted a slot it had not taken");
        let Joined { len, packets, newest } = self.joined;
        if newest == 0 {
            return self.pool.put(bytes);
        }
        bytes.truncate(bytes.len() - newest * len);
        self.joined = Joined { len, packets: packets - newest, newest: 0 };
        self.batch.packets.push((av, note, bytes));
    }
}

/// The network header of a packet sent along `av`.
pub fn net_header(av: &Av) -> NetHeader {
    NetHeader {
        src: av.sgid,
        dst: av.dgid,
        src_port: 49152,
        traffic_class: av.traffic_class,
        hop_limit: if av.hop_limit < 2 { 64 } else { av.hop_limit },
        flow_label: if av.dgid.is_ipv4() { 0 } else { av.flow_label },
        ident: 0,
    }
}
