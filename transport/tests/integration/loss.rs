//! RC on a lossy network: every packet dropped, duplicated, damaged or delayed in turn; both sides
//! of the retry limit; operations execute exactly once.

use super::*;
use roxe_sim::wire::{damaged, late, twice};
use roxe_transport::fault::Verdict;
use roxe_wire::{NakCode, Syndrome};

/// An RC pair with one message of each kind ready to post, `len` bytes each.
struct Bench {
    p: Pair,
    src: Mr,
    dst: Mr,
    remote: Mr,
    word: Mr,
    old: Mr,
    len: u32,
}

impl Bench {
    fn new(setup: Setup, len: u32) -> Self {
        let mut p = Pair::new(setup);
        let (src, dst) = (filled(&mut p, A, len), blank(&mut p, B, 2 * len));
        let remote = filled(&mut p, B, len);
        let (word, old) = (blank(&mut p, B, 8), blank(&mut p, A, len.max(8)));
        Self { p, src, dst, remote, word, old, len }
    }

    /// Posts a SEND, WRITE, FETCH_ADD, READ and WRITE with immediate.
    fn post_all(&mut self) {
        let p = &mut self.p;
        recv(p, B, 11, &[self.dst.sge(0, self.len)]);
        recv(p, B, 12, &[]);
        post(p, A, 1, SendOp::Send, &[self.src.all()]);
        let at = |offset| (self.dst.addr + u64::from(offset), self.dst.rkey());
        let (remote_addr, rkey) = at(self.len);
        post(p, A, 2, SendOp::Write { remote_addr, rkey }, &[self.src.all()]);
        post(p, A, 3, add_to(self.word, 1), &[self.old.sge(0, 8)]);
        post(p, A, 4, read_from(self.remote), &[self.old.sge(0, self.len)]);
        post(p, A, 5, SendOp::WriteImm { remote_addr, rkey, imm: imm(5) }, &[self.src.all()]);
    }

    fn check_all(&mut self) {
        let p = &mut self.p;
        assert_eq!(sends(p, A), statuses(1..=5, WcStatus::Success));
        assert_eq!(recvs(p, B), statuses(11..=12, WcStatus::Success));
        assert_eq!(p.ends[1].host.memory.word(self.word, 0), 1, "the atomic ran exactly once");
        let data = bytes(p, A, self.src);
        assert_eq!(bytes(p, B, self.dst), [&data[..], &data[..]].concat());
        assert_eq!(bytes(p, A, self.old)[..self.len as usize], bytes(p, B, self.remote)[..]);
        p.assert_settled();
    }
}

/// Returns the number of packets of each side without losses.
fn lossless_counts() -> [u64; 2] {
    let mut bench = Bench::new(Setup::default(), 1000);
    bench.post_all();
    bench.p.run();
    bench.check_all();
    [B, A].map(|to| bench.p.delivered[to.index()])
}

/// Runs all operations once for each packet of both sides, with `verdict` for that packet.
fn repeat_with_each_packet(verdict: Verdict) {
    let [from_a, from_b] = lossless_counts();
    for (from, count) in [(A, from_a), (B, from_b)] {
        for nth in 0..count {
            let mut bench = Bench::new(Setup::default(), 1000);
            bench.p.wire.set_script(from, Box::new(move |n, _| (n == nth).then_some(verdict)));
            bench.post_all();
            bench.p.run();
            bench.check_all();
        }
    }
}

// clause: RETRY-GO-BACK
#[test]
fn any_one_packet_may_be_lost() {
    repeat_with_each_packet(LOST);
}

// clause: ICRC-WRONG
#[test]
fn any_one_packet_may_be_damaged() {
    repeat_with_each_packet(damaged(9));
    repeat_with_each_packet(damaged(14));
}

#[test]
fn any_one_packet_may_be_duplicated() {
    repeat_with_each_packet(twice(Duration::ZERO));
    repeat_with_each_packet(twice(Duration::from_micros(12)));
    repeat_with_each_packet(twice(ms(200)));
}

#[test]
fn any_one_packet_may_be_delayed() {
    repeat_with_each_packet(late(Duration::from_micros(7)));
    repeat_with_each_packet(late(Duration::from_micros(40)));
    repeat_with_each_packet(late(ms(100)));
}

#[test]
fn any_two_packets_may_be_lost() {
    let [from_a, from_b] = lossless_counts();
    for first in 0..from_a {
        for second in 0..from_b {
            let mut bench = Bench::new(Setup::default(), 1000);
            drop_nth(&mut bench.p, A, first);
            drop_nth(&mut bench.p, B, second);
            bench.post_all();
            bench.p.run();
            bench.check_all();
        }
    }
}

