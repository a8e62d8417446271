//! Frames that processes send to each other's mailboxes ([`crate::slot`]): packets delivered to the
//! wrong process, credits for datagrams, answers to steering probes, and ring offers.
//!
//! A frame is a fixed header and a body in native byte order, because it never leaves the host.

use crate::link::RxMeta;
use crate::slot::Slot;
use roxe_wire::Gid;

/// Size in bytes of the header of every frame.
pub const HEADER_LEN: usize = 48;

/// A frame without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The body is a run of packets as received.
    Packets(RxMeta),
    /// The owner of `slot` at address `dst` has read `bytes` of datagrams from its socket.
    Credit {
        /// Destination of the datagrams.
        dst: Gid,
        /// Slot of the destination.
        slot: Slot,
        /// Bytes in the units of the engine's flow control.
        bytes: u32,
    },
    /// The probe `nonce` for `index` arrived at the sender of this frame; the body lists the slots
    /// of this process, two bytes each.
    ProbeSeen {
        /// Nonce of the probe.
        nonce: u64,
        /// Round of the probe.
        round: u8,
        /// Index in the reuseport group.
        index: u32,
    },
    /// Offer of a ring to be read by the receiver of this frame, with its descriptors.
    Ring {
        /// Data bytes of the ring.
        size: u32,
    },
}

const PACKETS: u8 = 1;
const CREDIT: u8 = 2;
const PROBE_SEEN: u8 = 3;
/// Not 4 or 5, which other builds use for other frames.
const RING: u8 = 6;

/// Version of the ring format, second byte of the header; offers of other versions are ignored.
const RING_FORMAT: u8 = 2;

impl Frame {
    /// Returns the header bytes.
    pub fn header(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        match *self {
            Self::Packets(meta) => {
                out[0] = PACKETS;
                out[1] = meta.traffic_class;
                out[2] = meta.hop_limit;
                out[4..6].copy_from_slice(&meta.first_index.to_ne_bytes());
                out[6..8].copy_from_slice(&meta.src_port.to_ne_bytes());
                out[8..12].copy_from_slice(&(meta.segment as u32).to_ne_bytes());
                out[16..32].copy_from_slice(&meta.src.0);
                out[32..].copy_from_slice(&meta.dst.0);
            }
            Self::Credit { dst, slot, bytes } => {
                out[0] = CREDIT;
                out[4..6].copy_from_slice(&slot.get().to_ne_bytes());
                out[8..12].copy_from_slice(&bytes.to_ne_bytes());
                out[16..32].copy_from_slice(&dst.0);
            }
            Self::ProbeSeen { nonce, round, index } => {
                out[0] = PROBE_SEEN;
                out[1] = round;
                out[8..12].copy_from_slice(&index.to_ne_bytes());
                out[16..24].copy_from_slice(&nonce.to_ne_bytes());
            }
            Self::Ring { size } => {
                out[0] = RING;
                out[1] = RING_FORMAT;
                out[8..12].copy_from_slice(&size.to_ne_bytes());
            }
        }
        out
    }

    /// Parses a frame; returns it and its body.
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, body) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let word = |at: usize| Some(u32::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let half = |at: usize| Some(u16::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let gid = |at: usize| Some(Gid(*header.get(at..)?.first_chunk()?));
        let frame = match header[0] {
            PACKETS => Self::Packets(RxMeta {
                segment: (word(8)? as usize).max(1),
                first_index: half(4)?,
                src_port: half(6)?,
                traffic_class: header[1],
                hop_limit: header[2],
                ..RxMeta::alone(body.len(), gid(16)?, gid(32)?)
            }),
            CREDIT => Self::Credit { dst: gid(16)?, slot: Slot::new(half(4)?), bytes: word(8)? },
            PROBE_SEEN => Self::ProbeSeen { nonce: long(16)?, round: header[1], index: word(8)? },
            RING if header[1] == RING_FORMAT => Self::Ring { size: word(8)? },
            _ => return None,
        };
        Some((frame, body))
    }
}

/// Fuzz target: a parsed frame must serialize to an equal one.
#[cfg(any(test, feature = "fuzz"))]
pub fn check(bytes: &[u8]) {
    let Some((frame, body)) = Frame::parse(bytes) else { return };
    let again = [&frame.header()[..], body].concat();
    assert_eq!(Frame::parse(&again), Some((frame, body)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::ROCE_PORT;
    use std::net::Ipv4Addr;

    #[test]
    fn frames_roundtrip() {
        let (src, dst) = (Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into());
        let meta = RxMeta {
            len: 3,
            segment: 4112,
            first_index: 63,
            src,
            dst,
            src_port: ROCE_PORT,
            traffic_class: 0x68,
            hop_limit: 63,
            by_ring: false,
        };
        for frame in [
            Frame::Packets(meta),
            Frame::Credit { dst, slot: Slot::new(0xabc), bytes: 1 << 20 },
            Frame::ProbeSeen { nonce: u64::MAX - 1, round: 2, index: 99 },
            Frame::Ring { size: 1 << 19 },
        ] {
            let mut bytes = frame.header().to_vec();
            bytes.extend(b"xyz");
            assert_eq!(Frame::parse(&bytes), Some((frame, &b"xyz"[..])));
        }
    }

    /// Every kind and second byte, other bytes from the edges of their ranges.
    #[test]
    fn parsed_frame_serializes_to_equal_frame() {
        for (kind, second) in (0..=8).flat_map(|kind| (0..=u8::MAX).map(move |second| (kind, second))) {
            for third in [0, 1, 5, 6, 0x60, 0x64, 0x65, 0xff] {
                for rest in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bytes = [rest; HEADER_LEN + 3];
                    bytes[..3].copy_from_slice(&[kind, second, third]);
                    check(&bytes);
                    assert_eq!(Frame::parse(&bytes[..HEADER_LEN - 1]), None);
                }
            }
        }
    }

    #[test]
    fn invalid_frames_are_refused() {
        assert_eq!(Frame::parse(&[]), None);
        assert_eq!(Frame::parse(&[PACKETS; HEADER_LEN - 1]), None);
        assert_eq!(Frame::parse(&[0; HEADER_LEN]), None);
        for first in 0..=u8::MAX {
            let _ = Frame::parse(&[first; HEADER_LEN]);
        }
        let mut other_format = [0; HEADER_LEN];
        other_format[..2].copy_from_slice(&[RING, RING_FORMAT - 1]);
        assert_eq!(Frame::parse(&other_format), None);
    }
}
