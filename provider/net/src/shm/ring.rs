//! A ring of packets from one process to another, with its [`Writer`] and [`Reader`] halves.
//!
//! The data is a sequence of cache-aligned *records*: a header of one word, addresses if they
//! differ from the previous record's, and the packets of one run with room for ICRCs. The writer
//! builds packets in place, clears the next header, then stores the header of this record, on which
//! the reader polls. The reader frees room by advancing `Head`. Payloads end on multiples of 16
//! bytes for fast copies. Each side may be broken and change any byte at any time: the reader reads
//! every byte once and checks it ([`Broken`]), the writer never reads what it wrote. [`wakeup`] has
//! the handshakes of sleeping.

#[cfg(test)]
mod tests;

use super::memory::{SharedMemory, Word};
use super::wakeup;
use crate::link::RxMeta;
use roxe_base::uses::Counted;
use roxe_memory::guard::SharedBytes;
use roxe_transport::cx::TxRoom;
use roxe_wire::{Gid, icrc};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Data bytes of a ring: twice the second level cache, so that while the ring is full its lines
/// have moved from the writer's cache to the shared one before they are read.
pub const SIZE: usize = 2 << 20;
/// Data bytes of a ring of a process with many rings.
pub const SMALL: usize = 256 << 10;
/// Maximum number of packet bytes of a record. The reader works on one while the writer fills the
/// next.
pub const MAX_RUN: usize = 32 << 10;
const HEADER_LEN: usize = 8;
const ADDRESSES: usize = 32;
/// Maximum offset of packets in a record.
const START: usize = HEADER_LEN + ADDRESSES + ALIGN;
const ALIGN: usize = 16;
const LINE: u64 = 64;
/// Records of packets of at most this many bytes are built outside the ring, up to [`STAGE_LEN`]
/// bytes of them: while the reader polls the header, each locked operation between two stores to
/// its line would stall. Also, stores to shared memory are made byte by byte.
const MAX_STAGED: usize = 256;
const STAGE_LEN: usize = 2 << 10;

/// Numbers of rings that this process writes and reads, over all engines.
static WRITTEN: AtomicU32 = AtomicU32::new(0);
static READ: AtomicU32 = AtomicU32::new(0);

/// Returns the number of rings that this process writes, offered or agreed.
pub fn written() -> usize {
    WRITTEN.load(Ordering::Relaxed) as usize
}

/// Returns the number of rings that this process reads.
pub fn read() -> usize {
    READ.load(Ordering::Relaxed) as usize
}

/// Addresses and IP header fields of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpFields {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit on the wire.
    pub hop_limit: u8,
}

/// Returns the maximum number of free bytes needed for a record with `len` bytes of packets,
/// including the cleared header of the next record.
#[inline]
pub fn record_len(len: usize) -> u64 {
    ((START + len) as u64).next_multiple_of(LINE) + LINE
}

/// Returns the offset of the packets in a record whose first packet has `segment` bytes.
#[inline]
const fn start(keeps_addresses: bool, segment: usize) -> usize {
    let before = if keeps_addresses { HEADER_LEN } else { HEADER_LEN + ADDRESSES };
    before + icrc::LEN.wrapping_sub(segment).wrapping_sub(before) % ALIGN
}

/// The header word of a record; 0 if there is no record yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordHeader {
    /// Size in bytes of all packets.
    len: usize,
    /// Size in bytes of the first packet.
    segment: usize,
    /// Number of packets that share one packet header.
    joined: u8,
    traffic_class: u8,
    hop_limit: u8,
    keeps_addresses: bool,
}

impl RecordHeader {
    #[inline]
    fn to_word(self) -> u64 {
        let octets = [self.traffic_class, self.hop_limit, u8::from(self.keeps_addresses) << 1, self.joined];
        self.len as u64 & 0xffff | (self.segment as u64 & 0xffff) << 16 | u64::from(u32::from_le_bytes(octets)) << 32
    }

    #[inline]
    fn parse(word: u64) -> Option<Self> {
        let (len, segment) = (word as usize & 0xffff, (word >> 16) as usize & 0xffff);
        let [traffic_class, hop_limit, flags, joined] = ((word >> 32) as u32).to_le_bytes();
        let is_run = (1..=MAX_RUN).contains(&len) && (1..=len).contains(&segment);
        let is_sane = is_run && (joined == 1 || joined > 1 && len == segment);
        is_sane.then_some(Self { len, segment, joined, traffic_class, hop_limit, keeps_addresses: flags & 2 != 0 })
    }

