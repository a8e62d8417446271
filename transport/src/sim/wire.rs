//! The network between two QPs: packets travel as sealed bytes, late, twice, damaged or not at all.
//!
//! May touch: `roxe_wire`, `cx` and [`super::rng`]. Buffers are pooled: once warm, nothing here allocates.

use super::rng::Choices;
use crate::cx::{PacketNote, TxBatch};
use crate::time::Instant;
use crate::wr::Av;
use core::cmp::Ordering;
use core::time::Duration;
use roxe_wire::{Header, NetHeader, Packet, Psn, icrc};
use std::collections::BinaryHeap;

/// What a fresh slot holds, so that bytes a QP forgot to write are not zero by luck.
const POISON: u8 = 0xa5;

/// One of the two QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The first.
    A,
    /// The second.
    B,
}

impl Peer {
    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// 0 or 1.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// What the network does to one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Carry it.
    Deliver,
    /// Lose it.
    Drop,
    /// Carry it twice, the copy this much later.
    Duplicate(Duration),
    /// Carry it this much later than its neighbours.
    Delay(Duration),
    /// Flip one bit of the byte at this offset (modulo the length) and carry it.
    Corrupt(u16),
}

/// Random faults, each in packets per thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Lost.
    pub drop: u16,
    /// Carried twice.
    pub duplicate: u16,
    /// Overtaken by later ones.
    pub reorder: u16,
    /// Damaged.
    pub corrupt: u16,
}

impl Faults {
    /// Decides about one packet.
    pub fn decide(&self, choices: &mut impl Choices, latency: Duration) -> Verdict {
        let late = |choices: &mut dyn Choices| latency * choices.between(1, 40) / 10;
        if choices.chance(self.drop.into()) {
            Verdict::Drop
        } else if choices.chance(self.duplicate.into()) {
            Verdict::Duplicate(late(choices))
        } else if choices.chance(self.reorder.into()) {
            Verdict::Delay(late(choices))
        } else if choices.chance(self.corrupt.into()) {
            Verdict::Corrupt(u16::try_from(choices.below(1 << 16)).unwrap_or(0))
        } else {
            Verdict::Deliver
        }
    }
}

/// A rule: told the number of the packet in its direction (from 0, counted from the moment the rule was set) and the
/// packet, it decides. `None` leaves the packet to the random faults.
pub type Rule = Box<dyn FnMut(u64, &Packet<'_>) -> Option<Verdict> + Send>;

/// A packet on its way.
#[derive(Debug)]
pub struct Flight {
    /// When it arrives.
    pub at: Instant,
    order: u64,
    /// Who receives it.
    pub to: Peer,
    /// Its network header.
    pub net: NetHeader,
    /// From the BTH to the ICRC.
    pub bytes: Vec<u8>,
}

/// Earliest first in a max-heap; equal times keep the order of sending.
impl Ord for Flight {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Flight {}

/// What happened to the packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Emitted by a QP.
    pub sent: u64,
    /// Lost.
    pub dropped: u64,
    /// Carried twice.
    pub duplicated: u64,
    /// Delayed.
    pub delayed: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Refused by the receiver for a wrong ICRC.
    pub bad_icrc: u64,
}

impl Tally {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.dropped += other.dropped;
        self.duplicated += other.duplicated;
        self.delayed += other.delayed;
        self.corrupted += other.corrupted;
        self.bad_icrc += other.bad_icrc;
    }
}

/// How often one requester went back to the same place, read off the packets it sends.
#[derive(Clone, Copy, Debug, Default)]
struct Rewinds {
    last: Option<Psn>,
    /// Newest PSN sent.
    high: Psn,
    /// Where the last rewind went.
    start: Psn,
    /// Rewinds since the last one that went further than the one before.
    count: u32,
    /// The pause of faults ends here.
    calm_until: Psn,
}

impl Rewinds {
    /// New PSNs that must pass before faults may resume.
    const FRESH: u32 = 32;

    /// Notes one RC packet; responses (opcodes 0x0d..=0x12) are no business of a requester.
    fn on_packet(&mut self, bytes: &[u8]) {
        let psn = match *bytes {
            [0x0d..=0x12, ..] => return,
            [_, _, _, _, _, _, _, _, _, high, mid, low, ..] => Psn::new(u32::from_be_bytes([0, high, mid, low])),
            _ => return,
        };
        if self.last.is_some_and(|last| !psn.is_after(last)) {
            let further = self.count == 0 || psn.is_after(self.start);
            self.count = if further { 1 } else { self.count + 1 };
            self.start = psn;
            self.calm_until = self.high.add(Self::FRESH);
        } else if self.last.is_none() || psn.is_after(self.high) {
            self.high = psn;
        }
        self.last = Some(psn);
    }

    /// Whether faults must pause: the requester is stuck and has not sent enough new packets since.
    fn is_stuck(&self, limit: u32) -> bool {
        self.count >= limit && !self.high.is_after(self.calm_until)
    }
}

/// Both directions of the network.
#[derive(Default)]
pub struct Wire {
    /// One-way travel time.
    pub latency: Duration,
    /// Random faults by sender.
    pub faults: [Faults; 2],
    /// What happened so far.
    pub tally: Tally,
    /// Retries without progress after which faults pause, so that a bounded `retry_cnt` is never spent by bad luck;
    /// `None`: no mercy.
    pub mercy: Option<u32>,
    rewinds: [Rewinds; 2],
    rules: [Option<(u64, Rule)>; 2],
    flights: BinaryHeap<Flight>,
    pool: Vec<Vec<u8>>,
    order: u64,
}

