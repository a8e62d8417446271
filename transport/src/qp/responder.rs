//! The responder: checks requests of the peer in the order of the standard, then executes or
//! refuses them.
//!
//! The `check_*` steps change nothing that the application can see, so a refused request can be
//! retransmitted. The first failing step returns a [`Refusal`]; `refusal.rs` maps it to a NAK.
//! Once execution starts, only a memory access or an invalidate can fail. Responses are left in
//! [`Replies`]. UC uses the same steps (IBA §9.8) with its own PSN rules; UD is in `unreliable.rs`.

use crate::cx::{AtomicOp, Host, RxPayload};
use crate::qp::features::tags::MAX_RENDEZVOUS;
use crate::qp::receive_queue::{RecvQueue, takes_receive};
use crate::qp::refusal::{Answer, Refusal};
use crate::qp::replies::{OnceKind, Op, Progress, Replies, check_readable};
use crate::qp::segment::{self, len_of};
use crate::qp::shared::{DropReason, QpConfig, QpEvents, QpState, Shared};
use crate::wr::{Access, Cqe, MAX_MESSAGE, VendorErr, WcExtra, WcOpcode};
use roxe_wire::{AtomicEth, Bth, ImmDt, NakCode, PathMtu, Psn, RKey, Request, Reth, Selectivity, SendTail, UcRequest};

#[derive(Clone, Copy)]
pub(super) struct Incoming<'a> {
    pub(super) bth: &'a Bth,
    pub(super) req: &'a Request,
    pub(super) payload: RxPayload<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenWrite {
    pub(super) rkey: RKey,
    pub(super) va: u64,
    /// Bytes not yet received.
    pub(super) left: u32,
    /// Length of the whole WRITE in bytes.
    pub(super) total: u32,
}

impl OpenWrite {
    pub(super) const fn new(reth: &Reth) -> Self {
        Self { rkey: reth.rkey, va: reth.va, left: reth.dma_len, total: reth.dma_len }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OpenMessage {
    #[default]
    None,
    /// A SEND with this many bytes in the current receive.
    Send(u32),
    Write(OpenWrite),
}

/// NAK sent for the current gap. Later packets after the gap cause no further NAK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NakState {
    #[default]
    None,
    Sequence,
    /// The expected packet found no receive; the packets after it are not a gap.
    NotReady,
}

#[derive(Debug)]
pub(crate) struct Responder {
    pub(super) rq: RecvQueue,
    pub(super) replies: Replies,
    pub(super) progress: Progress,
    pub(super) open: OpenMessage,
    nak_state: NakState,
    /// True if the message being executed uses the current receive.
    pub(super) receiving: bool,
    established: bool,
    /// True if the queue was flushed; `LAST_WQE_REACHED` is raised only once.
    flushed: bool,
    pub(super) refused: Option<Refusal>,
}

impl Responder {
    pub(crate) fn new(config: &QpConfig) -> Self {
        Self {
            rq: RecvQueue::new(config),
            replies: Replies::default(),
            progress: Progress::default(),
            open: OpenMessage::None,
            nak_state: NakState::None,
            receiving: false,
            established: false,
            flushed: false,
            refused: None,
        }
    }

    pub(crate) fn on_rtr(&mut self, sh: &Shared) {
        self.forget_connection();
        // clause: PSN-START
        self.progress.e_psn = sh.attr.rq_psn;
    }

    /// Handles the transition to RESET: drops all receives without completions.
    pub(crate) fn on_reset(&mut self) {
        self.rq.clear();
        self.forget_connection();
    }

    fn forget_connection(&mut self) {
        self.replies.reset();
        (self.progress, self.open, self.nak_state) = (Progress::default(), OpenMessage::None, NakState::None);
        (self.receiving, self.established, self.flushed) = (false, false, false);
    }

