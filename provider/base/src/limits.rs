//! The limits of the device. Requests up to them work, requests beyond them fail. A profile and the
//! weakest legal card lower some: [`in_force`] and [`max_inline_data`] return the limits in force.

use crate::config::config;
use crate::profile::Profile;
use crate::weakest::{Weakness, has};

/// The values in force of the limits that a profile can lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InForce {
    /// [`MAX_QP`]
    pub max_qp: u32,
    /// [`MAX_QP_WR`]
    pub max_qp_wr: u32,
    /// [`MAX_SGE`]
    pub max_sge: u32,
    /// [`MAX_SGE`] of a READ
    pub max_sge_rd: u32,
    /// [`MAX_CQ`]
    pub max_cq: u32,
    /// [`MAX_CQE`]
    pub max_cqe: u32,
    /// [`MAX_MR`]
    pub max_mr: u32,
    /// [`MAX_PD`]
    pub max_pd: u32,
    /// [`MAX_SRQ`]
    pub max_srq: u32,
    /// [`MAX_SRQ_WR`]
    pub max_srq_wr: u32,
    /// [`MAX_SRQ_SGE`]
    pub max_srq_sge: u32,
}

impl InForce {
    /// Returns the smaller value of each limit: the profile's or ours. On the weakest legal card,
    /// ours is that of small real cards.
    pub fn of(profile: Option<&Profile>) -> Self {
        let lower = |ours: u32, card: fn(&Profile) -> Option<u32>| profile.and_then(card).unwrap_or(ours).min(ours);
        Self {
            max_qp: lower(MAX_QP, |card| card.max_qp),
            max_qp_wr: lower(limit(MAX_QP_WR, 4096), |card| card.max_qp_wr),
            max_sge: lower(limit(MAX_SGE, 6), |card| card.max_sge),
            max_sge_rd: lower(limit(MAX_SGE, 6), |card| card.max_sge_rd),
            max_cq: lower(MAX_CQ, |card| card.max_cq),
            max_cqe: lower(limit(MAX_CQE, 16_384), |card| card.max_cqe),
            max_mr: lower(MAX_MR, |card| card.max_mr),
            max_pd: lower(MAX_PD, |card| card.max_pd),
            max_srq: lower(MAX_SRQ, |card| card.max_srq),
            max_srq_wr: lower(limit(MAX_SRQ_WR, 4096), |card| card.max_srq_wr),
            max_srq_sge: lower(limit(MAX_SRQ_SGE, 6), |card| card.max_srq_sge),
        }
    }
}

/// Returns the limits of this process, with the profile of `ROXE_PROFILE`.
pub fn in_force() -> InForce {
    InForce::of(config().ok().and_then(|config| config.profile))
}

