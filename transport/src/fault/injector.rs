//! The judge: rules, what they must remember, and the seed.

use super::messages::Messages;
use super::rule::{Action, Part, Rule, Rules};
use super::verdict::{Corruption, RuleId, Seen, Verdict};
use core::fmt::{self, Write};
use core::time::Duration;
use roxe_wire::opcode::PayloadRule;
use roxe_wire::{Kind, PathMtu, icrc};
use std::collections::HashMap;

/// What one rule has seen in one direction of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Packets it was for.
    matched: u64,
    /// Packets it did something to.
    applied: u64,
}

/// One direction of one queue pair.
#[derive(Debug)]
struct Stream {
    packets: u64,
    /// By rule.
    counts: Box<[Count]>,
    /// Only if a rule asks for message numbers.
    messages: Option<Messages>,
}

impl Stream {
    fn new(rules: usize, with_messages: bool) -> Self {
        let messages = with_messages.then(Messages::new);
        Self { packets: 0, counts: vec![Count::default(); rules].into(), messages }
    }
}

/// One queue pair.
#[derive(Debug)]
struct Flow {
    /// Indexed by direction.
    streams: [Stream; 2],
    /// Learned from packets that carry exactly one.
    mtu: Option<PathMtu>,
}

impl Flow {
    fn learn_mtu(&mut self, seen: &Seen<'_>) {
        if seen.packet.header.opcode().facts().payload == PayloadRule::Full {
            let len = seen.packet.payload.len();
            self.mtu = PathMtu::ALL.into_iter().find(|mtu| mtu.bytes() as usize == len).or(self.mtu);
        }
    }

    /// The number of the message that a packet belongs to. An answer has the number of what it
    /// answers, which went the other way.
    fn message(&mut self, seen: &Seen<'_>) -> Option<u64> {
        self.learn_mtu(seen);
        let header = &seen.packet.header;
        match header.kind {
            Kind::Cnp => None,
            Kind::RcResponse(_) | Kind::XrcResponse(_) => {
                self.streams[seen.dir.other() as usize].messages.as_ref()?.find(header.bth.psn, self.mtu)
            }
            _ => self.streams[seen.dir as usize].messages.as_mut()?.of_request(header, self.mtu),
        }
    }
}

/// A rule and what goes with it.
#[derive(Debug)]
struct Judged {
    rule: Rule,
    id: RuleId,
    /// Tells the random decisions of this rule from those of others.
    salt: u64,
    total: Count,
}

/// What a rule has done so far.
#[derive(Clone, Copy, Debug)]
pub struct RuleReport<'a> {
    /// Its place in the list.
    pub id: RuleId,
    /// The rule.
    pub rule: &'a Rule,
    /// Packets that all its words but rate, `nth` and `times` allow.
    pub matched: u64,
    /// Packets that it did something to.
    pub applied: u64,
}

impl fmt::Display for RuleReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} packets matched, {} faults", self.rule, self.matched, self.applied)
    }
}

/// Judges packets by [`Rules`]. One per process: rules are about the queue pairs of a process.
///
/// It remembers something about each queue pair; [`Injector::forget`] ends that.
#[derive(Debug)]
pub struct Injector {
    seed: u64,
    /// The rules, those that lose packets first, because nothing can happen to a lost packet.
    rules: Vec<Judged>,
    /// By ordinal.
    flows: HashMap<u32, Flow>,
    counts_messages: bool,
}

impl Injector {
    /// An injector for `rules`. `random` is the seed if they name none; print [`Injector::seed`] so
    /// that a run can be repeated.
    pub fn new(rules: &Rules, random: u64) -> Self {
        let list = rules.list();
        let judged = (0u16..).zip(list).map(|(id, rule)| {
            let twins = list.iter().take(id.into()).filter(|other| *other == rule).count();
            Judged { rule: rule.clone(), id: RuleId(id), salt: salt(rule, twins as u64), total: Count::default() }
        });
        let (mut judged, others): (Vec<_>, Vec<_>) = judged.partition(|judged| judged.rule.action == Action::Drop);
        judged.extend(others);
        Self {
            seed: rules.seed().unwrap_or(random),
            rules: judged,
            flows: HashMap::new(),
            counts_messages: list.iter().any(|rule| rule.msg.is_some()),
        }
    }

