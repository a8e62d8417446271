//! Domains, registered memory, windows, device memory.

use super::*;

#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct ibv_xrcd {
    pub(crate) context: *mut ibv_context,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_xrcd_init_attr {
    pub(crate) comp_mask: u32,
    pub(crate) fd: c_int,
    pub(crate) oflags: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_mw_bind_info {
    pub(crate) mr: *mut ibv_mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

/// The program may read `rkey` and write to it.
#[repr(C)]
pub(crate) struct ibv_mw {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    pub(crate) mw_type: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_mw_bind {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: c_uint,
    pub(crate) bind_info: ibv_mw_bind_info,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_alloc_dm_attr {
    pub(crate) length: usize,
    pub(crate) log_align_req: u32,
    pub(crate) comp_mask: u32,
}

/// The headers copy through the two functions.
#[repr(C)]
pub(crate) struct ibv_dm {
    pub(crate) context: *mut ibv_context,
    pub(crate) memcpy_to_dm: Option<unsafe extern "C" fn(*mut Self, u64, *const c_void, usize) -> c_int>,
    pub(crate) memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut Self, u64, usize) -> c_int>,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

/// A thread domain.
#[repr(C)]
pub(crate) struct ibv_td {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
pub(crate) struct ibv_td_init_attr {
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_parent_domain_init_attr {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) td: *mut ibv_td,
    pub(crate) comp_mask: u32,
    pub(crate) alloc: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
    pub(crate) free: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)>,
    pub(crate) pd_context: *mut c_void,
}
