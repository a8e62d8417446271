//! Tag matching headers at the start of a message to a tag-matching shared receive queue. They are
//! part of the payload of an ordinary SEND (`infiniband/tm_types.h`), invisible to the transport.

use crate::bytes::{Reader, Writer};
use crate::num::RKey;

/// Kind of a tagged message (`enum ibv_tmh_op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TmOp {
    /// Not tagged: placed in an ordinary receive.
    NoTag = 0,
    /// Rendezvous request: a [`Rvh`] with the location of the data follows.
    Rendezvous = 1,
    /// End of a rendezvous: the data was read.
    Fin = 2,
    /// The data follows.
    Eager = 3,
}

impl TmOp {
    fn from_u8(byte: u8) -> Option<Self> {
        [Self::NoTag, Self::Rendezvous, Self::Fin, Self::Eager].into_iter().find(|op| *op as u8 == byte)
    }
}

/// Tag-matching header (`struct ibv_tmh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tmh {
    /// Kind of the message.
    pub op: TmOp,
    /// Data of the sending program; returned at the end of a rendezvous.
    pub app_ctx: u32,
    /// Tag of the message.
    pub tag: u64,
}

impl Tmh {
    /// Length on the wire, bytes.
    pub const LEN: usize = 16;

    /// Returns the header of `message` and the bytes after it; `None` if it is too short or the
    /// operation is unknown. Reserved bytes are ignored.
    // clause: TM-HEADER
    pub fn parse(message: &[u8]) -> Option<(Self, &[u8])> {
        let mut from = Reader(message);
        let [op, ..] = *from.array::<4>().ok()?;
        let (app_ctx, tag) = (from.u32().ok()?, from.u64().ok()?);
        Some((Self { op: TmOp::from_u8(op)?, app_ctx, tag }, from.0))
    }

    /// Returns the bytes on the wire; reserved ones are 0.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut to = &mut bytes[..];
        // Cannot fail: the fields fill the array.
        let _ = to.array([self.op as u8, 0, 0, 0]).and_then(|()| to.u32(self.app_ctx)).and_then(|()| to.u64(self.tag));
        bytes
    }
}

/// Rendezvous header (`struct ibv_rvh`): location of the data in the memory of the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rvh {
    /// Virtual address.
    pub va: u64,
    /// Key of that memory.
    pub rkey: RKey,
    /// Length of the data, bytes.
    pub len: u32,
}

impl Rvh {
    /// Parses the header after a [`Tmh`].
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        Some(Self { va: from.u64().ok()?, rkey: RKey(from.u32().ok()?), len: from.u32().ok()? })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    // clause: TM-HEADER
    #[test]
    fn tag_headers_have_the_layout_of_the_c_header() {
        let mut message: Vec<u8> = Vec::from([1, 9, 9, 9, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0x12, 0x34]);
        message.extend(0x0102_0304_0506_0708_u64.to_be_bytes());
        message.extend(0xaabb_ccdd_u32.to_be_bytes());
        message.extend(1024_u32.to_be_bytes());
        message.extend(b"more");
        let (tmh, rest) = Tmh::parse(&message).expect("long enough");
        assert_eq!(tmh, Tmh { op: TmOp::Rendezvous, app_ctx: 5, tag: 0x1234 });
        let rvh = Rvh { va: 0x0102_0304_0506_0708, rkey: RKey(0xaabb_ccdd), len: 1024 };
        assert_eq!(Rvh::parse(rest), Some(rvh));
        let fin = Tmh { op: TmOp::Fin, ..tmh };
        assert_eq!(fin.to_bytes(), [2, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0x12, 0x34]);
    }

    // clause: TM-HEADER
    #[test]
    fn tag_headers_roundtrip_and_others_are_rejected() {
        for op in [TmOp::NoTag, TmOp::Rendezvous, TmOp::Fin, TmOp::Eager] {
            let tmh = Tmh { op, app_ctx: 0xffff_ffff, tag: u64::MAX };
            assert_eq!(Tmh::parse(&tmh.to_bytes()), Some((tmh, &[][..])));
        }
        assert_eq!(Tmh::parse(&[4; 16]), None);
        assert_eq!(Tmh::parse(&[3; 15]), None);
        assert_eq!(Rvh::parse(&[0; 15]), None);
    }
}
