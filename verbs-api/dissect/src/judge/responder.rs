//! Rules for responses.

use super::channel::{Channel, Nak};
use super::charge::Rule;
use super::history::{MAX_STARTS, Record, has_own_response};
use super::record::PacketRecord;
use crate::sequence::{Seq, psn_of};
use roxe_transport::qp::takes_receive;
use roxe_transport::time::rnr_wait;
use roxe_wire::{Aeth, Kind, NakCode, Request, Response, Syndrome};

/// Number of repeated NAKs that show a fault. Fewer may be duplicates of the network, or may cross
/// the packet that they request.
const MIN_REPEATS: u32 = 3;

impl Channel {
    /// Judges the next response.
    pub(super) fn response(&mut self, current: &PacketRecord, response: Response) {
        if !self.state.history.has_begun || current.is_lost {
            return;
        }
        let (index, seq) = (current.index, self.state.history.sequence.nearest(current.header.bth.psn));
        let syndrome = response.aeth().map(|aeth| aeth.syndrome);
        let is_nak = matches!(syndrome, Some(Syndrome::Nak(NakCode::PsnSequence)));
        // A sequence NAK proves that the responder got a request with a later PSN than the NAK's.
        let claimed = if is_nak { seq + 1 } else { seq };
        let is_ghost = claimed >= self.state.history.sequence.next().1;
        // If the capture lacks the first transmission, the retransmission after an RNR NAK looks
        // new.
        let may_be_repeated = matches!(syndrome, Some(Syndrome::RnrNak { .. })) && !self.params.is_complete;
        if is_ghost && !may_be_repeated {
            self.state.ghosts.push((claimed, index, is_nak));
        }
        self.after_refusal(seq, index, syndrome);
        if let Some(aeth) = response.aeth()
            && !is_ghost
        {
            self.msn(seq, response, *aeth, index);
        }
        match response {
            Response::Ack(aeth) => match aeth.syndrome {
                Syndrome::Nak(NakCode::PsnSequence) => self.sequence_nak(seq, aeth, current),
                Syndrome::Nak(code) => self.on_refused(seq, code, aeth, index),
                Syndrome::RnrNak { timer } => self.rnr(seq, timer, aeth, current),
                Syndrome::Ack { credits } => self.ack(seq, credits, current, is_ghost),
                Syndrome::Reserved(_) => {}
            },
            _ => self.data(seq, response, current),
        }
        let is_refusal = matches!(syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. }));
        if !is_ghost && !matches!(syndrome, Some(Syndrome::Reserved(_))) {
            self.advance(if is_refusal { seq - 1 } else { seq }, current);
        }
    }

    /// Marks all requests up to `seq` as acknowledged.
    fn advance(&mut self, seq: Seq, current: &PacketRecord) {
        let acked = self.state.acked.map(|(acked, _)| acked);
        if acked >= Some(seq) {
            return;
        }
        // The capture has lost acknowledged requests that it does not contain.
        self.lost += self.state.history.unseen(acked, seq).max(0) as u64;
        self.state.acked = Some((seq, current.index));
        self.state.progress = current.time;
        while let Some((end, _)) = self.state.unanswered.front()
            && *end < seq
        {
            self.state.unanswered.pop_front();
        }
        if self.state.excess.is_some_and(|(_, oldest)| oldest < seq) {
            self.state.excess = None;
        }
    }

    // clause: NAK-FATAL
    fn after_refusal(&mut self, seq: Seq, index: usize, syndrome: Option<Syndrome>) {
        if let Some((refused, packet)) = self.state.refusal
            && seq >= refused
            && !matches!(syndrome, Some(Syndrome::Nak(_)))
        {
            let text = format!("it acknowledges PSN {} after it refused PSN {}", psn_of(seq), psn_of(refused));
            self.responder(Rule::AfterRefusal, index, text).with(packet);
        }
    }

    // clause: MSN-COUNT
    fn msn(&mut self, seq: Seq, response: Response, aeth: Aeth, index: usize) {
        let history = &self.state.history;
        let complete = match response {
            Response::Ack(Aeth { syndrome: Syndrome::Ack { .. }, .. })
            | Response::ReadLast(_)
            | Response::ReadOnly(_)
            | Response::AtomicAck(..) => seq,
            Response::Ack(_) => seq - 1,
            _ => match history.covering(seq) {
                Some((begin, _)) => begin - 1,
                None => return,
            },
        };
        let (least, most) = (history.messages(complete).0, history.messages(history.sequence.next().1).1);
        let actual = i64::from(aeth.msn.get());
        let is_first = self.params.start.is_some() && self.state.base.is_none();
        let (low, high) = match self.state.base {
            Some(base) => base,
            None if is_first => (0, 0),
            None => (actual - most, actual - least),
        };
        // The MSN has 24 bits; this is the value nearest to the expected one.
        let expected = low.saturating_add(least);
        let distance = (actual - expected) & 0xff_ffff;
        let actual = expected + if distance > 0x7f_ffff { distance - 0x100_0000 } else { distance };
        let narrowed = (low.max(actual - most), high.min(actual - least));
        if narrowed.0 <= narrowed.1 {
            self.state.base = Some(narrowed);
            return;
        }
        self.state.base = Some((actual - most, actual - least));
        let [from, to] = [low + least, high.saturating_add(most)].map(|msn| msn & 0xff_ffff);
        let text = match from == to {
            true => format!("the MSN is {}, but {from} messages are complete", aeth.msn.get()),
            false => format!("the MSN is {}, but {from} to {to} messages are complete", aeth.msn.get()),
        };
        self.responder(Rule::Msn, index, text).if_whole();
    }

    // clause: GAP-NAK, GAP-AFTER-RNR
    fn sequence_nak(&mut self, seq: Seq, aeth: Aeth, current: &PacketRecord) {
        let (index, psn, is_complete) = (current.index, psn_of(seq), self.params.is_complete);
        let again = self.state.nak.filter(|nak| nak.expected == seq);
        let repeats = again.map_or(0, |nak| if nak.is_sent { nak.repeats } else { nak.repeats + 1 });
        if self.state.acked.is_some_and(|(acked, _)| acked >= seq) {
            let text = format!("a sequence NAK carries PSN {psn}, which the responder has acknowledged");
            self.contradiction(Rule::NakGap, seq, aeth, index, text);
        } else if let Some(nak) = again.filter(|nak| !nak.is_sent)
            && (is_complete || repeats == MIN_REPEATS)
        {
            let times = repeats + 1;
            let text = format!("{times} sequence NAKs carry PSN {psn}, although it was not sent again in between");
            self.responder(Rule::NakGap, index, text).with(nak.packet).if_whole();
        } else if let Some((refused, packet, .., false)) = self.state.rnr
            && refused == seq
        {
            let text = format!("a sequence NAK carries PSN {psn}, which the responder refused with an RNR NAK before");
            self.responder(Rule::NakAfterRnr, index, text).with(packet).advice();
        } else if is_complete
            && let Some((_, record)) = self.state.history.covering(seq)
            && !record.is_lost
        {
            let text = format!("a sequence NAK carries PSN {psn}, which the responder has received");
            let packet = record.packet;
            self.responder(Rule::NakGap, index, text).with(packet);
        }
        let (since, evasions) = again.map_or((current.time, 0), |nak| (nak.since, nak.evasions));
        self.state.nak = Some(Nak { expected: seq, packet: index, since, is_sent: false, evasions, repeats });
        (self.state.retry_cause, self.state.resent) = (Some(index), None);
    }

    /// Charges a refusal of a request that was acknowledged before. If the network delayed the
    /// refusal, its MSN is lower than that of the acknowledgement.
    fn contradiction(&mut self, rule: Rule, seq: Seq, aeth: Aeth, index: usize, text: String) {
        let Some((acked, packet)) = self.state.acked else { return };
        let before = self.state.history.messages(seq - 1);
        let after = self.state.history.messages(acked);
        let difference = self.state.base.map(|(low, high)| {
            let expected = low.saturating_add(before.0);
            let distance = (i64::from(aeth.msn.get()) - expected) & 0xff_ffff;
            (distance, high.saturating_sub(low))
        });
        // The difference between the MSN of the refusal and the messages before its PSN.
        let is_later = match difference {
            Some((distance, 0)) if after.0 > before.1 => distance >= after.0 - before.0 && distance < 0x80_0000,
            _ => false,
        };
        let is_earlier = difference.is_some_and(|(distance, slack)| slack == 0 && after.0 > before.1 && distance == 0);
        if is_earlier && !self.params.is_complete {
            return;
        }
        let is_proven = is_later || self.params.is_complete;
        self.responder(rule, index, text).with(packet).advice_if(!is_proven);
    }

    // clause: ACK-AFTER-DEED
    fn on_refused(&mut self, seq: Seq, code: NakCode, aeth: Aeth, index: usize) {
        self.late_refusal(seq, aeth, index, &format!("a NAK ({code:?})"));
        self.state.refusal = Some((seq, index));
        self.state.retry_cause = Some(index);
    }

    fn late_refusal(&mut self, seq: Seq, aeth: Aeth, index: usize, what: &str) {
        if self.state.acked.is_some_and(|(acked, _)| acked >= seq) {
            let text = format!("{what} for PSN {}, which the responder has acknowledged", psn_of(seq));
            self.contradiction(Rule::LateRefusal, seq, aeth, index, text);
        }
    }

    // clause: CHECK-RECEIVE
    fn rnr(&mut self, seq: Seq, timer: u8, aeth: Aeth, current: &PacketRecord) {
        let index = current.index;
        self.late_refusal(seq, aeth, index, "an RNR NAK");
        if let Some((_, record)) = self.state.history.covering(seq)
            && !may_lack_receive(&record.request)
        {
            let (name, packet) = (record.operation().properties().name, record.packet);
            let text = format!("an RNR NAK refuses {name}, which consumes no receive");
            self.responder(Rule::RnrReceive, index, text).with(packet).advice();
        }
        let wait = rnr_wait(timer).as_nanos() as u64;
        self.state.rnr = Some((seq, index, current.time, wait, false));
        (self.state.retry_cause, self.state.resent) = (Some(index), None);
    }

    // clause: RESP-KIND, ANSWER-ORDER
    fn ack(&mut self, seq: Seq, credits: u8, current: &PacketRecord, is_ghost: bool) {
        let index = current.index;
        if let Some((_, record)) = self.state.history.covering(seq)
            && has_own_response(&record.request)
            && record.expected <= seq
            && !self.state.has_repeats
        {
            let (name, packet) = (record.operation().properties().name, record.packet);
            let text = format!("an ACK responds to {name}");
            self.responder(Rule::ResponseKind, index, text).with(packet).if_whole();
        }
        if let Some((acked, packet)) = self.state.acked
            && acked > seq
            && self.params.is_complete
            && !self.state.has_repeats
        {
            let text = format!("it acknowledges PSN {} after {}", psn_of(seq), psn_of(acked));
            self.responder(Rule::AnswerOrder, index, text).with(packet);
        }
        if self.state.history.covering(seq + 1).is_some_and(|(_, record)| has_own_response(&record.request)) {
            self.state.retry_cause = Some(index);
        }
        if !is_ghost {
            // The limit is the number of messages for which the responder has receives.
            let limit = credit_limit(credits).map(|count| self.state.history.messages(seq).0 + count);
            self.state.limit = limit.map(|limit| (limit, index));
        }
    }

    /// Judges a response with data.
    fn data(&mut self, seq: Seq, response: Response, current: &PacketRecord) {
        let index = current.index;
        // clause: READ-POSITIVE
        if response.aeth().is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. })) {
            let text = "the AETH of a response with data is not an ACK";
            self.responder(Rule::ReadPositive, index, text);
        }
        let Some((begin, record)) = self.state.history.covering(seq) else { return };
        let record = record.clone();
        if !matches_kind(&record.request, response) {
            let name = record.operation().properties().name;
            let text = format!("{} responds to {name}", response.operation().properties().name);
            self.responder(Rule::ResponseKind, index, text).with(record.packet);
            return;
        }
        self.atomic(&record, index);
        if matches!(record.request, Request::Read(_)) {
            self.read(seq, begin, &record, response, current);
        }
        self.order(seq, &record, index);
        if let Some((_, record)) = self.state.history.covering_mut(seq) {
            if seq > record.expected {
                self.state.retry_cause = Some(index);
            }
            record.expected = record.expected.max(seq + 1);
        }
        self.mark_answered(seq);
    }

    // clause: CHECK-ATOMIC-ALIGNED
    fn atomic(&mut self, record: &Record, index: usize) {
        let (Request::CompareSwap(atomic) | Request::FetchAdd(atomic)) = record.request else { return };
        if atomic.va % 8 != 0 {
            let text = format!("it executes an atomic at {:#x}, which is not a multiple of 8", atomic.va);
            self.responder(Rule::AtomicAligned, index, text).with(record.packet);
        }
    }

    // clause: READ-RESPONSES, READ-STYLES, READ-LENGTH
    fn read(&mut self, seq: Seq, begin: Seq, record: &Record, response: Response, current: &PacketRecord) {
        let (index, packet, psn) = (current.index, record.packet, psn_of(seq));
        let Request::Read(reth) = record.request else { return };
        // Without the path MTU, the PSN of the last response is unknown.
        let Some(mtu) = self.params.mtu.or_else(|| (record.span == 1).then_some(4096)) else { return };
        let (place, last) = (seq - begin, record.span - 1);
        let rest = u64::from(reth.dma_len).saturating_sub(place as u64 * u64::from(mtu));
        let expected = rest.min(mtu.into());
        if u64::from(current.len) != expected && (self.params.mtu.is_some() || rest <= 256) {
            let text = format!("the response with PSN {psn} carries {} bytes instead of {expected}", current.len);
            self.responder(Rule::ReadLength, index, text).with(packet);
            return;
        }
        let is_start = record.starts.contains(&seq) || record.starts.len() == MAX_STARTS;
        let fits = match response {
            Response::ReadFirst(_) => place < last && is_start,
            Response::ReadMiddle => place < last && place > 0,
            Response::ReadLast(_) => place == last && place > 0,
            _ => place == last && is_start,
        };
        if !fits {
            let name = response.operation().properties().name;
            let text = format!("{name} is response {} of {} to a READ", place + 1, last + 1);
            self.responder(Rule::ReadOrder, index, text).with(packet);
        }
    }

    // clause: ANSWER-ORDER
    fn order(&mut self, seq: Seq, record: &Record, index: usize) {
        let is_complete = self.params.is_complete;
        if seq < record.expected && record.again.is_none_or(|again| seq < again) {
            let text =
                format!("it sends the response with PSN {} again, but no request was retransmitted", psn_of(seq));
            self.responder(Rule::AnswerOrder, index, text).with(record.packet).advice_if(!is_complete);
        } else if is_complete && seq > record.expected && record.again.is_none() {
            let text = format!("the response with PSN {} follows the response with PSN {}", psn_of(seq), {
                psn_of(record.expected - 1)
            });
            self.responder(Rule::AnswerOrder, index, text).with(record.packet);
        }
    }

    /// Marks a READ or atomic as answered. If it was the oldest when a request exceeded the agreed
    /// depth, charges that request.
    // clause: SEND-RD-ATOMIC
    fn mark_answered(&mut self, seq: Seq) {
        let Some((end, _)) = self.state.unanswered.front().copied().filter(|(end, _)| *end == seq) else { return };
        self.state.unanswered.pop_front();
        if let Some((packet, oldest)) = self.state.excess
            && oldest == end
        {
            self.state.excess = None;
            let depth = self.params.depth.unwrap_or_default();
            let text = format!("more than {depth} READs and atomics are outstanding");
            self.requester(Rule::ReadDepth, packet, text).if_whole();
        }
    }
}

