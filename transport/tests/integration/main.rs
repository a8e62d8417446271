//! Scripts for the queue pair: its inputs, its exact outputs, both sides of every limit.
//!
//! This file holds the helpers of the scripts, which run in the world of `roxe-sim`. One file per
//! subject: `reliable` (RC without losses and errors), `nonposted` (ATOMIC WRITE, FLUSH), `loss`,
//! `link_full` (a link that accepts no packets), `rnr`, `refusals` (NAKs and their statuses),
//! `ranges` (of remote keys), `responder`, `requester` and `completer` (one side against forged
//! packets), `outgoing` (packets of each operation), `states`, `unreliable` (UC), `datagram` (UD),
//! `raw` (frames), `xrc`, `tags` (tag matching), `local` (operations that send nothing),
//! `migration` (of paths), `congestion`, `pacing` (rates of programs and paths), `cost` (of loss),
//! `faults` (rules and notes), `shrink` (of failing runs), `simulation` (random work), and
//! `clauses` for those clauses that no other file covers.

mod clauses;
mod completer;
mod congestion;
mod cost;
mod datagram;
mod faults;
mod link_full;
mod local;
mod loss;
mod migration;
mod nonposted;
mod outgoing;
mod pacing;
mod ranges;
mod raw;
mod refusals;
mod reliable;
mod requester;
mod responder;
mod rnr;
mod shrink;
mod simulation;
mod states;
mod tags;
mod unreliable;
mod xrc;

use core::time::Duration;
use roxe_sim::pair::Pair;
use roxe_sim::setup::{QKEY, Setup, av, qpn};
use roxe_sim::wire::{LOST, Peer};
use roxe_sim::{Mr, Rng};
use roxe_transport::fault::Rules;
use roxe_transport::qp::PostError;
use roxe_transport::qp::{AttrMask, ModifyError, QpAttr, QpState};
use roxe_transport::wr::{Access, Cqe, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, UdDest, WcStatus};
use roxe_wire::{Bth, Header, ImmDt, Kind, Packet, Pkey, Psn, Request, Response, SendTail};

use Peer::{A, B};

/// Returns a request of an unreliable connection.
fn uc(request: Request) -> Kind {
    Kind::UcRequest(request.try_into().expect("UC has this operation"))
}

/// Returns every right.
fn all_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// Registers `len` random bytes of `side`, with every right.
fn filled(pair: &mut Pair, side: Peer, len: u32) -> Mr {
    let memory = &mut pair.end(side).host.memory;
    let mr = memory.register(len, all_access());
    Rng::new(u64::from(mr.key) << 1 | side as u64).fill(memory.bytes_mut(mr));
    mr
}

/// Registers `len` zero bytes of `side`, with every right.
fn blank(pair: &mut Pair, side: Peer, len: u32) -> Mr {
    pair.end(side).host.memory.register(len, all_access())
}

/// Returns a copy of the bytes of `mr`.
fn bytes(pair: &Pair, side: Peer, mr: Mr) -> Vec<u8> {
    pair.ends[side.index()].host.memory.bytes(mr).to_vec()
}

/// Posts a signaled request.
fn post(pair: &mut Pair, side: Peer, wr_id: u64, op: SendOp, sges: &[Sge]) {
    assert_eq!(try_post(pair, side, wr_id, op, SendFlags::SIGNALED, sges), Ok(()));
}

/// Posts a request with these flags.
fn post_with(pair: &mut Pair, side: Peer, wr_id: u64, op: SendOp, flags: SendFlags, sges: &[Sge]) {
    assert_eq!(try_post(pair, side, wr_id, op, flags, sges), Ok(()));
}

/// Posts a request and returns the result.
fn try_post(
    pair: &mut Pair,
    side: Peer,
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    sges: &[Sge],
) -> Result<(), PostError> {
    pair.post_send(side, &SendRequest { wr_id, op, flags, data: SendData::Sges(sges), ud: Some(destination(side)) })
}

/// Returns the peer of `side` as a datagram destination.
fn destination(side: Peer) -> UdDest {
    UdDest { av: av(side), qpn: qpn(side.other()), qkey: QKEY }
}

/// Posts a receive.
fn recv(pair: &mut Pair, side: Peer, wr_id: u64, sges: &[Sge]) {
    assert_eq!(pair.post_recv(side, &RecvRequest { wr_id, sges }), Ok(()));
}

/// Takes all send completions of `side` as (wr_id, status).
fn sends(pair: &mut Pair, side: Peer) -> Vec<(u64, WcStatus)> {
    core::iter::from_fn(|| pair.send_done(side)).map(|cqe| (cqe.wr_id, cqe.status)).collect()
}

