//! Packets from the middle of a message, or of the data of a READ, that share a header in a ring.
//!
//! Through a ring goes one header for all the packets that a record has room for, and the queue pair takes their payload in
//! at once: 4 KB cost as many instructions to copy as all the rest of a packet did. They are packets all the same: they count
//! as such, and where the outcome is not the plain one, or somebody watches, they are taken apart first.

use super::RxState;
use crate::engine::Engine;
use crate::engine::table::Lookup;
use crate::net::RxMeta;
use crate::net::shm::Record;
use roxe_transport::time::Instant;
use roxe_wire::{Bth, Packet, icrc};

/// Such packets, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined<'a> {
    /// The first one.
    pub(crate) first: Packet<'a>,
    /// The payload of all.
    pub(crate) payload: &'a [u8],
}

impl<'a> Joined<'a> {
    /// Reads `count` packets. `None`: it is not that.
    fn parse(bytes: &'a [u8], count: usize) -> Option<Self> {
        let payload = bytes.get(Bth::LEN..bytes.len().checked_sub(icrc::LEN)?)?;
        let len = payload.len().checked_div(count)?;
        // What follows its payload stands for its ICRC.
        let first = Packet::parse(bytes.get(..Bth::LEN + len + icrc::LEN)?).ok()?;
        let is_whole = len > 0 && first.payload.len() == len && len * count == payload.len();
        is_whole.then_some(Self { first, payload })
    }

    /// Writes them into `buf` as they would have come, without ICRCs. Bytes of each, and of all; `None`: there is not as much
    /// room.
    fn part(&self, buf: &mut [u8]) -> Option<(usize, usize)> {
        let len = self.first.payload.len();
        let (segment, mut header, mut used) = (Bth::LEN + len + icrc::LEN, self.first.header, 0);
        for payload in self.payload.chunks(len) {
            let (packet, icrc) = buf.get_mut(used..used + segment)?.split_at_mut_checked(Bth::LEN + len)?;
            header.emit(len, packet)?.copy_from_slice(payload);
            icrc.fill(0);
            header.bth = header.bth.next_joined();
            used += segment;
        }
        Some((segment, used))
    }
}

impl Engine {
    /// Takes such packets out of a ring.
    pub(super) fn take_joined(&self, record: Record<'_>, buf: &mut [u8], state: &mut RxState, now: Instant) {
        let Record { meta, bytes, joined } = record;
        let Some(packets) = Joined::parse(bytes, joined.into()) else { return self.counters().malformed.add(1) };
        self.counters().received_by_ring.add_alone(joined.into());
        if self.tap().is_none()
            && let Lookup::Found(qp) = self.table.find(packets.first.header.bth.dest_qpn)
            && let Some(report) = qp.receive_joined(&meta, &packets, now)
        {
            let headers = (usize::from(joined) - 1) * (Bth::LEN + icrc::LEN);
            self.counters().count_received(joined.into(), bytes.len() + headers);
            return state.touch(qp, report);
        }
        let Some((segment, len)) = packets.part(buf) else { return self.counters().malformed.add(1) };
        let (meta, copy) = (RxMeta { segment, len, ..meta }, buf.get_mut(..len).unwrap_or_default());
        self.show_from_ring(meta, copy, state, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::{Header, Kind, Psn, Qpn, Request};

    #[test]
    fn packets_come_apart_as_they_would_have_come() {
        let bth = Bth { ack_req: true, ..Bth::new(Qpn::new(7), Psn::new(0xff_fffe)) };
        let header = Header { bth, kind: Kind::RcRequest(Request::WriteMiddle) };
        let mut bytes = vec![0; Bth::LEN + 3 * 256 + icrc::LEN];
        header.emit(256, &mut bytes[..Bth::LEN + 256]).unwrap();
        let payload = bytes[Bth::LEN..Bth::LEN + 3 * 256].chunks_mut(256);
        payload.zip(1..).for_each(|(part, byte)| part.fill(byte));
        let joined = Joined::parse(&bytes, 3).unwrap();
        let mut buf = vec![0xa5; 3 * (Bth::LEN + 256 + icrc::LEN)];
        assert_eq!(joined.part(&mut buf), Some((272, 816)));
        let parts: Vec<_> = buf.chunks(272).map(|part| Packet::parse(part).unwrap()).collect();
        for (packet, (psn, asks, byte)) in
            parts.iter().zip([(0xff_fffe, true, 1), (0xff_ffff, false, 2), (0, false, 3)])
        {
            let bth = Bth { ack_req: asks, psn: Psn::new(psn), ..bth };
            assert_eq!(*packet, Packet { header: Header { bth, ..header }, payload: &[byte; 256] });
        }
        assert!(joined.part(&mut [0; 815]).is_none(), "no room");
        for count in [0, 5, 255] {
            assert!(Joined::parse(&bytes, count).is_none(), "{count}");
        }
        assert!(Joined::parse(&bytes[..15], 3).is_none() && Joined::parse(&bytes[..16], 3).is_none());
        assert!(Joined::parse(&[0xff; 784], 3).is_none());
    }
}
