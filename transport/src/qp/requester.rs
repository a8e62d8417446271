//! The sending role: which work request and which packet come next, everything that this must wait
//! for, the send loop of RC and XRC, local operations, and how work requests complete.
//!
//! `unreliable.rs` has the send loop of UC and UD, `completer.rs` what responses do to the cursors.
//! Touches the send queue, `segment`, `reliability` and the host.
//!
//! Three PSNs and three places in the queue, always in this order:
//!
//! ```text
//!   una_psn       oldest PSN not acknowledged, inside the oldest work request (`sq.head`)
//!   cursor        the next packet to send; behind `sent_psn` only while a retry repeats packets
//!   sent_psn      PSN after the newest one ever sent; `first_unstarted` is the first work request
//!                 never started
//! ```

use crate::cx::{FlowControl, Host, PacketNote, Side, TxBatch, TxReason, TxState};
use crate::qp::reliability::{Exhausted, InFlight, Retry, Room, Timer, Unasked};
use crate::qp::segment::{self, Departing, Outgoing, Put};
use crate::qp::send_queue::{Origin, SendQueue, SendWqe};
use crate::qp::shared::{QpConfig, QpEvents, QpState, Service, Shared};
use crate::time::Instant;
use crate::wr::{Bind, Cqe, SendFlags, SendOp, TmFlags, TmInfo, WcOpcode, WcStatus};
use roxe_wire::{Bth, Header, Kind, PathMtu, Psn, XrcEth};

/// PSNs under way at most. The peer can tell 2^23 apart; this is more than any network holds, keeps
/// late packets recognisable and the bytes of [`InFlight`] within 32 bits.
const MAX_OUTSTANDING: i32 = 1 << 16;

/// Losses do not narrow the window below this many PSNs. It holds several packets that ask for an
/// acknowledgement, so that losing one of those does not stop everything until the timer runs out.
const MIN_WINDOW: i32 = 64;

/// Another READ REQUEST is sent while no more than this is still to come. Its answers (128 KiB at
/// most, see `segment`) and these must fit the receive buffer of our own socket, which drops
/// silently; two requests keep the peer busy.
const READ_AHEAD: u32 = 128 << 10;

/// The next packet to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Index of the work request.
    pub(crate) wqe: u32,
    /// Which packet of that request.
    pub(crate) packet: u32,
    /// The PSN of that packet.
    pub(crate) psn: Psn,
}

impl Cursor {
    /// Moves behind a packet that takes `span` PSNs, and `sent` as well if none as new has ever
    /// left.
    #[inline]
    pub(super) fn step(&mut self, span: u32, sent: &mut Psn) {
        self.psn = self.psn.add(span);
        self.packet += span;
        if self.psn.is_after(*sent) {
            *sent = self.psn;
        }
    }
}

/// What an attempt to send one packet led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A packet with this many bytes of payload is in the batch.
    Sent(u32),
    /// A local operation is done.
    Local,
    /// The batch is full.
    BatchFull,
    /// Nothing can be sent now.
    Stop,
}

/// The sending role of a QP.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) sq: SendQueue,
    pub(crate) cursor: Cursor,
    pub(crate) first_unstarted: u32,
    pub(crate) una_psn: Psn,
    pub(crate) sent_psn: Psn,
    /// READ requests, atomics and whatever else awaits a response, between `una_psn` and the
    /// cursor.
    pub(crate) reads_out: u32,
    /// Bytes of READ data that they still have to bring.
    pub(crate) bytes_due: u32,
    /// PSNs that may be under way. Going back repeats all that was, so a receiver that is too slow
    /// for that would only fall further behind: a loss halves this, and what is acknowledged widens
    /// it again.
    pub(super) window: i32,
    pub(crate) in_flight: InFlight,
    /// What was sent behind the last packet that asked for an acknowledgement.
    pub(super) unasked: Unasked,
    pub(crate) retry: Retry,
    /// The work request at the cursor failed here; it is reported when all before it are complete.
    pub(crate) fault: Option<WcStatus>,
    /// UC and UD: what this call of `poll_transmit` has sent, and whether room for the next packet
    /// is reserved.
    pub(crate) burst: u32,
    pub(crate) room_reserved: bool,
    /// In SQD: nothing that was started is left, and this was told.
    drained: bool,
    /// The length of the request that failed last, if none of its packets was acknowledged but some
    /// before it were.
    pub(super) unanswered: Option<u32>,
}

