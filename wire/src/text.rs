//! A packet as one line of text, as `roxe dump` prints it.

use crate::ext::ImmDt;
use crate::kind::{Kind, Request, Response, SendTail, UcRequest};
use crate::packet::Packet;
use core::fmt;

impl fmt::Display for Packet<'_> {
    /// One line: opcode, base header, extended headers, payload length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.header.opcode(), self.header.bth)?;
        self.header.kind.fmt_headers(f)?;
        write!(f, " len={}", self.payload.len())
    }
}

impl Kind {
    fn fmt_headers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RcRequest(request) | Self::UcRequest(UcRequest(request)) => request.fmt_headers(f),
            Self::RcResponse(response) | Self::XrcResponse(response) => response.fmt_headers(f),
            Self::Ud { deth, imm } => {
                write!(f, " {deth}")?;
                fmt_imm(*imm, f)
            }
            Self::XrcRequest(xrc, request) => {
                write!(f, " {xrc}")?;
                request.fmt_headers(f)
            }
            Self::Cnp => Ok(()),
        }
    }
}

impl Request {
    fn fmt_headers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SendFirst | Self::SendMiddle | Self::WriteMiddle => Ok(()),
            Self::SendLast(tail) | Self::SendOnly(tail) => match tail {
                SendTail::Plain => Ok(()),
                SendTail::Imm(imm) => write!(f, " {imm}"),
                SendTail::Invalidate(ieth) => write!(f, " {ieth}"),
            },
            Self::WriteLast(imm) => fmt_imm(*imm, f),
            Self::WriteOnly(reth, imm) => {
                write!(f, " {reth}")?;
                fmt_imm(*imm, f)
            }
            Self::WriteFirst(reth) | Self::Read(reth) | Self::AtomicWrite(reth) => write!(f, " {reth}"),
            Self::CompareSwap(atomic) => write!(f, " {atomic} compare={:#x}", atomic.compare),
            Self::FetchAdd(atomic) => write!(f, " {atomic}"),
            Self::Flush(feth, reth) => write!(f, " {feth} {reth}"),
        }
    }
}

impl Response {
    fn fmt_headers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadMiddle => Ok(()),
            Self::ReadFirst(aeth) | Self::ReadLast(aeth) | Self::ReadOnly(aeth) | Self::Ack(aeth) => {
                write!(f, " {aeth}")
            }
            Self::AtomicAck(aeth, original) => write!(f, " {aeth} {original}"),
        }
    }
}

fn fmt_imm(imm: Option<ImmDt>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    imm.map_or(Ok(()), |imm| write!(f, " {imm}"))
}
