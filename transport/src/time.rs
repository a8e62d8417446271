//! Time as a number, and the two timer codes of a queue pair.
//!
//! The engine reads the clock once per batch and passes [`Instant`] down. `std::time::Instant`
//! cannot be built from a number, so a simulation could not set it.

use core::time::Duration;

/// Nanoseconds since an arbitrary start, the same for the whole process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

impl Instant {
    /// Returns the instant `d` later; saturates.
    #[must_use]
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the instant `d` earlier; saturates.
    #[must_use]
    pub fn before(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the time since `earlier`; zero if it is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns the local ACK timeout of a 5-bit code: 4.096 µs · 2^code; `None` for 0, no timeout (IBA
/// §9.7.6.1.3).
pub fn ack_timeout(code: u8) -> Option<Duration> {
    match code & 0x1f {
        0 => None,
        // clause: TIMER-ACK
        code => Some(Duration::from_nanos(4096u64 << code)),
    }
}

/// Returns the RNR NAK wait of a 5-bit code (IBA §9.7.5.2.8, table 45). Code 0 is the longest.
pub fn rnr_wait(code: u8) -> Duration {
    /// Waits in units of 10 µs.
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
    fn timer_codes_equal_the_tables() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
        assert_eq!(rnr_wait(0), Duration::from_micros(655_360));
        assert_eq!(rnr_wait(12), Duration::from_micros(640));
        assert_eq!(rnr_wait(31), Duration::from_micros(491_520));
    }
}
