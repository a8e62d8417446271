//! Rules for single packets: integrity, reserved bits, addresses, fields that depend on the opcode.

use super::charge::{Card, Charges, Role, Rule};
use super::record::PacketRecord;
use crate::reader::{Captured, Integrity};
use roxe_wire::net::is_checksum_correct;
use roxe_wire::{Gid, Kind, NakCode, NetHeader, ParseError, Qkey, Qpn, Request, Response, Syndrome, icrc};
use std::collections::BTreeMap;

/// Packets of one sender with a wrong ICRC, and the number of packets with a correct one.
#[derive(Debug, Default)]
pub(super) struct Integrities(BTreeMap<[u8; 16], (Vec<usize>, usize)>);

impl Integrities {
    /// Counts a packet that was captured whole.
    pub(super) fn add(&mut self, index: usize, captured: &Captured<'_>) {
        let (bad, good) = self.0.entry(captured.net.src.0).or_default();
        match captured.integrity {
            Integrity::Good => *good += 1,
            Integrity::WrongIcrc => bad.push(index),
            Integrity::Malformed(_) | Integrity::Truncated(..) => {}
        }
    }

    /// Charges each sender of packets with a wrong ICRC.
    // clause: ICRC-SUM
    pub(super) fn charge(self, charges: &mut Charges) {
        for (source, (bad, good)) in self.0.into_iter().filter(|(_, (bad, _))| !bad.is_empty()) {
            let card = Card { address: Gid(source), qpn: None };
            let (count, all) = (bad.len(), bad.len() + good);
            let text = match good {
                0 if count > 2 => format!("all of its {count} packets have a wrong ICRC"),
                _ => format!("{count} of its {all} packets have a wrong ICRC: sent with it or damaged on the way"),
            };
            let charge = charges.add(Rule::Icrc, card, Role::Sender, 0, text);
            (charge.packets, charge.count, charge.or_network) = (bad, count, good > 0 || count <= 2);
        }
    }
}

/// Judges bytes that are not a packet.
pub(super) fn malformed(index: usize, captured: &Captured<'_>, error: ParseError, charges: &mut Charges) {
    let rule = match error {
        // clause: BTH-VERSION
        ParseError::Version => Rule::Version,
        // clause: OPCODE-RESERVED
        ParseError::Opcode => Rule::Opcode,
        ParseError::Pad => Rule::Pad,
        ParseError::PayloadLength => Rule::Payload,
        ParseError::NotIp | ParseError::NotRoce | ParseError::Truncated => Rule::Headers,
    };
    let card = Card { address: captured.net.src, qpn: None };
    let is_sent = icrc::verify(&captured.net, captured.bytes);
    let code = captured.bytes.first().copied().unwrap_or_default();
    let text = match rule {
        Rule::Opcode => format!("opcode {code:#04x} is reserved or belongs to another transport"),
        _ => error.to_string(),
    };
    let charge = charges.add(rule, card, Role::Sender, index, text);
    // Opcodes of reliable datagrams and of vendors are not faults, because this crate does not know
    // those services.
    let is_foreign = rule == Rule::Opcode && matches!(code >> 5, 0b010 | 0b110 | 0b111);
    charge.advice_if(is_foreign).or_network = !is_foreign && !is_sent;
}

/// Judges the IP header as captured.
pub(super) fn ip(index: usize, captured: &Captured<'_>, charges: &mut Charges) {
    let card = Card { address: captured.net.src, qpn: None };
    let Some(header) = captured.ip.first_chunk::<20>().filter(|header| header[0] == 0x45) else { return };
    // clause: IP-DF
    if header[6] & 0x40 == 0 {
        let text = "an IPv4 packet without the DF flag, which the ICRC covers";
        charges.add(Rule::IpDf, card, Role::Sender, index, text);
    }
    let is_filled_in_later = header[10..12] == [0, 0];
    if !is_checksum_correct(header) && !is_filled_in_later {
        let text = "the checksum of the IPv4 header is wrong";
        charges.add(Rule::IpChecksum, card, Role::Sender, index, text).or_network = true;
    }
}

