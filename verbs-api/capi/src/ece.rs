//! Enhanced connection establishment: options that two cards of one vendor may agree on. This one has none yet.

use crate::abi::{ibv_ece, ibv_qp, ibv_qp_ex};
use crate::errno::{EINVAL, EOPNOTSUPP, status};
use crate::object::Object;
use core::ffi::c_int;

/// The options that the device has.
const OPTIONS: u32 = 0;

fn vendor(qp: *mut ibv_qp) -> crate::errno::Result<u32> {
    Object::<ibv_qp_ex>::live(qp).map(|object| object.inner.qp.pd().context().attr().vendor_id)
}

/// `man ibv_query_ece`.
pub(crate) unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status(|| {
        let vendor_id = vendor(qp)?;
        if ece.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: not NULL; the program passes a whole structure.
        unsafe { ece.write(ibv_ece { vendor_id, options: OPTIONS, comp_mask: 0 }) };
        Ok(())
    })
}

/// `man ibv_set_ece`: leaves the accepted options in `ece`. EOPNOTSUPP without a vendor, EINVAL with another one.
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status(|| {
        let ours = vendor(qp)?;
        // SAFETY: NULL or a whole structure of the program.
        let wish = unsafe { ece.as_mut() }.ok_or(EINVAL)?;
        match wish.vendor_id {
            0 => Err(EOPNOTSUPP),
            id if id == ours && wish.comp_mask == 0 => {
                wish.options &= OPTIONS;
                Ok(())
            }
            _ => Err(EINVAL),
        }
    })
}
