//! Who runs timers, and when.

use super::rx::RxState;
use super::{Engine, clock};
use crate::config::Config;
use crate::cq::{Cq, CqInit};
use crate::qp::{Qp, QpInit};
use crate::testing;
use roxe_transport::qp::{QpAttr, QpCaps, QpState, Service};
use roxe_transport::wr::{Access, Av, SendData, SendFlags, SendOp, SendRequest, WcStatus};
use roxe_wire::{PathMtu, RKey};
use std::net::Ipv4Addr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The shortest timeout of a queue pair takes half as long.
const LATE: Duration = Duration::from_millis(10);

/// An engine that no other test uses.
pub(super) fn private_engine(config: &'static Config) -> Arc<Engine> {
    let device = Arc::clone(testing::context().device());
    Arc::new_cyclic(|me| Engine::new(device, config, None, Weak::clone(me)))
}

/// A queue pair connected with itself, which tries nothing again, and its completions.
pub(super) fn alone() -> (Arc<Qp>, Arc<Cq>) {
    let pd = testing::pd();
    let channel = Some(pd.context().create_comp_channel().unwrap());
    let cq = pd.context().create_cq(CqInit { cqe: 4, channel, user: 7, ..CqInit::default() }).unwrap();
    let caps = QpCaps { max_send_wr: 1, ..QpCaps::default() };
    let (send_cq, recv_cq, service) = (Arc::clone(&cq), Arc::clone(&cq), Service::Rc);
    let init = QpInit { service, caps, sq_sig_all: false, send_cq, recv_cq, srq: None, user: 0 };
    let qp = pd.create_qp(init).unwrap();
    let loopback = Ipv4Addr::LOCALHOST.into();
    let av = Av { sgid: loopback, dgid: loopback, hop_limit: 64, ..Av::default() };
    let init = QpAttr { state: QpState::Init, port: 1, access: Access::REMOTE_WRITE, ..QpAttr::default() };
    let rtr = QpAttr { state: QpState::Rtr, av, dest_qpn: qp.qpn(), path_mtu: PathMtu::Mtu1024, ..init };
    let rts = QpAttr { state: QpState::Rts, timeout: 1, retry_cnt: 0, ..rtr };
    testing::connect(&qp, [init, rtr, rts]);
    (qp, cq)
}

/// Writes nothing to its peer.
fn write(qp: &Qp) {
    let op = SendOp::Write { remote_addr: 0, rkey: RKey(0) };
    let data = SendData::Inline(&[]);
    qp.post_send(&[SendRequest { wr_id: 1, op, flags: SendFlags::SIGNALED, data, ud: None }]).unwrap();
}

#[test]
fn a_timer_waits_for_a_look_at_what_has_arrived() {
    let (qp, cq) = alone();
    let mut done = vec![];
    let mut poll = || {
        cq.poll(1, |cqe| done.push(cqe.status)).unwrap();
        done.clone()
    };
    let engine = qp.pd().context().engine();
    // Another thread has the receive side and does not get the processor.
    let held = engine.rx.lock();
    write(&qp);
    let start = clock::now();
    while clock::now().since(start) < LATE {
        assert_eq!(poll(), [], "nobody has looked whether the answer is there");
    }
    drop(held);
    while poll().is_empty() {}
    assert_eq!(poll(), [WcStatus::Success]);
}

#[test]
fn a_timer_that_was_moved_waits_for_a_look_of_its_own() {
    let (qp, cq) = alone();
    let engine = qp.pd().context().engine();
    let mut held = engine.rx.lock();
    let mut done = vec![];
    let mut poll = || {
        cq.poll(1, |cqe| done.push(cqe.status)).unwrap();
        done.clone()
    };
    // The timer of the first one stays where it is, and the second one's comes later.
    write(&qp);
    while poll().is_empty() {
        engine.receive(&mut held, true, clock::now());
    }
    write(&qp);
    let start = clock::now();
    while clock::now().since(start) < LATE {}
    // Somebody looked before the second one was sent.
    engine.run_timers(engine.timers.added(), clock::now());
    drop(held);
    while poll().len() < 2 {}
    assert_eq!(poll(), [WcStatus::Success; 2]);
}

#[test]
fn who_receives_for_long_has_not_gone() {
    let (qp, _) = alone();
    let engine = qp.pd().context().engine();
    let _held = engine.rx.lock();
    let now = clock::now();
    engine.presence.note_poll(now);
    assert!(engine.polled_recently(now.after(Duration::from_secs(1))));
}

#[test]
fn packets_without_end_hold_up_timers_for_a_while_only() {
    let mut state = RxState::default();
    for _ in 0..2 {
        assert!(!state.ends_overdue(true), "more of them may be there");
        assert!((0..1 << 16).any(|_| state.ends_overdue(true)));
    }
    assert!(state.ends_overdue(false));
}

#[test]
fn timers_that_are_always_due_have_the_sockets_looked_at_now_and_then() {
    let (mut state, start) = (RxState::default(), clock::now());
    let looks = (0..1000).filter(|at| state.takes_turn_of_sockets(true, start.after(Duration::from_nanos(100) * *at)));
    assert_eq!(looks.count(), 5);
}

#[test]
fn who_waits_for_an_event_receives_what_it_tells_of() {
    let (qp, cq) = alone();
    for _ in 0..100 {
        cq.req_notify(false);
        write(&qp);
        assert_eq!(cq.channel().unwrap().get_event().unwrap(), 7);
        assert_eq!(cq.poll(2, |cqe| assert_eq!(cqe.status, WcStatus::Success)).unwrap(), 1);
    }
}