#[test]
fn every_packet_may_be_duplicated() {
    let mut bench = Bench::new(Setup::default(), 1000);
    bench.p.wire.set_faults(&rules("duplicate tx by=1us..15us"), 1);
    bench.post_all();
    bench.p.run();
    bench.check_all();
    assert!(bench.p.wire.tally.duplicated > 10);
}

// clause: RETRY-COUNT
#[test]
fn one_loss_more_than_retry_cnt_fails() {
    for retry_cnt in 0..=7 {
        for (losses, status) in [(retry_cnt, WcStatus::Success), (retry_cnt + 1, WcStatus::RetryExcErr)] {
            let mut p = Pair::new(Setup { retry_cnt, ..Setup::default() });
            let dst = blank(&mut p, B, 8);
            drop_if(&mut p, A, move |n, _| n < u64::from(losses));
            post(&mut p, A, 1, write_to(dst), &[]);
            p.run();
            assert_eq!(sends(&mut p, A), [(1, status)], "{losses} losses, retry_cnt {retry_cnt}");
        }
    }
}

#[test]
fn unanswered_reports_a_request_that_never_arrived() {
    for (arrived, expected) in [(0, None), (1, Some(4000))] {
        let mut p = Pair::new(Setup { retry_cnt: 1, ..Setup::default() });
        let dst = blank(&mut p, B, 4000);
        drop_if(&mut p, A, move |n, _| n >= arrived);
        let source = blank(&mut p, A, 4000);
        for id in 0..arrived {
            post(&mut p, A, id, write_to(dst), &[]);
            p.run();
        }
        post(&mut p, A, 7, write_to(dst), &[source.sge(0, 4000)]);
        p.run();
        assert_eq!(p.end(A).qp.unanswered(), expected, "{arrived} arrived before");
    }
}

// clause: RETRY-COUNT
#[test]
fn lost_responses_count_like_lost_requests() {
    for (losses, status) in [(3, WcStatus::Success), (4, WcStatus::RetryExcErr)] {
        let mut p = Pair::new(Setup { retry_cnt: 3, ..Setup::default() });
        let (old, word) = (blank(&mut p, A, 8), blank(&mut p, B, 8));
        drop_if(&mut p, B, move |n, _| n < losses);
        post(&mut p, A, 1, add_to(word, 1), &[old.all()]);
        p.run();
        assert_eq!(sends(&mut p, A), [(1, status)]);
        assert_eq!(p.ends[1].host.memory.word(word, 0), 1, "executed exactly once");
    }
}

// clause: RETRY-RELOAD
#[test]
fn progress_refills_the_retry_counter() {
    let mut p = Pair::new(Setup { retry_cnt: 1, ..Setup::default() });
    let dst = blank(&mut p, B, 8);
    // Every other packet is lost: each message needs its one retry.
    drop_if(&mut p, A, |n, _| n % 2 == 0);
    for id in 1..=5 {
        post(&mut p, A, id, write_to(dst), &[]);
        p.run();
    }
    assert_eq!(sends(&mut p, A), statuses(1..=5, WcStatus::Success));
    assert_eq!(p.timeouts[0], 5);
}

/// Checks the table of docs/explanation/decisions.md.
// clause: TIMER-RANGE
#[test]
fn timeout_14_lasts_as_documented() {
    for (retry_cnt, milliseconds) in [(0, 67), (3, 518), (4, 768), (5, 1018), (6, 1268), (7, 1518)] {
        let mut p = Pair::new(Setup { timeout: 14, retry_cnt, ..Setup::default() });
        let dst = blank(&mut p, B, 8);
        drop_if(&mut p, A, |_, _| true);
        post(&mut p, A, 1, write_to(dst), &[]);
        p.run();
        assert_eq!(sends(&mut p, A), [(1, WcStatus::RetryExcErr)]);
        assert_eq!(p.elapsed().as_millis(), milliseconds, "{retry_cnt} retries");
    }
}

