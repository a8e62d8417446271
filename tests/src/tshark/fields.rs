//! Compares the header fields of a capture as tshark and as roxe parse them.

use roxe_wire::capture::{Frame, frames, ip_packet};
use roxe_wire::{
    Aeth, AtomicEth, Deth, ImmDt, Kind, NetHeader, Packet, Request, Response, Reth, SendTail, UcRequest, icrc,
};
use std::fs;
use std::path::Path;

/// Returns the value of a field; `None` if the packet has no such field.
type ReadField = fn(&Packet<'_>) -> Option<u64>;

/// The compared fields, by tshark's names.
const FIELDS: [(&str, ReadField); 19] = [
    ("infiniband.bth.opcode", |packet| Some(packet.header.opcode().to_u8().into())),
    ("infiniband.bth.se", |packet| Some(packet.header.bth.solicited.into())),
    ("infiniband.bth.m", |packet| Some(packet.header.bth.mig_req.into())),
    ("infiniband.bth.padcnt", |packet| Some(packet.payload.len().wrapping_neg() as u64 % 4)),
    ("infiniband.bth.p_key", |packet| Some(packet.header.bth.pkey.0.into())),
    ("infiniband.bth.destqp", |packet| Some(packet.header.bth.dest_qpn.get().into())),
    ("infiniband.bth.a", |packet| Some(packet.header.bth.ack_req.into())),
    ("infiniband.bth.psn", |packet| Some(packet.header.bth.psn.get().into())),
    ("infiniband.deth.q_key", |packet| deth(packet).map(|deth| deth.qkey.0.into())),
    ("infiniband.deth.srcqp", |packet| deth(packet).map(|deth| deth.src_qpn.get().into())),
    ("infiniband.reth.va", |packet| {
        reth(packet).map(|reth| reth.va).or_else(|| atomic(packet).map(|atomic| atomic.va))
    }),
    ("infiniband.reth.r_key", |packet| {
        let rkey = reth(packet).map(|reth| reth.rkey).or_else(|| atomic(packet).map(|atomic| atomic.rkey));
        rkey.map(|rkey| rkey.0.into())
    }),
    ("infiniband.reth.dmalen", |packet| reth(packet).map(|reth| reth.dma_len.into())),
    (IMMEDIATE, |packet| imm(packet).map(|imm| u32::from_be_bytes(imm.0).into())),
    ("infiniband.aeth.syndrome", |packet| aeth(packet).map(|aeth| aeth.syndrome.to_u8().into())),
    ("infiniband.aeth.msn", |packet| aeth(packet).map(|aeth| aeth.msn.get().into())),
    ("infiniband.atomiceth.swapdt", |packet| atomic(packet).map(|atomic| atomic.swap_or_add)),
    ("infiniband.atomiceth.cmpdt", |packet| atomic(packet).map(|atomic| atomic.compare)),
    ("infiniband.atomicacketh.origremdt", |packet| match response(packet)? {
        Response::AtomicAck(_, original) => Some(original.0),
        _ => None,
    }),
];

/// tshark prints its bytes as hexadecimal digits without a prefix.
const IMMEDIATE: &str = "infiniband.immdt";
/// The last 4 bytes of a packet. tshark does not dissect the ICRC of a CNP.
const ICRC: &str = "infiniband.invariant.crc";

/// Compares all RoCEv2 packets of `file` with a correct ICRC, and returns their number.
///
/// # Errors
/// The first field that differs, or why the capture cannot be read.
pub fn compare(file: &Path) -> Result<usize, String> {
    let bytes = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).chain([ICRC]).collect();
    let theirs = super::fields(file, &names)?;
    let ours: Vec<_> = frames(&bytes).map_err(|e| e.to_string())?.collect();
    if ours.len() != theirs.len() {
        return Err(format!("{}: {} frames for roxe, {} for tshark", file.display(), ours.len(), theirs.len()));
    }
    let mut compared = 0;
    for (frame, values) in ours.into_iter().zip(&theirs) {
        let frame = frame.map_err(|e| e.to_string())?;
        if let Some(payload) = whole_packet(&frame) {
            compare_packet(payload, values).map_err(|why| format!("{}: {why}", file.display()))?;
            compared += 1;
        }
    }
    Ok(compared)
}

fn whole_packet<'a>(frame: &Frame<'a>) -> Option<&'a [u8]> {
    let (net, payload) = NetHeader::parse_ip(ip_packet(frame.link, frame.data)?).ok()?;
    icrc::verify(&net, payload).then_some(payload)
}

fn compare_packet(bytes: &[u8], theirs: &[String]) -> Result<(), String> {
    let packet = Packet::parse(bytes).map_err(|e| e.to_string())?;
    let icrc = bytes.last_chunk().filter(|_| packet.header.kind != Kind::Cnp);
    let icrc = icrc.map(|icrc| u64::from(u32::from_be_bytes(*icrc)));
    let ours = FIELDS.iter().map(|(name, read)| (*name, read(&packet))).chain([(ICRC, icrc)]);
    for ((name, ours), theirs) in ours.zip(theirs) {
        if number(name, theirs) != ours {
            return Err(format!("{packet}: {name} is {ours:x?} for roxe and {theirs:?} for tshark"));
        }
    }
    Ok(())
}

/// Parses a number that tshark prints in decimal or hexadecimal; `None` if the text is empty.
fn number(name: &str, text: &str) -> Option<u64> {
    let digits = if name == IMMEDIATE { Some(text) } else { text.strip_prefix("0x") };
    digits.map_or_else(|| text.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok())
}

fn request(packet: &Packet<'_>) -> Option<Request> {
    match packet.header.kind {
        Kind::RcRequest(request) | Kind::XrcRequest(_, request) => Some(request),
        Kind::UcRequest(request) => Some(UcRequest::into(request)),
        _ => None,
    }
}

fn response(packet: &Packet<'_>) -> Option<Response> {
    match packet.header.kind {
        Kind::RcResponse(response) | Kind::XrcResponse(response) => Some(response),
        _ => None,
    }
}

fn deth(packet: &Packet<'_>) -> Option<Deth> {
    if let Kind::Ud { deth, .. } = packet.header.kind { Some(deth) } else { None }
}

fn reth(packet: &Packet<'_>) -> Option<Reth> {
    match request(packet)? {
        Request::WriteFirst(reth) | Request::WriteOnly(reth, _) | Request::Read(reth) => Some(reth),
        _ => None,
    }
}

fn atomic(packet: &Packet<'_>) -> Option<AtomicEth> {
    match request(packet)? {
        Request::CompareSwap(atomic) | Request::FetchAdd(atomic) => Some(atomic),
        _ => None,
    }
}

fn aeth(packet: &Packet<'_>) -> Option<Aeth> {
    match response(packet)? {
        Response::ReadFirst(aeth) | Response::ReadLast(aeth) | Response::ReadOnly(aeth) => Some(aeth),
        Response::Ack(aeth) | Response::AtomicAck(aeth, _) => Some(aeth),
        Response::ReadMiddle => None,
    }
}

fn imm(packet: &Packet<'_>) -> Option<ImmDt> {
    if let Kind::Ud { imm, .. } = packet.header.kind {
        return imm;
    }
    match request(packet)? {
        Request::SendLast(SendTail::Imm(imm)) | Request::SendOnly(SendTail::Imm(imm)) => Some(imm),
        Request::WriteLast(imm) | Request::WriteOnly(_, imm) => imm,
        _ => None,
    }
}
