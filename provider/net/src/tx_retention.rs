//! Sockets that send to this very host, and keep what they have sent for a while.
//!
//! The counterpart of [`crate::rx_retention`] for receive buffers that are too small for it: the
//! kernel gives the pages of a datagram to the next one as soon as the receiver has taken it, and
//! their lines are in its cache. Whoever asks the kernel for the time at which a datagram left
//! (`SO_TIMESTAMPING`) gets the datagram back with it, which is no copy: its pages stay in use
//! until it is taken out of the queue of errors. That queue is as long as the receive buffer of its
//! socket, so there are several of them, in turns. A bare send of 60 KB took 12 us, and takes 9;
//! messages of 1 MB gained a fifth, those of 64 KB 14 to 40 %.
//!
//! All of them have one source port, so that whoever spreads packets by their ports keeps their
//! order. It is not the RoCE port: nothing shall arrive here, and receivers know it by its name
//! ([`crate::source_ports`]). Several threads may send at once. Touches the sockets.

use crate::bpf;
use crate::cmsg::Control;
use crate::rx_retention::STREAM;
use crate::sys;
use socket2::Socket;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How many sockets there are. With two of them 64 KB messages gained a third of what they gain
/// with four; six are not better.
const SOCKETS: usize = 4;
/// Most datagrams that one of them keeps: together about as many bytes as a second level cache.
const KEPT: usize = 6;
/// What the longest datagram occupies in the kernel.
const COST: usize = 68 << 10;
/// Datagrams that are taken out of a full queue at once.
const PORTION: usize = 3;

/// Some sockets with the same source port.
#[derive(Debug)]
pub(super) struct TxRetention {
    sockets: Vec<RetainingSocket>,
    port: u16,
    turn: AtomicUsize,
}

/// One socket of a [`TxRetention`].
#[derive(Debug)]
struct RetainingSocket {
    socket: Socket,
    /// Number of datagrams in its error queue.
    kept: AtomicUsize,
    /// Most datagrams that it may keep there.
    most: usize,
}

impl TxRetention {
    /// `bind` makes a socket for sending that is bound to a port, 0 for any, and shares it.
    pub(super) fn open(bind: impl Fn(u16) -> io::Result<Socket>) -> io::Result<Self> {
        let first = bind(0)?;
        let port = first.local_addr()?.as_socket().map_or(0, |address| address.port());
        let others = (1..SOCKETS).map(|_| bind(port));
        let sockets = std::iter::once(Ok(first)).chain(others).map(|socket| RetainingSocket::new(socket?));
        Ok(Self { sockets: sockets.collect::<io::Result<_>>()?, port, turn: AtomicUsize::new(0) })
    }

    /// The source port of what they send.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The socket for the next datagram, of `len` bytes; `control` is what it is sent with.
    pub(super) fn next(&self, len: usize, control: &mut Control) -> Option<RawFd> {
        if len < STREAM {
            return self.sockets.first().map(|retaining| retaining.socket.as_raw_fd());
        }
        let retaining = self.sockets.get(self.turn.fetch_add(1, Relaxed) % SOCKETS)?;
        retaining.keep_next(control);
        Some(retaining.socket.as_raw_fd())
    }

    /// Gives up all that is kept, and says how many datagrams that were.
    pub(super) fn clear(&self) -> usize {
        self.sockets.iter().map(RetainingSocket::clear).sum()
    }
}

impl RetainingSocket {
    fn new(socket: Socket) -> io::Result<Self> {
        // What arrives here nobody reads; it would take the place of what is to be kept.
        sys::attach_filter(socket.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut [bpf::DROP])?;
        let most = KEPT.min(socket.recv_buffer_size()? / COST);
        Ok(Self { socket, kept: AtomicUsize::new(0), most })
    }

    /// The next datagram that is sent with `control` is kept, and the oldest ones are not any more.
    fn keep_next(&self, control: &mut Control) {
        if self.most == 0 {
            return;
        }
        if self.kept.fetch_add(1, Relaxed) >= self.most && self.discard(PORTION) == 0 {
            // A system may not let us have them (`net.core.tstamp_allow_data`): then it costs a
            // needless call every sixth time.
            self.kept.store(1, Relaxed);
        }
        control.push(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &libc::SOF_TIMESTAMPING_TX_SOFTWARE.to_ne_bytes());
    }

