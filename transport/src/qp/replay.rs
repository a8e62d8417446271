//! The READs, atomics, ATOMIC WRITEs and FLUSHes of the peer: what is still to be answered, and what may have to be answered
//! again.
//!
//! A ring of the newest `max_dest_rd_atomic` requests, and a window `[cursor, end)` over it whose answers are due. Pure
//! bookkeeping: no host, no packets. Requests are counted by [`Seq`], which never wraps and never names two of them.

use roxe_wire::{PathMtu, Psn, RKey, Request, Reth};
use std::collections::VecDeque;

/// Position of a request among all of them on the connection.
pub(crate) type Seq = u64;

/// What is left to send of the answer to a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadJob {
    /// PSN of the next response packet.
    pub(crate) psn: Psn,
    pub(crate) rkey: RKey,
    /// Where the next packet's data starts.
    pub(crate) va: u64,
    /// Bytes to send.
    pub(crate) left: u32,
    /// No packet of this answer has been sent.
    pub(crate) first: bool,
    /// The peer asked for this before: a failure stays silent (a duplicate is never refused).
    pub(crate) again: bool,
    /// XRC: the shared receive queue that the request named; the key is looked up in its domain.
    pub(crate) srqn: u32,
}

impl ReadJob {
    pub(crate) fn new(psn: Psn, reth: &Reth, again: bool, srqn: u32) -> Self {
        Self { psn, rkey: reth.rkey, va: reth.va, left: reth.dma_len, first: true, again, srqn }
    }

    /// Payload of the next packet, and whether it is the last.
    pub(crate) fn next_len(&self, mtu: PathMtu) -> (u32, bool) {
        (self.left.min(mtu.bytes()), self.left <= mtu.bytes())
    }
}

/// What is done once, however often it comes: a duplicate must be of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnceKind {
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
}

impl OnceKind {
    /// The kind of a request; `None` for those that are answered otherwise.
    pub(crate) const fn of(req: &Request) -> Option<Self> {
        match req {
            Request::CompareSwap(_) => Some(Self::CompareSwap),
            Request::FetchAdd(_) => Some(Self::FetchAdd),
            Request::AtomicWrite(_) => Some(Self::AtomicWrite),
            Request::Flush(..) => Some(Self::Flush),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Read when it is answered, and read again for a duplicate.
    Read(Reth),
    /// Done once. Of an atomic the word it found is kept; of the others there is nothing to keep.
    Once(OnceKind, u64),
}

/// An accepted request of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// First PSN.
    pub(crate) psn: Psn,
    /// PSNs it occupies, one per response packet.
    pub(crate) packets: u32,
    pub(crate) op: Op,
    /// An earlier SEND or WRITE asked for an acknowledgement that must leave before this answer: old HCAs do not take a
    /// READ response for one.
    pub(crate) ack_before: bool,
    /// XRC: the shared receive queue that it named.
    pub(crate) srqn: u32,
}

/// The answer that is due next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// An acknowledgement of this PSN.
    AckBefore(Psn),
    Read(ReadJob),
    Once {
        psn: Psn,
        kind: OnceKind,
        /// The word that an atomic found.
        original: u64,
        /// It was answered before.
        again: bool,
    },
}

#[derive(Debug, Default)]
pub(crate) struct ReplayRing {
    entries: VecDeque<Entry>,
    /// Of `entries[0]`.
    base: Seq,
    /// The request being answered.
    cursor: Seq,
    /// The first one that is not due.
    end: Seq,
    /// The first one that was never answered in full.
    fresh: Seq,
    /// The READ at `cursor`, if its answer is under way or does not start at its beginning.
    job: Option<ReadJob>,
}

