//! The ring of send work requests: order, growth, places and lists.

use super::*;
use roxe_wire::{Feth, LKey, Placement, Qpn, RKey, Selectivity};

fn queue(max_send_wr: u32) -> SendQueue {
    let caps = QpCaps { max_send_wr, max_recv_wr: 0, max_send_sge: 2, max_recv_sge: 0, max_inline_data: 4 };
    let qpn = Qpn::new(1);
    SendQueue::new(&QpConfig::new(qpn, Service::Rc, caps))
}

fn request(wr_id: u64, data: SendData<'_>) -> SendRequest<'_> {
    SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::empty(), data, ud: None }
}

fn sge(length: u32) -> Sge {
    Sge { addr: 0x1000, length, lkey: LKey(1) }
}

#[test]
fn send_queue_holds_max_send_wr_requests_and_wraps() {
    let mut sq = queue(3);
    for wr_id in 0..3 {
        assert_eq!(sq.push(&request(wr_id, SendData::Sges(&[])), 0), Ok(()));
    }
    for wr_id in 3..100 {
        assert_eq!(sq.push(&request(wr_id, SendData::Sges(&[])), 0), Err(PostError::QueueFull));
        assert_eq!(sq.pop().map(|wqe| wqe.wr_id), Some(wr_id - 3));
        let list = [sge(u32::try_from(wr_id).expect("small")), sge(1)];
        assert_eq!(sq.push(&request(wr_id, SendData::Sges(&list)), 0), Ok(()));
        let newest = sq.tail_index().wrapping_sub(1);
        let wqe = *sq.get(newest).expect("just pushed");
        assert!(matches!(sq.payload(newest, &wqe), SendData::Sges(sges) if sges == list));
        assert_eq!(u64::from(wqe.length), wr_id + 1);
    }
    sq.clear();
    assert!(sq.is_empty() && sq.head().is_none() && sq.pop().is_none());
}

#[test]
fn send_queue_growth_keeps_requests_and_data() {
    let mut sq = queue(100);
    // Three posts per completion: the ring is rotated whenever it grows.
    for byte in 0..144 {
        let list = [sge(byte.into())];
        let data = if byte % 4 == 0 { SendData::Inline(&[byte]) } else { SendData::Sges(&list) };
        sq.push(&request(byte.into(), data), 0).expect("room");
        if byte % 3 == 2 {
            sq.drop_head();
        }
    }
    assert_eq!((sq.tail - sq.head, sq.mask), (96, 127));
    for index in sq.head..sq.tail {
        let (byte, wqe) = (u8::try_from(index).expect("small"), sq.get(index).expect("queued"));
        assert_eq!(wqe.wr_id, u64::from(byte));
        match sq.payload(index, wqe) {
            SendData::Inline(bytes) => assert!(byte % 4 == 0 && bytes == [byte]),
            SendData::Sges(sges) => assert_eq!(sges, [sge(byte.into())]),
        }
    }
}

#[test]
fn empty_queue_restarts_at_its_first_slot() {
    let mut sq = queue(8);
    for lap in 0..5_u8 {
        for byte in [lap, lap + 100] {
            sq.push(&request(byte.into(), SendData::Inline(&[byte])), 0).expect("room");
        }
        for byte in [lap, lap + 100] {
            let (index, wqe) = (sq.head_index(), *sq.head().expect("two requests are queued"));
            assert!(matches!(sq.payload(index, &wqe), SendData::Inline(&[found]) if found == byte));
            assert_eq!(sq.pop().map(|wqe| wqe.wr_id), Some(byte.into()));
        }
    }
    assert_eq!((sq.slots.len(), sq.tail_index()), (2, 10));
}

#[test]
fn unstarted_requests_can_be_retracted() {
    let mut sq = queue(4);
    for wr_id in 0..4 {
        assert_eq!(sq.push(&request(wr_id, SendData::Sges(&[])), 0), Ok(()));
    }
    assert_eq!(sq.room(), 0);
    sq.retract(1, 2);
    assert_eq!((sq.room(), sq.tail_index()), (1, 3));
    sq.retract(9, 2);
    assert_eq!((sq.room(), sq.tail_index()), (2, 2));
    assert_eq!(sq.push(&request(7, SendData::Sges(&[])), 0), Ok(()));
    assert_eq!(sq.get(2).map(|wqe| wqe.wr_id), Some(7));
}

