//! Responses of a reliable responder, sent strictly in PSN order, and the replay ring of requests
//! that the responder must answer again for a duplicate: READs, atomics, ATOMIC WRITEs and FLUSHes.
//!
//! READ data is read from memory when its packet is built. Acknowledgements coalesce: one per
//! `poll_transmit`, for the newest executed request. [`ReplayRing`] keeps the newest
//! `max_dest_rd_atomic` requests; the responses in its window `[cursor, end)` are due. A [`Seq`]
//! numbers the requests and never wraps.

use crate::cx::{Host, MemError, PacketNote, TxBatch, TxReason, TxRoom, TxState};
use crate::qp::refusal::{Answer, Refusal};
use crate::qp::segment::len_of;
use crate::qp::shared::{Service, Shared};
use crate::time::Instant;
use crate::wr::Access;
use roxe_wire::{
    Aeth, AtomicAckEth, Bth, Header, Kind, Msn, NakCode, PathMtu, Psn, RKey, Request, Response, Reth, Syndrome,
};
use std::collections::VecDeque;

/// The expected PSN and the message count, from which every response is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) e_psn: Psn,
    /// Number of completed messages.
    pub(crate) msn: Msn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nak {
    psn: Psn,
    syndrome: Syndrome,
    /// True if the QP is in the error state; no other packet follows.
    fatal: bool,
    /// The newest request dropped while this NAK waited in the queue.
    dropped: Option<Psn>,
}

/// An acknowledgement of duplicates that stops before a READ or atomic whose response the peer may
/// still miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BoundedAck {
    /// Request before whose response this acknowledgement must leave.
    until: Seq,
    psn: Psn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Bounded(Psn),
    Answer(Due),
    Nak(Nak),
    Ack(Psn),
}

impl Reply {
    fn acknowledge(e_psn: Psn) -> Self {
        Self::Ack(newest_before(e_psn))
    }

    const fn is_data(self) -> bool {
        matches!(self, Self::Answer(Due::Read(_)))
    }

    /// Returns true for a READ RESPONSE MIDDLE; the packets after it may share its header.
    fn is_middle(self, sh: &Shared) -> bool {
        let Self::Answer(Due::Read(job)) = self else { return false };
        !job.first && !job.next_len(sh.attr.path_mtu).1 && sh.config.service == Service::Rc
    }
}

#[derive(Debug, Default)]
pub(crate) struct Replies {
    ring: ReplayRing,
    bounded: Option<BoundedAck>,
    nak: Option<Nak>,
    /// True if the newest executed request must be acknowledged.
    ack: bool,
}

impl Replies {
    pub(crate) fn reset(&mut self) {
        self.ring.reset();
        (self.bounded, self.nak, self.ack) = (None, None, false);
    }

