//! Many threads on few queues: each posts shared receives, sends on any connection and polls any
//! completion queue, so that all contend for every lock.

use crate::common::*;
use roxe_provider::wire::PathMtu;
use roxe_provider::{
    Context, Cq, CqInit, PostError, Qp, QpCaps, QpInit, RecvRequest, SendOp, Service, Sge, Srq, SrqInit, WcOpcode,
    WcStatus,
};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const THREADS: usize = 32;
const CONNECTIONS: usize = 8;
/// Messages that each thread sends.
const MESSAGES: usize = 200;
/// Length of a message in bytes.
const LEN: usize = 64;
/// Time limit for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Connections between queue pairs of one node. Each connection has a completion queue. The
/// receiving queue pairs use the shared receive queues `srqs` in turn.
struct Connections {
    context: Arc<Context>,
    /// One buffer per thread.
    sges: Vec<Sge>,
    cqs: Vec<Arc<Cq>>,
    srqs: Vec<Arc<Srq>>,
    senders: Vec<Arc<Qp>>,
    _receivers: Vec<Arc<Qp>>,
    sent: AtomicUsize,
    received: AtomicUsize,
    start: Barrier,
}

impl Connections {
    fn new(srq_count: usize) -> Self {
        let node = Node::open();
        let srq = || node.pd.create_srq(SrqInit { max_wr: 8192, max_sge: 1, ..SrqInit::default() }).unwrap();
        let srqs: Vec<_> = (0..srq_count).map(|_| srq()).collect();
        let cq = || node.context.create_cq(CqInit { cqe: 8192, ..CqInit::default() }).unwrap();
        let cqs: Vec<_> = (0..CONNECTIONS).map(|_| cq()).collect();
        let caps = QpCaps { max_send_wr: 64, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 0 };
        let gid = node.context.gid(1, 0).unwrap();
        let qp = |index: usize, srq: Option<Arc<Srq>>| {
            let (send_cq, recv_cq) = (Arc::clone(&cqs[index]), Arc::clone(&cqs[index]));
            let init = QpInit { service: Service::Rc, caps, sq_sig_all: true, send_cq, recv_cq, srq, user_context: 0 };
            node.pd.create_qp(init).unwrap()
        };
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..CONNECTIONS)
            .map(|index| {
                let (a, b) = (qp(index, None), qp(index, Some(Arc::clone(&srqs[index % srqs.len()]))));
                connect(&a, node.av(0, gid), b.qpn(), PathMtu::Mtu1024);
                connect(&b, node.av(0, gid), a.qpn(), PathMtu::Mtu1024);
                (a, b)
            })
            .unzip();
        let (sent, received) = Default::default();
        let sges = (0..THREADS).map(|thread| node.sge(thread * LEN, LEN)).collect();
        // The node is leaked: `sges` refer to its memory, which has to stay registered.
        let context = Arc::clone(&node.context);
        std::mem::forget(node);
        Self { context, sges, cqs, srqs, senders, _receivers: receivers, sent, received, start: Barrier::new(THREADS) }
    }

    /// Polls the completion queue of connection `index`, and counts the completions.
    fn poll(&self, index: usize) {
        let count_cqe = |cqe: &roxe_provider::Cqe| {
            assert_eq!(cqe.status, WcStatus::Success, "{cqe:?}");
            let count = if cqe.opcode == WcOpcode::Recv { &self.received } else { &self.sent };
            count.fetch_add(1, Relaxed);
        };
        self.cqs[index % CONNECTIONS].poll(16, count_cqe).unwrap();
    }

    /// Posts a thread's share of receives and sends, and polls until those of all threads are
    /// complete.
    fn run(&self, thread: usize) {
        let (started, sge) = (Instant::now(), self.sges[thread]);
        let check_time = || {
            let counters = || self.context.counters().into_iter().filter(|(_, n)| *n > 0).collect::<Vec<_>>();
            let (sent, received) = (self.sent.load(Relaxed), self.received.load(Relaxed));
            assert!(started.elapsed() < TIMEOUT, "{sent} sent, {received} received: {:?}", counters());
        };
        self.start.wait();
        for turn in 0..MESSAGES {
            let index = thread + turn;
            let before = self.sent.load(Relaxed);
            let srq = &self.srqs[index % CONNECTIONS % self.srqs.len()];
            srq.post_recv(&RecvRequest { wr_id: 0, sges: &[sge] }).unwrap();
            let sender = &self.senders[index % CONNECTIONS];
            while let Err((_, error)) = sender.post_send(&[request(1, SendOp::Send, &[sge])]) {
                assert!(matches!(error, PostError::QueueFull), "{error}");
                self.poll(index);
                check_time();
            }
            // Wait until any thread's request completes, so that all threads run at once.
            let mut next = index;
            while self.sent.load(Relaxed) == before {
                self.poll(next);
                next += 1;
                check_time();
            }
        }
        let mut next = thread;
        while self.sent.load(Relaxed) + self.received.load(Relaxed) < 2 * THREADS * MESSAGES {
            self.poll(next);
            next += 1;
            check_time();
        }
    }
}

/// Runs the threads, and checks that every send and every receive completes.
fn run_threads(srq_count: usize) {
    let (connections, started) = (Connections::new(srq_count), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let connections = &connections;
            scope.spawn(move || connections.run(thread));
        }
    });
    assert_eq!(
        (connections.sent.into_inner(), connections.received.into_inner()),
        (THREADS * MESSAGES, THREADS * MESSAGES)
    );
    println!("{srq_count} SRQs: {:.2} s", started.elapsed().as_secs_f32());
}

#[test]
fn threads_on_one_srq_complete_all_messages() {
    run_threads(1);
}

#[test]
fn threads_on_several_srqs_complete_all_messages() {
    run_threads(4);
}
