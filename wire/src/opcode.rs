//! Opcodes and their properties as one table (IBA §9.2, table 38; the RoCEv2 annex for the CNP);
//! and [`Kind`]: service, operation and extended headers, in legal combinations only.
//!
//! An opcode byte is a service (bits 7:5) and an operation (bits 4:0); most operations exist for
//! several services and mean the same in each.

use crate::bytes::{ParseError, Reader, Writer};
use crate::ext::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
use core::fmt;

/// The transport service of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0b000,
    /// Unreliable connection.
    Uc = 0b001,
    /// Unreliable datagram.
    Ud = 0b011,
    /// Congestion notification: its only packet is the CNP.
    Cnp = 0b100,
    /// Extended reliable connection.
    Xrc = 0b101,
}

impl Service {
    /// Returns the prefix of an operation's name; empty for the CNP.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Cnp => "",
            Self::Xrc => "XRC",
        }
    }
}

/// Operation of a packet, independent of its service. The low 5 bits are those of the opcode byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it; see `Operation::properties`")]
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    Flush = 0x1c,
    AtomicWrite = 0x1d,
    /// The low 5 bits equal those of SEND_MIDDLE; bit 5 distinguishes the two.
    Cnp = 0x21,
}

/// Position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several packets.
    First,
    /// Neither first nor last.
    Middle,
    /// Ends a message that began with another packet.
    Last,
    /// A message of one packet.
    Only,
}

/// Legal payload lengths of a packet, at most [`crate::num::MAX_PAYLOAD`]. Requests of a wrong but
/// unambiguous length (an empty LAST, an ATOMIC WRITE) are parsed: the responder refuses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadRule {
    /// No payload.
    None,
    /// One path MTU: no pad. The transport checks the length.
    Full,
    /// At least one byte.
    Some,
    /// Any length, including 0; the transport may allow less.
    Any,
}

impl PayloadRule {
    /// Returns true if `len` bytes of payload are allowed.
    // clause: PAYLOAD-RULE, PAYLOAD-NONE
    #[inline]
    pub const fn allows(self, len: usize) -> bool {
        // Comparisons instead of a jump table.
        let most = if matches!(self, Self::None) { 0 } else { crate::num::MAX_PAYLOAD };
        let least = if matches!(self, Self::Some) { 1 } else { 0 };
        len <= most && len >= least && (len.is_multiple_of(4) || !matches!(self, Self::Full))
    }
}

/// Properties of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationProperties {
    /// Name without the transport, such as `SEND_FIRST`.
    pub name: &'static str,
    /// Position in the message.
    pub position: Position,
    /// Size in bytes of the extended headers, without those that a service adds (XRCETH, DETH).
    pub ext_len: usize,
    /// Legal payloads.
    pub payload: PayloadRule,
}

impl Operation {
    /// All operations. Fault rules print them in this order, and random decisions depend on the
    /// text of a rule: keep the order.
    #[rustfmt::skip]
    pub const ALL: [Self; 26] = [
        Self::SendFirst, Self::SendMiddle, Self::SendLast, Self::SendLastImm, Self::SendLastInvalidate,
        Self::SendOnly, Self::SendOnlyImm, Self::SendOnlyInvalidate,
        Self::WriteFirst, Self::WriteMiddle, Self::WriteLast, Self::WriteLastImm, Self::WriteOnly, Self::WriteOnlyImm,
        Self::ReadRequest, Self::CompareSwap, Self::FetchAdd, Self::Flush, Self::AtomicWrite,
        Self::ReadResponseFirst, Self::ReadResponseMiddle, Self::ReadResponseLast, Self::ReadResponseOnly,
        Self::AtomicAcknowledge, Self::Acknowledge, Self::Cnp,
    ];

    /// Returns the properties of this operation.
    #[inline]
    pub const fn properties(self) -> OperationProperties {
        PROPERTIES[self as usize]
    }

