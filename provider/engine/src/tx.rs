//! Sending packets: one staging buffer per thread, filled by the transport, then sealed and sent in
//! runs.
//!
//! One system call sends a run: packets of one size (the last may be shorter) to one process,
//! within the bounds of segmented UDP sends. The payload is copied, not gathered from application
//! memory, so that the ICRC stays right if the program changes its memory meanwhile. Where the
//! processor allows, the copy also sums the payload, and sealing adds only the headers.

mod intercepted;
mod tx_path;

pub use tx_path::{TxCache, TxPath};

use crate::engine::Engine;
use crate::run::is_ack;
use roxe_memory::crc::Folding;
use roxe_memory::guard::Sum;
use roxe_net::link::{MAX_BYTES, MAX_SEGMENTS, SendError, Taken};
use roxe_net::raw::FrameSender;
use roxe_net::slot::Slot;
use roxe_net::udp::UdpLink;
use roxe_observe::counters::Counters;
use roxe_transport::cx::PacketNote;
use roxe_transport::wr::Av;
use roxe_wire::icrc::{self, Sealer, Summed};
use roxe_wire::{Gid, NetHeader, Qpn, ROCE_PORT};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// Size of a batch in bytes: a run that begins in the first half is never cut short by its end.
/// More would not fit the second level cache together with the program's data.
const BATCH_LEN: usize = 2 * MAX_BYTES;
const MAX_PACKETS: usize = 2 * MAX_SEGMENTS;
/// Maximum number of bytes moved to put an acknowledgement after them; moving more costs as much as
/// a system call.
const MAX_ROTATED: usize = 8 << 10;

/// A payload summed while it was copied into a packet.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// Destination address of the copy.
    pub to: usize,
    /// Sum of the first bytes.
    pub sum: Sum,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    /// Length in bytes with the ICRC.
    len: usize,
    /// Index of the address vector in the batch.
    av: usize,
    /// Owner of the destination QPN: a run is steered as a whole by its first packet.
    owner: Slot,
    /// Origin, for the interceptor.
    note: PacketNote,
    summed: Option<Summed>,
}

/// The staged packets of one visit to a queue pair.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    used: usize,
    packets: Vec<Entry>,
    avs: Vec<Av>,
    /// Index of the first packet of the newest run.
    newest: usize,
    /// List lent by [`Batch::lend_copied`].
    copied: Vec<Copied>,
    /// Sealer for the addresses of the last run.
    sealer: Sealer,
}

thread_local! {
    /// The unused batch of this thread.
    static SPARE: Cell<Option<Box<Batch>>> = const { Cell::new(None) };
}

impl Batch {
    /// Takes the empty batch of this thread.
    pub fn take() -> Box<Self> {
        // A thread that is exiting has no spare batch any more.
        SPARE.try_with(Cell::take).ok().flatten().unwrap_or_else(|| Box::new(Self::new()))
    }

    /// Returns the batch for the next use on this thread.
    pub fn put_back(mut self: Box<Self>) {
        self.clear();
        let _ = SPARE.try_with(|spare| spare.set(Some(self)));
    }

    fn new() -> Self {
        Self {
            bytes: vec![0; BATCH_LEN],
            used: 0,
            packets: Vec::with_capacity(MAX_PACKETS),
            avs: Vec::with_capacity(MAX_PACKETS),
            newest: 0,
            copied: Vec::with_capacity(MAX_PACKETS),
            sealer: Sealer::default(),
        }
    }

    fn clear(&mut self) {
        (self.used, self.newest) = (0, 0);
        self.packets.clear();
        self.avs.clear();
    }

    /// Lends an empty list for [`Batch::note_copied`].
    pub fn lend_copied(&mut self) -> Vec<Copied> {
        std::mem::take(&mut self.copied)
    }

