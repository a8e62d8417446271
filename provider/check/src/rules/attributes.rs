//! Rules on the attributes of one queue pair: values that exceed the limits of the port, values
//! that programs misunderstand (timeout 0), and undefined values.

use crate::event::Event;
use crate::id_map::{IdMap, IdSet};
use crate::program::{Observer, Program};
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use roxe_base::clock;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::qp::{AttrMask, QpAttr, QpState, RetryCounts};
use roxe_transport::time::Instant;
use std::time::Duration;

/// Time after which an unacknowledged request of a live connection counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// Checks `mtu-over-port`, `timeout-zero` and `attr-garbage`.
#[derive(Debug, Default)]
pub(super) struct AttributeRules {
    /// Queue pairs with a `timeout-zero` report.
    reported: IdSet<ObjectId>,
    /// For queue pairs with timeout 0: time of the first send that was posted after the last
    /// completion.
    waits: IdMap<ObjectId, Instant>,
}

impl Observer for AttributeRules {
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>) {
        // Cards accept some out-of-range values, so accepted calls are checked too.
        if let Event::Modified { qp, attr, mask } | Event::ModifyRefused { qp, attr, mask, .. } = *event {
            reports.extend(out_of_range(qp, (attr, mask), stack, program));
        }
        match *event {
            Event::ModifyRefused { qp, attr, mask, .. } => {
                reports.extend(mtu_over_port(qp, (attr, mask), stack, program));
            }
            Event::UndefinedValue { call, argument, value, accepted } => {
                let sentence = format!("{argument} of {call} is {value:#x}; accepted are {accepted}.");
                reports.push(garbage_report(sentence, stack));
            }
            Event::Retried { qp, counts } => reports.extend(self.check_retries(qp, counts, program)),
            Event::PostedSend { qp, .. } if has_no_ack_timer(qp, program) => {
                self.waits.entry(qp).or_insert_with(clock::now);
            }
            Event::Completed { qp, side: Side::Send, .. } => {
                self.waits.remove(&qp);
            }
            Event::Modified { qp, attr, mask } if mask.contains(AttrMask::STATE) => {
                if attr.state == QpState::Err {
                    reports.extend(self.check_unanswered(qp, program));
                }
                self.waits.remove(&qp);
            }
            Event::Destroyed(qp) => {
                reports.extend(self.check_unanswered(qp, program));
                self.waits.remove(&qp);
                self.reported.remove(&qp);
            }
            Event::Exit => {
                let waiting: Vec<_> = self.waits.keys().copied().collect();
                reports.extend(waiting.into_iter().filter_map(|qp| self.check_unanswered(qp, program)));
            }
            _ => {}
        }
    }
}

impl AttributeRules {
    fn check_retries(&mut self, qp: ObjectId, counts: RetryCounts, program: &Program) -> Option<Report> {
        let attributes = program.attributes(qp)?;
        let has_gap = counts.packet_seq_err > 0 || counts.implied_nak_seq_err > 0;
        let has_loss = has_gap || counts.local_ack_timeout_err > 0;
        let (timeout, retry_cnt) = (AttrMask::TIMEOUT, AttrMask::RETRY_CNT);
        let (bit, sentence, advice) = if has_loss && attributes.has(retry_cnt) && attributes.values.retry_cnt == 0 {
            let sentence =
                "A packet was lost or not acknowledged in time, and with retry_cnt 0 the connection fails at once.";
            (retry_cnt, sentence, "Set retry_cnt to 7, or to the number of times in a row that a packet may be lost.")
        } else if has_gap && attributes.has(timeout) && attributes.values.timeout == 0 {
            let sentence = "A packet was lost, and a later one revealed it. Had it been the last packet, timeout 0 \
                            would have waited forever.";
            (timeout, sentence, TIMEOUT_ADVICE)
        } else {
            return None;
        };
        let stack = attributes.call(bit);
        self.reported.insert(qp).then(|| {
            let report = Report::new(Rule::TimeoutZero, sentence).labelled("queue pair", program.name(qp));
            report.at("set at", &stack).advice(advice)
        })
    }

    /// Reports a queue pair with timeout 0 that ends while a request has been unacknowledged for at
    /// least [`LOST_AFTER`].
    fn check_unanswered(&mut self, qp: ObjectId, program: &Program) -> Option<Report> {
        let waited = clock::now().since(*self.waits.get(&qp)?);
        let first = program.outstanding(Side::Send, qp).find(|work| work.signaled && !work.completed)?;
        if waited < LOST_AFTER || !has_no_ack_timer(qp, program) || !self.reported.insert(qp) {
            return None;
        }
        let (operation, wr_id, secs) = (first.operation(), first.wr_id, waited.as_secs_f64());
        let sentence = format!(
            "The {operation} with wr_id {wr_id} was not acknowledged for {secs:.1} s: with timeout 0 no timer \
             retransmits a lost packet."
        );
        let report = Report::new(Rule::TimeoutZero, sentence).labelled("queue pair", program.name(qp));
        let report = report.at("posted at", &first.posted);
        Some(report.at("set at", &program.attributes(qp)?.call(AttrMask::TIMEOUT)).advice(TIMEOUT_ADVICE))
    }
}

const TIMEOUT_ADVICE: &str = "Set timeout to 14 (67 ms), or to a value that suits the path.";

