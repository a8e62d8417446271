//! A connected stream: both directions, messages about the connection, and its end.

use super::Violation;
use super::conn::{ConnData, IOMAP_LEN, Iomap, TARGET_LEN, Target};
use super::message::{Control, Message};
use std::collections::VecDeque;
use std::ops::Range;

/// Send queue slots that data never uses, so that both sides can always grant space.
pub(crate) const CONTROL_SLOTS: u16 = 4;

/// Local sizes, decided before connecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Slots of the send queue; more than [`CONTROL_SLOTS`].
    pub(crate) send_queue: u16,
    /// Messages that the peer may send before the next grant.
    pub(crate) recv_queue: u16,
    /// Bytes.
    pub(crate) send_buffer: u32,
    /// Bytes; even.
    pub(crate) recv_buffer: u32,
    /// Mappings that the peer may create.
    pub(crate) iomaps: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Up,
    /// Ended by one side.
    Down,
    /// Ended by an error.
    Broken,
}

/// A message about the connection, to be posted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// An empty WRITE with this immediate data.
    Message(Message),
    /// A WRITE of these bytes with this immediate data.
    Entry { to: Target, bytes: [u8; TARGET_LEN], message: Message },
    /// An empty WRITE without immediate data, which tests if the peer acknowledges.
    Probe,
}

impl Notice {
    pub(crate) const fn done(&self) -> Done {
        match self {
            Self::Message(Message::Control(Control::Disconnect)) => Done::Disconnect,
            _ => Done::Notice,
        }
    }
}

/// Kind of a completed request, which determines the resources that it frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// A WRITE or message of the data path, with the bytes of the send buffer that it held.
    Data(u32),
    Notice,
    /// The notice of a disconnect.
    Disconnect,
}

/// A stream. The driver posts requests, reports completions and arrivals, and moves the bytes.
#[derive(Debug)]
pub(crate) struct Stream {
    link: Link,
    /// True if the peer may send more.
    readable: bool,
    /// True if this side may send more.
    writable: bool,
    /// True if the program has shut down sending.
    shut: bool,
    pending_end: Option<Control>,
    probe: bool,
    control_free: u16,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    buffer: Target,
    peer: ConnData,
    peer_target: u32,
    iomaps: Vec<Option<Iomap>>,
}

impl Stream {
    /// A new connection. `buffer` is the own receive buffer, as the peer addresses it.
    pub(crate) fn new(sizes: &Sizes, buffer: Target, peer: ConnData) -> Self {
        let slots = sizes.send_queue.saturating_sub(CONTROL_SLOTS);
        Self {
            link: Link::Up,
            readable: true,
            writable: true,
            shut: false,
            pending_end: None,
            probe: false,
            control_free: CONTROL_SLOTS,
            outgoing: Outgoing::new(slots, sizes.send_buffer, peer.credits, peer.data),
            incoming: Incoming::new(sizes.recv_buffer / 2, sizes.recv_queue),
            buffer,
            peer,
            peer_target: 1,
            iomaps: vec![None; usize::from(sizes.iomaps)],
        }
    }

    pub(crate) const fn link(&self) -> Link {
        self.link
    }

    /// Returns true if no more data will arrive.
    pub(crate) const fn at_end(&self) -> bool {
        !self.readable
    }

    /// Returns true if nothing more can be sent.
    pub(crate) const fn is_shut(&self) -> bool {
        !self.writable
    }

    /// Returns true if the program has shut down sending.
    pub(crate) const fn shut_by_us(&self) -> bool {
        self.shut
    }

    pub(crate) fn can_send(&self) -> bool {
        self.outgoing.room() > 0
    }

    /// Returns true if every posted request is complete, or never will be.
    pub(crate) fn is_settled(&self) -> bool {
        let announced = self.pending_end.is_none() && self.control_free == CONTROL_SLOTS;
        self.link != Link::Up || announced && self.outgoing.is_done()
    }

