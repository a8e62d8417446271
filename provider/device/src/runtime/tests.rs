//! Who runs timers and receives when, with queue pairs; messages of connection managers while
//! nobody gets the receive side.

use super::Runtime;
use crate::cq::{Cq, CqInit};
use crate::ib_cm::Session;
use crate::qp::{Qp, QpInit};
use crate::testing;
use roxe_base::clock;
use roxe_transport::cm::{Resolve, Route};
use roxe_transport::qp::{QpAttr, QpCaps, QpState, Service};
use roxe_transport::wr::{Access, Av, SendData, SendFlags, SendOp, SendRequest, WcStatus};
use roxe_wire::cm::ServiceId;
use roxe_wire::{PathMtu, RKey};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// The shortest timeout of a queue pair takes half as long.
const LATE: Duration = Duration::from_millis(10);

/// Who has it decides when engines of this process receive and run timers. A packet can come to the
/// socket of any of them, and waits there while nobody gets its receive side.
static ENGINES: Mutex<()> = Mutex::new(());

fn engines() -> MutexGuard<'static, ()> {
    ENGINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue pair connected with itself, which tries nothing again, and its completions. Its packets
/// come to this engine: one was completed. Those of others may go to the socket of an engine that
/// has just ended, and are lost with it.
fn alone() -> (Arc<Qp>, Arc<Cq>) {
    loop {
        let (qp, cq) = connected();
        write(&qp);
        let mut status = None;
        while status.is_none() {
            cq.poll(1, |cqe| status = Some(cqe.status)).unwrap();
        }
        if status == Some(WcStatus::Success) {
            return (qp, cq);
        }
    }
}

fn connected() -> (Arc<Qp>, Arc<Cq>) {
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
fn a_timer_waits_until_arrived_packets_are_received() {
    let _engines = engines();
    let (qp, cq) = alone();
    let mut done = vec![];
    let mut poll = || {
        cq.poll(1, |cqe| done.push(cqe.status)).unwrap();
        done.clone()
    };
    let engine = cq.engine();
    // Another thread has the receive side and does not get the processor.
    let held = engine.hold_receive_side();
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
fn a_rescheduled_timer_waits_for_a_receive_after_it() {
    let _engines = engines();
    let (qp, cq) = alone();
    let engine = cq.engine();
    let mut done = vec![];
    let mut poll = || {
        cq.poll(1, |cqe| done.push(cqe.status)).unwrap();
        done.clone()
    };
    let held = engine.hold_receive_side();
    // Somebody looked before the second one was sent.
    let looked = engine.timers_added();
    // The timer of the first one stays where it is, and that of this one comes later. Where this
    // thread stood still the first timer has run, and this one sets its own.
    write(&qp);
    let start = clock::now();
    while clock::now().since(start) < LATE {}
    engine.run_due_timers(looked);
    drop(held);
    while poll().is_empty() {}
    assert_eq!(poll(), [WcStatus::Success]);
}

#[test]
fn waiting_for_an_event_receives_the_packets_that_cause_it() {
    let _engines = engines();
    let (qp, cq) = alone();
    for _ in 0..100 {
        cq.req_notify(false);
        write(&qp);
        assert_eq!(cq.channel().unwrap().get_event().unwrap(), 7);
        assert_eq!(cq.poll(2, |cqe| assert_eq!(cqe.status, WcStatus::Success)).unwrap(), 1);
    }
}

#[test]
fn a_message_for_this_host_does_not_wait_for_a_receive_side_that_is_never_free() {
    let _engines = engines();
    // Of its own: nobody else needs the receive side that is held.
    let runtime = Runtime::new(testing::context().device()).unwrap();
    runtime.engine().start_with_links().unwrap();
    let here = Ipv4Addr::LOCALHOST.into();
    let resolve = Resolve::new(Route { local: here, remote: here }, ServiceId(7001));
    let ask = |session: &mut Session<'_>| session.cm.resolve(&mut session.cx, &resolve).unwrap();
    let ((held, is_held), (done, is_done)) = (mpsc::channel(), mpsc::channel::<()>());
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _rx = runtime.engine().hold_receive_side();
            held.send(()).unwrap();
            // Until the other end is gone.
            let _ = is_done.into_iter().next();
        });
        is_held.recv().unwrap();
        let first = runtime.cm(ask).unwrap();
        assert_ne!(first, runtime.cm(ask).unwrap());
        drop(done);
    });
}