impl Requester {
    pub(crate) fn new(config: &QpConfig) -> Self {
        Self {
            sq: SendQueue::new(config),
            cursor: Cursor::default(),
            first_unstarted: 0,
            una_psn: Psn::default(),
            sent_psn: Psn::default(),
            reads_out: 0,
            bytes_due: 0,
            window: MAX_OUTSTANDING,
            in_flight: InFlight::default(),
            unasked: Unasked::default(),
            retry: Retry::default(),
            fault: None,
            burst: 0,
            room_reserved: false,
            drained: false,
            unanswered: None,
        }
    }

    /// Whether the newest request may wait until there are more to send with it.
    pub(crate) fn may_coalesce(&self) -> bool {
        let under_way = self.cursor.wqe.wrapping_sub(self.sq.head_index());
        let waiting = self.sq.tail_index().wrapping_sub(self.cursor.wqe);
        let newest = self.sq.get(self.sq.tail_index().wrapping_sub(1)).map(|wqe| wqe.length);
        self.cursor.packet == 0 && newest.is_some_and(|length| self.sq.depth.may_wait(under_way, waiting, length))
    }

    /// In SQD: whether nothing that was started is left.
    pub(crate) fn is_drained(&self) -> bool {
        self.sq.head_index() == self.first_unstarted
    }

    /// RTR to RTS: numbering starts, counters are loaded.
    pub(crate) fn on_rts(&mut self, sh: &Shared) {
        // clause: PSN-START
        let psn = sh.attr.sq_psn;
        (self.cursor.psn, self.una_psn, self.sent_psn) = (psn, psn, psn);
        self.retry.reset(&sh.attr);
    }

    /// RTS to SQD: from now on only what was started goes on.
    pub(crate) fn on_sqd(&mut self, sh: &mut Shared) {
        self.drained = false;
        self.check_drained(sh);
    }

    /// Forgets everything without a word. What is reserved must have been released before.
    pub(crate) fn on_reset(&mut self) {
        self.sq.clear();
        self.restart_at(Psn::default());
        self.retry = Retry::default();
    }

