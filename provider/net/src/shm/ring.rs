//! A ring of packets from one process to another: the writer's half and the reader's half.
//!
//! The data is a sequence of *records*: a mark, addresses if they are not those of the record before, then the packets of one
//! run, as a link would move it, each with room for an ICRC. A record starts on a cache line, and its packets so that the
//! payload of the first one, and of others of the usual sizes, ends on a multiple of 16: copies into and out of a ring that
//! is not aligned run at 7 GB/s, others at 12. The writer builds packets where the reader will find them, takes the mark of
//! the next record away, and publishes the record by its own mark, which says how long it is. So the reader finds out that
//! something has come from the line where it stands: a small packet is one line that moves between the processors, which
//! takes 0.03 us where they share a cache and 0.15 where not. `Head` counts bytes and only grows: the reader gives room back
//! by moving it.
//!
//! Either side may be broken and change any byte at any time. What is read out of shared memory is read once and checked: a
//! writer that is broken ([`Broken`]) is not read from any more. What is written there ([`TxRoom`]) is never looked at again:
//! a reader that is broken spoils what it will read.
//!
//! Sleeping: the reader sets `Asleep`, then looks for a mark again; the writer sets the mark, then looks at `Asleep`.
//! `Waits` is the same with the roles changed. Both are in [`marks`].

use super::marks;
use super::memory::{SharedMemory, Word};
use crate::link::{ROCE_PORT, RxMeta};
use roxe_memory::guard::SharedBytes;
use roxe_transport::cx::TxRoom;
use roxe_wire::{Gid, icrc};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of data of a ring: twice the second level cache. While the ring is full, its lines have left the writer's cache for
/// the one that both share before they are read, from where they come three times as fast: a bare ring with two copies moves
/// 9 GB/s with 512 KiB, 29 with 1 MiB and 34 with 2 MiB.
pub const SIZE: usize = 2 << 20;
/// The same of a process that has many of them.
pub const SMALL: usize = 256 << 10;
/// Most bytes of packets in a record. The reader works on one while the writer fills the next.
pub const MAX_RUN: usize = 32 << 10;
/// Bytes of a mark.
const MARK: usize = 8;
/// Bytes of addresses: from, then to.
const ADDRESSES: usize = 32;
/// Where the packets of a record begin at most.
const START: usize = MARK + ADDRESSES + ALIGN;
/// What payloads are aligned to.
const ALIGN: usize = 16;
/// Records start on a multiple of this.
const LINE: u64 = 64;
/// Records of at most this many bytes are built beside the ring: while the reader looks for the mark, each locked operation
/// between two stores to its line would wait until the line has come back.
const STAGED: usize = 256;

/// Where a run goes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heading {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit, as it would leave.
    pub hop_limit: u8,
    /// Whether the ICRCs are filled in.
    pub sealed: bool,
}

/// The record that is being built.
#[derive(Debug)]
struct Open {
    heading: Heading,
    /// Whether its addresses are those of the record before.
    goes_on: bool,
    /// Bytes of the first packet.
    segment: usize,
    /// Bytes of all.
    len: usize,
    /// Bytes of the newest, or by which it was extended last.
    last: usize,
    /// Packets that share the first header, and how many of them the last extension brought.
    joined: u8,
    newest: u8,
}

impl Open {
    /// Whether a packet of `len` bytes can be the next one: all but the last one have one size.
    fn takes(&self, heading: &Heading, len: usize) -> bool {
        self.joined == 1
            && self.last == self.segment
            && len <= self.segment
            && self.len + len <= MAX_RUN
            && self.heading == *heading
    }
}

/// Bytes that must be free for a record with `len` bytes of packets, at most: the mark of the next one is taken away.
pub fn record_len(len: usize) -> u64 {
    ((START + len) as u64).next_multiple_of(LINE) + LINE
}

/// Where in a record the packets begin whose first one has `segment` bytes.
const fn start(goes_on: bool, segment: usize) -> usize {
    let before = if goes_on { MARK } else { MARK + ADDRESSES };
    before + icrc::LEN.wrapping_sub(segment).wrapping_sub(before) % ALIGN
}

/// What the mark of a record says. No mark: 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    /// Bytes of the packets, and of the first one.
    len: usize,
    segment: usize,
    /// Packets that share the first header.
    joined: u8,
    traffic_class: u8,
    hop_limit: u8,
    sealed: bool,
    goes_on: bool,
}

impl Mark {
    fn to_word(self) -> u64 {
        let flags = u8::from(self.sealed) | u8::from(self.goes_on) << 1;
        let [len, segment] = [self.len as u16, self.segment as u16].map(u16::to_ne_bytes);
        u64::from_ne_bytes([
            len[0],
            len[1],
            segment[0],
            segment[1],
            self.traffic_class,
            self.hop_limit,
            flags,
            self.joined,
        ])
    }

