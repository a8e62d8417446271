//! The requester: selects the next packet, sends it (RC, XRC), runs local operations and completes
//! work requests. `unreliable.rs` sends for UC and UD; `completer.rs` handles responses.
//!
//! Three PSNs and three queue positions, always in this order:
//!
//! ```text
//!   una_psn       oldest unacknowledged PSN, in the oldest work request (`sq.head`)
//!   cursor        next packet to send; before `sent_psn` only during a retransmission
//!   sent_psn      PSN after the newest ever sent; `first_unstarted` is the first work request
//!                 never started
//! ```

use crate::cx::{FlowControl, Host, PacketNote, Side, TxBatch, TxReason, TxState};
use crate::qp::reliability::{AckReqPacing, Exhausted, InFlight, Retry, Room, Timer};
use crate::qp::segment::{self, Outgoing, Put, TxPacket};
use crate::qp::send_queue::{Origin, SendQueue, SendWqe};
use crate::qp::shared::{QpConfig, QpEvents, QpState, Service, Shared};
use crate::time::Instant;
use crate::wr::{Bind, Cqe, SendFlags, SendOp, TmFlags, TmInfo, WcOpcode, WcStatus};
use roxe_wire::{Bth, Header, Kind, PathMtu, Psn, XrcEth};

/// Maximum number of PSNs in flight. The peer can distinguish 2^23; this is more than any network
/// holds, keeps late packets recognisable and the bytes of [`InFlight`] within 32 bits.
pub(super) const MAX_OUTSTANDING: i32 = 1 << 16;

/// Minimum window after losses, in PSNs. It holds several packets that request an acknowledgement,
/// so that losing one of them does not stall until the timer expires.
const MIN_WINDOW: i32 = 64;

/// Outstanding READ response bytes up to which another READ REQUEST is sent. With the responses to
/// that request (128 KiB at most, see `segment`) they must fit our socket's receive buffer, which
/// drops silently; two requests keep the peer busy.
const READ_AHEAD: u32 = 128 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) wqe: u32,
    /// Packet index in the work request.
    pub(crate) packet: u32,
    pub(crate) psn: Psn,
}

