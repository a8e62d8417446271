//! What a reliable responder owes its peer, and the packets that pay it, strictly in the order of
//! PSNs; and the READs, atomics, ATOMIC WRITEs and FLUSHes of the peer that may have to be answered
//! again.
//!
//! READ data is read from memory when its packet is built. Acknowledgements coalesce: one per
//! `poll_transmit`, for the newest request executed. Remembered is a ring of the newest
//! `max_dest_rd_atomic` requests, with a window `[cursor, end)` over it whose answers are due.
//! Requests are counted by [`Seq`], which never wraps and never names two of them. May touch
//! [`Shared`], the host's memory and the batch.

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

/// How far the responder has come: the two numbers every answer is made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The PSN expected next.
    pub(crate) e_psn: Psn,
    /// Messages completed.
    pub(crate) msn: Msn,
}

/// A refusal to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nak {
    psn: Psn,
    syndrome: Syndrome,
    /// The QP is in the error state; this is the last it says.
    fatal: bool,
    /// The newest request that was dropped while this NAK waited to be sent.
    dropped: Option<Psn>,
}

/// Acknowledges duplicates up to, not including, a READ or atomic that the peer may still miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BoundedAck {
    /// The READ or atomic that must not be acknowledged.
    until: Seq,
    psn: Psn,
}

/// One packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Bounded(Psn),
    Answer(Due),
    Nak(Nak),
    Ack(Psn),
}

impl Step {
    /// Acknowledges everything before the expected PSN.
    const fn acknowledge(e_psn: Psn) -> Self {
        Self::Ack(e_psn.sub(1))
    }

    /// Whether it carries READ data.
    const fn is_data(self) -> bool {
        matches!(self, Self::Answer(Due::Read(_)))
    }

    /// Whether it is from the middle of a READ, so that others may share its header.
    fn is_middle(self, sh: &Shared) -> bool {
        let Self::Answer(Due::Read(job)) = self else { return false };
        !job.first && !job.next_len(sh.attr.path_mtu).1 && sh.config.service == Service::Rc
    }
}

/// Everything owed.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    ring: ReplayRing,
    bounded: Option<BoundedAck>,
    nak: Option<Nak>,
    /// The newest executed request is to be acknowledged.
    ack: bool,
}

impl Replies {
    /// Owes nothing and remembers nothing.
    pub(crate) fn reset(&mut self) {
        self.ring.reset();
        (self.bounded, self.nak, self.ack) = (None, None, false);
    }

    /// Forgets what is owed, unless a fatal NAK is: that one is still sent, behind the answers
    /// before it.
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

    /// Whether all that is owed is an acknowledgement, which may wait until the peer asks again.
    #[inline]
    pub(crate) fn is_only_ack(&self) -> bool {
        self.ack && self.nak.is_none() && self.bounded.is_none() && !self.ring.is_due()
    }

    /// An executed SEND or WRITE asked for an acknowledgement.
    pub(crate) fn acknowledge(&mut self) {
        self.ack = true;
    }

    /// A request behind the expected one was dropped.
    pub(crate) fn note_dropped(&mut self, psn: Psn) {
        if let Some(nak) = &mut self.nak
            && nak.dropped.is_none_or(|newest| psn.is_after(newest))
        {
            nak.dropped = Some(psn);
        }
    }

    /// The request that an unsent NAK was about came after all; `e_psn` is expected now. The peer
    /// knows nothing of what was dropped behind it: if it has not come again, the NAK asks for it.
    /// Returns true if it does.
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

    /// Whether one more READ, atomic, ATOMIC WRITE or FLUSH may be outstanding.
    pub(crate) fn has_room(&self, limit: u8) -> bool {
        self.ring.has_room(limit.into())
    }

    /// An accepted READ or what is done once will be answered. An acknowledgement that is due
    /// leaves before it.
    pub(crate) fn answer(&mut self, psn: Psn, packets: u32, op: Op, limit: u8, srqn: u32) {
        // clause: ACK-BEFORE-READ
        let ack_before = core::mem::take(&mut self.ack);
        self.ring.push(Entry { psn, packets, op, ack_before, srqn }, limit.into());
    }

