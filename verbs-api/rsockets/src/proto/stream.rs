//! The protocol of a connected stream: both directions, messages about the connection, and its end.

use super::Violation;
use super::conn::{ConnData, IOMAP_LEN, Iomap, TARGET_LEN, Target};
use super::message::{Control, Message};
use std::collections::VecDeque;
use std::ops::Range;

/// Slots of the send queue that are reserved for notices, so that data cannot keep a side from
/// granting space.
pub(crate) const CONTROL_SLOTS: u16 = 4;

/// Sizes of this side, fixed before it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Slots of the send queue; more than [`CONTROL_SLOTS`].
    pub(crate) send_queue: u16,
    /// Messages that the peer may send before the next grant.
    pub(crate) recv_queue: u16,
    /// Size of the send buffer, in bytes.
    pub(crate) send_buffer: u32,
    /// Size of the receive buffer, in bytes; even.
    pub(crate) recv_buffer: u32,
    /// Mappings that the peer may create.
    pub(crate) iomaps: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnState {
    Up,
    /// One side has ended the connection.
    Down,
    /// An error has ended the connection.
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
    pub(crate) const fn completion_kind(&self) -> CompletionKind {
        match self {
            Self::Message(Message::Control(Control::Disconnect)) => CompletionKind::Disconnect,
            _ => CompletionKind::Notice,
        }
    }
}

/// Kind of a completed send request, which determines the resources that it frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionKind {
    /// A WRITE of data or mappings. The number of bytes that it held in the send buffer.
    Data(u32),
    Notice,
    /// The notice of a disconnect.
    Disconnect,
}

/// The state of a connected stream. The driver (`stream/open.rs`) posts the requests, reports
/// completions and received messages, and moves the bytes.
#[derive(Debug)]
pub(crate) struct Stream {
    state: ConnState,
    /// True if the peer may send more.
    readable: bool,
    /// True if this side may send more.
    writable: bool,
    /// True if the program has shut down sending.
    shut_by_program: bool,
    /// Shutdown or disconnect to announce.
    pending_end: Option<Control>,
    /// True if a probe is to be sent.
    probe: bool,
    /// Free slots of the send queue for notices.
    control_free: u16,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    /// The receive buffer of this side, as the peer addresses it.
    buffer: Target,
    peer: ConnData,
    /// Next entry to write in the peer's target list.
    peer_target: u32,
    /// The peer's mappings.
    iomaps: Vec<Option<Iomap>>,
}

