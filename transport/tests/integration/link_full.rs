//! A full link: a ring in shared memory whose reader is stopped or serves other QPs. Unlike with an
//! exhausted window, no packet leaves, so only the timer can end the wait.

use super::*;
use roxe_sim::LinkState;

/// Time until the retries of `retry_cnt` 7 with code 14 run out: two waits of 67 ms, one of 134 ms
/// and five of 250 ms.
const ALL_RETRIES: Duration = Duration::from_nanos(2 * (4096 << 14) + 2 * (4096 << 14) + 5 * 250_000_000);

fn pair() -> (Pair, Mr) {
    let mut p = Pair::new(Setup { retry_cnt: 7, timeout: 14, rnr_retry: 7, ..Setup::default() });
    let mr = blank(&mut p, B, 64 << 10);
    (p, mr)
}

/// Returns a pair with 16 WRITEs to send, whose link has accepted only the packets of the first
/// `sent`.
fn pair_with_full_link(sent: u64) -> Pair {
    let (mut p, remote) = pair();
    let local = filled(&mut p, A, 64 << 10);
    drop_if(&mut p, A, |_, _| true);
    for id in 1..=16 {
        if id == sent + 1 {
            p.transmit(A);
            p.end(A).link = LinkState::Full;
        }
        post(&mut p, A, id, write_to(remote), &[local.all()]);
    }
    p
}

fn all_failed() -> Vec<(u64, WcStatus)> {
    [statuses(1..=1, WcStatus::RetryExcErr), statuses(2..=16, WcStatus::WrFlushErr)].concat()
}

// clause: TIMER-LINK-FULL
#[test]
fn full_link_ends_in_retry_exc_after_all_timeouts() {
    for sent in [0, 1, 15] {
        let mut p = pair_with_full_link(sent);
        p.run();
        assert_eq!(sends(&mut p, A), all_failed(), "{sent} sent");
        assert_eq!(p.elapsed(), ALL_RETRIES, "{sent} sent");
        p.assert_settled();
    }
}

// clause: TIMER-LINK-FULL
#[test]
fn temporarily_full_link_loses_nothing() {
    for sent in [0, 1, 15] {
        let mut p = pair_with_full_link(sent);
        p.run_for(ms(1000));
        assert_eq!(sends(&mut p, A), []);
        p.end(A).link = LinkState::Open;
        drop_if(&mut p, A, |_, _| false);
        p.run();
        assert_eq!(sends(&mut p, A), statuses(1..=16, WcStatus::Success), "{sent} sent");
        p.assert_settled();
    }
}

// clause: TIMER-LINK-FULL
#[test]
fn waiting_for_a_shared_link_costs_no_retry() {
    let mut p = pair_with_full_link(0);
    p.end(A).link = LinkState::Shared;
    p.run_for(ms(60_000));
    assert_eq!(sends(&mut p, A), []);
    assert_eq!(p.end(A).qp.take_retry_counts().map_or(0, |counts| counts.local_ack_timeout_err), 0);
    // A QP with unanswered packets in flight still fails.
    let mut p = pair_with_full_link(1);
    p.end(A).link = LinkState::Shared;
    p.run_for(ms(100));
    assert_eq!(p.end(A).qp.take_retry_counts().map_or(0, |counts| counts.local_ack_timeout_err), 1);
    p.end(A).link = LinkState::Full;
    p.run();
    assert_eq!(sends(&mut p, A), all_failed());
}

// clause: TIMER-LINK-FULL
#[test]
fn timer_runs_again_after_a_nak_and_after_an_rnr_wait() {
    let (mut p, remote) = pair();
    recv(&mut p, B, 1, &[]);
    // The first packet is lost, and the second causes a NAK, which arrives when the link is
    // full.
    drop_nth(&mut p, A, 0);
    post(&mut p, A, 1, write_to(remote), &[]);
    post(&mut p, A, 2, write_to(remote), &[]);
    p.transmit(A);
    p.end(A).link = LinkState::Full;
    p.run();
    assert_eq!(sends(&mut p, A), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
    let mut p = Pair::new(Setup { retry_cnt: 7, timeout: 14, rnr_retry: 7, min_rnr_timer: 12, ..Setup::default() });
    post(&mut p, A, 1, SendOp::Send, &[]);
    p.transmit(A);
    p.end(A).link = LinkState::Full;
    p.run();
    assert_eq!(sends(&mut p, A), [(1, WcStatus::RetryExcErr)]);
}

// clause: TIMER-LINK-FULL
#[test]
fn response_waiting_for_the_link_does_not_stop_the_timer() {
    let (mut p, remote) = pair();
    let local = blank(&mut p, A, 8);
    post(&mut p, B, 1, write_to(local), &[]);
    p.transmit(B);
    p.end(A).link = LinkState::Full;
    post(&mut p, A, 2, write_to(remote), &[]);
    p.run();
    assert_eq!(sends(&mut p, A), [(2, WcStatus::RetryExcErr)]);
    assert_eq!(sends(&mut p, B), [(1, WcStatus::RetryExcErr)]);
}

// clause: TIMER-LINK-FULL, STATE-SQD
#[test]
fn draining_a_send_queue_on_a_full_link_ends_in_an_error() {
    let mut p = pair_with_full_link(1);
    let end = p.end(A);
    let attr = QpAttr { state: QpState::Sqd, ..*end.qp.attr() };
    assert_eq!(end.qp.modify(&mut end.host, &attr, AttrMask::STATE), Ok(()));
    p.run();
    assert_eq!(sends(&mut p, A), all_failed());
    assert_eq!(p.end(A).qp.state(), QpState::Err);
}
