//! XRC between two processes: one has the initiator, the other the target and its queues. A file
//! identifies a separate domain in each process.

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

/// Length of a receive buffer in bytes.
const BUFFER_LEN: usize = 200_000;
/// Offset of memory for remote access, after the receive buffers.
const WINDOW: usize = LEN / 2;

/// A process with a domain, a shared receive queue and a target.
struct Receiver {
    node: Node,
    xrcd: Arc<Xrcd>,
    srq: Arc<Srq>,
    target: Arc<Qp>,
}

/// Peer process, started by a test; its role is the file of the domain.
#[test]
fn peer() {
    let Ok(file) = std::env::var(ROLE) else { return };
    let receiver = Receiver::open(Path::new(&file));
    for line in std::io::stdin().lines() {
        println!("\n{MARK}{}", receiver.execute(&line.unwrap()));
    }
}

impl Receiver {
    fn open(file: &Path) -> Self {
        let node = Node::open();
        let file = File::open(file).unwrap();
        let init = XrcdInit { file: Some(file.as_fd()), create: true, exclusive: true };
        let xrcd = node.context.open_xrcd(init).expect("open the domain of this process");
        let srq =
            xrcd.create_srq(&node.pd, &node.cq, SrqInit { max_wr: 64, max_sge: 1, limit: 0, user_context: 0 }).unwrap();
        let target = xrcd.create_target(0).unwrap();
        Self { node, xrcd, srq, target }
    }

    fn execute(&self, line: &str) -> String {
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
                    self.srq.post_recv(&RecvRequest { wr_id: n, sges: &[self.node.sge(0, BUFFER_LEN)] }).unwrap();
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
            // 1 if the received or written bytes are the pattern.
            "landed" => u32::from(self.holds(0, number() as usize, number() as u8)).to_string(),
            "written" => u32::from(self.holds(WINDOW, number() as usize, number() as u8)).to_string(),
            "errno-of-open" => {
                let opened = self.xrcd.open_target(number() as u32);
                opened.map_or_else(|e| e.errno(), |_| 0).to_string()
            }
            // Number of RNR NAKs sent.
            "refusals" => counter(&self.node.context, "send_rnr_err").to_string(),
            "completions" => {
                // Wait for unexpected completions.
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

/// A file that identifies domains, removed at the end.
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

/// Returns a node with an initiator, and a process with its target and SRQ.
struct Connection {
    node: Node,
    ini: Arc<Qp>,
    target: u32,
    peer: Peer,
    srqn: u32,
    name: Name,
}

impl Connection {
    fn start(knobs: &[(&str, &str)]) -> Self {
        let (name, node) = (Name::new(), Node::open());
        let mut peer = name.start(knobs);
        let ini = node.qp(Service::XrcIni);
        let target = peer.ask(&format!("connect {}", ini.qpn().get()))[0] as u32;
        connect(&ini, node.av(0, node.context.gid(1, 0).unwrap()), Qpn::new(target), PathMtu::Mtu1024);
        let srqn = peer.ask("queue")[0] as u32;
        Self { node, ini, target, peer, srqn, name }
    }

    fn push(&self, op: SendOp, sge: Sge) {
        self.ini.send().push_to_srq(self.srqn, &request(1, op, &[sge])).unwrap();
    }

    fn run(&self, op: SendOp, sge: Sge) -> WcStatus {
        self.push(op, sge);
        self.node.wait(1)[0].status
    }

    /// Returns the memory of the peer for remote access.
    fn window(&mut self) -> (u64, RKey) {
        let window = self.peer.ask("window");
        (window[0], RKey(window[1] as u32))
    }

    /// Sends messages of all sizes, and checks where each was received.
    fn send_all(&mut self, rounds: u8) {
        for seed in 0..rounds {
            for len in [1, 1024, 50_000, BUFFER_LEN] {
                self.peer.ask("post 1");
                self.node.fill(0, len, seed);
                assert_eq!(self.run(SendOp::SendImm(ImmDt([seed; 4])), self.node.sge(0, len)), WcStatus::Success);
                assert_eq!(self.peer.ask("hear"), [0, 0, len as u64, u64::from(self.target)]);
                assert_eq!(self.peer.ask(&format!("landed {len} {seed}")), [1]);
            }
        }
        assert_eq!(self.peer.ask("completions 0"), [0]);
    }

    /// Checks WRITE with immediate, READ and atomics on the peer's memory.
    fn reach_memory(&mut self, len: usize) {
        let (remote_addr, rkey) = self.window();
        self.peer.ask("post 1");
        self.node.fill(0, len, 5);
        let op = SendOp::WriteImm { remote_addr, rkey, imm: ImmDt([1, 2, 3, 4]) };
        assert_eq!(self.run(op, self.node.sge(0, len)), WcStatus::Success);
        assert_eq!(self.peer.ask("hear"), [0, 0, len as u64, u64::from(self.target)]);
        assert_eq!(self.peer.ask(&format!("written {len} 5")), [1]);
        self.peer.ask(&format!("fill {len} 77"));
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

#[test]
fn xrc_messages_reach_srq_of_target_process() {
    Connection::start(&[]).send_all(5);
}

#[test]
fn xrc_write_read_and_atomic_reach_other_process() {
    let mut connection = Connection::start(&[]);
    connection.reach_memory(100_000);
    connection.reach_memory(1);
    let (remote_addr, rkey) = connection.window();
    let wrong = SendOp::Write { remote_addr, rkey: RKey(rkey.0 ^ 1) };
    assert_eq!(connection.run(wrong, connection.node.sge(0, 8)), WcStatus::RemAccessErr);
}

#[test]
fn lost_xrc_requests_are_executed_once() {
    let mut connection = Connection::start(&[("ROXE_FAULTS", "drop 2%; duplicate 2%; reorder 2%")]);
    connection.send_all(3);
    connection.reach_memory(100_000);
    connection.send_all(1);
}

#[test]
fn xrc_sender_waits_for_receives() {
    let mut connection = Connection::start(&[]);
    connection.push(SendOp::Send, connection.node.sge(0, 5000));
    while connection.peer.ask("refusals") == [0] {
        assert_eq!(connection.node.cq.poll(1, |_| ()).unwrap(), 0);
    }
    connection.peer.ask("post 2");
    assert_eq!(connection.node.wait(1)[0].status, WcStatus::Success);
    assert_eq!(connection.peer.ask("hear"), [0, 0, 5000, u64::from(connection.target)]);
    assert_eq!(connection.peer.ask("completions 50"), [0]);
}

/// Both peers open the file with `O_CREAT` and `O_EXCL`, and get a domain each.
// clause: XRC-QUEUE-KNOWN
#[test]
fn xrc_file_has_separate_domain_per_process() {
    let mut connection = Connection::start(&[]);
    let mut other = connection.name.start(&[]);
    assert_eq!(other.ask(&format!("errno-of-open {}", connection.target)), [libc::EINVAL as u64]);
    assert_eq!(connection.peer.ask(&format!("errno-of-open {}", connection.target)), [0]);
    connection.srqn = other.ask("queue")[0] as u32;
    other.ask("post 1");
    assert_eq!(connection.run(SendOp::Send, connection.node.sge(0, 64)), WcStatus::RemInvReqErr);
    assert_eq!(other.ask("completions 0"), [0]);
}