impl Stream {
    /// Returns the state of a new connection. `buffer` is the receive buffer of this side, as the
    /// peer addresses it.
    pub(crate) fn new(sizes: &Sizes, buffer: Target, peer: ConnData) -> Self {
        let slots = sizes.send_queue.saturating_sub(CONTROL_SLOTS);
        Self {
            state: ConnState::Up,
            readable: true,
            writable: true,
            shut_by_program: false,
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

    pub(crate) const fn state(&self) -> ConnState {
        self.state
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
    pub(crate) const fn shut_by_program(&self) -> bool {
        self.shut_by_program
    }

    pub(crate) fn can_send(&self) -> bool {
        self.outgoing.sendable_len() > 0
    }

    /// Returns true if no posted or pending request can complete any more: all are complete, or the
    /// connection has ended.
    pub(crate) fn is_settled(&self) -> bool {
        let notices_done = self.pending_end.is_none() && self.control_free == CONTROL_SLOTS;
        self.state != ConnState::Up || notices_done && self.outgoing.is_idle()
    }

    /// Handles a message of the peer. If the peer has written an entry of the mapping table,
    /// returns its index: the driver then passes the entry to [`set_iomap`](Self::set_iomap).
    ///
    /// # Errors
    /// [`Violation`] if the message violates the protocol; the stream is broken then.
    pub(crate) fn handle_message(&mut self, imm: u32) -> Result<Option<u16>, Violation> {
        if self.state != ConnState::Up {
            return Ok(None);
        }
        let iomap_index = self.apply_message(imm);
        if iomap_index.is_err() {
            self.break_off();
        }
        iomap_index
    }

    // clause: RSOCK-SHUTDOWN, RSOCK-DISCONNECT
    fn apply_message(&mut self, imm: u32) -> Result<Option<u16>, Violation> {
        match Message::decode(imm)? {
            Message::Data(len) => self.incoming.record_arrival(len)?,
            Message::Credit(up_to) => self.outgoing.set_credit_limit(up_to),
            Message::Iomap(index) => {
                self.incoming.count_read_message();
                return Ok(Some(index));
            }
            Message::Control(Control::Shutdown) if self.writable => self.readable = false,
            Message::Control(Control::Disconnect | Control::Shutdown) => self.end(),
            Message::Control(Control::Keepalive | Control::Unknown) => {}
        }
        Ok(None)
    }

    pub(crate) fn handle_completion(&mut self, kind: CompletionKind) {
        match kind {
            CompletionKind::Data(held) => self.outgoing.complete(held),
            CompletionKind::Notice => self.control_free = (self.control_free + 1).min(CONTROL_SLOTS),
            CompletionKind::Disconnect => self.end(),
        }
    }

    /// Ends the connection, after a message of the peer or an event of the connection manager.
    /// Received data stays readable.
    pub(crate) const fn end(&mut self) {
        if matches!(self.state, ConnState::Up) {
            self.state = ConnState::Down;
        }
        self.readable = false;
        self.writable = false;
    }

    /// Breaks the connection: a request failed, or the peer violated the protocol.
    pub(crate) const fn break_off(&mut self) {
        if matches!(self.state, ConnState::Up) {
            self.end();
            self.state = ConnState::Broken;
        }
    }

    /// Ends receiving, sending or both. Queues a [`Notice`] for the peer, unless only receiving
    /// ends.
    // clause: RSOCK-SHUTDOWN, RSOCK-DISCONNECT
    pub(crate) fn shut_down(&mut self, read: bool, write: bool) {
        let (was_readable, was_writable) = (self.readable, self.writable);
        self.readable &= !read;
        self.writable &= !write;
        self.shut_by_program |= write;
        let changed = was_readable != self.readable || was_writable != self.writable;
        if self.state != ConnState::Up || !changed {
            return;
        }
        match (self.readable, self.writable) {
            (false, false) => self.pending_end = Some(Control::Disconnect),
            (true, false) => self.pending_end = Some(Control::Shutdown),
            _ => {}
        }
    }

    /// Queues a probe, which breaks the connection if the peer does not acknowledge it.
    // clause: RSOCK-KEEPALIVE
    pub(crate) const fn keep_alive(&mut self) {
        self.probe = true;
    }

    /// Returns the next notice to post, if any. The driver calls this after every event.
    // clause: RSOCK-CONTROL-SLOTS
    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        if self.state != ConnState::Up || self.control_free == 0 {
            return None;
        }
        let notice = if self.incoming.is_grant_due() {
            self.grant_notice()
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

    /// Grants credits and, if half of the receive buffer is free, that half to the peer.
    // clause: RSOCK-TARGET-ORDER
    fn grant_notice(&mut self) -> Notice {
        let Grant { up_to, half } = self.incoming.grant();
        let message = Message::Credit(up_to);
        let Some(offset) = half else {
            return Notice::Message(message);
        };
        let addr = self.buffer.addr.wrapping_add(u64::from(offset));
        let entry = Target { addr, rkey: self.buffer.rkey, len: self.buffer.len / 2 };
        let list = self.peer.targets;
        let list_offset = u64::from(self.peer_target) * TARGET_LEN as u64;
        self.peer_target = (self.peer_target + 1) % list.len;
        let to = Target { addr: list.addr.wrapping_add(list_offset), rkey: list.rkey, len: TARGET_LEN as u32 };
        Notice::Entry { to, bytes: entry.encode(self.peer.order), message }
    }

    /// Returns the number of buffers that this side can map for the peer.
    pub(crate) fn mappable_count(&self) -> u16 {
        self.peer.iomaps.unwrap_or(0)
    }

    /// Returns the WRITE of entry `index` to the peer's mapping table, and the message that
    /// announces it. Takes a credit and a slot: the caller first checks
    /// [`can_send_message`](Outgoing::can_send_message).
    // clause: RSOCK-IOMAP
    pub(crate) fn announce_mapping(&mut self, index: u16, iomap: &Iomap) -> (Target, [u8; IOMAP_LEN], Message) {
        self.outgoing.start_message();
        let list = self.peer.targets;
        // The mapping table follows the target list.
        let list_offset = u64::from(list.len) * TARGET_LEN as u64 + u64::from(index) * IOMAP_LEN as u64;
        let to = Target { addr: list.addr.wrapping_add(list_offset), rkey: list.rkey, len: IOMAP_LEN as u32 };
        (to, iomap.encode(self.peer.order), Message::Iomap(index))
    }

    pub(crate) fn set_iomap(&mut self, index: u16, iomap: Iomap) {
        if let Some(entry) = self.iomaps.get_mut(usize::from(index)) {
            *entry = Some(iomap);
        }
    }

    /// Returns the peer's memory that is mapped from `offset` on; `None` if no mapping covers it.
    pub(crate) fn find_mapping(&self, offset: u64) -> Option<Target> {
        self.iomaps.iter().flatten().find_map(|iomap| iomap.target_at(offset))
    }
}

/// The receive direction. The buffer is a ring of two halves, granted to the peer in turn; the peer
/// fills a half completely before it begins the other.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Half the size of the buffer, in bytes.
    half: u32,
    /// Messages that may be in flight or unread.
    credits: u16,
    /// Remaining lengths of unread messages, in bytes.
    unread: VecDeque<u32>,
    /// Offset of the first unread byte.
    read_offset: u32,
    /// Bytes that the peer may still write.
    writable_bytes: u64,
    /// Bytes that are free but not granted to the peer.
    ungranted_bytes: u32,
    /// The half that the next grant contains, 0 or 1.
    next_half: u32,
    /// Messages read, modulo 2^16.
    messages_read: u16,
    /// Value of `messages_read` at which the next grant is due.
    grant_at: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Number (modulo 2^16) of the last message that the peer may send.
    pub(crate) up_to: u16,
    /// Offset of the granted half of the buffer; `None` for credits only.
    pub(crate) half: Option<u32>,
}

impl Incoming {
    /// Returns an empty buffer. The connection data has granted its first half, and `credits`
    /// messages, to the peer.
    pub(crate) const fn new(half: u32, credits: u16) -> Self {
        Self {
            half,
            credits,
            unread: VecDeque::new(),
            read_offset: 0,
            writable_bytes: half as u64,
            ungranted_bytes: half,
            next_half: 1,
            messages_read: 0,
            grant_at: credits >> 1,
        }
    }

    /// Records a message of `len` bytes.
    ///
    /// # Errors
    /// [`Violation`] if the peer had no space or no credit for it.
    // clause: RSOCK-OVERRUN
    pub(crate) fn record_arrival(&mut self, len: u32) -> Result<(), Violation> {
        self.writable_bytes = self.writable_bytes.checked_sub(u64::from(len)).ok_or(Violation)?;
        if self.unread.len() >= usize::from(self.credits) {
            return Err(Violation);
        }
        match len {
            0 => self.count_read_message(),
            _ => self.unread.push_back(len),
        }
        Ok(())
    }

    const fn count_read_message(&mut self) {
        self.messages_read = self.messages_read.wrapping_add(1);
    }

    pub(crate) fn has_data(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Returns the range of the contiguous unread bytes, at most `max`, after the first `skip`; may
    /// be empty.
    pub(crate) fn peek(&self, skip: u32, max: usize) -> Range<u32> {
        let unread: u64 = self.unread.iter().map(|len| u64::from(*len)).sum();
        let start = (u64::from(self.read_offset) + u64::from(skip)) % u64::from(2 * self.half);
        let left = unread.saturating_sub(u64::from(skip)).min(u64::from(2 * self.half) - start);
        // The casts lose nothing: both are at most the size of the buffer, which is a `u32`.
        let len = left.min(max as u64) as u32;
        start as u32..start as u32 + len
    }

    /// Frees the first `len` unread bytes.
    pub(crate) fn consume(&mut self, len: u32) {
        self.read_offset = ((u64::from(self.read_offset) + u64::from(len)) % u64::from(2 * self.half)) as u32;
        self.ungranted_bytes += len;
        let mut left = len;
        while let Some(first) = self.unread.front_mut() {
            if *first > left {
                *first -= left;
                break;
            }
            left -= *first;
            self.unread.pop_front();
            self.count_read_message();
        }
    }

    /// Returns true if a grant is due: half of the buffer is free, or half of the credits are used.
    // clause: RSOCK-GRANT
    const fn is_grant_due(&self) -> bool {
        self.ungranted_bytes >= self.half || self.messages_read.wrapping_sub(self.grant_at) < 1 << 15
    }

    /// Grants all credits and, if it is free, the next half of the buffer.
    pub(crate) fn grant(&mut self) -> Grant {
        self.grant_at = self.messages_read.wrapping_add(self.credits >> 1);
        let half = (self.ungranted_bytes >= self.half).then(|| {
            self.ungranted_bytes -= self.half;
            self.writable_bytes += u64::from(self.half);
            let offset = self.next_half * self.half;
            self.next_half ^= 1;
            offset
        });
        Grant { up_to: self.messages_read.wrapping_add(self.credits), half }
    }
}

/// Free bytes of the send buffer that a WRITE needs, so that a slow peer does not cause tiny
/// WRITEs.
const LOW_WATER: u32 = 2048;

/// A WRITE to post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) to: Target,
    /// Ranges of the send buffer that hold the data until the WRITE completes: two if the ring
    /// wraps. Both are empty for inline data.
    pub(crate) parts: [Range<u32>; 2],
}

impl Write {
    /// Returns the number of bytes that the WRITE holds in the send buffer.
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.parts.iter().map(|part| part.end - part.start).sum()
    }
}

/// The send direction.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Free slots of the send queue for data.
    slots: u32,
    /// All slots of the send queue for data.
    slot_count: u32,
    /// Messages sent, modulo 2^16.
    sent: u16,
    /// Number (modulo 2^16) of the last message that may be sent.
    credit_limit: u16,
    /// The rest of the half of the peer's buffer that is being filled.
    target: Target,
    /// Index of the next entry of the target list.
    next_target: usize,
    /// True if the peer may have written the target list since this side read it.
    targets_written: bool,
    buffer: Ring,
}

/// The send buffer, a ring.
#[derive(Debug)]
struct Ring {
    /// Size in bytes.
    len: u32,
    /// Offset at which the next data is stored.
    head: u32,
    /// Free bytes.
    free: u32,
}

impl Outgoing {
    /// Returns the state of a new connection: `slots` of the send queue, a send buffer of `buffer`
    /// bytes, and the credits and target that the peer's connection data grants.
    pub(crate) const fn new(slots: u16, buffer: u32, credits: u16, first: Target) -> Self {
        let slots = slots as u32;
        Self {
            slots,
            slot_count: slots,
            sent: 0,
            credit_limit: credits,
            target: first,
            next_target: 1,
            targets_written: false,
            buffer: Ring { len: buffer, head: 0, free: buffer },
        }
    }

