//! An open device, and the functions that inline verbs call.

use super::*;

c_structs! {
    /// Slots that the headers still call have types; the others, unused since 2007, are `Unused`.
    ibv_context_ops(256, 8) {
        0 _compat1: [Unused; 7],
        56 alloc_mw: c_fn!(fn(*mut ibv_pd, c_uint) -> *mut ibv_mw),
        64 bind_mw: c_fn!(fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int),
        72 dealloc_mw: c_fn!(fn(*mut ibv_mw) -> c_int),
        80 _compat2: [Unused; 1],
        88 poll_cq: c_fn!(fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int),
        96 req_notify_cq: c_fn!(fn(*mut ibv_cq, c_int) -> c_int),
        104 _compat3: [Unused; 7],
        160 post_srq_recv: c_fn!(fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int),
        168 _compat4: [Unused; 4],
        200 post_send: c_fn!(fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int),
        208 post_recv: c_fn!(fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int),
        216 _compat5: [Unused; 5],
    }

    ibv_context(328, 8) {
        0 device: *mut ibv_device, 8 ops: ibv_context_ops, 264 cmd_fd: c_int, 268 async_fd: c_int,
        272 num_comp_vectors: c_int, 280 mutex: Mutex, 320 abi_compat: usize,
    }

    /// Slots that roxe fills have types, the others are `Unused`. The headers return EOPNOTSUPP for
    /// an empty slot.
    verbs_context(648, 8) {
        0 query_port: c_fn!(fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int),
        8 advise_mr: c_fn!(fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int),
        16 alloc_null_mr: c_fn!(fn(*mut ibv_pd) -> *mut ibv_mr),
        24 read_counters: c_fn!(fn(*mut ibv_counters, *mut u64, u32, u32) -> c_int),
        32 attach_counters_point_flow: c_fn!(fn(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int),
        40 create_counters: c_fn!(fn(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters),
        48 destroy_counters: c_fn!(fn(*mut ibv_counters) -> c_int),
        56 reg_dm_mr: c_fn!(fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr),
        64 alloc_dm: c_fn!(fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm),
        72 free_dm: c_fn!(fn(*mut ibv_dm) -> c_int),
        80 modify_flow_action_esp: Unused,
        88 destroy_flow_action: Unused, 96 create_flow_action_esp: Unused,
        104 modify_qp_rate_limit: c_fn!(fn(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int),
        112 alloc_parent_domain: c_fn!(fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd),
        120 dealloc_td: c_fn!(fn(*mut ibv_td) -> c_int),
        128 alloc_td: c_fn!(fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td),
        136 modify_cq: c_fn!(fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int),
        144 post_srq_ops: c_fn!(fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int),
        152 destroy_rwq_ind_table: c_fn!(fn(*mut ibv_rwq_ind_table) -> c_int),
        160 create_rwq_ind_table: c_fn!(fn(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table),
        168 destroy_wq: c_fn!(fn(*mut ibv_wq) -> c_int),
        176 modify_wq: c_fn!(fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int),
        184 create_wq: c_fn!(fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq),
        192 query_rt_values: c_fn!(fn(*mut ibv_context, *mut ibv_values_ex) -> c_int),
        200 create_cq_ex: c_fn!(fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> Cqx),
        208 _priv: usize,
        216 query_device_ex: c_fn!(fn(*mut ibv_context, *const u32, *mut ibv_device_attr_ex, usize) -> c_int),
        224 destroy_flow: c_fn!(fn(*mut ibv_flow) -> c_int),
        232 _placeholder2: Unused,
        240 create_flow: c_fn!(fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow),
        248 _placeholder1: Unused,
        256 open_qp: c_fn!(fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp),
        264 create_qp_ex: c_fn!(fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp),
        272 get_srq_num: c_fn!(fn(*mut ibv_srq, *mut u32) -> c_int),
        280 create_srq_ex: c_fn!(fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq),
        288 open_xrcd: c_fn!(fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd),
        296 close_xrcd: c_fn!(fn(*mut ibv_xrcd) -> c_int),
        304 _placeholder3: Unused, 312 sz: usize,
        320 context: ibv_context,
    }
}
