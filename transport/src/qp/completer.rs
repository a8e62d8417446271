//! What responses do: acknowledge packets, bring READ data and old values, tell of losses and refusals.
//!
//! A response first retires what it acknowledges, strictly in order, so an error reaches the application only behind
//! everything that came before it (IBA §9.7.5.2, §10.8.5). What else it tells is a [`Trouble`], dealt with in one `match`.

use crate::cx::{Host, Side};
use crate::qp::DropReason;
use crate::qp::flight::{charge, charge_range};
use crate::qp::requester::{Requester, index_of};
use crate::qp::retry::Exhausted;
use crate::qp::segment;
use crate::qp::shared::Shared;
use crate::qp::sq::{Origin, Payload, SendWqe};
use crate::wr::WcStatus;
use roxe_wire::{AtomicAckEth, NakCode, PathMtu, Psn, Response, Syndrome};

/// What a response asks for besides retiring what it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Repeat from the oldest packet not acknowledged: that one was lost, or its answer.
    Lost,
    /// The same, after the wait with this code.
    NotReady(u8),
    /// The oldest work request failed.
    Failed(WcStatus),
    /// The response means nothing.
    Reserved,
}

impl Requester {
    /// Takes in one response of the peer; the state allows it.
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        response: &Response,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        self.check_response_psn(psn)?;
        let una_before = self.una_psn;
        let result = match *response {
            Response::Ack(aeth) => self.on_acknowledge(sh, host, psn, aeth.syndrome),
            // clause: READ-POSITIVE
            _ if !is_positive(response) => self.asked(sh, host, psn, |_| false).map(drop),
            Response::AtomicAck(_, value) => self.on_atomic_answer(sh, host, psn, value),
            // clause: READ-STYLES
            Response::ReadFirst(_) | Response::ReadMiddle => self.on_read_answer(sh, host, psn, payload, false),
            Response::ReadLast(_) | Response::ReadOnly(_) => self.on_read_answer(sh, host, psn, payload, true),
        };
        if self.una_psn != una_before {
            self.widen(self.una_psn.distance(una_before));
            self.on_progress(sh, host);
        }
        match result {
            // When it failed, the queue is about to be flushed; nothing can be added to that.
            Err(trouble) if !sh.failed => self.react(sh, host, trouble),
            _ => Ok(()),
        }
    }

    /// Answers can only be about packets that were sent and not acknowledged (IBA §9.7.5.1.1).
    fn check_response_psn(&self, psn: Psn) -> Result<(), DropReason> {
        // clause: RESP-REGION
        if psn.is_before(self.una_psn) {
            Err(DropReason::DuplicateResponse)
        } else if psn.is_before(self.sent_psn) {
            Ok(())
        } else {
            Err(DropReason::GhostResponse)
        }
    }

    fn on_acknowledge<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        syndrome: Syndrome,
    ) -> Result<(), Trouble> {
        let trouble = match syndrome {
            // Credits are ignored: nobody negotiates them, and RNR NAK does their work.
            // clause: ACK-CUMULATIVE, ACK-CREDITS
            Syndrome::Ack { .. } => return self.acknowledge(sh, host, psn.next()),
            Syndrome::RnrNak { timer } => {
                sh.retries.rnr_nak_retry_err += 1;
                Trouble::NotReady(timer)
            }
            // clause: NAK-SEQUENCE
            Syndrome::Nak(NakCode::PsnSequence) => {
                sh.retries.packet_seq_err += 1;
                Trouble::Lost
            }
            // clause: NAK-STATUS
            Syndrome::Nak(NakCode::InvalidRequest) => Trouble::Failed(WcStatus::RemInvReqErr),
            // clause: READ-NAK-MIDDLE
            Syndrome::Nak(NakCode::RemoteAccess) => Trouble::Failed(WcStatus::RemAccessErr),
            Syndrome::Nak(NakCode::RemoteOperation) => Trouble::Failed(WcStatus::RemOpErr),
            // clause: NAK-RESERVED
            Syndrome::Nak(NakCode::InvalidRd | NakCode::Reserved(_)) | Syndrome::Reserved(_) => {
                return Err(Trouble::Reserved);
            }
        };
        // clause: NAK-ACKNOWLEDGES
        self.acknowledge(sh, host, psn)?;
        Err(trouble)
    }

    fn on_read_answer<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        payload: &[u8],
        ends: bool,
    ) -> Result<(), Trouble> {
        // clause: NONPOSTED-ANSWER
        let wqe = self.asked(sh, host, psn, SendWqe::is_answered_as_read)?;
        let (mtu, index) = (sh.attr.path_mtu, index_of(psn, &wqe));
        // After a retry an answer may begin anywhere in its request and be called FIRST or MIDDLE, ONLY or LAST: only
        // where the request ends is fixed.
        let len = segment::payload_len(wqe.lands(), mtu, index);
        // clause: READ-LENGTH
        if ends != ends_request(&wqe, mtu, index) || payload.len() != len as usize {
            return Err(Trouble::Failed(WcStatus::BadRespErr));
        }
        self.place(host, &wqe, segment::offset(index, mtu), payload)?;
        self.on_answered(sh, host, &wqe, index, len);
        Ok(())
    }

    fn on_atomic_answer<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        value: AtomicAckEth,
    ) -> Result<(), Trouble> {
        let wqe = self.asked(sh, host, psn, SendWqe::is_atomic)?;
        // clause: ATOMIC-NATIVE
        self.place(host, &wqe, 0, &value.0.to_ne_bytes())?;
        self.on_answered(sh, host, &wqe, 0, 0);
        Ok(())
    }

    /// The work request that an answer with `psn` is about, once everything before it is complete. It fails if it is not
    /// of the kind that gets such answers.
    fn asked<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        psn: Psn,
        is_kind: fn(&SendWqe) -> bool,
    ) -> Result<SendWqe, Trouble> {
        // clause: READ-IN-ORDER, READ-ACKNOWLEDGES
        self.acknowledge(sh, host, psn)?;
        // clause: RESP-KIND
        self.sq.head().copied().filter(is_kind).ok_or(Trouble::Failed(WcStatus::BadRespErr))
    }

    /// Writes an answer into the list of the oldest work request.
    fn place<H: Host>(&self, host: &mut H, wqe: &SendWqe, offset: u32, data: &[u8]) -> Result<(), Trouble> {
        // clause: TM-RENDEZVOUS
        let side = if wqe.origin == Origin::Rendezvous { Side::Recv } else { Side::Send };
        let placed = match self.sq.payload(self.sq.head_index(), wqe) {
            _ if data.is_empty() => true,
            Payload::Sges(sges) => host.scatter(side, sges, offset, data).is_ok(),
            Payload::Inline(_) => false,
        };
        // clause: READ-LOCAL-FAULT
        if placed { Ok(()) } else { Err(Trouble::Failed(WcStatus::LocProtErr)) }
    }

    /// Packet `index` of the oldest work request, one that awaits a response, is answered with `len` bytes of READ data.
    fn on_answered<H: Host>(&mut self, sh: &mut Shared, host: &mut H, wqe: &SendWqe, index: u32, len: u32) {
        // What a retry has not asked for again is not counted.
        if self.una_psn.is_before(self.cursor.psn) {
            self.bytes_due = self.bytes_due.saturating_sub(len);
            if ends_request(wqe, sh.attr.path_mtu, index) {
                self.reads_out = self.reads_out.saturating_sub(1);
                self.flight.land(charge(wqe.question_len()));
            }
        }
        let next = index + 1;
        self.una_psn = wqe.first_psn.add(next);
        if next == wqe.packets {
            self.complete_head(sh, host);
        }
    }

    /// Everything before `end` arrived at the peer. Stops in front of the first READ or atomic without an answer of its
    /// own: what comes from behind it tells that this answer was lost (an implied NAK, IBA §9.7.5.2.4).
    fn acknowledge<H: Host>(&mut self, sh: &mut Shared, host: &mut H, end: Psn) -> Result<(), Trouble> {
        while self.una_psn.is_before(end) && !sh.failed {
            let Some(wqe) = self.sq.head().copied() else { break };
            // clause: NAK-IMPLIED
            if wqe.awaits_response() {
                sh.retries.implied_nak_seq_err += 1;
                return Err(Trouble::Lost);
            }
            let (from, to) = (index_of(self.una_psn, &wqe), index_of(end, &wqe).min(wqe.packets));
            // Packets that a retry has not repeated yet hold no room.
            let ahead = u32::try_from(self.cursor.psn.distance(self.una_psn)).unwrap_or(0);
            let held = to.min(from.saturating_add(ahead));
            self.flight.land(charge_range(wqe.length, wqe.packets, sh.attr.path_mtu, from, held));
            self.una_psn = wqe.first_psn.add(to);
            if to == wqe.packets {
                self.complete_head(sh, host);
            }
        }
        Ok(())
    }

    /// The oldest PSN moved: a retry need not repeat what has arrived, counters and timer start afresh.
    fn on_progress<H: Host>(&mut self, sh: &mut Shared, host: &mut H) {
        // clause: ACK-OVER-RETRY
        if self.cursor.psn.is_before(self.una_psn) {
            self.cursor = self.oldest();
        }
        let outstanding = self.una_psn != self.sent_psn;
        self.retry.on_progress(&sh.attr, host.now(), outstanding);
        if outstanding {
            self.flight.give_back(sh, host);
        } else {
            self.release_all(sh, host);
        }
        self.report_fault(sh, host);
        self.check_drained(sh);
    }

    fn react<H: Host>(&mut self, sh: &mut Shared, host: &mut H, trouble: Trouble) -> Result<(), DropReason> {
        match trouble {
            Trouble::Reserved => return Err(DropReason::ReservedSyndrome),
            Trouble::Failed(status) => self.fail_head(sh, host, status),
            // clause: RNR-WAIT-WHOLE
            Trouble::Lost | Trouble::NotReady(_) if self.retry.is_waiting() => return Err(DropReason::AwaitingRetry),
            Trouble::Lost => return self.repair_loss(sh, host),
            Trouble::NotReady(code) => match self.retry.on_rnr(&sh.attr, host.now(), code) {
                Ok(()) => self.go_back(sh, host),
                Err(Exhausted) => self.fail_head(sh, host, WcStatus::RnrRetryExcErr),
            },
        }
        Ok(())
    }

    fn repair_loss<H: Host>(&mut self, sh: &mut Shared, host: &mut H) -> Result<(), DropReason> {
        match self.retry.on_loss() {
            Ok(true) => self.go_back_after_loss(sh, host),
            Ok(false) => return Err(DropReason::AwaitingRetry),
            Err(Exhausted) => self.give_up_path(sh, host),
        }
        Ok(())
    }
}

