//! Requests of XRC targets of other processes for shared queues of this one.

use crate::mr::note_use;
use crate::qp::MAX_FETCH;
use crate::srq::Srq;
use crate::xrcd;
use roxe_engine::engine::Engine;
use roxe_engine::xrc_messages::XrcMessage;
use roxe_memory::guard::own_cells;
use roxe_net::forward::{Frame, XrcRequest, XrcRequestId, XrcRequestKind};
use roxe_net::slot::Slot;
use roxe_transport::qp::Outcome;
use roxe_transport::time::Instant;
use roxe_transport::wr::Access;
use roxe_wire::{Gid, NetHeader, Packet, RKey};

/// Does what a target of another process asks for.
pub(crate) fn serve_xrc_request(engine: &Engine, request: &XrcRequest, body: &[u8], now: Instant) {
    let srq = xrcd::find_shared(engine.adapter().index(), request.file, request.srqn);
    let Some((srq, owner)) = srq.as_ref().and_then(|srq| Some((srq, srq.xrc_owner()?))) else {
        if request.kind != XrcRequestKind::End {
            answer(engine, request.id, Outcome::NO_QUEUE, vec![]);
        }
        return;
    };
    match request.kind {
        XrcRequestKind::End => owner.end_remote_target(request.id, now),
        XrcRequestKind::Execute(mtu) => {
            let Some((net, bytes)) = addresses(body) else { return engine.counters().malformed.add(1) };
            let Ok(packet) = Packet::parse(bytes) else { return engine.counters().malformed.add(1) };
            if let Some(outcome) = owner.execute(request.id, mtu, (&net, &packet), now) {
                answer(engine, request.id, outcome, vec![]);
            }
        }
        XrcRequestKind::Read => {
            let Some((rkey, len, va)) = range(body) else { return engine.counters().malformed.add(1) };
            match read(srq, rkey, va, len) {
                Some(bytes) => answer(engine, request.id, Outcome::Done(0), bytes),
                None => answer(engine, request.id, Outcome::NO_QUEUE, vec![]),
            }
        }
    }
}

fn answer(engine: &Engine, id: XrcRequestId, outcome: Outcome, body: Vec<u8>) {
    engine.post(XrcMessage { to: Slot::of(id.target), frame: Frame::Result(id, outcome), body });
}

/// Reads memory that the queue gives peers access to: `len` bytes, of which more than a piece is
/// never asked for.
fn read(srq: &Srq, rkey: RKey, va: u64, len: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len.min(MAX_FETCH) as usize];
    let memory = srq.pd().context().memory();
    note_use(memory, rkey, Access::REMOTE_READ);
    memory.hold().read_remote(srq.pd().id(), rkey, va, own_cells(&mut bytes)).ok()?;
    Some(bytes)
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
