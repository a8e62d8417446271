//! Enhanced connection establishment: options that two cards of one vendor may agree on. This one
//! has none yet.

use crate::abi::{ibv_ece, ibv_qp};
use crate::errno::{EINVAL, EOPNOTSUPP, Result, null, status, write_out};
use crate::objects::qp;
use core::ffi::c_int;

/// The options that the device has.
const OPTIONS: u32 = 0;

fn vendor(handle: *mut ibv_qp) -> Result<u32> {
    qp(handle).map(|qp| qp.pd().context().device().attr().vendor_id)
}

/// `man ibv_query_ece`.
pub(crate) unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status(|| {
        let vendor_id = vendor(qp)?;
        // SAFETY: NULL or a whole structure of the program.
        unsafe { write_out(ece, ibv_ece { vendor_id, options: OPTIONS, comp_mask: 0 }) }
    })
}

/// `man ibv_set_ece`: leaves the accepted options in `ece`. EOPNOTSUPP without a vendor, EINVAL
/// with another one.
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status(|| {
        let ours = vendor(qp)?;
        // SAFETY: NULL or a whole structure of the program.
        let wanted = unsafe { ece.as_mut() }.ok_or_else(|| null("ece"))?;
        match wanted.vendor_id {
            0 => Err(EOPNOTSUPP),
            id if id == ours && wanted.comp_mask == 0 => {
                wanted.options &= OPTIONS;
                Ok(())
            }
            _ => Err(EINVAL),
        }
    })
}