    /// Handles a message. May return an index of the mapping table, whose entry the driver then
    /// reads and passes to [`set_iomap`](Self::set_iomap).
    ///
    /// # Errors
    /// A message that violates the protocol; breaks the stream.
    pub(crate) fn handle_message(&mut self, imm: u32) -> Result<Option<u16>, Violation> {
        if self.link != Link::Up {
            return Ok(None);
        }
        let entry = self.message(imm);
        if entry.is_err() {
            self.break_off();
        }
        entry
    }

    // clause: RSOCK-SHUTDOWN, RSOCK-DISCONNECT
    fn message(&mut self, imm: u32) -> Result<Option<u16>, Violation> {
        match Message::decode(imm)? {
            Message::Data(len) => self.incoming.arrived(len)?,
            Message::Credit(up_to) => self.outgoing.allow(up_to),
            Message::Iomap(index) => {
                self.incoming.message_read();
                return Ok(Some(index));
            }
            Message::Control(Control::Shutdown) if self.writable => self.readable = false,
            Message::Control(Control::Disconnect | Control::Shutdown) => self.end(),
            Message::Control(Control::Keepalive | Control::Unknown) => {}
        }
        Ok(None)
    }

    pub(crate) fn handle_done(&mut self, done: Done) {
        match done {
            Done::Data(held) => self.outgoing.done(held),
            Done::Notice => self.control_free = (self.control_free + 1).min(CONTROL_SLOTS),
            Done::Disconnect => self.end(),
        }
    }

    /// Ends the connection, on word from the peer or its CM. Arrived data stays readable.
    pub(crate) const fn end(&mut self) {
        if matches!(self.link, Link::Up) {
            self.link = Link::Down;
        }
        self.readable = false;
        self.writable = false;
    }

    /// Breaks the connection: a request failed, or the peer violated the protocol.
    pub(crate) const fn break_off(&mut self) {
        if matches!(self.link, Link::Up) {
            self.end();
            self.link = Link::Broken;
        }
    }

    /// Ends directions, and queues a [`Notice`] for the peer unless only receiving ends.
    // clause: RSOCK-SHUTDOWN, RSOCK-DISCONNECT
    pub(crate) fn shut_down(&mut self, read: bool, write: bool) {
        let (was_readable, was_writable) = (self.readable, self.writable);
        self.readable &= !read;
        self.writable &= !write;
        self.shut |= write;
        let changed = was_readable != self.readable || was_writable != self.writable;
        if self.link != Link::Up || !changed {
            return;
        }
        match (self.readable, self.writable) {
            (false, false) => self.pending_end = Some(Control::Disconnect),
            (true, false) => self.pending_end = Some(Control::Shutdown),
            _ => {}
        }
    }

    /// Probes a peer that has been silent.
    // clause: RSOCK-KEEPALIVE
    pub(crate) const fn keep_alive(&mut self) {
        self.probe = true;
    }

    /// Returns the next message about the connection, if any. Call it after every event.
    // clause: RSOCK-CONTROL-SLOTS
    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        if self.link != Link::Up || self.control_free == 0 {
            return None;
        }
        let notice = if self.incoming.wants_grant() {
            self.granted()
        } else if let Some(control) = self.pending_end.take() {
            Notice::Message(Message::Control(control))
        } else if std::mem::take(&mut self.probe) {
            Notice::Probe
        } else {
            return None;
        };
        self.control_free -= 1;
        Some(notice)
    }

    // clause: RSOCK-TARGET-ORDER
    fn granted(&mut self) -> Notice {
        let Grant { up_to, half } = self.incoming.grant();
        let message = Message::Credit(up_to);
        let Some(offset) = half else {
            return Notice::Message(message);
        };
        let addr = self.buffer.addr.wrapping_add(u64::from(offset));
        let entry = Target { addr, rkey: self.buffer.rkey, len: self.buffer.len / 2 };
        let list = self.peer.targets;
        let place = u64::from(self.peer_target) * TARGET_LEN as u64;
        self.peer_target = (self.peer_target + 1) % list.len;
        let to = Target { addr: list.addr.wrapping_add(place), rkey: list.rkey, len: TARGET_LEN as u32 };
        Notice::Entry { to, bytes: entry.encode(self.peer.order), message }
    }

    /// Number of buffers that this side can map for the peer.
    pub(crate) fn mappable(&self) -> u16 {
        self.peer.iomaps.unwrap_or(0)
    }

    /// The WRITE of entry `index` to the peer's mapping table, and the message that announces it.
    /// The caller checks [`may_message`](Outgoing::may_message) first.
    // clause: RSOCK-IOMAP
    pub(crate) fn map(&mut self, index: u16, iomap: &Iomap) -> (Target, [u8; IOMAP_LEN], Message) {
        self.outgoing.message();
        let list = self.peer.targets;
        let place = u64::from(list.len) * TARGET_LEN as u64 + u64::from(index) * IOMAP_LEN as u64;
        let to = Target { addr: list.addr.wrapping_add(place), rkey: list.rkey, len: IOMAP_LEN as u32 };
        (to, iomap.encode(self.peer.order), Message::Iomap(index))
    }

    pub(crate) fn set_iomap(&mut self, index: u16, iomap: Iomap) {
        if let Some(entry) = self.iomaps.get_mut(usize::from(index)) {
            *entry = Some(iomap);
        }
    }

    /// The peer's memory that is mapped from `offset` on.
    pub(crate) fn mapped(&self, offset: u64) -> Option<Target> {
        self.iomaps.iter().flatten().find_map(|iomap| iomap.at(offset))
    }
}

