//! The RoCEv2 packets in a capture file, each with when and which way it went, and whether it is
//! whole. Touches the bytes of the file only.

use crate::other::Other;
use roxe_wire::capture::{CaptureError, Direction, Frame, frames, ip_packet};
use roxe_wire::{MAX_PAYLOAD, NetHeader, Packet, ParseError, icrc};
use std::fmt;

/// Whether a packet is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integrity {
    /// The ICRC fits.
    Good,
    /// The bytes make no packet.
    Malformed(ParseError),
    /// The ICRC does not fit the bytes.
    WrongIcrc,
    /// The capture has only so many of so many bytes: the headers can be judged, if they are there,
    /// and the rest cannot.
    Cut(usize, usize),
}

impl Integrity {
    /// Returns true if the packet is known to be damaged.
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Malformed(_) | Self::WrongIcrc)
    }
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => f.write_str("icrc ok"),
            Self::Malformed(error) => write!(f, "malformed: {error}"),
            Self::WrongIcrc => f.write_str("icrc wrong: the packet was damaged on its way, or sent wrong"),
            Self::Cut(captured, length) => write!(f, "cut: {captured} of {length} bytes, icrc not captured"),
        }
    }
}

/// A packet of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'f> {
    /// The frame of the file that it was in, from 1.
    pub frame: usize,
    /// Nanoseconds since the first frame.
    pub time: u64,
    /// Which way it went, if the file says.
    pub direction: Option<Direction>,
    /// What the IP and UDP headers say.
    pub net: NetHeader,
    /// From the BTH to the ICRC, as far as they are captured.
    pub bytes: &'f [u8],
    /// Whether it is whole.
    pub integrity: Integrity,
    /// What the file says about it; empty if nothing.
    pub remark: &'f str,
}

impl<'f> Captured<'f> {
    /// The packet, unless it is malformed or cut within its headers. The payload of a cut one is
    /// all zeros.
    pub fn packet(&self) -> Option<Packet<'f>> {
        match self.integrity {
            Integrity::Cut(_, length) => Packet::parse_cut(self.bytes, length, ZEROS).ok(),
            _ => Packet::parse(self.bytes).ok(),
        }
    }

    /// Returns true if its payload is not captured.
    pub const fn is_cut(&self) -> bool {
        matches!(self.integrity, Integrity::Cut(..))
    }

    /// Whether a fault rule of the process that recorded it lost it.
    pub fn is_lost(&self) -> bool {
        let fate = self.remark.split_once(" | ").map_or("", |(_, fate)| fate);
        fate.rsplit(": ").next().is_some_and(|effects| effects.split(", ").any(|effect| effect == "dropped"))
    }
}

/// In place of a payload that was not captured.
static ZEROS: &[u8] = &[0; MAX_PAYLOAD + 4];

/// What a file has.
#[derive(Clone, Copy, Debug)]
pub enum Item<'f> {
    /// A packet.
    Packet(Captured<'f>),
    /// A frame without a RoCEv2 packet, or in which none is looked for: what it is.
    Other(Other),
    /// The file cannot be read behind this frame.
    Broken(usize, CaptureError),
}

/// All that is in `file`. Datagrams of which `is_other` is true are no packets.
///
/// # Errors
/// [`CaptureError`] if the bytes do not begin like a capture file.
pub fn items<'f>(
    file: &'f [u8],
    is_other: impl Fn(&[u8]) -> bool,
) -> Result<impl Iterator<Item = Item<'f>>, CaptureError> {
    let mut start = None;
    Ok((1..).zip(frames(file)?).flat_map(move |(number, frame)| match frame {
        Err(error) => vec![Item::Broken(number - 1, error)],
        Ok(frame) => {
            let time = frame.timestamp_ns.saturating_sub(*start.get_or_insert(frame.timestamp_ns));
            let packets = packets(&frame, &is_other);
            let captured = packets.into_iter().map(|(net, bytes, length)| {
                let (direction, remark) = (frame.direction, frame.comment);
                let integrity = judge_cut(&net, bytes, length);
                Item::Packet(Captured { frame: number, time, direction, net, bytes, integrity, remark })
            });
            let items: Vec<_> = captured.collect();
            if items.is_empty() { vec![Item::Other(Other::of(&frame))] } else { items }
        }
    }))
}

fn judge(net: &NetHeader, bytes: &[u8]) -> Integrity {
    match Packet::parse(bytes) {
        Err(error) => Integrity::Malformed(error),
        Ok(_) if !icrc::verify(net, bytes) => Integrity::WrongIcrc,
        Ok(_) => Integrity::Good,
    }
}

/// As [`judge`], of a packet that had `length` bytes on the wire.
fn judge_cut(net: &NetHeader, bytes: &[u8], length: usize) -> Integrity {
    if bytes.len() == length {
        return judge(net, bytes);
    }
    match Packet::parse_cut(bytes, length, ZEROS) {
        // Headers that are not there, or a batch whose segments cannot be told apart.
        Ok(_) | Err(ParseError::Truncated) => Integrity::Cut(bytes.len(), length),
        Err(error) => Integrity::Malformed(error),
    }
}