    /// Returns the offset of the packets in the record.
    #[inline]
    fn start(&self) -> usize {
        start(self.keeps_addresses, self.segment)
    }

    /// Returns the bytes from the record to the next one.
    #[inline]
    fn extent(&self) -> u64 {
        ((self.start() + self.len) as u64).next_multiple_of(LINE)
    }
}

const _: () = assert!(MAX_RUN <= u16::MAX as usize);

/// A record as the reader finds it.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Metadata of the run.
    pub meta: RxMeta,
    /// The packets, which must be copied before they are examined.
    pub bytes: SharedBytes<'a>,
    /// Number of packets represented by one header, whose payloads follow it contiguously.
    pub joined: u8,
    /// True if there is no record after it yet.
    pub is_last: bool,
}

/// The writer of a ring violated its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The writing half.
#[derive(Debug)]
pub struct Writer {
    memory: SharedMemory,
    /// Position of the record being built, or of the next one.
    tail: u64,
    head: u64,
    open: Option<Open>,
    /// Source and destination of the record being built, or of the last one.
    addresses: Option<(Gid, Gid)>,
    /// Lines between the tail and this position begin with a cleared header.
    cleared: u64,
    /// The record being built, if it is small.
    staged: Box<[u8; STAGE_LEN]>,
    _counted: Counted<'static>,
}

impl Writer {
    /// Creates a ring with `size` bytes of data, and the file for the reader.
    pub(crate) fn create(size: usize) -> io::Result<(Self, OwnedFd)> {
        let (memory, fd) = SharedMemory::create(size)?;
        let staged = Box::new([0; STAGE_LEN]);
        let (open, addresses, _counted) = (None, None, Counted::new(&WRITTEN));
        Ok((Self { memory, tail: 0, head: 0, open, addresses, cleared: 0, staged, _counted }, fd))
    }

    /// Returns true if there is room for a packet of `len` bytes with its ICRC.
    #[inline]
    pub fn takes(&mut self, ip_fields: &IpFields, len: usize) -> bool {
        self.turn_to(ip_fields);
        self.takes_next(len)
    }

    /// Publishes the record being built if its packets have other IP fields.
    #[inline]
    pub fn turn_to(&mut self, ip_fields: &IpFields) {
        if self.open.is_some() && !self.is_open_for(ip_fields) {
            self.publish();
        }
    }

    /// Returns true if a record with these IP fields is being built.
    #[inline]
    pub fn is_open_for(&self, ip_fields: &IpFields) -> bool {
        let IpFields { src, dst, traffic_class, hop_limit } = *ip_fields;
        let fields = (traffic_class, hop_limit);
        self.open.as_ref().is_some_and(|open| open.fields == fields) && self.addresses == Some((src, dst))
    }

    /// Like [`Writer::takes`], for a packet with the IP fields of the packet before it, if that is
    /// not published.
    #[inline]
    pub fn takes_next(&mut self, len: usize) -> bool {
        if self.open.as_ref().is_some_and(|open| !open.takes(len)) {
            self.publish();
        }
        let before = self.open.as_ref().map_or(0, |open| open.len);
        self.has_room(record_len(before + len))
    }

