//! Address handles: destinations of datagrams and connections as programs describe them, resolved
//! to address vectors.

use crate::context::{Context, check_port};
use crate::pd::Pd;
use roxe_base::error::Error;
use roxe_base::uses::{ObjectId, Use};
use roxe_check::{Event, Object, Tracked, emit};
use roxe_net::group;
use roxe_transport::cm::Route;
use roxe_transport::wr::Av;
use roxe_wire::Gid;
use std::sync::Arc;

/// A destination as programs describe it (`struct ibv_ah_attr`).
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
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Port number.
    pub port: u8,
    /// True if the fields above except `port` are given; required on Ethernet.
    pub has_grh: bool,
    /// Service level; not used on Ethernet.
    pub sl: u8,
    /// Rate limit of a connection, Mbit/s; 0 means none.
    pub static_rate: u32,
}

impl Context {
    /// Resolves `attr`. Fails with EINVAL if there is no GRH, if `sgid_index` is unused, or if the
    /// destination is zero or of the other address family.
    pub fn resolve_av(&self, attr: &AhAttr) -> Result<Av, Error> {
        check_port(attr.port)?;
        let sgid = self.device().adapter().gids().get(attr.sgid_index.into()).unwrap_or_default();
        attr.resolve(sgid)
    }
}

impl Pd {
    /// Creates an address handle, after the neighbour is resolved. Errors of
    /// [`Context::resolve_av`]; ENETUNREACH, EHOSTUNREACH or EACCES without a route to the address;
    /// ETIMEDOUT if the neighbour has not answered for a second; ENOMEM beyond `max_ah` handles.
    // clause: AV-NEXT-HOP
    pub fn create_ah(self: &Arc<Self>, attr: &AhAttr) -> Result<Ah, Error> {
        let av = self.context().resolve_av(attr)?;
        self.context().engine().await_next_hop(Route { local: av.sgid, remote: av.dgid })?;
        let _quota = self.context().device().quotas().ahs.take()?;
        let _tracked = Tracked::new(ObjectId::next(), || Object::Ah { pd: self.object() });
        Ok(Ah { av, pd: Arc::clone(self), _use: self.hold(), _quota, _tracked })
    }
}

impl AhAttr {
    fn resolve(&self, sgid: Gid) -> Result<Av, Error> {
        // clause: AV-VALID
        if !self.has_grh {
            return Err(Error::invalid(
                "the address has no GRH, which Ethernet needs: set is_global and the grh fields",
            ));
        }
        if sgid.is_zero() {
            return Err(Error::invalid(format!("GID index {} is empty; choose one with an address", self.sgid_index)));
        }
        if self.dgid.is_zero() {
            return Err(Error::invalid("the destination GID is zero"));
        }
        let dgid = group::destination(self.dgid, sgid.is_ipv4());
        if sgid.is_ipv4() != dgid.is_ipv4() {
            emit(|| Event::FamiliesDiffer { sgid, sgid_index: self.sgid_index, dgid });
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
    _tracked: Tracked,
}

impl Ah {
    /// Returns the resolved address.
    pub fn av(&self) -> &Av {
        &self.av
    }

    /// Returns the protection domain.
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
    fn invalid_addresses_are_refused() {
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
    fn domain_is_busy_while_it_has_objects() {
        let pd = crate::testing::pd();
        let ah = pd.create_ah(&loopback()).unwrap();
        assert_eq!(pd.dealloc().unwrap_err().errno(), libc::EBUSY);
        drop(ah);
        assert!(pd.dealloc().is_ok());
    }

    #[test]
    fn extended_domain_shares_memory_and_counts_apart() {
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
