//! XRC: every request carries the number of a shared receive queue of the target's domain.

use crate::cx::Host;
use crate::qp::refusal::Refusal;
use crate::qp::responder::{Incoming, OpenMessage, Responder};
use crate::qp::shared::{DropReason, Shared};
use roxe_wire::XrcEth;

impl Responder {
    /// Handles an XRC request like [`Responder::handle_request`], with the receives, completions
    /// and key domain of the SRQ in the packet's XRCETH.
    ///
    /// # Errors
    /// The request was not executed.
    pub(crate) fn handle_xrc<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        XrcEth(srqn): XrcEth,
        incoming: Incoming<'_>,
    ) -> Result<(), DropReason> {
        // Select the SRQ also for duplicates: their key domain is that of the SRQ.
        // clause: XRC-QUEUE-KNOWN
        let is_known = host.select_srq(srqn);
        if incoming.bth.psn == self.progress.e_psn {
            // clause: XRC-ONE-QUEUE
            if !is_known || self.open != OpenMessage::None && srqn != self.rq.srqn {
                self.note_established(sh);
                return Err(self.refuse(sh, host, Refusal::SharedQueue));
            }
            self.rq.srqn = srqn;
        }
        self.handle_request(sh, host, incoming)
    }
}
