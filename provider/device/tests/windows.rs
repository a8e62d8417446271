//! Memory windows between two processes: what a peer reaches through one, from where, and until when.
//!
//! The owner of the memory and its visitor are this program, started again; they obey one line at a time.

mod common;

use common::peer::{MARK, Peer, ROLE};
use common::{LEN, Node, connect, post, request};
use roxe_provider::wire::{PathMtu, Qpn, RKey};
use roxe_provider::{Access, Cqe, Mr, Mw, MwKind, Qp, RecvRequest, SendOp, Service, WcExtra, WcStatus};
use std::sync::Arc;

const ACCESS_ERROR: u64 = WcStatus::RemAccessErr as u64;
/// Bytes of a window: several packets.
const SPAN: usize = 5000;
/// Where windows begin in the memory of the owner.
const START: usize = LEN / 2;

/// The program of a peer.
struct Puppet {
    node: Node,
    qps: Vec<Arc<Qp>>,
    /// The same memory as the node's region, for windows only.
    closed: Arc<Mr>,
    windows: Vec<Arc<Mw>>,
}

/// Not a test of its own: does something only where a test has started it.
#[test]
fn peer() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let node = Node::open();
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let closed = node.pd.reg_mr(node.addr(0), LEN as u64, node.addr(0), access).unwrap();
    let mut puppet = Puppet { node, qps: Vec::new(), closed, windows: Vec::new() };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let numbers: Vec<u64> = words.iter().skip(1).map(|word| word.parse().unwrap()).collect();
        let answer = puppet.obey(words[0], &numbers).into_iter().map(|number| number.to_string()).collect::<Vec<_>>();
        println!("\n{MARK}{}", answer.join(" "));
    }
}

impl Puppet {
    fn obey(&mut self, command: &str, numbers: &[u64]) -> Vec<u64> {
        let qp = |at: usize| &self.qps[numbers[at] as usize];
        match (command, numbers) {
            ("create", _) => self.create(),
            ("connect", [_, number]) => self.connect(qp(0), Qpn::new(*number as u32)),
            ("allocate", [kind]) => self.allocate(*kind),
            ("bind", [_, rkey]) => self.bind(qp(0), RKey(*rkey as u32)),
            ("invalidate", [_, rkey]) => self.run(qp(0), SendOp::LocalInvalidate(RKey(*rkey as u32)), 0),
            ("receive", _) => self.receive(qp(0)),
            ("received", _) => self.received(),
            ("revoke", [_, rkey]) => self.run(qp(0), SendOp::SendInvalidate(RKey(*rkey as u32)), 0),
            ("fill", [seed]) => self.fill(*seed as u8),
            ("same", [at, seed]) => vec![u64::from(self.node.bytes(*at as usize, SPAN) == pattern(*seed as u8))],
            ("write", [_, remote_addr, rkey]) => {
                self.run(qp(0), SendOp::Write { remote_addr: *remote_addr, rkey: RKey(*rkey as u32) }, SPAN)
            }
            ("read", [_, remote_addr, rkey]) => {
                self.run(qp(0), SendOp::Read { remote_addr: *remote_addr, rkey: RKey(*rkey as u32) }, SPAN)
            }
            other => panic!("unknown command {other:?}"),
        }
    }

    fn create(&mut self) -> Vec<u64> {
        self.qps.push(self.node.qp(Service::Rc));
        self.qps.last().map(|qp| qp.qpn().get().into()).into_iter().collect()
    }

    fn connect(&self, qp: &Qp, peer: Qpn) -> Vec<u64> {
        connect(qp, self.node.av(0, self.node.context.gid(1, 0).unwrap()), peer, PathMtu::Mtu1024);
        vec![1]
    }

    /// The first key of a new window, and where it will begin.
    fn allocate(&mut self, kind: u64) -> Vec<u64> {
        let mw = self.node.pd.alloc_mw(if kind == 1 { MwKind::One } else { MwKind::Two }).unwrap();
        let answer = vec![mw.rkey().0.into(), self.node.addr(START)];
        self.windows.push(mw);
        answer
    }

    fn bind(&self, qp: &Qp, rkey: RKey) -> Vec<u64> {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (lkey, addr, length) = (self.closed.lkey(), self.node.addr(START), SPAN as u64);
        self.run(qp, SendOp::BindWindow { rkey, lkey, access, addr, length }, 0)
    }

    /// The status of a request with `len` bytes from the beginning of the memory.
    fn run(&self, qp: &Qp, op: SendOp, len: usize) -> Vec<u64> {
        match len {
            0 => qp.post_send(&[request(1, op, &[])]).unwrap(),
            len => post(qp, 1, op, self.node.sge(0, len)),
        }
        vec![self.node.wait(1)[0].status as u64]
    }

    fn receive(&self, qp: &Qp) -> Vec<u64> {
        qp.post_recv(&RecvRequest { wr_id: 2, sges: &[] }).unwrap();
        vec![1]
    }

    /// Status of the next completion, and the key that it says the peer has invalidated.
    fn received(&self) -> Vec<u64> {
        let Cqe { status, extra, .. } = self.node.wait(1)[0];
        let key = if let WcExtra::Invalidated(rkey) = extra { rkey.0 } else { 0 };
        vec![status as u64, key.into()]
    }

    fn fill(&self, seed: u8) -> Vec<u64> {
        self.node.fill(0, SPAN, seed);
        vec![1]
    }
}

fn pattern(seed: u8) -> Vec<u8> {
    common::pattern(SPAN, seed)
}