impl ReplayRing {
    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        self.entries.clear();
        (self.base, self.cursor, self.end, self.fresh, self.job) = (0, 0, 0, 0, None);
    }

    /// Forgets which answers are due, but not the requests.
    pub(crate) fn abandon(&mut self) {
        (self.cursor, self.fresh, self.job) = (self.end, self.next_seq(), None);
    }

    fn next_seq(&self) -> Seq {
        self.base + self.entries.len() as u64
    }

    fn entry(&self, seq: Seq) -> Option<&Entry> {
        self.entries.get(usize::try_from(seq.checked_sub(self.base)?).ok()?)
    }

    fn entry_mut(&mut self, seq: Seq) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(seq.checked_sub(self.base)?).ok()?)
    }

    /// Whether answers are due.
    pub(crate) fn is_due(&self) -> bool {
        self.cursor != self.end
    }

    /// Whether the peer may have one more request here, of `limit`: those answered in full no longer count.
    pub(crate) fn has_room(&self, limit: usize) -> bool {
        self.next_seq() - self.fresh < limit as u64
    }

    /// Takes in a new request, whose answer is due now; the oldest is forgotten when there are more than `limit`.
    ///
    /// Only an answered one can be forgotten, given [`Self::has_room`]. If it was due again, that is forgotten too: the
    /// peer could not send a new request without having seen the old answer.
    pub(crate) fn push(&mut self, entry: Entry, limit: usize) {
        // clause: DUP-RING
        while self.entries.len() >= limit.max(1) {
            self.entries.pop_front();
            self.base += 1;
        }
        if !self.is_due() {
            (self.cursor, self.job) = (self.next_seq(), None);
        } else if self.cursor < self.base {
            (self.cursor, self.job) = (self.base, None);
        }
        // Once per connection: an idle one costs no memory, a busy one does not allocate.
        if self.entries.capacity() < limit {
            self.entries.reserve_exact(limit - self.entries.len());
        }
        self.entries.push_back(entry);
        self.end = self.next_seq();
    }

    /// What the newest request is.
    pub(crate) fn newest(&self) -> Option<Op> {
        self.entries.back().map(|entry| entry.op)
    }

    /// The newest request whose PSNs include `psn`.
    pub(crate) fn find(&self, psn: Psn) -> Option<(Seq, Entry)> {
        let within = |entry: &Entry| u32::try_from(psn.distance(entry.psn)).is_ok_and(|k| k < entry.packets);
        let at = self.entries.iter().rposition(within)?;
        Some((self.base + at as u64, *self.entries.get(at)?))
    }

    /// The oldest request newer than the old packet `psn`, and its first PSN. `e_psn` is the expected one: age is counted
    /// back from there, so that requests from before the last wrap of the PSN do not look new.
    pub(crate) fn oldest_after(&self, psn: Psn, e_psn: Psn) -> Option<(Seq, Psn)> {
        let age = |psn: Psn| e_psn.sub(psn.get()).get();
        let newer = self.entries.iter().rev().take_while(|entry| age(entry.psn) < age(psn)).count();
        let seq = self.next_seq() - newer as u64;
        Some((seq, self.entry(seq)?.psn))
    }

    /// Answers request `seq` again, a READ from where `job` starts.
    ///
    /// Answers leave in the order of PSNs, so whatever is due after it stays due: a newer one widens the window, an older
    /// one moves its start back, and one inside the window will be answered anyway.
    // clause: DUP-READ-RANGE
    pub(crate) fn replay(&mut self, seq: Seq, job: Option<ReadJob>) {
        let restarts =
            seq == self.cursor && matches!((self.job, job), (Some(now), Some(new)) if new.psn.is_before(now.psn));
        if !self.is_due() {
            (self.cursor, self.end, self.job) = (seq, seq + 1, job);
        // clause: DUP-ORDER
        } else if seq < self.cursor || restarts {
            (self.cursor, self.job) = (seq, job);
        } else {
            self.end = self.end.max(seq + 1);
        }
    }

    /// Whether everything older than request `seq` is answered, as far as it is due.
    pub(crate) fn is_answered_before(&self, seq: Seq) -> bool {
        !self.is_due() || self.cursor >= seq
    }

    /// What is due next.
    pub(crate) fn due(&self) -> Option<Due> {
        let entry = self.entry(self.cursor).filter(|_| self.is_due())?;
        if entry.ack_before {
            return Some(Due::AckBefore(entry.psn.sub(1)));
        }
        let again = self.cursor < self.fresh;
        Some(match &entry.op {
            Op::Read(reth) => Due::Read(self.job.unwrap_or_else(|| ReadJob::new(entry.psn, reth, again, entry.srqn))),
            Op::Once(kind, original) => Due::Once { psn: entry.psn, kind: *kind, original: *original, again },
        })
    }

    /// `due` was sent; of a READ that was one packet.
    pub(crate) fn sent(&mut self, due: Due, mtu: PathMtu) {
        match due {
            Due::AckBefore(_) => {
                if let Some(entry) = self.entry_mut(self.cursor) {
                    entry.ack_before = false;
                }
            }
            Due::Once { .. } => self.finish(),
            Due::Read(job) => match job.next_len(mtu) {
                (_, true) => self.finish(),
                (len, false) => self.go_on(job, 1, len),
            },
        }
    }

    /// `packets` of `job`, with `bytes` together, are sent, and not the last one.
    pub(crate) fn go_on(&mut self, job: ReadJob, packets: u32, bytes: u32) {
        let (psn, va, left) = (job.psn.add(packets), job.va.wrapping_add(bytes.into()), job.left - bytes);
        self.job = Some(ReadJob { psn, va, left, first: false, ..job });
    }

    /// The request at the cursor needs no more answer.
    pub(crate) fn finish(&mut self) {
        (self.cursor, self.job) = (self.cursor + 1, None);
        self.fresh = self.fresh.max(self.cursor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: PathMtu = PathMtu::Mtu256;

    /// A READ of `packets` packets.
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

    /// Sends up to `n` packets: their PSNs.
    fn send(ring: &mut ReplayRing, n: usize) -> Vec<u32> {
        let next = || {
            let due = ring.due()?;
            ring.sent(due, MTU);
            Some(match due {
                Due::AckBefore(psn) | Due::Once { psn, .. } => psn.get(),
                Due::Read(job) => job.psn.get(),
            })
        };
        core::iter::from_fn(next).take(n).collect()
    }

    fn again(ring: &mut ReplayRing, psn: u32) {
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
    fn answers_leave_in_order_and_walk_through_memory() {
        let mut ring = ring(4, &[read(5, 3), atomic(8)]);
        let Some(Due::Read(job)) = ring.due() else { panic!("a READ is due") };
        assert_eq!((job.psn, job.va, job.left, job.first, job.again), (Psn::new(5), 5 << 16, 768, true, false));
        assert_eq!(send(&mut ring, 1), [5]);
        let Some(Due::Read(job)) = ring.due() else { panic!("a READ is due") };
        assert_eq!((job.psn, job.va, job.left, job.first), (Psn::new(6), (5 << 16) + 256, 512, false));
        assert_eq!(send(&mut ring, 9), [6, 7, 8]);
        assert!(!ring.is_due());
    }

    // clause: ACK-BEFORE-READ
    #[test]
    fn an_acknowledgement_leaves_before_the_answer_that_hides_it() {
        let mut ring = ring(4, &[Entry { ack_before: true, ..atomic(8) }]);
        assert_eq!(ring.due(), Some(Due::AckBefore(Psn::new(7))));
        assert_eq!(send(&mut ring, 9), [7, 8]);
        again(&mut ring, 8);
        assert_eq!(send(&mut ring, 9), [8], "once");
    }

    // clause: DUP-RING
    #[test]
    fn only_unanswered_requests_count_against_the_limit() {
        let mut ring = ring(2, &[read(1, 2), atomic(3)]);
        assert!(!ring.has_room(2));
        send(&mut ring, 1);
        assert!(!ring.has_room(2), "half an answer is none");
        send(&mut ring, 1);
        assert!(ring.has_room(2));
        ring.push(atomic(4), 2);
        assert_eq!(ring.find(Psn::new(1)), None, "the oldest is forgotten");
        assert_eq!(send(&mut ring, 9), [3, 4]);
        assert!(!ReplayRing::default().has_room(0));
    }

    // clause: DUP-READ-RANGE
    #[test]
    fn a_replay_sends_only_what_was_asked_for_again() {
        let mut ring = ring(4, &[read(1, 3), atomic(4), read(5, 2)]);
        send(&mut ring, 9);
        again(&mut ring, 2);
        assert_eq!(send(&mut ring, 9), [2, 3]);
        again(&mut ring, 1);
        again(&mut ring, 4);
        assert_eq!(send(&mut ring, 9), [1, 2, 3, 4], "the original range is kept");
    }

    // clause: DUP-ORDER
    #[test]
    fn a_replay_keeps_answers_in_order() {
        let mut ring = ring(4, &[read(1, 2), read(3, 2), read(5, 2)]);
        send(&mut ring, 5);
        again(&mut ring, 3);
        assert_eq!(send(&mut ring, 9), [3, 4, 5, 6], "what was under way is sent after it");
        again(&mut ring, 1);
        again(&mut ring, 5);
        assert_eq!(send(&mut ring, 9), [1, 2, 3, 4, 5, 6], "no hole");
    }

    #[test]
    fn a_replay_of_what_is_due_anyway_changes_nothing() {
        let mut ring = ring(4, &[read(1, 4), atomic(5)]);
        send(&mut ring, 2);
        again(&mut ring, 4);
        again(&mut ring, 5);
        assert_eq!(send(&mut ring, 1), [3]);
        again(&mut ring, 2);
        assert_eq!(send(&mut ring, 9), [2, 3, 4, 5], "but one that was sent restarts the answer");
    }

    #[test]
    fn a_replay_does_not_block_a_peer_that_went_on() {
        let mut ring = ring(2, &[read(1, 2), atomic(3)]);
        send(&mut ring, 9);
        again(&mut ring, 1);
        assert_eq!(send(&mut ring, 1), [1]);
        assert!(ring.has_room(2));
        ring.push(atomic(4), 2);
        assert_eq!(send(&mut ring, 9), [3, 4], "the replay of a forgotten request ends");
    }

    #[test]
    fn repeated_answers_are_marked() {
        let mut ring = ring(4, &[read(1, 1), read(2, 1)]);
        let is_again = |ring: &ReplayRing| matches!(ring.due(), Some(Due::Read(job)) if job.again);
        assert!(!is_again(&ring));
        send(&mut ring, 9);
        again(&mut ring, 1);
        again(&mut ring, 2);
        assert!(is_again(&ring));
        send(&mut ring, 1);
        assert!(is_again(&ring), "the second of a widened window too");
    }

    // clause: DUP-ACK-BOUND
    #[test]
    fn the_bound_of_an_old_packet_is_the_first_request_after_it() {
        let ring = ring(4, &[read(10, 2), atomic(15)]);
        let bound = |psn| ring.oldest_after(Psn::new(psn), Psn::new(20)).map(|(_, psn)| psn.get());
        assert_eq!((bound(9), bound(12), bound(14)), (Some(10), Some(15), Some(15)));
        assert_eq!((bound(16), bound(19)), (None, None));
    }

    #[test]
    fn requests_of_an_earlier_lap_of_the_psn_do_not_bound() {
        let ring = ring(4, &[atomic(0x90_0000)]);
        assert_eq!(ring.oldest_after(Psn::new(0x7f_fff0), Psn::new(0x80_0000)), None);
        assert!(ring.oldest_after(Psn::new(0x8f_ffff), Psn::new(0x90_0001)).is_some());
    }

    #[test]
    fn the_newest_of_two_requests_with_one_psn_is_found() {
        let mut ring = ring(4, &[atomic(7)]);
        send(&mut ring, 1);
        ring.push(Entry { op: Op::Once(OnceKind::CompareSwap, 1), ..atomic(7) }, 4);
        assert_eq!(ring.find(Psn::new(7)).map(|(seq, _)| seq), Some(1));
    }

    #[test]
    fn abandoned_answers_leave_room() {
        let mut ring = ring(2, &[read(1, 3), atomic(4)]);
        send(&mut ring, 1);
        ring.abandon();
        assert!(!ring.is_due() && ring.has_room(2));
        again(&mut ring, 4);
        assert_eq!(send(&mut ring, 9), [4]);
    }
}
