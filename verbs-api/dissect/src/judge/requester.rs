//! Rules for requests.

use super::channel::{Channel, Nak, State};
use super::charge::Rule;
use super::history::{MAX_STARTS, Record, atomic, has_own_response, reth};
use super::record::PacketRecord;
use crate::sequence::{Place, Seq, psn_of, read_span};
use roxe_transport::qp::takes_receive;
use roxe_wire::opcode::{Operation, PayloadRule, Position, Service};
use roxe_wire::{Kind, Request};

/// Maximum length of a message, in bytes.
const MAX_MESSAGE: u64 = 1 << 31;
/// Tolerance for the times of a capture, in nanoseconds.
const TIME_TOLERANCE: u64 = 20_000;
/// Maximum distance of PSNs at which a connection continues after a stray packet.
const MAX_CONTINUED: i64 = 64;
/// Maximum time by which one packet overtakes another, in nanoseconds.
const MAX_REORDERING: u64 = 10_000_000;
/// Number of retransmissions from a later PSN than that of the NAK which loss does not explain.
const MIN_EVASIONS: u32 = 3;

impl Channel {
    /// Judges the next request.
    pub(super) fn request(&mut self, current: &PacketRecord, request: Request) {
        let psn = current.header.bth.psn;
        if !self.state.history.has_begun {
            self.state.history.begin(self.params.start.unwrap_or(psn));
        }
        let mut seq = self.state.history.sequence.nearest(psn);
        if let Some((old, stray)) = self.parked.take()
            && (old.history.sequence.nearest(psn) - old.history.sequence.next().0).abs() < MAX_CONTINUED
        {
            // The connection continues in its earlier sequence of PSNs.
            self.state = *old;
            seq = self.state.history.sequence.nearest(psn);
            let expected = psn_of(self.state.history.sequence.next().0);
            self.requester(Rule::PsnOrder, stray, format!("the PSN is not in sequence: PSN {expected} is next"));
        } else if self.state.history.sequence.place(seq) == Place::OutOfReach {
            self.parked = Some((Box::new(std::mem::take(&mut self.state)), current.index));
            self.params.start = None;
            self.state.history.begin(psn);
            seq = self.state.history.sequence.nearest(psn);
        }
        match self.state.history.sequence.place(seq) {
            Place::SentBefore | Place::OutOfReach => self.on_repeated(current, request, seq),
            place => self.first_time(current, request, seq, place),
        }
        let state = &mut self.state;
        if let Some(nak) = &mut state.nak
            && seq <= nak.expected
        {
            (nak.is_sent, nak.since, nak.evasions, nak.repeats) = (true, current.time, 0, 0);
        }
        if let Some((refused, .., is_sent)) = &mut state.rnr
            && seq <= *refused
        {
            *is_sent = true;
        }
    }

    fn first_time(&mut self, current: &PacketRecord, request: Request, seq: Seq, place: Place) {
        let index = current.index;
        let expected = psn_of(self.state.history.sequence.next().1);
        // clause: PSN-START
        if place == Place::BeforeFirst && self.params.start.is_some() && self.parked.is_none() {
            let start = self.params.start.unwrap_or_default();
            let text = format!("the first PSN is {}, but its REQ or REP announced {start}", current.header.bth.psn);
            self.requester(Rule::PsnStart, index, text);
            (self.params.start, self.state.base) = (None, None);
        }
        // clause: PSN-SPAN
        if place == Place::AfterGap && self.params.is_complete {
            let text =
                format!("the PSN skips {} packets: PSN {expected} is next", seq - self.state.history.sequence.next().1);
            self.requester(Rule::PsnContiguous, index, text);
        }
        if matches!(place, Place::Next | Place::AfterGap) {
            self.charge_ghosts(seq, place, index);
        }
        self.lengths(current, request);
        self.position(current, request, seq);
        let (span, most) = match request {
            Request::Read(reth) => read_span(reth.dma_len, self.params.mtu),
            _ => (1, 1),
        };
        let sum = self.sum(current, request, seq);
        let xrc = match current.header.kind {
            Kind::XrcRequest(xrc, _) => Some(xrc.0),
            _ => None,
        };
        let record = Record {
            packet: index,
            last: (index, current.time),
            request,
            len: current.len,
            span,
            xrc,
            hash: current.hash,
            sum,
            expected: seq,
            starts: vec![seq],
            again: None,
            is_lost: current.is_lost,
        };
        self.state.history.insert(seq, record, most);
        if matches!(place, Place::Next | Place::AfterGap) && self.params.service != Service::Uc {
            self.depth(request, seq, span, index);
            self.credits(request, seq, index);
        }
    }