/// The receive direction. The buffer is a ring of two halves, granted to the peer in turn; the peer
/// fills a half completely before it begins the other.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Bytes of half the buffer.
    half: u32,
    /// Limit of messages in flight or unread.
    credits: u16,
    /// Remaining lengths of unread messages.
    unread: VecDeque<u32>,
    /// Offset of the first unread byte.
    at: u32,
    /// Bytes that the peer may still write.
    open: u64,
    /// Bytes read but not granted again.
    spare: u32,
    /// The half of the next grant.
    next_half: u32,
    /// Messages read, modulo 2^16, and the number at which the next grant is due.
    read: u16,
    grant_at: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Last number of messages that it may send.
    pub(crate) up_to: u16,
    /// Offset of the granted half of the buffer; `None` for credits only.
    pub(crate) half: Option<u32>,
}

impl Incoming {
    /// A buffer of two halves, the first of which is already granted with `credits` messages.
    pub(crate) const fn new(half: u32, credits: u16) -> Self {
        Self {
            half,
            credits,
            unread: VecDeque::new(),
            at: 0,
            open: half as u64,
            spare: half,
            next_half: 1,
            read: 0,
            grant_at: credits >> 1,
        }
    }

    /// Records `len` arrived bytes.
    ///
    /// # Errors
    /// The peer had no room or no credit for them.
    // clause: RSOCK-OVERRUN
    pub(crate) fn arrived(&mut self, len: u32) -> Result<(), Violation> {
        self.open = self.open.checked_sub(u64::from(len)).ok_or(Violation)?;
        if self.unread.len() >= usize::from(self.credits) {
            return Err(Violation);
        }
        match len {
            0 => self.message_read(),
            _ => self.unread.push_back(len),
        }
        Ok(())
    }

    const fn message_read(&mut self) {
        self.read = self.read.wrapping_add(1);
    }