    /// Completes everything that is left with `WR_FLUSH_ERR` (IBA §10.3.1.5).
    pub(crate) fn flush<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        self.in_flight.clear(sh, host);
        while let Some(wqe) = self.sq.pop() {
            // clause: WC-ERROR-ALWAYS
            complete(sh, host, &wqe, WcStatus::WrFlushErr);
        }
        sh.rendezvous_count = 0;
        // UC and UD go on numbering from here when they leave SQE.
        self.restart_at(self.cursor.psn);
        self.retry.reset(&sh.attr);
    }

    /// All cursors at the end of the queue; the next packet will be `psn`.
    fn restart_at(&mut self, psn: Psn) {
        let wqe = self.sq.tail_index();
        self.cursor = Cursor { wqe, packet: 0, psn };
        self.first_unstarted = wqe;
        (self.una_psn, self.sent_psn) = (psn, psn);
        (self.reads_out, self.bytes_due) = (0, 0);
        self.window = MAX_OUTSTANDING;
        self.fault = None;
        self.room_reserved = false;
    }

    /// Sends what may be sent, which is [something](Self::has_work).
    pub(crate) fn poll_transmit<H: Host, T: TxBatch>(&mut self, sh: &mut Shared, host: &mut H, tx: &mut T) -> TxState {
        self.burst = 0;
        if sh.config.service.is_reliable() {
            self.unasked.limit = host.ack_interval(&sh.attr.av, sh.attr.dest_qpn);
        }
        // clause: DCQCN-PACING
        while sh.congestion.may_send(host.now()) {
            let step = match sh.config.service {
                Service::Rc | Service::XrcIni | Service::XrcTgt => match self.send_reliable(sh, host, tx) {
                    Step::Sent(_) if self.cursor.packet > 0 && sh.congestion.is_free() => {
                        self.send_middles(sh, host, tx)
                    }
                    step => step,
                },
                Service::Uc | Service::Ud => self.send_unreliable(sh, host, tx),
                Service::Raw => self.send_frame(sh, host, tx),
            };
            match step {
                Step::Sent(payload) => sh.congestion.on_sent(host.now(), payload),
                Step::Local => {}
                Step::BatchFull => return TxState::BatchFull,
                Step::Stop => break,
            }
            if sh.failed || !self.has_work(sh) {
                break;
            }
        }
        TxState::Drained
    }

    /// Whether there is a packet to send now, but for room at the peer and in the batch.
    #[inline]
    pub(crate) fn has_work(&self, sh: &Shared) -> bool {
        // Every visit asks several times, mostly when all is sent.
        self.cursor.wqe != self.sq.tail_index() && self.may_go_on(sh)
    }

    /// Whether the request at the cursor may go on.
    fn may_go_on(&self, sh: &Shared) -> bool {
        let Some(wqe) = self.sq.get(self.cursor.wqe) else { return false };
        let may_start = match sh.state {
            QpState::Rts => true,
            // clause: STATE-SQD
            QpState::Sqd => self.cursor.wqe != self.first_unstarted,
            _ => false,
        };
        // A fenced request starts when earlier READs and atomics are complete (IBA §10.8.3.3), a
        // local operation when everything earlier is.
        // clause: SEND-FENCE
        let by_flag = self.reads_out > 0 && self.cursor.packet == 0 && wqe.flags.contains(SendFlags::FENCE);
        // clause: SEND-LOCAL-ORDER
        let is_fenced = by_flag || (wqe.is_local() && self.sq.head_index() != self.cursor.wqe);
        // READs and atomics wait for a free place at the responder, and READs for room in our own
        // socket. With `max_rd_atomic` = 0 there is nothing to wait for: they fail when their turn
        // comes.
        // clause: SEND-RD-ATOMIC
        let no_place = self.reads_out >= u32::from(sh.attr.max_rd_atomic);
        let no_room = self.bytes_due > READ_AHEAD && wqe.is_read();
        let is_read_held = self.reads_out > 0 && wqe.awaits_response() && (no_place || no_room);
        may_start
            && self.fault.is_none()
            // clause: RNR-WAIT
            && !self.retry.is_waiting()
            && !sh.congestion.is_pausing()
            && !is_fenced
            && !is_read_held
            // clause: PSN-OUTSTANDING
            && self.cursor.psn.distance(self.una_psn) < self.window
    }

    /// What there is to say about the packet at the cursor, which belongs to `wqe`.
    pub(crate) fn note(&self, sh: &Shared, wqe: &SendWqe) -> PacketNote {
        PacketNote { qpn: sh.config.qpn, wr_id: Some(wqe.wr_id), reason: self.tx_reason() }
    }

    /// Why the packet at the cursor leaves.
    pub(super) fn tx_reason(&self) -> TxReason {
        let again = self.cursor.psn.is_before(self.sent_psn);
        if again { TxReason::Retransmission } else { TxReason::First }
    }

    /// Numbers the work request at the cursor if it starts here. Doing so again gives the same
    /// numbers.
    pub(crate) fn begin(&mut self, mtu: PathMtu) {
        let Cursor { wqe, packet: 0, psn } = self.cursor else { return };
        if let Some(wqe) = self.sq.get_mut(wqe) {
            wqe.first_psn = psn;
            wqe.packets = segment::packets(wqe.length, mtu);
        }
    }

    /// Moves the cursor behind the packet just sent, which took `span` PSNs.
    // clause: SEND-ORDER
    pub(crate) fn advance(&mut self, span: u32) {
        let Some(wqe) = self.sq.get(self.cursor.wqe) else { return };
        if self.cursor.wqe == self.first_unstarted {
            self.first_unstarted = self.first_unstarted.wrapping_add(1);
        }
        self.cursor.step(span, &mut self.sent_psn);
        if self.cursor.packet >= wqe.packets {
            self.cursor.wqe = self.cursor.wqe.wrapping_add(1);
            self.cursor.packet = 0;
        }
    }

    /// Goes back because something was lost, and sends less at a time from now on.
    pub(crate) fn go_back_after_loss<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        self.window = (self.cursor.psn.distance(self.una_psn) / 2).max(MIN_WINDOW);
        self.go_back(sh, flow);
    }

    /// `count` more PSNs are acknowledged.
    pub(crate) fn widen(&mut self, count: i32) {
        self.window = self.window.saturating_add(count).min(MAX_OUTSTANDING);
    }

    /// Goes back to the oldest packet not acknowledged (go-back-N): what was under way is given up.
    // clause: RETRY-GO-BACK
    pub(crate) fn go_back<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        self.in_flight.clear(sh, flow);
        (self.reads_out, self.bytes_due) = (0, 0);
        self.unasked = Unasked::default();
        self.fault = None;
        self.cursor = self.oldest();
    }

    /// The place of `una_psn`.
    // clause: RETRY-SAME-OPCODES
    pub(crate) fn oldest(&self) -> Cursor {
        let (wqe, psn) = (self.sq.head_index(), self.una_psn);
        let started = if wqe == self.first_unstarted { None } else { self.sq.head() };
        Cursor { wqe, packet: started.map_or(0, |wqe| index_of(psn, wqe)), psn }
    }

    pub(crate) fn handle_timeout<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        match self.retry.due(host.now()) {
            None => {}
            Some(Timer::Rnr) => self.retry.on_rnr_timeout(),
            Some(Timer::Ack) => {
                sh.retries.local_ack_timeout_err += 1;
                match self.retry.on_ack_timeout() {
                    Ok(()) => self.go_back_after_loss(sh, host),
                    Err(Exhausted) => self.give_up_path(sh, host),
                }
            }
        }
    }

    /// The link takes no packets. Whoever does not empty it is as silent as who does not answer:
    /// the ACK timer runs.
    // clause: TIMER-LINK-FULL
    pub(crate) fn on_link_full(&mut self, sh: &Shared, now: Instant) {
        if sh.config.service.is_reliable() && self.has_work(sh) {
            self.retry.on_sent(&sh.attr, now);
        }
    }

    /// The link that took no packets is being emptied: who has nothing under way that could be
    /// answered waits for its turn, and not for the peer.
    pub(crate) fn on_link_moved(&mut self, sh: &Shared, now: Instant) {
        if self.cursor.psn == self.una_psn {
            self.retry.restart(&sh.attr, now);
        }
    }

    /// No retries are left: goes over to the alternate path, or fails.
    pub(crate) fn give_up_path<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        // clause: APM-RETRIES
        if !self.migrate(sh, host) {
            self.fail_head(sh, host, WcStatus::RetryExcErr);
        }
    }

    /// The work request at the cursor cannot go on. It fails once everything before it is complete.
    pub(crate) fn stop_with<H: Host>(&mut self, sh: &mut Shared, host: &mut H, status: WcStatus) -> Step {
        self.fault = Some(status);
        self.report_fault(sh, host);
        Step::Stop
    }

    /// Reports the fault at the cursor if its turn has come.
    pub(crate) fn report_fault<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        if let Some(status) = self.fault.filter(|_| self.sq.head_index() == self.cursor.wqe) {
            self.fail_head(sh, host, status);
        }
    }

    /// Completes the oldest work request with an error; the QP leaves RTS before the call returns
    /// (IBA §10.8.3.2 for RC, where the error is fatal; elsewhere only the send queue stops).
    // clause: WC-ORDER
    pub(crate) fn fail_head<H: Host>(&mut self, sh: &mut Shared, host: &mut H, status: WcStatus) {
        if let Some(wqe) = self.sq.pop() {
            let is_new = self.una_psn == wqe.first_psn && self.una_psn != sh.attr.sq_psn;
            self.unanswered = is_new.then_some(wqe.length);
            complete(sh, host, &wqe, status);
        }
        match sh.config.service {
            Service::Rc | Service::XrcIni | Service::XrcTgt => sh.fail(),
            Service::Uc | Service::Ud | Service::Raw => sh.send_error = true,
        }
    }

    /// Completes the oldest work request with success.
    pub(crate) fn complete_head<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        let Some(wqe) = self.sq.head() else { return };
        match wqe.origin {
            Origin::Rendezvous => {
                complete(sh, host, wqe, WcStatus::Success);
                sh.rendezvous_read = true;
                return self.sq.finish_rendezvous();
            }
            Origin::Fin => sh.rendezvous_count -= 1,
            // clause: WC-SIGNALED
            Origin::Program if sh.config.sq_sig_all || wqe.flags.contains(SendFlags::SIGNALED) => {
                complete(sh, host, wqe, WcStatus::Success);
            }
            Origin::Program => {}
        }
        self.sq.drop_head();
    }

    /// In SQD: tells, once, when nothing that was started is left (IBA §10.3.1.4).
    pub(crate) fn check_drained(&mut self, sh: &mut Shared) {
        if sh.state == QpState::Sqd && !self.drained && self.is_drained() {
            self.drained = true;
            // clause: STATE-SQ-DRAINED
            if sh.attr.en_sqd_async_notify {
                sh.events.insert(QpEvents::SQ_DRAINED);
            }
        }
    }
}

