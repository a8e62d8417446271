//! A [`Device`]: a network interface as an RDMA card, and its attributes.

use crate::weakest;
use roxe_base::config::config;
use roxe_base::error::Error;
use roxe_base::limits::{self, MAX_DM_SIZE};
use roxe_base::uses::Quotas;
use roxe_observe::adapter::Adapter;
use roxe_observe::port::{GidEntry, Netdev, PortAttr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An RDMA device: a network interface with its addresses.
#[derive(Debug)]
pub struct Device {
    adapter: Arc<Adapter>,
    dm_budget: Arc<DmBudget>,
    quotas: Quotas,
}

impl Device {
    pub(crate) fn new(index: u32, netdev: &Netdev) -> Self {
        let adapter = Arc::new(Adapter::new(index, netdev));
        Self { adapter, dm_budget: Arc::default(), quotas: Quotas::default() }
    }

    pub(crate) fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// Returns the name: `roxe0`, `roxe1`, ..., or the names of the profile or of
    /// `ROXE_DEVICE_NAME`.
    pub fn name(&self) -> &str {
        self.adapter.name()
    }

    /// Returns the position in the list of devices, from 0.
    pub fn index(&self) -> u32 {
        self.adapter.index()
    }

    /// Returns the name of the network interface.
    pub fn netdev(&self) -> &str {
        self.adapter.netdev()
    }

    /// Returns the index of the network interface.
    pub fn ifindex(&self) -> u32 {
        self.adapter.ifindex()
    }

    /// Returns the node GUID, in host byte order; never 0.
    pub fn node_guid(&self) -> u64 {
        self.adapter.node_guid()
    }

    /// Returns the attributes of the port.
    pub fn port_attr(&self) -> PortAttr {
        self.adapter.port_attr()
    }

    /// Returns the used entries of the GID table, in order.
    pub fn gid_entries(&self) -> Vec<GidEntry> {
        let entry = |(index, gid, is_v1)| GidEntry { index, port: 1, gid, ndev_ifindex: self.ifindex(), is_v1 };
        self.adapter.gids().shown().map(entry).collect()
    }

    /// Returns the attributes and limits of the device.
    pub fn attr(&self) -> DeviceAttr {
        let (limits, config) = (limits::in_force(), config().ok());
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
            max_qp: limits.max_qp,
            max_qp_wr: limits.max_qp_wr,
            device_cap_flags: CAP_FLAGS,
            device_cap_flags_ex: CAP_FLAGS_EX | CAP_FLAGS as u64,
            max_sge: limits.max_sge,
            max_sge_rd: limits.max_sge_rd,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_mr: limits.max_mr,
            max_mw: limits::MAX_MW,
            max_pd: limits.max_pd,
            max_qp_rd_atom: limits::MAX_QP_RD_ATOM.into(),
            max_res_rd_atom: u32::from(limits::MAX_QP_RD_ATOM) * limits::MAX_QP,
            max_qp_init_rd_atom: limits::MAX_QP_RD_ATOM.into(),
            atomic_cap: if weakest::splits_atomics() { 1 } else { 2 },
            max_mcast_grp: limits::MAX_MCAST_GRP,
            max_mcast_qp_attach: limits::MAX_MCAST_QP_ATTACH,
            max_ah: limits::MAX_AH,
            max_srq: limits.max_srq,
            max_srq_wr: limits.max_srq_wr,
            max_srq_sge: limits.max_srq_sge,
            max_pkeys: 1,
            // 2^15 · 4.096 µs = 134 ms: a sleeping process on a loaded host.
            local_ca_ack_delay: 15,
            phys_port_cnt: limits::PORTS,
            num_comp_vectors: limits::NUM_COMP_VECTORS,
            max_inline_data: limits::max_inline_data(),
            max_dm_size: MAX_DM_SIZE,
        }
    }

    pub(crate) fn dm_budget(&self) -> &Arc<DmBudget> {
        &self.dm_budget
    }

    pub(crate) fn quotas(&self) -> &Quotas {
        &self.quotas
    }
}

