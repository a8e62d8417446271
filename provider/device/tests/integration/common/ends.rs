//! Ends of connections: an id with its own channel, and a queue pair if needed.

use super::{Node, request};
use roxe_provider::cm::{Address, Channel, ConnParam, Event, EventData, EventKind, Id, PortSpace};
use roxe_provider::{Qp, RecvRequest, SendOp, Service, WcStatus};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Maximum wait for an event.
const TIMEOUT: Duration = Duration::from_secs(20);
/// First address of the loopback device.
pub(crate) const HERE: &str = "127.0.0.1:0";

pub(crate) fn address(text: &str) -> Address {
    Address::Ip(text.parse::<SocketAddr>().unwrap())
}

/// Waits until one of these channels has an event; returns its index.
pub(crate) fn first_of(channels: &[&Channel]) -> usize {
    let entry = |channel: &&Channel| libc::pollfd { fd: channel.fd(), events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<_> = channels.iter().map(entry).collect();
    let (count, wait) = (polls.len().try_into().unwrap(), i32::try_from(TIMEOUT.as_millis()).unwrap());
    // SAFETY: as many entries as it says, which outlive the call.
    assert!(unsafe { libc::poll(polls.as_mut_ptr(), count, wait) } > 0, "no event within the timeout");
    polls.iter().position(|poll| poll.revents != 0).unwrap()
}

/// Returns the next event.
pub(crate) fn next(channel: &Channel) -> Event {
    first_of(&[channel]);
    channel.try_next().expect("the descriptor is readable")
}

/// Returns the next event, which must be of this kind.
pub(crate) fn expect(channel: &Channel, kind: EventKind) -> Event {
    let event = next(channel);
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

/// An id with its channel and queue pair.
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

    /// Creates a listener at `at`.
    pub(crate) fn listening(port_space: PortSpace, at: &str) -> Self {
        let end = Self::new(port_space);
        end.id.bind(&address(at)).unwrap();
        end.id.listen(0).unwrap();
        end
    }

    /// Creates an id with a resolved route to `to`.
    pub(crate) fn before(port_space: PortSpace, to: &Address) -> Self {
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

    /// Returns the next event, which must be of this kind.
    pub(crate) fn expect(&self, kind: EventKind) -> Event {
        expect(&self.channel, kind)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.channel.try_next().is_none()
    }

    /// Returns the end of the next request.
    pub(crate) fn request(&self) -> (Self, Event) {
        let event = self.expect(EventKind::ConnectRequest);
        let end = Self { channel: Arc::clone(&self.channel), id: Arc::clone(&event.id), qp: None };
        (end, event)
    }

    /// Returns the address for peers.
    pub(crate) fn address(&self) -> Address {
        let local = self.id.local_addr().unwrap();
        if local.is_any() { address(HERE).with_port(local.port()) } else { local }
    }

    pub(crate) fn qp(&self) -> &Arc<Qp> {
        self.qp.as_ref().unwrap()
    }
}

/// Returns the parameters in an event of a connection.
pub(crate) fn param_of(event: &Event) -> &ConnParam {
    match &event.data {
        EventData::Conn(param) => param,
        other => panic!("{:?} says {other:?}", event.kind),
    }
}

/// Returns `data` padded with zeros to `len` bytes.
pub(crate) fn padded(data: &[u8], len: usize) -> Vec<u8> {
    let mut all = data.to_vec();
    all.resize(len, 0);
    all
}

/// Returns parameters with this private data, and a QPN that no other connection has.
pub(crate) fn conn_param(data: &[u8]) -> ConnParam {
    static QPN: AtomicU32 = AtomicU32::new(1 << 16);
    let (private_data, qp_num) = (data.to_vec(), QPN.fetch_add(1, Ordering::Relaxed));
    ConnParam { private_data, qp_num, responder_resources: 4, initiator_depth: 3, ..ConnParam::default() }
}

/// Returns two connected ends, the passive one last.
pub(crate) fn connected(node: &Node, listener: &End) -> (End, End) {
    let active = End::before(PortSpace::Tcp, &listener.address()).with_qp(node);
    active.id.connect(&conn_param(b"hello")).unwrap();
    let (passive, _) = listener.request();
    let passive = passive.with_qp(node);
    passive.id.accept(&conn_param(b"welcome")).unwrap();
    active.expect(EventKind::Established);
    passive.expect(EventKind::Established);
    (active, passive)
}

/// Sends a message from one end to the other.
pub(crate) fn say(node: &Node, from: &Qp, to: &Qp) {
    to.post_recv(&RecvRequest { wr_id: 1, sges: &[node.sge(0, 64)] }).unwrap();
    from.post_send(&[request(2, SendOp::Send, &[node.sge(64, 64)])]).unwrap();
    let count = if from.service() == Service::Ud { 1 } else { 2 };
    for cqe in node.wait(count) {
        assert_eq!(cqe.status, WcStatus::Success, "{cqe:?}");
    }
}
