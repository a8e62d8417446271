//! Describes a packet in a sentence: its operation, and the verdict on it.

use crate::analysis::Finding;
use crate::reader::Captured;
use roxe_wire::cm::Mad;
use roxe_wire::{Kind, Packet, Request, Response, SendTail, Syndrome};

/// Describes a packet and its verdict.
pub fn describe(captured: &Captured<'_>, finding: &Finding) -> String {
    let Some(packet) = captured.packet() else {
        return finding.event.describe(roxe_wire::Psn::default()).unwrap_or_default();
    };
    let verdict = finding.event.describe(packet.header.bth.psn);
    let operation = if captured.is_truncated() && Mad::of_packet(&packet).is_some() {
        Some("connection manager: not captured".to_owned())
    } else {
        describe_operation(&packet, finding)
    };
    let mut text = match (verdict, operation) {
        (Some(verdict), Some(operation)) => format!("{verdict}; {operation}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => String::new(),
    };
    let marks = [
        (captured.is_truncated(), "; truncated: not captured to its end"),
        (captured.is_lost(), "; a fault rule dropped it"),
        (captured.net.is_marked(), "; a switch marked it (ECN)"),
        (packet.header.bth.solicited, "; solicited: wakes a waiting receiver"),
    ];
    marks.iter().filter(|(is_set, _)| *is_set).for_each(|(_, mark)| text.push_str(mark));
    text
}

/// Describes the operation of a packet; `None` if the verdict is enough.
fn describe_operation(packet: &Packet<'_>, finding: &Finding) -> Option<String> {
    let len = packet.payload.len();
    Some(match packet.header.kind {
        Kind::RcRequest(request) => describe_request(request, len),
        Kind::XrcRequest(xrc, request) => {
            format!("{}, for the shared receive queue {:#x}", describe_request(request, len), xrc.0)
        }
        Kind::UcRequest(request) => describe_request(request.into(), len),
        Kind::RcResponse(response) | Kind::XrcResponse(response) => {
            return describe_response(response, packet, finding);
        }
        Kind::Ud { deth, imm } => match Mad::of_packet(packet) {
            Some(Ok(mad)) => format!("connection manager: {}", mad.message),
            Some(Err(error)) => format!("datagram to queue pair 1: {error}"),
            None => format!("datagram of {} from queue pair {}{}", bytes(len), deth.src_qpn, with_imm(imm.is_some())),
        },
        Kind::Cnp => return None,
    })
}

fn describe_request(request: Request, len: usize) -> String {
    let bytes = bytes(len);
    match request {
        Request::SendFirst => format!("a SEND begins: {bytes}, more to come"),
        Request::SendMiddle => format!("a SEND goes on: {bytes}"),
        Request::SendLast(tail) => format!("a SEND ends: {bytes}{}", describe_tail(tail)),
        Request::SendOnly(tail) => format!("a SEND of {bytes}{}", describe_tail(tail)),
        Request::WriteFirst(reth) => format!("an RDMA WRITE of {} to {:#x} begins: {bytes}", reth.dma_len, reth.va),
        Request::WriteMiddle => format!("an RDMA WRITE goes on: {bytes}"),
        Request::WriteLast(imm) => format!("an RDMA WRITE ends: {bytes}{}", with_imm(imm.is_some())),
        Request::WriteOnly(reth, imm) => {
            format!("an RDMA WRITE of {bytes} to {:#x}{}", reth.va, with_imm(imm.is_some()))
        }
        Request::Read(reth) => format!("an RDMA READ requests {} bytes at {:#x}", reth.dma_len, reth.va),
        Request::CompareSwap(at) => {
            format!("an atomic at {:#x}: becomes {:#x} if it is {:#x}", at.va, at.swap_or_add, at.compare)
        }
        Request::FetchAdd(at) => format!("an atomic at {:#x}: adds {}", at.va, at.swap_or_add),
        Request::Flush(_, reth) => format!("a FLUSH of {} bytes at {:#x}", reth.dma_len, reth.va),
        Request::AtomicWrite(reth) => format!("an atomic WRITE of {bytes} to {:#x}", reth.va),
    }
}

fn describe_tail(tail: SendTail) -> String {
    match tail {
        SendTail::Plain => String::new(),
        SendTail::Imm(_) => with_imm(true).to_owned(),
        SendTail::Invalidate(key) => format!(", and invalidates the key {:#x}", key.0.0),
    }
}

const fn with_imm(has: bool) -> &'static str {
    if has { ", with immediate data" } else { "" }
}

/// Describes a response; `None` for NAKs, which the verdict explains.
fn describe_response(response: Response, packet: &Packet<'_>, finding: &Finding) -> Option<String> {
    let (psn, bytes) = (packet.header.bth.psn, bytes(packet.payload.len()));
    let text = match response {
        Response::Ack(aeth) => match aeth.syndrome {
            Syndrome::Ack { .. } => format!("acknowledges everything up to PSN {psn}"),
            Syndrome::Reserved(byte) => format!("a reserved syndrome ({byte:#04x})"),
            Syndrome::RnrNak { .. } | Syndrome::Nak(_) => return None,
        },
        Response::ReadFirst(_) => format!("the data of a READ begins: {bytes}"),
        Response::ReadMiddle => format!("the data of a READ goes on: {bytes}"),
        Response::ReadLast(_) => format!("the data of a READ ends: {bytes}"),
        Response::ReadOnly(_) => format!("the data of a READ: {bytes}"),
        Response::AtomicAck(_, original) => format!("the value before the atomic: {:#x}", original.0),
    };
    Some(match finding.completes {
        0 => text,
        1 => format!("{text}, which completes a message"),
        count => format!("{text}, which completes {count} messages"),
    })
}

fn bytes(len: usize) -> String {
    if len == 1 { "1 byte".to_owned() } else { format!("{len} bytes") }
}