    /// Returns the largest length of the next data, in bytes; 0 if no data may be sent now.
    // clause: RSOCK-CREDITS
    pub(crate) fn sendable_len(&self) -> u32 {
        if self.can_send_message() { self.target.len.min(self.buffer.free) } else { 0 }
    }

    /// Returns true if a message, which uses a credit, may be sent now.
    pub(crate) fn can_send_message(&self) -> bool {
        self.sent != self.credit_limit && self.can_write()
    }

    /// Returns true if a WRITE to a mapping, which uses no credit, may be posted now.
    pub(crate) fn can_write(&self) -> bool {
        // A buffer smaller than the mark must be empty.
        self.slots > 0 && self.buffer.free >= self.buffer.len.min(LOW_WATER)
    }

    /// Returns the free bytes of the send buffer.
    pub(crate) const fn buffer_room(&self) -> u32 {
        self.buffer.free
    }

    /// Takes a credit, a slot, and the next `len` bytes of the peer's buffer, at most
    /// [`sendable_len`](Self::sendable_len). If `buffered`, also takes space in the send buffer.
    pub(crate) fn start_data(&mut self, len: u32, buffered: bool) -> Write {
        let len = len.min(self.target.len);
        let to = Target { len, ..self.target };
        self.target.addr = self.target.addr.wrapping_add(u64::from(len));
        self.target.len -= len;
        self.sent = self.sent.wrapping_add(1);
        self.start_write(to, buffered)
    }

