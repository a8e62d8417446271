//! Runs: packets of one receive that go to one queue pair, and packets that share a header.

use roxe_base::weakest::{self, Weakness};
use roxe_memory::crc::Folding;
use roxe_memory::guard::SharedBytes;
use roxe_net::link::RxMeta;
use roxe_transport::time::Instant;
use roxe_wire::icrc::{self, Sealer};
use roxe_wire::{Bth, Gid, Header, NetHeader, Operation, Packet};

/// Consecutive packets of one receive that go to one queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Addresses and header fields of the receive; `len` is that of the whole receive.
    pub meta: &'a RxMeta,
    /// The packets, one after the other.
    pub bytes: &'a [u8],
    /// Index of the first packet in the run that the sender passed to its kernel.
    pub index: u16,
}

impl<'a> Run<'a> {
    /// Returns the number of packets.
    pub fn count(&self) -> u64 {
        self.meta.packets_in(self.bytes.len())
    }

    /// Returns the packets with their indices. A shorter acknowledgement after requests is returned
    /// first: segmentation allows a shorter packet only at the end of a run, so its sender moved it
    /// there. An acknowledgement after responses acknowledges later requests and stays last. The
    /// weakest legal card keeps the order of arrival.
    #[inline]
    pub fn packets(self) -> Packets<'a> {
        let (rest, ack) = self.split_ack();
        Packets { ack, rest, segment: self.meta.segment, index: self.index }
    }

    /// Splits off an acknowledgement at the end that is to be processed first.
    #[inline]
    fn split_ack(&self) -> (&'a [u8], Option<&'a [u8]>) {
        let bytes = self.bytes;
        // Avoids a division for the common single packet.
        if bytes.len() <= self.meta.segment {
            return (bytes, None);
        }
        let (rest, last) = bytes.split_at(bytes.len() - bytes.len() % self.meta.segment);
        let comes_first =
            is_ack(last) && !rest.chunks(self.meta.segment).any(is_response) && !weakest::has(Weakness::ACKS);
        if comes_first { (rest, Some(last)) } else { (bytes, None) }
    }
}

/// The packets of a run: see [`Run::packets`].
#[derive(Debug)]
pub struct Packets<'a> {
    /// Acknowledgement returned before the other packets.
    ack: Option<&'a [u8]>,
    rest: &'a [u8],
    segment: usize,
    index: u16,
}

impl<'a> Iterator for Packets<'a> {
    type Item = (u16, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        // The acknowledgement is returned before the rest, so none is left behind it.
        if self.rest.is_empty() {
            return None;
        }
        if let Some(ack) = self.ack.take() {
            // A receive has at most 2^16 bytes.
            return Some((self.index.saturating_add((self.rest.len() / self.segment) as u16), ack));
        }
        let (packet, rest) = self.rest.split_at_checked(self.segment).unwrap_or((self.rest, &[]));
        let index = self.index;
        (self.rest, self.index) = (rest, index.saturating_add(1));
        Some((index, packet))
    }
}

#[inline]
pub(crate) fn is_ack(packet: &[u8]) -> bool {
    packet.first() == Some(&(Operation::Acknowledge as u8))
}

/// Returns true if `packet` is a READ or atomic response of RC.
fn is_response(packet: &[u8]) -> bool {
    let responses = Operation::ReadResponseFirst as u8..=Operation::AtomicAcknowledge as u8;
    packet.first().is_some_and(|opcode| responses.contains(opcode))
}

/// Predicts the IPv4 identification of the next packet. Some senders number the packets of each run
/// from 0, others continue the numbers of the previous run.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdentGuess {
    /// Identification of the last packet, if the sender continues its numbers.
    last_ident: Option<u16>,
    /// Sealer for the addresses of the current run.
    sealer: Sealer,
}

impl IdentGuess {
    /// Begins a run between the addresses of `net`.
    #[inline]
    pub fn begin_run(&mut self, net: &NetHeader) {
        self.sealer.retarget(net);
    }

