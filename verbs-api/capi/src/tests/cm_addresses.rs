//! `rdma_getaddrinfo` and `rdma_resolve_addrinfo`.

use super::cm_events::CmChannel;
use super::*;
use crate::rdmacm::{rdma_destroy_id, rdma_freeaddrinfo, rdma_getaddrinfo, rdma_query_addrinfo, rdma_resolve_addrinfo};
use core::ffi::CStr;
use libc::{sockaddr_in, sockaddr_in6};

const RAI_PASSIVE: c_int = 1;
const RAI_NUMERICHOST: c_int = 2;
const RAI_FAMILY: c_int = 8;
const RAI_SA: c_int = 16;
const RAI_DNS: c_int = 32;
const AF_IB: c_int = 27;
const PS_TCP: c_int = 0x106;
const PS_UDP: c_int = 0x111;
const PS_IB: c_int = 0x13f;

/// Returns empty hints.
pub(super) fn hints() -> rdma_addrinfo {
    // SAFETY: all zeros are a valid `rdma_addrinfo`: null pointers and numbers.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// A list from `rdma_getaddrinfo`, freed on drop.
pub(super) struct Found(pub(super) *mut rdma_addrinfo);

impl Found {
    pub(super) fn all(&self) -> Vec<rdma_addrinfo> {
        // SAFETY: the library's list ends with NULL and lives as long as `self`.
        let next = |entry: &rdma_addrinfo| unsafe { entry.ai_next.as_ref() }.copied();
        // SAFETY: the list lives as long as `self`; a failed call leaves NULL.
        core::iter::successors(unsafe { self.0.as_ref() }.copied(), next).collect()
    }

    fn first(&self) -> rdma_addrinfo {
        self.all()[0]
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: `self` owns the library's list.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

pub(super) fn find(node: Option<&CStr>, service: Option<&CStr>, hints: Option<&rdma_addrinfo>) -> Result<Found, c_int> {
    let mut list = null_mut();
    let text = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    let hints = hints.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller's strings and structure live during the call, or are NULL; `list` is a
    // local variable.
    match unsafe { rdma_getaddrinfo(text(node), text(service), hints, &raw mut list) } {
        0 => Ok(Found(list)),
        code => Err(code),
    }
}

fn v4(addr: *mut libc::sockaddr) -> sockaddr_in {
    // SAFETY: the caller passes an address of a list that it holds, of family AF_INET.
    unsafe { addr.cast::<sockaddr_in>().read_unaligned() }
}

#[test]
fn getaddrinfo_resolves_numeric_host_and_port() {
    let rai = hints();
    let found = find(Some(c"127.0.0.1"), Some(c"7471"), Some(&rdma_addrinfo { ai_port_space: PS_TCP, ..rai })).unwrap();
    let rai = found.first();
    assert_eq!((rai.ai_family, rai.ai_qp_type, rai.ai_port_space), (libc::AF_INET, RC, PS_TCP));
    assert_eq!((rai.ai_dst_len, rai.ai_src_len, rai.ai_flags), (16, 0, 0));
    assert!(rai.ai_src_addr.is_null() && rai.ai_next.is_null() && rai.ai_route_len == 0);
    let addr = v4(rai.ai_dst_addr);
    assert_eq!((addr.sin_port, addr.sin_addr.s_addr), (7471_u16.to_be(), 0x7f00_0001_u32.to_be()));
}

#[test]
fn passive_hint_returns_source_address() {
    let wanted = rdma_addrinfo { ai_flags: RAI_PASSIVE, ai_port_space: PS_UDP, ai_qp_type: UD, ..hints() };
    let found = find(None, Some(c"7471"), Some(&wanted)).unwrap();
    for rai in found.all() {
        assert_eq!((rai.ai_flags, rai.ai_qp_type, rai.ai_port_space, rai.ai_dst_len), (RAI_PASSIVE, UD, PS_UDP, 0));
        assert!(rai.ai_src_len > 0 && rai.ai_dst_addr.is_null());
    }
}

#[test]
fn getaddrinfo_without_hints_returns_both_services() {
    let found = find(Some(c"127.0.0.1"), Some(c"7471"), None).unwrap();
    let kinds: Vec<_> = found.all().iter().map(|rai| (rai.ai_qp_type, rai.ai_port_space)).collect();
    assert_eq!(kinds, [(RC, PS_TCP), (UD, PS_UDP)]);
}

#[test]
fn source_address_of_hints_is_kept() {
    let own =
        find(Some(c"127.0.0.9"), None, Some(&rdma_addrinfo { ai_flags: RAI_PASSIVE | RAI_NUMERICHOST, ..hints() }))
            .unwrap();
    let (addr, len) = (own.first().ai_src_addr, own.first().ai_src_len);
    let wanted = rdma_addrinfo { ai_port_space: PS_TCP, ai_src_addr: addr, ai_src_len: len, ..hints() };
    let found = find(Some(c"127.0.0.1"), Some(c"1"), Some(&wanted)).unwrap();
    assert_eq!(v4(found.first().ai_src_addr).sin_addr.s_addr, 0x7f00_0009_u32.to_be());
    assert_ne!(found.first().ai_src_addr, addr);
    // Addresses alone need no lookup.
    let wanted = rdma_addrinfo { ai_family: libc::AF_INET, ai_dst_addr: addr, ai_dst_len: len, ..wanted };
    let found = find(None, None, Some(&wanted)).unwrap();
    assert_eq!((found.first().ai_dst_len, found.first().ai_src_len, found.first().ai_family), (16, 16, libc::AF_INET));
}

#[test]
fn gid_resolves_to_ib_address_with_service_id() {
    let wanted = rdma_addrinfo { ai_flags: RAI_FAMILY, ai_family: AF_IB, ai_port_space: PS_IB, ..hints() };
    let found = find(Some(c"fe80::1"), Some(c"7471"), Some(&rdma_addrinfo { ai_qp_type: RC, ..wanted })).unwrap();
    let rai = found.first();
    assert_eq!((rai.ai_family, rai.ai_dst_len), (AF_IB, 48));
    // SAFETY: the family of the entry says that its address has this type.
    let sib = unsafe { rai.ai_dst_addr.cast::<sockaddr_ib>().read_unaligned() };
    assert_eq!((sib.sib_addr[0], sib.sib_addr[15], sib.sib_pkey), (0xfe, 1, 0xffff));
    assert_eq!((u64::from_be(sib.sib_sid), sib.sib_sid_mask), (0x13f_0000 | 7471, u64::MAX));
}

#[test]
fn family_hint_selects_the_family() {
    let wanted = rdma_addrinfo { ai_flags: RAI_FAMILY, ai_family: libc::AF_INET6, ai_port_space: PS_TCP, ..hints() };
    let found = find(Some(c"::1"), None, Some(&wanted)).unwrap();
    // SAFETY: the family of the entry says that its address has this type.
    let addr = unsafe { found.first().ai_dst_addr.cast::<sockaddr_in6>().read_unaligned() };
    assert_eq!((addr.sin6_addr.s6_addr[15], found.first().ai_dst_len), (1, 28));
    let code =
        find(Some(c"127.0.0.1"), None, Some(&rdma_addrinfo { ai_flags: RAI_FAMILY | RAI_NUMERICHOST, ..wanted })).err();
    // `EAI_ADDRFAMILY`, missing in the libc crate.
    assert_eq!(code, Some(-9));
}

#[test]
fn unresolved_address_returns_getaddrinfo_code() {
    let wanted = rdma_addrinfo { ai_flags: RAI_NUMERICHOST, ..hints() };
    assert_eq!(find(Some(c"no number"), None, Some(&wanted)).err(), Some(libc::EAI_NONAME));
    assert_eq!(
        find(Some(c"::1"), None, Some(&rdma_addrinfo { ai_flags: 1 << 20, ..wanted })).err(),
        Some(libc::EAI_BADFLAGS)
    );
    // A UD queue pair in the port space of connections.
    let wanted = rdma_addrinfo { ai_qp_type: UD, ai_port_space: PS_TCP, ..wanted };
    assert!(find(Some(c"127.0.0.1"), Some(c"1"), Some(&wanted)).is_err());
    assert_eq!((find(None, None, None).err(), errno()), (Some(-1), libc::EINVAL));
    // SAFETY: the call allows NULL.
    unsafe { rdma_freeaddrinfo(null_mut()) };
}

#[test]
fn resolve_addrinfo_result_is_queried_once() {
    let cm = CmChannel::new();
    let id = cm.id(cm_events::TCP);
    let mut list = null_mut();
    // SAFETY: this test keeps the identifier alive; the strings are static, the structures are its
    // variables.
    unsafe {
        assert_eq!((rdma_query_addrinfo(id, &raw mut list), errno()), (-1, libc::ENOENT));
        let resolve = |node: &CStr, hints: *const rdma_addrinfo| {
            (rdma_resolve_addrinfo(id, node.as_ptr(), c"7471".as_ptr(), hints), errno())
        };
        let numeric = rdma_addrinfo { ai_flags: RAI_NUMERICHOST | RAI_DNS, ..hints() };
        assert_eq!(resolve(c"no number", &raw const numeric), (-1, libc::EADDRNOTAVAIL));
        assert_eq!(resolve(c"::1", &rdma_addrinfo { ai_flags: RAI_SA, ..hints() }), (-1, libc::EOPNOTSUPP));
        assert_eq!(resolve(c"::1", &rdma_addrinfo { ai_flags: RAI_SA | RAI_DNS, ..hints() }), (-1, libc::EINVAL));
        assert_eq!(resolve(c"127.0.0.1", &raw const numeric).0, 0);
        assert_eq!(cm.expect(cm_events::ADDRINFO_RESOLVED).id, id);
        assert_eq!(resolve(c"127.0.0.1", ptr::null()), (-1, libc::EBUSY));
        assert_eq!(rdma_query_addrinfo(id, &raw mut list), 0);
        let found = Found(list);
        assert_eq!(v4(found.first().ai_dst_addr).sin_port, 7471_u16.to_be());
        assert_eq!(resolve(c"127.0.0.1", ptr::null()).0, 0);
        drop(cm.expect(cm_events::ADDRINFO_RESOLVED));
        // An unqueried result is freed with the identifier.
        assert_eq!(rdma_destroy_id(id), 0);
    }
}