    /// Records the payloads summed during the copy, in packet order.
    pub fn note_copied(&mut self, mut copied: Vec<Copied>) {
        if copied.is_empty() {
            self.copied = copied;
            return;
        }
        let base = self.bytes.as_ptr().addr();
        let mut entries = self.packets.iter_mut().peekable();
        for Copied { to, sum } in copied.drain(..) {
            let at = to.wrapping_sub(base);
            while entries.next_if(|entry| entry.start + entry.len <= at).is_some() {}
            if let Some(entry) = entries.peek_mut().filter(|entry| entry.start <= at) {
                let Sum { blocks, remainder } = sum;
                entry.summed = Some(Summed { start: at - entry.start, blocks, remainder });
            }
        }
        self.copied = copied;
    }

    /// Returns true if a packet of `len` bytes to the newest packet's destination continues its
    /// run.
    fn continues_run(&self, len: usize) -> bool {
        let (Some(first), Some(last)) = (self.packets.get(self.newest), self.packets.last()) else { return false };
        first.av == last.av && last.len == first.len && len <= first.len
    }

    /// Returns true if the newest run has room for `count` more packets of `len` bytes.
    fn run_has_room(&self, len: usize, count: usize) -> bool {
        let start = self.packets.get(self.newest).map_or(self.used, |first| first.start);
        self.packets.len() - self.newest + count <= MAX_SEGMENTS && self.used + count * len - start <= MAX_BYTES
    }

    /// Returns room for a packet of `len` bytes (or a frame) to `to` along `av`; `None` if the
    /// batch is full.
    pub fn room(&mut self, av: &Av, to: Qpn, len: usize, note: &PacketNote) -> Option<&mut [u8]> {
        let (start, total) = (self.used, len + icrc::LEN);
        let same_path = self.avs.last() == Some(av);
        let continues = same_path && self.continues_run(total);
        let fits = if continues { self.run_has_room(total, 1) } else { self.has_room() && total <= MAX_BYTES };
        if !fits {
            return None;
        }
        if !continues {
            self.newest = self.packets.len();
        }
        if !same_path {
            self.avs.push(*av);
        }
        let (av, owner) = (self.avs.len() - 1, Slot::of(to));
        self.packets.push(Entry { start, len: total, av, owner, note: *note, summed: None });
        self.used += total;
        self.bytes.get_mut(start..start + len)
    }

    /// Returns true if `count` more packets of `len` bytes leave in the newest run's system call.
    fn fits_same_send(&self, len: usize, count: usize) -> bool {
        let total = len + icrc::LEN;
        // A shorter packet ends the run.
        let may_follow = count == 1 || self.packets.last().is_some_and(|last| last.len == total);
        may_follow && self.continues_run(total) && self.run_has_room(total, count)
    }

    fn retract(&mut self) {
        if let Some(entry) = self.packets.pop() {
            self.used = entry.start;
        }
    }

    /// Returns true if there is room for a whole run.
    fn has_room(&self) -> bool {
        self.used + MAX_BYTES <= BATCH_LEN && self.packets.len() + MAX_SEGMENTS <= MAX_PACKETS
    }

    /// Seals and sends all packets in order. `ordinal` identifies the queue pair to fault rules;
    /// `cached` is its last link. Packets that cannot be sent are lost and counted.
    pub fn flush(&mut self, engine: &Engine, ordinal: u32, cached: &mut Option<Arc<UdpLink>>) {
        if let Some(interceptor) = engine.interceptor() {
            self.flush_intercepted(engine, interceptor, ordinal, cached);
            return self.clear();
        }
        let mut at = 0;
        while let Some(av) = self.av(at) {
            // clause: PATH-SOURCE
            at = match find_link(engine, av.sgid, cached) {
                Some(link) => {
                    let net = header(engine, link, &av);
                    if net.src_port != ROCE_PORT {
                        self.put_ack_last(at);
                    }
                    self.send_from(at, link, &net, engine.counters())
                }
                None => at + 1,
            };
        }
        self.clear();
    }

