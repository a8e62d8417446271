//! Queue pairs, completion queues, shared receive queues, paths.

use super::*;
use core::ptr::{null, null_mut};

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_global_route {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[repr(C)]
pub(crate) struct ibv_ah {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_qp_open_attr {
    pub(crate) comp_mask: u32,
    pub(crate) qp_num: u32,
    pub(crate) xrcd: *mut ibv_xrcd,
    pub(crate) qp_context: *mut c_void,
    pub(crate) qp_type: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_srq_attr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_srq_init_attr_ex {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: c_int,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) xrcd: *mut ibv_xrcd,
    pub(crate) cq: *mut ibv_cq,
    /// `struct ibv_tm_cap`: `max_num_tags`, `max_ops`.
    pub(crate) tm_cap: [u32; 2],
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// Starts like [`ibv_qp_init_attr`]; that structure ends where `comp_mask` begins here.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_qp_init_attr_ex {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) xrcd: *mut ibv_xrcd,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut ibv_rwq_ind_table,
    pub(crate) rx_hash_conf: ibv_rx_hash_conf,
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

impl ibv_qp_init_attr_ex {
    /// What a classic one says, with the members that `comp_mask` names, of which `pd` is one; the others are empty.
    pub(crate) fn of(init: &ibv_qp_init_attr, comp_mask: u32, pd: *mut ibv_pd) -> Self {
        Self {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            comp_mask,
            pd,
            xrcd: null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: null_mut(),
            rx_hash_conf: ibv_rx_hash_conf {
                rx_hash_function: 0,
                rx_hash_key_len: 0,
                rx_hash_key: null(),
                rx_hash_fields_mask: 0,
            },
            source_qpn: 0,
            send_ops_flags: 0,
        }
    }

    /// The part that a classic one has, too.
    pub(crate) fn classic(&self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: self.qp_context,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: self.srq,
            cap: self.cap,
            qp_type: self.qp_type,
            sq_sig_all: self.sq_sig_all,
        }
    }
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) events_completed: u32,
}

#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_int,
    pub(crate) qp_type: c_int,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) events_completed: u32,
}

/// The application writes `wr_id` and `wr_flags` before it calls a builder.
#[repr(C)]
pub(crate) struct ibv_qp_ex {
    pub(crate) qp_base: ibv_qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: Option<unsafe extern "C" fn(Qpx, u32, u64, u64, u64)>,
    pub(crate) wr_atomic_fetch_add: Option<unsafe extern "C" fn(Qpx, u32, u64, u64)>,
    pub(crate) wr_bind_mw: Option<unsafe extern "C" fn(Qpx, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub(crate) wr_local_inv: Option<unsafe extern "C" fn(Qpx, u32)>,
    pub(crate) wr_rdma_read: Option<unsafe extern "C" fn(Qpx, u32, u64)>,
    pub(crate) wr_rdma_write: Option<unsafe extern "C" fn(Qpx, u32, u64)>,
    pub(crate) wr_rdma_write_imm: Option<unsafe extern "C" fn(Qpx, u32, u64, u32)>,
    pub(crate) wr_send: Option<unsafe extern "C" fn(Qpx)>,
    pub(crate) wr_send_imm: Option<unsafe extern "C" fn(Qpx, u32)>,
    pub(crate) wr_send_inv: Option<unsafe extern "C" fn(Qpx, u32)>,
    pub(crate) wr_send_tso: Option<unsafe extern "C" fn(Qpx, *mut c_void, u16, u16)>,
    pub(crate) wr_set_ud_addr: Option<unsafe extern "C" fn(Qpx, *mut ibv_ah, u32, u32)>,
    pub(crate) wr_set_xrc_srqn: Option<unsafe extern "C" fn(Qpx, u32)>,
    pub(crate) wr_set_inline_data: Option<unsafe extern "C" fn(Qpx, *mut c_void, usize)>,
    pub(crate) wr_set_inline_data_list: Option<unsafe extern "C" fn(Qpx, usize, *const ibv_data_buf)>,
    pub(crate) wr_set_sge: Option<unsafe extern "C" fn(Qpx, u32, u64, u32)>,
    pub(crate) wr_set_sge_list: Option<unsafe extern "C" fn(Qpx, usize, *const ibv_sge)>,
    pub(crate) wr_start: Option<unsafe extern "C" fn(Qpx)>,
    pub(crate) wr_complete: Option<unsafe extern "C" fn(Qpx) -> c_int>,
    pub(crate) wr_abort: Option<unsafe extern "C" fn(Qpx)>,
    pub(crate) wr_atomic_write: Option<unsafe extern "C" fn(Qpx, u32, u64, *const c_void)>,
    /// Newer than the other fields: programs of older headers do not look here.
    pub(crate) wr_flush: Option<unsafe extern "C" fn(Qpx, u32, u64, usize, u8, u8)>,
}

#[repr(C)]
pub(crate) struct ibv_qp_rate_limit_attr {
    pub(crate) rate_limit: u32,
    pub(crate) max_burst_sz: u32,
    pub(crate) typical_pkt_sz: u16,
}

#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Cond,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

/// Starts with the fields of [`ibv_cq`]; `status` and `wr_id` are those of the current entry.
#[repr(C)]
pub(crate) struct ibv_cq_ex {
    pub(crate) base: ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: u32,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Option<unsafe extern "C" fn(Cqx, *mut ibv_poll_cq_attr) -> c_int>,
    pub(crate) next_poll: Option<unsafe extern "C" fn(Cqx) -> c_int>,
    pub(crate) end_poll: Option<unsafe extern "C" fn(Cqx)>,
    pub(crate) read_opcode: Option<unsafe extern "C" fn(Cqx) -> u32>,
    pub(crate) read_vendor_err: Option<unsafe extern "C" fn(Cqx) -> u32>,
    pub(crate) read_byte_len: Option<unsafe extern "C" fn(Cqx) -> u32>,
    pub(crate) read_imm_data: Option<unsafe extern "C" fn(Cqx) -> u32>,
    pub(crate) read_qp_num: Option<unsafe extern "C" fn(Cqx) -> u32>,
    pub(crate) read_src_qp: Option<unsafe extern "C" fn(Cqx) -> u32>,
    pub(crate) read_wc_flags: Option<unsafe extern "C" fn(Cqx) -> c_uint>,
    pub(crate) read_slid: Option<unsafe extern "C" fn(Cqx) -> u32>,
    pub(crate) read_sl: Option<unsafe extern "C" fn(Cqx) -> u8>,
    pub(crate) read_dlid_path_bits: Option<unsafe extern "C" fn(Cqx) -> u8>,
    pub(crate) read_completion_ts: Option<unsafe extern "C" fn(Cqx) -> u64>,
    pub(crate) read_cvlan: Option<unsafe extern "C" fn(Cqx) -> u16>,
    pub(crate) read_flow_tag: Option<unsafe extern "C" fn(Cqx) -> u32>,
    pub(crate) read_tm_info: Option<unsafe extern "C" fn(Cqx, *mut ibv_wc_tm_info)>,
    pub(crate) read_completion_wallclock_ns: Option<unsafe extern "C" fn(Cqx) -> u64>,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_moderate_cq {
    pub(crate) cq_count: u16,
    pub(crate) cq_period: u16,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_modify_cq_attr {
    pub(crate) attr_mask: u32,
    pub(crate) moderate: ibv_moderate_cq,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_cq_init_attr_ex {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *mut ibv_pd,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct ibv_ece {
    pub(crate) vendor_id: u32,
    pub(crate) options: u32,
    pub(crate) comp_mask: u32,
}