/// Whether the AETH of an answer that brings data, if it has one, is an acknowledgement: it cannot be anything else.
fn is_positive(response: &Response) -> bool {
    match response {
        Response::ReadMiddle => true,
        Response::Ack(aeth)
        | Response::AtomicAck(aeth, _)
        | Response::ReadFirst(aeth)
        | Response::ReadLast(aeth)
        | Response::ReadOnly(aeth) => matches!(aeth.syndrome, Syndrome::Ack { .. }),
    }
}

/// Whether the answer to packet `index` of a request that awaits it is the last one.
fn ends_request(wqe: &SendWqe, mtu: PathMtu, index: u32) -> bool {
    index + 1 == segment::read_chunk_end(index, wqe.packets, mtu)
}

#[cfg(test)]
mod tests {
    //! One requester, its packets read off the log, its answers forged.

    use crate::qp::{DropReason, QpState, RetryCounts};
    use crate::sim::setup::{QPN_A, Setup};
    use crate::sim::{Mr, Pair, Peer, Rng};
    use crate::wr::{Access, SendData, SendFlags, SendOp, SendRequest, Sge, WcOpcode, WcStatus};
    use roxe_wire::{
        Aeth, AtomicAckEth, Bth, Feth, Header, Kind, Msn, NakCode, PathMtu, Placement, Psn, RKey, Request, Response,
        Selectivity, Syndrome,
    };