    /// Handles the transition to ERR: flushes all receives. A QP with an SRQ then holds none and
    /// raises `LAST_WQE_REACHED` once (IBA §11.6.3).
    pub(crate) fn flush<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        self.replies.abandon();
        (self.open, self.receiving) = (OpenMessage::None, false);
        self.rq.flush(sh, host);
        // clause: SRQ-LAST-RECEIVE
        if self.rq.is_shared() && !self.flushed {
            sh.events.insert(QpEvents::LAST_WQE_REACHED);
        }
        self.flushed = true;
    }

    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.replies.is_due()
    }

    pub(crate) fn may_respond(&self, sh: &Shared) -> bool {
        self.replies.is_due() && !(sh.congestion.is_pausing() && self.replies.next_is_data(self.progress.e_psn))
    }

    /// Handles a request on a reliable connection.
    ///
    /// # Errors
    /// The request was not executed; the reason is for counters.
    #[inline]
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        incoming: Incoming<'_>,
    ) -> Result<(), DropReason> {
        // clause: PSN-WINDOW
        match incoming.bth.psn.distance(self.progress.e_psn) {
            0 => {
                self.begin_expected(sh);
                self.check_and_execute(sh, host, incoming).map_err(|refusal| self.refuse(sh, host, refusal))?;
                // clause: ACK-AFTER-DEED
                self.advance(sh, incoming);
                Ok(())
            }
            1.. => Err(self.handle_future(incoming.bth.psn)),
            _ => Err(self.handle_duplicate(sh, host, incoming)),
        }
    }

    /// Handles consecutive MIDDLE packets of one SEND or WRITE whose payloads were coalesced into
    /// one record of a ring. Returns false if the caller must handle the packets one by one; some
    /// of their bytes may then be written already.
    pub(crate) fn handle_joined<H: Host>(&mut self, sh: &mut Shared, host: &mut H, incoming: Incoming<'_>) -> bool {
        let Incoming { bth, req, payload } = incoming;
        let (len, mtu) = (len_of(payload.len()), sh.attr.path_mtu.bytes());
        if bth.psn != self.progress.e_psn || !len.is_multiple_of(mtu) {
            return false;
        }
        // If a part of the memory is refused, the caller handles the packets one by one and writes
        // the other parts twice.
        let is_placed = matches!(self.place_middle(sh, host, req, payload), Some(Ok(())));
        if is_placed {
            self.begin_expected(sh);
            self.advance_by(len / mtu, bth, req);
        }
        is_placed
    }

    #[inline]
    pub(super) fn begin_expected(&mut self, sh: &mut Shared) {
        self.nak_state = NakState::None;
        self.note_established(sh);
    }

    /// Handles a packet after a gap. One NAK reports the gap; later packets are dropped silently
    /// (IBA §9.7.5), also when the expected packet arrived but found no receive.
    // clause: GAP-DROPPED
    fn handle_future(&mut self, psn: Psn) -> DropReason {
        // clause: GAP-NAK
        if self.nak_state == NakState::None {
            self.nak_state = NakState::Sequence;
            self.replies.refuse(self.progress.e_psn, Answer::Nak(NakCode::PsnSequence), false, 0);
        }
        self.replies.note_dropped(psn);
        DropReason::OutOfSequence
    }

    /// Answers a duplicate. Only READs are executed again; atomics are replayed (IBA C9-105).
    fn handle_duplicate<H: Host>(&mut self, sh: &Shared, host: &mut H, incoming: Incoming<'_>) -> DropReason {
        let psn = incoming.bth.psn;
        let answered = match incoming.req {
            Request::Read(reth) => self.replies.replay_read(sh, host, psn, reth),
            req => match OnceKind::of(req) {
                Some(kind) => self.replies.replay_once(psn, kind),
                None => {
                    // clause: DUP-SEND-WRITE
                    self.replies.acknowledge_duplicate(psn, self.progress.e_psn);
                    true
                }
            },
        };
        // The peer went back and may lose the same packet again: report the next gap.
        // clause: GAP-NAK-AGAIN
        if answered && self.nak_state == NakState::Sequence {
            self.nak_state = NakState::None;
        }
        DropReason::DuplicateRequest
    }

    /// Handles a request on an unreliable connection: drops incomplete messages without a response
    /// (IBA §9.8.2).
    ///
    /// # Errors
    /// The request was not executed.
    // clause: UC-SILENT
    pub(crate) fn handle_uc<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        bth: &Bth,
        req: &UcRequest,
        payload: RxPayload<'_>,
    ) -> Result<(), DropReason> {
        // clause: UC-NO-ANSWER
        let req = Request::from(*req);
        let in_order = bth.psn == self.progress.e_psn;
        // clause: UC-RESYNC
        self.progress.e_psn = bth.psn.next();
        // A gap, or a FIRST or ONLY packet within a message, drops that message; the next one
        // reuses its receive.
        // clause: UC-NEW-START
        if !in_order || starts_message(&req) {
            // clause: UC-RECEIVE-KEPT
            (self.open, self.receiving) = (OpenMessage::None, false);
        }
        self.note_established(sh);
        let result = self.check_and_execute(sh, host, Incoming { bth, req: &req, payload });
        result.map_err(|refusal| {
            let reason = self.refuse(sh, host, refusal);
            (self.open, self.receiving) = (OpenMessage::None, false);
            reason
        })
    }

    /// Raises `COMM_EST` for the first request in RTR (IBA §11.6.3).
    pub(super) fn note_established(&mut self, sh: &mut Shared) {
        // clause: EVENT-COMM-EST
        if sh.state == QpState::Rtr && !self.established {
            self.established = true;
            sh.events.insert(QpEvents::COMM_EST);
        }
    }

    #[inline]
    fn check_and_execute<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        incoming: Incoming<'_>,
    ) -> Result<(), Refusal> {
        let Incoming { req, payload, .. } = incoming;
        if matches!(req, Request::WriteMiddle | Request::SendMiddle)
            && len_of(payload.len()) == sh.attr.path_mtu.bytes()
            && let Some(result) = self.place_middle(sh, host, req, payload)
        {
            return result;
        }
        // clause: CHECK-ORDER, CHECK-ORDER-KEY
        check_op_seq(self.open, req)?;
        check_op_valid(sh.attr.access, req).inspect_err(|_| note_missing_right(host, req))?;
        self.check_resource(sh, host, req, payload)?;
        self.check_length(sh.attr.path_mtu, req, payload)
            .inspect_err(|why| note_length(host, *why, req, payload.len()))?;
        check_rkey(host, req)?;
        self.execute(sh, host, incoming)
    }

    /// Executes a full-size MIDDLE packet that passes every check (fast path). Returns `None` for
    /// all other packets.
    #[inline(always)]
    fn place_middle<H: Host>(
        &mut self,
        sh: &Shared,
        host: &mut H,
        req: &Request,
        payload: RxPayload<'_>,
    ) -> Option<Result<(), Refusal>> {
        let len = len_of(payload.len());
        match (req, self.open) {
            (Request::WriteMiddle, OpenMessage::Write(write))
                if len <= write.left && sh.attr.access.contains(Access::REMOTE_WRITE) =>
            {
                Some(self.place_write(host, write, payload))
            }
            (Request::SendMiddle, OpenMessage::Send(received)) if self.check_room(received, len).is_ok() => {
                Some(self.place_send(host, payload))
            }
            _ => None,
        }
    }

    /// Checks that `req` finds the receive or the replay ring entry that it needs. A SEND needs a
    /// receive from its first packet on, a WRITE with immediate only for its last. READs, atomics,
    /// ATOMIC WRITEs and FLUSHes need a ring entry (IBA §9.7.5).
    fn check_resource<H: Host>(
        &mut self,
        sh: &Shared,
        host: &mut H,
        req: &Request,
        payload: RxPayload<'_>,
    ) -> Result<(), Refusal> {
        match req {
            Request::SendFirst | Request::SendOnly(_) if sh.config.tag_matching => {
                let can_read = sh.attr.max_rd_atomic > 0 && sh.rendezvous_count < MAX_RENDEZVOUS;
                let may_read = matches!(req, Request::SendOnly(_)) && can_read;
                self.receiving = self.rq.acquire_for(host, payload.bytes().unwrap_or_default(), may_read);
                if self.receiving { Ok(()) } else { Err(Refusal::NoReceive) }
            }
            // clause: UC-IMM-LAST
            req if takes_receive(req) => {
                self.receiving = self.rq.acquire(host);
                // clause: CHECK-RECEIVE
                if self.receiving { Ok(()) } else { Err(Refusal::NoReceive) }
            }
            // clause: CHECK-RD-ATOMIC, NONPOSTED-PLACE
            req if has_own_response(req) && !self.replies.has_room(sh.attr.max_dest_rd_atomic) => {
                host.note_too_many_reads();
                Err(Refusal::TooManyReads)
            }
            _ => Ok(()),
        }
    }

    /// Checks the payload length against the opcode, then against the message (IBA §9.7.4).
    #[inline]
    fn check_length(&self, mtu: PathMtu, req: &Request, payload: RxPayload<'_>) -> Result<(), Refusal> {
        let mtu = mtu.bytes();
        let len = u32::try_from(payload.len()).map_err(|_| Refusal::Length)?;
        // clause: CHECK-LENGTH
        let fits_opcode = match req {
            Request::SendFirst | Request::SendMiddle | Request::WriteFirst(_) | Request::WriteMiddle => len == mtu,
            Request::SendLast(_) | Request::WriteLast(_) => (1..=mtu).contains(&len),
            Request::SendOnly(_) | Request::WriteOnly(..) => len <= mtu,
            // clause: ATOMIC-WRITE-LENGTH
            Request::AtomicWrite(_) => len == 8,
            _ => len == 0,
        };
        if !fits_opcode {
            return Err(Refusal::Length);
        }
        // clause: CHECK-DMA-LENGTH
        let fits_message = match (req, self.open) {
            (Request::SendFirst | Request::SendOnly(_), _) => return self.check_room(0, len),
            (_, OpenMessage::Send(received)) => return self.check_room(received, len),
            (Request::WriteFirst(reth), _) => len <= reth.dma_len && reth.dma_len <= MAX_MESSAGE,
            (Request::WriteOnly(reth, _), _) => len == reth.dma_len,
            (Request::WriteMiddle, OpenMessage::Write(write)) => len <= write.left,
            (Request::WriteLast(_), OpenMessage::Write(write)) => len == write.left,
            (Request::AtomicWrite(reth), _) => len == reth.dma_len,
            (Request::Read(reth) | Request::Flush(_, reth), _) => reth.dma_len <= MAX_MESSAGE,
            _ => true,
        };
        if fits_message { Ok(()) } else { Err(Refusal::Length) }
    }

    /// Checks that `len` more bytes fit the current receive and the maximum message length.
    fn check_room(&self, received: u32, len: u32) -> Result<(), Refusal> {
        let total = u64::from(received) + u64::from(len);
        if total > u64::from(MAX_MESSAGE) {
            Err(Refusal::Length)
        // clause: CHECK-ROOM
        } else if total > self.rq.room() {
            Err(Refusal::ReceiveTooShort)
        } else {
            Ok(())
        }
    }

    pub(super) fn save_response(&mut self, sh: &Shared, bth: &Bth, req: &Request, op: Op) {
        let (packets, limit) = (psn_count(req, sh.attr.path_mtu), sh.attr.max_dest_rd_atomic);
        self.replies.enqueue(bth.psn, packets, op, limit, self.rq.srqn);
    }

    pub(super) fn advance(&mut self, sh: &Shared, Incoming { bth, req, .. }: Incoming<'_>) {
        self.advance_by(psn_count(req, sh.attr.path_mtu), bth, req);
    }

    /// Advances by `psns` PSNs, the span of a request or of a part of one.
    #[inline]
    fn advance_by(&mut self, psns: u32, bth: &Bth, req: &Request) {
        self.progress.e_psn = self.progress.e_psn.add(psns);
        if self.replies.on_expected(self.progress.e_psn) {
            self.nak_state = NakState::Sequence;
        }
        // clause: MSN-COUNT
        if self.open == OpenMessage::None {
            self.progress.msn = self.progress.msn.next();
        }
        // A request with its own response gets it without an AckReq bit.
        // clause: ACK-ASKED
        if bth.ack_req && !has_own_response(req) {
            self.replies.acknowledge();
        }
    }

    pub(super) fn refuse<H: Host>(&mut self, sh: &mut Shared, host: &mut H, refusal: Refusal) -> DropReason {
        let reaction = refusal.reaction(sh.config.service);
        self.refused = Some(refusal);
        // clause: NAK-UNASKED
        self.replies.refuse(self.progress.e_psn, reaction.answer, reaction.fatal, sh.attr.min_rnr_timer);
        if reaction.answer == Answer::RnrNak {
            // clause: GAP-AFTER-RNR
            self.nak_state = NakState::NotReady;
            sh.retries.send_rnr_err += 1;
        }
        // clause: NAK-FATAL
        if reaction.fatal {
            sh.fail();
            // The receive in use reports the error, or else an event does (IBA §9.9.3).
            if self.receiving {
                let (status, vendor_err) = (reaction.status, VendorErr(refusal as u32));
                let cqe = Cqe { status, opcode: WcOpcode::Recv, vendor_err, ..Cqe::default() };
                self.complete_receive(sh, host, cqe);
            } else {
                // clause: EVENT-AFFILIATED
                sh.events.insert(reaction.event);
            }
        }
        reaction.reason
    }
}

