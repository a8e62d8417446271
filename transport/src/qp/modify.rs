//! The state machine of a queue pair as one table: which modify is legal, and what it changes.
//!
//! Reads and writes only `Shared`; what a transition does to the queues is the business of `queue_pair.rs`.

use crate::qp::attr::{AttrMask, MigState, QpAttr, QpState};
use crate::qp::shared::{Service, Shared};
use crate::wr::Av;
use thiserror::Error;

/// Why a modify was refused. Nothing changed. All of them are `EINVAL` in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ModifyError {
    /// The state machine has no such edge.
    #[error("a queue pair cannot go from {from:?} to {to:?}")]
    BadTransition {
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// The edge needs these attributes too.
    #[error("the transition also needs {0}")]
    Missing(AttrMask),
    /// The edge does not take these attributes.
    #[error("the transition does not take {0}")]
    Forbidden(AttrMask),
    /// The value of this attribute is out of range.
    #[error("the value of {0} is out of range")]
    BadValue(AttrMask),
}

/// READs and atomics that a QP can have outstanding, each way.
const MAX_RD_ATOMIC: u8 = 128;

/// Union of several masks, for the table.
const fn all(masks: &[AttrMask]) -> AttrMask {
    let mut bits = 0;
    let mut i = 0;
    while i < masks.len() {
        bits |= masks[i].bits();
        i += 1;
    }
    AttrMask::from_bits_retain(bits)
}

/// One edge of the state machine of one service.
struct Edge {
    service: Service,
    from: QpState,
    to: QpState,
    required: AttrMask,
    optional: AttrMask,
}

const fn edge(service: Service, from: QpState, to: QpState, required: AttrMask, optional: AttrMask) -> Edge {
    Edge { service, from, to, required, optional }
}

