//! Addresses of multicast groups.
//!
//! A group is an IPv6 multicast address, or an IPv4 one written as `::ffff:a.b.c.d` (Linux RoCEv2)
//! or as `ff0e::ffff:a.b.c.d` (RoCEv1, still used by programs). The last form is also an IPv6
//! address: an IPv4 sender means the IPv4 group by it, and a receiver joins both.

use roxe_wire::Gid;
use std::net::Ipv4Addr;

/// The first 12 bytes of `ff0e::ffff:a.b.c.d`.
const EMBEDDED: [u8; 12] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Returns the IPv4 group in `ff0e::ffff:a.b.c.d`.
pub fn embedded_ipv4(group: Gid) -> Option<Gid> {
    let (prefix, last) = group.0.split_last_chunk::<4>()?;
    let v4 = Ipv4Addr::from(*last);
    (prefix == EMBEDDED && v4.is_multicast()).then(|| v4.into())
}

/// Returns the destination of packets to `group` from a source of the given family.
pub fn destination(group: Gid, from_ipv4: bool) -> Gid {
    embedded_ipv4(group).filter(|_| from_ipv4).unwrap_or(group)
}

/// Addresses to join for `group`.
pub fn addresses(group: Gid) -> impl Iterator<Item = Gid> {
    [Some(group), embedded_ipv4(group)].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv6Addr};

    fn v6(text: &str) -> Gid {
        IpAddr::V6(text.parse::<Ipv6Addr>().unwrap()).into()
    }

    // clause: UD-MULTICAST
    #[test]
    fn ipv4_group_has_three_forms() {
        let mapped = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
        let embedded = v6("ff0e::ffff:239.1.2.3");
        assert_eq!((destination(embedded, true), destination(embedded, false)), (mapped, embedded));
        assert_eq!(addresses(embedded).collect::<Vec<_>>(), [embedded, mapped]);
        assert_eq!(addresses(mapped).collect::<Vec<_>>(), [mapped]);
    }

    #[test]
    fn other_addresses_stand_for_themselves() {
        for other in [v6("ff0e::1"), v6("ff0e::ffff:10.1.2.3"), v6("ff05::ffff:239.1.2.3"), Ipv4Addr::LOCALHOST.into()]
        {
            assert_eq!(destination(other, true), other);
            assert_eq!(addresses(other).collect::<Vec<_>>(), [other]);
        }
    }
}
