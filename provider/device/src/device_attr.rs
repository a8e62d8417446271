//! What a device is and takes, as `ibv_query_device` reports it: a table. Touches the
//! configuration.

use crate::device::Device;
use roxe_base::config::config;
use roxe_base::limits;
use roxe_base::weakest::{Weakness, has};

/// What the device is and takes, with the names of `struct ibv_device_attr`. Fields that are always
/// 0 are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Version of this software.
    pub fw_ver: &'static str,
    /// Host order.
    pub node_guid: u64,
    /// Host order.
    pub sys_image_guid: u64,
    /// Bytes.
    pub max_mr_size: u64,
    /// Page sizes that registration takes: all from 4096.
    pub page_size_cap: u64,
    /// Not a registered OUI: locally administered; or that of `ROXE_PROFILE`.
    pub vendor_id: u32,
    /// `ROXE_VENDOR_PART_ID`, or that of `ROXE_PROFILE`, or 1.
    pub vendor_part_id: u32,
    /// Revision.
    pub hw_ver: u32,
    /// Queue pairs of one process.
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// `enum ibv_device_cap_flags`.
    pub device_cap_flags: u32,
    /// Those of `device_cap_flags`, and those of `enum ib_uverbs_device_cap_flags` beyond 32 bits.
    pub device_cap_flags_ex: u64,
    /// Elements of a list.
    pub max_sge: u32,
    /// Elements of the list of a READ.
    pub max_sge_rd: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// READs and atomics a QP answers at a time.
    pub max_qp_rd_atom: u32,
    /// READs and atomics that all QPs together answer at a time.
    pub max_res_rd_atom: u32,
    /// READs and atomics a QP has under way.
    pub max_qp_init_rd_atom: u32,
    /// 2: `IBV_ATOMIC_GLOB`, atomics agree with the CPU's own; on the weakest legal card 1:
    /// `IBV_ATOMIC_HCA`.
    pub atomic_cap: u32,
    /// Multicast groups of one process.
    pub max_mcast_grp: u32,
    /// Queue pairs attached to one.
    pub max_mcast_qp_attach: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests of one.
    pub max_srq_wr: u32,
    /// Elements of a list in one.
    pub max_srq_sge: u32,
    /// P_Keys of a port.
    pub max_pkeys: u16,
    /// Time from a packet to its ACK, 4.096 µs · 2^code.
    pub local_ca_ack_delay: u8,
    /// Ports.
    pub phys_port_cnt: u8,
    /// Completion vectors.
    pub num_comp_vectors: u32,
    /// Bytes of inline data a QP may have.
    pub max_inline_data: u32,
    /// Bytes of device memory of one process.
    pub max_dm_size: u64,
}

/// CURR_QP_STATE_MOD, SYS_IMAGE_GUID, RC_RNR_NAK_GEN, SRQ_RESIZE, XRC, BAD_PKEY_CNTR,
/// BAD_QKEY_CNTR, AUTO_PATH_MIG, MEM_WINDOW, MEM_WINDOW_TYPE_2B, MEM_MGT_EXTENSIONS (to programs:
/// invalidation, local and by the peer); and of raw packets RAW_MULTI, RAW_IP_CSUM,
/// MANAGED_FLOW_STEERING, which need CAP_NET_RAW: who lacks it is told when it is used.
const CAP_FLAGS: u32 = 1 << 20
    | 1 << 7
    | 1 << 11
    | 1 << 12
    | 1 << 13
    | 1 << 1
    | 1 << 2
    | 1 << 4
    | 1 << 17
    | 1 << 24
    | 1 << 21
    | 1 << 3
    | 1 << 26
    | 1 << 29;

/// FLUSH_GLOBAL, ATOMIC_WRITE. There is no persistent memory, so no FLUSH_PERSISTENT.
const CAP_FLAGS_EX: u64 = 1 << 38 | 1 << 40;

impl Device {
    /// What it is and takes.
    pub fn attr(&self) -> DeviceAttr {
        let (most, config) = (limits::in_force(), config().ok());
        let profile = config.and_then(|config| config.profile);
        let part = config.and_then(|config| config.vendor_part_id);
        let part = part.or_else(|| profile.map(|card| card.vendor_part_id));
        DeviceAttr {
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: self.node_guid(),
            sys_image_guid: self.node_guid(),
            max_mr_size: limits::MAX_MR_SIZE,
            page_size_cap: !0xfff,
            vendor_id: profile.map_or(0x02_7278, |card| card.vendor_id),
            vendor_part_id: part.unwrap_or(1),
            hw_ver: 1,
            max_qp: most.max_qp,
            max_qp_wr: most.max_qp_wr,
            device_cap_flags: CAP_FLAGS,
            device_cap_flags_ex: CAP_FLAGS_EX | CAP_FLAGS as u64,
            max_sge: most.max_sge,
            max_sge_rd: most.max_sge_rd,
            max_cq: most.max_cq,
            max_cqe: most.max_cqe,
            max_mr: most.max_mr,
            max_mw: limits::MAX_MW,
            max_pd: most.max_pd,
            max_qp_rd_atom: limits::MAX_QP_RD_ATOM.into(),
            max_res_rd_atom: u32::from(limits::MAX_QP_RD_ATOM) * limits::MAX_QP,
            max_qp_init_rd_atom: limits::MAX_QP_RD_ATOM.into(),
            atomic_cap: if has(Weakness::ATOMICS) { 1 } else { 2 },
            max_mcast_grp: limits::MAX_MCAST_GRP,
            max_mcast_qp_attach: limits::MAX_MCAST_QP_ATTACH,
            max_ah: limits::MAX_AH,
            max_srq: most.max_srq,
            max_srq_wr: most.max_srq_wr,
            max_srq_sge: most.max_srq_sge,
            max_pkeys: 1,
            // 2^15 · 4.096 µs = 134 ms: a sleeping process on a loaded host.
            local_ca_ack_delay: 15,
            phys_port_cnt: limits::PORTS,
            num_comp_vectors: limits::NUM_COMP_VECTORS,
            max_inline_data: limits::max_inline_data(),
            max_dm_size: limits::MAX_DM_SIZE,
        }
    }
}
