//! Options of streams. Options that have no meaning over RDMA, such as many of TCP, are accepted
//! and ignored. `RDMA_ROUTE` is the path of the connection as `struct ibv_path_data`.

use super::settings::clamp_queue_len;
use super::{Phase, Stream, StreamState};
use crate::errno::os;
use crate::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
use roxe::cm::{CmId, IdOption, Path};
use roxe::{Gid, PathMtu};
use std::io;
use std::time::Duration;

const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;
/// Bytes of `struct tcp_info`, and offset of the congestion window.
const TCP_INFO_LEN: usize = 104;
const TCP_INFO_CWND: usize = 80;
/// TCP_MAXSEG while the path is unknown, in bytes.
const DEFAULT_SEGMENT: u32 = 2048;

impl Stream {
    /// Sets an option. Returns true if the background thread is needed.
    pub(crate) fn set_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<bool> {
        let mut inner = self.lock_updated();
        match level {
            libc::SOL_SOCKET => inner.set_socket(name, value)?,
            libc::IPPROTO_IP if name == libc::IP_TOS => {
                let tos = number(value)?;
                inner.set_id_option(IdOption::Tos(tos as u8))?;
                inner.settings.tos = tos as u8;
            }
            libc::IPPROTO_TCP => inner.set_tcp(name, value)?,
            libc::IPPROTO_IPV6 if name == libc::IPV6_V6ONLY => {
                let on = number(value)? != 0;
                inner.set_id_option(IdOption::AfOnly(on))?;
                inner.settings.v6_only = on;
            }
            SOL_RDMA => inner.set_rdma(name, value)?,
            _ => return Err(os(libc::ENOTSUP)),
        }
        Ok(inner.next_probe.is_some())
    }

    /// Returns an option other than SO_TYPE, SO_DOMAIN and SO_PROTOCOL.
    pub(crate) fn option(&self, level: i32, name: i32) -> io::Result<Vec<u8>> {
        let mut inner = self.lock_updated();
        match level {
            libc::SOL_SOCKET => inner.socket_option(name),
            libc::IPPROTO_IP if name == libc::IP_TOS => Ok(int(inner.settings.tos.into())),
            libc::IPPROTO_TCP => inner.tcp_option(name),
            libc::IPPROTO_IPV6 if name == libc::IPV6_V6ONLY => Ok(flag(inner.settings.v6_only)),
            SOL_RDMA => inner.rdma_option(name),
            _ => Err(os(libc::ENOTSUP)),
        }
    }
}

impl StreamState {
    fn set_socket(&mut self, name: i32, value: &[u8]) -> io::Result<()> {
        match name {
            libc::SO_REUSEADDR => {
                let on = number(value)? != 0;
                // Ignores the error of a bound socket, because `setsockopt(2)` has none there.
                let _ = self.set_id_option(IdOption::ReuseAddr(on));
                self.settings.reuse_addr = on;
            }
            libc::SO_RCVBUF => self.settings.set_recv_buffer(number(value)?),
            libc::SO_SNDBUF => self.settings.set_send_buffer(number(value)?),
            libc::SO_LINGER => {
                let seconds = number(value.get(4..).unwrap_or_default())?;
                self.settings.linger = (number(value)? != 0).then(|| Duration::from_secs(seconds.into()));
            }
            libc::SO_KEEPALIVE => {
                self.settings.keepalive = number(value)? != 0;
                self.next_probe = self.settings.first_probe();
            }
            libc::SO_OOBINLINE => self.settings.oob_inline = number(value)? != 0,
            _ => return Err(os(libc::ENOTSUP)),
        }
        Ok(())
    }

    fn set_tcp(&mut self, name: i32, value: &[u8]) -> io::Result<()> {
        match name {
            libc::TCP_NODELAY => self.settings.no_delay = number(value)? != 0,
            libc::TCP_KEEPIDLE => {
                let seconds = number(value)?;
                if !(1..=32767).contains(&seconds) {
                    return Err(os(libc::EINVAL));
                }
                self.settings.keep_idle = Duration::from_secs(seconds.into());
                self.next_probe = self.settings.first_probe();
            }
            libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION => {}
            _ => return Err(os(libc::ENOTSUP)),
        }
        Ok(())
    }

    fn set_rdma(&mut self, name: i32, value: &[u8]) -> io::Result<()> {
        if !matches!(self.phase, Phase::Idle(_) | Phase::Listening(_)) {
            return Err(os(libc::EINVAL));
        }
        match name {
            RDMA_SQSIZE => self.settings.sizes.send_queue = clamp_queue_len(number(value)?),
            RDMA_RQSIZE => self.settings.sizes.recv_queue = clamp_queue_len(number(value)?),
            RDMA_INLINE => self.settings.inline = number(value)?,
            RDMA_IOMAPSIZE => self.settings.set_iomaps(number(value)?),
            RDMA_ROUTE => self.settings.path = Some(decode_path(value).ok_or_else(|| os(libc::EINVAL))?),
            _ => return Err(os(libc::ENOTSUP)),
        }
        Ok(())
    }

