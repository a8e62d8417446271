//! Settings of a stream.

use crate::config::{Config, LOW_WATER};
use crate::proto::conn::{scale, unscale};
use crate::proto::stream::Sizes;
use roxe::cm::Path;
use std::time::{Duration, Instant};

const QUEUES: std::ops::RangeInclusive<u32> = 16..=16384;
const MOST_BUFFER: u32 = 1 << 30;

/// Settings of a stream; accepted streams start with a copy.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) sizes: Sizes,
    pub(crate) inline: u32,
    pub(crate) reuse_addr: bool,
    pub(crate) keepalive: bool,
    pub(crate) keep_idle: Duration,
    pub(crate) oob_inline: bool,
    /// Time that `close` waits for delivery; `None` for no limit.
    pub(crate) linger: Option<Duration>,
    pub(crate) no_delay: bool,
    pub(crate) v6_only: bool,
    pub(crate) tos: u8,
    pub(crate) path: Option<Path>,
}

impl Settings {
    pub(crate) fn new() -> Self {
        let config = Config::get();
        let mut settings = Self {
            sizes: Sizes { recv_buffer: config.sizes.recv_buffer & !1, ..config.sizes },
            inline: config.inline,
            reuse_addr: false,
            keepalive: false,
            keep_idle: default_keep_idle(),
            oob_inline: false,
            linger: None,
            no_delay: false,
            v6_only: false,
            tos: 0,
            path: None,
        };
        settings.set_iomaps(config.sizes.iomaps.into());
        settings
    }

    /// Time of the first probe of a silent peer, if SO_KEEPALIVE is on.
    pub(crate) fn first_probe(&self) -> Option<Instant> {
        Instant::now().checked_add(self.keep_idle).filter(|_| self.keepalive)
    }

    /// SO_RCVBUF: doubled, as the kernel does for TCP sockets. Even, because the peer fills a half
    /// at a time.
    pub(crate) fn set_recv_buffer(&mut self, bytes: u32) {
        self.sizes.recv_buffer = bytes.saturating_mul(2).clamp(2, MOST_BUFFER);
    }

    /// SO_SNDBUF: doubled, as the kernel does for TCP sockets.
    pub(crate) fn set_send_buffer(&mut self, bytes: u32) {
        self.sizes.send_buffer = bytes.saturating_mul(2).clamp(2 * LOW_WATER, MOST_BUFFER);
    }

    /// RDMA_IOMAPSIZE: rounded down to a count that connection data can hold, less than 2^15.
    pub(crate) fn set_iomaps(&mut self, mappings: u32) {
        self.sizes.iomaps = unscale(scale(mappings.min(0x7fff) as u16));
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let Sizes { send_queue, recv_queue, .. } = self.sizes;
        Sizes { send_queue: queue(send_queue.into()), recv_queue: queue(recv_queue.into()), ..self.sizes }
    }
}

pub(crate) fn queue(len: u32) -> u16 {
    len.clamp(*QUEUES.start(), *QUEUES.end()) as u16
}

/// The kernel's idle time before keepalive probes of TCP; 7200 s if it cannot be read.
fn default_keep_idle() -> Duration {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time").unwrap_or_default();
    Duration::from_secs(text.trim().parse().unwrap_or(7200))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_clamped_to_limits() {
        let mut settings = Settings::new();
        settings.set_recv_buffer(5000);
        settings.set_send_buffer(0);
        (settings.sizes.send_queue, settings.sizes.recv_queue) = (queue(1), queue(u32::MAX));
        settings.set_iomaps(300);
        let expected = Sizes { send_queue: 16, recv_queue: 16384, send_buffer: 4096, recv_buffer: 10_000, iomaps: 256 };
        assert_eq!(settings.sizes(), expected);
        settings.set_iomaps(1 << 15);
        assert_eq!(settings.sizes().iomaps, 127 << 8);
        settings.set_recv_buffer(u32::MAX);
        assert_eq!(settings.sizes().recv_buffer, MOST_BUFFER);
    }
}
