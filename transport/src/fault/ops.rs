//! Sets of opcodes, by the names people use.

use core::fmt;
use roxe_wire::{Header, Kind, Operation, Packet, Response, Syndrome};

/// A set of opcodes, whatever the service: names as `roxe dump` prints them, and classes of them.
///
/// | class | stands for |
/// |---|---|
/// | `REQUEST` | all that goes to a responder |
/// | `RESPONSE` | all that goes back |
/// | `SEND`, `WRITE` | all packets of such messages |
/// | `READ_RESPONSE` | all packets that carry READ data |
/// | `ATOMIC` | `COMPARE_SWAP` and `FETCH_ADD` |
/// | `ACK` | acknowledgements that are no refusal |
/// | `NAK` | refusals of any kind |
/// | `RNR_NAK` | refusals for want of a receive |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSet(u64);

/// What a set can hold besides the operations: the two kinds of refusal, which share the opcode of
/// `ACK`.
const NAK_BIT: u32 = 62;
const RNR_NAK_BIT: u32 = 63;

use Operation as O;

/// The set of one operation.
const fn bit(operation: Operation) -> u64 {
    1 << operation as u32
}

/// The set of these operations.
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

/// The classes, each behind those that include it.
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
    /// No opcode.
    pub(super) const EMPTY: Self = Self(0);

    /// What `name`, in capitals or not, stands for.
    pub fn named(name: &str) -> Option<Self> {
        let class = CLASSES.iter().find(|(class, _)| class.eq_ignore_ascii_case(name)).map(|(_, set)| *set);
        let one = || O::ALL.into_iter().find(|op| op.facts().name.eq_ignore_ascii_case(name)).map(bit);
        class.or_else(one).map(Self)
    }

    /// All names that [`OpSet::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        CLASSES.iter().map(|(class, _)| *class).chain(O::ALL.into_iter().map(|op| op.facts().name))
    }

    /// The opcodes of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `packet` is one of these.
    pub fn contains(self, packet: &Packet<'_>) -> bool {
        self.0 & bit_of(&packet.header) != 0
    }
}

/// The one-element set that a packet belongs to.
fn bit_of(header: &Header) -> u64 {
    match &header.kind {
        Kind::RcResponse(Response::Ack(aeth)) | Kind::XrcResponse(Response::Ack(aeth)) => match aeth.syndrome {
            Syndrome::RnrNak { .. } => 1 << RNR_NAK_BIT,
            Syndrome::Nak(_) => 1 << NAK_BIT,
            _ => bit(O::Acknowledge),
        },
        _ => bit(header.opcode().operation()),
    }
}

impl fmt::Display for OpSet {
    /// The names, classes first, separated by commas, in the order of the tables.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ones = O::ALL.into_iter().map(|op| (op.facts().name, bit(op)));
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
