//! Ends of connections: an id with a channel of its own and, if wanted, a queue pair.

use super::{Node, request};
use roxe_provider::cm::{Address, Channel, ConnParam, Event, EventData, EventKind, Id, PortSpace};
use roxe_provider::{Qp, RecvRequest, SendOp, Service, WcStatus};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// No passing test waits this long for an event.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Where tests are: the first address of the loopback device.
pub(crate) const HERE: &str = "127.0.0.1:0";

pub(crate) fn address(text: &str) -> Address {
    Address::Ip(text.parse::<SocketAddr>().unwrap())
}

/// Waits until one of these channels has an event; which one.
pub(crate) fn first_of(channels: &[&Channel]) -> usize {
    let entry = |channel: &&Channel| libc::pollfd { fd: channel.fd(), events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<_> = channels.iter().map(entry).collect();
    let (count, wait) = (polls.len().try_into().unwrap(), i32::try_from(TIMEOUT.as_millis()).unwrap());
    // SAFETY: as many entries as it says, which outlive the call.
    assert!(unsafe { libc::poll(polls.as_mut_ptr(), count, wait) } > 0, "no event came");
    polls.iter().position(|poll| poll.revents != 0).unwrap()
}

/// The next event of a channel.
pub(crate) fn next(channel: &Channel) -> Event {
    first_of(&[channel]);
    channel.try_next().expect("the descriptor is readable")
}

/// The next event of a channel, which has to be this one.
pub(crate) fn expect(channel: &Channel, kind: EventKind) -> Event {
    let event = next(channel);
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

/// An id, where its events come, and its queue pair.
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

    /// One that listens at `at`.
    pub(crate) fn listening(port_space: PortSpace, at: &str) -> Self {
        let end = Self::new(port_space);
        end.id.bind(&address(at)).unwrap();
        end.id.listen(0).unwrap();
        end
    }

    /// One that knows the way to `to`.
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

    /// Gives it a queue pair.
    pub(crate) fn with_qp(mut self, node: &Node) -> Self {
        let qp = node.qp(self.id.service());
        self.id.attach_qp(&qp).unwrap();
        self.qp = Some(qp);
        self
    }

    pub(crate) fn next(&self) -> Event {
        next(&self.channel)
    }

    /// The next event, which has to be this one.
    pub(crate) fn expect(&self, kind: EventKind) -> Event {
        expect(&self.channel, kind)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.channel.try_next().is_none()
    }

    /// The request that comes next, as an end of its own.
    pub(crate) fn request(&self) -> (Self, Event) {
        let event = self.expect(EventKind::ConnectRequest);
        let end = Self { channel: Arc::clone(&self.channel), id: Arc::clone(&event.id), qp: None };
        (end, event)
    }

    /// Where others find it.
    pub(crate) fn address(&self) -> Address {
        let local = self.id.local_addr().unwrap();
        if local.is_any() { address(HERE).with_port(local.port()) } else { local }
    }

    pub(crate) fn qp(&self) -> &Arc<Qp> {
        self.qp.as_ref().unwrap()
    }
}

/// What an event says of a connection.
pub(crate) fn terms(event: &Event) -> &ConnParam {
    match &event.data {
        EventData::Conn(param) => param,
        other => panic!("{:?} says {other:?}", event.kind),
    }
}

/// `said`, then zeros, `len` bytes in all.
pub(crate) fn padded(said: &[u8], len: usize) -> Vec<u8> {
    let mut all = said.to_vec();
    all.resize(len, 0);
    all
}

/// Private data, and what else suits everybody. Without a queue pair attached it is one that nobody
/// else has: two connections of one queue pair cannot be.
pub(crate) fn saying(said: &[u8]) -> ConnParam {
    static QPN: AtomicU32 = AtomicU32::new(1 << 16);
    let (private_data, qp_num) = (said.to_vec(), QPN.fetch_add(1, Ordering::Relaxed));
    ConnParam { private_data, qp_num, responder_resources: 4, initiator_depth: 3, ..ConnParam::default() }
}

/// Two connected ends, the passive one last.
pub(crate) fn connected(node: &Node, listener: &End) -> (End, End) {
    let active = End::before(PortSpace::Tcp, &listener.address()).with_qp(node);
    active.id.connect(&saying(b"hello")).unwrap();
    let (passive, _) = listener.request();
    let passive = passive.with_qp(node);
    passive.id.accept(&saying(b"welcome")).unwrap();
    active.expect(EventKind::Established);
    passive.expect(EventKind::Established);
    (active, passive)
}

/// A message goes from one end to the other.
pub(crate) fn say(node: &Node, from: &Qp, to: &Qp) {
    to.post_recv(&RecvRequest { wr_id: 1, sges: &[node.sge(0, 64)] }).unwrap();
    from.post_send(&[request(2, SendOp::Send, &[node.sge(64, 64)])]).unwrap();
    let count = if from.service() == Service::Ud { 1 } else { 2 };
    for cqe in node.wait(count) {
        assert_eq!(cqe.status, WcStatus::Success, "{cqe:?}");
    }
}
