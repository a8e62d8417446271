//! Acknowledgements that wait a little for the program's own next packet to travel with it.
//!
//! One at a time, under the receive lock: where several queue pairs are busy, waiting gains little.
//! [`crate::poll_policy::delayed_ack`] says which may wait and how long.

use crate::engine::Engine;
use crate::poll_policy::delayed_ack;
use crate::queue_pair::{QueuePair, VisitOutcome};
use crate::rx_state::{RxState, Visitor, Waiting};
use crate::scheduler::Task;
use roxe_transport::time::Instant;
use std::sync::Arc;

impl Engine {
    /// Lets a queue pair answer packets that left `report`, or keeps its answer for its next
    /// packet.
    pub(crate) fn serve_or_wait(
        &self,
        waiting: &mut Option<Waiting>,
        qp: &Arc<dyn QueuePair>,
        report: VisitOutcome,
        now: Instant,
    ) {
        let Some(until) = qp.serve_or_wait(report, now) else { return };
        match waiting {
            Some(waiting) if Arc::ptr_eq(&waiting.qp, qp) => waiting.until = until,
            _ => {
                let before = waiting.replace(Waiting { qp: Arc::clone(qp), until });
                before.into_iter().for_each(|before| before.qp.end_waiting(now));
            }
        }
        self.scheduler.publish(Task::DelayedAck, Some(delayed_ack::due_in_background(until)));
    }

    /// Sends an acknowledgement that has waited until `by`, if the program has not sent it along.
    #[inline]
    pub(crate) fn end_waiting(&self, state: &mut RxState, by: Instant, now: Instant) {
        let by_program = state.visitor == Visitor::Program;
        if let Some(ended) = state.waiting.take_if(|waiting| delayed_ack::is_over(waiting.until, by, by_program)) {
            self.scheduler.publish(Task::DelayedAck, None);
            ended.qp.end_waiting(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll_policy::delayed_ack::GRACE;
    use crate::testing::{FakeQp, private_engine};
    use roxe_base::config::config;
    use roxe_wire::Qpn;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn an_acknowledgement_waits_longer_where_the_background_thread_looks_for_packets() {
        let engine = private_engine(config().unwrap());
        let mut rx = engine.rx.lock();
        let state = &mut rx.state;
        let (until, soon) = (Instant(1_000_000), Duration::from_nanos(1));
        let mut waits = |visitor, by| {
            let qp = Arc::new(FakeQp(Qpn::new(7))) as Arc<dyn QueuePair>;
            state.waiting = Some(Waiting { qp, until: until.after(soon) });
            state.visitor = visitor;
            engine.end_waiting(state, by, by);
            state.waiting.take().is_some()
        };
        let [early, late] = [until, until.after(GRACE)].map(|by| [by, by.after(soon)]);
        let looks = [Visitor::Program, Visitor::Woken, Visitor::Spinning];
        assert_eq!(looks.map(|visitor| early.map(|by| waits(visitor, by))), [[true, false], [true; 2], [true; 2]]);
        assert_eq!(looks.map(|visitor| late.map(|by| waits(visitor, by))), [[false; 2], [true, false], [true, false]]);
    }
}