/// Work requests of a send or receive queue.
pub const MAX_QP_WR: u32 = 16_384;
/// Elements of a scatter/gather list.
pub const MAX_SGE: u32 = 32;
/// Bytes of inline data. Programs probe upwards until creation fails, so the limit must be
/// realistic.
pub const MAX_INLINE_DATA: u32 = 1024;
/// Bytes of inline data that every queue pair gets, even if it requests fewer. Stock programs
/// (`rdma_xclient`) rely on it, because cards store inline data in place of the first list element.
pub const MIN_INLINE_DATA: u32 = 16;
/// Outstanding READs and atomics of one QP, as requester and as responder, that the device reports.
/// Cards report 16. The transport accepts more, because programs set the value that their peer
/// reports: 128 with rxe.
pub const MAX_QP_RD_ATOM: u8 = 16;
/// Entries of a completion queue. libfabric requests 196,608; memory is allocated as entries
/// arrive.
pub const MAX_CQE: u32 = 1 << 20;
/// Work requests of a shared receive queue.
pub const MAX_SRQ_WR: u32 = 32_768;
/// Elements of a list in a shared receive queue.
pub const MAX_SRQ_SGE: u32 = MAX_SGE;
/// Shared receive queues of one XRC domain.
pub const MAX_XRC_SRQ: u32 = 4096;
/// Receives of a work queue: as many as of a queue pair.
pub const MAX_WQ_WR: u32 = MAX_QP_WR;
/// Elements of a scatter list of a work queue.
pub const MAX_WQ_SGE: u32 = MAX_SGE;
/// Queues of an indirection table.
pub const MAX_RWQ_TABLE: u32 = 1024;
/// Tags posted to a tag-matching shared receive queue. A message may be compared with all of them.
pub const MAX_TM_TAGS: u32 = 1024;
/// Operations on a tag-matching shared receive queue whose completions are not polled yet.
pub const MAX_TM_OPS: u32 = 1024;
/// Bytes of a rendezvous request that the device answers itself.
pub const MAX_TM_RNDV_HDR: u32 = roxe_transport::qp::MAX_RENDEZVOUS_REQUEST;
/// Elements of the list of a posted tag.
pub const MAX_TM_SGE: u32 = 4;
/// Memory regions of one process on one device. A region needs 200 bytes; programs use a million.
pub const MAX_MR: u32 = 1 << 22;
/// Memory windows of one process on one device.
pub const MAX_MW: u32 = 1 << 22;
/// Bytes of one region: the whole address space of a process.
pub const MAX_MR_SIZE: u64 = 1 << 47;
/// Bytes of device memory of one process on one device, in total and in one allocation.
pub const MAX_DM_SIZE: u64 = 16 << 20;
/// Copies to and from device memory start at, and are, multiples of this many bytes.
pub const DM_GRAIN: u64 = 4;
/// Bytes of one message.
// clause: SEND-MAX-LENGTH
pub const MAX_MSG_SIZE: u32 = 1 << 31;
/// Queue pairs of one process on one device, work queues included: 22 of the 4094 number slots of
/// an address. Cards have some 100,000 for all processes together.
pub const MAX_QP: u32 = 65_536;
/// Completion queues of one process on one device: two for each queue pair.
pub const MAX_CQ: u32 = 2 * MAX_QP;
/// Shared receive queues of one process on one device.
pub const MAX_SRQ: u32 = MAX_QP;
/// Protection domains of one process on one device, parent domains included.
pub const MAX_PD: u32 = 65_536;
/// Address handles of one process on one device.
pub const MAX_AH: u32 = 1 << 20;
/// Indirection tables of one process on one device.
pub const MAX_RWQ_TABLES: u32 = MAX_QP;
/// Maximum count and period (microseconds) of event moderation.
pub const MAX_CQ_MODERATION: u16 = u16::MAX;
/// Completion vectors: one, because one thread serves all channels.
pub const NUM_COMP_VECTORS: u32 = 1;
/// Multicast groups of one process; each needs one or two sockets.
pub const MAX_MCAST_GRP: u32 = 256;
/// Queue pairs of one process attached to one group.
pub const MAX_MCAST_QP_ATTACH: u32 = 256;
/// Flows of one process on one device.
pub const MAX_FLOWS: u32 = 4096;
/// Ports of a device.
pub const PORTS: u8 = 1;

/// Returns [`MAX_INLINE_DATA`] in force.
pub fn max_inline_data() -> u32 {
    limit(MAX_INLINE_DATA, 64)
}

/// Returns [`MIN_INLINE_DATA`] in force.
pub fn min_inline_data() -> u32 {
    if has(Weakness::SLOTS) { 0 } else { MIN_INLINE_DATA }
}

/// Returns `small`, the limit of small real cards, on the weakest card; else `default`.
fn limit(default: u32, small: u32) -> u32 {
    if has(Weakness::LIMITS) { small } else { default }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{PROFILES, named};

    #[test]
    fn profile_lowers_limits_only() {
        let ours = InForce::of(None);
        assert_eq!((ours.max_sge, ours.max_cqe, ours.max_srq), (MAX_SGE, MAX_CQE, MAX_SRQ));
        let qedr = InForce::of(named("qedr"));
        assert_eq!((qedr.max_sge, qedr.max_qp), (4, 8568));
        assert_eq!((qedr.max_qp_wr, qedr.max_srq_sge), (ours.max_qp_wr, ours.max_srq_sge), "larger, and unknown");
        for profile in PROFILES {
            assert!(profile.source.starts_with("https://"), "{} has no source", profile.name);
            assert!(InForce::of(Some(profile)).max_qp_wr <= MAX_QP_WR, "{}", profile.name);
        }
    }
}
