//! Settings of a stream.

use crate::config::{Config, MIN_SEND_BUFFER};
use crate::proto::conn::{decode_count, encode_count};
use crate::proto::stream::Sizes;
use roxe::cm::Path;
use std::time::{Duration, Instant};

/// Shortest and longest queue, in requests.
const QUEUE_LEN_LIMITS: std::ops::RangeInclusive<u32> = 16..=16384;
/// Largest buffer, in bytes.
const MAX_BUFFER: u32 = 1 << 30;

/// Settings of a stream. An accepted stream starts with a copy of its listener's.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) sizes: Sizes,
    /// Longest data that is sent inline, in bytes.
    pub(crate) inline: u32,
    /// True if SO_REUSEADDR is on.
    pub(crate) reuse_addr: bool,
    /// True if SO_KEEPALIVE is on.
    pub(crate) keepalive: bool,
    /// Time between keepalive probes.
    pub(crate) keep_idle: Duration,
    /// True if SO_OOBINLINE is on, which has no effect.
    pub(crate) oob_inline: bool,
    /// Time that `close` waits for delivery; `None` for no limit.
    pub(crate) linger: Option<Duration>,
    /// True if TCP_NODELAY is on, which has no effect.
    pub(crate) no_delay: bool,
    /// True if IPV6_V6ONLY is on.
    pub(crate) v6_only: bool,
    /// Value of IP_TOS.
    pub(crate) tos: u8,
    /// Path of RDMA_ROUTE; `None` if the program has not set it.
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

    /// Returns the time of the first keepalive probe; `None` if SO_KEEPALIVE is off.
    pub(crate) fn first_probe(&self) -> Option<Instant> {
        Instant::now().checked_add(self.keep_idle).filter(|_| self.keepalive)
    }

    /// Sets SO_RCVBUF. Doubles it, as the kernel does for TCP sockets. The result is even, because
    /// the peer fills half of the buffer at a time.
    pub(crate) fn set_recv_buffer(&mut self, bytes: u32) {
        self.sizes.recv_buffer = bytes.saturating_mul(2).clamp(2, MAX_BUFFER);
    }

    /// Sets SO_SNDBUF. Doubles it, as the kernel does for TCP sockets.
    pub(crate) fn set_send_buffer(&mut self, bytes: u32) {
        self.sizes.send_buffer = bytes.saturating_mul(2).clamp(2 * MIN_SEND_BUFFER, MAX_BUFFER);
    }

    /// Sets RDMA_IOMAPSIZE. Rounds it down to a count below 2^15 that the connection data can hold.
    pub(crate) fn set_iomaps(&mut self, mappings: u32) {
        self.sizes.iomaps = decode_count(encode_count(mappings.min(0x7fff) as u16));
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let Sizes { send_queue, recv_queue, .. } = self.sizes;
        Sizes {
            send_queue: clamp_queue_len(send_queue.into()),
            recv_queue: clamp_queue_len(recv_queue.into()),
            ..self.sizes
        }
    }
}

pub(crate) fn clamp_queue_len(len: u32) -> u16 {
    len.clamp(*QUEUE_LEN_LIMITS.start(), *QUEUE_LEN_LIMITS.end()) as u16
}

/// Returns the kernel's idle time before keepalive probes of TCP; 7200 s if it cannot be read.
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
        (settings.sizes.send_queue, settings.sizes.recv_queue) = (clamp_queue_len(1), clamp_queue_len(u32::MAX));
        settings.set_iomaps(300);
        let expected = Sizes { send_queue: 16, recv_queue: 16384, send_buffer: 4096, recv_buffer: 10_000, iomaps: 256 };
        assert_eq!(settings.sizes(), expected);
        settings.set_iomaps(1 << 15);
        assert_eq!(settings.sizes().iomaps, 127 << 8);
        settings.set_recv_buffer(u32::MAX);
        assert_eq!(settings.sizes().recv_buffer, MAX_BUFFER);
    }
}
