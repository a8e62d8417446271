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
const PAIRS: usize = 8;
const MESSAGES: usize = 200;
const LEN: usize = 64;
/// Maximum duration, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Connections between two nodes, each with a completion queue; the receivers take from `srqs`
/// shared receive queues.
struct Connections {
    context: Arc<Context>,
    /// Memory per thread.
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
    fn new(srqs: usize) -> Self {
        let node = Node::open();
        let srq = || node.pd.create_srq(SrqInit { max_wr: 8192, max_sge: 1, ..SrqInit::default() }).unwrap();
        let srqs: Vec<_> = (0..srqs).map(|_| srq()).collect();
        let cq = || node.context.create_cq(CqInit { cqe: 8192, ..CqInit::default() }).unwrap();
        let cqs: Vec<_> = (0..PAIRS).map(|_| cq()).collect();
        let caps = QpCaps { max_send_wr: 64, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 0 };
        let gid = node.context.gid(1, 0).unwrap();
        let qp = |at: usize, srq: Option<Arc<Srq>>| {
            let (send_cq, recv_cq) = (Arc::clone(&cqs[at]), Arc::clone(&cqs[at]));
            let init = QpInit { service: Service::Rc, caps, sq_sig_all: true, send_cq, recv_cq, srq, user_context: 0 };
            node.pd.create_qp(init).unwrap()
        };
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..PAIRS)
            .map(|at| {
                let (a, b) = (qp(at, None), qp(at, Some(Arc::clone(&srqs[at % srqs.len()]))));
                connect(&a, node.av(0, gid), b.qpn(), PathMtu::Mtu1024);
                connect(&b, node.av(0, gid), a.qpn(), PathMtu::Mtu1024);
                (a, b)
            })
            .unzip();
        let (sent, received) = Default::default();
        let sges = (0..THREADS).map(|thread| node.sge(thread * LEN, LEN)).collect();
        // The registration and its memory are leaked.
        let context = Arc::clone(&node.context);
        std::mem::forget(node);
        Self { context, sges, cqs, srqs, senders, _receivers: receivers, sent, received, start: Barrier::new(THREADS) }
    }

    fn poll(&self, at: usize) {
        let found = |cqe: &roxe_provider::Cqe| {
            assert_eq!(cqe.status, WcStatus::Success, "{cqe:?}");
            let count = if cqe.opcode == WcOpcode::Recv { &self.received } else { &self.sent };
            count.fetch_add(1, Relaxed);
        };
        self.cqs[at % PAIRS].poll(16, found).unwrap();
    }

    /// Posts a thread's share of receives and sends, and polls until those of all threads are
    /// complete.
    fn run(&self, thread: usize) {
        let (started, sge) = (Instant::now(), self.sges[thread]);
        let watch = || {
            let counters = || self.context.counters().into_iter().filter(|(_, n)| *n > 0).collect::<Vec<_>>();
            let (sent, received) = (self.sent.load(Relaxed), self.received.load(Relaxed));
            assert!(started.elapsed() < TIMEOUT, "{sent} sent, {received} received: {:?}", counters());
        };
        self.start.wait();
        for turn in 0..MESSAGES {
            let at = thread + turn;
            let before = self.sent.load(Relaxed);
            let srq = &self.srqs[at % PAIRS % self.srqs.len()];
            srq.post_recv(&RecvRequest { wr_id: 0, sges: &[sge] }).unwrap();
            while let Err((_, error)) = self.senders[at % PAIRS].post_send(&[request(1, SendOp::Send, &[sge])]) {
                assert!(matches!(error, PostError::QueueFull), "{error}");
                self.poll(at);
                watch();
            }
            // Until a request completes, so that all threads run at once.
            let mut next = at;
            while self.sent.load(Relaxed) == before {
                self.poll(next);
                next += 1;
                watch();
            }
        }
        let mut at = thread;
        while self.sent.load(Relaxed) + self.received.load(Relaxed) < 2 * THREADS * MESSAGES {
            self.poll(at);
            at += 1;
            watch();
        }
    }
}

fn all_complete(srqs: usize) {
    let (connections, started) = (Connections::new(srqs), Instant::now());
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
    println!("{srqs} SRQs: {:.2} s", started.elapsed().as_secs_f32());
}

#[test]
fn threads_share_one_receive_queue() {
    all_complete(1);
}

#[test]
fn threads_share_several_receive_queues() {
    all_complete(4);
}