// clause: TIMER-RANGE
#[test]
fn dead_peer_costs_retry_cnt_timeouts_and_ends_in_err() {
    for (timeout, retry_cnt) in [(8, 0), (8, 3), (14, 7)] {
        let mut p = Pair::new(Setup { timeout, retry_cnt, ..Setup::default() });
        let dst = blank(&mut p, B, 8);
        drop_if(&mut p, A, |_, _| true);
        post(&mut p, A, 1, write_to(dst), &[]);
        p.run();
        assert_eq!(sends(&mut p, A), [(1, WcStatus::RetryExcErr)]);
        assert_eq!(p.ends[0].qp.state(), QpState::Err);
        assert_eq!(request_psns(&p, A), vec![100; usize::from(retry_cnt) + 1]);
        // Each wait lies between T and 4T (IBA §9.7.6.1.3).
        let t = roxe_transport::time::ack_timeout(timeout).expect("set") * (u32::from(retry_cnt) + 1);
        assert!(p.elapsed() >= t && p.elapsed() <= 4 * t, "{:?} for {t:?}", p.elapsed());
        assert_eq!(p.ends[0].host.flow.reserved, 0);
    }
}

// clause: TIMER-ACK
#[test]
fn timeout_0_waits_forever() {
    let mut p = Pair::new(Setup { timeout: 0, ..Setup::default() });
    let dst = blank(&mut p, B, 8);
    drop_nth(&mut p, A, 0);
    post(&mut p, A, 1, write_to(dst), &[]);
    p.run();
    assert_eq!((sends(&mut p, A), p.ends[0].qp.poll_timeout()), (vec![], None));
    assert_eq!(p.ends[0].qp.state(), QpState::Rts);
}

// clause: ACK-CUMULATIVE
#[test]
fn later_ack_covers_a_lost_one() {
    let mut p = Pair::new(Setup::default());
    let dst = blank(&mut p, B, 8);
    drop_nth(&mut p, B, 0);
    post(&mut p, A, 1, write_to(dst), &[]);
    p.run_for(ms(1));
    assert_eq!(sends(&mut p, A), []);
    post(&mut p, A, 2, write_to(dst), &[]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
    assert_eq!((request_psns(&p, A), p.timeouts[0]), (vec![100, 101], 0));
}

// clause: SEND-ORDER, NAK-SEQUENCE
#[test]
fn gap_is_nakked_once_and_retransmitted() {
    let mut p = Pair::new(Setup::default());
    let (src, dst) = (filled(&mut p, A, 256 * 8), blank(&mut p, B, 256 * 8));
    drop_nth(&mut p, A, 2);
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
    let naks: Vec<_> = responses(&p, B).into_iter().filter(|(r, _)| is_nak(r)).map(|(_, psn)| psn).collect();
    assert_eq!(naks, [102], "one NAK for the first missing PSN, however many follow");
    assert_eq!(p.timeouts[0], 0, "a NAK needs no timer");
    let psns = request_psns(&p, A);
    assert_eq!(psns, [100, 101, 102, 103, 104, 105, 106, 107, 102, 103, 104, 105, 106, 107]);
    assert_eq!(bytes(&p, B, dst), bytes(&p, A, src));
}

fn is_nak(response: &Response) -> bool {
    matches!(response, Response::Ack(aeth) if matches!(aeth.syndrome, Syndrome::Nak(NakCode::PsnSequence)))
}

// clause: RETRY-SAME-OPCODES
#[test]
fn retransmission_uses_the_same_opcodes() {
    let mut p = Pair::new(Setup::default());
    let (src, dst) = (filled(&mut p, A, 256 * 4), blank(&mut p, B, 256 * 4));
    drop_nth(&mut p, A, 1);
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    p.run();
    let kinds: Vec<_> = sent(&p, A);
    let tail = &kinds[4..];
    assert!(matches!(tail[0], (Kind::RcRequest(Request::WriteMiddle), 101)), "{tail:?}");
    assert!(matches!(tail[1], (Kind::RcRequest(Request::WriteMiddle), 102)), "{tail:?}");
    assert!(matches!(tail[2], (Kind::RcRequest(Request::WriteLast(None)), 103)), "{tail:?}");
}

// clause: NAK-IMPLIED, RETRY-READ-TAIL
#[test]
fn lost_read_response_is_requested_again_from_the_gap() {
    for lost in 0..4u32 {
        let mut p = Pair::new(Setup::default());
        let (dst, src) = (blank(&mut p, A, 1000), filled(&mut p, B, 1000));
        drop_nth(&mut p, B, lost.into());
        post(&mut p, A, 1, read_from(src), &[dst.all()]);
        p.run();
        assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
        assert_eq!(bytes(&p, A, dst), bytes(&p, B, src));
        let second = p.log.iter().filter(|l| l.from == A).nth(1).expect("find the second READ REQUEST");
        let Kind::RcRequest(Request::Read(reth)) = second.header.kind else { panic!("{second:?}") };
        assert_eq!(second.header.bth.psn.get(), 100 + lost);
        assert_eq!((reth.va, reth.dma_len), (src.addr + u64::from(lost) * 256, 1000 - lost * 256));
        // The next response reveals each loss but the last (implied NAK); only the timer reveals
        // the last.
        assert_eq!(p.timeouts[0], u64::from(lost == 3), "response {lost}");
        p.assert_settled();
    }
}

// clause: NAK-IMPLIED
#[test]
fn later_ack_reveals_a_lost_read_response() {
    let mut p = Pair::new(Setup::default());
    let (dst, src) = (blank(&mut p, A, 200), filled(&mut p, B, 200));
    drop_nth(&mut p, B, 0);
    post(&mut p, A, 1, read_from(src), &[dst.all()]);
    post(&mut p, A, 2, write_to(src), &[]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
    assert_eq!((bytes(&p, A, dst), p.timeouts[0]), (bytes(&p, B, src), 0));
}

// clause: DUP-ATOMIC
#[test]
fn lost_atomic_response_is_replayed_not_recomputed() {
    let mut p = Pair::new(Setup::default());
    let (old, word) = (blank(&mut p, A, 16), blank(&mut p, B, 8));
    // The response to the first is lost three times.
    drop_if(&mut p, B, |n, _| n < 3);
    post(&mut p, A, 1, add_to(word, 5), &[old.sge(0, 8)]);
    p.run();
    post(&mut p, A, 2, add_to(word, 5), &[old.sge(8, 8)]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, WcStatus::Success));
    assert_eq!([0, 8].map(|at| p.ends[0].host.memory.word(old, at)), [0, 5]);
    assert_eq!(p.ends[1].host.memory.word(word, 0), 10);
}

#[test]
fn many_lost_atomic_responses_are_replayed() {
    let mut p = Pair::new(Setup { max_rd_atomic: 8, max_dest_rd_atomic: 8, ..Setup::default() });
    let (old, word) = (blank(&mut p, A, 64), blank(&mut p, B, 8));
    drop_if(&mut p, B, |n, _| n < 8);
    for id in 0..8 {
        post(&mut p, A, id, add_to(word, 1), &[old.sge(8 * id as u32, 8)]);
    }
    p.run();
    assert_eq!(sends(&mut p, A), statuses(0..=7, WcStatus::Success));
    let olds: Vec<_> = (0..8).map(|i| p.ends[0].host.memory.word(old, 8 * i)).collect();
    assert_eq!((olds, p.ends[1].host.memory.word(word, 0)), ((0..8).collect(), 8));
}

#[test]
fn long_reads_survive_scattered_losses() {
    let mut p = Pair::new(Setup::default());
    let len = 300_000;
    let (dst, src) = (blank(&mut p, A, len), filled(&mut p, B, len));
    p.wire.set_faults(&rules("drop tx 2% qp=#1"), 1);
    p.wire.pause_faults_after = Some(3);
    post(&mut p, A, 1, read_from(src), &[dst.all()]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=1, WcStatus::Success));
    assert_eq!(bytes(&p, A, dst), bytes(&p, B, src));
    p.assert_settled();
}

