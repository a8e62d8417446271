//! Runs every target on its corpus and on mutations of it.

use roxe_fuzz::replay;

#[test]
fn packet() {
    replay("packet", roxe_fuzz::packet, 20_000);
}

#[test]
fn capture() {
    replay("capture", roxe_fuzz::capture, 20_000);
}

#[test]
fn ip() {
    replay("ip", roxe_fuzz::ip, 20_000);
}

#[test]
fn dissect() {
    replay("dissect", roxe_fuzz::dissect, 4_000);
}

#[test]
fn rsocket() {
    replay("rsocket", roxe_fuzz::rsocket, 20_000);
}

#[test]
fn cm_mad() {
    replay("cm_mad", roxe_fuzz::cm_mad, 20_000);
}

#[test]
fn cm_machine() {
    replay("cm_machine", roxe_fuzz::cm_machine, 20_000);
}

#[test]
fn frame() {
    replay("frame", roxe_fuzz::frame, 20_000);
}

#[test]
fn icrc() {
    replay("icrc", roxe_fuzz::icrc, 20_000);
}

#[test]
fn peer_request() {
    replay("peer_request", roxe_fuzz::peer_request, 20_000);
}

#[test]
fn rules() {
    replay("rules", roxe_fuzz::rules, 20_000);
}

#[test]
fn script() {
    replay("script", roxe_fuzz::script, 20_000);
}

#[test]
fn responder() {
    replay("responder", roxe_fuzz::responder, 20_000);
}

#[test]
fn requester() {
    replay("requester", roxe_fuzz::requester, 20_000);
}

#[test]
fn hostile() {
    replay("hostile", roxe_fuzz::hostile, 20_000);
}

#[test]
fn qp_pair() {
    replay("qp_pair", roxe_fuzz::qp_pair, 4_000);
}

#[test]
fn mailbox() {
    replay("mailbox", roxe_fuzz::mailbox, 20_000);
}

#[test]
fn ring() {
    replay("ring", roxe_fuzz::ring, 20_000);
}