    /// Sends all staged packets as frames in order. Frames that cannot be sent are lost and
    /// counted.
    pub fn flush_frames(&mut self, link: &FrameSender, counters: &Counters) {
        let mut at = 0;
        while let Some(rest) = self.packets.get(at..).filter(|rest| !rest.is_empty()) {
            // Each staged packet has room for an ICRC, which frames do not use.
            let mut frames =
                rest.iter().filter_map(|entry| self.bytes.get(entry.start..entry.start + entry.len - icrc::LEN));
            match if link.queue().is_empty() { link.send(frames.clone()) } else { Ok(0) } {
                Ok(count @ 1..) => {
                    counters.sent_frames.add(count as u64);
                    at += count;
                    continue;
                }
                Ok(0) | Err(SendError::Full) => match link.send_later(frames.next().unwrap_or_default()) {
                    Ok(Taken::Queued) => {}
                    Ok(Taken::Sent) => counters.sent_frames.add(1),
                    Err(SendError::QueueFull) => counters.tx_queue_full.add(1),
                    Err(_) => counters.send_errors.add(1),
                },
                Err(_) => counters.send_errors.add(1),
            }
            at += 1;
        }
        self.clear();
    }

    fn av(&self, at: usize) -> Option<Av> {
        let entry = self.packets.get(at)?;
        self.avs.get(entry.av).copied()
    }

    /// Sends the run that starts at packet `at`; returns the start of the next.
    fn send_from(&mut self, at: usize, link: &UdpLink, net: &NetHeader, counters: &Counters) -> usize {
        let run = self.run_from(at, link.max_segments(net.dst));
        self.seal(run.clone(), net);
        if self.send_run(run.clone(), link, net, counters) {
            return run.end;
        }
        // The link sends single packets from now on.
        at
    }

    /// Moves an acknowledgement at `at` after the following longer packets of one size, so that all
    /// leave in one system call: only the last packet of a run may be shorter. The receiver, roxe
    /// on this host, processes it first ([`Run::packets`]).
    ///
    /// [`Run::packets`]: crate::run::Run::packets
    fn put_ack_last(&mut self, at: usize) {
        let Some([ack, first, ..]) = self.packets.get(at..) else { return };
        let (ack_start, ack_len, len) = (ack.start, ack.len, first.len);
        let is_alike = |entry: &Entry| entry.len == len && entry.av == ack.av && entry.owner == ack.owner;
        let alike = self.packets.iter().skip(at + 1).take_while(|entry| is_alike(entry)).take(MAX_SEGMENTS - 1);
        let count = alike.count().min(MAX_ROTATED / len.max(1));
        if count == 0 || len <= ack_len || !is_ack(self.bytes_of(at..at + 1)) {
            return;
        }
        let end = ack_start + ack_len + count * len;
        if let (Some(bytes), Some(entries)) =
            (self.bytes.get_mut(ack_start..end), self.packets.get_mut(at..=at + count))
        {
            bytes.rotate_left(ack_len);
            entries.rotate_left(1);
            let mut start = ack_start;
            for entry in entries {
                entry.start = start;
                start += entry.len;
            }
        }
    }

    /// Returns the longest run that starts at packet `at`.
    fn run_from(&self, at: usize, max: usize) -> Range<usize> {
        let Some(first) = self.packets.get(at) else { return at..at };
        let mut end = at + 1;
        while end - at < max
            && let Some(next) = self.packets.get(end)
            && next.av == first.av
            && next.len <= first.len
            && next.start + next.len - first.start <= MAX_BYTES
            && next.owner == first.owner
        {
            end += 1;
            if next.len < first.len {
                break;
            }
        }
        at..end
    }

    fn seal(&mut self, run: Range<usize>, net: &NetHeader) {
        self.sealer.retarget(net);
        // The kernel counts IPv4 identifications from 0 in each run.
        for (ident, entry) in self.packets.get(run).unwrap_or_default().iter().enumerate() {
            if let Some(packet) = self.bytes.get_mut(entry.start..entry.start + entry.len) {
                self.sealer.seal::<Folding>(ident as u16, packet, entry.summed.as_ref());
            }
        }
    }

    /// Sends a sealed run. Returns false if the link refused segmentation.
    #[inline]
    fn send_run(&self, run: Range<usize>, link: &UdpLink, net: &NetHeader, counters: &Counters) -> bool {
        let Some(first) = self.packets.get(run.start) else { return true };
        send(link, net, self.bytes_of(run.clone()), first.len, run.len(), counters)
    }

