//! Frames that processes on one interface put into each other's mailboxes ([`super::slot`]).
//!
//! Three kinds: packets that the kernel gave to the wrong process, credits for datagrams taken from the socket, and the
//! answer to a steering probe. A frame is a fixed header and a body; numbers are in the byte order of this machine,
//! because a frame never leaves it. Touches nothing.

use super::RxMeta;
use super::slot::Slot;
use roxe_wire::Gid;

/// Bytes of the header of every frame.
pub(crate) const HEADER: usize = 48;

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The body is this run of packets, as the link received it.
    Packets(RxMeta),
    /// The owner of `slot` at address `dst` has taken `bytes` of datagrams from its socket.
    Credit {
        /// Where the datagrams went.
        dst: Gid,
        /// The slot they went to.
        slot: Slot,
        /// As [`crate::flow`] counts them.
        bytes: u32,
    },
    /// The probe `nonce` for `index` arrived here; the body lists the slots of this process, two bytes each.
    ProbeSeen {
        /// Of the probe.
        nonce: u64,
        /// Of the probe.
        round: u8,
        /// Index in the reuseport group.
        index: u32,
    },
}

const PACKETS: u8 = 1;
const CREDIT: u8 = 2;
const PROBE_SEEN: u8 = 3;

impl Frame {
    /// The header bytes.
    pub(crate) fn header(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
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
        }
        out
    }

    /// Reads a frame: what it says and its body. `None` for anything else.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, body) = bytes.split_first_chunk::<HEADER>()?;
        let word = |at: usize| Some(u32::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let half = |at: usize| Some(u16::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let gid = |at: usize| Some(Gid(*header.get(at..)?.first_chunk()?));
        let frame = match header[0] {
            PACKETS => Self::Packets(RxMeta {
                len: body.len(),
                segment: (word(8)? as usize).max(1),
                first_index: half(4)?,
                src: gid(16)?,
                dst: gid(32)?,
                src_port: half(6)?,
                traffic_class: header[1],
                hop_limit: header[2],
            }),
            CREDIT => Self::Credit { dst: gid(16)?, slot: Slot::new(half(4)?), bytes: word(8)? },
            PROBE_SEEN => {
                let nonce = u64::from_ne_bytes(*header.get(16..)?.first_chunk()?);
                Self::ProbeSeen { nonce, round: header[1], index: word(8)? }
            }
            _ => return None,
        };
        Some((frame, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn every_frame_survives_the_trip() {
        let (src, dst) = (Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into());
        let meta = RxMeta {
            len: 3,
            segment: 4112,
            first_index: 63,
            src,
            dst,
            src_port: 4791,
            traffic_class: 0x68,
            hop_limit: 63,
        };
        for frame in [
            Frame::Packets(meta),
            Frame::Credit { dst, slot: Slot::new(0xabc), bytes: 1 << 20 },
            Frame::ProbeSeen { nonce: u64::MAX - 1, round: 2, index: 99 },
        ] {
            let mut bytes = frame.header().to_vec();
            bytes.extend(b"xyz");
            assert_eq!(Frame::parse(&bytes), Some((frame, &b"xyz"[..])));
        }
    }

    #[test]
    fn anything_else_is_nothing() {
        assert_eq!(Frame::parse(&[]), None);
        assert_eq!(Frame::parse(&[PACKETS; HEADER - 1]), None);
        assert_eq!(Frame::parse(&[0; HEADER]), None);
        assert_eq!(Frame::parse(&[4; HEADER]), None);
    }
}
