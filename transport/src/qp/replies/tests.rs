//! The replay ring.

use super::*;

const MTU: PathMtu = PathMtu::Mtu256;

/// Returns a READ of `packets` packets.
fn read(psn: u32, packets: u32) -> Entry {
    let reth = Reth { va: u64::from(psn) << 16, rkey: RKey(9), dma_len: packets * 256 };
    Entry { psn: Psn::new(psn), packets, op: Op::Read(reth), ack_before: false, srqn: 0 }
}

fn atomic(psn: u32) -> Entry {
    let op = Op::Once(OnceKind::FetchAdd, u64::from(psn));
    Entry { psn: Psn::new(psn), packets: 1, op, ack_before: false, srqn: 0 }
}

fn ring(limit: usize, entries: &[Entry]) -> ReplayRing {
    let mut ring = ReplayRing::default();
    for entry in entries {
        assert!(ring.has_room(limit));
        ring.push(*entry, limit);
    }
    ring
}

/// Sends up to `n` packets and returns their PSNs.
fn send(ring: &mut ReplayRing, n: usize) -> Vec<u32> {
    let next = || {
        let due = ring.next_due()?;
        ring.on_sent(due, MTU);
        Some(match due {
            Due::AckBefore(psn) | Due::Once { psn, .. } => psn.get(),
            Due::Read(job) => job.psn.get(),
        })
    };
    core::iter::from_fn(next).take(n).collect()
}

fn replay(ring: &mut ReplayRing, psn: u32) {
    let (seq, entry) = ring.find(Psn::new(psn)).expect("remembered");
    let job = match entry.op {
        Op::Read(reth) => {
            let skipped = (psn - entry.psn.get()) * 256;
            Some(ReadJob::new(Psn::new(psn), &Reth { dma_len: reth.dma_len - skipped, ..reth }, true, 0))
        }
        Op::Once(..) => None,
    };
    ring.replay(seq, job);
}

// clause: ANSWER-ORDER
#[test]
fn responses_leave_in_order_with_consecutive_addresses() {
    let mut ring = ring(4, &[read(5, 3), atomic(8)]);
    let Some(Due::Read(job)) = ring.next_due() else { panic!("a READ is due") };
    assert_eq!((job.psn, job.va, job.left, job.first, job.is_replay), (Psn::new(5), 5 << 16, 768, true, false));
    assert_eq!(send(&mut ring, 1), [5]);
    let Some(Due::Read(job)) = ring.next_due() else { panic!("a READ is due") };
    assert_eq!((job.psn, job.va, job.left, job.first), (Psn::new(6), (5 << 16) + 256, 512, false));
    assert_eq!(send(&mut ring, 9), [6, 7, 8]);
    assert!(!ring.is_due());
}

// clause: ACK-BEFORE-READ
#[test]
fn due_ack_leaves_before_a_read_response() {
    let mut ring = ring(4, &[Entry { ack_before: true, ..atomic(8) }]);
    assert_eq!(ring.next_due(), Some(Due::AckBefore(Psn::new(7))));
    assert_eq!(send(&mut ring, 9), [7, 8]);
    replay(&mut ring, 8);
    assert_eq!(send(&mut ring, 9), [8], "once");
}

// clause: DUP-RING
#[test]
fn only_unanswered_requests_count_against_the_limit() {
    let mut ring = ring(2, &[read(1, 2), atomic(3)]);
    assert!(!ring.has_room(2));
    send(&mut ring, 1);
    assert!(!ring.has_room(2), "a partly sent response counts");
    send(&mut ring, 1);
    assert!(ring.has_room(2));
    ring.push(atomic(4), 2);
    assert_eq!(ring.find(Psn::new(1)), None, "the oldest is dropped");
    assert_eq!(send(&mut ring, 9), [3, 4]);
    assert!(!ReplayRing::default().has_room(0));
}

