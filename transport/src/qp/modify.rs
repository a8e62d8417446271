//! The state machine of a queue pair as one table: legal transitions and their attributes. What a
//! transition does to the queues is in `queue_pair.rs`.

use crate::qp::shared::{AttrMask, MigState, QpAttr, QpState, Service, Shared};
use crate::wr::Av;
use thiserror::Error;

/// Reason why a modify was refused; nothing changed. `EINVAL` in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ModifyError {
    /// There is no such transition.
    #[error("a queue pair cannot go from {from:?} to {to:?}; the order is Reset, Init, Rtr, Rts")]
    BadTransition {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// The transition also needs these attributes.
    #[error("the transition also needs {0}")]
    Missing(AttrMask),
    /// The transition does not accept these attributes.
    #[error("the transition does not accept {0}")]
    Forbidden(AttrMask),
    /// The value of this attribute is out of range.
    #[error("the value of {0} is out of range")]
    BadValue(AttrMask),
}

/// Maximum number of outstanding READs and atomics in each direction.
const MAX_RD_ATOMIC: u8 = 128;

const fn all(masks: &[AttrMask]) -> AttrMask {
    let mut bits = 0;
    let mut i = 0;
    while i < masks.len() {
        bits |= masks[i].bits();
        i += 1;
    }
    AttrMask::from_bits_retain(bits)
}

/// Required and optional attributes of a transition.
type Attributes = (AttrMask, AttrMask);

/// Attributes of each transition of one service. The states and transitions are the same for all
/// services, except SQE.
struct TransitionMasks {
    /// RESET to INIT: required. INIT to INIT: optional.
    init: AttrMask,
    /// INIT to RTR.
    rtr: Attributes,
    /// RTR to RTS. The optional ones are also optional from RTS and SQD to RTS.
    rts: Attributes,
    /// SQD to SQD: optional.
    sqd: AttrMask,
    /// SQE to RTS: optional; `None` without SQE.
    sqe: Option<AttrMask>,
}

/// Returns the attributes of the transitions of `service` (IBA §11.2.5.2).
// clause: STATE-EDGES
const fn rules(service: Service) -> TransitionMasks {
    type M = AttrMask;
    const NONE: M = M::empty();
    const RC_INIT: M = all(&[M::PKEY_INDEX, M::PORT, M::ACCESS_FLAGS]);
    const UD_INIT: M = all(&[M::PKEY_INDEX, M::PORT, M::QKEY]);
    const UC_RTR: M = all(&[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN]);
    const RC_RTR: M = all(&[UC_RTR, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER]);
    const RTR_OPT: M = all(&[M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX]);
    const UD_RTR_OPT: M = all(&[M::PKEY_INDEX, M::QKEY]);
    const RC_RTS: M = all(&[M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY, M::SQ_PSN, M::MAX_QP_RD_ATOMIC]);
    const TGT_RTS: M = all(&[M::TIMEOUT, M::SQ_PSN]);
    const UC_RTS_OPT: M = all(&[M::CUR_STATE, M::ALT_PATH, M::ACCESS_FLAGS, M::PATH_MIG_STATE, M::RATE_LIMIT]);
    const RC_RTS_OPT: M = all(&[UC_RTS_OPT, M::MIN_RNR_TIMER]);
    const UD_RTS_OPT: M = all(&[M::CUR_STATE, M::QKEY, M::RATE_LIMIT]);
    const RAW_RTS_OPT: M = all(&[M::CUR_STATE, M::RATE_LIMIT]);
    const UC_SQD: M = all(&[M::AV, M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX, M::PATH_MIG_STATE, M::RATE_LIMIT]);
    const RC_SQD_RETRY: M = all(&[M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY, M::MIN_RNR_TIMER]);
    const INI_SQD: M = all(&[UC_SQD, M::PORT, RC_SQD_RETRY, M::MAX_QP_RD_ATOMIC]);
    const TGT_SQD: M = all(&[UC_SQD, M::PORT, M::TIMEOUT, M::MIN_RNR_TIMER, M::MAX_DEST_RD_ATOMIC]);
    const RC_SQD: M = all(&[UC_SQD, M::PORT, RC_SQD_RETRY, M::MAX_QP_RD_ATOMIC, M::MAX_DEST_RD_ATOMIC]);
    const UD_SQD: M = all(&[M::PKEY_INDEX, M::QKEY, M::RATE_LIMIT]);
    const UC_SQE: M = all(&[M::CUR_STATE, M::ACCESS_FLAGS, M::RATE_LIMIT]);
    let (init, rtr, rts, sqd, sqe) = match service {
        Service::Rc => (RC_INIT, (RC_RTR, RTR_OPT), (RC_RTS, RC_RTS_OPT), RC_SQD, None),
        Service::Uc => (RC_INIT, (UC_RTR, RTR_OPT), (M::SQ_PSN, UC_RTS_OPT), UC_SQD, Some(UC_SQE)),
        Service::Ud => (UD_INIT, (NONE, UD_RTR_OPT), (M::SQ_PSN, UD_RTS_OPT), UD_SQD, Some(UD_RTS_OPT)),
        Service::XrcIni => (RC_INIT, (UC_RTR, RTR_OPT), (RC_RTS, RC_RTS_OPT), INI_SQD, None),
        Service::XrcTgt => (RC_INIT, (RC_RTR, RTR_OPT), (TGT_RTS, RC_RTS_OPT), TGT_SQD, None),
        // clause: RAW-STATES
        Service::Raw => (M::PORT, (NONE, NONE), (NONE, RAW_RTS_OPT), M::RATE_LIMIT, Some(RAW_RTS_OPT)),
    };
    TransitionMasks { init, rtr, rts, sqd, sqe }
}