impl Wire {
    /// A network without faults, with room for `packets` before it allocates.
    pub fn new(latency: Duration, packets: usize) -> Self {
        let pool = (0..packets).map(|_| Vec::with_capacity(4096 + 64)).collect();
        Self { latency, flights: BinaryHeap::with_capacity(packets), pool, ..Self::default() }
    }

    /// Sets the rule for packets that `from` sends, and starts counting them.
    pub fn set_rule(&mut self, from: Peer, rule: Rule) {
        self.rules[from.index()] = Some((0, rule));
    }

    /// Removes the rule for packets that `from` sends.
    pub fn clear_rule(&mut self, from: Peer) {
        self.rules[from.index()] = None;
    }

    /// When the next packet arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.flights.peek().map(|flight| flight.at)
    }

    /// Packets on their way.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Takes a packet that has arrived by `now`.
    pub fn arrived(&mut self, now: Instant) -> Option<Flight> {
        if self.next_arrival()? > now {
            return None;
        }
        self.flights.pop()
    }

    /// Gives a buffer back.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.pool.push(bytes);
    }

    /// Sends sealed `bytes` from `from`, after asking rule and faults. Returns what became of it.
    pub fn send(
        &mut self,
        now: Instant,
        from: Peer,
        net: NetHeader,
        bytes: Vec<u8>,
        choices: &mut impl Choices,
    ) -> Verdict {
        self.tally.sent += 1;
        let verdict = self.judge(from, &bytes, choices);
        self.carry(now, from.other(), net, bytes, verdict);
        verdict
    }

    fn judge(&mut self, from: Peer, bytes: &[u8], choices: &mut impl Choices) -> Verdict {
        if let Some((count, rule)) = &mut self.rules[from.index()] {
            let packet = Packet::parse(bytes).expect("a QP emitted a packet that does not parse");
            let verdict = rule(*count, &packet);
            *count += 1;
            if let Some(verdict) = verdict {
                return verdict;
            }
        }
        self.rewinds[from.index()].on_packet(bytes);
        let merciful = self.mercy.is_some_and(|limit| self.rewinds.iter().any(|r| r.is_stuck(limit)));
        if merciful { Verdict::Deliver } else { self.faults[from.index()].decide(choices, self.latency) }
    }

    fn carry(&mut self, now: Instant, to: Peer, net: NetHeader, mut bytes: Vec<u8>, verdict: Verdict) {
        let arrival = now.after(self.latency);
        match verdict {
            Verdict::Deliver => self.fly(arrival, to, net, bytes),
            Verdict::Drop => {
                self.tally.dropped += 1;
                self.recycle(bytes);
            }
            Verdict::Duplicate(later) => {
                self.tally.duplicated += 1;
                let copy = self.copy(&bytes);
                self.fly(arrival, to, net, bytes);
                self.fly(arrival.after(later), to, net, copy);
            }
            Verdict::Delay(later) => {
                self.tally.delayed += 1;
                self.fly(arrival.after(later), to, net, bytes);
            }
            Verdict::Corrupt(at) => {
                self.tally.corrupted += 1;
                let at = usize::from(at);
                let len = bytes.len();
                bytes[at % len] ^= 1 << (at % 8);
                self.fly(arrival, to, net, bytes);
            }
        }
    }

    /// Puts `bytes` in flight, to arrive at `at`, past rules and faults.
    pub fn fly(&mut self, at: Instant, to: Peer, net: NetHeader, bytes: Vec<u8>) {
        self.order += 1;
        self.flights.push(Flight { at, order: self.order, to, net, bytes });
    }

    fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.pool.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        copy
    }
}

/// The packets of one `poll_transmit`, in order.
#[derive(Debug, Default)]
pub struct Batch {
    packets: Vec<(Av, Vec<u8>)>,
    room: usize,
}

impl Batch {
    /// A batch that can grow to `packets` without allocating.
    pub fn new(packets: usize) -> Self {
        Self { packets: Vec::with_capacity(packets), room: 0 }
    }

    /// Makes room for `packets` packets, whose buffers are drawn from the pool of `wire`.
    pub fn open<'b>(&'b mut self, wire: &'b mut Wire, packets: usize) -> OpenBatch<'b> {
        self.room = packets;
        OpenBatch { batch: self, wire }
    }

    /// Takes the packets out, sealed.
    pub fn drain(&mut self) -> impl Iterator<Item = (NetHeader, Vec<u8>)> + '_ {
        self.packets.drain(..).map(|(av, mut bytes)| {
            let net = net_header(&av);
            icrc::seal(&net, &mut bytes);
            (net, bytes)
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
    wire: &'b mut Wire,
}

impl TxBatch for OpenBatch<'_> {
    fn slot(&mut self, av: &Av, len: usize, _note: PacketNote) -> Option<&mut [u8]> {
        if self.batch.packets.len() >= self.batch.room {
            return None;
        }
        let mut bytes = self.wire.pool.pop().unwrap_or_default();
        bytes.clear();
        bytes.resize(len + icrc::LEN, POISON);
        self.batch.packets.push((*av, bytes));
        let (_, bytes) = self.batch.packets.last_mut()?;
        bytes.get_mut(..len)
    }

    fn retract(&mut self) {
        let (_, bytes) = self.batch.packets.pop().expect("a QP retracted a slot it had not taken");
        self.wire.recycle(bytes);
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

/// The bytes of a packet nobody emitted, to inject, with room for an ICRC. `None` when `header` cannot carry `payload`.
pub fn forge(header: &Header, payload: &[u8]) -> Option<Vec<u8>> {
    let len = header.padded_len(payload.len());
    let mut bytes = vec![0; len + icrc::LEN];
    header.emit(payload.len(), &mut bytes[..len])?.copy_from_slice(payload);
    Some(bytes)
}
