//! The path of a connection as `struct ibv_path_data`, which RDMA_ROUTE sets and gets: 8 bytes of
//! flags and reserved, then a path record of 64 bytes in network order.

use roxe::cm::Path;
use roxe::{Gid, PathMtu};

/// Bytes of it.
pub(crate) const PATH_LEN: usize = 72;

/// In the byte of path MTU, rate and life time: exactly this.
const EXACTLY: u8 = 2 << 6;
const SELECTED: u8 = 0x3f;
const REVERSIBLE_ONE_PATH: u8 = 0x81;
/// Flags of a path that is the only one: `IBV_PATH_FLAG_GMP | _PRIMARY | _BIDIRECTIONAL`.
const FLAGS: u32 = 0x13;

/// The path as bytes.
pub(crate) fn encode(path: &Path) -> [u8; PATH_LEN] {
    let mut out = [0; PATH_LEN];
    out[..4].copy_from_slice(&FLAGS.to_ne_bytes());
    out[16..32].copy_from_slice(&path.dgid.0);
    out[32..48].copy_from_slice(&path.sgid.0);
    out[52..56].copy_from_slice(&(path.flow_label << 8 | u32::from(path.hop_limit)).to_be_bytes());
    out[56] = path.traffic_class;
    out[57] = REVERSIBLE_ONE_PATH;
    out[58..60].copy_from_slice(&path.pkey.to_be_bytes());
    out[60..62].copy_from_slice(&u16::from(path.sl).to_be_bytes());
    out[62] = EXACTLY | path.mtu as u8;
    out[63] = EXACTLY | path.rate;
    out[64] = EXACTLY | path.packet_life_time;
    out
}

/// The path in these bytes; `None` if they are too few or name no path MTU.
pub(crate) fn decode(bytes: &[u8]) -> Option<Path> {
    let bytes: &[u8; PATH_LEN] = bytes.first_chunk()?;
    let flow_and_hops = u32::from_be_bytes(*bytes[52..].first_chunk()?);
    Some(Path {
        dgid: Gid(*bytes[16..].first_chunk()?),
        sgid: Gid(*bytes[32..].first_chunk()?),
        flow_label: flow_and_hops >> 8 & 0xf_ffff,
        hop_limit: flow_and_hops as u8,
        traffic_class: bytes[56],
        pkey: u16::from_be_bytes([bytes[58], bytes[59]]),
        sl: bytes[61] & 0xf,
        mtu: PathMtu::from_code(bytes[62] & SELECTED)?,
        rate: bytes[63] & SELECTED,
        packet_life_time: bytes[64] & SELECTED,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Path {
        Path {
            dgid: Gid([0xd; 16]),
            sgid: Gid([0x5; 16]),
            flow_label: 0x1_2345,
            hop_limit: 64,
            traffic_class: 0x20,
            pkey: 0xffff,
            sl: 3,
            mtu: PathMtu::Mtu1024,
            rate: 7,
            packet_life_time: 16,
        }
    }

    #[test]
    fn every_field_of_a_path_stands_where_it_belongs() {
        let bytes = encode(&sample());
        assert_eq!((bytes[16], bytes[31], bytes[32], bytes[47]), (0xd, 0xd, 0x5, 0x5));
        assert_eq!(
            bytes[52..],
            [0x01, 0x23, 0x45, 64, 0x20, 0x81, 0xff, 0xff, 0, 3, 0x83, 0x87, 0x90, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(decode(&bytes), Some(sample()));
    }

    #[test]
    fn what_is_no_path_is_refused() {
        let mut bytes = encode(&sample());
        assert_eq!(decode(&bytes[..71]), None);
        bytes[62] = 0x80 | 9;
        assert_eq!(decode(&bytes), None);
    }
}
