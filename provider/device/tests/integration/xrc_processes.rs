//! XRC domains of processes that open one file: a message that reaches a target of one lands in a
//! queue of another.

use crate::common::peer::{MARK, Peer, ROLE};
use crate::common::*;
use roxe_provider::wire::{ImmDt, PathMtu, Qpn, RKey};
use roxe_provider::{Qp, RecvRequest, SendOp, Service, Sge, Srq, SrqInit, WcStatus, Xrcd, XrcdInit};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes of a receive.
const ROOM: usize = 200_000;
/// Where memory for remote access begins; receives are in front of it.
const WINDOW: usize = LEN / 2;

/// A process with a domain, a shared queue in it, and a target.
struct Receiver {
    node: Node,
    xrcd: Arc<Xrcd>,
    srq: Arc<Srq>,
    target: Arc<Qp>,
}

/// Not a test of its own: does something only where a test has started it. The role is the file of
/// the domain.
#[test]
fn peer() {
    let Ok(file) = std::env::var(ROLE) else { return };
    let receiver = Receiver::open(Path::new(&file));
    for line in std::io::stdin().lines() {
        println!("\n{MARK}{}", receiver.obey(&line.unwrap()));
    }
}

impl Receiver {
    fn open(file: &Path) -> Self {
        let node = Node::open();
        let file = File::open(file).unwrap();
        let init = XrcdInit { file: Some(file.as_fd()), create: true, exclusive: true };
        let xrcd = node.context.open_xrcd(init).expect("the domains of other processes are not ours");
        let srq = xrcd.create_srq(&node.pd, &node.cq, SrqInit { max_wr: 64, max_sge: 1, limit: 0, user: 0 }).unwrap();
        let target = xrcd.create_target(0).unwrap();
        Self { node, xrcd, srq, target }
    }

    fn obey(&self, line: &str) -> String {
        let mut words = line.split(' ');
        let verb = words.next().unwrap();
        let mut number = || words.next().map_or(0, |word| word.parse::<u64>().unwrap());
        match verb {
            "connect" => {
                let gid = self.node.context.gid(1, 0).unwrap();
                connect(&self.target, self.node.av(0, gid), Qpn::new(number() as u32), PathMtu::Mtu1024);
                self.target.qpn().get().to_string()
            }
            "queue" => self.srq.number().unwrap().to_string(),
            "window" => format!("{} {}", self.node.addr(WINDOW), self.node.mr.rkey().0),
            "post" => {
                let count = number();
                for n in 0..count {
                    self.srq.post_recv(&RecvRequest { wr_id: n, sges: &[self.node.sge(0, ROOM)] }).unwrap();
                }
                count.to_string()
            }
            "fill" => {
                self.node.fill(WINDOW, number() as usize, number() as u8);
                "0".into()
            }
            // Status, length and queue pair of the next completion.
            "hear" => {
                let cqe = self.node.wait(1)[0];
                format!("{} {} {} {}", cqe.wr_id, cqe.status as u32, cqe.byte_len, cqe.qpn.get())
            }
            // Whether what landed, or was written, is the pattern.
            "landed" => u32::from(self.holds(0, number() as usize, number() as u8)).to_string(),
            "written" => u32::from(self.holds(WINDOW, number() as usize, number() as u8)).to_string(),
            "errno-of-open" => {
                let opened = self.xrcd.open_target(number() as u32);
                opened.map_or_else(|e| e.errno(), |_| 0).to_string()
            }
            // How often it told a sender that there is no receive.
            "refusals" => counter(&self.node.context, "send_rnr_err").to_string(),
            "completions" => {
                // Time for what should not come.
                std::thread::sleep(Duration::from_millis(number()));
                self.node.cq.poll(64, |_| ()).unwrap().to_string()
            }
            other => panic!("unknown command {other}"),
        }
    }

    fn holds(&self, at: usize, len: usize, seed: u8) -> bool {
        self.node.bytes(at, len) == pattern(len, seed)
    }
}

/// A file that names domains; gone with the value.
struct Name(PathBuf);

