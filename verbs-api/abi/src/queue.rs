//! Queue pairs, completion queues, shared receive queues, paths.

use super::*;

c_structs! {
    ibv_global_route(24, 8) {
        0 dgid: ibv_gid, 16 flow_label: u32, 20 sgid_index: u8, 21 hop_limit: u8,
        22 traffic_class: u8,
    }

    ibv_ah_attr(32, 8) {
        0 grh: ibv_global_route, 24 dlid: u16, 26 sl: u8, 27 src_path_bits: u8, 28 static_rate: u8,
        29 is_global: u8, 30 port_num: u8,
    }

    ibv_ah(24, 8) { 0 context: *mut ibv_context, 8 pd: *mut ibv_pd, 16 handle: u32 }

    ibv_qp_open_attr(32, 8) {
        0 comp_mask: u32, 4 qp_num: u32, 8 xrcd: *mut ibv_xrcd, 16 qp_context: *mut c_void,
        24 qp_type: c_int,
    }

    ibv_srq_attr(12, 4) { 0 max_wr: u32, 4 max_sge: u32, 8 srq_limit: u32 }

    ibv_srq_init_attr(24, 8) { 0 srq_context: *mut c_void, 8 attr: ibv_srq_attr }

    ibv_srq_init_attr_ex(64, 8) {
        0 srq_context: *mut c_void, 8 attr: ibv_srq_attr, 20 comp_mask: u32, 24 srq_type: c_int,
        32 pd: *mut ibv_pd, 40 xrcd: *mut ibv_xrcd, 48 cq: *mut ibv_cq,
        /// `struct ibv_tm_cap`: `max_num_tags`, `max_ops`.
        56 tm_cap: [u32; 2],
    }

    ibv_qp_cap(20, 4) {
        0 max_send_wr: u32, 4 max_recv_wr: u32, 8 max_send_sge: u32, 12 max_recv_sge: u32,
        16 max_inline_data: u32,
    }

    ibv_qp_init_attr(64, 8) {
        0 qp_context: *mut c_void, 8 send_cq: *mut ibv_cq, 16 recv_cq: *mut ibv_cq,
        24 srq: *mut ibv_srq, 32 cap: ibv_qp_cap, 52 qp_type: c_int, 56 sq_sig_all: c_int,
    }

    /// Starts like [`ibv_qp_init_attr`]; that structure ends where `comp_mask` begins here.
    ibv_qp_init_attr_ex(136, 8) {
        0 qp_context: *mut c_void, 8 send_cq: *mut ibv_cq, 16 recv_cq: *mut ibv_cq,
        24 srq: *mut ibv_srq, 32 cap: ibv_qp_cap, 52 qp_type: c_int, 56 sq_sig_all: c_int,
        60 comp_mask: u32, 64 pd: *mut ibv_pd, 72 xrcd: *mut ibv_xrcd, 80 create_flags: u32,
        84 max_tso_header: u16, 88 rwq_ind_tbl: *mut ibv_rwq_ind_table,
        96 rx_hash_conf: ibv_rx_hash_conf, 120 source_qpn: u32, 128 send_ops_flags: u64,
    }
}

impl ibv_qp_init_attr_ex {
    /// Extends a classic structure by `pd` and `comp_mask`; the other new fields are empty.
    pub fn of(init: &ibv_qp_init_attr, comp_mask: u32, pd: *mut ibv_pd) -> Self {
        copy_fields!(Self from init { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } with {
            comp_mask, pd, ..Self::ZERO
        })
    }

    /// Returns the fields of the classic structure.
    pub fn classic(&self) -> ibv_qp_init_attr {
        copy_fields!(ibv_qp_init_attr from self { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all })
    }
}