    /// Takes a credit and a slot for a message without data.
    pub(crate) const fn start_message(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        self.slots = self.slots.saturating_sub(1);
    }

    /// Takes a slot for a WRITE. If `buffered`, also takes space in the send buffer. The caller
    /// first checks [`can_write`](Self::can_write).
    pub(crate) fn start_write(&mut self, to: Target, buffered: bool) -> Write {
        self.slots = self.slots.saturating_sub(1);
        let parts = if buffered { self.buffer.take(to.len) } else { [0..0, 0..0] };
        Write { to, parts }
    }

    /// Frees the slot of a completed WRITE, and the `held` bytes of the send buffer.
    pub(crate) fn complete(&mut self, held: u32) {
        self.slots = (self.slots + 1).min(self.slot_count);
        self.buffer.free = self.buffer.free.saturating_add(held).min(self.buffer.len);
    }

    pub(crate) const fn is_idle(&self) -> bool {
        self.slots == self.slot_count
    }

    /// Records a credit message. The peer may have written the target list before it.
    pub(crate) const fn set_credit_limit(&mut self, up_to: u16) {
        self.credit_limit = up_to;
        self.targets_written = true;
    }

    /// Returns the index of the entry of the target list to read now: if the current target is full
    /// and the peer has sent a credit message since the last call.
    // clause: RSOCK-TARGET-ORDER
    pub(crate) fn poll_target_index(&mut self) -> Option<usize> {
        (self.target.len == 0 && std::mem::take(&mut self.targets_written)).then_some(self.next_target)
    }

