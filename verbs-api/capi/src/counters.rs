//! Sets of counters for flows (`man ibv_create_counters`).

use crate::abi::{ibv_context, ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow};
use crate::errno::{EINVAL, EOPNOTSUPP, Result, null, pointer, status};
use crate::object::Object;
use crate::objects::context;
use core::ffi::c_int;
use roxe_provider::{CounterKind, FlowCounters};
use std::sync::Arc;

/// `IBV_READ_COUNTERS_ATTR_PREFER_CACHED`: there is no slower copy to read.
const PREFER_CACHED: u32 = 1;
/// More values than this nobody asks for; it bounds what a wrong number can do.
const MAX_VALUES: usize = 1 << 20;

fn counters<'a>(handle: *mut ibv_counters) -> Result<&'a Arc<FlowCounters>> {
    Object::<ibv_counters>::live(handle).map(|object| &object.inner)
}

/// `man ibv_create_counters`.
pub(crate) unsafe extern "C" fn create_counters(
    handle: *mut ibv_context,
    init: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    pointer(|| {
        context(handle)?;
        // SAFETY: NULL or a whole structure of the program.
        match unsafe { init.as_ref() }.ok_or_else(|| null("init"))?.comp_mask {
            0 => Ok(Object::publish_numbered(Arc::default(), |_| ibv_counters { context: handle })),
            _ => Err(EOPNOTSUPP),
        }
    })
}

/// `man ibv_create_counters`: EBUSY while flows use them.
pub(crate) unsafe extern "C" fn destroy_counters(handle: *mut ibv_counters) -> c_int {
    status(|| Object::<ibv_counters>::destroy(handle, |counters| counters.destroy()))
}

/// `man ibv_attach_counters_point_flow`: EOPNOTSUPP for a flow that exists already.
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    handle: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    status(|| {
        let counters = counters(handle)?;
        // SAFETY: NULL or a whole structure of the program.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| null("attr"))?;
        if !flow.is_null() {
            return Err(EOPNOTSUPP);
        }
        let kind = match (attr.counter_desc, attr.comp_mask) {
            (0, 0) => CounterKind::Packets,
            (1, 0) => CounterKind::Bytes,
            (_, 0) => return Err(EOPNOTSUPP),
            _ => return Err(EINVAL),
        };
        Ok(counters.attach(kind, attr.index)?)
    })
}

/// `man ibv_read_counters`.
pub(crate) unsafe extern "C" fn read_counters(
    handle: *mut ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    status(|| {
        let counters = counters(handle)?;
        let count = usize::try_from(count).map_err(|_| EINVAL)?;
        if values.is_null() || flags & !PREFER_CACHED != 0 || count > MAX_VALUES {
            return Err(EINVAL);
        }
        // SAFETY: not NULL; the program passes room for `count` values, and any bytes are valid
        // ones.
        Ok(counters.read(unsafe { core::slice::from_raw_parts_mut(values, count) })?)
    })
}