    const ACK: Aeth = aeth(Syndrome::ACK_UNLIMITED);
    const SEQUENCE: Response = Response::Ack(aeth(Syndrome::Nak(NakCode::PsnSequence)));
    const READ: SendOp = SendOp::Read { remote_addr: 0x1000, rkey: RKey(7) };
    const ADD: SendOp = SendOp::FetchAdd { remote_addr: 0x1000, rkey: RKey(7), add: 1 };
    const STORE: SendOp = SendOp::AtomicWrite { remote_addr: 0x1000, rkey: RKey(7) };
    const GLOBAL: Feth = Feth { selectivity: Selectivity::Region, placement: Placement::GLOBAL_VISIBILITY };
    const FLUSH: SendOp = SendOp::Flush { remote_addr: 0x1000, rkey: RKey(7), length: 1 << 20, feth: GLOBAL };

    const fn aeth(syndrome: Syndrome) -> Aeth {
        Aeth { syndrome, msn: Msn::new(0) }
    }

    const fn rnr(timer: u8) -> Response {
        Response::Ack(aeth(Syndrome::RnrNak { timer }))
    }

    /// A requester in RTS (MTU 256, first PSN 100, two READs at a time) and its memory.
    struct Script {
        pair: Pair,
        mr: Mr,
        seen: usize,
    }