    /// Returns room for a packet of `len` bytes with its ICRC; `None` if the ring is full.
    pub fn slot(&mut self, ip_fields: &IpFields, len: usize) -> Option<TxRoom<'_>> {
        if self.takes(ip_fields, len) { self.place(ip_fields, len) } else { None }
    }

    /// Does as [`Writer::slot`] after [`Writer::takes`] has returned true, to avoid a second check.
    // A call would return the room in memory.
    #[inline(always)]
    pub fn place(&mut self, ip_fields: &IpFields, len: usize) -> Option<TxRoom<'_>> {
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(Open {
                fields: (ip_fields.traffic_class, ip_fields.hop_limit),
                keeps_addresses: {
                    let addresses = Some((ip_fields.src, ip_fields.dst));
                    std::mem::replace(&mut self.addresses, addresses) == addresses
                },
                segment: len,
                len: 0,
                last: len,
                joined: 1,
                newest: 0,
            }),
        };
        let before = open.len;
        (open.len, open.last) = (before + len, len);
        let at = start(open.keeps_addresses, open.segment) + before;
        if open.segment <= MAX_STAGED {
            if at + len <= STAGE_LEN {
                return self.staged.get_mut(at..at + len).map(TxRoom::Own);
            }
            self.unstage(at);
        }
        self.cleared = self.tail;
        self.memory.room(self.tail + at as u64, len)
    }

    /// Moves the bytes built outside the ring into it; from `at` on nothing more is staged.
    #[inline(never)]
    fn unstage(&mut self, at: usize) {
        if let Some(staged) = staged_lines(&self.staged, at) {
            self.memory.put(self.tail, staged);
        }
    }

    /// Returns the room for the payloads of up to `count` more packets of `len` bytes each, which
    /// share the header of a packet that is alone in its record. `None` if there is no such packet,
    /// or no room.
    #[inline]
    pub fn extend(&mut self, len: usize, count: u32) -> Option<TxRoom<'_>> {
        let open = self.open.as_ref()?;
        let is_alone = open.len == open.segment && len.is_multiple_of(ALIGN) && open.len > MAX_STAGED;
        if !is_alone {
            return None;
        }
        let (before, most) = (open.len, u32::from(u8::MAX - open.joined).min(count) as usize);
        let wanted = most.min(MAX_RUN.saturating_sub(before) / len);
        let free = self.free(record_len(before + wanted * len)).saturating_sub(record_len(before));
        let count = wanted.min(free as usize / len);
        let open = self.open.as_mut().filter(|_| count > 0)?;
        let len = count * len;
        // One ICRC follows all payloads.
        let at = start(open.keeps_addresses, open.segment) + before - icrc::LEN;
        (open.len, open.segment, open.last) = (before + len, before + len, len);
        (open.joined, open.newest) = (open.joined + count as u8, count as u8);
        self.memory.room(self.tail + at as u64, len)
    }

    /// Removes the last slot or extension.
    pub fn retract(&mut self) {
        let Some(open) = &mut self.open else { return };
        open.len -= open.last;
        if open.joined > 1 {
            (open.segment, open.joined) = (open.len, open.joined - open.newest);
        }
        open.last = open.segment;
        if let Some(open) = self.open.take_if(|open| open.len == 0)
            && !open.keeps_addresses
        {
            self.addresses = None;
        }
    }

    /// Publishes the record being built.
    pub fn publish(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Open { fields: (traffic_class, hop_limit), keeps_addresses, segment, len, joined, .. } = open;
        let header = RecordHeader { len, segment, joined, traffic_class, hop_limit, keeps_addresses };
        let end = header.start() + len;
        let addresses = self.addresses.filter(|_| !keeps_addresses).map(|(src, dst)| [src.0, dst.0]);
        if let Some(addresses) = &addresses {
            self.staged[HEADER_LEN..HEADER_LEN + ADDRESSES].copy_from_slice(addresses.as_flattened());
        }
        let next = self.tail + header.extent();
        if next >= self.cleared {
            self.memory.header(next).store(0, Ordering::Relaxed);
            self.cleared = next + LINE;
        }
        match (if segment <= MAX_STAGED { staged_lines(&self.staged, end) } else { None }, &addresses) {
            (Some(staged), _) => self.memory.put(self.tail, staged),
            (None, None) => {}
            // A record not built outside the ring lacks the addresses.
            (None, Some(addresses)) => {
                self.memory.put(self.tail + HEADER_LEN as u64, addresses.as_flattened().as_chunks().0);
            }
        }
        self.memory.header(self.tail).store(header.to_word(), Ordering::Release);
        self.tail = next;
        // Clears the headers in the lines of the next small record, which also brings these lines
        // into this cache before it is built.
        let end = (self.tail + LINE + MAX_STAGED as u64).min(self.head.saturating_add(self.memory.size()));
        while self.cleared < end {
            self.memory.header(self.cleared).store(0, Ordering::Relaxed);
            self.cleared += LINE;
        }
    }

    /// Returns true, once, if the sleeping reader must be woken. Call after publishing.
    #[inline]
    pub fn must_wake(&self) -> bool {
        wakeup::must_wake(self.memory.word(Word::Asleep))
    }

    /// Returns true if `bytes` more can be written.
    #[inline]
    pub fn has_room(&mut self, bytes: u64) -> bool {
        self.free(bytes) >= bytes
    }

    /// Returns the free bytes, exact if less than `wanted`. An invalid head leaves none.
    #[inline]
    fn free(&mut self, wanted: u64) -> u64 {
        let (tail, size) = (self.tail, self.memory.size());
        let free = |head: u64| size.saturating_sub(tail.wrapping_sub(head));
        if free(self.head) < wanted {
            self.head = self.memory.word(Word::Head).load(Ordering::Acquire);
        }
        free(self.head)
    }

    /// Returns the total bytes read by the reader; constant while it is stalled.
    pub fn read_so_far(&mut self) -> u64 {
        self.head = self.memory.word(Word::Head).load(Ordering::Acquire);
        self.head
    }

    /// Returns true if half of the ring is free. If not, the reader rings the doorbell when it is.
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
        wakeup::announce_wait(memory.word(Word::WakeAt), half, &mut is_half_free)
    }

    /// Returns true if half of the ring is free.
    pub fn is_half_free(&mut self) -> bool {
        self.has_room(self.memory.size() / 2)
    }
}

