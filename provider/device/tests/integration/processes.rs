//! Several processes on one address. Tests start this program again as peer processes and talk to
//! them through standard input and output, one line at a time.

use crate::common::peer::{MARK, Peer, ROLE};
use crate::common::*;
use roxe_provider::wire::{NetHeader, PathMtu, Qpn, RKey, capture, icrc};
use roxe_provider::{Access, Dm, Qp, RecvRequest, SendOp, Service, WcStatus};
use std::collections::HashSet;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connects two peers with one queue pair each.
fn join(a: &mut Peer, b: &mut Peer) {
    let (queue_pair_a, queue_pair_b) = (describe(a), describe(b));
    a.send_line(&format!("connect {queue_pair_b}"));
    assert_eq!(a.read_line(), "connected");
    b.send_line(&format!("connect {queue_pair_a}"));
    assert_eq!(b.read_line(), "connected");
}

fn describe(peer: &mut Peer) -> String {
    peer.send_line("create");
    peer.read_line()
}

/// Peer process: obeys one command per line.
struct Puppet {
    node: Node,
    service: Service,
    qp: Option<Arc<Qp>>,
    remote: Option<Window>,
    dest: Qpn,
    /// Number of posted receives.
    receives: u64,
}

/// Peer process, started by a test.
#[test]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let service = match role.as_str() {
        "ud" => Service::Ud,
        "uc" => Service::Uc,
        _ => Service::Rc,
    };
    let mut puppet = Puppet { node: Node::open(), service, qp: None, remote: None, dest: Qpn::new(0), receives: 0 };
    for line in std::io::stdin().lines() {
        let answer = puppet.execute(&line.unwrap());
        println!("\n{MARK}{answer}");
    }
}