impl Responder {
    /// Executes the request. Only a memory access or an invalidate can fail.
    pub(super) fn execute<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        incoming: Incoming<'_>,
    ) -> Result<(), Refusal> {
        let Incoming { bth, req, payload } = incoming;
        match req {
            Request::SendFirst | Request::SendMiddle => self.place_send(host, payload)?,
            Request::SendLast(tail) | Request::SendOnly(tail) => {
                self.place_send(host, payload)?;
                self.finish_send(sh, host, bth, tail)?;
            }
            Request::WriteFirst(reth) => self.place_write(host, OpenWrite::new(reth), payload)?,
            Request::WriteOnly(reth, imm) => {
                self.place_write(host, OpenWrite::new(reth), payload)?;
                self.finish_write(sh, host, bth, *imm);
            }
            Request::WriteMiddle => self.continue_write(host, payload)?,
            Request::WriteLast(imm) => {
                self.continue_write(host, payload)?;
                self.finish_write(sh, host, bth, *imm);
            }
            Request::Read(reth) => self.save_response(sh, bth, req, Op::Read(*reth)),
            Request::CompareSwap(eth) => {
                // clause: ATOMIC-RESULT
                let op = AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add };
                let original = atomic(host, eth, op)?;
                self.save_response(sh, bth, req, Op::Once(OnceKind::CompareSwap, original));
            }
            Request::FetchAdd(eth) => {
                let original = atomic(host, eth, AtomicOp::FetchAdd { add: eth.swap_or_add })?;
                self.save_response(sh, bth, req, Op::Once(OnceKind::FetchAdd, original));
            }
            Request::AtomicWrite(reth) => {
                // clause: ATOMIC-WRITE-WHOLE
                let word = payload.bytes().and_then(|bytes| bytes.try_into().ok()).ok_or(Refusal::Length)?;
                host.store_remote(reth.rkey, reth.va, word).map_err(Refusal::remote)?;
                self.save_response(sh, bth, req, Op::Once(OnceKind::AtomicWrite, 0));
            }
            Request::Flush(feth, reth) => {
                // clause: FLUSH-RANGE, FLUSH-RIGHTS
                let access = Access::of_flush(feth).ok_or(Refusal::NotAllowed)?;
                let range = match feth.selectivity {
                    Selectivity::Range => Some((reth.va, reth.dma_len.into())),
                    Selectivity::Region | Selectivity::Reserved(_) => None,
                };
                host.flush_remote(reth.rkey, range, access).map_err(Refusal::remote)?;
                self.save_response(sh, bth, req, Op::Once(OnceKind::Flush, 0));
            }
        }
        Ok(())
    }

    pub(super) fn place_send<H: Host>(&mut self, host: &mut H, payload: RxPayload<'_>) -> Result<(), Refusal> {
        let received = if let OpenMessage::Send(received) = self.open { received } else { 0 };
        self.rq.scatter(host, received, payload).map_err(|_| Refusal::LocalProtection)?;
        self.open = OpenMessage::Send(received.saturating_add(len_of(payload.len())));
        Ok(())
    }

    /// Completes a SEND. The key is invalidated after the data is placed and before the completion
    /// (IBA §9.4.1).
    fn finish_send<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        bth: &Bth,
        tail: &SendTail,
    ) -> Result<(), Refusal> {
        let extra = match tail {
            SendTail::Plain => WcExtra::None,
            SendTail::Imm(imm) => WcExtra::Imm(*imm),
            SendTail::Invalidate(ieth) => {
                // clause: INVALIDATE-KEY
                host.invalidate_remote(ieth.0).map_err(|_| Refusal::Invalidate)?;
                WcExtra::Invalidated(ieth.0)
            }
        };
        let byte_len = if let OpenMessage::Send(received) = self.open { self.rq.placed_len(received) } else { 0 };
        self.open = OpenMessage::None;
        let opcode = WcOpcode::Recv;
        let cqe = Cqe { opcode, byte_len, extra, solicited: bth.solicited, ..Cqe::default() };
        self.complete_receive(sh, host, cqe);
        Ok(())
    }

    // clause: NAK-DATA-STAYS
    fn continue_write<H: Host>(&mut self, host: &mut H, payload: RxPayload<'_>) -> Result<(), Refusal> {
        let OpenMessage::Write(write) = self.open else { return Err(Refusal::OpcodeSequence) };
        self.place_write(host, write, payload)
    }

    /// Writes the payload of one packet. The host checks the key for every packet: it may have been
    /// invalidated since the first.
    pub(super) fn place_write<H: Host>(
        &mut self,
        host: &mut H,
        write: OpenWrite,
        payload: RxPayload<'_>,
    ) -> Result<(), Refusal> {
        if !payload.is_empty() {
            // clause: CHECK-KEY-AGAIN
            host.write_remote(write.rkey, write.va, payload).map_err(Refusal::remote)?;
        }
        let len = len_of(payload.len());
        let (va, left) = (write.va.wrapping_add(len.into()), write.left.saturating_sub(len));
        self.open = OpenMessage::Write(OpenWrite { va, left, ..write });
        Ok(())
    }

    fn finish_write<H: Host>(&mut self, sh: &mut Shared, host: &mut H, bth: &Bth, imm: Option<ImmDt>) {
        // clause: WC-BYTE-LEN
        let byte_len = if let OpenMessage::Write(write) = self.open { write.total } else { 0 };
        self.open = OpenMessage::None;
        if let Some(imm) = imm {
            let (opcode, extra) = (WcOpcode::RecvRdmaWithImm, WcExtra::Imm(imm));
            let cqe = Cqe { opcode, byte_len, extra, solicited: bth.solicited, ..Cqe::default() };
            self.complete_receive(sh, host, cqe);
        }
    }

    pub(super) fn complete_receive<H: Host>(&mut self, sh: &mut Shared, host: &mut H, cqe: Cqe) {
        self.receiving = false;
        self.rq.complete(sh, host, cqe);
    }
}