    // clause: OPCODE-TABLE
    #[rustfmt::skip]
    const fn describe(self) -> OperationProperties {
        use PayloadRule::{Any, Full, None, Some};
        use Position::{First, Last, Middle, Only};
        match self {
            Self::SendFirst          => properties("SEND_FIRST",           First,   0, Full),
            Self::SendMiddle         => properties("SEND_MIDDLE",          Middle,  0, Full),
            Self::SendLast           => properties("SEND_LAST",            Last,    0, Any),
            Self::SendLastImm        => properties("SEND_LAST_IMM",        Last,    4, Any),
            Self::SendOnly           => properties("SEND_ONLY",            Only,    0, Any),
            Self::SendOnlyImm        => properties("SEND_ONLY_IMM",        Only,    4, Any),
            Self::WriteFirst         => properties("WRITE_FIRST",          First,  16, Full),
            Self::WriteMiddle        => properties("WRITE_MIDDLE",         Middle,  0, Full),
            Self::WriteLast          => properties("WRITE_LAST",           Last,    0, Any),
            Self::WriteLastImm       => properties("WRITE_LAST_IMM",       Last,    4, Any),
            Self::WriteOnly          => properties("WRITE_ONLY",           Only,   16, Any),
            Self::WriteOnlyImm       => properties("WRITE_ONLY_IMM",       Only,   20, Any),
            Self::ReadRequest        => properties("READ_REQUEST",         Only,   16, None),
            Self::ReadResponseFirst  => properties("READ_RESPONSE_FIRST",  First,   4, Full),
            Self::ReadResponseMiddle => properties("READ_RESPONSE_MIDDLE", Middle,  0, Full),
            Self::ReadResponseLast   => properties("READ_RESPONSE_LAST",   Last,    4, Some),
            Self::ReadResponseOnly   => properties("READ_RESPONSE_ONLY",   Only,    4, Any),
            Self::Acknowledge        => properties("ACK",                  Only,    4, None),
            Self::AtomicAcknowledge  => properties("ATOMIC_ACK",           Only,   12, None),
            Self::CompareSwap        => properties("COMPARE_SWAP",         Only,   28, None),
            Self::FetchAdd           => properties("FETCH_ADD",            Only,   28, None),
            Self::SendLastInvalidate => properties("SEND_LAST_INV",        Last,    4, Any),
            Self::SendOnlyInvalidate => properties("SEND_ONLY_INV",        Only,    4, Any),
            Self::Flush              => properties("FLUSH",                Only,   20, None),
            Self::AtomicWrite        => properties("ATOMIC_WRITE",         Only,   16, Any),
            Self::Cnp                => properties("CNP",                  Only,   16, None),
        }
    }

    /// Returns true if this is a response.
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    #[inline]
    pub(crate) const fn is_of_uc(self) -> bool {
        self as u8 <= Self::WriteOnlyImm as u8
    }

    /// Returns the operation with these low 5 bits in a connected service. 0x15 (RESYNC) belongs to
    /// reliable datagrams.
    const fn from_low_bits(bits: u8) -> Option<Self> {
        let mut rest: &[Self] = &Self::ALL;
        while let [first, tail @ ..] = rest {
            if *first as u8 == bits {
                return Some(*first);
            }
            rest = tail;
        }
        None
    }
}

/// [`Operation::describe`] by the number of the operation.
const PROPERTIES: [OperationProperties; Operation::Cnp as usize + 1] = {
    let mut table = [Operation::Cnp.describe(); Operation::Cnp as usize + 1];
    let mut at = 0;
    while at < Operation::ALL.len() {
        let operation = Operation::ALL[at];
        table[operation as usize] = operation.describe();
        at += 1;
    }
    table
};

const fn properties(
    name: &'static str,
    position: Position,
    ext_len: usize,
    payload: PayloadRule,
) -> OperationProperties {
    OperationProperties { name, position, ext_len, payload }
}

/// A defined opcode: a service and an operation that the service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    service: Service,
    operation: Operation,
}

