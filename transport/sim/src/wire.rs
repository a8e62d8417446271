//! The network: packets leave a queue pair in a batch, travel as sealed bytes, and arrive late,
//! twice, damaged or not at all.
//!
//! [`crate::world`] maps packets to ends. Buffers are recycled between pool, batch and network, so
//! that nothing allocates after the start.

use crate::links::{LinkPath, Topology, node_at};
pub use crate::setup::Peer;
use crate::timeline::Timeline;
use core::time::Duration;
use roxe_transport::cx::{PacketNote, TxBatch, TxRoom};
use roxe_transport::fault::{Corruption, Direction, Forged, Injector, PacketContext, Rules, Verdict};
use roxe_transport::time::Instant;
use roxe_transport::wr::Av;
use roxe_wire::{NetHeader, Packet, Psn, Qpn, icrc};
use std::collections::BTreeMap;

/// Decides about every packet that an end sends, by its content and its number (from 0, counted
/// since the script was set). `None` leaves the packet to the rules.
pub type Scripted = Box<dyn FnMut(u64, &Packet<'_>) -> Option<Verdict> + Send>;

pub const LOST: Verdict = Verdict { drop: true, ..Verdict::PASS };

pub const fn late(by: Duration) -> Verdict {
    Verdict { delay: by, ..Verdict::PASS }
}

pub const fn twice(by: Duration) -> Verdict {
    Verdict { copies: 1, copies_after: by, ..Verdict::PASS }
}

/// Returns a verdict that flips a bit of byte `at`.
pub const fn damaged(at: u16) -> Verdict {
    Verdict { corrupt: Some(Corruption { at, mask: 1 << (at % 8) }), ..Verdict::PASS }
}

#[derive(Debug)]
pub struct InTransit {
    pub net: NetHeader,
    pub bytes: Vec<u8>,
    path: LinkPath,
    /// True if the receive rules have been applied.
    rx_judged: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub sent: u64,
    pub dropped: u64,
    pub duplicated: u64,
    pub delayed: u64,
    pub corrupted: u64,
    /// Packets that the receiver dropped for a wrong ICRC.
    pub bad_icrc: u64,
    pub overflowed: u64,
    /// Packets marked by a full queue or a rule.
    pub marked: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.dropped += other.dropped;
        self.duplicated += other.duplicated;
        self.delayed += other.delayed;
        self.corrupted += other.corrupted;
        self.bad_icrc += other.bad_icrc;
        self.overflowed += other.overflowed;
        self.marked += other.marked;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub end: usize,
    pub dir: Direction,
    /// Number of the packet in that direction, from 1.
    pub nth: Counts,
    pub verdict: Verdict,
    /// Length of the headers in bytes.
    pub header_len: usize,
    /// Length of the sealed packet in bytes.
    pub len: usize,
}

#[derive(Default)]
struct EndState {
    rewinds: Rewinds,
    scripted: Option<(u64, Scripted)>,
    counts: [Counts; 2],
}

/// Numbers of packets of one end in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub all: u64,
    pub with_payload: u64,
    pub with_receive: u64,
}

impl Counts {
    fn add(&mut self, packet: &Packet<'_>) {
        self.all += 1;
        self.with_payload += u64::from(!packet.payload.is_empty());
        self.with_receive += u64::from(roxe_transport::qp::takes_receive(&packet.header.kind));
    }
}

enum Source {
    Rules(Injector),
    /// Recorded faults by end, direction and number of the packet.
    Exact(BTreeMap<(usize, u8, u64), Verdict>),
}

impl Source {
    fn judge(&mut self, seen: &PacketContext<'_>, nth: u64) -> Verdict {
        match self {
            Self::Rules(injector) => injector.judge(seen),
            Self::Exact(faults) => {
                faults.get(&(seen.ordinal as usize, seen.dir as u8, nth)).copied().unwrap_or(Verdict::PASS)
            }
        }
    }
}

pub struct Wire {
    pub topology: Topology,
    pub tally: Tally,
    /// Number of retries without progress after which faults pause, so that bad luck never uses up
    /// a bounded `retry_cnt`; `None`: never.
    pub pause_faults_after: Option<u32>,
    pub record: Option<Vec<Fault>>,
    pub pool: Pool,
    faults: Option<Source>,
    ends: Vec<EndState>,
    timeline: Timeline<InTransit>,
}