    fn socket_option(&mut self, name: i32) -> io::Result<Vec<u8>> {
        let settings = &self.settings;
        Ok(match name {
            libc::SO_REUSEADDR => flag(settings.reuse_addr),
            libc::SO_KEEPALIVE => flag(settings.keepalive),
            libc::SO_OOBINLINE => flag(settings.oob_inline),
            libc::SO_RCVBUF => int(settings.sizes.recv_buffer),
            libc::SO_SNDBUF => int(settings.sizes.send_buffer),
            libc::SO_LINGER => {
                let seconds = settings.linger.map_or(0, |linger| linger.as_secs() as u32);
                [flag(settings.linger.is_some()), int(seconds)].concat()
            }
            libc::SO_ERROR => int(std::mem::take(&mut self.error).cast_unsigned()),
            libc::SO_ACCEPTCONN => flag(matches!(self.phase, Phase::Listening(_))),
            libc::SO_BROADCAST => flag(false),
            _ => return Err(os(libc::ENOTSUP)),
        })
    }

    fn tcp_option(&self, name: i32) -> io::Result<Vec<u8>> {
        Ok(match name {
            libc::TCP_NODELAY => flag(self.settings.no_delay),
            libc::TCP_KEEPIDLE => int(self.settings.keep_idle.as_secs() as u32),
            libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_CONGESTION => int(1),
            libc::TCP_MAXSEG => {
                let path = self.phase.id().and_then(CmId::path);
                int(path.map_or(DEFAULT_SEGMENT, |path| path.mtu.bytes()))
            }
            libc::TCP_INFO => self.tcp_info(),
            _ => return Err(os(libc::ENOTSUP)),
        })
    }

    /// Returns a `struct tcp_info` whose state is set, and whose congestion window is the length of
    /// the send queue.
    fn tcp_info(&self) -> Vec<u8> {
        let mut info = vec![0; TCP_INFO_LEN];
        info[0] = if matches!(self.phase, Phase::Open(_)) { TCP_ESTABLISHED } else { TCP_CLOSE };
        let window = u32::from(self.settings.sizes.send_queue).to_ne_bytes();
        info[TCP_INFO_CWND..TCP_INFO_CWND + window.len()].copy_from_slice(&window);
        info
    }

    fn rdma_option(&self, name: i32) -> io::Result<Vec<u8>> {
        let sizes = &self.settings.sizes;
        Ok(match name {
            RDMA_SQSIZE => int(sizes.send_queue.into()),
            RDMA_RQSIZE => int(sizes.recv_queue.into()),
            RDMA_INLINE => int(self.settings.inline),
            RDMA_IOMAPSIZE => int(sizes.iomaps.into()),
            RDMA_ROUTE => {
                let path = self.settings.path.or_else(|| self.phase.id()?.path());
                path.map_or_else(Vec::new, |path| encode_path(&path).to_vec())
            }
            _ => return Err(os(libc::ENOTSUP)),
        })
    }
}

/// Returns the `int` at the start of `value`, as unsigned. Fails with EINVAL for too few bytes.
fn number(value: &[u8]) -> io::Result<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)).ok_or_else(|| os(libc::EINVAL))
}

fn int(value: u32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

fn flag(on: bool) -> Vec<u8> {
    int(on.into())
}

/// Bytes of `struct ibv_path_data`.
const PATH_LEN: usize = 72;

/// Selector in the bytes of path MTU, rate and packet life time: exactly this value.
const EXACT: u8 = 2 << 6;
/// Bits of the value in the bytes of path MTU, rate and packet life time.
const VALUE_MASK: u8 = 0x3f;
/// A reversible path, and the number of paths: 1.
const REVERSIBLE_ONE_PATH: u8 = 0x81;
/// Flags of the only path: `IBV_PATH_FLAG_GMP | _PRIMARY | _BIDIRECTIONAL`.
const ONLY_PATH_FLAGS: u32 = 0x13;

pub(crate) fn encode_path(path: &Path) -> [u8; PATH_LEN] {
    let mut out = [0; PATH_LEN];
    out[..4].copy_from_slice(&ONLY_PATH_FLAGS.to_ne_bytes());
    out[16..32].copy_from_slice(&path.dgid.0);
    out[32..48].copy_from_slice(&path.sgid.0);
    out[52..56].copy_from_slice(&(path.flow_label << 8 | u32::from(path.hop_limit)).to_be_bytes());
    out[56] = path.traffic_class;
    out[57] = REVERSIBLE_ONE_PATH;
    out[58..60].copy_from_slice(&path.pkey.to_be_bytes());
    out[60..62].copy_from_slice(&u16::from(path.sl).to_be_bytes());
    out[62] = EXACT | path.mtu as u8;
    out[63] = EXACT | path.rate;
    out[64] = EXACT | path.packet_life_time;
    out
}

/// Decodes a path; `None` for too few bytes or an invalid path MTU.
pub(crate) fn decode_path(bytes: &[u8]) -> Option<Path> {
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
        mtu: PathMtu::from_code(bytes[62] & VALUE_MASK)?,
        rate: bytes[63] & VALUE_MASK,
        packet_life_time: bytes[64] & VALUE_MASK,
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
    fn path_matches_the_structure_of_verbs() {
        let bytes = encode_path(&sample());
        assert_eq!((bytes[16], bytes[31], bytes[32], bytes[47]), (0xd, 0xd, 0x5, 0x5));
        assert_eq!(
            bytes[52..],
            [0x01, 0x23, 0x45, 64, 0x20, 0x81, 0xff, 0xff, 0, 3, 0x83, 0x87, 0x90, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(decode_path(&bytes), Some(sample()));
    }

    #[test]
    fn invalid_paths_are_refused() {
        let mut bytes = encode_path(&sample());
        assert_eq!(decode_path(&bytes[..71]), None);
        bytes[62] = 0x80 | 9;
        assert_eq!(decode_path(&bytes), None);
    }
}
