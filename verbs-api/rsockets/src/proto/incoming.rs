//! The way in: what has arrived in the receive buffer, what the program has read, and what the peer
//! is told of that.

use super::Violation;
use std::collections::VecDeque;
use std::ops::Range;

/// One direction of a stream, as its receiver sees it. The buffer is a ring of two halves that are
/// given to the peer in turns; the peer fills a half to its end before it begins the next.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Bytes of half the buffer.
    half: u32,
    /// Messages that may be under way or unread.
    credits: u16,
    /// Lengths of messages that are not read to their end.
    unread: VecDeque<u32>,
    /// Place of the first unread byte.
    at: u32,
    /// Bytes that the peer may still write.
    open: u64,
    /// Bytes read that were not given to the peer again.
    spare: u32,
    /// Which half is the next to be given.
    next_half: u32,
    /// Messages read, modulo 2^16, and at which number the peer is told of it.
    read: u16,
    tell_at: u16,
}

/// What the peer is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Up to which number it may send messages.
    pub(crate) up_to: u16,
    /// Offset of the half of the buffer that is free again; `None` if neither is.
    pub(crate) half: Option<u32>,
}

impl Incoming {
    /// A buffer of two halves, the first of which the peer knows, and `credits` messages that it
    /// may send.
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
            tell_at: credits >> 1,
        }
    }

    /// `len` more bytes have arrived.
    ///
    /// # Errors
    /// The peer had no room for them, or no credit.
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

    /// A message that took a credit has been dealt with.
    pub(crate) const fn message_read(&mut self) {
        self.read = self.read.wrapping_add(1);
    }

    /// Whether something is there to read.
    pub(crate) fn has_data(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Where the next unread bytes stand, at most `max`, behind the first `skip`. Empty if there
    /// are none.
    pub(crate) fn peek(&self, skip: u32, max: usize) -> Range<u32> {
        let unread: u64 = self.unread.iter().map(|len| u64::from(*len)).sum();
        let start = (u64::from(self.at) + u64::from(skip)) % u64::from(2 * self.half);
        let left = unread.saturating_sub(u64::from(skip)).min(u64::from(2 * self.half) - start);
        // Both are less than twice the half, which is a `u32`.
        let len = left.min(max as u64) as u32;
        start as u32..start as u32 + len
    }

    /// The program has read `len` of the unread bytes.
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

    /// What the peer is to be told now: as soon as half the buffer was read, or half its credits
    /// are used.
    // clause: RSOCK-GRANT
    pub(crate) const fn wants_grant(&self) -> bool {
        self.spare >= self.half || self.read.wrapping_sub(self.tell_at) < 1 << 15
    }

    /// The answer to [`wants_grant`](Self::wants_grant), which is then settled.
    pub(crate) fn grant(&mut self) -> Grant {
        self.tell_at = self.read.wrapping_add(self.credits >> 1);
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

#[cfg(test)]
mod tests {
    use super::*;

    // clause: RSOCK-GRANT
    #[test]
    fn the_second_half_is_given_at_once_and_then_each_as_it_was_read() {
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
    fn credits_are_given_back_when_half_of_them_are_used() {
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
    fn reading_goes_round_the_buffer_in_pieces() {
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
    fn a_peer_that_writes_more_than_it_was_given_is_refused() {
        let mut inc = Incoming::new(50, 4);
        assert_eq!(inc.arrived(51), Err(Violation));
        let mut inc = Incoming::new(50, 4);
        for _ in 0..4 {
            inc.arrived(1).unwrap();
        }
        assert_eq!(inc.arrived(1), Err(Violation));
    }

    #[test]
    fn an_empty_message_takes_a_credit_and_is_no_end() {
        let mut inc = Incoming::new(50, 2);
        inc.grant();
        inc.arrived(0).unwrap();
        assert!(!inc.has_data());
        assert_eq!(inc.grant(), Grant { up_to: 3, half: None });
    }
}
