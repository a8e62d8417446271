//! Domains, registered memory, windows, device memory.

use super::*;

c_structs! {
    ibv_pd(16, 8) { 0 context: *mut ibv_context, 8 handle: u32 }

    ibv_mr(48, 8) {
        0 context: *mut ibv_context, 8 pd: *mut ibv_pd, 16 addr: *mut c_void, 24 length: usize,
        32 handle: u32, 36 lkey: u32, 40 rkey: u32,
    }

    /// `struct ibv_mr_init_attr`; `buf` came with rdma-core 65.
    ibv_mr_init_attr(72, 8) {
        0 length: usize, 8 access: c_int, 16 comp_mask: u64, 24 iova: u64, 32 addr: *mut c_void,
        40 fd: c_int, 48 fd_offset: u64, 56 dmah: *mut c_void, 64 buf: *mut ibv_buf,
    }

    /// Opaque to programs.
    ibv_buf(8, 8) { 0 addr: *mut c_void }

    ibv_xrcd(8, 8) { 0 context: *mut ibv_context }

    ibv_xrcd_init_attr(12, 4) { 0 comp_mask: u32, 4 fd: c_int, 8 oflags: c_int }

    ibv_mw_bind_info(32, 8) {
        0 mr: *mut ibv_mr, 8 addr: u64, 16 length: u64, 24 mw_access_flags: c_uint,
    }

    /// The program may read `rkey` and write to it.
    ibv_mw(32, 8) {
        0 context: *mut ibv_context, 8 pd: *mut ibv_pd, 16 rkey: u32, 20 handle: u32,
        24 mw_type: c_uint,
    }

    ibv_mw_bind(48, 8) {
        0 wr_id: u64, 8 send_flags: c_uint, 16 bind_info: ibv_mw_bind_info,
    }

    ibv_alloc_dm_attr(16, 8) { 0 length: usize, 8 log_align_req: u32, 12 comp_mask: u32 }

    /// The headers copy through the two functions.
    ibv_dm(32, 8) {
        0 context: *mut ibv_context,
        8 memcpy_to_dm: c_fn!(fn(*mut Self, u64, *const c_void, usize) -> c_int),
        16 memcpy_from_dm: c_fn!(fn(*mut c_void, *mut Self, u64, usize) -> c_int),
        24 comp_mask: u32, 28 handle: u32,
    }

    ibv_td(8, 8) { 0 context: *mut ibv_context }

    ibv_td_init_attr(4, 4) { 0 comp_mask: u32 }

    ibv_parent_domain_init_attr(48, 8) {
        0 pd: *mut ibv_pd, 8 td: *mut ibv_td, 16 comp_mask: u32,
        24 alloc: c_fn!(fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void),
        32 free: c_fn!(fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)),
        40 pd_context: *mut c_void,
    }
}
