//! Sequence numbers of the requests to one queue pair: the next number, and the gaps.
//!
//! PSNs have 24 bits and wrap. A [`Seq`] does not wrap, so sequence numbers have an order.

use roxe_wire::{MAX_PAYLOAD, Psn};
use std::collections::BTreeMap;

/// A sequence number that does not wrap.
pub(crate) type Seq = i64;

/// Distance of PSNs from which on a request belongs to another connection.
const MAX_DISTANCE: i64 = 1 << 16;
/// Smallest path MTU.
const MIN_PAYLOAD: u32 = 256;
/// Maximum number of remembered gaps. Above it, the oldest gap is dropped.
const MAX_GAPS: usize = 1 << 10;

pub(crate) const fn psn_of(seq: Seq) -> Psn {
    Psn::new((seq & 0xff_ffff) as u32)
}

/// Returns the smallest and the largest number of PSNs of a READ of `len` bytes.
pub(crate) fn read_span(len: u32, mtu: Option<u32>) -> (i64, i64) {
    let packets = |mtu: u32| i64::from(len.div_ceil(mtu).max(1));
    (packets(mtu.unwrap_or(MAX_PAYLOAD as u32)), packets(mtu.unwrap_or(MIN_PAYLOAD)))
}

/// Place of a request among the requests seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Next,
    /// After requests that were not seen.
    AfterGap,
    InGap,
    /// Before the first request.
    BeforeFirst,
    /// The request was sent before.
    SentBefore,
    /// Too far away to belong to the same connection.
    OutOfReach,
}

/// The sequence numbers that were seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    first: Seq,
    /// Smallest and largest sequence number of the next new request, which differ after a READ
    /// while the path MTU is unknown.
    next: (Seq, Seq),
    /// Ranges of requests that were not seen: begin and end.
    gaps: BTreeMap<Seq, Seq>,
    /// True if a gap was dropped.
    has_dropped_gaps: bool,
}

impl Sequence {
    /// Returns a sequence that begins with this PSN.
    pub(crate) fn new(psn: Psn) -> Self {
        let first = psn.get().into();
        Self { first, next: (first, first), ..Self::default() }
    }

    pub(crate) const fn first(&self) -> Seq {
        self.first
    }

    /// Returns the smallest and the largest sequence number of the next new request.
    pub(crate) const fn next(&self) -> (Seq, Seq) {
        self.next
    }

    pub(crate) const fn has_dropped_gaps(&self) -> bool {
        self.has_dropped_gaps
    }

    /// Returns the sequence number of `psn` nearest to the next one.
    pub(crate) fn nearest(&self, psn: Psn) -> Seq {
        self.next.0 + i64::from(psn.distance(psn_of(self.next.0)))
    }

    pub(crate) fn place(&self, seq: Seq) -> Place {
        let (least, most) = self.next;
        if seq >= most + MAX_DISTANCE || seq < least - MAX_DISTANCE {
            Place::OutOfReach
        } else if seq > most {
            Place::AfterGap
        } else if seq >= least {
            Place::Next
        } else if seq < self.first {
            Place::BeforeFirst
        } else if self.is_missing(seq) {
            Place::InGap
        } else {
            Place::SentBefore
        }
    }

    fn is_missing(&self, seq: Seq) -> bool {
        self.gaps.range(..=seq).next_back().is_some_and(|(_, end)| seq < *end)
    }

    /// Adds a request that takes `least` to `most` sequence numbers. Returns its place.
    pub(crate) fn add(&mut self, seq: Seq, (least, most): (i64, i64)) -> Place {
        let place = self.place(seq);
        match place {
            Place::AfterGap => {
                self.add_gap(self.next.1, seq);
                self.next = (seq + least, seq + most);
            }
            Place::Next => self.next = (seq + least, seq + most),
            Place::InGap => self.remove_gap(seq, seq + least),
            Place::BeforeFirst => {
                if seq + least < self.first {
                    self.add_gap(seq + least, self.first);
                }
                self.first = seq;
            }
            Place::SentBefore | Place::OutOfReach => {}
        }
        place
    }

