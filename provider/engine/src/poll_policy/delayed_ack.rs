//! Delayed acknowledgements in a ping-pong, where the program answers each request at once.
//!
//! The acknowledgement then travels with the answer, which saves each side a system call and a
//! packet. [`DelayedAck`] decides which may wait and until when, [`is_over`] when the wait ends.

use roxe_transport::time::Instant;
use std::time::Duration;

/// An answer within this time is quick. This time exceeds the maximum delay, because sending a
/// delayed acknowledgement locks the queue pair and so holds up the program.
const QUICK: Duration = Duration::from_micros(1000);
/// Minimum and maximum delay of an acknowledgement. The delay is twice the average time of an
/// answer.
const DELAY_LIMITS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
/// Score from which on a quick answer is expected. A missing one delays the peer's completion by
/// [`DELAY_LIMITS`], or by a tick of the background thread if the program does not poll.
const MIN_SCORE: u8 = 32;
/// Points lost if no answer is posted in time. A long ping-pong survives single misses, as the
/// system may preempt the program at any time.
const MISS_PENALTY: u8 = 64;
/// Points lost by a slow answer while no acknowledgement waits for it.
const SLOW_PENALTY: u8 = 4;

/// Additional delay before the background thread sends an acknowledgement: if that thread shares a
/// CPU with the program, the program runs only while the thread sleeps, and a single wake-up of the
/// thread must not end the ping-pong.
pub(crate) const GRACE: Duration = Duration::from_micros(100);

/// Returns when the background thread sends an acknowledgement delayed until `until`.
pub(crate) fn due_in_background(until: Instant) -> Instant {
    until.after(GRACE)
}

/// Returns true if an acknowledgement delayed until `until` is sent by a poll at `now`, of the
/// program or of the background thread.
#[inline]
pub(crate) fn is_over(until: Instant, now: Instant, by_program: bool) -> bool {
    let at = if by_program { until } else { due_in_background(until) };
    at <= now
}

/// Ping-pong detection of one queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayedAck {
    /// Quick answers, less those that were slow or missing.
    score: u8,
    request_at: Option<Instant>,
    /// True if the acknowledgement of the last request was delayed.
    waits: bool,
    /// Average time of a quick answer in nanoseconds.
    average: u32,
}

impl DelayedAck {
    /// Called for a request whose sender requests an acknowledgement. Returns the time until which
    /// to delay the acknowledgement; `None` sends it at once.
    pub fn on_request(&mut self, now: Instant) -> Option<Instant> {
        // clause: ACK-BEFORE-REQUESTS
        // Two requests without an answer between them are not a ping-pong.
        if self.request_at.replace(now).is_some() {
            self.lose(MISS_PENALTY);
        }
        self.waits = self.score >= MIN_SCORE;
        self.waits.then(|| {
            let twice = Duration::from_nanos(2 * u64::from(self.average));
            now.after(twice.clamp(DELAY_LIMITS.0, DELAY_LIMITS.1))
        })
    }

    /// Called when the program posts a request.
    #[inline]
    pub fn on_post(&mut self, now: Instant) {
        let Some(request_at) = self.request_at.take() else { return };
        let took = now.since(request_at);
        if took < QUICK {
            self.score = self.score.saturating_add(1);
            self.average = self.average - self.average / 8 + took.subsec_nanos() / 8;
        } else if !self.waits {
            // A delayed acknowledgement leaves with the slow answer in any case.
            self.lose(SLOW_PENALTY);
        }
    }

    /// Called when the delay of an acknowledgement has expired without an answer.
    pub fn on_expiry(&mut self) {
        self.request_at = None;
        self.lose(MISS_PENALTY);
    }

    fn lose(&mut self, points: u8) {
        self.score = self.score.saturating_sub(points);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(1);

    /// Returns the policy of a queue pair that expects quick answers from now on, and the time.
    fn settled() -> (DelayedAck, Instant) {
        let (mut delayed_ack, mut now) = (DelayedAck::default(), Instant(1_000_000));
        for _ in 0..MIN_SCORE {
            assert_eq!(delayed_ack.on_request(now), None);
            now = now.after(SOON);
            delayed_ack.on_post(now);
        }
        (delayed_ack, now)
    }

    // clause: ACK-BEFORE-REQUESTS
    #[test]
    fn ack_waits_after_enough_quick_answers() {
        let (mut delayed_ack, now) = settled();
        assert_eq!(delayed_ack.on_request(now), Some(now.after(DELAY_LIMITS.0)));
    }

    #[test]
    fn ack_waits_twice_the_average_answer_within_bounds() {
        for (takes, waits) in
            [(1, 20..=20), (30, 50..=60), (400, 500..=500)].map(|(takes, waits)| (takes * SOON, waits))
        {
            let mut delayed_ack = DelayedAck::default();
            for _ in 0..MIN_SCORE {
                delayed_ack.on_request(Instant(1));
                delayed_ack.on_post(Instant(1).after(takes));
            }
            let until = delayed_ack.on_request(Instant(1)).unwrap();
            assert!(waits.contains(&until.since(Instant(1)).as_micros()), "{takes:?}: {until:?}");
        }
    }

    #[test]
    fn few_slow_answers_defer_delay_many_prevent_it() {
        let begins = |one_in: u32| {
            let mut delayed_ack = DelayedAck::default();
            (0..1000).any(|at| {
                let waits = delayed_ack.on_request(Instant(1)).is_some();
                delayed_ack.on_post(Instant(1).after(if at % one_in == 0 { QUICK } else { SOON }));
                waits
            })
        };
        assert_eq!([10, 3, 1].map(begins), [true, false, false]);
    }

    #[test]
    fn ack_with_slow_answer_is_not_a_miss() {
        let (mut delayed_ack, now) = settled();
        for _ in 0..10 {
            assert!(delayed_ack.on_request(now).is_some());
            delayed_ack.on_post(now.after(QUICK));
        }
    }

    #[test]
    fn missing_answer_and_expiry_end_delay() {
        let (mut missing, now) = settled();
        missing.on_request(now);
        assert_eq!(missing.on_request(now), None);

        let (mut silent, now) = settled();
        silent.on_request(now);
        silent.on_expiry();
        silent.on_post(now.after(SOON));
        assert_eq!(silent.on_request(now), None);
    }

    #[test]
    fn long_ping_pong_survives_single_misses() {
        let (mut delayed_ack, now) = settled();
        for _ in 0..255 {
            delayed_ack.on_request(now);
            delayed_ack.on_post(now);
        }
        let waits = |delayed_ack: &mut DelayedAck| {
            let waits = delayed_ack.on_request(now).is_some();
            delayed_ack.on_expiry();
            waits
        };
        assert_eq!([(); 5].map(|()| waits(&mut delayed_ack)), [true, true, true, true, false]);
    }

    #[test]
    fn posts_without_requests_do_not_count() {
        let mut delayed_ack = DelayedAck::default();
        (0..2 * u32::from(MIN_SCORE)).for_each(|_| delayed_ack.on_post(Instant(5)));
        assert_eq!(delayed_ack.on_request(Instant(6)), None);
    }
}