/// Returns true if the queue pair is in RTS with timeout 0, so that no timer retransmits.
fn has_no_ack_timer(qp: ObjectId, program: &Program) -> bool {
    program
        .attributes(qp)
        .is_some_and(|known| known.has(AttrMask::TIMEOUT) && known.values.timeout == 0 && known.state == QpState::Rts)
}

fn mtu_over_port(qp: ObjectId, (attr, mask): (&QpAttr, AttrMask), stack: &Stack, program: &Program) -> Option<Report> {
    let (requested, max) = (attr.path_mtu.bytes(), program.qp(qp)?.port_mtu);
    (mask.contains(AttrMask::PATH_MTU) && requested > max).then(|| {
        let sentence = format!("path_mtu is {requested} bytes, but active_mtu of the port is {max} bytes.");
        let report = Report::new(Rule::MtuOverPort, sentence).labelled("queue pair", program.name(qp));
        let advice = "Use the smaller active_mtu of the two ports; ibv_query_port returns it.";
        report.at("set at", stack).advice(advice)
    })
}

/// Reports a number outside the range of its field.
fn out_of_range(qp: ObjectId, (attr, mask): (&QpAttr, AttrMask), stack: &Stack, program: &Program) -> Option<Report> {
    let values = [
        (AttrMask::TIMEOUT, "timeout", attr.timeout, 0..=31),
        (AttrMask::RETRY_CNT, "retry_cnt", attr.retry_cnt, 0..=7),
        (AttrMask::RNR_RETRY, "rnr_retry", attr.rnr_retry, 0..=7),
        (AttrMask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer, 0..=31),
        (AttrMask::PORT, "port_num", attr.port, 1..=u8::MAX),
    ];
    let (_, name, value, range) =
        values.into_iter().find(|(bit, _, value, range)| mask.contains(*bit) && !range.contains(value))?;
    let (low, high) = range.into_inner();
    let sentence = format!("{name} of ibv_modify_qp is {value}; it must be {low} to {high}.");
    Some(garbage_report(sentence, stack).labelled("queue pair", program.name(qp)))
}

fn garbage_report(sentence: String, stack: &Stack) -> Report {
    let advice = "Zero the whole structure first, then set each field that the mask selects to a documented value.";
    Report::new(Rule::AttrGarbage, sentence).at("called at", stack).advice(advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Card;
    use roxe_base::error::Error;
    use roxe_wire::PathMtu;

    fn refuse_modify(card: &mut Card, qp: ObjectId, attr: &QpAttr, mask: AttrMask) -> Vec<Rule> {
        card.emit(Event::ModifyRefused { qp, attr, mask, error: &Error::invalid("refused") })
    }

    #[test]
    fn path_mtu_above_port_mtu_is_reported() {
        let mut card = Card::new();
        let qp = card.qp();
        let attr = QpAttr { path_mtu: PathMtu::Mtu2048, ..QpAttr::default() };
        assert_eq!(refuse_modify(&mut card, qp, &attr, AttrMask::PATH_MTU), [Rule::MtuOverPort]);
        assert_eq!(refuse_modify(&mut card, qp, &attr, AttrMask::STATE), []);
        let attr = QpAttr { path_mtu: PathMtu::Mtu1024, ..attr };
        assert_eq!(refuse_modify(&mut card, qp, &attr, AttrMask::PATH_MTU), []);
    }

    #[test]
    fn invalid_value_selected_by_the_mask_is_reported() {
        let mut card = Card::new();
        let qp = card.qp();
        let attr = QpAttr { timeout: 32, retry_cnt: 7, ..QpAttr::default() };
        assert_eq!(refuse_modify(&mut card, qp, &attr, AttrMask::TIMEOUT), [Rule::AttrGarbage]);
        assert_eq!(refuse_modify(&mut card, qp, &attr, AttrMask::RETRY_CNT), []);
        // Cards accept such a min_rnr_timer and use its lower five bits only.
        let attr = QpAttr { min_rnr_timer: 0x20, ..QpAttr::default() };
        let modified = Event::Modified { qp, attr: &attr, mask: AttrMask::MIN_RNR_TIMER };
        assert_eq!(card.emit(modified), [Rule::AttrGarbage]);
        let garbage =
            Event::UndefinedValue { call: "ibv_modify_qp", argument: "attr_mask", value: 1 << 30, accepted: "bits" };
        assert_eq!(card.emit(garbage), [Rule::AttrGarbage]);
    }

    #[test]
    fn zero_retry_cnt_is_reported_after_a_loss() {
        let mut card = Card::new();
        for (retry_cnt, expected) in [(0, &[Rule::TimeoutZero][..]), (7, &[])] {
            let qp = card.qp();
            let attr = QpAttr { timeout: 14, retry_cnt, ..QpAttr::default() };
            card.emit(Event::Modified { qp, attr: &attr, mask: AttrMask::TIMEOUT | AttrMask::RETRY_CNT });
            let not_ready = RetryCounts { rnr_nak_retry_err: 1, ..RetryCounts::default() };
            assert_eq!(card.emit(Event::Retried { qp, counts: not_ready }), []);
            let timeouts = RetryCounts { local_ack_timeout_err: 1, ..RetryCounts::default() };
            assert_eq!(card.emit(Event::Retried { qp, counts: timeouts }), expected);
            assert_eq!(card.emit(Event::Retried { qp, counts: timeouts }), [], "a queue pair is reported once");
        }
    }
}
