//! Addresses and options of an identifier: binding, resolving, listening, ports.

use super::addrinfo;
use super::addrinfo::{read, read_optional};
use super::id::{live, provider_id, update_public_fields};
use super::lifecycle::complete;
use crate::abi::{ibv_path_data, rdma_addrinfo, rdma_cm_id};
use crate::errno::{EINVAL, ENOENT, Errno, Result, invalid, null, zero};
use core::ffi::{c_char, c_int, c_void};
use libc::sockaddr;
use roxe_provider::cm::{Address, EventKind, IdOption, Path};
use roxe_wire::{Gid, PathMtu};

pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the program passes NULL or an address of its family's size, valid during the call.
    zero(|| bind(id, &unsafe { read(addr) }?))
}

pub(super) fn bind(id: *mut rdma_cm_id, addr: &Address) -> Result<()> {
    let object = live(id)?;
    object.inner.id.bind(addr)?;
    update_public_fields(object)
}

pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    zero(|| {
        // SAFETY: the program passes NULL or addresses of their families' sizes, valid during the
        // call.
        let (src, dst) = unsafe { (read_optional(src)?, read(dst)?) };
        resolve(id, src.as_ref(), &dst, timeout_ms)
    })
}

pub(super) fn resolve(id: *mut rdma_cm_id, src: Option<&Address>, dst: &Address, timeout_ms: c_int) -> Result<()> {
    provider_id(id)?.resolve_addr(src, dst, timeout_ms.cast_unsigned())?;
    complete(id)
}

pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    zero(|| resolve_route(id, timeout_ms))
}

pub(super) fn resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> Result<()> {
    provider_id(id)?.resolve_route(timeout_ms.cast_unsigned())?;
    complete(id)
}

/// `man rdma_resolve_addrinfo`. Resolves the name before it returns, as rdma-core does, so an
/// unknown name is an error of this call. Fails with EBUSY until the program has queried the
/// previous result.
pub(crate) unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    zero(|| {
        let object = live(id)?;
        if object.inner.state.lock().addrinfo.is_some() {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: the program passes NULL or strings, and NULL or hints whose addresses have the
        // lengths in their length fields, all valid during the call.
        let found = unsafe { addrinfo::resolve(node, service, hints) }?;
        object.inner.state.lock().addrinfo = Some(found);
        object.inner.id.write_event(EventKind::AddrinfoResolved, 0, 0);
        complete(id)
    })
}

/// `man rdma_query_addrinfo`: passes the list to the program. Fails with ENOENT if there is none.
pub(crate) unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    zero(|| {
        let object = live(id)?;
        if info.is_null() {
            return Err(EINVAL);
        }
        let list = object.inner.state.lock().addrinfo.take().ok_or(ENOENT)?;
        // SAFETY: not NULL; the program passes a variable that is valid during the call.
        unsafe { info.write(list.release()) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    zero(|| {
        let object = live(id)?;
        object.inner.id.listen(backlog)?;
        update_public_fields(object)
    })
}

/// Returns the port of the address that `address` returns, in network byte order; 0 if there is no
/// address.
fn port(id: *mut rdma_cm_id, address: fn(&roxe_provider::cm::Id) -> Option<Address>) -> u16 {
    provider_id(id).ok().and_then(|id| address(id)).map_or(0, |address| address.port()).to_be()
}

pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    port(id, roxe_provider::cm::Id::local_addr)
}

pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    port(id, roxe_provider::cm::Id::peer_addr)
}

// Levels of options.
const RDMA_OPTION_ID: c_int = 0;
pub(super) const RDMA_OPTION_IB: c_int = 1;
// Options of the level `RDMA_OPTION_ID`.
const RDMA_OPTION_ID_TOS: c_int = 0;
const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
const RDMA_OPTION_ID_AFONLY: c_int = 2;
const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
/// Option of the level [`RDMA_OPTION_IB`].
pub(super) const RDMA_OPTION_IB_PATH: c_int = 1;
/// Flags of a path that a connection can use: `IBV_PATH_FLAG_GMP`, `_PRIMARY` and the two bits of
/// `_BIDIRECTIONAL`.
const CONNECTION_PATH: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;
/// Mask of the value in a field of a path record; the two bits above it are the selector.
const VALUE_MASK: u8 = 0x3f;