/// Returns true if the responder may lack a receive or a response resource for the request.
fn may_lack_receive(request: &Request) -> bool {
    let is_served = matches!(request, Request::Read(_) | Request::CompareSwap(_) | Request::FetchAdd(_));
    is_served || takes_receive(&Kind::RcRequest(*request))
}

const fn matches_kind(request: &Request, response: Response) -> bool {
    match request {
        Request::Read(_) => !matches!(response, Response::AtomicAck(..)),
        Request::CompareSwap(_) | Request::FetchAdd(_) => matches!(response, Response::AtomicAck(..)),
        Request::Flush(..) | Request::AtomicWrite(_) => matches!(response, Response::ReadOnly(_)),
        _ => false,
    }
}

/// Returns the number of receives of a credit code; `None` for no limit.
const fn credit_limit(code: u8) -> Option<i64> {
    match code {
        0 | 1 => Some(code as i64),
        2..=30 => {
            let (power, is_half) = (code / 2, code % 2 == 1);
            let count = 1 << power;
            Some(if is_half { count + count / 2 } else { count })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_codes_equal_the_table() {
        let counts = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 29, 30, 31].map(credit_limit);
        let table = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 24576, 32768].map(Some);
        assert_eq!(counts[..13], table);
        assert_eq!(counts[13], None);
    }
}
