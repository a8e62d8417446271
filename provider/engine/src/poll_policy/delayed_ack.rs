//! Whether the program answers the requests of its peer at once with requests of its own, as in a
//! ping-pong.
//!
//! Then the acknowledgement may wait for that answer and travel with it: one system call and one
//! packet to look for less on each side, and a peer that waits for its completion sees the answer
//! in the same moment. [`DelayedAck`] says which may wait and until when, [`is_over`] who ends
//! that.

use roxe_transport::time::Instant;
use std::time::Duration;

/// An answer within this time is quick. Longer than an acknowledgement waits, because one that
/// leaves by itself is what holds up a program that watches its memory: the queue pair is locked
/// meanwhile.
const QUICK: Duration = Duration::from_micros(1000);
/// How long an acknowledgement waits for an answer, at least and at most: twice as long as the
/// usual one takes. On an emulated processor up to 300 us pass between a packet and the answer
/// while acknowledgements do not wait; with 100 us they never came to, and a message of
/// `ib_write_lat` took 550 us there instead of 20.
const PATIENCE: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
/// Quick answers after which another is expected. One that does not come delays the completion of a
/// peer by [`PATIENCE`], or by a tick of the background thread where the program does not poll.
const ENOUGH: u8 = 32;
/// Quick answers that one which does not come outweighs: it happens once in so many messages in the
/// long run. A long ping-pong survives single ones, as the system may run something else at any
/// time: starting anew every time made 40,000 round trips of `ib_write_lat` 2 us longer on average.
const MISS: u8 = 64;
/// The same of one that is slow while no acknowledgement waits for it, and delays nothing: on a
/// crowded processor many are.
const SLOW: u8 = 4;

/// The background thread lets an acknowledgement wait so much longer: if the two share a processor,
/// the program that is about to answer only comes to run when this thread sleeps, and a round of it
/// takes 30 us in a virtual machine. When it did not, each of its wake-ups could stop a ping-pong
/// for milliseconds: peers whose completion comes before the answer watch their memory, and are
/// served by their own background threads.
pub(crate) const GRACE: Duration = Duration::from_micros(100);

/// When the background thread has to look after an acknowledgement that waits `until`.
pub(crate) fn due_in_background(until: Instant) -> Instant {
    until.after(GRACE)
}

/// Whether an acknowledgement that waits `until` leaves `by` this time; `by_program`: a thread of
/// the program asks, not the background thread.
#[inline]
pub(crate) fn is_over(until: Instant, by: Instant, by_program: bool) -> bool {
    let at = if by_program { until } else { due_in_background(until) };
    at <= by
}

/// How one queue pair is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayedAck {
    /// Quick answers, less what others outweighed.
    score: u8,
    /// When the request came that has not been answered yet.
    asked: Option<Instant>,
    /// Its acknowledgement waits for the answer.
    waits: bool,
    /// How long quick answers take, nanoseconds.
    usual: u32,
}

impl DelayedAck {
    /// A request came that wants an acknowledgement. Until when that may wait for the program's
    /// answer; `None`: it shall not.
    pub fn on_request(&mut self, now: Instant) -> Option<Instant> {
        // clause: ACK-BEFORE-REQUESTS
        // Two without an answer between them are no ping-pong.
        if self.asked.replace(now).is_some() {
            self.lose(MISS);
        }
        self.waits = self.score >= ENOUGH;
        let twice = Duration::from_nanos(2 * u64::from(self.usual));
        self.waits.then(|| now.after(twice.clamp(PATIENCE.0, PATIENCE.1)))
    }

    /// The program posts a request.
    #[inline]
    pub fn on_post(&mut self, now: Instant) {
        let Some(asked) = self.asked.take() else { return };
        let took = now.since(asked);
        if took < QUICK {
            self.score = self.score.saturating_add(1);
            self.usual = self.usual - self.usual / 8 + took.subsec_nanos() / 8;
        } else if !self.waits {
            // An acknowledgement that waited for it travels with it all the same.
            self.lose(SLOW);
        }
    }

    /// The acknowledgement has waited in vain.
    pub fn on_silence(&mut self) {
        self.asked = None;
        self.lose(MISS);
    }

    fn lose(&mut self, points: u8) {
        self.score = self.score.saturating_sub(points);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(1);

    /// A rhythm that has just come to expect quick answers, and the time.
    fn settled() -> (DelayedAck, Instant) {
        let (mut delayed_ack, mut now) = (DelayedAck::default(), Instant(1_000_000));
        for _ in 0..ENOUGH {
            assert_eq!(delayed_ack.on_request(now), None);
            now = now.after(SOON);
            delayed_ack.on_post(now);
        }
        (delayed_ack, now)
    }

    // clause: ACK-BEFORE-REQUESTS
    #[test]
    fn an_acknowledgement_waits_after_enough_quick_answers() {
        let (mut delayed_ack, now) = settled();
        assert_eq!(delayed_ack.on_request(now), Some(now.after(PATIENCE.0)));
    }

    #[test]
    fn an_acknowledgement_waits_twice_as_long_as_answers_take_within_bounds() {
        for (takes, waits) in
            [(1, 20..=20), (30, 50..=60), (400, 500..=500)].map(|(takes, waits)| (takes * SOON, waits))
        {
            let mut delayed_ack = DelayedAck::default();
            for _ in 0..ENOUGH {
                delayed_ack.on_request(Instant(1));
                delayed_ack.on_post(Instant(1).after(takes));
            }
            let until = delayed_ack.on_request(Instant(1)).unwrap();
            assert!(waits.contains(&until.since(Instant(1)).as_micros()), "{takes:?}: {until:?}");
        }
    }

    #[test]
    fn some_slow_answers_only_delay_its_beginning_many_prevent_it() {
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
    fn an_acknowledgement_that_travels_with_a_slow_answer_is_no_miss() {
        let (mut delayed_ack, now) = settled();
        for _ in 0..10 {
            assert!(delayed_ack.on_request(now).is_some());
            delayed_ack.on_post(now.after(QUICK));
        }
    }

    #[test]
    fn a_missing_answer_and_silence_end_it() {
        let (mut missing, now) = settled();
        missing.on_request(now);
        assert_eq!(missing.on_request(now), None);

        let (mut silent, now) = settled();
        silent.on_request(now);
        silent.on_silence();
        silent.on_post(now.after(SOON));
        assert_eq!(silent.on_request(now), None);
    }

    #[test]
    fn a_long_ping_pong_survives_some_of_them() {
        let (mut delayed_ack, now) = settled();
        for _ in 0..255 {
            delayed_ack.on_request(now);
            delayed_ack.on_post(now);
        }
        let waits = |delayed_ack: &mut DelayedAck| {
            let waits = delayed_ack.on_request(now).is_some();
            delayed_ack.on_silence();
            waits
        };
        assert_eq!([(); 5].map(|()| waits(&mut delayed_ack)), [true, true, true, true, false]);
    }

    #[test]
    fn posts_without_requests_mean_nothing() {
        let mut delayed_ack = DelayedAck::default();
        (0..2 * u32::from(ENOUGH)).for_each(|_| delayed_ack.on_post(Instant(5)));
        assert_eq!(delayed_ack.on_request(Instant(6)), None);
    }
}