    /// Returns true if the ICRC of `packet`, a packet of the current run, is valid for some
    /// identification.
    #[inline]
    pub fn verify(&mut self, packet: &[u8], index: u16) -> bool {
        let likely = self.last_ident.map_or(index, |last| last.wrapping_add(1));
        // clause: IP-IDENT
        let Some(ident) = self.sealer.solve_ident::<Folding>(packet, likely) else { return false };
        self.last_ident = (ident != index).then_some(ident);
        true
    }
}

/// State of the engine's receive side that [`crate::queue_pair::QueuePair::receive`] needs.
#[derive(Debug)]
pub struct RxTools<'a> {
    /// Prediction of IPv4 identifications.
    pub ident: &'a mut IdentGuess,
    /// Addresses of the device. A sender with one of them is on this host and has a datagram
    /// window.
    pub locals: &'a [Gid],
    /// True if a fault rule makes the packets find no posted receive.
    pub no_receives: bool,
    /// True for packets received from a socket while no fault rules cause gaps.
    pub may_overtake: bool,
    /// True if no further packets are known to wait: the queue pair may send its responses while it
    /// is locked.
    pub serves_at_once: bool,
    /// Set by the queue pair to the time until which it delays its acknowledgement, like the result
    /// of [`QueuePair::serve_or_delay_ack`](crate::queue_pair::QueuePair::serve_or_delay_ack).
    pub delayed_until: Option<Instant>,
}

impl RxTools<'_> {
    /// Returns true if a gap before packets from `src` is probably reordering, not loss: sockets of
    /// this host lose nothing, but another process forwards some packets.
    pub fn may_overtake(&self, src: Gid) -> bool {
        self.may_overtake && self.locals.contains(&src)
    }

    /// Returns true if the sender at `src` expects credits for datagrams to `dst`.
    pub fn owes_credit(&self, src: Gid, dst: Gid) -> bool {
        self.locals.contains(&src) && !dst.is_multicast()
    }
}

/// Returns the network header of packet `index` of a receive.
pub fn header_of(meta: &RxMeta, index: u16) -> NetHeader {
    NetHeader {
        src: meta.src,
        dst: meta.dst,
        src_port: meta.src_port,
        traffic_class: meta.traffic_class,
        hop_limit: meta.hop_limit,
        flow_label: 0,
        ident: index,
    }
}

/// Returns the network header of packet `index` of a segmented run with the header `net`: the
/// kernel sets the IPv4 identification to the index.
pub(crate) fn segment_header(net: &NetHeader, index: u16) -> NetHeader {
    NetHeader { ident: if net.is_ipv4() { index } else { 0 }, ..*net }
}

/// Packets that share one header.
#[derive(Clone, Copy, Debug)]
pub struct Joined<'a> {
    /// Header of the first packet.
    pub first: Header,
    /// Payload bytes of each packet.
    pub len: usize,
    /// Payload of all packets.
    pub payload: SharedBytes<'a>,
    /// Bytes of all packets from BTH to ICRC, as if each had a header of its own.
    pub bytes: usize,
}

impl<'a> Joined<'a> {
    /// Copies the shared header of `count` packets into `buf` and parses it. Returns `None` if the
    /// packets are malformed.
    pub(crate) fn parse(bytes: SharedBytes<'a>, count: usize, buf: &mut [u8]) -> Option<Self> {
        let payload = bytes.get(Bth::LEN..bytes.len().checked_sub(icrc::LEN)?)?;
        let len = payload.len().checked_div(count)?;
        // Stale bytes of `buf` stand for payload and ICRC, which are not read.
        let first = buf.get_mut(..Bth::LEN + len + icrc::LEN)?;
        bytes.copy_to(first.get_mut(..Bth::LEN)?).ok()?;
        let first = Packet::parse(first).ok()?;
        let is_whole = len > 0 && first.payload.len() == len && len * count == payload.len();
        let bytes = payload.len() + count * (Bth::LEN + icrc::LEN);
        is_whole.then_some(Self { first: first.header, len, payload, bytes })
    }

