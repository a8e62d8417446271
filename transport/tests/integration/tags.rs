//! Tag matching: A sends, B has an SRQ that matches tags.

use super::*;
use proptest::prelude::*;
use roxe_transport::qp::QpEvents;
use roxe_transport::tags::TagRecv;
use roxe_transport::wr::{TmFlags, TmInfo, WcExtra, WcOpcode};
use roxe_wire::{RKey, TmOp, Tmh};

const MATCHED: TmFlags = TmFlags::MATCH.union(TmFlags::DATA_VALID);

fn setup() -> Setup {
    Setup { tag_matching: true, ..Setup::default() }
}

/// Posts a tag of B with all bits significant.
fn tag(pair: &mut Pair, wr_id: u64, tag: u64, sges: &[Sge]) {
    let tags = pair.end(B).host.tags.as_mut().expect("the setup enables tags");
    tags.add(&TagRecv { wr_id, tag, mask: !0, sges }).expect("room");
}

/// Registers a message of A: a header and `len` random bytes.
fn message(pair: &mut Pair, op: TmOp, tag: u64, len: u32) -> Mr {
    let mr = filled(pair, A, 16 + len);
    let header = Tmh { op, app_ctx: 0xc0de, tag }.to_bytes();
    pair.end(A).host.memory.bytes_mut(mr)[..16].copy_from_slice(&header);
    mr
}

/// Registers a rendezvous request of A for `len` bytes of `data`, with `extra` bytes after the
/// headers.
fn request_for(pair: &mut Pair, tag: u64, data: Mr, len: u32, extra: u32) -> Mr {
    let mr = message(pair, TmOp::Rendezvous, tag, 16 + extra);
    let bytes = pair.end(A).host.memory.bytes_mut(mr);
    bytes[16..24].copy_from_slice(&data.addr.to_be_bytes());
    bytes[24..28].copy_from_slice(&data.rkey().0.to_be_bytes());
    bytes[28..32].copy_from_slice(&len.to_be_bytes());
    mr
}

/// Takes the completions of B: wr_id, status, operation, bytes and tag matching information.
fn done(pair: &mut Pair) -> Vec<(u64, WcStatus, WcOpcode, u32, TmInfo)> {
    let taken = core::iter::from_fn(|| pair.recv_done(B));
    taken.map(|cqe| (cqe.wr_id, cqe.status, cqe.opcode, cqe.byte_len, cqe.tm)).collect()
}

/// Returns the completion data of a matched message with `tag`.
fn tm_info(tag: u64, flags: TmFlags) -> TmInfo {
    TmInfo { tag, app_ctx: 0xc0de, flags }
}

// clause: TM-HEADER-SKIPPED, TM-COMPLETION
#[test]
fn matched_message_is_placed_without_its_header() {
    for len in [0, 1, 239, 240, 241, 700] {
        let mut p = Pair::new(setup());
        let (matching, other) = (message(&mut p, TmOp::Eager, 5, len), message(&mut p, TmOp::Eager, 6, len));
        let plain = message(&mut p, TmOp::NoTag, 5, len);
        let (to, spare) = (blank(&mut p, B, 700), [blank(&mut p, B, 716), blank(&mut p, B, 716)]);
        tag(&mut p, 50, 5, &[to.all()]);
        recv(&mut p, B, 1, &[spare[0].all()]);
        recv(&mut p, B, 2, &[spare[1].all()]);
        post(&mut p, A, 1, SendOp::Send, &[other.all()]);
        post(&mut p, A, 2, SendOp::SendImm(imm(7)), &[matching.all()]);
        post(&mut p, A, 3, SendOp::Send, &[plain.all()]);
        p.run();
        assert_eq!(sends(&mut p, A), statuses(1..=3, WcStatus::Success));
        let completed = p.end(B).host.recvs.clone();
        assert_eq!(completed[1].extra, WcExtra::Imm(imm(7)), "immediate data is delivered as usual");
        let ok = WcStatus::Success;
        let expected = [
            (1, ok, WcOpcode::TmRecv, 16 + len, TmInfo::default()),
            (50, ok, WcOpcode::TmRecv, len, tm_info(5, MATCHED)),
            (2, ok, WcOpcode::TmNoTag, 16 + len, TmInfo::default()),
        ];
        assert_eq!(done(&mut p), expected);
        let (from, end) = (bytes(&p, A, matching), len as usize);
        assert_eq!(bytes(&p, B, to)[..end], from[16..]);
        assert_eq!(bytes(&p, B, spare[0])[..end + 16], bytes(&p, A, other));
        assert_eq!(bytes(&p, B, spare[1])[..end + 16], bytes(&p, A, plain));
        p.assert_settled();
    }
}

