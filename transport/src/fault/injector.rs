//! [`Injector`] applies rules to packets: it keeps the counters and message numbers of each queue
//! pair, and derives random decisions from the seed.

use super::rule::{Action, Hold, Part, Rule, is_selected};
use super::rules::Rules;
use super::verdict::{Corruption, PacketContext, RuleId, Verdict};
use core::fmt::{self, Write};
use core::time::Duration;
use roxe_wire::opcode::{PayloadRule, Position};
use roxe_wire::{Header, Kind, PathMtu, Psn, Request, icrc};
use std::collections::{HashMap, VecDeque};

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    matched: u64,
    applied: u64,
}

#[derive(Debug)]
struct DirectionState {
    packets: u64,
    counts: Box<[Count]>,
    messages: Option<Messages>,
}

#[derive(Debug)]
struct Flow {
    streams: [DirectionState; 2],
    /// Path MTU, learned from a full-size packet.
    mtu: Option<PathMtu>,
}

impl Flow {
    /// Returns the message number of a packet. A response has the number of its request, which has
    /// the opposite direction.
    fn message(&mut self, context: &PacketContext<'_>) -> Option<u64> {
        let header = &context.packet.header;
        if header.opcode().properties().payload == PayloadRule::Full {
            let len = context.packet.payload.len();
            self.mtu = PathMtu::ALL.into_iter().find(|mtu| mtu.bytes() as usize == len).or(self.mtu);
        }
        match header.kind {
            Kind::Cnp => None,
            Kind::RcResponse(_) | Kind::XrcResponse(_) => {
                self.streams[context.dir.other() as usize].messages.as_ref()?.message_of(header.bth.psn, self.mtu)
            }
            _ => self.streams[context.dir as usize].messages.as_mut()?.of_request(header, self.mtu),
        }
    }
}

#[derive(Debug)]
struct RuleState {
    rule: Rule,
    id: RuleId,
    /// Number that makes the random decisions of this rule independent of other rules.
    salt: u64,
    total: Count,
}

/// Counters of a rule.
#[derive(Clone, Copy, Debug)]
pub struct RuleReport<'a> {
    /// Position in the list.
    pub id: RuleId,
    /// The rule of these counters.
    pub rule: &'a Rule,
    /// Packets allowed by all words but rate, `nth` and `times`.
    pub matched: u64,
    /// Packets changed by the rule.
    pub applied: u64,
}

impl fmt::Display for RuleReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} packets matched, {} faults", self.rule, self.matched, self.applied)
    }
}

/// Applies [`Rules`] to the packets of a process.
///
/// An injector keeps state for each queue pair until [`Injector::forget`].
#[derive(Debug)]
pub struct Injector {
    seed: u64,
    /// The rules, `drop` first, because no other action can apply to a dropped packet.
    rules: Vec<RuleState>,
    flows: HashMap<u32, Flow>,
    counts_messages: bool,
}

