//! Address handles, created from attributes or from a received datagram.

use crate::abi::{copy_fields, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc};
use crate::errno::{EINVAL, Result, einval, null, pointer, required, status, write_out, zero};
use crate::object::Object;
use crate::objects::{context, context_of, pd};
use crate::rate;
use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr};
use roxe_provider::{AhAttr, Context};
use roxe_wire::Gid;

/// `IBV_WC_GRH`.
const WC_GRH: u32 = 1;
/// Hop limit of a reply: the maximum, because the distance to the sender is unknown.
const REPLY_HOP_LIMIT: u8 = 0xff;
/// Bytes of the GRH area before a datagram.
const GRH_LEN: usize = 40;

pub(crate) fn ah_attr(attr: &ibv_ah_attr) -> AhAttr {
    let route = &attr.grh;
    copy_fields!(AhAttr from route { sgid_index, hop_limit, traffic_class, flow_label } with {
        dgid: Gid(route.dgid.raw),
        port: attr.port_num,
        has_grh: attr.is_global != 0,
        sl: attr.sl,
        static_rate: rate::static_rate(attr.static_rate),
    })
}

pub(crate) fn to_c(attr: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: copy_fields!(ibv_global_route from attr { flow_label, sgid_index, hop_limit, traffic_class } with {
            dgid: ibv_gid { raw: attr.dgid.0 },
        }),
        sl: attr.sl,
        static_rate: rate::static_rate_code(attr.static_rate),
        is_global: attr.has_grh.into(),
        port_num: attr.port,
        ..ibv_ah_attr::ZERO
    }
}

fn create(handle: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    let ah = pd(handle)?.create_ah(&ah_attr(attr))?;
    let context = context_of(handle)?;
    Ok(Object::publish_numbered(ah, |number| ibv_ah { context, pd: handle, handle: number }))
}

pub(crate) unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    pointer(|| create(pd, required!(attr)))
}

/// `man ibv_create_ah`.
pub(crate) unsafe extern "C" fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int {
    status(|| Object::<ibv_ah>::destroy(handle, |_| Ok(())))
}

/// Returns true if `header` is an IPv4 header of 20 bytes with a correct checksum.
fn is_ipv4(header: &[u8; 20]) -> bool {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    header[0] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// Returns source, destination, traffic class and flow label of a received datagram; `None` without
/// an IP header. An IPv4 header is in the last 20 bytes of the area, an IPv6 header fills it (IBA
/// annex A17.4.5.1).
fn parse_grh(area: &[u8; GRH_LEN]) -> Option<(Gid, Gid, u8, u32)> {
    let (_, v4) = area.split_last_chunk::<20>()?;
    if is_ipv4(v4) {
        let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *v4;
        let gid = |a, b, c, d| Gid::from(IpAddr::V4(Ipv4Addr::new(a, b, c, d)));
        return Some((gid(s0, s1, s2, s3), gid(d0, d1, d2, d3), v4[1], 0));
    }
    let (word, rest) = area.split_first_chunk::<4>()?;
    let (_, rest) = rest.split_first_chunk::<4>()?;
    let (sgid, rest) = rest.split_first_chunk::<16>()?;
    let word = u32::from_be_bytes(*word);
    let [traffic_class, ..] = (word << 4).to_be_bytes();
    (word >> 28 == 6).then_some((Gid(*sgid), Gid(*rest.first_chunk()?), traffic_class, word & 0x000f_ffff))
}

/// Returns the address to which a program replies to a datagram, whose GRH area is `area`.
fn reply_to(context: &Context, port: u8, wc: &ibv_wc, area: &[u8; GRH_LEN]) -> Result<ibv_ah_attr> {
    let (sgid, dgid, traffic_class, flow_label) = parse_grh(area).ok_or(EINVAL)?;
    // The reply to a multicast datagram is sent from the first address of its family.
    let can_reply = |gid: Gid| gid == dgid || dgid.is_multicast() && gid.is_ipv4() == dgid.is_ipv4();
    let local =
        context.gid_entries().into_iter().find(|entry| can_reply(entry.gid) && entry.port == port).ok_or(EINVAL)?;
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: sgid.0 },
            flow_label,
            sgid_index: local.index,
            hop_limit: REPLY_HOP_LIMIT,
            traffic_class,
        },
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        static_rate: 0,
        is_global: 1,
        port_num: port,
    })
}

/// Returns the address to reply to a received datagram. Fails with EINVAL without a completion or a
/// GRH.
///
/// # Safety
/// `wc` and `grh` are NULL or valid for reads; `grh` need not be aligned.
unsafe fn init_from_wc(handle: *mut ibv_context, port: u8, wc: *mut ibv_wc, grh: *mut ibv_grh) -> Result<ibv_ah_attr> {
    let context = context(handle)?;
    // SAFETY: the caller guarantees NULL or a valid completion.
    let wc = unsafe { wc.as_ref() }.ok_or_else(|| null("wc"))?;
    if wc.wc_flags & WC_GRH == 0 || grh.is_null() {
        return Err(einval("the completion has no GRH (IBV_WC_GRH), or grh is NULL"));
    }
    // SAFETY: not NULL; the caller guarantees an area of this size, which the device has filled.
    let area = unsafe { grh.cast::<[u8; GRH_LEN]>().read_unaligned() };
    reply_to(context, port, wc, &area)
}

pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    handle: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the program passes NULL, or a completion, the GRH area of its datagram and a
    // structure that are valid during the call.
    zero(|| unsafe { write_out(attr, init_from_wc(handle, port, wc, grh)?) })
}

pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    pointer(|| {
        // SAFETY: the program passes NULL, or a completion and the GRH area of its datagram that
        // are valid during the call.
        let attr = unsafe { init_from_wc(context_of(pd)?, port, wc, grh) }?;
        create(pd, &attr)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv6Addr;
    use roxe_wire::NetHeader;

    fn area(src: IpAddr, dst: IpAddr) -> [u8; GRH_LEN] {
        let net = NetHeader { src: src.into(), dst: dst.into(), traffic_class: 0xa5, ..NetHeader::default() };
        NetHeader { flow_label: if src.is_ipv6() { 0xabcde } else { 0 }, ..net }.to_grh(100)
    }

    #[test]
    fn grh_yields_addresses_of_both_ip_versions() {
        let v4 = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        assert_eq!(parse_grh(&area(v4(1), v4(2))), Some((v4(1).into(), v4(2).into(), 0xa5, 0)));
        let v6 = |last| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
        assert_eq!(parse_grh(&area(v6(1), v6(2))), Some((v6(1).into(), v6(2).into(), 0xa5, 0xabcde)));
    }

    #[test]
    fn area_without_ip_header_is_refused() {
        assert_eq!(parse_grh(&[0; GRH_LEN]), None);
        let mut broken = area(Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into());
        broken[30] ^= 1;
        assert_eq!(parse_grh(&broken), None);
    }
}
