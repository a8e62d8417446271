//! Options of datagram sockets. Those of the system go to the UDP socket; what concerns memory and
//! queues is kept in the settings as well.

use super::Datagram;
use super::port::MOST;
use crate::config::Config;
use crate::errno::os;
use crate::{RDMA_INLINE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA, sys};
use std::io;

impl Datagram {
    pub(crate) fn set_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        if level != SOL_RDMA {
            sys::set_option(self.fd(), level, name, value)?;
        }
        let number = value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        let mut inner = self.inner.lock();
        let in_use = !inner.ports.is_empty();
        let settings = &mut inner.settings;
        match (level, name, number) {
            // Memory that is in use stays as it is.
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF, _) if in_use => {}
            (libc::SOL_SOCKET, libc::SO_RCVBUF, Some(bytes)) => settings.sizes.recv_buffer = bytes.saturating_mul(2),
            (libc::SOL_SOCKET, libc::SO_SNDBUF, Some(bytes)) => settings.sizes.send_buffer = bytes.saturating_mul(2),
            (SOL_RDMA, _, None) => return Err(os(libc::EINVAL)),
            (SOL_RDMA, _, _) if in_use => return Err(os(libc::EINVAL)),
            (SOL_RDMA, _, Some(value)) => set_rdma(settings, name, value)?,
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn option(&self, level: i32, name: i32, room: usize) -> io::Result<Vec<u8>> {
        let settings = self.inner.lock().settings;
        let value = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => settings.sizes.recv_buffer,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => settings.sizes.send_buffer,
            (SOL_RDMA, RDMA_SQSIZE) => settings.sizes.send_queue.into(),
            (SOL_RDMA, RDMA_RQSIZE) => settings.sizes.recv_queue.into(),
            (SOL_RDMA, RDMA_INLINE) => settings.inline,
            (SOL_RDMA, _) => return Err(os(libc::ENOTSUP)),
            _ => return sys::option(self.fd(), level, name, room),
        };
        Ok(value.to_ne_bytes().to_vec())
    }
}

fn set_rdma(settings: &mut Config, name: i32, value: u32) -> io::Result<()> {
    let queue = value.min(MOST) as u16;
    match name {
        RDMA_SQSIZE => settings.sizes.send_queue = queue,
        RDMA_RQSIZE => settings.sizes.recv_queue = queue,
        RDMA_INLINE => settings.inline = value,
        _ => return Err(os(libc::ENOTSUP)),
    }
    Ok(())
}
