//! Links and switches: latency, bandwidth and queues, node addresses and routes.
//!
//! Nodes are numbered from 0. A link stores only the time when it will be free: the time until
//! then, times the bandwidth, is the length of its queue.

use core::net::Ipv4Addr;
use core::time::Duration;
use roxe_transport::time::Instant;
use roxe_wire::{ECN, Gid, NetHeader};

/// Bytes around a UDP payload over IPv4: preamble, Ethernet header, checksum, gap, IPv4 and UDP
/// header.
const IPV4_OVERHEAD: usize = 8 + 14 + 4 + 12 + 20 + 8;
/// Additional bytes of an IPv6 header.
const IPV6_EXTRA: usize = 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSpec {
    pub latency: Duration,
    /// Bits per second; `None`: infinite, so that nothing is queued.
    pub bandwidth: Option<u64>,
    /// Queue limit in bytes (tail drop). `None`: unlimited.
    pub queue: Option<u32>,
    /// Queue length in bytes above which ECN-capable packets are marked CE. `None`: never.
    pub mark_above: Option<u32>,
}

impl LinkSpec {
    pub const fn delay(latency: Duration) -> Self {
        Self { latency, bandwidth: None, queue: None, mark_above: None }
    }

    /// Creates the specification of a link with a bandwidth in Gbit/s.
    pub const fn gigabits(latency: Duration, gigabits: u64) -> Self {
        Self { latency, bandwidth: Some(gigabits * 1_000_000_000), queue: None, mark_above: None }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTally {
    pub carried: u64,
    pub overflowed: u64,
    pub marked: u64,
    /// Maximum queue length in bytes.
    pub longest: u64,
}

/// One direction of a cable, with its queue.
#[derive(Clone, Debug, Default)]
pub struct Link {
    pub spec: LinkSpec,
    pub tally: LinkTally,
    free_at: Instant,
}

impl Link {
    pub fn new(spec: LinkSpec) -> Self {
        Self { spec, ..Self::default() }
    }

    /// Enqueues a packet with a UDP payload of `len` bytes. Returns the arrival time at the other
    /// end, or `None` if the queue is full. May mark `net`.
    pub fn carry(&mut self, now: Instant, net: &mut NetHeader, len: usize) -> Option<Instant> {
        let Some(bandwidth) = self.spec.bandwidth else {
            self.tally.carried += 1;
            return Some(now.after(self.spec.latency));
        };
        let size = (len + IPV4_OVERHEAD + if net.dst.is_ipv4() { 0 } else { IPV6_EXTRA }) as u64;
        let waiting = self.free_at.since(now).as_nanos() * u128::from(bandwidth) / 8_000_000_000;
        let waiting = u64::try_from(waiting).unwrap_or(u64::MAX);
        if self.spec.queue.is_some_and(|queue| waiting + size > u64::from(queue)) {
            self.tally.overflowed += 1;
            return None;
        }
        self.tally.carried += 1;
        self.tally.longest = self.tally.longest.max(waiting + size);
        if self.spec.mark_above.is_some_and(|limit| waiting > u64::from(limit)) && net.traffic_class & ECN != 0 {
            self.tally.marked += 1;
            net.mark();
        }
        self.free_at = self.free_at.max(now).after(Duration::from_nanos((size * 8_000_000_000).div_ceil(bandwidth)));
        Some(self.free_at.after(self.spec.latency))
    }
}

/// Returns the address of `node`, from 10.0.0.1 on.
pub fn address(node: usize) -> Gid {
    let [zero, high, mid, low] = u32::try_from(node + 1).expect("few nodes").to_be_bytes();
    assert_eq!(zero, 0, "few nodes");
    Ipv4Addr::new(10, high, mid, low).into()
}

pub fn node_at(gid: Gid) -> Option<usize> {
    let [.., 10, high, mid, low] = gid.0 else { return None };
    (u32::from_be_bytes([0, high, mid, low]) as usize).checked_sub(1)
}

/// The links from one node to another, in order; at most three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPath([Option<u32>; 3]);

impl LinkPath {
    pub fn next_link(&mut self) -> Option<usize> {
        let [first, second, third] = self.0;
        self.0 = [second, third, None];
        first.map(|link| link as usize)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// One shared link without bandwidth, so that nothing queues.
    Direct,
    /// Every node has a link to one switch and one from it.
    Star,
    /// Two stars of alternate nodes, joined by one cable.
    Dumbbell,
}

#[derive(Clone, Debug)]
pub struct Topology {
    shape: Shape,
    links: Vec<Link>,
}

impl Topology {
    /// Creates direct links, which only delay, between every two nodes.
    pub fn direct(latency: Duration) -> Self {
        Self { shape: Shape::Direct, links: vec![Link::new(LinkSpec::delay(latency))] }
    }

    /// Creates a star of `nodes` nodes around a switch; the link from the switch to a node has the
    /// queue of an output port.
    pub fn star(nodes: usize, spec: LinkSpec) -> Self {
        Self { shape: Shape::Star, links: vec![Link::new(spec); 2 * nodes] }
    }

    /// Creates two switches with the even and the odd nodes around them, joined by `trunk` in each
    /// direction.
    pub fn dumbbell(nodes: usize, spec: LinkSpec, trunk: LinkSpec) -> Self {
        let mut links = vec![Link::new(spec); 2 * nodes];
        links.extend([Link::new(trunk), Link::new(trunk)]);
        Self { shape: Shape::Dumbbell, links }
    }

    /// Returns the link from `node` to its switch.
    pub fn up(&mut self, node: usize) -> &mut Link {
        self.link(2 * node)
    }

    /// Returns the link from its switch to `node`.
    pub fn down(&mut self, node: usize) -> &mut Link {
        self.link(2 * node + 1)
    }

    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns a link by its number in a [`LinkPath`].
    pub fn link(&mut self, index: usize) -> &mut Link {
        &mut self.links[index]
    }

    pub fn path(&self, from: usize, to: usize) -> LinkPath {
        let index = |link: usize| u32::try_from(link).ok();
        let (up, down) = (index(2 * from), index(2 * to + 1));
        match self.shape {
            Shape::Direct => LinkPath([Some(0), None, None]),
            Shape::Dumbbell if from % 2 != to % 2 => LinkPath([up, index(self.links.len() - 2 + from % 2), down]),
            Shape::Star | Shape::Dumbbell => LinkPath([up, down, None]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    const US: Duration = Duration::from_micros(1);

    fn net(ecn: u8) -> NetHeader {
        let dst = Ipv4Addr::LOCALHOST.into();
        NetHeader { dst, traffic_class: 0x40 | ecn, ..NetHeader::default() }
    }

    /// A payload that makes a packet of 1,000 bytes.
    const LEN: usize = 1000 - IPV4_OVERHEAD;

    #[test]
    fn packets_arrive_at_the_bandwidth() {
        let mut link = Link::new(LinkSpec::gigabits(5 * US, 8));
        let arrivals = [0, 0, 0, 10_000].map(|now| link.carry(Instant(now), &mut net(0), LEN));
        assert_eq!(arrivals, [6_000, 7_000, 8_000, 16_000].map(|at| Some(Instant(at))));
        assert_eq!((link.tally.carried, link.tally.longest), (4, 3000));
    }

    #[test]
    fn full_queue_drops_until_packets_leave() {
        let mut link = Link::new(LinkSpec { queue: Some(2000), ..LinkSpec::gigabits(US, 8) });
        let passed = [0, 0, 0, 999, 1000].map(|now| link.carry(Instant(now), &mut net(0), LEN).is_some());
        assert_eq!(passed, [true, true, false, false, true]);
        assert_eq!((link.tally.carried, link.tally.overflowed), (3, 2));
    }

    #[test]
    fn ecn_capable_packets_are_marked_above_threshold() {
        let mut link = Link::new(LinkSpec { mark_above: Some(1000), ..LinkSpec::gigabits(US, 8) });
        let mut marks = Vec::new();
        for ecn in [0b10, 0b10, 0b10, 0b00, 0b01, 0b11] {
            let mut net = net(ecn);
            link.carry(Instant(0), &mut net, LEN).expect("carry a packet without a limit");
            marks.push(net.traffic_class);
        }
        assert_eq!(marks, [0x42, 0x42, 0x43, 0x40, 0x43, 0x43]);
        assert_eq!(link.tally.marked, 3);
    }

    #[test]
    fn link_without_bandwidth_only_delays() {
        let mut link = Link::new(LinkSpec { queue: Some(1), ..LinkSpec::delay(7 * US) });
        assert_eq!([0, 0].map(|now| link.carry(Instant(now), &mut net(0), LEN)), [Some(Instant(7000)); 2]);
    }

    fn links(mut path: LinkPath) -> Vec<usize> {
        core::iter::from_fn(|| path.next_link()).collect()
    }

    #[test]
    fn node_addresses_roundtrip() {
        for node in [0, 1, 254, 255, 256, 70_000] {
            assert_eq!(node_at(address(node)), Some(node));
        }
        assert_eq!(address(0), Ipv4Addr::new(10, 0, 0, 1).into());
        assert_eq!(node_at(Gid([9; 16])), None);
    }

    #[test]
    fn paths_pass_through_the_switches() {
        let spec = LinkSpec::delay(Duration::ZERO);
        assert_eq!(links(Topology::direct(Duration::ZERO).path(0, 1)), [0]);
        assert_eq!(links(Topology::star(4, spec).path(0, 3)), [0, 7]);
        let dumbbell = Topology::dumbbell(4, spec, spec);
        assert_eq!(links(dumbbell.path(0, 2)), [0, 5]);
        assert_eq!(links(dumbbell.path(0, 3)), [0, 8, 7]);
        assert_eq!(links(dumbbell.path(3, 0)), [6, 9, 1]);
    }
}
