//! Where an identifier is and where it goes: binding, resolving, listening, ports.

use super::address::{read, read_optional};
use super::addrinfo;
use super::id::{live, provided, show};
use super::lifecycle::complete;
use crate::abi::{rdma_addrinfo, rdma_cm_id};
use crate::errno::{EINVAL, ENOENT, Errno, Result, zero};
use core::ffi::{c_char, c_int};
use libc::sockaddr;
use roxe_provider::cm::{Address, EventKind};

/// `man rdma_bind_addr`.
pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    zero(|| {
        // SAFETY: NULL or an address of the program, as long as its family says.
        let addr = unsafe { read(addr) }?;
        bind(id, &addr)
    })
}

/// Binds, and shows the device and the port that were chosen.
pub(super) fn bind(id: *mut rdma_cm_id, addr: &Address) -> Result<()> {
    let object = live(id)?;
    object.inner.id.bind(addr)?;
    show(object)
}

/// `man rdma_resolve_addr`.
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    zero(|| {
        // SAFETY: NULL or addresses of the program, as long as their families say.
        let (src, dst) = unsafe { (read_optional(src)?, read(dst)?) };
        resolve(id, src.as_ref(), &dst, timeout_ms)
    })
}

pub(super) fn resolve(id: *mut rdma_cm_id, src: Option<&Address>, dst: &Address, timeout_ms: c_int) -> Result<()> {
    provided(id)?.resolve_addr(src, dst, timeout_ms.cast_unsigned())?;
    complete(id)
}

/// `man rdma_resolve_route`.
pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    zero(|| resolve_route(id, timeout_ms))
}

pub(super) fn resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> Result<()> {
    provided(id)?.resolve_route(timeout_ms.cast_unsigned())?;
    complete(id)
}

/// `man rdma_resolve_addrinfo`. The name is resolved before the call returns, as in rdma-core: the
/// event is in the channel then, and a name that is not found is -1. EBUSY until the outcome of an
/// earlier call was taken.
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
        // SAFETY: the program passes strings or NULL, and addresses as long as it says.
        let found = unsafe { addrinfo::resolve(node, service, hints) }?;
        object.inner.state.lock().addrinfo = Some(found);
        object.inner.id.write_event(EventKind::AddrinfoResolved, 0, 0);
        complete(id)
    })
}

/// `man rdma_query_addrinfo`: the list is the program's; ENOENT if there is none, or it was taken.
pub(crate) unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    zero(|| {
        let object = live(id)?;
        if info.is_null() {
            return Err(EINVAL);
        }
        let list = object.inner.state.lock().addrinfo.take().ok_or(ENOENT)?;
        // SAFETY: not NULL; a variable of the program.
        unsafe { info.write(list.release()) };
        Ok(())
    })
}

/// `man rdma_listen`.
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    zero(|| {
        let object = live(id)?;
        object.inner.id.listen(backlog)?;
        show(object)
    })
}

/// The port of an address in network byte order; 0 for none.
fn port(id: *mut rdma_cm_id, address: fn(&roxe_provider::cm::Id) -> Option<Address>) -> u16 {
    provided(id).ok().and_then(|id| address(id)).map_or(0, |address| address.port()).to_be()
}

/// `man rdma_get_src_port`.
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    port(id, roxe_provider::cm::Id::local_addr)
}

/// `man rdma_get_dst_port`.
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    port(id, roxe_provider::cm::Id::peer_addr)
}
