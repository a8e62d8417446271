//! Tests requests that fail: the status and `vendor_err` at both ends, and the state of the queue
//! pair.
//!
//! Not tested here: BAD_RESP_ERR needs a peer that breaks the protocol
//! (`transport/src/qp/completer.rs`). GENERAL_ERR would be a defect of roxe. roxe never reports
//! FATAL_ERR and RESP_TIMEOUT_ERR. No card has reliable datagrams and EE contexts.

use super::script::in_every_config;

/// Name, attributes of the queue pairs, receive of b, request of a, completion of b, completion of
/// a. An empty text stands for none.
const CASES: &[(&str, &str, &str, &str, &str, &str)] = &[
    ("a SEND that fits", "", "0+8", "send 0+8", "ok recv vendor=0", "ok send"),
    ("a SEND longer than its receive", "", "0+8", "send 0+16", "loc_len vendor=6", "rem_inv_req"),
    ("a SEND with a wrong lkey", "", "", "send 0+8!", "", "loc_prot"),
    ("a READ with a wrong lkey", "", "", "read 0+8! @0", "", "loc_prot"),
    ("a SEND into a receive with a wrong lkey", "", "0+8!", "send 0+8", "loc_prot vendor=10", "rem_op"),
    ("a WRITE with a wrong rkey consumes no receive", "", "0+8", "write 0+8 @0!", "flushed", "rem_access"),
    ("a READ with a wrong rkey", "", "", "read 0+8 @0!", "", "rem_access"),
    ("an atomic with a wrong rkey", "", "", "add 0+8 @0! add=1", "", "rem_access"),
    ("an atomic on an unaligned word", "", "", "add 0+8 @4 add=1", "", "rem_inv_req"),
    ("a WRITE beyond the end of a region", "", "", "write 0+8 @1048572", "", "rem_access"),
    (
        "a WRITE with immediate data and a wrong rkey",
        "",
        "0+8",
        "write 0+8 @0! imm=1",
        "loc_access vendor=8",
        "rem_access",
    ),
    ("a WRITE that the queue pair does not allow", "access=0", "", "write 0+8 @0", "", "rem_inv_req"),
    ("a READ that the queue pair does not allow", "access=2", "", "read 0+8 @0", "", "rem_inv_req"),
    ("an atomic that the queue pair does not allow", "access=6", "", "add 0+8 @0 add=1", "", "rem_inv_req"),
    ("a SEND that invalidates a wrong rkey", "", "0+8", "send 0+8 closes=b!", "rem_inv_req vendor=11", "rem_access"),
    ("a SEND that finds no receive", "rnr=0", "", "send 0+8", "", "rnr_retry_exc"),
    ("a local invalidation of a wrong key", "", "", "invalidate key=b!", "", "mw_bind"),
];

#[test]
fn every_failure_has_its_status_at_both_ends() {
    for (what, attributes, receive, request, at_receiver, at_sender) in CASES {
        let receive = if receive.is_empty() { String::new() } else { format!("b recv q 1 {receive}\n") };
        let got = if at_receiver.is_empty() { String::new() } else { format!("b got 1 {at_receiver}\n") };
        let script = format!("pair q rc {attributes}\n{receive}a send q 2 {request}\na sent 2 {at_sender}\n{got}");
        let state = if at_sender.starts_with("ok") { "rts" } else { "err" };
        println!("{what}");
        in_every_config(&format!("{script}a state q {state}"));
    }
}

#[test]
fn atomic_with_wrong_sge_length_fails_and_changes_nothing() {
    for operation in ["add", "swap"] {
        for list in ["", "0+0", "0+4", "0+16", "0+8 8+8", "0+4 4+3"] {
            in_every_config(&format!(
                "pair q rc
                 b fill 200+8 7
                 a send q 2 {operation} {list} @200 add=7 compare=7 swap=9
                 a sent 2 loc_len
                 a state q err
                 b holds 200+8 7"
            ));
        }
    }
}

#[test]
fn request_without_peer_fails_after_retry_count() {
    in_every_config(
        "a qp q rc timeout=10 retry=1
         a connect q 2 0
         a send q 2 send 0+8
         a sent 2 retry_exc
         a state q err",
    );
}

#[test]
fn requests_behind_a_failed_one_and_later_ones_are_flushed() {
    in_every_config(
        "pair q rc
         a recv q 9 0+8
         a send q 1 send 0+8! unsignaled
         a send q 2 send 0+8 unsignaled
         a sent 1 loc_prot
         a sent 2 flushed
         a got 9 flushed
         a send q 3 send 0+8
         a recv q 4 0+8
         a sent 3 flushed
         a got 4 flushed",
    );
}

#[test]
fn failed_send_moves_unreliable_qp_to_sqe_until_restarted() {
    for (service, to, receive) in [("uc", "", "0+8"), ("ud", "to=b.q", "0+48")] {
        in_every_config(&format!(
            "pair q {service}
             b recv q 10 {receive}
             a send q 1 send 0+8! {to}
             a send q 2 send 0+8 {to}
             a sent 1 loc_prot
             a sent 2 flushed
             a state q sqe
             a send q 3 send 0+8 {to}
             a sent 3 flushed
             a modify q rts
             a send q 4 send 0+8 {to}
             a sent 4 ok send
             b got 10 ok recv"
        ));
    }
}

#[test]
fn datagram_over_mtu_fails_with_length_error() {
    in_every_config(
        "pair q ud
         a send q 2 send 0+8000 to=b.q
         a sent 2 loc_len
         a state q sqe",
    );
}