// clause: TM-UNTAGGED
#[test]
fn messages_too_short_for_a_tag_header_are_untagged() {
    let mut p = Pair::new(setup());
    let (from, to) = (blank(&mut p, A, 15), blank(&mut p, B, 15));
    tag(&mut p, 50, 0, &[to.all()]);
    recv(&mut p, B, 1, &[to.all()]);
    recv(&mut p, B, 2, &[]);
    post(&mut p, A, 1, SendOp::Send, &[from.all()]);
    post(&mut p, A, 2, SendOp::WriteImm { remote_addr: 0, rkey: RKey(0), imm: imm(1) }, &[]);
    p.run();
    let opcodes: Vec<_> = done(&mut p).into_iter().map(|cqe| (cqe.0, cqe.2)).collect();
    assert_eq!(opcodes, [(1, WcOpcode::TmNoTag), (2, WcOpcode::RecvRdmaWithImm)]);
}

/// Sends a rendezvous request for `len` bytes, for which B has a tag. Returns the pair, the data
/// and its destination.
fn rendezvous(setup: Setup, len: u32) -> (Pair, Mr, Mr) {
    let mut p = Pair::new(setup);
    let (data, to, fin) = (filled(&mut p, A, len.max(1)), blank(&mut p, B, len.max(1)), blank(&mut p, A, 16));
    let request = request_for(&mut p, 9, data, len, 20);
    tag(&mut p, 50, 9, &[to.sge(0, len / 3), to.sge(len / 3, len - len / 3)]);
    recv(&mut p, A, 70, &[fin.all()]);
    post(&mut p, A, 1, SendOp::Send, &[request.all()]);
    (p, data, to)
}

/// Returns both completions of a successful rendezvous of `len` bytes.
fn rendezvous_completions(len: u32) -> [(u64, WcStatus, WcOpcode, u32, TmInfo); 2] {
    let second = TmInfo { flags: TmFlags::DATA_VALID, ..TmInfo::default() };
    [
        (50, WcStatus::Success, WcOpcode::TmRecv, 0, tm_info(9, TmFlags::MATCH)),
        (50, WcStatus::Success, WcOpcode::TmRecv, len, second),
    ]
}

// clause: TM-RENDEZVOUS
#[test]
fn card_reads_rendezvous_data_and_sends_fin() {
    for len in [0, 1, 256, 257, 5000] {
        let (mut p, data, to) = rendezvous(setup(), len);
        p.run();
        assert_eq!(done(&mut p), rendezvous_completions(len));
        assert_eq!(bytes(&p, B, to)[..len as usize], bytes(&p, A, data)[..len as usize]);
        assert_eq!(sends(&mut p, B), [], "the program of B has sent nothing");
        let fin = one_recv(&mut p, A);
        assert_eq!((fin.wr_id, fin.opcode, fin.byte_len), (70, WcOpcode::Recv, 16));
        p.assert_settled();
    }
}

// clause: TM-RENDEZVOUS
#[test]
fn fin_carries_the_rendezvous_header() {
    let mut p = Pair::new(setup());
    let (data, to, fin) = (filled(&mut p, A, 8), blank(&mut p, B, 8), blank(&mut p, A, 16));
    let request = request_for(&mut p, 0x1234, data, 8, 0);
    tag(&mut p, 50, 0x1234, &[to.all()]);
    recv(&mut p, A, 70, &[fin.all()]);
    post(&mut p, A, 1, SendOp::Send, &[request.all()]);
    p.run();
    let header = Tmh { op: TmOp::Fin, app_ctx: 0xc0de, tag: 0x1234 };
    assert_eq!(bytes(&p, A, fin), header.to_bytes());
}

