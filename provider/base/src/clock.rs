//! Clocks: CLOCK_MONOTONIC in nanoseconds, for timers of packets and for completions, and the
//! processor time of the calling thread. The hot path reads the clock once per batch.
//!
//! `std::time::Instant` keeps seconds and nanoseconds apart, and converting them to one number on
//! each reading is expensive. So this module calls `clock_gettime`.

use roxe_transport::time::Instant;
use std::time::Duration;

/// Returns the time now, on the clock of completion timestamps; never zero.
#[inline]
pub fn now() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to. The call cannot fail: every Linux has this
    // clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Instant((time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64).max(1))
}

/// Converts a duration to an argument of system calls.
pub fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: libc::c_long::from(duration.subsec_nanos() as i32),
    }
}

/// Returns the CPU time of the calling thread. Always makes a system call.
pub fn spent() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as in `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