    pub(crate) fn has_data(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Range of contiguous unread bytes, at most `max`, after the first `skip`; may be empty.
    pub(crate) fn peek(&self, skip: u32, max: usize) -> Range<u32> {
        let unread: u64 = self.unread.iter().map(|len| u64::from(*len)).sum();
        let start = (u64::from(self.at) + u64::from(skip)) % u64::from(2 * self.half);
        let left = unread.saturating_sub(u64::from(skip)).min(u64::from(2 * self.half) - start);
        // Both are below twice `half`, a `u32`.
        let len = left.min(max as u64) as u32;
        start as u32..start as u32 + len
    }

    pub(crate) fn consume(&mut self, len: u32) {
        self.at = ((u64::from(self.at) + u64::from(len)) % u64::from(2 * self.half)) as u32;
        self.spare += len;
        let mut left = len;
        while let Some(first) = self.unread.front_mut() {
            if *first > left {
                *first -= left;
                break;
            }
            left -= *first;
            self.unread.pop_front();
            self.message_read();
        }
    }

    /// Returns true if a grant is due: half the buffer was read, or half the credits are used.
    // clause: RSOCK-GRANT
    const fn wants_grant(&self) -> bool {
        self.spare >= self.half || self.read.wrapping_sub(self.grant_at) < 1 << 15
    }

    /// Makes the grant that [`wants_grant`](Self::wants_grant) requests.
    pub(crate) fn grant(&mut self) -> Grant {
        self.grant_at = self.read.wrapping_add(self.credits >> 1);
        let half = (self.spare >= self.half).then(|| {
            self.spare -= self.half;
            self.open += u64::from(self.half);
            let offset = self.next_half * self.half;
            self.next_half ^= 1;
            offset
        });
        Grant { up_to: self.read.wrapping_add(self.credits), half }
    }
}

/// Free bytes of the send buffer for the next write: a slow peer must not cause tiny writes.
const LOW_WATER: u32 = 2048;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) to: Target,
    /// Bytes of the write in the send buffer until it completes: two parts where the ring wraps.
    /// Both are empty for inline data.
    pub(crate) parts: [Range<u32>; 2],
}

impl Write {
    pub(crate) fn held(&self) -> u32 {
        self.parts.iter().map(|part| part.end - part.start).sum()
    }
}

#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Free slots of the send queue for data.
    slots: u32,
    all_slots: u32,
    /// Messages sent, and allowed, modulo 2^16.
    sent: u16,
    allowed: u16,
    /// Remaining part of the peer's buffer that is being filled.
    target: Target,
    /// Next entry of the list of targets.
    next_target: usize,
    /// True if the peer may have written the list since it was read.
    targets_written: bool,
    buffer: Ring,
}

/// The send buffer, a ring.
#[derive(Debug)]
struct Ring {
    len: u32,
    head: u32,
    free: u32,
}

impl Outgoing {
    /// `slots` of the send queue, a send buffer of `buffer` bytes, and the peer's first grant.
    pub(crate) const fn new(slots: u16, buffer: u32, credits: u16, first: Target) -> Self {
        let slots = slots as u32;
        Self {
            slots,
            all_slots: slots,
            sent: 0,
            allowed: credits,
            target: first,
            next_target: 1,
            targets_written: false,
            buffer: Ring { len: buffer, head: 0, free: buffer },
        }
    }

    /// Bytes that the next write may have; 0 if it may not leave yet.
    // clause: RSOCK-CREDITS
    pub(crate) fn room(&self) -> u32 {
        if self.may_message() { self.target.len.min(self.buffer.free) } else { 0 }
    }

    /// Returns true if a message that uses a credit may leave.
    pub(crate) fn may_message(&self) -> bool {
        self.sent != self.allowed && self.may_write()
    }

    /// Returns true if a WRITE without a credit may leave: one into a mapping.
    pub(crate) fn may_write(&self) -> bool {
        // A smaller buffer than the mark has to be empty.
        self.slots > 0 && self.buffer.free >= self.buffer.len.min(LOW_WATER)
    }

    pub(crate) const fn buffer_room(&self) -> u32 {
        self.buffer.free
    }

    /// Takes the next `len` bytes, at most [`room`](Self::room), of the peer's buffer. `buffered`
    /// if the data stays in the send buffer until it completes.
    pub(crate) fn data(&mut self, len: u32, buffered: bool) -> Write {
        let len = len.min(self.target.len);
        let to = Target { len, ..self.target };
        self.target.addr = self.target.addr.wrapping_add(u64::from(len));
        self.target.len -= len;
        self.sent = self.sent.wrapping_add(1);
        self.write(to, buffered)
    }

    /// Takes a credit and a slot for a message without data.
    pub(crate) const fn message(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        self.slots = self.slots.saturating_sub(1);
    }

    /// Takes a slot for a WRITE without a credit, into a mapping. The caller checks
    /// [`may_write`](Self::may_write) first.
    pub(crate) fn write(&mut self, to: Target, buffered: bool) -> Write {
        self.slots = self.slots.saturating_sub(1);
        let parts = if buffered { self.buffer.take(to.len) } else { [0..0, 0..0] };
        Write { to, parts }
    }

