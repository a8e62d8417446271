//! Memory windows (`man ibv_alloc_mw`, `man ibv_bind_mw`). Work requests that bind and invalidate
//! type 2 windows are in `data_path.rs`.

use crate::abi::{ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp, ibv_qp_ex};
use crate::errno::{Result, invalid, null, outside, pointer, required, status};
use crate::memory;
use crate::object::Object;
use crate::objects::{context_of, pd};
use core::ffi::{c_int, c_uint};
use roxe_provider::{Mw, MwKind};
use roxe_transport::wr::{SendData, SendFlags, SendOp, SendRequest};
use roxe_wire::{LKey, RKey};
use std::sync::Arc;

pub(crate) unsafe extern "C" fn alloc_mw(handle: *mut ibv_pd, mw_type: c_uint) -> *mut ibv_mw {
    pointer(|| {
        let kind = match mw_type {
            1 => MwKind::One,
            2 => MwKind::Two,
            _ => return Err(outside("type", mw_type, "IBV_MW_TYPE_1 and IBV_MW_TYPE_2, 1 and 2")),
        };
        let mw = pd(handle)?.alloc_mw(kind)?;
        let (context, rkey) = (context_of(handle)?, mw.rkey().0);
        Ok(Object::publish_numbered(mw, |number| ibv_mw { context, pd: handle, rkey, handle: number, mw_type }))
    })
}

/// `man ibv_alloc_mw`. After it returns, no peer has access through the window.
pub(crate) unsafe extern "C" fn dealloc_mw(handle: *mut ibv_mw) -> c_int {
    let release = |mw: &Arc<Mw>| {
        mw.deallocate();
        Ok(())
    };
    status(|| Object::<ibv_mw>::destroy(handle, release))
}

/// `man ibv_bind_mw`: posts the binding of a type 1 window under its next key, and shows that key
/// in the window.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    status(|| {
        let (qp, window) = (Object::<ibv_qp_ex>::live(qp)?, Object::<ibv_mw>::live(mw)?);
        let bind = required!(bind);
        // SAFETY: the window is alive, and binding it is the call in progress.
        let current = unsafe { (&raw const (*mw).rkey).read() };
        let rkey = tagged(&window.inner, current.wrapping_add(1));
        let region = Object::<ibv_mr>::optional(bind.bind_info.mr)?;
        let op = operation(&window.inner, MwKind::One, rkey, region, &bind.bind_info)?;
        let flags = SendFlags::from_bits_truncate(bind.send_flags);
        qp.inner.qp.send().push(&SendRequest { wr_id: bind.wr_id, op, flags, data: SendData::Sges(&[]), ud: None })?;
        // SAFETY: the window is alive, and binding it is the call in progress.
        unsafe { (&raw mut (*mw).rkey).write(rkey.0) };
        Ok(())
    })
}

/// The binding of a type 2 window under the key that ends in the last byte of `rkey`. EINVAL if the
/// structure of the window or the region was overwritten; binds are rare enough to check.
///
/// # Safety
/// `mw` and the region in `info` are NULL or living handles of ours; `info` is NULL or points to a
/// whole structure.
pub(crate) unsafe fn bind_type_2(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) -> Result<SendOp> {
    // SAFETY: this function's contract.
    unsafe {
        let (mw, info) =
            Object::<ibv_mw>::trusted(mw).zip(info.as_ref()).ok_or_else(|| null("bind_mw.mw or bind_info"))?;
        let region = Object::<ibv_mr>::trusted(info.mr);
        if !mw.is_intact() || region.is_some_and(|region| !region.is_intact()) {
            return Err(invalid(|| {
                "bind_mw.mw or bind_info.mr was overwritten: its field context or handle is not what it was".into()
            }));
        }
        operation(&mw.inner, MwKind::Two, tagged(&mw.inner, rkey), region, info)
    }
}

/// The key of `mw` with the last byte of `rkey`; the program cannot choose the rest.
fn tagged(mw: &Mw, rkey: u32) -> RKey {
    RKey(mw.rkey().0 & !0xff | rkey & 0xff)
}

/// The binding of `mw` to a part of `region`. EINVAL for a window of another kind, without a region
/// and for unknown rights. Other errors complete as `IBV_WC_MW_BIND_ERR`.
fn operation(
    mw: &Mw,
    kind: MwKind,
    rkey: RKey,
    region: Option<&Object<ibv_mr>>,
    info: &ibv_mw_bind_info,
) -> Result<SendOp> {
    if mw.kind() != kind {
        let (given, other) = (mw.kind(), "type One is bound by ibv_bind_mw, type Two by a work request");
        return Err(invalid(|| format!("the memory window is of type {given:?}; {other}")));
    }
    if region.is_none() && info.length > 0 {
        return Err(null("bind_info.mr"));
    }
    let lkey = region.map_or(LKey(0), |object| object.inner.lkey());
    let access = memory::access(info.mw_access_flags)?;
    Ok(SendOp::BindWindow { rkey, lkey, access, addr: info.addr, length: info.length })
}
