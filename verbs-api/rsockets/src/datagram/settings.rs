//! What a program has set on a datagram socket, and what comes of it: how long its queues are.

use super::port::Depth;
use crate::config::Config;
use crate::errno::os;
use crate::proto::datagram::MAX_DATAGRAM;
use crate::{RDMA_INLINE, RDMA_RQSIZE, RDMA_SQSIZE};
use std::io;

/// Longest queues.
const MOST: u32 = 16384;

/// What a program has set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(super) send_buffer: u32,
    pub(super) recv_buffer: u32,
    pub(super) send_queue: u16,
    pub(super) recv_queue: u16,
    pub(super) inline: u32,
}

impl Settings {
    pub(crate) fn new() -> Self {
        let Config { send_buffer, recv_buffer, send_queue, recv_queue, inline, .. } = *Config::get();
        Self { send_buffer, recv_buffer, send_queue, recv_queue, inline: inline.into() }
    }

    /// As many datagrams as both the queue and the buffer hold, but one at least.
    pub(crate) fn depth(&self) -> Depth {
        let fits = |queue: u16, buffer: u32| {
            let datagrams = u32::from(queue).min(buffer / MAX_DATAGRAM as u32).clamp(1, MOST);
            datagrams as u16
        };
        Depth {
            sends: fits(self.send_queue, self.send_buffer),
            recvs: fits(self.recv_queue, self.recv_buffer),
            inline: self.inline.min(MAX_DATAGRAM as u32),
        }
    }

    pub(super) fn set_rdma(&mut self, name: i32, value: u32) -> io::Result<()> {
        let queue = value.min(MOST) as u16;
        match name {
            RDMA_SQSIZE => self.send_queue = queue,
            RDMA_RQSIZE => self.recv_queue = queue,
            RDMA_INLINE => self.inline = value,
            _ => return Err(os(libc::ENOTSUP)),
        }
        Ok(())
    }
}