/// Every edge that carries attributes (IBA §11.2.5.2). Edges into RESET and ERR take none and are in
/// [`transition`].
// clause: STATE-EDGES
const TABLE: &[Edge] = {
    use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};
    use Service::{Raw, Rc, Uc, Ud, XrcIni, XrcTgt};
    type M = AttrMask;
    const NONE: M = M::empty();
    const RC_INIT: M = all(&[M::PKEY_INDEX, M::PORT, M::ACCESS_FLAGS]);
    const UD_INIT: M = all(&[M::PKEY_INDEX, M::PORT, M::QKEY]);
    const UC_RTR: M = all(&[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN]);
    const RC_RTR: M = all(&[UC_RTR, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER]);
    const RTR_OPT: M = all(&[M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX]);
    const RC_RTS: M = all(&[M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY, M::SQ_PSN, M::MAX_QP_RD_ATOMIC]);
    const UC_RTS_OPT: M = all(&[M::CUR_STATE, M::ALT_PATH, M::ACCESS_FLAGS, M::PATH_MIG_STATE, M::RATE_LIMIT]);
    const RC_RTS_OPT: M = all(&[UC_RTS_OPT, M::MIN_RNR_TIMER]);
    const UD_RTS_OPT: M = all(&[M::CUR_STATE, M::QKEY, M::RATE_LIMIT]);
    const RAW_RTS_OPT: M = all(&[M::CUR_STATE, M::RATE_LIMIT]);
    const UC_SQD: M = all(&[M::AV, M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX, M::PATH_MIG_STATE, M::RATE_LIMIT]);
    const RC_SQD_RETRY: M = all(&[M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY, M::MIN_RNR_TIMER]);
    const INI_SQD: M = all(&[UC_SQD, M::PORT, RC_SQD_RETRY, M::MAX_QP_RD_ATOMIC]);
    const TGT_RTS: M = all(&[M::TIMEOUT, M::SQ_PSN]);
    const TGT_SQD: M = all(&[UC_SQD, M::PORT, M::TIMEOUT, M::MIN_RNR_TIMER, M::MAX_DEST_RD_ATOMIC]);
    const RC_SQD: M = all(&[UC_SQD, M::PORT, RC_SQD_RETRY, M::MAX_QP_RD_ATOMIC, M::MAX_DEST_RD_ATOMIC]);
    &[
        edge(Rc, Reset, Init, RC_INIT, NONE),
        edge(Rc, Init, Init, NONE, RC_INIT),
        edge(Rc, Init, Rtr, RC_RTR, RTR_OPT),
        edge(Rc, Rtr, Rts, RC_RTS, RC_RTS_OPT),
        edge(Rc, Rts, Rts, NONE, RC_RTS_OPT),
        edge(Rc, Rts, Sqd, NONE, M::EN_SQD_ASYNC_NOTIFY),
        edge(Rc, Sqd, Rts, NONE, RC_RTS_OPT),
        edge(Rc, Sqd, Sqd, NONE, RC_SQD),
        edge(Uc, Reset, Init, RC_INIT, NONE),
        edge(Uc, Init, Init, NONE, RC_INIT),
        edge(Uc, Init, Rtr, UC_RTR, RTR_OPT),
        edge(Uc, Rtr, Rts, M::SQ_PSN, UC_RTS_OPT),
        edge(Uc, Rts, Rts, NONE, UC_RTS_OPT),
        edge(Uc, Rts, Sqd, NONE, M::EN_SQD_ASYNC_NOTIFY),
        edge(Uc, Sqd, Rts, NONE, UC_RTS_OPT),
        edge(Uc, Sqd, Sqd, NONE, UC_SQD),
        edge(Uc, Sqe, Rts, NONE, all(&[M::CUR_STATE, M::ACCESS_FLAGS, M::RATE_LIMIT])),
        edge(Ud, Reset, Init, UD_INIT, NONE),
        edge(Ud, Init, Init, NONE, UD_INIT),
        edge(Ud, Init, Rtr, NONE, all(&[M::PKEY_INDEX, M::QKEY])),
        edge(Ud, Rtr, Rts, M::SQ_PSN, UD_RTS_OPT),
        edge(Ud, Rts, Rts, NONE, UD_RTS_OPT),
        edge(Ud, Rts, Sqd, NONE, M::EN_SQD_ASYNC_NOTIFY),
        edge(Ud, Sqd, Rts, NONE, UD_RTS_OPT),
        edge(Ud, Sqd, Sqd, NONE, all(&[M::PKEY_INDEX, M::QKEY, M::RATE_LIMIT])),
        edge(Ud, Sqe, Rts, NONE, UD_RTS_OPT),
        edge(XrcIni, Reset, Init, RC_INIT, NONE),
        edge(XrcIni, Init, Init, NONE, RC_INIT),
        edge(XrcIni, Init, Rtr, UC_RTR, RTR_OPT),
        edge(XrcIni, Rtr, Rts, RC_RTS, RC_RTS_OPT),
        edge(XrcIni, Rts, Rts, NONE, RC_RTS_OPT),
        edge(XrcIni, Rts, Sqd, NONE, M::EN_SQD_ASYNC_NOTIFY),
        edge(XrcIni, Sqd, Rts, NONE, RC_RTS_OPT),
        edge(XrcIni, Sqd, Sqd, NONE, INI_SQD),
        edge(XrcTgt, Reset, Init, RC_INIT, NONE),
        edge(XrcTgt, Init, Init, NONE, RC_INIT),
        edge(XrcTgt, Init, Rtr, RC_RTR, RTR_OPT),
        edge(XrcTgt, Rtr, Rts, TGT_RTS, RC_RTS_OPT),
        edge(XrcTgt, Rts, Rts, NONE, RC_RTS_OPT),
        edge(XrcTgt, Rts, Sqd, NONE, M::EN_SQD_ASYNC_NOTIFY),
        edge(XrcTgt, Sqd, Rts, NONE, RC_RTS_OPT),
        edge(XrcTgt, Sqd, Sqd, NONE, TGT_SQD),
        // clause: RAW-STATES
        edge(Raw, Reset, Init, M::PORT, NONE),
        edge(Raw, Init, Init, NONE, M::PORT),
        edge(Raw, Init, Rtr, NONE, NONE),
        edge(Raw, Rtr, Rts, NONE, RAW_RTS_OPT),
        edge(Raw, Rts, Rts, NONE, RAW_RTS_OPT),
        edge(Raw, Rts, Sqd, NONE, M::EN_SQD_ASYNC_NOTIFY),
        edge(Raw, Sqd, Rts, NONE, RAW_RTS_OPT),
        edge(Raw, Sqd, Sqd, NONE, M::RATE_LIMIT),
        edge(Raw, Sqe, Rts, NONE, RAW_RTS_OPT),
    ]
};