fn atomic<H: Host>(host: &mut H, eth: &AtomicEth, op: AtomicOp) -> Result<u64, Refusal> {
    host.atomic_remote(eth.rkey, eth.va, op).map_err(Refusal::remote)
}

/// Returns the number of PSNs that `req` occupies; for a READ, one per response packet.
// clause: PSN-SPAN
pub(super) fn psn_count(req: &Request, mtu: PathMtu) -> u32 {
    match req {
        Request::Read(reth) => segment::packets(reth.dma_len, mtu),
        _ => 1,
    }
}

/// Returns true if `req` has a response other than a plain acknowledgement, so that it must be
/// remembered for replay.
pub(super) const fn has_own_response(req: &Request) -> bool {
    matches!(req, Request::Read(_)) || OnceKind::of(req).is_some()
}

pub(super) const fn starts_message(req: &Request) -> bool {
    !matches!(req, Request::SendMiddle | Request::SendLast(_) | Request::WriteMiddle | Request::WriteLast(_))
}

/// Checks the opcode sequence: packets of different messages never interleave (IBA §9.7.4).
pub(super) fn check_op_seq(open: OpenMessage, req: &Request) -> Result<(), Refusal> {
    // clause: CHECK-SEQUENCE
    let in_sequence = match open {
        OpenMessage::None => starts_message(req),
        OpenMessage::Send(_) => matches!(req, Request::SendMiddle | Request::SendLast(_)),
        OpenMessage::Write(_) => matches!(req, Request::WriteMiddle | Request::WriteLast(_)),
    };
    if in_sequence { Ok(()) } else { Err(Refusal::OpcodeSequence) }
}

