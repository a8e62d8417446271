//! Settings of the administrator: one number in each file of `/etc/rdma/rsocket`.

use crate::proto::stream::Sizes;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

const FOLDER: &str = "/etc/rdma/rsocket";

/// Smallest send buffer, in bytes.
pub(crate) const MIN_SEND_BUFFER: u32 = 2048;

/// Defaults of new sockets, and times of waits. A datagram socket changes its own copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) sizes: Sizes,
    /// Longest data that is sent inline, in bytes.
    pub(crate) inline: u32,
    /// Time for which a call polls before it sleeps.
    pub(crate) polling_time: Duration,
    /// Longest sleep in `poll` before it checks the sockets again.
    pub(crate) wake_up_interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sizes: Sizes { send_queue: 384, recv_queue: 384, send_buffer: 1 << 17, recv_buffer: 1 << 17, iomaps: 0 },
            inline: 64,
            polling_time: Duration::from_micros(10),
            wake_up_interval: Duration::from_millis(500),
        }
    }
}

impl Config {
    pub(crate) fn get() -> &'static Self {
        static CONFIG: OnceLock<Config> = OnceLock::new();
        CONFIG.get_or_init(|| Self::read(Path::new(FOLDER)))
    }

    /// Reads the existing files. Numbers that are invalid or too large leave the default.
    fn read(folder: &Path) -> Self {
        let default = Self::default();
        let number = |name: &str| -> Option<u32> {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        let count = |name: &str, default: u16| number(name).and_then(|n| n.try_into().ok()).unwrap_or(default);
        let buffer = |name: &str, default: u32| number(name).map_or(default, |bytes| bytes.clamp(2, 1 << 30));
        Self {
            sizes: Sizes {
                send_queue: count("sqsize_default", default.sizes.send_queue),
                recv_queue: count("rqsize_default", default.sizes.recv_queue),
                send_buffer: buffer("wmem_default", default.sizes.send_buffer).max(MIN_SEND_BUFFER),
                recv_buffer: buffer("mem_default", default.sizes.recv_buffer),
                iomaps: count("iomap_size", default.sizes.iomaps),
            },
            inline: number("inline_default").filter(|bytes| *bytes <= u16::MAX.into()).unwrap_or(default.inline),
            polling_time: number("polling_time").map_or(default.polling_time, |us| Duration::from_micros(us.into())),
            wake_up_interval: number("wake_up_interval")
                .map_or(default.wake_up_interval, |ms| Duration::from_millis(ms.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_override_defaults_unless_invalid() {
        let folder = std::env::temp_dir().join(format!("rsockets-config-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(Config::read(&folder), Config::default());
        for (name, text) in [
            ("mem_default", "1000000\n"),
            ("wmem_default", "5"),
            ("sqsize_default", "70000"),
            ("rqsize_default", "many"),
            ("polling_time", "0"),
            ("iomap_size", "4"),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let read = Config::read(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let expected = Config {
            sizes: Sizes { recv_buffer: 1_000_000, send_buffer: MIN_SEND_BUFFER, iomaps: 4, ..Config::default().sizes },
            polling_time: Duration::ZERO,
            ..Config::default()
        };
        assert_eq!(read, expected);
    }
}
