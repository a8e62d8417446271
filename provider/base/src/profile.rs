//! Cards whose limits the device can have (`ROXE_PROFILE`), so that a program which requests too
//! much fails here as it would there.
//!
//! Every number is one that a card printed, or stands in its driver: `source` says where that was
//! published. Limits never published (room for inline data, for instance) are not in the table, and
//! roxe's own limit is in force.

use roxe_transport::wr::WcStatus;

/// The known limits of a card; `None` if unknown. The smaller of the card's and roxe's limit is in
/// force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The value of `ROXE_PROFILE`.
    pub name: &'static str,
    /// Address of the published output of `ibv_devinfo -v`, or of the driver.
    pub source: &'static str,
    /// `vendor_id`.
    pub vendor_id: u32,
    /// `vendor_part_id`.
    pub vendor_part_id: u32,
    /// `max_qp`.
    pub max_qp: Option<u32>,
    /// `max_qp_wr`.
    pub max_qp_wr: Option<u32>,
    /// `max_sge`.
    pub max_sge: Option<u32>,
    /// `max_sge_rd`.
    pub max_sge_rd: Option<u32>,
    /// `max_cq`.
    pub max_cq: Option<u32>,
    /// `max_cqe`.
    pub max_cqe: Option<u32>,
    /// `max_mr`.
    pub max_mr: Option<u32>,
    /// `max_pd`.
    pub max_pd: Option<u32>,
    /// `max_srq`.
    pub max_srq: Option<u32>,
    /// `max_srq_wr`.
    pub max_srq_wr: Option<u32>,
    /// `max_srq_sge`.
    pub max_srq_sge: Option<u32>,
    /// Name of the first device.
    pub device_name: &'static str,
    /// `vendor_err` of error completions, as far as it is known.
    pub vendor_errs: &'static [VendorErrOf],
}

impl Profile {
    /// Returns the `vendor_err` of a completion with an error; `None` if it is unknown.
    pub fn vendor_err(&self, is_receive: bool, status: WcStatus) -> Option<u32> {
        let mut known = self.vendor_errs.iter();
        known.find(|known| (known.is_receive, known.status) == (is_receive, status)).map(|known| known.vendor_err)
    }
}

/// `vendor_err` of the completions with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorErrOf {
    /// The status.
    pub status: WcStatus,
    /// True for receives, false for send requests.
    pub is_receive: bool,
    /// The `vendor_err` that the card reports.
    pub vendor_err: u32,
    /// Addresses of published messages with this status and value.
    pub source: &'static str,
}

const fn of_send(status: WcStatus, vendor_err: u32, source: &'static str) -> VendorErrOf {
    VendorErrOf { status, is_receive: false, vendor_err, source }
}

/// Values that ConnectX cards with the driver mlx5 reported.
const MLX5_ERRS: &[VendorErrOf] = &[
    of_send(
        WcStatus::LocProtErr,
        0x51,
        "https://github.com/openucx/ucx/issues/7774, https://github.com/NVIDIA/nccl/issues/214",
    ),
    of_send(WcStatus::RemInvReqErr, 0x8a, "https://github.com/charmplusplus/charm/issues/2532"),
    of_send(WcStatus::RemAccessErr, 0x88, "https://github.com/openucx/ucx/issues/1569"),
    of_send(
        WcStatus::RemOpErr,
        0x89,
        "https://github.com/openucx/ucx/issues/5472, https://github.com/NVIDIA/nccl/issues/214",
    ),
    of_send(
        WcStatus::RetryExcErr,
        0x81,
        "https://github.com/openucx/ucx/issues/6000, https://github.com/NVIDIA/nccl/issues/426",
    ),
    VendorErrOf {
        status: WcStatus::WrFlushErr,
        is_receive: true,
        vendor_err: 0xf9,
        source: "https://github.com/linux-nvme/nvme-cli/issues/3268",
    },
];

/// `vendor_id` of the cards of Mellanox, now NVIDIA.
pub const MELLANOX: u32 = 0x02c9;

const CONNECTX: Profile = Profile { device_name: "mlx5_0", vendor_errs: MLX5_ERRS, vendor_id: MELLANOX, ..UNKNOWN };

const UNKNOWN: Profile = Profile {
    name: "",
    source: "",
    vendor_id: 0,
    vendor_part_id: 0,
    max_qp: None,
    max_qp_wr: None,
    max_sge: None,
    max_sge_rd: None,
    max_cq: None,
    max_cqe: None,
    max_mr: None,
    max_pd: None,
    max_srq: None,
    max_srq_wr: None,
    max_srq_sge: None,
    device_name: "",
    vendor_errs: &[],
};

