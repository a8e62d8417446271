//! Ends of connections: a connection manager id, its event channel, and a queue pair if needed.

use super::{Node, request};
use roxe_provider::cm::{Address, Channel, ConnParam, Event, EventData, EventKind, Id, PortSpace};
use roxe_provider::{Qp, RecvRequest, SendOp, Service, WcStatus};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Maximum wait for an event.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Loopback address with any free port.
pub(crate) const LOOPBACK: &str = "127.0.0.1:0";

pub(crate) fn address(text: &str) -> Address {
    Address::Ip(text.parse::<SocketAddr>().unwrap())
}

/// Waits until one of `channels` has an event. Returns its index.
pub(crate) fn wait_any(channels: &[&Channel]) -> usize {
    let entry = |channel: &&Channel| libc::pollfd { fd: channel.fd(), events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<_> = channels.iter().map(entry).collect();
    let (count, wait) = (polls.len().try_into().unwrap(), i32::try_from(TIMEOUT.as_millis()).unwrap());
    // SAFETY: `polls` has `count` entries and outlives the call.
    assert!(unsafe { libc::poll(polls.as_mut_ptr(), count, wait) } > 0, "no event within the timeout");
    polls.iter().position(|poll| poll.revents != 0).unwrap()
}

/// Waits for the next event and returns it.
pub(crate) fn next(channel: &Channel) -> Event {
    wait_any(&[channel]);
    channel.try_next().expect("the descriptor is readable")
}

/// Waits for the next event and returns it. Panics if it is of another kind.
pub(crate) fn expect(channel: &Channel, kind: EventKind) -> Event {
    let event = next(channel);
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) channel: Arc<Channel>,
    pub(crate) id: Arc<Id>,
    pub(crate) qp: Option<Arc<Qp>>,
}

impl End {
    pub(crate) fn new(port_space: PortSpace) -> Self {
        let channel = Channel::create().unwrap();
        let id = Id::create(&channel, port_space, 0).unwrap();
        Self { channel, id, qp: None }
    }

    /// Creates an id that listens at the address `at`.
    pub(crate) fn listening(port_space: PortSpace, at: &str) -> Self {
        let end = Self::new(port_space);
        end.id.bind(&address(at)).unwrap();
        end.id.listen(0).unwrap();
        end
    }

    /// Creates an id with a resolved route to `to`.
    pub(crate) fn resolved(port_space: PortSpace, to: &Address) -> Self {
        let end = Self::new(port_space);
        end.resolve(to);
        end
    }

    pub(crate) fn resolve(&self, to: &Address) {
        self.id.resolve_addr(None, to, 2000).unwrap();
        assert_eq!((self.expect(EventKind::AddrResolved).status, self.id.port()), (0, 1));
        self.id.resolve_route(2000).unwrap();
        assert_eq!(self.expect(EventKind::RouteResolved).status, 0);
    }

    pub(crate) fn with_qp(mut self, node: &Node) -> Self {
        let qp = node.qp(self.id.service());
        self.id.attach_qp(&qp).unwrap();
        self.qp = Some(qp);
        self
    }

    pub(crate) fn next(&self) -> Event {
        next(&self.channel)
    }

    /// Waits for the next event and returns it. Panics if it is of another kind.
    pub(crate) fn expect(&self, kind: EventKind) -> Event {
        expect(&self.channel, kind)
    }

    pub(crate) fn has_no_event(&self) -> bool {
        self.channel.try_next().is_none()
    }

    /// Waits for a connect request. Returns the passive end, without a queue pair, and the event.
    pub(crate) fn next_request(&self) -> (Self, Event) {
        let event = self.expect(EventKind::ConnectRequest);
        let end = Self { channel: Arc::clone(&self.channel), id: Arc::clone(&event.id), qp: None };
        (end, event)
    }

    /// Returns the address that peers connect to.
    pub(crate) fn address(&self) -> Address {
        let local = self.id.local_addr().unwrap();
        if local.is_any() { address(LOOPBACK).with_port(local.port()) } else { local }
    }

    pub(crate) fn qp(&self) -> &Arc<Qp> {
        self.qp.as_ref().unwrap()
    }
}

/// Returns the connection parameters in an event.
pub(crate) fn conn_param_of(event: &Event) -> &ConnParam {
    match &event.data {
        EventData::Conn(param) => param,
        other => panic!("{:?} carries {other:?}", event.kind),
    }
}

/// Returns `data` padded with zeros to `len` bytes.
pub(crate) fn padded(data: &[u8], len: usize) -> Vec<u8> {
    let mut all = data.to_vec();
    all.resize(len, 0);
    all
}

/// Returns connection parameters with this private data. The QPN is unique in this process, for
/// ends without a queue pair.
pub(crate) fn conn_param(data: &[u8]) -> ConnParam {
    static QPN: AtomicU32 = AtomicU32::new(1 << 16);
    let (private_data, qp_num) = (data.to_vec(), QPN.fetch_add(1, Ordering::Relaxed));
    ConnParam { private_data, qp_num, responder_resources: 4, initiator_depth: 3, ..ConnParam::default() }
}

/// Connects two ends. Returns the active end, then the passive end.
pub(crate) fn connected(node: &Node, listener: &End) -> (End, End) {
    let active = End::resolved(PortSpace::Tcp, &listener.address()).with_qp(node);
    active.id.connect(&conn_param(b"hello")).unwrap();
    let (passive, _) = listener.next_request();
    let passive = passive.with_qp(node);
    passive.id.accept(&conn_param(b"welcome")).unwrap();
    active.expect(EventKind::Established);
    passive.expect(EventKind::Established);
    (active, passive)
}

/// Sends a message from one queue pair to the other and waits for its completions.
pub(crate) fn send_message(node: &Node, from: &Qp, to: &Qp) {
    to.post_recv(&RecvRequest { wr_id: 1, sges: &[node.sge(0, 64)] }).unwrap();
    from.post_send(&[request(2, SendOp::Send, &[node.sge(64, 64)])]).unwrap();
    let count = if from.service() == Service::Ud { 1 } else { 2 };
    for cqe in node.wait(count) {
        assert_eq!(cqe.status, WcStatus::Success, "{cqe:?}");
    }
}
