//! The extended headers: fields, length, parsing and writing (IBA §9.3); their text is at the end.
//! Reserved bits are ignored when read and 0 when written.

use crate::bytes::{ParseError, Reader, Writer};
use crate::num::{Msn, Qkey, Qpn, RKey};
use core::fmt;

/// RDMA extended header: the responder's memory of a WRITE or READ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address.
    pub va: u64,
    /// Key of the remote memory.
    pub rkey: RKey,
    /// Length of the whole message in bytes.
    pub dma_len: u32,
}

impl Reth {
    /// Length on the wire, bytes.
    pub const LEN: usize = 16;

    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self { va: from.u64()?, rkey: RKey(from.u32()?), dma_len: from.u32()? })
    }

    #[inline]
    pub(crate) fn write(&self, to: &mut impl Writer) -> Option<()> {
        to.u64(self.va)?;
        to.u32(self.rkey.0)?;
        to.u32(self.dma_len)
    }
}

/// ACK extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Acknowledged, not ready or refused.
    pub syndrome: Syndrome,
    /// Number of messages completed by the responder.
    pub msn: Msn,
}

impl Aeth {
    // Inlined: a call would return the result through memory.
    #[inline(always)]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, ParseError> {
        let word = from.u32()?;
        let [syndrome, ..] = word.to_be_bytes();
        Ok(Self { syndrome: Syndrome::from_u8(syndrome), msn: Msn::new(word) })
    }

    #[inline]
    pub(crate) fn write(&self, to: &mut impl Writer) -> Option<()> {
        to.u32(u32::from(self.syndrome.to_u8()) << 24 | self.msn.get())
    }
}

/// Result in an AETH (IBA §9.7.5.2, table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Positive: everything up to this PSN was executed.
    Ack {
        /// Encoded count of receive requests available, 5 bits; 31 means "no limit given".
        credits: u8,
    },
    /// Receiver not ready: retransmit after the timer.
    RnrNak {
        /// Encoded time to wait, 5 bits.
        timer: u8,
    },
    /// The request is refused.
    Nak(NakCode),
    /// A reserved syndrome: the whole byte.
    Reserved(u8),
}

impl Syndrome {
    /// A positive acknowledgement that does not limit the sender.
    pub const ACK_UNLIMITED: Self = Self::Ack { credits: 0x1f };

    /// Returns the syndrome of this byte.
    // clause: AETH-SYNDROME
    #[inline]
    pub const fn from_u8(byte: u8) -> Self {
        let low = byte & 0x1f;
        match byte >> 5 {
            0b000 => Self::Ack { credits: low },
            0b001 => Self::RnrNak { timer: low },
            0b011 => Self::Nak(NakCode::from_u8(low)),
            _ => Self::Reserved(byte),
        }
    }

    /// Returns the byte of this syndrome, with the low 5 bits of credits, timer or NAK code.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code.to_u8() & 0x1f,
            Self::Reserved(byte) => byte,
        }
    }
}

/// Reason why a request was refused (IBA §9.7.5.2.8, table 49).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// A packet is missing before the refused one: retransmit from the PSN in the BTH.
    PsnSequence,
    /// The request is malformed or not supported.
    InvalidRequest,
    /// The key, the range or the access right does not allow the access.
    RemoteAccess,
    /// The responder failed locally.
    RemoteOperation,
    /// Reliable datagram only.
    InvalidRd,
    /// A reserved code, 5..=31.
    Reserved(u8),
}

impl NakCode {
    const fn from_u8(code: u8) -> Self {
        match code {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperation,
            4 => Self::InvalidRd,
            other => Self::Reserved(other),
        }
    }

    const fn to_u8(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperation => 3,
            Self::InvalidRd => 4,
            Self::Reserved(other) => other,
        }
    }
}

/// Atomic extended header: a COMPARE SWAP or FETCH ADD on 8 bytes of the responder's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address.
    pub va: u64,
    /// Key of the remote memory.
    pub rkey: RKey,
    /// The new value, or the addend; a number, not bytes of memory.
    pub swap_or_add: u64,
    /// The value to compare with; 0 for FETCH ADD.
    pub compare: u64,
}

impl AtomicEth {
    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self { va: from.u64()?, rkey: RKey(from.u32()?), swap_or_add: from.u64()?, compare: from.u64()? })
    }

    #[inline]
    pub(crate) fn write(&self, to: &mut impl Writer) -> Option<()> {
        to.u64(self.va)?;
        to.u32(self.rkey.0)?;
        to.u64(self.swap_or_add)?;
        to.u64(self.compare)
    }
}

/// Atomic ACK extended header: the value the remote memory had before; a number, not bytes of
/// memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicAckEth(pub u64);

impl AtomicAckEth {
    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, ParseError> {
        from.u64().map(Self)
    }

    #[inline]
    pub(crate) fn write(self, to: &mut impl Writer) -> Option<()> {
        to.u64(self.0)
    }
}

/// Immediate data: 4 bytes for the receiver's completion, in the given byte order.
// clause: IMM-OPAQUE
// Aligned, so that headers are copied in words: unaligned loads stall on earlier stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(4))]
pub struct ImmDt(pub [u8; 4]);

impl ImmDt {
    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, ParseError> {
        from.array().copied().map(Self)
    }

    #[inline]
    pub(crate) fn write(self, to: &mut impl Writer) -> Option<()> {
        to.array(self.0)
    }
}

/// Invalidate extended header: the remote key that the receiver of a SEND invalidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ieth(pub RKey);

impl Ieth {
    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, ParseError> {
        from.u32().map(|key| Self(RKey(key)))
    }

