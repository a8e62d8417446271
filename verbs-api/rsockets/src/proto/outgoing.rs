//! The way out: where the next bytes go in the peer's buffer, whether they may, and where they wait
//! until it has them.

use super::conn::Target;
use std::ops::Range;

/// The send buffer must have as much room before the next write starts, so that a slow peer does
/// not make for tiny ones.
const LOW_WATER: u32 = 2048;

/// A write that may leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    /// Where it goes; `len` is its length.
    pub(crate) to: Target,
    /// Where its bytes stand in the send buffer until it is complete: two parts where the buffer
    /// ends in between. Both empty for bytes that are copied while posting.
    pub(crate) parts: [Range<u32>; 2],
}

impl Write {
    /// Bytes of the send buffer that it holds.
    pub(crate) fn held(&self) -> u32 {
        self.parts.iter().map(|part| part.end - part.start).sum()
    }
}

/// One direction of a stream, as its sender sees it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Places in the send queue that data may take.
    slots: u32,
    all_slots: u32,
    /// Messages sent, and how many may be, both modulo 2^16.
    sent: u16,
    allowed: u16,
    /// The rest of the part of the peer's buffer that is being filled.
    target: Target,
    /// Which entry of the list of targets comes next.
    next_target: usize,
    /// The peer said that it may have written the list.
    targets_written: bool,
    buffer: Ring,
}

/// The send buffer: bytes leave it in the order in which they came.
#[derive(Debug)]
struct Ring {
    len: u32,
    head: u32,
    free: u32,
}

impl Outgoing {
    /// `slots` of the send queue, a send buffer of `buffer` bytes, and what the peer allows at
    /// first.
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

    /// How many bytes the next write may have, none if it may not leave yet.
    // clause: RSOCK-CREDITS
    pub(crate) fn room(&self) -> u32 {
        if self.may_message() { self.target.len.min(self.buffer.free) } else { 0 }
    }

    /// Whether a message that takes a credit may leave.
    pub(crate) fn may_message(&self) -> bool {
        self.sent != self.allowed && self.may_write()
    }

    /// Whether a WRITE that takes no credit may leave: one into a mapping.
    pub(crate) fn may_write(&self) -> bool {
        // A buffer smaller than the usual mark waits until it is empty.
        self.slots > 0 && self.buffer.free >= self.buffer.len.min(LOW_WATER)
    }

    /// Free bytes of the send buffer.
    pub(crate) const fn buffer_room(&self) -> u32 {
        self.buffer.free
    }

    /// The next `len` bytes, at most [`room`](Self::room), into the peer's buffer. `buffered` if
    /// they wait in the send buffer.
    pub(crate) fn data(&mut self, len: u32, buffered: bool) -> Write {
        let len = len.min(self.target.len);
        let to = Target { len, ..self.target };
        self.target.addr = self.target.addr.wrapping_add(u64::from(len));
        self.target.len -= len;
        self.sent = self.sent.wrapping_add(1);
        self.write(to, buffered)
    }

    /// A message that takes a credit and holds nothing of the send buffer.
    pub(crate) const fn message(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        self.slots = self.slots.saturating_sub(1);
    }

    /// A WRITE that takes no credit, because the peer does not notice: one into a mapping. The
    /// caller asks [`may_write`](Self::may_write) before.
    pub(crate) fn write(&mut self, to: Target, buffered: bool) -> Write {
        self.slots = self.slots.saturating_sub(1);
        let parts = if buffered { self.buffer.take(to.len) } else { [0..0, 0..0] };
        Write { to, parts }
    }

    /// A write or message is complete and gives back what it held.
    pub(crate) fn done(&mut self, held: u32) {
        self.slots = (self.slots + 1).min(self.all_slots);
        self.buffer.free = self.buffer.free.saturating_add(held).min(self.buffer.len);
    }

    /// Whether everything that left is complete.
    pub(crate) const fn is_done(&self) -> bool {
        self.slots == self.all_slots
    }

    /// The peer allows messages up to this number, and may have written the list of targets before
    /// it said so.
    pub(crate) const fn allow(&mut self, up_to: u16) {
        self.allowed = up_to;
        self.targets_written = true;
    }

    /// The entry of the list of targets to look at, if the part before is full and the peer has
    /// spoken since the last look.
    // clause: RSOCK-TARGET-ORDER
    pub(crate) fn wants_target(&mut self) -> Option<usize> {
        (self.target.len == 0 && std::mem::take(&mut self.targets_written)).then_some(self.next_target)
    }

    /// What stood in that entry. An empty one was not written yet.
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
mod tests {
    use super::*;

    fn target(addr: u64, len: u32) -> Target {
        Target { addr, rkey: 5, len }
    }

    // clause: RSOCK-CREDITS
    #[test]
    fn a_credit_a_slot_a_target_and_buffer_are_needed() {
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
    fn credits_count_around_the_end_of_sixteen_bits() {
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
    fn targets_are_filled_to_their_end_and_taken_in_turns() {
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
    fn the_send_buffer_goes_round() {
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
    fn a_small_buffer_works_all_the_same() {
        let mut out = Outgoing::new(8, 100, 100, target(0, 1 << 20));
        assert_eq!(out.room(), 100);
        out.data(60, true);
        assert_eq!(out.room(), 0);
        out.done(60);
        assert_eq!(out.room(), 100);
    }
}
