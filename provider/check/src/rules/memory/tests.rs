//! Buffers of the program, memory of peers, and atomics, by events.

mod buffers {
    use super::super::*;
    use crate::testing::{Card, write};
    use roxe_transport::wr::{Access, RecvRequest, SendData, SendFlags, SendOp, SendRequest};
    use roxe_wire::{LKey, RKey};

    const KEY: u32 = 7;

    fn card() -> (Card, ObjectId) {
        let mut card = Card::new();
        let qp = card.qp();
        card.mr(KEY, 4096, 4096, Access::LOCAL_WRITE);
        (card, qp)
    }

    fn sges(addr: u64) -> [Sge; 1] {
        [Sge { addr, length: 64, lkey: LKey(KEY) }]
    }

    /// Posts a WRITE, a READ or a receive of 64 bytes at `addr`.
    fn post(card: &mut Card, qp: ObjectId, wr_id: u64, addr: u64, kind: &str) -> Vec<Rule> {
        let sges = sges(addr);
        if kind == "receive" {
            return card.emit(Event::PostedRecv { queue: qp, request: &RecvRequest { wr_id, sges: &sges } });
        }
        let write = write(wr_id, SendFlags::SIGNALED);
        let op = if kind == "read" { SendOp::Read { remote_addr: 4096, rkey: RKey(0) } } else { write.op };
        card.post(qp, &SendRequest { op, data: SendData::Sges(&sges), ..write })
    }

    fn received(card: &mut Card, qp: ObjectId, wr_id: u64, opcode: WcOpcode) -> Vec<Rule> {
        let cqe = Cqe { wr_id, opcode, byte_len: 8, ..Cqe::default() };
        card.emit(Event::Completed { qp, side: Side::Recv, cqe: &cqe })
    }

    #[test]
    fn read_into_bytes_being_sent_is_reported() {
        let (mut card, qp) = card();
        assert_eq!(post(&mut card, qp, 1, 4096, "write"), []);
        assert_eq!(post(&mut card, qp, 2, 4096 + 64, "read"), []);
        let other = card.qp();
        assert_eq!(post(&mut card, other, 3, 4096 + 63, "read"), [Rule::BufferOverlapInFlight]);
    }

    #[test]
    fn overlapping_receives_are_reported_once_written() {
        for (opcode, expected) in
            [(WcOpcode::RecvRdmaWithImm, &[][..]), (WcOpcode::Recv, &[Rule::BufferOverlapInFlight][..])]
        {
            let (mut card, qp) = card();
            assert_eq!(post(&mut card, qp, 1, 4096, "receive"), []);
            assert_eq!(post(&mut card, qp, 2, 4096, "receive"), []);
            assert_eq!(received(&mut card, qp, 1, opcode), expected);
        }
    }

    #[test]
    fn changed_bytes_are_reported_unless_the_card_wrote_them() {
        for (kind, side, rule) in [
            ("write", Side::Send, Rule::BufferChangedInFlight),
            ("receive", Side::Recv, Rule::ReceiveChangedEarly),
            ("read", Side::Send, Rule::ReceiveChangedEarly),
        ] {
            let (mut card, qp) = card();
            card.emit(Event::Written { addr: 4096, len: 64 });
            post(&mut card, qp, 1, 4096, kind);
            assert_eq!(card.emit(Event::BytesChanged { qp, side, wr_id: 1 }), [rule]);
            card.emit(Event::Written { addr: 4096 + 32, len: 8 });
            assert_eq!(card.emit(Event::BytesChanged { qp, side, wr_id: 1 }), [], "{kind}");
        }
    }
}

mod remote {
    use super::super::*;
    use crate::testing::{Card, write};
    use roxe_transport::wr::{SendData, SendOp, SendRequest, Sge};
    use roxe_wire::{LKey, RKey};

    /// Posts a WRITE or a READ of 64 bytes, or an atomic, on the peer's memory at `remote_addr`.
    fn post(card: &mut Card, qp: ObjectId, kind: &str, remote_addr: u64, flags: SendFlags) -> Vec<Rule> {
        let rkey = RKey(5);
        let (op, length) = match kind {
            "write" => (SendOp::Write { remote_addr, rkey }, 64),
            "read" => (SendOp::Read { remote_addr, rkey }, 64),
            _ => (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8),
        };
        let sges = [Sge { addr: 4096 * u64::from(rkey.0), length, lkey: LKey(1) }];
        let request = write(1, flags);
        let rules = card.post(qp, &SendRequest { op, data: SendData::Sges(&sges), ..request });
        rules.into_iter().filter(|rule| *rule == Rule::RemoteOverlap).collect()
    }