/// Judges the fields of a packet that do not depend on others.
pub(super) fn fields(current: &PacketRecord, captured: &Captured<'_>, charges: &mut Charges) {
    let card = Card { address: current.net.src, qpn: None };
    let mut charge = |rule, text: &str| _ = charges.add(rule, card, Role::Sender, current.index, text);
    let (bth, bytes) = (&current.header.bth, captured.bytes);
    let at = |place: usize| bytes.get(place).copied().unwrap_or_default();
    let is_datagram = matches!(current.header.kind, Kind::Ud { .. });
    let is_cnp = matches!(current.header.kind, Kind::Cnp);
    // clause: BTH-RESERVED
    if at(4) & 0x3f != 0 || at(8) & 0x7f != 0 {
        charge(Rule::Reserved, "reserved bits of the BTH are set");
    }
    if bth.becn && !is_cnp {
        charge(Rule::Reserved, "BECN is set in a packet that is not a CNP");
    }
    if bth.fecn {
        charge(Rule::Reserved, "FECN is set, but RoCEv2 marks congestion with ECN in the IP header");
    }
    let headers = match current.header.kind {
        Kind::Ud { .. } if at(16) != 0 => Some("the reserved byte of the DETH is set"),
        Kind::XrcRequest(..) if at(12) != 0 => Some("the reserved byte of the XRCETH is set"),
        _ => None,
    };
    if let Some(text) = headers {
        charge(Rule::Reserved, text);
    }
    if bth.pkey.0 & 0x7fff == 0 {
        charge(Rule::Pkey, "the P_Key is invalid");
    }
    address(current, is_datagram, &mut charge);
    // clause: BTH-SOLICITED, ACK-FIELDS
    let operation = current.header.opcode().operation();
    if operation.is_response() && (bth.solicited || bth.ack_req) {
        charge(Rule::AnswerBits, "a response has the SE or AckReq bit set");
    } else if bth.solicited && !may_be_solicited(&current.header.kind) {
        charge(Rule::Solicited, "SE is set in a packet that does not end a SEND or a WRITE with immediate data");
    }
    if let Some(aeth) = response(&current.header.kind).and_then(Response::aeth) {
        // clause: AETH-SYNDROME
        let is_reserved =
            matches!(aeth.syndrome, Syndrome::Reserved(_) | Syndrome::Nak(NakCode::Reserved(_) | NakCode::InvalidRd));
        if is_reserved {
            charge(Rule::Syndrome, &format!("the syndrome {:#04x} is reserved", aeth.syndrome.to_u8()));
        }
    }
    // clause: CNP-FORMAT, CNP-SENT
    if is_cnp && (!bth.becn || (12..28).any(|place| at(place) != 0)) {
        charge(Rule::CnpFields, "a CNP without BECN, or with reserved bytes that are not 0");
    }
    if is_cnp && bth.psn.get() != 0 {
        charges.add(Rule::CnpFields, card, Role::Sender, current.index, "a CNP with a PSN other than 0").advice();
    }
    if let Some(Request::FetchAdd(atomic)) = current.header.kind.request()
        && atomic.compare != 0
    {
        let text = "the compare operand of a FETCH ADD is not 0";
        charges.add(Rule::AtomicOperands, card, Role::Requester, current.index, text).advice();
    }
    // clause: BTH-PAD
    if !captured.is_truncated() && pad(current, bytes).iter().any(|byte| *byte != 0) {
        charges.add(Rule::Pad, card, Role::Sender, current.index, "the padding is not 0").advice();
    }
}

fn address(current: &PacketRecord, is_datagram: bool, charge: &mut impl FnMut(Rule, &str)) {
    let (NetHeader { src, dst, .. }, qpn) = (current.net, current.header.bth.dest_qpn);
    // clause: AV-VALID
    if src.is_multicast() || src.to_ip().is_unspecified() || dst.to_ip().is_unspecified() {
        charge(Rule::Address, "the source or the destination is not a unicast address");
    }
    if dst.is_multicast() && !is_datagram {
        charge(Rule::Address, "a packet of a connection is sent to a multicast group");
    }
    // clause: UD-MULTICAST
    if is_datagram && dst.is_multicast() != (qpn == Qpn::MULTICAST) {
        charge(Rule::Multicast, "only one of destination address and queue pair is multicast");
    }
    // clause: CM-GSI
    match (qpn, current.header.kind) {
        (Qpn::GSI, Kind::Ud { deth, .. }) if deth.qkey != Qkey::GSI => {
            charge(Rule::QueuePair, "a datagram to queue pair 1 has a Q_Key other than 0x80010000");
        }
        (Qpn::GSI, Kind::Ud { .. }) => {}
        (Qpn::GSI, _) => charge(Rule::QueuePair, "a packet of a connection is sent to queue pair 1"),
        (qpn, _) if qpn.get() == 0 => charge(Rule::QueuePair, "a packet is sent to queue pair 0"),
        (_, Kind::Ud { deth, .. }) if deth.src_qpn.get() == 0 => {
            charge(Rule::QueuePair, "a datagram is sent from queue pair 0");
        }
        _ => {}
    }
}

fn may_be_solicited(kind: &Kind) -> bool {
    use Request::{SendLast, SendOnly, WriteLast, WriteOnly};
    match kind {
        Kind::Ud { .. } => true,
        _ => matches!(kind.request(), Some(SendLast(_) | SendOnly(_) | WriteLast(Some(_)) | WriteOnly(_, Some(_)))),
    }
}

pub(super) const fn response(kind: &Kind) -> Option<&Response> {
    match kind {
        Kind::RcResponse(response) | Kind::XrcResponse(response) => Some(response),
        _ => None,
    }
}

/// Returns the pad bytes of a whole packet.
fn pad<'f>(current: &PacketRecord, bytes: &'f [u8]) -> &'f [u8] {
    let end = bytes.len().saturating_sub(icrc::LEN);
    bytes.get(current.header.len().saturating_add(current.len as usize)..end).unwrap_or_default()
}
