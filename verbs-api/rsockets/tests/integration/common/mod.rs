//! Helpers of the socket tests.

use roxe_rsockets::{PollFd, Socket, accept, close, find, open, poll};
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

/// Time limit of waits.
pub(crate) const TIMEOUT_MS: i32 = 20_000;

/// A socket, closed on drop.
#[derive(Debug)]
pub(crate) struct Sock(Arc<Socket>);

impl Sock {
    pub(crate) fn open(domain: i32, kind: i32) -> Self {
        Self::of(open(domain, kind, 0).unwrap())
    }

    fn of(fd: i32) -> Self {
        Self(find(fd).unwrap())
    }

    pub(crate) fn accept(&self) -> io::Result<(Self, SocketAddr)> {
        accept(self.fd()).map(|(fd, peer)| (Self::of(fd), peer))
    }

    /// Waits for events and returns them; 0 after the time limit.
    pub(crate) fn poll(&self, events: i16) -> i16 {
        let mut fds = [PollFd { fd: self.fd(), events, revents: 0 }];
        poll(&mut fds, TIMEOUT_MS).unwrap();
        fds[0].revents
    }
}

impl Deref for Sock {
    type Target = Arc<Socket>;

    fn deref(&self) -> &Arc<Socket> {
        &self.0
    }
}

impl Drop for Sock {
    fn drop(&mut self) {
        let _ = close(self.fd());
    }
}

/// Returns the errno of a call that must fail.
pub(crate) fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Returns true if the loopback interface has IPv6; prints a notice if not.
pub(crate) fn has_ipv6() -> bool {
    let has = std::net::UdpSocket::bind("[::1]:0").is_ok();
    if !has {
        eprintln!("skipped: the loopback interface has no IPv6 address");
    }
    has
}
