//! Acknowledgements that are delayed to travel with the program's next packet.
//!
//! One at a time, under the receive lock: with several busy queue pairs a delay gains little.
//! [`crate::poll_policy::delayed_ack`] decides which are delayed and how long.

use crate::engine::Engine;
use crate::poll_policy::delayed_ack;
use crate::queue_pair::{QueuePair, VisitOutcome};
use crate::rx_state::{PendingAck, PollSource, RxState};
use crate::scheduler::Task;
use roxe_transport::time::Instant;
use std::sync::Arc;

impl Engine {
    /// Sends the responses after a visit with `outcome`, or delays a lone acknowledgement.
    pub(crate) fn serve_or_delay_ack(
        &self,
        pending_ack: &mut Option<PendingAck>,
        qp: &Arc<dyn QueuePair>,
        outcome: VisitOutcome,
        now: Instant,
    ) {
        if let Some(until) = qp.serve_or_delay_ack(outcome, now) {
            self.note_delayed(pending_ack, qp, until, now);
        }
    }

    /// Notes that `qp` has delayed an acknowledgement until `until`.
    pub(crate) fn note_delayed(
        &self,
        pending_ack: &mut Option<PendingAck>,
        qp: &Arc<dyn QueuePair>,
        until: Instant,
        now: Instant,
    ) {
        match pending_ack {
            Some(pending_ack) if Arc::ptr_eq(&pending_ack.qp, qp) => pending_ack.until = until,
            _ => {
                if let Some(before) = pending_ack.replace(PendingAck { qp: Arc::clone(qp), until }) {
                    before.qp.send_delayed_ack(now);
                }
            }
        }
        self.scheduler.publish(Task::DelayedAck, Some(delayed_ack::due_in_background(until)));
    }

    /// Sends a delayed acknowledgement due at `by`, unless the program has sent it along.
    #[inline]
    pub(crate) fn send_delayed_ack(&self, state: &mut RxState, by: Instant, now: Instant) {
        let by_program = state.source == PollSource::Program;
        if let Some(ended) =
            state.pending_ack.take_if(|pending_ack| delayed_ack::is_over(pending_ack.until, by, by_program))
        {
            self.scheduler.publish(Task::DelayedAck, None);
            ended.qp.send_delayed_ack(now);
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
    fn ack_waits_longer_under_background_thread() {
        let engine = private_engine(config().unwrap());
        let mut rx = engine.rx.lock();
        let state = &mut rx.state;
        let (until, soon) = (Instant(1_000_000), Duration::from_nanos(1));
        let mut waits = |source, by| {
            let qp = Arc::new(FakeQp(Qpn::new(7))) as Arc<dyn QueuePair>;
            state.pending_ack = Some(PendingAck { qp, until: until.after(soon) });
            state.source = source;
            engine.send_delayed_ack(state, by, by);
            state.pending_ack.take().is_some()
        };
        let [early, late] = [until, until.after(GRACE)].map(|by| [by, by.after(soon)]);
        let looks = [PollSource::Program, PollSource::Woken, PollSource::Spinning];
        assert_eq!(looks.map(|source| early.map(|by| waits(source, by))), [[true, false], [true; 2], [true; 2]]);
        assert_eq!(looks.map(|source| late.map(|by| waits(source, by))), [[false; 2], [true, false], [true, false]]);
    }
}
