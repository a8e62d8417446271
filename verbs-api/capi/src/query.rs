//! Queries of the device and its port.

use crate::abi::*;
use crate::device::text;
use crate::errno::{EINVAL, Errno, Result, minus_one, negative, out_of_range, required, status, zero};
use crate::objects::context;
use crate::wq;
use core::ffi::c_int;
use core::mem::offset_of;
use roxe_provider::{DeviceAttr, GidEntry, HashFields, PortAttr, limits};
use roxe_transport::qp::MIN_RATE_KBPS;

/// `IBV_GID_TYPE_ROCE_V1` and `IBV_GID_TYPE_ROCE_V2`, in a table entry.
const GID_TYPE_ROCE_V1: u32 = 1;
const GID_TYPE_ROCE_V2: u32 = 2;
/// The private enumeration of `ibv_query_gid_type`: 0 is IB or RoCE v1, 1 is RoCE v2.
const SYSFS_GID_TYPE_V1: c_int = 0;
const SYSFS_GID_TYPE_V2: c_int = 1;
/// `IBV_VALUES_MASK_RAW_CLOCK`.
const RAW_CLOCK: u32 = 1;
/// Completion timestamps count nanoseconds: a clock of 1 GHz, in kHz.
const CORE_CLOCK_KHZ: u64 = 1_000_000;
/// On-demand paging is supported everywhere, because the kernel handles page faults of the device:
/// `IBV_ODP_SUPPORT` and `_IMPLICIT`. For each service, SEND, RECV, WRITE, READ, ATOMIC, SRQ_RECV,
/// FLUSH and ATOMIC_WRITE from bit 0 on, as far as the service has them.
const ODP_CAPS: ibv_odp_caps =
    ibv_odp_caps { general_caps: 0b11, rc_odp_caps: 0b1111_1111, uc_odp_caps: 0b10_0111, ud_odp_caps: 0b10_0011 };
/// On-demand paging of XRC, as in [`ODP_CAPS`]. It has no RECV, because all its receives are
/// shared.
const XRC_ODP_CAPS: u32 = 0b11_1101;
/// Receive-side scaling: the device hashes raw packets (`IBV_QPT_RAW_PACKET`) by addresses and
/// ports.
const RSS_CAPS: ibv_rss_caps = ibv_rss_caps {
    supported_qpts: 1 << 8,
    max_rwq_indirection_tables: limits::MAX_RWQ_TABLES,
    max_rwq_indirection_table_size: limits::MAX_RWQ_TABLE,
    rx_hash_fields_mask: HashFields::all().bits(),
    rx_hash_function: wq::TOEPLITZ,
};
/// `struct ibv_tm_caps`: bytes of the longest rendezvous header, tags of a queue, `IBV_TM_CAP_RC`,
/// outstanding operations, list elements of a tag.
const TM_CAPS: [u32; 5] = [limits::MAX_TM_RNDV_HDR, limits::MAX_TM_TAGS, 1, limits::MAX_TM_OPS, limits::MAX_TM_SGE];
/// `IBV_RAW_PACKET_CAP_IP_CSUM`.
const RAW_PACKET_CAPS: u32 = 1 << 2;
/// QP types with a rate limit, `1 << IBV_QPT_*`: RC, UC, UD, raw packet, both ends of XRC.
const PACED_QPTS: u32 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 10;
/// Bytes of `ibv_port_attr` for the exported `ibv_query_port`, which is older than the last field.
const OLD_PORT_ATTR_LEN: usize = offset_of!(ibv_port_attr, port_cap_flags2);

/// Writes `value` to the program's structure of `size` bytes, which is older or newer than `T`:
/// cuts a longer value, and zeroes the rest of a longer structure.
///
/// # Safety
/// `dst` is NULL or points to `size` writable bytes.
unsafe fn write_prefix<D, T: Copy>(dst: *mut D, size: usize, value: &T) -> Result<()> {
    if dst.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: the caller guarantees `size` writable bytes; the copy exceeds neither these nor
    // `value`.
    unsafe {
        dst.cast::<u8>().write_bytes(0, size);
        dst.cast::<u8>().copy_from_nonoverlapping((&raw const *value).cast(), size.min(size_of::<T>()));
    }
    Ok(())
}

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn device_attr(attr: &DeviceAttr) -> ibv_device_attr {
    copy_fields!(ibv_device_attr from attr {
        max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, device_cap_flags, max_pkeys, local_ca_ack_delay,
        phys_port_cnt,
    } via int {
        max_qp, max_qp_wr, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_res_rd_atom,
        max_qp_init_rd_atom, atomic_cap, max_mw, max_mcast_grp, max_mcast_qp_attach, max_ah, max_srq, max_srq_wr,
        max_srq_sge,
    } with {
        fw_ver: text(attr.fw_ver),
        node_guid: attr.node_guid.to_be(),
        sys_image_guid: attr.sys_image_guid.to_be(),
        max_raw_ethy_qp: int(attr.max_qp),
        max_total_mcast_qp_attach: int(attr.max_mcast_grp * attr.max_mcast_qp_attach),
        ..ibv_device_attr::ZERO
    })
}

