//! The states of a queue pair: what may be posted, what runs, what flushes, and in which order.

use super::*;
use roxe_sim::rng::Rng;
use roxe_transport::qp::{QpEvents, Service};
use roxe_transport::wr::WcStatus::*;

/// Requests SQD for A, with `en_sqd_async_notify` as given.
fn drain(pair: &mut Pair, notify: bool) {
    let end = pair.end(A);
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: notify, ..*end.qp.attr() };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    assert_eq!(end.qp.modify(&mut end.host, &attr, mask), Ok(()));
}

// clause: STATE-POST
#[test]
fn posts_are_accepted_as_the_state_allows() {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let mut p = Pair::idle(Setup::of(service), Rng::new(1));
        let send = |p: &mut Pair| try_post(p, A, 1, SendOp::Send, SendFlags::SIGNALED, &[]);
        let receive = |p: &mut Pair| p.post_recv(A, &RecvRequest { wr_id: 1, sges: &[] });
        assert_eq!((send(&mut p), receive(&mut p)), (Err(PostError::State), Err(PostError::State)));
        p.bring_to(A, QpState::Init);
        assert_eq!((send(&mut p), receive(&mut p)), (Err(PostError::State), Ok(())));
        p.bring_to(A, QpState::Rtr);
        assert_eq!((send(&mut p), receive(&mut p)), (Err(PostError::State), Ok(())));
        p.bring_to(A, QpState::Rts);
        assert_eq!((send(&mut p), receive(&mut p)), (Ok(()), Ok(())));
        assert_eq!(go_to(&mut p, A, QpState::Err), Ok(()));
        assert_eq!((send(&mut p), receive(&mut p)), (Ok(()), Ok(())));
        p.transmit_all();
        assert_eq!(p.ends[0].host.sends.len() + p.ends[0].host.recvs.len(), 6, "all flushed");
    }
}

#[test]
fn posts_are_checked_at_their_limits() {
    let mut p = Pair::new(Setup::default());
    let mr = blank(&mut p, A, 64);
    let five = [mr.sge(0, 1); 5];
    assert_eq!(try_post(&mut p, A, 1, SendOp::Send, SendFlags::SIGNALED, &five[..4]), Ok(()));
    let too_many = try_post(&mut p, A, 1, SendOp::Send, SendFlags::SIGNALED, &five);
    assert_eq!(too_many, Err(PostError::TooManySges));
    assert_eq!(p.post_recv(A, &RecvRequest { wr_id: 0, sges: &five[..4] }), Ok(()));
    assert_eq!(p.post_recv(A, &RecvRequest { wr_id: 0, sges: &five }), Err(PostError::TooManySges));
    for id in 1..64 {
        recv(&mut p, A, id, &[]);
        post(&mut p, A, id, SendOp::Send, &[]);
    }
    assert_eq!(p.post_recv(A, &RecvRequest { wr_id: 0, sges: &[] }), Err(PostError::QueueFull));
    assert_eq!(try_post(&mut p, A, 0, SendOp::Send, SendFlags::SIGNALED, &[]), Err(PostError::QueueFull));
}

// clause: SEND-MAX-LENGTH
#[test]
fn message_of_2_31_bytes_is_the_longest() {
    for service in [Service::Rc, Service::Uc] {
        let mut p = Pair::new(Setup::of(service));
        let mr = blank(&mut p, A, 64);
        let sge = |length| Sge { length, ..mr.all() };
        let longest = try_post(&mut p, A, 1, SendOp::Send, SendFlags::SIGNALED, &[sge(1 << 31)]);
        assert_eq!(longest, Ok(()));
        for list in [&[sge((1 << 31) + 1)][..], &[sge(1 << 31), sge(1)], &[sge(u32::MAX), sge(u32::MAX)]] {
            let posted = try_post(&mut p, A, 2, SendOp::Send, SendFlags::SIGNALED, list);
            assert_eq!(posted, Err(PostError::BadLength));
        }
    }
}

