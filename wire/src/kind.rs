//! What a packet is: its service, its operation and the extended headers of that operation, of
//! which only legal combinations exist.
//!
//! Touches `ext` and `opcode`.

use crate::bytes::{Reader, Sink};
use crate::error::ParseError;
use crate::ext::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
use crate::opcode::{Opcode, Operation, Service};

/// What ends a SEND besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTail {
    /// Nothing: the payload is all.
    Plain,
    /// Immediate data.
    Imm(ImmDt),
    /// A key that the receiver must make invalid.
    Invalidate(Ieth),
}

/// A request of a reliable connection: goes to the responder.
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

/// A response of a reliable connection: goes to the requester.
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

/// A request of an unreliable connection: one of the SENDs and WRITEs that every connected service
/// has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UcRequest(pub(crate) Request);

/// What a packet is: service, operation and extended headers.
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
    /// Reads the extended headers of `opcode`.
    // clause: HEADER-ORDER
    // A call would hand them over in memory, to be copied: 16 instructions for each packet.
    #[inline(always)]
    pub(crate) fn read(opcode: Opcode, from: &mut Reader<'_>) -> Result<Self, ParseError> {
        let operation = opcode.operation();
        match opcode.service() {
            Service::Rc if operation.is_response() => Response::read(operation, from).map(Self::RcResponse),
            Service::Rc => Request::read(operation, from).map(Self::RcRequest),
            Service::Uc => UcRequest::try_from(Request::read(operation, from)?).map(Self::UcRequest),
            Service::Ud => Self::read_ud(operation, from),
            Service::Xrc if operation.is_response() => Response::read(operation, from).map(Self::XrcResponse),
            Service::Xrc => Ok(Self::XrcRequest(XrcEth::read(from)?, Request::read(operation, from)?)),
            Service::Cnp => from.array::<CNP_RESERVED>().map(|_| Self::Cnp),
        }
    }

    /// The request in it, if it is one of a connection.
    #[inline]
    pub const fn request(&self) -> Option<&Request> {
        match self {
            Self::RcRequest(request) | Self::UcRequest(UcRequest(request)) | Self::XrcRequest(_, request) => {
                Some(request)
            }
            _ => None,
        }
    }

    fn read_ud(operation: Operation, from: &mut Reader<'_>) -> Result<Self, ParseError> {
        let deth = Deth::read(from)?;
        let imm = if operation == Operation::SendOnlyImm { Some(ImmDt::read(from)?) } else { None };
        Ok(Self::Ud { deth, imm })
    }

    /// Writes the extended headers.
    #[inline]
    pub(crate) fn write(&self, to: &mut impl Sink) -> Option<()> {
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
    /// The operation of this request.
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

    #[inline(always)]
    fn read(operation: Operation, from: &mut Reader<'_>) -> Result<Self, ParseError> {
        use Operation as O;
        use SendTail::{Imm, Invalidate, Plain};
        Ok(match operation {
            O::SendFirst => Self::SendFirst,
            O::SendMiddle => Self::SendMiddle,
            O::SendLast => Self::SendLast(Plain),
            O::SendLastImm => Self::SendLast(Imm(ImmDt::read(from)?)),
            O::SendLastInvalidate => Self::SendLast(Invalidate(Ieth::read(from)?)),
            O::SendOnly => Self::SendOnly(Plain),
            O::SendOnlyImm => Self::SendOnly(Imm(ImmDt::read(from)?)),
            O::SendOnlyInvalidate => Self::SendOnly(Invalidate(Ieth::read(from)?)),
            O::WriteFirst => Self::WriteFirst(Reth::read(from)?),
            O::WriteMiddle => Self::WriteMiddle,
            O::WriteLast => Self::WriteLast(None),
            O::WriteLastImm => Self::WriteLast(Some(ImmDt::read(from)?)),
            O::WriteOnly => Self::WriteOnly(Reth::read(from)?, None),
            O::WriteOnlyImm => Self::WriteOnly(Reth::read(from)?, Some(ImmDt::read(from)?)),
            O::ReadRequest => Self::Read(Reth::read(from)?),
            O::CompareSwap => Self::CompareSwap(AtomicEth::read(from)?),
            O::FetchAdd => Self::FetchAdd(AtomicEth::read(from)?),
            O::Flush => Self::Flush(Feth::read(from)?, Reth::read(from)?),
            O::AtomicWrite => Self::AtomicWrite(Reth::read(from)?),
            _ => return Err(ParseError::Opcode),
        })
    }

    #[inline]
    fn write(&self, to: &mut impl Sink) -> Option<()> {
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

fn write_imm(imm: Option<ImmDt>, to: &mut impl Sink) -> Option<()> {
    imm.map_or(Some(()), |imm| imm.write(to))
}

impl Response {
    /// The operation of this response.
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

    /// Its acknowledgement; what is from the middle of READ data has none.
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

    #[inline(always)]
    fn read(operation: Operation, from: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(match operation {
            Operation::ReadResponseFirst => Self::ReadFirst(Aeth::read(from)?),
            Operation::ReadResponseMiddle => Self::ReadMiddle,
            Operation::ReadResponseLast => Self::ReadLast(Aeth::read(from)?),
            Operation::ReadResponseOnly => Self::ReadOnly(Aeth::read(from)?),
            Operation::Acknowledge => Self::Ack(Aeth::read(from)?),
            Operation::AtomicAcknowledge => Self::AtomicAck(Aeth::read(from)?, AtomicAckEth::read(from)?),
            _ => return Err(ParseError::Opcode),
        })
    }

    #[inline]
    fn write(&self, to: &mut impl Sink) -> Option<()> {
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
