//! Litmus programs on the weakest legal card, over real packets: some seed shows each outcome that
//! the standard allows, and no seed one that it forbids. Both ends are in one process, connected by
//! RC.

use crate::common::*;
use roxe_provider::weakest::{Weakness, turn_on};
use roxe_provider::wire::PathMtu;
use roxe_provider::{
    Cq, CqInit, Cqe, PostError, Qp, QpCaps, QpInit, SendFlags, SendOp, SendRequest, Service, Sge, WcStatus,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Offsets that the programs write, read and receive at.
const DATA: usize = 0;
const FLAG: usize = 4096;
const INBOX: usize = 8192;
/// Length of a message in bytes.
const LEN: usize = 300;
/// Maximum number of seeds until every outcome has occurred.
const SEEDS: u64 = 2000;

/// Two ends on a weak card, with one or two connections.
struct WeakNodes {
    a: Node,
    b: Node,
    pairs: Vec<(Arc<Qp>, Arc<Qp>)>,
}

impl WeakNodes {
    fn new() -> Self {
        turn_on(0, Weakness::all());
        Self { a: Node::open(), b: Node::open(), pairs: vec![] }
    }

    /// Connects new queue pairs and clears the memory.
    fn begin(&mut self, seed: u64, pairs: usize) {
        turn_on(seed, Weakness::all());
        self.pairs = (0..pairs).map(|_| pair(&self.a, &self.b, Service::Rc, 0, PathMtu::Mtu1024)).collect();
        for node in [&self.a, &self.b] {
            (0..INBOX + LEN).for_each(|at| set(node, at, 0));
        }
        (0..LEN).for_each(|at| set(&self.a, at, 7));
    }

    /// Connects a pair whose requester completes in `cq` and has `depth` send places.
    fn connect_to(&self, cq: &Arc<Cq>, depth: u32) -> (Arc<Qp>, Arc<Qp>) {
        let caps = QpCaps { max_send_wr: depth, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
        let init =
            QpInit { service: Service::Rc, caps, sq_sig_all: false, send_cq, recv_cq, srq: None, user_context: 0 };
        let (qa, qb) = (self.a.pd.create_qp(init).unwrap(), self.b.qp(Service::Rc));
        let gid = self.a.context.gid(1, 0).unwrap();
        connect(&qa, self.a.av(0, gid), qb.qpn(), PathMtu::Mtu1024);
        connect(&qb, self.b.av(0, gid), qa.qpn(), PathMtu::Mtu1024);
        (qa, qb)
    }

    fn qa(&self, index: usize) -> &Qp {
        &self.pairs[index].0
    }

    /// Returns the number of data bytes at B, and true if the flag is set.
    fn seen(&self) -> (Amount, bool) {
        let there = self.b.bytes(DATA, LEN).iter().filter(|byte| **byte == 7).count();
        (Amount::of(there), self.b.bytes(FLAG, 1)[0] == 7)
    }

    /// Polls both ends, and calls `look` in between, until A and B have these numbers of
    /// completions.
    fn until(&self, [count_a, count_b]: [usize; 2], mut look: impl FnMut(&Self, &[Cqe])) {
        let (start, mut at_a, mut at_b) = (Instant::now(), vec![], vec![]);
        while at_a.len() < count_a || at_b.len() < count_b {
            self.a.cq.poll(16, |cqe| at_a.push(*cqe)).unwrap();
            self.b.cq.poll(16, |cqe| at_b.push(*cqe)).unwrap();
            look(self, &at_b);
            assert!(start.elapsed() < Duration::from_secs(20), "{at_a:?} {at_b:?}");
        }
        assert!(at_a.iter().chain(&at_b).all(|cqe| cqe.status == WcStatus::Success), "{at_a:?} {at_b:?}");
    }
}

fn set(node: &Node, at: usize, byte: u8) {
    // SAFETY: inside the leaked buffer, which no operation writes to at that moment.
    unsafe { node.memory.add(at).write_volatile(byte) };
}

/// Share of the data that is visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Amount {
    None,
    Some,
    All,
}

impl Amount {
    fn of(count: usize) -> Self {
        match count {
            0 => Self::None,
            LEN => Self::All,
            _ => Self::Some,
        }
    }
}

/// Returns an unsignaled request.
fn silent(qp: &Qp, op: SendOp, sge: Sge, flags: SendFlags) -> Result<(), PostError> {
    let sges = [sge];
    qp.post_send(&[SendRequest { flags, ..request(0, op, &sges) }]).map_err(|(_, error)| error)
}

/// Runs `program` with successive seeds until all outcomes in `wanted` have occurred.
fn see<O: Ord + std::fmt::Debug>(wanted: &[O], mut program: impl FnMut(u64, &mut BTreeSet<O>)) {
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        program(seed, &mut seen);
        if wanted.iter().all(|outcome| seen.contains(outcome)) {
            return;
        }
    }
    panic!("of {wanted:?} only {seen:?} were seen");
}