#[derive(Debug)]
struct Open {
    /// Traffic class and hop limit.
    fields: (u8, u8),
    /// True if the addresses are those of the previous record.
    keeps_addresses: bool,
    segment: usize,
    len: usize,
    /// Size in bytes of the last packet or extension.
    last: usize,
    /// Number of packets that share one header.
    joined: u8,
    /// Number of packets that the last extension added.
    newest: u8,
}

impl Open {
    /// Returns true if a packet of `len` bytes can follow: all but the last have one size.
    fn takes(&self, len: usize) -> bool {
        self.joined == 1 && self.last == self.segment && len <= self.segment && self.len + len <= MAX_RUN
    }
}

/// Returns the staged bytes of a record up to `end` in whole words, its header still 0; `None` if
/// the record is longer than the stage.
#[inline]
fn staged_lines(staged: &[u8; STAGE_LEN], end: usize) -> Option<&[[u8; HEADER_LEN]]> {
    staged.as_chunks().0.get(..end.next_multiple_of(LINE as usize) / HEADER_LEN)
}

/// The reading half, used by one thread at a time.
#[derive(Debug)]
pub struct Reader {
    memory: SharedMemory,
    /// Bytes read, as published in the shared word.
    head: AtomicU64,
    /// Bytes read when [`Reader::must_wake_writer`] last checked for a waiting writer.
    last_checked: AtomicU64,
    /// Source and destination of the last record, two words each.
    addresses: [AtomicU64; 4],
    _counted: Counted<'static>,
}

impl Reader {
    /// Opens the ring with `size` bytes of data in a file of its writer.
    pub(crate) fn open(fd: &OwnedFd, size: usize) -> io::Result<Self> {
        let (memory, addresses) = (SharedMemory::open(fd, size)?, Default::default());
        let (head, last_checked, _counted) = (AtomicU64::new(0), AtomicU64::new(0), Counted::new(&READ));
        Ok(Self { memory, head, last_checked, addresses, _counted })
    }

