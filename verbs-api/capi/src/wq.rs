//! Receive work queues, and indirection tables, which distribute frames over them.

use crate::abi::*;
use crate::data_path::post_wq_recv;
use crate::errno::{EINVAL, EOPNOTSUPP, Result, invalid, pointer, required, status};
use crate::object::{Object, Token, Unacked};
use crate::objects::{WqInner, context, cq, pd};
use core::ffi::c_int;
use roxe_provider::{WqInit, WqState};
use std::sync::Arc;

/// `IBV_WQ_INIT_ATTR_FLAGS`: the field `create_flags` is set.
const MASK_FLAGS: u32 = 1;
/// `IBV_WQ_ATTR_STATE`, `_CURR_STATE`, `_FLAGS`.
const ATTR_STATE: u32 = 1;
const ATTR_CURRENT: u32 = 1 << 1;
const ATTR_FLAGS: u32 = 1 << 2;
/// `IBV_RX_HASH_FUNC_TOEPLITZ`.
pub(crate) const TOEPLITZ: u8 = 1;

/// `man ibv_create_wq`: fails with EINVAL for a type other than `IBV_WQT_RQ`, EOPNOTSUPP for flags.
pub(crate) unsafe extern "C" fn create_wq(handle: *mut ibv_context, init: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    pointer(|| {
        context(handle)?;
        let init = required!(mut init);
        let flags = if init.comp_mask & MASK_FLAGS != 0 { init.create_flags } else { 0 };
        if init.wq_type != 0 || init.comp_mask & !MASK_FLAGS != 0 {
            let (kind, mask) = (init.wq_type, init.comp_mask);
            return Err(invalid(|| {
                format!("wq_type is {kind}, comp_mask {mask:#x}; accepted are IBV_WQT_RQ 0 and the flags, 1")
            }));
        }
        if flags != 0 {
            return Err(EOPNOTSUPP);
        }
        let token = Token::new();
        let cq = Arc::clone(cq(init.cq)?);
        let wq_init = WqInit { max_wr: init.max_wr, max_sge: init.max_sge, cq, user_context: token.0 };
        let wq = pd(init.pd)?.create_wq(wq_init)?;
        (init.max_wr, init.max_sge) = wq.size();
        let exposed = ibv_wq {
            context: handle,
            wq_context: init.wq_context,
            pd: init.pd,
            cq: init.cq,
            wq_num: wq.number(),
            handle: token.short(),
            state: WqState::Reset as c_int,
            wq_type: init.wq_type,
            post_recv: Some(post_wq_recv),
            ..ibv_wq::ZERO
        };
        let events = Unacked::new("asynchronous events of a work queue", None);
        Ok(Object::publish(token, exposed, WqInner { wq, events }))
    })
}

/// Returns the state with number `code` if `mask` has `bit`. Fails with EINVAL for another number.
fn state_if_set(mask: u32, bit: u32, code: c_int) -> Result<Option<WqState>> {
    if mask & bit == 0 {
        return Ok(None);
    }
    u32::try_from(code).ok().and_then(WqState::from_code).map(Some).ok_or(EINVAL)
}

/// `man ibv_modify_wq`: flags cannot be changed.
pub(crate) unsafe extern "C" fn modify_wq(handle: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    status(|| {
        let wq = &Object::<ibv_wq>::live(handle)?.inner.wq;
        let attr = required!(attr);
        let mask = attr.attr_mask;
        if mask & !(ATTR_STATE | ATTR_CURRENT | ATTR_FLAGS) != 0 {
            return Err(EINVAL);
        }
        if mask & ATTR_FLAGS != 0 && attr.flags_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        let current = state_if_set(mask, ATTR_CURRENT, attr.curr_wq_state)?;
        if let Some(state) = state_if_set(mask, ATTR_STATE, attr.wq_state)? {
            wq.modify(state, current)?;
        }
        // SAFETY: `live` found the object, so its structure is alive; programs only read the field.
        unsafe { (&raw mut (*handle).state).write(wq.state() as c_int) };
        Ok(())
    })
}

/// `man ibv_create_wq`: fails with EBUSY while tables refer to it; waits until every event is
/// acknowledged.
pub(crate) unsafe extern "C" fn destroy_wq(handle: *mut ibv_wq) -> c_int {
    status(|| Object::<ibv_wq>::destroy_acknowledged(handle, |inner| inner.wq.destroy(), |inner| &inner.events))
}

pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    handle: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    pointer(|| {
        let context = context(handle)?;
        let init = required!(init);
        if init.comp_mask != 0
            || init.ind_tbl.is_null()
            || init.log_ind_tbl_size > roxe_provider::limits::MAX_RWQ_TABLE.ilog2()
        {
            return Err(EINVAL);
        }
        let wq = |at| {
            // SAFETY: the program passes an array of 2^log_ind_tbl_size handles, valid during the
            // call; `at` is below this number.
            let handle = unsafe { init.ind_tbl.add(at).read() };
            Object::<ibv_wq>::live(handle).map(|object| Arc::clone(&object.inner.wq))
        };
        let wqs: Vec<_> = (0..1 << init.log_ind_tbl_size).map(wq).collect::<Result<_>>()?;
        let table = context.create_rwq_table(&wqs)?;
        Ok(Object::publish_numbered(table, |number| {
            let number = number.cast_signed();
            ibv_rwq_ind_table { context: handle, ind_tbl_handle: number, ind_tbl_num: number, comp_mask: 0 }
        }))
    })
}

/// `man ibv_create_rwq_ind_table`: fails with EBUSY while queue pairs use it.
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(handle: *mut ibv_rwq_ind_table) -> c_int {
    status(|| Object::<ibv_rwq_ind_table>::destroy(handle, |table| table.destroy()))
}