    fn bytes_of(&self, run: Range<usize>) -> &[u8] {
        let packets = self.packets.get(run).unwrap_or_default();
        let (Some(first), Some(last)) = (packets.first(), packets.last()) else { return &[] };
        self.bytes.get(first.start..last.start + last.len).unwrap_or_default()
    }
}

/// Sends a run of `count` packets. Returns false if the link refused segmentation.
fn send(link: &UdpLink, to: &NetHeader, bytes: &[u8], segment: usize, count: usize, counters: &Counters) -> bool {
    link.set_hot();
    match link.send(to, bytes, segment) {
        Ok(Taken::Sent) => counters.count_sent(count as u64, bytes.len() as u64),
        Ok(Taken::Queued) => {}
        Err(SendError::QueueFull | SendError::Full) => counters.tx_queue_full.add(count as u64),
        Err(SendError::Lost) => counters.send_errors.add(count as u64),
        Err(SendError::NoSegments) => {
            counters.segments_refused.add(1);
            return false;
        }
    }
    true
}

/// Returns the link of a local address, kept in `cached`. If the engine has none, counts a send
/// error.
fn find_link<'c>(engine: &Engine, sgid: Gid, cached: &'c mut Option<Arc<UdpLink>>) -> Option<&'c Arc<UdpLink>> {
    if cached.as_ref().is_none_or(|link| link.gid() != sgid) {
        *cached = engine.link(sgid);
    }
    if cached.is_none() {
        engine.counters().send_errors.add(1);
    }
    cached.as_ref()
}

fn header(engine: &Engine, link: &UdpLink, av: &Av) -> NetHeader {
    NetHeader {
        src: link.gid(),
        dst: av.dgid,
        src_port: if engine.links.reaches_this_host(av.dgid) { link.local_port() } else { ROCE_PORT },
        traffic_class: av.traffic_class,
        hop_limit: av.hop_limit,
        ..NetHeader::default()
    }
}

