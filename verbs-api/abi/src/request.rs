//! Work requests, their members, completions, and the GRH of a received datagram.
//!
//! Names with `ibv_` are those of `verbs.h`. The others name what has no name there: the members
//! `tm` (`ops_tm`) and `add` of `ibv_ops_wr`, and the members of `ibv_send_wr`.

use super::*;

c_structs! {
    /// `imm_data` is a union in C: immediate data in network byte order, or the invalidated key
    /// (`invalidated_rkey`) in host byte order.
    ibv_wc(48, 8) {
        0 wr_id: u64, 8 status: u32, 12 opcode: u32, 16 vendor_err: u32, 20 byte_len: u32,
        24 imm_data: u32, 28 qp_num: u32, 32 src_qp: u32, 36 wc_flags: c_uint, 40 pkey_index: u16,
        42 slid: u16, 44 sl: u8, 45 dlid_path_bits: u8,
    }

    /// All fields are in network byte order.
    ibv_grh(40, 8) {
        0 version_tclass_flow: u32, 4 paylen: u16, 6 next_hdr: u8, 7 hop_limit: u8, 8 sgid: ibv_gid,
        24 dgid: ibv_gid,
    }

    /// An operation on the tags of a shared receive queue.
    ibv_ops_wr(72, 8) {
        0 wr_id: u64, 8 next: *mut Self, 16 opcode: c_int, 20 flags: c_int, 24 tm: ops_tm,
    }

    ops_tm(48, 8) { 0 unexpected_cnt: u32, 4 handle: u32, 8 add: ops_tm_add }

    ops_tm_add(40, 8) {
        0 recv_wr_id: u64, 8 sg_list: *const ibv_sge, 16 num_sge: c_int, 24 tag: u64, 32 mask: u64,
    }

    ibv_data_buf(16, 8) { 0 addr: *mut c_void, 8 length: usize }

    ibv_sge(16, 8) { 0 addr: u64, 8 length: u32, 12 lkey: u32 }

    wr_rdma(16, 8) { 0 remote_addr: u64, 8 rkey: u32 }

    wr_atomic(32, 8) { 0 remote_addr: u64, 8 compare_add: u64, 16 swap: u64, 24 rkey: u32 }

    wr_bind_mw(48, 8) { 0 mw: *mut ibv_mw, 8 rkey: u32, 16 bind_info: ibv_mw_bind_info }

    wr_ud(16, 8) { 0 ah: *mut ibv_ah, 8 remote_qpn: u32, 12 remote_qkey: u32 }

    /// `imm_data` is a union in C: immediate data in network byte order, or the key to invalidate
    /// (`invalidate_rkey`) in host byte order. `remote_srqn` is `qp_type.xrc.remote_srqn`.
    /// `bind_mw` is a member of a union with `tso`, which roxe does not read.
    ibv_send_wr(128, 8) {
        0 wr_id: u64, 8 next: *mut Self, 16 sg_list: *const ibv_sge, 24 num_sge: c_int,
        28 opcode: c_uint, 32 send_flags: c_uint, 36 imm_data: u32, 40 wr: wr_union,
        72 remote_srqn: u32, 80 bind_mw: wr_bind_mw,
    }

    ibv_recv_wr(32, 8) {
        0 wr_id: u64, 8 next: *mut Self, 16 sg_list: *const ibv_sge, 24 num_sge: c_int,
    }

    ibv_poll_cq_attr(4, 4) { 0 comp_mask: u32 }

    ibv_wc_tm_info(16, 8) { 0 tag: u64, 8 priv_: u32 }
}

/// The part of a send work request for its opcode or service; `wr` of `ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub union wr_union {
    pub rdma: wr_rdma,
    pub atomic: wr_atomic,
    pub ud: wr_ud,
}
