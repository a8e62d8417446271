//! What a reliable responder owes its peer, and the packets that pay it, strictly in the order of
//! PSNs.
//!
//! READ data is read from memory when its packet is built. Acknowledgements coalesce: one per
//! `poll_transmit`, for the newest request executed. May touch [`Shared`], the host's memory and
//! the batch.

use crate::cx::{Host, MemError, PacketNote, TxBatch, TxReason, TxRoom, TxState};
use crate::qp::refusal::{Answer, Refusal};
use crate::qp::replay::{Due, Entry, OnceKind, Op, ReadJob, ReplayRing, Seq};
use crate::qp::segment::len_of;
use crate::qp::shared::{Service, Shared};
use crate::time::Instant;
use crate::wr::Access;
use roxe_wire::{Aeth, AtomicAckEth, Bth, Header, Kind, Msn, Psn, Response, Reth, Syndrome};

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

    /// The request expected next came after all: a NAK about it that is not sent yet has no meaning
    /// any more.
    pub(crate) fn withdraw_nak(&mut self) {
        self.nak = None;
    }

    pub(crate) fn refuse(&mut self, psn: Psn, answer: Answer, fatal: bool, rnr_timer: u8) {
        let syndrome = match answer {
            Answer::Silence => return,
            // clause: CHECK-RECEIVE
            Answer::RnrNak => Syndrome::RnrNak { timer: rnr_timer },
            Answer::Nak(code) => Syndrome::Nak(code),
        };
        self.nak = Some(Nak { psn, syndrome, fatal });
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