    /// The seed in use.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// What shall happen to a packet. Call it once per packet, in the order in which the packets of
    /// one direction of one queue pair go; allocates only for the first packet of a queue pair.
    ///
    /// Message numbers of answers need both directions to be judged by the same injector.
    pub fn judge(&mut self, seen: &Seen<'_>) -> Verdict {
        let (rules, with_messages) = (self.rules.len(), self.counts_messages);
        let flow = self.flows.entry(seen.ordinal).or_insert_with(|| {
            let stream = || Stream::new(rules, with_messages);
            Flow { streams: [stream(), stream()], mtu: None }
        });
        let message = if with_messages { flow.message(seen) } else { None };
        let stream = &mut flow.streams[seen.dir as usize];
        let place = mix(mix(self.seed ^ u64::from(seen.ordinal)) ^ (stream.packets << 1 | seen.dir as u64));
        stream.packets += 1;
        let mut verdict = Verdict::PASS;
        for (judged, count) in self.rules.iter_mut().zip(&mut stream.counts) {
            if !judged.rule.is_for(seen, message) {
                continue;
            }
            count.matched += 1;
            judged.total.matched += 1;
            let random = mix(place ^ judged.salt);
            if !verdict.drop && is_due(&judged.rule, count, random) && verdict.add(judged, seen, mix(random)) {
                count.applied += 1;
                judged.total.applied += 1;
            }
        }
        verdict
    }

    /// The queue pair is gone or starts anew: what was counted for it is forgotten.
    /// [`Injector::report`] keeps it.
    pub fn forget(&mut self, ordinal: u32) {
        self.flows.remove(&ordinal);
    }

    /// What each rule has done so far, in the order of the list.
    pub fn report(&self) -> impl Iterator<Item = RuleReport<'_>> {
        let mut reports: Vec<_> = self.rules.iter().map(Judged::report).collect();
        reports.sort_unstable_by_key(|report| report.id);
        reports.into_iter()
    }
}

impl Judged {
    fn report(&self) -> RuleReport<'_> {
        let Count { matched, applied } = self.total;
        RuleReport { id: self.id, rule: &self.rule, matched, applied }
    }
}

/// Whether the turn and the dice say that something happens.
fn is_due(rule: &Rule, count: &Count, random: u64) -> bool {
    rule.nth.as_ref().is_none_or(|nth| nth.contains(count.matched))
        && rule.times.is_none_or(|times| count.applied < u64::from(times))
        && rule.rate.is_none_or(|rate| rate.takes(random))
}

impl Verdict {
    /// Adds what a rule asks for; false if another rule has asked for the like already.
    fn add(&mut self, judged: &Judged, seen: &Seen<'_>, random: u64) -> bool {
        match judged.rule.action {
            Action::Drop => self.drop = true,
            Action::Duplicate { copies, after } => {
                self.copies = self.copies.saturating_add(copies);
                self.copies_after = self.copies_after.max(after.pick(random));
            }
            Action::Delay(hold) => self.delay = self.delay.saturating_add(hold.pick(random)),
            Action::Reorder(by) => {
                let hold = super::rule::Hold { min: Duration::ZERO, max: by };
                self.delay = self.delay.saturating_add(hold.pick(random));
            }
            Action::Corrupt(_) if self.corrupt.is_some() => return false,
            Action::Corrupt(part) => self.corrupt = Some(Corruption::random(part, seen, random)),
            Action::Ecn => self.mark_ce = true,
            Action::Rnr => self.rnr = true,
            Action::Forge(_) if self.forged.is_some() => return false,
            Action::Forge(forged) => self.forged = Some(forged),
        }
        self.rule.get_or_insert(judged.id);
        true
    }
}

impl Corruption {
    /// A random bit of this part of the packet, which is not empty.
    fn random(part: Part, seen: &Seen<'_>, random: u64) -> Self {
        let (header, payload) = (&seen.packet.header, seen.packet.payload.len());
        let (start, len) = match part {
            Part::Header => (0, header.len() - 1),
            Part::Payload => (header.len(), payload),
            Part::Icrc => (header.padded_len(payload), icrc::LEN),
        };
        let offset = ((u128::from(random) * len as u128) >> 64) as usize;
        // Byte 4 of the BTH (FECN, BECN, reserved) is not covered by the ICRC.
        let at = if part == Part::Header && offset >= UNCOVERED { offset + 1 } else { start + offset };
        Self { at: u16::try_from(at).unwrap_or(0), mask: 1 << (random & 7) }
    }
}

/// The byte of the BTH that the ICRC takes as all ones.
const UNCOVERED: usize = 4;

/// Tells rules apart, whatever their places: a hash (FNV-1a) of the text, and how many equal rules
/// come before.
fn salt(rule: &Rule, twins: u64) -> u64 {
    struct Hash(u64);
    impl Write for Hash {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 = text.bytes().fold(self.0, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
            Ok(())
        }
    }
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    // Writing into a number cannot fail.
    let _ = write!(hash, "{rule}");
    mix(hash.0 ^ twins)
}

/// A number that looks random for each number (the finalizer of SplitMix64).
pub const fn mix(number: u64) -> u64 {
    let a = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ (b >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ (c >> 31)
}
