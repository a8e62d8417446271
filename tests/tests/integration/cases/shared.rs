//! Tests shared receive queues, XRC, events, and queue pairs that are moved to SQD or ERR.

use super::script::{in_every_config, on_every_network};

#[test]
fn srq_receives_are_taken_in_order_and_limit_raises_event() {
    on_every_network(
        "b srq s
         pair q rc b.srq=s
         pair p rc b.srq=s
         b recv s 3 0+16
         b recv s 4 100+8 200+8
         b limit s 2
         a fill 0+16 8
         a send p 1 send 0+16
         a sent 1 ok send
         b got 3 ok recv len=16 qp=b.p
         b event srq_limit s
         a send q 2 send 0+16
         a sent 2 ok send
         b got 4 ok recv len=16 qp=b.q
         b holds 0+16 8
         b holds 100+8 8",
    );
}

#[test]
fn send_before_receive_completes_once_receive_is_posted() {
    on_every_network(
        "pair q rc rnr=7
         a send q 1 send 0+8
         b recv q 2 0+8
         a sent 1 ok send
         b got 2 ok recv",
    );
}

// clause: XRC-COMPLETION, XRC-EVERY-REQUEST
#[test]
fn xrc_messages_reach_the_srq_that_they_name() {
    on_every_network(
        "b xsrq s
         b xsrq t
         pair q xrc
         a fill 0+10000 3
         b recv s 1 0+10000
         b recv t 2 20000+10000
         a send q 7 send 0+10000 srqn=b.t imm=5
         a send q 8 send 0+500 srqn=b.s
         a sent 7 ok send
         a sent 8 ok send
         b got 2 ok recv len=10000 imm=5 qp=b.q
         b got 1 ok recv len=500 qp=b.q
         b holds 20000+10000 3
         b holds 0+500 3",
    );
}

// clause: XRC-DOMAIN
#[test]
fn xrc_request_accesses_memory_by_domain_of_its_srq() {
    on_every_network(
        "b xsrq s
         pair q xrc
         a fill 0+5000 4
         a send q 1 write 0+5000 @0 srqn=b.s
         a send q 2 read 50000+5000 @0 srqn=b.s
         a send q 3 add 60000+8 @8000 add=5 srqn=b.s
         a sent 1 ok write
         a sent 2 ok read
         a sent 3 ok add
         a holds 50000+5000 4
         b word 8000 5",
    );
}

// clause: XRC-QUEUE-KNOWN
#[test]
fn message_to_unknown_srq_is_invalid_request() {
    for (destroy, number) in [("b destroy s", "b.s"), ("", "0")] {
        in_every_config(&format!(
            "b xsrq s
             pair q xrc
             {destroy}
             a send q 9 send 0+8 srqn={number}
             a sent 9 rem_inv_req"
        ));
    }
}

// clause: XRC-DIRECTIONS
#[test]
fn xrc_initiator_has_no_receives_and_target_no_queues() {
    in_every_config(
        "pair q xrc
         ! a recv q 1 0+8
         ! b recv q 1 0+8
         ! b send q 1 send 0+8",
    );
}

#[test]
fn armed_cq_wakes_sleeping_program() {
    in_every_config(
        "pair q rc
         b recv q 1 0+8
         b arm receives
         a send q 2 send 0+8
         b woken receives
         b got 1 ok recv
         a sent 2 ok send
         a arm sends
         a send q 3 write 0+8 @0
         a woken sends
         a sent 3 ok write
         b xsrq s
         pair p xrc
         b recv s 4
         b arm receives
         a send p 5 send srqn=b.s
         b woken receives
         b got 4 ok recv
         a sent 5 ok send",
    );
}

#[test]
fn solicited_arm_wakes_on_solicited_messages_and_failures() {
    in_every_config(
        "pair q rc
         b recv q 1 0+8
         b recv q 2 0+8
         b recv q 3 0+8
         b arm receives solicited
         a send q 4 send 0+8
         a sent 4 ok send
         b got 1 ok recv
         a send q 5 send 0+8 solicited
         b woken receives
         b got 2 ok recv
         a sent 5 ok send
         b arm receives solicited
         b modify q err
         b woken receives
         b got 3 flushed",
    );
}

// clause: STATE-SQD, STATE-SQ-DRAINED
#[test]
fn sqd_finishes_started_requests_and_raises_sq_drained() {
    // In shared memory the first request waits until both ends agree on a ring. Request 6 does
    // that, so that request 1 starts at once.
    on_every_network(
        "pair q rc
         b recv q 5 0+8
         a send q 6 send 0+8
         a sent 6 ok send
         b got 5 ok recv
         a send q 1 send 0+8
         a modify q sqd notify
         a send q 2 send 0+8
         b recv q 3 0+8
         b recv q 4 0+8
         a event sq_drained q
         a sent 1 ok send
         b got 3 ok recv
         a modify q rts
         a sent 2 ok send
         b got 4 ok recv",
    );
}

#[test]
fn error_state_of_qp_with_srq_raises_last_wqe_reached() {
    in_every_config(
        "b srq s
         pair q rc b.srq=s
         b recv s 1 0+8
         b modify q err
         b event last_wqe q
         pair p rc b.srq=s
         a send p 2 send 0+8
         a sent 2 ok send
         b got 1 ok recv qp=b.p",
    );
}

#[test]
fn refused_access_without_receive_raises_event() {
    for (access, place, event, status) in
        [(0, "@0", "qp_req_err", "rem_inv_req"), (14, "@0!", "qp_access_err", "rem_access")]
    {
        in_every_config(&format!(
            "pair q rc access={access}
             a send q 1 read 0+8 {place}
             a sent 1 {status}
             b event {event} q"
        ));
    }
}
