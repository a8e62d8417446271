//! Multicast groups: attachment, their sockets, and delivery to every member.
//!
//! A socket bound to a unicast address receives no multicast, so each group has sockets of its own.
//! Steering does not concern them, because the kernel gives each a copy. A datagram is multicast
//! only if it arrived on such a socket *and* is addressed to [`Qpn::MULTICAST`]. A sender on this
//! host gets its copy by the kernel's loopback. Groups have no window, because no single receiver
//! could return credits for all. They are guarded by the receive lock.

use crate::engine::Engine;
use crate::poller::Watch;
use crate::queue_pair::QueuePair;
use crate::run::Run;
use crate::rx_state::{Group, RxState};
use crate::start::explain;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_net::group;
use roxe_net::udp::UdpLink;
use roxe_transport::time::Instant;
use roxe_wire::{Gid, Qpn};
use std::sync::Arc;

impl Engine {
    /// Attaches `qp` to the group `mgid`, unless it is attached. Fails with ENOMEM beyond the
    /// limits of the device.
    pub fn attach(&self, qp: &Arc<dyn QueuePair>, mgid: Gid) -> Result<(), Error> {
        let mut rx = self.rx.lock();
        let groups = &mut rx.state.groups;
        if let Some(group) = groups.iter_mut().find(|group| group.mgid == mgid) {
            return group.add(qp);
        }
        if groups.len() >= limits::MAX_MCAST_GRP as usize {
            return Err(Error::new(
                libc::ENOMEM,
                "the device has its maximum number of multicast groups; detach from one first",
            ));
        }
        groups.push(Group { mgid, links: self.join(mgid)?, members: vec![Arc::clone(qp)] });
        Ok(())
    }

    /// Detaches `qp`; the last one closes the sockets. Fails with EINVAL if it is not attached.
    pub fn detach(&self, qp: &dyn QueuePair, mgid: Gid) -> Result<(), Error> {
        let mut rx = self.rx.lock();
        let groups = &mut rx.state.groups;
        let found = groups.iter_mut().find(|group| group.mgid == mgid);
        let member = found.and_then(|group| group.position(qp).map(|at| group.members.swap_remove(at)));
        groups.retain(|group| !group.members.is_empty());
        match member {
            Some(_) => Ok(()),
            None => Err(Error::invalid(format!("the queue pair is not attached to {mgid}"))),
        }
    }

    /// Returns the number of groups that `qp` is attached to.
    pub fn memberships(&self, qp: &dyn QueuePair) -> usize {
        self.rx.lock().state.groups.iter().filter(|group| group.position(qp).is_some()).count()
    }

    /// Detaches a queue pair that is destroyed from all groups.
    pub(crate) fn detach_from_all(&self, qp: &dyn QueuePair) {
        let mut rx = self.rx.lock();
        let groups = &mut rx.state.groups;
        groups.iter_mut().for_each(|group| group.members.retain(|member| member.qpn() != qp.qpn()));
        groups.retain(|group| !group.members.is_empty());
    }

    /// Opens the sockets for `mgid`. If it has two addresses, one of them suffices.
    fn join(&self, mgid: Gid) -> Result<Vec<Arc<UdpLink>>, Error> {
        let poller = self.scheduler.poller()?;
        let (mut links, mut failure) = (Vec::new(), None);
        for address in group::addresses(mgid) {
            let joined = UdpLink::join(address, self.ifindex(), self.config.gro)
                .and_then(|link| poller.watch(link.fd(), Watch::All).map(|()| Arc::new(link)));
            match joined {
                Ok(link) => links.push(link),
                Err(e) => failure = Some(explain(address, &e)),
            }
        }
        failure.filter(|_| links.is_empty()).map_or(Ok(links), Err)
    }

    /// Delivers a run received by the group at `at` to every member.
    // clause: UD-MULTICAST
    pub(crate) fn deliver_to_group(&self, state: &mut RxState, at: usize, qpn: Qpn, run: Run<'_>, now: Instant) {
        let Some(group) = state.groups.get_mut(at).filter(|_| qpn == Qpn::MULTICAST) else {
            return self.count_dropped(run, &self.counters().unknown_qp);
        };
        self.count_received(run);
        let members = std::mem::take(&mut group.members);
        for qp in &members {
            self.deliver(state, qp, run, now);
        }
        if let Some(group) = state.groups.get_mut(at) {
            group.members = members;
        }
    }
}
