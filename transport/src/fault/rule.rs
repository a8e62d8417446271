//! Rules about packets as values, and their text, which `parse.rs` parses back to the same rules.

use super::verdict::{Direction, Forged, PacketContext};
use core::fmt::{self, Display, Formatter};
use core::time::Duration;
use roxe_wire::{Gid, Kind, Operation, Packet, Psn, Qpn, Response, Syndrome};

/// A share of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u32);

impl Rate {
    /// All packets.
    pub const ALL: Self = Self(100_000_000);

    /// Returns a rate in millionths of a percent; `None` above 100 %.
    pub const fn from_micro_percent(parts: u32) -> Option<Self> {
        if parts <= Self::ALL.0 { Some(Self(parts)) } else { None }
    }

    /// Returns the rate in millionths of a percent.
    pub const fn micro_percent(self) -> u32 {
        self.0
    }

    /// Returns true if the rate selects a packet with this random number.
    pub(super) const fn selects(self, random: u64) -> bool {
        ((random >> 32) * Self::ALL.0 as u64) >> 32 < self.0 as u64
    }
}

/// Time to hold a packet: random between both limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Shortest time.
    pub min: Duration,
    /// Maximum, not below `min`.
    pub max: Duration,
}

impl Hold {
    /// Longest time that a rule may have.
    pub const MAX_TIME: Duration = Duration::from_secs(3600);

    /// Returns a fixed time.
    pub const fn exactly(time: Duration) -> Self {
        Self { min: time, max: time }
    }

    /// Returns a time between the limits, selected by `random`.
    pub(super) fn pick(self, random: u64) -> Duration {
        let width = self.max.saturating_sub(self.min).min(Self::MAX_TIME).as_nanos() as u64;
        self.min + Duration::from_nanos(((u128::from(random) * (u128::from(width) + 1)) >> 64) as u64)
    }
}

/// A span of time since the rules were set; the end is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Time since the rules were set, included.
    pub from: Duration,
    /// End, after the start; `None` is no end.
    pub until: Option<Duration>,
}

impl Window {
    pub(super) fn contains(self, at: Duration) -> bool {
        self.from <= at && self.until.is_none_or(|until| at < until)
    }
}

/// Part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The data of the application, without the pad.
    Payload,
    /// All headers from the BTH on, except the byte that the ICRC does not cover.
    Header,
    /// The ICRC.
    Icrc,
}

impl Part {
    /// Returns the keyword of the rule language.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::Header => "header",
            Self::Icrc => "icrc",
        }
    }
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// Drop the packet.
    #[default]
    Drop,
    /// Deliver copies of the packet.
    Duplicate {
        /// Number of copies, at least 1.
        copies: u8,
        /// Delay of the copies.
        after: Hold,
    },
    /// Delay the packet.
    Delay(Hold),
    /// Delay the packet for a random time up to this one.
    Reorder(Duration),
    /// Flip one bit.
    Corrupt(Part),
    /// Mark the packet as congested (ECN = CE).
    Ecn,
    /// Let the responder find no receive.
    Rnr,
    /// Send a forged packet ahead of the packet.
    Forge(Forged),
}

impl Action {
    /// Default maximum of `reorder`.
    pub const REORDER_BY: Duration = Duration::from_millis(1);

    /// Returns true if the action can affect this packet.
    fn applies_to(self, context: &PacketContext<'_>) -> bool {
        match self {
            Self::Corrupt(Part::Payload) => !context.packet.payload.is_empty(),
            Self::Forge(forged) => forged.can_derive_from(&context.packet.header.kind),
            Self::Rnr => context.dir == Direction::Rx && crate::qp::takes_receive(&context.packet.header.kind),
            _ => true,
        }
    }
}

/// A queue pair of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpSelector {
    /// By its number.
    Number(Qpn),
    /// By order of creation, from 0.
    Ordinal(u32),
}

impl QpSelector {
    /// Returns true for the queue pair `qpn` that was created as number `ordinal`.
    pub(super) fn selects(self, qpn: Qpn, ordinal: u32) -> bool {
        match self {
            Self::Number(number) => number == qpn,
            Self::Ordinal(number) => number == ordinal,
        }
    }
}

/// One rule. A field that is `None` allows every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Effect on a matching packet.
    pub action: Action,
    /// Share of the packets that all other fields allow.
    pub rate: Option<Rate>,
    /// Sent or received packets.
    pub dir: Option<Direction>,
    /// Local queue pair.
    pub qp: Option<QpSelector>,
    /// Address of the peer.
    pub peer: Option<Gid>,
    /// Span of time in which the rule acts.
    pub at: Option<Window>,
    /// Transport services.
    pub services: Option<ServiceSet>,
    /// Opcodes of the BTH.
    pub ops: Option<OpSet>,
    /// PSNs of the BTH.
    pub psn: Option<PsnSpans>,
    /// Message numbers, from 1.
    pub msg: Option<Spans>,
    /// Positions among the packets that the fields above allow, from 1.
    pub nth: Option<Spans>,
    /// Maximum number of faults.
    pub times: Option<u32>,
    /// Program whose processes the rule is for; see [`Process`](super::Process).
    pub process: Option<Box<str>>,
}

