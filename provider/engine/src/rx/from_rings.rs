//! Receiving from rings in shared memory.
//!
//! Headers are copied out once, because the writer may change them after they were checked. Long
//! payloads are copied only to their destination. Packets from the middle of a message, or of a
//! READ response, share one header in a record; the queue pair takes their payload in at once and
//! they count as separate packets. Where it refuses that, they are split first.

use crate::engine::Engine;
use crate::run::Joined;
use crate::rx::RxPath;
use crate::rx_state::{RxState, Sources};
use crate::table::Lookup;
use crate::tx::peek_qpn;
use roxe_net::link::RxMeta;
use roxe_net::shm::{Broken, Inbound, Record};
use roxe_transport::time::Instant;
use std::sync::Arc;

const RING_BUDGET: usize = 32;
/// Number of bytes of a packet that are copied out of a ring before it is parsed: the longest
/// headers and an ATOMIC WRITE's payload.
const HEAD_LEN: usize = 96;
/// Length in bytes from which a packet is not copied whole.
const MIN_LONG_LEN: usize = 1024;

impl Engine {
    /// Receives from the rings; returns true if packets arrived. Polls of a new ring first receive
    /// the packets sent earlier through the socket.
    pub(crate) fn receive_by_rings(
        &self,
        sources: &mut Sources,
        buf: &mut [u8],
        state: &mut RxState,
        now: Instant,
    ) -> bool {
        self.refresh_rings(sources);
        self.serve_room_waiters();
        if state.leaves_rings() {
            return false;
        }
        let has_packets = sources.rings.iter().any(|ring| !ring.reader.is_empty());
        if has_packets && sources.new_ring_polls > 0 {
            sources.new_ring_polls -= 1;
            self.empty_sockets(&sources.links, buf, state, now);
        }
        if has_packets {
            for ring in &sources.rings {
                self.drain_ring(ring, buf, state, now);
            }
            state.prefers_rings = true;
            // A broken ring is closed now, so that its writer notices.
            self.refresh_rings(sources);
        }
        has_packets
    }

    #[inline]
    fn drain_ring(&self, ring: &Arc<Inbound>, buf: &mut [u8], state: &mut RxState, now: Instant) {
        for _ in 0..RING_BUDGET {
            if state.crowded.is_some() {
                break;
            }
            match ring.reader.next(|record| self.take_from_ring(record, buf, state, now)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(Broken) => {
                    self.counters().malformed.add(1);
                    return self.forget_inbound(std::slice::from_ref(ring));
                }
            }
        }
        if ring.reader.must_wake_writer() {
            ring.doorbell.ring();
        }
    }

    /// Takes one run out of a ring. It is copied into `buf` before it is checked; of long packets
    /// the payload is copied only to its destination.
    #[inline]
    fn take_from_ring(&self, record: Record<'_>, buf: &mut [u8], state: &mut RxState, now: Instant) {
        if record.joined > 1 {
            return self.take_joined(record, buf, state, now);
        }
        let Record { meta, bytes, .. } = &record;
        self.counters().received_by_ring.add_locked(meta.packets());
        if meta.segment >= MIN_LONG_LEN && self.take_long(&record, buf, state, now) {
            return;
        }
        if let Some(copy) = buf.get_mut(..meta.len)
            && bytes.copy_to(copy).is_ok()
        {
            state.serves_at_once = record.is_last;
            self.dispatch(state, meta, copy, RxPath::Ring, now);
            state.serves_at_once = false;
        }
    }

    /// Takes packets that share one header out of a ring.
    fn take_joined(&self, record: Record<'_>, buf: &mut [u8], state: &mut RxState, now: Instant) {
        let Record { meta, bytes, joined, .. } = record;
        let Some(packets) = Joined::parse(bytes, joined.into(), buf) else { return self.counters().malformed.add(1) };
        self.counters().received_by_ring.add_locked(joined.into());
        let qpn = packets.first.bth.dest_qpn;
        if let Lookup::Found(qp) = self.table.find_recent(qpn, &mut state.recent) {
            let outcome = qp.receive_joined(&meta, &packets, now);
            if let Some(outcome) = outcome {
                state.touch(&qp, outcome);
            }
            state.recent.put(qpn, qp);
            if outcome.is_some() {
                return self.counters().count_received(joined.into(), packets.bytes);
            }
        }
        let Some((segment, len)) = packets.split(buf) else { return self.counters().malformed.add(1) };
        let (meta, copy) = (RxMeta { segment, len, ..meta }, buf.get_mut(..len).unwrap_or_default());
        self.dispatch(state, &meta, copy, RxPath::Ring, now);
    }

    /// Takes a run of long packets to one queue pair without copying them whole. Returns false if
    /// that is not possible; nothing has been done then.
    fn take_long(&self, record: &Record<'_>, buf: &mut [u8], state: &mut RxState, now: Instant) -> bool {
        let Record { meta, bytes, .. } = record;
        let Some(copies) = buf.get_mut(..meta.len) else { return false };
        let mut to = None;
        for (index, copy) in copies.chunks_mut(meta.segment).enumerate() {
            let head = copy.len().min(HEAD_LEN);
            let from = bytes.get(index * meta.segment..index * meta.segment + head);
            let is_copied = from.zip(copy.get_mut(..head)).is_some_and(|(from, head)| from.copy_to(head).is_ok());
            let qpn = peek_qpn(copy);
            if !is_copied || *to.get_or_insert(qpn) != qpn {
                return false;
            }
        }
        let Some(qpn) = to.flatten() else { return false };
        let Lookup::Found(qp) = self.table.find_recent(qpn, &mut state.recent) else { return false };
        let is_taken = qp.takes_shared_payload();
        if is_taken {
            self.counters().count_received(meta.packets(), meta.len);
            let outcome = qp.receive_shared(meta, (copies, HEAD_LEN), *bytes, now);
            state.touch(&qp, outcome);
        }
        state.recent.put(qpn, qp);
        is_taken
    }
}