    /// A SEND or WRITE came again: its acknowledgement was lost, and maybe answers to READs and
    /// atomics after it. The acknowledgement must not reach past those (it would tell the peer that
    /// they are lost once more).
    pub(crate) fn acknowledge_again(&mut self, psn: Psn, e_psn: Psn) {
        // clause: DUP-ACK-BOUND
        match self.ring.oldest_after(psn, e_psn) {
            None => self.ack = true,
            Some((until, first)) => self.bounded = Some(BoundedAck { until, psn: first.sub(1) }),
        }
    }

    /// A READ came again, maybe only its tail. Answers it from memory as it is now if it ends where
    /// the original did and the key still allows it; otherwise stays silent. Returns whether it
    /// will be answered.
    pub(crate) fn read_again<H: Host>(&mut self, sh: &Shared, host: &mut H, psn: Psn, reth: &Reth) -> bool {
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

    /// What is done once came again: its answer is sent again, and that is all. Returns whether it
    /// is still known.
    pub(crate) fn once_again(&mut self, psn: Psn, kind: OnceKind) -> bool {
        match self.ring.find(psn) {
            // clause: DUP-ATOMIC, DUP-NONPOSTED
            Some((seq, Entry { op: Op::Once(of, _), .. })) if of == kind => {
                self.ring.replay(seq, None);
                true
            }
            _ => false,
        }
    }

    /// Writes what is owed into `tx`, until it is full.
    pub(crate) fn poll_transmit<H: Host, T: TxBatch>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        tx: &mut T,
        progress: Progress,
    ) -> TxState {
        // Mostly that is all.
        if self.is_only_ack() {
            let sent = send(sh, host, tx, Step::acknowledge(progress.e_psn), progress.msn);
            self.ack = matches!(sent, Sent::Full);
            return if self.ack { TxState::BatchFull } else { TxState::Drained };
        }
        while let Some(step) = self.next_step(progress.e_psn) {
            // clause: DCQCN-PACING
            if step.is_data() && !sh.congestion.may_send(host.now()) {
                break;
            }
            match send(sh, host, tx, step, progress.msn) {
                Sent::Yes => {
                    self.sent(step, sh, host.now());
                    // clause: DCQCN-PACING
                    if tx.joins() && step.is_middle(sh) && sh.congestion.is_free() {
                        self.join(sh, host, tx);
                    }
                }
                Sent::Full => return TxState::BatchFull,
                Sent::Unreadable(job, error) => self.give_up_read(sh, job, error),
            }
        }
        TxState::Drained
    }

    /// Puts more packets from the middle of a READ behind the one that has just left, if the batch
    /// joins them.
    fn join<H: Host, T: TxBatch>(&mut self, sh: &Shared, host: &mut H, tx: &mut T) {
        let (Some(Due::Read(job)), mtu) = (self.ring.due(), sh.attr.path_mtu.bytes()) else { return };
        let before_last = job.left.saturating_sub(1) / mtu;
        if before_last == 0 {
            return;
        }
        let Some(room) = tx.extend(mtu as usize, before_last) else { return };
        let len = len_of(room.len());
        // clause: READ-AFTER-WRITE
        match host.read_remote(job.rkey, job.va, room) {
            Ok(()) => self.ring.go_on(job, len / mtu, len),
            // Alone, the one that cannot be read says so.
            Err(_) => tx.retract(),
        }
    }

    /// Whether READ data is what leaves next.
    pub(crate) fn next_is_data(&self, e_psn: Psn) -> bool {
        self.next_step(e_psn).is_some_and(Step::is_data)
    }

    /// What leaves next. A NAK acknowledges everything before it, so it makes the plain
    /// acknowledgement superfluous.
    // clause: ANSWER-ORDER
    fn next_step(&self, e_psn: Psn) -> Option<Step> {
        if let Some(bounded) = self.bounded.filter(|bounded| self.ring.is_answered_before(bounded.until)) {
            return Some(Step::Bounded(bounded.psn));
        }
        if let Some(due) = self.ring.due() {
            return Some(Step::Answer(due));
        }
        self.nak.map(Step::Nak).or_else(|| self.ack.then(|| Step::acknowledge(e_psn)))
    }

