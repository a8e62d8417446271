//! Structures of devices, ports and events.

use super::*;

c_structs! {
    /// GID in network byte order.
    #[repr(align(8))]
    ibv_gid(16, 8) { 0 raw: [u8; 16] }

    ibv_gid_entry(32, 8) {
        0 gid: ibv_gid, 16 gid_index: u32, 20 port_num: u32, 24 gid_type: u32, 28 ndev_ifindex: u32,
    }

    /// `node_guid` and `sys_image_guid` are in network byte order.
    ibv_device_attr(232, 8) {
        0 fw_ver: [c_char; 64], 64 node_guid: u64, 72 sys_image_guid: u64, 80 max_mr_size: u64,
        88 page_size_cap: u64, 96 vendor_id: u32, 100 vendor_part_id: u32, 104 hw_ver: u32,
        108 max_qp: c_int, 112 max_qp_wr: c_int, 116 device_cap_flags: c_uint, 120 max_sge: c_int,
        124 max_sge_rd: c_int, 128 max_cq: c_int, 132 max_cqe: c_int, 136 max_mr: c_int,
        140 max_pd: c_int, 144 max_qp_rd_atom: c_int, 148 max_ee_rd_atom: c_int,
        152 max_res_rd_atom: c_int, 156 max_qp_init_rd_atom: c_int, 160 max_ee_init_rd_atom: c_int,
        164 atomic_cap: c_int, 168 max_ee: c_int, 172 max_rdd: c_int, 176 max_mw: c_int,
        180 max_raw_ipv6_qp: c_int, 184 max_raw_ethy_qp: c_int, 188 max_mcast_grp: c_int,
        192 max_mcast_qp_attach: c_int, 196 max_total_mcast_qp_attach: c_int, 200 max_ah: c_int,
        204 max_fmr: c_int, 208 max_map_per_fmr: c_int, 212 max_srq: c_int, 216 max_srq_wr: c_int,
        220 max_srq_sge: c_int, 224 max_pkeys: u16, 226 local_ca_ack_delay: u8,
        227 phys_port_cnt: u8,
    }

    /// On-demand paging: general capabilities, and the operations of each service that support it.
    ibv_odp_caps(24, 8) {
        0 general_caps: u64, 8 rc_odp_caps: u32, 12 uc_odp_caps: u32, 16 ud_odp_caps: u32,
    }

    /// Capabilities of TSO, pacing, tag matching, moderation and PCI atomics are structures in C;
    /// here each is an array of its numbers.
    ibv_device_attr_ex(400, 8) {
        0 orig_attr: ibv_device_attr, 232 comp_mask: u32, 240 odp_caps: ibv_odp_caps,
        264 completion_timestamp_mask: u64, 272 hca_core_clock: u64, 280 device_cap_flags_ex: u64,
        288 tso_caps: [u32; 2], 296 rss_caps: ibv_rss_caps, 328 max_wq_type_rq: u32,
        332 packet_pacing_caps: [u32; 3], 344 raw_packet_caps: u32, 348 tm_caps: [u32; 5],
        368 cq_mod_caps: [u16; 2], 376 max_dm_size: u64, 384 pci_atomic_caps: [u16; 3],
        392 xrc_odp_caps: u32, 396 phys_port_cnt_ex: u32,
    }

    ibv_port_attr(52, 4) {
        0 state: c_int, 4 max_mtu: c_int, 8 active_mtu: c_int, 12 gid_tbl_len: c_int,
        16 port_cap_flags: u32, 20 max_msg_sz: u32, 24 bad_pkey_cntr: u32, 28 qkey_viol_cntr: u32,
        32 pkey_tbl_len: u16, 34 lid: u16, 36 sm_lid: u16, 38 lmc: u8, 39 max_vl_num: u8,
        40 sm_sl: u8, 41 subnet_timeout: u8, 42 init_type_reply: u8, 43 active_width: u8,
        44 active_speed: u8, 45 phys_state: u8, 46 link_layer: u8, 47 flags: u8,
        48 port_cap_flags2: u16,
    }

    ibv_async_event(16, 8) { 0 element: async_element, 8 event_type: c_int }

    ibv_rss_caps(32, 8) {
        0 supported_qpts: u32, 4 max_rwq_indirection_tables: u32,
        8 max_rwq_indirection_table_size: u32, 16 rx_hash_fields_mask: u64, 24 rx_hash_function: u8,
    }

    ibv_device(664, 8) {
        0 _ops: [usize; 2], 16 node_type: c_int, 20 transport_type: c_int, 24 name: [c_char; 64],
        88 dev_name: [c_char; 64], 152 dev_path: [c_char; 256], 408 ibdev_path: [c_char; 256],
    }

    ibv_values_ex(24, 8) { 0 comp_mask: u32, 8 raw_clock: libc::timespec }
}

/// The subject of an asynchronous event; the event type determines the valid member.
#[derive(Clone, Copy)]
#[repr(C)]
pub union async_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut ibv_wq,
    pub port_num: c_int,
}