/// Which packet of `wqe` has `psn`.
pub(crate) fn index_of(psn: Psn, wqe: &SendWqe) -> u32 {
    psn.sub(wqe.first_psn.get()).get()
}

impl Requester {
    /// Puts the RC packet at the cursor into the batch.
    pub(super) fn send_reliable<H: Host, T: TxBatch>(&mut self, sh: &mut Shared, host: &mut H, tx: &mut T) -> Step {
        let mtu = sh.attr.path_mtu;
        self.begin(mtu);
        let Some(wqe) = self.sq.get(self.cursor.wqe) else { return Step::Stop };
        // clause: SEND-RD-ATOMIC-0
        if wqe.awaits_response() && sh.attr.max_rd_atomic == 0 {
            return self.stop_with(sh, host, WcStatus::LocQpOpErr);
        }
        let Some(packet) = Outgoing::of(wqe, self.cursor.packet, mtu) else {
            return if wqe.is_local() {
                self.run_local(sh, host)
            } else {
                // clause: SEND-ATOMIC-LENGTH
                self.stop_with(sh, host, WcStatus::LocLenErr)
            };
        };
        let cost = packet.cost::<H>();
        let run = || packet.charge_behind::<H>(wqe, self.cursor.packet, mtu);
        // Built where it is read: whoever copies what was just written in small pieces waits until
        // all that was written before is there, also in a ring that the other processor has.
        let mut departing = Departing {
            av: &sh.path,
            header: self.header(sh, wqe, &packet),
            payload: self.sq.payload(self.cursor.wqe, wqe),
            note: self.note(sh, wqe),
        };
        let fits_same_send = |count| tx.fits_same_send(departing.header.padded_len(packet.len as usize), count);
        let room = self.in_flight.reserve(sh, host, cost, packet.next_len.map_or(0, H::charge), run, fits_same_send);
        if room == Room::None {
            return Step::Stop;
        }
        // clause: SEND-ASK-STALL, SEND-ASK-MIDDLE
        let asks_ack = packet.asks_ack
            || room == Room::First
            || self.unasked.is_enough(cost, self.window)
            || sh.congestion.pauses_after(host.now(), packet.len);
        departing.header.bth.ack_req = asks_ack;
        match departing.put(host, tx, &packet) {
            Put::Done => {}
            Put::Full => return Step::BatchFull,
            // clause: SEND-LOCAL-FAULT
            Put::Fault => return self.stop_with(sh, host, WcStatus::LocProtErr),
        }
        self.reads_out += u32::from(wqe.awaits_response());
        self.bytes_due += packet.brings;
        self.in_flight.on_sent(cost);
        self.unasked.add(1, cost, asks_ack);
        self.advance(packet.span);
        self.retry.on_sent(&sh.attr, host.now());
        Step::Sent(packet.len)
    }