    /// Takes the oldest ones out of the queue, up to `count` of them, and says how many that were.
    fn discard(&self, count: usize) -> usize {
        let gone = sys::discard(self.socket.as_raw_fd(), count, libc::MSG_ERRQUEUE).map_or(0, |gone| gone.count);
        // Other threads may have counted theirs, and not sent them yet.
        let _ = self.kept.fetch_update(Relaxed, Relaxed, |kept| Some(kept.saturating_sub(gone)));
        gone
    }

    fn clear(&self) -> usize {
        if self.kept.swap(0, Relaxed) == 0 {
            return 0;
        }
        std::iter::repeat_with(|| self.discard(sys::MAX_DISCARDED)).take_while(|&gone| gone > 0).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, SockAddr, Type};
    use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};

    const BUFFER: usize = 212_992;

    fn bind(port: u16, buffer: usize) -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        socket.set_reuse_port(true)?;
        socket.set_recv_buffer_size(buffer)?;
        socket.bind(&SockAddr::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)))?;
        Ok(socket)
    }

    /// Retaining sockets, and a socket that they send to.
    struct World {
        tx_retention: TxRetention,
        to: UdpSocket,
    }

    impl World {
        fn new(buffer: usize) -> Self {
            let to = UdpSocket::bind("127.0.0.1:0").unwrap();
            Self { tx_retention: TxRetention::open(|port| bind(port, buffer)).unwrap(), to }
        }

        /// Sends a datagram that begins with `mark`, and receives it.
        fn pass(&self, mark: u8, len: usize) {
            let mut control = Control::new();
            let fd = self.tx_retention.next(len, &mut control).unwrap();
            let name = SockAddr::from(self.to.local_addr().unwrap());
            sys::send(fd, &sys::Name::Any(&name), [&vec![mark; len], &[]], &control, 0).unwrap();
            let mut buf = [0; 65_536];
            let (got, from) = self.to.recv_from(&mut buf).unwrap();
            assert_eq!((got, buf[0], from.port()), (len, mark, self.tx_retention.port()));
        }
    }

    #[test]
    fn large_datagrams_are_kept_up_to_a_limit_and_come_once() {
        let world = World::new(BUFFER);
        for mark in 0..20 {
            world.pass(mark, 61_000);
        }
        assert_eq!(world.tx_retention.clear(), 20, "what was sent was not kept");
        assert_eq!(world.tx_retention.clear(), 0);
        for mark in 0..=255 {
            world.pass(mark, 61_000);
        }
        let most = SOCKETS * KEPT;
        let kept = world.tx_retention.clear();
        assert!((most - SOCKETS * PORTION..=most).contains(&kept), "{kept} of {most} were kept");
    }

    #[test]
    fn small_datagrams_and_small_buffers_keep_nothing() {
        for (buffer, len) in [(BUFFER, STREAM - 1), (8192, STREAM)] {
            let world = World::new(buffer);
            (0..10).for_each(|mark| world.pass(mark, len));
            let fds = world.tx_retention.sockets.iter().map(|retaining| retaining.socket.as_raw_fd());
            let kept = fds.map(|fd| sys::discard(fd, 1, libc::MSG_ERRQUEUE).map_or(0, |discarded| discarded.count));
            assert_eq!(kept.sum::<usize>(), 0, "{len} bytes");
        }
    }

    #[test]
    fn a_system_that_keeps_nothing_is_seldom_looked_at() {
        let world = World::new(BUFFER);
        let [first, ..] = &world.tx_retention.sockets[..] else { panic!("no sockets") };
        // Nothing is sent, so nothing can be kept.
        let looks = (0..70).filter(|_| {
            first.keep_next(&mut Control::new());
            first.kept.load(Relaxed) == 1
        });
        assert_eq!(looks.count(), 12);
    }

    #[test]
    fn nothing_arrives_at_their_port() {
        let world = World::new(BUFFER);
        let port = SocketAddr::from((Ipv4Addr::LOCALHOST, world.tx_retention.port()));
        for _ in 0..10 {
            world.to.send_to(&[1; 1000], port).unwrap();
        }
        let mut control = Control::new();
        for retaining in &world.tx_retention.sockets {
            assert!(sys::recv(retaining.socket.as_raw_fd(), &mut [0; 1000], &mut control, 0).unwrap().is_none());
        }
    }
}