// clause: SEND-OPERATIONS
#[test]
fn operations_of_other_services_are_refused() {
    let mut p = Pair::new(Setup::of(Service::Uc));
    let (a, b) = (blank(&mut p, A, 8), blank(&mut p, B, 8));
    for op in [read_from(b), add_to(b, 1), SendOp::SendInvalidate(b.rkey())] {
        assert_eq!(try_post(&mut p, A, 1, op, SendFlags::SIGNALED, &[a.all()]), Err(PostError::BadOpcode), "{op:?}");
    }
    let mut p = Pair::new(Setup::of(Service::Ud));
    for op in [read_from(b), add_to(b, 1), write_to(b), SendOp::SendInvalidate(b.rkey())] {
        assert_eq!(try_post(&mut p, A, 1, op, SendFlags::SIGNALED, &[a.all()]), Err(PostError::BadOpcode), "{op:?}");
    }
    let no_destination =
        SendRequest { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, data: SendData::Sges(&[]), ud: None };
    assert_eq!(p.post_send(A, &no_destination), Err(PostError::MissingDestination));
}

// clause: SEND-ATOMIC-LENGTH, WC-ORDER
#[test]
fn atomic_with_wrong_list_length_fails_in_order() {
    let lists: &[&[u32]] = &[&[], &[0], &[4], &[7], &[4, 3], &[9], &[16], &[8, 8], &[4, 4, 4], &[8, 0, 1]];
    for lens in lists {
        for is_swap in [false, true] {
            let mut p = Pair::new(Setup::default());
            let (a, b) = (blank(&mut p, A, 64), blank(&mut p, B, 8));
            let op = match add_to(b, 1) {
                SendOp::FetchAdd { remote_addr, rkey, .. } if is_swap => {
                    SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 }
                }
                add => add,
            };
            let list: Vec<Sge> = lens.iter().map(|&len| a.sge(0, len)).collect();
            post(&mut p, A, 1, read_from(b), &[a.sge(0, 8)]);
            post(&mut p, A, 2, op, &list);
            post(&mut p, A, 3, write_to(b), &[a.sge(0, 8)]);
            p.run();
            assert_eq!(sends(&mut p, A), [(1, Success), (2, LocLenErr), (3, WrFlushErr)], "{lens:?}");
            assert_eq!(p.ends[1].host.memory.word(b, 0), 0, "{lens:?}");
            assert_eq!((p.ends[1].qp.state(), p.ends[0].host.flow.reserved), (QpState::Rts, 0));
        }
    }
}

// clause: SEND-ATOMIC-LENGTH
#[test]
fn atomic_result_is_scattered_over_the_list() {
    for lens in [&[8][..], &[4, 4], &[0, 8], &[1, 2, 5]] {
        let mut p = Pair::new(Setup::default());
        let (a, b) = (blank(&mut p, A, 64), blank(&mut p, B, 8));
        let list: Vec<Sge> = lens.iter().map(|&len| a.sge(0, len)).collect();
        post(&mut p, A, 1, add_to(b, 1), &list);
        p.run();
        assert_eq!(sends(&mut p, A), statuses(1..=1, Success), "{lens:?}");
        assert_eq!(p.ends[1].host.memory.word(b, 0), 1, "{lens:?}");
    }
}

// clause: STATE-ERR, WC-ERROR-ALWAYS
#[test]
fn err_flushes_both_queues_in_order() {
    let mut p = Pair::new(Setup::default());
    for id in 1..=5 {
        post_with(&mut p, A, id, SendOp::Send, SendFlags::empty(), &[]);
        recv(&mut p, A, 10 + id, &[]);
    }
    assert_eq!(go_to(&mut p, A, QpState::Err), Ok(()));
    assert_eq!(sends(&mut p, A), statuses(1..=5, WrFlushErr));
    assert_eq!(recvs(&mut p, A), statuses(11..=15, WrFlushErr));
    post_with(&mut p, A, 6, SendOp::Send, SendFlags::empty(), &[]);
    recv(&mut p, A, 16, &[]);
    p.run();
    assert_eq!((sends(&mut p, A), recvs(&mut p, A)), (statuses(6..=6, WrFlushErr), statuses(16..=16, WrFlushErr)));
    assert_eq!(p.log.len(), 0, "no packet was sent");
    assert_eq!(p.end(A).events, QpEvents::empty(), "a modify to ERR raises no asynchronous event");
}

