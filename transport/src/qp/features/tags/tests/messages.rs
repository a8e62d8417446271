//! Tagged messages.

use super::*;

const TMH: Tmh = Tmh { op: TmOp::Rendezvous, app_ctx: 7, tag: 0x99 };

/// Returns a rendezvous request for `len` bytes, followed by `extra` bytes.
fn request(len: u32, extra: usize) -> Vec<u8> {
    let mut bytes = TMH.to_bytes().to_vec();
    bytes.extend(0x1000_u64.to_be_bytes());
    bytes.extend(5_u32.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.resize(bytes.len() + extra, 0);
    bytes
}

fn is_served_by_card(first: &[u8], room: u64, may_read: bool) -> bool {
    matches!(TagMatch::of(first, TagFit::Matched, room, may_read), TagMatch::Rendezvous(_))
}

// clause: TM-RENDEZVOUS-SOFTWARE
#[test]
fn card_handles_only_complete_rendezvous() {
    assert!(is_served_by_card(&request(100, 0), 100, true));
    assert!(is_served_by_card(&request(100, 224), 100, true));
    assert!(!is_served_by_card(&request(100, 225), 100, true), "longer than the card reads");
    assert!(!is_served_by_card(&request(101, 0), 100, true), "longer than the receive");
    assert!(!is_served_by_card(&request(100, 0), 100, false), "no READ is possible now");
    assert!(!is_served_by_card(&request(100, 0)[..31], 100, true), "no whole header");
    let TagMatch::Rendezvous(rendezvous) = TagMatch::of(&request(8, 0), TagFit::Matched, 8, true) else {
        panic!("no rendezvous");
    };
    assert_eq!((rendezvous.va, rendezvous.rkey, rendezvous.len), (0x1000, RKey(5), 8));
    assert_eq!(rendezvous.fin, Tmh { op: TmOp::Fin, ..TMH });
}

// clause: TM-UNTAGGED
#[test]
fn only_eager_and_rendezvous_messages_are_matched() {
    let begins = |op| Tmh { op, ..TMH }.to_bytes();
    for (op, tag) in [(TmOp::NoTag, None), (TmOp::Fin, None), (TmOp::Eager, Some(0x99)), (TmOp::Rendezvous, Some(0x99))]
    {
        assert_eq!(wanted_tag(&begins(op)), tag);
    }
    assert_eq!(wanted_tag(&begins(TmOp::Eager)[..15]), None);
    assert_eq!(wanted_tag(&[9; 16]), None);
}

// clause: TM-COMPLETION
#[test]
fn failed_tagged_receives_report_only_their_opcode() {
    let failed = Cqe { status: WcStatus::WrFlushErr, ..Cqe::default() };
    let tag_match = TagMatch::of(&request(8, 0), TagFit::Matched, 8, false);
    let cqe = tag_match.stamp(failed);
    assert_eq!(cqe, Cqe { opcode: WcOpcode::TmRecv, ..failed });
    assert_eq!(tag_match.stamp(Cqe::default()).status, WcStatus::TmRndvIncomplete);
}
