//! XRC domains of several processes that open one file: each has its own, and no message ends in the wrong one.

mod common;

use common::peer::{MARK, Peer, ROLE};
use common::*;
use roxe_provider::wire::{PathMtu, Qpn};
use roxe_provider::{Qp, RecvRequest, SendOp, Service, Srq, SrqInit, WcStatus, Xrcd, XrcdInit};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A process with a domain, a shared queue in it, and a target.
struct Receiver {
    node: Node,
    xrcd: Arc<Xrcd>,
    srq: Arc<Srq>,
    target: Arc<Qp>,
}

/// Not a test of its own: does something only where a test has started it. The role is the file of the domain.
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
        let srq = xrcd.create_srq(&node.pd, &node.cq, SrqInit { max_wr: 8, max_sge: 1, limit: 0, user: 0 }).unwrap();
        let target = xrcd.create_target(0).unwrap();
        srq.post_recv(&RecvRequest { wr_id: 1, sges: &[node.sge(0, 64)] }).unwrap();
        Self { node, xrcd, srq, target }
    }

    fn obey(&self, line: &str) -> u32 {
        let (verb, argument) = line.split_once(' ').unwrap();
        let number = argument.parse().unwrap();
        match verb {
            "connect" => {
                let gid = self.node.context.gid(1, 0).unwrap();
                connect(&self.target, self.node.av(0, gid), Qpn::new(number), PathMtu::Mtu1024);
                self.target.qpn().get()
            }
            "queue" => self.srq.number().unwrap(),
            "errno-of-open" => self.xrcd.open_target(number).map_or_else(|e| e.errno().cast_unsigned(), |_| 0),
            "completions" => self.node.cq.poll(8, |_| ()).unwrap() as u32,
            other => panic!("unknown command {other}"),
        }
    }
}

/// A file that names domains; gone with the value.
struct Name(PathBuf);

impl Name {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("roxe-xrcd-shared-{}", std::process::id()));
        File::create(&path).unwrap();
        Self(path)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An initiator connected with a target of `peer`.
fn initiator(node: &Node, peer: &mut Peer) -> (Arc<Qp>, u32) {
    let ini = node.qp(Service::XrcIni);
    let target = peer.ask(&format!("connect {}", ini.qpn().get()))[0] as u32;
    connect(&ini, node.av(0, node.context.gid(1, 0).unwrap()), Qpn::new(target), PathMtu::Mtu1024);
    (ini, target)
}

fn send(node: &Node, ini: &Qp, srqn: u32) -> WcStatus {
    ini.send().push_to_srq(srqn, &request(1, SendOp::Send, &[node.sge(0, 64)])).unwrap();
    node.wait(1)[0].status
}

// clause: XRC-QUEUE-KNOWN
#[test]
fn a_queue_of_another_process_is_refused_and_never_mistaken() {
    let (name, node) = (Name::new(), Node::open());
    let start = || Peer::start(name.0.to_str().unwrap(), &[]);
    let (mut a, mut b) = (start(), start());
    let (of_a, of_b) = (a.ask("queue 0")[0] as u32, b.ask("queue 0")[0] as u32);
    assert_ne!(of_a, of_b);
    let ((ini, target), (other, _)) = (initiator(&node, &mut a), initiator(&node, &mut b));
    assert_eq!(send(&node, &ini, of_a), WcStatus::Success);
    assert_eq!(send(&node, &ini, of_b), WcStatus::RemInvReqErr);
    assert_eq!(send(&node, &other, of_b), WcStatus::Success);
    assert_eq!((a.ask("completions 0"), b.ask("completions 0")), (vec![1], vec![1]));
    let expected = [(target, libc::EOPNOTSUPP), (1, libc::EINVAL), (u32::MAX, libc::EINVAL)];
    for (qpn, errno) in expected {
        assert_eq!(b.ask(&format!("errno-of-open {qpn}")), [errno as u64], "{qpn:#x}");
    }
    assert_eq!(a.ask(&format!("errno-of-open {target}")), [0]);
}
