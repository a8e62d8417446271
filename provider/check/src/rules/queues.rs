//! Rules for send queues (full because their completions are not polled, inline data over the
//! limit, posts in the error state) and for receives (posted too late, or too short for a datagram
//! with its GRH).

use crate::event::{DroppedPacket, Event};
use crate::id_map::{IdMap, IdSet};
use crate::program::{Observer, Program, Work, length};
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use roxe_base::clock;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::qp::{AttrMask, DropReason, PostError, QpState, Service};
use roxe_transport::time::Instant;
use roxe_transport::wr::RecvRequest;
use std::time::Duration;

/// `never-signaled`, `slots-without-completion`, `inline-over-grant`, `post-in-error`.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// The refused post of each send queue that was full of signaled requests, until its completion
    /// queue is polled.
    refused_posts: IdMap<ObjectId, Stack>,
}

impl Observer for Queues {
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::Modified { qp, mask, .. } if mask.contains(AttrMask::STATE) => {
                self.refused_posts.remove(&qp);
            }
            Event::Destroyed(id) => {
                reports.extend(self.refused_posts.remove(&id).and_then(|stack| unpolled(id, &stack, program)));
            }
            Event::PostRefused { queue, side: Side::Send, error: PostError::QueueFull, .. } => {
                if program.outstanding(Side::Send, queue).all(|work| !work.signaled) {
                    reports.extend(never_signaled(queue, stack, program));
                } else if self.refused_posts.insert(queue, stack.clone()).is_some() {
                    reports.extend(unpolled(queue, stack, program));
                }
            }
            Event::PostRefused { queue, error: PostError::InlineTooLong, inline, wr_id, .. } => {
                reports.extend(inline_over_grant(queue, inline, wr_id, stack, program));
            }
            Event::PostedSend { qp, .. } => reports.extend(send_posted(qp, stack, program)),
            // A program that polls after a refused post is correct.
            Event::Polled { cq, .. } => {
                self.refused_posts.retain(|qp, _| program.qp(*qp).is_some_and(|pair| pair.send_cq != cq))
            }
            _ => {}
        }
    }
}

fn send_posted(qp: ObjectId, stack: &Stack, program: &Program) -> Option<Report> {
    if program.has_set_error(qp) {
        let report = Report::new(Rule::PostInError, "A send was posted to a queue pair in the error state.");
        let report = report.labelled("queue pair", program.name(qp)).at("posted at", stack);
        return Some(report.advice("Move the queue pair to RESET and connect it anew, or destroy it."));
    }
    // roxe frees the slot of a completed request at once; other cards free it when the completion
    // is polled.
    let count = program.depth(Side::Send, qp);
    if count <= program.qp(qp)?.caps.max_send_wr as usize {
        return None;
    }
    if program.outstanding(Side::Send, qp).all(|work| !work.signaled) {
        return never_signaled(qp, stack, program);
    }
    let sentence =
        format!("{count} requests are in the send queue without a polled completion, more than max_send_wr.");
    let oldest = program.outstanding(Side::Send, qp).next();
    full_queue_report(Rule::SlotsWithoutCompletion, sentence, POLL, oldest, (qp, stack, program))
}

const SIGNAL: &str = "Post at least one request in max_send_wr with IBV_SEND_SIGNALED, and poll its completion.";
const POLL: &str = "Poll the completion queue before more than max_send_wr requests are posted.";

/// Reports a send queue that stays full, because no request in it generates a completion.
fn never_signaled(qp: ObjectId, stack: &Stack, program: &Program) -> Option<Report> {
    let count = program.depth(Side::Send, qp);
    let sentence = format!("All {count} slots of the send queue hold unsignaled requests.");
    let oldest = program.outstanding(Side::Send, qp).next();
    full_queue_report(Rule::NeverSignaled, sentence, SIGNAL, oldest, (qp, stack, program))
}

/// Reports a full send queue whose completions are not polled.
fn unpolled(qp: ObjectId, stack: &Stack, program: &Program) -> Option<Report> {
    let completed = || program.outstanding(Side::Send, qp).filter(|work| work.completed);
    let count = completed().count();
    let sentence = format!("The send queue is full, and {count} completions that would free slots are unpolled.");
    full_queue_report(Rule::SlotsWithoutCompletion, sentence, POLL, completed().next(), (qp, stack, program))
}