/// Takes all receive completions of `side` as (wr_id, status).
fn recvs(pair: &mut Pair, side: Peer) -> Vec<(u64, WcStatus)> {
    core::iter::from_fn(|| pair.recv_done(side)).map(|cqe| (cqe.wr_id, cqe.status)).collect()
}

/// Returns the completions `ids`, all with `status`.
fn statuses(ids: core::ops::RangeInclusive<u64>, status: WcStatus) -> Vec<(u64, WcStatus)> {
    ids.map(|id| (id, status)).collect()
}

/// Takes the one completion of a receive.
fn one_recv(pair: &mut Pair, side: Peer) -> Cqe {
    let cqe = pair.recv_done(side).expect("poll the receive completion");
    assert_eq!(pair.recv_done(side), None, "only one receive completed");
    cqe
}

/// Returns an RDMA WRITE to the start of `mr`.
fn write_to(mr: Mr) -> SendOp {
    SendOp::Write { remote_addr: mr.addr, rkey: mr.rkey() }
}

/// Returns an RDMA READ from the start of `mr`.
fn read_from(mr: Mr) -> SendOp {
    SendOp::Read { remote_addr: mr.addr, rkey: mr.rkey() }
}

/// Returns a FETCH_ADD on the first word of `mr`.
fn add_to(mr: Mr, add: u64) -> SendOp {
    SendOp::FetchAdd { remote_addr: mr.addr, rkey: mr.rkey(), add }
}

/// Returns immediate data that holds `value` in network order.
fn imm(value: u32) -> ImmDt {
    ImmDt(value.to_be_bytes())
}

/// Returns the packets sent by `side` so far, as (kind, PSN).
fn sent(pair: &Pair, side: Peer) -> Vec<(Kind, u32)> {
    let mine = pair.log.iter().filter(|logged| logged.from == side);
    mine.map(|logged| (logged.header.kind, logged.header.bth.psn.get())).collect()
}

/// Returns the PSNs of the requests that `side` sent so far.
fn request_psns(pair: &Pair, side: Peer) -> Vec<u32> {
    let kinds = sent(pair, side).into_iter();
    kinds.filter(|(kind, _)| !matches!(kind, Kind::RcResponse(_))).map(|(_, psn)| psn).collect()
}

/// Returns the responses that `side` sent so far, as (response, PSN).
fn responses(pair: &Pair, side: Peer) -> Vec<(Response, u32)> {
    let kinds = sent(pair, side).into_iter();
    let response = |(kind, psn)| if let Kind::RcResponse(r) = kind { Some((r, psn)) } else { None };
    kinds.filter_map(response).collect()
}

/// Parses fault rules.
fn rules(text: &str) -> Rules {
    text.parse().expect("legal rules")
}

/// Loses packet number `n` (from 0, from now on) that `from` sends.
fn drop_nth(pair: &mut Pair, from: Peer, n: u64) {
    pair.wire.set_script(from, Box::new(move |count, _| (count == n).then_some(LOST)));
}

/// Loses all packets that `from` sends while `lost` is true.
fn drop_if(pair: &mut Pair, from: Peer, lost: impl Fn(u64, &Packet<'_>) -> bool + Send + 'static) {
    pair.wire.set_script(from, Box::new(move |count, packet| lost(count, packet).then_some(LOST)));
}

/// Requests `state`, with no other attribute in the mask.
fn go_to(pair: &mut Pair, side: Peer, state: QpState) -> Result<(), ModifyError> {
    let end = pair.end(side);
    let attr = QpAttr { state, ..*end.qp.attr() };
    end.qp.modify(&mut end.host, &attr, AttrMask::STATE)
}

/// Returns a pair in which only `side` is connected: the peer is in RESET, and the test forges its
/// packets.
fn alone(side: Peer, setup: Setup) -> Pair {
    let mut pair = Pair::idle(setup, Rng::new(1));
    pair.bring_to(side, QpState::Rts);
    pair
}

/// Returns a request of the peer of `to`.
fn request(to: Peer, psn: u32, request: Request) -> Header {
    Header { bth: bth(to, psn, true), kind: Kind::RcRequest(request) }
}

/// Returns a response of the peer of `to`.
fn response(to: Peer, psn: u32, response: Response) -> Header {
    Header { bth: bth(to, psn, false), kind: Kind::RcResponse(response) }
}

/// Returns a base header towards `to`.
fn bth(to: Peer, psn: u32, ack_req: bool) -> Bth {
    Bth {
        dest_qpn: qpn(to),
        psn: Psn::new(psn),
        pkey: Pkey::DEFAULT,
        solicited: false,
        ack_req,
        mig_req: true,
        fecn: false,
        becn: false,
    }
}

/// A whole SEND in one packet.
const SEND_ONLY: Request = Request::SendOnly(SendTail::Plain);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