c_structs! {
    ibv_qp_attr(144, 8) {
        0 qp_state: c_int, 4 cur_qp_state: c_int, 8 path_mtu: c_int, 12 path_mig_state: c_int,
        16 qkey: u32, 20 rq_psn: u32, 24 sq_psn: u32, 28 dest_qp_num: u32,
        32 qp_access_flags: c_uint, 36 cap: ibv_qp_cap, 56 ah_attr: ibv_ah_attr,
        88 alt_ah_attr: ibv_ah_attr, 120 pkey_index: u16, 122 alt_pkey_index: u16,
        124 en_sqd_async_notify: u8, 125 sq_draining: u8, 126 max_rd_atomic: u8,
        127 max_dest_rd_atomic: u8, 128 min_rnr_timer: u8, 129 port_num: u8, 130 timeout: u8,
        131 retry_cnt: u8, 132 rnr_retry: u8, 133 alt_port_num: u8, 134 alt_timeout: u8,
        136 rate_limit: u32,
    }

    ibv_srq(128, 8) {
        0 context: *mut ibv_context, 8 srq_context: *mut c_void, 16 pd: *mut ibv_pd, 24 handle: u32,
        32 mutex: Mutex, 72 cond: Cond, 120 events_completed: u32,
    }

    ibv_qp(160, 8) {
        0 context: *mut ibv_context, 8 qp_context: *mut c_void, 16 pd: *mut ibv_pd,
        24 send_cq: *mut ibv_cq, 32 recv_cq: *mut ibv_cq, 40 srq: *mut ibv_srq, 48 handle: u32,
        52 qp_num: u32, 56 state: c_int, 60 qp_type: c_int, 64 mutex: Mutex, 104 cond: Cond,
        152 events_completed: u32,
    }

    /// The application writes `wr_id` and `wr_flags` before it calls a builder.
    ibv_qp_ex(360, 8) {
        0 qp_base: ibv_qp, 160 comp_mask: u64, 168 wr_id: u64, 176 wr_flags: c_uint,
        184 wr_atomic_cmp_swp: c_fn!(fn(Qpx, u32, u64, u64, u64)),
        192 wr_atomic_fetch_add: c_fn!(fn(Qpx, u32, u64, u64)),
        200 wr_bind_mw: c_fn!(fn(Qpx, *mut ibv_mw, u32, *const ibv_mw_bind_info)),
        208 wr_local_inv: c_fn!(fn(Qpx, u32)),
        216 wr_rdma_read: c_fn!(fn(Qpx, u32, u64)),
        224 wr_rdma_write: c_fn!(fn(Qpx, u32, u64)),
        232 wr_rdma_write_imm: c_fn!(fn(Qpx, u32, u64, u32)),
        240 wr_send: c_fn!(fn(Qpx)),
        248 wr_send_imm: c_fn!(fn(Qpx, u32)),
        256 wr_send_inv: c_fn!(fn(Qpx, u32)),
        264 wr_send_tso: c_fn!(fn(Qpx, *mut c_void, u16, u16)),
        272 wr_set_ud_addr: c_fn!(fn(Qpx, *mut ibv_ah, u32, u32)),
        280 wr_set_xrc_srqn: c_fn!(fn(Qpx, u32)),
        288 wr_set_inline_data: c_fn!(fn(Qpx, *mut c_void, usize)),
        296 wr_set_inline_data_list: c_fn!(fn(Qpx, usize, *const ibv_data_buf)),
        304 wr_set_sge: c_fn!(fn(Qpx, u32, u64, u32)),
        312 wr_set_sge_list: c_fn!(fn(Qpx, usize, *const ibv_sge)),
        320 wr_start: c_fn!(fn(Qpx)),
        328 wr_complete: c_fn!(fn(Qpx) -> c_int),
        336 wr_abort: c_fn!(fn(Qpx)),
        344 wr_atomic_write: c_fn!(fn(Qpx, u32, u64, *const c_void)),
        /// Newer than the other fields; programs with older headers do not access it.
        352 wr_flush: c_fn!(fn(Qpx, u32, u64, usize, u8, u8)),
    }

    ibv_qp_rate_limit_attr(12, 4) {
        0 rate_limit: u32, 4 max_burst_sz: u32, 8 typical_pkt_sz: u16,
    }

    ibv_comp_channel(16, 8) { 0 context: *mut ibv_context, 8 fd: c_int, 12 refcnt: c_int }

    ibv_cq(128, 8) {
        0 context: *mut ibv_context, 8 channel: *mut ibv_comp_channel, 16 cq_context: *mut c_void,
        24 handle: u32, 28 cqe: c_int, 32 mutex: Mutex, 72 cond: Cond,
        120 comp_events_completed: u32, 124 async_events_completed: u32,
    }

    /// Starts with the fields of [`ibv_cq`]; `status` and `wr_id` are those of the current entry.
    ibv_cq_ex(288, 8) {
        0 base: ibv_cq, 128 comp_mask: u32, 132 status: u32, 136 wr_id: u64,
        144 start_poll: c_fn!(fn(Cqx, *mut ibv_poll_cq_attr) -> c_int),
        152 next_poll: c_fn!(fn(Cqx) -> c_int),
        160 end_poll: c_fn!(fn(Cqx)),
        168 read_opcode: c_fn!(fn(Cqx) -> u32),
        176 read_vendor_err: c_fn!(fn(Cqx) -> u32),
        184 read_byte_len: c_fn!(fn(Cqx) -> u32),
        192 read_imm_data: c_fn!(fn(Cqx) -> u32),
        200 read_qp_num: c_fn!(fn(Cqx) -> u32),
        208 read_src_qp: c_fn!(fn(Cqx) -> u32),
        216 read_wc_flags: c_fn!(fn(Cqx) -> c_uint),
        224 read_slid: c_fn!(fn(Cqx) -> u32),
        232 read_sl: c_fn!(fn(Cqx) -> u8),
        240 read_dlid_path_bits: c_fn!(fn(Cqx) -> u8),
        248 read_completion_ts: c_fn!(fn(Cqx) -> u64),
        256 read_cvlan: c_fn!(fn(Cqx) -> u16),
        264 read_flow_tag: c_fn!(fn(Cqx) -> u32),
        272 read_tm_info: c_fn!(fn(Cqx, *mut ibv_wc_tm_info)),
        280 read_completion_wallclock_ns: c_fn!(fn(Cqx) -> u64),
    }

    ibv_moderate_cq(4, 2) { 0 cq_count: u16, 2 cq_period: u16 }

    ibv_modify_cq_attr(8, 4) { 0 attr_mask: u32, 4 moderate: ibv_moderate_cq }

    ibv_cq_init_attr_ex(56, 8) {
        0 cqe: u32, 8 cq_context: *mut c_void, 16 channel: *mut ibv_comp_channel,
        24 comp_vector: u32, 32 wc_flags: u64, 40 comp_mask: u32, 44 flags: u32,
        48 parent_domain: *mut ibv_pd,
    }

    #[derive(Debug, PartialEq, Eq)]
    ibv_ece(12, 4) { 0 vendor_id: u32, 4 options: u32, 8 comp_mask: u32 }
}