    fn parse(word: u64) -> Option<Self> {
        let [l0, l1, s0, s1, traffic_class, hop_limit, flags, joined] = word.to_ne_bytes();
        let [len, segment] = [[l0, l1], [s0, s1]].map(|bytes| usize::from(u16::from_ne_bytes(bytes)));
        let is_run = (1..=MAX_RUN).contains(&len) && (1..=len).contains(&segment);
        let is_sane = is_run && (joined == 1 || joined > 1 && len == segment);
        is_sane.then_some(Self {
            len,
            segment,
            joined,
            traffic_class,
            hop_limit,
            sealed: flags & 1 != 0,
            goes_on: flags & 2 != 0,
        })
    }

    /// Where the packets begin in the record.
    fn start(&self) -> usize {
        start(self.goes_on, self.segment)
    }

    /// Bytes from the record to the next one.
    fn extent(&self) -> u64 {
        ((self.start() + self.len) as u64).next_multiple_of(LINE)
    }
}

const _: () = assert!(MAX_RUN <= u16::MAX as usize);

/// What is built beside the ring of a record that goes on up to `end`, in whole lines, with no mark yet. `None`: it is not
/// built there.
#[inline]
fn staged_lines(staged: &[u8; STAGED], end: usize) -> Option<&[[u8; MARK]]> {
    staged.as_chunks().0.get(..end.next_multiple_of(LINE as usize) / MARK)
}

/// The half that writes.
#[derive(Debug)]
pub struct Writer {
    memory: SharedMemory,
    /// Where the record that is being built starts, or the next one will.
    tail: u64,
    /// The head as it was last seen.
    head: u64,
    open: Option<Open>,
    /// From where to where the last record went.
    addresses: Option<(Gid, Gid)>,
    /// The lines behind the tail and before this begin with no mark.
    cleared: u64,
    /// The record that is being built, if it is small.
    staged: Box<[u8; STAGED]>,
}

impl Writer {
    /// A new ring with `size` bytes of data, and the file for the reader.
    pub fn create(size: usize) -> io::Result<(Self, OwnedFd)> {
        let (memory, fd) = SharedMemory::create(size)?;
        let staged = Box::new([0; STAGED]);
        Ok((Self { memory, tail: 0, head: 0, open: None, addresses: None, cleared: 0, staged }, fd))
    }

    /// Whether there is room for a packet of `len` bytes with its ICRC.
    #[inline]
    pub fn takes(&mut self, heading: &Heading, len: usize) -> bool {
        if self.open.as_ref().is_some_and(|open| !open.takes(heading, len)) {
            self.publish();
        }
        let before = self.open.as_ref().map_or(0, |open| open.len);
        self.has_room(record_len(before + len))
    }