impl Name {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("roxe-xrcd-shared-{}-{number}", std::process::id()));
        File::create(&path).unwrap();
        Self(path)
    }

    fn start(&self, knobs: &[(&str, &str)]) -> Peer {
        Peer::start(self.0.to_str().unwrap(), knobs)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// This process with an initiator whose target is in `mad_sender`, and another process with the
/// queue it sends to.
struct Trio {
    node: Node,
    ini: Arc<Qp>,
    target: u32,
    mad_sender: Peer,
    owner: Peer,
    srqn: u32,
    _name: Name,
}

impl Trio {
    fn start(knobs: &[(&str, &str)]) -> Self {
        let (name, node) = (Name::new(), Node::open());
        let (mut mad_sender, mut owner) = (name.start(knobs), name.start(knobs));
        let (ini, target) = initiator(&node, &mut mad_sender);
        let srqn = owner.ask("queue")[0] as u32;
        Self { node, ini, target, mad_sender, owner, srqn, _name: name }
    }

    fn push(&self, op: SendOp, sge: Sge) {
        self.ini.send().push_to_srq(self.srqn, &request(1, op, &[sge])).unwrap();
    }

    fn run(&self, op: SendOp, sge: Sge) -> WcStatus {
        self.push(op, sge);
        self.node.wait(1)[0].status
    }

    /// Nothing can complete; until it was sent so often again.
    fn poll_in_vain(&self, times: u64) {
        while counter(&self.node.context, "local_ack_timeout_err") < times {
            self.node.cq.poll(1, |cqe| panic!("{cqe:?}")).unwrap();
        }
    }

    /// The memory of the owner that peers may use.
    fn window(&mut self) -> (u64, RKey) {
        let window = self.owner.ask("window");
        (window[0], RKey(window[1] as u32))
    }

    /// Sends messages of all sizes, and looks whether each landed where it should.
    fn send_all(&mut self, rounds: u8) {
        for seed in 0..rounds {
            for len in [1, 1024, 50_000, ROOM] {
                self.owner.ask("post 1");
                self.node.fill(0, len, seed);
                assert_eq!(self.run(SendOp::SendImm(ImmDt([seed; 4])), self.node.sge(0, len)), WcStatus::Success);
                assert_eq!(self.owner.ask("hear"), [0, 0, len as u64, u64::from(self.target)]);
                assert_eq!(self.owner.ask(&format!("landed {len} {seed}")), [1]);
            }
        }
        assert_eq!(self.owner.ask("completions 0"), [0]);
        assert_eq!(self.mad_sender.ask("completions 0"), [0]);
    }

    /// WRITE with immediate data, READ and atomics on the memory of the owner.
    fn reach_memory(&mut self, len: usize) {
        let (remote_addr, rkey) = self.window();
        self.owner.ask("post 1");
        self.node.fill(0, len, 5);
        let op = SendOp::WriteImm { remote_addr, rkey, imm: ImmDt([1, 2, 3, 4]) };
        assert_eq!(self.run(op, self.node.sge(0, len)), WcStatus::Success);
        assert_eq!(self.owner.ask("hear"), [0, 0, len as u64, u64::from(self.target)]);
        assert_eq!(self.owner.ask(&format!("written {len} 5")), [1]);
        self.owner.ask(&format!("fill {len} 77"));
        assert_eq!(self.run(SendOp::Read { remote_addr, rkey }, self.node.sge(WINDOW, len)), WcStatus::Success);
        assert_eq!(self.node.bytes(WINDOW, len), pattern(len, 77));
        let word = || u64::from_ne_bytes(self.node.bytes(0, 8).try_into().unwrap());
        let mut expected = u64::from_ne_bytes(pattern(8, 77).try_into().unwrap());
        for add in [1, 10, 100] {
            let op = SendOp::FetchAdd { remote_addr, rkey, add };
            assert_eq!(self.run(op, self.node.sge(0, 8)), WcStatus::Success);
            assert_eq!(word(), expected);
            expected = expected.wrapping_add(add);
        }
    }
}

/// An initiator connected with a target of `peer`.
fn initiator(node: &Node, peer: &mut Peer) -> (Arc<Qp>, u32) {
    let ini = node.qp(Service::XrcIni);
    let target = peer.ask(&format!("connect {}", ini.qpn().get()))[0] as u32;
    connect(&ini, node.av(0, node.context.gid(1, 0).unwrap()), Qpn::new(target), PathMtu::Mtu1024);
    (ini, target)
}

// clause: XRC-PROCESSES
#[test]
fn messages_land_in_a_queue_of_another_process() {
    Trio::start(&[]).send_all(5);
}

// clause: XRC-PROCESSES
#[test]
fn memory_of_another_process_is_written_read_and_changed() {
    let mut trio = Trio::start(&[]);
    trio.reach_memory(100_000);
    trio.reach_memory(1);
    let (remote_addr, rkey) = trio.window();
    let wrong = SendOp::Write { remote_addr, rkey: RKey(rkey.0 ^ 1) };
    assert_eq!(trio.run(wrong, trio.node.sge(0, 8)), WcStatus::RemAccessErr);
}

// clause: XRC-PROCESSES
#[test]
fn requests_that_the_network_loses_are_sent_again_and_done_once() {
    let mut trio = Trio::start(&[("ROXE_FAULTS", "drop 2%; duplicate 2%; reorder 2%")]);
    trio.send_all(3);
    trio.reach_memory(100_000);
    trio.send_all(1);
}

// clause: XRC-PROCESSES
#[test]
fn both_processes_receive_over_one_connection() {
    let mut trio = Trio::start(&[]);
    let own = trio.mad_sender.ask("queue")[0] as u32;
    trio.mad_sender.ask("post 10");
    trio.owner.ask("post 10");
    for n in 0..20 {
        let srqn = if n % 2 == 0 { own } else { trio.srqn };
        trio.ini.send().push_to_srq(srqn, &request(n, SendOp::Send, &[trio.node.sge(0, 3000)])).unwrap();
    }
    assert!(trio.node.wait(20).iter().all(|cqe| cqe.status == WcStatus::Success));
    for n in 0..10 {
        let expected = [n, 0, 3000, u64::from(trio.target)];
        assert_eq!(trio.mad_sender.ask("hear"), expected);
        assert_eq!(trio.owner.ask("hear"), expected);
    }
}

// clause: XRC-PROCESSES
#[test]
fn a_queue_without_receives_makes_the_sender_wait() {
    let mut trio = Trio::start(&[]);
    trio.push(SendOp::Send, trio.node.sge(0, 5000));
    while trio.mad_sender.ask("refusals") == [0] {
        assert_eq!(trio.node.cq.poll(1, |_| ()).unwrap(), 0);
    }
    trio.owner.ask("post 2");
    assert_eq!(trio.node.wait(1)[0].status, WcStatus::Success);
    assert_eq!(trio.owner.ask("hear"), [0, 0, 5000, u64::from(trio.target)]);
    assert_eq!(trio.owner.ask("completions 50"), [0]);
}

/// While the owner stands still, it is asked for the same again and again.
// clause: XRC-PROCESSES
#[test]
fn a_question_that_is_asked_again_is_executed_once() {
    let mut trio = Trio::start(&[]);
    trio.owner.ask("post 3");
    trio.owner.stop();
    trio.push(SendOp::Send, trio.node.sge(0, 3000));
    trio.poll_in_vain(3);
    trio.owner.signal(libc::SIGCONT);
    assert_eq!(trio.node.wait(1)[0].status, WcStatus::Success);
    assert_eq!(trio.owner.ask("hear"), [0, 0, 3000, u64::from(trio.target)]);
    assert_eq!(trio.owner.ask("completions 200"), [0]);
}

// clause: XRC-QUEUE-KNOWN
#[test]
fn the_queue_of_a_killed_process_is_gone() {
    let mut trio = Trio::start(&[]);
    trio.owner.ask("post 1");
    trio.owner.stop();
    trio.push(SendOp::Send, trio.node.sge(0, 3000));
    trio.poll_in_vain(1);
    trio.owner.signal(libc::SIGKILL);
    assert_eq!(trio.node.wait(1)[0].status, WcStatus::RemInvReqErr);
    assert_eq!(trio.mad_sender.ask("completions 0"), [0]);
}

// clause: XRC-QUEUE-KNOWN
#[test]
fn a_queue_of_another_domain_is_refused() {
    let mut trio = Trio::start(&[]);
    let stranger = Name::new();
    let mut other = stranger.start(&[]);
    trio.srqn = other.ask("queue")[0] as u32;
    other.ask("post 1");
    assert_eq!(trio.run(SendOp::Send, trio.node.sge(0, 64)), WcStatus::RemInvReqErr);
    assert_eq!(other.ask("completions 0"), [0]);
}

#[test]
fn targets_of_other_processes_cannot_be_opened() {
    let mut trio = Trio::start(&[]);
    let expected = [(trio.target, libc::EOPNOTSUPP), (1, libc::EINVAL), (u32::MAX, libc::EINVAL)];
    for (qpn, errno) in expected {
        assert_eq!(trio.owner.ask(&format!("errno-of-open {qpn}")), [errno as u64], "{qpn:#x}");
    }
    assert_eq!(trio.mad_sender.ask(&format!("errno-of-open {}", trio.target)), [0]);
}
