//! An opened device and the functions that inline verbs jump to.

use super::*;

/// The slots the headers still call; the rest have been dead since 2007 and are `Unused`.
#[repr(C)]
pub(crate) struct ibv_context_ops {
    pub(crate) _compat1: [Unused; 7],
    pub(crate) alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw>,
    pub(crate) bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub(crate) dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub(crate) _compat2: [Unused; 1],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub(crate) _compat3: [Unused; 7],
    pub(crate) post_srq_recv:
        Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) _compat4: [Unused; 4],
    pub(crate) post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(crate) post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) _compat5: [Unused; 5],
}

#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: Mutex,
    pub(crate) abi_compat: usize,
}

/// The slots that roxe fills have their types, the others are `Unused`: the headers answer EOPNOTSUPP for an empty one.
#[repr(C)]
pub(crate) struct verbs_context {
    pub(crate) query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub(crate) advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int>,
    pub(crate) alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
    pub(crate) read_counters: Option<unsafe extern "C" fn(*mut ibv_counters, *mut u64, u32, u32) -> c_int>,
    pub(crate) attach_counters_point_flow:
        Option<unsafe extern "C" fn(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int>,
    pub(crate) create_counters:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters>,
    pub(crate) destroy_counters: Option<unsafe extern "C" fn(*mut ibv_counters) -> c_int>,
    pub(crate) reg_dm_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>,
    pub(crate) alloc_dm: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
    pub(crate) free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub(crate) modify_flow_action_esp: Unused,
    pub(crate) destroy_flow_action: Unused,
    pub(crate) create_flow_action_esp: Unused,
    pub(crate) modify_qp_rate_limit: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int>,
    pub(crate) alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
    pub(crate) dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub(crate) alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    pub(crate) modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
    pub(crate) post_srq_ops: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int>,
    pub(crate) destroy_rwq_ind_table: Option<unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int>,
    pub(crate) create_rwq_ind_table:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table>,
    pub(crate) destroy_wq: Option<unsafe extern "C" fn(*mut ibv_wq) -> c_int>,
    pub(crate) modify_wq: Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int>,
    pub(crate) create_wq: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq>,
    pub(crate) query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub(crate) create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> Cqx>,
    pub(crate) _priv: usize,
    pub(crate) query_device_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *const u32, *mut ibv_device_attr_ex, usize) -> c_int>,
    pub(crate) destroy_flow: Option<unsafe extern "C" fn(*mut ibv_flow) -> c_int>,
    pub(crate) _placeholder2: Unused,
    pub(crate) create_flow: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow>,
    pub(crate) _placeholder1: Unused,
    pub(crate) open_qp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub(crate) create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub(crate) get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub(crate) create_srq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub(crate) open_xrcd: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub(crate) close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub(crate) _placeholder3: Unused,
    pub(crate) sz: usize,
    pub(crate) context: ibv_context,
}
