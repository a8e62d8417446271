//! Processes open and close the device while traffic runs, which must lose nothing: RC has a
//! timeout of 0, so a lost packet stops its queue pair, and a lost message stops the ping-pong of
//! UC and UD. `ROXE_TEST_CHURN_SECONDS`: duration per link.

use crate::common::peer::{MARK, Peer, ROLE};
use crate::common::ping_pong::PingPong;
use crate::common::*;
use roxe_provider::wire::{PathMtu, Qpn};
use roxe_provider::{Service, WcStatus};
use std::time::{Duration, Instant};

const OPENERS: usize = 3;
/// Queue pairs that a process creates before it closes the device.
const QPS: usize = 40;
const PAIRS: usize = 20;
const WRITES: u64 = 3;

/// Peer process, started by a test.
#[test]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let service = match role.as_str() {
        "uc" => Service::Uc,
        "ud" => Service::Ud,
        _ => Service::Rc,
    };
    let mut ping_pong: Option<PingPong> = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let answer = match words[0] {
            "open" => open_and_close(Duration::from_secs(number(1))),
            "pairs" => write_within_process(Duration::from_secs(number(1))),
            "create" => ping_pong.insert(PingPong::new(service)).qp.qpn().get().into(),
            "connect" => ping_pong.as_mut().unwrap().connect(Qpn::new(number(1) as u32)),
            "send" => ping_pong.as_ref().unwrap().send_for(Duration::from_secs(number(1))),
            "count" => ping_pong.as_ref().unwrap().count_overtaken_sends(number(1)),
            "answer" => ping_pong.as_ref().unwrap().answer(),
            other => panic!("unknown command {other}"),
        };
        println!("\n{MARK}{answer}");
    }
}

/// Opens the device, creates queue pairs and closes it, repeatedly. Returns the number of rounds.
fn open_and_close(time: Duration) -> u64 {
    let (start, mut times) = (Instant::now(), 0);
    while start.elapsed() < time {
        let node = Node::open_small();
        let qps: Vec<_> = (0..QPS).map(|_| node.qp(Service::Rc)).collect();
        drop((qps, node));
        times += 1;
    }
    times
}

/// Connects queue pairs within this process, writes, and closes the device, repeatedly. Returns the
/// number of rounds.
fn write_within_process(time: Duration) -> u64 {
    let (start, mut times) = (Instant::now(), 0);
    while start.elapsed() < time {
        let (a, b) = (Node::open_small(), Node::open_small());
        let gid = a.context.gid(1, 0).unwrap();
        let qps: Vec<_> = (0..PAIRS).map(|_| (a.qp(Service::Rc), b.qp(Service::Rc))).collect();
        for (qa, qb) in &qps {
            connect_with(qa, a.av(0, gid), qb.qpn(), PathMtu::Mtu1024, 0);
            connect_with(qb, b.av(0, gid), qa.qpn(), PathMtu::Mtu1024, 0);
            (0..WRITES).for_each(|n| post(qa, n, write_to(&b, 0), a.sge(0, 1)));
        }
        assert!(a.wait(PAIRS * WRITES as usize).iter().all(|cqe| cqe.status == WcStatus::Success));
        times += 1;
    }
    times
}

/// Connects the two ends of a ping-pong.
fn connect_pair([a, b]: &mut [Peer; 2]) {
    let (qpn_a, qpn_b) = (a.ask("create")[0], b.ask("create")[0]);
    assert_eq!((a.ask(&format!("connect {qpn_b}")), b.ask(&format!("connect {qpn_a}"))), (vec![1], vec![1]));
}

fn nothing_is_lost(link: &str) {
    let seconds = std::env::var("ROXE_TEST_CHURN_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5u64);
    let knobs = [("ROXE_LINK", link)];
    let mut ping_pongs: Vec<_> = ["rc", "uc", "ud"].map(|role| [(); 2].map(|()| Peer::start(role, &knobs))).into();
    ping_pongs.iter_mut().for_each(connect_pair);
    let mut openers: Vec<_> = (0..OPENERS).map(|_| Peer::start("opener", &knobs)).collect();
    let mut pairs: Vec<_> = (0..2).map(|_| Peer::start("pairs", &knobs)).collect();
    openers.iter_mut().for_each(|peer| peer.send_line(&format!("open {seconds}")));
    pairs.iter_mut().for_each(|peer| peer.send_line(&format!("pairs {seconds}")));
    for [a, b] in &mut ping_pongs {
        b.send_line("answer");
        a.send_line(&format!("send {seconds}"));
    }
    let count = |peer: &mut Peer| peer.read_line().parse::<u64>().unwrap();
    let exchanged: Vec<_> = ping_pongs.iter_mut().map(|[a, _]| count(a)).collect();
    let [opened, written] = [&mut openers, &mut pairs].map(|peers| peers.iter_mut().map(count).sum::<u64>());
    println!("link {link}: {exchanged:?} messages of RC, UC and UD; {opened} times opened, {written} rounds of pairs");
    assert!(exchanged.iter().all(|exchanged| *exchanged > 0) && opened > 0 && written > 0);
}

#[test]
fn churn_loses_nothing_through_rings() {
    nothing_is_lost("auto");
}

#[test]
fn churn_loses_nothing_over_udp() {
    nothing_is_lost("udp");
}

/// Returns how many of 1,000 answers were received before the send that they answer completed.
fn count_overtaken_sends(link: &str, knobs: &[(&str, &str)]) -> u64 {
    let knobs = [&[("ROXE_LINK", link)], knobs].concat();
    let mut ping_pongs = [(); 2].map(|()| Peer::start("rc", &knobs));
    connect_pair(&mut ping_pongs);
    let [a, b] = &mut ping_pongs;
    b.send_line("answer");
    a.ask("count 1000")[0]
}

// clause: ACK-BEFORE-REQUESTS
#[test]
fn answer_is_received_after_its_send_completes() {
    for link in ["auto", "udp"] {
        let overtaken = count_overtaken_sends(link, &[]);
        assert!(overtaken < 10, "link {link}: {overtaken} of 1000");
    }
}

#[test]
fn answer_may_overtake_ack_on_weakest_card() {
    let overtaken = count_overtaken_sends("udp", &[("ROXE_WEAKEST", "acks")]);
    assert!(overtaken > 10, "{overtaken} of 1000");
}