    /// Sets the target that was read. Ignores an empty one, which the peer has not written yet.
    pub(crate) fn set_target(&mut self, target: Target) {
        if target.len > 0 {
            self.target = target;
            self.next_target = (self.next_target + 1) % super::conn::TARGETS;
        }
    }
}

impl Ring {
    /// Takes `len` bytes, in two ranges if the ring wraps.
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
    fn read_halves_are_granted_in_turn() {
        let mut inc = Incoming::new(100, 16);
        assert!(inc.is_grant_due());
        assert_eq!(inc.grant(), Grant { up_to: 16, half: Some(100) });
        assert!(!inc.is_grant_due());
        inc.record_arrival(60).unwrap();
        inc.record_arrival(40).unwrap();
        inc.consume(99);
        assert!(!inc.is_grant_due());
        inc.consume(1);
        assert!(inc.is_grant_due());
        assert_eq!(inc.grant(), Grant { up_to: 18, half: Some(0) });
        inc.record_arrival(100).unwrap();
        inc.consume(100);
        assert_eq!(inc.grant(), Grant { up_to: 19, half: Some(100) });
    }

    // clause: RSOCK-GRANT
    #[test]
    fn credits_are_granted_when_half_of_them_are_used() {
        let mut inc = Incoming::new(1 << 20, 16);
        inc.grant();
        for _ in 0..7 {
            inc.record_arrival(1).unwrap();
            inc.consume(1);
            assert!(!inc.is_grant_due());
        }
        inc.record_arrival(1).unwrap();
        assert!(!inc.is_grant_due(), "an unread message holds its credit");
        inc.consume(1);
        assert!(inc.is_grant_due());
        assert_eq!(inc.grant(), Grant { up_to: 24, half: None });
        for _ in 0..100_000u32 {
            inc.record_arrival(1).unwrap();
            inc.consume(1);
            if inc.is_grant_due() {
                inc.grant();
            }
        }
    }

