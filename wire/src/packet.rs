//! Packets: parsing, writing into a slot of exact size, and their text in `roxe dump`.

use crate::bth::Bth;
use crate::bytes::{ParseError, Reader};
use crate::ext::{Deth, ImmDt, XrcEth};
use crate::icrc;
use crate::opcode::{Kind, Opcode, Operation, PayloadRule, Request, Response, SendTail, Service, UcRequest};
use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering};

/// All headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Base transport header.
    pub bth: Bth,
    /// Service, operation and extended headers.
    pub kind: Kind,
}

/// Properties common to all packets of one kind and size, computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    opcode: Opcode,
    payload_len: usize,
    pad: usize,
    len: usize,
}

impl Form {
    /// Returns the size in bytes of headers, payload and pad: everything but the ICRC.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a packet is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }
}

/// A packet in a borrowed buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// BTH and extended headers.
    pub header: Header,
    /// Payload without the pad.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses the payload of a UDP datagram, including the ICRC, which is not checked.
    ///
    /// # Errors
    /// [`ParseError`] if the bytes are not a legal packet.
    #[inline]
    pub fn parse(udp_payload: &'a [u8]) -> Result<Self, ParseError> {
        let mut packet = Self::none();
        packet.read(udp_payload)?;
        Ok(packet)
    }

    /// Parses the headers of a truncated packet: `cut` is the start of a UDP payload of `len`
    /// bytes. The payload has its original length and is taken from `filler`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if not all headers are in `cut`, or `filler` is too short; else as
    /// [`parse`](Self::parse).
    pub fn parse_truncated(cut: &[u8], len: usize, filler: &'a [u8]) -> Result<Self, ParseError> {
        let mut packet = Self::none();
        let mut rest = Reader(cut);
        let (opcode, pad, bth) = Bth::read(&mut rest)?;
        packet.header.bth = bth;
        packet.header.kind.read(opcode, &mut rest)?;
        let around = cut.len() - rest.0.len() + icrc::LEN;
        let body = len.checked_sub(around).and_then(|body| filler.get(..body)).ok_or(ParseError::Truncated)?;
        packet.payload = strip_pad(opcode.properties().payload, pad, body)?;
        Ok(packet)
    }

    const fn none() -> Self {
        let bth = Bth::new(crate::num::Qpn::new(0), crate::num::Psn::new(0));
        Self { header: Header { bth, kind: Kind::Cnp }, payload: &[] }
    }

    /// Parses `udp_payload` into `self`, which is undefined after an error; returns the opcode.
    fn read(&mut self, udp_payload: &'a [u8]) -> Result<Opcode, ParseError> {
        let (covered, _) = udp_payload.split_last_chunk::<{ icrc::LEN }>().ok_or(ParseError::Truncated)?;
        let mut rest = Reader(covered);
        let (opcode, pad, bth) = Bth::read(&mut rest)?;
        self.header.bth = bth;
        self.header.kind.read(opcode, &mut rest)?;
        self.payload = strip_pad(opcode.properties().payload, pad, rest.0)?;
        Ok(opcode)
    }
}

/// Parser of a sequence of packets. If a packet is as long as the previous one and their BTHs
/// differ only in PSN and AckReq, only these and the extended headers are parsed.
#[derive(Clone, Copy, Debug)]
pub struct PacketReader<'a> {
    packet: Packet<'a>,
    /// Opcode of the previous packet.
    opcode: Opcode,
    /// BTH of the previous packet up to the PSN.
    start: [u8; 8],
    /// Length of the previous packet in bytes; 0 before the first.
    len: usize,
}

impl Default for PacketReader<'_> {
    fn default() -> Self {
        // No packet has length 0, so the first is parsed in full.
        Self { packet: Packet::none(), opcode: Opcode::new(Service::Cnp, Operation::Cnp), start: [0; 8], len: 0 }
    }
}