/// Returns a report about a full send queue; `None` if no request is outstanding.
fn full_queue_report(
    rule: Rule,
    sentence: String,
    advice: &str,
    oldest: Option<&Work>,
    (qp, stack, program): (ObjectId, &Stack, &Program),
) -> Option<Report> {
    let report = Report::new(rule, sentence).labelled("queue pair", program.name(qp)).at("posted at", stack);
    Some(report.at("oldest request", &oldest?.posted).advice(advice))
}

/// Reports inline data longer than the program requested, although this device accepts more.
fn inline_over_grant(qp: ObjectId, inline: usize, wr_id: u64, stack: &Stack, program: &Program) -> Option<Report> {
    let granted = program.qp(qp)?.caps.max_inline_data;
    let sentence =
        format!("A request has {inline} bytes of inline data, but the queue pair was created for {granted}.");
    let report = Report::new(Rule::InlineOverGrant, sentence).labelled("queue pair", program.name(qp));
    Some(
        report
            .labelled("wr_id", format!("{wr_id}"))
            .at("posted at", stack)
            .at("created at", &program.live_object(qp)?.created)
            .advice(format!(
                "Create the queue pair with cap.max_inline_data = {inline}, read the granted value there after \
                 ibv_create_qp, and post longer data without IBV_SEND_INLINE. Some cards grant more than requested."
            )),
    )
}

/// Time without a receive after which a queue pair is reported while the program still runs.
const HANGS_AFTER: Duration = Duration::from_secs(1);
/// Bytes of the GRH before a datagram.
const GRH_LEN: u64 = 40;

/// `receive-late`, `rnr-timer-zero`, `ud-receive-too-small`.
#[derive(Debug, Default)]
pub(super) struct Receives {
    /// Start of the wait for a receive, by queue pair.
    late_since: IdMap<ObjectId, Instant>,
    reported: IdSet<(ObjectId, Rule)>,
}

impl Observer for Receives {
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>) {
        match *event {
            Event::Dropped { qp, reason: DropReason::NoReceive, .. } => {
                reports.extend(self.zero_rnr_timer(qp, program));
                reports.extend(self.late(qp, clock::now(), program));
            }
            Event::MessageWaits { qp } => reports.extend(self.late(qp, clock::now(), program)),
            Event::Dropped { qp, reason: DropReason::InvalidRequest, packet: Some(packet) } => {
                reports.extend(self.too_small(qp, &packet, program));
            }
            Event::PostedRecv { queue, request } => {
                reports.extend(self.receive_posted(queue, stack, program));
                reports.extend(self.no_room_for_grh(queue, request, stack, program));
            }
            Event::Modified { qp, attr, mask } if mask.contains(AttrMask::STATE) => {
                if matches!(attr.state, QpState::Reset | QpState::Err) {
                    reports.extend(self.without_receive(qp, program));
                }
            }
            Event::Destroyed(qp) => {
                reports.extend(self.without_receive(qp, program));
                self.reported.retain(|(reported, _)| *reported != qp);
            }
            Event::Exit => {
                let late: Vec<_> = self.late_since.keys().copied().collect();
                reports.extend(late.into_iter().filter_map(|qp| self.without_receive(qp, program)));
            }
            _ => {}
        }
    }
}

impl Receives {
    /// Notes that a message found no receive. Reports the queue pair if none was posted for long:
    /// with rnr_retry 7 the sender retransmits forever, and both programs hang.
    fn late(&mut self, qp: ObjectId, now: Instant, program: &Program) -> Option<Report> {
        // The packet, not the XRC target, selects the queue of the receive.
        let is_known = program.qp(qp).is_some_and(|pair| pair.service != Service::XrcTgt);
        if !is_known || self.reported.contains(&(qp, Rule::ReceiveLate)) {
            return None;
        }
        let waited = now.since(*self.late_since.entry(qp).or_insert(now));
        if waited < HANGS_AFTER {
            return None;
        }
        self.late_since.remove(&qp);
        let end = format!("none was posted in {} ms, and the program still runs", waited.as_millis());
        Some(self.late_report(qp, &end, program)?.at("created at", &program.live_object(qp)?.created))
    }

    /// Reports the queue pairs whose messages waited for the receive that is now posted.
    fn receive_posted(&mut self, queue: ObjectId, stack: &Stack, program: &Program) -> Vec<Report> {
        if self.late_since.is_empty() {
            return vec![];
        }
        let waited = self.late_since.keys().copied().filter(|qp| program.queue_of(*qp, Side::Recv) == queue);
        let waited: Vec<_> = waited.collect();
        let report = |qp| {
            let since = self.late_since.remove(&qp)?;
            let time = clock::now().since(since).as_micros();
            let end = format!("the next one was posted {time} µs later");
            Some(self.late_report(qp, &end, program)?.at("posted at", stack))
        };
        waited.into_iter().filter_map(report).collect()
    }