    /// Frees the resources of a completed write or message.
    pub(crate) fn done(&mut self, held: u32) {
        self.slots = (self.slots + 1).min(self.all_slots);
        self.buffer.free = self.buffer.free.saturating_add(held).min(self.buffer.len);
    }

    pub(crate) const fn is_done(&self) -> bool {
        self.slots == self.all_slots
    }

    /// Records a credit message. The peer may have written the list of targets before it.
    pub(crate) const fn allow(&mut self, up_to: u16) {
        self.allowed = up_to;
        self.targets_written = true;
    }

    /// The entry of the list of targets to read, if the current target is full and the peer has
    /// sent a credit since the last read.
    // clause: RSOCK-TARGET-ORDER
    pub(crate) fn wants_target(&mut self) -> Option<usize> {
        (self.target.len == 0 && std::mem::take(&mut self.targets_written)).then_some(self.next_target)
    }

    /// Sets the target that was read; an empty one is not written yet.
    pub(crate) fn set_target(&mut self, target: Target) {
        if target.len > 0 {
            self.target = target;
            self.next_target = (self.next_target + 1) % super::conn::TARGETS;
        }
    }
}

impl Ring {
    fn take(&mut self, len: u32) -> [Range<u32>; 2] {
        let first = len.min(self.len - self.head);
        let parts = [self.head..self.head + first, 0..len - first];
        self.head = if first < len { len - first } else { (self.head + first) % self.len };
        self.free = self.free.saturating_sub(len);
        parts
    }
}

#[cfg(test)]
mod direction_tests {
    use super::*;

    // clause: RSOCK-GRANT
    #[test]
    fn halves_are_granted_in_turn_as_they_are_read() {
        let mut inc = Incoming::new(100, 16);
        assert!(inc.wants_grant());
        assert_eq!(inc.grant(), Grant { up_to: 16, half: Some(100) });
        assert!(!inc.wants_grant());
        inc.arrived(60).unwrap();
        inc.arrived(40).unwrap();
        inc.consume(99);
        assert!(!inc.wants_grant());
        inc.consume(1);
        assert!(inc.wants_grant());
        assert_eq!(inc.grant(), Grant { up_to: 18, half: Some(0) });
        inc.arrived(100).unwrap();
        inc.consume(100);
        assert_eq!(inc.grant(), Grant { up_to: 19, half: Some(100) });
    }

    // clause: RSOCK-GRANT
    #[test]
    fn credits_are_granted_when_half_are_used() {
        let mut inc = Incoming::new(1 << 20, 16);
        inc.grant();
        for _ in 0..7 {
            inc.arrived(1).unwrap();
            inc.consume(1);
            assert!(!inc.wants_grant());
        }
        inc.arrived(1).unwrap();
        assert!(!inc.wants_grant(), "an unread message holds its credit");
        inc.consume(1);
        assert!(inc.wants_grant());
        assert_eq!(inc.grant(), Grant { up_to: 24, half: None });
        for _ in 0..100_000u32 {
            inc.arrived(1).unwrap();
            inc.consume(1);
            if inc.wants_grant() {
                inc.grant();
            }
        }
    }

    #[test]
    fn reading_wraps_around_the_buffer() {
        let mut inc = Incoming::new(50, 16);
        inc.grant();
        inc.arrived(50).unwrap();
        inc.arrived(30).unwrap();
        assert_eq!(inc.peek(0, 1000), 0..80);
        assert_eq!(inc.peek(60, 5), 60..65);
        assert_eq!(inc.peek(80, 5), 80..80);
        inc.consume(70);
        inc.grant();
        inc.arrived(20).unwrap();
        inc.arrived(25).unwrap();
        assert_eq!(inc.peek(0, 1000), 70..100);
        assert_eq!(inc.peek(30, 1000), 0..25);
        inc.consume(30);
        assert_eq!(inc.peek(0, 10), 0..10);
        inc.consume(25);
        assert!(!inc.has_data());
        assert_eq!(inc.peek(0, 10), 25..25);
    }