// clause: STATE-ERR
#[test]
fn err_in_the_middle_of_a_message_flushes_its_receive() {
    let mut p = Pair::new(Setup { batch: 1, ..Setup::default() });
    let (src, dst) = (filled(&mut p, A, 1000), blank(&mut p, B, 1000));
    recv(&mut p, B, 1, &[dst.all()]);
    recv(&mut p, B, 2, &[dst.all()]);
    drop_if(&mut p, A, |n, _| n >= 2);
    post(&mut p, A, 1, SendOp::Send, &[src.all()]);
    p.run_for(ms(1));
    assert_eq!(go_to(&mut p, B, QpState::Err), Ok(()));
    assert_eq!(recvs(&mut p, B), statuses(1..=2, WrFlushErr));
}

// clause: STATE-ERR
#[test]
fn qp_in_err_ignores_every_packet() {
    let mut p = Pair::new(Setup::default());
    let dst = blank(&mut p, B, 8);
    assert_eq!(go_to(&mut p, B, QpState::Err), Ok(()));
    post(&mut p, A, 1, write_to(dst), &[]);
    p.run();
    assert_eq!(sends(&mut p, A), [(1, RetryExcErr)]);
    assert_eq!(responses(&p, B), []);
}

// clause: PSN-START, STATE-RESET
#[test]
fn qp_works_again_after_reset() {
    let mut p = Pair::new(Setup { psn: [5, 6], ..Setup::default() });
    let (src, dst) = (filled(&mut p, A, 1000), blank(&mut p, B, 1000));
    for round in 0..3 {
        drop_if(&mut p, A, move |n, _| n >= round);
        for id in 1..=5 {
            post(&mut p, A, id, write_to(dst), &[src.all()]);
            recv(&mut p, A, id, &[]);
        }
        p.run_for(ms(1));
        sends(&mut p, A);
        for side in [A, B] {
            assert_eq!(go_to(&mut p, side, QpState::Reset), Ok(()));
            assert_eq!(p.end(side).host.flow.reserved, 0);
        }
        assert_eq!((sends(&mut p, A), recvs(&mut p, A)), (vec![], vec![]), "RESET reports nothing");
        p.run();
        p.wire.clear_script(A);
        for side in [A, B] {
            p.bring_to(side, QpState::Rts);
        }
        p.log.clear();
        post(&mut p, A, 9, write_to(dst), &[src.all()]);
        p.run();
        assert_eq!(sends(&mut p, A), statuses(9..=9, Success));
        assert_eq!(request_psns(&p, A), [5, 6, 7, 8]);
        assert_eq!(bytes(&p, B, dst), bytes(&p, A, src));
    }
}

// clause: EVENT-COMM-EST
#[test]
fn comm_est_is_raised_once_by_the_first_good_request_in_rtr() {
    let mut p = Pair::idle(Setup::default(), Rng::new(1));
    p.bring_to(A, QpState::Rts);
    p.bring_to(B, QpState::Rtr);
    let dst = blank(&mut p, B, 8);
    p.inject(B, &request(B, 100 + 1, SEND_ONLY), &[]);
    assert_eq!(p.ends[1].events, QpEvents::empty(), "a request out of sequence raises no event");
    post(&mut p, A, 1, write_to(dst), &[]);
    p.run();
    assert_eq!(p.ends[1].events, QpEvents::COMM_EST);
    assert_eq!(sends(&mut p, A), statuses(1..=1, Success), "RTR answers");
    p.ends[1].events = QpEvents::empty();
    post(&mut p, A, 2, write_to(dst), &[]);
    p.run();
    assert_eq!(p.ends[1].events, QpEvents::empty());

    let mut p = Pair::new(Setup::default());
    let dst = blank(&mut p, B, 8);
    post(&mut p, A, 1, write_to(dst), &[]);
    p.run();
    assert_eq!(p.ends[1].events, QpEvents::empty(), "no COMM_EST in RTS");
}

