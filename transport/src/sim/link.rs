//! A link: time to travel, time to be sent, a queue that overflows, and congestion marks.
//!
//! May touch: `time` and `roxe_wire`. A link sends one packet after the other, so the instant when
//! it will be free says everything about its queue: what lies between now and then, times the
//! bandwidth, is waiting.

use crate::time::Instant;
use core::time::Duration;
use roxe_wire::{ECN, NetHeader};

/// Bytes around a UDP payload over IPv4: preamble, Ethernet header, checksum, gap, IPv4 and UDP
/// header.
const AROUND_IPV4: usize = 8 + 14 + 4 + 12 + 20 + 8;
/// An IPv6 header is this much longer.
const IPV6_MORE: usize = 20;

/// What a link is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSpec {
    /// Time a bit travels.
    pub latency: Duration,
    /// Bits per second; `None`: sending takes no time, so nothing ever waits.
    pub bandwidth: Option<u64>,
    /// Bytes that may wait; what comes on top is lost (tail drop). `None`: no bound.
    pub queue: Option<u32>,
    /// Bytes waiting from which on packets that allow it are marked CE. `None`: never.
    pub mark_above: Option<u32>,
}

impl LinkSpec {
    /// A link that only delays.
    pub const fn delay(latency: Duration) -> Self {
        Self { latency, bandwidth: None, queue: None, mark_above: None }
    }

    /// A link of this many gigabits per second.
    pub const fn gigabits(latency: Duration, gigabits: u64) -> Self {
        Self { latency, bandwidth: Some(gigabits * 1_000_000_000), queue: None, mark_above: None }
    }
}

/// What a link did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTally {
    /// Packets it carried.
    pub carried: u64,
    /// Packets that found its queue full.
    pub overflowed: u64,
    /// Packets it marked CE.
    pub marked: u64,
    /// The most bytes that ever waited.
    pub longest: u64,
}

/// One direction of a cable and the queue in front of it.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// What it is like.
    pub spec: LinkSpec,
    /// What it did so far.
    pub tally: LinkTally,
    free_at: Instant,
}

impl Link {
    /// A link on which nothing waits.
    pub fn new(spec: LinkSpec) -> Self {
        Self { spec, ..Self::default() }
    }

    /// Takes a packet with a UDP payload of `len` bytes in. Returns when it arrives at the other
    /// end, or `None` when the queue was full; `net` may get a congestion mark.
    pub fn carry(&mut self, now: Instant, net: &mut NetHeader, len: usize) -> Option<Instant> {
        let Some(bandwidth) = self.spec.bandwidth else {
            self.tally.carried += 1;
            return Some(now.after(self.spec.latency));
        };
        let size = (len + AROUND_IPV4 + if net.dst.is_ipv4() { 0 } else { IPV6_MORE }) as u64;
        let waiting = bytes_in(self.free_at.since(now), bandwidth);
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

/// Bytes that pass in `time`.
fn bytes_in(time: Duration, bandwidth: u64) -> u64 {
    u64::try_from(time.as_nanos() * u128::from(bandwidth) / 8_000_000_000).unwrap_or(u64::MAX)
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
    const LEN: usize = 1000 - AROUND_IPV4;

    #[test]
    fn packets_follow_each_other_at_the_bandwidth() {
        let mut link = Link::new(LinkSpec::gigabits(5 * US, 8));
        let arrivals = [0, 0, 0, 10_000].map(|now| link.carry(Instant(now), &mut net(0), LEN));
        assert_eq!(arrivals, [6_000, 7_000, 8_000, 16_000].map(|at| Some(Instant(at))));
        assert_eq!((link.tally.carried, link.tally.longest), (4, 3000));
    }

    #[test]
    fn a_full_queue_drops_and_empties_with_time() {
        let mut link = Link::new(LinkSpec { queue: Some(2000), ..LinkSpec::gigabits(US, 8) });
        let passed = [0, 0, 0, 999, 1000].map(|now| link.carry(Instant(now), &mut net(0), LEN).is_some());
        assert_eq!(passed, [true, true, false, false, true]);
        assert_eq!((link.tally.carried, link.tally.overflowed), (3, 2));
    }

    #[test]
    fn only_packets_that_allow_it_are_marked_above_the_threshold() {
        let mut link = Link::new(LinkSpec { mark_above: Some(1000), ..LinkSpec::gigabits(US, 8) });
        let mut marks = Vec::new();
        for ecn in [0b10, 0b10, 0b10, 0b00, 0b01, 0b11] {
            let mut net = net(ecn);
            link.carry(Instant(0), &mut net, LEN).expect("no limit");
            marks.push(net.traffic_class);
        }
        assert_eq!(marks, [0x42, 0x42, 0x43, 0x40, 0x43, 0x43]);
        assert_eq!(link.tally.marked, 3);
    }

    #[test]
    fn a_link_without_bandwidth_only_delays() {
        let mut link = Link::new(LinkSpec { queue: Some(1), ..LinkSpec::delay(7 * US) });
        assert_eq!([0, 0].map(|now| link.carry(Instant(now), &mut net(0), LEN)), [Some(Instant(7000)); 2]);
    }
}