    /// That room; `None`: the ring is full.
    pub fn slot(&mut self, heading: &Heading, len: usize) -> Option<TxRoom<'_>> {
        if self.takes(heading, len) { self.place(heading, len) } else { None }
    }

    /// The same for who has just asked whether it is there: a second look cost 45 instructions of each packet.
    // A call would hand the room over in memory.
    #[inline(always)]
    pub fn place(&mut self, heading: &Heading, len: usize) -> Option<TxRoom<'_>> {
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(Open {
                heading: *heading,
                goes_on: self.addresses == Some((heading.src, heading.dst)),
                segment: len,
                len: 0,
                last: len,
                joined: 1,
                newest: 0,
            }),
        };
        let before = open.len;
        (open.len, open.last) = (before + len, len);
        let at = start(open.goes_on, open.segment) + before;
        if at + len <= STAGED {
            return self.staged.get_mut(at..at + len).map(TxRoom::Own);
        }
        if before > 0 {
            self.unstage(at);
        }
        self.cleared = self.tail;
        self.memory.room(self.tail + at as u64, len)
    }

    /// From `at` on nothing more of the record is built beside the ring; what was goes there.
    #[inline(never)]
    fn unstage(&mut self, at: usize) {
        if let Some(staged) = staged_lines(&self.staged, at) {
            self.memory.put(self.tail, staged);
        }
    }

    /// Room for the payloads of up to `count` packets more, of `len` bytes each, behind that of a packet that is a record of
    /// its own: they share its header. `None`: there is no such packet, or not even room for one.
    #[inline]
    pub fn extend(&mut self, len: usize, count: u32) -> Option<TxRoom<'_>> {
        let open = self.open.as_ref()?;
        let is_alone = open.len == open.segment && len.is_multiple_of(ALIGN) && open.len > STAGED;
        if !is_alone {
            return None;
        }
        let (before, most) = (open.len, u32::from(u8::MAX - open.joined).min(count) as usize);
        let wanted = most.min(MAX_RUN.saturating_sub(before) / len);
        let free = self.free(record_len(before + wanted * len)).saturating_sub(record_len(before));
        let count = wanted.min(free as usize / len);
        let open = self.open.as_mut().filter(|_| count > 0)?;
        let len = count * len;
        // Their ICRC comes behind all of them.
        let at = start(open.goes_on, open.segment) + before - icrc::LEN;
        (open.len, open.segment, open.last) = (before + len, before + len, len);
        (open.joined, open.newest) = (open.joined + count as u8, count as u8);
        self.memory.room(self.tail + at as u64, len)
    }

    /// Takes the last slot back, or what it was extended by.
    pub fn retract(&mut self) {
        let Some(open) = &mut self.open else { return };
        open.len -= open.last;
        if open.joined > 1 {
            (open.segment, open.joined) = (open.len, open.joined - open.newest);
        }
        open.last = open.segment;
        self.open.take_if(|open| open.len == 0);
    }

    /// Hands the record that is being built to the reader.
    pub fn publish(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Open {
            heading: Heading { src, dst, traffic_class, hop_limit, sealed }, goes_on, segment, len, joined, ..
        } = open;
        let mark = Mark { len, segment, joined, traffic_class, hop_limit, sealed, goes_on };
        let end = mark.start() + len;
        if !goes_on {
            self.staged[MARK..MARK + ADDRESSES].copy_from_slice([src.0, dst.0].as_flattened());
            self.addresses = Some((src, dst));
        }
        let next = self.tail + mark.extent();
        if next >= self.cleared {
            self.memory.mark(next).store(0, Ordering::Relaxed);
            self.cleared = next + LINE;
        }
        match staged_lines(&self.staged, end) {
            Some(staged) => self.memory.put(self.tail, staged),
            None if goes_on => {}
            // What was not built beside the ring lacks the addresses.
            None => self.memory.put(self.tail + MARK as u64, [src.0, dst.0].as_flattened().as_chunks().0),
        }
        self.memory.mark(self.tail).store(mark.to_word(), Ordering::Release);
        self.tail = next;
        self.clear_ahead();
    }

    /// Has the lines of the next small record here, without a mark, before it is built.
    fn clear_ahead(&mut self) {
        let end = (self.tail + LINE + STAGED as u64).min(self.head.saturating_add(self.memory.size()));
        while self.cleared < end {
            self.memory.mark(self.cleared).store(0, Ordering::Relaxed);
            self.cleared += LINE;
        }
    }

    /// Whether the reader sleeps, and has to be woken: asked after something was published; it is told once.
    pub fn must_wake(&self) -> bool {
        marks::must_wake(self.memory.word(Word::Asleep))
    }

    /// Whether `bytes` more can be written.
    pub fn has_room(&mut self, bytes: u64) -> bool {
        self.free(bytes) >= bytes
    }

    /// How many bytes can be written, or at least `wanted`. A head that makes no sense leaves none.
    fn free(&mut self, wanted: u64) -> u64 {
        let (tail, size) = (self.tail, self.memory.size());
        let free = |head: u64| size.saturating_sub(tail.wrapping_sub(head));
        if free(self.head) < wanted {
            self.head = self.memory.word(Word::Head).load(Ordering::Acquire);
        }
        free(self.head)
    }

    /// How many bytes the reader has ever read: it stands still while this does not change.
    pub fn read_so_far(&mut self) -> u64 {
        self.head = self.memory.word(Word::Head).load(Ordering::Acquire);
        self.head
    }

    /// Whether half of the ring is free. If not, the reader will say when it is, which costs it a system call.
    pub fn is_half_free_or_waits(&mut self) -> bool {
        if self.is_half_free() {
            return true;
        }
        let half = self.tail.saturating_sub(self.memory.size() / 2).max(1);
        let Self { memory, head, tail, .. } = self;
        let mut is_half_free = || {
            *head = memory.word(Word::Head).load(Ordering::Acquire);
            memory.size().saturating_sub(tail.wrapping_sub(*head)) >= memory.size() / 2
        };
        marks::wait(memory.word(Word::Waits), half, &mut is_half_free)
    }

    /// Says that something was written, and it was not.
    #[cfg(any(test, feature = "testing"))]
    pub fn break_it(&self) {
        self.memory.mark(self.tail).store(u64::MAX, Ordering::Release);
    }

    /// Changes all that it has handed over and all that it has not.
    #[cfg(any(test, feature = "testing"))]
    pub fn overwrite_all(&self, byte: u8) {
        let bytes = vec![byte; self.memory.size() as usize];
        self.memory.room(0, bytes.len()).unwrap().put(&bytes).unwrap();
    }

    /// Puts a valid mark on every line: whoever reads to the end of such a ring begins again.
    #[cfg(any(test, feature = "testing"))]
    pub fn mark_every_line(&self) {
        let mark =
            Mark { len: 16, segment: 16, joined: 1, traffic_class: 0, hop_limit: 64, sealed: false, goes_on: true };
        assert_eq!(mark.extent(), LINE);
        for line in 0..self.memory.size() / LINE {
            self.memory.mark(line * LINE).store(mark.to_word(), Ordering::Release);
        }
    }

    /// Whether half of the ring is free.
    pub fn is_half_free(&mut self) -> bool {
        self.has_room(self.memory.size() / 2)
    }
}

/// What the reader finds.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// What there is to know of the run.
    pub meta: RxMeta,
    /// The packets: not to be looked at before they are copied.
    pub bytes: SharedBytes<'a>,
    /// How many packets the only one in it stands for: their payloads follow each other behind the header of the first.
    pub joined: u8,
}

/// The writer of a ring wrote what makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The half that reads. One thread at a time does.
#[derive(Debug)]
pub struct Reader {
    memory: SharedMemory,
    /// What of the ring has been read, as the shared word says.
    head: AtomicU64,
    /// From where to where the last record went.
    addresses: [AtomicU64; 4],
}