/// Returns the access right that an operation needs on the QP and on the memory.
#[inline]
pub(super) fn right_of(req: &Request) -> Result<Access, Refusal> {
    Ok(match req {
        Request::SendFirst | Request::SendMiddle | Request::SendLast(_) | Request::SendOnly(_) => Access::empty(),
        // clause: ATOMIC-WRITE-WHOLE
        Request::WriteFirst(_)
        | Request::WriteMiddle
        | Request::WriteLast(_)
        | Request::WriteOnly(..)
        | Request::AtomicWrite(_) => Access::REMOTE_WRITE,
        Request::Read(_) => Access::REMOTE_READ,
        Request::CompareSwap(_) | Request::FetchAdd(_) => Access::REMOTE_ATOMIC,
        // clause: FLUSH-RIGHTS, FLUSH-RESERVED
        Request::Flush(feth, _) => Access::of_flush(feth).ok_or(Refusal::NotAllowed)?,
    })
}

/// Checks the QP's access flags (IBA §9.7.4).
pub(super) fn check_op_valid(access: Access, req: &Request) -> Result<(), Refusal> {
    let needed = right_of(req)?;
    // clause: CHECK-ACCESS-FLAGS
    if access.contains(needed) { Ok(()) } else { Err(Refusal::NotAllowed) }
}

