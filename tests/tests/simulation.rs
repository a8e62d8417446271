//! Thousands of random runs of two queue pairs over a bad network: loss, duplication, reordering and corruption of up to
//! 10 % each at the same time, random operations, sizes, lists, depths, windows and path MTUs.
//!
//! What is judged is written at [`roxe_transport::sim::scenario`]. Every run has a seed of its own; a failing run prints
//! it. `ROXE_SIM_RUNS` sets the number of runs per test, `ROXE_SIM_SEED` the first seed.

use roxe_transport::qp::Service;
use roxe_transport::sim::scenario::{Report, Work, random_pair, run};
use roxe_transport::sim::{Choices, Rng};

/// Runs per test: a few seconds unoptimised on one core.
const RUNS: u64 = 4000;
/// Faults of each kind, packets per thousand.
const WORST: u32 = 100;

#[test]
fn reliable_connections_deliver_every_byte_once_and_in_order() {
    let total = simulate("rc", Service::Rc, |rng| any_work(rng, false));
    assert!(total.tally.dropped > 0 && total.tally.bad_icrc > 0 && total.tally.duplicated > 0, "{total:?}");
    assert!(total.tally.delayed > 0 && total.timeouts > 0, "{total:?}");
}

#[test]
fn unreliable_connections_deliver_whole_messages_or_nothing() {
    let total = simulate("uc", Service::Uc, |rng| any_work(rng, false));
    assert!(total.tally.dropped > 0 && total.recvs > 0, "{total:?}");
}

#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    let total = simulate("ud", Service::Ud, |rng| any_work(rng, false));
    assert!(total.tally.dropped > 0 && total.recvs > 0, "{total:?}");
}

#[test]
fn wrong_requests_and_sudden_states_break_no_promise() {
    for (name, service) in [("rc", Service::Rc), ("uc", Service::Uc), ("ud", Service::Ud)] {
        simulate(name, service, |rng| any_work(rng, true));
    }
}

fn any_work(rng: &mut Rng, mishaps: bool) -> Work {
    // One run in sixteen has long messages.
    let longest = if rng.below(16) == 0 { 60_000 } else { 6_000 };
    Work { messages: rng.between(1, 50), max_len: rng.between(1, longest), mishaps }
}

fn simulate(name: &str, service: Service, work: impl Fn(&mut Rng) -> Work) -> Report {
    let first = number("ROXE_SIM_SEED", 0);
    let runs = number("ROXE_SIM_RUNS", RUNS);
    let mut total = Report::default();
    for seed in first..first + runs {
        let shown = SeedOnPanic(seed);
        let mut rng = Rng::new(seed);
        let work = work(&mut rng);
        total.add(&run(random_pair(service, WORST, !work.mishaps, rng), work));
        drop(shown);
    }
    println!("{name}: {runs} runs, {total:?}");
    total
}

fn number(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number"))
}

/// Says how to repeat the run that panicked.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to repeat: ROXE_SIM_SEED={} ROXE_SIM_RUNS=1", self.0);
        }
    }
}
