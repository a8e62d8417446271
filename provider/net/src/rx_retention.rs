//! Datagrams that have been read and stay in the queue of their socket for a while.
//!
//! The kernel gives the pages of a datagram to the next one as soon as it has been taken out of the
//! queue. Their lines are in the cache of the processor that has just read them, and it takes the
//! sender four times as long to write there as where nobody has looked lately. So large datagrams
//! are peeked at (`SO_PEEK_OFF` moves on to the next), and leave the queue when they have been
//! pushed out of that cache. A send of 60 KB took 12 us, and takes 7.
//!
//! A socket looks readable as long as something is kept: who is going to wait for it drops the
//! retained datagrams first. Belongs to the receive side of the engine and is changed under its
//! lock. Touches the socket, and counts.

use crate::sys::{self, Discarded};
use libc::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// A datagram of at least this many bytes belongs to a stream, and more of it is probably there.
pub const STREAM: usize = 16 << 10;
/// Bytes that are kept: the second level caches of today have 1 to 2 MB. With half of it a send
/// takes 10 us.
const KEPT: usize = 1 << 20;
/// Nothing is kept where it would take more than this part of the receive buffer, which it has to
/// share with what arrives.
const SHARE: usize = 4;
/// Most datagrams that are kept: to peek means to pass by all of them.
const MAX_COUNT: usize = 64;
/// Datagrams that leave the queue at once.
const PORTION: usize = 4;
/// Polls in a row that find nothing until the retained datagrams are dropped: about 100 us.
const MAX_EMPTY_POLLS: u32 = 256;

/// What is kept in the queue of one socket.
#[derive(Debug, Default)]
pub(super) struct RxRetention {
    /// Bytes that may be kept; 0: nothing is retained here.
    limit: usize,
    is_open: AtomicBool,
    count: AtomicUsize,
    bytes: AtomicUsize,
    empty_polls: AtomicU32,
}

impl RxRetention {
    /// For the socket `fd` with a receive buffer of `rcvbuf` bytes.
    pub(super) fn new(fd: RawFd, rcvbuf: usize) -> Self {
        if rcvbuf / SHARE >= KEPT { Self::with_limit(fd, KEPT) } else { Self::default() }
    }

    fn with_limit(fd: RawFd, limit: usize) -> Self {
        // Kernels before 4.7 cannot peek so; and what a sandbox does not let us take out must not
        // be left there.
        let can = sys::discard(fd, 0).is_ok() && sys::set_option(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, 0).is_ok();
        Self { limit: if can { limit } else { 0 }, ..Self::default() }
    }

    /// Whether anything may be kept.
    pub(super) fn exists(&self) -> bool {
        self.limit > 0
    }

    /// How the next datagram is received.
    #[inline]
    pub(super) fn flags(&self) -> c_int {
        if self.is_open.load(Relaxed) { libc::MSG_PEEK } else { 0 }
    }

    /// A datagram of `len` bytes has been received with [`RxRetention::flags`].
    #[inline]
    pub(super) fn note(&self, fd: RawFd, len: usize) {
        if self.is_open.load(Relaxed) {
            self.keep(fd, len);
        } else if self.exists() && len >= STREAM {
            self.is_open.store(true, Relaxed);
        }
    }

    fn keep(&self, fd: RawFd, len: usize) {
        let (count, bytes) = (self.count.load(Relaxed) + 1, self.bytes.load(Relaxed) + len);
        self.count.store(count, Relaxed);
        self.bytes.store(bytes, Relaxed);
        self.empty_polls.store(0, Relaxed);
        if bytes > self.limit || count > MAX_COUNT {
            self.discard(fd, PORTION);
        }
    }

    /// A poll found nothing.
    #[inline]
    pub(super) fn note_empty_poll(&self, fd: RawFd) {
        if self.is_open.load(Relaxed) {
            let polls = self.empty_polls.load(Relaxed) + 1;
            self.empty_polls.store(polls, Relaxed);
            if polls >= MAX_EMPTY_POLLS {
                self.clear(fd);
            }
        }
    }

    /// Nothing is kept any more, until the next large datagram.
    pub(super) fn clear(&self, fd: RawFd) {
        if !self.is_open.swap(false, Relaxed) {
            return;
        }
        while self.count.load(Relaxed) > 0 {
            self.discard(fd, sys::MAX_DISCARDED);
        }
        self.bytes.store(0, Relaxed);
        self.empty_polls.store(0, Relaxed);
    }