/// `man rdma_set_option`: fails with EINVAL for a value of the wrong size, ENOSYS for an unknown
/// option.
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: the program passes NULL or a value of `len` bytes, valid during the call.
    zero(|| unsafe { set_option(id, level, name, value, len) })
}

/// Sets an option of an identifier.
///
/// # Safety
/// `value` is NULL or points to `len` bytes.
pub(super) unsafe fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> Result<()> {
    let object = live(id)?;
    // SAFETY: the caller guarantees NULL or `len` bytes.
    object.inner.id.set_option(unsafe { parse_option(level, name, value, len) }?)?;
    update_public_fields(object)
}

/// Parses an option. Fails with EINVAL for a wrong size, ENOSYS for an unknown option.
///
/// # Safety
/// The contract of [`set_option`].
unsafe fn parse_option(level: c_int, name: c_int, value: *const c_void, len: usize) -> Result<IdOption> {
    if value.is_null() {
        return Err(null("optval"));
    }
    // SAFETY: not NULL; the caller guarantees `len` bytes.
    unsafe {
        match (level, name) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => read_fixed(value, len).map(IdOption::Tos),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                read_fixed::<c_int>(value, len).map(|on| IdOption::ReuseAddr(on != 0))
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                read_fixed::<c_int>(value, len).map(|on| IdOption::AfOnly(on != 0))
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => read_fixed(value, len).map(IdOption::AckTimeout),
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => first_usable_path(value.cast(), len).map(IdOption::Path),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}

/// Reads a value of type `T`. Fails with EINVAL if `len` is not its size.
///
/// # Safety
/// `value` points to `len` bytes, and any bit pattern is a valid `T`.
unsafe fn read_fixed<T: Copy>(value: *const c_void, len: usize) -> Result<T> {
    if len != size_of::<T>() {
        return Err(invalid(|| format!("optlen is {len}; accepted is {}", size_of::<T>())));
    }
    // SAFETY: the caller guarantees `len` bytes, which is the size of `T`.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Returns the first path that a connection can use. Fails with EINVAL if there is none.
///
/// # Safety
/// `records` points to `len` bytes.
unsafe fn first_usable_path(records: *const ibv_path_data, len: usize) -> Result<Path> {
    if !len.is_multiple_of(size_of::<ibv_path_data>()) {
        return Err(EINVAL);
    }
    // SAFETY: the caller guarantees `len` bytes, so this many records; any bit pattern is a valid
    // record.
    let records = (0..len / size_of::<ibv_path_data>()).map(|at| unsafe { records.add(at).read_unaligned() });
    let usable = records.into_iter().find(|record| record.flags == CONNECTION_PATH).ok_or(EINVAL)?;
    path_from_record(&usable)
}

fn path_from_record(record: &ibv_path_data) -> Result<Path> {
    let path = &record.path;
    let flow_and_hops = u32::from_be(path.flowlabel_hoplimit);
    let [.., hop_limit] = flow_and_hops.to_be_bytes();
    Ok(Path {
        sgid: Gid(path.sgid.raw),
        dgid: Gid(path.dgid.raw),
        flow_label: flow_and_hops >> 8 & 0x000f_ffff,
        hop_limit,
        traffic_class: path.tclass,
        sl: (u16::from_be(path.qosclass_sl) & 0xf) as u8,
        pkey: u16::from_be(path.pkey),
        mtu: PathMtu::from_code(path.mtu & VALUE_MASK).ok_or(EINVAL)?,
        rate: path.rate & VALUE_MASK,
        packet_life_time: path.packetlifetime & VALUE_MASK,
    })
}