impl Opcode {
    /// Creates an opcode. `operation` must exist in `service`: callers take both from a
    /// [`crate::Kind`].
    pub(crate) const fn new(service: Service, operation: Operation) -> Self {
        Self { service, operation }
    }

    /// Returns the opcode with this byte; `None` if the byte is reserved, belongs to reliable
    /// datagrams or is left to vendors.
    #[inline]
    pub const fn from_u8(byte: u8) -> Option<Self> {
        OPCODES[byte as usize]
    }

    /// Returns the byte on the wire.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        (self.service as u8) << 5 | self.operation as u8 & 0x1f
    }

    /// Returns the transport service.
    pub const fn service(self) -> Service {
        self.service
    }

    /// Returns the operation, without its service.
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// Returns the properties of the operation.
    #[inline]
    pub const fn properties(self) -> OperationProperties {
        self.operation.properties()
    }

    // clause: OPCODE-TABLE
    const fn decode(byte: u8) -> Option<Self> {
        let bits = byte & 0x1f;
        let (service, exists) = match byte >> 5 {
            0b000 => (Service::Rc, true),
            0b001 => (Service::Uc, matches!(Operation::from_low_bits(bits), Some(found) if found.is_of_uc())),
            0b011 => (Service::Ud, matches!(bits, 0x04 | 0x05)),
            0b101 => (Service::Xrc, true),
            0b100 if bits == 1 => return Some(Self::new(Service::Cnp, Operation::Cnp)),
            _ => return None,
        };
        match Operation::from_low_bits(bits) {
            Some(operation) if exists => Some(Self::new(service, operation)),
            _ => None,
        }
    }
}

/// Results of [`Opcode::decode`] for every byte.
const OPCODES: [Option<Opcode>; 256] = {
    let mut table = [None; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = Opcode::decode(byte as u8);
        byte += 1;
    }
    table
};

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.service {
            Service::Cnp => f.write_str("CNP"),
            service => write!(f, "{} {}", service.name(), self.properties().name),
        }
    }
}

/// Extended header at the end of a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTail {
    /// No extended header.
    Plain,
    /// Immediate data.
    Imm(ImmDt),
    /// Key to invalidate at the receiver.
    Invalidate(Ieth),
}

/// A request of a reliable connection, sent to the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the specification")]
pub enum Request {
    SendFirst,
    SendMiddle,
    SendLast(SendTail),
    SendOnly(SendTail),
    WriteFirst(Reth),
    WriteMiddle,
    WriteLast(Option<ImmDt>),
    WriteOnly(Reth, Option<ImmDt>),
    Read(Reth),
    CompareSwap(AtomicEth),
    FetchAdd(AtomicEth),
    Flush(Feth, Reth),
    AtomicWrite(Reth),
}

/// A response of a reliable connection, sent to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the specification")]
pub enum Response {
    ReadFirst(Aeth),
    ReadMiddle,
    ReadLast(Aeth),
    ReadOnly(Aeth),
    Ack(Aeth),
    AtomicAck(Aeth, AtomicAckEth),
}

/// A request of UC: one of the SENDs and WRITEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UcRequest(pub(crate) Request);

/// Service, operation and extended headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reliable connection, to the responder.
    RcRequest(Request),
    /// Reliable connection, to the requester.
    RcResponse(Response),
    /// Unreliable connection.
    UcRequest(UcRequest),
    /// Unreliable datagram: always a SEND of one packet.
    Ud {
        /// Key and source.
        deth: Deth,
        /// Immediate data.
        imm: Option<ImmDt>,
    },
    /// Extended reliable connection, to the responder.
    XrcRequest(XrcEth, Request),
    /// Extended reliable connection, to the requester.
    XrcResponse(Response),
    /// Congestion notification to the sender of congesting packets.
    Cnp,
}

/// Reserved bytes after the BTH of a CNP, zero.
// clause: CNP-FORMAT
const CNP_RESERVED: usize = 16;

