//! Receiver not ready: the wait, the retry counter, and traffic in the other direction.

use super::*;
use roxe_transport::time::rnr_wait;
use roxe_wire::Syndrome;

/// Returns the RNR NAKs that `side` sent, as (PSN, timer code).
fn rnr_naks(pair: &Pair, side: Peer) -> Vec<(u32, u8)> {
    let rnr = |(r, psn)| match r {
        Response::Ack(aeth) => match aeth.syndrome {
            Syndrome::RnrNak { timer } => Some((psn, timer)),
            _ => None,
        },
        _ => None,
    };
    responses(pair, side).into_iter().filter_map(rnr).collect()
}

// clause: RNR-COUNT
#[test]
fn one_rnr_nak_more_than_rnr_retry_fails() {
    for rnr_retry in 0..=6u8 {
        for extra in [0, 1] {
            let mut p = Pair::new(Setup { rnr_retry, ..Setup::default() });
            post(&mut p, A, 1, SendOp::Send, &[]);
            post(&mut p, A, 2, SendOp::Send, &[]);
            while rnr_naks(&p, B).len() < usize::from(rnr_retry + extra) && p.step() {}
            for id in [1, 2] {
                recv(&mut p, B, id, &[]);
            }
            p.run();
            let expected = if extra == 0 {
                statuses(1..=2, WcStatus::Success)
            } else {
                vec![(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)]
            };
            assert_eq!(sends(&mut p, A), expected, "rnr_retry {rnr_retry} + {extra}");
        }
    }
}

// clause: RNR-COUNT
#[test]
fn rnr_retry_7_never_gives_up() {
    let mut p = Pair::new(Setup { rnr_retry: 7, min_rnr_timer: 1, retry_cnt: 0, ..Setup::default() });
    post(&mut p, A, 1, SendOp::Send, &[]);
    while rnr_naks(&p, B).len() < 1000 {
        assert!(p.step());
    }
    recv(&mut p, B, 1, &[]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
    assert_eq!(recvs(&mut p, B), statuses(1..=1, WcStatus::Success));
}

// clause: RNR-WAIT, CHECK-RECEIVE, STATE-VALUES
#[test]
fn rnr_wait_is_observed() {
    for timer in (0..32).chain([0x20, 0x2c, 0xff]) {
        let code = timer & 31;
        let mut p = Pair::new(Setup { min_rnr_timer: timer, ..Setup::default() });
        post(&mut p, A, 1, SendOp::Send, &[]);
        while request_psns(&p, A).len() < 2 {
            assert!(p.step());
        }
        assert_eq!(rnr_naks(&p, B), [(100, code)]);
        assert_eq!(p.end(B).qp.take_retry_counts().map(|counts| counts.send_rnr_err), Some(1));
        let at = |from: Peer, n: usize| p.log.iter().filter(|l| l.from == from).nth(n).expect("sent").at;
        let waited = at(A, 1).since(at(B, 0).after(p.setup.latency));
        assert!(waited >= rnr_wait(code), "code {code}: waited {waited:?}");
        assert!(waited <= rnr_wait(code) * 2 + ms(1), "code {code}: waited {waited:?}");
    }
}

// clause: RNR-WAIT
#[test]
fn nothing_is_sent_during_the_wait() {
    let mut p = Pair::new(Setup { min_rnr_timer: 24, ..Setup::default() });
    let dst = blank(&mut p, B, 8);
    post(&mut p, A, 1, SendOp::Send, &[]);
    p.run_for(ms(1));
    for id in 2..=5 {
        post(&mut p, A, id, write_to(dst), &[]);
    }
    recv(&mut p, B, 1, &[]);
    p.run_for(ms(39));
    assert_eq!(request_psns(&p, A), [100]);
    p.run();
    assert_eq!(request_psns(&p, A), [100, 100, 101, 102, 103, 104]);
    assert_eq!(sends(&mut p, A), statuses(1..=5, WcStatus::Success));
}

// clause: GAP-DROPPED
#[test]
fn requests_after_the_refused_one_change_nothing() {
    let mut p = Pair::new(Setup { min_rnr_timer: 24, ..Setup::default() });
    let (src, dst) = (filled(&mut p, A, 64), blank(&mut p, B, 64));
    post(&mut p, A, 1, SendOp::Send, &[]);
    post(&mut p, A, 2, write_to(dst), &[src.all()]);
    post(&mut p, A, 3, write_to(dst), &[src.all()]);
    p.run_for(ms(1));
    assert_eq!(bytes(&p, B, dst), vec![0; 64], "packets after the refused one must not be executed");
    assert_eq!(rnr_naks(&p, B), [(100, 24)]);
    // A sequence NAK for the packets after the refused one must not shorten the wait.
    assert_eq!(request_psns(&p, A), [100, 101, 102]);
    recv(&mut p, B, 1, &[]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=3, WcStatus::Success));
    assert_eq!(bytes(&p, B, dst), bytes(&p, A, src));
}

