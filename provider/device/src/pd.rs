//! Protection domains: what memory, queues and address handles have in common; and address handles.
//!
//! Makes the objects of a domain and counts them. Touches the memory table through [`crate::mr`].

use crate::cq::Cq;
use crate::device::Context;
use crate::dm::Dm;
use crate::mr::Mr;
use crate::mw::Mw;
use crate::qp::{Qp, QpInit};
use crate::srq::{Srq, SrqInit, TagInit};
use crate::wq::{RwqTable, Wq, WqInit};
use roxe_base::error::Error;
use roxe_base::uses::{Use, UseCount};
use roxe_memory::region::{MwKind, PdId};
use roxe_net::group;
use roxe_transport::rss::RxHash;
use roxe_transport::wr::{Access, Av};
use roxe_wire::Gid;
use std::sync::Arc;

/// A protection domain: objects of different domains cannot reach each other's memory.
#[derive(Debug)]
pub struct Pd {
    context: Arc<Context>,
    id: PdId,
    uses: UseCount,
    /// The use of the domain that this one extends.
    _base: Option<Use>,
    _quota: Use,
}

impl Pd {
    pub(crate) fn create(context: Arc<Context>) -> Result<Arc<Self>, Error> {
        let _quota = context.device().quotas().pds.take()?;
        Ok(Arc::new(Self { context, id: PdId::next(), uses: UseCount::default(), _base: None, _quota }))
    }

    /// Another handle for the same access to memory, which counts its objects by itself; this domain is in use for as long
    /// as the new one lives (`man ibv_alloc_parent_domain`). ENOMEM: there are `max_pd`.
    pub fn extend(&self) -> Result<Arc<Self>, Error> {
        let _quota = self.context.device().quotas().pds.take()?;
        let (context, uses) = (Arc::clone(&self.context), UseCount::default());
        Ok(Arc::new(Self { context, id: self.id, uses, _base: Some(self.hold()), _quota }))
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Registers `length` bytes at `addr`; peers and lists name them by addresses from `iova` (0 with `ZERO_BASED`).
    ///
    /// With `ON_DEMAND` the memory need not be mapped yet, and `u64::MAX` bytes at 0 stand for all the process has.
    ///
    /// EINVAL: overflow, or remote write or atomic rights without `LOCAL_WRITE`. EFAULT: not mapped with the needed
    /// rights. ENOMEM: there are `max_mr`. EOPNOTSUPP: rights of operations that the device does not do.
    pub fn reg_mr(self: &Arc<Self>, addr: u64, length: u64, iova: u64, access: Access) -> Result<Arc<Mr>, Error> {
        Mr::register(self, addr, length, iova, access)
    }

    /// Registers `length` bytes of device memory from `offset` on; peers and lists name them by addresses from 0.
    ///
    /// EINVAL: not inside the buffer, memory of another context or freed, rights without `ZERO_BASED`, with `ON_DEMAND` or
    /// with `HUGETLB`, or as for [`Pd::reg_mr`]. ENOMEM: there are `max_mr`.
    pub fn reg_dm_mr(self: &Arc<Self>, dm: &Dm, offset: u64, length: u64, access: Access) -> Result<Arc<Mr>, Error> {
        if !Arc::ptr_eq(dm.context(), &self.context) {
            return Err(Error::invalid("the device memory belongs to another context than the protection domain"));
        }
        Mr::register_part(self, dm.part(offset, length)?, access)
    }

    /// A memory window that is not bound yet. ENOMEM: there are `max_mw`.
    pub fn alloc_mw(self: &Arc<Self>, kind: MwKind) -> Result<Arc<Mw>, Error> {
        Mw::allocate(self, kind)
    }

    /// A new shared receive queue; EINVAL beyond the limits of the device, ENOMEM: there are `max_srq`.
    pub fn create_srq(self: &Arc<Self>, init: SrqInit) -> Result<Arc<Srq>, Error> {
        Srq::create(self, init)
    }

    /// A new shared receive queue that matches tags (`man ibv_post_srq_ops`); everything that it receives, and every operation
    /// on its tags, completes in `cq`. EINVAL beyond the limits of the device.
    pub fn create_tag_srq(self: &Arc<Self>, init: SrqInit, cq: &Arc<Cq>, tags: TagInit) -> Result<Arc<Srq>, Error> {
        Srq::create_tags(self, init, cq, tags)
    }

    /// A new receive work queue in the reset state; EINVAL beyond the limits of the device.
    pub fn create_wq(self: &Arc<Self>, init: WqInit) -> Result<Arc<Wq>, Error> {
        Wq::create(self, init)
    }

    /// A new queue pair without queues, whose flows spread frames over the work queues of `table` by their hash. `user` is the
    /// token of its events. EINVAL: fields that cannot be hashed together, or a table of another context.
    pub fn create_hash_qp(self: &Arc<Self>, table: &Arc<RwqTable>, hash: RxHash, user: u64) -> Result<Arc<Qp>, Error> {
        Qp::create_hash(self, table, hash, user)
    }

    /// A new address handle; errors as [`Context::resolve_av`], and ENOMEM: there are `max_ah`.
    pub fn create_ah(self: &Arc<Self>, attr: &AhAttr) -> Result<Ah, Error> {
        let av = self.context.resolve_av(attr)?;
        let _quota = self.context.device().quotas().ahs.take()?;
        Ok(Ah { av, pd: Arc::clone(self), _use: self.hold(), _quota })
    }

    /// A new queue pair in the RESET state; EINVAL beyond the limits of the device, ENOMEM: there are `max_qp`.
    pub fn create_qp(self: &Arc<Self>, init: QpInit) -> Result<Arc<Qp>, Error> {
        Qp::create(self, init)
    }

    /// Whether the domain may be deallocated: EBUSY while it has regions, windows, queues or address handles.
    pub fn dealloc(&self) -> Result<(), Error> {
        self.uses.check_unused("protection domain", "memory regions and windows, queues and address handles")
    }

    pub(crate) fn id(&self) -> PdId {
        self.id
    }

    /// Registers one object of the domain, until the returned value is dropped.
    pub fn hold(&self) -> Use {
        self.uses.hold()
    }
}

/// Where a datagram or a connection shall go, as programs say it (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// Destination address.
    pub dgid: Gid,
    /// Index of the source address in the GID table.
    pub sgid_index: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// Port number.
    pub port: u8,
    /// Whether the fields above but `port` are given; required on Ethernet.
    pub has_grh: bool,
    /// Service level; has no meaning on the wire here.
    pub sl: u8,
    /// The most that a connection sends there, Mbit/s; 0: as much as it can.
    pub static_rate: u32,
}

