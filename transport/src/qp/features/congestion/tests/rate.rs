//! The rate of DCQCN.

use super::*;

const GIGA: u64 = 1_000_000_000;

/// Returns a rate below a line of 10 Gbit/s, with its first CNP at 0.
fn rate() -> ReducedRate {
    ReducedRate::new(NonZeroU64::new(10 * GIGA).expect("not zero"), Instant(0))
}

const fn us(us: u64) -> Instant {
    Instant(us * 1000)
}

/// Returns the rate at `at`, in kbit/s.
fn kbits(rate: &mut ReducedRate, at: Instant) -> u64 {
    rate.advance(at);
    rate.current / 1000
}

/// One CNP: alpha is 1, so 4 µs later the rate is halved while the target stays at the line. Then,
/// every 1.5 ms, half of the difference is recovered.
// clause: DCQCN-FIRST, DCQCN-CUT
#[test]
fn first_cut_halves_and_fast_recovery_halves_the_gap() {
    let mut rate = rate();
    assert_eq!(kbits(&mut rate, Instant(3_999)), 10_000_000);
    assert_eq!(kbits(&mut rate, us(4)), 5_000_000);
    assert_eq!(kbits(&mut rate, Instant(1_503_999)), 5_000_000);
    let gaps = [(1504, 7_500_000), (3004, 8_750_000), (4504, 9_375_000), (6004, 9_687_500), (7504, 9_843_750)];
    for (at, expected) in gaps {
        assert_eq!(kbits(&mut rate, us(at)), expected, "{at} us");
    }
}

/// The gap after n raises is 5 Gbit/s / 2^n; the tenth makes it 4.9 Mbit/s, which is less than one
/// additive step.
// clause: DCQCN-RAISE
#[test]
fn rate_reaches_line_after_ten_raises() {
    let mut rate = rate();
    rate.advance(us(4 + 9 * 1500));
    assert!(!rate.is_at_line());
    rate.advance(us(4 + 10 * 1500));
    assert!(rate.is_at_line());
    assert_eq!((rate.current, rate.raise_at), (10 * GIGA, None));
}

/// Target 2 Gbit/s, rate 1: five raises give 1.5, 1.75, 1.875, 1.9375 and 1.96875 Gbit/s. The sixth
/// adds 5 Mbit/s to the target: (1968.75 + 2005) / 2 = 1986.875. Then 50 each time: (1986.875 +
/// 2055) / 2 = 2020.9375 and (2020.9375 + 2105) / 2 = 2062.96875.
// clause: DCQCN-RAISE
#[test]
fn recovery_goes_through_its_three_stages() {
    let mut rate = rate();
    (rate.current, rate.target, rate.cut_at, rate.raise_at) = (GIGA, 2 * GIGA, None, Some(us(1500)));
    let kbits_after = [1_500_000, 1_750_000, 1_875_000, 1_937_500, 1_968_750, 1_986_875, 2_020_937, 2_062_968];
    for (n, expected) in (1..).zip(kbits_after) {
        assert_eq!(kbits(&mut rate, us(n * 1500)), expected, "raise {n}");
    }
    assert_eq!(rate.target, 2 * GIGA + 105_000_000);
}

/// A cut before any raise leaves the target at the line; one after a raise makes the rate the
/// target.
// clause: DCQCN-CUT
#[test]
fn target_follows_only_after_a_raise() {
    let mut rate = rate();
    rate.on_cnp(us(1));
    rate.advance(us(4));
    rate.on_cnp(us(5));
    rate.advance(us(8));
    assert_eq!((rate.current, rate.target), (5 * GIGA / 2, 10 * GIGA));
    // Raised at 1508 µs to (2.5 + 10) / 2 = 6.25 Gbit/s.
    rate.on_cnp(us(1509));
    rate.advance(us(1512));
    assert_eq!(rate.target, 25 * GIGA / 4);
    assert!(rate.current < rate.target);
}

/// With any number of CNPs, there is one cut in 4 µs, alpha stays 1, and the rate ends at its
/// minimum: 10,000 Mbit/s halved seven times is 78, less than 100.
// clause: DCQCN-CUT, DCQCN-LEAST
#[test]
fn cnp_flood_cuts_once_per_period_down_to_minimum() {
    let mut rate = rate();
    for ns in (0..24_000).step_by(100) {
        rate.on_cnp(Instant(ns));
    }
    assert_eq!(kbits(&mut rate, Instant(24_000)), 156_250);
    for ns in (24_000..1_000_000).step_by(100) {
        rate.on_cnp(Instant(ns));
    }
    assert_eq!(kbits(&mut rate, us(1000)), 100_000);
    assert_eq!(rate.alpha, ONE);
}

/// alpha loses 1/256 of itself in 55 µs. After one period 65536 - 256 = 65280; after the next 65280
/// - 255 = 65025. With a CNP in the third: 65025 - 255 (254.0 rounded up) + 256 = 65026.
// clause: DCQCN-ALPHA
#[test]
fn alpha_follows_the_cnps() {
    let mut rate = rate();
    let mut alpha = |at| {
        rate.age_alpha(at);
        rate.alpha
    };
    assert_eq!([alpha(Instant(54_999)), alpha(us(55)), alpha(us(110))], [65_536, 65_280, 65_025]);
    rate.on_cnp(us(120));
    rate.age_alpha(us(165));
    assert_eq!(rate.alpha, 65_026);
    // Quiet for a minute: zero, and in step with the 55 µs.
    rate.age_alpha(us(60_000_000));
    assert_eq!((rate.alpha, rate.alpha_at), (0, us(60_000_050)));
}

#[test]
fn rate_does_not_depend_on_poll_times() {
    let (mut often, mut once) = (rate(), rate());
    for round in 0..5 {
        let start = round * 4_000;
        [10, 90, 170].iter().for_each(|at| {
            often.on_cnp(us(start + at));
            once.on_cnp(us(start + at));
        });
        (start + 170..start + 4_000).for_each(|at| often.advance(us(at)));
    }
    often.advance(us(20_000));
    once.advance(us(20_000));
    assert_eq!((often.current, often.target, often.stage), (once.current, once.target, once.stage));
    assert!(often.current < 10 * GIGA);
}

#[test]
fn line_below_minimum_rate_is_never_cut() {
    let mut rate = ReducedRate::new(NonZeroU64::MIN, Instant(0));
    rate.advance(us(4));
    assert_eq!(rate.current, 1);
    let mut fastest = ReducedRate::new(NonZeroU64::MAX, Instant(0));
    fastest.advance(us(1504));
    assert_eq!(fastest.current, MAX_LINE / 4 * 3);
}