// clause: SEND-MAX-LENGTH
#[test]
fn lists_inline_bytes_and_lengths_have_limits() {
    let mut sq = queue(8);
    assert_eq!(sq.push(&request(0, SendData::Sges(&[sge(1); 3])), 0), Err(PostError::TooManySges));
    assert_eq!(sq.push(&request(0, SendData::Sges(&[sge(1 << 30); 2])), 0), Ok(()));
    assert_eq!(sq.push(&request(0, SendData::Sges(&[sge(1 << 31), sge(1)])), 0), Err(PostError::BadLength));
    assert_eq!(sq.push(&request(0, SendData::Sges(&[sge(u32::MAX); 2])), 0), Err(PostError::BadLength));
    assert_eq!(sq.push(&request(0, SendData::Inline(&[0; 5])), 0), Err(PostError::InlineTooLong));
    assert_eq!(sq.push(&request(0, SendData::Inline(&[1, 2, 3, 4])), 0), Ok(()));
    let wqe = *sq.get(1).expect("the second request is queued");
    assert!(matches!(sq.payload(1, &wqe), SendData::Inline(&[1, 2, 3, 4])));
}

// clause: ATOMIC-WRITE-LENGTH, ATOMIC-WRITE-INLINE, SEND-MAX-LENGTH
#[test]
fn atomic_write_has_8_bytes_and_flush_none() {
    fn push(op: SendOp, data: SendData<'_>) -> Result<(), PostError> {
        queue(2).push(&SendRequest { op, ..request(0, data) }, 0)
    }
    let feth = Feth { selectivity: Selectivity::Range, placement: Placement::GLOBAL_VISIBILITY };
    let store = SendOp::AtomicWrite { remote_addr: 0, rkey: RKey(0) };
    let flush = |length| SendOp::Flush { remote_addr: 0, rkey: RKey(0), length, feth };
    for wrong in [&[sge(7)][..], &[sge(9)], &[]] {
        assert_eq!(push(store, SendData::Sges(wrong)), Err(PostError::BadLength));
    }
    assert_eq!(push(store, SendData::Sges(&[sge(3), sge(5)])), Ok(()));
    assert_eq!(push(store, SendData::Inline(&[0; 7])), Err(PostError::BadLength));
    assert_eq!(push(store, SendData::Inline(&[0; 9])), Err(PostError::InlineTooLong));
    assert_eq!(push(flush(MAX_MESSAGE), SendData::Sges(&[])), Ok(()));
    assert_eq!(push(flush(MAX_MESSAGE + 1), SendData::Sges(&[])), Err(PostError::BadLength));
    assert_eq!(push(flush(8), SendData::Sges(&[sge(8)])), Err(PostError::BadLength));
    let mut sq = queue(3);
    for word in [[1; 8], [2; 8]] {
        sq.push(&SendRequest { op: store, ..request(0, SendData::Inline(&word)) }, 0).expect("room");
    }
    let payload = |at| sq.get(at).map(|wqe| sq.payload(at, wqe));
    assert!(matches!(payload(0), Some(SendData::Inline(&[1, 1, 1, 1, 1, 1, 1, 1]))));
    assert!(matches!(payload(1), Some(SendData::Inline(&[2, 2, 2, 2, 2, 2, 2, 2]))));
}

// clause: BTH-SOLICITED
#[test]
fn only_send_and_write_imm_are_solicited() {
    let (remote_addr, rkey, flags) = (0, RKey(0), SendFlags::SOLICITED);
    let solicits = |op| {
        let mut sq = queue(1);
        sq.push(&SendRequest { op, flags, ..request(0, SendData::Sges(&[sge(8)])) }, 0).expect("room");
        sq.head().is_some_and(SendWqe::is_solicited)
    };
    assert!(solicits(SendOp::Send) && solicits(SendOp::WriteImm { remote_addr, rkey, imm: roxe_wire::ImmDt([0; 4]) }));
    assert!(!solicits(SendOp::Write { remote_addr, rkey }) && !solicits(SendOp::Read { remote_addr, rkey }));
}