    /// Returns true if there is no record to read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next_header() == 0
    }

    /// Returns the total bytes read.
    #[inline]
    pub fn read_so_far(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    /// Returns the data bytes: the most that a dead writer can have left.
    pub fn size(&self) -> u64 {
        self.memory.size()
    }

    #[inline]
    fn next_header(&self) -> u64 {
        self.memory.header(self.head.load(Ordering::Relaxed)).load(Ordering::Acquire)
    }

    /// Passes the next run to `take` in place, then frees its room, even if `take` panics:
    /// otherwise the same run would panic again. Returns false if the ring is empty.
    #[inline]
    pub fn next(&self, take: impl FnOnce(Record<'_>)) -> Result<bool, Broken> {
        let word = self.next_header();
        if word == 0 {
            return Ok(false);
        }
        let header = RecordHeader::parse(word).ok_or(Broken)?;
        let head = self.head.load(Ordering::Relaxed);
        let (src, dst) = self.addresses(head, header.keeps_addresses);
        let bytes = self.memory.view(head + header.start() as u64, header.len).ok_or(Broken)?;
        bytes.prefetch(MAX_STAGED);
        let RecordHeader { len, segment, joined, traffic_class, hop_limit, .. } = header;
        let meta = RxMeta { segment, traffic_class, hop_limit, by_ring: true, ..RxMeta::alone(len, src, dst) };
        let end = head + header.extent();
        let _free = FreeOnDrop { reader: self, end };
        let is_last = self.memory.header(end).load(Ordering::Relaxed) == 0;
        take(Record { meta, bytes, joined, is_last });
        Ok(true)
    }

    #[inline]
    fn addresses(&self, head: u64, keeps_addresses: bool) -> (Gid, Gid) {
        if !keeps_addresses {
            for (at, word) in (0..).zip(&self.addresses) {
                let mut bytes = [0; 8];
                self.memory.read(head + (HEADER_LEN + 8 * at) as u64, &mut bytes);
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
        }
        let [s0, s1, d0, d1] = &self.addresses;
        let gid = |low: &AtomicU64, high: &AtomicU64| {
            let [low, high] = [low.load(Ordering::Relaxed), high.load(Ordering::Relaxed)];
            Gid((u128::from(low) | u128::from(high) << 64).to_le_bytes())
        };
        (gid(s0, s1), gid(d0, d1))
    }

    /// Returns true, once, if the waiting writer must be woken because there is room. Call after
    /// reading.
    ///
    /// Checks once for each quarter of the ring, since the fence stalls: a writer waits until
    /// half of the ring is free, so at least one quarter ends between that and an empty ring.
    #[inline]
    pub fn must_wake_writer(&self) -> bool {
        let (head, last_checked, quarter) = (self.read_so_far(), &self.last_checked, self.memory.size() / 4);
        // The size is a power of two.
        if (head ^ last_checked.load(Ordering::Relaxed)) < quarter {
            return false;
        }
        last_checked.store(head, Ordering::Relaxed);
        wakeup::must_wake_writer(self.memory.word(Word::WakeAt), head)
    }

    /// Lets the writer wake this process, once, from now on. Returns true if there is a record
    /// already: do not sleep then.
    pub fn prepare_sleep(&self) -> bool {
        wakeup::announce_sleep(self.memory.word(Word::Asleep), || !self.is_empty())
    }

    /// Ends [`Reader::prepare_sleep`].
    pub fn awake(&self) {
        wakeup::withdraw_sleep(self.memory.word(Word::Asleep));
    }
}

/// Frees the room of a record that was read, even if the closure that reads it panics.
struct FreeOnDrop<'a> {
    reader: &'a Reader,
    end: u64,
}

impl Drop for FreeOnDrop<'_> {
    fn drop(&mut self) {
        self.reader.head.store(self.end, Ordering::Relaxed);
        self.reader.memory.word(Word::Head).store(self.end, Ordering::Release);
    }
}

/// Violations of the format, for tests of readers.
#[cfg(any(test, feature = "testing"))]
impl Writer {
    /// Publishes an invalid record.
    pub fn break_it(&self) {
        self.memory.header(self.tail).store(u64::MAX, Ordering::Release);
    }

    /// Overwrites all data of the ring, published or not.
    pub fn overwrite_all(&self, byte: u8) {
        let bytes = vec![byte; self.memory.size() as usize];
        self.memory.room(0, bytes.len()).unwrap().put(&bytes).unwrap();
    }

    /// Puts a valid header on every line, so that the ring never appears empty.
    pub fn put_header_on_every_line(&self) {
        let header =
            RecordHeader { len: 16, segment: 16, joined: 1, traffic_class: 0, hop_limit: 64, keeps_addresses: true };
        assert_eq!(header.extent(), LINE);
        for line in 0..self.memory.size() / LINE {
            self.memory.header(line * LINE).store(header.to_word(), Ordering::Release);
        }
    }
}

/// Fuzz target: puts `bytes` into a ring and reads it until it is empty. Nothing outside a
/// record may be read, and once around the ring must be empty.
#[cfg(any(test, feature = "fuzz"))]
pub fn check_ring(bytes: &[u8]) {
    const SMALLEST: usize = 64 << 10;
    let Ok((writer, fd)) = Writer::create(SMALLEST) else { return };
    let Ok(reader) = Reader::open(&fd, SMALLEST) else { return };
    let len = bytes.len().min(SMALLEST);
    writer.memory.room(0, len).zip(bytes.get(..len)).and_then(|(room, bytes)| room.put(bytes));
    let (mut copy, mut records) = (vec![0; MAX_RUN], 0);
    while reader.read_so_far() < reader.size() {
        let before = reader.read_so_far();
        let take = |Record { meta, bytes, joined, .. }: Record<'_>| {
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