    impl Script {
        fn new() -> Self {
            Self::with(Setup { max_rd_atomic: 2, retry_cnt: 2, rnr_retry: 1, ..Setup::default() })
        }

        fn with(setup: Setup) -> Self {
            let mut pair = Pair::idle(setup, Rng::new(1));
            pair.bring_to(Peer::A, QpState::Rts);
            let mr = pair.end(Peer::A).host.memory.register(1 << 20, Access::LOCAL_WRITE);
            Self { pair, mr, seen: 0 }
        }

        /// Posts `op` on `len` bytes.
        fn post(&mut self, wr_id: u64, op: SendOp, len: u32) {
            self.post_on(wr_id, op, SendFlags::SIGNALED, self.mr.sge(0, len));
        }

        fn post_on(&mut self, wr_id: u64, op: SendOp, flags: SendFlags, sge: Sge) {
            let req = SendRequest { wr_id, op, flags, data: SendData::Sges(&[sge]), ud: None };
            assert_eq!(self.pair.post_send(Peer::A, &req), Ok(()));
        }

        /// The PSNs that leave now.
        fn psns(&mut self) -> Vec<u32> {
            self.headers().iter().map(|header| header.bth.psn.get()).collect()
        }

        fn headers(&mut self) -> Vec<Header> {
            self.pair.transmit(Peer::A);
            let new = self.pair.log[self.seen..].iter().map(|logged| logged.header).collect();
            self.seen = self.pair.log.len();
            new
        }

        /// One response arrives; what became of it.
        fn answer(&mut self, psn: u32, response: Response, payload: &[u8]) -> Option<DropReason> {
            let end = self.pair.end(Peer::A);
            end.dropped = (None, 0);
            let header = Header { bth: Bth::new(QPN_A, Psn::new(psn)), kind: Kind::RcResponse(response) };
            self.pair.inject(Peer::A, &header, payload);
            self.pair.end(Peer::A).dropped.0
        }