impl Puppet {
    fn execute(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).map_or(0, |word| word.parse::<u64>().unwrap());
        match words[0] {
            "create" => self.create(),
            "connect" => self.connect(number(1), number(2), number(3)),
            "write" => self.write(number(1), number(2) as usize),
            "write_all" => self.write_all(number(1), number(2) as usize),
            "try" => self.try_write(),
            "burst" => self.burst(number(1), number(2) as usize),
            "check" => self.check(number(1), number(2) as usize),
            "receive" => self.receive(number(1)),
            "send" => self.send(number(1)),
            "drain" => self.drain(number(1)),
            "take" => self.take(number(1)),
            "counters" => self.counters(),
            "rings" => self.rings(),
            "thread" => in_a_thread(),
            "fork" => self.fork(),
            "exit" => std::process::exit(0),
            "idle" => idle().to_string(),
            "many" => self.many(number(1)),
            other => panic!("unknown command {other}"),
        }
    }

    fn create(&mut self) -> String {
        let qp = self.node.qp(self.service);
        let text = format!("{} {} {}", qp.qpn().get(), self.node.addr(0), self.node.mr.rkey().0);
        self.qp = Some(qp);
        text
    }

    fn connect(&mut self, qpn: u64, addr: u64, rkey: u64) -> String {
        let gid = self.node.context.gid(1, 0).unwrap();
        self.dest = Qpn::new(qpn as u32);
        self.remote = Some(Window { addr, rkey: RKey(rkey as u32) });
        match self.service {
            Service::Ud => activate(self.qp()),
            _ => connect(self.qp(), self.node.av(0, gid), self.dest, PathMtu::Mtu4096),
        }
        "connected".into()
    }

    fn qp(&self) -> &Qp {
        self.qp.as_ref().unwrap()
    }

    fn write_op(&self) -> SendOp {
        let Window { addr, rkey } = self.remote.unwrap();
        SendOp::Write { remote_addr: addr + (LEN / 2) as u64, rkey }
    }

    /// Writes `count` messages of `len` bytes to the peer.
    fn write(&mut self, count: u64, len: usize) -> String {
        self.node.fill(0, len, count as u8);
        for n in 0..count {
            post(self.qp(), n, self.write_op(), self.node.sge(0, len));
            assert_eq!(self.node.wait(1)[0].status, WcStatus::Success);
        }
        count.to_string()
    }

    /// Posts `count` writes of `len` bytes at once; returns the status of each.
    fn burst(&mut self, count: u64, len: usize) -> String {
        (0..count).for_each(|n| post(self.qp(), n, self.write_op(), self.node.sge(0, len)));
        let statuses =
            self.node.wait(count as usize).iter().map(|cqe| (cqe.status as u32).to_string()).collect::<Vec<_>>();
        statuses.join(" ")
    }

    /// Writes like [`Puppet::write`], with all writes outstanding at once.
    fn write_all(&mut self, count: u64, len: usize) -> String {
        self.node.fill(0, len, count as u8);
        (0..count).for_each(|n| post(self.qp(), n, self.write_op(), self.node.sge(0, len)));
        assert!(self.node.wait(count as usize).iter().all(|cqe| cqe.status == WcStatus::Success));
        count.to_string()
    }

    /// Writes until a write fails; returns its status.
    fn try_write(&mut self) -> String {
        println!("\n{MARK}0");
        loop {
            post(self.qp(), 1, self.write_op(), self.node.sge(0, 1 << 18));
            let status = self.node.wait(1)[0].status;
            if status != WcStatus::Success {
                return (status as u32).to_string();
            }
        }
    }

    /// Returns 1 if the last write to this side has arrived, else 0.
    fn check(&mut self, count: u64, len: usize) -> String {
        u32::from(self.node.bytes(LEN / 2, len) == pattern(len, count as u8)).to_string()
    }

    /// Posts receives until there are `count`: some are left when messages were lost.
    fn receive(&mut self, count: u64) -> String {
        for n in self.receives..count {
            self.qp().post_recv(&RecvRequest { wr_id: n, sges: &[self.node.sge(0, 60_000)] }).unwrap();
        }
        self.receives = count;
        count.to_string()
    }

    /// Sends messages of one packet (UD) or of several.
    fn send(&mut self, count: u64) -> String {
        let gid = self.node.context.gid(1, 0).unwrap();
        let len = if self.service == Service::Ud { 4096 } else { 50_000 };
        let (av, sge) = (self.node.av(0, gid), [self.node.sge(0, len)]);
        for n in 0..count {
            self.qp().post_send(&[datagram(n, av, self.dest, &sge)]).unwrap();
        }
        self.node.wait(count as usize);
        count.to_string()
    }

    /// Returns the number of receives that complete before a second passes without one.
    fn drain(&mut self, count: u64) -> String {
        let (mut done, mut last) = (0, Instant::now());
        while done < count && last.elapsed() < Duration::from_secs(1) {
            if self.node.cq.poll(64, |_| done += 1).unwrap() > 0 {
                last = Instant::now();
            }
        }
        self.receives -= done;
        done.to_string()
    }

    /// Waits until `count` receives are complete.
    fn take(&mut self, count: u64) -> String {
        self.node.wait(count as usize);
        self.receives -= count;
        count.to_string()
    }

    /// Returns packets forwarded, received, dropped for a wrong ICRC, and sent; then bytes received
    /// and sent; then sequence errors and dropped early packets.
    fn counters(&mut self) -> String {
        let names = ["forwarded", "received_packets", "icrc_errors", "sent_packets", "received_bytes", "sent_bytes"];
        let names = names.into_iter().chain(["packet_seq_err", "early_dropped"]);
        names.map(|name| counter(&self.node.context, name).to_string()).collect::<Vec<_>>().join(" ")
    }

    /// Returns packets sent and received through rings, and the number of ring mappings.
    fn rings(&mut self) -> String {
        let get = |name| counter(&self.node.context, name);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapped = maps.lines().filter(|line| line.contains("memfd:roxe")).count();
        format!("{} {} {mapped}", get("sent_by_ring"), get("received_by_ring"))
    }

    /// Forks; the child works with new queue pairs in the inherited context. Returns its exit
    /// status, and the number of writes of this process. Device memory is shared by both.
    fn fork(&mut self) -> String {
        let dm = self.node.context.alloc_dm(64, 0).unwrap();
        // SAFETY: the child uses only what the fork handlers promise to work, and leaves by
        // `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.work_in_child(&dm)));
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(i32::from(worked.is_err())) };
        }
        let mine = self.write(20, 100_000);
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        let mut left = [0; 8];
        dm.read(0, &mut left).unwrap();
        assert_eq!(&left, b"by child");
        format!("{status} {mine}")
    }

    fn work_in_child(&self, dm: &Dm) {
        let node = &self.node;
        assert_eq!(counter(&node.context, "sent_packets"), 0, "what the parent has sent");
        let own = node.context.alloc_dm(64, 0).unwrap();
        own.write(0, b"by child").unwrap();
        let region = node.pd.reg_dm_mr(&own, 0, 64, Access::ZERO_BASED).unwrap();
        let mut bytes = [0; 8];
        own.read(0, &mut bytes).unwrap();
        dm.write(0, &bytes).unwrap();
        drop(region);
        let inherited = post_try(self.qp(), self.write_op(), node);
        assert!(inherited.is_err(), "an inherited queue pair belongs to the parent");
        let (qa, _qb) = pair(node, node, Service::Rc, 0, PathMtu::Mtu1024);
        node.fill(0, 50_000, 99);
        let op = SendOp::Write { remote_addr: node.addr(LEN / 2), rkey: node.mr.rkey() };
        for n in 0..20 {
            post(&qa, n, op, node.sge(0, 50_000));
            assert_eq!(node.wait(1)[0].status, WcStatus::Success);
        }
        assert_eq!(node.bytes(LEN / 2, 50_000), pattern(50_000, 99));
    }

    fn many(&mut self, count: u64) -> String {
        let qps: Vec<_> = (0..count).map(|_| pair(&self.node, &self.node, Service::Rc, 0, PathMtu::Mtu1024)).collect();
        std::mem::forget(qps);
        count.to_string()
    }
}

