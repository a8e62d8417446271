//! How an id listens: on the devices that have an address, and on the others as soon as they get
//! one.

use super::resolve::is_ipv4;
use super::state::{Id, Inner, State, refused};
use crate::cm::address::Address;
use crate::cm::device_addr::all_engines;
use crate::ib_cm::Session;
use crate::ib_cm::ports::Claim;
use crate::runtime::Runtime;
use roxe_base::error::Error;
use roxe_transport::cm::{Addresses, Listen, ListenId, Takes};
use roxe_transport::qp::Service;
use roxe_wire::cm::ServiceId;
use std::sync::Arc;

/// What a listener holds of requests that its program has not heard of, unless it says less (Linux
/// cma.c).
const MAX_BACKLOG: usize = 1024;
/// The most requests that wait for an answer; the backlog bounds those that nobody has heard of.
const MAX_UNANSWERED: usize = 1 << 16;

impl Id {
    /// Takes requests for its port from now on, at most `backlog` of them unheard (0 and less:
    /// 1024). An id without an address listens at all IPv4 addresses, at a port that
    /// [`Id::local_addr`] tells. An id at all addresses listens on all devices.
    ///
    /// EINVAL: wrong state. EADDRINUSE: another id listens.
    pub fn listen(&self, backlog: i32) -> Result<(), Error> {
        self.begin_to_listen(backlog)?;
        self.listen_where_possible().inspect_err(|_| self.stop_listening())
    }

    fn begin_to_listen(&self, backlog: i32) -> Result<(), Error> {
        let mut inner = self.lock();
        if inner.state == State::Idle {
            self.bind_in(&mut inner, &Address::Ip(([0, 0, 0, 0], 0).into()))?;
        }
        inner.check(&[State::Bound])?;
        if inner.claim().is_none() {
            return Err(Error::invalid("the id was bound to connect, not to listen"));
        }
        inner.later = match &inner.device_addr {
            Some(device_addr) => vec![device_addr.engine.clone()],
            None => all_engines()?,
        };
        let wanted = usize::try_from(backlog).unwrap_or(0);
        inner.backlog = if wanted == 0 { MAX_BACKLOG } else { wanted.min(MAX_BACKLOG) };
        inner.state = State::Listening;
        Ok(())
    }

    /// Listens on the devices that have an address and where it does not yet: those that come to
    /// one later follow.
    pub(in crate::cm) fn listen_where_possible(&self) -> Result<(), Error> {
        while let Some((engine, claim, listen)) = self.next_to_listen_on() {
            self.listen_on(&engine, &claim, listen)?;
        }
        Ok(())
    }

    fn next_to_listen_on(&self) -> Option<(Runtime, Arc<Claim>, Listen)> {
        let mut inner = self.lock();
        let at = inner.later.iter().position(|engine| engine.has_address())?;
        let (claim, local) = (inner.claim()?, inner.local?);
        let listen = Listen { service_id: claim.service(), ..inner.listen(self.service(), &local) };
        Some((inner.later.swap_remove(at), claim, listen))
    }

    fn listen_on(&self, engine: &Runtime, claim: &Claim, listen: Listen) -> Result<(), Error> {
        let listening = engine.cm(|session| {
            let name = session.cm.listen(listen)?;
            session.listeners.extend(self.me.upgrade().map(|id| (name, id as _)));
            self.lock().listens.push((engine.clone(), name));
            Ok(())
        });
        listening?.map_err(|e| refused(&e))?;
        claim.watch(engine)
    }

    /// Where it listens already it stops, and is bound only.
    fn stop_listening(&self) {
        let mut inner = self.lock();
        if inner.state == State::Listening {
            inner.state = State::Bound;
        }
        let (listens, later) = (std::mem::take(&mut inner.listens), std::mem::take(&mut inner.later));
        let claim = inner.claim();
        drop(inner);
        drop(later);
        listens.iter().for_each(|(engine, listen)| stop_listening(engine, *listen, claim.as_deref()));
    }
}

impl Inner {
    /// What the machine has to listen for, but for the service.
    fn listen(&self, service: Service, local: &Address) -> Listen {
        let takes = if service == Service::Ud { Takes::Lookups } else { Takes::Connections };
        let gid = (!local.is_any()).then(|| local.gid());
        let plain = Listen { local: gid, ..Listen::new(ServiceId(0), takes, MAX_UNANSWERED) };
        match local {
            Address::Ib(ib) => Listen { service_mask: ib.sid_mask, ..plain },
            Address::Ip(_) => Listen { addresses: self.addresses(local), ..plain },
        }
    }

    fn addresses(&self, local: &Address) -> Addresses {
        match (local.is_any(), is_ipv4(local), self.is_of_one_family(local)) {
            (true, true, _) => Addresses::Ipv4,
            (true, false, true) => Addresses::Ipv6,
            _ => Addresses::Ip,
        }
    }
}

/// Takes no more requests.
pub(super) fn stop_listening(engine: &Runtime, listen: ListenId, claim: Option<&Claim>) {
    if let Some(claim) = claim {
        claim.unwatch(engine);
    }
    with_machine(engine, |session| {
        session.listeners.remove(&listen);
        // It is unknown only in the child of a fork: it is the parent's.
        let _ = session.cm.stop_listening(listen);
    });
}

/// Works on the machine if there is one: in the child of a fork there is nothing of the parent's.
pub(super) fn with_machine(engine: &Runtime, verb: impl FnOnce(&mut Session<'_>)) {
    if engine.is_started() {
        // An engine that cannot start has no machine.
        let _ = engine.cm(verb);
    }
}