#[test]
fn polled_flag_may_precede_data_but_not_completion() {
    let mut nodes = WeakNodes::new();
    see(&[(Amount::None, true), (Amount::Some, true), (Amount::All, false)], |seed, outcomes| {
        nodes.begin(seed, 1);
        silent(nodes.qa(0), write_to(&nodes.b, DATA), nodes.a.sge(DATA, LEN), SendFlags::empty()).unwrap();
        post(nodes.qa(0), 1, write_to(&nodes.b, FLAG), nodes.a.sge(DATA, 1));
        nodes.until([1, 0], |nodes, _| _ = outcomes.insert(nodes.seen()));
        assert_eq!(nodes.seen(), (Amount::All, true), "seed {seed}");
    });
}

#[test]
fn receive_completion_orders_earlier_writes() {
    let mut nodes = WeakNodes::new();
    see(&[Amount::None, Amount::Some], |seed, outcomes| {
        nodes.begin(seed, 1);
        post_recv(&nodes.pairs[0].1, 9, nodes.b.sge(INBOX, LEN));
        silent(nodes.qa(0), write_to(&nodes.b, DATA), nodes.a.sge(DATA, LEN), SendFlags::empty()).unwrap();
        post(nodes.qa(0), 1, SendOp::Send, nodes.a.sge(DATA, LEN));
        nodes.until([1, 1], |nodes, received| {
            let (data, _) = nodes.seen();
            assert!(received.is_empty() || data == Amount::All, "seed {seed}: {data:?} after the receive");
            outcomes.insert(data);
        });
        assert_eq!(nodes.b.bytes(INBOX, LEN), [7; LEN]);
    });
}

// The pieces of a READ are tested next to `Placement`: in this test they and the completion arrive
// in one visit of the queue pair, which no program can observe in part.
#[test]
fn read_follows_writes_and_is_whole_at_completion() {
    let mut nodes = WeakNodes::new();
    see(&[Amount::None, Amount::All], |seed, outcomes| {
        nodes.begin(seed, 1);
        silent(nodes.qa(0), write_to(&nodes.b, DATA), nodes.a.sge(DATA, LEN), SendFlags::empty()).unwrap();
        post(nodes.qa(0), 1, read_from(&nodes.b, DATA), nodes.a.sge(INBOX, LEN));
        let mut last = Amount::None;
        nodes.until([1, 0], |nodes, _| {
            last = Amount::of(nodes.a.bytes(INBOX, LEN).iter().filter(|byte| **byte == 7).count());
            outcomes.insert(last);
        });
        assert_eq!(last, Amount::All, "seed {seed}");
    });
}