        fn ack(&mut self, psn: u32) -> Option<DropReason> {
            self.answer(psn, Response::Ack(ACK), &[])
        }

        /// Completions since the last call.
        fn done(&mut self) -> Vec<(u64, WcStatus)> {
            let end = self.pair.end(Peer::A);
            end.host.sends.drain(..).map(|cqe| (cqe.wr_id, cqe.status)).collect()
        }

        fn reserved(&mut self) -> u32 {
            self.pair.end(Peer::A).host.flow.reserved
        }

        /// Lets the timer that is set run out.
        fn time_out(&mut self) {
            let end = self.pair.end(Peer::A);
            end.host.clock = end.qp.poll_timeout().expect("a timer runs");
            end.qp.handle_timeout(&mut end.host);
        }

        fn memory(&mut self, len: usize) -> Vec<u8> {
            let mr = self.mr;
            self.pair.end(Peer::A).host.memory.bytes(mr)[..len].to_vec()
        }

        fn state(&self) -> QpState {
            self.pair.ends[0].qp.state()
        }
    }

    const OK: WcStatus = WcStatus::Success;

    // clause: SEND-ORDER, ACK-CUMULATIVE
    #[test]
    fn one_ack_completes_everything_before_it_in_order() {
        let mut s = Script::new();
        s.post(1, SendOp::Send, 0);
        s.post_on(2, SendOp::Send, SendFlags::empty(), s.mr.sge(0, 300));
        s.post(3, SendOp::Send, 10);
        assert_eq!(s.psns(), [100, 101, 102, 103]);
        assert_eq!(s.ack(102), None);
        assert_eq!(s.done(), [(1, OK)]);
        assert_eq!(s.reserved(), 832);
        assert_eq!(s.ack(103), None);
        assert_eq!(s.done(), [(3, OK)]);
        assert_eq!((s.reserved(), s.pair.ends[0].qp.poll_timeout()), (0, None));
    }

    #[test]
    fn the_wait_after_an_rnr_nak_ends_when_everything_is_acknowledged_after_all() {
        let mut s = Script::new();
        s.post(1, SendOp::Send, 0);
        assert_eq!(s.psns(), [100]);
        assert_eq!(s.answer(100, rnr(12), &[]), None);
        assert_eq!(s.ack(100), None);
        assert_eq!((s.done(), s.pair.ends[0].qp.poll_timeout()), (vec![(1, OK)], None));
        s.post(2, SendOp::Send, 0);
        assert_eq!(s.psns(), [101], "nothing is waited for");
    }

    #[test]
    fn a_sequence_nak_goes_back_once() {
        let mut s = Script::new();
        s.post(1, SendOp::Send, 256 * 4);
        assert_eq!(s.psns(), [100, 101, 102, 103]);
        assert_eq!(s.answer(102, SEQUENCE, &[]), None);
        assert_eq!(s.reserved(), 0);
        assert_eq!(s.answer(102, SEQUENCE, &[]), Some(DropReason::AwaitingRetry));
        let again = s.headers();
        assert_eq!(again[0].kind, Kind::RcRequest(Request::SendMiddle));
        assert_eq!(again.iter().map(|h| h.bth.psn.get()).collect::<Vec<_>>(), [102, 103]);
        assert_eq!(s.answer(102, SEQUENCE, &[]), Some(DropReason::AwaitingRetry));
        assert_eq!(s.ack(103), None);
        assert_eq!(s.done(), [(1, OK)]);
    }

    // clause: ACK-OVER-RETRY
    #[test]
    fn an_ack_from_before_the_retry_spares_the_rest_of_it() {
        let mut s = Script::new();
        s.post(1, SendOp::Send, 256 * 3);
        s.post(2, SendOp::Send, 256 * 2);
        assert_eq!(s.psns(), [100, 101, 102, 103, 104]);
        s.time_out();
        assert_eq!(s.ack(103), None);
        assert_eq!((s.done(), s.reserved()), (vec![(1, OK)], 0));
        assert_eq!(s.psns(), [104]);
        assert_eq!(s.ack(104), None);
        assert_eq!((s.done(), s.reserved()), (vec![(2, OK)], 0));
    }

