//! Multicast groups of datagram ids (`rdma_join_multicast`). RoCE has no subnet manager to ask: a
//! member is an attached queue pair, for which the interface joins the group (IGMP, MLD). A join
//! completes at once, and a send-only member is never attached.

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

/// Kind of membership (`enum rdma_cm_join_mc_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JoinFlags {
    /// True if the member does not receive.
    pub send_only: bool,
}

impl Id {
    /// Joins the group `addr`, an IPv4 or IPv6 address: the attached queue pair, or one attached
    /// later, receives datagrams to the group, unless `send_only`. The result is
    /// [`EventKind::MulticastJoin`] with the group's address, or [`EventKind::MulticastError`];
    /// both carry `user_context`.
    ///
    /// # Errors
    /// EINVAL if `addr` is not a group, or the id is not for datagrams, not bound to a device, or
    /// connected.
    // clause: CM-MULTICAST
    pub fn join_multicast(&self, addr: &Address, flags: JoinFlags, user_context: u64) -> Result<(), Error> {
        if self.service() != Service::Ud || !addr.gid().is_multicast() {
            return Err(Error::invalid(format!("{addr:?} is not a multicast address, or the id is not for datagrams")));
        }
        let mut inner = self.lock();
        inner.check(&[State::Bound, State::AddrResolved])?;
        let ud = inner.group_destination(addr.gid())?;
        let group = Group { address: *addr, send_only: flags.send_only, is_attached: false };
        let (groups, qp) = inner.groups();
        let (kind, status) = match groups.join(group, qp) {
            Ok(()) => (EventKind::MulticastJoin, 0),
            Err(e) => (EventKind::MulticastError, -e.errno()),
        };
        self.raise_in(&inner, kind, status, EventData::Group { user_context, ud });
        Ok(())
    }

    /// Leaves the group `addr`. Fails with EADDRNOTAVAIL if the id is not a member.
    pub fn leave_multicast(&self, addr: &Address) -> Result<(), Error> {
        let mut inner = self.lock();
        let (groups, qp) = inner.groups();
        if groups.leave(addr, qp) {
            return Ok(());
        }
        Err(Error::new(libc::EADDRNOTAVAIL, format!("the id is not a member of {addr:?}")))
    }
}

impl Inner {
    /// Returns the destination of datagrams to a group. Fails with EINVAL if the group is of the
    /// other IP version.
    // clause: CM-MULTICAST
    fn group_destination(&self, mgid: Gid) -> Result<UdParam, Error> {
        let device_addr = self.device_addr()?;
        let is_ipv4 = mgid.is_ipv4() || device_addr.gid.is_ipv4() && embedded_ipv4(mgid).is_some();
        if is_ipv4 != device_addr.gid.is_ipv4() {
            return Err(Error::invalid(format!(
                "{} cannot send to the group {mgid}: they are of different IP versions",
                device_addr.gid
            )));
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