impl Kind {
    /// Reads the extended headers of `opcode` into `self`, which is undefined after an error.
    // clause: HEADER-ORDER
    // Inlined: a call would return the headers through memory.
    #[inline(always)]
    pub(crate) fn read(&mut self, opcode: Opcode, from: &mut Reader<'_>) -> Result<(), ParseError> {
        let operation = opcode.operation();
        match opcode.service() {
            Service::Rc if operation.is_response() => {
                Response::read(operation, from, |response| *self = Self::RcResponse(response))
            }
            Service::Rc => Request::read(operation, from, |request| *self = Self::RcRequest(request)),
            Service::Uc if !operation.is_of_uc() => Err(ParseError::Opcode),
            Service::Uc => Request::read(operation, from, |request| *self = Self::UcRequest(UcRequest(request))),
            Service::Ud => self.read_ud(operation, from),
            Service::Xrc if operation.is_response() => {
                Response::read(operation, from, |response| *self = Self::XrcResponse(response))
            }
            Service::Xrc => {
                let xrc = XrcEth::read(from)?;
                Request::read(operation, from, |request| *self = Self::XrcRequest(xrc, request))
            }
            Service::Cnp => from.array::<CNP_RESERVED>().map(|_| *self = Self::Cnp),
        }
    }

    /// Returns the request; `None` for a datagram, a response or a CNP.
    #[inline]
    pub const fn request(&self) -> Option<&Request> {
        match self {
            Self::RcRequest(request) | Self::UcRequest(UcRequest(request)) | Self::XrcRequest(_, request) => {
                Some(request)
            }
            _ => None,
        }
    }

    fn read_ud(&mut self, operation: Operation, from: &mut Reader<'_>) -> Result<(), ParseError> {
        let deth = Deth::read(from)?;
        let imm = if operation == Operation::SendOnlyImm { Some(ImmDt::read(from)?) } else { None };
        *self = Self::Ud { deth, imm };
        Ok(())
    }

    // Inlined like `Header::emit_as`.
    #[inline(always)]
    pub(crate) fn write(&self, to: &mut impl Writer) -> Option<()> {
        match self {
            Self::RcRequest(request) | Self::UcRequest(UcRequest(request)) => request.write(to),
            Self::RcResponse(response) | Self::XrcResponse(response) => response.write(to),
            Self::Ud { deth, imm } => {
                deth.write(to)?;
                write_imm(*imm, to)
            }
            Self::XrcRequest(xrc, request) => {
                xrc.write(to)?;
                request.write(to)
            }
            Self::Cnp => to.array([0; CNP_RESERVED]),
        }
    }
}

impl Request {
    /// Returns the operation of this request.
    pub const fn operation(&self) -> Operation {
        use Operation as O;
        match self {
            Self::SendFirst => O::SendFirst,
            Self::SendMiddle => O::SendMiddle,
            Self::SendLast(SendTail::Plain) => O::SendLast,
            Self::SendLast(SendTail::Imm(_)) => O::SendLastImm,
            Self::SendLast(SendTail::Invalidate(_)) => O::SendLastInvalidate,
            Self::SendOnly(SendTail::Plain) => O::SendOnly,
            Self::SendOnly(SendTail::Imm(_)) => O::SendOnlyImm,
            Self::SendOnly(SendTail::Invalidate(_)) => O::SendOnlyInvalidate,
            Self::WriteFirst(_) => O::WriteFirst,
            Self::WriteMiddle => O::WriteMiddle,
            Self::WriteLast(None) => O::WriteLast,
            Self::WriteLast(Some(_)) => O::WriteLastImm,
            Self::WriteOnly(_, None) => O::WriteOnly,
            Self::WriteOnly(_, Some(_)) => O::WriteOnlyImm,
            Self::Read(_) => O::ReadRequest,
            Self::CompareSwap(_) => O::CompareSwap,
            Self::FetchAdd(_) => O::FetchAdd,
            Self::Flush(..) => O::Flush,
            Self::AtomicWrite(_) => O::AtomicWrite,
        }
    }

