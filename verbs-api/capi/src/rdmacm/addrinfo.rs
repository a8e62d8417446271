//! `rdma_getaddrinfo` and `rdma_resolve_addrinfo`, which use the C library's `getaddrinfo`, and
//! conversion of socket addresses between C and the provider.
//!
//! Structures are allocated by `calloc` and released by `free`, as in rdma-core, because some
//! programs store pointers to their own `malloc`ed memory in them. `ai_route` stays empty, because
//! RoCE has no routes to resolve.

use crate::abi::{copy_fields, rdma_addrinfo, sockaddr_ib};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result, minus_one, no_result, null, out_of_range};
use crate::qp::{RC, UD};
use core::ffi::{c_char, c_int};
use core::mem::MaybeUninit;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use core::ptr::null_mut;
use libc::{addrinfo, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use roxe_provider::cm::{Address, IbAddress, PortSpace};
use roxe_wire::Gid;

pub(crate) const AF_IB: u16 = 27;
pub(crate) const AF_INET: u16 = libc::AF_INET as u16;
pub(crate) const AF_INET6: u16 = libc::AF_INET6 as u16;

/// Reads an address of the program. Fails with EINVAL for NULL and for unsupported families.
///
/// # Safety
/// `addr` is NULL or points to an address of its family's size.
pub(crate) unsafe fn read(addr: *const sockaddr) -> Result<Address> {
    if addr.is_null() {
        return Err(null("the address"));
    }
    // SAFETY: not NULL; the caller guarantees an address, which starts with its family.
    let family = unsafe { (&raw const (*addr).sa_family).read_unaligned() };
    match family {
        // SAFETY: the caller guarantees an address of this family's size.
        AF_INET => Ok(v4(unsafe { addr.cast::<sockaddr_in>().read_unaligned() })),
        // SAFETY: the caller guarantees an address of this family's size.
        AF_INET6 => Ok(v6(unsafe { addr.cast::<sockaddr_in6>().read_unaligned() })),
        // SAFETY: the caller guarantees an address of this family's size.
        AF_IB => Ok(ib(unsafe { addr.cast::<sockaddr_ib>().read_unaligned() })),
        _ => Err(out_of_range("sa_family", family, "AF_INET, AF_INET6 and AF_IB")),
    }
}

/// Reads an address of the program; `None` for NULL.
///
/// # Safety
/// The contract of [`read`].
pub(crate) unsafe fn read_optional(addr: *const sockaddr) -> Result<Option<Address>> {
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees an address of its family's size.
    unsafe { read(addr) }.map(Some)
}

fn v4(addr: sockaddr_in) -> Address {
    let ip = Ipv4Addr::from_bits(u32::from_be(addr.sin_addr.s_addr));
    Address::Ip(SocketAddrV4::new(ip, u16::from_be(addr.sin_port)).into())
}

fn v6(addr: sockaddr_in6) -> Address {
    let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
    let flow = u32::from_be(addr.sin6_flowinfo);
    Address::Ip(SocketAddrV6::new(ip, u16::from_be(addr.sin6_port), flow, addr.sin6_scope_id).into())
}

fn ib(addr: sockaddr_ib) -> Address {
    Address::Ib(IbAddress {
        pkey: u16::from_be(addr.sib_pkey),
        flow_info: u32::from_be(addr.sib_flowinfo),
        gid: Gid(addr.sib_addr),
        sid: u64::from_be(addr.sib_sid),
        sid_mask: u64::from_be(addr.sib_sid_mask),
        scope_id: addr.sib_scope_id,
    })
}

/// Converts an address to C, padded with zeros. Returns only zeros for `None`.
pub(crate) fn to_c(address: Option<&Address>) -> sockaddr_storage {
    match address {
        None => zeroed(),
        Some(Address::Ip(SocketAddr::V4(addr))) => {
            let mut sin = zeroed::<sockaddr_in>();
            sin.sin_family = AF_INET;
            sin.sin_port = addr.port().to_be();
            sin.sin_addr.s_addr = addr.ip().to_bits().to_be();
            storage(sin)
        }
        Some(Address::Ip(SocketAddr::V6(addr))) => {
            let mut sin6 = zeroed::<sockaddr_in6>();
            sin6.sin6_family = AF_INET6;
            sin6.sin6_port = addr.port().to_be();
            sin6.sin6_flowinfo = addr.flowinfo().to_be();
            sin6.sin6_addr.s6_addr = addr.ip().octets();
            sin6.sin6_scope_id = addr.scope_id();
            storage(sin6)
        }
        Some(Address::Ib(addr)) => storage(sockaddr_ib {
            sib_family: AF_IB,
            sib_pkey: addr.pkey.to_be(),
            sib_flowinfo: addr.flow_info.to_be(),
            sib_addr: addr.gid.0,
            sib_sid: addr.sid.to_be(),
            sib_sid_mask: addr.sid_mask.to_be(),
            sib_scope_id: addr.scope_id,
        }),
    }
}

/// Returns a socket address of zeros.
fn zeroed<T: Copy>() -> T {
    // SAFETY: the callers' types are socket addresses of libc, which have only integers.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn storage<T: Copy>(addr: T) -> sockaddr_storage {
    const { assert!(size_of::<T>() <= size_of::<sockaddr_storage>() && align_of::<T>() <= align_of::<sockaddr_storage>()) };
    let mut out = zeroed::<sockaddr_storage>();
    // SAFETY: the assertion checks that the storage is large and aligned enough for the address.
    unsafe { (&raw mut out).cast::<T>().write(addr) };
    out
}

/// Flags of `ai_flags`, with their values in rdma-core.
pub(crate) const RAI_PASSIVE: c_int = 1;
const RAI_NUMERICHOST: c_int = 1 << 1;
const RAI_NOROUTE: c_int = 1 << 2;
const RAI_FAMILY: c_int = 1 << 3;
const RAI_SA: c_int = 1 << 4;
const RAI_DNS: c_int = 1 << 5;
const PS_IPOIB: c_int = PortSpace::Ipoib.code() as c_int;
const PS_TCP: c_int = PortSpace::Tcp.code() as c_int;
const PS_UDP: c_int = PortSpace::Udp.code() as c_int;
/// `RDMA_IB_IP_PS_MASK` and `RDMA_IB_IP_PORT_MASK`.
const IP_PS_MASK: u64 = 0xffff_ffff_ffff_0000;
const IP_PORT_MASK: u64 = 0xffff;

type LookupResult = core::result::Result<AddrInfoList, Failure>;

#[derive(Debug)]
enum Failure {
    /// An `EAI_*` code, which `rdma_getaddrinfo` returns.
    Resolver(c_int),
    /// An errno, for which `rdma_getaddrinfo` returns -1.
    System(Errno),
}

impl Failure {
    /// Converts to an errno, for calls that have no `EAI_*` codes.
    fn errno(self) -> Errno {
        match self {
            Self::System(errno) => errno,
            Self::Resolver(libc::EAI_MEMORY) => Errno(libc::ENOMEM),
            Self::Resolver(libc::EAI_AGAIN) => Errno(libc::EAGAIN),
            Self::Resolver(libc::EAI_NONAME | libc::EAI_SERVICE) => Errno(libc::EADDRNOTAVAIL),
            Self::Resolver(_) => EINVAL,
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// `man rdma_getaddrinfo`. Returns 0, an `EAI_*` code, or -1 with errno set.
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    minus_one(|| {
        if res.is_null() || (node.is_null() && service.is_null() && hints.is_null()) {
            return Err(EINVAL);
        }
        // SAFETY: the program passes NULL or a structure that is valid during the call.
        let hints = unsafe { hints.as_ref() }.copied().unwrap_or_default();
        // SAFETY: the program passes NULL or strings, and hints whose addresses have the lengths in
        // their length fields, all valid during the call.
        match unsafe { lookup(node, service, &hints) } {
            Ok(found) => {
                // SAFETY: not NULL; the program passes a variable that is valid during the call.
                unsafe { res.write(found.release()) };
                Ok(0)
            }
            Err(Failure::Resolver(code)) => Ok(code),
            Err(Failure::System(errno)) => Err(errno),
        }
    })
}

/// Resolves an address for `rdma_resolve_addrinfo`. Fails with EOPNOTSUPP for `RAI_SA`, because
/// there is no subnet administrator; EADDRNOTAVAIL for an unknown name or service.
///
/// # Safety
/// `node` and `service` are strings or NULL. `hints` is NULL or a structure in which each address
/// has the length in its length field.
pub(super) unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<AddrInfoList> {
    // SAFETY: the caller guarantees NULL or a valid structure.
    let mut hints = unsafe { hints.as_ref() }.copied().unwrap_or_default();
    if hints.ai_flags & RAI_SA != 0 {
        return Err(if hints.ai_flags & RAI_DNS != 0 { EINVAL } else { EOPNOTSUPP });
    }
    if node.is_null() && service.is_null() {
        return Err(EINVAL);
    }
    hints.ai_flags &= !RAI_DNS;
    // SAFETY: the caller guarantees strings or NULL, and the lengths of the addresses in `hints`.
    unsafe { lookup(node, service, &hints) }.map_err(Failure::errno)
}

/// A list of addresses, freed on drop unless [`release`](Self::release) passes it to the program.
pub(super) struct AddrInfoList(*mut rdma_addrinfo);

// SAFETY: this value has the only pointer to the list, and any thread may free `calloc`ed memory.
unsafe impl Send for AddrInfoList {}

impl AddrInfoList {
    fn new() -> Result<Self> {
        // SAFETY: `calloc` accepts any numbers.
        let block = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
        if block.is_null() { Err(Errno(libc::ENOMEM)) } else { Ok(Self(block)) }
    }

    /// Returns the list, which the caller must free.
    pub(super) fn release(self) -> *mut rdma_addrinfo {
        let list = self.0;
        core::mem::forget(self);
        list
    }
}

impl Drop for AddrInfoList {
    fn drop(&mut self) {
        // SAFETY: this value has the only pointer to the list, and frees it once.
        unsafe { free_list(self.0) };
    }
}

/// Resolves `node` and `service`, or converts the hints if both are NULL.
///
/// # Safety
/// `node` and `service` are strings or NULL. Each address in `hints` has the length in its length
/// field.
unsafe fn lookup(node: *const c_char, service: *const c_char, hints: &rdma_addrinfo) -> LookupResult {
    if hints.ai_flags & !(RAI_PASSIVE | RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY) != 0 {
        return Err(Failure::Resolver(libc::EAI_BADFLAGS));
    }
    if node.is_null() && service.is_null() {
        // SAFETY: the caller guarantees the lengths of the addresses in `hints`.
        return unsafe { from_hints(hints) };
    }
    let (wanted, mut list) = (resolver_hints(hints), null_mut());
    // SAFETY: the caller guarantees strings or NULL; `wanted` and `list` are local variables.
    let list = match unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut list) } {
        0 => ResolverList(list),
        code => return Err(Failure::Resolver(code)),
    };
    // SAFETY: the caller guarantees the length of the source address in `hints`.
    let entries = list.iter().filter_map(|entry| unsafe { from_resolver(entry, hints) }.transpose());
    let entries = entries.collect::<Result<Vec<_>>>()?;
    // Empty if the resolver found only socket types without a matching QP type.
    if entries.is_empty() { Err(Failure::Resolver(libc::EAI_SOCKTYPE)) } else { Ok(link_entries(entries)) }
}

/// Returns the entry that the hints alone describe.
///
/// # Safety
/// Each address in `hints` has the length in its length field.
unsafe fn from_hints(hints: &rdma_addrinfo) -> LookupResult {
    let rai = AddrInfoList::new()?;
    let wanted = copy_fields!(rdma_addrinfo from hints { ai_flags, ai_family, ai_qp_type, ai_port_space } with {
        ..rdma_addrinfo::ZERO
    });
    // SAFETY: `rai` owns a block of this type and size.
    unsafe { rai.0.write(wanted) };
    // SAFETY: the caller guarantees the lengths of both addresses; `rai` owns the block.
    unsafe {
        ((*rai.0).ai_src_addr, (*rai.0).ai_src_len) = copy_address(hints.ai_src_addr, hints.ai_src_len)?;
        ((*rai.0).ai_dst_addr, (*rai.0).ai_dst_len) = copy_address(hints.ai_dst_addr, hints.ai_dst_len)?;
    }
    Ok(rai)
}

/// A list of `getaddrinfo`, freed on drop.
struct ResolverList(*mut addrinfo);

impl ResolverList {
    fn iter(&self) -> impl Iterator<Item = &addrinfo> {
        // SAFETY: the list ends with NULL, and is valid until this value is dropped.
        core::iter::successors(unsafe { self.0.as_ref() }, |entry| unsafe { entry.ai_next.as_ref() })
    }
}

impl Drop for ResolverList {
    fn drop(&mut self) {
        // SAFETY: `getaddrinfo` allocated the list, and only `drop` frees it.
        unsafe { libc::freeaddrinfo(self.0) };
    }
}

/// Converts hints for the resolver. With AF_IB, `node` is a GID, which the resolver parses as a
/// numeric IPv6 address.
fn resolver_hints(hints: &rdma_addrinfo) -> addrinfo {
    let wants = |flag| hints.ai_flags & flag != 0;
    let is_gid = wants(RAI_FAMILY) && hints.ai_family == c_int::from(AF_IB);
    let socktype = match hints.ai_qp_type {
        0 => 0,
        UD => libc::SOCK_DGRAM,
        _ => libc::SOCK_STREAM,
    };
    addrinfo {
        ai_flags: if wants(RAI_PASSIVE) { libc::AI_PASSIVE } else { 0 }
            | if wants(RAI_NUMERICHOST) || is_gid { libc::AI_NUMERICHOST } else { 0 },
        ai_family: match () {
            () if is_gid => libc::AF_INET6,
            () if wants(RAI_FAMILY) => hints.ai_family,
            () => libc::AF_UNSPEC,
        },
        ai_socktype: socktype,
        ai_protocol: match hints.ai_port_space {
            PS_TCP => libc::IPPROTO_TCP,
            PS_IPOIB | PS_UDP => libc::IPPROTO_UDP,
            _ => 0,
        },
        ai_addrlen: 0,
        ai_addr: null_mut(),
        ai_canonname: null_mut(),
        ai_next: null_mut(),
    }
}

/// Converts an entry of the resolver; `None` if no QP type matches it.
///
/// # Safety
/// The source address in `hints` has the length in its length field.
unsafe fn from_resolver(found: &addrinfo, hints: &rdma_addrinfo) -> Result<Option<AddrInfoList>> {
    let (qp_type, port_space) = match found.ai_socktype {
        libc::SOCK_STREAM => (RC, PS_TCP),
        libc::SOCK_DGRAM => (UD, PS_UDP),
        _ => return Ok(None),
    };
    let rai = AddrInfoList::new()?;
    let chosen = |hint, default| if hint != 0 { hint } else { default };
    let port_space = chosen(hints.ai_port_space, port_space);
    let passive = hints.ai_flags & RAI_PASSIVE != 0;
    let gid = hints.ai_flags & RAI_FAMILY != 0 && hints.ai_family == c_int::from(AF_IB);
    let (addr, len) = if gid {
        ib_address(found, port_space)?
    } else {
        // SAFETY: `getaddrinfo` sets `ai_addrlen` to the length of the address.
        unsafe { copy_address(found.ai_addr, found.ai_addrlen) }?
    };
    let mut entry = rdma_addrinfo {
        ai_flags: hints.ai_flags & RAI_PASSIVE,
        ai_family: if gid { c_int::from(AF_IB) } else { found.ai_family },
        ai_qp_type: chosen(hints.ai_qp_type, qp_type),
        ai_port_space: port_space,
        ..rdma_addrinfo::ZERO
    };
    if passive {
        (entry.ai_src_addr, entry.ai_src_len) = (addr, len);
    } else {
        (entry.ai_dst_addr, entry.ai_dst_len) = (addr, len);
    }
    // SAFETY: `rai` owns a block of this type and size.
    unsafe { rai.0.write(entry) };
    if !passive {
        // SAFETY: the caller guarantees the length of the address; `rai` owns the block.
        unsafe { ((*rai.0).ai_src_addr, (*rai.0).ai_src_len) = copy_address(hints.ai_src_addr, hints.ai_src_len)? };
    }
    Ok(Some(rai))
}

/// Converts an address that was resolved as IPv6 to AF_IB.
fn ib_address(found: &addrinfo, port_space: c_int) -> Result<(*mut sockaddr, socklen_t)> {
    // SAFETY: `resolver_hints` requested AF_INET6, so the address has this type.
    let sin6 = unsafe { found.ai_addr.cast::<sockaddr_in6>().read_unaligned() };
    let port = u16::from_be(sin6.sin6_port);
    let space = u64::try_from(port_space).unwrap_or_default();
    let mask = IP_PS_MASK | if port != 0 { IP_PORT_MASK } else { 0 };
    let sib = sockaddr_ib {
        sib_family: AF_IB,
        sib_pkey: u16::MAX,
        sib_flowinfo: sin6.sin6_flowinfo,
        sib_addr: sin6.sin6_addr.s6_addr,
        sib_sid: (space << 16 | u64::from(port)).to_be(),
        sib_sid_mask: mask.to_be(),
        sib_scope_id: sin6.sin6_scope_id.into(),
    };
    let len = size_of::<sockaddr_ib>() as socklen_t;
    // SAFETY: `sib` is a local variable of this size.
    unsafe { copy_address((&raw const sib).cast(), len) }
}

/// Copies an address to memory that `free` releases. Returns NULL if `addr` is NULL or `len` is 0.
///
/// # Safety
/// `addr` points to `len` bytes, or is NULL.
unsafe fn copy_address(addr: *const sockaddr, len: socklen_t) -> Result<(*mut sockaddr, socklen_t)> {
    if addr.is_null() || len == 0 {
        return Ok((null_mut(), 0));
    }
    let room = (len as usize).max(size_of::<sockaddr_in>());
    // SAFETY: `calloc` accepts any numbers.
    let block = unsafe { libc::calloc(1, room) };
    if block.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: the caller guarantees `len` bytes; the new block has at least as many.
    unsafe { block.cast::<u8>().copy_from_nonoverlapping(addr.cast(), len as usize) };
    Ok((block.cast(), len))
}

/// Links the entries in their order; returns an empty list (NULL) for no entries.
fn link_entries(entries: Vec<AddrInfoList>) -> AddrInfoList {
    entries.into_iter().rev().fold(AddrInfoList(null_mut()), |next, entry| {
        // SAFETY: `entry` owns its block.
        unsafe { (*entry.0).ai_next = next.release() };
        entry
    })
}

/// Frees a list.
///
/// # Safety
/// `list` is NULL or a list of `rdma_getaddrinfo` that is not used any more.
unsafe fn free_list(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: the caller guarantees an entry from `calloc`; each pointer in it is NULL or from
        // `malloc`.
        unsafe {
            let entry = list.read();
            libc::free(entry.ai_connect);
            libc::free(entry.ai_route);
            libc::free(entry.ai_src_canonname.cast());
            libc::free(entry.ai_dst_canonname.cast());
            libc::free(entry.ai_src_addr.cast());
            libc::free(entry.ai_dst_addr.cast());
            libc::free(list.cast());
            list = entry.ai_next;
        }
    }
}

/// `man rdma_getaddrinfo`.
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    no_result(|| {
        // SAFETY: the program passes NULL or a list of `rdma_getaddrinfo`, and frees it once.
        unsafe { free_list(list) };
        Ok(())
    });
}