    #[test]
    fn reading_wraps_around_the_buffer() {
        let mut inc = Incoming::new(50, 16);
        inc.grant();
        inc.record_arrival(50).unwrap();
        inc.record_arrival(30).unwrap();
        assert_eq!(inc.peek(0, 1000), 0..80);
        assert_eq!(inc.peek(60, 5), 60..65);
        assert_eq!(inc.peek(80, 5), 80..80);
        inc.consume(70);
        inc.grant();
        inc.record_arrival(20).unwrap();
        inc.record_arrival(25).unwrap();
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
        assert_eq!(inc.record_arrival(51), Err(Violation));
        let mut inc = Incoming::new(50, 4);
        for _ in 0..4 {
            inc.record_arrival(1).unwrap();
        }
        assert_eq!(inc.record_arrival(1), Err(Violation));
    }

    #[test]
    fn empty_message_uses_a_credit() {
        let mut inc = Incoming::new(50, 2);
        inc.grant();
        inc.record_arrival(0).unwrap();
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
        assert_eq!(out.sendable_len(), 4096);
        assert_eq!(out.start_data(2048, true), Write { to: target(0x100, 2048), parts: [0..2048, 0..0] });
        assert_eq!(out.sendable_len(), 2048);
        assert_eq!(out.start_data(10, false), Write { to: target(0x900, 10), parts: [0..0, 0..0] });
        assert_eq!(out.sendable_len(), 0, "no credit");
        out.set_credit_limit(5);
        assert_eq!(out.sendable_len(), 2048);
        out.start_data(1, true);
        assert_eq!(out.sendable_len(), 0, "no slot");
        out.complete(2048);
        assert_eq!(out.sendable_len(), 4095);
        assert!(!out.is_idle());
        out.complete(0);
        out.complete(1);
        assert!(out.is_idle());
    }

    // clause: RSOCK-CREDITS
    #[test]
    fn credits_wrap_around_sixteen_bits() {
        let mut out = Outgoing::new(8, 4096, 0, target(0, 1 << 20));
        for _ in 0..70_000u32 {
            let next = out.sent.wrapping_add(1);
            assert_eq!(out.sendable_len(), 0);
            out.set_credit_limit(next);
            out.start_data(1, false);
            out.complete(0);
        }
    }

    // clause: RSOCK-TARGET-ORDER
    #[test]
    fn targets_are_filled_completely_and_in_turn() {
        let mut out = Outgoing::new(8, 8192, 100, target(0x100, 3));
        assert_eq!(out.poll_target_index(), None, "the connection data has the first target");
        out.start_data(3, false);
        assert_eq!(out.sendable_len(), 0);
        assert_eq!(out.poll_target_index(), None, "no credit message has arrived");
        out.set_credit_limit(100);
        assert_eq!(out.poll_target_index(), Some(1));
        out.set_target(Target::default());
        assert_eq!(out.poll_target_index(), None, "no credit message since the last read");
        out.set_credit_limit(101);
        assert_eq!(out.poll_target_index(), Some(1));
        out.set_target(target(0x900, 7));
        assert_eq!(out.start_data(7, false).to, target(0x900, 7));
        out.set_credit_limit(102);
        assert_eq!(out.poll_target_index(), Some(0));
    }

    #[test]
    fn send_buffer_wraps_around() {
        let mut out = Outgoing::new(8, 5000, 100, target(0, 1 << 20));
        assert_eq!(out.start_data(3000, true).parts, [0..3000, 0..0]);
        out.complete(3000);
        let write = out.start_data(2500, true);
        assert_eq!(write.parts, [3000..5000, 0..500]);
        assert_eq!(write.buffer_bytes(), 2500);
        assert_eq!(out.sendable_len(), 2500);
        assert_eq!(out.start_data(2500, true).parts, [500..3000, 0..0]);
        assert_eq!(out.sendable_len(), 0);
    }

    #[test]
    fn small_send_buffer_waits_until_it_is_empty() {
        let mut out = Outgoing::new(8, 100, 100, target(0, 1 << 20));
        assert_eq!(out.sendable_len(), 100);
        out.start_data(60, true);
        assert_eq!(out.sendable_len(), 0);
        out.complete(60);
        assert_eq!(out.sendable_len(), 100);
    }
}

#[cfg(test)]
mod tests;