/// Sends a message between queue pairs of another thread, which has its own engine if there are two
/// processors. The queue pairs stay.
fn in_a_thread() -> String {
    let work = || {
        let node = Node::open();
        let (from, to) = pair(&node, &node, Service::Rc, 0, PathMtu::Mtu1024);
        post(&from, 1, write_to(&node, 8192), node.sge(0, 64));
        assert_eq!(node.wait(1)[0].status, WcStatus::Success);
        std::mem::forget((node, from, to));
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    "1".into()
}

fn post_try(qp: &Qp, op: SendOp, node: &Node) -> Result<(), (usize, roxe_provider::PostError)> {
    qp.post_send(&[request(1, op, &[node.sge(0, 8)])])
}

/// Returns the fewest wakeups of the background thread in any of several intervals.
fn idle() -> u64 {
    let wakeups = || -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        let ours = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).unwrap().trim() == "roxe");
        let status = ours.map(|task| std::fs::read_to_string(task.join("status")).unwrap());
        status
            .map(|text| {
                text.lines()
                    .filter_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok())
                    .sum::<u64>()
            })
            .sum()
    };
    let stretch = |_| {
        let before = wakeups();
        std::thread::sleep(Duration::from_millis(200));
        wakeups() - before
    };
    (0..10).map(stretch).min().unwrap()
}

fn between_processes(knobs: &[(&str, &str)]) -> (Vec<u64>, Vec<u64>) {
    let (mut a, mut b) = exchange(knobs);
    (a.ask("counters"), b.ask("counters"))
}

/// Starts two peers and exchanges messages of all sizes.
fn exchange(knobs: &[(&str, &str)]) -> (Peer, Peer) {
    let (mut a, mut b) = (Peer::start("rc", knobs), Peer::start("rc", knobs));
    join(&mut a, &mut b);
    for (count, len) in [(50, 64), (50, 100_000), (5, LEN / 2)] {
        let command = format!("write {count} {len}");
        assert_eq!(a.ask(&command), [count]);
        assert_eq!(b.ask(&format!("check {count} {len}")), [1]);
        assert_eq!(b.ask(&command), [count]);
        assert_eq!(a.ask(&format!("check {count} {len}")), [1]);
    }
    (a, b)
}

/// Links through shared memory and through UDP.
const BY_RING: (&str, &str) = ("ROXE_LINK", "auto");
const BY_UDP: (&str, &str) = ("ROXE_LINK", "udp");

#[test]
fn two_processes_exchange_every_byte() {
    for link in [BY_UDP, BY_RING] {
        let (a, b) = between_processes(&[link]);
        assert_eq!((a[2], b[2]), (0, 0), "packets with a wrong ICRC, {link:?}");
    }
}

/// Starts two connected peers with rings in both directions.
fn with_rings(role: &str, knobs: &[(&str, &str)]) -> (Peer, Peer) {
    let knobs = [&[BY_RING], knobs].concat();
    let (mut a, mut b) = (Peer::start(role, &knobs), Peer::start(role, &knobs));
    join_by_rings(&mut a, &mut b);
    (a, b)
}

/// Connects two peers and waits until packets of both go through rings.
fn join_by_rings(a: &mut Peer, b: &mut Peer) {
    join(a, b);
    let before = (a.ask("rings")[0], b.ask("rings")[0]);
    while a.ask("rings")[0] == before.0 || b.ask("rings")[0] == before.1 {
        a.ask("write 1 10000");
        b.ask("write 1 10000");
    }
}

#[test]
fn local_processes_use_shared_memory() {
    let (mut a, mut b) = with_rings("rc", &[]);
    let (sent, received) = (a.ask("rings")[0], b.ask("rings")[1]);
    assert_eq!(a.ask("write 10 1000000"), [10]);
    assert_eq!(b.ask("check 10 1000000"), [1]);
    let packets = 10 * 1_000_000 / 4096;
    assert!(a.ask("rings")[0] >= sent + packets && b.ask("rings")[1] >= received + packets);
}

