//! Every status of a completion that has a cause between two programs that keep to the protocol, with its `vendor_err`.
//!
//! Not here: MW_BIND_ERR (`verbs-api/roxe/tests/loopback.rs`), BAD_RESP_ERR, which takes a peer that does not keep to the protocol
//! (`transport/src/qp/completer.rs`), GENERAL_ERR, which would be a defect of ours, FATAL_ERR and RESP_TIMEOUT_ERR, which no
//! card reports here, and those of reliable datagrams and EE contexts, which nobody has.

use super::*;

const SUCCESS: u32 = 0;
const LOC_LEN: u32 = 1;
const LOC_QP_OP: u32 = 2;
const LOC_PROT: u32 = 4;
const WR_FLUSH: u32 = 5;
const LOC_ACCESS: u32 = 8;
const REM_INV_REQ: u32 = 9;
const REM_ACCESS: u32 = 10;
const REM_OP: u32 = 11;
const RETRY_EXC: u32 = 12;
const RNR_RETRY_EXC: u32 = 13;

/// Numbers of the receive that waits at the responder, and of the request under test.
const RECV: u64 = 1;
const REQUEST: u64 = 2;

/// A request of `a` to `b`, and how it ends.
struct Case {
    what: &'static str,
    /// Changes the attributes of both ends.
    attr: fn(&mut ibv_qp_attr),
    /// The list of the receive, if there is one.
    receive: fn(&Rig) -> Option<ibv_sge>,
    request: fn(&Rig) -> Request,
    /// Number, status and `vendor_err` of every completion, in order of the numbers.
    ends: &'static [(u64, u32, u32)],
}

/// What makes a work request.
struct Request {
    opcode: u32,
    sge: ibv_sge,
    wr: Option<wr_rdma>,
}

fn as_usual(_: &mut ibv_qp_attr) {}

fn one_word(rig: &Rig) -> Option<ibv_sge> {
    Some(rig.sge(100, 1))
}

fn none(_: &Rig) -> Option<ibv_sge> {
    None
}

fn send(rig: &Rig) -> Request {
    Request { opcode: SEND, sge: rig.sge(0, 1), wr: None }
}

/// Towards word 200 of the peer, by its key changed by `change`.
fn towards_memory(rig: &Rig, opcode: u32, change: u32) -> Request {
    let wr = wr_rdma { remote_addr: rig.addr(200), rkey: rig.rkey() ^ change };
    Request { opcode, sge: rig.sge(0, 1), wr: Some(wr) }
}

fn bad_key(sge: ibv_sge) -> ibv_sge {
    ibv_sge { lkey: sge.lkey ^ 1, ..sge }
}

const CASES: &[Case] = &[
    Case {
        what: "a SEND that fits",
        attr: as_usual,
        receive: one_word,
        request: send,
        ends: &[(RECV, SUCCESS, 0), (REQUEST, SUCCESS, 0)],
    },
    Case {
        what: "a SEND longer than the receive",
        attr: as_usual,
        receive: one_word,
        request: |rig| Request { sge: rig.sge(0, 2), ..send(rig) },
        ends: &[(RECV, LOC_LEN, 6), (REQUEST, REM_INV_REQ, 0)],
    },
    Case {
        what: "a SEND from memory that is not registered",
        attr: as_usual,
        receive: none,
        request: |rig| Request { sge: bad_key(rig.sge(0, 1)), ..send(rig) },
        ends: &[(REQUEST, LOC_PROT, 0)],
    },
    Case {
        what: "a READ into memory that is not registered",
        attr: as_usual,
        receive: none,
        request: |rig| Request { sge: bad_key(rig.sge(0, 1)), ..towards_memory(rig, READ, 0) },
        ends: &[(REQUEST, LOC_PROT, 0)],
    },
    Case {
        what: "a SEND into memory that is not registered",
        attr: as_usual,
        receive: |rig| Some(bad_key(rig.sge(100, 1))),
        request: send,
        ends: &[(RECV, LOC_PROT, 10), (REQUEST, REM_OP, 0)],
    },
    Case {
        what: "a WRITE by a key that is none, and a receive that it does not use",
        attr: as_usual,
        receive: one_word,
        request: |rig| towards_memory(rig, WRITE, 1),
        ends: &[(RECV, WR_FLUSH, 0), (REQUEST, REM_ACCESS, 0)],
    },
    Case {
        what: "a WRITE with immediate data by a key that is none",
        attr: as_usual,
        receive: one_word,
        request: |rig| towards_memory(rig, WRITE_IMM, 1),
        ends: &[(RECV, LOC_ACCESS, 8), (REQUEST, REM_ACCESS, 0)],
    },
    Case {
        what: "a WRITE that the peer does not allow",
        attr: |attr| attr.qp_access_flags = 1,
        receive: none,
        request: |rig| towards_memory(rig, WRITE, 0),
        ends: &[(REQUEST, REM_INV_REQ, 0)],
    },
    Case {
        what: "a SEND that invalidates a key that is none",
        attr: as_usual,
        receive: one_word,
        request: |rig| Request { opcode: SEND_INV, ..send(rig) },
        ends: &[(RECV, REM_INV_REQ, 11), (REQUEST, REM_ACCESS, 0)],
    },
    Case {
        what: "a SEND to nobody",
        attr: |attr| (attr.dest_qp_num, attr.timeout, attr.retry_cnt) = (2, 10, 1),
        receive: none,
        request: send,
        ends: &[(REQUEST, RETRY_EXC, 0)],
    },
    Case {
        what: "a SEND that finds no receive",
        attr: |attr| attr.rnr_retry = 0,
        receive: none,
        request: send,
        ends: &[(REQUEST, RNR_RETRY_EXC, 0)],
    },
];