// clause: DUP-READ-RANGE
#[test]
fn replay_sends_only_the_requested_packets() {
    let mut ring = ring(4, &[read(1, 3), atomic(4), read(5, 2)]);
    send(&mut ring, 9);
    replay(&mut ring, 2);
    assert_eq!(send(&mut ring, 9), [2, 3]);
    replay(&mut ring, 1);
    replay(&mut ring, 4);
    assert_eq!(send(&mut ring, 9), [1, 2, 3, 4], "the original range is kept");
}

// clause: DUP-ORDER
#[test]
fn replay_keeps_psn_order() {
    let mut ring = ring(4, &[read(1, 2), read(3, 2), read(5, 2)]);
    send(&mut ring, 5);
    replay(&mut ring, 3);
    assert_eq!(send(&mut ring, 9), [3, 4, 5, 6], "the responses in progress follow");
    replay(&mut ring, 1);
    replay(&mut ring, 5);
    assert_eq!(send(&mut ring, 9), [1, 2, 3, 4, 5, 6], "without a gap");
}

#[test]
fn replay_of_a_pending_response_changes_nothing() {
    let mut ring = ring(4, &[read(1, 4), atomic(5)]);
    send(&mut ring, 2);
    replay(&mut ring, 4);
    replay(&mut ring, 5);
    assert_eq!(send(&mut ring, 1), [3]);
    replay(&mut ring, 2);
    assert_eq!(send(&mut ring, 9), [2, 3, 4, 5], "a packet already sent restarts the response");
}

#[test]
fn pending_replay_does_not_block_new_requests() {
    let mut ring = ring(2, &[read(1, 2), atomic(3)]);
    send(&mut ring, 9);
    replay(&mut ring, 1);
    assert_eq!(send(&mut ring, 1), [1]);
    assert!(ring.has_room(2));
    ring.push(atomic(4), 2);
    assert_eq!(send(&mut ring, 9), [3, 4], "the replay of a dropped request ends");
}

#[test]
fn replayed_responses_are_marked() {
    let mut ring = ring(4, &[read(1, 1), read(2, 1)]);
    let is_replay = |ring: &ReplayRing| matches!(ring.next_due(), Some(Due::Read(job)) if job.is_replay);
    assert!(!is_replay(&ring));
    send(&mut ring, 9);
    replay(&mut ring, 1);
    replay(&mut ring, 2);
    assert!(is_replay(&ring));
    send(&mut ring, 1);
    assert!(is_replay(&ring), "the second of a widened window too");
}

// clause: DUP-ACK-BOUND
#[test]
fn ack_bound_is_the_first_request_after_a_duplicate() {
    let ring = ring(4, &[read(10, 2), atomic(15)]);
    let bound = |psn| ring.oldest_after(Psn::new(psn), Psn::new(20)).map(|(_, psn)| psn.get());
    assert_eq!((bound(9), bound(12), bound(14)), (Some(10), Some(15), Some(15)));
    assert_eq!((bound(16), bound(19)), (None, None));
}

#[test]
fn requests_before_a_psn_wrap_do_not_bound_acks() {
    let ring = ring(4, &[atomic(0x90_0000)]);
    assert_eq!(ring.oldest_after(Psn::new(0x7f_fff0), Psn::new(0x80_0000)), None);
    assert!(ring.oldest_after(Psn::new(0x8f_ffff), Psn::new(0x90_0001)).is_some());
}

#[test]
fn find_returns_the_newest_request_of_a_psn() {
    let mut ring = ring(4, &[atomic(7)]);
    send(&mut ring, 1);
    ring.push(Entry { op: Op::Once(OnceKind::CompareSwap, 1), ..atomic(7) }, 4);
    assert_eq!(ring.find(Psn::new(7)).map(|(seq, _)| seq), Some(1));
}

#[test]
fn cancelled_responses_free_their_ring_entries() {
    let mut ring = ring(2, &[read(1, 3), atomic(4)]);
    send(&mut ring, 1);
    ring.abandon();
    assert!(!ring.is_due() && ring.has_room(2));
    replay(&mut ring, 4);
    assert_eq!(send(&mut ring, 9), [4]);
}
