//! Multicast groups of datagram identifiers.

use super::address::read;
use super::id::{live, provided, show};
use super::lifecycle::complete;
use crate::abi::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::errno::{EINVAL, EOPNOTSUPP, Result, null, zero};
use core::ffi::{c_int, c_void};
use libc::sockaddr;
use roxe_provider::cm::{Address, JoinFlags};

/// `RDMA_CM_JOIN_MC_ATTR_ADDRESS` and `_JOIN_FLAGS`: both are needed.
const ATTR_ADDRESS: u32 = 1;
const ATTR_JOIN_FLAGS: u32 = 1 << 1;
/// `enum rdma_cm_mc_join_flags`.
const FULL_MEMBER: u32 = 0;
const SEND_ONLY: u32 = 1;

/// `man rdma_join_multicast`.
pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    zero(|| {
        // SAFETY: NULL or an address of the program, as long as its family says.
        let addr = unsafe { read(addr) }?;
        join(id, &addr, JoinFlags::default(), context)
    })
}

/// `man rdma_join_multicast_ex`: EOPNOTSUPP for attributes and flags that there are not, EINVAL
/// without address or flags.
pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    zero(|| {
        // SAFETY: NULL or a whole structure of the program.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| null("attr"))?;
        let flags = join_flags(attr)?;
        // SAFETY: NULL or an address of the program, as long as its family says.
        let addr = unsafe { read(attr.addr) }?;
        join(id, &addr, flags, context)
    })
}

fn join_flags(attr: &rdma_cm_join_mc_attr_ex) -> Result<JoinFlags> {
    const NEEDED: u32 = ATTR_ADDRESS | ATTR_JOIN_FLAGS;
    match (attr.comp_mask, attr.join_flags) {
        (mask, _) if mask & !NEEDED != 0 => Err(EOPNOTSUPP),
        (NEEDED, FULL_MEMBER) => Ok(JoinFlags { send_only: false }),
        (NEEDED, SEND_ONLY) => Ok(JoinFlags { send_only: true }),
        (NEEDED, _) => Err(EOPNOTSUPP),
        _ => Err(EINVAL),
    }
}

fn join(id: *mut rdma_cm_id, addr: &Address, flags: JoinFlags, context: *mut c_void) -> Result<()> {
    let user = context.expose_provenance() as u64;
    provided(id)?.join_multicast(addr, flags, user)?;
    complete(id)
}

/// `man rdma_leave_multicast`.
pub(crate) unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    zero(|| {
        let object = live(id)?;
        // SAFETY: NULL or an address of the program, as long as its family says.
        let addr = unsafe { read(addr) }?;
        object.inner.id.leave_multicast(&addr)?;
        show(object)
    })
}