    /// Reads the request and passes it to `keep`.
    // Each arm passes its own variant, so that the compiler stores only the fields it has.
    #[inline(always)]
    fn read(operation: Operation, from: &mut Reader<'_>, mut keep: impl FnMut(Self)) -> Result<(), ParseError> {
        use Operation as O;
        use SendTail::{Imm, Invalidate, Plain};
        match operation {
            O::SendFirst => keep(Self::SendFirst),
            O::SendMiddle => keep(Self::SendMiddle),
            O::SendLast => keep(Self::SendLast(Plain)),
            O::SendLastImm => keep(Self::SendLast(Imm(ImmDt::read(from)?))),
            O::SendLastInvalidate => keep(Self::SendLast(Invalidate(Ieth::read(from)?))),
            O::SendOnly => keep(Self::SendOnly(Plain)),
            O::SendOnlyImm => keep(Self::SendOnly(Imm(ImmDt::read(from)?))),
            O::SendOnlyInvalidate => keep(Self::SendOnly(Invalidate(Ieth::read(from)?))),
            O::WriteFirst => keep(Self::WriteFirst(Reth::read(from)?)),
            O::WriteMiddle => keep(Self::WriteMiddle),
            O::WriteLast => keep(Self::WriteLast(None)),
            O::WriteLastImm => keep(Self::WriteLast(Some(ImmDt::read(from)?))),
            O::WriteOnly => keep(Self::WriteOnly(Reth::read(from)?, None)),
            O::WriteOnlyImm => keep(Self::WriteOnly(Reth::read(from)?, Some(ImmDt::read(from)?))),
            O::ReadRequest => keep(Self::Read(Reth::read(from)?)),
            O::CompareSwap => keep(Self::CompareSwap(AtomicEth::read(from)?)),
            O::FetchAdd => keep(Self::FetchAdd(AtomicEth::read(from)?)),
            O::Flush => keep(Self::Flush(Feth::read(from)?, Reth::read(from)?)),
            O::AtomicWrite => keep(Self::AtomicWrite(Reth::read(from)?)),
            _ => return Err(ParseError::Opcode),
        }
        Ok(())
    }

    #[inline]
    fn write(&self, to: &mut impl Writer) -> Option<()> {
        match self {
            Self::SendFirst | Self::SendMiddle | Self::WriteMiddle => Some(()),
            Self::SendLast(tail) | Self::SendOnly(tail) => match tail {
                SendTail::Plain => Some(()),
                SendTail::Imm(imm) => imm.write(to),
                SendTail::Invalidate(ieth) => ieth.write(to),
            },
            Self::WriteLast(imm) => write_imm(*imm, to),
            Self::WriteOnly(reth, imm) => {
                reth.write(to)?;
                write_imm(*imm, to)
            }
            Self::WriteFirst(reth) | Self::Read(reth) | Self::AtomicWrite(reth) => reth.write(to),
            Self::CompareSwap(atomic) | Self::FetchAdd(atomic) => atomic.write(to),
            Self::Flush(feth, reth) => {
                feth.write(to)?;
                reth.write(to)
            }
        }
    }
}

fn write_imm(imm: Option<ImmDt>, to: &mut impl Writer) -> Option<()> {
    imm.map_or(Some(()), |imm| imm.write(to))
}

impl Response {
    /// Returns the operation of this response.
    pub const fn operation(&self) -> Operation {
        match self {
            Self::ReadFirst(_) => Operation::ReadResponseFirst,
            Self::ReadMiddle => Operation::ReadResponseMiddle,
            Self::ReadLast(_) => Operation::ReadResponseLast,
            Self::ReadOnly(_) => Operation::ReadResponseOnly,
            Self::Ack(_) => Operation::Acknowledge,
            Self::AtomicAck(..) => Operation::AtomicAcknowledge,
        }
    }

