//! Datagrams: each packet is a message that lands behind the 40 bytes of its GRH, or is lost in
//! silence (IBA §9.8.3).
//!
//! May touch the receive queue, [`Shared`] and the host.

use crate::cx::{Host, MemError, RxPayload};
use crate::qp::refusal::Refusal;
use crate::qp::responder::Responder;
use crate::qp::rq::RecvQueue;
use crate::qp::shared::{DropReason, Shared};
use crate::wr::{Cqe, WcExtra, WcOpcode, WcStatus};
use roxe_wire::{Deth, Header, ImmDt, NetHeader, icrc};

/// Bytes in front of the payload of a received datagram (`man ibv_post_recv`).
pub const GRH_LEN: u32 = 40;

/// What hardware reports in `sl` on RoCEv2: the type of the layer-3 header. UCX reads it to tell
/// where the addresses are.
const L3_IPV4: u8 = 0b1010;
const L3_IPV6: u8 = 0b1001;

/// A datagram as it came in.
#[derive(Clone, Copy)]
pub(crate) struct Datagram<'a> {
    /// All its headers.
    pub(crate) header: &'a Header,
    pub(crate) deth: &'a Deth,
    pub(crate) imm: Option<ImmDt>,
    pub(crate) payload: RxPayload<'a>,
}

impl Responder {
    /// A datagram for this QP. One that finds no receive, or one that is too short, is lost, and
    /// the receive stays.
    ///
    /// # Errors
    /// Why it was lost.
    pub(crate) fn handle_ud<H: Host>(
        &mut self,
        sh: &mut Shared,
        host: &mut H,
        net: &NetHeader,
        datagram: &Datagram<'_>,
    ) -> Result<(), DropReason> {
        let rq = &mut self.rq;
        let byte_len = check(sh, host, rq, datagram).map_err(|(reason, refusal)| {
            self.refused = refusal;
            reason
        })?;
        // clause: UNRELIABLE-OWN-FAULT
        if place(host, rq, net, datagram).is_err() {
            let cqe = Cqe { status: WcStatus::LocProtErr, opcode: WcOpcode::Recv, ..Cqe::default() };
            rq.complete(sh, host, cqe);
            sh.fail();
            return Err(DropReason::LocalProtection);
        }
        let cqe = Cqe {
            opcode: WcOpcode::Recv,
            byte_len,
            extra: datagram.imm.map_or(WcExtra::None, WcExtra::Imm),
            src_qpn: datagram.deth.src_qpn,
            grh: true,
            // clause: UD-COMPLETION
            sl: if net.dst.is_ipv4() { L3_IPV4 } else { L3_IPV6 },
            solicited: datagram.header.bth.solicited,
            ..Cqe::default()
        };
        rq.complete(sh, host, cqe);
        Ok(())
    }
}

/// Why a datagram is lost, and what is wrong with its length if that is it.
type Lost = (DropReason, Option<Refusal>);

/// Bytes the datagram takes in the current receive, or why it is lost.
fn check<H: Host>(sh: &Shared, host: &mut H, rq: &mut RecvQueue, datagram: &Datagram<'_>) -> Result<u32, Lost> {
    // clause: UD-QKEY
    if datagram.deth.qkey != sh.attr.qkey {
        return Err((DropReason::Qkey, None));
    }
    let len = u32::try_from(datagram.payload.len()).map_err(|_| (DropReason::InvalidRequest, Some(Refusal::Length)))?;
    // clause: UD-PORT-MTU
    if len > sh.config.port_mtu {
        return Err((DropReason::InvalidRequest, Some(Refusal::Length)));
    }
    if !rq.acquire(host) {
        return Err((DropReason::NoReceive, None));
    }
    let byte_len = GRH_LEN + len;
    // clause: UD-LOST
    if u64::from(byte_len) > rq.room() {
        Err((DropReason::InvalidRequest, Some(Refusal::ReceiveTooShort)))
    } else {
        Ok(byte_len)
    }
}

/// The GRH, or what an IP header gives of one, and then the payload.
fn place<H: Host>(host: &mut H, rq: &RecvQueue, net: &NetHeader, datagram: &Datagram<'_>) -> Result<(), MemError> {
    let udp_payload_len = datagram.header.padded_len(datagram.payload.len()) + icrc::LEN;
    // clause: UD-GRH
    rq.scatter(host, 0, RxPayload::Bytes(&net.to_grh(udp_payload_len)))?;
    rq.scatter(host, GRH_LEN, datagram.payload)
}

#[cfg(test)]
mod tests;
