//! Which source ports of this host are ours: packets of other users of the host are kept from our
//! queue pairs.
//!
//! RoCEv2 knows no sender but an address, and everybody on this host may send from its addresses.
//! What nobody can do is to bind a port that another user has. So a packet that comes from an
//! address of this host has to come from the RoCE port, which at an address that we have is ours,
//! or from one that a process of our user has for sending to its own address and left a name for in
//! the runtime directory (`tx_retention`). Remote hosts, real cards and the kernel's rxe use any
//! source port; what comes from them is not looked at here.
//!
//! The name of a port that is not known is looked for once every `PERIOD`, which takes no time to
//! wait and a system call: who floods us from all ports costs one call for each of them, and no
//! memory beyond two bits.
//!
//! What is dropped here has taken the place of something else in the receive buffer. So after one
//! packet of another user the kernel is told which ports are ours (`source_filter`), by the names
//! that there are at the time, and drops the others itself. It is told anew every `PERIOD`, and
//! left alone again when it has dropped nothing for so long. Touches the names, and the program of
//! the socket.

use crate::link::{ROCE_PORT, RxMeta};
use crate::named::Probe;
use crate::port_names::{PortName, PortsOf};
use crate::source_filter;
use crate::udp::UdpLink;
use roxe_transport::time::Instant;
use roxe_wire::Gid;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long what was found of a port is believed: so long packets of one that was opened meanwhile
/// may be lost, and what another user sends from one that was closed meanwhile may be taken.
const PERIOD: Duration = Duration::from_millis(20);
/// Words of a set of ports.
const WORDS: usize = (1 << 16) / 64;

/// What is known of the source ports of this host.
#[derive(Debug, Default)]
pub struct SourcePorts {
    /// Addresses of this host, besides those of loopback.
    host: Vec<Gid>,
    probe: Option<Probe>,
    found: Vec<Found>,
    filters: Vec<Filter>,
    /// When the filters are looked at; `None`: there are none.
    due: Option<Instant>,
    /// When the kernel could not be told.
    failed_at: Option<Instant>,
}

/// A socket for which the kernel drops packets of other users.
#[derive(Debug)]
struct Filter {
    link: Weak<UdpLink>,
    /// How many datagrams it had dropped when it was told last.
    drops: u32,
}

/// What was found of the ports of one address.
#[derive(Debug)]
struct Found {
    address: Gid,
    since: Instant,
    looked_for: Box<[u64; WORDS]>,
    ours: Box<[u64; WORDS]>,
}

impl SourcePorts {
    /// These are the addresses of this host.
    pub fn set_host(&mut self, addresses: &[Gid]) {
        self.host = addresses.to_vec();
    }

    /// Whether what came like this may be handed on: not if another user of this host sent it.
    #[inline]
    pub fn admit(&mut self, meta: &RxMeta, now: Instant) -> bool {
        meta.src_port == ROCE_PORT || self.admit_other(meta, now)
    }

    fn admit_other(&mut self, meta: &RxMeta, now: Instant) -> bool {
        if !self.is_local(meta.src) {
            return true;
        }
        // Nobody of ours sends from such a port to any other address.
        meta.src == meta.dst && self.is_ours(meta.src, meta.src_port, now)
    }

    /// A packet of another user has come by `link`: from now on the kernel drops those, for some
    /// time. If it cannot be told, they are dropped here.
    #[cold]
    pub fn keep_out(&mut self, link: &Arc<UdpLink>, now: Instant) {
        if link.is_filtered() || self.failed_at.is_some_and(|at| now.since(at) < PERIOD) {
            return;
        }
        if self.tell_kernel(link).is_err() {
            self.failed_at = Some(now);
            return;
        }
        self.filters.push(Filter { link: Arc::downgrade(link), drops: link.all_drops() });
        self.due.get_or_insert_with(|| now.after(PERIOD));
    }

