//! Bursts and pauses.

use super::*;

const fn us(us: u64) -> Instant {
    Instant(us * 1000)
}

/// Returns a pacer of 100 Mbit/s.
fn pacer() -> Pacer {
    let mut pacer = Pacer::new(Instant(0));
    pacer.set_rate(100_000_000, BURST);
    pacer
}

/// Sends packets of 960 + 64 bytes, 81.92 µs each at 100 Mbit/s, until there is a pause.
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

/// A burst has 32 packets; the next burst begins when the line time of all has passed, 2621.44 µs
/// later.
#[test]
fn next_burst_waits_for_the_line_time_of_the_last() {
    let mut pacer = pacer();
    let end = Instant(2_621_440);
    assert_eq!(burst(&mut pacer, Instant(0)), (32, end));
    assert_eq!(burst(&mut pacer, end), (32, end.after(Duration::from_nanos(2_621_440))));
}

/// Late wake-ups are compensated up to 100 µs. A wake-up that is 40.96 µs late, half a packet,
/// leaves the schedule unchanged. After a long idle time 100 µs are added, 1.2 packets of 81.92 µs:
/// a burst has 34 packets (33 · 81.92 - 100 = 2603.36 is less than a burst) and lasts 34 · 81.92 -
/// 100 = 2685.28 µs.
#[test]
fn late_wakeup_costs_no_rate() {
    let mut pacer = pacer();
    burst(&mut pacer, Instant(0));
    assert_eq!(burst(&mut pacer, Instant(2_621_440 + 40_960)), (33, Instant(2_621_440 + 33 * 81_920)));
    assert_eq!(burst(&mut pacer, us(1_000_000)), (34, Instant(1_000_000_000 + 2_685_280)));
}

#[test]
fn burst_limits_do_not_overflow() {
    let mut pacer = pacer();
    pacer.set_rate(100_000_000, 1);
    assert_eq!(burst(&mut pacer, Instant(0)), (1, Instant(81_920)));
    pacer.set_rate(0, u64::MAX);
    assert_eq!(pacer.pause(Instant(0)), None);
}