// clause: RETRY-SPENT
#[test]
fn sequence_naks_cost_retries_too() {
    let retry = |retry_cnt| {
        let mut p = Pair::new(Setup { retry_cnt, ..Setup::default() });
        let dst = blank(&mut p, B, 8);
        // PSN 100 is lost twice; 101 gets through and is answered with a NAK each time.
        p.wire.set_script(
            A,
            Box::new({
                let mut left = 2;
                move |_, packet| {
                    let drop = packet.header.bth.psn.get() == 100 && left > 0;
                    left -= u32::from(drop);
                    drop.then_some(LOST)
                }
            }),
        );
        post(&mut p, A, 1, write_to(dst), &[]);
        post(&mut p, A, 2, write_to(dst), &[]);
        p.run();
        sends(&mut p, A)
    };
    assert_eq!(retry(2), statuses(1..=2, WcStatus::Success));
    assert_eq!(retry(1), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
}

// clause: PSN-24BIT
#[test]
fn losses_at_psn_wrap_are_repaired() {
    for nth in 0..8 {
        for from in [A, B] {
            let mut bench = Bench::new(Setup { psn: [0xff_fffd, 0], ..Setup::default() }, 1000);
            drop_nth(&mut bench.p, from, nth);
            bench.post_all();
            bench.p.run();
            bench.check_all();
        }
    }
}
