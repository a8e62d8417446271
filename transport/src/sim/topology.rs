//! Nodes, their addresses, and the links that a packet takes from one to another.
//!
//! May touch: [`super::link`]. Nodes are numbered from 0.

use super::link::{Link, LinkSpec};
use core::net::Ipv4Addr;
use core::time::Duration;
use roxe_wire::Gid;

/// The address of node `node`: 10.0.0.1 and on.
///
/// # Panics
/// When there are more nodes than addresses in 10.0.0.0/8.
pub fn address(node: usize) -> Gid {
    let [zero, high, mid, low] = u32::try_from(node + 1).expect("few nodes").to_be_bytes();
    assert_eq!(zero, 0, "few nodes");
    Ipv4Addr::new(10, high, mid, low).into()
}

/// The node with this address.
pub fn node_at(gid: Gid) -> Option<usize> {
    let [.., 10, high, mid, low] = gid.0 else { return None };
    (u32::from_be_bytes([0, high, mid, low]) as usize).checked_sub(1)
}

/// The links of a way, in order; three at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way([Option<u32>; 3]);

impl Way {
    /// The next link; the rest of the way is left.
    pub fn next_link(&mut self) -> Option<usize> {
        let [first, second, third] = self.0;
        self.0 = [second, third, None];
        first.map(|link| link as usize)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// One link that everybody uses; it has no bandwidth, so nobody notices.
    Direct,
    /// Every node has a link to one switch and one from it.
    Star,
    /// Two stars of alternate nodes, joined by one cable.
    Dumbbell,
}

/// The links of a network and who uses them.
#[derive(Clone, Debug)]
pub struct Topology {
    shape: Shape,
    links: Vec<Link>,
}

impl Topology {
    /// Every node reaches every other as if by a cable of its own that only delays.
    pub fn direct(latency: Duration) -> Self {
        Self { shape: Shape::Direct, links: vec![Link::new(LinkSpec::delay(latency))] }
    }

    /// `nodes` nodes around a switch; the queue of a link from the switch is that of an output
    /// port.
    pub fn star(nodes: usize, spec: LinkSpec) -> Self {
        Self { shape: Shape::Star, links: vec![Link::new(spec); 2 * nodes] }
    }

    /// Two switches with the even and the odd nodes around them, joined by `trunk` in each
    /// direction.
    pub fn dumbbell(nodes: usize, spec: LinkSpec, trunk: LinkSpec) -> Self {
        let mut links = vec![Link::new(spec); 2 * nodes];
        links.extend([Link::new(trunk), Link::new(trunk)]);
        Self { shape: Shape::Dumbbell, links }
    }

    /// The link from `node` to its switch.
    pub fn up(&mut self, node: usize) -> &mut Link {
        self.link(2 * node)
    }

    /// The link from the switch to `node`.
    pub fn down(&mut self, node: usize) -> &mut Link {
        self.link(2 * node + 1)
    }

    /// All links.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// A link by its number on a [`Way`].
    pub fn link(&mut self, index: usize) -> &mut Link {
        &mut self.links[index]
    }

    /// The way from `from` to `to`.
    pub fn way(&self, from: usize, to: usize) -> Way {
        let index = |link: usize| u32::try_from(link).ok();
        let (up, down) = (index(2 * from), index(2 * to + 1));
        match self.shape {
            Shape::Direct => Way([Some(0), None, None]),
            Shape::Dumbbell if from % 2 != to % 2 => Way([up, index(self.links.len() - 2 + from % 2), down]),
            Shape::Star | Shape::Dumbbell => Way([up, down, None]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(mut way: Way) -> Vec<usize> {
        core::iter::from_fn(|| way.next_link()).collect()
    }

    #[test]
    fn addresses_name_nodes() {
        for node in [0, 1, 254, 255, 256, 70_000] {
            assert_eq!(node_at(address(node)), Some(node));
        }
        assert_eq!(address(0), Ipv4Addr::new(10, 0, 0, 1).into());
        assert_eq!(node_at(Gid([9; 16])), None);
    }

    #[test]
    fn ways_lead_through_the_switches() {
        let spec = LinkSpec::delay(Duration::ZERO);
        assert_eq!(links(Topology::direct(Duration::ZERO).way(0, 1)), [0]);
        assert_eq!(links(Topology::star(4, spec).way(0, 3)), [0, 7]);
        let dumbbell = Topology::dumbbell(4, spec, spec);
        assert_eq!(links(dumbbell.way(0, 2)), [0, 5]);
        assert_eq!(links(dumbbell.way(0, 3)), [0, 8, 7]);
        assert_eq!(links(dumbbell.way(3, 0)), [6, 9, 1]);
    }
}
