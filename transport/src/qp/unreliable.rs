//! UC and UD: sending of both, receiving of UD. A work request completes when its last packet is in
//! the batch. A received datagram is placed after the 40 bytes of its GRH, or silently dropped
//! (IBA §9.8.3). The responder handles UC requests.

use crate::cx::{Host, RxPayload, TxBatch};
use crate::qp::receive_queue::RecvQueue;
use crate::qp::refusal::Refusal;
use crate::qp::requester::{Requester, Step};
use crate::qp::responder::Responder;
use crate::qp::segment::{Outgoing, Put, TxPacket};
use crate::qp::shared::{DropReason, Service, Shared};
use crate::wr::{Av, Cqe, SendOp, WcExtra, WcOpcode, WcStatus};
use roxe_wire::{Bth, Deth, Header, ImmDt, Kind, NetHeader, PathMtu, Qkey, Qpn, UcRequest, icrc};

struct NextPacket {
    av: Av,
    qpn: Qpn,
    kind: Kind,
    packet: Outgoing,
}

impl Requester {
    /// Writes the UC or UD packet at the cursor into the batch.
    pub(crate) fn send_unreliable<H: Host, T: TxBatch>(&mut self, sh: &mut Shared, host: &mut H, tx: &mut T) -> Step {
        if self.sq.get(self.cursor.wqe).is_some_and(|wqe| wqe.op.is_local()) {
            return self.run_local(sh, host);
        }
        let next = match sh.config.service {
            Service::Ud => self.next_ud(sh),
            _ => self.next_uc(sh),
        };
        let NextPacket { av, qpn, kind, packet } = match next {
            Ok(next) => next,
            Err(status) => return self.stop_with(sh, host, status),
        };
        let cost = packet.cost::<H>();
        if !self.room_reserved && !host.reserve(&av, qpn, cost, self.burst) {
            return Step::Stop;
        }
        self.room_reserved = true;
        // clause: BTH-MIGRATED, UC-SILENT
        let bth = Bth { solicited: packet.solicited, mig_req: sh.mig_req(), ..Bth::new(qpn, self.cursor.psn) };
        let Some(wqe) = self.sq.get(self.cursor.wqe) else { return Step::Stop };
        let (payload, note) = (self.sq.payload(self.cursor.wqe, wqe), self.packet_note(sh, wqe));
        match (TxPacket { av: &av, header: Header { bth, kind }, payload, note }).put(host, tx, &packet) {
            Put::Done => {}
            Put::Full => return Step::BatchFull,
            Put::Fault => return self.stop_with(sh, host, WcStatus::LocProtErr),
        }
        self.room_reserved = false;
        self.burst = self.burst.saturating_add(cost);
        self.advance(1);
        self.una_psn = self.cursor.psn;
        // clause: UC-DONE-WHEN-SENT
        if self.cursor.packet == 0 {
            self.complete_head(sh, host);
            self.check_drained(sh);
        }
        Step::Sent(packet.len)
    }

    fn next_uc(&mut self, sh: &Shared) -> Result<NextPacket, WcStatus> {
        let mtu = sh.attr.path_mtu;
        self.begin(mtu);
        let wqe = self.sq.get(self.cursor.wqe).ok_or(WcStatus::GeneralErr)?;
        let packet = Outgoing::of(wqe, self.cursor.packet, mtu).ok_or(WcStatus::LocQpOpErr)?;
        let request = UcRequest::try_from(packet.request).map_err(|_| WcStatus::LocQpOpErr)?;
        Ok(NextPacket { av: sh.path, qpn: sh.attr.dest_qpn, kind: Kind::UcRequest(request), packet })
    }

    /// Returns the packet at the cursor of a UD queue. A message that does not fit a packet fails
    /// with a local length error, as on hardware; IBA §9.8.3 only requires that no packet is sent.
    fn next_ud(&mut self, sh: &Shared) -> Result<NextPacket, WcStatus> {
        self.begin(PathMtu::Mtu4096);
        let index = self.cursor.wqe;
        let (wqe, dest) = self.sq.get(index).zip(self.sq.dest(index)).ok_or(WcStatus::GeneralErr)?;
        // clause: UD-PORT-MTU
        if wqe.length > sh.config.port_mtu || wqe.packets != 1 {
            return Err(WcStatus::LocLenErr);
        }
        let imm = if let SendOp::SendImm(imm) = wqe.op { Some(imm) } else { None };
        let deth = Deth { qkey: qkey_to_send(sh, dest.qkey), src_qpn: sh.config.qpn };
        let packet = Outgoing::of(wqe, 0, PathMtu::Mtu4096).ok_or(WcStatus::LocQpOpErr)?;
        Ok(NextPacket { av: dest.av, qpn: dest.qpn, kind: Kind::Ud { deth, imm }, packet })
    }
}

/// Returns the Q_Key to send: the requested one, or the QP's own if the requested one has its top
/// bit set (IBA §10.2.5). QP1 always uses the well-known key.
fn qkey_to_send(sh: &Shared, requested: Qkey) -> Qkey {
    match requested {
        // clause: UD-QKEY-GSI
        _ if sh.config.qpn == Qpn::GSI => Qkey::GSI,
        // clause: UD-QKEY-CONTROLLED
        _ if requested.is_controlled() => sh.attr.qkey,
        _ => requested,
    }
}

/// Length of the GRH before a received datagram, in bytes (`man ibv_post_recv`).
pub const GRH_LEN: u32 = 40;

/// Type of the layer-3 header, which hardware reports in `sl` on RoCEv2. UCX reads it to find the
/// addresses.
const L3_IPV4: u8 = 0b1010;
const L3_IPV6: u8 = 0b1001;

#[derive(Clone, Copy)]
pub(crate) struct Datagram<'a> {
    pub(crate) header: &'a Header,
    pub(crate) deth: &'a Deth,
    pub(crate) imm: Option<ImmDt>,
    pub(crate) payload: RxPayload<'a>,
}

impl Responder {
    /// Handles a datagram. Drops it if there is no receive, or if the receive is too short; the
    /// receive then stays.
    ///
    /// # Errors
    /// The datagram was dropped.
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
        let udp_payload_len = datagram.header.padded_len(datagram.payload.len()) + icrc::LEN;
        // clause: UD-GRH
        let grh = rq.scatter(host, 0, RxPayload::Bytes(&net.to_grh(udp_payload_len)));
        if grh.and_then(|()| rq.scatter(host, GRH_LEN, datagram.payload)).is_err() {
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

/// Drop reason of a datagram, and the refusal if its length is wrong.
type Lost = (DropReason, Option<Refusal>);

/// Acquires a receive and returns the bytes that the datagram occupies in it.
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

#[cfg(test)]
mod tests;
