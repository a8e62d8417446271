//! Time as a number handed in from outside, and the two timers of a queue pair.
//!
//! Nothing here reads a clock: the engine does, once per batch, and passes [`Instant`] down.
//! `std::time::Instant` cannot be built from a number, so a simulation could not set it; this one
//! can.

use core::time::Duration;

/// Nanoseconds since an arbitrary start that is the same for everything in one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

impl Instant {
    /// The instant `d` later; saturates at the end of time (584 years).
    #[must_use]
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The instant `d` earlier; saturates at the start of time.
    #[must_use]
    pub fn before(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; zero when it is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Local ACK timeout of a 5-bit code: 4.096 µs · 2^code; `None` for 0, which means "wait for ever"
/// (IBA §9.7.6.1.3).
pub fn ack_timeout(code: u8) -> Option<Duration> {
    match code & 0x1f {
        0 => None,
        // clause: TIMER-ACK
        code => Some(Duration::from_nanos(4096u64 << code)),
    }
}

/// RNR NAK wait of a 5-bit code (IBA §9.7.5.2.8, table 45). Code 0 is the longest.
pub fn rnr_wait(code: u8) -> Duration {
    /// In units of 10 µs.
    const TABLE: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    // clause: RNR-TABLE
    Duration::from_micros(u64::from(TABLE[usize::from(code & 0x1f)]) * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    // clause: TIMER-ACK, RNR-TABLE
    #[test]
    fn codes_follow_the_tables() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
        assert_eq!(rnr_wait(0), Duration::from_micros(655_360));
        assert_eq!(rnr_wait(12), Duration::from_micros(640));
        assert_eq!(rnr_wait(31), Duration::from_micros(491_520));
    }
}
