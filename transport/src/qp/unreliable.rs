//! The send loop of UC and UD: a work request is done when its last packet is in the batch; nothing
//! comes back.

use crate::cx::{Host, TxBatch};
use crate::qp::requester::{Requester, Step};
use crate::qp::segment::{Departing, Outgoing, Put};
use crate::qp::send_queue::SendWqe;
use crate::qp::shared::{Service, Shared};
use crate::wr::{Av, SendOp, WcStatus};
use roxe_wire::{Bth, Deth, Header, Kind, PathMtu, Qkey, Qpn, UcRequest};

/// A packet and the way it goes.
struct Datagram {
    av: Av,
    qpn: Qpn,
    kind: Kind,
    packet: Outgoing,
}

impl Requester {
    /// Puts the UC or UD packet at the cursor into the batch.
    pub(crate) fn send_unreliable<H: Host, T: TxBatch>(&mut self, sh: &mut Shared, host: &mut H, tx: &mut T) -> Step {
        if self.sq.get(self.cursor.wqe).is_some_and(SendWqe::is_local) {
            return self.run_local(sh, host);
        }
        let next = match sh.config.service {
            Service::Ud => self.next_ud(sh),
            _ => self.next_uc(sh),
        };
        let Datagram { av, qpn, kind, packet } = match next {
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
        let (payload, note) = (self.sq.payload(self.cursor.wqe, wqe), self.note(sh, wqe));
        match (Departing { av: &av, header: Header { bth, kind }, payload, note }).put(host, tx, &packet) {
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

    /// The packet at the cursor of a UC queue.
    fn next_uc(&mut self, sh: &Shared) -> Result<Datagram, WcStatus> {
        let mtu = sh.attr.path_mtu;
        self.begin(mtu);
        let wqe = self.sq.get(self.cursor.wqe).ok_or(WcStatus::GeneralErr)?;
        let packet = Outgoing::of(wqe, self.cursor.packet, mtu).ok_or(WcStatus::LocQpOpErr)?;
        let request = UcRequest::try_from(packet.request).map_err(|_| WcStatus::LocQpOpErr)?;
        Ok(Datagram { av: sh.path, qpn: sh.attr.dest_qpn, kind: Kind::UcRequest(request), packet })
    }

    /// The message at the cursor of a UD queue. One that does not fit a packet fails (IBA §9.8.3
    /// only says that nothing is sent; hardware reports a local length error).
    fn next_ud(&mut self, sh: &Shared) -> Result<Datagram, WcStatus> {
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
        Ok(Datagram { av: dest.av, qpn: dest.qpn, kind: Kind::Ud { deth, imm }, packet })
    }
}

/// The Q_Key for a datagram: what the request says, or the QP's own if that has its top bit set
/// (IBA §10.2.5). QP1 always uses the well-known key.
fn qkey_to_send(sh: &Shared, asked: Qkey) -> Qkey {
    match asked {
        // clause: UD-QKEY-GSI
        _ if sh.config.qpn == Qpn::GSI => Qkey::GSI,
        // clause: UD-QKEY-CONTROLLED
        asked if asked.is_controlled() => sh.attr.qkey,
        asked => asked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::{AttrMask, QpAttr, QpState};
    use crate::sim::setup::{QKEY, QPN_B, av};
    use crate::sim::{Pair, Peer, Rng, Setup};
    use crate::wr::{SendData, SendFlags, SendRequest, UdDest};

    // clause: UD-QKEY-CONTROLLED, UD-QKEY-GSI
    #[test]
    fn a_controlled_q_key_in_a_request_stands_for_that_of_the_queue_pair() {
        let (qp, _) = Setup::of(Service::Ud).make(Peer::A);
        let mut sh = Shared::new(*qp.config());
        sh.attr.qkey = Qkey(7);
        assert_eq!(qkey_to_send(&sh, Qkey(0x7fff_ffff)), Qkey(0x7fff_ffff));
        assert_eq!(qkey_to_send(&sh, Qkey(0x8000_0000)), Qkey(7));
        sh.config.qpn = Qpn::GSI;
        assert_eq!(qkey_to_send(&sh, Qkey(5)), Qkey::GSI);
    }

    // clause: STATE-SQE
    #[test]
    fn a_send_error_flushes_posted_requests_until_the_queue_is_restarted() {
        let mut pair = Pair::idle(Setup::of(Service::Ud), Rng::new(1));
        pair.bring_to(Peer::A, QpState::Rts);
        let mr = pair.end(Peer::A).host.memory.register(257, crate::wr::Access::empty());
        let post = |pair: &mut Pair, wr_id, len| {
            let ud = Some(UdDest { av: av(Peer::A), qpn: QPN_B, qkey: QKEY });
            let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
            let req = SendRequest { wr_id, op, flags, data: SendData::Sges(&[mr.sge(0, len)]), ud };
            assert_eq!(pair.post_send(Peer::A, &req), Ok(()));
        };
        (1..=3).zip([256, 257, 0]).for_each(|(wr_id, len)| post(&mut pair, wr_id, len));
        pair.transmit(Peer::A);
        assert_eq!(pair.end(Peer::A).qp.state(), QpState::Sqe);
        post(&mut pair, 4, 0);
        let end = pair.end(Peer::A);
        let attr = QpAttr { state: QpState::Rts, ..*end.qp.attr() };
        assert_eq!(end.qp.modify(&mut end.host, &attr, AttrMask::STATE), Ok(()));
        post(&mut pair, 5, 0);
        pair.transmit(Peer::A);
        let done: Vec<_> = core::iter::from_fn(|| pair.send_done(Peer::A)).map(|cqe| (cqe.wr_id, cqe.status)).collect();
        let flushed = WcStatus::WrFlushErr;
        let expected =
            [(1, WcStatus::Success), (2, WcStatus::LocLenErr), (3, flushed), (4, flushed), (5, WcStatus::Success)];
        assert_eq!(done, expected);
        let psns: Vec<_> = pair.log.iter().map(|logged| logged.header.bth.psn.get()).collect();
        assert_eq!(psns, [100, 101]);
    }
}
