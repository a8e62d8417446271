//! Conversions between the structures of the kernel's uverbs interface and those of verbs.h, for
//! programs that talk to `rdma_cm` themselves. Copies field by field; touches nothing else.

use crate::abi::{copy_fields, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap, ibv_sa_path_rec};

/// `struct ib_uverbs_ah_attr` of `rdma/ib_user_verbs.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernAhAttr {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved1: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved2: u8,
}

/// `struct ib_uverbs_qp_attr` of `rdma/ib_user_verbs.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernQpAttr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernAhAttr,
    alt_ah_attr: KernAhAttr,
    cap: ibv_qp_cap,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

/// `struct ib_user_path_rec` of `rdma/ib_user_sa.h`; multi-byte fields in network byte order as in
/// [`ibv_sa_path_rec`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernPathRec {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = {
    assert!(size_of::<KernAhAttr>() == 32 && size_of::<KernQpAttr>() == 144 && size_of::<KernPathRec>() == 64);
};

fn ah_attr(src: &KernAhAttr) -> ibv_ah_attr {
    copy_fields!(ibv_ah_attr from src { dlid, sl, src_path_bits, static_rate, is_global, port_num } with {
        grh: copy_fields!(ibv_global_route from src { flow_label, sgid_index, hop_limit, traffic_class } with {
            dgid: ibv_gid { raw: src.dgid },
        }),
    })
}

fn qp_attr(src: &KernQpAttr) -> ibv_qp_attr {
    copy_fields!(ibv_qp_attr from src {
        qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, pkey_index, alt_pkey_index, en_sqd_async_notify,
        sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
        alt_port_num, alt_timeout,
    } with {
        qp_state: src.qp_state.cast_signed(),
        cur_qp_state: src.cur_qp_state.cast_signed(),
        path_mtu: src.path_mtu.cast_signed(),
        path_mig_state: src.path_mig_state.cast_signed(),
        ah_attr: ah_attr(&src.ah_attr),
        alt_ah_attr: ah_attr(&src.alt_ah_attr),
        rate_limit: 0,
    })
}

fn path_from_kern(src: &KernPathRec) -> ibv_sa_path_rec {
    copy_fields!(ibv_sa_path_rec from src {
        dlid, slid, flow_label, hop_limit, traffic_class, numb_path, pkey, sl, mtu_selector, rate_selector, rate,
        packet_life_time_selector, packet_life_time, preference,
    } with {
        dgid: ibv_gid { raw: src.dgid },
        sgid: ibv_gid { raw: src.sgid },
        raw_traffic: src.raw_traffic.cast_signed(),
        reversible: src.reversible.cast_signed(),
        mtu: src.mtu.to_le_bytes()[0],
    })
}

fn path_to_kern(src: &ibv_sa_path_rec) -> KernPathRec {
    copy_fields!(KernPathRec from src {
        dlid, slid, flow_label, hop_limit, traffic_class, numb_path, pkey, sl, mtu_selector, rate_selector, rate,
        packet_life_time_selector, packet_life_time, preference,
    } with {
        dgid: src.dgid.raw,
        sgid: src.sgid.raw,
        raw_traffic: src.raw_traffic.cast_unsigned(),
        reversible: src.reversible.cast_unsigned(),
        mtu: src.mtu.into(),
    })
}

/// Writes `convert(*src)` to `dst` unless either is NULL.
///
/// # Safety
/// Both are NULL or valid for their types.
unsafe fn copy<S: Copy, D>(dst: *mut D, src: *const S, convert: impl Fn(&S) -> D) {
    if dst.is_null() || src.is_null() {
        return;
    }
    // SAFETY: not NULL, and valid by this function's contract.
    unsafe { dst.write(convert(&src.read())) };
}

/// Exported functions, each of which copies a structure with one of the conversions above.
macro_rules! copies {
    ($($(#[$doc:meta])* $name:ident($destination:ty, $source:ty) = $convert:ident;)+) => {
        $(
            $(#[$doc])*
            pub(crate) unsafe extern "C" fn $name(dst: *mut $destination, src: *const $source) {
                // SAFETY: the C caller passes structures of these types.
                unsafe { copy(dst, src, $convert) };
            }
        )+
    };
}

copies! {
    /// Kernel AH attributes to verbs'.
    ibv_copy_ah_attr_from_kern(ibv_ah_attr, KernAhAttr) = ah_attr;
    /// Kernel QP attributes to verbs'.
    ibv_copy_qp_attr_from_kern(ibv_qp_attr, KernQpAttr) = qp_attr;
    /// Kernel path record to verbs'.
    ibv_copy_path_rec_from_kern(ibv_sa_path_rec, KernPathRec) = path_from_kern;
    /// Verbs path record to the kernel's.
    ibv_copy_path_rec_to_kern(KernPathRec, ibv_sa_path_rec) = path_to_kern;
}
