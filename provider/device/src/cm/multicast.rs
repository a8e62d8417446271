//! Multicast groups of datagram ids: `rdma_join_multicast` and what follows.
//!
//! On RoCE nobody is asked: to be a member is to have a queue pair attached, and the interface
//! listens for the group (IGMP, MLD) as long as one is. So a join comes to its end at once, and a
//! member that only sends is never attached.

use super::event::{EventData, EventKind, UDP_QKEY, UdParam};
use super::groups::Group;
use super::id::{Id, Inner, State};
use super::route::Address;
use crate::ah::AhAttr;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_net::group::embedded_ipv4;
use roxe_net::link::HOP_LIMIT;
use roxe_transport::qp::Service;
use roxe_wire::{Gid, Qpn};

/// How to be member of a group (`enum rdma_cm_join_mc_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JoinFlags {
    /// Not to receive: to send only.
    pub send_only: bool,
}

impl Id {
    /// Becomes a member of the group `addr`, an IPv4 or IPv6 address: the queue pair that the id
    /// has, or gets before it leaves, receives what is sent there, unless this is to send only.
    /// Comes at once to [`EventKind::MulticastJoin`] with the way there, or to
    /// [`EventKind::MulticastError`]; both bear `user`.
    ///
    /// EINVAL: no group, not a datagram id, not bound to a device, or connected already.
    // clause: CM-MULTICAST
    pub fn join_multicast(&self, addr: &Address, flags: JoinFlags, user: u64) -> Result<(), Error> {
        if self.service() != Service::Ud || !addr.gid().is_multicast() {
            return Err(Error::invalid(format!("{addr:?} is no group, or the id is not for datagrams")));
        }
        let mut inner = self.lock();
        inner.check(&[State::Bound, State::AddrResolved])?;
        let ud = inner.way_to_group(addr.gid())?;
        let group = Group { address: *addr, send_only: flags.send_only, is_attached: false };
        let (groups, qp) = inner.groups();
        let (kind, status) = match groups.attach(group, qp) {
            Ok(()) => (EventKind::MulticastJoin, 0),
            Err(e) => (EventKind::MulticastError, -e.errno()),
        };
        self.raise_in(&inner, kind, status, EventData::Group { user, ud });
        Ok(())
    }

    /// Ends what [`Id::join_multicast`] with the same address began. EADDRNOTAVAIL: it is no
    /// member.
    pub fn leave_multicast(&self, addr: &Address) -> Result<(), Error> {
        let mut inner = self.lock();
        let (groups, qp) = inner.groups();
        if groups.leave(addr, qp) {
            return Ok(());
        }
        Err(Error::new(libc::EADDRNOTAVAIL, format!("the id is no member of {addr:?}")))
    }
}

impl Inner {
    /// What it takes to send to a group. EINVAL: it is of the other version of IP.
    // clause: CM-MULTICAST
    fn way_to_group(&self, mgid: Gid) -> Result<UdParam, Error> {
        let device_addr = self.device_addr()?;
        let is_ipv4 = mgid.is_ipv4() || device_addr.gid.is_ipv4() && embedded_ipv4(mgid).is_some();
        if is_ipv4 != device_addr.gid.is_ipv4() {
            return Err(Error::invalid(format!("no packet goes from {} to the group {mgid}", device_addr.gid)));
        }
        let ah_attr = AhAttr {
            dgid: mgid,
            sgid_index: device_addr.gid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: self.traffic_class(),
            port: limits::PORTS,
            has_grh: true,
            ..AhAttr::default()
        };
        Ok(UdParam { private_data: vec![], ah_attr, qp_num: Qpn::MULTICAST.get(), qkey: UDP_QKEY.0 })
    }
}