    /// Charges responses that were sent before their requests.
    // clause: RESP-REGION
    fn charge_ghosts(&mut self, seq: Seq, place: Place, index: usize) {
        // In a retry, the requester also retransmits packets that the capture has lost.
        let may_be_retry = self.state.resent.is_some_and(|resent| resent + 1 == seq);
        self.state.resent = may_be_retry.then_some(seq);
        for (claimed, packet, is_nak) in std::mem::take(&mut self.state.ghosts) {
            // At a gap, the capture may have lost the request of this response. After a NAK, a
            // retransmitted packet that the capture had lost looks new.
            if claimed < seq || may_be_retry || (is_nak && claimed != seq) {
                continue;
            }
            let text = format!("it responds to PSN {} before the request is sent", psn_of(claimed));
            let is_certain = place != Place::AfterGap && (!is_nak || self.params.is_complete);
            self.responder(Rule::ResponseMatch, packet, text).with(index).if_whole().advice_if(!is_certain);
        }
    }

    /// Judges the lengths in one packet, with the path MTU.
    fn lengths(&mut self, current: &PacketRecord, request: Request) {
        let (index, len, properties) = (current.index, current.len, request.operation().properties());
        let (name, is_full) = (properties.name, properties.payload == PayloadRule::Full);
        // clause: MTU-PATH, CHECK-LENGTH
        if is_full && !matches!(len, 256 | 512 | 1024 | 2048 | 4096) {
            self.requester(Rule::Mtu, index, format!("{name} carries {len} bytes, which is not a path MTU"));
        } else if let Some(mtu) = self.params.mtu
            && (len > mtu || (is_full && len != mtu))
        {
            let text = format!("{name} carries {len} bytes, but the path MTU is {mtu}");
            self.requester(Rule::PacketLength, index, text);
        }
        if properties.position == Position::Last && len == 0 {
            self.requester(Rule::PacketLength, index, format!("{name} carries no payload"));
        }
        let length = reth(&request).map_or(0, |reth| u64::from(reth.dma_len));
        // clause: SEND-MAX-LENGTH
        if length > MAX_MESSAGE {
            self.requester(Rule::MessageLength, index, format!("the DMA length in the RETH is {length} bytes"));
        }
    }

    /// Judges the position of the packet in its message by the packets directly before and after
    /// it.
    // clause: CHECK-SEQUENCE, SEND-ORDER
    fn position(&mut self, current: &PacketRecord, request: Request, seq: Seq) {
        let xrc = match current.header.kind {
            Kind::XrcRequest(xrc, _) => Some(xrc.0),
            _ => None,
        };
        let history = &self.state.history;
        let before = history.before(seq).map(|before| (before.packet, before.request, before.xrc));
        let after = history.records.get(&(seq + 1)).map(|after| (after.packet, after.request, after.xrc));
        let is_read = matches!(request, Request::Read(_));
        let pairs = [
            before.map(|(packet, other, queue)| (packet, (other, queue), (request, xrc))),
            after.filter(|_| !is_read).map(|(packet, other, queue)| (packet, (request, xrc), (other, queue))),
        ];
        for (packet, (first, first_queue), (second, second_queue)) in pairs.into_iter().flatten() {
            let [one, two] = [first, second].map(|request| request.operation().properties().name);
            if !may_follow(first, second) {
                // A UC queue pair that fails within a message begins the next one after SQE.
                // clause: UC-NEW-START
                let may_be_anew = self.params.service == Service::Uc && !continues(second.operation());
                let text = format!("{two} follows {one}");
                self.requester(Rule::OpcodeOrder, current.index, text).with(packet).advice_if(may_be_anew);
            } else if first_queue != second_queue && continues(second.operation()) {
                // clause: XRC-ONE-QUEUE
                let text = "the packets of a message specify different SRQs";
                self.requester(Rule::XrcQueue, current.index, text).with(packet);
            }
        }
    }

    /// Judges the length of a message. Returns its bytes up to this packet, and the DMA length of
    /// its RETH.
    // clause: CHECK-DMA-LENGTH
    fn sum(&mut self, current: &PacketRecord, request: Request, seq: Seq) -> Option<(u64, Option<u32>)> {
        let position = request.operation().properties().position;
        let (sum, announced, opener) = if matches!(position, Position::First | Position::Only) {
            let announced = match request {
                Request::WriteFirst(reth) | Request::WriteOnly(reth, _) | Request::AtomicWrite(reth) => {
                    Some(reth.dma_len)
                }
                _ => None,
            };
            (u64::from(current.len), announced, current.index)
        } else {
            let before = self.state.history.before(seq).filter(|before| may_follow(before.request, request))?;
            let (sum, announced) = before.sum?;
            (sum + u64::from(current.len), announced, before.packet)
        };
        let is_last = matches!(position, Position::Last | Position::Only);
        if let Some(announced) = announced {
            let all = u64::from(announced);
            let is_wrong = if is_last { sum != all } else { sum >= all };
            if is_wrong {
                let is = if is_last { "is" } else { "is, before its last packet," };
                let text = format!("a WRITE with a DMA length of {announced} bytes {is} {sum} bytes long");
                self.requester(Rule::DmaLength, current.index, text).with(opener);
                return None;
            }
        } else if sum > MAX_MESSAGE {
            self.requester(Rule::MessageLength, current.index, format!("a SEND is {sum} bytes long"));
            return None;
        }
        Some((sum, announced))
    }