impl Wire {
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            tally: Tally::default(),
            faults: None,
            pause_faults_after: None,
            record: None,
            pool: Pool::default(),
            ends: Vec::new(),
            timeline: Timeline::default(),
        }
    }

    pub fn reserve(&mut self, packets: usize) {
        self.pool.reserve(packets);
        self.timeline.reserve(packets);
    }

    pub fn add_end(&mut self) {
        self.ends.push(EndState::default());
    }

    /// Sets the script for packets sent by `from`, and restarts their numbers.
    pub fn set_script(&mut self, from: Peer, script: Scripted) {
        self.ends[from.index()].scripted = Some((0, script));
    }

    /// Applies `rules` to every packet that no script decides about; `seed` is used if they set
    /// none.
    pub fn set_faults(&mut self, rules: &Rules, seed: u64) {
        self.faults = Some(Source::Rules(Injector::new(rules, seed)));
    }

    pub fn repeat_faults(&mut self, faults: &[Fault]) {
        let exact = faults.iter().map(|fault| ((fault.end, fault.dir as u8, fault.nth.all), fault.verdict));
        self.faults = Some(Source::Exact(exact.collect()));
    }

    pub fn clear_script(&mut self, from: Peer) {
        self.ends[from.index()].scripted = None;
    }

    /// Returns the time of the next event: a packet arrives at the end of a link, or its delay
    /// ends.
    pub fn next_event(&self) -> Option<Instant> {
        self.timeline.next()
    }

    pub fn in_flight(&self) -> usize {
        self.timeline.len()
    }

    /// Returns a packet that has arrived by `now`.
    pub fn arrived(&mut self, now: Instant) -> Option<InTransit> {
        while let Some(packet) = self.timeline.pop_due(now) {
            if let Some(packet) = self.forward(now, packet) {
                return Some(packet);
            }
        }
        None
    }

    /// Puts a packet on its next link; returns the packet if it has passed all links.
    fn forward(&mut self, now: Instant, mut packet: InTransit) -> Option<InTransit> {
        let Some(link) = packet.path.next_link() else { return Some(packet) };
        let link = self.topology.link(link);
        let marked = link.tally.marked;
        let arrival = link.carry(now, &mut packet.net, packet.bytes.len());
        self.tally.marked += link.tally.marked - marked;
        match arrival {
            Some(at) => self.timeline.push(at, packet),
            None => {
                self.tally.overflowed += 1;
                self.pool.put(packet.bytes);
            }
        }
        None
    }

    /// Sends sealed `bytes` of end `end` with number `qpn`, subject to script and rules. Returns
    /// their verdict.
    pub fn send(&mut self, now: Instant, end: usize, qpn: Qpn, net: NetHeader, bytes: Vec<u8>) -> Verdict {
        self.tally.sent += 1;
        self.ends[end].rewinds.on_packet(&bytes);
        let verdict = self.judge(now, end, qpn, Direction::Tx, &net, &bytes);
        match node_at(net.src).zip(node_at(net.dst)) {
            Some((from, to)) => {
                let path = self.topology.path(from, to);
                self.apply_verdict(now, InTransit { net, bytes, path, rx_judged: false }, verdict);
            }
            None => self.pool.put(bytes),
        }
        verdict
    }

    /// Applies the receive rules to an intact packet that arrived at `end`. Returns it if it is to
    /// be delivered now.
    pub fn receive(&mut self, now: Instant, end: usize, qpn: Qpn, packet: InTransit) -> Option<(InTransit, Verdict)> {
        if self.faults.is_none() || packet.rx_judged {
            return Some((packet, Verdict::PASS));
        }
        let verdict = self.judge(now, end, qpn, Direction::Rx, &packet.net, &packet.bytes);
        if (Verdict { rnr: false, rule: None, ..verdict }) == Verdict::PASS {
            return Some((packet, verdict));
        }
        self.apply_verdict(now, InTransit { rx_judged: true, ..packet }, verdict);
        None
    }

    fn judge(&mut self, now: Instant, end: usize, qpn: Qpn, dir: Direction, net: &NetHeader, bytes: &[u8]) -> Verdict {
        // Faults pause after too many retries of this connection without progress.
        let connection = &self.ends[end & !1..][..2];
        let is_stuck = |limit| connection.iter().any(|state| state.rewinds.is_stuck(limit));
        let paused = self.pause_faults_after.is_some_and(is_stuck);
        let state = &mut self.ends[end];
        let scripted = state.scripted.as_mut().filter(|_| dir == Direction::Tx);
        if scripted.is_none() && self.faults.is_none() {
            return Verdict::PASS;
        }
        let packet = Packet::parse(bytes).expect("parse the packet that a QP emitted");
        let counts = &mut state.counts[dir as usize];
        counts.add(&packet);
        if let Some((count, rule)) = scripted {
            let verdict = rule(*count, &packet);
            *count += 1;
            if let Some(verdict) = verdict {
                return verdict;
            }
        }
        let Some(source) = &mut self.faults else { return Verdict::PASS };
        let ordinal = u32::try_from(end).expect("few ends");
        let peer = if dir == Direction::Tx { net.dst } else { net.src };
        let at = Duration::from_nanos(now.0);
        let verdict = source.judge(&PacketContext { dir, qpn, ordinal, peer, at, packet: &packet }, counts.all);
        if verdict.is_pass() || paused {
            return Verdict::PASS;
        }
        if let Some(record) = &mut self.record {
            let header_len = bytes.len() - icrc::LEN - packet.payload.len();
            record.push(Fault { end, dir, nth: *counts, verdict, header_len, len: bytes.len() });
        }
        verdict
    }

    fn apply_verdict(&mut self, now: Instant, mut packet: InTransit, verdict: Verdict) {
        if verdict.drop {
            self.tally.dropped += 1;
            return self.pool.put(packet.bytes);
        }
        if let Some(corruption) = verdict.corrupt {
            self.tally.corrupted += 1;
            corruption.apply(&mut packet.bytes);
        }
        if verdict.mark_ce {
            self.tally.marked += 1;
            packet.net.mark();
        }
        let forge = |forged: Forged| forged.packet(&Packet::parse(&packet.bytes).ok()?);
        if let Some(mut bytes) = verdict.forged.and_then(forge) {
            icrc::seal(&packet.net, &mut bytes);
            let InTransit { net, path, rx_judged, .. } = packet;
            self.send_out(now, verdict.delay, InTransit { bytes, net, path, rx_judged });
        }
        self.tally.delayed += u64::from(!verdict.delay.is_zero());
        self.tally.duplicated += u64::from(verdict.copies);
        for _ in 0..verdict.copies {
            let (net, path, rx_judged) = (packet.net, packet.path, packet.rx_judged);
            let copy = InTransit { bytes: self.pool.copy(&packet.bytes), net, path, rx_judged };
            self.send_out(now, verdict.delay + verdict.copies_after, copy);
        }
        self.send_out(now, verdict.delay, packet);
    }

    /// Puts a packet on its first link after a delay, or delivers it if it has passed all links.
    fn send_out(&mut self, now: Instant, later: Duration, packet: InTransit) {
        if later.is_zero() && !packet.rx_judged {
            let back = self.forward(now, packet);
            debug_assert!(back.is_none(), "every path has a link");
        } else {
            self.timeline.push(now.after(later), packet);
        }
    }
}