    /// Takes the oldest ones out of the queue, `most` of them or all.
    fn discard(&self, fd: RawFd, most: usize) {
        let (count, bytes) = (self.count.load(Relaxed), self.bytes.load(Relaxed));
        let take = || sys::discard(fd, count.min(most));
        // An error that waits in the socket comes instead of datagrams, and is gone then: those
        // would be received once more. What is kept is there; if not, nothing is kept.
        let gone = take().or_else(|_| take()).unwrap_or(Discarded { count, bytes });
        self.count.store(count.saturating_sub(gone.count), Relaxed);
        self.bytes.store(bytes.saturating_sub(gone.bytes), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmsg::Control;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    /// A socket that retains datagrams, and one that sends to it.
    struct Pair {
        from: UdpSocket,
        to: UdpSocket,
        rx_retention: RxRetention,
    }

    impl Pair {
        fn new(limit: usize) -> Self {
            let [from, to] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
            from.connect(to.local_addr().unwrap()).unwrap();
            let rx_retention = RxRetention::with_limit(to.as_raw_fd(), limit);
            Self { from, to, rx_retention }
        }

        /// Sends a datagram that begins with `mark`.
        fn send(&self, mark: u8, len: usize) {
            self.from.send(&vec![mark; len]).unwrap();
        }

        /// The mark and the length of the next one.
        fn recv(&self) -> Option<(u8, usize)> {
            let (fd, mut buf) = (self.to.as_raw_fd(), [0; 65_536]);
            let received = sys::recv(fd, &mut buf, &mut Control::new(), self.rx_retention.flags()).unwrap();
            match received {
                Some((len, ..)) => self.rx_retention.note(fd, len),
                None => self.rx_retention.note_empty_poll(fd),
            }
            received.map(|(len, ..)| (buf[0], len))
        }

        /// One comes through for each mark, of `len` bytes.
        fn pass(&self, marks: impl IntoIterator<Item = u8>, len: usize) {
            for mark in marks {
                self.send(mark, len);
                assert_eq!(self.recv(), Some((mark, len)));
            }
        }

        fn count(&self) -> usize {
            self.rx_retention.count.load(Relaxed)
        }

        /// Whether the kernel has anything in the queue, read or not.
        fn is_readable(&self) -> bool {
            let flags = libc::MSG_PEEK | libc::MSG_TRUNC;
            sys::set_option(self.to.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1).unwrap();
            sys::recv(self.to.as_raw_fd(), &mut [], &mut Control::new(), flags).unwrap().is_some()
        }
    }

    #[test]
    fn everything_comes_once_and_in_its_order_while_the_oldest_leave() {
        let pair = Pair::new(5 * STREAM);
        for mark in 0..200 {
            // Small ones and empty ones between large ones, and two at a time now and then.
            let len = [STREAM, 40, STREAM + 100, 0][usize::from(mark) % 4];
            pair.send(mark, len);
            if mark % 3 > 0 {
                pair.send(mark, 17);
            }
            assert_eq!(
                pair.recv().map(|(got, got_len)| (if len == 0 { mark } else { got }, got_len)),
                Some((mark, len))
            );
            if mark % 3 > 0 {
                assert_eq!(pair.recv(), Some((mark, 17)));
            }
            assert!(pair.count() <= 5 * 4 + PORTION, "{} are kept", pair.count());
        }
        assert!(pair.count() > 0);
        assert_eq!(pair.recv(), None);
    }

    #[test]
    fn after_many_empty_polls_nothing_is_retained() {
        let pair = Pair::new(20 * STREAM);
        pair.pass(0..8, STREAM);
        assert_eq!(pair.count(), 7, "the first one began the retention");
        for _ in 1..MAX_EMPTY_POLLS {
            assert_eq!(pair.recv(), None);
        }
        assert_eq!(pair.count(), 7);
        assert_eq!(pair.recv(), None);
        assert_eq!((pair.count(), pair.rx_retention.flags(), pair.is_readable()), (0, 0, false));
    }

    #[test]
    fn datagrams_that_have_not_been_read_outlive_a_clearing() {
        let pair = Pair::new(20 * STREAM);
        pair.pass(0..3, STREAM);
        pair.send(3, STREAM);
        pair.rx_retention.clear(pair.to.as_raw_fd());
        assert_eq!(pair.recv(), Some((3, STREAM)));
        assert_eq!(pair.recv(), None);
    }

    #[test]
    fn an_error_that_waits_in_the_socket_keeps_nothing_there() {
        let mut pair = Pair::new(20 * STREAM);
        pair.to.connect(pair.from.local_addr().unwrap()).unwrap();
        pair.pass(0..3, STREAM);
        // Its port is closed now, and what is sent there comes back as an error.
        pair.from = UdpSocket::bind("127.0.0.1:0").unwrap();
        pair.to.send(&[1]).unwrap();
        pair.rx_retention.clear(pair.to.as_raw_fd());
        assert_eq!((pair.count(), pair.is_readable()), (0, false));
    }

    #[test]
    fn small_datagrams_leave_at_once_and_a_small_buffer_keeps_nothing() {
        for (limit, len) in [(20 * STREAM, STREAM - 1), (0, STREAM)] {
            let pair = Pair::new(limit);
            pair.pass(0..5, len);
            assert_eq!((pair.count(), pair.is_readable()), (0, false));
        }
        let pair = Pair::new(0);
        let limit = |rcvbuf| RxRetention::new(pair.to.as_raw_fd(), rcvbuf).limit;
        assert_eq!((limit(SHARE * KEPT), limit(SHARE * KEPT - 1), limit(425_984)), (KEPT, 0, 0));
    }

    #[test]
    fn no_more_than_so_many_are_kept_however_small() {
        let pair = Pair::new(1 << 30);
        pair.pass([0], STREAM);
        for mark in 0..=255 {
            pair.pass([mark], 1);
            assert!(pair.count() <= MAX_COUNT);
        }
    }
}
