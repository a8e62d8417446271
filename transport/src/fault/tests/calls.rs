//! Rules about calls, completions and events.

use super::*;
use crate::wr::{WcOpcode, WcStatus};

fn calls(text: &str) -> CallInjector {
    CallInjector::new(&rules(text), 1)
}

impl CallInjector {
    /// Makes a call from the sites `stack`; returns its error.
    fn fails(&mut self, function: &str, stack: &[&str]) -> Option<&'static str> {
        self.made(function, None, stack).fail.map(|errno| errno.name)
    }

    fn made(&mut self, function: &str, state: Option<&str>, stack: &[&str]) -> CallVerdict {
        let verb = Verb::called(function).expect("the verb is known");
        self.call(&Call { verb, state, at: Duration::ZERO }, &mut |site| stack.contains(&site))
    }

    fn completes(&mut self, opcode: WcOpcode, wr_id: u64, ordinal: u32) -> Option<CompletionFault> {
        let done = Completion { opcode, wr_id, qpn: Qpn::new(17), ordinal, at: Duration::ZERO };
        self.completion(&done).map(|verdict| verdict.fault)
    }
}

#[test]
fn nth_call_fails_and_others_pass() {
    let mut injector = calls("fail reg_mr nth=2 errno=EFAULT");
    let results: Vec<_> = (0..3).map(|_| injector.fails("ibv_reg_mr", &[])).collect();
    assert_eq!(results, [None, Some("EFAULT"), None]);
    assert_eq!(injector.fails("ibv_create_cq", &[]), None);
    let report: Vec<_> = injector.report().map(|report| report.to_string()).collect();
    assert_eq!(report, ["fail ibv_reg_mr errno=EFAULT nth=2: 3 calls matched, 1 faults"]);
}

#[test]
fn variants_of_a_call_count_as_the_call() {
    let mut injector = calls("fail create_qp nth=2; fail reg_mr");
    assert_eq!((injector.fails("ibv_create_qp", &[]), injector.fails("ibv_create_qp_ex", &[])), (None, Some("ENOMEM")));
    assert_eq!(injector.fails("ibv_reg_mr_iova2", &[]), Some("ENOMEM"));
    assert_eq!(injector.fails("rdma_create_qp_ex", &[]), None);
}

#[test]
fn site_and_state_select_calls() {
    let mut injector = calls("fail modify_qp RTR site=connect_peer nth=2");
    let mut call = |state, site| injector.made("ibv_modify_qp", Some(state), &[site, "main"]).fail.is_some();
    let calls = [("RTR", "connect_peer"), ("RTS", "connect_peer"), ("RTR", "listen_peer"), ("RTR", "connect_peer")];
    assert_eq!(calls.map(|(state, site)| call(state, site)), [false, false, false, true]);
}

#[test]
fn completions_fail_by_operation_queue_pair_and_wr_id() {
    let mut injector = calls("complete REM_ACCESS_ERR op=WRITE qp=#1 wr_id=5..7");
    assert_eq!(injector.completes(WcOpcode::Send, 5, 1), None);
    assert_eq!(injector.completes(WcOpcode::RdmaWrite, 5, 0), None);
    assert_eq!(injector.completes(WcOpcode::RdmaWrite, 8, 1), None);
    let fault = injector.completes(WcOpcode::RdmaWrite, 7, 1);
    assert_eq!(fault, Some(CompletionFault::Status(WcStatus::RemAccessErr)));
    let mut broken = calls("event CQ_ERR nth=2");
    let faults: Vec<_> = (0..3).map(|at| broken.completes(WcOpcode::Recv, at, 0)).collect();
    assert_eq!(faults, [None, Some(CompletionFault::CqErr), None]);
}

#[test]
fn events_happen_on_their_occasion() {
    let mut injector = calls("event REJECTED nth=2; event PORT_ERR at=2s.. by=5ms; event GID_CHANGE call=post_send");
    let mut times = |event| {
        let raised = injector.occasion(event, Duration::ZERO);
        raised.iter().map(|raised| (raised.wait.as_millis(), raised.time.as_millis())).collect::<Vec<_>>()
    };
    assert_eq!((times(EventFault::Rejected), times(EventFault::Rejected)), (vec![], vec![(0, 0)]));
    assert_eq!((times(EventFault::PortErr), times(EventFault::GidChange)), (vec![(2000, 5)], vec![]));
    let verdict = injector.made("ibv_post_send", None, &[]);
    assert_eq!(verdict.events, [(EventFault::GidChange, Duration::ZERO)]);
}

#[test]
fn random_calls_repeat_with_the_seed() {
    let run = |seed: u64| {
        let mut injector = calls(&format!("seed={seed}; fail post_send 30%"));
        (0..200).map(|_| injector.fails("ibv_post_send", &[]).is_some()).collect::<Vec<_>>()
    };
    let failed = run(7).iter().filter(|failed| **failed).count();
    assert!((40..80).contains(&failed), "{failed} of 200");
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn process_is_named_by_file_and_arguments() {
    let server = Process::of_command_line(b"/usr/bin/ib_send_bw\0-a\0");
    let client = Process::of_command_line(b"ib_send_bw\0-a\0host\0");
    assert!(server.is("ib_send_bw") && client.is("ib_send_bw") && !server.is("ib_send"));
    assert!(server.is(&server.to_string()) && !server.is(&client.to_string()));
    let rules = rules(&format!("drop; drop 1% process={server}; fail reg_mr process={client}; event REJECTED"));
    assert_eq!(rules.for_process(&server).to_string(), format!("drop; drop 1% process={server}; event REJECTED"));
    assert_eq!(rules.for_process(&client).list().len(), 1);
}
