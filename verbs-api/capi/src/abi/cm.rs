//! Communication identifiers, their events, addresses and routes: the structures of `rdma/rdma_cma.h`, with those of
//! `infiniband/sa.h` and `infiniband/ib.h` that they name.

use super::*;
use libc::{sockaddr, sockaddr_storage, socklen_t};

#[repr(C)]
pub(crate) struct rdma_event_channel {
    pub(crate) fd: c_int,
}

/// The P_Key is in network byte order.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct rdma_ib_addr {
    pub(crate) sgid: ibv_gid,
    pub(crate) dgid: ibv_gid,
    pub(crate) pkey: u16,
}

/// Each address is a union over the families; the largest member stands for it here.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_addr {
    pub(crate) src: sockaddr_storage,
    pub(crate) dst: sockaddr_storage,
    pub(crate) ibaddr: rdma_ib_addr,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_route {
    pub(crate) addr: rdma_addr,
    pub(crate) path_rec: *mut ibv_sa_path_rec,
    pub(crate) num_paths: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_cm_id {
    pub(crate) verbs: *mut ibv_context,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) route: rdma_route,
    pub(crate) ps: c_int,
    pub(crate) port_num: u8,
    pub(crate) event: *mut rdma_cm_event,
    pub(crate) send_cq_channel: *mut ibv_comp_channel,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq_channel: *mut ibv_comp_channel,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) qp_type: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_conn_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_ud_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

/// Which member is valid follows from the port space of the identifier. Both start with the private data.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union rdma_event_param {
    pub(crate) conn: rdma_conn_param,
    pub(crate) ud: rdma_ud_param,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_cm_event {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listen_id: *mut rdma_cm_id,
    pub(crate) event: c_int,
    pub(crate) status: c_int,
    pub(crate) param: rdma_event_param,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_addrinfo {
    pub(crate) ai_flags: c_int,
    pub(crate) ai_family: c_int,
    pub(crate) ai_qp_type: c_int,
    pub(crate) ai_port_space: c_int,
    pub(crate) ai_src_len: socklen_t,
    pub(crate) ai_dst_len: socklen_t,
    pub(crate) ai_src_addr: *mut sockaddr,
    pub(crate) ai_dst_addr: *mut sockaddr,
    pub(crate) ai_src_canonname: *mut c_char,
    pub(crate) ai_dst_canonname: *mut c_char,
    pub(crate) ai_route_len: usize,
    pub(crate) ai_route: *mut c_void,
    pub(crate) ai_connect_len: usize,
    pub(crate) ai_connect: *mut c_void,
    pub(crate) ai_next: *mut Self,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_cm_join_mc_attr_ex {
    pub(crate) comp_mask: u32,
    pub(crate) join_flags: u32,
    pub(crate) addr: *mut sockaddr,
}

/// `struct ibv_sa_path_rec` of `infiniband/sa.h`: LIDs, flow label and P_Key in network byte order.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_sa_path_rec {
    pub(crate) dgid: ibv_gid,
    pub(crate) sgid: ibv_gid,
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) raw_traffic: c_int,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reversible: c_int,
    pub(crate) numb_path: u8,
    pub(crate) pkey: u16,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) mtu: u8,
    pub(crate) rate_selector: u8,
    pub(crate) rate: u8,
    pub(crate) packet_life_time_selector: u8,
    pub(crate) packet_life_time: u8,
    pub(crate) preference: u8,
}

/// As a subnet administrator sends it: all multi-byte fields in network byte order.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_path_record {
    pub(crate) service_id: u64,
    pub(crate) dgid: ibv_gid,
    pub(crate) sgid: ibv_gid,
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) flowlabel_hoplimit: u32,
    pub(crate) tclass: u8,
    pub(crate) reversible_numpath: u8,
    pub(crate) pkey: u16,
    pub(crate) qosclass_sl: u16,
    pub(crate) mtu: u8,
    pub(crate) rate: u8,
    pub(crate) packetlifetime: u8,
    pub(crate) preference: u8,
    pub(crate) reserved: [u8; 6],
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_path_data {
    pub(crate) flags: u32,
    pub(crate) reserved: u32,
    pub(crate) path: ibv_path_record,
}

/// Multi-byte fields in network byte order, but for the family and the scope.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct sockaddr_ib {
    pub(crate) sib_family: u16,
    pub(crate) sib_pkey: u16,
    pub(crate) sib_flowinfo: u32,
    pub(crate) sib_addr: [u8; 16],
    pub(crate) sib_sid: u64,
    pub(crate) sib_sid_mask: u64,
    pub(crate) sib_scope_id: u64,
}