impl Cursor {
    /// Advances by `span` PSNs, and `sent` with it unless this is a retransmission.
    #[inline]
    pub(super) fn advance(&mut self, span: u32, sent: &mut Psn) {
        self.psn = self.psn.add(span);
        self.packet += span;
        if self.psn.is_after(*sent) {
            *sent = self.psn;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A packet with this payload length, in bytes, is in the batch.
    Sent(u32),
    /// A local operation, which needs no packet, is complete.
    Local,
    BatchFull,
    Stop,
}

#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) sq: SendQueue,
    pub(crate) cursor: Cursor,
    pub(crate) first_unstarted: u32,
    pub(crate) una_psn: Psn,
    pub(crate) sent_psn: Psn,
    /// Requests that await a response of their own (READ, atomic, ATOMIC WRITE, FLUSH), between
    /// `una_psn` and the cursor.
    pub(crate) reads_out: u32,
    /// Response bytes that outstanding READs still await.
    pub(crate) bytes_due: u32,
    /// Send window in PSNs. Go-back-N retransmits the whole window, so a slow receiver would fall
    /// further behind: a loss halves the window, acknowledgements widen it again.
    pub(super) window: i32,
    pub(crate) in_flight: InFlight,
    pub(super) ack_pacing: AckReqPacing,
    pub(crate) retry: Retry,
    /// The error of the work request at the cursor, reported when all earlier requests are
    /// complete.
    pub(crate) fault: Option<WcStatus>,
    /// Cost in bytes of the packets of this `poll_transmit` (UC and UD).
    pub(crate) burst: u32,
    /// True if room for the next UC or UD packet is reserved.
    pub(crate) room_reserved: bool,
    /// True if `SQ_DRAINED` was raised since the QP entered SQD.
    drained: bool,
    /// Length in bytes of the last failed request, if none of its packets was acknowledged although
    /// earlier requests were.
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
            ack_pacing: AckReqPacing::default(),
            retry: Retry::default(),
            fault: None,
            burst: 0,
            room_reserved: false,
            drained: false,
            unanswered: None,
        }
    }

    /// Returns true if the newest request may wait for more requests to send with it.
    pub(crate) fn may_coalesce(&self) -> bool {
        let in_flight = self.cursor.wqe.wrapping_sub(self.sq.head_index());
        let waiting = self.sq.tail_index().wrapping_sub(self.cursor.wqe);
        let newest = self.sq.get(self.sq.tail_index().wrapping_sub(1)).map(|wqe| wqe.length);
        self.cursor.packet == 0 && newest.is_some_and(|length| self.sq.depth.may_wait(in_flight, waiting, length))
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.sq.head_index() == self.first_unstarted
    }

    pub(crate) fn on_rts(&mut self, sh: &Shared) {
        // clause: PSN-START
        let psn = sh.attr.sq_psn;
        (self.cursor.psn, self.una_psn, self.sent_psn) = (psn, psn, psn);
        self.retry.reset(&sh.attr);
    }

    pub(crate) fn on_sqd(&mut self, sh: &mut Shared) {
        self.drained = false;
        self.check_drained(sh);
    }

    /// Empties the queue without completions. The caller has released the reservations.
    pub(crate) fn on_reset(&mut self) {
        self.sq.clear();
        self.restart_at(Psn::default());
        self.retry = Retry::default();
    }

    /// Completes all requests with `WR_FLUSH_ERR` (IBA §10.3.1.5).
    pub(crate) fn flush<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        self.in_flight.clear(sh, host);
        while let Some(wqe) = self.sq.pop() {
            // clause: WC-ERROR-ALWAYS
            complete(sh, host, &wqe, WcStatus::WrFlushErr);
        }
        sh.rendezvous_count = 0;
        // UC and UD continue at this PSN after SQE.
        self.restart_at(self.cursor.psn);
        self.retry.reset(&sh.attr);
    }

    /// Moves all cursors to the end of the queue; `psn` is the next to send.
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

    /// Sends the packets that may be sent now. The caller has checked [`Self::has_work`].
    #[inline(never)]
    pub(crate) fn poll_transmit<H: Host, T: TxBatch>(&mut self, sh: &mut Shared, host: &mut H, tx: &mut T) -> TxState {
        self.burst = 0;
        // clause: DCQCN-PACING
        while sh.congestion.may_send(host.now()) {
            let step = match sh.config.service {
                Service::Rc | Service::XrcIni | Service::XrcTgt => match self.send_reliable(sh, host, tx) {
                    Step::Sent(_) if self.cursor.packet > 0 && sh.congestion.is_unpaced() => {
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

    /// Returns true if a packet can be sent now, given room at the peer and in the batch.
    #[inline]
    pub(crate) fn has_work(&self, sh: &Shared) -> bool {
        // Called several times per packet, mostly with nothing to send.
        self.cursor.wqe != self.sq.tail_index() && self.may_send_at_cursor(sh)
    }

    #[inline]
    fn may_send_at_cursor(&self, sh: &Shared) -> bool {
        let Some(wqe) = self.sq.get(self.cursor.wqe) else { return false };
        let may_start = match sh.state {
            QpState::Rts => true,
            // clause: STATE-SQD
            QpState::Sqd => self.cursor.wqe != self.first_unstarted,
            _ => false,
        };
        may_start
            && self.fault.is_none()
            // clause: RNR-WAIT
            && !self.retry.is_waiting()
            && !sh.congestion.is_pausing()
            && !((self.reads_out > 0 || wqe.op.is_local()) && self.waits_for_earlier(sh, wqe))
            // clause: PSN-OUTSTANDING
            && self.cursor.psn.distance(self.una_psn) < self.window
    }

    /// Returns true if `wqe`, at the cursor, has to wait until earlier requests are complete.
    fn waits_for_earlier(&self, sh: &Shared, wqe: &SendWqe) -> bool {
        // A fenced request starts when earlier READs and atomics are complete (IBA §10.8.3.3), a
        // local operation when all earlier requests are.
        // clause: SEND-FENCE
        let by_flag = self.reads_out > 0 && self.cursor.packet == 0 && wqe.flags.contains(SendFlags::FENCE);
        // clause: SEND-LOCAL-ORDER
        let is_fenced = by_flag || (wqe.op.is_local() && self.sq.head_index() != self.cursor.wqe);
        // READs and atomics wait for responder resources, and READs also for room in our socket.
        // With `max_rd_atomic` = 0 they start and fail.
        // clause: SEND-RD-ATOMIC
        let no_place = self.reads_out >= u32::from(sh.attr.max_rd_atomic);
        let no_room = self.bytes_due > READ_AHEAD && wqe.op.is_read();
        let is_read_held = self.reads_out > 0 && wqe.op.awaits_response() && (no_place || no_room);
        is_fenced || is_read_held
    }

    pub(crate) fn packet_note(&self, sh: &Shared, wqe: &SendWqe) -> PacketNote {
        PacketNote { qpn: sh.config.qpn, wr_id: Some(wqe.wr_id), reason: self.tx_reason() }
    }

    pub(super) fn tx_reason(&self) -> TxReason {
        let is_retransmission = self.cursor.psn.is_before(self.sent_psn);
        if is_retransmission { TxReason::Retransmission } else { TxReason::First }
    }

    /// Assigns PSNs to the work request at the cursor if the cursor is at its first packet;
    /// idempotent.
    pub(crate) fn begin(&mut self, mtu: PathMtu) {
        let Cursor { wqe, packet: 0, psn } = self.cursor else { return };
        if let Some(wqe) = self.sq.get_mut(wqe) {
            wqe.first_psn = psn;
            wqe.packets = segment::packets(wqe.length, mtu);
        }
    }

    /// Advances the cursor past the packet just sent, which occupied `span` PSNs.
    // clause: SEND-ORDER
    #[inline]
    pub(crate) fn advance(&mut self, span: u32) {
        let Some(wqe) = self.sq.get(self.cursor.wqe) else { return };
        if self.cursor.wqe == self.first_unstarted {
            self.first_unstarted = self.first_unstarted.wrapping_add(1);
        }
        self.cursor.advance(span, &mut self.sent_psn);
        if self.cursor.packet >= wqe.packets {
            self.cursor.wqe = self.cursor.wqe.wrapping_add(1);
            self.cursor.packet = 0;
        }
    }

    pub(crate) fn go_back_after_loss<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        self.window = (self.cursor.psn.distance(self.una_psn) / 2).max(MIN_WINDOW);
        self.go_back(sh, flow);
    }

    /// Goes back to the oldest unacknowledged packet (go-back-N) and releases what was in flight.
    // clause: RETRY-GO-BACK
    pub(crate) fn go_back<F: FlowControl>(&mut self, sh: &Shared, flow: &mut F) {
        self.in_flight.clear(sh, flow);
        (self.reads_out, self.bytes_due) = (0, 0);
        self.ack_pacing = AckReqPacing::default();
        self.fault = None;
        self.cursor = self.oldest();
    }

    // clause: RETRY-SAME-OPCODES
    pub(crate) fn oldest(&self) -> Cursor {
        let (wqe, psn) = (self.sq.head_index(), self.una_psn);
        let started = if wqe == self.first_unstarted { None } else { self.sq.head() };
        Cursor { wqe, packet: started.map_or(0, |wqe| index_of(psn, wqe)), psn }
    }

    pub(crate) fn handle_timeout<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        match self.retry.expired_timer(host.now()) {
            None => {}
            Some(Timer::Rnr) => self.retry.on_rnr_timeout(),
            Some(Timer::Ack) => {
                sh.retries.local_ack_timeout_err += 1;
                match self.retry.on_ack_timeout() {
                    Ok(()) => self.go_back_after_loss(sh, host),
                    Err(Exhausted) => self.migrate_or_fail(sh, host),
                }
            }
        }
    }

    /// Starts the ACK timer: a link that accepts no packets counts as a peer that does not respond.
    // clause: TIMER-LINK-FULL
    pub(crate) fn on_link_full(&mut self, sh: &Shared, now: Instant) {
        if sh.config.service.is_reliable() && self.has_work(sh) {
            self.retry.on_sent(&sh.attr, now);
        }
    }

    /// Restarts the ACK timer if nothing is in flight: the full link has sent packets of other QPs,
    /// so this QP waits for its turn, not for the peer.
    pub(crate) fn on_link_moved(&mut self, sh: &Shared, now: Instant) {
        if self.cursor.psn == self.una_psn {
            self.retry.restart(&sh.attr, now);
        }
    }

    /// Handles exhausted retries: migrates to the alternate path, or fails the oldest work request.
    pub(crate) fn migrate_or_fail<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        // clause: APM-RETRIES
        if !self.migrate(sh, host) {
            self.fail_head(sh, host, WcStatus::RetryExcErr);
        }
    }

    /// Fails the work request at the cursor once everything before it is complete.
    pub(crate) fn stop_with<H: Host>(&mut self, sh: &mut Shared, host: &mut H, status: WcStatus) -> Step {
        self.fault = Some(status);
        self.report_fault(sh, host);
        Step::Stop
    }

    /// Reports the error at the cursor if all earlier requests are complete.
    pub(crate) fn report_fault<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        if let Some(status) = self.fault.filter(|_| self.sq.head_index() == self.cursor.wqe) {
            self.fail_head(sh, host, status);
        }
    }

    /// Completes the oldest work request with an error; the QP leaves RTS before the call returns
    /// (IBA §10.8.3.2). The error is fatal on RC; on UC and UD only the send queue stops.
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

    #[inline]
    pub(crate) fn complete_head<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        let Some(wqe) = self.sq.head() else { return };
        match wqe.origin {
            Origin::Rendezvous => {
                complete_rendezvous(sh, host, wqe, WcStatus::Success);
                sh.rendezvous_read = true;
                return self.sq.finish_rendezvous();
            }
            Origin::Fin => sh.rendezvous_count -= 1,
            // clause: WC-SIGNALED
            Origin::Program if sh.config.sq_sig_all || wqe.flags.contains(SendFlags::SIGNALED) => {
                complete_program(sh, host, wqe, WcStatus::Success);
            }
            Origin::Program => {}
        }
        self.sq.drop_head();
    }

    /// Raises `SQ_DRAINED` once in SQD when all started requests are complete (IBA §10.3.1.4).
    pub(crate) fn check_drained(&mut self, sh: &mut Shared) {
        if sh.state == QpState::Sqd && !self.drained && self.is_drained() {
            self.drained = true;
            // clause: STATE-SQ-DRAINED
            if sh.attr.en_sqd_async_notify {
                sh.events.insert(QpEvents::SQ_DRAINED);
            }
        }
    }

    pub(super) fn send_reliable<H: Host, T: TxBatch>(&mut self, sh: &mut Shared, host: &mut H, tx: &mut T) -> Step {
        let mtu = sh.attr.path_mtu;
        self.begin(mtu);
        let Some(wqe) = self.sq.get(self.cursor.wqe) else { return Step::Stop };
        // clause: SEND-RD-ATOMIC-0
        if wqe.op.awaits_response() && sh.attr.max_rd_atomic == 0 {
            return self.stop_with(sh, host, WcStatus::LocQpOpErr);
        }
        let Some(packet) = Outgoing::of(wqe, self.cursor.packet, mtu) else {
            return if wqe.op.is_local() {
                self.run_local(sh, host)
            } else {
                // clause: SEND-ATOMIC-LENGTH
                self.stop_with(sh, host, WcStatus::LocLenErr)
            };
        };
        if !packet.asks_ack {
            self.ack_pacing.limit = host.ack_interval(&sh.attr.av, sh.attr.dest_qpn);
        }
        let cost = packet.cost::<H>();
        let run_bytes = || packet.next_run_cost::<H>(wqe, self.cursor.packet, mtu);
        // Built in place: moving a struct that was just written in small pieces stalls on store
        // forwarding.
        let mut tx_packet = TxPacket {
            av: &sh.path,
            header: self.header(sh, wqe, &packet),
            payload: self.sq.payload(self.cursor.wqe, wqe),
            note: self.packet_note(sh, wqe),
        };
        let fits_same_send = |count| tx.fits_same_send(tx_packet.header.padded_len(packet.len as usize), count);
        let room = self.in_flight.reserve(
            sh,
            host,
            cost,
            packet.next_len.map_or(0, H::packet_cost),
            run_bytes,
            fits_same_send,
        );
        if room == Room::None {
            return Step::Stop;
        }
        // clause: SEND-ASK-STALL, SEND-ASK-MIDDLE
        let asks_ack = packet.asks_ack
            || room == Room::First
            || self.ack_pacing.is_due(cost, self.window)
            || sh.congestion.pauses_after(host.now(), packet.len);
        tx_packet.header.bth.ack_req = asks_ack;
        match tx_packet.put(host, tx, &packet) {
            Put::Done => {}
            Put::Full => return Step::BatchFull,
            // clause: SEND-LOCAL-FAULT
            Put::Fault => return self.stop_with(sh, host, WcStatus::LocProtErr),
        }
        self.reads_out += u32::from(wqe.op.awaits_response());
        self.bytes_due += packet.read_bytes;
        self.in_flight.on_sent(cost);
        self.ack_pacing.add(1, cost, asks_ack);
        self.advance(packet.span);
        self.retry.on_sent(&sh.attr, host.now());
        Step::Sent(packet.len)
    }

    /// Sends the MIDDLE packets after the packet just sent. Most of the per-packet work is done
    /// once for all of them.
    pub(super) fn send_middles<H: Host, T: TxBatch>(&mut self, sh: &mut Shared, host: &mut H, tx: &mut T) -> Step {
        let (mtu, Cursor { wqe: at, packet: index, .. }) = (sh.attr.path_mtu, self.cursor);
        let sent = Step::Sent(mtu.bytes());
        let Some(wqe) = self.sq.get(at).filter(|wqe| index + 1 < wqe.packets && !wqe.op.awaits_response()) else {
            return sent;
        };
        let Some(mut packet) = Outgoing::of(wqe, index, mtu) else { return sent };
        let (header, payload) = (self.header(sh, wqe, &packet), self.sq.payload(at, wqe));
        let Some(form) = header.form(packet.len as usize) else { return sent };
        let mut tx_packet = TxPacket { av: &sh.path, header, payload, note: self.packet_note(sh, wqe) };
        let (cost, mut joins) = (packet.cost::<H>(), false);
        while let Some(next) = packet.next_len
            // clause: PSN-OUTSTANDING
            && self.cursor.psn.distance(self.una_psn) < self.window
        {
            let index = self.cursor.packet;
            // Packets that request no acknowledgement may share the previous header.
            let until_due = if joins { self.ack_pacing.packets_until_due(cost, self.window) } else { 0 };
            let unacked = until_due.min(wqe.packets - 1 - index);
            let joined = if unacked > 0 {
                let following = H::packet_cost(segment::payload_len(wqe.length, mtu, index + unacked));
                let run_bytes = || packet.next_run_cost::<H>(wqe, index + unacked - 1, mtu);
                let room = self.in_flight.reserve(sh, host, unacked * cost, following, run_bytes, |_| false);
                if room == Room::Both { tx_packet.join(host, tx, &packet, unacked) } else { 0 }
            } else {
                0
            };
            let mut asks_ack = false;
            if joined == 0 {
                let run_bytes = || packet.next_run_cost::<H>(wqe, index, mtu);
                let fits_same_send = |count| tx.fits_same_send(form.len(), count);
                let room = self.in_flight.reserve(sh, host, cost, H::packet_cost(next), run_bytes, fits_same_send);
                if room == Room::None {
                    return Step::Stop;
                }
                // clause: SEND-ASK-STALL, SEND-ASK-MIDDLE
                asks_ack = room == Room::First || self.ack_pacing.is_due(cost, self.window);
                (tx_packet.header.bth.ack_req, tx_packet.header.bth.psn) = (asks_ack, self.cursor.psn);
                tx_packet.note.reason = self.tx_reason();
                match tx_packet.put_as(host, tx, &form, packet.offset) {
                    Put::Done => joins = sh.config.service == Service::Rc && tx.joins(),
                    Put::Full => return Step::BatchFull,
                    // clause: SEND-LOCAL-FAULT
                    Put::Fault => return self.stop_with(sh, host, WcStatus::LocProtErr),
                }
            }
            let count = joined.max(1);
            self.in_flight.on_sent(count * cost);
            self.ack_pacing.add(count, count * cost, asks_ack);
            self.cursor.advance(count, &mut self.sent_psn);
            packet.advance(wqe, self.cursor.packet, mtu);
        }
        sent
    }

    /// Returns the headers of `packet` of `wqe` at the cursor, without an acknowledgement request.
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

    /// Executes the local operation at the cursor, the oldest request.
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