/// Checks the remote key for the whole range; zero bytes need no key (IBA C9-88). A FLUSH is
/// checked when it executes.
pub(super) fn check_rkey<H: Host>(host: &mut H, req: &Request) -> Result<(), Refusal> {
    // clause: CHECK-KEY
    let checked = match req {
        // clause: CHECK-KEY-EMPTY
        Request::WriteFirst(reth) | Request::WriteOnly(reth, _) if reth.dma_len > 0 => {
            host.check_remote(reth.rkey, reth.va, reth.dma_len.into(), Access::REMOTE_WRITE)
        }
        Request::Read(reth) => check_readable(host, reth),
        // clause: CHECK-ATOMIC-ALIGNED
        Request::CompareSwap(eth) | Request::FetchAdd(eth) if eth.va % 8 != 0 => return Err(Refusal::Misaligned),
        Request::CompareSwap(eth) | Request::FetchAdd(eth) => {
            host.check_remote(eth.rkey, eth.va, 8, Access::REMOTE_ATOMIC)
        }
        // clause: ATOMIC-WRITE-LENGTH
        Request::AtomicWrite(reth) if reth.va % 8 != 0 => return Err(Refusal::Misaligned),
        Request::AtomicWrite(reth) => host.check_remote(reth.rkey, reth.va, 8, Access::REMOTE_WRITE),
        _ => Ok(()),
    };
    checked.map_err(Refusal::remote)
}

/// Reports a wrong length to the host. `place_send` reports a receive that is too short.
#[cold]
#[inline(never)]
pub(super) fn note_length<H: Host>(host: &mut H, refusal: Refusal, req: &Request, len: usize) {
    if refusal == Refusal::Length {
        host.note_wrong_length(req, len);
    }
}

/// Reports to the host that the access flags do not allow `req`.
#[cold]
#[inline(never)]
pub(super) fn note_missing_right<H: Host>(host: &mut H, req: &Request) {
    if let Ok(right) = right_of(req) {
        host.note_missing_right(right);
    }
}

#[cfg(test)]
mod tests;
