//! Tests of the rule language and the injector.

mod calls;
mod judging;
mod language;
mod messages;
mod random;

use super::*;
use roxe_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Gid, Header, ImmDt, Kind, Msn, NakCode, Packet, Psn, Qkey, Qpn, RKey,
    Request, Response, Reth, SendTail, Syndrome, XrcEth, icrc,
};
use std::net::Ipv4Addr;
use std::time::Duration;

/// A local QP, its peer, and a direction.
#[derive(Clone, Copy)]
struct Stream {
    dir: Direction,
    qpn: u32,
    ordinal: u32,
    peer: Gid,
    at: Duration,
}

/// Returns a request of an unreliable connection.
fn uc(request: Request) -> Kind {
    Kind::UcRequest(request.try_into().expect("UC has this operation"))
}

fn peer(last: u8) -> Gid {
    Ipv4Addr::new(10, 77, 0, last).into()
}

fn tx() -> Stream {
    Stream { dir: Direction::Tx, qpn: 17, ordinal: 0, peer: peer(11), at: Duration::ZERO }
}

fn rx() -> Stream {
    Stream { dir: Direction::Rx, ..tx() }
}

fn rules(text: &str) -> Rules {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn injector(text: &str) -> Injector {
    Injector::new(&rules(text), 1)
}

impl Injector {
    /// Judges one packet.
    fn judge_one(&mut self, stream: Stream, psn: u32, kind: Kind, payload: &[u8]) -> Verdict {
        let header = Header { bth: Bth::new(Qpn::new(99), Psn::new(psn)), kind };
        let Stream { dir, qpn, ordinal, peer, at } = stream;
        self.judge(&PacketContext { dir, qpn: Qpn::new(qpn), ordinal, peer, at, packet: &Packet { header, payload } })
    }

    /// Judges a complete SEND; returns true if it is dropped.
    fn drops(&mut self, stream: Stream, psn: u32) -> bool {
        self.judge_one(stream, psn, SEND, b"data").drop
    }

    /// Returns the PSNs of the dropped ones of `count` complete SENDs.
    fn dropped(&mut self, stream: Stream, count: u32) -> Vec<u32> {
        (0..count).filter(|psn| self.drops(stream, *psn)).collect()
    }

    /// Returns packets matched and faults, by rule.
    fn totals(&self) -> Vec<(u64, u64)> {
        self.report().map(|report| (report.matched, report.applied)).collect()
    }
}

const SEND: Kind = Kind::RcRequest(Request::SendOnly(SendTail::Plain));
const CNP: Kind = Kind::Cnp;

fn aeth(syndrome: Syndrome) -> Aeth {
    Aeth { syndrome, msn: Msn::new(1) }
}

fn good() -> Aeth {
    aeth(Syndrome::ACK_UNLIMITED)
}

fn ack() -> Kind {
    Kind::RcResponse(Response::Ack(good()))
}

fn nak() -> Kind {
    Kind::RcResponse(Response::Ack(aeth(Syndrome::Nak(NakCode::PsnSequence))))
}

fn rnr_nak() -> Kind {
    Kind::RcResponse(Response::Ack(aeth(Syndrome::RnrNak { timer: 1 })))
}

fn reth(dma_len: u32) -> Reth {
    Reth { va: 4096, rkey: RKey(7), dma_len }
}

fn read(dma_len: u32) -> Kind {
    Kind::RcRequest(Request::Read(reth(dma_len)))
}

fn ud() -> Kind {
    Kind::Ud { deth: Deth { qkey: Qkey(1), src_qpn: Qpn::new(3) }, imm: None }
}
