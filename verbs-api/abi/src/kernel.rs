//! Structures of the kernel's uverbs interface, `rdma/ib_user_verbs.h` and `rdma/ib_user_sa.h`, for
//! programs that use `rdma_cm` directly. They never change.

use super::*;

c_structs! {
    ib_uverbs_ah_attr(32, 4) {
        0 dgid: [u8; 16], 16 flow_label: u32, 20 sgid_index: u8, 21 hop_limit: u8,
        22 traffic_class: u8, 23 reserved1: u8, 24 dlid: u16, 26 sl: u8, 27 src_path_bits: u8,
        28 static_rate: u8, 29 is_global: u8, 30 port_num: u8, 31 reserved2: u8,
    }

    ib_uverbs_qp_attr(144, 4) {
        0 qp_attr_mask: u32, 4 qp_state: u32, 8 cur_qp_state: u32, 12 path_mtu: u32,
        16 path_mig_state: u32, 20 qkey: u32, 24 rq_psn: u32, 28 sq_psn: u32, 32 dest_qp_num: u32,
        36 qp_access_flags: u32, 40 ah_attr: ib_uverbs_ah_attr, 72 alt_ah_attr: ib_uverbs_ah_attr,
        104 cap: ibv_qp_cap, 124 pkey_index: u16, 126 alt_pkey_index: u16,
        128 en_sqd_async_notify: u8, 129 sq_draining: u8, 130 max_rd_atomic: u8,
        131 max_dest_rd_atomic: u8, 132 min_rnr_timer: u8, 133 port_num: u8, 134 timeout: u8,
        135 retry_cnt: u8, 136 rnr_retry: u8, 137 alt_port_num: u8, 138 alt_timeout: u8,
        139 reserved: [u8; 5],
    }

    /// Byte order as in [`ibv_sa_path_rec`].
    ib_user_path_rec(64, 4) {
        0 dgid: [u8; 16], 16 sgid: [u8; 16], 32 dlid: u16, 34 slid: u16, 36 raw_traffic: u32,
        40 flow_label: u32, 44 reversible: u32, 48 mtu: u32, 52 pkey: u16, 54 hop_limit: u8,
        55 traffic_class: u8, 56 numb_path: u8, 57 sl: u8, 58 mtu_selector: u8,
        59 rate_selector: u8, 60 rate: u8, 61 packet_life_time_selector: u8,
        62 packet_life_time: u8, 63 preference: u8,
    }
}
