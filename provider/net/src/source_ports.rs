//! Packets of other users of this host are kept from our queue pairs, by the port that they come
//! from.
//!
//! RoCEv2 knows no sender but an address, and everybody on this host may send from its addresses.
//! What nobody can do is to bind a port that another user has. So a packet that comes from an
//! address of this host has to come from the RoCE port, which at an address that we have is ours.
//! Remote hosts, real cards and the kernel's rxe use any source port; what comes from them is not
//! looked at here.
//!
//! What is dropped here has taken the place of something else in the receive buffer. So after one
//! packet of another user the kernel is told to drop such packets itself (`source_filter`), and
//! left alone again when it has dropped nothing for `PERIOD`. Touches the program of the socket.

use crate::link::RxMeta;
use crate::source_filter;
use crate::udp::UdpLink;
use roxe_transport::time::Instant;
use roxe_wire::{Gid, ROCE_PORT};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// For how long the kernel is left alone with its program.
const PERIOD: Duration = Duration::from_millis(20);

/// What is known of the source ports of this host.
#[derive(Debug, Default)]
pub struct SourcePorts {
    /// Addresses of this host, besides those of loopback.
    host: Vec<Gid>,
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

impl SourcePorts {
    /// These are the addresses of this host.
    pub fn set_host(&mut self, addresses: &[Gid]) {
        self.host = addresses.to_vec();
    }

    /// Whether what came like this may be handed on: not if another user of this host sent it.
    #[inline]
    pub fn admit(&self, meta: &RxMeta) -> bool {
        meta.src_port == ROCE_PORT || !self.is_local(meta.src)
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

    /// Tells the kernel which addresses are of this host by now, or that it need not drop anything
    /// any more.
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

    fn tell_kernel(&self, link: &UdpLink) -> io::Result<()> {
        let program = source_filter::program(link.gid(), &self.host).ok_or(io::ErrorKind::ArgumentListTooLong);
        let filtered = program.map_err(io::Error::from).and_then(|mut program| link.filter(&mut program));
        filtered.inspect_err(|_| link.end_filter())
    }

    fn is_local(&self, gid: Gid) -> bool {
        is_loopback(gid) || self.host.contains(&gid)
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
    fn packets_of_this_host_come_from_the_roce_port() {
        let mut ports = SourcePorts::default();
        ports.set_host(&[Ipv4Addr::new(10, 9, 8, 7).into()]);
        let here = [127, 78, 9, 1];
        let admits = |src, port| ports.admit(&meta(src, port, here));
        assert!(admits(here, ROCE_PORT) && admits([10, 9, 8, 7], ROCE_PORT) && admits([127, 0, 0, 5], ROCE_PORT));
        assert!(!admits(here, 40_000) && !admits([10, 9, 8, 7], 40_000) && !admits([127, 0, 0, 5], 40_000));
        assert!(admits([10, 9, 8, 6], 40_000), "another host sends from any port");
    }

    #[test]
    fn the_kernel_filters_packets_of_other_users_until_none_come() {
        let here = Ipv4Addr::new(127, 78, 9, 2);
        let mut ports = SourcePorts::default();
        let link = Arc::new(UdpLink::open(here.into(), 1, true, true).unwrap());
        let other_user = UdpSocket::bind((here, 0)).unwrap();
        let arrives = || {
            other_user.send_to(&[7; 20], (here, ROCE_PORT)).unwrap();
            link.recv(&mut [0; 65_536]).unwrap().is_some()
        };
        let after = |periods: u64| Instant(periods * PERIOD.as_nanos() as u64);
        assert!(arrives());
        ports.keep_out(&link, after(0));
        assert_eq!((arrives(), ports.due()), (false, Some(after(1))));
        assert_eq!(link.take_drops(), TakenDrops { lost: 0, filtered: 1 });
        ports.renew_filters(after(1));
        assert_eq!((arrives(), ports.due()), (false, Some(after(2))));
        assert_eq!(link.take_drops(), TakenDrops { lost: 0, filtered: 1 });
        ports.renew_filters(after(2));
        assert_eq!((link.is_filtered(), ports.due()), (true, Some(after(3))));
        ports.renew_filters(after(3));
        assert_eq!((arrives(), ports.due(), link.is_filtered()), (true, None, false));
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
}