    /// When [`SourcePorts::renew_filters`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Tells the kernel which ports are ours by now, or that it need not drop anything any more.
    #[cold]
    pub fn renew_filters(&mut self, now: Instant) {
        let mut filters = std::mem::take(&mut self.filters);
        filters.retain_mut(|filter| {
            let Some(link) = filter.link.upgrade() else { return false };
            let before = std::mem::replace(&mut filter.drops, link.all_drops());
            if before == filter.drops {
                link.end_filter();
                return false;
            }
            self.tell_kernel(&link).is_ok()
        });
        self.due = (!filters.is_empty()).then(|| now.after(PERIOD));
        self.filters = filters;
    }

    /// Without the names no socket may be filtered: what is ours would be dropped unseen.
    fn tell_kernel(&mut self, link: &UdpLink) -> io::Result<()> {
        let filtered = self.names_of(link.gid()).and_then(|ports| {
            let program = source_filter::program(link.gid(), &ports, &self.host);
            link.filter(&mut program.ok_or(io::ErrorKind::ArgumentListTooLong)?)
        });
        filtered.inspect_err(|_| link.end_filter())
    }

    /// The ports of `address` that have a name, also those of processes that have died.
    fn names_of(&mut self, address: Gid) -> io::Result<Vec<u16>> {
        let prefix = PortsOf(address).to_string();
        let names = self.probe()?.names_that_begin_with(&prefix)?;
        Ok(names.iter().filter_map(|name| name.strip_prefix(&prefix)?.parse().ok()).collect())
    }

    fn probe(&mut self) -> io::Result<&Probe> {
        match &mut self.probe {
            Some(probe) => Ok(probe),
            none => Ok(none.insert(Probe::new()?)),
        }
    }

    fn is_local(&self, gid: Gid) -> bool {
        is_loopback(gid) || self.host.contains(&gid)
    }

    fn is_ours(&mut self, address: Gid, port: u16, now: Instant) -> bool {
        if self.probe.is_none() {
            self.probe = Probe::new().ok();
        }
        // Without descriptors nobody can be told from anybody.
        let Some(probe) = &self.probe else { return false };
        let at = self.found.iter().position(|found| found.address == address).unwrap_or_else(|| {
            self.found.push(Found::new(address, now));
            self.found.len() - 1
        });
        let look = || probe.finds(&PortName { address, port });
        self.found.get_mut(at).is_some_and(|found| found.is_ours(port, now, look))
    }
}

impl Found {
    fn new(address: Gid, now: Instant) -> Self {
        Self { address, since: now, looked_for: Box::new([0; WORDS]), ours: Box::new([0; WORDS]) }
    }

    fn is_ours(&mut self, port: u16, now: Instant, look: impl FnOnce() -> bool) -> bool {
        if now.since(self.since) >= PERIOD {
            self.since = now;
            self.looked_for.fill(0);
            self.ours.fill(0);
        }
        let (word, bit) = (usize::from(port) / 64, 1u64 << (port % 64));
        if self.looked_for[word] & bit == 0 {
            self.looked_for[word] |= bit;
            self.ours[word] |= if look() { bit } else { 0 };
        }
        self.ours[word] & bit != 0
    }
}