    // clause: RSOCK-OVERRUN
    #[test]
    fn writing_beyond_the_grant_is_a_violation() {
        let mut inc = Incoming::new(50, 4);
        assert_eq!(inc.arrived(51), Err(Violation));
        let mut inc = Incoming::new(50, 4);
        for _ in 0..4 {
            inc.arrived(1).unwrap();
        }
        assert_eq!(inc.arrived(1), Err(Violation));
    }

    #[test]
    fn empty_message_uses_a_credit() {
        let mut inc = Incoming::new(50, 2);
        inc.grant();
        inc.arrived(0).unwrap();
        assert!(!inc.has_data());
        assert_eq!(inc.grant(), Grant { up_to: 3, half: None });
    }

    fn target(addr: u64, len: u32) -> Target {
        Target { addr, rkey: 5, len }
    }

    // clause: RSOCK-CREDITS
    #[test]
    fn data_needs_credit_slot_target_and_buffer() {
        let mut out = Outgoing::new(3, 4096, 2, target(0x100, 9000));
        assert_eq!(out.room(), 4096);
        assert_eq!(out.data(2048, true), Write { to: target(0x100, 2048), parts: [0..2048, 0..0] });
        assert_eq!(out.room(), 2048);
        assert_eq!(out.data(10, false), Write { to: target(0x900, 10), parts: [0..0, 0..0] });
        assert_eq!(out.room(), 0, "no credit");
        out.allow(5);
        assert_eq!(out.room(), 2048);
        out.data(1, true);
        assert_eq!(out.room(), 0, "no slot");
        out.done(2048);
        assert_eq!(out.room(), 4095);
        assert!(!out.is_done());
        out.done(0);
        out.done(1);
        assert!(out.is_done());
    }

    // clause: RSOCK-CREDITS
    #[test]
    fn credits_wrap_around_sixteen_bits() {
        let mut out = Outgoing::new(8, 4096, 0, target(0, 1 << 20));
        for _ in 0..70_000u32 {
            let next = out.sent.wrapping_add(1);
            assert_eq!(out.room(), 0);
            out.allow(next);
            out.data(1, false);
            out.done(0);
        }
    }

    // clause: RSOCK-TARGET-ORDER
    #[test]
    fn targets_are_filled_completely_and_in_turn() {
        let mut out = Outgoing::new(8, 8192, 100, target(0x100, 3));
        assert_eq!(out.wants_target(), None, "the first is there from the start");
        out.data(3, false);
        assert_eq!(out.room(), 0);
        assert_eq!(out.wants_target(), None, "the peer has not spoken");
        out.allow(100);
        assert_eq!(out.wants_target(), Some(1));
        out.set_target(Target::default());
        assert_eq!(out.wants_target(), None, "nothing new since the look");
        out.allow(101);
        assert_eq!(out.wants_target(), Some(1));
        out.set_target(target(0x900, 7));
        assert_eq!(out.data(7, false).to, target(0x900, 7));
        out.allow(102);
        assert_eq!(out.wants_target(), Some(0));
    }

    #[test]
    fn send_buffer_wraps_around() {
        let mut out = Outgoing::new(8, 5000, 100, target(0, 1 << 20));
        assert_eq!(out.data(3000, true).parts, [0..3000, 0..0]);
        out.done(3000);
        let write = out.data(2500, true);
        assert_eq!(write.parts, [3000..5000, 0..500]);
        assert_eq!(write.held(), 2500);
        assert_eq!(out.room(), 2500);
        assert_eq!(out.data(2500, true).parts, [500..3000, 0..0]);
        assert_eq!(out.room(), 0);
    }

    #[test]
    fn small_send_buffer_waits_until_it_is_empty() {
        let mut out = Outgoing::new(8, 100, 100, target(0, 1 << 20));
        assert_eq!(out.room(), 100);
        out.data(60, true);
        assert_eq!(out.room(), 0);
        out.done(60);
        assert_eq!(out.room(), 100);
    }
}

#[cfg(test)]
mod tests;
