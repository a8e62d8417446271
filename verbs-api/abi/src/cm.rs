//! Communication identifiers, their events, addresses and routes: the structures of
//! `rdma/rdma_cma.h`, and those of `infiniband/sa.h` and `infiniband/ib.h` that they contain.

use super::*;
use libc::{sockaddr, sockaddr_storage, socklen_t};

c_structs! {
    rdma_event_channel(4, 4) { 0 fd: c_int }

    /// The P_Key is in network byte order.
    rdma_ib_addr(40, 8) { 0 sgid: ibv_gid, 16 dgid: ibv_gid, 32 pkey: u16 }

    /// Each address is a union over the families; declared here as its largest member.
    rdma_addr(296, 8) {
        0 src: sockaddr_storage, 128 dst: sockaddr_storage, 256 ibaddr: rdma_ib_addr,
    }

    rdma_route(312, 8) {
        0 addr: rdma_addr, 296 path_rec: *mut ibv_sa_path_rec, 304 num_paths: c_int,
    }

    rdma_cm_id(416, 8) {
        0 verbs: *mut ibv_context, 8 channel: *mut rdma_event_channel, 16 context: *mut c_void,
        24 qp: *mut ibv_qp, 32 route: rdma_route, 344 ps: c_int, 348 port_num: u8,
        352 event: *mut rdma_cm_event, 360 send_cq_channel: *mut ibv_comp_channel,
        368 send_cq: *mut ibv_cq, 376 recv_cq_channel: *mut ibv_comp_channel,
        384 recv_cq: *mut ibv_cq, 392 srq: *mut ibv_srq, 400 pd: *mut ibv_pd, 408 qp_type: c_int,
    }

    rdma_conn_param(24, 8) {
        0 private_data: *const c_void, 8 private_data_len: u8, 9 responder_resources: u8,
        10 initiator_depth: u8, 11 flow_control: u8, 12 retry_count: u8, 13 rnr_retry_count: u8,
        14 srq: u8, 16 qp_num: u32,
    }

    rdma_ud_param(56, 8) {
        0 private_data: *const c_void, 8 private_data_len: u8, 16 ah_attr: ibv_ah_attr,
        48 qp_num: u32, 52 qkey: u32,
    }

    rdma_cm_event(80, 8) {
        0 id: *mut rdma_cm_id, 8 listen_id: *mut rdma_cm_id, 16 event: c_int, 20 status: c_int,
        24 param: rdma_event_param,
    }

    rdma_addrinfo(96, 8) {
        0 ai_flags: c_int, 4 ai_family: c_int, 8 ai_qp_type: c_int, 12 ai_port_space: c_int,
        16 ai_src_len: socklen_t, 20 ai_dst_len: socklen_t, 24 ai_src_addr: *mut sockaddr,
        32 ai_dst_addr: *mut sockaddr, 40 ai_src_canonname: *mut c_char,
        48 ai_dst_canonname: *mut c_char, 56 ai_route_len: usize, 64 ai_route: *mut c_void,
        72 ai_connect_len: usize, 80 ai_connect: *mut c_void, 88 ai_next: *mut Self,
    }

    rdma_cm_join_mc_attr_ex(16, 8) {
        0 comp_mask: u32, 4 join_flags: u32, 8 addr: *mut sockaddr,
    }

    /// `struct ibv_sa_path_rec` of `infiniband/sa.h`: LIDs, flow label and P_Key in network byte
    /// order.
    ibv_sa_path_rec(64, 8) {
        0 dgid: ibv_gid, 16 sgid: ibv_gid, 32 dlid: u16, 34 slid: u16, 36 raw_traffic: c_int,
        40 flow_label: u32, 44 hop_limit: u8, 45 traffic_class: u8, 48 reversible: c_int,
        52 numb_path: u8, 54 pkey: u16, 56 sl: u8, 57 mtu_selector: u8, 58 mtu: u8,
        59 rate_selector: u8, 60 rate: u8, 61 packet_life_time_selector: u8,
        62 packet_life_time: u8, 63 preference: u8,
    }

    /// The record of a subnet administrator: all multi-byte fields are in network byte order.
    ibv_path_record(64, 8) {
        0 service_id: u64, 8 dgid: ibv_gid, 24 sgid: ibv_gid, 40 dlid: u16, 42 slid: u16,
        44 flowlabel_hoplimit: u32, 48 tclass: u8, 49 reversible_numpath: u8, 50 pkey: u16,
        52 qosclass_sl: u16, 54 mtu: u8, 55 rate: u8, 56 packetlifetime: u8, 57 preference: u8,
        58 reserved: [u8; 6],
    }

    ibv_path_data(72, 8) { 0 flags: u32, 4 reserved: u32, 8 path: ibv_path_record }

    /// Multi-byte fields are in network byte order, except the family and the scope.
    #[repr(align(8))]
    sockaddr_ib(48, 8) {
        0 sib_family: u16, 2 sib_pkey: u16, 4 sib_flowinfo: u32, 8 sib_addr: [u8; 16],
        24 sib_sid: u64, 32 sib_sid_mask: u64, 40 sib_scope_id: u64,
    }
}

/// The port space of the identifier selects the valid member, `conn` or `ud`, which both start with
/// the private data. `arg` is valid for events that the program writes.
#[derive(Clone, Copy)]
#[repr(C)]
pub union rdma_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    pub arg: u64,
}