// clause: TAKE-RESPONSES, STATE-SQD, STATE-SQ-DRAINED
#[test]
fn sqd_finishes_started_requests_only() {
    let mut p = Pair::new(Setup { batch: 1, ..Setup::default() });
    let (src, dst) = (filled(&mut p, A, 1000), blank(&mut p, B, 2000));
    post(&mut p, A, 1, write_to(dst), &[src.all()]);
    p.transmit(A);
    drain(&mut p, true);
    assert!(p.ends[0].qp.is_draining());
    let second = SendOp::Write { remote_addr: dst.addr + 1000, rkey: dst.rkey() };
    post(&mut p, A, 2, second, &[src.all()]);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=1, Success));
    assert_eq!(p.ends[0].events, QpEvents::SQ_DRAINED);
    assert!(!p.ends[0].qp.is_draining());
    assert_eq!(bytes(&p, B, dst)[1000..], [0; 1000]);
    p.ends[0].events = QpEvents::empty();
    assert_eq!(go_to(&mut p, A, QpState::Rts), Ok(()));
    p.run();
    assert_eq!(sends(&mut p, A), statuses(2..=2, Success));
    assert_eq!(bytes(&p, B, dst)[1000..], bytes(&p, A, src)[..]);
    assert_eq!(p.ends[0].events, QpEvents::empty(), "the event is raised once");
    p.assert_settled();
}

// clause: STATE-SQ-DRAINED
#[test]
fn sqd_with_empty_queue_raises_sq_drained_on_request() {
    for notify in [true, false] {
        let mut p = Pair::new(Setup::default());
        drain(&mut p, notify);
        p.transmit_all();
        let expected = if notify { QpEvents::SQ_DRAINED } else { QpEvents::empty() };
        assert_eq!(p.ends[0].events | p.end(A).qp.poll_event(), expected);
    }
}

// clause: STATE-SQD
#[test]
fn sqd_repairs_losses_of_started_requests() {
    let mut p = Pair::new(Setup::default());
    let (dst, src) = (blank(&mut p, A, 1000), filled(&mut p, B, 1000));
    drop_if(&mut p, B, |n, _| n == 2);
    post(&mut p, A, 1, read_from(src), &[dst.all()]);
    p.transmit(A);
    drain(&mut p, true);
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=1, Success));
    assert_eq!((bytes(&p, A, dst), p.ends[0].events), (bytes(&p, B, src), QpEvents::SQ_DRAINED));
}

// clause: TAKE-REQUESTS, STATE-SQD
#[test]
fn qp_in_sqd_still_responds() {
    let mut p = Pair::new(Setup::default());
    let (dst, src) = (blank(&mut p, A, 1000), filled(&mut p, B, 1000));
    drain(&mut p, false);
    post(&mut p, B, 1, write_to(dst), &[src.all()]);
    p.run();
    assert_eq!(sends(&mut p, B), statuses(1..=1, Success));
}

// clause: CQ-OVERRUN
#[test]
fn send_queue_that_overruns_its_cq_ends_in_err_with_an_event() {
    let mut p = Pair::new(Setup::default());
    let dst = blank(&mut p, B, 8);
    p.end(A).host.cq_room[0] = Some(2);
    for id in 1..=3 {
        post(&mut p, A, id, write_to(dst), &[]);
    }
    p.run();
    assert_eq!(sends(&mut p, A), statuses(1..=2, Success));
    assert_eq!(p.ends[0].qp.state(), QpState::Err);
    assert_eq!(p.ends[0].events, QpEvents::FATAL);
    assert_eq!(p.ends[0].host.flow.reserved, 0);
}