    /// Goes on with the packets that are neither first nor last of the message whose packet has
    /// just left: what differs from one to the next is little, and the rest is done once for all of
    /// them.
    pub(super) fn send_middles<H: Host, T: TxBatch>(&mut self, sh: &mut Shared, host: &mut H, tx: &mut T) -> Step {
        let (mtu, Cursor { wqe: at, packet: index, .. }) = (sh.attr.path_mtu, self.cursor);
        let sent = Step::Sent(mtu.bytes());
        let Some(wqe) = self.sq.get(at).filter(|wqe| index + 1 < wqe.packets && !wqe.awaits_response()) else {
            return sent;
        };
        let Some(mut packet) = Outgoing::of(wqe, index, mtu) else { return sent };
        let (header, payload) = (self.header(sh, wqe, &packet), self.sq.payload(at, wqe));
        let Some(form) = header.form(packet.len as usize) else { return sent };
        let mut departing = Departing { av: &sh.path, header, payload, note: self.note(sh, wqe) };
        let (cost, mut joins) = (packet.cost::<H>(), false);
        while let Some(next) = packet.next_len
            // clause: PSN-OUTSTANDING
            && self.cursor.psn.distance(self.una_psn) < self.window
        {
            let index = self.cursor.packet;
            // Those that need not ask may share the header of the one before.
            let spare = if joins { self.unasked.spare(cost, self.window) } else { 0 };
            let silent = spare.min(wqe.packets - 1 - index);
            let joined = if silent > 0 {
                let behind = H::charge(segment::payload_len(wqe.length, mtu, index + silent));
                let run = || packet.charge_behind::<H>(wqe, index + silent - 1, mtu);
                let room = self.in_flight.reserve(sh, host, silent * cost, behind, run, |_| false);
                if room == Room::Both { departing.join(host, tx, &packet, silent) } else { 0 }
            } else {
                0
            };
            let mut asks_ack = false;
            if joined == 0 {
                let run = || packet.charge_behind::<H>(wqe, index, mtu);
                let fits_same_send = |count| tx.fits_same_send(form.len(), count);
                let room = self.in_flight.reserve(sh, host, cost, H::charge(next), run, fits_same_send);
                if room == Room::None {
                    return Step::Stop;
                }
                // clause: SEND-ASK-STALL, SEND-ASK-MIDDLE
                asks_ack = room == Room::First || self.unasked.is_enough(cost, self.window);
                (departing.header.bth.ack_req, departing.header.bth.psn) = (asks_ack, self.cursor.psn);
                departing.note.reason = self.tx_reason();
                match departing.put_as(host, tx, &form, packet.offset) {
                    Put::Done => joins = sh.config.service == Service::Rc && tx.joins(),
                    Put::Full => return Step::BatchFull,
                    // clause: SEND-LOCAL-FAULT
                    Put::Fault => return self.stop_with(sh, host, WcStatus::LocProtErr),
                }
            }
            let count = joined.max(1);
            self.in_flight.on_sent(count * cost);
            self.unasked.add(count, count * cost, asks_ack);
            self.cursor.step(count, &mut self.sent_psn);
            packet.go_on(wqe, self.cursor.packet, mtu);
        }
        sent
    }

