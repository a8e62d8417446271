//! UC: incomplete messages are dropped silently.

use super::*;

const ONLY: Request = Request::SendOnly(SendTail::Plain);
const LAST: Request = Request::SendLast(SendTail::Plain);

fn uc() -> Script {
    let mut s = Script::new(Service::Uc);
    s.receive(1, &[s.mr.sge(0, 600)]);
    s.receive(2, &[s.mr.sge(1024, 600)]);
    s
}

// clause: UC-SILENT
#[test]
fn complete_messages_are_delivered() {
    let mut s = uc();
    assert_eq!(s.deliver_uc(FIRST, Request::SendFirst, &[1; MTU]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 1, Request::SendMiddle, &[2; MTU]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 2, LAST, &[3; 8]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 3, Request::WriteOnly(s.reth(2048, 2), Some(ImmDt([9; 4]))), b"hi"), Ok(()));
    assert_eq!(s.done(), [(1, WcStatus::Success, 520), (2, WcStatus::Success, 2)]);
    assert_eq!((s.bytes(512, 8), s.bytes(2048, 2)), (vec![3; 8], b"hi".to_vec()));
}

// clause: UC-RECEIVE-KEPT
#[test]
fn gap_drops_the_open_message_and_reuses_its_receive() {
    let mut s = uc();
    assert_eq!(s.deliver_uc(FIRST, Request::SendFirst, &[1; MTU]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 2, LAST, &[3; 8]), Err(DropReason::OutOfSequence));
    assert_eq!(
        s.deliver_uc(FIRST + 3, LAST, &[3; 8]),
        Err(DropReason::OutOfSequence),
        "in sequence, but of no message"
    );
    assert_eq!(s.deliver_uc(FIRST + 4, ONLY, b"whole"), Ok(()));
    assert_eq!(s.done(), [(1, WcStatus::Success, 5)]);
    assert_eq!(s.bytes(0, 6), b"whole\x01", "from the start of the receive");
}

// clause: UC-RESYNC
#[test]
fn first_packet_after_a_gap_starts_a_message() {
    let mut s = uc();
    assert_eq!(s.deliver_uc(FIRST, Request::SendFirst, &[1; MTU]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 9, Request::SendFirst, &[2; MTU]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 10, LAST, &[3; 8]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST - 50, ONLY, b"x"), Ok(()), "with any PSN");
    assert_eq!(s.done(), [(1, WcStatus::Success, 264), (2, WcStatus::Success, 1)]);
}

// clause: UC-NEW-START
#[test]
fn first_packet_in_sequence_abandons_the_open_message() {
    let mut s = uc();
    assert_eq!(s.deliver_uc(FIRST, Request::WriteFirst(s.reth(4096, 512)), &[1; MTU]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 1, ONLY, b"whole"), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 2, Request::WriteLast(None), &[1; MTU]), Err(DropReason::OutOfSequence));
    assert_eq!(s.done(), [(1, WcStatus::Success, 5)]);
}

// clause: UC-LOST
#[test]
fn uc_message_with_a_bad_packet_is_dropped_completely() {
    let bad = Reth { rkey: RKey(1), ..uc().reth(0, 512) };
    let firsts = [
        (Request::WriteFirst(bad), DropReason::RemoteAccess, MTU),
        (Request::SendFirst, DropReason::InvalidRequest, MTU - 1),
        (Request::WriteFirst(uc().reth(0, 8)), DropReason::InvalidRequest, MTU),
    ];
    for (first, reason, len) in firsts {
        let mut s = uc();
        assert_eq!(s.deliver_uc(FIRST, first, &vec![1; len]), Err(reason));
        assert_eq!(s.deliver_uc(FIRST + 1, LAST, &[1; 8]), Err(DropReason::OutOfSequence));
        assert_eq!(s.deliver_uc(FIRST + 2, ONLY, b"whole"), Ok(()));
        assert_eq!((s.done(), s.sh.state), (vec![(1, WcStatus::Success, 5)], QpState::Rts));
    }
}

#[test]
fn message_longer_than_its_receive_leaves_the_receive() {
    let mut s = uc();
    assert_eq!(s.deliver_uc(FIRST, Request::SendFirst, &[1; MTU]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 1, Request::SendMiddle, &[1; MTU]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 2, LAST, &[1; 89]), Err(DropReason::InvalidRequest));
    assert_eq!(s.deliver_uc(FIRST + 3, ONLY, b"whole"), Ok(()));
    assert_eq!(s.done(), [(1, WcStatus::Success, 5)]);
}

#[test]
fn uc_checks_the_access_flags() {
    let mut s = uc();
    s.sh.attr.access = Access::REMOTE_READ;
    let write = Request::WriteOnly(s.reth(0, 1), None);
    assert_eq!(s.deliver_uc(FIRST, write, b"x"), Err(DropReason::InvalidRequest));
    assert_eq!(s.sh.state, QpState::Rts);
}

// clause: UC-IMM-LAST
#[test]
fn immediate_without_receive_is_dropped_but_data_stays() {
    let mut s = Script::new(Service::Uc);
    assert_eq!(s.deliver_uc(FIRST, Request::WriteFirst(s.reth(0, 260)), &[1; MTU]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 1, Request::WriteLast(Some(ImmDt([0; 4]))), &[2; 4]), Err(DropReason::NoReceive));
    assert_eq!((s.bytes(0, MTU), s.done()), (vec![1; MTU], vec![]));
}

// clause: UNRELIABLE-OWN-FAULT
#[test]
fn local_memory_fault_ends_the_qp() {
    let mut s = Script::new(Service::Uc);
    let readonly = s.host.memory.register(8, Access::empty());
    s.receive(1, &[readonly.all()]);
    assert_eq!(s.deliver_uc(FIRST, ONLY, b"hi"), Err(DropReason::LocalProtection));
    assert_eq!((s.done(), s.sh.state), (vec![(1, WcStatus::LocProtErr, 0)], QpState::Err));
}

// clause: UC-RECEIVE-KEPT
#[test]
fn shared_receive_is_kept_for_the_next_message() {
    let mut s = Script::with(Service::Uc, Some(2));
    let sges = [s.mr.sge(0, 300)];
    s.host.srq.post(&RecvRequest { wr_id: 4, sges: &sges });
    assert_eq!(s.deliver_uc(FIRST, Request::SendFirst, &[1; MTU]), Ok(()));
    assert_eq!(s.deliver_uc(FIRST + 2, ONLY, b"whole"), Ok(()));
    assert_eq!(s.done(), [(4, WcStatus::Success, 5)]);
    assert_eq!(s.deliver_uc(FIRST + 3, ONLY, b"x"), Err(DropReason::NoReceive));
}

// clause: EVENT-COMM-EST
#[test]
fn first_packet_in_rtr_raises_comm_est() {
    let mut s = uc();
    s.sh.set_state(QpState::Rtr);
    assert_eq!(s.deliver_uc(FIRST, ONLY, b"x"), Ok(()));
    assert_eq!(core::mem::take(&mut s.sh.events), QpEvents::COMM_EST);
    assert_eq!(s.deliver_uc(FIRST + 1, ONLY, b"x"), Ok(()));
    assert_eq!(s.sh.events, QpEvents::empty());
}
