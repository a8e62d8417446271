//! Cards whose limits the device can take on (`ROXE_PROFILE`), so that a program which asks for too
//! much fails here as it would there.
//!
//! Every number is one that a card printed: `source` says where that was published. Limits never
//! published (room for inline data, for instance) are not in the table, and roxe's own limit is
//! in force. Nothing but a table.

/// The known limits of a card; `None` if unknown. The smaller of the card's and roxe's limit is in
/// force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The value of `ROXE_PROFILE`.
    pub name: &'static str,
    /// Where what `ibv_devinfo -v` prints of such a card was published.
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
}

/// `vendor_id` of the cards of Mellanox, now NVIDIA.
pub const MELLANOX: u32 = 0x02c9;

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
    },
    Profile {
        name: "cx5",
        source: "https://github.com/open-mpi/ompi/pull/6137",
        vendor_id: MELLANOX,
        vendor_part_id: 4119,
        max_qp: Some(262_144),
        max_qp_wr: Some(32_768),
        max_sge: Some(30),
        max_sge_rd: Some(30),
        max_cq: Some(16_777_216),
        max_cqe: Some(4_194_303),
        max_mr: Some(16_777_216),
        max_pd: Some(16_777_216),
        ..UNKNOWN
    },
    Profile {
        name: "cx6",
        // The vendor of the first is the maker of the server.
        source: "https://github.com/openucx/ucx/issues/8229, https://github.com/openucx/ucx/issues/4556",
        vendor_id: MELLANOX,
        vendor_part_id: 4123,
        max_qp: Some(262_144),
        max_qp_wr: Some(32_768),
        ..UNKNOWN
    },
    Profile {
        name: "cx6lx",
        source: "https://github.com/openucx/ucx/issues/10317",
        vendor_id: MELLANOX,
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
    },
];

/// The profile with this name.
pub fn named(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}