    /// The headers of `packet` of `wqe`, which is at the cursor and asks for no acknowledgement
    /// yet.
    fn header(&self, sh: &Shared, wqe: &SendWqe, packet: &Outgoing) -> Header {
        let bth = Bth {
            solicited: packet.solicited,
            // clause: BTH-MIGRATED
            mig_req: sh.mig_req(),
            ..Bth::new(sh.attr.dest_qpn, self.cursor.psn)
        };
        let kind = match sh.config.service {
            Service::Rc => Kind::RcRequest(packet.request),
            // clause: XRC-EVERY-REQUEST
            _ => Kind::XrcRequest(XrcEth(wqe.srqn), packet.request),
        };
        Header { bth, kind }
    }
}

impl Requester {
    /// Executes the local operation at the cursor, which is the oldest request.
    // clause: SEND-LOCAL-ORDER, PSN-LOCAL
    pub(crate) fn run_local<H: Host>(&mut self, sh: &mut Shared, host: &mut H) -> Step {
        let done = match self.sq.get(self.cursor.wqe).map(|wqe| wqe.op) {
            // clause: INVALIDATE-LOCAL
            Some(SendOp::LocalInvalidate(rkey)) => host.invalidate_local(rkey).is_ok(),
            // clause: WINDOW-BIND
            Some(SendOp::BindWindow { rkey, lkey, access, addr, length }) => {
                host.bind(&Bind { rkey, lkey, access, addr, length }).is_ok()
            }
            _ => false,
        };
        if !done {
            return self.stop_with(sh, host, WcStatus::MwBindErr);
        }
        self.cursor.wqe = self.cursor.wqe.wrapping_add(1);
        self.first_unstarted = self.cursor.wqe;
        self.complete_head(sh, host);
        Step::Local
    }
}

