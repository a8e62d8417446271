//! The weakest legal card: payload that was taken in and is not in memory yet.
//!
//! Payload comes apart into pieces. Some are placed at once, the last byte first, the others bit by
//! bit, in any order, until something asks for all of one side: a completion, an atomic, an
//! acknowledgement. Bytes that are written twice end as they were written last. Touches the
//! program's memory, at addresses that were checked; whoever takes a region away has everything
//! placed before it returns.

use roxe_base::weakest::{Choices, Subject};
use roxe_memory::guard;
use roxe_transport::cx::Side;

/// Bytes that wait for one queue pair.
const MOST: usize = 1 << 18;
/// Pieces that payload comes apart into, but for the last byte.
const MOST_PIECES: usize = 12;

/// Bytes that are not placed yet.
#[derive(Debug)]
struct Piece {
    side: Side,
    addr: u64,
    bytes: Box<[u8]>,
}

impl Piece {
    fn overlaps(&self, addr: u64, len: usize) -> bool {
        self.addr < addr.saturating_add(len as u64) && addr < self.addr.saturating_add(self.bytes.len() as u64)
    }

    /// Memory that the program has unmapped meanwhile takes nothing.
    fn place(self) {
        let _ = guard::write(self.addr, &self.bytes);
    }
}

/// What one queue pair has taken in.
#[derive(Debug)]
pub(super) struct Placement {
    pieces: Vec<Piece>,
    waiting: usize,
    payloads: Choices,
    rounds: Choices,
}

impl Placement {
    /// Of the queue pair `ordinal` of the process.
    pub(super) fn new(seed: u64, ordinal: u32) -> Self {
        let choices = |subject| Choices::new(seed, subject, ordinal.into());
        Self { pieces: vec![], waiting: 0, payloads: choices(Subject::Payload), rounds: choices(Subject::Rounds) }
    }

    /// Whether everything of `side` is in memory.
    pub(super) fn is_settled(&self, side: Side) -> bool {
        self.pieces.iter().all(|piece| piece.side != side)
    }

    /// Takes in one payload, whose parts belong at these addresses.
    pub(super) fn take_in(&mut self, side: Side, parts: &[(u64, &[u8])]) {
        for (addr, bytes) in parts {
            self.place_where(|piece| piece.overlaps(*addr, bytes.len()));
        }
        let mut pieces: Vec<Piece> =
            parts.iter().flat_map(|(addr, bytes)| self.take_apart(side, *addr, bytes)).collect();
        self.shuffle(&mut pieces);
        let at_once = self.payloads.below(pieces.len() + 1);
        let waiting = pieces.split_off(at_once);
        pieces.into_iter().for_each(Piece::place);
        self.waiting += waiting.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        self.pieces.extend(waiting);
        if self.waiting > MOST {
            self.place_where(|_| true);
        }
    }

    /// The last byte alone, which programs wait for, and the rest in pieces of one size.
    fn take_apart(&mut self, side: Side, addr: u64, bytes: &[u8]) -> Vec<Piece> {
        let (rest, last) = bytes.split_at(bytes.len().saturating_sub(1));
        let size = self.payloads.pick([1, 3, 8, 61, 64, 256]).max(rest.len().div_ceil(MOST_PIECES));
        let pieces = rest.chunks(size).chain([last]).scan(addr, |at, bytes| {
            let piece = Piece { side, addr: *at, bytes: bytes.into() };
            *at += bytes.len() as u64;
            Some(piece)
        });
        pieces.collect()
    }

    /// Mostly the last byte comes first.
    fn shuffle(&mut self, pieces: &mut [Piece]) {
        for at in (1..pieces.len()).rev() {
            pieces.swap(at, self.payloads.below(at + 1));
        }
        let last = pieces.iter().enumerate().max_by_key(|(_, piece)| piece.addr).map(|(at, _)| at);
        if let Some(last) = last.filter(|_| !self.payloads.one_in(4)) {
            pieces.swap(0, last);
        }
    }

    /// Some more of what waits is placed.
    pub(super) fn go_on(&mut self) {
        for _ in 0..=self.rounds.below(self.pieces.len()) {
            if self.pieces.is_empty() {
                return;
            }
            let piece = self.pieces.swap_remove(self.rounds.below(self.pieces.len()));
            self.waiting -= piece.bytes.len();
            piece.place();
        }
    }

    /// Places everything of `side`.
    pub(super) fn settle(&mut self, side: Side) {
        self.place_where(|piece| piece.side == side);
    }

    /// Places everything.
    pub(super) fn settle_all(&mut self) {
        self.place_where(|_| true);
    }

    fn place_where(&mut self, mut is_due: impl FnMut(&Piece) -> bool) {
        for piece in self.pieces.extract_if(.., |piece| is_due(piece)) {
            self.waiting -= piece.bytes.len();
            piece.place();
        }
    }
}

#[cfg(test)]
mod tests;
