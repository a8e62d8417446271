//! Private data of the connection request and reply of a stream.

use super::Violation;
use std::array;

/// Bytes of the private data.
pub(crate) const CONN_DATA_LEN: usize = 40;
/// Entries of the target list: one for each half of the receive buffer.
pub(crate) const TARGETS: usize = 2;
/// Bytes of a target, in the target list and in the connection data.
pub(crate) const TARGET_LEN: usize = 16;
/// Bytes of an entry in the table of remote mappings.
pub(crate) const IOMAP_LEN: usize = 24;

const VERSION: u8 = 1;
/// Set if the sender is big-endian.
const FLAG_BIG_ENDIAN: u8 = 1;
/// Set if the sender supports remote mappings.
const FLAG_IOMAP: u8 = 2;

/// Memory of one side that the other side may write to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    /// Length in bytes; for the target list, in entries.
    pub(crate) len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    pub(crate) const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    /// Converts a number between big-endian and this byte order.
    fn converted<const N: usize>(self, mut bytes: [u8; N]) -> [u8; N] {
        if self == Self::Little {
            bytes.reverse();
        }
        bytes
    }
}

impl Target {
    /// Encodes an entry for the memory of a host of this byte order.
    // clause: RSOCK-TARGET
    pub(crate) fn encode(self, order: ByteOrder) -> [u8; TARGET_LEN] {
        let mut out = [0; TARGET_LEN];
        out[..8].copy_from_slice(&order.converted(self.addr.to_be_bytes()));
        out[8..12].copy_from_slice(&order.converted(self.rkey.to_be_bytes()));
        out[12..].copy_from_slice(&order.converted(self.len.to_be_bytes()));
        out
    }

    /// Decodes an entry in the memory of a host of this byte order.
    pub(crate) fn decode(bytes: [u8; TARGET_LEN], order: ByteOrder) -> Self {
        Self {
            addr: u64::from_be_bytes(order.converted(array::from_fn(|i| bytes[i]))),
            rkey: u32::from_be_bytes(order.converted(array::from_fn(|i| bytes[8 + i]))),
            len: u32::from_be_bytes(order.converted(array::from_fn(|i| bytes[12 + i]))),
        }
    }
}

/// A mapping of `riomap`: the peer writes to `target` by offsets that begin at `offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Iomap {
    pub(crate) offset: u64,
    pub(crate) target: Target,
}

impl Iomap {
    /// Encodes an entry for the memory of a host of this byte order.
    // clause: RSOCK-IOMAP
    pub(crate) fn encode(self, order: ByteOrder) -> [u8; IOMAP_LEN] {
        let mut out = [0; IOMAP_LEN];
        out[..8].copy_from_slice(&order.converted(self.offset.to_be_bytes()));
        out[8..].copy_from_slice(&self.target.encode(order));
        out
    }

    /// Decodes an entry that the peer has written to the memory of this host.
    pub(crate) fn decode_native(bytes: [u8; IOMAP_LEN]) -> Self {
        let offset = u64::from_ne_bytes(array::from_fn(|i| bytes[i]));
        Self { offset, target: Target::decode(array::from_fn(|i| bytes[8 + i]), ByteOrder::NATIVE) }
    }

    /// Returns the part of the mapping from `offset` on, if the mapping covers it.
    pub(crate) fn target_at(&self, offset: u64) -> Option<Target> {
        let skip = offset.checked_sub(self.offset)?;
        let skip = u32::try_from(skip).ok().filter(|skip| *skip < self.target.len)?;
        Some(Target {
            addr: self.target.addr.wrapping_add(u64::from(skip)),
            rkey: self.target.rkey,
            len: self.target.len - skip,
        })
    }
}

/// The private data of one side, the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnData {
    /// Byte order of the sender's host.
    pub(crate) order: ByteOrder,
    /// Initial credits: messages that the other side may send.
    pub(crate) credits: u16,
    /// Mappings that the sender accepts; `None` if it does not support mappings.
    pub(crate) iomaps: Option<u16>,
    /// The sender's target list; `len` counts entries.
    pub(crate) targets: Target,
    /// The first half of the sender's receive buffer.
    pub(crate) data: Target,
}

impl ConnData {
    // clause: RSOCK-CONN-DATA
    pub(crate) fn encode(&self) -> [u8; CONN_DATA_LEN] {
        let mut out = [0; CONN_DATA_LEN];
        out[0] = VERSION;
        out[1] = match self.order {
            ByteOrder::Big => FLAG_BIG_ENDIAN,
            ByteOrder::Little => 0,
        };
        out[2..4].copy_from_slice(&self.credits.to_be_bytes());
        if let Some(iomaps) = self.iomaps {
            out[1] |= FLAG_IOMAP;
            out[7] = encode_count(iomaps);
        }
        out[8..24].copy_from_slice(&self.targets.encode(ByteOrder::Big));
        out[24..].copy_from_slice(&self.data.encode(ByteOrder::Big));
        out
    }