/// The RoCEv2 packets of a frame, each with its length on the wire: none, one, or the segments of a
/// batch that the sender left to the network device to split, which is captured before it is split.
fn packets<'f>(frame: &Frame<'f>, is_other: &impl Fn(&[u8]) -> bool) -> Vec<(NetHeader, &'f [u8], usize)> {
    // Otherwise another protocol: nothing to judge.
    let Some(Ok((net, payload, length))) = ip_packet(frame.link, frame.data).map(NetHeader::parse_cut_ip) else {
        return Vec::new();
    };
    if is_other(payload) || (payload.len() < length && !frame.is_cut()) {
        return Vec::new();
    }
    if payload.len() < length {
        return vec![(net, payload, length)];
    }
    let size = match judge(&net, payload) {
        Integrity::Good => payload.len(),
        _ => segment_size(&net, payload).unwrap_or(payload.len()),
    };
    let numbered = payload.chunks(size.max(1)).zip(0u16..);
    numbered.map(|(segment, index)| (segment_header(&net, index), segment, segment.len())).collect()
}

/// The kernel numbers the segments of a batch one by one in their IPv4 identification.
fn segment_header(net: &NetHeader, index: u16) -> NetHeader {
    let ident = if net.is_ipv4() { net.ident.wrapping_add(index) } else { net.ident };
    NetHeader { ident, ..*net }
}

/// Bytes of each segment of a batch, the last excepted: the length at which the first segment is a
/// whole packet.
fn segment_size(net: &NetHeader, payload: &[u8]) -> Option<usize> {
    /// `UDP_MAX_SEGMENTS` of Linux.
    const MAX_SEGMENTS: usize = 128;
    /// No packet has more bytes around its payload.
    const MAX_HEADERS: usize = 64;
    let shortest = payload.len().div_ceil(MAX_SEGMENTS).next_multiple_of(4);
    let longest = payload.len().saturating_sub(1).min(MAX_PAYLOAD + MAX_HEADERS);
    let mut sizes = (shortest..=longest).step_by(4);
    sizes.find(|size| payload.get(..*size).is_some_and(|first| judge(net, first) == Integrity::Good))
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::{Bth, Header, Kind, Psn, Qpn, Request, SendTail};
    use std::net::Ipv4Addr;

    fn net(ident: u16) -> NetHeader {
        let loopback = Ipv4Addr::LOCALHOST.into();
        NetHeader { src: loopback, dst: loopback, src_port: 0xc000, ident, ..NetHeader::default() }
    }

    fn segment(psn: u32, len: usize, ident: u16) -> Vec<u8> {
        let header = Header {
            bth: Bth::new(Qpn::new(0x11), Psn::new(psn)),
            kind: Kind::RcRequest(Request::SendOnly(SendTail::Plain)),
        };
        let mut datagram = vec![0; header.padded_len(len) + icrc::LEN];
        let end = datagram.len() - icrc::LEN;
        header.emit(len, &mut datagram[..end]).unwrap().fill(psn as u8);
        icrc::seal(&net(ident), &mut datagram);
        datagram
    }

    #[test]
    fn a_batch_is_taken_apart() {
        let batch = [segment(1, 64, 7), segment(2, 64, 8), segment(3, 10, 9)];
        let size = segment_size(&net(7), &batch.concat()).unwrap();
        assert_eq!(size, batch[0].len());
        for (index, part) in batch.concat().chunks(size).enumerate() {
            assert_eq!(judge(&segment_header(&net(7), index as u16), part), Integrity::Good, "{index}");
        }
    }

    #[test]
    fn damage_is_not_mistaken_for_a_batch() {
        let mut datagram = segment(1, 64, 0);
        datagram[20] ^= 1;
        assert_eq!(judge(&net(0), &datagram), Integrity::WrongIcrc);
        assert_eq!(segment_size(&net(0), &datagram), None);
        assert_eq!(segment_size(&net(0), &[]), None);
    }

    #[test]
    fn what_a_fault_rule_lost_is_told_by_the_remark() {
        let is_lost = |remark| {
            let packet = segment(1, 4, 0);
            let (direction, integrity) = (None, Integrity::Good);
            Captured { frame: 1, time: 0, direction, net: net(0), bytes: &packet, integrity, remark }.is_lost()
        };
        assert!(is_lost("qp 0x11 wr_id 7 first | rule 2: drop 3%: dropped"));
        assert!(is_lost("qp 0x11 wr_id 7 first | fault: dropped, marked CE"));
        assert!(!is_lost("qp 0x11 wr_id 7 first | rule 2: drop 3%: copy"));
        assert!(!is_lost("dropped") && !is_lost(""));
    }
}