    // clause: SEND-RD-ATOMIC
    fn depth(&mut self, request: Request, seq: Seq, span: i64, index: usize) {
        if !has_own_response(&request) {
            return;
        }
        let state = &mut self.state;
        state.unanswered.push_back((seq + span - 1, index));
        let Some(depth) = self.params.depth else { return };
        if state.unanswered.len() > depth as usize
            && state.excess.is_none()
            && let Some((oldest, _)) = state.unanswered.front()
        {
            state.excess = Some((index, *oldest));
        }
    }

    // clause: ACK-CREDITS
    fn credits(&mut self, request: Request, seq: Seq, index: usize) {
        let (Some((limit, packet)), true) = (self.state.limit, takes_receive(&Kind::RcRequest(request))) else {
            return;
        };
        // The requester may send one request beyond its credits to probe for new receives.
        if self.state.history.messages(seq - 1).0 > limit {
            let text = "a SEND exceeds the credits of the responder";
            self.requester(Rule::Credits, index, text).with(packet).advice();
            self.state.limit = None;
        }
    }

    fn on_repeated(&mut self, current: &PacketRecord, request: Request, seq: Seq) {
        let (index, time) = (current.index, current.time);
        let Some((begin, record)) = self.state.history.covering(seq) else { return };
        let (record, is_uc) = (record.clone(), self.params.service == Service::Uc);
        let continues_retry = self.state.resent.is_some_and(|resent| resent + 1 == seq || resent == seq);
        self.same_packet(current, request, seq, (begin, &record));
        if is_uc {
            return;
        }
        if !continues_retry {
            self.retry_start(seq, &record, index, time);
        }
        self.early(seq, &record, index, time, continues_retry);
        let state = &mut self.state;
        if let Some((_, record)) = state.history.covering_mut(seq) {
            record.last = (index, time);
            if matches!(request, Request::Read(_)) && record.starts.len() < MAX_STARTS && !record.starts.contains(&seq)
            {
                record.starts.push(seq);
            }
            record.again = Some(record.again.map_or(seq, |again| again.min(seq)));
            record.is_lost &= current.is_lost;
        }
        let end = if begin == seq { begin + record.span - 1 } else { seq };
        (state.resent, state.has_repeats) = (Some(end), true);
    }

    /// Compares a retransmitted packet with its first transmission.
    // clause: RETRY-SAME-OPCODES, RETRY-READ-TAIL
    fn same_packet(&mut self, current: &PacketRecord, request: Request, seq: Seq, (begin, record): (Seq, &Record)) {
        let (index, packet) = (current.index, record.packet);
        let is_read = matches!((request, record.request), (Request::Read(_), Request::Read(_)));
        if is_read {
            self.read_tail(request, seq, (begin, record), index);
            return;
        }
        let [now, then] = [request, record.request].map(|request| request.operation().properties().name);
        let text = if request.operation() != record.operation() {
            format!("PSN {} was {then}, but is {now} when retransmitted", psn_of(seq))
        } else if current.len != record.len {
            format!("PSN {} had {} bytes, but has {} when retransmitted", psn_of(seq), record.len, current.len)
        } else if reth(&request) != reth(&record.request) || atomic(&request) != atomic(&record.request) {
            format!("PSN {} has another key, address or operand when retransmitted", psn_of(seq))
        } else if self.params.service == Service::Uc && current.hash != record.hash {
            // clause: PSN-24BIT
            let text = format!("two packets have PSN {}", psn_of(seq));
            self.requester(Rule::PsnOrder, index, text).with(packet);
            return;
        } else {
            return;
        };
        self.requester(Rule::Repeat, index, text).with(packet);
    }

    fn read_tail(&mut self, request: Request, seq: Seq, (begin, record): (Seq, &Record), index: usize) {
        let (Some(now), Some(then)) = (reth(&request), reth(&record.request)) else { return };
        let mtu = match (self.params.mtu, seq == begin) {
            (_, true) => 0,
            (Some(mtu), _) => mtu,
            (None, _) => return,
        };
        let skipped = (seq - begin) as u64 * u64::from(mtu);
        let is_tail = now.rkey == then.rkey
            && now.va == then.va.wrapping_add(skipped)
            && u64::from(now.dma_len) + skipped == u64::from(then.dma_len);
        if !is_tail {
            let text =
                format!("a retransmitted READ at PSN {} does not request the end of the original READ", psn_of(seq));
            self.requester(Rule::ReadTail, index, text).with(record.packet);
        }
    }

