//! Ping-pong between two processes. Lost packets are not retransmitted, so that a test notices
//! them.

use super::*;
use roxe_provider::WcStatus;
use roxe_provider::wire::{PathMtu, Qpn};
use std::cell::Cell;

/// `wr_id` of receives; that of sends is 0.
const RECEIVE: u64 = 1;
/// Time after which a message counts as lost.
const LOST: Duration = Duration::from_secs(20);

/// One end of a ping-pong.
pub(crate) struct PingPong {
    node: Node,
    pub(crate) qp: Arc<Qp>,
    service: Service,
    peer: Qpn,
    /// Number of completed sends.
    completed: Cell<u64>,
}

impl PingPong {
    pub(crate) fn new(service: Service) -> Self {
        let node = Node::open();
        let qp = node.qp(service);
        Self { node, qp, service, peer: Qpn::default(), completed: Cell::new(0) }
    }

    /// Connects the queue pair and posts receives. Returns 1, the reply that the test expects.
    pub(crate) fn connect(&mut self, peer: Qpn) -> u64 {
        self.peer = peer;
        match self.service {
            Service::Ud => activate(&self.qp),
            _ => connect_with(&self.qp, self.av(), peer, PathMtu::Mtu1024, 0),
        }
        (0..8).for_each(|_| self.post_receive());
        1
    }

    fn av(&self) -> Av {
        self.node.av(0, self.node.context.gid(1, 0).unwrap())
    }

    fn post_receive(&self) {
        post_recv(&self.qp, RECEIVE, self.node.sge(4096, 4096));
    }

    fn send(&self) {
        let sge = [self.node.sge(0, 64)];
        let send = match self.service {
            Service::Ud => datagram(0, self.av(), self.peer, &sge),
            _ => request(0, SendOp::Send, &sge),
        };
        self.qp.post_send(&[send]).unwrap();
    }

    /// Sends messages for `time`, each after the answer to the previous one. Returns their number.
    pub(crate) fn send_for(&self, time: Duration) -> u64 {
        let (start, mut rounds) = (Instant::now(), 0);
        while start.elapsed() < time {
            self.send();
            self.receive();
            rounds += 1;
        }
        rounds
    }

    /// Answers each message until the process is killed.
    pub(crate) fn answer(&self) -> ! {
        loop {
            self.receive();
            self.send();
        }
    }

    /// Sends `rounds` messages, each after the answer to the previous one. Returns how often an
    /// answer was received before the send that it answers completed.
    pub(crate) fn count_overtaken_sends(&self, rounds: u64) -> u64 {
        let mut overtaken = 0;
        for round in 1..=rounds {
            self.send();
            self.receive();
            overtaken += u64::from(self.completed.get() < round);
            // The send must complete before the next round, which would count it again.
            while self.completed.get() < round {
                self.poll();
            }
        }
        overtaken
    }

    fn receive(&self) {
        let start = Instant::now();
        while !self.poll() {
            let counters = || self.node.context.counters();
            assert!(start.elapsed() < LOST, "{:?}: a message is lost; {:?}", self.service, counters());
        }
        self.post_receive();
    }

    /// Polls one completion. Returns true if a message was received.
    fn poll(&self) -> bool {
        let mut received = false;
        let take = |cqe: &Cqe| {
            assert_eq!(cqe.status, WcStatus::Success);
            received = cqe.wr_id == RECEIVE;
            self.completed.set(self.completed.get() + u64::from(!received));
        };
        self.node.cq.poll(1, take).unwrap();
        received
    }
}
