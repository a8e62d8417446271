//! Refused keys and unused rights.

use crate::event::{Event, MrInfo, Object};
use crate::rule::Rule;
use crate::testing::{Card, write};
use roxe_base::error::Error;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::{MemError, Side};
use roxe_transport::qp::DropReason;
use roxe_transport::wr::{Access, SendData, SendFlags, SendRequest, Sge};
use roxe_wire::{LKey, RKey};

const LKEY: u32 = 0x100;
const RKEY: u32 = 0x200;
const WRITABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// Registers a region of 64 bytes at 4096 in `pd`, with these rights.
fn region(card: &mut Card, pd: ObjectId, access: Access) -> ObjectId {
    let (context, id) = (card.context, ObjectId::next());
    let memory = MrInfo { context, pd, lkey: LKEY, rkey: RKEY, addr: 4096, base: 4096, length: 64, access };
    card.emit(Event::Created(id, Object::Mr(memory)));
    id
}

fn sge(lkey: u32, addr: u64, length: u32) -> [Sge; 1] {
    [Sge { addr, length, lkey: LKey(lkey) }]
}

/// Returns the reports about a peer's failed access.
fn peer(card: &mut Card, qp: ObjectId, key: u32, (va, len): (u64, u64), error: MemError) -> Vec<Rule> {
    let access = Access::REMOTE_WRITE;
    card.emit(Event::RemoteFault { qp, rkey: RKey(key), va, len, access, error });
    card.emit(Event::Dropped { qp, reason: DropReason::RemoteAccess, packet: None })
}

fn local(card: &mut Card, qp: ObjectId, sges: &[Sge], access: Access, error: MemError) -> Vec<Rule> {
    card.emit(Event::LocalFault { qp, side: Side::Send, sges, access, error })
}

#[test]
fn each_misuse_of_a_key_has_its_rule() {
    let mut card = Card::new();
    let (qp, pd) = (card.qp(), card.pd);
    region(&mut card, pd, WRITABLE);
    let read = Access::empty();
    assert_eq!(local(&mut card, qp, &sge(RKEY, 4096, 8), read, MemError::WrongDomain), [Rule::KeyConfused]);
    assert_eq!(local(&mut card, qp, &sge(LKEY, 4100, 61), read, MemError::Range), [Rule::KeyOutOfRange]);
    assert_eq!(local(&mut card, qp, &sge(LKEY, 4096, 64), read, MemError::Range), [], "only the list is too short");
    assert_eq!(local(&mut card, qp, &sge(LKEY, 4096, 64), read, MemError::Fault), [Rule::MemoryGoneInFlight]);
    assert_eq!(peer(&mut card, qp, LKEY, (4096, 8), MemError::Access), [Rule::KeyConfused]);
    assert_eq!(peer(&mut card, qp, RKEY, (4000, 8), MemError::Range), [Rule::KeyOutOfRange]);
    assert_eq!(peer(&mut card, qp, 0x300, (4096, 8), MemError::BadKey), [], "the key is unknown");
}

#[test]
fn missing_right_of_region_or_qp_is_reported() {
    let mut card = Card::new();
    let (qp, pd) = (card.qp(), card.pd);
    region(&mut card, pd, Access::empty());
    assert_eq!(peer(&mut card, qp, RKEY, (4096, 8), MemError::Access), [Rule::AccessMissing]);
    let sink = sge(LKEY, 4096, 8);
    assert_eq!(local(&mut card, qp, &sink, Access::LOCAL_WRITE, MemError::Access), [Rule::AccessMissing]);
    assert_eq!(card.emit(Event::MissingRight { qp, right: Access::REMOTE_READ }), [Rule::AccessMissing]);
}

#[test]
fn key_of_another_domain_is_reported() {
    let mut card = Card::new();
    let (qp, pd, context) = (card.qp(), ObjectId::next(), card.context);
    card.emit(Event::Created(pd, Object::Pd { context }));
    region(&mut card, pd, WRITABLE);
    assert_eq!(peer(&mut card, qp, RKEY, (4096, 8), MemError::WrongDomain), [Rule::KeyOfOtherPd]);
}

