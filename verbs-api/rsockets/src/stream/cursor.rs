//! A position in the program's list of buffers, in a send or receive call.

use roxe::MemoryRegion;
use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, Range};

/// A list of buffers and a position in it.
#[derive(Debug)]
pub(crate) struct Cursor<L> {
    bufs: L,
    /// Index of the current buffer.
    index: usize,
    /// Offset in the current buffer, bytes.
    offset: usize,
    /// Bytes after the position.
    remaining: usize,
    /// Bytes before the position.
    moved: usize,
}

/// The buffers of a send call.
pub(crate) type SendCursor<'a> = Cursor<&'a [IoSlice<'a>]>;

/// The buffers of a receive call.
pub(crate) type RecvCursor<'a, 'b> = Cursor<&'a mut [IoSliceMut<'b>]>;

impl<B: Deref<Target = [u8]>, L: Deref<Target = [B]>> Cursor<L> {
    pub(crate) fn new(bufs: L) -> Self {
        let remaining = bufs.iter().map(|buf| buf.len()).sum();
        Self { bufs, index: 0, offset: 0, remaining, moved: 0 }
    }

    pub(crate) const fn is_done(&self) -> bool {
        self.remaining == 0
    }

    pub(crate) const fn remaining(&self) -> usize {
        self.remaining
    }

    /// Returns the number of bytes sent or received so far.
    pub(crate) const fn moved(&self) -> usize {
        self.moved
    }

    /// Returns the index of the buffer with the next bytes, and their range in it, at most `max`
    /// bytes long.
    fn next_piece(&mut self, max: usize) -> (usize, Range<usize>) {
        while self.bufs.get(self.index).is_some_and(|buf| self.offset >= buf.len()) {
            self.index += 1;
            self.offset = 0;
        }
        let rest = self.bufs.get(self.index).map_or(0, |buf| buf.len() - self.offset);
        (self.index, self.offset..self.offset + rest.min(max))
    }

    const fn advance(&mut self, len: usize) {
        self.offset += len;
        self.remaining -= len;
        self.moved += len;
    }
}

impl<'a> SendCursor<'a> {
    /// Returns the number of remaining bytes, limited to `max`.
    pub(crate) fn remaining_up_to(&self, max: u32) -> u32 {
        u32::try_from(self.remaining).map_or(max, |remaining| remaining.min(max))
    }

    /// Takes `len` bytes. If they are not contiguous, copies them to `scratch`, at most as many as
    /// fit.
    pub(crate) fn take<'s>(&mut self, len: u32, scratch: &'s mut [u8]) -> &'s [u8]
    where
        'a: 's,
    {
        let len = len as usize;
        let first = self.piece(len);
        if first.len() == len {
            self.advance(len);
            return first;
        }
        let len = len.min(scratch.len());
        let filled = self.copy_to(&mut scratch[..len]);
        &scratch[..filled]
    }

    /// Copies as many bytes to `out` as fit; returns their number.
    pub(crate) fn copy_to(&mut self, out: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < out.len() && !self.is_done() {
            let piece = self.piece(out.len() - filled);
            out[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
            self.advance(piece.len());
        }
        filled
    }

    /// Copies bytes to `range` of `region`, until the range is full or all bytes are taken.
    pub(crate) fn write_to(&mut self, region: &MemoryRegion, range: Range<usize>) -> Result<(), roxe::Error> {
        let mut at = range.start;
        while at < range.end && !self.is_done() {
            let piece = self.piece(range.end - at);
            region.write(at, piece)?;
            at += piece.len();
            self.advance(piece.len());
        }
        Ok(())
    }

    /// Returns the next contiguous bytes, at most `max`.
    fn piece(&mut self, max: usize) -> &'a [u8] {
        let (index, range) = self.next_piece(max);
        self.bufs.get(index).map_or(&[], |buf| &buf[range])
    }
}

impl RecvCursor<'_, '_> {
    /// Copies bytes from `range` of `region`, until its end or until the buffers are full.
    pub(crate) fn read_from(&mut self, region: &MemoryRegion, range: Range<usize>) -> Result<(), roxe::Error> {
        let mut at = range.start;
        while at < range.end && !self.is_done() {
            let out = self.piece_mut(range.end - at);
            let len = out.len();
            region.read(at, out)?;
            at += len;
            self.advance(len);
        }
        Ok(())
    }

    /// Copies as many of `bytes` as fit.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while !bytes.is_empty() && !self.is_done() {
            let out = self.piece_mut(bytes.len());
            let (head, tail) = bytes.split_at(out.len());
            out.copy_from_slice(head);
            self.advance(head.len());
            bytes = tail;
        }
    }

    /// Returns the next contiguous bytes, at most `max`.
    fn piece_mut(&mut self, max: usize) -> &mut [u8] {
        let (index, range) = self.next_piece(max);
        self.bufs.get_mut(index).map_or(&mut [], |buf| &mut buf[range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_cursor_takes_bytes_in_order_across_buffers() {
        let bufs = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"defgh")];
        let mut data = SendCursor::new(&bufs[..]);
        let mut scratch = [0; 8];
        assert_eq!(data.remaining_up_to(100), 8);
        assert_eq!(data.take(2, &mut scratch), b"ab");
        assert_eq!(data.take(3, &mut scratch), b"cde");
        assert_eq!((data.moved(), data.remaining_up_to(2)), (5, 2));
        assert_eq!(data.take(3, &mut scratch), b"fgh");
        assert!(data.is_done());
        assert!(SendCursor::new(&[]).is_done());
    }

    #[test]
    fn recv_cursor_fills_buffers_in_order() {
        let (mut a, mut b, mut c) = ([0; 2], [0; 0], [0; 4]);
        let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b), IoSliceMut::new(&mut c)];
        let mut room = RecvCursor::new(&mut bufs[..]);
        room.put(b"xyz");
        assert_eq!((room.moved(), room.remaining()), (3, 3));
        room.put(b"12345");
        assert!(room.is_done());
        assert_eq!((&a, &c), (b"xy", b"z123"));
    }
}