/// Returns the destination QPN of a packet: bytes 5 to 7 of the BTH.
#[inline]
pub(crate) fn peek_qpn(packet: &[u8]) -> Option<Qpn> {
    let word = packet.get(4..8)?.first_chunk()?;
    Some(Qpn::new(u32::from_be_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Run;
    use roxe_transport::cx::TxReason;
    use std::net::Ipv4Addr;

    const QPN: Qpn = Qpn::new(7);
    const NOTE: PacketNote = PacketNote::without_wr(QPN, TxReason::ReadResponse);

    fn av(last: u8) -> Av {
        Av { dgid: Ipv4Addr::new(127, 79, 0, last).into(), ..Av::default() }
    }

    fn push(batch: &mut Batch, av: &Av, qpn: u32, len: usize) {
        batch.room(av, Qpn::new(qpn), len, &NOTE).unwrap().fill(0);
    }

    fn runs(batch: &Batch, max: usize) -> Vec<Range<usize>> {
        let mut at = 0;
        std::iter::from_fn(|| {
            let run = batch.run_from(at, max);
            at = run.end;
            (!run.is_empty()).then_some(run)
        })
        .collect()
    }

    #[test]
    fn run_ends_at_size_owner_or_path_change() {
        let mut batch = Batch::new();
        for len in [116, 100, 100, 60, 60] {
            push(&mut batch, &av(1), 0x1000, len);
        }
        assert_eq!(runs(&batch, 64), [0..2, 2..4, 4..5]);
        assert_eq!(runs(&batch, 1), [0..1, 1..2, 2..3, 3..4, 4..5]);
        batch.clear();
        push(&mut batch, &av(1), 0x1000, 100);
        push(&mut batch, &av(1), 0x1fff, 100);
        push(&mut batch, &av(1), 0x2000, 100);
        push(&mut batch, &av(2), 0x2000, 100);
        assert_eq!(runs(&batch, 64), [0..2, 2..3, 3..4]);
    }

    #[test]
    fn batch_is_full_without_room_for_a_run() {
        let mut batch = Batch::new();
        let fill =
            |len, batch: &mut Batch| (0..1000).take_while(|_| batch.room(&av(1), QPN, len, &NOTE).is_some()).count();
        assert_eq!(fill(4108, &mut batch), 15);
        batch.clear();
        push(&mut batch, &av(1), 0x1000, 4124);
        assert_eq!(fill(4108, &mut batch), 1 + 15);
        batch.clear();
        assert_eq!(fill(16, &mut batch), MAX_SEGMENTS);
        batch.clear();
        for at in 0..2 {
            push(&mut batch, &av(at), 0x1000, MAX_BYTES - icrc::LEN);
        }
        assert!(batch.room(&av(2), QPN, 1, &NOTE).is_none());
    }

    #[test]
    fn run_is_at_most_one_send() {
        let mut batch = Batch::new();
        push(&mut batch, &av(1), 0x1000, 4124);
        (1..17).for_each(|_| push(&mut batch, &av(1), 0x1000, 4108));
        assert_eq!(runs(&batch, 64), [0..2, 2..17]);
        batch.clear();
        (0..10).for_each(|_| push(&mut batch, &av(1), 0x1000, 4108));
        // A packet after a retracted start of a run begins a new run.
        push(&mut batch, &av(1), 0x1000, 5000);
        batch.retract();
        (10..20).for_each(|_| push(&mut batch, &av(1), 0x1000, 4108));
        assert_eq!(runs(&batch, 64), [0..15, 15..20]);
    }

    #[test]
    fn fits_same_send_counts_rest_of_run() {
        let left = |batch: &Batch, len| (1..).take_while(|&count| batch.fits_same_send(len, count)).count();
        let mut batch = Batch::new();
        assert_eq!(left(&batch, 100), 0);
        push(&mut batch, &av(1), 0x1000, 4124);
        assert_eq!((left(&batch, 4124), left(&batch, 4108), left(&batch, 4128)), (14, 1, 0));
        push(&mut batch, &av(1), 0x1000, 4108);
        assert_eq!((left(&batch, 4108), left(&batch, 4124)), (0, 0), "a shorter packet has ended the run");
        for more in (0..15).rev() {
            push(&mut batch, &av(1), 0x1000, 4108);
            assert_eq!((left(&batch, 4108), left(&batch, 16)), (more, 1), "{more}");
        }
        assert_eq!(runs(&batch, 64), [0..2, 2..17]);
        batch.clear();
        (0..MAX_SEGMENTS).for_each(|_| push(&mut batch, &av(1), 0x1000, 16));
        assert_eq!(left(&batch, 16), 0);
    }

    #[test]
    fn retracted_packet_leaves_no_trace() {
        let mut batch = Batch::new();
        push(&mut batch, &av(1), 0x1000, 100);
        push(&mut batch, &av(1), 0x1000, 200);
        batch.retract();
        push(&mut batch, &av(1), 0x1000, 100);
        assert_eq!(runs(&batch, 1), [0..1, 1..2]);
        assert_eq!(batch.used, 208);
    }

    #[test]
    fn link_without_segments_sends_single_packets_with_ident_0() {
        let open = |last| UdpLink::open(av(last).dgid, 1, true, false).unwrap();
        let (from, to) = (open(3), open(4));
        let no_segments = [[0; 400]];
        let refused =
            from.send(&NetHeader { dst: to.gid(), src_port: ROCE_PORT, ..NetHeader::default() }, &no_segments[0], 1);
        assert!(matches!(refused, Err(SendError::NoSegments)));
        let mut batch = Batch::new();
        let to_av = av(4);
        (0..3).for_each(|_| push(&mut batch, &to_av, 0x1000, 100));
        let net = NetHeader { src: from.gid(), dst: to.gid(), src_port: ROCE_PORT, ..NetHeader::default() };
        let mut at = 0;
        while at < batch.packets.len() {
            at = batch.send_from(at, &from, &net, &Counters::default());
        }
        let mut buf = vec![0; 65_536];
        for _ in 0..3 {
            let meta = to.recv(&mut buf).unwrap().unwrap();
            assert!(icrc::verify(&net, &buf[..meta.len]));
        }
    }

    #[test]
    fn refused_segmentation_falls_back_to_single_packets() {
        let open = |last| UdpLink::open(av(last).dgid, 1, true, false).unwrap();
        let (from, to, counters) = (open(8), open(9), Counters::default());
        let mut batch = Batch::new();
        let to_av = av(9);
        (0..3).for_each(|_| push(&mut batch, &to_av, 0x1000, 100));
        from.forbid_segments();
        let net = NetHeader { src: from.gid(), dst: to.gid(), src_port: ROCE_PORT, ..NetHeader::default() };
        let mut at = 0;
        while at < batch.packets.len() {
            at = batch.send_from(at, &from, &net, &counters);
        }
        assert_eq!([&counters.segments_refused, &counters.send_errors].map(|counter| counter.get()), [1, 0]);
        let mut buf = vec![0; 65_536];
        for _ in 0..3 {
            let meta = to.recv(&mut buf).unwrap().unwrap();
            assert!(meta.len == 104 && icrc::verify(&net, &buf[..meta.len]));
        }
    }

    #[test]
    fn ack_before_requests_leaves_in_one_run() {
        let open = |last| UdpLink::open(av(last).dgid, 1, true, true).unwrap();
        let (from, to) = (open(10), open(11));
        let mut batch = Batch::new();
        let to_av = av(11);
        batch.room(&to_av, QPN, 16, &NOTE).unwrap().copy_from_slice(&[0x11; 16]);
        (1..=3).for_each(|n| batch.room(&to_av, QPN, 100, &NOTE).unwrap().fill(n));
        let net = NetHeader { src: from.gid(), dst: to.gid(), src_port: ROCE_PORT, ..NetHeader::default() };
        batch.put_ack_last(0);
        assert_eq!(batch.send_from(0, &from, &net, &Counters::default()), 4);
        let mut buf = vec![0; 65_536];
        let meta = to.recv(&mut buf).unwrap().unwrap();
        let run = Run { meta: &meta, bytes: &buf[..meta.len], index: 0 };
        let order: Vec<_> = run.packets().map(|(index, packet)| (index, packet[0], packet.len())).collect();
        assert_eq!(order, [(3, 0x11, 20), (0, 1, 104), (1, 2, 104), (2, 3, 104)]);
        for (ident, packet) in run.packets() {
            assert!(icrc::verify(&NetHeader { ident, ..net }, packet), "{ident}");
        }
    }

    #[test]
    fn ack_that_does_not_fit_the_run_stays_first() {
        let to_av = av(12);
        // A shorter request, one for another process, and data that is not an acknowledgement.
        for (first, len, qpn) in [(0x11, 12, QPN), (0x11, 100, Qpn::new(0x5000)), (0x04, 100, QPN)] {
            let mut batch = Batch::new();
            batch.room(&to_av, QPN, 16, &NOTE).unwrap().fill(first);
            batch.room(&to_av, qpn, len, &NOTE).unwrap().fill(9);
            batch.put_ack_last(0);
            assert_eq!(batch.bytes_of(0..1), [&[first; 16][..], &[0; 4]].concat());
        }
    }

    #[test]
    fn segmented_run_counts_identifications() {
        let open = |last, gro| UdpLink::open(av(last).dgid, 1, true, gro).unwrap();
        let (from, to) = (open(5, true), open(6, true));
        let mut batch = Batch::new();
        let to_av = av(6);
        (0..4).for_each(|_| push(&mut batch, &to_av, 0x1000, 100));
        let net = NetHeader { src: from.gid(), dst: to.gid(), src_port: ROCE_PORT, ..NetHeader::default() };
        let mut at = 0;
        while at < batch.packets.len() {
            at = batch.send_from(at, &from, &net, &Counters::default());
        }
        let mut buf = vec![0; 65_536];
        let meta = to.recv(&mut buf).unwrap().unwrap();
        assert_eq!((meta.len, meta.segment), (416, 104));
        for (ident, packet) in (0..).zip(buf[..416].chunks(104)) {
            assert!(icrc::verify(&NetHeader { ident, ..net }, packet), "{ident}");
        }
    }
}