/// All profiles.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "cx3",
        source: "https://github.com/claudebarthels/infinity/issues/5",
        vendor_id: MELLANOX,
        vendor_part_id: 4099,
        max_qp: Some(131_000),
        max_qp_wr: Some(16_351),
        max_sge: Some(32),
        max_sge_rd: Some(30),
        max_cq: Some(65_408),
        max_cqe: Some(4_194_303),
        max_mr: Some(524_032),
        max_pd: Some(32_764),
        max_srq: Some(65_472),
        max_srq_wr: Some(16_383),
        max_srq_sge: Some(31),
        device_name: "mlx4_0",
        vendor_errs: &[],
    },
    Profile {
        name: "cx5",
        source: "https://github.com/open-mpi/ompi/pull/6137",
        vendor_part_id: 4119,
        max_qp: Some(262_144),
        max_qp_wr: Some(32_768),
        max_sge: Some(30),
        max_sge_rd: Some(30),
        max_cq: Some(16_777_216),
        max_cqe: Some(4_194_303),
        max_mr: Some(16_777_216),
        max_pd: Some(16_777_216),
        ..CONNECTX
    },
    Profile {
        name: "cx6",
        // The vendor of the first is the maker of the server.
        source: "https://github.com/openucx/ucx/issues/8229, https://github.com/openucx/ucx/issues/4556",
        vendor_part_id: 4123,
        max_qp: Some(262_144),
        max_qp_wr: Some(32_768),
        ..CONNECTX
    },
    Profile {
        name: "cx6lx",
        source: "https://github.com/openucx/ucx/issues/10317",
        vendor_part_id: 4127,
        max_qp: Some(131_072),
        max_qp_wr: Some(32_768),
        max_cq: Some(16_777_216),
        max_cqe: Some(4_194_303),
        max_mr: Some(16_777_216),
        max_pd: Some(8_388_608),
        max_srq: Some(8_388_608),
        max_srq_wr: Some(32_767),
        max_srq_sge: Some(31),
        ..CONNECTX
    },
    Profile {
        name: "bnxt",
        // Chips of the series BCM575xx; the driver reads other limits from the firmware.
        source: "https://github.com/torvalds/linux/blob/v6.6/drivers/infiniband/hw/bnxt_re/qplib_sp.c",
        vendor_id: 0x14e4,
        vendor_part_id: 0x1750,
        max_sge: Some(6),
        max_sge_rd: Some(6),
        max_pd: Some(65_536),
        device_name: "bnxt_re0",
        ..UNKNOWN
    },
    Profile {
        name: "e810",
        source: "https://github.com/deepseek-ai/3FS/issues/192",
        vendor_id: 0x8086,
        vendor_part_id: 5522,
        max_qp: Some(4092),
        max_qp_wr: Some(8127),
        max_sge: Some(6),
        max_sge_rd: Some(6),
        max_cq: Some(8189),
        max_cqe: Some(1_048_574),
        max_mr: Some(4_194_301),
        max_pd: Some(262_141),
        max_srq: Some(0),
        device_name: "irdma0",
        ..UNKNOWN
    },
    Profile {
        name: "qedr",
        source: "https://github.com/openucx/ucx/issues/5148",
        vendor_id: 0x1077,
        vendor_part_id: 32_880,
        max_qp: Some(8568),
        max_qp_wr: Some(32_767),
        max_sge: Some(4),
        max_sge_rd: Some(4),
        max_cq: Some(17_136),
        max_cqe: Some(8_388_480),
        max_mr: Some(131_070),
        max_pd: Some(65_536),
        device_name: "qedr0",
        ..UNKNOWN
    },
    Profile {
        name: "rxe",
        // Of 2020.
        source: "https://github.com/openucx/ucx/issues/5045",
        vendor_id: 0,
        vendor_part_id: 0,
        max_qp: Some(65_536),
        max_qp_wr: Some(16_384),
        max_sge: Some(32),
        max_sge_rd: Some(32),
        max_cq: Some(16_384),
        max_cqe: Some(32_767),
        max_mr: Some(262_144),
        max_pd: Some(32_764),
        max_srq: Some(960),
        max_srq_wr: Some(16_384),
        max_srq_sge: Some(27),
        device_name: "rxe0",
        vendor_errs: &[],
    },
];

/// Returns the profile with this name.
pub fn named(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_err_depends_on_status_and_queue() {
        let card = named("cx6").unwrap();
        assert_eq!(card.vendor_err(false, WcStatus::RetryExcErr), Some(129));
        assert_eq!(card.vendor_err(true, WcStatus::WrFlushErr), Some(249));
        assert_eq!(card.vendor_err(false, WcStatus::WrFlushErr), None);
        assert_eq!(named("qedr").unwrap().vendor_err(false, WcStatus::RetryExcErr), None);
        let sources = PROFILES.iter().flat_map(|card| card.vendor_errs).map(|known| known.source);
        assert!(sources.into_iter().all(|source| source.starts_with("https://")));
    }
}