/// Initial content of a slot, so that bytes not written by the QP are not zero by luck.
const POISON: u8 = 0xa5;

/// Capacity of a packet buffer in bytes.
const BUFFER_LEN: usize = 4096 + 64;

#[derive(Debug, Default)]
pub struct Pool(Vec<Vec<u8>>);

impl Pool {
    /// Reserves `buffers`, so that taking them does not allocate.
    pub fn reserve(&mut self, buffers: usize) {
        let missing = buffers.saturating_sub(self.0.len());
        self.0.extend((0..missing).map(|_| Vec::with_capacity(BUFFER_LEN)));
    }

    pub fn take(&mut self) -> Vec<u8> {
        let mut bytes = self.0.pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_LEN));
        bytes.clear();
        bytes
    }

    pub fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.take();
        copy.extend_from_slice(bytes);
        copy
    }

    pub fn put(&mut self, bytes: Vec<u8>) {
        self.0.push(bytes);
    }
}

#[derive(Debug, Default)]
pub struct Batch {
    packets: Vec<(Av, PacketNote, Vec<u8>)>,
    room: usize,
}

impl Batch {
    /// Opens the batch for `packets` packets with buffers from `pool`. `joins` is true if the batch
    /// joins packets; `run` is the number of packets of one size that leave together, 0 for none.
    pub fn open<'b>(&'b mut self, pool: &'b mut Pool, packets: usize, joins: bool, run: u32) -> OpenBatch<'b> {
        self.room = packets;
        self.packets.reserve(packets);
        OpenBatch { batch: self, pool, joins, joined: Joined::default(), run }
    }

