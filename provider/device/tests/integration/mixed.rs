//! RC, UC and UD operations of one process outstanding at once, on both links; messages of 0 bytes.

use crate::common::peer::program;
use crate::common::*;
use roxe_provider::wire::PathMtu;
use roxe_provider::{
    Access, Av, CompChannel, Cq, CqInit, Cqe, PostError, Qp, QpCaps, QpInit, RecvRequest, SendOp, Service, Sge,
    WcOpcode, WcStatus,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time without a completion, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Runs `body` on each link, in a network namespace: unreliable messages may be lost when another
/// process joins or leaves the address.
#[track_caller]
fn on_both_links(name: &str, body: impl FnOnce()) {
    const LINK: &str = "ROXE_LINK";
    if std::env::var_os(LINK).is_some() {
        namespace::inside(name, namespace::LOOPBACK_UP, "lo", body);
    } else {
        for link in ["auto", "udp"] {
            assert!(program(name).env(LINK, link).status().unwrap().success(), "{LINK}={link}");
        }
    }
}

/// Operations of the big run, or `ROXE_TEST_OPERATIONS`.
fn operations() -> usize {
    std::env::var("ROXE_TEST_OPERATIONS").map_or(20_000, |count| count.parse().unwrap())
}

/// Number of queue pairs per service and end.
const PAIRS: usize = 8;
/// Number of outstanding requests of a queue pair.
const DEPTH: usize = 64;
/// Length of a message in bytes.
const LEN: usize = 32;
/// Buffer of a connection: sources, targets of WRITEs and READs, results of READs, and twice as
/// many receives.
const AREA: usize = 5 * DEPTH * LEN;

/// A connection: requester and responder.
struct Lane {
    service: Service,
    asks: Arc<Qp>,
    answers: Arc<Qp>,
    /// Completions of requests and of receives.
    sent: Arc<Cq>,
    received: Arc<Cq>,
    at: usize,
    posted: usize,
    completed: usize,
    sends: usize,
    arrived: usize,
    /// Number of the next SEND on a reliable connection.
    next: u64,
}

impl Lane {
    fn new(node: &Node, service: Service, at: usize) -> Self {
        let cq = || node.context.create_cq(CqInit { cqe: 4 * DEPTH as u32, ..CqInit::default() }).unwrap();
        let (sent, received) = (cq(), cq());
        let depth = 2 * DEPTH as u32;
        let caps =
            QpCaps { max_send_wr: depth, max_recv_wr: depth, max_send_sge: 1, max_recv_sge: 2, max_inline_data: 0 };
        let qp = || {
            let (send_cq, recv_cq) = (Arc::clone(&sent), Arc::clone(&received));
            let init = QpInit { service, caps, sq_sig_all: true, send_cq, recv_cq, srq: None, user_context: 0 };
            node.pd.create_qp(init).unwrap()
        };
        let (asks, answers) = (qp(), qp());
        let gid = node.context.gid(1, 0).unwrap();
        if service == Service::Ud {
            activate(&asks);
            activate(&answers);
        } else {
            connect(&asks, node.av(0, gid), answers.qpn(), PathMtu::Mtu1024);
            connect(&answers, node.av(0, gid), asks.qpn(), PathMtu::Mtu1024);
        }
        let (posted, completed, sends, arrived, next) = (0, 0, 0, 0, 0);
        let lane = Self { service, asks, answers, sent, received, at, posted, completed, sends, arrived, next };
        (0..2 * DEPTH).for_each(|slot| lane.post_recv(node, slot));
        lane
    }

    fn offset(&self, part: usize, slot: usize) -> usize {
        self.at * AREA + part * DEPTH * LEN + slot % DEPTH * LEN
    }

    fn receive_offset(&self, slot: usize) -> usize {
        self.at * AREA + 3 * DEPTH * LEN + slot * LEN
    }

    /// Posts a receive. The GRH of a datagram goes to an unused part of the memory.
    fn post_recv(&self, node: &Node, slot: usize) {
        let data = node.sge(self.receive_offset(slot), LEN);
        let header = node.sge(crate::common::LEN - 64, 40);
        let sges = if self.service == Service::Ud { &[header, data][..] } else { &[data][..] };
        self.answers.post_recv(&RecvRequest { wr_id: slot as u64, sges }).unwrap();
    }

    /// Posts the next request if there is room: SEND, WRITE, or with RC a READ.
    fn post(&mut self, node: &Node, av: Av) {
        if self.posted - self.completed >= DEPTH {
            return;
        }
        let (slot, number) = (self.posted, self.sends as u64);
        let kinds = match self.service {
            Service::Rc => 3,
            Service::Uc => 2,
            _ => 1,
        };
        let kind = self.posted % kinds;
        let sge = if kind == 2 { node.sge(self.offset(2, slot), LEN) } else { node.sge(self.offset(0, slot), LEN) };
        let op = match kind {
            0 => SendOp::Send,
            1 => write_to(node, self.offset(1, slot)),
            _ => read_from(node, self.offset(1, slot)),
        };
        if kind == 0 {
            // SAFETY: inside the leaked buffer; the request that used this slot before is complete.
            unsafe { node.memory.add(self.offset(0, slot)).cast::<[u8; 8]>().write_volatile(number.to_ne_bytes()) };
        }
        let list = [sge];
        let request = match self.service {
            Service::Ud => datagram(slot as u64, av, self.answers.qpn(), &list),
            _ => request(slot as u64, op, &list),
        };
        match self.asks.post_send(&[request]) {
            Ok(()) => {
                self.posted += 1;
                self.sends += usize::from(kind == 0);
            }
            Err((_, PostError::QueueFull)) => {}
            Err((_, error)) => panic!("{error}"),
        }
    }

    /// Polls completions; returns true if there were any.
    fn poll(&mut self, node: &Node) -> bool {
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        self.sent.poll(DEPTH, |cqe| sent.push(*cqe)).unwrap();
        self.received.poll(DEPTH, |cqe| received.push(*cqe)).unwrap();
        for cqe in sent.iter().chain(&received) {
            assert_eq!(cqe.status, WcStatus::Success, "{:?}: {cqe:?}", self.service);
        }
        self.completed += sent.len();
        for cqe in &received {
            self.take(node, cqe);
        }
        !(sent.is_empty() && received.is_empty())
    }

    fn take(&mut self, node: &Node, cqe: &Cqe) {
        assert_eq!(cqe.opcode, WcOpcode::Recv);
        let slot = cqe.wr_id as usize;
        let number = u64::from_ne_bytes(node.bytes(self.receive_offset(slot), 8).try_into().unwrap());
        // RC messages are whole and in order; others may be lost, and a datagram may be late.
        match self.service {
            Service::Rc => assert_eq!(number, self.next),
            Service::Uc => assert!(number >= self.next, "{number} arrived after {}", self.next),
            _ => assert!(number < self.sends as u64),
        }
        (self.next, self.arrived) = (number + 1, self.arrived + 1);
        self.post_recv(node, slot);
    }
}

/// Returns true if every lane has completed its `share`. RC messages have all arrived; others may
/// only be missing if no receive was posted, because this thread was preempted.
fn is_over(node: &Node, lanes: &[Lane], share: usize) -> bool {
    let is_done = |lane: &Lane| lane.completed >= share && (lane.service != Service::Rc || lane.arrived == lane.sends);
    let missing = || lanes.iter().map(|lane| lane.sends - lane.arrived).sum::<usize>();
    let counted = |name| node.context.counters().into_iter().find(|(found, _)| *found == name).map_or(0, |(_, n)| n);
    lanes.iter().all(is_done) && missing() as u64 <= counted("no_receive")
}

#[test]
fn operations_of_all_services_complete_together() {
    on_both_links("operations_of_all_services_complete_together", || {
        let (node, started) = (Node::open(), Instant::now());
        let services = [Service::Rc, Service::Uc, Service::Ud];
        let mut lanes: Vec<_> = (0..3 * PAIRS).map(|at| Lane::new(&node, services[at % 3], at)).collect();
        let av = node.av(0, node.context.gid(1, 0).unwrap());
        let (share, mut last) = (operations() / lanes.len(), Instant::now());
        while !is_over(&node, &lanes, share) {
            for lane in &mut lanes {
                while lane.posted < share && lane.posted - lane.completed < DEPTH {
                    lane.post(&node, av);
                }
                if lane.poll(&node) {
                    last = Instant::now();
                }
            }
            if last.elapsed() >= TIMEOUT {
                let progress = |lane: &Lane| (lane.service, lane.posted, lane.completed, lane.sends, lane.arrived);
                let all: Vec<_> = lanes.iter().map(progress).collect();
                panic!("nothing completes any more: {all:?}; {:?}", node.context.counters());
            }
        }
        for service in services {
            let sum_of = |count: fn(&Lane) -> usize| -> usize {
                lanes.iter().filter(|lane| lane.service == service).map(count).sum()
            };
            let (completed, sends, arrived) =
                (sum_of(|lane| lane.completed), sum_of(|lane| lane.sends), sum_of(|lane| lane.arrived));
            println!("{service:?}: {completed} complete, of {sends} messages {arrived} have arrived");
        }
        println!("{:.1} s", started.elapsed().as_secs_f32());
    });
}

/// Connects a pair whose ends complete on `channel`.
fn pair_on(node: &Node, channel: &Arc<CompChannel>) -> (Arc<Cq>, Arc<Qp>, Arc<Qp>) {
    let init = CqInit { cqe: 64, channel: Some(Arc::clone(channel)), ..CqInit::default() };
    let cq = node.context.create_cq(init).unwrap();
    let caps = QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let qp = || {
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        let init =
            QpInit { service: Service::Rc, caps, sq_sig_all: true, send_cq, recv_cq, srq: None, user_context: 0 };
        node.pd.create_qp(init).unwrap()
    };
    let (a, b) = (qp(), qp());
    let gid = node.context.gid(1, 0).unwrap();
    connect(&a, node.av(0, gid), b.qpn(), PathMtu::Mtu1024);
    connect(&b, node.av(0, gid), a.qpn(), PathMtu::Mtu1024);
    (cq, a, b)
}

#[test]
fn zero_byte_message_completes_polled_or_awaited() {
    on_both_links("zero_byte_message_completes_polled_or_awaited", || {
        let node = Node::open();
        // SAFETY: no bytes.
        let region = unsafe { node.pd.reg_mr(node.addr(0), 0, node.addr(0), Access::LOCAL_WRITE) }.unwrap();
        let nothing = Sge { addr: node.addr(0), length: 0, lkey: region.lkey() };
        let channel = node.context.create_comp_channel().unwrap();
        let (cq, a, b) = pair_on(&node, &channel);
        let mut longest = Duration::ZERO;
        for turn in 0..2000 {
            let (started, waits, mut done) = (Instant::now(), turn % 2 == 1, 0);
            b.post_recv(&RecvRequest { wr_id: 1, sges: &[nothing] }).unwrap();
            a.post_send(&[request(2, SendOp::Send, &[nothing])]).unwrap();
            while done < 2 {
                if waits {
                    cq.req_notify(false);
                }
                let found = cq.poll(4, |cqe| assert_eq!((cqe.status, cqe.byte_len), (WcStatus::Success, 0))).unwrap();
                done += found;
                if waits && found == 0 {
                    channel.get_event().unwrap();
                }
                assert!(started.elapsed() < TIMEOUT, "turn {turn}: {done} of 2; {:?}", node.context.counters());
            }
            longest = longest.max(started.elapsed());
        }
        println!("the longest took {longest:?}");
    });
}