    /// Cancels all due responses. If a fatal NAK is due, it and the responses before it are still
    /// sent.
    pub(crate) fn abandon(&mut self) {
        // clause: NAK-FATAL
        if !self.nak.is_some_and(|nak| nak.fatal) {
            self.ring.abandon();
            (self.bounded, self.nak, self.ack) = (None, None, false);
        }
    }

    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.ack || self.nak.is_some() || self.bounded.is_some() || self.ring.is_due()
    }

    /// Returns true if only an acknowledgement is due; it may be delayed.
    #[inline]
    pub(crate) fn is_only_ack(&self) -> bool {
        self.ack && self.nak.is_none() && self.bounded.is_none() && !self.ring.is_due()
    }

    pub(crate) fn acknowledge(&mut self) {
        self.ack = true;
    }

    pub(crate) fn note_dropped(&mut self, psn: Psn) {
        if let Some(nak) = &mut self.nak
            && nak.dropped.is_none_or(|newest| psn.is_after(newest))
        {
            nak.dropped = Some(psn);
        }
    }

    /// Updates the unsent NAK when the request it reports has arrived; `e_psn` is expected now. If
    /// a later request was dropped and has not arrived again, the NAK reports that gap and the
    /// function returns true; otherwise the NAK is cancelled.
    // clause: GAP-NAK
    #[inline]
    pub(crate) fn on_expected(&mut self, e_psn: Psn) -> bool {
        let Some(nak) = &mut self.nak else { return false };
        if nak.dropped.is_none_or(|psn| psn.is_before(e_psn)) {
            self.nak = None;
            return false;
        }
        (nak.psn, nak.syndrome) = (e_psn, Syndrome::Nak(NakCode::PsnSequence));
        true
    }

    pub(crate) fn refuse(&mut self, psn: Psn, answer: Answer, fatal: bool, rnr_timer: u8) {
        let syndrome = match answer {
            Answer::Silence => return,
            // clause: CHECK-RECEIVE
            Answer::RnrNak => Syndrome::RnrNak { timer: rnr_timer },
            Answer::Nak(code) => Syndrome::Nak(code),
        };
        let dropped = self.nak.and_then(|nak| nak.dropped);
        self.nak = Some(Nak { psn, syndrome, fatal, dropped });
    }

    /// Returns true if one more READ, atomic, ATOMIC WRITE or FLUSH may be outstanding.
    pub(crate) fn has_room(&self, limit: u8) -> bool {
        self.ring.has_room(limit.into())
    }

    /// Enqueues the response to an executed request. A due acknowledgement leaves before it.
    pub(crate) fn enqueue(&mut self, psn: Psn, packets: u32, op: Op, limit: u8, srqn: u32) {
        // clause: ACK-BEFORE-READ
        let ack_before = core::mem::take(&mut self.ack);
        self.ring.push(Entry { psn, packets, op, ack_before, srqn }, limit.into());
    }

    /// Acknowledges a duplicate SEND or WRITE. The acknowledgement must not cover later READs and
    /// atomics, whose responses may be lost too: it would imply a second loss.
    pub(crate) fn acknowledge_duplicate(&mut self, psn: Psn, e_psn: Psn) {
        // clause: DUP-ACK-BOUND
        match self.ring.oldest_after(psn, e_psn) {
            None => self.ack = true,
            Some((until, first)) => self.bounded = Some(BoundedAck { until, psn: first.sub(1) }),
        }
    }

    /// Handles a duplicate READ, complete or its tail. Reads memory again if the range ends where
    /// the original did and the key still allows it; otherwise stays silent. Returns true if it
    /// will be answered.
    pub(crate) fn replay_read<H: Host>(&mut self, sh: &Shared, host: &mut H, psn: Psn, reth: &Reth) -> bool {
        let Some((seq, entry)) = self.ring.find(psn) else { return false };
        let Op::Read(original) = entry.op else { return false };
        let index = psn.sub(entry.psn.get()).get();
        let skipped = u64::from(index) * u64::from(sh.attr.path_mtu.bytes());
        // clause: DUP-READ
        let is_tail = reth.rkey == original.rkey
            && reth.va == original.va.wrapping_add(skipped)
            && skipped + u64::from(reth.dma_len) == u64::from(original.dma_len);
        // clause: DUP-READ-SILENT
        if !is_tail || check_readable(host, reth).is_err() {
            return false;
        }
        self.ring.replay(seq, Some(ReadJob::new(psn, reth, true, entry.srqn)));
        true
    }

    /// Replays the saved response of an atomic, ATOMIC WRITE or FLUSH. Returns false if it is no
    /// longer in the ring.
    pub(crate) fn replay_once(&mut self, psn: Psn, kind: OnceKind) -> bool {
        match self.ring.find(psn) {
            // clause: DUP-ATOMIC, DUP-NONPOSTED
            Some((seq, Entry { op: Op::Once(saved, _), .. })) if saved == kind => {
                self.ring.replay(seq, None);
                true
            }
            _ => false,
        }
    }

    /// Writes due responses into `tx` until it is full.
    #[inline]
    pub(crate) fn poll_transmit<H: Host, T: TxBatch>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        tx: &mut T,
        progress: Progress,
    ) -> TxState {
        // Fast path: usually only an acknowledgement is due.
        if self.is_only_ack() {
            let (psn, response) = (newest_before(progress.e_psn), Response::Ack(acknowledgement(progress.msn)));
            self.ack = slot(sh, tx, psn, response, 0, TxReason::Ack).is_none();
            return if self.ack { TxState::BatchFull } else { TxState::Drained };
        }
        while let Some(reply) = self.next_reply(progress.e_psn) {
            // clause: DCQCN-PACING
            if reply.is_data() && !sh.congestion.may_send(host.now()) {
                break;
            }
            match send(sh, host, tx, reply, progress.msn) {
                Sent::Yes => {
                    self.on_sent(reply, sh, host.now());
                    // clause: DCQCN-PACING
                    if tx.joins() && reply.is_middle(sh) && sh.congestion.is_unpaced() {
                        self.join(sh, host, tx);
                    }
                }
                Sent::Full => return TxState::BatchFull,
                Sent::Unreadable(job, error) => self.give_up_read(sh, job, error),
            }
        }
        TxState::Drained
    }

    /// Appends MIDDLE responses to the one that was just sent, if the batch joins packets.
    fn join<H: Host, T: TxBatch>(&mut self, sh: &Shared, host: &mut H, tx: &mut T) {
        let (Some(Due::Read(job)), mtu) = (self.ring.next_due(), sh.attr.path_mtu.bytes()) else { return };
        let before_last = job.left.saturating_sub(1) / mtu;
        if before_last == 0 {
            return;
        }
        let Some(room) = tx.extend(mtu as usize, before_last) else { return };
        let len = len_of(room.len());
        // clause: READ-AFTER-WRITE
        match host.read_remote(job.rkey, job.va, room) {
            Ok(()) => self.ring.advance(job, len / mtu, len),
            // The packet with the unreadable data reports it when it is sent alone.
            Err(_) => tx.retract(),
        }
    }

    /// Returns true if READ data is next.
    pub(crate) fn next_is_data(&self, e_psn: Psn) -> bool {
        self.next_reply(e_psn).is_some_and(Reply::is_data)
    }

    /// Returns the next response to send. A NAK acknowledges everything before it and so replaces
    /// the plain acknowledgement.
    // clause: ANSWER-ORDER
    fn next_reply(&self, e_psn: Psn) -> Option<Reply> {
        let is_turn = |bounded: &BoundedAck| !self.ring.is_due() || self.ring.cursor >= bounded.until;
        if let Some(bounded) = self.bounded.filter(is_turn) {
            return Some(Reply::Bounded(bounded.psn));
        }
        if let Some(due) = self.ring.next_due() {
            return Some(Reply::Answer(due));
        }
        self.nak.map(Reply::Nak).or_else(|| self.ack.then(|| Reply::acknowledge(e_psn)))
    }

    fn on_sent(&mut self, reply: Reply, sh: &mut Shared, now: Instant) {
        match reply {
            Reply::Bounded(_) => self.bounded = None,
            Reply::Answer(due) => {
                if let Due::Read(job) = due {
                    sh.congestion.on_sent(now, job.next_len(sh.attr.path_mtu).0);
                }
                self.ring.on_sent(due, sh.attr.path_mtu);
            }
            Reply::Nak(_) => (self.nak, self.ack) = (None, false),
            Reply::Ack(_) => self.ack = false,
        }
    }

    /// Handles an accepted READ whose memory was unmapped. A first response becomes a NAK with the
    /// failing PSN and the QP fails; a replay ends silently.
    fn give_up_read(&mut self, sh: &mut Shared, job: ReadJob, error: MemError) {
        // clause: DUP-READ-SILENT
        if job.is_replay {
            return self.ring.finish();
        }
        let reaction = Refusal::remote(error).reaction(Service::Rc);
        self.ring.abandon();
        (self.bounded, self.ack) = (None, false);
        // clause: READ-GONE
        self.refuse(job.psn, reaction.answer, true, 0);
        sh.events.insert(reaction.event);
        sh.fail();
    }
}