impl Case {
    fn run(&self) -> Vec<(u64, u32, u32)> {
        let rig = Rig::new();
        let (a, b) = (rig.qp(RC), rig.qp(RC));
        for (qp, peer) in [(a, b), (b, a)] {
            let mut attr = towards(number(peer));
            (self.attr)(&mut attr);
            connect_as(qp, attr);
        }
        if let Some(sge) = (self.receive)(&rig) {
            assert_eq!(rig.post_recv(b, RECV, &[sge]), 0);
        }
        let Request { opcode, sge, wr } = (self.request)(&rig);
        let sges = [sge];
        let mut request = send_wr(REQUEST, opcode, &sges);
        request.wr = wr.map_or(request.wr, |rdma| wr_union { rdma });
        assert_eq!(rig.post_send(a, &mut request).0, 0, "{}", self.what);
        let mut ends = rig.completions(self.ends.len());
        ends.sort_by_key(|wc| wc.wr_id);
        destroy(&[a, b]);
        ends.iter().map(|wc| (wc.wr_id, wc.status, wc.vendor_err)).collect()
    }
}

#[test]
fn every_cause_has_its_status() {
    for case in CASES {
        assert_eq!(case.run(), case.ends, "{}", case.what);
    }
}

#[test]
fn an_atomic_whose_list_is_not_eight_bytes_has_a_wrong_length_and_changes_nothing() {
    const COMPARE_SWAP: u32 = 5;
    const FETCH_ADD: u32 = 6;
    for opcode in [COMPARE_SWAP, FETCH_ADD] {
        for lens in [&[][..], &[0], &[4], &[16], &[8, 8], &[4, 3]] {
            let mut rig = Rig::new();
            let [a, b] = rig.rc_pair();
            rig.set(200, 7);
            let sges: Vec<ibv_sge> = lens.iter().map(|&length| ibv_sge { length, ..rig.sge(0, 1) }).collect();
            let mut wr = send_wr(REQUEST, opcode, &sges);
            let (remote_addr, rkey) = (rig.addr(200), rig.rkey());
            wr.wr = wr_union { atomic: wr_atomic { remote_addr, compare_add: 7, swap: 9, rkey } };
            assert_eq!(rig.post_send(a, &mut wr).0, 0, "{opcode} {lens:?}");
            assert_eq!((rig.completions(1)[0].status, query(a).qp_state), (LOC_LEN, ERR), "{opcode} {lens:?}");
            assert_eq!(rig.word(200), 7, "{opcode} {lens:?}");
            destroy(&[a, b]);
        }
    }
}

#[test]
fn what_follows_a_failure_is_flushed() {
    let rig = Rig::new();
    let [a, b] = rig.rc_pair();
    let wrong = [bad_key(rig.sge(0, 1))];
    let good = [rig.sge(0, 1)];
    let mut second = send_wr(2, SEND, &good);
    let mut first = ibv_send_wr { next: &raw mut second, send_flags: 0, ..send_wr(1, SEND, &wrong) };
    assert_eq!(rig.post_send(a, &mut first).0, 0);
    assert_eq!(rig.completions(2).iter().map(|wc| wc.status).collect::<Vec<_>>(), [LOC_PROT, WR_FLUSH]);
    assert_eq!(rig.post_send(a, &mut send_wr(3, SEND, &good)).0, 0, "posting in ERR is allowed");
    assert_eq!(rig.post_recv(a, 4, &good), 0);
    assert!(rig.completions(2).iter().all(|wc| wc.status == WR_FLUSH));
    destroy(&[a, b]);
}

#[test]
fn a_datagram_longer_than_a_packet_has_a_wrong_length() {
    let rig = Rig::new();
    let (ud, ah) = (rig.ud(), rig.ah());
    let sges = [rig.sge(0, 1000)];
    let mut wr = send_wr(REQUEST, SEND, &sges);
    wr.wr = wr_union { ud: wr_ud { ah, remote_qpn: number(ud), remote_qkey: QKEY } };
    assert_eq!(rig.post_send(ud, &mut wr).0, 0);
    assert_eq!((rig.completions(1)[0].status, query(ud).qp_state), (LOC_LEN, SQE));
    destroy_ah(ah);
    destroy(&[ud]);
}

#[test]
fn a_read_that_is_no_longer_allowed_is_a_wrong_operation() {
    let rig = Rig::new();
    let [a, b] = rig.rc_pair();
    modify(a, ibv_qp_attr { qp_state: SQD, ..ibv_qp_attr::default() }, STATE);
    let sges = [rig.sge(0, 1)];
    assert_eq!(rig.post_send(a, &mut rdma_wr(REQUEST, READ, &sges, rig.addr(200), rig.rkey())).0, 0);
    modify(a, ibv_qp_attr { qp_state: SQD, max_rd_atomic: 0, ..ibv_qp_attr::default() }, STATE | 1 << 13);
    let mut start = ibv_qp_attr { qp_state: RTS, ..ibv_qp_attr::default() };
    // SAFETY: a living QP and a whole structure.
    assert_eq!(unsafe { ibv_modify_qp(a, &raw mut start, STATE) }, 0);
    assert_eq!((rig.completions(1)[0].status, query(a).qp_state), (LOC_QP_OP, ERR));
    destroy(&[a, b]);
}