fn is_loopback(gid: Gid) -> bool {
    match gid.to_ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drops::TakenDrops;
    use crate::port_names::claim;
    use std::cell::Cell;
    use std::net::{Ipv4Addr, UdpSocket};

    fn meta(src: [u8; 4], src_port: u16, dst: [u8; 4]) -> RxMeta {
        let [src, dst] = [src, dst].map(|ip| Gid::from(Ipv4Addr::from(ip)));
        RxMeta {
            len: 16,
            segment: 16,
            first_index: 0,
            src,
            dst,
            src_port,
            traffic_class: 0,
            hop_limit: 64,
            sealed: true,
            by_ring: false,
        }
    }

    #[test]
    fn packets_of_this_host_come_from_the_roce_port_or_one_that_is_ours() {
        let mut ports = SourcePorts::default();
        ports.set_host(&[Ipv4Addr::new(10, 9, 8, 7).into()]);
        let here = [127, 78, 9, 1];
        let mut admits = |src, port| ports.admit(&meta(src, port, here), Instant(0));
        assert!(admits(here, ROCE_PORT) && admits([10, 9, 8, 7], ROCE_PORT) && admits([127, 0, 0, 5], ROCE_PORT));
        assert!(!admits(here, 40_000) && !admits([10, 9, 8, 7], 40_000) && !admits([127, 0, 0, 5], 40_000));
        assert!(admits([10, 9, 8, 6], 40_000), "another host sends from any port");
        let _claimed = claim(Ipv4Addr::from(here).into(), 40_001).unwrap();
        assert!(admits(here, 40_001) && !admits([127, 0, 0, 5], 40_001) && !admits([10, 9, 8, 7], 40_001));
    }

    #[test]
    fn the_kernel_filters_packets_of_other_users_until_none_come_and_learns_new_ports() {
        let here = Ipv4Addr::new(127, 78, 9, 2);
        let mut ports = SourcePorts::default();
        let link = Arc::new(UdpLink::open(here.into(), 1, true, true).unwrap());
        let [other_user, later] = [(); 2].map(|()| UdpSocket::bind((here, 0)).unwrap());
        let arrives = |from: &UdpSocket| {
            from.send_to(&[7; 20], (here, ROCE_PORT)).unwrap();
            link.recv(&mut [0; 65_536]).unwrap().is_some()
        };
        let after = |periods: u64| Instant(periods * PERIOD.as_nanos() as u64);
        assert!(arrives(&other_user));
        ports.keep_out(&link, after(0));
        assert_eq!((arrives(&other_user), ports.due()), (false, Some(after(1))));
        assert_eq!(link.take_drops(), TakenDrops { lost: 0, filtered: 1 });
        let _claimed = claim(here.into(), later.local_addr().unwrap().port()).unwrap();
        assert!(!arrives(&later), "the kernel has not heard of it");
        ports.renew_filters(after(1));
        assert_eq!((arrives(&later), arrives(&other_user), ports.due()), (true, false, Some(after(2))));
        assert_eq!(link.take_drops(), TakenDrops { lost: 0, filtered: 2 });
        ports.renew_filters(after(2));
        assert_eq!((arrives(&later), ports.due()), (true, Some(after(3))));
        ports.renew_filters(after(3));
        assert_eq!((arrives(&other_user), ports.due(), link.is_filtered()), (true, None, false));
        assert_eq!(link.take_drops(), TakenDrops::default());
    }

    #[test]
    fn a_closed_socket_is_filtered_no_more() {
        let mut ports = SourcePorts::default();
        let link = Arc::new(UdpLink::open(Ipv4Addr::new(127, 78, 9, 3).into(), 1, true, true).unwrap());
        ports.keep_out(&link, Instant(0));
        assert!(link.is_filtered());
        drop(link);
        ports.renew_filters(Instant(1));
        assert_eq!(ports.due(), None);
    }

    #[test]
    fn a_port_is_looked_for_once_in_a_while_however_much_comes_from_it() {
        let mut found = Found::new(Gid::default(), Instant(0));
        let looks = Cell::new(0);
        for at in [0, 1, PERIOD.as_nanos() as u64 - 1] {
            for port in [1, 64, u16::MAX] {
                let is_ours = found.is_ours(port, Instant(at), || {
                    looks.set(looks.get() + 1);
                    port == 64
                });
                assert_eq!(is_ours, port == 64);
            }
        }
        assert_eq!(looks.get(), 3);
        assert!(!found.is_ours(64, Instant(PERIOD.as_nanos() as u64), || false), "it was closed meanwhile");
    }
}