/// Checks that the peer may read the range of `reth`. Zero bytes need no key (IBA C9-88).
pub(crate) fn check_readable<H: Host>(host: &mut H, reth: &Reth) -> Result<(), MemError> {
    match reth.dma_len {
        // clause: CHECK-KEY-EMPTY
        0 => Ok(()),
        len => host.check_remote(reth.rkey, reth.va, len.into(), Access::REMOTE_READ),
    }
}

/// Returns the PSN of the newest executed request, while `e_psn` is expected.
fn newest_before(e_psn: Psn) -> Psn {
    e_psn.sub(1)
}

enum Sent {
    Yes,
    Full,
    Unreadable(ReadJob, MemError),
}

/// Returns the AETH of a positive response. The credit field is always "no limit": receives may be
/// shared, and today's requesters rely on RNR NAK.
// clause: ACK-NO-LIMIT
fn acknowledgement(msn: Msn) -> Aeth {
    Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn }
}

/// Writes one packet.
fn send<H: Host, T: TxBatch>(sh: &Shared, host: &mut H, tx: &mut T, reply: Reply, msn: Msn) -> Sent {
    let ack = acknowledgement(msn);
    let (psn, response, reason) = match reply {
        Reply::Bounded(psn) | Reply::Ack(psn) | Reply::Answer(Due::AckBefore(psn)) => {
            (psn, Response::Ack(ack), TxReason::Ack)
        }
        Reply::Answer(Due::Once { psn, kind, original, is_replay }) => {
            let (response, reason) = match kind {
                OnceKind::CompareSwap | OnceKind::FetchAdd => {
                    (Response::AtomicAck(ack, AtomicAckEth(original)), TxReason::AtomicResponse)
                }
                // clause: NONPOSTED-ANSWER
                OnceKind::AtomicWrite | OnceKind::Flush => (Response::ReadOnly(ack), TxReason::ReadResponse),
            };
            (psn, response, if is_replay { TxReason::Replay } else { reason })
        }
        Reply::Answer(Due::Read(job)) => return send_read(sh, host, tx, job, ack),
        // clause: NAK-OPCODE
        Reply::Nak(nak) => (nak.psn, Response::Ack(Aeth { syndrome: nak.syndrome, msn }), TxReason::Nak),
    };
    match slot(sh, tx, psn, response, 0, reason) {
        Some(_) => Sent::Yes,
        None => Sent::Full,
    }
}