impl Rule {
    /// Creates a rule that applies `action` to every packet.
    pub fn new(action: Action) -> Self {
        Self { action, ..Self::default() }
    }

    /// Returns true if the fields that need no counting match this packet of message number `msg`.
    pub(super) fn is_for(&self, context: &PacketContext<'_>, msg: Option<u64>) -> bool {
        self.dir.is_none_or(|dir| dir == context.dir)
            && self.qp.is_none_or(|qp| qp.selects(context.qpn, context.ordinal))
            && self.services.is_none_or(|services| services.contains(&context.packet.header.kind))
            && self.ops.is_none_or(|ops| ops.contains(context.packet))
            && self.peer.is_none_or(|peer| peer == context.peer)
            && self.at.is_none_or(|window| window.contains(context.at))
            && self.psn.as_ref().is_none_or(|psns| psns.contains(context.packet.header.bth.psn))
            && self.msg.as_ref().is_none_or(|list| msg.is_some_and(|msg| list.contains(msg)))
            && self.action.applies_to(context)
    }
}

/// Returns true if `nth`, `times` and the rate of a rule select the packet or call that is number
/// `matched` of those that its other words allow, after `applied` faults.
pub(super) fn is_selected(
    (nth, times, rate): (Option<&Spans>, Option<u32>, Option<Rate>),
    (matched, applied): (u64, u64),
    random: u64,
) -> bool {
    nth.is_none_or(|nth| nth.contains(matched))
        && times.is_none_or(|times| applied < u64::from(times))
        && rate.is_none_or(|rate| rate.selects(random))
}

/// A set of numbers, as at most [`Spans::MAX`] inclusive ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// Maximum number of ranges.
    pub const MAX: usize = 64;

    /// Creates a set of inclusive `ranges`; `None` if there are none or too many, or one ends
    /// before it starts.
    pub fn new(ranges: Vec<(u64, u64)>) -> Option<Self> {
        let ok = (1..=Self::MAX).contains(&ranges.len()) && ranges.iter().all(|(from, to)| from <= to);
        ok.then_some(Self(ranges))
    }

    /// Returns the inclusive ranges.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Returns true if `number` is in the set.
    pub fn contains(&self, number: u64) -> bool {
        self.0.iter().any(|(from, to)| (*from..=*to).contains(&number))
    }
}

/// A set of PSNs, as at most [`Spans::MAX`] inclusive ranges that may wrap around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PsnSpans(Vec<(Psn, Psn)>);

impl PsnSpans {
    /// Creates a set of inclusive `ranges`, which may wrap around; `None` if there are none or too
    /// many.
    pub fn new(ranges: Vec<(Psn, Psn)>) -> Option<Self> {
        (1..=Spans::MAX).contains(&ranges.len()).then_some(Self(ranges))
    }

    /// Returns the inclusive ranges.
    pub fn ranges(&self) -> &[(Psn, Psn)] {
        &self.0
    }

    /// Returns true if `psn` is in the set.
    pub fn contains(&self, psn: Psn) -> bool {
        let within = |(from, to): &(Psn, Psn)| psn.sub(from.get()).get() <= to.sub(from.get()).get();
        self.0.iter().any(within)
    }
}

/// A set of transport services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceSet(u8);

const RC: u8 = 1;
const UC: u8 = 1 << 1;
const UD: u8 = 1 << 2;
const XRC: u8 = 1 << 3;

const SERVICES: [(&str, u8); 4] = [("RC", RC), ("UC", UC), ("UD", UD), ("XRC", XRC)];

impl ServiceSet {
    pub(super) const EMPTY: Self = Self(0);

    /// Returns the service `name`, ignoring case.
    pub fn named(name: &str) -> Option<Self> {
        SERVICES.into_iter().find(|(service, _)| service.eq_ignore_ascii_case(name)).map(|(_, bit)| Self(bit))
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if a packet of this kind belongs to one of the services. A CNP belongs to none:
    /// its opcode is common to all.
    pub const fn contains(self, kind: &Kind) -> bool {
        let bit = match kind {
            Kind::RcRequest(_) | Kind::RcResponse(_) => RC,
            Kind::UcRequest(_) => UC,
            Kind::Ud { .. } => UD,
            Kind::XrcRequest(..) | Kind::XrcResponse(_) => XRC,
            Kind::Cnp => 0,
        };
        self.0 & bit != 0
    }
}

impl Display for ServiceSet {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let names = SERVICES.into_iter().filter(|(_, bit)| self.0 & bit != 0).map(|(name, _)| name);
        f.write_str(&names.collect::<Vec<_>>().join(","))
    }
}

