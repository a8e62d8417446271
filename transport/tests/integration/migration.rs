//! Path migration: arming, migration by retries, by software and by the peer, and packets that must
//! not cause it.

use super::*;
use roxe_sim::wire::net_header;
use roxe_transport::qp::{DropReason, MigState};
use roxe_transport::qp::{QpEvents, Service};
use roxe_transport::wr::Av;
use roxe_transport::wr::WcStatus::*;

/// Returns the alternate path from `side`.
fn alternate_path(side: Peer) -> Av {
    let mut path = av(side);
    (path.sgid.0[0], path.dgid.0[0]) = (0xfd, 0xfd);
    path
}

fn set(p: &mut Pair, side: Peer, mask: AttrMask, change: impl Fn(&mut QpAttr)) -> Result<(), ModifyError> {
    let end = p.end(side);
    let mut attr = *end.qp.attr();
    change(&mut attr);
    end.qp.modify(&mut end.host, &attr, mask)
}

fn set_state(p: &mut Pair, side: Peer, state: MigState) -> Result<(), ModifyError> {
    set(p, side, AttrMask::PATH_MIG_STATE, |attr| attr.path_mig_state = state)
}

/// Loads the alternate path of `side` and requests REARM.
fn rearm(p: &mut Pair, side: Peer) {
    let result = set(p, side, AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE, |attr| {
        (attr.alt_av, attr.alt_port, attr.alt_timeout) = (alternate_path(side), 1, 15);
        attr.path_mig_state = MigState::Rearm;
    });
    assert_eq!(result, Ok(()));
}

fn states(p: &Pair) -> [MigState; 2] {
    [A, B].map(|side| p.ends[side.index()].qp.attr().path_mig_state)
}

/// Returns a pair whose ends are both armed.
fn armed(setup: Setup) -> Pair {
    let mut p = Pair::new(setup);
    [A, B].into_iter().for_each(|side| rearm(&mut p, side));
    for side in [A, B] {
        recv(&mut p, side.other(), 90, &[]);
        post(&mut p, side, 90, SendOp::Send, &[]);
        p.run();
        assert_eq!(
            (sends(&mut p, side), recvs(&mut p, side.other())),
            (statuses(90..=90, Success), statuses(90..=90, Success))
        );
    }
    assert_eq!(states(&p), [MigState::Armed; 2]);
    p.ends.iter_mut().for_each(|end| end.events = QpEvents::empty());
    p
}

fn assert_migrated(p: &Pair) {
    assert_eq!(states(p), [MigState::Migrated; 2]);
    for side in [A, B] {
        let end = &p.ends[side.index()];
        assert_eq!(
            (end.qp.attr().av, end.qp.attr().timeout, end.events),
            (alternate_path(side), 15, QpEvents::PATH_MIG)
        );
        assert!(end.qp.attr().alt_av.dgid.is_zero(), "the alternate path is consumed");
    }
}

// clause: APM-LOAD
#[test]
fn migration_state_follows_the_table() {
    use MigState::{Armed, Migrated, Rearm};
    let refused = Err(ModifyError::BadValue(AttrMask::PATH_MIG_STATE));
    let mut p = Pair::new(Setup::default());
    assert_eq!(set_state(&mut p, A, Rearm), refused, "there is no alternate path");
    assert_eq!((set_state(&mut p, A, Armed), set_state(&mut p, A, Migrated)), (refused, Ok(())));
    assert_eq!(set(&mut p, A, AttrMask::ALT_PATH, |attr| attr.alt_av = Av::default()), {
        Err(ModifyError::BadValue(AttrMask::ALT_PATH))
    });
    rearm(&mut p, A);
    assert_eq!((set_state(&mut p, A, Armed), set_state(&mut p, A, Migrated)), (refused, refused));
    assert_eq!((set_state(&mut p, A, Rearm), states(&p)), (Ok(()), [Rearm, Migrated]));
    let mut p = armed(Setup::default());
    assert_eq!((set_state(&mut p, A, Armed), set_state(&mut p, A, Rearm)), (refused, refused));
    assert_eq!(states(&p), [Armed; 2]);
}

// clause: APM-ARM, BTH-MIGRATED
#[test]
fn both_ends_arm_when_both_have_an_alternate_path() {
    let mut p = Pair::new(Setup::default());
    let (src, dst) = (filled(&mut p, A, 600), blank(&mut p, B, 600));
    rearm(&mut p, A);
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    p.run();
    assert_eq!(states(&p), [MigState::Rearm, MigState::Migrated]);
    assert!(p.log.iter().all(|logged| logged.header.bth.mig_req == (logged.from == B)));
    rearm(&mut p, B);
    post(&mut p, A, 2, write_to(dst), &[src.all()]);
    p.run();
    assert_eq!(states(&p), [MigState::Armed; 2]);
    assert_eq!(sends(&mut p, A), statuses(1..=2, Success));
    let logged = p.log.len();
    post(&mut p, A, 3, read_from(dst), &[src.all()]);
    p.run();
    assert!(p.log[logged..].iter().all(|logged| !logged.header.bth.mig_req), "both ends keep the path");
    assert_eq!(p.ends[0].events | p.ends[1].events, QpEvents::empty());
}