    /// Decodes the peer's private data, which the connection manager may have padded.
    ///
    /// # Errors
    /// [`Violation`] for another version, too few bytes, or an empty target list.
    // clause: RSOCK-CONN-VERSION
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Violation> {
        let bytes: &[u8; CONN_DATA_LEN] = bytes.first_chunk().ok_or(Violation)?;
        let [version, flags, high, low, _, _, _, iomaps, ..] = *bytes;
        let targets = Target::decode(array::from_fn(|i| bytes[8 + i]), ByteOrder::Big);
        if version != VERSION || targets.len == 0 {
            return Err(Violation);
        }
        Ok(Self {
            order: if flags & FLAG_BIG_ENDIAN != 0 { ByteOrder::Big } else { ByteOrder::Little },
            credits: u16::from_be_bytes([high, low]),
            iomaps: (flags & FLAG_IOMAP != 0).then(|| decode_count(iomaps)),
            targets,
            data: Target::decode(array::from_fn(|i| bytes[24 + i]), ByteOrder::Big),
        })
    }
}

/// Encodes a count below 2^15 in one byte: exactly up to 128, above that in units of 256.
// clause: RSOCK-IOMAP-SCALE
pub(crate) const fn encode_count(value: u16) -> u8 {
    if value <= 0x80 { value as u8 } else { 0x80 | (value >> 8) as u8 }
}

/// Decodes the byte of [`encode_count`], rounded down.
pub(crate) const fn decode_count(byte: u8) -> u16 {
    if byte <= 0x80 { byte as u16 } else { ((byte & 0x7f) as u16) << 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ConnData {
        ConnData {
            order: ByteOrder::Little,
            credits: 384,
            iomaps: Some(3),
            targets: Target { addr: 0x0102_0304_0506_0708, rkey: 0x1112_1314, len: 2 },
            data: Target { addr: 0x2122_2324_2526_2728, rkey: 0x3132_3334, len: 65536 },
        }
    }

    // Rounding up would let the peer write beyond the table.
    #[test]
    fn counts_in_one_byte_are_rounded_down() {
        for value in 0..=u16::MAX {
            let read = decode_count(encode_count(value));
            assert!(read <= value && (value > 0x80 || read == value), "{value}: {read}");
            // Counts from 2^15 on lose their highest bit, as in librdmacm.
            assert!(value >= 0x8000 || value - read < 256, "{value}: {read}");
        }
        for byte in 0..=u8::MAX {
            assert_eq!(decode_count(encode_count(decode_count(byte))), decode_count(byte), "{byte}");
        }
    }

    // clause: RSOCK-CONN-DATA
    #[test]
    fn connection_data_matches_the_wire_format() {
        let bytes = sample().encode();
        let expected = [
            1, 2, 0x01, 0x80, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2, 0x21, 0x22, 0x23,
            0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 1, 0, 0,
        ];
        assert_eq!(bytes, expected);
        let mut padded = bytes.to_vec();
        padded.resize(196, 0);
        assert_eq!(ConnData::decode(&padded), Ok(sample()));
        let big = ConnData { order: ByteOrder::Big, iomaps: None, ..sample() };
        assert_eq!(big.encode()[1], 1);
        assert_eq!(ConnData::decode(&big.encode()), Ok(big));
    }

    // clause: RSOCK-CONN-VERSION
    #[test]
    fn invalid_connection_data_is_refused() {
        let mut other = sample().encode();
        other[0] = 2;
        assert_eq!(ConnData::decode(&other), Err(Violation));
        assert_eq!(ConnData::decode(&sample().encode()[..39]), Err(Violation));
        assert_eq!(ConnData::decode(&[]), Err(Violation));
        let none = ConnData { targets: Target { len: 0, ..sample().targets }, ..sample() };
        assert_eq!(ConnData::decode(&none.encode()), Err(Violation));
    }

    // clause: RSOCK-TARGET
    #[test]
    fn target_is_encoded_in_the_byte_order_of_its_host() {
        let target = Target { addr: 0x0102_0304_0506_0708, rkey: 0x1112_1314, len: 0x2122_2324 };
        let big = target.encode(ByteOrder::Big);
        assert_eq!(big, [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24]);
        let little = target.encode(ByteOrder::Little);
        assert_eq!(little, [8, 7, 6, 5, 4, 3, 2, 1, 0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21]);
        assert_eq!(Target::decode(target.encode(ByteOrder::NATIVE), ByteOrder::NATIVE), target);
    }

    // clause: RSOCK-IOMAP
    #[test]
    fn mapping_covers_its_offsets_only() {
        let map = Iomap { offset: 100, target: Target { addr: 0x1000, rkey: 7, len: 50 } };
        assert_eq!(map.encode(ByteOrder::Big)[..8], 100u64.to_be_bytes());
        assert_eq!(map.encode(ByteOrder::Big)[8..], map.target.encode(ByteOrder::Big));
        assert_eq!(Iomap::decode_native(map.encode(ByteOrder::NATIVE)), map);
        assert_eq!(map.target_at(99), None);
        assert_eq!(map.target_at(100), Some(map.target));
        assert_eq!(map.target_at(149), Some(Target { addr: 0x1031, rkey: 7, len: 1 }));
        assert_eq!(map.target_at(150), None);
    }

    // clause: RSOCK-IOMAP-SCALE
    #[test]
    fn counts_above_128_use_steps_of_256() {
        for exact in [0, 1, 127, 128] {
            assert_eq!(decode_count(encode_count(exact)), exact);
        }
        assert_eq!(decode_count(encode_count(256)), 256);
        assert_eq!(decode_count(encode_count(1000)), 768);
        assert_eq!(decode_count(encode_count(u16::MAX)), 127 << 8);
    }
}
