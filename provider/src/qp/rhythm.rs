//! Whether the program answers the requests of its peer at once with requests of its own, as in a ping-pong.
//!
//! Then the acknowledgement may wait for that answer and travel with it: one system call and one packet to look for less on
//! each side, and a peer that waits for its completion sees the answer in the same moment. Knows times, nothing else.

use roxe_transport::time::Instant;
use std::time::Duration;

/// An answer within this time is quick. Longer than [`PATIENCE`], because an acknowledgement that leaves by itself is what
/// holds up a program that watches its memory: the queue pair is locked meanwhile.
const QUICK: Duration = Duration::from_micros(100);
/// How long an acknowledgement waits for an answer.
const PATIENCE: Duration = Duration::from_micros(20);
/// Quick answers after which another is expected. One that does not come delays the completion of a peer by [`PATIENCE`], or
/// by a tick of the background thread where the program does not poll.
const ENOUGH: u8 = 32;
/// Quick answers that one which does not come outweighs: it happens once in so many messages in the long run. A long
/// ping-pong survives single ones, as the system may run something else at any time: starting anew every time made
/// 40,000 round trips of `ib_write_lat` 2 us longer on average.
const MISS: u8 = 64;

/// How one queue pair is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rhythm {
    /// Quick answers, less what others outweighed.
    score: u8,
    /// When the request came that has not been answered yet.
    asked: Option<Instant>,
}

impl Rhythm {
    /// A request came that wants an acknowledgement. Until when that may wait for the program's answer; `None`: it shall
    /// not.
    pub(super) fn on_request(&mut self, now: Instant) -> Option<Instant> {
        // clause: ACK-BEHIND-REQUESTS
        // Two without an answer between them are no ping-pong.
        if self.asked.replace(now).is_some() {
            self.miss();
        }
        (self.score >= ENOUGH).then(|| now.after(PATIENCE))
    }

    /// The program posts a request.
    #[inline]
    pub(super) fn on_post(&mut self, now: Instant) {
        match self.asked.take() {
            None => {}
            Some(asked) if now.since(asked) < QUICK => self.score = self.score.saturating_add(1),
            Some(_) => self.miss(),
        }
    }

    /// The acknowledgement has waited in vain.
    pub(super) fn on_silence(&mut self) {
        self.asked = None;
        self.miss();
    }

    fn miss(&mut self) {
        self.score = self.score.saturating_sub(MISS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(1);

    /// A rhythm that has just come to expect quick answers, and the time.
    fn settled() -> (Rhythm, Instant) {
        let (mut rhythm, mut now) = (Rhythm::default(), Instant(1_000_000));
        for _ in 0..ENOUGH {
            assert_eq!(rhythm.on_request(now), None);
            now = now.after(SOON);
            rhythm.on_post(now);
        }
        (rhythm, now)
    }

    // clause: ACK-BEHIND-REQUESTS
    #[test]
    fn an_acknowledgement_waits_after_enough_quick_answers() {
        let (mut rhythm, now) = settled();
        assert_eq!(rhythm.on_request(now), Some(now.after(PATIENCE)));
    }

    #[test]
    fn a_slow_answer_a_missing_one_and_silence_end_it() {
        let (mut slow, now) = settled();
        slow.on_request(now);
        slow.on_post(now.after(QUICK));
        assert_eq!(slow.on_request(now), None);

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
        let (mut rhythm, now) = settled();
        for _ in 0..255 {
            rhythm.on_request(now);
            rhythm.on_post(now);
        }
        let waits = |rhythm: &mut Rhythm| {
            let waits = rhythm.on_request(now).is_some();
            rhythm.on_silence();
            waits
        };
        assert_eq!([(); 5].map(|()| waits(&mut rhythm)), [true, true, true, true, false]);
    }

    #[test]
    fn posts_without_requests_mean_nothing() {
        let mut rhythm = Rhythm::default();
        (0..2 * u32::from(ENOUGH)).for_each(|_| rhythm.on_post(Instant(5)));
        assert_eq!(rhythm.on_request(Instant(6)), None);
    }
}