impl Injector {
    /// Creates an injector for `rules`. `random` is the seed if they set none; print
    /// [`Injector::seed`] so that a run can be repeated.
    pub fn new(rules: &Rules, random: u64) -> Self {
        let list = rules.list();
        let judged = (0u16..).zip(list).map(|(id, rule)| {
            let twins = list.iter().take(id.into()).filter(|other| *other == rule).count();
            RuleState { rule: rule.clone(), id: RuleId(id), salt: salt(rule, twins as u64), total: Count::default() }
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

    /// Returns the seed in use.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Decides the fate of a packet. Call it once per packet, in the order of each direction of
    /// each queue pair; it allocates only for the first packet of a queue pair.
    ///
    /// Message numbers of responses need both directions in the same injector.
    pub fn judge(&mut self, context: &PacketContext<'_>) -> Verdict {
        let (rules, with_messages) = (self.rules.len(), self.counts_messages);
        let flow = self.flows.entry(context.ordinal).or_insert_with(|| {
            let stream = || DirectionState {
                packets: 0,
                counts: vec![Count::default(); rules].into(),
                messages: with_messages.then(Messages::new),
            };
            Flow { streams: [stream(), stream()], mtu: None }
        });
        let message = if with_messages { flow.message(context) } else { None };
        let stream = &mut flow.streams[context.dir as usize];
        let packet_hash = mix(mix(self.seed ^ u64::from(context.ordinal)) ^ (stream.packets << 1 | context.dir as u64));
        stream.packets += 1;
        let mut verdict = Verdict::PASS;
        for (judged, count) in self.rules.iter_mut().zip(&mut stream.counts) {
            if !judged.rule.is_for(context, message) {
                continue;
            }
            count.matched += 1;
            judged.total.matched += 1;
            let random = mix(packet_hash ^ judged.salt);
            if !verdict.drop && is_due(&judged.rule, count, random) && verdict.add(judged, context, mix(random)) {
                count.applied += 1;
                judged.total.applied += 1;
            }
        }
        verdict
    }

    /// Drops the state of a queue pair that is destroyed or reset. [`Injector::report`] keeps its
    /// counts.
    pub fn forget(&mut self, ordinal: u32) {
        self.flows.remove(&ordinal);
    }

    /// Returns the counters of each rule, in the order of the list.
    pub fn report(&self) -> impl Iterator<Item = RuleReport<'_>> {
        let mut reports: Vec<_> = self
            .rules
            .iter()
            .map(|judged| {
                let Count { matched, applied } = judged.total;
                RuleReport { id: judged.id, rule: &judged.rule, matched, applied }
            })
            .collect();
        reports.sort_unstable_by_key(|report| report.id);
        reports.into_iter()
    }
}

/// Returns true if `nth`, `times` and the rate select this packet.
fn is_due(rule: &Rule, count: &Count, random: u64) -> bool {
    is_selected((rule.nth.as_ref(), rule.times, rule.rate), (count.matched, count.applied), random)
}

impl Verdict {
    /// Adds the action of a rule. Returns false if another rule has already set this action.
    fn add(&mut self, judged: &RuleState, context: &PacketContext<'_>, random: u64) -> bool {
        match judged.rule.action {
            Action::Drop => self.drop = true,
            Action::Duplicate { copies, after } => {
                self.copies = self.copies.saturating_add(copies);
                self.copies_after = self.copies_after.max(after.pick(random));
            }
            Action::Delay(hold) => self.delay = self.delay.saturating_add(hold.pick(random)),
            Action::Reorder(by) => {
                let hold = Hold { min: Duration::ZERO, max: by };
                self.delay = self.delay.saturating_add(hold.pick(random));
            }
            Action::Corrupt(_) if self.corrupt.is_some() => return false,
            Action::Corrupt(part) => self.corrupt = Some(Corruption::random(part, context, random)),
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
    /// Returns a random bit of this part of the packet, which is not empty.
    fn random(part: Part, context: &PacketContext<'_>, random: u64) -> Self {
        let (header, payload) = (&context.packet.header, context.packet.payload.len());
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

/// The byte of the BTH that the ICRC does not cover.
const UNCOVERED: usize = 4;

/// Returns a number that identifies a rule independently of its position: a hash (FNV-1a) of its
/// text, and the number of equal rules before it.
pub(super) fn salt(rule: &impl fmt::Display, twins: u64) -> u64 {
    struct Hash(u64);
    impl Write for Hash {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 = text.bytes().fold(self.0, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
            Ok(())
        }
    }
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    let _ = write!(hash, "{rule}");
    mix(hash.0 ^ twins)
}

/// Mixes the bits of a number (the finalizer of SplitMix64).
pub const fn mix(number: u64) -> u64 {
    let a = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ (b >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ (c >> 31)
}

/// Maximum number of messages kept for retransmissions and responses.
const MAX_KEPT: usize = 512;
/// Maximum age of a message in PSNs: older ones are ambiguous.
const MAX_AGE: i32 = 1 << 22;

#[derive(Clone, Copy, Debug)]
struct Start {
    psn: Psn,
    /// Length of a READ in bytes, whose response occupies one PSN per packet; 0 for other requests.
    read: u32,
}

#[derive(Debug)]
pub(super) struct Messages {
    starts: VecDeque<Start>,
    /// Number of messages so far, which is the number of the newest.
    count: u64,
    /// PSN after the newest packet.
    next: Psn,
}

impl Messages {
    pub(super) fn new() -> Self {
        Self { starts: VecDeque::with_capacity(MAX_KEPT), count: 0, next: Psn::default() }
    }

    /// Returns the message number of a request and counts a new message. A packet after a gap of a
    /// reliable connection has none, because it will be retransmitted after the missing ones.
    /// `mtu` is that of the path, if known.
    pub(super) fn of_request(&mut self, header: &Header, mtu: Option<PathMtu>) -> Option<u64> {
        if let Kind::Ud { .. } = header.kind {
            // Every packet is a message; PSNs of different senders are unrelated.
            self.count += 1;
            return Some(self.count);
        }
        let psn = header.bth.psn;
        let (next, exact) = self.expected(mtu);
        let is_uc = matches!(header.kind, Kind::UcRequest(_));
        if self.count > 0 && psn.is_before(next) {
            return self.message_of(psn, mtu);
        }
        if self.count > 0 && psn != next && exact && !is_uc {
            return None;
        }
        self.next = psn.next();
        let begins = matches!(header.opcode().properties().position, Position::First | Position::Only);
        if begins || self.count == 0 {
            let read = if let Some(Request::Read(reth)) = header.kind.request() { reth.dma_len } else { 0 };
            self.begin(Start { psn, read });
        }
        Some(self.count)
    }

    /// Returns the number of the message with this PSN, if known.
    pub(super) fn message_of(&self, psn: Psn, mtu: Option<PathMtu>) -> Option<u64> {
        let (next, exact) = self.expected(mtu);
        if exact && !psn.is_before(next) {
            return None;
        }
        let newer = self.starts.len() - self.starts.partition_point(|start| !start.psn.is_after(psn));
        (newer < self.starts.len()).then(|| self.count - newer as u64)
    }

    fn begin(&mut self, start: Start) {
        if self.starts.len() == MAX_KEPT {
            self.starts.pop_front();
        }
        while self.starts.front().is_some_and(|old| !(0..MAX_AGE).contains(&start.psn.distance(old.psn))) {
            self.starts.pop_front();
        }
        self.starts.push_back(start);
        self.count += 1;
    }

    /// Returns the PSN of the next request, and true if it is certain: the PSNs of a READ depend on
    /// the path MTU.
    fn expected(&self, mtu: Option<PathMtu>) -> (Psn, bool) {
        let Some(Start { psn, read: read @ 1.. }) = self.starts.back().copied() else { return (self.next, true) };
        match mtu {
            Some(mtu) => (psn.add(read.div_ceil(mtu.bytes())), true),
            None => (psn.next(), read <= PathMtu::Mtu256.bytes()),
        }
    }
}
