//! Work requests, what they point to, and their completions.

use super::*;

/// `imm_data` holds immediate data in network byte order or an invalidated key in host order (`invalidated_rkey`).
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// Everything in network byte order.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_grh {
    pub(crate) version_tclass_flow: u32,
    pub(crate) paylen: u16,
    pub(crate) next_hdr: u8,
    pub(crate) hop_limit: u8,
    pub(crate) sgid: ibv_gid,
    pub(crate) dgid: ibv_gid,
}

/// An operation on the tags of a shared receive queue.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_ops_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) opcode: c_int,
    pub(crate) flags: c_int,
    pub(crate) tm: ops_tm,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ops_tm {
    pub(crate) unexpected_cnt: u32,
    pub(crate) handle: u32,
    pub(crate) add: ops_tm_add,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ops_tm_add {
    pub(crate) recv_wr_id: u64,
    pub(crate) sg_list: *const ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) tag: u64,
    pub(crate) mask: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_data_buf {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct wr_atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct wr_bind_mw {
    pub(crate) mw: *mut ibv_mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct wr_ud {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// The part of a send work request that depends on its opcode.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union wr_union {
    pub(crate) rdma: wr_rdma,
    pub(crate) atomic: wr_atomic,
    pub(crate) ud: wr_ud,
}

/// `imm_data` holds immediate data in network byte order or the key to invalidate in host order (`invalidate_rkey`).
/// `bind_mw` is a member of a union with `tso`, which nobody here reads.
#[repr(C)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *const ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    pub(crate) imm_data: u32,
    pub(crate) wr: wr_union,
    pub(crate) remote_srqn: u32,
    pub(crate) bind_mw: wr_bind_mw,
}

#[repr(C)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *const ibv_sge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
pub(crate) struct ibv_poll_cq_attr {
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_wc_tm_info {
    pub(crate) tag: u64,
    pub(crate) priv_: u32,
}
