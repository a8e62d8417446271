//! A few hundred random runs of each service, so that a broken state machine is found by `cargo test` of this crate
//! alone; `tests/tests/simulation.rs` does thousands.

use crate::qp::shared::Service;
use crate::sim::rng::{Choices, Rng};
use crate::sim::scenario::{Report, Work, random_pair, run};

const RUNS: u64 = 300;

fn random_runs(service: Service) -> Report {
    let mut total = Report::default();
    for seed in 0..RUNS {
        let mut rng = Rng::new(seed);
        let work = Work { messages: rng.between(1, 40), max_len: rng.between(1, 6000), mishaps: false };
        // The test harness shows this line only when the run fails.
        println!("{service:?} seed {seed} {work:?}");
        total.add(&run(random_pair(service, 100, true, rng), work));
    }
    println!("{total:?}");
    total
}

#[test]
fn reliable_connections_deliver_everything_once_and_in_order() {
    let total = random_runs(Service::Rc);
    assert!(total.tally.dropped > 1000 && total.tally.bad_icrc > 1000 && total.timeouts > 100, "{total:?}");
}

#[test]
fn unreliable_connections_deliver_whole_messages_or_nothing() {
    let total = random_runs(Service::Uc);
    assert!(total.tally.dropped > 100 && total.recvs > 100, "{total:?}");
}

#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    let total = random_runs(Service::Ud);
    assert!(total.tally.dropped > 100 && total.recvs > 100, "{total:?}");
}

#[test]
fn mishaps_break_no_promise() {
    for seed in 0..RUNS {
        for service in [Service::Rc, Service::Uc, Service::Ud] {
            let mut rng = Rng::new(seed);
            let work = Work { messages: rng.between(1, 60), max_len: rng.between(1, 4000), mishaps: true };
            println!("{service:?} seed {seed} {work:?}");
            run(random_pair(service, 60, false, rng), work);
        }
    }
}