pub(crate) fn index_of(psn: Psn, wqe: &SendWqe) -> u32 {
    psn.sub(wqe.first_psn.get()).get()
}

pub(super) fn complete<H: Host>(sh: &mut Shared, host: &mut H, wqe: &SendWqe, status: WcStatus) {
    match wqe.origin {
        Origin::Program => complete_program(sh, host, wqe, status),
        Origin::Rendezvous => complete_rendezvous(sh, host, wqe, status),
        // The peer never learns that the rendezvous is over. No completion of ours can report this.
        // clause: TM-FIN-LOST
        Origin::Fin => {
            if status != WcStatus::WrFlushErr {
                sh.events.insert(QpEvents::FATAL);
            }
        }
    }
}

/// Completes a request of the program.
#[inline]
fn complete_program<H: Host>(sh: &mut Shared, host: &mut H, wqe: &SendWqe, status: WcStatus) {
    let cqe = Cqe {
        wr_id: wqe.wr_id,
        status,
        opcode: wqe.wc_opcode(),
        // clause: WC-BYTE-LEN
        byte_len: wqe.response_bytes(),
        // clause: WC-SOLICITED
        solicited: status != WcStatus::Success,
        ..Cqe::default()
    };
    sh.complete(host, Side::Send, cqe);
}

/// Completes a receive for the second time, when its rendezvous READ has ended.
// clause: TM-RENDEZVOUS-BROKEN
#[cold]
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