#[test]
fn ring_is_unmapped_after_either_process_ends() {
    let (mut a, b) = with_rings("rc", &[]);
    assert!(a.ask("rings")[2] > 0);
    assert_eq!(a.ask("try"), [0]);
    b.signal(libc::SIGKILL);
    assert_eq!(a.read_line(), (WcStatus::RetryExcErr as u32).to_string());
    let mut c = Peer::start("rc", &[BY_RING]);
    join(&mut a, &mut c);
    assert_eq!(a.ask("write 10 100000"), [10]);
    drop(c);
    // The background thread notices the end when it gets a processor.
    while a.ask("rings")[2] > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn killed_ring_writer_is_cleaned_up_and_replaced() {
    let (mut a, mut b) = with_rings("rc", &[]);
    for _ in 0..5 {
        assert_eq!(a.ask("try"), [0]);
        a.signal(libc::SIGKILL);
        // The background thread notices the end when it gets a processor.
        while b.ask("rings")[2] > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        a = Peer::start("rc", &[BY_RING]);
        join_by_rings(&mut a, &mut b);
        assert_eq!(a.ask("write 10 100000"), [10]);
        assert_eq!(b.ask("check 10 100000"), [1]);
    }
}

/// Starts two connected peers; the first sends through a ring.
fn joined_by_ring(role: &str) -> [Peer; 2] {
    let (mut a, mut b) = (Peer::start(role, &[BY_RING]), Peer::start(role, &[BY_RING]));
    join(&mut a, &mut b);
    while a.ask("rings")[0] == 0 {
        b.ask("receive 10");
        a.ask("send 10");
        b.ask("drain 10");
    }
    [a, b]
}

#[test]
fn full_ring_blocks_sender_without_loss() {
    for (role, count) in [("ud", 128), ("uc", 40)] {
        let [mut a, mut b] = joined_by_ring(role);
        assert_eq!(b.ask(&format!("receive {count}")), [count]);
        b.stop();
        a.send_line(&format!("send {count}"));
        // More than a ring holds: the send cannot end before the receiver continues.
        std::thread::sleep(Duration::from_millis(50));
        b.signal(libc::SIGCONT);
        assert_eq!(b.ask(&format!("take {count}")), [count], "{role}");
        assert_eq!(a.read_line(), count.to_string());
    }
}

/// Writes of twice the size of a ring.
const BURST: &str = "burst 16 262144";

#[test]
fn stopped_receiver_is_retry_exc_and_recovers() {
    let (mut a, mut b) = with_rings("rc", &[]);
    b.stop();
    let [first, flushed] = [WcStatus::RetryExcErr, WcStatus::WrFlushErr].map(|status| status as u64);
    let ended = a.ask(BURST);
    assert_eq!((ended[0], &ended[1..]), (first, &[flushed; 15][..]));
    b.signal(libc::SIGCONT);
    join_by_rings(&mut a, &mut b);
    assert_eq!(a.ask(BURST), [WcStatus::Success as u64; 16]);
}

#[test]
fn briefly_stopped_receiver_causes_no_error() {
    let (mut a, b) = with_rings("rc", &[]);
    for _ in 0..3 {
        b.stop();
        a.send_line(BURST);
        // The retries of the sender last for more than 1.5 s.
        std::thread::sleep(Duration::from_millis(400));
        b.signal(libc::SIGCONT);
        assert_eq!(a.read_line(), ["0"; 16].join(" "));
    }
}

#[test]
fn ack_of_exited_process_reaches_stopped_peer() {
    // With a small receive buffer, long messages leave from a port of the process's own.
    let [mut a, mut b] = [(); 2].map(|()| Peer::start("rc", &[BY_UDP, ("ROXE_RCVBUF", "212992")]));
    join(&mut a, &mut b);
    assert_eq!(b.ask("write 1 100000"), [1]);
    b.stop();
    a.send_line("write 1 8");
    // The retries of the sender last for more than 1.5 s.
    std::thread::sleep(Duration::from_millis(100));
    a.stop();
    b.signal(libc::SIGCONT);
    b.end();
    // Longer than the owner of a port is cached.
    std::thread::sleep(Duration::from_millis(100));
    a.signal(libc::SIGCONT);
    assert_eq!(a.read_line(), "1");
}

#[test]
fn stopped_receiver_blocks_datagrams_for_limited_time() {
    for (role, count) in [("ud", 100), ("uc", 10)] {
        let [mut a, mut b] = joined_by_ring(role);
        b.stop();
        // More than a ring holds.
        for _ in 0..8 {
            assert_eq!(a.ask(&format!("send {count}")), [count], "{role}");
        }
        b.signal(libc::SIGCONT);
        while b.ask("receive 100") == [100] && b.ask("drain 100") != [0] {}
        a.ask("send 5");
        assert_eq!(b.ask("drain 5"), [5], "{role}");
    }
}

#[test]
fn rings_stay_with_parent_after_fork() {
    let (mut a, mut b) = with_rings("rc", &[]);
    assert_eq!(a.ask("fork"), [0, 20]);
    let before = a.ask("rings")[0];
    assert_eq!(a.ask("write 10 100000"), [10]);
    assert!(a.ask("rings")[0] > before, "still by the ring");
    assert_eq!(b.ask("write 10 100000"), [10]);
}

#[test]
fn faults_act_between_processes_of_one_host() {
    let faults = "drop 1%; corrupt payload 1%; duplicate 1%; reorder 1% by=1ms";
    let [mut a, mut b] = [(); 2].map(|()| Peer::start("rc", &[("ROXE_FAULTS", faults)]));
    join(&mut a, &mut b);
    assert_eq!(a.ask("write 30 100000"), [30]);
    assert_eq!(b.ask("check 30 100000"), [1]);
    assert_eq!(b.ask("write 30 100000"), [30]);
    assert!(a.ask("counters")[2] + b.ask("counters")[2] > 0, "damaged packets are noticed by their ICRC");
}

#[test]
fn process_with_faults_shares_no_ring_with_one_without() {
    let (mut a, mut b) = (Peer::start("rc", &[]), Peer::start("rc", &[("ROXE_FAULTS", "drop rx 1%")]));
    join(&mut a, &mut b);
    for len in [100_000, 1_000_000] {
        assert_eq!(a.ask(&format!("write 20 {len}")), [20]);
        assert_eq!(b.ask(&format!("check 20 {len}")), [1]);
        assert_eq!(b.ask(&format!("write 20 {len}")), [20]);
        assert_eq!(a.ask(&format!("check 20 {len}")), [1]);
    }
    assert_eq!([a.ask("rings")[0], b.ask("rings")[0]], [0, 0]);
}

#[test]
fn packets_are_counted_once_at_receiver() {
    namespace::inside("packets_are_counted_once_at_receiver", namespace::LOOPBACK_UP, "lo", || {
        for knobs in [&[BY_UDP, ("ROXE_STEERING", "off")] as &[_], &[BY_UDP], &[BY_RING]] {
            let (mut a, mut b) = exchange(knobs);
            let deadline = Instant::now() + Duration::from_secs(10);
            // The last acknowledgement may still be on its way.
            loop {
                let (a, b) = (a.ask("counters"), b.ask("counters"));
                let sum = |at: usize| a[at] + b[at];
                if sum(1) == sum(3) && sum(4) == sum(5) {
                    break;
                }
                assert!(Instant::now() < deadline, "what is sent is received once, with {knobs:?}: {a:?} {b:?}");
            }
        }
    });
}

/// Packets that are first forwarded by another process, and then steered, overtake each other. They
/// are retransmitted only if the forwarding process is preempted for longer than an overtaking
/// packet waits.
#[test]
fn reordering_between_processes_causes_no_retransmit() {
    namespace::inside("reordering_between_processes_causes_no_retransmit", namespace::LOOPBACK_UP, "lo", || {
        let (mut pairs, mut in_time) = (0, 0);
        while pairs < 10 || in_time == 0 {
            pairs += 1;
            assert!(pairs <= 200, "no packet was forwarded in time");
            let [mut a, mut b] = [(); 2].map(|()| Peer::start("rc", &[BY_UDP, ("ROXE_STEERING", "off")]));
            join(&mut a, &mut b);
            let len = 1 << 16;
            a.send_line(&format!("write_all 100 {len}"));
            // A process that joins changes the kernel's distribution. None ends before the others:
            // it would take packets along.
            let mut others = [(); 2].map(|()| Peer::start("rc", &[BY_UDP]));
            others.iter_mut().for_each(|other| _ = describe(other));
            assert_eq!((a.read_line().as_str(), b.ask(&format!("check 100 {len}"))), ("100", vec![1]));
            let [a, b] = [a.ask("counters"), b.ask("counters")];
            let (forwarded, naks) = (a[0] + b[0], a[6] + b[6]);
            for (sender, receiver) in [(&a, &b), (&b, &a)] {
                let is_late = receiver[7] > 0;
                assert!(sender[6] == 0 || is_late, "{naks} sequence errors with {forwarded} packets forwarded in time");
            }
            in_time += if naks == 0 { forwarded } else { 0 };
        }
    });
}

#[test]
fn hundred_processes_share_an_address() {
    let mut all: Vec<Peer> = (0..100).map(|_| Peer::start("rc", &[])).collect();
    for pair in all.chunks_mut(2) {
        let [a, b] = pair else { unreachable!() };
        join(a, b);
    }
    // One at a time: a hundred busy processes on two processors would run into timeouts.
    assert!(all.iter_mut().all(|peer| peer.ask("write 10 20000") == [10]));
    assert!(all.iter_mut().all(|peer| peer.ask("check 10 20000") == [1]));
}

#[test]
fn unsteered_packets_are_forwarded() {
    namespace::inside("unsteered_packets_are_forwarded", namespace::LOOPBACK_UP, "lo", || {
        let (a, b) = between_processes(&[BY_UDP, ("ROXE_STEERING", "off")]);
        // The kernel chooses by a hash of addresses and ports, which are the same in both
        // directions: one process gets all packets.
        assert!(a[0] + b[0] > 0, "nothing was forwarded: {a:?} {b:?}");
    });
}

#[test]
fn exchange_works_without_gso_and_gro() {
    between_processes(&[BY_UDP, ("ROXE_GSO", "off"), ("ROXE_GRO", "off"), ("ROXE_WINDOW", "65536")]);
}

#[test]
fn steering_settles() {
    let mut peers: Vec<_> = (0..6).map(|_| Peer::start("rc", &[BY_UDP])).collect();
    for pair in peers.chunks_mut(2) {
        let [a, b] = pair else { unreachable!("six is even") };
        join(a, b);
    }
    let forwarded = |peers: &mut Vec<Peer>| peers.iter_mut().map(|peer| peer.ask("counters")[0]).sum::<u64>();
    let mut is_quiet = |_: i32| {
        let before = forwarded(&mut peers);
        for pair in peers.chunks_mut(2) {
            pair[0].ask("write 20 5000");
            pair[1].ask("write 20 5000");
        }
        forwarded(&mut peers) == before
    };
    assert!((0..100).any(&mut is_quiet), "packets keep arriving in the wrong process");
}

#[test]
fn killed_peer_is_an_error_and_frees_its_numbers() {
    let (mut a, mut b) = (Peer::start("rc", &[]), Peer::start("rc", &[]));
    join(&mut a, &mut b);
    assert_eq!(a.ask("try"), [0]);
    b.signal(libc::SIGKILL);
    assert_eq!(a.read_line(), (WcStatus::RetryExcErr as u32).to_string());
    let mut c = Peer::start("rc", &[]);
    join(&mut a, &mut c);
    assert_eq!(a.ask("write 10 100000"), [10]);
}

#[test]
fn stopped_process_blocks_no_other() {
    namespace::inside("stopped_process_blocks_no_other", namespace::LOOPBACK_UP, "lo", || {
        let (mut a, mut b, mut c) = (Peer::start("rc", &[]), Peer::start("rc", &[]), Peer::start("rc", &[]));
        describe(&mut c);
        c.signal(libc::SIGSTOP);
        join(&mut a, &mut b);
        assert_eq!(a.ask("write 50 50000"), [50]);
        assert_eq!(b.ask("write 50 50000"), [50]);
    });
}

/// Starts two connected processes, one that may leave, and eight stopped ones on one address. The
/// socket of the second is the last one: it takes over the number of the one that leaves.
fn with_stopped(role: &str, stopped_come_first: bool) -> [Peer; 11] {
    let mut peers: [Peer; 11] = std::array::from_fn(|_| Peer::start(role, &[BY_UDP]));
    // Sockets are numbered in the order of their opening.
    let order =
        if stopped_come_first { [3, 4, 5, 6, 7, 8, 9, 10, 2, 0, 1] } else { [2, 0, 3, 4, 5, 6, 7, 8, 9, 10, 1] };
    order.into_iter().for_each(|at| _ = describe(&mut peers[at]));
    let [a, b, ..] = &mut peers;
    join(a, b);
    let settles = |_| {
        let forwarded = |peers: &mut [Peer]| peers.iter_mut().map(|peer| peer.ask("counters")[0]).sum::<u64>();
        let before = forwarded(&mut peers);
        let [a, b, ..] = &mut peers;
        if role == "ud" {
            arrive_all(a, b) && arrive_all(b, a) && forwarded(&mut peers) == before
        } else {
            a.ask("write 5 5000");
            b.ask("write 5 5000");
            forwarded(&mut peers) == before
        }
    };
    assert!((0..100).any(settles), "packets keep arriving in the wrong process");
    peers[3..].iter().for_each(Peer::stop);
    peers
}

/// Returns true if all of a hundred messages arrive.
fn arrive_all(from: &mut Peer, to: &mut Peer) -> bool {
    to.ask("receive 100");
    from.send_line("send 100");
    let got = to.ask("drain 100");
    from.read_line();
    got == [100]
}

#[test]
fn exited_process_moves_no_packets_to_stopped_ones() {
    namespace::inside("exited_process_moves_no_packets_to_stopped_ones", namespace::LOOPBACK_UP, "lo", || {
        // Packets for a number without a socket go to one of ten sockets, by a constant hash. The
        // stopped processes have the first eight of them in one order and the last eight in the
        // other.
        for stopped_come_first in [true, false] {
            let [mut a, mut b, leaver, stopped @ ..] = with_stopped("rc", stopped_come_first);
            drop(leaver);
            assert_eq!((a.ask("write 20 5000"), b.ask("check 20 5000")), (vec![20], vec![1]));
            assert_eq!((b.ask("write 20 5000"), a.ask("check 20 5000")), (vec![20], vec![1]));
            drop(stopped);
            let [mut a, mut b, leaver, _stopped @ ..] = with_stopped("ud", stopped_come_first);
            drop(leaver);
            // Datagrams sent before the sender runs out of credits are lost.
            assert!((0..10).any(|_| arrive_all(&mut a, &mut b)), "datagrams do not arrive any more");
        }
    });
}

/// Checks unreliable messages: ten of twenty rounds must be free of loss, because a stalled machine
/// may lose some. Calls `disturb` between rounds.
fn loss_free(role: &str, knobs: &[(&str, &str)], mut disturb: impl FnMut()) {
    let (mut a, mut b) = (Peer::start(role, knobs), Peer::start(role, knobs));
    join(&mut a, &mut b);
    let round = |_| {
        disturb();
        arrive_all(&mut a, &mut b)
    };
    assert_eq!((0..20).map(round).filter(|lossless| *lossless).take(10).count(), 10);
}

#[test]
fn datagrams_reach_another_process() {
    for link in [BY_UDP, BY_RING] {
        loss_free("ud", &[link], || {});
    }
}

#[test]
fn datagrams_arrive_without_steering() {
    loss_free("ud", &[BY_UDP, ("ROXE_STEERING", "off")], || {});
}

/// A process that joins or leaves renumbers the sockets, so that packets are rerouted and overtake
/// each other.
#[test]
fn long_messages_arrive_while_processes_join_and_leave() {
    let mut others = Vec::new();
    loss_free("uc", &[BY_UDP], || {
        others.truncate(1);
        others.insert(0, Peer::start("rc", &[]));
        others[0].send_line("create");
    });
}

#[test]
fn forked_child_and_parent_exchange_at_once() {
    let (mut a, mut b) = (Peer::start("rc", &[]), Peer::start("rc", &[]));
    join(&mut a, &mut b);
    assert_eq!(a.ask("fork"), [0, 20]);
    assert_eq!(a.ask("write 10 100000"), [10]);
    assert_eq!(b.ask("write 10 100000"), [10]);
}

#[test]
fn fork_works_with_several_engines() {
    let (mut a, mut b) = (Peer::start("rc", &[]), Peer::start("rc", &[]));
    join(&mut a, &mut b);
    assert_eq!(a.ask("thread"), [1]);
    assert_eq!(a.ask("fork"), [0, 20]);
    assert_eq!((a.ask("thread"), b.ask("write 10 100000")), (vec![1], vec![10]));
}

/// Packets of one process are in one intact file.
#[test]
fn each_process_and_forked_child_has_own_capture() {
    let folder = std::env::temp_dir().join(format!("roxe-fork-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("all.pcapng").to_string_lossy().into_owned();
    let knobs = [("ROXE_CAPTURE", file.as_str()), ("ROXE_FAULTS", "duplicate 5%; reorder 5%")];
    let (mut a, mut b) = (Peer::start("rc", &knobs), Peer::start("rc", &knobs));
    join(&mut a, &mut b);
    assert_eq!(a.ask("fork"), [0, 20]);
    assert_eq!(b.ask("write 10 100000"), [10]);
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path())).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    let senders = files.into_iter().map(|file| senders(&file.unwrap())).collect::<Vec<_>>();
    // The child has two queue pairs; its parent and the parent's peer have one each.
    let mut counts: Vec<_> = senders.iter().map(HashSet::len).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 2], "{senders:?}");
    assert_eq!(senders.iter().flatten().collect::<HashSet<_>>().len(), 4, "{senders:?}");
}