// clause: APM-RETRIES, APM-FOLLOW
#[test]
fn dead_path_is_left_after_all_retries() {
    for retry_cnt in [0, 2] {
        let mut p = armed(Setup { retry_cnt, ..Setup::default() });
        let (src, dst) = (filled(&mut p, A, 5000), blank(&mut p, B, 5000));
        let back = blank(&mut p, A, 5000);
        // Packets with M = 0 use the old path, which fails after some packets.
        drop_if(&mut p, A, |n, packet| n > 3 && !packet.header.bth.mig_req);
        post(&mut p, A, 1, write_to(dst), &[src.all()]);
        post(&mut p, A, 2, read_from(dst), &[back.all()]);
        p.run();
        assert_eq!(sends(&mut p, A), statuses(1..=2, Success));
        assert_eq!((bytes(&p, B, dst), bytes(&p, A, back)), (bytes(&p, A, src), bytes(&p, A, src)));
        assert_migrated(&p);
        p.assert_settled();
    }
}

// clause: APM-RETRIES
#[test]
fn retries_migrate_once_and_rnr_retries_never() {
    let mut p = armed(Setup { retry_cnt: 1, ..Setup::default() });
    drop_if(&mut p, A, |_, _| true);
    post(&mut p, A, 1, SendOp::Send, &[]);
    p.run();
    assert_eq!((sends(&mut p, A), p.ends[0].events), (statuses(1..=1, RetryExcErr), QpEvents::PATH_MIG));

    let mut p = armed(Setup { rnr_retry: 1, ..Setup::default() });
    post(&mut p, A, 1, SendOp::Send, &[]);
    p.run();
    assert_eq!((sends(&mut p, A), p.ends[0].events), (statuses(1..=1, RnrRetryExcErr), QpEvents::empty()));
}

// clause: APM-FORCED, APM-FOLLOW
#[test]
fn forced_migration_is_followed_by_the_peer() {
    for service in [Service::Rc, Service::Uc] {
        let mut p = armed(Setup { timeout: 15, ..Setup::of(service) });
        let (src, dst) = (filled(&mut p, A, 5000), blank(&mut p, B, 5000));
        assert_eq!(set_state(&mut p, A, MigState::Migrated), Ok(()));
        assert_eq!(states(&p), [MigState::Migrated, MigState::Armed]);
        post(&mut p, A, 1, write_to(dst), &[src.all()]);
        p.run();
        assert_eq!((sends(&mut p, A), bytes(&p, B, dst)), (statuses(1..=1, Success), bytes(&p, A, src)));
        assert_migrated(&p);
        p.assert_settled();
    }
}

// clause: APM-FORCED
#[test]
fn in_flight_packets_are_retransmitted_on_the_new_path() {
    let mut p = armed(Setup::default());
    let (src, dst) = (filled(&mut p, A, 5000), blank(&mut p, B, 5000));
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    p.transmit(A);
    assert_eq!(set_state(&mut p, A, MigState::Migrated), Ok(()));
    p.run();
    assert_eq!((sends(&mut p, A), bytes(&p, B, dst)), (statuses(1..=1, Success), bytes(&p, A, src)));
    assert_migrated(&p);
    p.assert_settled();
}

// clause: APM-ASTRAY
#[test]
fn impossible_migration_is_reported_once() {
    let mut p = armed(Setup::default());
    recv(&mut p, A, 1, &[]);
    let next = p.ends[0].qp.expected_psn().get();
    for _ in 0..2 {
        p.inject(A, &request(A, next, SEND_ONLY), &[]);
        assert_eq!((p.ends[0].dropped.0, p.ends[0].events), (Some(DropReason::Address), QpEvents::PATH_MIG_ERR));
        assert_eq!((states(&p)[0], recvs(&mut p, A)), (MigState::Armed, vec![]));
        p.ends[0].dropped.0 = None;
    }
    let end = p.end(A);
    end.events = QpEvents::empty();
    p.inject(A, &request(A, next, SEND_ONLY), &[]);
    assert_eq!(p.ends[0].events, QpEvents::empty());
}

// clause: APM-ARM, APM-FOLLOW
#[test]
fn other_hosts_and_cnps_cause_no_migration() {
    let mut p = armed(Setup::default());
    let other_host = Av { dgid: alternate_path(B).sgid, ..av(B) };
    let next = p.ends[0].qp.expected_psn().get();
    p.inject_from(A, &net_header(&other_host), &request(A, next, SEND_ONLY), &[]);
    assert_eq!((states(&p)[0], p.ends[0].events), (MigState::Armed, QpEvents::empty()));
    assert_eq!(p.ends[0].dropped.0, Some(DropReason::Address));

    let mut p = Pair::new(Setup::default());
    rearm(&mut p, A);
    let unmigrated = Bth { mig_req: false, ..bth(A, 0, false) };
    p.inject(A, &Header { bth: unmigrated, kind: Kind::Cnp }, &[]);
    p.inject_from(A, &net_header(&other_host), &Header { bth: unmigrated, ..request(A, 900, SEND_ONLY) }, &[]);
    assert_eq!(states(&p)[0], MigState::Rearm);
}