/// Attributes that a modify of an XRC end ignores: those of the other direction. Programs set both
/// ends alike, as on RC.
// clause: XRC-ATTRIBUTES
pub(crate) const fn ignored(service: Service) -> AttrMask {
    match service {
        Service::XrcIni => all(&[AttrMask::MAX_DEST_RD_ATOMIC, AttrMask::MIN_RNR_TIMER]),
        Service::XrcTgt => all(&[AttrMask::MAX_QP_RD_ATOMIC, AttrMask::RETRY_CNT, AttrMask::RNR_RETRY]),
        Service::Rc | Service::Uc | Service::Ud | Service::Raw => AttrMask::empty(),
    }
}

/// Returns the required and optional attributes of a transition, or `None` if it does not exist.
/// `STATE` is always allowed and in neither mask.
pub fn transition(service: Service, from: QpState, to: QpState) -> Option<Attributes> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    const NONE: AttrMask = AttrMask::empty();
    let TransitionMasks { init, rtr, rts, sqd, sqe } = rules(service);
    match (from, to) {
        (_, Reset) => Some((NONE, NONE)),
        (_, Err) if from != Reset => Some((NONE, NONE)),
        (Reset, Init) => Some((init, NONE)),
        (Init, Init) => Some((NONE, init)),
        (Init, Rtr) => Some(rtr),
        (Rtr, Rts) => Some(rts),
        (Rts | Sqd, Rts) => Some((NONE, rts.1)),
        (Rts, Sqd) => Some((NONE, AttrMask::EN_SQD_ASYNC_NOTIFY)),
        (Sqd, Sqd) => Some((NONE, sqd)),
        (Sqe, Rts) => sqe.map(|optional| (NONE, optional)),
        _ => None,
    }
}