/// A process that owns memory and one that visits it.
struct Pair {
    owner: Peer,
    visitor: Peer,
}

impl Pair {
    fn start(knobs: &[(&str, &str)]) -> Self {
        let mut pair = Self { owner: Peer::start("owner", knobs), visitor: Peer::start("visitor", knobs) };
        pair.join(0);
        pair
    }

    /// One more connection between the two, which both call `number`.
    fn join(&mut self, number: u32) {
        let (of_owner, of_visitor) = (self.owner.ask("create")[0], self.visitor.ask("create")[0]);
        self.owner.ask(&format!("connect {number} {of_visitor}"));
        self.visitor.ask(&format!("connect {number} {of_owner}"));
    }

    /// A new window: a key of it, and its address.
    fn allocate(&mut self, kind: u32) -> (u64, u64) {
        let answer = self.owner.ask(&format!("allocate {kind}"));
        (answer[0], answer[1])
    }

    fn bind(&mut self, qp: u32, rkey: u64) {
        assert_eq!(self.owner.ask(&format!("bind {qp} {rkey}")), [0]);
    }

    /// How an operation of the visitor ends.
    fn visit(&mut self, operation: &str, qp: u32, addr: u64, rkey: u64) -> u64 {
        self.visitor.ask(&format!("{operation} {qp} {addr} {rkey}"))[0]
    }

    /// The visitor writes what `seed` says, and it arrives.
    fn write(&mut self, qp: u32, addr: u64, rkey: u64, seed: u8) {
        self.visitor.ask(&format!("fill {seed}"));
        assert_eq!(self.visit("write", qp, addr, rkey), 0);
        assert_eq!(self.owner.ask(&format!("same {START} {seed}")), [1]);
    }

    /// The visitor closes the window, and the owner hears of it.
    fn revoke(&mut self, rkey: u64) {
        self.owner.ask("receive 0");
        assert_eq!(self.visitor.ask(&format!("revoke 0 {rkey}")), [0]);
        assert_eq!(self.owner.ask("received"), [0, rkey]);
    }
}

/// `rkey` with another last byte.
fn tagged(rkey: u64, tag: u64) -> u64 {
    rkey & !0xff | tag & 0xff
}

// clause: WINDOW-ACCESS, INVALIDATE-LOCAL
#[test]
fn a_visitor_reads_and_writes_until_the_owner_closes_the_window() {
    let mut pair = Pair::start(&[]);
    let (rkey, addr) = pair.allocate(2);
    pair.bind(0, rkey);
    pair.write(0, addr, rkey, 3);
    pair.visitor.ask("fill 9");
    assert_eq!(pair.visit("read", 0, addr, rkey), 0);
    assert_eq!(pair.visitor.ask("same 0 3"), [1]);
    assert_eq!(pair.owner.ask(&format!("invalidate 0 {rkey}")), [0]);
    pair.visitor.ask("fill 9");
    assert_eq!(pair.visit("write", 0, addr, rkey), ACCESS_ERROR);
    assert_eq!(pair.owner.ask(&format!("same {START} 3")), [1], "nothing was written after that");
}

// clause: WINDOW-ACCESS
#[test]
fn only_the_range_of_the_window_is_open() {
    let mut pair = Pair::start(&[]);
    let (rkey, addr) = pair.allocate(2);
    pair.bind(0, rkey);
    pair.write(0, addr, rkey, 3);
    assert_eq!(pair.visit("read", 0, addr + 1, rkey), ACCESS_ERROR, "its last byte is outside");
}

// clause: WINDOW-ACCESS, WINDOW-TYPE-1
#[test]
fn a_second_connection_may_use_type_1_and_not_type_2() {
    let mut pair = Pair::start(&[]);
    pair.join(1);
    let ((one, addr), (two, _)) = (pair.allocate(1), pair.allocate(2));
    pair.bind(0, one);
    pair.bind(0, two);
    pair.write(1, addr, one, 4);
    pair.write(0, addr, two, 5);
    assert_eq!(pair.visit("write", 1, addr, two), ACCESS_ERROR);
    pair.write(0, addr, two, 6);
    pair.bind(0, tagged(one, one + 1));
    assert_eq!(pair.visit("write", 0, addr, one), ACCESS_ERROR, "the key of an earlier binding");
}

// clause: INVALIDATE-KEY
#[test]
fn a_visitor_can_close_the_window_itself() {
    let mut pair = Pair::start(&[]);
    let (rkey, addr) = pair.allocate(2);
    pair.bind(0, rkey);
    pair.write(0, addr, rkey, 3);
    pair.revoke(rkey);
    assert_eq!(pair.visit("read", 0, addr, rkey), ACCESS_ERROR);
}

/// As storage protocols do: a window for each message, under a key that was never used before, on a bad network.
// clause: WINDOW-TYPE-2
#[test]
fn a_window_for_every_message_survives_a_bad_network() {
    let mut pair = Pair::start(&[("ROXE_FAULTS", "drop 3%; duplicate 3%; reorder 3%")]);
    let (first, addr) = pair.allocate(2);
    for turn in 1..=60 {
        let rkey = tagged(first, first + turn);
        pair.bind(0, rkey);
        pair.write(0, addr, rkey, turn as u8);
        if turn % 2 == 0 {
            pair.revoke(rkey);
        } else {
            assert_eq!(pair.owner.ask(&format!("invalidate 0 {rkey}")), [0]);
        }
    }
}
