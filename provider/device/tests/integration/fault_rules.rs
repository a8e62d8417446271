//! Fault rules over real sockets that depend on other events in the process.

use crate::common::peer::program;
use crate::common::*;
use roxe_provider::Service;
use roxe_provider::wire::PathMtu;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Drops the second WRITE of the first queue pair, and delays the acknowledgement of the first.
const RULES: &str = "drop tx qp=#0 op=WRITE_ONLY nth=2; delay rx qp=#0 op=ACK nth=1 by=10s";

#[test]
fn destroyed_qp_stops_no_timer_of_others() {
    let output = program("process_with_fault_rules").env("ROXE_FAULTS", RULES).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs with the rules, in a process started by the test above.
#[test]
fn process_with_fault_rules() {
    if std::env::var("ROXE_FAULTS").is_err() {
        return;
    }
    let (a, b) = (Node::open(), Node::open());
    let (qa, _qb) = pair(&a, &b, Service::Rc, 0, PathMtu::Mtu1024);
    let other = a.qp(Service::Rc);
    post(&qa, 1, write_to(&b, 0), a.sge(0, 64));
    post(&qa, 2, write_to(&b, 64), a.sge(64, 64));
    let start = Instant::now();
    while counter(&a.context, "fault_delayed") == 0 {
        a.cq.poll(1, |cqe| panic!("nothing was acknowledged: {cqe:?}")).unwrap();
        assert!(start.elapsed() < TIMEOUT);
    }
    // The delayed packet is delivered now, and the lost WRITE is retransmitted in time.
    other.destroy();
    let done: Vec<u64> = a.wait(2).iter().map(|cqe| cqe.wr_id).collect();
    assert_eq!(done, [1, 2]);
}