fn device_attr_ex(attr: &DeviceAttr) -> ibv_device_attr_ex {
    ibv_device_attr_ex {
        orig_attr: device_attr(attr),
        odp_caps: ODP_CAPS,
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: CORE_CLOCK_KHZ,
        device_cap_flags_ex: attr.device_cap_flags_ex,
        rss_caps: RSS_CAPS,
        // The limit is that of queue pairs, because a work queue is half of one.
        max_wq_type_rq: attr.max_qp,
        packet_pacing_caps: [MIN_RATE_KBPS, u32::MAX, PACED_QPTS],
        raw_packet_caps: RAW_PACKET_CAPS,
        tm_caps: TM_CAPS,
        cq_mod_caps: [limits::MAX_CQ_MODERATION; 2],
        max_dm_size: attr.max_dm_size,
        xrc_odp_caps: XRC_ODP_CAPS,
        phys_port_cnt_ex: attr.phys_port_cnt.into(),
        ..ibv_device_attr_ex::ZERO
    }
}

fn port_attr(attr: &PortAttr) -> ibv_port_attr {
    copy_fields!(ibv_port_attr from attr {
        port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, max_vl_num, active_width, active_speed,
        phys_state, link_layer, flags,
    } via int { state, gid_tbl_len } with {
        max_mtu: attr.max_mtu as c_int,
        active_mtu: attr.active_mtu as c_int,
        ..ibv_port_attr::ZERO
    })
}

fn gid_entry(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.0 },
        gid_index: entry.index.into(),
        port_num: entry.port.into(),
        gid_type: if entry.is_v1 { GID_TYPE_ROCE_V1 } else { GID_TYPE_ROCE_V2 },
        ndev_ifindex: entry.ndev_ifindex,
    }
}

pub(crate) unsafe extern "C" fn ibv_query_device(handle: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the program passes NULL or a structure that is valid during the call.
    status(|| unsafe {
        write_prefix(attr, size_of::<ibv_device_attr>(), &device_attr(&context(handle)?.device().attr()))
    })
}

/// `man ibv_query_device_ex`. `size` is the size of the program's structure.
pub(crate) unsafe extern "C" fn query_device_ex(
    handle: *mut ibv_context,
    comp_mask: *const u32,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes NULL or an input structure that is valid during the call; this
        // is its only field.
        let unknown_input = !comp_mask.is_null() && unsafe { comp_mask.read() } != 0;
        if unknown_input || size < size_of::<ibv_device_attr>() {
            return Err(EINVAL);
        }
        // SAFETY: the program passes NULL or a structure of `size` bytes that is valid during the
        // call.
        unsafe { write_prefix(attr, size, &device_attr_ex(&context(handle)?.device().attr())) }
    })
}

/// `man ibv_query_port`, for programs compiled with old headers.
pub(crate) unsafe extern "C" fn ibv_query_port(handle: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the program passes NULL or a structure of the old headers, which has this many bytes.
    unsafe { query_port(handle, port, attr, OLD_PORT_ATTR_LEN) }
}

/// `man ibv_query_port`. `size` is the size of the program's structure.
pub(crate) unsafe extern "C" fn query_port(
    handle: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: the program passes NULL or a structure of `size` bytes that is valid during the call.
    status(|| unsafe { write_prefix(attr, size, &port_attr(&context(handle)?.port_attr(port)?)) })
}

/// `man ibv_query_port_speed`: writes the number of lanes times the speed of one lane, in units of
/// 100 Mbit/s.
pub(crate) unsafe extern "C" fn ibv_query_port_speed(handle: *mut ibv_context, port: u32, speed: *mut u64) -> c_int {
    status(|| {
        let attr = context(handle)?.port_attr(u8::try_from(port).map_err(|_| out_of_range("port_num", port, "1"))?)?;
        // IBA §14.2.5.6, PortInfo: LinkWidthActive, LinkSpeedActive, LinkSpeedExtActive.
        let lanes = if attr.active_width == 2 { 4 } else { 1 };
        let lane_speed = match attr.active_speed {
            1 => 25,
            4 => 100,
            _ => 250,
        };
        *required!(mut speed) = lanes * lane_speed;
        Ok(())
    })
}