/// A set of opcodes of any service, by the names that `roxe dump` prints or by class:
///
/// | class | members |
/// |---|---|
/// | `REQUEST` | all packets to a responder |
/// | `RESPONSE` | all packets to a requester |
/// | `SEND`, `WRITE` | all packets of such messages |
/// | `READ_RESPONSE` | all packets with READ data |
/// | `ATOMIC` | `COMPARE_SWAP` and `FETCH_ADD` |
/// | `ACK` | positive acknowledgements |
/// | `NAK` | negative acknowledgements |
/// | `RNR_NAK` | RNR NAKs |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSet(u64);

/// Bits of the two kinds of NAK, which share the opcode of `ACK`.
const NAK_BIT: u32 = 62;
const RNR_NAK_BIT: u32 = 63;

use Operation as O;

const fn bit(operation: Operation) -> u64 {
    1 << operation as u32
}

const fn bits(operations: &[Operation]) -> u64 {
    let (mut set, mut rest) = (0, operations);
    while let [first, tail @ ..] = rest {
        set |= bit(*first);
        rest = tail;
    }
    set
}

const NAKS: u64 = 1 << NAK_BIT | 1 << RNR_NAK_BIT;
const RESPONSES: u64 = READ_RESPONSES | bits(&[O::AtomicAcknowledge, O::Acknowledge]) | NAKS;
const READ_RESPONSES: u64 =
    bits(&[O::ReadResponseFirst, O::ReadResponseMiddle, O::ReadResponseLast, O::ReadResponseOnly]);

/// The classes, each after those that include it.
#[rustfmt::skip]
const CLASSES: [(&str, u64); 8] = [
    ("REQUEST", bits(&O::ALL) & !RESPONSES & !bit(O::Cnp)),
    ("RESPONSE", RESPONSES),
    ("SEND", bits(&[O::SendFirst, O::SendMiddle, O::SendLast, O::SendLastImm, O::SendLastInvalidate, O::SendOnly,
        O::SendOnlyImm, O::SendOnlyInvalidate])),
    ("WRITE", bits(&[O::WriteFirst, O::WriteMiddle, O::WriteLast, O::WriteLastImm, O::WriteOnly, O::WriteOnlyImm])),
    ("READ_RESPONSE", READ_RESPONSES),
    ("ATOMIC", bits(&[O::CompareSwap, O::FetchAdd])),
    ("NAK", NAKS),
    ("RNR_NAK", 1 << RNR_NAK_BIT),
];

impl OpSet {
    pub(super) const EMPTY: Self = Self(0);

    /// Returns the opcode or class `name`, ignoring case.
    pub fn named(name: &str) -> Option<Self> {
        let class = CLASSES.iter().find(|(class, _)| class.eq_ignore_ascii_case(name)).map(|(_, set)| *set);
        let one = || O::ALL.into_iter().find(|op| op.properties().name.eq_ignore_ascii_case(name)).map(bit);
        class.or_else(one).map(Self)
    }

    /// Returns all names accepted by [`OpSet::named`].
    pub fn names() -> impl Iterator<Item = &'static str> {
        CLASSES.iter().map(|(class, _)| *class).chain(O::ALL.into_iter().map(|op| op.properties().name))
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if `packet` is in the set.
    pub fn contains(self, packet: &Packet<'_>) -> bool {
        let bit = match &packet.header.kind {
            Kind::RcResponse(Response::Ack(aeth)) | Kind::XrcResponse(Response::Ack(aeth)) => match aeth.syndrome {
                Syndrome::RnrNak { .. } => 1 << RNR_NAK_BIT,
                Syndrome::Nak(_) => 1 << NAK_BIT,
                _ => bit(O::Acknowledge),
            },
            _ => bit(packet.header.opcode().operation()),
        };
        self.0 & bit != 0
    }
}

impl Display for OpSet {
    /// Writes the names, classes first.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ones = O::ALL.into_iter().map(|op| (op.properties().name, bit(op)));
        let (mut rest, mut separator) = (self.0, "");
        for (name, set) in CLASSES.into_iter().chain(ones) {
            if rest & set == set {
                write!(f, "{separator}{name}")?;
                (rest, separator) = (rest & !set, ",");
            }
        }
        Ok(())
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        write_word(f, "", self.rate.as_ref())?;
        write_word(f, "", self.dir.map(Direction::name).as_ref())?;
        write_word(f, "qp=", self.qp.as_ref())?;
        write_word(f, "peer=", self.peer.map(Gid::to_ip).as_ref())?;
        write_word(f, "at=", self.at.as_ref())?;
        write_word(f, "service=", self.services.as_ref())?;
        write_word(f, "op=", self.ops.as_ref())?;
        write_word(f, "psn=", self.psn.as_ref())?;
        write_word(f, "msg=", self.msg.as_ref())?;
        write_word(f, "nth=", self.nth.as_ref())?;
        write_word(f, "times=", self.times.as_ref())?;
        write_word(f, "process=", self.process.as_ref())
    }
}

