//! Local operations of the send queue: binding memory windows, invalidating keys.
//!
//! They take their turn like every other request but send nothing and take no PSN. One starts when
//! everything before it is complete (`is_fenced` holds it back until then), so it is never repeated
//! by a retry, and what follows it finds it done. Touches the send queue's cursors and, through the
//! host, the memory keys.

use crate::cx::Host;
use crate::qp::requester::{Requester, Step};
use crate::qp::shared::Shared;
use crate::wr::{Bind, SendOp, WcStatus};

impl Requester {
    /// Executes the local operation at the cursor, which is the oldest request.
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
