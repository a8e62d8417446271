//! Conversions between structures of the kernel's uverbs interface and those of `verbs.h`, for
//! programs that use the kernel's `rdma_cm` through its device file.

use crate::abi::{
    copy_fields, ib_user_path_rec, ib_uverbs_ah_attr, ib_uverbs_qp_attr, ibv_ah_attr, ibv_gid, ibv_global_route,
    ibv_qp_attr, ibv_sa_path_rec,
};

fn ah_attr(src: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    copy_fields!(ibv_ah_attr from src { dlid, sl, src_path_bits, static_rate, is_global, port_num } with {
        grh: copy_fields!(ibv_global_route from src { flow_label, sgid_index, hop_limit, traffic_class } with {
            dgid: ibv_gid { raw: src.dgid },
        }),
    })
}

fn qp_attr(src: &ib_uverbs_qp_attr) -> ibv_qp_attr {
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

fn path_from_kern(src: &ib_user_path_rec) -> ibv_sa_path_rec {
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

fn path_to_kern(src: &ibv_sa_path_rec) -> ib_user_path_rec {
    copy_fields!(ib_user_path_rec from src {
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
    // SAFETY: not NULL; the caller guarantees that both are valid.
    unsafe { dst.write(convert(&src.read())) };
}

/// Declares exported functions that copy a structure by one of the conversions above.
macro_rules! copies {
    ($($(#[$doc:meta])* $name:ident($destination:ty, $source:ty) = $convert:ident;)+) => {
        $(
            $(#[$doc])*
            pub(crate) unsafe extern "C" fn $name(dst: *mut $destination, src: *const $source) {
                // SAFETY: the program passes NULL or structures that are valid during the call.
                unsafe { copy(dst, src, $convert) };
            }
        )+
    };
}

copies! {
    ibv_copy_ah_attr_from_kern(ibv_ah_attr, ib_uverbs_ah_attr) = ah_attr;
    ibv_copy_qp_attr_from_kern(ibv_qp_attr, ib_uverbs_qp_attr) = qp_attr;
    ibv_copy_path_rec_from_kern(ibv_sa_path_rec, ib_user_path_rec) = path_from_kern;
    ibv_copy_path_rec_to_kern(ib_user_path_rec, ibv_sa_path_rec) = path_to_kern;
}
