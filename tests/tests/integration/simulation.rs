//! Random runs over faulty networks in virtual time. Thousands of runs have two queue pairs under
//! loss, duplication, reordering and corruption of up to 10 % each. Others have hundreds of queue
//! pairs around switches with short queues.
//!
//! [`roxe_sim::scenario`] describes the invariants. Every run has its own seed. A failing run is
//! shrunk and printed as a text for [`run`] that repeats it. `ROXE_SIM_RUNS` sets the number of
//! runs per test, `ROXE_SIM_SEED` the first seed.

use roxe_sim::case::Net;
use roxe_sim::case::shrink;
use roxe_sim::pair::random_faults;
use roxe_sim::scenario::{Accident, Report, Work};
use roxe_sim::setup::number;
use roxe_sim::{Case, Choices, LinkSpec, Mr, Place, Rng, Setup, Topology, World};
use roxe_transport::qp::Service;
use roxe_transport::wr::{Access, SendData, SendFlags, SendOp, SendRequest, WcStatus};
use roxe_wire::PathMtu;
use std::num::NonZeroU64;
use std::time::Duration;

/// Runs of pairs per test: a few seconds on one core without optimisation.
const RUNS: u64 = 4000;
/// Largest rate of each kind of fault, in packets per thousand.
const MAX_FAULTS: u32 = 100;

#[test]
fn reliable_connections_deliver_every_byte_once_and_in_order() {
    let total = simulate("rc", Service::Rc, false);
    assert!(total.tally.dropped > 0 && total.tally.bad_icrc > 0 && total.tally.duplicated > 0, "{total:?}");
    assert!(total.tally.delayed > 0 && total.timeouts > 0, "{total:?}");
}

#[test]
fn xrc_messages_reach_their_srq_once_and_in_order() {
    let total = simulate("xrc", Service::XrcIni, false);
    assert!(total.tally.dropped > 0 && total.tally.duplicated > 0 && total.timeouts > 0, "{total:?}");
    assert!(total.sends > total.recvs && total.recvs > 0, "{total:?}");
}

#[test]
fn unreliable_connections_deliver_whole_messages_or_nothing() {
    let total = simulate("uc", Service::Uc, false);
    assert!(total.tally.dropped > 0 && total.recvs > 0, "{total:?}");
}

#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    let total = simulate("ud", Service::Ud, false);
    assert!(total.tally.dropped > 0 && total.recvs > 0, "{total:?}");
}

#[test]
fn unreliable_services_survive_reordering_without_loss() {
    for service in ["uc", "ud"] {
        let total = run(&format!(
            "service={service} net=star nodes=10 latency=2us gbps=10 connections=50 messages=40 max_len=3000 early_wait \
             \n delay tx 10% by=1us..20ms; reorder tx 5% by=100us"
        ));
        assert!(total.tally.delayed > 500 && total.sends == 4000, "{total:?}");
        assert!(service == "uc" || total.recvs == total.sends, "{total:?}");
    }
}

#[test]
fn wrong_requests_and_sudden_states_keep_invariants() {
    for (name, service) in [("rc", Service::Rc), ("uc", Service::Uc), ("ud", Service::Ud), ("xrc", Service::XrcIni)] {
        simulate(name, service, true);
    }
}

#[test]
fn random_worlds_keep_invariants() {
    let total = many("worlds", RUNS / 10, random_world);
    assert!(total.tally.dropped > 0 && total.tally.overflowed > 0 && total.failed > 0, "{total:?}");
    assert!(total.tally.marked > 0 && total.notices > 0, "{total:?}");
}

