//! Timers and receives of engines with queue pairs; connection management while the receive side is
//! locked.

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

/// Half of the shortest timeout of a queue pair.
const HALF_TIMEOUT: Duration = Duration::from_millis(10);

/// Serializes tests: a packet may arrive at the socket of any engine of this process, and waits
/// there while its receive side is locked.
static ENGINES: Mutex<()> = Mutex::new(());

fn engines() -> MutexGuard<'static, ()> {
    ENGINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a queue pair connected with itself, with `retry_cnt` retries, and its completion queue.
/// Creates another one until its packets arrive at this engine: one of another test may have
/// received them and ended.
fn self_connected(retry_cnt: u8) -> (Arc<Qp>, Arc<Cq>) {
    loop {
        let (qp, cq) = connected(retry_cnt);
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

fn connected(retry_cnt: u8) -> (Arc<Qp>, Arc<Cq>) {
    let pd = testing::pd();
    let channel = Some(pd.context().create_comp_channel().unwrap());
    let cq = pd.context().create_cq(CqInit { cqe: 4, channel, user_context: 7, ..CqInit::default() }).unwrap();
    let caps = QpCaps { max_send_wr: 1, ..QpCaps::default() };
    let (send_cq, recv_cq, service) = (Arc::clone(&cq), Arc::clone(&cq), Service::Rc);
    let init = QpInit { service, caps, sq_sig_all: false, send_cq, recv_cq, srq: None, user_context: 0 };
    let qp = pd.create_qp(init).unwrap();
    let loopback = Ipv4Addr::LOCALHOST.into();
    let av = Av { sgid: loopback, dgid: loopback, hop_limit: 64, ..Av::default() };
    let init = QpAttr { state: QpState::Init, port: 1, access: Access::REMOTE_WRITE, ..QpAttr::default() };
    let rtr = QpAttr { state: QpState::Rtr, av, dest_qpn: qp.qpn(), path_mtu: PathMtu::Mtu1024, ..init };
    let rts = QpAttr { state: QpState::Rts, timeout: 1, retry_cnt, ..rtr };
    testing::connect(&qp, [init, rtr, rts]);
    (qp, cq)
}

/// Posts an RDMA WRITE of 0 bytes.
fn write(qp: &Qp) {
    let op = SendOp::Write { remote_addr: 0, rkey: RKey(0) };
    let data = SendData::Inline(&[]);
    qp.post_send(&[SendRequest { wr_id: 1, op, flags: SendFlags::SIGNALED, data, ud: None }]).unwrap();
}

#[test]
fn timer_waits_until_arrived_packets_are_received() {
    let _engines = engines();
    let (qp, cq) = self_connected(0);
    let mut done = vec![];
    let mut poll = || {
        cq.poll(1, |cqe| done.push(cqe.status)).unwrap();
        done.clone()
    };
    let engine = cq.engine();
    // Stands in for another thread that holds the receive side and is preempted.
    let held = engine.hold_receive_side();
    write(&qp);
    let start = clock::now();
    while clock::now().since(start) < HALF_TIMEOUT {
        assert_eq!(poll(), [], "the acknowledgement may have arrived");
    }
    drop(held);
    while poll().is_empty() {}
    assert_eq!(poll(), [WcStatus::Success]);
}

#[test]
fn rescheduled_timer_waits_for_a_later_receive() {
    let _engines = engines();
    let (qp, cq) = self_connected(0);
    let engine = cq.engine();
    let mut done = vec![];
    let mut poll = || {
        cq.poll(1, |cqe| done.push(cqe.status)).unwrap();
        done.clone()
    };
    let held = engine.hold_receive_side();
    // Stands in for a receive that began before the second WRITE is posted.
    let timers = engine.timers_added();
    // The timer of the first WRITE is still registered; the second one's expires later. If this
    // thread was preempted, the first has run, and the second WRITE registers its own.
    write(&qp);
    let start = clock::now();
    while clock::now().since(start) < HALF_TIMEOUT {}
    engine.run_due_timers(timers);
    drop(held);
    while poll().is_empty() {}
    assert_eq!(poll(), [WcStatus::Success]);
}

#[test]
fn get_event_receives_packets() {
    let _engines = engines();
    // The queue pair retries: a busy engine of another test may receive a packet and deliver it
    // here after the timeout.
    let (qp, cq) = self_connected(7);
    for _ in 0..100 {
        cq.req_notify(false);
        write(&qp);
        assert_eq!(cq.channel().unwrap().get_event().unwrap(), 7);
        assert_eq!(cq.poll(2, |cqe| assert_eq!(cqe.status, WcStatus::Success)).unwrap(), 1);
    }
}

#[test]
fn cm_message_within_host_does_not_need_receive_side() {
    let _engines = engines();
    // An engine that no other test uses.
    let runtime = Runtime::new(testing::context().device()).unwrap();
    runtime.engine().start_with_links().unwrap();
    let here = Ipv4Addr::LOCALHOST.into();
    let resolve = Resolve::new(Route { local: here, remote: here }, ServiceId(7001));
    let start_resolve = |session: &mut Session<'_>| session.cm.resolve(&mut session.cx, &resolve).unwrap();
    let ((held, is_held), (done, is_done)) = (mpsc::channel(), mpsc::channel::<()>());
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _rx = runtime.engine().hold_receive_side();
            held.send(()).unwrap();
            // Hold the receive side until `done` is dropped.
            let _ = is_done.into_iter().next();
        });
        is_held.recv().unwrap();
        let first = runtime.cm(start_resolve).unwrap();
        assert_ne!(first, runtime.cm(start_resolve).unwrap());
        drop(done);
    });
}