/// `man ibv_query_gid`: writes zeros for an empty entry.
pub(crate) unsafe extern "C" fn ibv_query_gid(
    handle: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    zero(|| {
        let index = usize::try_from(index).map_err(|_| out_of_range("index", index, "0 to gid_tbl_len of the port"))?;
        let found = ibv_gid { raw: context(handle)?.gid(port, index)?.0 };
        // SAFETY: the program passes NULL or a GID that is valid during the call.
        unsafe { write_prefix(gid, size_of::<ibv_gid>(), &found) }
    })
}

/// Returns the GID table's entry at `index`. Fails with ENODATA if it is empty, EINVAL outside the
/// table.
fn find_entry(handle: *mut ibv_context, port: u32, index: u32) -> Result<GidEntry> {
    let context = context(handle)?;
    let port = u8::try_from(port).map_err(|_| out_of_range("port_num", port, "1"))?;
    context.gid(port, usize::try_from(index).map_err(|_| EINVAL)?)?;
    let matches = |entry: &GidEntry| entry.port == port && u32::from(entry.index) == index;
    context.gid_entries().into_iter().find(matches).ok_or(Errno(libc::ENODATA))
}

/// `man ibv_query_gid_ex`. `size` is the size of the program's entry.
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    handle: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    status(|| {
        if flags != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the program passes NULL or an entry of `size` bytes that is valid during the
        // call.
        unsafe { write_prefix(entry, size, &gid_entry(&find_entry(handle, port, index)?)) }
    })
}

/// `man ibv_query_gid_table`: returns the number of entries, or a negative errno; -EINVAL if the
/// array is too short.
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    handle: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    size: usize,
) -> isize {
    let count = negative(|| {
        let found = context(handle)?.gid_entries();
        if flags != 0 || found.len() > max_entries || entries.is_null() {
            return Err(EINVAL);
        }
        for (i, entry) in found.iter().enumerate() {
            let slot = entries.cast::<u8>().wrapping_add(i.wrapping_mul(size));
            // SAFETY: the program passes an array of `max_entries` entries of `size` bytes, valid
            // during the call; `i` is below `max_entries`.
            unsafe { write_prefix(slot, size, &gid_entry(entry)) }?;
        }
        c_int::try_from(found.len()).map_err(|_| EINVAL)
    });
    isize::try_from(count).unwrap_or_default()
}

/// Writes the type of a GID, for old programs (`ibv_devinfo`, pyverbs); 0 for an empty entry.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    handle: *mut ibv_context,
    port: u8,
    index: u32,
    gid_type: *mut c_int,
) -> c_int {
    zero(|| {
        let found = match find_entry(handle, port.into(), index) {
            Ok(entry) if !entry.is_v1 => SYSFS_GID_TYPE_V2,
            Ok(_) | Err(Errno(libc::ENODATA)) => SYSFS_GID_TYPE_V1,
            Err(error) => return Err(error),
        };
        // SAFETY: the program passes NULL or a variable that is valid during the call.
        unsafe { write_prefix(gid_type, size_of::<c_int>(), &found) }
    })
}

/// `man ibv_query_pkey`: writes the P_Key in network byte order.
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    handle: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    zero(|| {
        let index = usize::try_from(index).map_err(|_| EINVAL)?;
        let found = context(handle)?.pkey(port, index)?.0.to_be();
        // SAFETY: the program passes NULL or a variable that is valid during the call.
        unsafe { write_prefix(pkey, size_of::<u16>(), &found) }
    })
}

/// `man ibv_get_pkey_index`: `pkey` is in network byte order.
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(handle: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    minus_one(|| {
        let context = context(handle)?;
        let len = context.port_attr(port)?.pkey_tbl_len;
        let matches =
            |index: &u16| context.pkey(port, (*index).into()).is_ok_and(|found| found.0 == u16::from_be(pkey));
        (0..len).find(matches).map(c_int::from).ok_or(EINVAL)
    })
}

/// `man ibv_query_rt_values_ex`: writes the current time of the clock of completion timestamps.
pub(crate) unsafe extern "C" fn query_rt_values(handle: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    status(|| {
        context(handle)?;
        if values.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: not NULL; the program passes a structure that is valid during the call.
        let wanted = unsafe { (&raw const (*values).comp_mask).read() };
        if wanted & !RAW_CLOCK != 0 {
            return Err(EINVAL);
        }
        let now = roxe_provider::now().0;
        let nanos_per_s = 1_000_000_000;
        let raw_clock = libc::timespec {
            tv_sec: i64::try_from(now / nanos_per_s).unwrap_or(i64::MAX),
            tv_nsec: libc::c_long::try_from(now % nanos_per_s).unwrap_or_default(),
        };
        // SAFETY: not NULL; the program passes a structure that is valid during the call.
        unsafe { values.write(ibv_values_ex { comp_mask: RAW_CLOCK & wanted, raw_clock }) };
        Ok(())
    })
}
