//! Changes of the system's interfaces: a socket that becomes readable when a link or an address
//! changes (rtnetlink).
//!
//! Of a message only the interface is looked at. Whoever hears that his own changed asks the system
//! what it is like now, so a message that was lost because too many came does no harm.

use crate::sys;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, RawFd};

/// Where `ifinfomsg` and `ifaddrmsg` alike name the interface, behind the 16 bytes of `nlmsghdr`.
const IFINDEX: std::ops::Range<usize> = 20..24;

/// A netlink socket that hears of changes.
#[derive(Debug)]
pub struct LinkEvents(Socket);

impl LinkEvents {
    /// Listens from now on, to this network namespace.
    pub fn open() -> io::Result<Self> {
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::from(libc::SOCK_RAW), Some(protocol))?;
        socket.set_nonblocking(true)?;
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        sys::bind_netlink(socket.as_raw_fd(), groups)?;
        Ok(Self(socket))
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Takes all link events there are. Whether any may be about the interface `ifindex`.
    pub fn are_about(&self, ifindex: u32) -> bool {
        let mut found = false;
        loop {
            // A message is cut off behind what is looked at.
            let mut head = [0; IFINDEX.end];
            match (&self.0).read(&mut head) {
                Ok(_) => found |= head[IFINDEX] == ifindex.to_ne_bytes(),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return found,
                // Messages were lost: they may have been about anything.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => found = true,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_changes_no_interface_is_reported() {
        let link_events = LinkEvents::open().unwrap();
        assert!(!link_events.are_about(u32::MAX));
        assert!(!link_events.are_about(u32::MAX), "never waits");
    }
}