    /// Judges the first request of a retry.
    fn retry_start(&mut self, seq: Seq, record: &Record, index: usize, time: u64) {
        let state = &self.state;
        // clause: RNR-WAIT
        if let Some((refused, packet, since, wait, false)) = state.rnr
            && refused == seq
            && time.saturating_add(TIME_TOLERANCE) < since.saturating_add(wait)
        {
            let waited = time.saturating_sub(since);
            let text = format!("it waits {} us, but the RNR timer is {} us", waited / 1000, wait / 1000);
            // If the network loses the RNR NAK, the requester retransmits after the ACK timeout.
            let may_be_timeout = self
                .params
                .timeout
                .is_none_or(|timeout| u128::from(time.saturating_sub(record.last.1)) * 10 >= timeout.as_nanos() * 9);
            let is_complete = self.params.is_complete;
            self.requester(Rule::RnrWait, index, text).with(packet).advice_if(may_be_timeout && !is_complete);
        }
        self.evades_nak(seq, index, time);
        // clause: RETRY-GO-BACK
        if let Some((resumed, packet, since)) = self.state.resumed
            && seq < resumed
            && (self.params.is_complete || time.saturating_sub(since) > MAX_REORDERING)
        {
            let text = format!(
                "it retransmits PSN {} after it resumed at PSN {}, which proves that it has the acknowledgement",
                psn_of(seq),
                psn_of(resumed)
            );
            let is_complete = self.params.is_complete;
            self.requester(Rule::GoBack, index, text).with(packet).advice_if(!is_complete);
        }
        if let Some((acked, _)) = self.state.acked
            && seq == acked + 1
            && self.state.resumed.is_none_or(|(resumed, ..)| resumed < seq)
        {
            self.state.resumed = Some((seq, index, time));
        }
    }

    /// Judges a retransmission that begins after the PSN of a NAK.
    // clause: NAK-SEQUENCE
    fn evades_nak(&mut self, seq: Seq, index: usize, time: u64) {
        let acked = self.state.acked.map(|(acked, _)| acked);
        let Some(Nak { expected, packet, since, is_sent: false, evasions, .. }) = &mut self.state.nak else { return };
        if seq <= *expected || acked >= Some(*expected) {
            return;
        }
        // The network may lose the requested packet before it is captured, but not each time. Other
        // packets may have been in flight when the NAK arrived.
        *evasions += 1;
        let is_proven = *evasions >= MIN_EVASIONS && time.saturating_sub(*since) > MAX_REORDERING;
        let (expected, packet) = (*expected, *packet);
        if self.params.is_complete || is_proven {
            let text = format!("it retransmits from PSN {}, but the NAK carries PSN {}", psn_of(seq), psn_of(expected));
            self.requester(Rule::AfterNak, index, text).with(packet);
        }
        if let Some(nak) = &mut self.state.nak {
            nak.is_sent = true;
        }
    }

    /// Judges the time of a retransmission.
    // clause: TIMER-RANGE
    fn early(&mut self, seq: Seq, record: &Record, index: usize, time: u64, continues_retry: bool) {
        let Some(timeout) = self.params.timeout else { return };
        let State { retry_cause, progress, .. } = self.state;
        let is_asked = retry_cause.is_some_and(|retry_cause| retry_cause > record.last.0);
        let waited = time.saturating_sub(record.last.1.max(progress));
        if continues_retry || is_asked || u128::from(waited) * 10 >= timeout.as_nanos() * 9 {
            return;
        }
        let text = format!(
            "it retransmits PSN {} after {} us without a NAK, but the ACK timeout is {} us",
            psn_of(seq),
            waited / 1000,
            timeout.as_micros()
        );
        let is_complete = self.params.is_complete;
        self.requester(Rule::EarlyRepeat, index, text).with(record.last.0).advice_if(!is_complete);
    }
}

const fn continues(operation: Operation) -> bool {
    matches!(operation.properties().position, Position::Middle | Position::Last)
}

/// Returns true if `second` may directly follow `first`.
fn may_follow(first: Request, second: Request) -> bool {
    let is_write =
        |request: Request| matches!(request, Request::WriteFirst(_) | Request::WriteMiddle | Request::WriteLast(_));
    let is_open = matches!(first.operation().properties().position, Position::First | Position::Middle);
    if is_open {
        continues(second.operation()) && is_write(first) == is_write(second)
    } else {
        !continues(second.operation())
    }
}
