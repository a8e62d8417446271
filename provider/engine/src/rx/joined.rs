//! Packets from the middle of a message, or of the data of a READ, that share a header in a ring.
//!
//! Through a ring goes one header for all the packets that a record has room for, and the queue pair takes their payload in
//! at once: 4 KB cost as many instructions to copy as all the rest of a packet did. They are packets all the same: they count
//! as such, and where the outcome is not the plain one, or somebody watches, they are taken apart first.

use super::RxState;
use crate::engine::Engine;
use crate::table::Lookup;
use roxe_memory::guard::SharedBytes;
use roxe_net::link::RxMeta;
use roxe_net::shm::Record;
use roxe_transport::time::Instant;
use roxe_wire::{Bth, Header, Packet, icrc};

/// Such packets, read.
#[derive(Clone, Copy, Debug)]
pub struct Joined<'a> {
    /// The headers of the first one.
    pub first: Header,
    /// Payload bytes of each.
    pub len: usize,
    /// The payload of all.
    pub payload: SharedBytes<'a>,
}

impl<'a> Joined<'a> {
    /// Reads `count` packets, whose headers are copied into `buf` first. `None`: it is not that.
    fn parse(bytes: SharedBytes<'a>, count: usize, buf: &mut [u8]) -> Option<Self> {
        let payload = bytes.get(Bth::LEN..bytes.len().checked_sub(icrc::LEN)?)?;
        let len = payload.len().checked_div(count)?;
        // Whatever is behind the headers stands for payload and ICRC, and is not looked at.
        let first = buf.get_mut(..Bth::LEN + len + icrc::LEN)?;
        bytes.copy_to(first.get_mut(..Bth::LEN)?).ok()?;
        let first = Packet::parse(first).ok()?;
        let is_whole = len > 0 && first.payload.len() == len && len * count == payload.len();
        is_whole.then_some(Self { first: first.header, len, payload })
    }

