//! A few hundred random runs of each service, so that a broken state machine is found by `cargo
//! test` of this crate alone; `tests/tests/integration/simulation.rs` does thousands.

use roxe_sim::Case;
use roxe_sim::pair::random_pair;
use roxe_sim::rng::{Choices, Rng};
use roxe_sim::scenario::{Report, Work, run};
use roxe_transport::qp::Service;

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

/// Returns the report of runs in which packets overtake each other and receives are posted late,
/// but no packet is lost.
fn overtaking_runs(service: &str, options: &str, rules: &str) -> Result<Report, String> {
    let mut total = Report::default();
    for seed in 0..RUNS {
        let text = format!("service={service} messages=30 max_len=5000 seed={seed} {options}\n{rules}");
        let case: Case = text.parse()?;
        total.add(&case.play(&|_| {}).map_err(|failure| format!("{}\n{case}", failure.broken))?);
    }
    Ok(total)
}

#[test]
fn early_packets_that_wait_are_neither_lost_nor_reordered() {
    for service in ["uc", "ud", "rc"] {
        let delays = "delay tx 30% by=1us..5ms";
        let waiting = overtaking_runs(service, "early_wait", delays).unwrap_or_else(|broken| panic!("{broken}"));
        let without = overtaking_runs(service, "", delays).unwrap_or_else(|broken| panic!("{broken}"));
        println!("{service} {waiting:?} {without:?}");
        assert!(waiting.tally.delayed > 1000, "{waiting:?}");
        match service {
            "rc" => assert!(waiting.tally.sent < without.tally.sent, "fewer packets are retransmitted"),
            _ => assert!(waiting.recvs > without.recvs, "without a wait some packets are lost"),
        }
    }
}

#[test]
fn lost_message_among_early_packets_is_detected() {
    for service in ["uc", "ud"] {
        let broken = overtaking_runs(service, "early_wait", "drop tx 1%").expect_err("messages are lost");
        assert!(broken.contains("Bytes broken"), "{broken}");
    }
}