impl<'a> PacketReader<'a> {
    /// Parses a packet like [`Packet::parse`]. Returns a reference, because copying a struct that
    /// was just written stalls on store forwarding.
    ///
    /// # Errors
    /// Fails like [`Packet::parse`].
    #[inline]
    pub fn parse(&mut self, udp_payload: &'a [u8]) -> Result<&Packet<'a>, ParseError> {
        if udp_payload.len() == self.len && udp_payload.first_chunk() == Some(&self.start) {
            self.parse_alike(udp_payload)?;
            return Ok(&self.packet);
        }
        self.len = 0;
        self.opcode = self.packet.read(udp_payload)?;
        if let Some(start) = udp_payload.first_chunk() {
            (self.start, self.len) = (*start, udp_payload.len());
        }
        Ok(&self.packet)
    }

    /// Parses a packet of the same length and with the same start as the previous one, which imply
    /// the same pad and payload length.
    fn parse_alike(&mut self, udp_payload: &'a [u8]) -> Result<(), ParseError> {
        let mut rest = Reader(udp_payload);
        let [.., last] = rest.bth_words()?;
        self.packet.header.bth.set_last_word(last);
        self.packet.header.kind.read(self.opcode, &mut rest)?;
        self.packet.payload = rest.0.get(..self.packet.payload.len()).ok_or(ParseError::Truncated)?;
        Ok(())
    }
}

/// Returns the payload of `body` (payload and pad) if both are legal. A pad count without a payload
/// is ignored: such packets exist in captures.
#[inline]
fn strip_pad(rule: PayloadRule, pad: usize, body: &[u8]) -> Result<&[u8], ParseError> {
    // clause: BTH-PAD-EMPTY
    let pad = if rule == PayloadRule::None { 0 } else { pad };
    let len = body.len().checked_sub(pad).ok_or(ParseError::Pad)?;
    if pad != pad_of(len) || (rule == PayloadRule::Full && pad != 0) {
        return Err(ParseError::Pad);
    }
    if !rule.allows(len) {
        return Err(ParseError::PayloadLength);
    }
    body.get(..len).ok_or(ParseError::Pad)
}

/// Returns the pad bytes that bring a payload of `len` bytes to a multiple of 4.
// clause: BTH-PAD
const fn pad_of(len: usize) -> usize {
    len.wrapping_neg() & 3
}

impl Header {
    /// Returns the opcode.
    // Inlined, as `form` and `emit_as`: for a known kind the compiler then knows the whole form.
    #[inline(always)]
    pub const fn opcode(&self) -> Opcode {
        match &self.kind {
            Kind::RcRequest(request) => Opcode::new(Service::Rc, request.operation()),
            Kind::RcResponse(response) => Opcode::new(Service::Rc, response.operation()),
            Kind::UcRequest(UcRequest(request)) => Opcode::new(Service::Uc, request.operation()),
            Kind::Ud { imm: None, .. } => Opcode::new(Service::Ud, Operation::SendOnly),
            Kind::Ud { imm: Some(_), .. } => Opcode::new(Service::Ud, Operation::SendOnlyImm),
            Kind::XrcRequest(_, request) => Opcode::new(Service::Xrc, request.operation()),
            Kind::XrcResponse(response) => Opcode::new(Service::Xrc, response.operation()),
            Kind::Cnp => Opcode::new(Service::Cnp, Operation::Cnp),
        }
    }

    /// Returns the size in bytes of BTH and extended headers.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        self.len_as(self.opcode())
    }

    /// Returns the size in bytes of BTH and extended headers when the opcode is known.
    #[inline]
    const fn len_as(&self, opcode: Opcode) -> usize {
        let of_service = match self.kind {
            Kind::Ud { .. } => Deth::LEN,
            Kind::XrcRequest(..) => XrcEth::LEN,
            _ => 0,
        };
        Bth::LEN + of_service + opcode.properties().ext_len
    }

    /// Returns the size in bytes of headers, `payload` bytes of payload and the pad: everything but
    /// the ICRC.
    #[inline]
    pub const fn padded_len(&self, payload: usize) -> usize {
        self.len().saturating_add(payload).saturating_add(pad_of(payload))
    }

    /// Writes headers and pad into `out`, which is [`padded_len(payload_len)`](Self::padded_len)
    /// long, and returns the area for the payload. `None` if `out` has another length or the
    /// operation cannot carry such a payload.
    #[inline]
    pub fn emit<'b>(&self, payload_len: usize, out: &'b mut [u8]) -> Option<&'b mut [u8]> {
        self.emit_as(&self.form(payload_len)?, out)
    }

    /// Returns the form of a packet with `payload_len` bytes of payload; `None` if the operation
    /// cannot carry so many.
    #[inline(always)]
    pub fn form(&self, payload_len: usize) -> Option<Form> {
        let opcode = self.opcode();
        let pad = pad_of(payload_len);
        let len = self.len_as(opcode).saturating_add(payload_len).saturating_add(pad);
        opcode.properties().payload.allows(payload_len).then_some(Form { opcode, payload_len, pad, len })
    }

    /// Writes headers and pad like [`Header::emit`], with the form of this header or of one that
    /// differs only in its BTH.
    #[inline(always)]
    pub fn emit_as<'b>(&self, form: &Form, mut out: &'b mut [u8]) -> Option<&'b mut [u8]> {
        debug_assert_eq!(form.opcode, self.opcode(), "the form of another packet");
        if out.len() != form.len {
            return None;
        }
        self.bth.write(form.opcode, form.pad, &mut out)?;
        self.kind.write(&mut out)?;
        let (payload, pad) = out.split_at_mut_checked(form.payload_len)?;
        // The pad is usually empty, and `fill` would be a call.
        if !pad.is_empty() {
            pad.fill(0);
        }
        Some(payload)
    }

    /// Writes headers and pad like [`Header::emit_as`], into memory shared with another process:
    /// stores byte by byte, reads none.
    #[inline]
    pub fn emit_shared_as<'b>(&self, form: &Form, mut out: &'b [AtomicU8]) -> Option<&'b [AtomicU8]> {
        debug_assert_eq!(form.opcode, self.opcode(), "the form of another packet");
        if out.len() != form.len {
            return None;
        }
        self.bth.write(form.opcode, form.pad, &mut out)?;
        self.kind.write(&mut out)?;
        let (payload, pad) = out.split_at_checked(form.payload_len)?;
        pad.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        Some(payload)
    }
}

