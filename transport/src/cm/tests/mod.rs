//! Tests: scripts of one `Cm` (`active`, `passive`, `alternate`, `ending`, `lookups`, `strangers`),
//! every message in every state (`reactions`), recorded packets (`captures`), a hostile peer
//! (`hostile`), and two of them over a lossy network (`lossy_network`).

mod active;
mod alternate;
mod captures;
mod ending;
mod hostile;
mod lookups;
mod lossy_network;
mod passive;
mod reactions;
mod strangers;

use super::*;
use crate::time::Instant;
use core::time::Duration;
use roxe_sim::Rng;
use roxe_wire::cm::{
    Answered, CommId, Drep, Dreq, Guid, Info, Mad, Message, Mra, PrivateData, Rej, RejReason, Rep, Req, Rtu, ServiceId,
    TimeCode, TransactionId, Transport, Uint,
};
use roxe_wire::{Gid, Psn, Qpn};
use std::net::Ipv4Addr;

const SERVICE: ServiceId = ServiceId(0x0106_1d2f);
const OUR_GUID: Guid = Guid(0x5054_00ff_fe00_0001);
const PEER_GUID: Guid = Guid(0x5054_00ff_fe00_0002);
const PEER_ID: CommId = CommId(0x7777);
const OUR_QPN: Qpn = Qpn::new(0x11);
const PEER_QPN: Qpn = Qpn::new(0x22);

fn address(last: u8) -> Gid {
    Ipv4Addr::new(10, 0, 0, last).into()
}

/// Returns the route from us (1) to the peer (2).
fn route() -> Route {
    Route { local: address(1), remote: address(2) }
}

/// A `Cm` with its time and random numbers.
struct Node {
    cm: Cm,
    now: Instant,
    rng: Rng,
}

impl Node {
    fn new() -> Self {
        Self::with(Settings::new(OUR_GUID))
    }

    fn with(settings: Settings) -> Self {
        Self { cm: Cm::new(settings), now: Instant(0), rng: Rng::new(1) }
    }

    /// Returns a listening node with a backlog of one.
    fn listening() -> Self {
        let mut node = Self::new();
        node.listen(1);
        node
    }

    fn listen(&mut self, backlog: usize) -> ListenId {
        self.cm.listen(Listen::new(SERVICE, Accepts::Both, backlog)).unwrap()
    }