/// Returns the queue pairs named in the comments of a capture, and checks the ICRC of all packets.
fn senders(file: &[u8]) -> HashSet<String> {
    let frames = capture::frames(file).unwrap().map(|frame| frame.unwrap());
    let sender = |frame: capture::Frame<'_>| {
        let ip = capture::ip_packet(frame.link, frame.data).unwrap();
        let (net, payload) = NetHeader::parse_ip(ip).unwrap();
        assert!(icrc::verify(&net, payload), "{}", frame.comment);
        frame.comment.split_whitespace().nth(1).unwrap().to_owned()
    };
    frames.map(sender).collect()
}

#[test]
fn idle_process_sleeps() {
    namespace::inside("idle_process_sleeps", namespace::LOOPBACK_UP, "lo", || {
        let mut a = Peer::start("rc", &[("ROXE_STEERING", "off")]);
        assert_eq!(a.ask("many 500"), [500]);
        assert_eq!(a.ask("idle"), [0]);
    });
}

/// Counts the slot names in a runtime directory.
fn slots_named_in(runtime: &Path) -> usize {
    let names = std::fs::read_dir(runtime.join("roxe")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().contains("-slot-")).count()
}

/// Waits until `count` slot names are left.
fn wait_for_slots(runtime: &Path, count: usize) {
    let start = Instant::now();
    while slots_named_in(runtime) != count {
        assert!(start.elapsed() < Duration::from_secs(20), "{} names are left", slots_named_in(runtime));
        std::thread::yield_now();
    }
}