// clause: TM-RENDEZVOUS, TM-RENDEZVOUS-ORDER
#[test]
fn rendezvous_survives_the_loss_of_any_packet() {
    for from in [A, B] {
        for nth in 0..12 {
            let (mut p, data, to) = rendezvous(setup(), 2000);
            drop_nth(&mut p, from, nth);
            p.run();
            assert_eq!(done(&mut p), rendezvous_completions(2000), "without packet {nth} of {from:?}");
            assert_eq!(bytes(&p, B, to), bytes(&p, A, data));
            let (request, fin) = (p.send_done(A).expect("poll a completion"), one_recv(&mut p, A));
            assert_eq!((request.status, fin.status, fin.wr_id), (WcStatus::Success, WcStatus::Success, 70));
            assert!(request.timestamp <= fin.timestamp, "without packet {nth} of {from:?} the FIN completes first");
        }
    }
}

// clause: TM-RENDEZVOUS-SOFTWARE
#[test]
fn unreadable_rendezvous_is_left_to_the_program() {
    let mut p = Pair::new(Setup { max_rd_atomic: 0, ..setup() });
    let (data, to) = (filled(&mut p, A, 40), blank(&mut p, B, 40));
    let request = request_for(&mut p, 9, data, 40, 3);
    tag(&mut p, 50, 9, &[to.all()]);
    post(&mut p, A, 1, SendOp::Send, &[request.all()]);
    p.run();
    let incomplete = (50, WcStatus::TmRndvIncomplete, WcOpcode::TmRecv, 19, tm_info(9, MATCHED));
    assert_eq!(done(&mut p), [incomplete]);
    assert_eq!(bytes(&p, B, to)[..19], bytes(&p, A, request)[16..]);
    assert_eq!(p.end(B).qp.state(), QpState::Rts);
}

// clause: TM-RENDEZVOUS-SOFTWARE
#[test]
fn rendezvous_are_limited_to_16() {
    let mut p = Pair::new(setup());
    let (data, to, small) = (filled(&mut p, A, 64), blank(&mut p, B, 64), blank(&mut p, A, 16));
    let request = request_for(&mut p, 9, data, 64, 0);
    for round in 0..2 {
        for id in 0..8 {
            tag(&mut p, 100 * round + id, 9, &[to.all()]);
            tag(&mut p, 100 * round + 8 + id, 9, &[to.all()]);
            recv(&mut p, A, id, &[small.all()]);
            recv(&mut p, A, id, &[small.all()]);
        }
        // The responses to the READs of B are delayed until all requests have arrived.
        drop_if(&mut p, A, |_, packet| matches!(packet.header.kind, Kind::RcResponse(_)));
        (0..16).for_each(|id| post(&mut p, A, id, SendOp::Send, &[request.all()]));
        p.run_for(ms(1));
        tag(&mut p, 99, 9, &[to.all()]);
        post(&mut p, A, 16, SendOp::Send, &[request.all()]);
        p.run_for(ms(1));
        let first: Vec<_> = done(&mut p).into_iter().map(|cqe| (cqe.0, cqe.1)).collect();
        assert_eq!(first.len(), 17);
        assert_eq!(first.last(), Some(&(99, WcStatus::TmRndvIncomplete)), "the seventeenth");
        p.wire.clear_script(A);
        p.run();
        let second: Vec<_> = done(&mut p).into_iter().map(|cqe| (cqe.1, cqe.4.flags)).collect();
        assert_eq!(second, [(WcStatus::Success, TmFlags::DATA_VALID); 16]);
        assert_eq!(recvs(&mut p, A).len(), 16);
        assert_eq!(sends(&mut p, A), statuses(0..=16, WcStatus::Success));
    }
}

// clause: TM-RENDEZVOUS-BROKEN
#[test]
fn broken_rendezvous_completes_with_an_error() {
    let mut p = Pair::new(setup());
    let (data, to) = (filled(&mut p, A, 64), blank(&mut p, B, 64));
    let request = request_for(&mut p, 9, data, 64, 0);
    tag(&mut p, 50, 9, &[to.all()]);
    p.end(A).host.memory.deregister(data);
    post(&mut p, A, 1, SendOp::Send, &[request.all()]);
    p.run();
    let broken = (50, WcStatus::TmRndvIncomplete, WcOpcode::TmRecv, 0, TmInfo::default());
    assert_eq!(done(&mut p), [rendezvous_completions(0)[0], broken]);
    assert_eq!(p.end(B).qp.state(), QpState::Err);
}