    /// Writes the packets into `buf` with headers of their own, without ICRCs. Returns the length
    /// of each packet and of all packets in bytes; `None` if `buf` is too short.
    pub(crate) fn split(&self, buf: &mut [u8]) -> Option<(usize, usize)> {
        let Self { mut first, len, payload, .. } = *self;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poller::Poller;
    use roxe_net::shm::testing::carry;
    use roxe_net::shm::{self, Inbound, IpFields, Offer, Record};
    use roxe_transport::cx::TxRoom;
    use roxe_wire::{Kind, Psn, Qpn, Request};
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

    // clause: ACK-BEFORE-REQUESTS
    #[test]
    fn ack_is_first_after_requests_last_after_responses() {
        let here = Gid::default();
        let order = |first: Operation| {
            let bytes = [[first as u8; 40].as_slice(), &[Operation::Acknowledge as u8; 20]].concat();
            let meta = RxMeta { segment: 40, ..RxMeta::alone(bytes.len(), here, here) };
            let run = Run { meta: &meta, bytes: &bytes, index: 0 };
            run.packets().map(|(index, packet)| (index, packet.len())).collect::<Vec<_>>()
        };
        for request in [Operation::SendOnly, Operation::WriteOnly, Operation::ReadRequest] {
            assert_eq!(order(request), [(1, 20), (0, 40)], "{request:?}");
        }
        for response in [Operation::ReadResponseOnly, Operation::ReadResponseLast, Operation::AtomicAcknowledge] {
            assert_eq!(order(response), [(0, 40), (1, 20)], "{response:?}");
        }
    }

    #[test]
    fn joined_packets_split_into_originals() {
        let bth = Bth { ack_req: true, ..Bth::new(Qpn::new(7), Psn::new(0xff_fffe)) };
        let header = Header { bth, kind: Kind::RcRequest(Request::WriteMiddle) };
        let mut bytes = vec![0; Bth::LEN + 3 * 256 + icrc::LEN];
        header.emit(256, &mut bytes[..Bth::LEN + 256]).unwrap();
        let payload = bytes[Bth::LEN..Bth::LEN + 3 * 256].chunks_mut(256);
        payload.zip(1..).for_each(|(part, byte)| part.fill(byte));
        let parse = |bytes: &[u8], count| Joined::parse(SharedBytes::from(bytes), count, &mut [0xff; 1024]).is_some();
        let joined = Joined::parse(SharedBytes::from(&bytes[..]), 3, &mut [0xff; 1024]).unwrap();
        let mut buf = vec![0xa5; 3 * (Bth::LEN + 256 + icrc::LEN)];
        assert_eq!(joined.split(&mut buf), Some((272, 816)));
        let parts: Vec<_> = buf.chunks(272).map(|part| Packet::parse(part).unwrap()).collect();
        for (packet, (psn, ack_req, byte)) in
            parts.iter().zip([(0xff_fffe, true, 1), (0xff_ffff, false, 2), (0, false, 3)])
        {
            let bth = Bth { ack_req, psn: Psn::new(psn), ..bth };
            assert_eq!(*packet, Packet { header: Header { bth, ..header }, payload: &[byte; 256] });
        }
        assert!(joined.split(&mut [0; 815]).is_none(), "no room");
        for count in [0, 5, 255] {
            assert!(!parse(&bytes, count), "{count}");
        }
        assert!(!parse(&bytes[..15], 3) && !parse(&bytes[..16], 3));
        assert!(!parse(&[0xff; 784], 3));
    }

    #[test]
    fn joined_headers_ignore_later_changes() {
        let header = Header { bth: Bth::new(Qpn::new(7), Psn::new(1)), kind: Kind::RcRequest(Request::WriteMiddle) };
        let mut bytes = vec![1; Bth::LEN + 2 * 256 + icrc::LEN];
        header.emit(256, &mut bytes[..Bth::LEN + 256]).unwrap().fill(1);
        let (ours, theirs) = (Poller::new().unwrap(), Poller::new().unwrap());
        let mut offer = Offer::new(shm::SMALL).unwrap();
        let descriptors = carry(&offer.descriptors(ours.doorbell()));
        let inbound = Inbound::accept(shm::SMALL, descriptors, theirs.doorbell(), |_| Ok(())).unwrap();
        let here = std::net::Ipv4Addr::LOCALHOST.into();
        let ip_fields = IpFields { src: here, dst: here, traffic_class: 0, hop_limit: 64 };
        offer.writer.slot(&ip_fields, bytes.len()).unwrap().put(&bytes).unwrap();
        offer.writer.publish();
        let check = |record: Record<'_>| {
            let mut buf = vec![0; 1024];
            let joined = Joined::parse(record.bytes, 2, &mut buf).unwrap();
            offer.writer.overwrite_all(0xff);
            let (segment, len) = joined.split(&mut buf).unwrap();
            let parts: Vec<_> = buf[..len].chunks(segment).map(|part| Packet::parse(part).unwrap()).collect();
            let next = Header { bth: header.bth.next_joined(), ..header };
            let payload = &[0xff; 256];
            assert_eq!(parts, [Packet { header, payload }, Packet { header: next, payload }]);
        };
        assert_eq!(inbound.reader.next(check), Ok(true));
    }

