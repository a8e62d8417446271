//! Congestion notifications: a marked packet that came, and the packet that tells its sender.

use super::congestion;
use super::queue_pair::Qp;
use super::shared::Service;
use crate::cx::{PacketNote, TxBatch, TxReason, TxState};
use crate::qp::queue_pair::check_request;
use crate::time::Instant;
use crate::wr::Av;
use roxe_wire::{Bth, Header, Kind, NetHeader, Psn, Response};

impl Qp {
    /// A packet came marked. Only data of the connected peer counts: whether cards react to marked
    /// acknowledgements is not known, and nobody else shall make us send.
    #[cold]
    pub(super) fn note_mark(&mut self, now: Instant, net: &NetHeader, header: &Header) {
        let sh = &mut self.shared;
        // clause: CNP-WHEN
        let is_data = match (sh.config.service, &header.kind) {
            (Service::Rc, Kind::RcRequest(_))
            | (Service::Uc, Kind::UcRequest(_))
            | (Service::XrcTgt, Kind::XrcRequest(..)) => true,
            (Service::Rc, Kind::RcResponse(response)) | (Service::XrcIni, Kind::XrcResponse(response)) => {
                !matches!(response, Response::Ack(_) | Response::AtomicAck(..))
            }
            _ => false,
        };
        if is_data && check_request(sh, net, &header.bth).is_ok() {
            sh.congestion.on_mark(now);
        }
    }

    /// Tells the peer of the congestion. Nothing of the connection is in it but its number.
    #[cold]
    pub(super) fn notify<T: TxBatch>(&mut self, tx: &mut T) -> TxState {
        let sh = &mut self.shared;
        // clause: CNP-SENT
        let bth = Bth { becn: true, ..Bth::new(sh.attr.dest_qpn, Psn::default()) };
        let header = Header { bth, kind: Kind::Cnp };
        let av = Av { traffic_class: congestion::cnp_class(sh.path.traffic_class), ..sh.path };
        let note = PacketNote::answer(sh.config.qpn, TxReason::Cnp);
        let Some(form) = header.form(0) else { return TxState::Drained };
        let Some(slot) = tx.slot(&av, bth.dest_qpn, form.len(), &note) else { return TxState::BatchFull };
        // The slot is as long as the header.
        let _ = slot.put_header(&header, &form);
        sh.congestion.on_notice_sent();
        TxState::Drained
    }
}
