//! All header fields of a packet, by header, with their values as text.

use crate::reader::Captured;
use roxe_transport::time::rnr_wait;
use roxe_wire::cm::Mad;
use roxe_wire::{Aeth, AtomicEth, ImmDt, Kind, Packet, Request, Response, Reth, SendTail, Syndrome};

/// A header with its fields.
#[derive(Clone, Debug)]
pub struct Section {
    /// Name in the specification.
    pub name: &'static str,
    /// Names and values of the fields, in their order.
    pub fields: Vec<(&'static str, String)>,
}

fn section<const N: usize>(name: &'static str, fields: [(&'static str, String); N]) -> Section {
    Section { name, fields: fields.into() }
}

/// Returns the headers of a packet, outermost first.
pub fn sections(captured: &Captured<'_>) -> Vec<Section> {
    let net = &captured.net;
    let (name, class, hops, last) = if net.is_ipv4() {
        ("IPv4", "TOS", "TTL", ("identification", format!("{:#06x}", net.ident)))
    } else {
        ("IPv6", "traffic class", "hop limit", ("flow label", format!("{:#07x}", net.flow_label)))
    };
    let ends = [("source", net.src.to_ip().to_string()), ("destination", net.dst.to_ip().to_string())];
    let fields = ends.into_iter().chain([(class, tos(net.traffic_class)), (hops, net.hop_limit.to_string()), last]);
    let mut sections = vec![Section { name, fields: fields.collect() }];
    let ports = [("source port", net.src_port.to_string()), ("payload", captured.bytes.len().to_string())];
    sections.push(section("UDP", ports));
    if let Some(packet) = captured.packet() {
        sections.push(bth(&packet));
        add_kind(&packet, &mut sections);
        sections.push(section("Payload", [("bytes", packet.payload.len().to_string())]));
    }
    let icrc = captured
        .bytes
        .last_chunk::<4>()
        .map_or_else(String::new, |icrc| format!("{:#010x}", u32::from_le_bytes(*icrc)));
    sections.push(section("ICRC", [("value", icrc), ("verdict", captured.integrity.to_string())]));
    sections
}

fn tos(class: u8) -> String {
    format!("{class:#04x} (DSCP {}, ECN {})", class >> 2, class & roxe_wire::ECN)
}

fn bth(packet: &Packet<'_>) -> Section {
    let (opcode, bth) = (packet.header.opcode(), &packet.header.bth);
    let bit = |is: bool| u8::from(is).to_string();
    section(
        "BTH",
        [
            ("opcode", format!("{:#04x} {opcode}", opcode.to_u8())),
            ("destination QP", bth.dest_qpn.to_string()),
            ("PSN", format!("{} ({:#08x})", bth.psn, bth.psn.get())),
            ("AckReq", bit(bth.ack_req)),
            ("SE", bit(bth.solicited)),
            ("MigReq", bit(bth.mig_req)),
            ("pad", (packet.payload.len().wrapping_neg() & 3).to_string()),
            ("P_Key", format!("{:#06x}", bth.pkey.0)),
            ("FECN", bit(bth.fecn)),
            ("BECN", bit(bth.becn)),
        ],
    )
}

fn add_kind(packet: &Packet<'_>, to: &mut Vec<Section>) {
    match packet.header.kind {
        Kind::RcRequest(request) => add_request(request, to),
        Kind::UcRequest(request) => add_request(request.into(), to),
        Kind::XrcRequest(xrc, request) => {
            to.push(section("XRCETH", [("shared receive queue", format!("{:#x}", xrc.0))]));
            add_request(request, to);
        }
        Kind::RcResponse(response) | Kind::XrcResponse(response) => {
            to.extend(response.aeth().copied().map(aeth_section));
            if let Response::AtomicAck(_, original) = response {
                to.push(section("AtomicAckETH", [("original value", format!("{:#x}", original.0))]));
            }
        }
        Kind::Ud { deth, imm } => {
            let fields = [("Q_Key", format!("{:#x}", deth.qkey.0)), ("source QP", deth.src_qpn.to_string())];
            to.push(section("DETH", fields));
            to.extend(imm.map(imm_section));
            if let Some(mad) = Mad::of_packet(packet) {
                let text = mad.map_or_else(|error| error.to_string(), |mad| mad.message.to_string());
                to.push(section("MAD", [("message", text)]));
            }
        }
        Kind::Cnp => {}
    }
}

fn add_request(request: Request, to: &mut Vec<Section>) {
    match request {
        Request::SendFirst | Request::SendMiddle | Request::WriteMiddle => {}
        Request::SendLast(tail) | Request::SendOnly(tail) => match tail {
            SendTail::Plain => {}
            SendTail::Imm(imm) => to.push(imm_section(imm)),
            SendTail::Invalidate(key) => to.push(section("IETH", [("R_Key", format!("{:#x}", key.0.0))])),
        },
        Request::WriteFirst(reth) | Request::Read(reth) | Request::AtomicWrite(reth) => to.push(reth_section(reth)),
        Request::WriteLast(imm) => to.extend(imm.map(imm_section)),
        Request::WriteOnly(reth, imm) => {
            to.push(reth_section(reth));
            to.extend(imm.map(imm_section));
        }
        Request::CompareSwap(atomic) | Request::FetchAdd(atomic) => to.push(atomic_section(&atomic)),
        Request::Flush(feth, reth) => {
            to.push(section("FETH", [("selectivity, placement", feth.to_string())]));
            to.push(reth_section(reth));
        }
    }
}

fn reth_section(reth: Reth) -> Section {
    section(
        "RETH",
        [
            ("virtual address", format!("{:#x}", reth.va)),
            ("R_Key", format!("{:#x}", reth.rkey.0)),
            ("DMA length", reth.dma_len.to_string()),
        ],
    )
}

fn atomic_section(atomic: &AtomicEth) -> Section {
    section(
        "AtomicETH",
        [
            ("virtual address", format!("{:#x}", atomic.va)),
            ("R_Key", format!("{:#x}", atomic.rkey.0)),
            ("swap or add", format!("{:#x}", atomic.swap_or_add)),
            ("compare", format!("{:#x}", atomic.compare)),
        ],
    )
}

fn imm_section(imm: ImmDt) -> Section {
    section("ImmDt", [("immediate data", format!("{:#010x}", u32::from_be_bytes(imm.0)))])
}

fn aeth_section(aeth: Aeth) -> Section {
    let meaning = match aeth.syndrome {
        Syndrome::Ack { credits: 0x1f } => "ACK, unlimited credits".to_owned(),
        Syndrome::Ack { credits } => format!("ACK, credit code {credits}"),
        Syndrome::RnrNak { timer } => format!("RNR NAK, timer {timer} ({:?})", rnr_wait(timer)),
        Syndrome::Nak(code) => format!("NAK, {code}"),
        Syndrome::Reserved(_) => "reserved".to_owned(),
    };
    section(
        "AETH",
        [("syndrome", format!("{:#04x} {meaning}", aeth.syndrome.to_u8())), ("MSN", aeth.msn.get().to_string())],
    )
}
