//! Credit for datagrams that were taken out of the socket: their senders on this host wait for it.
//!
//! Touches the flow control of the engine.

use super::resources::QpResources;
use roxe_engine::flow_control::Key;
use roxe_net::rcvbuf_cost::charge_of;
use roxe_net::slot::Slot;
use roxe_transport::Qp as Machine;
use roxe_wire::{Gid, Kind, Packet, Qpn};

/// Datagrams that were taken out of the socket, summed up as long as they have one sender.
#[derive(Debug, Default)]
pub(super) struct Credits {
    creditor: Option<(Qpn, Gid)>,
    bytes: u32,
}

impl Credits {
    /// One more datagram has left the socket.
    pub(super) fn add(&mut self, qp: &QpResources, creditor: Option<Qpn>, dst: Gid, packet: &Packet<'_>) {
        let Some(from) = creditor else { return };
        if self.creditor != Some((from, dst)) {
            self.return_all(qp);
            self.creditor = Some((from, dst));
        }
        self.bytes += charge_of(&packet.header.kind, packet.payload.len());
    }

    /// Notes what is owed; the engine sends it.
    pub(super) fn return_all(&mut self, qp: &QpResources) {
        if let Some((from, dst)) = self.creditor.take() {
            qp.engine().flows().owe(Slot::of(from), Key::of(dst, qp.qpn), std::mem::take(&mut self.bytes));
        }
    }
}

/// The queue pair that sent a packet, if it is of a service without acknowledgements.
pub(super) fn sender_of(machine: &Machine, packet: &Packet<'_>) -> Option<Qpn> {
    match packet.header.kind {
        Kind::Ud { deth, .. } => Some(deth.src_qpn),
        Kind::UcRequest(_) => Some(machine.attr().dest_qpn),
        _ => None,
    }
}