#[test]
fn slot_names_are_removed_at_exit_death_or_next_start() {
    let runtime = PathBuf::from(format!("/tmp/xp{:x}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&runtime).unwrap();
    let knobs = [("XDG_RUNTIME_DIR", runtime.to_str().unwrap())];
    let (mut a, mut b) = with_rings("rc", &knobs);
    assert_eq!(slots_named_in(&runtime), 2);
    b.send_line("exit");
    wait_for_slots(&runtime, 1);
    drop(b);

    let mut c = Peer::start("rc", &knobs);
    join_by_rings(&mut a, &mut c);
    c.signal(libc::SIGKILL);
    wait_for_slots(&runtime, 1);
    drop(c);

    // No process is left that could notice.
    drop(a);
    assert_eq!(slots_named_in(&runtime), 1);
    let mut d = Peer::start("rc", &knobs);
    describe(&mut d);
    assert_eq!(slots_named_in(&runtime), 1);
    d.send_line("exit");
    wait_for_slots(&runtime, 0);
    drop(d);
    std::fs::remove_dir_all(runtime).unwrap();
}

/// Two runtime directories, removed at the end.
struct Runtimes([PathBuf; 2]);

impl Runtimes {
    fn new() -> Self {
        let path = |which| PathBuf::from(format!("/tmp/xr{:x}{which}", std::process::id()));
        let paths = ["a", "b"].map(path);
        paths.iter().for_each(|path| std::fs::DirBuilder::new().mode(0o700).create(path).unwrap());
        Self(paths)
    }

    fn knobs(&self) -> [(&str, &str); 2] {
        self.0.each_ref().map(|path| ("XDG_RUNTIME_DIR", path.to_str().unwrap()))
    }
}

impl Drop for Runtimes {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| _ = std::fs::remove_dir_all(path));
    }
}