    /// Ends the writing thread, even if the reading thread panics.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn joined_packets_use_the_checked_header() {
        const LEN: usize = 256;
        let packets = |psn, request| {
            let header = Header { bth: Bth::new(Qpn::new(7), Psn::new(psn)), kind: Kind::RcRequest(request) };
            let mut bytes = vec![psn as u8; Bth::LEN + 3 * LEN + icrc::LEN];
            header.emit(LEN, &mut bytes[..Bth::LEN + LEN]).unwrap().fill(psn as u8);
            bytes
        };
        let [one, other] = [packets(0x11_1111, Request::WriteMiddle), packets(0xee_eeee, Request::SendMiddle)];
        // An undefined opcode, and an unsupported version.
        let [no_opcode, no_version] = [0xff, 0x0f].map(|byte| [&[byte; Bth::LEN], &one[Bth::LEN..]].concat());
        let memory: Vec<_> = one.iter().map(|byte| AtomicU8::new(*byte)).collect();
        let (memory, stopped) = (&memory[..], AtomicBool::new(false));
        let (mut parsed, mut rejected, mut buf) = (0, 0, vec![0; 4 * (Bth::LEN + LEN + icrc::LEN)]);
        std::thread::scope(|scope| {
            let _stop = Stop(&stopped);
            scope.spawn(|| {
                // Most writes change the header only, so that the reader sees each header for a
                // while.
                for len in [Bth::LEN, Bth::LEN, Bth::LEN, one.len()].into_iter().cycle() {
                    for bytes in [&one, &no_opcode, &other, &no_version] {
                        TxRoom::Shared(&memory[..len]).put(&bytes[..len]).unwrap();
                    }
                    if stopped.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            while parsed < 20_000 || rejected < 20_000 {
                let Some(joined) = Joined::parse(SharedBytes::from(memory), 3, &mut buf) else {
                    rejected += 1;
                    continue;
                };
                let (segment, len) = joined.split(&mut buf).unwrap();
                let parts: Vec<_> =
                    buf[..len].chunks(segment).map(|part| Packet::parse(part).unwrap().header).collect();
                let second = Header { bth: joined.first.bth.next_joined(), ..joined.first };
                let third = Header { bth: second.bth.next_joined(), ..second };
                assert_eq!(parts, [joined.first, second, third]);
                parsed += 1;
            }
        });
    }
}
