//! Fuzz target: Ethernet frames and flow rules.

use roxe_transport::steering::{Rule, RuleKind, Rules};
use roxe_wire::frame::{Field, FrameKey, FrameMatch, checksum};

const FIELDS: [Field; 16] = [
    Field::DstMac,
    Field::SrcMac,
    Field::EtherType,
    Field::VlanTag,
    Field::IsTagged,
    Field::IpVersion,
    Field::L4,
    Field::Protocol,
    Field::SrcIp,
    Field::DstIp,
    Field::TrafficClass,
    Field::HopLimit,
    Field::Ipv4Flags,
    Field::FlowLabel,
    Field::DstPort,
    Field::SrcPort,
];

/// The first 16 bytes of the input choose fields and masks, the others are the frame.
///
/// Properties: parsing never panics; a frame matches its own fields under any mask, and does not
/// match once a bit under the mask differs; filling in checksums changes only these and is
/// idempotent; filled-in checksums verify.
///
/// # Panics
/// If a property does not hold.
pub fn frame(data: &[u8]) {
    let Some((choice, frame)) = data.split_first_chunk::<16>() else { return };
    check_checksums(frame);
    let Some(key) = FrameKey::of(frame) else { return assert!(frame.len() < 14) };
    let (mut filter, field) = (FrameMatch::default(), FIELDS[usize::from(choice[0]) % FIELDS.len()]);
    for field in FIELDS.iter().filter(|field| choice[1] & 1 << (**field as u8 % 8) != 0).chain([&field]) {
        filter.require(*field, key.get(*field), choice).expect("require the fields of one frame");
    }
    assert!(filter.matches(&key));
    let mut other = key.get(field).to_vec();
    other.iter_mut().zip(choice).for_each(|(byte, mask)| *byte ^= mask & mask.wrapping_neg());
    let mut unwanted = FrameMatch::default();
    unwanted.require(field, &other, choice).expect("add the first requirement");
    assert_eq!(unwanted.matches(&key), other == key.get(field));
    check_rules(&key, choice, filter, unwanted);
}

/// Checks that the table applies its rules in their order, and stops at a rule that takes the
/// frame.
fn check_rules(key: &FrameKey, choice: &[u8; 16], filter: FrameMatch, unwanted: FrameMatch) {
    let mut rules = Rules::default();
    let mut expected = Vec::new();
    for (target, byte) in choice.iter().enumerate() {
        let kind = match byte & 7 {
            0 => RuleKind::Sniffer,
            1 => RuleKind::MulticastDefault,
            2 => RuleKind::AllDefault,
            _ => RuleKind::Normal(u16::from(byte & 3)),
        };
        let (is_wanted, continues) = (byte & 8 != 0, byte & 16 != 0);
        let filter = if is_wanted { filter } else { unwanted };
        rules.insert(Rule { kind, filter, continues, target });
        let applies = filter.matches(key) && (kind != RuleKind::MulticastDefault || key.is_multicast());
        let takes = kind != RuleKind::Sniffer && !(continues && matches!(kind, RuleKind::Normal(_)));
        expected.push((kind, target, applies, takes));
    }
    expected.sort_by_key(|(kind, target, ..)| (*kind, *target));
    let last = expected.iter().find(|(.., applies, takes)| *applies && *takes).map(|(kind, ..)| *kind);
    expected.retain(|(kind, _, applies, _)| *applies && last.is_none_or(|last| *kind <= last));
    let mut found = Vec::new();
    rules.steer(key, |target| found.push(*target));
    assert_eq!(found, expected.into_iter().map(|(_, target, ..)| target).collect::<Vec<_>>());
}

fn check_checksums(frame: &[u8]) {
    let _ = checksum::is_verified(frame);
    let mut filled = frame.to_vec();
    checksum::fill(&mut filled);
    let changed = filled.iter().zip(frame).filter(|(new, old)| new != old).count();
    assert!(changed <= 4, "two checksums have four bytes");
    let mut again = filled.clone();
    checksum::fill(&mut again);
    assert_eq!(again, filled);
    if checksum::is_verified(frame) {
        // Checksums of all ones and of zero are equivalent; the frame is valid with either.
        assert!(checksum::is_verified(&filled));
    }
}