// man ibv_post_send: with IBV_SEND_FENCE a request waits for the READs before it.
#[test]
fn fenced_send_carries_read_data() {
    let mut nodes = WeakNodes::new();
    for seed in 0..50 {
        nodes.begin(seed, 1);
        (0..LEN).for_each(|at| set(&nodes.b, at, 5));
        post_recv(&nodes.pairs[0].1, 9, nodes.b.sge(INBOX, LEN));
        silent(nodes.qa(0), read_from(&nodes.b, DATA), nodes.a.sge(FLAG, LEN), SendFlags::empty()).unwrap();
        let fence = SendFlags::SIGNALED | SendFlags::FENCE;
        silent(nodes.qa(0), SendOp::Send, nodes.a.sge(FLAG, LEN), fence).unwrap();
        nodes.until([1, 1], |_, _| {});
        assert_eq!(nodes.b.bytes(INBOX, LEN), [5; LEN], "seed {seed}");
    }
}

#[test]
fn order_holds_within_one_queue_pair_only() {
    let mut nodes = WeakNodes::new();
    see(&[(Amount::None, true), (Amount::Some, true), (Amount::All, false)], |seed, outcomes| {
        nodes.begin(seed, 2);
        post_recv(&nodes.pairs[1].1, 9, nodes.b.sge(INBOX, LEN));
        post(nodes.qa(0), 1, write_to(&nodes.b, DATA), nodes.a.sge(DATA, LEN));
        post(nodes.qa(1), 2, SendOp::Send, nodes.a.sge(DATA, LEN));
        nodes.until([2, 1], |nodes, received| _ = outcomes.insert((nodes.seen().0, !received.is_empty())));
        assert_eq!(nodes.seen().0, Amount::All, "seed {seed}");
    });
}

/// Executes `times` FETCH_ADDs of 1 on the word after the flag, by each queue pair.
fn add(nodes: &WeakNodes, times: usize) {
    for _ in 0..times {
        for (index, (qa, _)) in nodes.pairs.iter().enumerate() {
            let op = SendOp::FetchAdd { remote_addr: nodes.b.addr(FLAG), rkey: nodes.b.mr.rkey(), add: 1 };
            post(qa, 1, op, nodes.a.sge(INBOX + 8 * index, 8));
        }
        nodes.until([nodes.pairs.len(), 0], |_, _| {});
    }
}

fn word(nodes: &WeakNodes) -> &AtomicU64 {
    let word = nodes.b.addr(FLAG) as *mut u64;
    assert!(word.is_aligned());
    // SAFETY: aligned and inside the leaked buffer; all access while the reference lives is atomic,
    // or by the card, which reaches memory as another process would.
    unsafe { AtomicU64::from_ptr(word) }
}

// IBV_ATOMIC_HCA: man ibv_query_device.
#[test]
fn card_atomics_are_atomic_only_among_themselves() {
    let mut nodes = WeakNodes::new();
    nodes.begin(1, 2);
    add(&nodes, 200);
    assert_eq!(word(&nodes).load(Ordering::SeqCst), 400, "two queue pairs");
    let is_lost = (0..50).any(|_| {
        nodes.begin(2, 1);
        let (word, stopped) = (word(&nodes), AtomicBool::new(false));
        let added = std::thread::scope(|scope| {
            let processor = scope.spawn(|| {
                let mut added = 0;
                while !stopped.load(Ordering::Relaxed) {
                    word.fetch_add(1, Ordering::SeqCst);
                    added += 1;
                }
                added
            });
            add(&nodes, 100);
            stopped.store(true, Ordering::Relaxed);
            processor.join().unwrap()
        });
        word.load(Ordering::SeqCst) != added + 100
    });
    assert!(is_lost, "the processor's additions were never lost");
}