/// Writes the next READ response. A replay begins with FIRST or ONLY like a new response.
fn send_read<H: Host, T: TxBatch>(sh: &Shared, host: &mut H, tx: &mut T, job: ReadJob, ack: Aeth) -> Sent {
    let (len, last) = job.next_len(sh.attr.path_mtu);
    // clause: READ-RESPONSES
    let response = match (job.first, last) {
        (true, true) => Response::ReadOnly(ack),
        (true, false) => Response::ReadFirst(ack),
        (false, true) => Response::ReadLast(ack),
        (false, false) => Response::ReadMiddle,
    };
    let reason = if job.is_replay { TxReason::Replay } else { TxReason::ReadResponse };
    // clause: XRC-DOMAIN
    if sh.config.service == Service::XrcTgt {
        host.select_srq(job.srqn);
    }
    let Some(payload) = slot(sh, tx, job.psn, response, len as usize, reason) else { return Sent::Full };
    if len > 0
        // clause: READ-AFTER-WRITE
        && let Err(error) = host.read_remote(job.rkey, job.va, payload)
    {
        tx.retract();
        return Sent::Unreadable(job, error);
    }
    Sent::Yes
}

/// Writes the headers of one packet and returns the room for its payload.
// Inlined: most of the headers of an acknowledgement are constant.
#[inline(always)]
fn slot<'t, T: TxBatch>(
    sh: &Shared,
    tx: &'t mut T,
    psn: Psn,
    response: Response,
    len: usize,
    reason: TxReason,
) -> Option<TxRoom<'t>> {
    // clause: BTH-MIGRATED, ACK-FIELDS
    let bth = Bth { mig_req: sh.mig_req(), ..Bth::new(sh.attr.dest_qpn, psn) };
    let kind = match sh.config.service {
        Service::Rc => Kind::RcResponse(response),
        // clause: XRC-ANSWERS
        _ => Kind::XrcResponse(response),
    };
    let header = Header { bth, kind };
    let note = PacketNote::without_wr(sh.config.qpn, reason);
    let form = header.form(len)?;
    tx.slot(&sh.path, bth.dest_qpn, form.len(), &note)?.put_header(&header, &form)
}

