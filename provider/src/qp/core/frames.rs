//! Frames of a raw packet queue pair.

use super::{Inner, QpCore, Report};
use crate::host::QpHost;
use roxe_transport::qp::FrameNote;
use roxe_transport::time::Instant;

impl QpCore {
    /// Takes in a frame that a flow has chosen this queue pair for.
    pub(crate) fn receive_frame(&self, frame: &[u8], note: FrameNote, now: Instant) -> Report {
        let mut inner = self.inner.lock();
        if inner.is_cut_off {
            return Report::default();
        }
        let Inner { machine, path, .. } = &mut *inner;
        let mut host = QpHost::new(self, path, now);
        self.count(machine.handle_frame(&mut host, frame, note));
        let report = host.end();
        report | self.settle(&mut inner)
    }
}
