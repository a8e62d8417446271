//! Raw packets: a work request is one whole Ethernet frame (`man ibv_create_qp`,
//! `IBV_QPT_RAW_PACKET`). Flow steering selects the received frames, see [`crate::steering`].

use crate::cx::{Host, TxBatch, TxRoom};
use crate::qp::queue_pair::Qp;
use crate::qp::requester::{Requester, Step};
use crate::qp::responder::Responder;
use crate::qp::shared::{DropReason, Shared};
use crate::wr::{Cqe, SendFlags, WcOpcode, WcStatus};
use roxe_wire::frame::{self, checksum};

/// Metadata of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameNote {
    /// Tag of the matched flow; 0: none.
    pub flow_tag: u32,
    /// True if the frame is TCP or UDP over IPv4 with correct checksums.
    pub ip_csum_ok: bool,
}

impl Qp {
    /// Handles a frame that flow steering selected for this QP.
    ///
    /// # Errors
    /// The frame was dropped; the reason is for counters.
    pub fn handle_frame<H: Host>(&mut self, host: &mut H, frame: &[u8], note: FrameNote) -> Result<(), DropReason> {
        // clause: TAKE-REQUESTS
        let result = if self.shared.state.accepts_requests() {
            self.responder.handle_frame(&mut self.shared, host, frame, note)
        } else {
            Err(DropReason::BadState)
        };
        self.settle(host);
        result
    }
}

impl Responder {
    /// Receives a frame. Drops it if there is no receive, or if the receive is too short; the
    /// receive then stays.
    fn handle_frame<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        frame: &[u8],
        note: FrameNote,
    ) -> Result<(), DropReason> {
        let rq = &mut self.rq;
        if !rq.acquire(host) {
            return Err(DropReason::NoReceive);
        }
        // clause: RAW-LOST
        let byte_len = u32::try_from(frame.len()).map_err(|_| DropReason::InvalidRequest)?;
        if u64::from(byte_len) > rq.room() {
            return Err(DropReason::InvalidRequest);
        }
        // clause: UNRELIABLE-OWN-FAULT
        if rq.scatter(host, 0, frame.into()).is_err() {
            let cqe = Cqe { status: WcStatus::LocProtErr, opcode: WcOpcode::Recv, ..Cqe::default() };
            rq.complete(sh, host, cqe);
            sh.fail();
            return Err(DropReason::LocalProtection);
        }
        let FrameNote { flow_tag, ip_csum_ok } = note;
        rq.complete(sh, host, Cqe { opcode: WcOpcode::Recv, byte_len, flow_tag, ip_csum_ok, ..Cqe::default() });
        Ok(())
    }
}

impl Requester {
    /// Writes the frame at the cursor into the batch and completes its work request.
    pub(crate) fn send_frame<H: Host, T: TxBatch>(&mut self, sh: &mut Shared, host: &mut H, tx: &mut T) -> Step {
        let Some(wqe) = self.sq.get(self.cursor.wqe) else { return Step::Stop };
        let (len, flags) = (wqe.length, wqe.flags);
        // clause: RAW-LENGTH
        if !(frame::ETH_LEN..=sh.config.port_mtu as usize).contains(&(len as usize)) {
            return self.stop_with(sh, host, WcStatus::LocLenErr);
        }
        let (payload, note) = (self.sq.payload(self.cursor.wqe, wqe), self.packet_note(sh, wqe));
        let Some(frame) = tx.frame(len as usize, &note) else { return Step::BatchFull };
        if !payload.read(host, 0, TxRoom::Own(frame)) {
            tx.retract();
            return self.stop_with(sh, host, WcStatus::LocProtErr);
        }
        if flags.contains(SendFlags::IP_CSUM) {
            checksum::fill(frame);
        }
        self.advance(1);
        self.una_psn = self.cursor.psn;
        self.complete_head(sh, host);
        self.check_drained(sh);
        Step::Sent(len)
    }
}