/// Sequence number of a request on this connection.
pub(crate) type Seq = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadJob {
    pub(crate) psn: Psn,
    pub(crate) rkey: RKey,
    pub(crate) va: u64,
    /// Bytes that no response carries yet.
    pub(crate) left: u32,
    /// True if the next response is the first.
    pub(crate) first: bool,
    /// True if this answers a duplicate, which is never refused: a failure stays silent.
    pub(crate) is_replay: bool,
    /// XRC: the SRQ number in the request, which selects the domain of the key.
    pub(crate) srqn: u32,
}

impl ReadJob {
    pub(crate) fn new(psn: Psn, reth: &Reth, is_replay: bool, srqn: u32) -> Self {
        Self { psn, rkey: reth.rkey, va: reth.va, left: reth.dma_len, first: true, is_replay, srqn }
    }

    /// Returns the payload bytes of the next packet, and true if it is the last.
    pub(crate) fn next_len(&self, mtu: PathMtu) -> (u32, bool) {
        (self.left.min(mtu.bytes()), self.left <= mtu.bytes())
    }
}

/// Requests that are executed only once; a duplicate must be of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnceKind {
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
}

impl OnceKind {
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
    /// Reads memory when it is answered, and again for a duplicate.
    Read(Reth),
    /// Executed once. Holds the original value of an atomic, 0 for other requests.
    Once(OnceKind, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) psn: Psn,
    /// Number of PSNs, one per response packet.
    pub(crate) packets: u32,
    pub(crate) op: Op,
    /// True if an acknowledgement of earlier requests must leave before this response: old HCAs do
    /// not accept a READ response as one.
    pub(crate) ack_before: bool,
    /// XRC: the SRQ number in the request.
    pub(crate) srqn: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    AckBefore(Psn),
    Read(ReadJob),
    Once { psn: Psn, kind: OnceKind, original: u64, is_replay: bool },
}

#[derive(Debug, Default)]
pub(crate) struct ReplayRing {
    entries: VecDeque<Entry>,
    /// Sequence number of `entries[0]`.
    base: Seq,
    cursor: Seq,
    /// First request whose response is not due.
    end: Seq,
    /// First request whose response was never sent completely.
    fresh: Seq,
    /// The READ at `cursor`, if partly sent or restarted in its middle.
    job: Option<ReadJob>,
}

impl ReplayRing {
    pub(crate) fn reset(&mut self) {
        self.entries.clear();
        (self.base, self.cursor, self.end, self.fresh, self.job) = (0, 0, 0, 0, None);
    }

    /// Cancels all responses that are due but keeps the requests.
    pub(crate) fn abandon(&mut self) {
        (self.cursor, self.fresh, self.job) = (self.end, self.next_seq(), None);
    }

    fn next_seq(&self) -> Seq {
        self.base + self.entries.len() as u64
    }

