//! The way out of queue pair 1: management datagrams become packets.
//!
//! Touches the links of the engine, and the mailboxes of other processes of this host.

use roxe_engine::engine::Engine;
use roxe_engine::gsi::GSI_ORDINAL;
use roxe_engine::shutdown;
use roxe_engine::tx::Batch;
use roxe_net::link::HOP_LIMIT;
use roxe_net::udp::UdpLink;
use roxe_transport::cm::{Cm, Outgoing, Route};
use roxe_transport::cx::{PacketNote, TxReason};
use roxe_transport::wr::Av;
use roxe_wire::cm::{MAD_LEN, gsi_header};
use roxe_wire::{Header, Psn, Qpn};
use std::sync::Arc;
use std::time::Duration;

/// The way out of queue pair 1.
#[derive(Debug)]
pub(super) struct MadSender {
    /// The PSN of the next message; receivers of datagrams ignore it.
    psn: Psn,
    /// The link of the last message.
    link: Option<Arc<UdpLink>>,
    /// The last time, the lock of the receive side was not free in time.
    was_kept_waiting: bool,
}

impl MadSender {
    /// One whose first message has this PSN.
    pub(super) fn new(psn: Psn) -> Self {
        Self { psn, link: None, was_kept_waiting: false }
    }

    /// Sends what `cm` has to send.
    pub(super) fn send_all(&mut self, cm: &mut Cm, engine: &Engine) {
        let Some(first) = cm.poll_transmit() else { return };
        let mut batch = Batch::take();
        self.put(&mut batch, &first, engine);
        while let Some(next) = cm.poll_transmit() {
            self.put(&mut batch, &next, engine);
        }
        batch.flush(engine, GSI_ORDINAL, &mut self.link);
        batch.put_back();
    }

    /// Puts a message into `batch`; what is in there leaves if it is full. One that stays on this
    /// host leaves at once.
    fn put(&mut self, batch: &mut Batch, outgoing: &Outgoing, engine: &Engine) {
        let Outgoing { route, mad } = outgoing;
        let av = Av { sgid: route.local, dgid: route.remote, hop_limit: HOP_LIMIT, ..Av::default() };
        let (header, mad) = (gsi_header(self.psn), mad.to_bytes());
        self.psn = self.psn.add(1);
        if !self.put_to_own_host(*route, &header, &mad, engine) && !write(batch, &av, &header, &mad) {
            batch.flush(engine, GSI_ORDINAL, &mut self.link);
            write(batch, &av, &header, &mad);
        }
        engine.counters().sent_mads.add(1);
    }

    /// Sends a message that stays on this host, if it does and can be sent without the socket now.
    /// The thread that holds the receive side may be this very one, in a signal handler that ends
    /// the process: waits for it once only.
    fn put_to_own_host(&mut self, route: Route, header: &Header, mad: &[u8; MAD_LEN], engine: &Engine) -> bool {
        if !engine.keeps_mads(route) {
            return false;
        }
        let limit = if self.was_kept_waiting { Duration::ZERO } else { shutdown::LOCK_LIMIT };
        let sent = engine.route_own_mad(route, header, mad, limit);
        self.was_kept_waiting = sent.is_none();
        sent == Some(true)
    }
}

/// Writes one packet into `batch`; false if it is full.
fn write(batch: &mut Batch, av: &Av, header: &Header, mad: &[u8; MAD_LEN]) -> bool {
    let note = PacketNote::answer(Qpn::GSI, TxReason::Management);
    let Some(slot) = batch.room(av, Qpn::GSI, header.padded_len(MAD_LEN), &note) else { return false };
    if let Some(payload) = header.emit(MAD_LEN, slot) {
        payload.copy_from_slice(mad);
    }
    true
}
