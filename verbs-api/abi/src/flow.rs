//! Receive work queues, their tables, flow rules and counters.

use super::*;

c_structs! {
    /// A receive work queue; the header posts through it.
    ibv_wq(152, 8) {
        0 context: *mut ibv_context, 8 wq_context: *mut c_void, 16 pd: *mut ibv_pd,
        24 cq: *mut ibv_cq, 32 wq_num: u32, 36 handle: u32, 40 state: c_int, 44 wq_type: c_int,
        48 post_recv: c_fn!(fn(*mut Self, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int),
        56 mutex: Mutex, 96 cond: Cond, 144 events_completed: u32, 148 comp_mask: u32,
    }

    ibv_wq_init_attr(48, 8) {
        0 wq_context: *mut c_void, 8 wq_type: c_int, 12 max_wr: u32, 16 max_sge: u32,
        24 pd: *mut ibv_pd, 32 cq: *mut ibv_cq, 40 comp_mask: u32, 44 create_flags: u32,
    }

    ibv_wq_attr(20, 4) {
        0 attr_mask: u32, 4 wq_state: c_int, 8 curr_wq_state: c_int, 12 flags: u32,
        16 flags_mask: u32,
    }

    ibv_rwq_ind_table(24, 8) {
        0 context: *mut ibv_context, 8 ind_tbl_handle: c_int, 12 ind_tbl_num: c_int,
        16 comp_mask: u32,
    }

    ibv_rwq_ind_table_init_attr(24, 8) {
        0 log_ind_tbl_size: u32, 8 ind_tbl: *const *mut ibv_wq, 16 comp_mask: u32,
    }

    ibv_rx_hash_conf(24, 8) {
        0 rx_hash_function: u8, 1 rx_hash_key_len: u8, 8 rx_hash_key: *const u8,
        16 rx_hash_fields_mask: u64,
    }

    /// A rule of flow steering; specifications follow it.
    ibv_flow_attr(20, 4) {
        0 comp_mask: u32,
        /// `type` in C.
        4 flow_type: c_int, 8 size: u16, 10 priority: u16, 12 num_of_specs: u8, 13 port: u8,
        16 flags: u32,
    }

    ibv_flow(24, 8) { 0 comp_mask: u32, 8 context: *mut ibv_context, 16 handle: u32 }

    ibv_counters(8, 8) { 0 context: *mut ibv_context }

    ibv_counters_init_attr(4, 4) { 0 comp_mask: u32 }

    ibv_counter_attach_attr(12, 4) {
        0 counter_desc: c_int, 4 index: u32, 8 comp_mask: u32,
    }
}
