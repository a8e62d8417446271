//! Tests of `qp/modify.rs`.

use super::*;
use crate::qp::features::congestion::RateLimit;
use crate::qp::shared::{QpCaps, QpConfig};
use roxe_wire::{PathMtu, Psn, Qpn};
use std::fmt::Write;

fn shared(service: Service, state: QpState) -> Shared {
    let caps = QpCaps::default();
    let qpn = Qpn::new(2);
    let config = QpConfig::new(qpn, service, caps);
    let mut sh = Shared::new(config);
    sh.state = state;
    sh
}

/// Returns an attribute set whose every value is legal.
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
                        .expect("write to a String");
                }
            }
        }
    }
    text
}

// clause: STATE-EDGES
#[test]
fn transition_table_equals_the_reviewed_file() {
    let (now, reviewed) = (render(), include_str!("../state_table.txt"));
    assert!(now == reviewed, "the state machine changed; review it and update state_table.txt:\n{now}");
}

// clause: STATE-EDGES
#[test]
fn transitions_accept_exactly_their_attributes() {
    for service in Service::ALL {
        for (from, to) in QpState::ALL.into_iter().flat_map(|from| QpState::ALL.map(|to| (from, to))) {
            let Some((required, optional)) = transition(service, from, to) else { continue };
            let (sh, attr, mask) = (shared(service, from), legal(to), required | AttrMask::STATE);
            assert_eq!(check(&sh, &attr, mask), Ok(to));
            for bit in required.iter() {
                assert_eq!(check(&sh, &attr, mask - bit), Err(ModifyError::Missing(bit)));
            }
            for bit in (AttrMask::all() - mask - optional).iter() {
                // `CUR_STATE` is checked before the transition is looked up.
                if bit != AttrMask::CUR_STATE {
                    assert_eq!(check(&sh, &attr, mask | bit), Err(ModifyError::Forbidden(bit)));
                }
            }
        }
    }
}

#[test]
fn modify_without_state_keeps_the_state() {
    let sh = shared(Service::Rc, QpState::Rts);
    assert_eq!(check(&sh, &legal(QpState::Reset), AttrMask::ACCESS_FLAGS), Ok(QpState::Rts));
}

// clause: STATE-EDGES
#[test]
fn missing_transitions_are_named() {
    for (from, to) in [(QpState::Reset, QpState::Err), (QpState::Rtr, QpState::Rtr), (QpState::Rtr, QpState::Sqd)] {
        let sh = shared(Service::Rc, from);
        assert_eq!(check(&sh, &legal(to), AttrMask::STATE), Err(ModifyError::BadTransition { from, to }));
    }
}

// clause: STATE-CURRENT
#[test]
fn cur_state_must_be_the_real_state() {
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

/// Checks both sides of a limit: `set` sets a value; `last_legal` is accepted, the next value is
/// not.
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
fn attribute_values_are_checked_at_their_limits() {
    limit(AttrMask::TIMEOUT, |attr, v| attr.timeout = v, 31);
    limit(AttrMask::RETRY_CNT, |attr, v| attr.retry_cnt = v, 7);
    limit(AttrMask::RNR_RETRY, |attr, v| attr.rnr_retry = v, 7);
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
fn rate_limit_is_zero_or_at_least_the_minimum() {
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
fn path_must_be_unicast_and_of_one_family() {
    let mask =
        transition(Service::Uc, QpState::Init, QpState::Rtr).expect("look up the transition").0 | AttrMask::STATE;
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
fn state_codes_equal_the_verbs_abi() {
    for (code, state) in (0..).zip(QpState::ALL) {
        assert_eq!(QpState::from_code(code), Some(state));
    }
    assert_eq!(QpState::from_code(7), None);
    assert_eq!((AttrMask::DEST_QPN.bits(), AttrMask::RATE_LIMIT.bits()), (0x10_0000, 1 << 25));
}