    /// Reports a queue pair that still waits for a receive when it or its program ends.
    fn without_receive(&mut self, qp: ObjectId, program: &Program) -> Option<Report> {
        let time = clock::now().since(self.late_since.remove(&qp)?).as_micros();
        let end = format!("none was posted in the {time} µs until the queue pair or the program ended");
        let created = &program.live_object(qp)?.created;
        Some(self.late_report(qp, &end, program)?.at("created at", created))
    }

    fn late_report(&mut self, qp: ObjectId, end: &str, program: &Program) -> Option<Report> {
        let service = program.qp(qp)?.service;
        let consequence = if service.is_reliable() {
            "the sender got an RNR NAK and has to wait and retransmit it"
        } else {
            "a card loses it"
        };
        self.reported.insert((qp, Rule::ReceiveLate)).then(|| {
            let sentence = format!("A message found no receive posted: {consequence}; {end}.");
            Report::new(Rule::ReceiveLate, sentence).labelled("queue pair", program.name(qp)).advice(
                "Post receives before the peer can send: the first before it learns of the queue pair, and each new \
                 one before it learns that the previous one was used.",
            )
        })
    }

    /// Reports a queue pair whose sender has to wait because of min_rnr_timer 0.
    fn zero_rnr_timer(&mut self, qp: ObjectId, program: &Program) -> Option<Report> {
        let (attributes, pair) = (program.attributes(qp)?, program.qp(qp)?);
        let is_zero = attributes.has(AttrMask::MIN_RNR_TIMER) && attributes.values.min_rnr_timer & 31 == 0;
        (is_zero && pair.service.is_reliable() && self.reported.insert((qp, Rule::RnrTimerZero))).then(|| {
            let sentence = "A message found no receive posted, and the sender has to wait for 655.36 ms, because \
                            the lower five bits of min_rnr_timer are 0.";
            let report = Report::new(Rule::RnrTimerZero, sentence).labelled("queue pair", program.name(qp));
            let advice = "Set min_rnr_timer to 1, which is 10 µs, or to what the program needs; 12 is 640 µs.";
            report.at("set at", &attributes.call(AttrMask::MIN_RNR_TIMER)).advice(advice)
        })
    }

    /// Reports a receive that is too short for any datagram.
    fn no_room_for_grh(
        &mut self,
        queue: ObjectId,
        request: &RecvRequest<'_>,
        stack: &Stack,
        program: &Program,
    ) -> Option<Report> {
        let (wr_id, room) = (request.wr_id, length(request.sges));
        if program.qp(queue)?.service != Service::Ud || room >= GRH_LEN {
            return None;
        }
        let sentence = format!(
            "The receive with wr_id {wr_id} has room for {room} bytes, but the GRH before each datagram takes 40."
        );
        self.too_small_report(queue, sentence, stack, program)
    }

    /// Reports a datagram that was dropped because its receive is too short.
    fn too_small(&mut self, qp: ObjectId, packet: &DroppedPacket, program: &Program) -> Option<Report> {
        if program.qp(qp)?.service != Service::Ud {
            return None;
        }
        let next = program.outstanding(Side::Recv, program.queue_of(qp, Side::Recv)).find(|work| !work.completed)?;
        let (room, len, wr_id) = (length(&next.sges), packet.len, next.wr_id);
        let needed = GRH_LEN + len as u64;
        if room >= needed {
            return None;
        }
        let missing = needed - room;
        let sentence = format!(
            "A datagram of {len} bytes needs {needed} with its GRH, but the receive with wr_id {wr_id} has room for \
             {room}: {missing} too few."
        );
        self.too_small_report(qp, sentence, &next.posted, program)
    }