// clause: NAK-ACKNOWLEDGES
#[test]
fn rnr_nak_acknowledges_all_earlier_packets() {
    let mut p = Pair::new(Setup { min_rnr_timer: 24, ..Setup::default() });
    let dst = blank(&mut p, B, 8);
    post(&mut p, A, 1, write_to(dst), &[]);
    post(&mut p, A, 2, SendOp::Send, &[]);
    p.run_for(ms(1));
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
    recv(&mut p, B, 1, &[]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(2..=2, WcStatus::Success));
}

// clause: CHECK-RECEIVE
#[test]
fn only_messages_that_need_a_receive_get_rnr_nak() {
    let mut p = Pair::new(Setup::default());
    let (src, dst) = (filled(&mut p, A, 600), blank(&mut p, B, 600));
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    post(&mut p, A, 2, read_from(dst), &[src.all()]);
    post(&mut p, A, 3, add_to(dst, 0), &[src.sge(0, 8)]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=3, WcStatus::Success));
    assert_eq!(rnr_naks(&p, B), []);
}

#[test]
fn write_imm_gets_rnr_nak_at_its_last_packet() {
    let mut p = Pair::new(Setup { min_rnr_timer: 1, ..Setup::default() });
    let (src, dst) = (filled(&mut p, A, 600), blank(&mut p, B, 600));
    let op = SendOp::WriteImm { remote_addr: dst.addr, rkey: dst.rkey(), imm: imm(3) };
    post(&mut p, A, 1, op, &[src.all()]);
    p.run_for(Duration::from_micros(100));
    assert!(rnr_naks(&p, B).iter().all(|(psn, _)| *psn == 102), "{:?}", rnr_naks(&p, B));
    recv(&mut p, B, 9, &[]);
    p.run();
    assert_eq!(
        (sends(&mut p, A), recvs(&mut p, B)),
        (statuses(1..=1, WcStatus::Success), statuses(9..=9, WcStatus::Success))
    );
    assert_eq!(bytes(&p, B, dst), bytes(&p, A, src));
}

#[test]
fn multi_packet_send_takes_one_receive() {
    let mut p = Pair::new(Setup { min_rnr_timer: 1, ..Setup::default() });
    let (src, dst) = (filled(&mut p, A, 1000), blank(&mut p, B, 2000));
    post(&mut p, A, 1, SendOp::Send, &[src.all()]);
    post(&mut p, A, 2, SendOp::Send, &[src.all()]);
    p.run_for(Duration::from_micros(300));
    recv(&mut p, B, 1, &[dst.sge(0, 1000)]);
    p.run_for(Duration::from_micros(300));
    recv(&mut p, B, 2, &[dst.sge(1000, 1000)]);
    p.run();
    assert_eq!(recvs(&mut p, B), statuses(1..=2, WcStatus::Success));
    assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
    assert_eq!(bytes(&p, B, dst)[1000..], bytes(&p, A, src)[..]);
}

// clause: RETRY-RELOAD
#[test]
fn progress_refills_the_rnr_counter() {
    let mut p = Pair::new(Setup { rnr_retry: 1, min_rnr_timer: 12, ..Setup::default() });
    for id in 1..=5 {
        post(&mut p, A, id, SendOp::Send, &[]);
        // The time suffices for the first RNR NAK, but not for the second.
        p.run_for(Duration::from_micros(100));
        recv(&mut p, B, id, &[]);
        p.run();
    }
    assert_eq!(sends(&mut p, A), statuses(1..=5, WcStatus::Success));
    assert_eq!(rnr_naks(&p, B).len(), 5);
}

#[test]
fn lost_rnr_nak_is_recovered_by_the_timer() {
    let mut p = Pair::new(Setup { min_rnr_timer: 1, ..Setup::default() });
    drop_nth(&mut p, B, 0);
    post(&mut p, A, 1, SendOp::Send, &[]);
    p.run_for(ms(1));
    recv(&mut p, B, 1, &[]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
}

// clause: RNR-OTHERS-GO-ON
#[test]
fn responder_continues_during_the_rnr_wait() {
    let mut p = Pair::new(Setup { min_rnr_timer: 24, ..Setup::default() });
    let (dst, src) = (blank(&mut p, A, 64), filled(&mut p, B, 64));
    post(&mut p, A, 1, SendOp::Send, &[]);
    p.run_for(ms(1));
    post(&mut p, B, 2, write_to(dst), &[src.all()]);
    p.run_for(ms(1));
    assert_eq!(sends(&mut p, B), statuses(2..=2, WcStatus::Success));
    assert_eq!(bytes(&p, A, dst), bytes(&p, B, src));
}
