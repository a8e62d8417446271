//! Types of the numbers in packets, each with its width, arithmetic and display.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum payload of a packet in bytes: the largest path MTU.
pub const MAX_PAYLOAD: usize = 4096;

const MASK_24: u32 = 0x00ff_ffff;

/// Defines numbers that have fewer bits than their integer type.
macro_rules! narrow {
    ($($(#[$meta:meta])* $name:ident: $bits:literal bits of $int:ty;)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name($int);

        impl $name {
            #[doc = concat!("Creates the number from the low ", $bits, " bits of `value`.")]
            pub const fn new(value: $int) -> Self {
                Self(value & ((1 << $bits) - 1))
            }

            #[doc = concat!("Returns the number, below 2^", $bits, ", in host byte order.")]
            pub const fn get(self) -> $int {
                self.0
            }
        }
    )+};
}

pub(crate) use narrow;

narrow! {
    /// Packet sequence number, modulo 2^24.
    ///
    /// There is no `Ord`: modular numbers have no total order. Compare with [`Psn::distance`],
    /// which is meaningful while the two lie within half the space (2^23) of each other.
    Psn: 24 bits of u32;
    /// Message sequence number: counts messages completed by a responder.
    Msn: 24 bits of u32;
    /// Queue pair number: 24 bits.
    #[derive(PartialOrd, Ord)]
    Qpn: 24 bits of u32;
}

impl Psn {
    /// Returns the PSN `n` after this one.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & MASK_24)
    }

    /// Returns the PSN `n` before this one.
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n) & MASK_24)
    }

    /// Returns the next PSN.
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// Returns `self - other` as a signed 24-bit difference: negative when `self` is older, 0 when
    /// equal, positive when newer.
    // clause: PSN-24BIT
    #[allow(clippy::cast_possible_wrap)]
    pub const fn distance(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Returns true if this PSN is older than `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.distance(other) < 0
    }

    /// Returns true if this PSN is newer than `other`.
    pub const fn is_after(self, other: Self) -> bool {
        self.distance(other) > 0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Msn {
    /// Returns the next MSN.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1) & MASK_24)
    }
}

impl Qpn {
    /// The general services interface (connection management).
    pub const GSI: Self = Self(1);
    /// Destination of multicast packets.
    pub const MULTICAST: Self = Self(MASK_24);
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Partition key: 15 bits of key, bit 15 set for a full member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pkey(pub u16);

impl Pkey {
    /// The only key a RoCE port has: default partition, full member.
    pub const DEFAULT: Self = Self(0xffff);

    /// Returns true if a packet with the key `other` may reach the owner of this key: the low 15
    /// bits are equal and not zero, and at least one of the keys is of a full member (IBA §10.9.3).
    // clause: PKEY-MATCH
    pub const fn matches(self, other: Self) -> bool {
        let (a, b) = (self.0, other.0);
        (a & 0x7fff) == (b & 0x7fff) && (a & 0x7fff) != 0 && ((a | b) & 0x8000) != 0
    }
}

impl Default for Pkey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Queue key of a datagram QP: 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Qkey(pub u32);

impl Qkey {
    /// The well-known key of QP1.
    pub const GSI: Self = Self(0x8001_0000);

    /// Returns true if the top bit is set: a work request with such a key is sent with the Q_Key of
    /// its QP (IBA §10.2.5).
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

/// Local key of a memory region: 24 bits of index, 8 bits of tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LKey(pub u32);

/// Remote key of a memory region or window: 24 bits of index, 8 bits of tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RKey(pub u32);

/// Global identifier: 16 bytes in network order. On RoCEv2 it is the IP address; IPv4 is mapped as
/// `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// First bytes of an IPv4-mapped GID.
    const IPV4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

    /// Returns the IP address; an IPv4-mapped GID gives the IPv4 address.
    // clause: GID-ADDRESS
    #[inline]
    pub fn to_ip(self) -> IpAddr {
        let [prefix @ .., a, b, c, d] = self.0;
        // Faster than `Ipv6Addr::to_ipv4_mapped`, which compares byte by byte.
        if prefix == Self::IPV4_PREFIX { Ipv4Addr::new(a, b, c, d).into() } else { Ipv6Addr::from(self.0).into() }
    }

    /// Returns true if the GID is IPv4-mapped: packets have an IPv4 header.
    #[inline]
    pub fn is_ipv4(self) -> bool {
        self.0.starts_with(&Self::IPV4_PREFIX)
    }

    /// Returns true if the GID is a multicast group: first byte 0xff, or an IPv4-mapped
    /// 224.0.0.0/4.
    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }

    /// Returns true if all bytes are zero: an empty table entry.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(v4: Ipv4Addr) -> Self {
        Self(v4.to_ipv6_mapped().octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// Payload bytes per packet of a path. The numeric values are those of verbs and CM messages
/// (1..=5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl PathMtu {
    /// All values, smallest first.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// Returns the payload bytes of a full packet: 256..=4096.
    pub const fn bytes(self) -> u32 {
        128 << (self as u32)
    }

    /// Returns the MTU with this code; `None` if the code is not in 1..=5.
    // clause: MTU-PATH
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u8 == code)
    }

    /// Returns the largest path MTU that a network device with this MTU (bytes of an IP packet)
    /// carries: like the kernel's RDMA core, the largest value not above `netdev_mtu` − 96 (40 GRH
    /// + 8 UDP + 12 BTH + 4 XRCETH + 28 AtomicETH + 4 ICRC).
    // clause: MTU-NETDEV
    pub fn for_netdev(netdev_mtu: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() + 96 <= netdev_mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // clause: PSN-24BIT
    #[test]
    fn psn_wraps_and_compares_modulo_2_24() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(0).distance(last), 1);
        assert_eq!(last.distance(Psn::new(0)), -1);
        assert!(last.is_before(Psn::new(5)));
        assert_eq!(Psn::new(0x80_0000).distance(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).distance(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(3).sub(5), Psn::new(0xff_fffe));
    }

    /// Checks all 2^24 differences from PSNs on both sides of every limit.
    // clause: PSN-24BIT
    #[test]
    #[cfg_attr(miri, ignore = "84 million numbers take Miri too long")]
    fn psn_distance_is_consistent_for_every_difference() {
        const HALF: i32 = 1 << 23;
        for base in [0, 1, 0x7f_ffff, 0x80_0000, 0xff_ffff].map(Psn::new) {
            for n in 0..1 << 24 {
                let (later, expected) = (base.add(n), if (n as i32) < HALF { n as i32 } else { n as i32 - (1 << 24) });
                let distance = later.distance(base);
                let (is_older, is_newer) = (later.is_before(base), later.is_after(base));
                assert!(distance == expected && is_older == (distance < 0) && is_newer == (distance > 0), "{base} {n}");
                // Two PSNs half the space apart are each before the other; no other two are.
                assert!(base.distance(later) == if distance == -HALF { -HALF } else { -distance }, "{base} {n}");
                assert!(later.sub(n) == base && later.get() < 1 << 24, "{base} {n}");
            }
        }
    }

    // clause: PKEY-MATCH
    #[test]
    fn pkeys_match_by_key_and_membership() {
        assert!(Pkey::DEFAULT.matches(Pkey(0x7fff)));
        assert!(!Pkey(0x7fff).matches(Pkey(0x7fff)));
        assert!(!Pkey(0x8000).matches(Pkey(0x8000)));
        assert!(!Pkey(0x8001).matches(Pkey(0x8002)));
    }

    // clause: MTU-NETDEV
    #[test]
    fn path_mtu_follows_the_kernel_rule() {
        let at = |netdev| PathMtu::for_netdev(netdev).map(PathMtu::bytes);
        assert_eq!(at(1500), Some(1024));
        assert_eq!(at(4191), Some(2048));
        assert_eq!(at(4192), Some(4096));
        assert_eq!(at(65536), Some(4096));
        assert_eq!(at(300), None);
    }

    // clause: GID-ADDRESS
    #[test]
    fn gids_convert_to_and_from_ip_addresses() {
        let v4: Gid = Ipv4Addr::LOCALHOST.into();
        assert!(v4.is_ipv4());
        assert_eq!(v4.to_ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert!(Gid::from(IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3))).is_multicast());
        assert!(!v4.is_multicast());
    }
}