/// Checks a modify and returns the state after it.
pub(crate) fn check(sh: &Shared, attr: &QpAttr, mask: AttrMask) -> Result<QpState, ModifyError> {
    let from = sh.state;
    // `CUR_STATE` is the state assumed by the caller. It may only be set from RTR on (IBA
    // §11.2.5.2), and must be right: the transition of another state could restart the PSNs of a
    // live connection.
    // clause: STATE-CURRENT
    let allows_cur_state = matches!(from, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
    if mask.contains(AttrMask::CUR_STATE) && !(allows_cur_state && attr.cur_state == Some(from)) {
        return Err(ModifyError::BadValue(AttrMask::CUR_STATE));
    }
    let to = if mask.contains(AttrMask::STATE) { attr.state } else { from };
    let (required, optional) =
        transition(sh.config.service, from, to).ok_or(ModifyError::BadTransition { from, to })?;
    let missing = required.difference(mask);
    if !missing.is_empty() {
        return Err(ModifyError::Missing(missing));
    }
    let forbidden = mask.difference(required.union(optional).union(AttrMask::STATE));
    if !forbidden.is_empty() {
        return Err(ModifyError::Forbidden(forbidden));
    }
    check_values(sh, attr, mask)?;
    Ok(to)
}

fn check_values(sh: &Shared, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
    // clause: STATE-VALUES
    let checks = [
        // clause: PKEY-TABLE
        (AttrMask::PKEY_INDEX, attr.pkey_index == 0),
        (AttrMask::PORT, attr.port == 1),
        (AttrMask::AV, is_unicast_path(&attr.av)),
        // clause: MTU-PATH
        (AttrMask::PATH_MTU, attr.path_mtu.bytes() <= sh.config.port_mtu),
        (AttrMask::TIMEOUT, attr.timeout <= 31),
        (AttrMask::RETRY_CNT, attr.retry_cnt <= 7),
        (AttrMask::RNR_RETRY, attr.rnr_retry <= 7),
        (AttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= MAX_RD_ATOMIC),
        (AttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= MAX_RD_ATOMIC),
        (AttrMask::ALT_PATH, is_alternate_path(attr)),
        (AttrMask::PATH_MIG_STATE, may_set_migration(sh, attr, mask)),
        // clause: RATE-LIMIT
        (AttrMask::RATE_LIMIT, attr.rate_limit.is_valid()),
    ];
    match checks.into_iter().find(|(bit, legal)| mask.contains(*bit) && !legal) {
        Some((bit, _)) => Err(ModifyError::BadValue(bit)),
        None => Ok(()),
    }
}

/// Returns true if the path connects two hosts of one address family.
// clause: AV-VALID
fn is_unicast_path(av: &Av) -> bool {
    !av.dgid.is_zero() && !av.dgid.is_multicast() && av.sgid.is_ipv4() == av.dgid.is_ipv4()
}

// clause: APM-LOAD
fn is_alternate_path(attr: &QpAttr) -> bool {
    is_unicast_path(&attr.alt_av) && attr.alt_port == 1 && attr.alt_pkey_index == 0 && attr.alt_timeout <= 31
}

/// Returns true if software may set this migration state now. The peer sets ARMED.
// clause: APM-LOAD
fn may_set_migration(sh: &Shared, attr: &QpAttr, mask: AttrMask) -> bool {
    use MigState::{Armed, Migrated, Rearm};
    let is_loaded = mask.contains(AttrMask::ALT_PATH) || !sh.attr.alt_av.dgid.is_zero();
    match (sh.attr.path_mig_state, attr.path_mig_state) {
        (Migrated, Rearm) => is_loaded,
        (Migrated | Armed, Migrated) | (Rearm, Rearm) => true,
        _ => false,
    }
}

/// Returns true if this modify, allowed by [`check`], forces migration to the alternate path.
// clause: APM-FORCED
pub(crate) fn forces_migration(sh: &Shared, attr: &QpAttr, mask: AttrMask) -> bool {
    let set = mask.contains(AttrMask::PATH_MIG_STATE);
    set && sh.attr.path_mig_state == MigState::Armed && attr.path_mig_state == MigState::Migrated
}

/// Significant bits of an RNR timer code; some programs set 0x20.
const RNR_TIMER_BITS: u8 = 31;

/// Copies the attributes in `mask` and enters the state `to` returned by [`check`].
pub(crate) fn apply(sh: &mut Shared, attr: &QpAttr, mask: AttrMask, to: QpState) {
    let own = &mut sh.attr;
    let set = |bit| mask.contains(bit);
    macro_rules! copy {
        ($($bit:ident => $field:ident),* $(,)?) => { $(if set(AttrMask::$bit) { own.$field = attr.$field; })* };
    }
    copy! {
        EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
        ACCESS_FLAGS => access,
        PKEY_INDEX => pkey_index,
        PORT => port,
        QKEY => qkey,
        AV => av,
        PATH_MTU => path_mtu,
        TIMEOUT => timeout,
        RETRY_CNT => retry_cnt,
        RNR_RETRY => rnr_retry,
        RQ_PSN => rq_psn,
        MAX_QP_RD_ATOMIC => max_rd_atomic,
        SQ_PSN => sq_psn,
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
        DEST_QPN => dest_qpn,
        RATE_LIMIT => rate_limit,
        ALT_PATH => alt_av,
        ALT_PATH => alt_timeout,
        ALT_PATH => alt_port,
        ALT_PATH => alt_pkey_index,
    }
    if set(AttrMask::MIN_RNR_TIMER) {
        // clause: STATE-VALUES
        own.min_rnr_timer = attr.min_rnr_timer & RNR_TIMER_BITS;
    }
    // Software cannot leave ARMED; MIGRATED forces the migration instead ([`forces_migration`]).
    if set(AttrMask::PATH_MIG_STATE) && own.path_mig_state != MigState::Armed {
        own.path_mig_state = attr.path_mig_state;
        sh.migration_failed = false;
    }
    sh.set_path();
    sh.set_state(to);
}

#[cfg(test)]
mod tests;
