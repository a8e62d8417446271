//! Packets from the middle of a message, or of the data of a READ, that share a header in a ring.
//!
//! Through a ring goes one header for all the packets that a record has room for, and the queue
//! pair takes their payload in at once: 4 KB cost as many instructions to copy as all the rest of a
//! packet did. They are packets all the same: they count as such, and where the outcome is not the
//! plain one, or somebody watches, they are taken apart first.

use crate::engine::Engine;
use crate::run::Joined;
use crate::rx_state::RxState;
use crate::table::Lookup;
use roxe_net::link::RxMeta;
use roxe_net::shm::Record;
use roxe_transport::time::Instant;

impl Engine {
    /// Takes such packets out of a ring.
    pub(crate) fn take_joined(&self, record: Record<'_>, buf: &mut [u8], state: &mut RxState, now: Instant) {
        let Record { meta, bytes, joined } = record;
        let Some(packets) = Joined::parse(bytes, joined.into(), buf) else { return self.counters().malformed.add(1) };
        self.counters().received_by_ring.add_alone(joined.into());
        if self.interceptor().is_none()
            && let Lookup::Found(qp) = self.table.find(packets.first.bth.dest_qpn)
            && let Some(report) = qp.receive_joined(&meta, &packets, now)
        {
            self.counters().count_received(joined.into(), packets.bytes);
            return state.touch(qp, report);
        }
        let Some((segment, len)) = packets.part(buf) else { return self.counters().malformed.add(1) };
        let (meta, copy) = (RxMeta { segment, len, ..meta }, buf.get_mut(..len).unwrap_or_default());
        self.show_from_ring(&meta, copy, state, now);
    }
}