    /// Returns the AETH; MIDDLE READ responses have none.
    #[inline]
    pub const fn aeth(&self) -> Option<&Aeth> {
        match self {
            Self::ReadMiddle => None,
            Self::ReadFirst(aeth)
            | Self::ReadLast(aeth)
            | Self::ReadOnly(aeth)
            | Self::Ack(aeth)
            | Self::AtomicAck(aeth, _) => Some(aeth),
        }
    }

    /// Reads the response and passes it to `keep`.
    #[inline(always)]
    fn read(operation: Operation, from: &mut Reader<'_>, mut keep: impl FnMut(Self)) -> Result<(), ParseError> {
        match operation {
            Operation::ReadResponseFirst => keep(Self::ReadFirst(Aeth::read(from)?)),
            Operation::ReadResponseMiddle => keep(Self::ReadMiddle),
            Operation::ReadResponseLast => keep(Self::ReadLast(Aeth::read(from)?)),
            Operation::ReadResponseOnly => keep(Self::ReadOnly(Aeth::read(from)?)),
            Operation::Acknowledge => keep(Self::Ack(Aeth::read(from)?)),
            Operation::AtomicAcknowledge => keep(Self::AtomicAck(Aeth::read(from)?, AtomicAckEth::read(from)?)),
            _ => return Err(ParseError::Opcode),
        }
        Ok(())
    }

    #[inline(always)]
    fn write(&self, to: &mut impl Writer) -> Option<()> {
        match self {
            Self::ReadMiddle => Some(()),
            Self::ReadFirst(aeth) | Self::ReadLast(aeth) | Self::ReadOnly(aeth) | Self::Ack(aeth) => aeth.write(to),
            Self::AtomicAck(aeth, original) => {
                aeth.write(to)?;
                original.write(to)
            }
        }
    }
}

impl From<UcRequest> for Request {
    fn from(UcRequest(request): UcRequest) -> Self {
        request
    }
}

impl TryFrom<Request> for UcRequest {
    /// Always [`ParseError::Opcode`]: the unreliable connection has no such opcode.
    type Error = ParseError;

    #[inline]
    fn try_from(request: Request) -> Result<Self, ParseError> {
        if request.operation().is_of_uc() { Ok(Self(request)) } else { Err(ParseError::Opcode) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::fmt::Write;
    use std::string::String;

    /// Compares the whole table as text, so that a change is visible in review.
    // clause: OPCODE-TABLE
    #[test]
    fn opcodes_match_the_reviewed_table() {
        let mut table = String::new();
        for byte in 0..=255 {
            let Some(opcode) = Opcode::from_u8(byte) else { continue };
            assert_eq!(opcode.to_u8(), byte);
            let OperationProperties { position, ext_len, payload, .. } = opcode.properties();
            let direction = if opcode.operation().is_response() { "response" } else { "request" };
            writeln!(table, "{byte:02x} {opcode}: {direction}, {position:?}, headers {ext_len}, payload {payload:?}")
                .unwrap();
        }
        assert_eq!(table, include_str!("opcodes.txt"), "\n{table}");
    }

    // clause: PAYLOAD-RULE, PAYLOAD-NONE
    #[test]
    fn payload_rules_hold_at_their_limits() {
        let allowed = |rule: PayloadRule| [0, 1, 4, 7, 8, 4095, 4096, 4097, 4100].map(|len| rule.allows(len));
        let [t, f] = [true, false];
        assert_eq!(allowed(PayloadRule::None), [t, f, f, f, f, f, f, f, f]);
        assert_eq!(allowed(PayloadRule::Full), [t, f, t, f, t, f, t, f, f]);
        assert_eq!(allowed(PayloadRule::Some), [f, t, t, t, t, t, t, f, f]);
        assert_eq!(allowed(PayloadRule::Any), [t, t, t, t, t, t, t, f, f]);
    }
}
