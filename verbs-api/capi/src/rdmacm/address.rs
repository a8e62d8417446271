//! Socket addresses of C programs to the provider's addresses, and back. Reads and writes what the
//! program points to.

use crate::abi::sockaddr_ib;
use crate::errno::{Result, null, outside};
use core::mem::MaybeUninit;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use roxe_provider::cm::{Address, IbAddress};
use roxe_wire::Gid;

/// The family of `sockaddr_ib`.
pub(crate) const AF_IB: u16 = 27;
pub(crate) const AF_INET: u16 = libc::AF_INET as u16;
pub(crate) const AF_INET6: u16 = libc::AF_INET6 as u16;

/// Reads the address of a program. EINVAL for NULL and for a family that RDMA has not.
///
/// # Safety
/// `addr` is NULL or points to as many bytes as its family says.
pub(crate) unsafe fn read(addr: *const sockaddr) -> Result<Address> {
    if addr.is_null() {
        return Err(null("the address"));
    }
    // SAFETY: not NULL, and every address starts with its family.
    let family = unsafe { (&raw const (*addr).sa_family).read_unaligned() };
    match family {
        // SAFETY: of this family, so this long, by this function's contract.
        AF_INET => Ok(v4(unsafe { addr.cast::<sockaddr_in>().read_unaligned() })),
        // SAFETY: of this family, so this long, by this function's contract.
        AF_INET6 => Ok(v6(unsafe { addr.cast::<sockaddr_in6>().read_unaligned() })),
        // SAFETY: of this family, so this long, by this function's contract.
        AF_IB => Ok(ib(unsafe { addr.cast::<sockaddr_ib>().read_unaligned() })),
        _ => Err(outside("sa_family", family, "AF_INET, AF_INET6 and AF_IB")),
    }
}

/// Reads the address of a program, of which NULL stands for none.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn read_optional(addr: *const sockaddr) -> Result<Option<Address>> {
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: this function's contract.
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

/// An address as C has it, with zeros behind; all zero for none.
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

/// A structure of numbers and arrays of numbers with all of them zero.
fn zeroed<T: Copy>() -> T {
    // SAFETY: used in this file for the socket addresses of libc only, for which all bits zero are
    // a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn storage<T: Copy>(addr: T) -> sockaddr_storage {
    const { assert!(size_of::<T>() <= size_of::<sockaddr_storage>() && align_of::<T>() <= align_of::<sockaddr_storage>()) };
    let mut out = zeroed::<sockaddr_storage>();
    // SAFETY: checked above: the storage is as large and as aligned as the address, and nobody else
    // knows it.
    unsafe { (&raw mut out).cast::<T>().write(addr) };
    out
}
