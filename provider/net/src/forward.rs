//! Frames that processes on one interface put into each other's mailboxes ([`crate::slot`]).
//!
//! Six kinds: packets that the kernel gave to the wrong process, credits for datagrams taken from
//! the socket, the answer to a steering probe, offers of rings through shared memory, and XRC
//! requests for XRC queues of other processes with what came of them. A frame is a fixed header and
//! a body; numbers are in the byte order of this machine, because a frame never leaves it. Touches
//! nothing.

use crate::link::RxMeta;
use crate::slot::Slot;
use roxe_transport::qp::{Outcome, QpEvents};
use roxe_wire::{Gid, PathMtu, Qpn, Syndrome};

/// Bytes of the header of every frame.
pub const HEADER: usize = 48;

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The body is this run of packets, as the link received it.
    Packets(RxMeta),
    /// The owner of `slot` at address `dst` has taken `bytes` of datagrams from its socket.
    Credit {
        /// Where the datagrams went.
        dst: Gid,
        /// The slot they went to.
        slot: Slot,
        /// As the flow control of the engine counts them.
        bytes: u32,
    },
    /// The probe `nonce` for `index` arrived here; the body lists the slots of this process, two
    /// bytes each.
    ProbeSeen {
        /// Nonce of the probe.
        nonce: u64,
        /// Round of the probe.
        round: u8,
        /// Index in the reuseport group.
        index: u32,
    },
    /// A target of another process asks for this.
    XrcRequest(XrcRequest),
    /// A ring to be read here; its descriptors come along.
    Ring {
        /// Bytes of its data.
        size: u32,
    },
    /// What came of an XRC request of ours. Of a READ the body is the data.
    Result(XrcRequestId, Outcome),
}

/// What a target in one process asks the process of an XRC queue to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XrcRequestKind {
    /// Execute the packet in the body, behind the addresses it came from and went to (16 bytes
    /// each). The path MTU of the connection is this.
    Execute(PathMtu),
    /// Read memory: the body is rkey (4 bytes), length (4), address (8).
    Read,
    /// The connection has ended.
    End,
}

/// An XRC request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcRequest {
    /// What the other process shall do.
    pub kind: XrcRequestKind,
    /// Identifies the request in its result.
    pub id: XrcRequestId,
    /// The queue, 24 bits.
    pub srqn: u32,
    /// Device and inode of the file that names the domain.
    pub file: (u64, u64),
}

/// Identifies an XRC request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcRequestId {
    /// The target that asks.
    pub target: Qpn,
    /// Random number of the connection of the target.
    pub epoch: u64,
    /// Grows from XRC request to XRC request of a connection; one that is asked for again keeps it.
    pub seq: u64,
}

const PACKETS: u8 = 1;
const CREDIT: u8 = 2;
const PROBE_SEEN: u8 = 3;
const XRC_REQUEST: u8 = 4;
const XRC_RESULT: u8 = 5;
const RING: u8 = 6;

/// Version of the format of rings, second byte of their header: offers of another version are
/// ignored.
const RING_FORMAT: u8 = 2;

/// Kinds of XRC requests, second byte of their header. The third one is the path MTU.
const EXECUTE: u8 = 1;
const READ: u8 = 2;
const END: u8 = 3;

/// Kinds of outcomes, second byte of their header. Then come the syndrome and the events.
const DONE: u8 = 1;
const NOT_READY: u8 = 2;
const REFUSED: u8 = 3;

impl XrcRequestId {
    fn put(self, out: &mut [u8; HEADER]) {
        out[4..8].copy_from_slice(&self.target.get().to_ne_bytes());
        out[16..24].copy_from_slice(&self.epoch.to_ne_bytes());
        out[24..32].copy_from_slice(&self.seq.to_ne_bytes());
    }
}

impl XrcRequest {
    fn put(&self, out: &mut [u8; HEADER]) {
        let (kind, mtu) = match self.kind {
            XrcRequestKind::Execute(mtu) => (EXECUTE, mtu as u8),
            XrcRequestKind::Read => (READ, 0),
            XrcRequestKind::End => (END, 0),
        };
        (out[0], out[1], out[2]) = (XRC_REQUEST, kind, mtu);
        self.id.put(out);
        out[8..12].copy_from_slice(&self.srqn.to_ne_bytes());
        out[32..40].copy_from_slice(&self.file.0.to_ne_bytes());
        out[40..].copy_from_slice(&self.file.1.to_ne_bytes());
    }
}

/// Writes the header of a result.
fn put_result(id: XrcRequestId, outcome: Outcome, out: &mut [u8; HEADER]) {
    let (kind, syndrome, events, word) = match outcome {
        Outcome::Done(word) => (DONE, 0, 0, word),
        Outcome::NotReady => (NOT_READY, 0, 0, 0),
        Outcome::Refused(code, events) => (REFUSED, Syndrome::Nak(code).to_u8(), events.bits(), 0),
    };
    out[..4].copy_from_slice(&[XRC_RESULT, kind, syndrome, events]);
    id.put(out);
    out[32..40].copy_from_slice(&word.to_ne_bytes());
}