    fn too_small_report(&mut self, qp: ObjectId, sentence: String, stack: &Stack, program: &Program) -> Option<Report> {
        self.reported.insert((qp, Rule::UdReceiveTooSmall)).then(|| {
            let report = Report::new(Rule::UdReceiveTooSmall, sentence).labelled("queue pair", program.name(qp));
            let advice = "Post receives that are 40 bytes longer than the longest message; the message begins after \
                          those 40 bytes.";
            report.at("posted at", stack).advice(advice)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Card, datagram, write};
    use roxe_transport::qp::QpAttr;
    use roxe_transport::wr::SendFlags;

    #[test]
    fn queue_full_of_unsignaled_requests_is_reported() {
        let mut card = Card::new();
        let qp = card.qp();
        for wr_id in 0..2 {
            assert_eq!(card.post(qp, &write(wr_id, SendFlags::empty())), []);
        }
        assert_eq!(card.refuse(qp, PostError::QueueFull), [Rule::NeverSignaled]);
    }

    #[test]
    fn full_queue_is_reported_unless_polled_next() {
        let mut card = Card::new();
        let qp = card.qp();
        card.post(qp, &write(1, SendFlags::SIGNALED));
        card.complete(qp, 1);
        assert_eq!(card.refuse(qp, PostError::QueueFull), []);
        assert_eq!(card.poll(qp, 1), []);
        card.post(qp, &write(2, SendFlags::SIGNALED));
        card.complete(qp, 2);
        assert_eq!(card.refuse(qp, PostError::QueueFull), []);
        assert_eq!(card.refuse(qp, PostError::QueueFull), [Rule::SlotsWithoutCompletion]);
    }

    #[test]
    fn refused_inline_data_is_reported() {
        let mut card = Card::new();
        let qp = card.qp();
        assert_eq!(card.refuse(qp, PostError::InlineTooLong), [Rule::InlineOverGrant]);
        assert_eq!(card.refuse(qp, PostError::TooManySges), []);
    }

    fn no_receive(card: &mut Card, qp: ObjectId) -> Vec<Rule> {
        card.emit(Event::Dropped { qp, reason: DropReason::NoReceive, packet: None })
    }

    #[test]
    fn late_receive_is_reported_once() {
        let mut card = Card::new();
        let qp = card.qp();
        assert_eq!(card.receive(qp, 100), []);
        assert_eq!(no_receive(&mut card, qp), []);
        assert_eq!(no_receive(&mut card, qp), []);
        assert_eq!(card.receive(qp, 100), [Rule::ReceiveLate]);
        assert_eq!(no_receive(&mut card, qp), []);
        assert_eq!(card.receive(qp, 100), []);
    }

    #[test]
    fn missing_receive_is_reported_while_program_hangs() {
        let mut card = Card::new();
        let (qp, mut receives) = (card.qp(), Receives::default());
        let mut late = |time| receives.late(qp, Instant(1).after(time), &card.program).map(|report| report.rule);
        assert_eq!(late(Duration::from_millis(1)), None);
        assert_eq!(late(Duration::from_millis(1000)), None);
        assert_eq!(late(Duration::from_millis(1001)), Some(Rule::ReceiveLate));
        assert_eq!(late(Duration::from_millis(3000)), None);
    }

    #[test]
    fn missing_receive_is_reported_at_qp_destroy() {
        let mut card = Card::new();
        let (qp, other) = (card.qp_of(Service::Uc), card.qp());
        assert_eq!(card.emit(Event::MessageWaits { qp }), []);
        assert_eq!(card.receive(other, 100), []);
        assert_eq!(card.emit(Event::Destroyed(qp)), [Rule::ReceiveLate]);
        assert_eq!(card.emit(Event::Destroyed(other)), []);
    }

    #[test]
    fn zero_rnr_timer_is_reported_after_a_missing_receive() {
        let mut card = Card::new();
        for (min_rnr_timer, expected) in [(0, &[Rule::RnrTimerZero][..]), (1, &[])] {
            let qp = card.qp();
            let attr = QpAttr { min_rnr_timer, ..QpAttr::default() };
            assert_eq!(card.emit(Event::Modified { qp, attr: &attr, mask: AttrMask::MIN_RNR_TIMER }), []);
            assert_eq!(no_receive(&mut card, qp), expected);
        }
    }

    #[test]
    fn receive_without_room_for_grh_is_reported() {
        let mut card = Card::new();
        let [short, long, none] = [(); 3].map(|()| card.qp_of(Service::Ud));
        let lose = |card: &mut Card, qp, len| {
            card.emit(Event::Dropped { qp, reason: DropReason::InvalidRequest, packet: Some(datagram(0, len)) })
        };
        assert_eq!(card.receive(short, 64), []);
        assert_eq!(lose(&mut card, short, 64), [Rule::UdReceiveTooSmall]);
        assert_eq!(card.receive(long, 104), []);
        assert_eq!(lose(&mut card, long, 64), []);
        assert_eq!(card.receive(none, 39), [Rule::UdReceiveTooSmall]);
        let rc = card.qp();
        assert_eq!(card.receive(rc, 8), []);
    }
}