#[test]
fn thousand_qps_share_a_lossy_switch() {
    let total =
        run("service=rc net=star nodes=50 latency=2us gbps=25 connections=500 messages=12 max_len=3000 window=60000
                     drop tx 1%; duplicate tx 0.2% by=1us..50us; delay tx 1% by=1us..50us; corrupt header tx 0.2%");
    assert!(total.tally.dropped > 100 && total.tally.bad_icrc > 20, "{total:?}");
    assert_eq!((total.sends, total.failed), (12_000, 0), "{total:?}");
}

#[test]
fn links_may_differ_and_share_a_trunk() {
    for service in ["rc", "uc", "ud"] {
        let total = run(&format!(
            "service={service} net=dumbbell nodes=12 latency=3us gbps=10 mixed queue=200000 connections=60 messages=20 \
             max_len=4000 \n drop tx 0.5%; reorder tx 1% by=100us"
        ));
        assert!(total.tally.dropped > 5 && total.sends == 2400, "{total:?}");
    }
}

#[test]
fn incast_overflows_switch_queue_without_failures() {
    let incast = "service=rc net=incast nodes=201 latency=1us gbps=40 queue=1000000 mark=50000 connections=200 messages=50 \
                  max_len=12000";
    let (without, with) = (run(incast), run(&format!("{incast} dcqcn")));
    assert_eq!((without.sends, with.sends, without.failed, with.failed), (10_000, 10_000, 0, 0));
    assert!(without.tally.overflowed > 100 && with.tally.overflowed > 100, "{without:?}\n{with:?}");
    assert_eq!((without.tally.marked, without.notices), (0, 0), "without DCQCN, packets are not marked");
    assert!(with.tally.marked > 100 && with.notices > 100, "{with:?}");
}

#[test]
fn senders_that_reduce_rate_on_marks_lose_less() {
    let link = LinkSpec::gigabits(Duration::from_micros(1), 40);
    let link = LinkSpec { queue: Some(1_000_000), mark_above: Some(50_000), ..link };
    // Four acknowledgements per window keep it full. With a larger window, senders without
    // congestion control give up.
    let (without, with) = (Incast::of(32, link, 40 << 10, false), Incast::of(32, link, 40 << 10, true));
    let lost = |incast: &Incast| incast.world.wire.tally.overflowed;
    assert_eq!((without.failed, with.failed), (0, 0));
    assert!(lost(&without) > 4 * lost(&with), "{} and {} packets lost", lost(&without), lost(&with));
    assert!(2 * with.done > without.done, "{} and {} messages", without.done, with.done);
}

#[test]
fn incast_of_200_dcqcn_senders_has_few_failures() {
    let link = LinkSpec::gigabits(Duration::from_micros(1), 40);
    let link = LinkSpec { queue: Some(4_000_000), mark_above: Some(200_000), ..link };
    let (without, with) = (Incast::of(200, link, 32 << 10, false), Incast::of(200, link, 32 << 10, true));
    assert!(without.failed > 4 * with.failed, "{} and {} gave up", without.failed, with.failed);
    assert!(with.world.wire.tally.marked > 0 && without.world.wire.tally.marked == 0);
}

#[test]
fn rnr_is_retried_until_receiver_is_ready() {
    let total =
        run("service=rc net=star nodes=10 latency=2us gbps=10 connections=100 messages=30 max_len=1500 receives=1
                     rnr 5%; drop tx 0.5%");
    assert_eq!((total.sends, total.failed), (6000, 0), "{total:?}");
    assert!(total.timeouts > 300, "{total:?}");
}

#[test]
fn dead_nodes_do_not_fail_other_connections() {
    let total =
        run("service=rc net=star nodes=20 latency=2us gbps=10 connections=190 messages=20 max_len=3000 window=30000 \
                     error=3@30us error=4@60us error=17@100us error=99@80us gone=7@90us gone=12@50us
                     drop tx 0.5%");
    // 4 connections with an end in ERR; 19 of each node that is gone, one of them between the two.
    assert!((5..=50).contains(&total.failed) && total.sends > 5000, "{total:?}");
}

/// Nodes that continuously write to one node, as fast as congestion control allows.
struct Incast {
    world: World,
    regions: Vec<Mr>,
    /// Number of completed messages.
    done: u64,
    /// Number of senders that exceeded their retry count.
    failed: u64,
}

impl Incast {
    const MESSAGE: u32 = 64 << 10;

    /// Runs `senders` for 50 ms of virtual time, with at most `window` bytes in flight each.
    fn of(senders: usize, link: LinkSpec, window: u32, dcqcn: bool) -> Self {
        let mut incast = Self::new(senders, link, window, dcqcn);
        incast.run_for(Duration::from_millis(50));
        println!(
            "{senders} senders, dcqcn {dcqcn}: {} messages, {} failed, {:?}",
            incast.done, incast.failed, incast.world.wire.tally
        );
        incast
    }

    fn new(senders: usize, link: LinkSpec, window: u32, dcqcn: bool) -> Self {
        let line_rate = link.bandwidth.filter(|_| dcqcn).and_then(NonZeroU64::new);
        let setup = Setup {
            path_mtu: PathMtu::Mtu4096,
            line_rate,
            timeout: 8,
            flow_limit: Some(window),
            log: false,
            ..Setup::default()
        };
        let mut world = World::new(Topology::star(senders + 1, link), Rng::new(1));
        let place = |end, node| Place { node, qpn: number(end) };
        for sender in 0..senders {
            world.connect(&setup, [place(2 * sender, sender + 1), place(2 * sender + 1, 0)]);
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let regions = world.ends.iter_mut().map(|end| end.host.memory.register(Self::MESSAGE, access)).collect();
        let mut incast = Self { world, regions, done: 0, failed: 0 };
        (0..2 * senders).step_by(2).for_each(|sender| (0..4).for_each(|_| incast.post(sender)));
        incast
    }

    fn post(&mut self, sender: usize) {
        let (from, to) = (self.regions[sender], self.regions[sender + 1]);
        let op = SendOp::Write { remote_addr: to.addr, rkey: to.rkey() };
        let data = SendData::Sges(&[from.all()]);
        let request = SendRequest { wr_id: 0, op, flags: SendFlags::SIGNALED, data, ud: None };
        assert_eq!(self.world.end_mut(sender).qp.post_send(&request), Ok(()));
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.world.elapsed() + time;
        let mut news = Vec::new();
        while self.world.elapsed() < end {
            assert_eq!(self.world.step(), Ok(true), "the senders always have work");
            self.world.take_changed(&mut news);
            for &id in &news {
                while let Some(cqe) = self.world.ends[id].host.sends.pop_front() {
                    if cqe.status == WcStatus::Success {
                        self.done += 1;
                        self.post(id);
                    }
                    self.failed += u64::from(cqe.status == WcStatus::RetryExcErr);
                }
            }
        }
    }
}

/// Runs the case that `text` describes.
fn run(text: &str) -> Report {
    let first = knob("ROXE_SIM_SEED", 1);
    let mut case: Case = text.parse().unwrap_or_else(|error| panic!("{error} in {text}"));
    case.seed = first;
    let report = play(&case);
    println!("{case}\n{report:?}");
    report
}

/// Runs [`RUNS`] random pairs and returns the sum of their reports.
fn simulate(name: &str, service: Service, mishaps: bool) -> Report {
    many(name, RUNS, |seed| random_case(service, mishaps, seed))
}

/// Runs `case` for `runs` seeds and returns the sum of their reports.
fn many(name: &str, runs: u64, case: impl Fn(u64) -> Case) -> Report {
    let first = knob("ROXE_SIM_SEED", 0);
    let runs = knob("ROXE_SIM_RUNS", runs);
    let mut total = Report::default();
    for seed in first..first + runs {
        total.add(&play(&case(seed)));
    }
    println!("{name}: {runs} runs, {total:?}");
    total
}

fn random_case(service: Service, mishaps: bool, seed: u64) -> Case {
    let mut rng = Rng::new(seed);
    // One run in sixteen has long messages.
    let longest = if rng.below(16) == 0 { 60_000 } else { 6_000 };
    let work = Work { messages: rng.between(1, 50), max_len: rng.between(1, longest), mishaps };
    let case = Case { service, work, seed, ..Case::default() };
    Case { rules: random_faults(MAX_FAULTS, case.link.latency, &mut rng), ..case }
}

/// Least duration of seven retries: eight times the shortest timeout.
const RETRIES: Duration = Duration::from_micros(8 * 4096);

/// Returns the longest time that a packet queues: behind all packets of all connections, on the
/// slowest link.
fn longest_queue(case: &Case) -> Duration {
    let bytes = 2 * case.connections as u64 * u64::from(case.work.messages) * u64::from(case.work.max_len);
    let slower = if case.mixed { 10 } else { 1 };
    case.link.bandwidth.map_or(Duration::ZERO, |all| Duration::from_nanos(bytes * 8_000_000_000 * slower / all))
}

/// Returns a case with a few nodes, random links and connections between them, and sometimes an
/// accident.
fn random_world(seed: u64) -> Case {
    let mut rng = Rng::new(seed);
    let (nodes, connections) = (rng.between(2, 12), rng.between(1, 40));
    let mut link = LinkSpec::gigabits(Duration::from_micros(rng.between(1, 30).into()), rng.pick(&[1, 10, 40, 100]));
    link.queue = rng.chance_per_mille(500).then(|| rng.between(30_000, 600_000));
    link.mark_above = rng.chance_per_mille(500).then(|| rng.between(2_000, 100_000));
    let rules = random_faults(40, link.latency, &mut rng);
    let mut case = Case {
        service: rng.pick(&[Service::Rc, Service::Rc, Service::XrcIni, Service::Uc, Service::Ud]),
        net: rng.pick(&[Net::Star, Net::Dumbbell, Net::Incast]),
        nodes: nodes as usize,
        connections: connections as usize,
        link,
        mixed: rng.chance_per_mille(300),
        work: Work { messages: rng.between(1, 40), max_len: rng.between(1, 5000), mishaps: rng.chance_per_mille(300) },
        receives: rng.chance_per_mille(200).then_some(1),
        window: rng.chance_per_mille(500).then(|| rng.between(1, 100_000)),
        dcqcn: rng.chance_per_mille(500),
        seed,
        rules,
        ..Case::default()
    };
    // A queue that is too short or takes too long may exhaust all retries. The ends then fail
    // rightly.
    case.work.mishaps |= link.queue.is_some() || longest_queue(&case) > RETRIES / 2;
    for _ in 0..rng.below(3) {
        let end = rng.below(2 * connections) as usize;
        let accident =
            if rng.chance_per_mille(500) { Accident::Error(end) } else { Accident::Gone(rng.below(nodes) as usize) };
        case.accidents.push((Duration::from_micros(rng.below(300).into()), accident));
    }
    case
}

/// Runs a case and returns its report.
///
/// # Panics
/// If the run violates an invariant; the message contains the smallest run that does.
fn play(case: &Case) -> Report {
    let unchanged = &|_: &mut _| {};
    case.play(unchanged).unwrap_or_else(|failure| {
        let smallest = shrink(case, &failure, unchanged);
        panic!("{}\nin the run:\n{case}\n\n{smallest}\n", failure.broken);
    })
}

fn knob(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number"))
}
