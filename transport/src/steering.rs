//! Flow steering: the receivers of an Ethernet frame (`man ibv_create_flow`). Rules are evaluated
//! in this order:
//!
//! 1. sniffers get every frame;
//! 2. normal rules by priority, lowest number first: all matching rules of one priority get the
//!    frame, and unless all of them have `DONT_TRAP` set, evaluation ends;
//! 3. default rules, those for multicast only first, get frames that no earlier rule took.

use core::sync::atomic::{AtomicU64, Ordering};
use roxe_wire::frame::{FrameKey, FrameMatch};

/// Kind of a rule, which determines its place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleKind {
    /// `IBV_FLOW_ATTR_SNIFFER`.
    Sniffer,
    /// `IBV_FLOW_ATTR_NORMAL` with this priority; 0 is evaluated first.
    Normal(u16),
    /// `IBV_FLOW_ATTR_MC_DEFAULT`.
    MulticastDefault,
    /// `IBV_FLOW_ATTR_ALL_DEFAULT`.
    AllDefault,
}

/// A rule with a receiver `T`.
#[derive(Clone, Debug)]
pub struct Rule<T> {
    /// Kind, which decides the order of the rules.
    pub kind: RuleKind,
    /// Fields that a frame must have.
    pub filter: FrameMatch,
    /// True if a matching frame continues to lower priorities (normal rules only). Sniffers always
    /// pass frames on, default rules never.
    pub continues: bool,
    /// Receiver of the matching frames.
    pub target: T,
}

impl<T> Rule<T> {
    fn applies(&self, key: &FrameKey) -> bool {
        (self.kind != RuleKind::MulticastDefault || key.is_multicast()) && self.filter.matches(key)
    }

    fn ends_evaluation(&self) -> bool {
        match self.kind {
            RuleKind::Sniffer => false,
            RuleKind::Normal(_) => !self.continues,
            RuleKind::MulticastDefault | RuleKind::AllDefault => true,
        }
    }
}

/// Identifier of a rule, unique in the process, so that a stale id finds nothing in a newer table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleId(u64);

impl RuleId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The rules of a port.
#[derive(Debug)]
pub struct Rules<T> {
    /// Rules in order of evaluation; those of one kind in order of insertion.
    rules: Vec<(RuleId, Rule<T>)>,
}

impl<T> Default for Rules<T> {
    fn default() -> Self {
        Self { rules: Vec::new() }
    }
}

impl<T> Rules<T> {
    /// Adds a rule.
    pub fn insert(&mut self, rule: Rule<T>) -> RuleId {
        let id = RuleId::next();
        let at = self.rules.partition_point(|(_, other)| other.kind <= rule.kind);
        self.rules.insert(at, (id, rule));
        id
    }

    /// Removes and returns a rule; `None` if there is no such rule.
    pub fn remove(&mut self, id: RuleId) -> Option<Rule<T>> {
        let at = self.rules.iter().position(|(other, _)| *other == id)?;
        Some(self.rules.remove(at).1)
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns true if there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Calls `found` with the receiver of every rule that gets a frame with this key.
    // clause: FLOW-PRIORITY, FLOW-DEFAULT, FLOW-SNIFFER, FLOW-DONT-TRAP
    pub fn steer<'a>(&'a self, key: &FrameKey, mut found: impl FnMut(&'a T)) {
        for group in self.rules.chunk_by(|(_, a), (_, b)| a.kind == b.kind) {
            let mut is_over = false;
            for (_, rule) in group.iter().filter(|(_, rule)| rule.applies(key)) {
                found(&rule.target);
                is_over |= rule.ends_evaluation();
            }
            if is_over {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::frame::Field;

    /// Returns the key of a frame to a station, or to a group if `dst` is odd.
    fn key(dst: u8) -> FrameKey {
        let mut frame = [0; 14];
        frame[0] = dst;
        FrameKey::of(&frame).expect("parse the frame")
    }

    fn rule(kind: RuleKind, filter: FrameMatch, target: char) -> Rule<char> {
        Rule { kind, filter, continues: false, target }
    }

    fn any() -> FrameMatch {
        FrameMatch::default()
    }

    /// Returns a condition for frames whose first byte is `dst`.
    fn to(dst: u8) -> FrameMatch {
        let mut filter = any();
        filter.require_exactly(Field::DstMac, &[dst]).expect("add the first requirement");
        filter
    }

    fn steered(rules: &Rules<char>, dst: u8) -> String {
        let mut targets = String::new();
        rules.steer(&key(dst), |target| targets.push(*target));
        targets
    }

    // clause: FLOW-PRIORITY
    #[test]
    fn lowest_priority_number_wins_and_equals_share() {
        let mut rules = Rules::default();
        rules.insert(rule(RuleKind::Normal(7), any(), 'c'));
        rules.insert(rule(RuleKind::Normal(3), to(2), 'a'));
        rules.insert(rule(RuleKind::Normal(3), any(), 'b'));
        rules.insert(rule(RuleKind::Normal(3), to(4), 'd'));
        assert_eq!(
            (steered(&rules, 2), steered(&rules, 4), steered(&rules, 6)),
            ("ab".into(), "bd".into(), "b".into())
        );
    }

    // clause: FLOW-DONT-TRAP
    #[test]
    fn dont_trap_rule_passes_frames_to_lower_priorities() {
        let mut rules = Rules::default();
        let first = rules.insert(Rule { continues: true, ..rule(RuleKind::Normal(0), any(), 'a') });
        rules.insert(rule(RuleKind::Normal(1), to(2), 'b'));
        rules.insert(rule(RuleKind::AllDefault, any(), 'z'));
        assert_eq!((steered(&rules, 2), steered(&rules, 4)), ("ab".into(), "az".into()));
        assert_eq!(rules.remove(first).map(|rule| rule.target), Some('a'));
        assert!(rules.remove(first).is_none());
        assert_eq!((steered(&rules, 2), rules.len()), ("b".into(), 2));
    }

    /// The child of a fork makes a table of its own and still drops the flows that it has
    /// inherited.
    #[test]
    fn rule_id_is_invalid_in_another_table() {
        let (mut old, mut new) = (Rules::default(), Rules::default());
        let inherited = old.insert(rule(RuleKind::Sniffer, any(), 'a'));
        new.insert(rule(RuleKind::Sniffer, any(), 'b'));
        assert!(new.remove(inherited).is_none());
    }

    // clause: FLOW-DEFAULT
    #[test]
    fn default_rules_get_unmatched_frames() {
        let mut rules = Rules::default();
        rules.insert(rule(RuleKind::AllDefault, any(), 'z'));
        rules.insert(rule(RuleKind::MulticastDefault, any(), 'm'));
        rules.insert(rule(RuleKind::Normal(u16::MAX), to(2), 'a'));
        assert_eq!((steered(&rules, 2), steered(&rules, 4), steered(&rules, 1)), ("a".into(), "z".into(), "m".into()));
    }

    // clause: FLOW-SNIFFER
    #[test]
    fn sniffer_gets_every_frame_and_passes_it_on() {
        let mut rules = Rules::default();
        rules.insert(rule(RuleKind::Normal(0), to(2), 'a'));
        rules.insert(rule(RuleKind::Sniffer, any(), 's'));
        assert_eq!((steered(&rules, 2), steered(&rules, 4)), ("sa".into(), "s".into()));
        assert!(!rules.is_empty());
    }
}