impl Frame {
    /// The header bytes.
    pub fn header(&self) -> [u8; HEADER] {
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
            Self::Ring { size } => {
                out[0] = RING;
                out[1] = RING_FORMAT;
                out[8..12].copy_from_slice(&size.to_ne_bytes());
            }
            Self::XrcRequest(request) => request.put(&mut out),
            Self::Result(id, outcome) => put_result(id, outcome, &mut out),
        }
        out
    }

    /// Reads a frame: what it says and its body. `None` for anything else.
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, body) = bytes.split_first_chunk::<HEADER>()?;
        let word = |at: usize| Some(u32::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let half = |at: usize| Some(u16::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let id = || Some(XrcRequestId { target: Qpn::new(word(4)? & 0xff_ffff), epoch: long(16)?, seq: long(24)? });
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
            XRC_REQUEST => {
                let kind = match header[1] {
                    EXECUTE => XrcRequestKind::Execute(PathMtu::from_code(header[2])?),
                    READ => XrcRequestKind::Read,
                    END => XrcRequestKind::End,
                    _ => return None,
                };
                Self::XrcRequest(XrcRequest { kind, id: id()?, srqn: word(8)?, file: (long(32)?, long(40)?) })
            }
            XRC_RESULT => {
                let outcome = match (header[1], Syndrome::from_u8(header[2])) {
                    (DONE, _) => Outcome::Done(long(32)?),
                    (NOT_READY, _) => Outcome::NotReady,
                    (REFUSED, Syndrome::Nak(code)) => Outcome::Refused(code, QpEvents::from_bits_truncate(header[3])),
                    _ => return None,
                };
                Self::Result(id()?, outcome)
            }
            _ => return None,
        };
        Some((frame, body))
    }
}

/// Reads `bytes` as a frame; what is read must be what its header says.
#[cfg(any(test, feature = "fuzz"))]
pub fn check(bytes: &[u8]) {
    let Some((frame, body)) = Frame::parse(bytes) else { return };
    let again = [&frame.header()[..], body].concat();
    assert_eq!(Frame::parse(&again), Some((frame, body)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::{NakCode, ROCE_PORT};
    use std::net::Ipv4Addr;

    const ID: XrcRequestId = XrcRequestId { target: Qpn::new(0xab_cdef), epoch: u64::MAX - 2, seq: 7 };

    fn request(kind: XrcRequestKind) -> XrcRequest {
        XrcRequest { kind, id: ID, srqn: 0x12_3456, file: (u64::MAX - 3, 9) }
    }

    #[test]
    fn every_frame_is_parsed_as_it_was_written() {
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
            sealed: true,
            by_ring: false,
        };
        for frame in [
            Frame::Packets(meta),
            Frame::Credit { dst, slot: Slot::new(0xabc), bytes: 1 << 20 },
            Frame::ProbeSeen { nonce: u64::MAX - 1, round: 2, index: 99 },
            Frame::XrcRequest(request(XrcRequestKind::Execute(PathMtu::Mtu4096))),
            Frame::Ring { size: 1 << 19 },
            Frame::XrcRequest(request(XrcRequestKind::Read)),
            Frame::XrcRequest(request(XrcRequestKind::End)),
            Frame::Result(ID, Outcome::Done(u64::MAX)),
            Frame::Result(ID, Outcome::NotReady),
            Frame::Result(ID, Outcome::NO_QUEUE),
            Frame::Result(ID, Outcome::Refused(NakCode::RemoteAccess, QpEvents::ACCESS_ERR)),
        ] {
            let mut bytes = frame.header().to_vec();
            bytes.extend(b"xyz");
            assert_eq!(Frame::parse(&bytes), Some((frame, &b"xyz"[..])));
        }
    }

    /// Every kind, with every second byte, and the others from the edges: what is read is what
    /// would be written.
    #[test]
    fn a_frame_that_is_parsed_and_written_again_is_the_same() {
        for (kind, second) in (0..=8).flat_map(|kind| (0..=u8::MAX).map(move |second| (kind, second))) {
            for third in [0, 1, 5, 6, 0x60, 0x64, 0x65, 0xff] {
                for rest in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bytes = [rest; HEADER + 3];
                    bytes[..3].copy_from_slice(&[kind, second, third]);
                    check(&bytes);
                    assert_eq!(Frame::parse(&bytes[..HEADER - 1]), None);
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_frame_are_refused() {
        assert_eq!(Frame::parse(&[]), None);
        assert_eq!(Frame::parse(&[PACKETS; HEADER - 1]), None);
        assert_eq!(Frame::parse(&[0; HEADER]), None);
        for first in 0..=u8::MAX {
            let _ = Frame::parse(&[first; HEADER]);
        }
        for wrong in [
            [XRC_REQUEST, 0, 1, 0],
            [XRC_REQUEST, EXECUTE, 9, 0],
            [XRC_RESULT, 9, 0, 0],
            [XRC_RESULT, REFUSED, 0, 0],
            [RING, 0, 0, 0],
        ] {
            let mut bytes = [0; HEADER];
            bytes[..4].copy_from_slice(&wrong);
            assert_eq!(Frame::parse(&bytes), None, "{wrong:?}");
        }
    }
}
