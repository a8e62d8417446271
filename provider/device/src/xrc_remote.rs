//! Requests of XRC targets of other processes for shared queues of this one.

use crate::xrcd;
use roxe_engine::engine::Engine;
use roxe_engine::xrc_messages::XrcMessage;
use roxe_net::forward::{Frame, XrcRequest, XrcRequestKind};
use roxe_net::slot::Slot;
use roxe_transport::qp::Outcome;
use roxe_transport::time::Instant;
use roxe_wire::{Gid, NetHeader, Packet, RKey};

/// Does what a target of another process asks for.
pub(crate) fn serve_xrc_request(engine: &Engine, request: &XrcRequest, body: &[u8], now: Instant) {
    let srq = xrcd::find_shared(engine.adapter().index(), request.file, request.srqn);
    let id = request.id;
    let (outcome, body) = match (srq, request.kind) {
        (None, XrcRequestKind::End) => return,
        (None, XrcRequestKind::Execute(_) | XrcRequestKind::Read) => (Some(Outcome::NO_QUEUE), None),
        (Some(srq), XrcRequestKind::End) => return srq.end_remote_target(id, now),
        (Some(srq), XrcRequestKind::Execute(mtu)) => {
            let Some((net, bytes)) = addresses(body) else { return engine.counters().malformed.add(1) };
            let Ok(packet) = Packet::parse(bytes) else { return engine.counters().malformed.add(1) };
            (srq.execute(id, mtu, (&net, &packet), now), None)
        }
        (Some(srq), XrcRequestKind::Read) => {
            let Some((rkey, len, va)) = range(body) else { return engine.counters().malformed.add(1) };
            match srq.read_for_other(rkey, va, len) {
                Some(bytes) => (Some(Outcome::Done(0)), Some(bytes)),
                None => (Some(Outcome::NO_QUEUE), None),
            }
        }
    };
    if let Some(outcome) = outcome {
        let (to, frame) = (Slot::of(id.target), Frame::Result(id, outcome));
        engine.post(XrcMessage { to, frame, body: body.unwrap_or_default() });
    }
}

/// Where a request came from and went to, and its packet.
fn addresses(body: &[u8]) -> Option<(NetHeader, &[u8])> {
    let (src, rest) = body.split_first_chunk()?;
    let (dst, bytes) = rest.split_first_chunk()?;
    Some((NetHeader { src: Gid(*src), dst: Gid(*dst), ..NetHeader::default() }, bytes))
}

/// What to read.
fn range(body: &[u8]) -> Option<(RKey, u32, u64)> {
    let (rkey, rest) = body.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let va = rest.first_chunk()?;
    Some((RKey(u32::from_ne_bytes(*rkey)), u32::from_ne_bytes(*len), u64::from_ne_bytes(*va)))
}

#[cfg(test)]
mod tests;
