//! A program that connects: a device with memory, and a channel.

use super::Node;
use super::ends::{conn_param, expect, next};
use roxe_provider::cm::{Address, Channel, Event, EventKind, Id, PortSpace};
use roxe_provider::{Qp, Service};
use std::net::SocketAddr;
use std::sync::Arc;

pub(crate) struct Party {
    pub(crate) node: Node,
    pub(crate) channel: Arc<Channel>,
}

impl Party {
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
        let listens = id.bind(&Address::Ip(address)).and_then(|()| id.listen(backlog));
        match listens {
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

    /// Returns an id with a queue pair that has requested a connection.
    pub(crate) fn asking(&self, address: SocketAddr) -> (Arc<Id>, Arc<Qp>) {
        let id = self.resolved(address);
        let qp = self.attach(&id);
        id.connect(&conn_param(b"")).unwrap();
        (id, qp)
    }
}

/// Returns an address of the loopback interface.
pub(crate) fn here(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}