pub(super) fn write_word<T: Display>(f: &mut Formatter<'_>, key: &str, value: Option<&T>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {key}{value}"))
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Duplicate { copies, after } => {
                f.write_str("duplicate")?;
                if *copies != 1 {
                    write!(f, " copies={copies}")?;
                }
                if after.max.is_zero() { Ok(()) } else { write!(f, " by={after}") }
            }
            Self::Delay(hold) => write!(f, "delay by={hold}"),
            Self::Reorder(by) if *by == Self::REORDER_BY => f.write_str("reorder"),
            Self::Reorder(by) => write!(f, "reorder by={}", Time(*by)),
            Self::Corrupt(part) => write!(f, "corrupt {}", Part::name(*part)),
            Self::Ecn => f.write_str("ecn"),
            Self::Rnr => f.write_str("rnr"),
            Self::Forge(forged) => write!(f, "{forged}"),
        }
    }
}

impl Display for Hold {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Time(self.min))?;
        if self.min == self.max { Ok(()) } else { write!(f, "..{}", Time(self.max)) }
    }
}

impl Display for Window {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}..", Time(self.from))?;
        self.until.map_or(Ok(()), |until| write!(f, "{}", Time(until)))
    }
}

/// A time, displayed in the largest unit that needs no fraction; microseconds are the smallest.
struct Time(Duration);

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        match (micros % 1_000_000, micros % 1_000) {
            (0, _) => write!(f, "{}s", micros / 1_000_000),
            (_, 0) => write!(f, "{}ms", micros / 1_000),
            _ => write!(f, "{micros}us"),
        }
    }
}

impl Display for Rate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (whole, micro) = (self.micro_percent() / 1_000_000, self.micro_percent() % 1_000_000);
        if micro == 0 {
            return write!(f, "{whole}%");
        }
        let decimals = format!("{micro:06}");
        write!(f, "{whole}.{}%", decimals.trim_end_matches('0'))
    }
}

impl Display for QpSelector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(qpn) => write!(f, "{:#x}", qpn.get()),
            Self::Ordinal(ordinal) => write!(f, "#{ordinal}"),
        }
    }
}

impl Display for Spans {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = |(from, to): &(u64, u64)| match *to {
            to if to == *from => from.to_string(),
            u64::MAX => format!("{from}.."),
            to => format!("{from}..{to}"),
        };
        f.write_str(&self.0.iter().map(text).collect::<Vec<_>>().join(","))
    }
}

impl Display for PsnSpans {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = |(from, to): &(Psn, Psn)| match (from.get(), to.get()) {
            (from, to) if from == to => format!("{from:#x}"),
            (from, to) => format!("{from:#x}..{to:#x}"),
        };
        f.write_str(&self.0.iter().map(text).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_include_both_ends() {
        let spans = Spans::new(vec![(3, 3), (10, 20), (100, u64::MAX)]).expect("legal");
        let inside: Vec<u64> = (0..=101).filter(|n| spans.contains(*n)).collect();
        assert_eq!(inside, [3].into_iter().chain(10..=20).chain(100..=101).collect::<Vec<_>>());
        assert!(spans.contains(u64::MAX));
    }

    #[test]
    fn spans_reject_long_lists_and_reversed_ranges() {
        assert_eq!(Spans::new(vec![]), None);
        assert_eq!(Spans::new(vec![(2, 1)]), None);
        assert!(Spans::new(vec![(1, 1); Spans::MAX]).is_some());
        assert_eq!(Spans::new(vec![(1, 1); Spans::MAX + 1]), None);
        assert_eq!(PsnSpans::new(vec![]), None);
        assert_eq!(PsnSpans::new(vec![(Psn::new(1), Psn::new(1)); Spans::MAX + 1]), None);
    }

    #[test]
    fn psn_ranges_wrap_around() {
        let psn = Psn::new;
        let spans = PsnSpans::new(vec![(psn(0xff_fffe), psn(1)), (psn(7), psn(7))]).expect("legal");
        for (number, inside) in
            [(0xff_fffd, false), (0xff_fffe, true), (0xff_ffff, true), (0, true), (1, true), (2, false), (7, true)]
        {
            assert_eq!(spans.contains(psn(number)), inside, "{number:#x}");
        }
    }
}