    #[test]
    fn overlap_of_two_qps_is_reported_if_one_writes() {
        let flags = SendFlags::SIGNALED;
        for (first, second, at, expected) in [
            ("write", "write", 63, &[Rule::RemoteOverlap][..]),
            ("write", "read", 0, &[Rule::RemoteOverlap]),
            ("read", "write", 0, &[Rule::RemoteOverlap]),
            ("atomic", "write", 0, &[Rule::RemoteOverlap]),
            ("write", "write", 64, &[]),
            ("read", "read", 0, &[]),
            ("atomic", "atomic", 0, &[]),
        ] {
            let mut card = Card::new();
            let [a, b] = [card.qp(), card.qp()];
            assert_eq!(post(&mut card, a, first, 4096, flags), []);
            assert_eq!(post(&mut card, b, second, 4096 + at, flags), expected, "{first} {second} {at}");
        }
    }

    #[test]
    fn completed_and_unsignaled_requests_do_not_overlap() {
        let mut card = Card::new();
        let [a, b] = [card.qp(), card.qp()];
        assert_eq!(post(&mut card, a, "write", 4096, SendFlags::empty()), []);
        assert_eq!(post(&mut card, b, "write", 4096, SendFlags::SIGNALED), []);
        card.complete(b, 1);
        assert_eq!(post(&mut card, a, "write", 4096, SendFlags::SIGNALED), []);
    }

    #[test]
    fn unfenced_write_after_read_is_reported() {
        let signaled = SendFlags::SIGNALED;
        for (first, second, flags, expected) in [
            ("read", "write", signaled, &[Rule::RemoteOverlap][..]),
            ("atomic", "write", signaled, &[Rule::RemoteOverlap]),
            ("read", "write", signaled | SendFlags::FENCE, &[]),
            ("write", "read", signaled, &[]),
            ("write", "write", signaled, &[]),
            ("atomic", "read", signaled, &[]),
        ] {
            let mut card = Card::new();
            let qp = card.qp();
            assert_eq!(post(&mut card, qp, first, 4096, signaled), []);
            assert_eq!(post(&mut card, qp, second, 4096, flags), expected, "{first} {second}");
        }
    }
}

mod atomics {
    use super::super::*;
    use crate::testing::{Card, write};
    use roxe_transport::qp::QpAttr;
    use roxe_transport::wr::{SendFlags, SendOp, SendRequest};
    use roxe_wire::{Qpn, RKey};

    const ADDR: u64 = 4096;

    /// Creates a card with two queue pairs that are connected to each other.
    fn card() -> (Card, [ObjectId; 2]) {
        let mut card = Card::new();
        let pairs = [card.qp(), card.qp()];
        for (qp, peer) in [(pairs[0], 2), (pairs[1], 1)] {
            let attr = QpAttr { dest_qpn: Qpn::new(peer), ..QpAttr::default() };
            card.emit(Event::Modified { qp, attr: &attr, mask: AttrMask::DEST_QPN });
        }
        (card, pairs)
    }

    fn post(card: &mut Card, qp: ObjectId) {
        let op = SendOp::FetchAdd { remote_addr: ADDR, rkey: RKey(5), add: 1 };
        card.post(qp, &SendRequest { op, ..write(1, SendFlags::SIGNALED) });
    }

    fn execute(card: &mut Card, qp: ObjectId, old: u64) -> Vec<Rule> {
        card.emit(Event::Atomic { qp, rkey: RKey(5), va: ADDR, addr: ADDR, old, new: old + 1 })
    }

    #[test]
    fn word_changed_between_pending_atomics_is_reported() {
        let (mut card, [from, to]) = card();
        (0..3).for_each(|_| post(&mut card, from));
        assert_eq!(execute(&mut card, to, 7), []);
        assert_eq!(execute(&mut card, to, 8), []);
        assert_eq!(execute(&mut card, to, 0), [Rule::AtomicMixed]);
    }

    #[test]
    fn word_reset_between_rounds_is_clean() {
        let (mut card, [from, to]) = card();
        for found in [7, 0, 100] {
            post(&mut card, from);
            assert_eq!(execute(&mut card, to, found), []);
        }
    }

    #[test]
    fn word_changed_by_card_or_unknown_peer_is_clean() {
        let (mut card, [from, to]) = card();
        (0..2).for_each(|_| post(&mut card, from));
        assert_eq!(execute(&mut card, to, 7), []);
        card.emit(Event::Written { addr: ADDR - 4, len: 64 });
        assert_eq!(execute(&mut card, to, 0), []);
        let unconnected = card.qp();
        assert_eq!(execute(&mut card, unconnected, 50), []);
    }
}
