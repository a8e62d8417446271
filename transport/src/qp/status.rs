//! Where a queue pair stands, for people who watch it. Changes nothing.

use super::attr::QpState;
use super::queue_pair::Qp;
use super::shared::Service;
use roxe_wire::{Gid, Psn, Qpn};

/// Where a queue pair stands. Numbers of messages and PSNs wrap; what grew between two looks is
/// their difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// Its number.
    pub qpn: Qpn,
    /// Its service.
    pub service: Service,
    /// Its state.
    pub state: QpState,
    /// The queue pair that it is connected with, and the address of that; 0 if there is none.
    pub peer: (Qpn, Gid),
    /// Payload bytes of a full packet.
    pub path_mtu: u32,
    /// Send work requests that are complete, 32 bits.
    pub sends: u32,
    /// Send work requests that are not.
    pub outstanding: u32,
    /// PSNs that are sent and not acknowledged (RC, XRC).
    pub unacknowledged: u32,
    /// How many of these there may be (RC, XRC).
    pub window: u32,
    /// READs and atomics that await their response.
    pub reads: u32,
    /// The PSN behind the newest that was sent.
    pub sent: Psn,
    /// Messages that were executed, 24 bits.
    pub received: u32,
    /// The PSN of the request that is expected next.
    pub expected: Psn,
    /// The send queue waits because the peer had no receive.
    pub waits_for_receive: bool,
}

impl Qp {
    /// Where it stands.
    pub fn status(&self) -> QpStatus {
        let (attr, requester, probe) = (self.attr(), &self.requester, self.probe());
        let unacknowledged = probe.sent.distance(probe.una);
        QpStatus {
            qpn: self.qpn(),
            service: self.service(),
            state: self.state(),
            peer: (attr.dest_qpn, attr.av.dgid),
            path_mtu: attr.path_mtu.bytes(),
            sends: requester.sq.head_index(),
            outstanding: probe.sends,
            unacknowledged: u32::try_from(unacknowledged).unwrap_or(0),
            window: u32::try_from(requester.window).unwrap_or(0),
            reads: requester.reads_out,
            sent: probe.sent,
            received: self.responder.progress.msn.get(),
            expected: probe.expected,
            waits_for_receive: probe.not_ready,
        }
    }
}