#[test]
fn send_place_is_free_after_later_completion_is_polled() {
    let mut nodes = WeakNodes::new();
    nodes.begin(3, 1);
    let cq = nodes.a.context.create_cq(CqInit { cqe: 64, ..CqInit::default() }).unwrap();
    let (qa, _qb) = nodes.connect_to(&cq, 4);
    let write = |flags| silent(&qa, write_to(&nodes.b, DATA), nodes.a.sge(DATA, 8), flags);
    for _ in 0..3 {
        (0..3).for_each(|_| write(SendFlags::empty()).unwrap());
        write(SendFlags::SIGNALED).unwrap();
        assert_eq!(write(SendFlags::SIGNALED), Err(PostError::QueueFull));
        let (start, mut polled) = (Instant::now(), 0);
        while polled == 0 {
            polled = cq.poll(16, |cqe| assert_eq!(cqe.status, WcStatus::Success)).unwrap();
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    }
    // They complete without a completion entry.
    (0..4).for_each(|_| write(SendFlags::empty()).unwrap());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        assert_eq!(cq.poll(16, |_| ()).unwrap(), 0);
    }
    assert_eq!(write(SendFlags::SIGNALED), Err(PostError::QueueFull), "no completion can ever free a slot");
}

// man ibv_get_cq_event: extra events may come.
#[test]
fn spurious_event_follows_polled_completion_once() {
    let mut nodes = WeakNodes::new();
    see(&[true, false], |seed, seen| {
        nodes.begin(seed, 1);
        let channel = nodes.a.context.create_comp_channel().unwrap();
        let init = CqInit { cqe: 64, channel: Some(Arc::clone(&channel)), ..CqInit::default() };
        let cq = nodes.a.context.create_cq(init).unwrap();
        let (qa, _qb) = nodes.connect_to(&cq, 16);
        cq.req_notify(false);
        assert!(channel.try_get_event().is_none(), "nothing has ever completed");
        post(&qa, 1, write_to(&nodes.b, DATA), nodes.a.sge(DATA, LEN));
        channel.get_event().unwrap();
        while cq.poll(16, |_| ()).unwrap() == 0 {}
        cq.req_notify(false);
        assert!(channel.try_get_event().is_none(), "it was for the completion that was polled");
        post(&qa, 2, write_to(&nodes.b, DATA), nodes.a.sge(DATA, LEN));
        channel.get_event().unwrap();
        // Another completion arrives and is polled before the next arming.
        post(&qa, 3, write_to(&nodes.b, DATA), nodes.a.sge(DATA, LEN));
        let mut done = 0;
        while done < 2 {
            done += cq.poll(16, |_| ()).unwrap();
        }
        cq.req_notify(false);
        let came = channel.try_get_event().is_some();
        seen.insert(came);
        // A spurious event may be raised by any arming.
        if came {
            cq.req_notify(false);
            assert!(channel.try_get_event().is_none(), "a second one for nothing");
        }
    });
}

#[test]
fn ud_qpn_is_reused_and_connected_qpn_is_not() {
    let mut nodes = WeakNodes::new();
    nodes.begin(5, 0);
    let again = |service| {
        let first = nodes.a.qp(service).qpn();
        nodes.a.qp(service).qpn() == first
    };
    assert!(again(Service::Ud));
    assert!(!again(Service::Rc) && !again(Service::Uc));
}

// IBA §11.4.2.2: the event is for the next completion.
#[test]
fn armed_queue_ignores_earlier_entries() {
    let mut nodes = WeakNodes::new();
    nodes.begin(4, 1);
    let channel = nodes.a.context.create_comp_channel().unwrap();
    let cq = nodes.a.context.create_cq(CqInit { cqe: 64, channel: Some(Arc::clone(&channel)), ..CqInit::default() });
    let cq = cq.unwrap();
    let (qa, _qb) = nodes.connect_to(&cq, 16);
    // The usual loop (arm, poll until empty, wait) never hangs.
    for _ in 0..20 {
        post(&qa, 1, write_to(&nodes.b, DATA), nodes.a.sge(DATA, LEN));
        let mut done = 0;
        while done == 0 {
            cq.req_notify(false);
            while cq.poll(16, |_| done += 1).unwrap() > 0 {}
            if done == 0 {
                channel.get_event().unwrap();
            }
        }
    }
}