/// What a modify of an end of an XRC connection passes over: attributes of the direction that it does not have. Programs set
/// both ends alike, as on RC.
// clause: XRC-ATTRIBUTES
pub(crate) const fn ignored(service: Service) -> AttrMask {
    match service {
        Service::XrcIni => all(&[AttrMask::MAX_DEST_RD_ATOMIC, AttrMask::MIN_RNR_TIMER]),
        Service::XrcTgt => all(&[AttrMask::MAX_QP_RD_ATOMIC, AttrMask::RETRY_CNT, AttrMask::RNR_RETRY]),
        Service::Rc | Service::Uc | Service::Ud | Service::Raw => AttrMask::empty(),
    }
}

/// What a modify of a `service` QP from `from` to `to` requires and what it may set besides; `None` if there is no such
/// edge. `STATE` itself is always allowed and in neither mask.
fn transition(service: Service, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    match to {
        QpState::Reset => Some((AttrMask::empty(), AttrMask::empty())),
        QpState::Err if from != QpState::Reset => Some((AttrMask::empty(), AttrMask::empty())),
        _ => TABLE
            .iter()
            .find(|edge| edge.service == service && edge.from == from && edge.to == to)
            .map(|edge| (edge.required, edge.optional)),
    }
}

/// Whether the QP may be modified like this: the state it would be in afterwards, or why not. Changes nothing.
pub(crate) fn check(sh: &Shared, attr: &QpAttr, mask: AttrMask) -> Result<QpState, ModifyError> {
    let from = sh.state;
    check_cur_state(from, attr, mask)?;
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

/// `CUR_STATE` states what the caller believes. It may only be given where sends are possible (IBA §11.2.5.2), and a
/// wrong belief is refused: looking up the edge of another state could restart PSNs of a live connection.
fn check_cur_state(from: QpState, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
    let allowed = matches!(from, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
    // clause: STATE-CURRENT
    if mask.contains(AttrMask::CUR_STATE) && !(allowed && attr.cur_state == Some(from)) {
        return Err(ModifyError::BadValue(AttrMask::CUR_STATE));
    }
    Ok(())
}

/// Whether every value named by `mask` is one that this port and this library can honour.
fn check_values(sh: &Shared, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
    // clause: STATE-VALUES
    let rules = [
        // clause: PKEY-TABLE
        (AttrMask::PKEY_INDEX, attr.pkey_index == 0),
        (AttrMask::PORT, attr.port == 1),
        (AttrMask::AV, is_unicast_path(&attr.av)),
        // clause: MTU-PATH
        (AttrMask::PATH_MTU, attr.path_mtu.bytes() <= sh.config.port_mtu),
        (AttrMask::TIMEOUT, attr.timeout <= 31),
        (AttrMask::RETRY_CNT, attr.retry_cnt <= 7),
        (AttrMask::RNR_RETRY, attr.rnr_retry <= 7),
        (AttrMask::MIN_RNR_TIMER, attr.min_rnr_timer <= 31),
        (AttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= MAX_RD_ATOMIC),
        (AttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= MAX_RD_ATOMIC),
        (AttrMask::ALT_PATH, is_alternate(attr)),
        (AttrMask::PATH_MIG_STATE, may_set_migration(sh, attr, mask)),
        // clause: RATE-LIMIT
        (AttrMask::RATE_LIMIT, attr.rate_limit.is_valid()),
    ];
    match rules.into_iter().find(|(bit, legal)| mask.contains(*bit) && !legal) {
        Some((bit, _)) => Err(ModifyError::BadValue(bit)),
        None => Ok(()),
    }
}

/// Whether a connection can run over `av`: one host at each end, both of one address family.
// clause: AV-VALID
fn is_unicast_path(av: &Av) -> bool {
    !av.dgid.is_zero() && !av.dgid.is_multicast() && av.sgid.is_ipv4() == av.dgid.is_ipv4()
}

/// Whether the alternate path is one that this port can use.
// clause: APM-LOAD
fn is_alternate(attr: &QpAttr) -> bool {
    is_unicast_path(&attr.alt_av) && attr.alt_port == 1 && attr.alt_pkey_index == 0 && attr.alt_timeout <= 31
}

/// Whether software may set this state of migration now. ARMED comes from the peer.
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

/// Whether this modify, which [`check`] has allowed, sends the connection to its alternate path.
// clause: APM-FORCED
pub(crate) fn migrates(sh: &Shared, attr: &QpAttr, mask: AttrMask) -> bool {
    let set = mask.contains(AttrMask::PATH_MIG_STATE);
    set && sh.attr.path_mig_state == MigState::Armed && attr.path_mig_state == MigState::Migrated
}

/// Takes over what `mask` says of the alternate path. ARMED ends only by going there.
fn apply_migration(sh: &mut Shared, attr: &QpAttr, mask: AttrMask) {
    let own = &mut sh.attr;
    if mask.contains(AttrMask::ALT_PATH) {
        (own.alt_av, own.alt_timeout) = (attr.alt_av, attr.alt_timeout);
        (own.alt_port, own.alt_pkey_index) = (attr.alt_port, attr.alt_pkey_index);
    }
    if mask.contains(AttrMask::PATH_MIG_STATE) && own.path_mig_state != MigState::Armed {
        own.path_mig_state = attr.path_mig_state;
        sh.migration_failed = false;
    }
}

/// Copies the attributes that `mask` names and enters `to`, the state that [`check`] returned.
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
        MIN_RNR_TIMER => min_rnr_timer,
        SQ_PSN => sq_psn,
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
        DEST_QPN => dest_qpn,
        RATE_LIMIT => rate_limit,
    }
    apply_migration(sh, attr, mask);
    sh.set_path();
    sh.set_state(to);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::congestion::RateLimit;
    use crate::qp::shared::{QpCaps, QpConfig};
    use roxe_wire::{PathMtu, Psn, Qpn};
    use std::fmt::Write;

    fn shared(service: Service, state: QpState) -> Shared {
        let caps = QpCaps::default();
        let qpn = Qpn::new(2);
        let config = QpConfig {
            qpn,
            service,
            caps,
            sq_sig_all: false,
            srq_max_sge: None,
            tag_matching: false,
            port_mtu: 4096,
            line_rate: None,
        };
        let mut sh = Shared::new(config);
        sh.state = state;
        sh
    }

    /// An attribute set whose every value is legal.
    fn legal(state: QpState) -> QpAttr {
        let dgid = core::net::Ipv4Addr::LOCALHOST.into();
        let av = Av { sgid: dgid, dgid, ..Av::default() };
        QpAttr { state, av, alt_av: av, alt_port: 1, ..QpAttr::default() }
    }

    fn render() -> String {
        let mut text = String::new();
        for service in Service::ALL {
            for from in QpState::ALL {
                for to in QpState::ALL {
                    if let Some((required, optional)) = transition(service, from, to) {
                        writeln!(text, "{service:?} {from:?} -> {to:?}: required [{required}] optional [{optional}]")
                            .expect("a String takes everything");
                    }
                }
            }
        }
        text
    }

    // clause: STATE-EDGES
    #[test]
    fn the_table_is_the_one_reviewed() {
        let (now, reviewed) = (render(), include_str!("state_table.txt"));
        assert!(now == reviewed, "the state machine changed; review it and update state_table.txt:\n{now}");
    }

    // clause: STATE-EDGES
    #[test]
    fn each_edge_takes_exactly_its_attributes() {
        for edge in TABLE {
            let sh = shared(edge.service, edge.from);
            let attr = legal(edge.to);
            let mask = edge.required | AttrMask::STATE;
            assert_eq!(check(&sh, &attr, mask), Ok(edge.to));
            for bit in edge.required.iter() {
                assert_eq!(check(&sh, &attr, mask - bit), Err(ModifyError::Missing(bit)));
            }
            for bit in (AttrMask::all() - mask - edge.optional).iter() {
                // A belief about the state is judged before the edge is looked up.
                if bit != AttrMask::CUR_STATE {
                    assert_eq!(check(&sh, &attr, mask | bit), Err(ModifyError::Forbidden(bit)));
                }
            }
        }
    }

    #[test]
    fn without_a_state_the_qp_stays_where_it_is() {
        let sh = shared(Service::Rc, QpState::Rts);
        assert_eq!(check(&sh, &legal(QpState::Reset), AttrMask::ACCESS_FLAGS), Ok(QpState::Rts));
    }

    // clause: STATE-EDGES
    #[test]
    fn edges_that_do_not_exist_are_named() {
        for (from, to) in [(QpState::Reset, QpState::Err), (QpState::Rtr, QpState::Rtr), (QpState::Rtr, QpState::Sqd)] {
            let sh = shared(Service::Rc, from);
            assert_eq!(check(&sh, &legal(to), AttrMask::STATE), Err(ModifyError::BadTransition { from, to }));
        }
    }

    // clause: STATE-CURRENT
    #[test]
    fn the_believed_state_must_be_the_real_one() {
        let mask = AttrMask::STATE | AttrMask::CUR_STATE;
        let sh = shared(Service::Rc, QpState::Rts);
        let with = |cur| QpAttr { cur_state: cur, ..legal(QpState::Rts) };
        assert_eq!(check(&sh, &with(Some(QpState::Rts)), mask), Ok(QpState::Rts));
        let refused = Err(ModifyError::BadValue(AttrMask::CUR_STATE));
        assert_eq!(check(&sh, &with(Some(QpState::Sqd)), mask), refused);
        assert_eq!(check(&sh, &with(None), mask), refused);
        let init = QpAttr { cur_state: Some(QpState::Init), ..legal(QpState::Init) };
        assert_eq!(check(&shared(Service::Rc, QpState::Init), &init, mask), refused);
    }

    /// Both sides of every limit: `set` puts a value, the first is the last legal one, the second the first illegal one.
    fn limit(mask: AttrMask, set: impl Fn(&mut QpAttr, u8), last_legal: u8) {
        let sh = shared(Service::Rc, QpState::Sqd);
        for value in [last_legal, last_legal + 1] {
            let mut attr = legal(QpState::Sqd);
            set(&mut attr, value);
            let expected = if value == last_legal { Ok(QpState::Sqd) } else { Err(ModifyError::BadValue(mask)) };
            assert_eq!(check(&sh, &attr, mask), expected, "{mask} = {value}");
        }
    }

    // clause: PKEY-TABLE, STATE-VALUES
    #[test]
    fn values_are_checked_on_both_sides_of_their_limits() {
        limit(AttrMask::TIMEOUT, |attr, v| attr.timeout = v, 31);
        limit(AttrMask::RETRY_CNT, |attr, v| attr.retry_cnt = v, 7);
        limit(AttrMask::RNR_RETRY, |attr, v| attr.rnr_retry = v, 7);
        limit(AttrMask::MIN_RNR_TIMER, |attr, v| attr.min_rnr_timer = v, 31);
        limit(AttrMask::MAX_QP_RD_ATOMIC, |attr, v| attr.max_rd_atomic = v, MAX_RD_ATOMIC);
        limit(AttrMask::MAX_DEST_RD_ATOMIC, |attr, v| attr.max_dest_rd_atomic = v, MAX_RD_ATOMIC);
        limit(AttrMask::PKEY_INDEX, |attr, v| attr.pkey_index = v.into(), 0);
        limit(AttrMask::PORT, |attr, v| attr.port = v, 1);
        limit(AttrMask::ALT_PATH, |attr, v| attr.alt_timeout = v, 31);
        limit(AttrMask::ALT_PATH, |attr, v| attr.alt_pkey_index = v.into(), 0);
        limit(AttrMask::ALT_PATH, |attr, v| attr.alt_port = v, 1);
    }

    // clause: RATE-LIMIT
    #[test]
    fn a_rate_is_none_or_one_that_can_be_kept() {
        let sh = shared(Service::Ud, QpState::Rts);
        let check = |kbps, max_burst| {
            let attr = QpAttr { rate_limit: RateLimit { kbps, max_burst }, ..legal(QpState::Rts) };
            check(&sh, &attr, AttrMask::RATE_LIMIT)
        };
        let refused = Err(ModifyError::BadValue(AttrMask::RATE_LIMIT));
        for (kbps, burst) in [(0, 0), (1000, 0), (1000, 1), (u32::MAX, u32::MAX)] {
            assert_eq!(check(kbps, burst), Ok(QpState::Rts), "{kbps} {burst}");
        }
        for (kbps, burst) in [(0, 1), (1, 0), (999, 4096)] {
            assert_eq!(check(kbps, burst), refused, "{kbps} {burst}");
        }
    }

    // clause: AV-VALID, MTU-PATH
    #[test]
    fn the_path_must_fit_the_port_and_lead_to_one_host() {
        let mask = transition(Service::Uc, QpState::Init, QpState::Rtr).expect("an edge").0 | AttrMask::STATE;
        let mut sh = shared(Service::Uc, QpState::Init);
        sh.config.port_mtu = 1024;
        let at = |path_mtu| QpAttr { path_mtu, ..legal(QpState::Rtr) };
        assert_eq!(check(&sh, &at(PathMtu::Mtu1024), mask), Ok(QpState::Rtr));
        assert_eq!(check(&sh, &at(PathMtu::Mtu2048), mask), Err(ModifyError::BadValue(AttrMask::PATH_MTU)));
        let group = core::net::Ipv4Addr::new(239, 0, 0, 1).into();
        for dgid in [roxe_wire::Gid::default(), group, roxe_wire::Gid([0x20; 16])] {
            let mut attr = at(PathMtu::Mtu256);
            attr.av.dgid = dgid;
            assert_eq!(check(&sh, &attr, mask), Err(ModifyError::BadValue(AttrMask::AV)), "{dgid}");
        }
    }

    #[test]
    fn only_named_attributes_are_copied() {
        let mut sh = shared(Service::Rc, QpState::Rtr);
        let attr = QpAttr { timeout: 14, retry_cnt: 7, sq_psn: Psn::new(9), ..legal(QpState::Rts) };
        apply(&mut sh, &attr, AttrMask::STATE | AttrMask::TIMEOUT | AttrMask::SQ_PSN, QpState::Rts);
        assert_eq!((sh.attr.timeout, sh.attr.retry_cnt, sh.attr.sq_psn), (14, 0, Psn::new(9)));
        assert_eq!((sh.state, sh.attr.state), (QpState::Rts, QpState::Rts));
    }

    #[test]
    fn codes_are_those_of_the_verbs_abi() {
        for (code, state) in (0..).zip(QpState::ALL) {
            assert_eq!(QpState::from_code(code), Some(state));
        }
        assert_eq!(QpState::from_code(7), None);
        assert_eq!((AttrMask::DEST_QPN.bits(), AttrMask::RATE_LIMIT.bits()), (0x10_0000, 1 << 25));
    }
}
