//! How an id begins, moves to another channel, and ends.

use super::connect::send_on_own_packets;
use super::listen::{stop_listening, with_machine};
use super::state::{Channel, Id, Inner, Link, State};
use crate::ib_cm::observe;
use crate::runtime::Runtime;
use roxe_base::error::Error;
use roxe_base::lock::Mutex;
use roxe_base::uses::ObjectId;
use roxe_base::weakest::{Subject, number_for};
use roxe_transport::qp::Service;
use roxe_wire::Psn;
use roxe_wire::cm::{CommId, PortSpace};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

impl Id {
    /// An id whose events come to `channel`, for connections (RC) or, in the UDP and IPoIB port
    /// spaces, for datagrams. `user` is the program's own name of it.
    pub fn create(channel: &Arc<Channel>, port_space: PortSpace, user: u64) -> Result<Arc<Self>, Error> {
        let service = match port_space {
            PortSpace::Udp | PortSpace::Ipoib => Service::Ud,
            PortSpace::Tcp | PortSpace::Ib => Service::Rc,
        };
        Self::create_for(channel, port_space, service, user)
    }

    /// An id as of [`Id::create`] for queue pairs of another service: UC, the two sides of XRC, or
    /// UD in the IB port space. EINVAL: raw packets have no connections.
    pub fn create_for(
        channel: &Arc<Channel>,
        port_space: PortSpace,
        service: Service,
        user: u64,
    ) -> Result<Arc<Self>, Error> {
        if service == Service::Raw {
            return Err(Error::invalid("raw packets have no connections"));
        }
        static IDS: AtomicU64 = AtomicU64::new(0);
        let psn = number_for(Subject::Psns, &IDS).map_err(|e| Error::os("cannot draw a random number", &e))?;
        Ok(Self::make(channel, port_space, service, user, psn))
    }

    pub(in crate::cm) fn make(
        channel: &Arc<Channel>,
        port_space: PortSpace,
        service: Service,
        user: u64,
        psn: u32,
    ) -> Arc<Self> {
        let inner = Inner { psn: Psn::new(psn), ..Inner::default() };
        let (name, user, inner) = (ObjectId::next(), AtomicU64::new(user), Mutex::new(inner));
        let channel = Mutex::new(Arc::clone(channel));
        let id = Arc::new_cyclic(|me| Self { me: Weak::clone(me), name, port_space, service, user, inner, channel });
        observe(name, Arc::downgrade(&id) as _);
        id
    }

    /// Moves it to another channel, with its pending events, and the ids of requests that nobody
    /// has heard of.
    pub fn migrate(&self, to: &Arc<Channel>) -> Result<(), Error> {
        // Its own events, and requests to it, are only raised under this lock.
        let _inner = self.lock();
        let from = std::mem::replace(&mut *self.channel.lock(), Arc::clone(to));
        if !Arc::ptr_eq(&from, to) {
            for event in from.events.take(self.name) {
                if event.listener.is_some() {
                    event.id.migrate_with_listener(to);
                }
                to.events.push(self.name, event, None);
            }
        }
        Ok(())
    }

    /// The program has not heard of it yet, and its listener has moved to another channel.
    fn migrate_with_listener(&self, to: &Arc<Channel>) {
        let mut channel = self.channel.lock();
        let from = std::mem::replace(&mut *channel, Arc::clone(to));
        if !Arc::ptr_eq(&from, to) {
            from.events.take(self.name).into_iter().for_each(|event| to.events.push(self.name, event, None));
        }
    }

    /// Ends it: no event of it comes any more, pending ones are dropped, requests that nobody has
    /// heard of are rejected. The peer is told what it must know.
    pub fn destroy(&self) {
        let mut inner = self.lock();
        if std::mem::replace(&mut inner.state, State::Destroyed) == State::Destroyed {
            return;
        }
        let (device_addr, link) = (inner.device_addr.take(), std::mem::replace(&mut inner.link, Link::Over));
        let (listens, claim) = (std::mem::take(&mut inner.listens), inner.claim());
        inner.leave_groups();
        let held = (inner.port.take(), inner.qp.take(), std::mem::take(&mut inner.later), inner.resolution.take());
        drop(inner);
        let channel = self.channel();
        for (engine, listen) in listens {
            stop_listening(&engine, listen, claim.as_deref());
        }
        if let (Some(device_addr), Link::Alive(comm)) = (device_addr, link) {
            send_on_own_packets(&device_addr.engine);
            end(&device_addr.engine, comm);
        }
        drop((held, claim));
        let pending = channel.events.take(self.name);
        pending.iter().filter(|event| event.listener.is_some()).for_each(|event| event.id.destroy());
    }
}

/// The program forgets a connection or lookup.
fn end(engine: &Runtime, comm: CommId) {
    with_machine(engine, |session| {
        session.ids.remove(&comm);
        // It is unknown in the child of a fork, where it is the parent's, or because it ended
        // meanwhile.
        let _ = session.cm.destroy(&mut session.cx, comm);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ib_cm::is_observed_by;

    #[test]
    fn ids_hear_of_their_interface_as_long_as_they_live() {
        let channel = Channel::create().unwrap();
        let id = Id::create(&channel, PortSpace::Tcp, 0).unwrap();
        let name = id.name;
        assert!(is_observed_by(name));
        drop(id);
        assert!(!is_observed_by(name));
    }
}
