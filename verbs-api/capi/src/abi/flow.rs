//! Receive work queues, their tables, flow rules and counters.

use super::*;

/// A receive work queue; the header posts through it.
#[repr(C)]
pub(crate) struct ibv_wq {
    pub(crate) context: *mut ibv_context,
    pub(crate) wq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) wq_num: u32,
    pub(crate) handle: u32,
    pub(crate) state: c_int,
    pub(crate) wq_type: c_int,
    pub(crate) post_recv: Option<unsafe extern "C" fn(*mut Self, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) events_completed: u32,
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_wq_init_attr {
    pub(crate) wq_context: *mut c_void,
    pub(crate) wq_type: c_int,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) create_flags: u32,
}

#[repr(C)]
pub(crate) struct ibv_wq_attr {
    pub(crate) attr_mask: u32,
    pub(crate) wq_state: c_int,
    pub(crate) curr_wq_state: c_int,
    pub(crate) flags: u32,
    pub(crate) flags_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_rwq_ind_table {
    pub(crate) context: *mut ibv_context,
    pub(crate) ind_tbl_handle: c_int,
    pub(crate) ind_tbl_num: c_int,
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_rwq_ind_table_init_attr {
    pub(crate) log_ind_tbl_size: u32,
    pub(crate) ind_tbl: *const *mut ibv_wq,
    pub(crate) comp_mask: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_rx_hash_conf {
    pub(crate) rx_hash_function: u8,
    pub(crate) rx_hash_key_len: u8,
    pub(crate) rx_hash_key: *const u8,
    pub(crate) rx_hash_fields_mask: u64,
}

/// A rule of flow steering; specifications follow it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_flow_attr {
    pub(crate) comp_mask: u32,
    /// `type` in C.
    pub(crate) flow_type: c_int,
    pub(crate) size: u16,
    pub(crate) priority: u16,
    pub(crate) num_of_specs: u8,
    pub(crate) port: u8,
    pub(crate) flags: u32,
}

#[repr(C)]
pub(crate) struct ibv_flow {
    pub(crate) comp_mask: u32,
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_counters {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
pub(crate) struct ibv_counters_init_attr {
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_counter_attach_attr {
    pub(crate) counter_desc: c_int,
    pub(crate) index: u32,
    pub(crate) comp_mask: u32,
}
