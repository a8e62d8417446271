//! The fields of a packet that the judge keeps, and the detection of packets that were captured
//! twice.

use crate::reader::Captured;
use roxe_wire::capture::Direction;
use roxe_wire::{Header, NetHeader};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// An undamaged packet. It may be truncated by the capture, but has all of its headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketRecord {
    /// Index of the packet in the capture.
    pub index: usize,
    /// Nanoseconds since the first frame.
    pub time: u64,
    pub direction: Option<Direction>,
    pub net: NetHeader,
    pub header: Header,
    /// Payload length in bytes.
    pub len: u32,
    /// Hash of headers and payload without AckReq and ICRC; without the payload if the packet is
    /// truncated.
    pub hash: u64,
    /// True if a fault rule of the recording process dropped the packet.
    pub is_lost: bool,
    /// True if the packet is marked with ECN-CE.
    pub is_marked: bool,
}

impl PacketRecord {
    pub(super) fn of(index: usize, captured: &Captured<'_>) -> Option<Self> {
        let packet = captured.packet().filter(|_| !captured.integrity.is_bad())?;
        let Captured { time, direction, net, bytes, .. } = *captured;
        let hash = packet_hash(bytes, packet.header.len(), captured.is_truncated());
        let (len, is_lost) = (packet.payload.len() as u32, captured.is_lost());
        let (header, is_marked) = (packet.header, captured.is_marked());
        Some(Self { index, time, direction, net, header, len, hash, is_lost, is_marked })
    }
}

fn packet_hash(bytes: &[u8], headers: usize, is_truncated: bool) -> u64 {
    let end = if is_truncated { headers } else { bytes.len().saturating_sub(roxe_wire::icrc::LEN) };
    let mut hasher = DefaultHasher::new();
    // Byte 8 of the BTH has AckReq, in which a retransmission may differ.
    bytes.get(..8).hash(&mut hasher);
    bytes.get(9..end).hash(&mut hasher);
    hasher.finish()
}

/// Finds packets that were captured twice, on two interfaces of a host or switch.
#[derive(Debug, Default)]
pub(super) struct RepeatedCaptures<'f> {
    /// First capture of each packet, by IPv4 identification and bytes.
    first: HashMap<(u16, &'f [u8]), FirstCapture<'f>>,
}

/// Time of the first capture of a packet, its interface, and its bytes before the IP header.
type FirstCapture<'f> = (u64, u32, &'f [u8]);

/// Maximum time between two captures of one packet, in nanoseconds.
const MAX_REPEAT_DELAY: u64 = 1_000_000_000;

impl<'f> RepeatedCaptures<'f> {
    /// Returns true if the same packet was captured before on another interface, or with another
    /// link header.
    pub(super) fn is_repeated(&mut self, captured: &Captured<'f>) -> bool {
        let Captured { time, net, bytes, interface, link_header, .. } = *captured;
        // Without an IP identification, a retransmission would look like a second capture.
        if net.ident == 0 || captured.direction.is_some() {
            return false;
        }
        let here = (time, interface, link_header);
        let first = self.first.entry((net.ident, bytes)).or_insert(here);
        if time.saturating_sub(first.0) > MAX_REPEAT_DELAY {
            *first = here;
        }
        (first.1, first.2) != (interface, link_header)
    }
}
