//! Advice about registered memory: `ibv_advise_mr`, which the headers call through the context.

use crate::abi::{ibv_pd, ibv_sge};
use crate::errno::{EINVAL, EOPNOTSUPP, Result, status};
use crate::objects::pd;
use core::ffi::{c_int, c_uint};
use roxe_provider::wire::LKey;
use roxe_provider::{Advice, Sge};

/// `IBV_ADVISE_MR_FLAG_FLUSH`: return when it is done, which is what always happens here.
const FLUSH: u32 = 1;

fn advice(value: c_uint) -> Result<Advice> {
    match value {
        0 => Ok(Advice::Prefetch),
        1 => Ok(Advice::PrefetchWrite),
        2 => Ok(Advice::PrefetchNoFault),
        _ => Err(EOPNOTSUPP),
    }
}

/// `man ibv_advise_mr`.
pub(crate) unsafe extern "C" fn advise_mr(
    handle: *mut ibv_pd,
    value: c_uint,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    status(|| {
        let (pd, advice) = (pd(handle)?, advice(value)?);
        if flags & !FLUSH != 0 || (list.is_null() && count > 0) {
            return Err(EINVAL);
        }
        let element = |i| {
            // SAFETY: not NULL, and the program says that the list has `count` elements.
            let sge = unsafe { list.add(i).read() };
            Sge { addr: sge.addr, length: sge.length, lkey: LKey(sge.lkey) }
        };
        let list: Vec<Sge> = (0..count as usize).map(element).collect();
        Ok(pd.advise_mr(advice, &list)?)
    })
}