/// Attributes and limits, with the names of `struct ibv_device_attr`; fields that are always 0 are
/// left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Version of this software.
    pub fw_ver: &'static str,
    /// Node GUID, in host byte order.
    pub node_guid: u64,
    /// System image GUID, in host byte order.
    pub sys_image_guid: u64,
    /// Largest memory region, bytes.
    pub max_mr_size: u64,
    /// Page sizes for registration: all from 4096.
    pub page_size_cap: u64,
    /// Vendor ID: that of `ROXE_PROFILE`, or a locally administered one.
    pub vendor_id: u32,
    /// `ROXE_VENDOR_PART_ID`, or that of `ROXE_PROFILE`, or 1.
    pub vendor_part_id: u32,
    /// Hardware revision.
    pub hw_ver: u32,
    /// Queue pairs of one process.
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// `enum ibv_device_cap_flags`.
    pub device_cap_flags: u32,
    /// Flags of `device_cap_flags`, and of `enum ib_uverbs_device_cap_flags` beyond 32 bits.
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
    /// READs and atomics that a QP serves at a time.
    pub max_qp_rd_atom: u32,
    /// READs and atomics that all QPs together serve at a time.
    pub max_res_rd_atom: u32,
    /// READs and atomics that a QP has outstanding.
    pub max_qp_init_rd_atom: u32,
    /// 2 (`IBV_ATOMIC_GLOB`): atomic with respect to the CPU; 1 (`IBV_ATOMIC_HCA`) on the weakest
    /// legal card.
    pub atomic_cap: u32,
    /// Multicast groups of one process.
    pub max_mcast_grp: u32,
    /// Queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests of one shared receive queue.
    pub max_srq_wr: u32,
    /// Elements of a list in a shared receive queue.
    pub max_srq_sge: u32,
    /// P_Keys of the port.
    pub max_pkeys: u16,
    /// Delay from a packet to its acknowledgement, 4.096 µs · 2^code.
    pub local_ca_ack_delay: u8,
    /// Number of ports.
    pub phys_port_cnt: u8,
    /// Number of completion vectors.
    pub num_comp_vectors: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
    /// Bytes of device memory per process.
    pub max_dm_size: u64,
}

/// CURR_QP_STATE_MOD, SYS_IMAGE_GUID, RC_RNR_NAK_GEN, SRQ_RESIZE, XRC, BAD_PKEY_CNTR,
/// BAD_QKEY_CNTR, AUTO_PATH_MIG, MEM_WINDOW, MEM_WINDOW_TYPE_2B, MEM_MGT_EXTENSIONS (that is,
/// invalidation).
const CAP_FLAGS: u32 =
    1 << 20 | 1 << 7 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 1 | 1 << 2 | 1 << 4 | 1 << 17 | 1 << 24 | 1 << 21 | RAW_FLAGS;
/// RAW_MULTI, RAW_IP_CSUM, MANAGED_FLOW_STEERING, which need CAP_NET_RAW when they are used.
const RAW_FLAGS: u32 = 1 << 3 | 1 << 26 | 1 << 29;

/// FLUSH_GLOBAL, ATOMIC_WRITE. Without persistent memory there is no FLUSH_PERSISTENT.
const CAP_FLAGS_EX: u64 = 1 << 38 | 1 << 40;

#[derive(Debug, Default)]
pub(crate) struct DmBudget(AtomicU64);

impl DmBudget {
    /// Takes `length` bytes. Fails with ENOMEM if they are not left.
    pub(crate) fn take(&self, length: u64) -> Result<(), Error> {
        let after = |used: u64| used.checked_add(length).filter(|used| *used <= MAX_DM_SIZE);
        let used = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        used.map(drop).map_err(|used| {
            let left = MAX_DM_SIZE.saturating_sub(used);
            Error::new(libc::ENOMEM, format!("{left} bytes of device memory are left; free some, or request less"))
        })
    }

    pub(crate) fn give_back(&self, length: u64) {
        self.0.fetch_sub(length, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