    fn entry(&self, seq: Seq) -> Option<&Entry> {
        self.entries.get(usize::try_from(seq.checked_sub(self.base)?).ok()?)
    }

    pub(crate) fn is_due(&self) -> bool {
        self.cursor != self.end
    }

    /// Returns true if fewer than `limit` requests are not completely answered.
    pub(crate) fn has_room(&self, limit: usize) -> bool {
        self.next_seq() - self.fresh < limit as u64
    }

    /// Appends a request whose response is due now and drops the oldest beyond `limit`.
    ///
    /// Given [`Self::has_room`], the oldest is answered. A pending replay of it is dropped too: the
    /// new request shows that the peer has received the old response.
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
        // Reserved once per connection: an idle one costs no memory, a busy one does not allocate.
        if self.entries.capacity() < limit {
            self.entries.reserve_exact(limit - self.entries.len());
        }
        self.entries.push_back(entry);
        self.end = self.next_seq();
    }

    /// Returns the newest request whose PSNs include `psn`.
    pub(crate) fn find(&self, psn: Psn) -> Option<(Seq, Entry)> {
        let within = |entry: &Entry| u32::try_from(psn.distance(entry.psn)).is_ok_and(|k| k < entry.packets);
        let at = self.entries.iter().rposition(within)?;
        Some((self.base + at as u64, *self.entries.get(at)?))
    }

    /// Returns the oldest request newer than the duplicate `psn`, and its first PSN. Age is counted
    /// back from `e_psn`, so that requests from before a PSN wrap do not look new.
    pub(crate) fn oldest_after(&self, psn: Psn, e_psn: Psn) -> Option<(Seq, Psn)> {
        let age = |psn: Psn| e_psn.sub(psn.get()).get();
        let newer = self.entries.iter().rev().take_while(|entry| age(entry.psn) < age(psn)).count();
        let seq = self.next_seq() - newer as u64;
        Some((seq, self.entry(seq)?.psn))
    }

    /// Answers request `seq` again, a READ from the start of `job`.
    ///
    /// Responses leave in PSN order, so later responses stay due: a newer request widens the
    /// window, an older one moves its start back, and one inside the window is already due.
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

    pub(crate) fn next_due(&self) -> Option<Due> {
        let entry = self.entry(self.cursor).filter(|_| self.is_due())?;
        if entry.ack_before {
            return Some(Due::AckBefore(entry.psn.sub(1)));
        }
        let is_replay = self.cursor < self.fresh;
        Some(match &entry.op {
            Op::Read(reth) => {
                Due::Read(self.job.unwrap_or_else(|| ReadJob::new(entry.psn, reth, is_replay, entry.srqn)))
            }
            Op::Once(kind, original) => Due::Once { psn: entry.psn, kind: *kind, original: *original, is_replay },
        })
    }

    pub(crate) fn on_sent(&mut self, due: Due, mtu: PathMtu) {
        match due {
            Due::AckBefore(_) => {
                if let Some(entry) = self.entries.get_mut((self.cursor - self.base) as usize) {
                    entry.ack_before = false;
                }
            }
            Due::Once { .. } => self.finish(),
            Due::Read(job) => match job.next_len(mtu) {
                (_, true) => self.finish(),
                (len, false) => self.advance(job, 1, len),
            },
        }
    }

    /// Records that `packets` of `job`, with `bytes` in total, were sent; the last packet is not
    /// among them.
    pub(crate) fn advance(&mut self, job: ReadJob, packets: u32, bytes: u32) {
        let (psn, va, left) = (job.psn.add(packets), job.va.wrapping_add(bytes.into()), job.left - bytes);
        self.job = Some(ReadJob { psn, va, left, first: false, ..job });
    }

    pub(crate) fn finish(&mut self) {
        (self.cursor, self.job) = (self.cursor + 1, None);
        self.fresh = self.fresh.max(self.cursor);
    }
}

#[cfg(test)]
mod tests;
