//! A node of the connection manager: a device with memory, and an event channel.

use super::Node;
use super::ends::{conn_param, expect, next};
use roxe_provider::cm::{Address, Channel, Event, EventKind, Id, PortSpace};
use roxe_provider::{Qp, Service};
use std::net::SocketAddr;
use std::sync::Arc;

pub(crate) struct CmNode {
    pub(crate) node: Node,
    pub(crate) channel: Arc<Channel>,
}

impl CmNode {
    pub(crate) fn open() -> Self {
        Self { node: Node::open(), channel: Channel::create().unwrap() }
    }

    pub(crate) fn event(&self) -> Event {
        next(&self.channel)
    }

    /// Returns the next event, which must be of this kind.
    pub(crate) fn expect(&self, kind: EventKind) -> Event {
        expect(&self.channel, kind)
    }

    pub(crate) fn id(&self) -> Arc<Id> {
        Id::create(&self.channel, PortSpace::Tcp, 0).unwrap()
    }

    /// Returns an id that listens at `address`.
    pub(crate) fn listen(&self, address: SocketAddr, backlog: i32) -> Result<Arc<Id>, i32> {
        let id = self.id();
        let result = id.bind(&Address::Ip(address)).and_then(|()| id.listen(backlog));
        match result {
            Ok(()) => Ok(id),
            Err(e) => {
                id.destroy();
                Err(e.errno())
            }
        }
    }

    /// Returns an id with a resolved route to `address`.
    pub(crate) fn resolved(&self, address: SocketAddr) -> Arc<Id> {
        let id = self.id();
        id.resolve_addr(None, &Address::Ip(address), 2000).unwrap();
        self.expect(EventKind::AddrResolved);
        id.resolve_route(2000).unwrap();
        self.expect(EventKind::RouteResolved);
        id
    }

    /// Attaches a new queue pair to `id`.
    pub(crate) fn attach(&self, id: &Id) -> Arc<Qp> {
        let qp = self.node.qp(Service::Rc);
        id.attach_qp(&qp).unwrap();
        qp
    }

    /// Returns an id that has requested a connection, and its queue pair.
    pub(crate) fn connecting(&self, address: SocketAddr) -> (Arc<Id>, Arc<Qp>) {
        let id = self.resolved(address);
        let qp = self.attach(&id);
        id.connect(&conn_param(b"")).unwrap();
        (id, qp)
    }
}

/// Returns 127.0.0.1 with this port.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}