    /// `step` is in the batch.
    fn sent(&mut self, step: Step, sh: &mut Shared, now: Instant) {
        match step {
            Step::Bounded(_) => self.bounded = None,
            Step::Answer(due) => {
                if let Due::Read(job) = due {
                    sh.congestion.on_sent(now, job.next_len(sh.attr.path_mtu).0);
                }
                self.ring.sent(due, sh.attr.path_mtu);
            }
            Step::Nak(_) => (self.nak, self.ack) = (None, false),
            Step::Ack(_) => self.ack = false,
        }
    }

    /// The memory of a READ went away after it was accepted. A first answer turns into a NAK with
    /// the PSN that cannot be produced and the QP fails; a repeated one just ends.
    fn give_up_read(&mut self, sh: &mut Shared, job: ReadJob, error: MemError) {
        // clause: DUP-READ-SILENT
        if job.again {
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

/// Whether the peer may read what `reth` names. Reading nothing needs no key (IBA C9-88).
pub(crate) fn check_readable<H: Host>(host: &mut H, reth: &Reth) -> Result<(), MemError> {
    match reth.dma_len {
        // clause: CHECK-KEY-EMPTY
        0 => Ok(()),
        len => host.check_remote(reth.rkey, reth.va, len.into(), Access::REMOTE_READ),
    }
}

/// What became of a packet.
enum Sent {
    Yes,
    /// The batch has no room for it.
    Full,
    /// Its data cannot be read.
    Unreadable(ReadJob, MemError),
}

/// Writes the packet of `step`. The credit field always says "no limit": receives may be shared,
/// and requesters of today rely on RNR NAK.
fn send<H: Host, T: TxBatch>(sh: &Shared, host: &mut H, tx: &mut T, step: Step, msn: Msn) -> Sent {
    // clause: ACK-NO-LIMIT
    let ack = Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn };
    let (psn, response, reason) = match step {
        Step::Bounded(psn) | Step::Ack(psn) | Step::Answer(Due::AckBefore(psn)) => {
            (psn, Response::Ack(ack), TxReason::Ack)
        }
        Step::Answer(Due::Once { psn, kind, original, again }) => {
            let (response, reason) = match kind {
                OnceKind::CompareSwap | OnceKind::FetchAdd => {
                    (Response::AtomicAck(ack, AtomicAckEth(original)), TxReason::AtomicResponse)
                }
                // clause: NONPOSTED-ANSWER
                OnceKind::AtomicWrite | OnceKind::Flush => (Response::ReadOnly(ack), TxReason::ReadResponse),
            };
            (psn, response, if again { TxReason::Replay } else { reason })
        }
        Step::Answer(Due::Read(job)) => return send_read(sh, host, tx, job, ack),
        // clause: NAK-OPCODE
        Step::Nak(nak) => (nak.psn, Response::Ack(Aeth { syndrome: nak.syndrome, msn }), TxReason::Nak),
    };
    match slot(sh, tx, psn, response, 0, reason) {
        Some(_) => Sent::Yes,
        None => Sent::Full,
    }
}

/// Writes the next packet of the answer to a READ. After a restart it begins with FIRST or ONLY
/// like a new one.
fn send_read<H: Host, T: TxBatch>(sh: &Shared, host: &mut H, tx: &mut T, job: ReadJob, ack: Aeth) -> Sent {
    let (len, last) = job.next_len(sh.attr.path_mtu);
    // clause: READ-RESPONSES
    let response = match (job.first, last) {
        (true, true) => Response::ReadOnly(ack),
        (true, false) => Response::ReadFirst(ack),
        (false, true) => Response::ReadLast(ack),
        (false, false) => Response::ReadMiddle,
    };
    let reason = if job.again { TxReason::Replay } else { TxReason::ReadResponse };
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

/// Room in the batch for one packet to the peer, its headers written.
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
    let note = PacketNote::answer(sh.config.qpn, reason);
    let form = header.form(len)?;
    tx.slot(&sh.path, bth.dest_qpn, form.len(), &note)?.put_header(&header, &form)
}

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
