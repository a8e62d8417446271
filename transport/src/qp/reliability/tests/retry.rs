//! Retry counters and the timer.

use super::*;

const ATTR: fn() -> QpAttr = || QpAttr { timeout: 14, retry_cnt: 2, rnr_retry: 1, ..QpAttr::default() };
const T14: u64 = 4096 << 14;

fn full_counters() -> Retry {
    let mut retry = Retry::default();
    retry.reset(&ATTR());
    retry
}

// clause: RETRY-COUNT
#[test]
fn retry_cnt_limits_the_retries() {
    let mut retry = full_counters();
    assert_eq!(retry.on_ack_timeout(), Ok(()));
    assert_eq!(retry.on_loss(), Ok(true));
    assert_eq!(retry.on_ack_timeout(), Err(Exhausted));
    retry.on_progress(&ATTR(), Instant(0), false);
    assert_eq!(retry.on_ack_timeout(), Ok(()));
}

// clause: NAK-ONCE
#[test]
fn repeated_naks_of_one_loss_cost_one_retry() {
    let mut retry = full_counters();
    assert_eq!(retry.on_loss(), Ok(true));
    assert_eq!(retry.on_loss(), Ok(false));
    assert_eq!(retry.on_ack_timeout(), Ok(()));
    assert_eq!(retry.on_loss(), Err(Exhausted));
}

// clause: NAK-ONCE
#[test]
fn nak_after_rnr_wait_reports_another_loss() {
    let mut retry = full_counters();
    assert_eq!(retry.on_loss(), Ok(true));
    assert_eq!(retry.on_rnr(&ATTR(), Instant(0), 1), Ok(()));
    retry.on_rnr_timeout();
    assert_eq!(retry.on_loss(), Ok(true));
}

// clause: RNR-COUNT
#[test]
fn rnr_retries_are_separate_and_7_is_infinite() {
    let mut retry = full_counters();
    assert_eq!(retry.on_rnr(&ATTR(), Instant(0), 1), Ok(()));
    assert_eq!(retry.on_rnr(&ATTR(), Instant(0), 1), Err(Exhausted));
    let endless = QpAttr { rnr_retry: 7, ..ATTR() };
    for _ in 0..100 {
        assert_eq!(retry.on_rnr(&endless, Instant(0), 1), Ok(()));
    }
}

// clause: TIMER-RESTART
#[test]
fn ack_timer_starts_once_and_restarts_on_progress() {
    let mut retry = full_counters();
    retry.on_sent(&ATTR(), Instant(5));
    retry.on_sent(&ATTR(), Instant(9));
    assert_eq!(retry.deadline(), Some(Instant(5 + T14)));
    assert_eq!(retry.expired_timer(Instant(4 + T14)), None);
    assert_eq!(retry.expired_timer(Instant(5 + T14)), Some(Timer::Ack));
    retry.on_progress(&ATTR(), Instant(20), true);
    assert_eq!(retry.deadline(), Some(Instant(20 + T14)));
    retry.on_progress(&ATTR(), Instant(30), false);
    assert_eq!(retry.deadline(), None);
}

// clause: RNR-WAIT-WHOLE
#[test]
fn losses_do_not_shorten_an_rnr_wait() {
    let mut retry = full_counters();
    assert_eq!(retry.on_rnr(&ATTR(), Instant(0), 12), Ok(()));
    retry.on_progress(&ATTR(), Instant(1), true);
    retry.on_sent(&ATTR(), Instant(1));
    assert!(retry.is_waiting());
    assert_eq!(retry.deadline(), Some(Instant(640_000)));
    assert_eq!(retry.expired_timer(Instant(640_000)), Some(Timer::Rnr));
}

// clause: TIMER-RANGE
#[test]
fn timeout_0_is_infinite_and_small_codes_are_rounded_up() {
    let mut retry = full_counters();
    retry.on_sent(&QpAttr { timeout: 0, ..ATTR() }, Instant(0));
    assert_eq!(retry.deadline(), None);
    retry.on_sent(&QpAttr { timeout: 1, ..ATTR() }, Instant(0));
    assert_eq!(retry.deadline(), Some(Instant(4096 << 10)));
}

// clause: TIMER-RANGE
#[test]
fn repeated_timeouts_grow_up_to_fourfold() {
    let wait = |retry: &mut Retry, attr: &QpAttr| {
        retry.on_sent(attr, Instant(0));
        let at = retry.deadline().unwrap().0;
        retry.on_ack_timeout().unwrap();
        at
    };
    let attr = QpAttr { retry_cnt: 7, ..ATTR() };
    let mut retry = Retry::default();
    retry.reset(&attr);
    assert_eq!([(); 4].map(|()| wait(&mut retry, &attr)), [T14, T14, 2 * T14, 250_000_000]);
    retry.on_progress(&attr, Instant(0), false);
    assert_eq!(wait(&mut retry, &attr), T14);
    let short = QpAttr { timeout: 11, ..attr };
    assert_eq!([(); 3].map(|()| wait(&mut retry, &short)), [1, 2, 4].map(|times| times * (4096 << 11)));
    let long = QpAttr { timeout: 18, ..attr };
    assert_eq!([(); 2].map(|()| wait(&mut retry, &long)), [4096 << 18; 2]);
}