    // clause: RETRY-GO-BACK
    #[test]
    fn timeouts_are_retried_retry_cnt_times() {
        let mut s = Script::new();
        s.post(1, SendOp::Send, 0);
        s.post(2, SendOp::Send, 0);
        assert_eq!(s.psns(), [100, 101]);
        for _ in 0..2 {
            s.time_out();
            assert_eq!(s.psns(), [100, 101]);
        }
        s.time_out();
        assert_eq!(s.done(), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!((s.state(), s.reserved()), (QpState::Err, 0));
    }

    // clause: RNR-WAIT, RNR-WAIT-WHOLE
    #[test]
    fn a_not_ready_peer_gets_the_time_it_asked_for() {
        let mut s = Script::new();
        s.post(1, SendOp::Send, 0);
        s.post(2, SendOp::Send, 0);
        assert_eq!(s.psns(), [100, 101]);
        assert_eq!(s.answer(101, rnr(12), &[]), None);
        assert_eq!(s.done(), [(1, OK)]);
        for early in [SEQUENCE, rnr(1)] {
            assert_eq!(s.answer(101, early, &[]), Some(DropReason::AwaitingRetry));
            assert_eq!(s.psns(), []);
        }
        let waited = s.pair.end(Peer::A).qp.poll_timeout().map(|at| at.since(s.pair.now()));
        assert_eq!(waited, Some(core::time::Duration::from_micros(640)));
        s.time_out();
        assert_eq!(s.psns(), [101]);
        assert_eq!(s.answer(101, rnr(12), &[]), None);
        assert_eq!(s.done(), [(2, WcStatus::RnrRetryExcErr)]);
    }

    #[test]
    fn what_goes_wrong_is_counted_once_each_time() {
        let mut s = Script::with(Setup { retry_cnt: 7, rnr_retry: 7, ..Setup::default() });
        s.post(1, READ, 8);
        s.post(2, SendOp::Send, 0);
        assert_eq!(s.psns(), [100, 101]);
        s.ack(101);
        assert_eq!(s.psns(), [100, 101]);
        s.time_out();
        assert_eq!(s.psns(), [100, 101]);
        s.answer(100, Response::ReadOnly(ACK), &[0; 8]);
        s.answer(101, SEQUENCE, &[]);
        s.answer(101, rnr(1), &[]);
        let counts = s.pair.end(Peer::A).qp.take_retry_counts();
        let expected = RetryCounts {
            packet_seq_err: 1,
            implied_nak_seq_err: 1,
            rnr_nak_retry_err: 1,
            local_ack_timeout_err: 1,
            send_rnr_err: 0,
        };
        assert_eq!(counts, Some(expected));
        assert_eq!(s.pair.end(Peer::A).qp.take_retry_counts(), None);
    }

    // clause: READ-ACKNOWLEDGES
    #[test]
    fn read_answers_land_and_acknowledge_what_came_before() {
        let mut s = Script::new();
        s.post(1, SendOp::Send, 0);
        s.post(2, READ, 600);
        s.post(3, SendOp::Send, 0);
        assert_eq!(s.psns(), [100, 101, 104]);
        assert_eq!(s.answer(101, Response::ReadFirst(ACK), &[1; 256]), None);
        assert_eq!(s.done(), [(1, OK)]);
        assert_eq!(s.answer(101, Response::ReadFirst(ACK), &[9; 256]), Some(DropReason::DuplicateResponse));
        assert_eq!(s.answer(102, Response::ReadMiddle, &[2; 256]), None);
        assert_eq!(s.answer(103, Response::ReadLast(ACK), &[3; 88]), None);
        assert_eq!((s.done(), s.reserved()), (vec![(2, OK)], 832));
        assert_eq!(s.memory(600), [[1; 256].as_slice(), &[2; 256], &[3; 88]].concat());
        assert_eq!(s.ack(104), None);
        assert_eq!(s.done(), [(3, OK)]);
    }

    #[test]
    fn long_reads_are_several_requests_within_the_depth() {
        let mut s = Script::new();
        s.post(1, READ, 256 * 200);
        assert_eq!(s.psns(), [100, 164]);
        for i in 0..64 {
            let response = match i {
                0 => Response::ReadFirst(ACK),
                63 => Response::ReadLast(ACK),
                _ => Response::ReadMiddle,
            };
            assert_eq!(s.psns(), []);
            assert_eq!(s.answer(100 + i, response, &[7; 256]), None);
        }
        assert_eq!(s.psns(), [228]);
        s.time_out();
        assert_eq!((s.psns(), s.reserved()), (vec![164], 832), "less at a time after a loss");
        assert_eq!(s.answer(164, Response::ReadFirst(ACK), &[7; 256]), None);
        assert_eq!((s.psns(), s.reserved()), (vec![228], 2 * 832));
    }

    #[test]
    fn reads_wait_for_room_in_our_own_socket() {
        let mut s = Script::with(Setup { path_mtu: PathMtu::Mtu4096, max_rd_atomic: 16, ..Setup::default() });
        s.post(1, READ, 1 << 20);
        assert_eq!(s.psns(), [100, 132]);
        assert_eq!(s.answer(100, Response::ReadFirst(ACK), &[7; 4096]), None);
        assert_eq!(s.psns(), []);
        for psn in 101..131 {
            assert_eq!(s.answer(psn, Response::ReadMiddle, &[7; 4096]), None);
        }
        assert_eq!(s.psns(), []);
        assert_eq!(s.answer(131, Response::ReadLast(ACK), &[7; 4096]), None);
        assert_eq!(s.psns(), [164]);
        s.time_out();
        assert_eq!(s.psns(), [132, 164]);
    }

    // clause: SEND-RD-ATOMIC, SEND-FENCE
    #[test]
    fn fences_and_the_depth_hold_requests_back() {
        let mut s = Script::new();
        (1..=3).for_each(|id| s.post(id, ADD, 8));
        s.post_on(4, SendOp::Send, SendFlags::FENCE, s.mr.sge(0, 0));
        assert_eq!(s.psns(), [100, 101]);
        let answer = Response::AtomicAck(ACK, AtomicAckEth(0));
        assert_eq!(s.answer(100, answer, &[]), None);
        assert_eq!(s.psns(), [102]);
        assert_eq!(s.answer(101, answer, &[]), None);
        assert_eq!(s.psns(), []);
        assert_eq!(s.answer(102, answer, &[]), None);
        assert_eq!(s.psns(), [103]);
    }

    // clause: NONPOSTED-ANSWER, NONPOSTED-PLACE, NAK-IMPLIED
    #[test]
    fn atomic_writes_and_flushes_wait_for_an_answer_of_their_own() {
        let mut s = Script::new();
        s.post(1, SendOp::Write { remote_addr: 0x1000, rkey: RKey(7) }, 10);
        s.post(2, STORE, 8);
        s.post(3, FLUSH, 0);
        s.post(4, READ, 8);
        assert_eq!(s.psns(), [100, 101, 102], "two at a time");
        assert_eq!(s.answer(101, Response::ReadOnly(ACK), &[]), None);
        assert_eq!((s.done(), s.psns()), (vec![(1, OK), (2, OK)], vec![103]));
        // What comes from behind the FLUSH tells that its answer was lost, an acknowledgement of it as well.
        assert_eq!(s.ack(102), None);
        assert_eq!((s.done(), s.psns()), (vec![], vec![102, 103]));
        assert_eq!(s.answer(102, Response::ReadOnly(ACK), &[]), None);
        let flushed = s.pair.end(Peer::A).host.sends.pop_front().expect("it is complete");
        assert_eq!((flushed.wr_id, flushed.opcode, flushed.byte_len), (3, WcOpcode::Flush, 0));
        assert_eq!(s.answer(103, Response::ReadOnly(ACK), &[9; 8]), None);
        assert_eq!((s.done(), s.reserved()), (vec![(4, OK)], 0));
    }

    // clause: READ-LENGTH, READ-POSITIVE, RESP-KIND
    #[test]
    fn impossible_answers_are_fatal() {
        let nak = aeth(Syndrome::Nak(NakCode::RemoteAccess));
        let cases: [(SendOp, u32, Response, &[u8]); 14] = [
            (SendOp::Send, 10, Response::AtomicAck(ACK, AtomicAckEth(0)), &[]),
            (SendOp::Send, 10, Response::ReadOnly(ACK), &[0; 10]),
            (ADD, 8, Response::ReadOnly(ACK), &[0; 8]),
            (READ, 8, Response::AtomicAck(ACK, AtomicAckEth(0)), &[]),
            (READ, 8, Response::ReadOnly(ACK), &[0; 7]),
            (READ, 300, Response::ReadOnly(ACK), &[0; 256]),
            (READ, 300, Response::ReadFirst(ACK), &[0; 252]),
            (READ, 8, Response::ReadOnly(nak), &[0; 8]),
            (STORE, 8, Response::AtomicAck(ACK, AtomicAckEth(0)), &[]),
            (STORE, 8, Response::ReadOnly(ACK), &[0; 8]),
            (STORE, 8, Response::ReadOnly(nak), &[]),
            (FLUSH, 0, Response::AtomicAck(ACK, AtomicAckEth(0)), &[]),
            (FLUSH, 0, Response::ReadOnly(ACK), &[0; 4]),
            (FLUSH, 0, Response::ReadFirst(ACK), &[0; 256]),
        ];
        for (op, len, response, payload) in cases {
            let mut s = Script::new();
            s.post(1, op, len);
            s.post(2, SendOp::Send, 0);
            assert!(!s.psns().is_empty());
            assert_eq!(s.answer(100, response, payload), None);
            assert_eq!(s.done(), [(1, WcStatus::BadRespErr), (2, WcStatus::WrFlushErr)], "{response:?}");
            assert_eq!(s.reserved(), 0);
        }
    }

    // clause: READ-LOCAL-FAULT
    #[test]
    fn results_need_a_local_buffer_that_can_be_written() {
        let mut s = Script::new();
        let constant = s.pair.end(Peer::A).host.memory.register(64, Access::empty());
        s.post_on(1, READ, SendFlags::empty(), constant.all());
        assert_eq!(s.psns(), [100]);
        assert_eq!(s.answer(100, Response::ReadOnly(ACK), &[0; 64]), None);
        assert_eq!(s.done(), [(1, WcStatus::LocProtErr)]);
        assert_eq!(s.state(), QpState::Err);
    }

    // clause: SEND-LOCAL-FAULT
    #[test]
    fn a_bad_local_key_is_told_after_earlier_requests_completed() {
        let mut s = Script::new();
        let gone = s.pair.end(Peer::A).host.memory.register(64, Access::LOCAL_WRITE);
        s.pair.end(Peer::A).host.memory.deregister(gone);
        s.post(1, SendOp::Send, 10);
        s.post_on(2, SendOp::Send, SendFlags::empty(), gone.all());
        s.post(3, SendOp::Send, 10);
        assert_eq!((s.psns(), s.done()), (vec![100], vec![]));
        assert_eq!(s.ack(100), None);
        assert_eq!(s.done(), [(1, OK), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)]);
        assert_eq!(s.reserved(), 0);
    }
}