    pub fn drain(&mut self) -> impl Iterator<Item = (NetHeader, PacketNote, Vec<u8>)> + '_ {
        self.packets.drain(..).map(|(av, note, mut bytes)| {
            let net = net_header(&av);
            icrc::seal(&net, &mut bytes);
            (net, note, bytes)
        })
    }

    pub fn len(&self) -> usize {
        self.packets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

pub struct OpenBatch<'b> {
    batch: &'b mut Batch,
    pool: &'b mut Pool,
    joins: bool,
    joined: Joined,
    /// Packets of one size that leave together; 0: each leaves alone.
    run: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Joined {
    len: usize,
    /// Number of joined packets.
    packets: usize,
    /// Number of packets added by the last extension.
    newest: usize,
}

impl OpenBatch<'_> {
    /// Splits the joined packets at the end of the batch into single packets.
    fn split_joined(&mut self) {
        let Joined { len, packets, .. } = core::mem::take(&mut self.joined);
        let Some((av, note, mut all)) = (if packets > 0 { self.batch.packets.pop() } else { None }) else { return };
        let rest = all.split_off(all.len() - icrc::LEN - packets * len);
        all.resize(all.len() + icrc::LEN, POISON);
        let mut header = Packet::parse(&all).expect("the packet that others are joined to does not parse").header;
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
        self.split_joined();
    }
}

impl TxBatch for OpenBatch<'_> {
    fn slot(&mut self, av: &Av, _to: Qpn, len: usize, note: &PacketNote) -> Option<TxRoom<'_>> {
        self.split_joined();
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
        let more = room.min(count as usize).min(BUFFER_LEN.saturating_sub(bytes.len()) / len);
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
        let (av, note, mut bytes) = self.batch.packets.pop().expect("retract a taken slot");
        let Joined { len, packets, newest } = self.joined;
        if newest == 0 {
            return self.pool.put(bytes);
        }
        bytes.truncate(bytes.len() - newest * len);
        self.joined = Joined { len, packets: packets - newest, newest: 0 };
        self.batch.packets.push((av, note, bytes));
    }
}

/// Returns the network header of a packet sent along `av`.
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

/// Rewinds of one requester, observed in its packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rewinds {
    /// PSN of the last packet.
    last: Option<Psn>,
    /// Newest PSN sent.
    high: Psn,
    /// PSN at which the last rewind began.
    start: Psn,
    /// Number of successive rewinds of which none began at a later PSN than the one before.
    count: u32,
    /// PSN at which the pause of faults ends.
    calm_until: Psn,
}

impl Rewinds {
    /// Number of new packets after a rewind until faults may resume.
    const FRESH: u32 = 32;

    /// Records a packet. Responses (RC opcodes 0x0d..=0x12) and CNPs (0x81) are ignored.
    pub(crate) fn on_packet(&mut self, bytes: &[u8]) {
        let psn = match *bytes {
            [0x0d..=0x12 | 0x81, ..] => return,
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

    /// Returns true if faults must pause: the requester is stuck and has not sent enough new
    /// packets since.
    pub(crate) fn is_stuck(&self, limit: u32) -> bool {
        self.count >= limit && !self.high.is_after(self.calm_until)
    }
}