#[test]
fn different_runtime_dirs_share_port_without_loss() {
    namespace::inside("different_runtime_dirs_share_port_without_loss", namespace::LOOPBACK_UP, "lo", || {
        let runtimes = Runtimes::new();
        let mut pairs = runtimes.knobs().map(|runtime| [(); 2].map(|()| Peer::start("uc", &[runtime, BY_UDP])));
        pairs.iter_mut().for_each(|[a, b]| join(a, b));
        let mut all_arrive = |_| pairs.iter_mut().all(|[a, b]| arrive_all(a, b));
        // As in `loss_free`, a stalled machine may lose some.
        assert_eq!((0..20).filter(|round| all_arrive(*round)).take(10).count(), 10);
    });
}

#[test]
fn different_runtime_dirs_use_shared_memory() {
    namespace::inside("different_runtime_dirs_use_shared_memory", namespace::LOOPBACK_UP, "lo", || {
        let runtimes = Runtimes::new();
        let [mut a, mut b] = runtimes.knobs().map(|runtime| Peer::start("rc", &[runtime, BY_RING]));
        let mut without = Peer::start("rc", &[BY_RING]);
        join_by_rings(&mut a, &mut b);
        assert_eq!((a.ask("write 10 100000"), b.ask("check 10 100000")), (vec![10], vec![1]));
        b.signal(libc::SIGKILL);
        drop(b);
        join_by_rings(&mut a, &mut without);
        assert_eq!((without.ask("write 10 100000"), a.ask("check 10 100000")), (vec![10], vec![1]));
    });
}