// clause: CQ-OVERRUN
#[test]
fn receive_that_overruns_its_cq_ends_in_err_with_an_event() {
    let mut p = Pair::new(Setup::default());
    p.end(B).host.cq_room[1] = Some(1);
    for id in 1..=3 {
        recv(&mut p, B, id, &[]);
        post(&mut p, A, id, SendOp::Send, &[]);
    }
    p.run();
    assert_eq!(recvs(&mut p, B), statuses(1..=1, Success));
    assert_eq!(p.ends[1].qp.state(), QpState::Err);
    assert!(p.ends[1].events.contains(QpEvents::FATAL));
    // A message without a completion must not be acknowledged. The first message may be
    // acknowledged, but that acknowledgement can be lost with the QP.
    let done = sends(&mut p, A);
    assert!(matches!(done[0], (1, Success | RetryExcErr)), "{done:?}");
    assert!(done[1..].iter().all(|(_, status)| *status != Success), "{done:?}");
    assert_eq!(p.ends[0].qp.state(), QpState::Err);
}

// clause: SRQ-LAST-RECEIVE
#[test]
fn last_shared_receive_is_announced_once() {
    let setup = Setup { srq: true, ..Setup::default() };
    // No receive is in use: the event is raised on entering ERR.
    let mut p = Pair::new(setup);
    assert_eq!(go_to(&mut p, B, QpState::Err), Ok(()));
    p.run();
    assert_eq!(p.end(B).qp.poll_event() | p.ends[1].events, QpEvents::LAST_WQE_REACHED);
    // An open message uses a receive: it is flushed, then the event is raised.
    let mut p = Pair::new(setup);
    let (src, dst) = (filled(&mut p, A, 1000), blank(&mut p, B, 1000));
    recv(&mut p, B, 1, &[dst.all()]);
    recv(&mut p, B, 2, &[dst.all()]);
    drop_if(&mut p, A, |n, _| n >= 1);
    post(&mut p, A, 1, SendOp::Send, &[src.all()]);
    p.run_for(ms(1));
    assert_eq!(go_to(&mut p, B, QpState::Err), Ok(()));
    p.transmit_all();
    assert_eq!(recvs(&mut p, B), statuses(1..=1, WrFlushErr));
    assert_eq!(p.ends[1].events, QpEvents::LAST_WQE_REACHED);
    assert_eq!(p.ends[1].host.srq.len(), 1, "the SRQ is not flushed");
}

#[test]
fn attributes_changed_in_rts_take_effect() {
    let mut p = Pair::new(Setup { min_rnr_timer: 1, ..Setup::default() });
    let end = p.end(B);
    let attr = QpAttr { min_rnr_timer: 20, access: Access::empty(), ..*end.qp.attr() };
    let mask = AttrMask::MIN_RNR_TIMER | AttrMask::ACCESS_FLAGS;
    assert_eq!(end.qp.modify(&mut end.host, &attr, mask), Ok(()));
    let (src, dst) = (filled(&mut p, A, 8), blank(&mut p, B, 8));
    post(&mut p, A, 1, SendOp::Send, &[]);
    p.run_for(ms(1));
    let [(Response::Ack(aeth), 100)] = responses(&p, B)[..] else { panic!("{:?}", p.log) };
    assert_eq!(aeth.syndrome, roxe_wire::Syndrome::RnrNak { timer: 20 });
    recv(&mut p, B, 1, &[]);
    post(&mut p, A, 2, write_to(dst), &[src.all()]);
    p.run();
    assert_eq!(sends(&mut p, A), [(1, Success), (2, RemInvReqErr)]);
}
