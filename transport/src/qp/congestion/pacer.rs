//! Pacing: packets leave in bursts with pauses between them, so that in the long run they do not
//! exceed a speed.
//!
//! Whose speed that is, of DCQCN or of the program, is not known here. Touches `time` only.

use crate::time::Instant;
use core::time::Duration;

/// What leaves in one go unless the program says otherwise, bytes: half a segmented send. A whole
/// burst is paid for before the next one begins, so that packets go on leaving many per system call
/// and not one per timer.
pub(super) const BURST: u64 = 32 << 10;
/// No burst is longer than this, bytes: it keeps products within 64 bits.
const MAX_BURST: u64 = 1 << 30;
/// How much later than asked a pause may end without loss: a sleeping thread oversleeps by about as
/// much. What could have left meanwhile, or while there was nothing to send, is added to the next
/// burst.
const LATE: Duration = Duration::from_micros(100);
/// What a packet occupies on an Ethernet besides its payload, about.
const OVERHEAD: u64 = 64;

/// How far what was sent is paid for.
#[derive(Debug)]
pub(super) struct Pacer {
    /// Bit/s.
    speed: u64,
    /// Bytes that leave in one go.
    burst: u64,
    /// When all that was sent has left at the speed it was sent with.
    free_at: Instant,
}

impl Pacer {
    /// Nothing was sent before `now`.
    pub(super) const fn new(now: Instant) -> Self {
        Self { speed: 1, burst: BURST, free_at: now }
    }

    /// From now on at most `speed` bit/s, in bursts of `burst` bytes.
    pub(super) fn set(&mut self, speed: u64, burst: u64) {
        (self.speed, self.burst) = (speed.max(1), burst.min(MAX_BURST));
    }

    /// When the next burst may begin, if the current one is complete.
    pub(super) fn pause(&self, now: Instant) -> Option<Instant> {
        (self.free_at.since(now) >= self.time_of(self.burst)).then_some(self.free_at)
    }

    /// Whether the burst would be complete with a packet of this payload.
    pub(super) fn pauses_after(&self, now: Instant, payload: u32) -> bool {
        self.free_after(now, payload).since(now) >= self.time_of(self.burst)
    }

    /// A packet with this payload left.
    pub(super) fn on_sent(&mut self, now: Instant, payload: u32) {
        self.free_at = self.free_after(now, payload);
    }

    /// When a packet with this payload, sent now, would have left.
    fn free_after(&self, now: Instant, payload: u32) -> Instant {
        self.free_at.max(now.before(LATE)).after(self.time_of(u64::from(payload) + OVERHEAD))
    }

    /// How long `bytes` take.
    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos((bytes * 8_000_000_000).div_ceil(self.speed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Instant {
        Instant(us * 1000)
    }

    /// 100 Mbit/s from 0 on.
    fn pacer() -> Pacer {
        let mut pacer = Pacer::new(Instant(0));
        pacer.set(100_000_000, BURST);
        pacer
    }

    /// Sends packets of 960 + 64 bytes, 81.92 us each at 100 Mbit/s, until there is a pause.
    fn burst(pacer: &mut Pacer, now: Instant) -> (usize, Instant) {
        for sent in 0.. {
            if let Some(until) = pacer.pause(now) {
                return (sent, until);
            }
            let last = pacer.pauses_after(now, 960);
            pacer.on_sent(now, 960);
            assert_eq!(last, pacer.pause(now).is_some(), "packet {sent}");
        }
        unreachable!("a burst has an end")
    }

    /// 32 packets are a burst, and the next one begins when all have had their time, 2621.44 us
    /// later.
    #[test]
    fn a_burst_is_paid_for_before_the_next() {
        let mut pacer = pacer();
        let end = Instant(2_621_440);
        assert_eq!(burst(&mut pacer, Instant(0)), (32, end));
        assert_eq!(burst(&mut pacer, end), (32, end.after(Duration::from_nanos(2_621_440))));
    }

    /// What a pause took too long is made up for: 40.96 us are half a packet, and the times stay
    /// what they would have been. More than 100 us are not: after a long silence they are 1.2
    /// packets of 81.92 us, which makes 34 packets (33 · 81.92 - 100 = 2603.36 is less than a
    /// burst) and 34 · 81.92 - 100 = 2685.28 us.
    #[test]
    fn a_late_end_of_a_pause_costs_nothing() {
        let mut pacer = pacer();
        burst(&mut pacer, Instant(0));
        assert_eq!(burst(&mut pacer, Instant(2_621_440 + 40_960)), (33, Instant(2_621_440 + 33 * 81_920)));
        assert_eq!(burst(&mut pacer, us(1_000_000)), (34, Instant(1_000_000_000 + 2_685_280)));
    }

    #[test]
    fn a_burst_of_a_byte_is_a_packet_and_the_longest_one_fits_the_arithmetic() {
        let mut pacer = pacer();
        pacer.set(100_000_000, 1);
        assert_eq!(burst(&mut pacer, Instant(0)), (1, Instant(81_920)));
        pacer.set(0, u64::MAX);
        assert_eq!(pacer.pause(Instant(0)), None);
    }
}
