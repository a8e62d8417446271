//! The only clock of the engine: nanoseconds of CLOCK_MONOTONIC. Read once per batch. And what a
//! thread has cost.
//!
//! Asked for without `std`, whose instants are seconds and nanoseconds that have to be subtracted,
//! multiplied and checked to become a number: that cost 90 instructions for each reading.

use roxe_transport::time::Instant;
use std::time::Duration;

/// The time now, on the clock of completion timestamps; never zero.
#[inline]
pub fn now() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that may be written to. It cannot fail: every Linux has this
    // clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Instant((time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64).max(1))
}

/// A duration as system calls take it.
pub fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: libc::c_long::from(duration.subsec_nanos() as i32),
    }
}

/// CPU time of the calling thread. Always a system call.
pub fn spent() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as in `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
