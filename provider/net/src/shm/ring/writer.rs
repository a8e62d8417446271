//! The half of a ring that writes: builds records where the reader will find them.

use super::super::count::WRITTEN;
use super::super::memory::{SharedMemory, Word};
use super::super::wakeup;
use super::record::{ADDRESSES, ALIGN, HEADER_LEN, Heading, LINE, MAX_RUN, RecordHeader, STAGED, record_len, start};
use roxe_base::uses::Counted;
use roxe_transport::cx::TxRoom;
use roxe_wire::{Gid, icrc};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

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
    /// Packets that share one packet header, and how many of them the last extension added.
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

/// What is built beside the ring of a record that goes on up to `end`, in whole lines, its header
/// still 0. `None`: it is not built there.
#[inline]
fn staged_lines(staged: &[u8; STAGED], end: usize) -> Option<&[[u8; HEADER_LEN]]> {
    staged.as_chunks().0.get(..end.next_multiple_of(LINE as usize) / HEADER_LEN)
}

/// The half that writes.
#[derive(Debug)]
pub struct Writer {
    pub(super) memory: SharedMemory,
    /// Where the record that is being built starts, or the next one will.
    pub(super) tail: u64,
    /// The head as it was last seen.
    head: u64,
    open: Option<Open>,
    /// Source and destination of the last record.
    addresses: Option<(Gid, Gid)>,
    /// The lines between the tail and this position begin with a cleared header.
    pub(super) cleared: u64,
    /// The record that is being built, if it is small.
    staged: Box<[u8; STAGED]>,
    _counted: Counted<'static>,
}

impl Writer {
    /// A new ring with `size` bytes of data, and the file for the reader.
    pub(crate) fn create(size: usize) -> io::Result<(Self, OwnedFd)> {
        let (memory, fd) = SharedMemory::create(size)?;
        let staged = Box::new([0; STAGED]);
        let (open, addresses, _counted) = (None, None, Counted::new(&WRITTEN));
        Ok((Self { memory, tail: 0, head: 0, open, addresses, cleared: 0, staged, _counted }, fd))
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

    /// Room for a packet of `len` bytes with its ICRC; `None`: the ring is full.
    pub fn slot(&mut self, heading: &Heading, len: usize) -> Option<TxRoom<'_>> {
        if self.takes(heading, len) { self.place(heading, len) } else { None }
    }

    /// As [`Writer::slot`], for a caller to whom [`Writer::takes`] has just said that there is
    /// room: asking twice cost 45 instructions for each packet.
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

    /// Room for the payloads of up to `count` packets more, of `len` bytes each, behind that of a
    /// packet that is a record of its own: they share its packet header. `None`: there is no such
    /// packet, or not even room for one.
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
        // The one ICRC comes behind all payloads.
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
        let header = RecordHeader { len, segment, joined, traffic_class, hop_limit, sealed, goes_on };
        let end = header.start() + len;
        if !goes_on {
            self.staged[HEADER_LEN..HEADER_LEN + ADDRESSES].copy_from_slice([src.0, dst.0].as_flattened());
            self.addresses = Some((src, dst));
        }
        let next = self.tail + header.extent();
        if next >= self.cleared {
            self.memory.header(next).store(0, Ordering::Relaxed);
            self.cleared = next + LINE;
        }
        match staged_lines(&self.staged, end) {
            Some(staged) => self.memory.put(self.tail, staged),
            None if goes_on => {}
            // What was not built beside the ring lacks the addresses.
            None => self.memory.put(self.tail + HEADER_LEN as u64, [src.0, dst.0].as_flattened().as_chunks().0),
        }
        self.memory.header(self.tail).store(header.to_word(), Ordering::Release);
        self.tail = next;
        self.clear_ahead();
    }

    /// Clears the headers in the lines of the next small record, which brings these lines here
    /// before it is built.
    #[inline]
    fn clear_ahead(&mut self) {
        let end = (self.tail + LINE + STAGED as u64).min(self.head.saturating_add(self.memory.size()));
        while self.cleared < end {
            self.memory.header(self.cleared).store(0, Ordering::Relaxed);
            self.cleared += LINE;
        }
    }

    /// Whether the reader sleeps, and has to be woken: asked after something was published; it is
    /// told once.
    #[inline]
    pub fn must_wake(&self) -> bool {
        wakeup::must_wake(self.memory.word(Word::Asleep))
    }

    /// Whether `bytes` more can be written.
    #[inline]
    pub fn has_room(&mut self, bytes: u64) -> bool {
        self.free(bytes) >= bytes
    }

    /// How many bytes can be written, or at least `wanted`. A head that makes no sense leaves none.
    #[inline]
    pub(super) fn free(&mut self, wanted: u64) -> u64 {
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

    /// Whether half of the ring is free. If not, the reader will say when it is, which costs it a
    /// system call.
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
        wakeup::wait(memory.word(Word::Waits), half, &mut is_half_free)
    }

    /// Whether half of the ring is free.
    pub fn is_half_free(&mut self) -> bool {
        self.has_room(self.memory.size() / 2)
    }
}