impl AhAttr {
    /// The address vector from `sgid`, which is what the table holds at `sgid_index` (zero: nothing).
    pub(crate) fn resolve(&self, sgid: Gid) -> Result<Av, Error> {
        // clause: AV-VALID
        if !self.has_grh {
            return Err(Error::invalid("the address has no GRH; Ethernet needs one: set is_global and the grh fields"));
        }
        if sgid.is_zero() {
            return Err(Error::invalid(format!("GID index {} is empty; choose one with an address", self.sgid_index)));
        }
        if self.dgid.is_zero() {
            return Err(Error::invalid("the destination GID is zero"));
        }
        let dgid = group::destination(self.dgid, sgid.is_ipv4());
        if sgid.is_ipv4() != dgid.is_ipv4() {
            return Err(Error::invalid(format!("source {sgid} and destination {dgid} are of different IP versions")));
        }
        Ok(Av {
            sgid,
            dgid,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label & 0x000f_ffff,
            sgid_index: self.sgid_index,
            static_rate: self.static_rate,
        })
    }
}

/// An address handle: the resolved destination of UD messages.
#[derive(Debug)]
pub struct Ah {
    av: Av,
    pd: Arc<Pd>,
    _use: Use,
    _quota: Use,
}

impl Ah {
    /// The resolved address.
    pub fn av(&self) -> &Av {
        &self.av
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn loopback() -> AhAttr {
        AhAttr { dgid: Ipv4Addr::LOCALHOST.into(), port: 1, has_grh: true, ..AhAttr::default() }
    }

    // clause: AV-VALID
    #[test]
    fn addresses_that_lead_nowhere_are_refused() {
        let pd = crate::testing::pd();
        assert!(pd.create_ah(&loopback()).is_ok());
        let v6 = std::net::IpAddr::from(Ipv6Addr::LOCALHOST);
        for bad in [
            AhAttr { has_grh: false, ..loopback() },
            AhAttr { sgid_index: 15, ..loopback() },
            AhAttr { sgid_index: 200, ..loopback() },
            AhAttr { dgid: Gid::default(), ..loopback() },
            AhAttr { dgid: v6.into(), ..loopback() },
            AhAttr { port: 2, ..loopback() },
        ] {
            assert_eq!(pd.create_ah(&bad).unwrap_err().errno(), libc::EINVAL, "{bad:?}");
        }
    }

    #[test]
    fn a_domain_is_busy_while_it_has_objects() {
        let pd = crate::testing::pd();
        let ah = pd.create_ah(&loopback()).unwrap();
        assert_eq!(pd.dealloc().unwrap_err().errno(), libc::EBUSY);
        drop(ah);
        assert!(pd.dealloc().is_ok());
    }

    #[test]
    fn an_extended_domain_is_in_use_and_shares_its_memory() {
        let pd = crate::testing::pd();
        let extended = pd.extend().unwrap();
        assert_eq!(extended.id(), pd.id());
        assert_eq!(pd.dealloc().unwrap_err().errno(), libc::EBUSY);
        let ah = extended.create_ah(&loopback()).unwrap();
        assert_eq!(extended.dealloc().unwrap_err().errno(), libc::EBUSY);
        drop(ah);
        assert!(extended.dealloc().is_ok());
        drop(extended);
        assert!(pd.dealloc().is_ok());
    }
}