/// Appends a completion of `wqe`.
pub(super) fn complete<H: Host>(sh: &mut Shared, host: &mut H, wqe: &SendWqe, status: WcStatus) {
    match wqe.origin {
        Origin::Program => {}
        Origin::Rendezvous => return complete_rendezvous(sh, host, wqe, status),
        Origin::Fin => return fail_fin(sh, status),
    }
    let cqe = Cqe {
        wr_id: wqe.wr_id,
        status,
        opcode: wqe.wc_opcode(),
        // clause: WC-BYTE-LEN
        byte_len: wqe.lands(),
        // clause: WC-SOLICITED
        solicited: status != WcStatus::Success,
        ..Cqe::default()
    };
    sh.complete(host, Side::Send, cqe);
}

/// The data of a rendezvous is there, or will never be: the receive that matched it completes for
/// the second time.
// clause: TM-RENDEZVOUS-BROKEN
fn complete_rendezvous<H: Host>(sh: &mut Shared, host: &mut H, wqe: &SendWqe, status: WcStatus) {
    let (status, byte_len, flags) = match status {
        WcStatus::Success => (status, wqe.length, TmFlags::DATA_VALID),
        _ => (WcStatus::TmRndvIncomplete, 0, TmFlags::empty()),
    };
    let cqe = Cqe {
        wr_id: wqe.wr_id,
        status,
        opcode: WcOpcode::TmRecv,
        byte_len,
        solicited: status != WcStatus::Success || wqe.flags.contains(SendFlags::SOLICITED),
        tm: TmInfo { flags, ..TmInfo::default() },
        ..Cqe::default()
    };
    sh.complete(host, Side::Recv, cqe);
}

/// The peer could not be told that a rendezvous is over. No completion can say so, but for a flush
/// somebody else's has.
fn fail_fin(sh: &mut Shared, status: WcStatus) {
    // clause: TM-FIN-LOST
    if status != WcStatus::WrFlushErr {
        sh.events.insert(QpEvents::FATAL);
    }
}
