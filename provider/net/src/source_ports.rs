//! Packets of other users of this host are kept from our queue pairs, by the port that they come
//! from.
//!
//! RoCEv2 knows no sender but an address, and every user of this host may send from its addresses.
//! Only this user can send from the local port ([`crate::local_port`]), which is where its packets
//! to this host come from. A packet from an address of this host and from another port is dropped,
//! unless the RoCE port of that address belongs to another user: then it comes from the card of
//! that user, which is like another host. Remote hosts, real cards and the kernel's rxe use any
//! source port; what comes from them is not looked at here.
//!
//! What is dropped here has taken the place of something else in the receive buffer. So after one
//! such packet the kernel is told to drop them itself (`source_filter`), and left alone again when
//! it has dropped nothing for `PERIOD`. Touches the program of the socket and the kernel's table of
//! UDP sockets.

use crate::link::RxMeta;
use crate::source_filter;
use crate::udp::UdpLink;
use crate::udp_table;
use roxe_transport::time::Instant;
use roxe_wire::Gid;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// For how long the kernel is left alone with its program.
const PERIOD: Duration = Duration::from_millis(20);
/// How long the owner of an address is taken to be the same.
const OWNER_KEPT: Duration = Duration::from_secs(1);
/// Shortest pause between two looks at the kernel's table, which a flood from many addresses
/// causes.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Most cards of other users that are known at a time.
const MAX_CARDS: usize = 64;

/// What is known of the source ports of this host.
#[derive(Debug, Default)]
pub struct SourcePorts {
    /// The port from which only this user sends; 0: none is known.
    local_port: u16,
    /// Addresses of this host, besides those of loopback.
    host: Vec<Gid>,
    /// Addresses whose RoCE port another user had, and when that was looked up.
    cards: Vec<(Gid, Instant)>,
    /// When the table is looked at again for an address that is in none of the lists.
    look_again: Instant,
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
    /// Takes over the addresses of this host, and the port of this user for packets between them.
    pub fn set_host(&mut self, addresses: &[Gid], local_port: u16) {
        self.host = addresses.to_vec();
        self.local_port = local_port;
    }

    /// The port from which only this user sends.
    pub fn local_port(&self) -> u16 {
        self.local_port
    }

    /// Returns true if a packet with this source may be handed on: false if another user of this
    /// host sent it in the name of an address that this user may have.
    #[inline]
    pub fn admit(&mut self, meta: &RxMeta, now: Instant) -> bool {
        meta.src_port == self.local_port || !self.is_local(meta.src) || self.is_card_of_other_user(meta.src, now)
    }

    #[cold]
    fn is_card_of_other_user(&mut self, src: Gid, now: Instant) -> bool {
        self.cards.retain(|(_, seen)| now.since(*seen) < OWNER_KEPT);
        if self.cards.iter().any(|(card, _)| *card == src) {
            return true;
        }
        if now < self.look_again || self.cards.len() >= MAX_CARDS {
            return false;
        }
        self.look_again = now.after(LOOK_AGAIN);
        let is_card = udp_table::is_card_of_other_user(src);
        if is_card {
            self.cards.push((src, now));
        }
        is_card
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
        let cards: Vec<_> = self.cards.iter().map(|(gid, _)| *gid).collect();
        let program = source_filter::program(link.gid(), link.local_port(), &self.host, &cards);
        let program = program.ok_or(io::ErrorKind::ArgumentListTooLong);
        let filtered = program.map_err(io::Error::from).and_then(|mut program| link.filter(&mut program));
        filtered.inspect_err(|_| link.end_filter())
    }

    fn is_local(&self, gid: Gid) -> bool {
        gid.to_ip().is_loopback() || self.host.contains(&gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::TakenDrops;
    use roxe_wire::ROCE_PORT;
    use std::net::{Ipv4Addr, UdpSocket};

    const LOCAL_PORT: u16 = 50_001;

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
    fn packets_of_this_host_come_from_the_local_port() {
        let mut ports = SourcePorts::default();
        ports.set_host(&[Ipv4Addr::new(10, 9, 8, 7).into()], LOCAL_PORT);
        let here = [127, 78, 9, 1];
        let mut admits = |src, port| ports.admit(&meta(src, port, here), Instant(0));
        for src in [here, [10, 9, 8, 7], [127, 0, 0, 5]] {
            assert!(admits(src, LOCAL_PORT));
            assert!(!admits(src, ROCE_PORT) && !admits(src, 40_000), "any user can send from these");
        }
        assert!(admits([10, 9, 8, 6], 40_000), "another host sends from any port");
    }

    #[test]
    fn packets_of_a_known_card_of_another_user_pass_for_a_while() {
        let mut ports = SourcePorts::default();
        let card = [127, 78, 9, 9];
        ports.set_host(&[], LOCAL_PORT);
        ports.cards.push((Gid::from(Ipv4Addr::from(card)), Instant(0)));
        let packet = meta(card, ROCE_PORT, [127, 78, 9, 1]);
        assert!(ports.admit(&packet, Instant(0)));
        // The kernel's table has no socket of another user there.
        assert!(!ports.admit(&packet, Instant(0).after(OWNER_KEPT)));
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