    #[inline]
    pub(crate) fn write(self, to: &mut impl Writer) -> Option<()> {
        to.u32(self.0.0)
    }
}

/// Datagram extended header: Q_Key and sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key; must equal that of the receiving QP.
    pub qkey: Qkey,
    /// The sending QP.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Length on the wire, bytes.
    pub const LEN: usize = 8;

    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self { qkey: Qkey(from.u32()?), src_qpn: Qpn::new(from.u32()?) })
    }

    #[inline]
    pub(crate) fn write(&self, to: &mut impl Writer) -> Option<()> {
        to.u32(self.qkey.0)?;
        to.u32(self.src_qpn.get())
    }
}

/// XRC extended header: number of the shared receive queue a request is for, 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrcEth(pub u32);

impl XrcEth {
    /// Length on the wire, bytes.
    pub const LEN: usize = 4;
    const MASK: u32 = 0x00ff_ffff;

    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, ParseError> {
        from.u32().map(|word| Self(word & Self::MASK))
    }

    #[inline]
    pub(crate) fn write(self, to: &mut impl Writer) -> Option<()> {
        to.u32(self.0 & Self::MASK)
    }
}

/// FLUSH extended header: the memory that must become visible or persistent before the response.
// Aligned, so that headers are copied in words: unaligned loads stall on earlier stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(4))]
pub struct Feth {
    /// Range or whole region.
    pub selectivity: Selectivity,
    /// Level: visible to others, or persistent.
    pub placement: Placement,
}

impl Feth {
    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, ParseError> {
        let [.., low] = from.u32()?.to_be_bytes();
        Ok(Self { selectivity: Selectivity::from_u8(low >> 4 & 3), placement: Placement(low & 0xf) })
    }

    #[inline]
    pub(crate) fn write(&self, to: &mut impl Writer) -> Option<()> {
        to.u32(u32::from((self.selectivity.to_u8() & 3) << 4 | self.placement.0 & 0xf))
    }
}

/// Memory covered by a FLUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selectivity {
    /// The range in the RETH.
    Range,
    /// The whole memory region.
    Region,
    /// A reserved value, 2 or 3.
    Reserved(u8),
}

impl Selectivity {
    const fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Range,
            1 => Self::Region,
            other => Self::Reserved(other),
        }
    }

    const fn to_u8(self) -> u8 {
        match self {
            Self::Range => 0,
            Self::Region => 1,
            Self::Reserved(other) => other,
        }
    }
}

/// Placement type of a FLUSH: 4 bits, see the constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement(pub u8);

impl Placement {
    /// Visible to every other observer of the memory.
    pub const GLOBAL_VISIBILITY: Self = Self(1);
    /// Persistent over a power loss.
    pub const PERSISTENCE: Self = Self(2);
    /// Visible to others and persistent.
    pub const BOTH: Self = Self(3);
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "va={:#x} rkey={:#x} dmalen={}", self.va, self.rkey.0, self.dma_len)
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} msn={}", self.syndrome, self.msn.get())
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack { credits: 0x1f } => f.write_str("ack"),
            Self::Ack { credits } => write!(f, "ack credits={credits}"),
            Self::RnrNak { timer } => write!(f, "rnr timer={timer}"),
            Self::Nak(code) => write!(f, "nak={code}"),
            Self::Reserved(byte) => write!(f, "syndrome={byte:#04x}"),
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PsnSequence => f.write_str("psn_sequence"),
            Self::InvalidRequest => f.write_str("invalid_request"),
            Self::RemoteAccess => f.write_str("remote_access"),
            Self::RemoteOperation => f.write_str("remote_operation"),
            Self::InvalidRd => f.write_str("invalid_rd"),
            Self::Reserved(code) => write!(f, "reserved_{code}"),
        }
    }
}

impl fmt::Display for AtomicEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "va={:#x} rkey={:#x} data={:#x}", self.va, self.rkey.0, self.swap_or_add)
    }
}

impl fmt::Display for AtomicAckEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "original={:#x}", self.0)
    }
}

impl fmt::Display for ImmDt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imm={:#010x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Display for Ieth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalidate={:#x}", self.0.0)
    }
}

impl fmt::Display for Deth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qkey={:#x} sqpn={}", self.qkey.0, self.src_qpn)
    }
}

impl fmt::Display for XrcEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "srq={:#x}", self.0)
    }
}

impl fmt::Display for Feth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "selectivity={} placement={:#x}", self.selectivity.to_u8(), self.placement.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // clause: AETH-SYNDROME
    #[test]
    fn every_syndrome_byte_roundtrips() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_u8(byte).to_u8(), byte);
        }
    }

    // clause: AETH-SYNDROME
    #[test]
    fn syndromes_decode_as_specified() {
        assert_eq!(Syndrome::from_u8(0x1f), Syndrome::ACK_UNLIMITED);
        assert_eq!(Syndrome::from_u8(0x2c), Syndrome::RnrNak { timer: 12 });
        assert_eq!(Syndrome::from_u8(0x60), Syndrome::Nak(NakCode::PsnSequence));
        assert_eq!(Syndrome::from_u8(0x61), Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!(Syndrome::from_u8(0x62), Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(Syndrome::from_u8(0x63), Syndrome::Nak(NakCode::RemoteOperation));
        assert_eq!(Syndrome::from_u8(0x65), Syndrome::Nak(NakCode::Reserved(5)));
        assert_eq!(Syndrome::from_u8(0x40), Syndrome::Reserved(0x40));
        assert_eq!(Syndrome::from_u8(0x80), Syndrome::Reserved(0x80));
    }
}