    /// Writes them into `buf` as they would have come, without ICRCs. Bytes of each, and of all; `None`: there is not as much
    /// room.
    fn part(&self, buf: &mut [u8]) -> Option<(usize, usize)> {
        let Self { mut first, len, payload } = *self;
        let (segment, mut used) = (Bth::LEN + len + icrc::LEN, 0);
        for at in (0..payload.len()).step_by(len) {
            let (packet, icrc) = buf.get_mut(used..used + segment)?.split_at_mut_checked(Bth::LEN + len)?;
            payload.get(at..at + len)?.copy_to(first.emit(len, packet)?).ok()?;
            icrc.fill(0);
            first.bth = first.bth.next_joined();
            used += segment;
        }
        Some((segment, used))
    }
}

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
            let headers = (usize::from(joined) - 1) * (Bth::LEN + icrc::LEN);
            self.counters().count_received(joined.into(), bytes.len() + headers);
            return state.touch(qp, report);
        }
        let Some((segment, len)) = packets.part(buf) else { return self.counters().malformed.add(1) };
        let (meta, copy) = (RxMeta { segment, len, ..meta }, buf.get_mut(..len).unwrap_or_default());
        self.show_from_ring(&meta, copy, state, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poller::Poller;
    use roxe_net::shm::testing::carry;
    use roxe_net::shm::{self, Heading, Inbound, Offer};
    use roxe_transport::cx::TxRoom;
    use roxe_wire::{Kind, Psn, Qpn, Request};
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

    #[test]
    fn packets_come_apart_as_they_would_have_come() {
        let bth = Bth { ack_req: true, ..Bth::new(Qpn::new(7), Psn::new(0xff_fffe)) };
        let header = Header { bth, kind: Kind::RcRequest(Request::WriteMiddle) };
        let mut bytes = vec![0; Bth::LEN + 3 * 256 + icrc::LEN];
        header.emit(256, &mut bytes[..Bth::LEN + 256]).unwrap();
        let payload = bytes[Bth::LEN..Bth::LEN + 3 * 256].chunks_mut(256);
        payload.zip(1..).for_each(|(part, byte)| part.fill(byte));
        let parse = |bytes: &[u8], count| Joined::parse(SharedBytes::from(bytes), count, &mut [0xff; 1024]).is_some();
        let joined = Joined::parse(SharedBytes::from(&bytes[..]), 3, &mut [0xff; 1024]).unwrap();
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
            assert!(!parse(&bytes, count), "{count}");
        }
        assert!(!parse(&bytes[..15], 3) && !parse(&bytes[..16], 3));
        assert!(!parse(&[0xff; 784], 3));
    }

    #[test]
    fn headers_that_their_writer_changes_after_they_were_read_stay_as_they_were() {
        let header = Header { bth: Bth::new(Qpn::new(7), Psn::new(1)), kind: Kind::RcRequest(Request::WriteMiddle) };
        let mut bytes = vec![1; Bth::LEN + 2 * 256 + icrc::LEN];
        header.emit(256, &mut bytes[..Bth::LEN + 256]).unwrap().fill(1);
        let (ours, theirs) = (Poller::new().unwrap(), Poller::new().unwrap());
        let mut offer = Offer::new(shm::SMALL).unwrap();
        let descriptors = carry(&offer.descriptors(ours.doorbell()));
        let inbound = Inbound::accept(shm::SMALL, descriptors, theirs.doorbell(), |_| Ok(())).unwrap();
        let here = std::net::Ipv4Addr::LOCALHOST.into();
        let heading = Heading { src: here, dst: here, traffic_class: 0, hop_limit: 64, sealed: false };
        offer.writer.slot(&heading, bytes.len()).unwrap().put(&bytes).unwrap();
        offer.writer.publish();
        let check = |record: Record<'_>| {
            let mut buf = vec![0; 1024];
            let joined = Joined::parse(record.bytes, 2, &mut buf).unwrap();
            offer.writer.overwrite_all(0xff);
            let (segment, len) = joined.part(&mut buf).unwrap();
            let parts: Vec<_> = buf[..len].chunks(segment).map(|part| Packet::parse(part).unwrap()).collect();
            let next = Header { bth: header.bth.next_joined(), ..header };
            let payload = &[0xff; 256];
            assert_eq!(parts, [Packet { header, payload }, Packet { header: next, payload }]);
        };
        assert_eq!(inbound.reader.next(check), Ok(true));
    }

    /// Tells the thread that writes to end, also if the one that reads panics.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn packets_whose_header_and_payload_change_meanwhile_come_apart_by_the_header_that_was_checked() {
        const LEN: usize = 256;
        let packets = |psn, request| {
            let header = Header { bth: Bth::new(Qpn::new(7), Psn::new(psn)), kind: Kind::RcRequest(request) };
            let mut bytes = vec![psn as u8; Bth::LEN + 3 * LEN + icrc::LEN];
            header.emit(LEN, &mut bytes[..Bth::LEN + LEN]).unwrap().fill(psn as u8);
            bytes
        };
        let [one, other] = [packets(0x11_1111, Request::WriteMiddle), packets(0xee_eeee, Request::SendMiddle)];
        // An opcode that does not exist, and a version that does not.
        let [no_opcode, no_version] = [0xff, 0x0f].map(|byte| [&[byte; Bth::LEN], &one[Bth::LEN..]].concat());
        let memory: Vec<_> = one.iter().map(|byte| AtomicU8::new(*byte)).collect();
        let (memory, ends) = (&memory[..], AtomicBool::new(false));
        let (mut taken, mut refused, mut buf) = (0, 0, vec![0; 4 * (Bth::LEN + LEN + icrc::LEN)]);
        std::thread::scope(|scope| {
            let _stop = Stop(&ends);
            scope.spawn(|| {
                // Mostly the headers alone, so that each of them is there for a moment.
                for len in [Bth::LEN, Bth::LEN, Bth::LEN, one.len()].into_iter().cycle() {
                    for bytes in [&one, &no_opcode, &other, &no_version] {
                        TxRoom::Shared(&memory[..len]).put(&bytes[..len]).unwrap();
                    }
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            while taken < 20_000 || refused < 20_000 {
                let Some(joined) = Joined::parse(SharedBytes::from(memory), 3, &mut buf) else {
                    refused += 1;
                    continue;
                };
                let (segment, len) = joined.part(&mut buf).unwrap();
                let parts: Vec<_> =
                    buf[..len].chunks(segment).map(|part| Packet::parse(part).unwrap().header).collect();
                let second = Header { bth: joined.first.bth.next_joined(), ..joined.first };
                let third = Header { bth: second.bth.next_joined(), ..second };
                assert_eq!(parts, [joined.first, second, third]);
                taken += 1;
            }
        });
    }
}
