//! The READs, atomics, ATOMIC WRITEs and FLUSHes of the peer: what is still to be answered, and
//! what may have to be answered again.
//!
//! A ring of the newest `max_dest_rd_atomic` requests, and a window `[cursor, end)` over it whose
//! answers are due. Pure bookkeeping: no host, no packets. Requests are counted by [`Seq`], which
//! never wraps and never names two of them.

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
    /// An earlier SEND or WRITE asked for an acknowledgement that must leave before this answer:
    /// old HCAs do not take a READ response for one.
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
        /// Whether the request was answered before.
        again: bool,
    },
}

#[derive(Debug, Default)]
pub(crate) struct ReplayRing {
    entries: VecDeque<Entry>,
    /// The number of `entries[0]`.
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

    /// Whether the peer may have one more request here, of `limit`: those answered in full no
    /// longer count.
    pub(crate) fn has_room(&self, limit: usize) -> bool {
        self.next_seq() - self.fresh < limit as u64
    }

    /// Takes in a new request, whose answer is due now; the oldest is forgotten when there are more
    /// than `limit`.
    ///
    /// Only an answered one can be forgotten, given [`Self::has_room`]. If it was due again, that
    /// is forgotten too: the peer could not send a new request without having seen the old answer.
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

    /// The newest request whose PSNs include `psn`.
    pub(crate) fn find(&self, psn: Psn) -> Option<(Seq, Entry)> {
        let within = |entry: &Entry| u32::try_from(psn.distance(entry.psn)).is_ok_and(|k| k < entry.packets);
        let at = self.entries.iter().rposition(within)?;
        Some((self.base + at as u64, *self.entries.get(at)?))
    }

    /// The oldest request newer than the old packet `psn`, and its first PSN. `e_psn` is the
    /// expected one: age is counted back from there, so that requests from before the last wrap of
    /// the PSN do not look new.
    pub(crate) fn oldest_after(&self, psn: Psn, e_psn: Psn) -> Option<(Seq, Psn)> {
        let age = |psn: Psn| e_psn.sub(psn.get()).get();
        let newer = self.entries.iter().rev().take_while(|entry| age(entry.psn) < age(psn)).count();
        let seq = self.next_seq() - newer as u64;
        Some((seq, self.entry(seq)?.psn))
    }

    /// Answers request `seq` again, a READ from where `job` starts.
    ///
    /// Answers leave in the order of PSNs, so whatever is due after it stays due: a newer one
    /// widens the window, an older one moves its start back, and one inside the window will be
    /// answered anyway.
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
mod tests;