    /// Calls a method that needs time and random numbers.
    fn call<R>(&mut self, act: impl FnOnce(&mut Cm, &mut Cx<'_>) -> R) -> R {
        let Self { cm, now, rng } = self;
        act(cm, &mut Cx { now: *now, random: &mut || rng.next() })
    }

    /// Delivers a message of the peer.
    fn deliver(&mut self, message: impl Into<Message>) -> Result<(), Ignored> {
        self.deliver_from(route(), message)
    }

    fn deliver_from(&mut self, route: Route, message: impl Into<Message>) -> Result<(), Ignored> {
        let mad = Mad { tid: TransactionId(9), modifier: 0, message: message.into() };
        self.call(|cm, cx| cm.handle_message(cx, route, &mad))
    }

    /// Takes the messages to send, all to the peer.
    fn sent(&mut self) -> Vec<Message> {
        let mut sent = Vec::new();
        while let Some(Outgoing { route: used, mad }) = self.cm.poll_transmit() {
            assert_eq!(used, route());
            sent.push(mad.message);
        }
        sent
    }

    /// Takes the only message to send.
    fn one_sent(&mut self) -> Message {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    /// Takes the names of the messages to send.
    fn sent_names(&mut self) -> Vec<&'static str> {
        self.sent().iter().map(Message::name).collect()
    }

    fn events(&mut self) -> Vec<EventKind> {
        std::iter::from_fn(|| self.cm.poll_event()).map(|event| event.kind).collect()
    }

    /// Lets time pass until the next timer and returns how long that was.
    fn wait(&mut self) -> Duration {
        let due = self.cm.poll_timeout().expect("a timer is set");
        let waited = due.since(self.now);
        self.now = due;
        self.cm.handle_timeout(due);
        waited
    }

    /// Lets time pass until nothing is left.
    fn run_timers(&mut self) {
        while self.cm.poll_timeout().is_some() {
            self.wait();
        }
        assert!(self.cm.is_empty());
    }

    fn state(&self, id: CommId) -> State {
        self.cm.state(id).unwrap_or(State::Idle)
    }

    /// Sends a REQ.
    fn send_req(&mut self) -> CommId {
        let connect = Connect { responder_resources: 4, initiator_depth: 8, ..connect() };
        let id = self.call(|cm, cx| cm.connect(cx, &connect)).unwrap();
        assert_eq!((self.sent_names(), self.state(id)), (vec!["REQ"], State::ReqSent));
        id
    }

    /// Sends a REQ and receives the REP.
    fn receive_rep(&mut self) -> CommId {
        let id = self.send_req();
        assert_eq!(self.deliver(rep(id)), Ok(()));
        assert!(matches!(self.events()[..], [EventKind::ConnectReply(..)]));
        id
    }

    /// Sends a REQ, receives the REP and sends the RTU.
    fn establish_active(&mut self) -> CommId {
        let id = self.receive_rep();
        self.cm.confirm(id, &PrivateData::EMPTY).unwrap();
        assert_eq!((self.sent_names(), self.state(id)), (vec!["RTU"], State::Established));
        id
    }

    /// Receives a REQ; returns our id.
    fn receive_req(&mut self) -> CommId {
        assert_eq!(self.deliver(req()), Ok(()));
        let event = self.cm.poll_event().expect("poll the next event");
        assert!(matches!(event.kind, EventKind::ConnectRequest(..)));
        assert_eq!((self.sent_names(), self.state(event.id)), (vec![], State::ReqRcvd));
        event.id
    }

    /// Receives a REQ and sends the REP.
    fn send_rep(&mut self) -> CommId {
        let id = self.receive_req();
        self.call(|cm, cx| cm.accept(cx, id, &accept())).unwrap();
        assert_eq!((self.sent_names(), self.state(id)), (vec!["REP"], State::RepSent));
        id
    }

    /// Receives a REQ, sends the REP and receives the RTU.
    fn establish_passive(&mut self) -> CommId {
        let id = self.send_rep();
        assert_eq!(self.deliver(rtu(id)), Ok(()));
        assert_eq!((self.events(), self.state(id)), (vec![EventKind::Established], State::Established));
        id
    }

    fn disconnect(&mut self, id: CommId) -> Result<(), CmError> {
        self.call(|cm, cx| cm.disconnect(cx, id))
    }

    fn destroy(&mut self, id: CommId) -> Result<(), CmError> {
        self.call(|cm, cx| cm.destroy(cx, id))
    }
}

fn connect() -> Connect {
    Connect::new(route(), SERVICE, OUR_QPN, Psn::new(100))
}

fn accept() -> Accept {
    Accept { responder_resources: 2, initiator_depth: 9, ..Accept::new(OUR_QPN, Psn::new(300)) }
}

/// Returns the peer's REQ, made by its own `Cm`.
fn req() -> Req {
    let back = Route { local: address(2), remote: address(1) };
    let connect = Connect {
        responder_resources: 5,
        initiator_depth: 6,
        retry_count: Uint::new(3),
        rnr_retry_count: Uint::new(4),
        ..Connect::new(back, SERVICE, PEER_QPN, Psn::new(200))
    };
    messages::req(PEER_ID, &connect, &Settings::new(PEER_GUID))
}

/// Returns the peer's REP for connection `ours`.
fn rep(ours: CommId) -> Rep {
    Rep {
        local_comm_id: PEER_ID,
        remote_comm_id: ours,
        local_qpn: PEER_QPN,
        starting_psn: Psn::new(200),
        responder_resources: 5,
        initiator_depth: 3,
        target_ack_delay: TimeCode::new(16),
        rnr_retry_count: Uint::new(2),
        local_ca_guid: PEER_GUID,
        ..Rep::default()
    }
}

fn rtu(ours: CommId) -> Rtu {
    Rtu { local_comm_id: PEER_ID, remote_comm_id: ours, private_data: PrivateData::EMPTY }
}

fn dreq(ours: CommId) -> Dreq {
    Dreq { local_comm_id: PEER_ID, remote_comm_id: ours, remote_qpn: OUR_QPN, private_data: PrivateData::EMPTY }
}

fn drep(ours: CommId) -> Drep {
    messages::drep(PEER_ID, ours)
}

fn mra(ours: CommId, answered: Answered) -> Mra {
    let (service_timeout, private_data) = (TimeCode::new(22), PrivateData::EMPTY);
    Mra { local_comm_id: PEER_ID, remote_comm_id: ours, answered, service_timeout, private_data }
}

fn rej(ours: CommId, answered: Answered, reason: RejReason) -> Rej {
    messages::rej(PEER_ID, ours, answered, reason, Info::EMPTY)
}