impl fmt::Display for Packet<'_> {
    /// Writes one line: opcode, base header, extended headers, payload length.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode::{Request, SendTail};
    use ParseError as E;

    /// Parses a packet of opcode, flags byte and zeros, with `len` bytes after the BTH, ICRC
    /// included.
    fn parse(opcode: u8, flags: u8, len: usize) -> Result<usize, ParseError> {
        let mut bytes = [0; 5000];
        (bytes[0], bytes[1]) = (opcode, flags);
        Packet::parse(&bytes[..Bth::LEN + len]).map(|packet| packet.payload.len())
    }

    // clause: PAYLOAD-RULE
    #[test]
    fn lengths_are_checked_at_their_limits() {
        for (opcode, len, verdict) in [
            (0x04, 3, Err(E::Truncated)),
            (0x04, 4, Ok(0)),
            (0x04, 4 + 4096, Ok(4096)),
            (0x04, 4 + 4100, Err(E::PayloadLength)),
            (0x02, 4, Ok(0)),
            (0x02, 8, Ok(4)),
            (0x0f, 8, Err(E::PayloadLength)),
            (0x0f, 12, Ok(4)),
            (0x11, 7, Err(E::Truncated)),
            (0x11, 8, Ok(0)),
            (0x11, 12, Err(E::PayloadLength)),
            (0x0c, 19, Err(E::Truncated)),
            (0x0c, 20, Ok(0)),
            (0x1d, 24, Ok(4)),
            (0x1d, 28, Ok(8)),
            (0x1d, 32, Ok(12)),
            (0x81, 19, Err(E::Truncated)),
            (0x81, 20, Ok(0)),
            (0xa4, 7, Err(E::Truncated)),
            (0xa4, 8, Ok(0)),
            (0x65, 15, Err(E::Truncated)),
            (0x65, 16, Ok(0)),
        ] {
            assert_eq!(parse(opcode, 0, len), verdict, "opcode {opcode:#04x}, {len} bytes");
        }
    }

    // clause: BTH-PAD
    #[test]
    fn pad_must_complete_the_payload_to_4_bytes() {
        assert_eq!(parse(0x04, 0x30, 8), Ok(1));
        assert_eq!(parse(0x04, 0x30, 4), Err(E::Pad));
        assert_eq!(parse(0x04, 0x00, 9), Err(E::Pad));
        assert_eq!(parse(0x04, 0x10, 9), Err(E::Pad));
        // FIRST and MIDDLE carry a whole path MTU.
        assert_eq!(parse(0x00, 0x10, 8), Err(E::Pad));
        assert_eq!(parse(0x01, 0x00, 8), Ok(4));
        // No payload: the count has no meaning.
        assert_eq!(parse(0x11, 0x30, 8), Ok(0));
    }

    // clause: BTH-VERSION, OPCODE-RESERVED
    #[test]
    fn other_versions_and_opcodes_are_refused() {
        for bit in [0x01, 0x02, 0x04, 0x08] {
            assert_eq!(parse(0x04, bit, 4), Err(E::Version));
        }
        assert_eq!(parse(0x15, 0, 40), Err(E::Opcode));
        assert_eq!(parse(0x2c, 0, 40), Err(E::Opcode));
        assert_eq!(parse(0x44, 0, 40), Err(E::Opcode));
    }

    #[test]
    fn emit_refuses_wrong_slots_and_illegal_payloads() {
        let bth = Bth::new(crate::num::Qpn::new(1), crate::num::Psn::new(2));
        let first = Header { bth, kind: Kind::RcRequest(Request::SendFirst) };
        let mut slot = [0; 64];
        assert!(first.emit(4, &mut slot[..16]).is_some());
        assert!(first.emit(4, &mut slot[..17]).is_none());
        assert!(first.emit(4, &mut slot[..15]).is_none());
        assert!(first.emit(5, &mut slot[..20]).is_none());
        let request = Header { kind: Kind::RcRequest(Request::Read(crate::ext::Reth::default())), ..first };
        assert!(request.emit(0, &mut slot[..28]).is_some());
        assert!(request.emit(4, &mut slot[..32]).is_none());
        let last = Header { kind: Kind::RcRequest(Request::SendLast(SendTail::Plain)), ..first };
        assert!(last.emit(usize::MAX, &mut slot).is_none());
    }
}
