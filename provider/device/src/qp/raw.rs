//! Frames of a raw packet queue pair.

use super::core::{Inner, QpCore};
use super::host::QpHost;
use roxe_engine::queue_pair::VisitOutcome;
use roxe_transport::qp::FrameNote;
use roxe_transport::time::Instant;

impl QpCore {
    /// Takes in a frame that a flow has chosen this queue pair for.
    pub(super) fn receive_frame(&self, frame: &[u8], note: FrameNote, now: Instant) -> VisitOutcome {
        let mut inner = self.inner.lock();
        if inner.is_cut_off {
            return VisitOutcome::default();
        }
        let Inner { machine, state, .. } = &mut *inner;
        state.met.received_bytes += frame.len() as u64;
        let mut host = QpHost::new(&self.resources, state, now);
        self.count(machine.handle_frame(&mut host, frame, note));
        let report = host.end();
        self.end_receiving(&mut inner, report, now)
    }
}
