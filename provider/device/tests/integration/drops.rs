//! Every dropped packet is counted by reason. A socket at another loopback address is the peer, in
//! a network namespace.

use crate::common::*;
use roxe_net::udp::BareLink;
use roxe_provider::wire::{
    Aeth, Bth, Deth, Gid, Header, Kind, Msn, NakCode, NetHeader, PathMtu, Pkey, Psn, Qkey, Qpn, RKey, Request,
    Response, Reth, SendTail, Syndrome, icrc,
};
use roxe_provider::{AttrMask, Qp, QpAttr, QpState, SendOp, Service, Sge};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const VICTIM: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const TIMEOUT: Duration = Duration::from_secs(20);
/// First PSN of [`connect`], in both directions.
const FIRST: u32 = 77;

struct Sender {
    link: BareLink,
    net: NetHeader,
}

impl Sender {
    fn at(address: Ipv4Addr) -> Self {
        let link = bare_peer(address);
        let net =
            NetHeader { src: address.into(), dst: VICTIM.into(), src_port: link.source_port(), ..NetHeader::default() };
        Self { link, net }
    }

    fn sealed(&self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let len = header.padded_len(payload.len());
        let mut bytes = vec![0; len + icrc::LEN];
        header.emit(payload.len(), &mut bytes[..len]).unwrap().copy_from_slice(payload);
        icrc::seal(&self.net, &mut bytes);
        bytes
    }

    fn send_bytes(&self, bytes: &[u8]) {
        self.link.sender().send_to(bytes, &victim()).unwrap();
    }

    fn send(&self, qp: &Qp, psn: u32, kind: Kind) {
        self.send_as(Bth { ack_req: true, ..Bth::new(qp.qpn(), Psn::new(psn)) }, kind);
    }

    fn send_as(&self, bth: Bth, kind: Kind) {
        let payload: &[u8] = match kind {
            Kind::RcResponse(_) | Kind::Cnp => &[],
            _ => &[7; 8],
        };
        self.send_bytes(&self.sealed(&Header { bth, kind }, payload));
    }
}

/// Returns an RC queue pair connected to [`PEER`].
fn connected(node: &Node) -> Arc<Qp> {
    let qp = node.qp(Service::Rc);
    connect(&qp, node.av(0, Gid::from(PEER)), Qpn::new(0x77), PathMtu::Mtu1024);
    qp
}

/// Waits until a counter exceeds `before`.
fn moves(node: &Node, name: &str, before: u64) {
    let start = Instant::now();
    while counter(&node.context, name) == before {
        assert!(start.elapsed() < TIMEOUT, "{name} does not move: {:?}", node.context.counters());
        node.cq.poll(16, |_| ()).unwrap();
    }
}

const SEND: Kind = Kind::RcRequest(Request::SendOnly(SendTail::Plain));

fn answer(syndrome: Syndrome) -> Kind {
    Kind::RcResponse(Response::Ack(Aeth { syndrome, msn: Msn::new(0) }))
}

fn datagram_with(qkey: Qkey) -> Kind {
    Kind::Ud { deth: Deth { qkey, src_qpn: Qpn::new(9) }, imm: None }
}

#[test]
fn every_drop_reason_is_counted() {
    // The smallest receive buffer, so that it overruns.
    let make = "ip link set lo up && export ROXE_RCVBUF=4096";
    namespace::inside("every_drop_reason_is_counted", make, "lo", || {
        let node = Node::open();
        let (peer, stranger) = (Sender::at(PEER), Sender::at(STRANGER));
        let reason = |name: &str, cause: &dyn Fn()| {
            let before = counter(&node.context, name);
            cause();
            moves(&node, name, before);
        };

        let idle = node.qp(Service::Rc);
        let attr = QpAttr { state: QpState::Init, port: 1, ..QpAttr::default() };
        idle.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS).unwrap();
        reason("bad_state", &|| peer.send(&idle, FIRST, SEND));

        reason("malformed", &|| peer.send_bytes(&[0xff; 4]));
        let qp = connected(&node);
        let bth = Bth::new(qp.qpn(), Psn::new(FIRST));
        reason("icrc_errors", &|| {
            let mut bytes = peer.sealed(&Header { bth, kind: SEND }, &[7; 8]);
            *bytes.last_mut().unwrap() ^= 1;
            peer.send_bytes(&bytes);
        });
        reason("unknown_qp", &|| peer.send_as(Bth::new(Qpn::new(qp.qpn().get() ^ 0x800), Psn::new(FIRST)), SEND));
        reason("wrong_service", &|| peer.send(&qp, FIRST, datagram_with(QKEY)));
        reason("pkey", &|| peer.send_as(Bth { pkey: Pkey(0x8001), ..bth }, SEND));
        reason("address", &|| stranger.send(&qp, FIRST, SEND));
        reason("out_of_sequence", &|| peer.send(&qp, FIRST + 3, SEND));
        reason("duplicate_request", &|| peer.send(&qp, FIRST - 1, SEND));
        reason("rp_cnp_ignored", &|| peer.send(&qp, 0, Kind::Cnp));

        reason("ghost_response", &|| peer.send(&qp, FIRST, answer(Syndrome::ACK_UNLIMITED)));
        reason("duplicate_response", &|| peer.send(&qp, FIRST - 1, answer(Syndrome::ACK_UNLIMITED)));
        post(&qp, 1, SendOp::Send, node.sge(0, 8));
        reason("reserved_syndrome", &|| peer.send(&qp, FIRST, answer(Syndrome::Reserved(0x40))));
        reason("awaiting_retry", &|| {
            // The longest RNR timer: the second request arrives before it expires.
            peer.send(&qp, FIRST, answer(Syndrome::RnrNak { timer: 0 }));
            peer.send(&qp, FIRST, answer(Syndrome::Nak(NakCode::PsnSequence)));
        });

        let reth = Reth { va: node.addr(0), rkey: RKey(0xdead), dma_len: 8 };
        reason("remote_access", &|| {
            peer.send(&connected(&node), FIRST, Kind::RcRequest(Request::WriteOnly(reth, None)))
        });
        reason("invalid_request", &|| peer.send(&connected(&node), FIRST, Kind::RcRequest(Request::SendMiddle)));

        let ud = node.qp(Service::Ud);
        activate(&ud);
        assert_eq!(counter(&node.context, "early_dropped"), 0);
        // Both packets have waited for a receive.
        reason("qkey", &|| peer.send(&ud, 0, datagram_with(Qkey(1))));
        reason("no_receive", &|| peer.send(&ud, 0, datagram_with(QKEY)));
        assert_eq!(counter(&node.context, "early_dropped"), 2);
        post_recv(&ud, 1, Sge { lkey: roxe_provider::wire::LKey(0xdead), ..node.sge(0, 256) });
        reason("local_protection", &|| peer.send(&ud, 0, datagram_with(QKEY)));

        reason("rcvbuf_errors", &|| {
            let before = counter(&node.context, "rcvbuf_errors");
            let bytes = peer.sealed(&Header { bth, kind: Kind::RcRequest(Request::WriteMiddle) }, &[0; 1024]);
            let start = Instant::now();
            while counter(&node.context, "rcvbuf_errors") == before {
                assert!(start.elapsed() < TIMEOUT, "the receive buffer never runs over");
                (0..10_000).for_each(|_| peer.send_bytes(&bytes));
            }
        });
    });
}