    /// Adds `begin..end` to the gaps.
    fn add_gap(&mut self, begin: Seq, end: Seq) {
        self.gaps.insert(begin, end);
        if self.gaps.len() > MAX_GAPS {
            self.gaps.pop_first();
            self.has_dropped_gaps = true;
        }
    }

    /// Removes `begin..end` from the gaps.
    fn remove_gap(&mut self, begin: Seq, end: Seq) {
        let gaps = self.gaps.range(..end).rev().map(|(first, last)| (*first, *last));
        let overlapping: Vec<_> = gaps.take_while(|(_, last)| *last > begin).collect();
        for (first, last) in overlapping {
            self.gaps.remove(&first);
            for (first, last) in [(first, begin.min(last)), (end.max(first), last)] {
                if first < last {
                    self.gaps.insert(first, last);
                }
            }
        }
    }

    /// Returns the number of missing sequence numbers in `from..end`.
    pub(crate) fn missing(&self, from: Seq, end: Seq) -> i64 {
        let gaps = self.gaps.range(..end).map(|(first, last)| (*first.max(&from), *last.min(&end)));
        gaps.map(|(first, last)| (last - first).max(0)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: (i64, i64) = (1, 1);

    #[test]
    fn gap_is_filled_from_its_middle() {
        let mut sequence = Sequence::new(Psn::new(10));
        assert_eq!(sequence.add(10, ONE), Place::Next);
        assert_eq!(sequence.add(15, ONE), Place::AfterGap);
        assert_eq!(sequence.missing(0, 16), 4, "11 to 14");
        assert_eq!(sequence.add(12, (2, 2)), Place::InGap);
        assert_eq!([11, 12, 13, 14].map(|seq| sequence.place(seq) == Place::InGap), [true, false, false, true]);
        assert_eq!((sequence.missing(0, 16), sequence.missing(12, 14)), (2, 0));
        assert_eq!(sequence.next(), (16, 16));
    }

    #[test]
    fn request_before_the_first_moves_the_first() {
        let mut sequence = Sequence::new(Psn::new(10));
        sequence.add(10, ONE);
        assert_eq!(sequence.add(7, ONE), Place::BeforeFirst);
        assert_eq!((sequence.first(), sequence.next()), (7, (11, 11)));
        assert_eq!((sequence.place(8), sequence.place(7)), (Place::InGap, Place::SentBefore));
    }

    #[test]
    fn numbers_grow_where_psns_wrap() {
        let mut sequence = Sequence::new(Psn::new(0xff_ffff));
        sequence.add(0xff_ffff, ONE);
        let seq = sequence.nearest(Psn::new(1));
        assert_eq!((seq, sequence.add(seq, ONE)), (0x100_0001, Place::AfterGap));
        assert_eq!(sequence.nearest(Psn::new(0xff_ffff)), 0xff_ffff);
        assert_eq!(sequence.place(seq + MAX_DISTANCE + 1), Place::OutOfReach);
    }

    #[test]
    fn oldest_of_too_many_gaps_is_dropped() {
        let mut sequence = Sequence::new(Psn::new(0));
        for gap in 0..=MAX_GAPS as Seq {
            sequence.add(2 * gap + 1, ONE);
        }
        assert!(sequence.has_dropped_gaps());
        assert_eq!((sequence.place(0), sequence.place(2)), (Place::SentBefore, Place::InGap));
    }

    #[test]
    fn span_of_a_read_is_exact_if_the_mtu_is_known() {
        assert_eq!(read_span(3000, Some(1024)), (3, 3));
        assert_eq!(read_span(3000, None), (1, 12));
        assert_eq!(read_span(0, None), (1, 1));
    }
}