impl Reader {
    /// The ring with `size` bytes of data in a file that its writer has sent.
    pub fn open(fd: &OwnedFd, size: usize) -> io::Result<Self> {
        Ok(Self { memory: SharedMemory::open(fd, size)?, head: AtomicU64::new(0), addresses: Default::default() })
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.mark() == 0
    }

    /// Bytes that were ever read.
    pub fn read_so_far(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    /// Bytes of data: a writer that has ended left no more than this behind.
    pub fn size(&self) -> u64 {
        self.memory.size()
    }

    /// The mark of the next record.
    fn mark(&self) -> u64 {
        self.memory.mark(self.head.load(Ordering::Relaxed)).load(Ordering::Acquire)
    }

    /// Shows the next run to `take`, where it is: copying all of it out cost 10 % at 1 MB messages. Then its room is the writer's
    /// again, also if `take` panics: the same run would meet the same bug for ever. Whether there was one.
    #[inline]
    pub fn next(&self, take: impl FnOnce(Record<'_>)) -> Result<bool, Broken> {
        let word = self.mark();
        if word == 0 {
            return Ok(false);
        }
        let mark = Mark::parse(word).ok_or(Broken)?;
        let head = self.head.load(Ordering::Relaxed);
        let (src, dst) = self.addresses(head, mark.goes_on);
        let bytes = self.memory.view(head + mark.start() as u64, mark.len).ok_or(Broken)?;
        bytes.prefetch(STAGED);
        let Mark { len, segment, joined, traffic_class, hop_limit, sealed, .. } = mark;
        let meta = RxMeta {
            len,
            segment,
            first_index: 0,
            src,
            dst,
            src_port: ROCE_PORT,
            traffic_class,
            hop_limit,
            by_ring: true,
            sealed,
        };
        let _shown = Shown { reader: self, end: head + mark.extent() };
        take(Record { meta, bytes, joined });
        Ok(true)
    }

    /// From where to where the record at `head` goes.
    #[inline]
    fn addresses(&self, head: u64, goes_on: bool) -> (Gid, Gid) {
        if !goes_on {
            for (at, word) in (0..).zip(&self.addresses) {
                let mut bytes = [0; 8];
                self.memory.read(head + (MARK + 8 * at) as u64, &mut bytes);
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
        }
        let [s0, s1, d0, d1] = self.addresses.each_ref().map(|word| u128::from(word.load(Ordering::Relaxed)));
        (Gid((s0 | s1 << 64).to_le_bytes()), Gid((d0 | d1 << 64).to_le_bytes()))
    }

    /// Whether the writer waits for room and must be told now that there is some; asked after reading.
    pub fn must_tell(&self) -> bool {
        marks::must_tell(self.memory.word(Word::Waits), self.head.load(Ordering::Relaxed))
    }

    /// From now on the writer wakes us, once. Whether something has come already.
    pub fn prepare_sleep(&self) -> bool {
        marks::sleep(self.memory.word(Word::Asleep), || !self.is_empty())
    }

    /// The writer need not wake us.
    pub fn awake(&self) {
        marks::awake(self.memory.word(Word::Asleep));
    }
}

/// A run that is being looked at, up to `end`.
struct Shown<'a> {
    reader: &'a Reader,
    end: u64,
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.reader.head.store(self.end, Ordering::Relaxed);
        self.reader.memory.word(Word::Head).store(self.end, Ordering::Release);
    }
}

/// Puts `bytes` into a ring as its writer might, and reads it until nothing is there: nothing outside of a record is shown,
/// and once around it is all read that the writer has left.
#[cfg(any(test, feature = "fuzz"))]
pub fn check(bytes: &[u8]) {
    const SMALLEST: usize = 64 << 10;
    let Ok((writer, fd)) = Writer::create(SMALLEST) else { return };
    let Ok(reader) = Reader::open(&fd, SMALLEST) else { return };
    let len = bytes.len().min(SMALLEST);
    writer.memory.room(0, len).zip(bytes.get(..len)).and_then(|(room, bytes)| room.put(bytes));
    let (mut copy, mut records) = (vec![0; MAX_RUN], 0);
    while reader.read_so_far() < reader.size() {
        let before = reader.read_so_far();
        let take = |Record { meta, bytes, joined }: Record<'_>| {
            assert!((1..=MAX_RUN).contains(&meta.len) && (1..=meta.len).contains(&meta.segment) && joined > 0);
            assert_eq!(bytes.len(), meta.len);
            assert!(bytes.copy_to(&mut copy[..meta.len]).is_ok());
            records += 1;
        };
        if reader.next(take) != Ok(true) {
            break;
        }
        let step = reader.read_so_far() - before;
        assert!((LINE..=record_len(MAX_RUN)).contains(&step) && step.is_multiple_of(LINE), "a step of {step}");
    }
    assert!(records <= SMALLEST as u64 / LINE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicBool;

    fn ring() -> (Writer, Reader) {
        let (writer, fd) = Writer::create(SIZE).unwrap();
        (writer, Reader::open(&fd, SIZE).unwrap())
    }

    fn heading(last: u8) -> Heading {
        let dst = Ipv4Addr::new(127, 0, 0, last).into();
        Heading { src: Ipv4Addr::LOCALHOST.into(), dst, traffic_class: 0x68, hop_limit: 63, sealed: false }
    }

    fn put(writer: &mut Writer, heading: &Heading, len: usize, byte: u8) -> bool {
        writer.slot(heading, len).map(|room| fill(room, byte)).is_some()
    }

    /// Fills `room`; how many bytes there are.
    fn fill(room: TxRoom<'_>, byte: u8) -> usize {
        let len = room.len();
        room.put(&vec![byte; len]).unwrap();
        len
    }

    /// Everything in the ring: segments and bytes of each run.
    fn take(reader: &Reader) -> Vec<(usize, Vec<u8>)> {
        std::iter::from_fn(|| take_one(reader).map(|(meta, bytes)| (meta.segment, bytes))).collect()
    }

    /// The same, packet by packet.
    fn packets(reader: &Reader) -> Vec<Vec<u8>> {
        take(reader).iter().flat_map(|(segment, run)| run.chunks(*segment).map(<[u8]>::to_vec)).collect()
    }

    fn take_one(reader: &Reader) -> Option<(RxMeta, Vec<u8>)> {
        let mut taken = None;
        reader.next(|record| taken = Some((record.meta, record.bytes.to_vec()))).unwrap();
        taken
    }

    #[test]
    fn whatever_is_in_a_ring_reading_it_ends() {
        check(&[]);
        for word in [1, u64::MAX, 0x0100_0000_0001_0001, 0x0100_0000_8000_8000_u64.swap_bytes()] {
            check(&word.to_ne_bytes().repeat(8 << 10));
        }
        let line = Mark::parse(u64::from_ne_bytes([16, 0, 16, 0, 0, 64, 2, 1])).unwrap().to_word();
        check(&[line, 0, 0, 0, 0, 0, 0, 0].map(u64::to_ne_bytes).as_flattened().repeat(1 << 10));
    }

    /// Every length, with the sizes of the first packet and the counts of joined ones that are on either side of a limit.
    #[test]
    fn a_mark_is_read_if_it_is_that_of_a_run_and_says_what_was_written() {
        for len in 0..=u16::MAX {
            for segment in [0, 1, 15, 16, len.saturating_sub(1), len, len.saturating_add(1), u16::MAX] {
                for joined in [0, 1, 2, u8::MAX] {
                    let ([l0, l1], [s0, s1]) = (len.to_ne_bytes(), segment.to_ne_bytes());
                    // The lowest two bits of the flags mean something.
                    let flags = joined ^ l0;
                    let word = u64::from_ne_bytes([l0, l1, s0, s1, 0x68, 63, flags, joined]);
                    let is_run = (1..=MAX_RUN).contains(&len.into()) && (1..=len).contains(&segment);
                    let is_mark = is_run && (joined == 1 || joined > 1 && len == segment);
                    let mark = Mark::parse(word);
                    assert_eq!(mark.is_some(), is_mark, "{word:#x}");
                    let Some(mark) = mark else { continue };
                    let known = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 3, 0xff]);
                    assert_eq!(mark.to_word(), word & known);
                    let end = (mark.start() + mark.len) as u64;
                    assert!((end..end + LINE).contains(&mark.extent()) && mark.extent().is_multiple_of(LINE));
                    assert!(mark.extent() + LINE <= record_len(mark.len), "{word:#x}");
                }
            }
        }
    }

    #[test]
    fn packets_of_one_size_and_one_way_are_one_run_with_maybe_a_short_end() {
        let (mut writer, reader) = ring();
        for (to, len) in [(1, 116), (1, 100), (1, 100), (1, 60), (1, 60), (2, 60)] {
            assert!(put(&mut writer, &heading(to), len, len as u8));
        }
        assert!(take(&reader).len() == 3, "the last run is not published yet");
        writer.publish();
        let (last, _) = take_one(&reader).unwrap();
        assert_eq!((last.len, last.segment, last.first_index), (60, 60, 0));
        assert_eq!((last.src, last.dst), (heading(2).src, heading(2).dst));
        assert_eq!((last.traffic_class, last.hop_limit, last.src_port), (0x68, 63, ROCE_PORT));
        assert!(last.by_ring && !last.sealed);
        assert_eq!(take_one(&reader), None);
        put(&mut writer, &Heading { sealed: true, ..heading(2) }, 60, 0);
        writer.publish();
        assert!(take_one(&reader).unwrap().0.sealed);
    }

    #[test]
    fn payloads_of_whole_packets_are_aligned_behind_headers_of_any_size() {
        let (mut writer, reader) = ring();
        for header in [12, 16, 20, 28, 32] {
            for _ in 0..3 {
                put(&mut writer, &heading(1), header + 4096 + icrc::LEN, 1);
            }
            writer.publish();
            let check = |Record { meta, bytes, .. }: Record<'_>| {
                assert_eq!(bytes.len(), 3 * meta.segment);
                let payload = bytes.get(header..bytes.len()).unwrap().addr();
                assert!(payload.is_multiple_of(ALIGN as u64), "{header}");
            };
            assert_eq!(reader.next(check), Ok(true));
        }
    }

    #[test]
    fn a_run_stays_where_it_is_while_it_is_looked_at() {
        let (mut writer, reader) = ring();
        while put(&mut writer, &heading(1), 4112, 7) {}
        writer.publish();
        let look = |record: Record<'_>| {
            assert!(!put(&mut writer, &heading(1), 4112, 8) && record.bytes.to_vec().iter().all(|byte| *byte == 7));
        };
        assert_eq!(reader.next(look), Ok(true));
        assert!(put(&mut writer, &heading(1), 4112, 8));
    }

    #[test]
    fn a_run_that_meets_a_bug_is_not_shown_again() {
        let (mut writer, reader) = ring();
        for (to, byte) in [(1, 7), (2, 8)] {
            put(&mut writer, &heading(to), 100, byte);
        }
        writer.publish();
        let met = catch_unwind(AssertUnwindSafe(|| reader.next(|_| panic!("on purpose"))));
        assert!(met.is_err());
        assert_eq!(take(&reader), [(100, vec![8; 100])]);
    }

    #[test]
    fn runs_keep_their_sizes() {
        let (mut writer, reader) = ring();
        for len in [116, 100, 100, 60, 60] {
            put(&mut writer, &heading(1), len, len as u8);
        }
        writer.publish();
        let runs: Vec<_> = take(&reader).into_iter().map(|(segment, bytes)| (segment, bytes.len())).collect();
        assert_eq!(runs, [(116, 216), (100, 160), (60, 60)]);
    }

    #[test]
    fn a_packet_taken_back_leaves_no_trace() {
        let (mut writer, reader) = ring();
        put(&mut writer, &heading(1), 100, 1);
        put(&mut writer, &heading(1), 60, 2);
        writer.retract();
        put(&mut writer, &heading(1), 100, 3);
        writer.publish();
        put(&mut writer, &heading(1), 50, 4);
        writer.retract();
        writer.publish();
        assert_eq!(take(&reader), [(100, [[1; 100], [3; 100]].concat())]);
    }

    /// Small records are built beside the ring and grow into it; some packets are taken back.
    #[test]
    fn packets_of_all_sizes_come_as_they_went() {
        let (mut writer, reader) = ring();
        let mut random = 1u32;
        let mut roll = |below: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % below
        };
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        for byte in (0..=255).cycle().take(100_000) {
            let most = if roll(4) == 0 { 4200 } else { 120 };
            let (len, to) = (16 + roll(most) as usize, 1 + roll(20).saturating_sub(17) as u8);
            let fits = put(&mut writer, &heading(to), len, byte);
            match roll(6) {
                0 if fits => writer.retract(),
                _ if fits => sent.push(vec![byte; len]),
                _ => {}
            }
            if roll(3) == 0 {
                writer.publish();
            }
            if roll(300) == 0 {
                got.extend(packets(&reader));
            }
        }
        writer.publish();
        got.extend(packets(&reader));
        assert!(sent == got && sent.len() > 20_000, "{} sent, {} came", sent.len(), got.len());
    }

    #[test]
    fn bytes_survive_many_turns_of_the_ring() {
        let (mut writer, reader) = ring();
        let (mut sent, mut got) = (0u32, 0u32);
        while got < 3000 {
            while put(&mut writer, &heading(1), 100 + (sent as usize * 37) % 4000, sent as u8) {
                sent += 1;
            }
            writer.publish();
            for (segment, bytes) in take(&reader) {
                for packet in bytes.chunks(segment) {
                    assert_eq!(packet.len(), 100 + (got as usize * 37) % 4000);
                    assert!(packet.iter().all(|byte| *byte == got as u8));
                    got += 1;
                }
            }
        }
        assert_eq!(sent, got);
    }

    #[test]
    fn a_full_ring_refuses_until_the_reader_has_made_room_and_told_so() {
        let (mut writer, reader) = ring();
        while put(&mut writer, &heading(1), 4112, 7) {}
        writer.publish();
        assert!(!writer.has_room(4112) && !writer.is_half_free_or_waits());
        take_one(&reader).unwrap();
        assert!(!reader.must_tell(), "not before half of it is free");
        let left = take(&reader).len();
        assert!(left > 1 && reader.must_tell() && !reader.must_tell(), "once");
        assert!(writer.is_half_free() && put(&mut writer, &heading(1), 4112, 7));
    }

    #[test]
    fn a_sleeper_is_woken_once_and_does_not_miss_what_came_before() {
        let (mut writer, reader) = ring();
        assert!(!writer.must_wake());
        assert!(!reader.prepare_sleep());
        put(&mut writer, &heading(1), 20, 0);
        writer.publish();
        assert!(writer.must_wake() && !writer.must_wake());
        assert!(reader.prepare_sleep(), "there is a packet");
        reader.awake();
        assert!(!writer.must_wake());
    }

    /// A mark whose traffic class and hop limit depend on all else that it says.
    fn telling(seed: u32) -> Mark {
        let (len, joined, goes_on) = (1 + seed as usize % MAX_RUN, 1 + (seed >> 16) as u8 % 3, seed & 1 << 24 != 0);
        let segment = if joined > 1 { len } else { 1 + (seed >> 4) as usize % len };
        let [traffic_class, hop_limit] = sum(len, segment, joined, goes_on);
        Mark { len, segment, joined, traffic_class, hop_limit, sealed: goes_on, goes_on }
    }

    fn sum(len: usize, segment: usize, joined: u8, goes_on: bool) -> [u8; 2] {
        ((len as u16).wrapping_mul(31) ^ (segment as u16).wrapping_mul(7) ^ u16::from(joined) << 1 ^ u16::from(goes_on))
            .to_ne_bytes()
    }

    /// Tells the thread that writes to end, also if the one that reads panics.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_read_of_a_ring_that_changes_meanwhile_was_read_once() {
        let ((writer, reader), ends) = (ring(), AtomicBool::new(false));
        let marks: Vec<_> = (0..1000_u32).map(|seed| telling(seed.wrapping_mul(2_654_435_769)).to_word()).collect();
        for (line, mark) in (0..writer.memory.size() / LINE).zip(marks.iter().cycle()) {
            writer.memory.mark(line * LINE).store(*mark, Ordering::Relaxed);
        }
        std::thread::scope(|scope| {
            let _stop = Stop(&ends);
            // Where the reader stands, each mark is there for a moment, with other bytes behind some of them.
            scope.spawn(|| {
                for (byte, marks) in (0..=u8::MAX).cycle().zip(marks.chunks(10).cycle()) {
                    let at = reader.read_so_far();
                    marks.iter().for_each(|mark| writer.memory.mark(at).store(*mark, Ordering::Relaxed));
                    let behind = writer.memory.room(at + MARK as u64, LINE as usize - MARK).unwrap();
                    behind.put(&[byte; LINE as usize - MARK]).unwrap();
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let mut way = None;
            for _ in 0..200_000 {
                let (before, mut seen) = (reader.read_so_far(), None);
                let take = |Record { meta, bytes, joined }: Record<'_>| seen = Some((meta, bytes.len(), joined));
                assert_eq!(reader.next(take), Ok(true));
                let (meta, shown, joined) = seen.unwrap();
                let RxMeta { len, segment, src, dst, traffic_class, hop_limit, sealed, .. } = meta;
                assert_eq!([traffic_class, hop_limit], sum(len, segment, joined, sealed), "parts of several marks");
                let mark = Mark { len, segment, joined, traffic_class, hop_limit, sealed, goes_on: sealed };
                assert_eq!((shown, reader.read_so_far() - before), (len, mark.extent()));
                let is_same_way = way.replace((src, dst)).is_none_or(|way| way == (src, dst));
                assert!(is_same_way || !mark.goes_on, "the addresses were read again");
            }
        });
    }

    /// What a writer answers to a walk through all that it does with packets of all sizes, in a ring that is soon read.
    fn answers(writer: &mut Writer) -> Vec<(Option<usize>, u64, u64)> {
        let (mut answers, mut seed) = (vec![], 1u32);
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (heading, len) = (heading(1 + (seed >> 30) as u8), 16 + (seed >> 18) as usize % 4100);
            let room = match seed >> 16 & 3 {
                0 => writer.slot(&heading, len % 100 + 16).map(|room| fill(room, 1)),
                1 => writer.slot(&heading, len).map(|room| fill(room, 2)),
                2 => writer.extend(1024, 3).map(|room| fill(room, 3)),
                _ => None,
            };
            match seed >> 13 & 3 {
                0 => writer.publish(),
                1 if room.is_some() => writer.retract(),
                _ => {}
            }
            writer.memory.word(Word::Head).store(writer.tail, Ordering::Release);
            answers.push((room, writer.tail, writer.cleared));
        }
        answers
    }

    #[test]
    fn a_reader_that_writes_changes_nothing_but_what_it_reads() {
        let (mut alone, _) = Writer::create(SIZE).unwrap();
        let ((mut writer, reader), ends) = (ring(), AtomicBool::new(false));
        let disturbed = std::thread::scope(|scope| {
            let _stop = Stop(&ends);
            scope.spawn(|| {
                for byte in (0..=u8::MAX).cycle().take_while(|_| !ends.load(Ordering::Relaxed)) {
                    let all = vec![byte; reader.size() as usize];
                    reader.memory.room(0, all.len()).unwrap().put(&all).unwrap();
                }
            });
            answers(&mut writer)
        });
        assert!(disturbed == answers(&mut alone));
    }

    /// Writes a mark as no writer of ours does.
    #[test]
    fn a_broken_writer_is_noticed() {
        let good =
            Mark { len: 200, segment: 100, joined: 1, traffic_class: 0, hop_limit: 1, sealed: true, goes_on: false };
        assert_eq!(Mark::parse(good.to_word()), Some(good));
        for (len, segment) in [(0, 1), (1, 0), (1, 2), (MAX_RUN + 1, 1), (0xffff, 1), (200, 201)] {
            let (writer, reader) = ring();
            writer.memory.mark(0).store(Mark { len, segment, ..good }.to_word(), Ordering::Release);
            assert_eq!(reader.next(|_| {}), Err(Broken), "{len} bytes in segments of {segment}");
        }
    }

    #[test]
    fn packets_share_a_header_if_they_have_a_record_for_themselves() {
        let (mut writer, reader) = ring();
        assert!(writer.extend(1024, 1).is_none(), "there is no packet");
        assert!(put(&mut writer, &heading(1), 100, 1) && writer.extend(1024, 1).is_none(), "too small");
        writer.publish();
        assert!(put(&mut writer, &heading(1), 1056, 2) && put(&mut writer, &heading(1), 1040, 3));
        assert!(writer.extend(1024, 1).is_none(), "not alone");
        writer.publish();
        take(&reader);
        assert!(put(&mut writer, &heading(1), 1040, 4) && writer.extend(1000, 1).is_none(), "not aligned");
        for byte in 5..8 {
            fill(writer.extend(1024, 1).unwrap(), byte);
        }
        writer.retract();
        assert!(put(&mut writer, &heading(1), 1040, 8), "begins a record");
        writer.publish();
        let mut seen = Vec::new();
        while reader.next(|record| seen.push((record.joined, record.meta.segment, record.bytes.to_vec()))).unwrap() {}
        let [(joined, segment, shared), (1, 1040, single)] = &seen[..] else { panic!("{} records", seen.len()) };
        assert_eq!((*joined, *segment, shared.len()), (3, 1040 + 2048, 1040 + 2048));
        let payload = [vec![4; 1036], vec![5; 1024], vec![6; 1024]].concat();
        assert!(shared.starts_with(&payload) && single.iter().all(|byte| *byte == 8));
    }

    #[test]
    fn several_share_a_header_at_once_as_far_as_there_is_room() {
        let (mut writer, reader) = ring();
        assert!(put(&mut writer, &heading(1), 4112, 1));
        assert_eq!(writer.extend(4096, 3).map(|room| fill(room, 2)), Some(3 * 4096));
        let most = (MAX_RUN - 4112) / 4096;
        assert_eq!(writer.extend(4096, 100).map(|room| fill(room, 3)), Some((most - 3) * 4096));
        assert!(writer.extend(4096, 1).is_none(), "the record is full");
        writer.retract();
        writer.publish();
        let seen = |record: Record<'_>| {
            assert_eq!((record.joined, record.bytes.len()), (4, 4108 + 3 * 4096 + icrc::LEN));
            assert!(record.bytes.to_vec().starts_with(&[vec![1; 4108], vec![2; 3 * 4096]].concat()));
        };
        assert_eq!(reader.next(seen), Ok(true));
        // A ring that is all but full has room for some.
        while writer.free(SIZE as u64) > 12_800 && put(&mut writer, &heading(1), 4112, 1) {
            writer.publish();
        }
        assert!(put(&mut writer, &heading(1), 4112, 1));
        let room = writer.extend(1024, 100).map(|room| room.len()).unwrap();
        assert!((1024..8 * 1024).contains(&room) && writer.extend(1024, 1).is_none(), "{room} bytes");
    }

    #[test]
    fn a_record_takes_packets_until_it_is_full() {
        let (mut writer, reader) = ring();
        assert!(put(&mut writer, &heading(1), 272, 1));
        let most = std::iter::from_fn(|| writer.extend(256, 1).map(drop)).count();
        assert_eq!(most, (MAX_RUN - 272) / 256);
        while put(&mut writer, &heading(1), 4112, 7) {
            while writer.extend(4096, 1).is_some() {}
        }
        writer.publish();
        let mut bytes = 0;
        while reader.next(|record| bytes += record.bytes.len()).unwrap() {}
        assert!(bytes > SIZE - MAX_RUN && writer.is_half_free());
    }

    #[test]
    fn addresses_are_written_when_they_change() {
        let (mut writer, reader) = ring();
        let mut ends = Vec::new();
        for to in [1, 1, 2, 2, 1] {
            assert!(put(&mut writer, &heading(to), 40, to));
            writer.publish();
            ends.push(writer.tail);
        }
        assert_eq!(ends, [128, 192, 320, 384, 512], "a small packet is one line");
        let seen: Vec<_> = std::iter::from_fn(|| take_one(&reader)).map(|(meta, bytes)| (meta.dst, bytes[0])).collect();
        assert_eq!(seen, [1, 1, 2, 2, 1].map(|to| (heading(to).dst, to)));
    }

    #[test]
    fn a_broken_reader_stops_the_writer_at_most() {
        for head in [u64::MAX, SIZE as u64, 1 << 40] {
            let (mut writer, reader) = ring();
            while put(&mut writer, &heading(1), 4112, 7) {}
            reader.memory.word(Word::Head).store(head, Ordering::Release);
            let before = writer.tail;
            while writer.tail < before + 2 * SIZE as u64 && put(&mut writer, &heading(1), 4112, 7) {}
            // `before` is where the last record begins, which was not published.
            writer.publish();
            assert!(writer.tail <= before + SIZE as u64 + record_len(MAX_RUN), "head {head}");
        }
    }
}