#[test]
fn dead_key_is_reported_for_refused_not_duplicate_request() {
    let mut card = Card::new();
    let (qp, pd) = (card.qp(), card.pd);
    let mr = region(&mut card, pd, WRITABLE);
    card.emit(Event::Destroyed(mr));
    assert_eq!(peer(&mut card, qp, RKEY, (4096, 8), MemError::BadKey), [Rule::KeyStale]);
    let (access, error) = (Access::REMOTE_READ, MemError::BadKey);
    card.emit(Event::RemoteFault { qp, rkey: RKey(RKEY), va: 4096, len: 8, access, error });
    assert_eq!(card.emit(Event::Dropped { qp, reason: DropReason::DuplicateRequest, packet: None }), []);
    assert_eq!(local(&mut card, qp, &sge(LKEY, 4096, 8), Access::empty(), error), [Rule::KeyStale]);
}

/// Creates a card with a region and one request that uses it.
fn in_use(sges: &[Sge]) -> (Card, ObjectId, ObjectId) {
    let mut card = Card::new();
    let (qp, pd) = (card.qp(), card.pd);
    let mr = region(&mut card, pd, Access::LOCAL_WRITE);
    card.post(qp, &SendRequest { data: SendData::Sges(sges), ..write(1, SendFlags::SIGNALED) });
    (card, qp, mr)
}

#[test]
fn region_destroyed_during_a_request_is_reported() {
    for completes in [false, true] {
        let sges = sge(LKEY, 4096, 8);
        let (mut card, qp, mr) = in_use(&sges);
        if completes {
            card.complete(qp, 1);
        }
        let expected: &[_] = if completes { &[] } else { &[Rule::MemoryGoneInFlight] };
        assert_eq!(card.emit(Event::DestroyBegun(mr)), []);
        assert_eq!(card.emit(Event::Destroyed(mr)), expected);
        // The report about the region covers the request.
        let stale: &[_] = if completes { &[Rule::KeyStale] } else { &[] };
        assert_eq!(local(&mut card, qp, &sges, Access::empty(), MemError::BadKey), stale);
    }
}

#[test]
fn request_failing_during_region_destroy_is_reported_once() {
    let sges = sge(LKEY, 4096, 8);
    let (mut card, qp, mr) = in_use(&sges);
    card.emit(Event::DestroyBegun(mr));
    assert_eq!(local(&mut card, qp, &sges, Access::empty(), MemError::BadKey), []);
    card.complete(qp, 1);
    assert_eq!(card.emit(Event::Destroyed(mr)), [Rule::MemoryGoneInFlight]);
}

#[test]
fn refused_region_destroy_is_clean() {
    let sges = sge(LKEY, 4096, 8);
    let (mut card, qp, mr) = in_use(&sges);
    card.emit(Event::DestroyBegun(mr));
    card.emit(Event::DestroyRefused(mr, &Error::busy("memory region", "windows", 1)));
    assert_eq!(local(&mut card, qp, &sges, Access::empty(), MemError::Fault), [Rule::MemoryGoneInFlight]);
    card.complete(qp, 1);
    card.emit(Event::DestroyBegun(mr));
    assert_eq!(card.emit(Event::Destroyed(mr)), []);
}

/// Rights that no peer uses.
mod unused_rights {
    use super::super::*;
    use crate::testing::Card;
    use roxe_wire::RKey;

    const GRANTED: Access = Access::OF_PEERS.union(Access::LOCAL_WRITE);

    fn uses(card: &mut Card, right: Access) {
        assert_eq!(card.emit(Event::FirstUse { rkey: RKey(5), right }), []);
    }

    #[test]
    fn unused_right_is_reported_at_region_destroy() {
        for (right, expected) in [(Access::REMOTE_ATOMIC, &[][..]), (Access::REMOTE_READ, &[Rule::AccessUnused])] {
            let mut card = Card::new();
            let mr = card.mr(5, 4096, 64, GRANTED);
            for right in [Access::REMOTE_READ, Access::REMOTE_WRITE, right] {
                uses(&mut card, right);
            }
            assert_eq!(card.emit(Event::Destroyed(mr)), expected);
        }
    }

    #[test]
    fn region_at_exit_is_judged_unless_a_library_made_it() {
        let mut card = Card::new();
        card.mr(5, 4096, 64, Access::LOCAL_WRITE);
        assert_eq!(card.emit(Event::Exit), [Rule::Leak]);
        let mr = card.mr(6, 4096, 64, GRANTED);
        assert_eq!(card.emit(Event::Exit), [Rule::Leak, Rule::AccessUnused]);
        card.emit(Event::OwnedByLibrary(mr));
        assert_eq!(card.emit(Event::Exit), [Rule::Leak]);
    }
}
