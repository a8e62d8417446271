//! Vendor options for connections whose queue pair the program moves itself.

use super::id::live;
use crate::abi::{ibv_ece, rdma_cm_id};
use crate::errno::{EINVAL, Result, null, zero};
use core::ffi::c_int;
use roxe_provider::cm::{Ece, Id};
use roxe_provider::wire::cm::VendorId;
use std::sync::Arc;

/// The identifier of a program that moves its queue pair itself; EINVAL if it has one of the
/// library's.
fn external<'a>(id: *mut rdma_cm_id) -> Result<&'a Arc<Id>> {
    let object = live(id)?;
    // SAFETY: alive; programs only read the field.
    let is_free = unsafe { (*object.exposed()).public.qp }.is_null();
    if is_free { Ok(&object.inner.id) } else { Err(EINVAL) }
}

/// `man rdma_set_local_ece`: EINVAL without a vendor.
pub(crate) unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    zero(|| {
        let id = external(id)?;
        // SAFETY: NULL or a whole structure of the program.
        let ece = unsafe { ece.as_ref() }.ok_or_else(|| null("ece"))?;
        if ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(EINVAL);
        }
        Ok(id.set_local_ece(Ece { vendor_id: VendorId::new(ece.vendor_id), options: ece.options })?)
    })
}

/// `man rdma_get_remote_ece`.
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    zero(|| {
        let id = external(id)?;
        // SAFETY: NULL or a whole structure of the program.
        let ece = unsafe { ece.as_mut() }.filter(|ece| ece.comp_mask == 0).ok_or(EINVAL)?;
        let Ece { vendor_id, options } = id.remote_ece();
        *ece = ibv_ece { vendor_id: vendor_id.get(), options, comp_mask: 0 };
        Ok(())
    })
}