// clause: TM-FIN-LOST
#[test]
fn undeliverable_fin_raises_an_event() {
    let mut p = Pair::new(Setup { rnr_retry: 0, ..setup() });
    let (data, to) = (filled(&mut p, A, 8), blank(&mut p, B, 8));
    let request = request_for(&mut p, 9, data, 8, 0);
    tag(&mut p, 50, 9, &[to.all()]);
    post(&mut p, A, 1, SendOp::Send, &[request.all()]);
    p.run();
    assert_eq!(done(&mut p), rendezvous_completions(8));
    let events = p.end(B).events;
    assert!(events.contains(QpEvents::FATAL), "{events:?}");
}

// clause: TM-MATCH
#[test]
fn rnr_nakked_message_is_matched_again() {
    let mut p = Pair::new(setup());
    let (from, to) = (message(&mut p, TmOp::Eager, 5, 30), blank(&mut p, B, 30));
    post(&mut p, A, 1, SendOp::Send, &[from.all()]);
    p.run_for(Duration::from_micros(100));
    assert_eq!(done(&mut p), []);
    tag(&mut p, 50, 5, &[to.all()]);
    p.run();
    assert_eq!(done(&mut p), [(50, WcStatus::Success, WcOpcode::TmRecv, 30, tm_info(5, MATCHED))]);
}

// clause: TM-BROKEN-OFF
#[test]
fn aborted_unexpected_message_does_not_count() {
    for state in [QpState::Err, QpState::Reset] {
        let mut p = alone(B, setup());
        let to = blank(&mut p, B, 600);
        recv(&mut p, B, 1, &[to.all()]);
        let mut first = Tmh { op: TmOp::Eager, app_ctx: 0, tag: 5 }.to_bytes().to_vec();
        first.resize(256, 1);
        p.inject(B, &request(B, 100, Request::SendFirst), &first);
        let needs_sync = |p: &mut Pair| p.end(B).host.tags.as_ref().is_some_and(|tags| tags.needs_sync());
        assert!(needs_sync(&mut p));
        assert_eq!(go_to(&mut p, B, state), Ok(()));
        assert!(!needs_sync(&mut p), "after {state:?}");
    }
}

// clause: CHECK-ROOM
#[test]
fn message_longer_than_its_tag_fails() {
    let mut p = Pair::new(setup());
    let (from, to) = (message(&mut p, TmOp::Eager, 5, 300), blank(&mut p, B, 299));
    tag(&mut p, 50, 5, &[to.all()]);
    post(&mut p, A, 1, SendOp::Send, &[from.all()]);
    p.run();
    let (wr_id, status, opcode, ..) = done(&mut p)[0];
    assert_eq!((wr_id, status, opcode), (50, WcStatus::LocLenErr, WcOpcode::TmRecv));
    assert_eq!(sends(&mut p, A), [(1, WcStatus::RemInvReqErr)]);
}

proptest! {
    /// With any payload, a message takes the matching tag or else the next ordinary receive, and
    /// completes once.
    #[test]
    fn any_message_takes_exactly_one_receive(
        messages in prop::collection::vec((0u8..6, 0u64..4, prop::collection::vec(any::<u8>(), 0..257)), 1..10),
    ) {
        let mut p = alone(B, setup());
        let to = blank(&mut p, B, 2048);
        (0..4).for_each(|number| tag(&mut p, 100 + number, number, &[to.sge(0, 200)]));
        (0..10).for_each(|id| recv(&mut p, B, id, &[to.all()]));
        let (mut posted, mut next_receive) = (vec![true; 4], 0);
        for (psn, (op, tag, mut bytes)) in (100..).zip(messages) {
            let has_header = bytes.len() >= Tmh::LEN;
            if has_header {
                bytes[0] = op;
                bytes[8..16].copy_from_slice(&tag.to_be_bytes());
            }
            p.inject(B, &request(B, psn, SEND_ONLY), &bytes);
            let is_tagged = has_header && matches!(op, 1 | 3);
            let matches = is_tagged && core::mem::take(&mut posted[tag as usize]);
            let expected = if matches { 100 + tag } else { next_receive };
            next_receive += u64::from(!matches);
            let completed = done(&mut p);
            prop_assert_eq!(completed.iter().map(|cqe| cqe.0).next(), Some(expected));
            let opcode = if is_tagged { WcOpcode::TmRecv } else { WcOpcode::TmNoTag };
            prop_assert_eq!(completed[0].2, opcode);
            if p.end(B).qp.state() == QpState::Err {
                prop_assert_eq!((matches, completed[0].1), (true, WcStatus::LocLenErr));
                break;
            }
        }
        p.run_for(ms(500));
    }
}
