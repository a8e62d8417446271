//! Packets of other users of this host are kept from our queue pairs, by the port that they come
//! from.
//!
//! RoCEv2 knows no sender but an address, and every user of this host may send from its addresses.
//! Only this user can send from the local port ([`crate::port_owners`]), which is where its packets
//! to this host come from. A packet from an address of this host and from another port is dropped,
//! unless the RoCE port of that address belongs to another user: then it comes from the card of
//! that user, which is like another host. Remote hosts, real cards and the kernel's rxe use any
//! source port; what comes from them is not looked at here.
//!
//! What is dropped here has taken the place of something else in the receive buffer. So after one
//! such packet the kernel is told to drop them itself (`program`), and left alone again when it
//! has dropped nothing for `PERIOD`. Touches the program of the socket and the kernel's table of
//! UDP sockets.

use crate::bpf::{AND, DROP, JUMP_EQ, LOAD_HALF, LOAD_WORD, MAX_LEN, PASS, jump, op};
use crate::link::RxMeta;
use crate::port_owners::is_card_of_other_user;
use crate::udp::UdpLink;
use libc::sock_filter;
use roxe_transport::time::Instant;
use roxe_wire::Gid;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
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
/// Where the network header is, and in it the source address, in a program whose other offsets are
/// from the UDP header on.
const NETWORK: u32 = libc::SKF_NET_OFF.cast_unsigned();
const SRC_V4: u32 = NETWORK.wrapping_add(12);
const SRC_V6: u32 = NETWORK.wrapping_add(8);
/// Where the UDP header has the source port.
const SRC_PORT: u32 = 0;

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
        let is_card = is_card_of_other_user(src);
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
        let program = program(link.gid(), link.local_port(), &self.host, &cards);
        let program = program.ok_or(io::ErrorKind::ArgumentListTooLong);
        let filtered = program.map_err(io::Error::from).and_then(|mut program| link.filter(&mut program));
        filtered.inspect_err(|_| link.end_filter())
    }

    fn is_local(&self, gid: Gid) -> bool {
        gid.to_ip().is_loopback() || self.host.contains(&gid)
    }
}

/// A program for the kernel that keeps packets of other users of this host out of a socket of the
/// family of `own`: packets from the addresses of this `host`, from `own` and from loopback come
/// from `local_port` only, except from `cards` of other users. `None`: it would be too long.
fn program(own: Gid, local_port: u16, host: &[Gid], cards: &[Gid]) -> Option<Vec<sock_filter>> {
    let mut code = vec![op(LOAD_HALF, SRC_PORT), jump(JUMP_EQ, local_port.into(), 0, 1), PASS];
    let alike = |gid: &&Gid| gid.is_ipv4() == own.is_ipv4();
    cards.iter().filter(alike).for_each(|&gid| push_verdict(&mut code, gid, PASS));
    if own.is_ipv4() {
        code.extend([op(LOAD_WORD, SRC_V4), op(AND, 0xff00_0000), jump(JUMP_EQ, 0x7f00_0000, 0, 1), DROP]);
    } else {
        push_verdict(&mut code, IpAddr::V6(Ipv6Addr::LOCALHOST).into(), DROP);
    }
    host.iter().chain([&own]).filter(alike).for_each(|&gid| push_verdict(&mut code, gid, DROP));
    code.push(PASS);
    (code.len() <= MAX_LEN).then_some(code)
}

/// Appends what becomes of packets with the source address `gid`.
fn push_verdict(code: &mut Vec<sock_filter>, gid: Gid, verdict: sock_filter) {
    let (words, _) = gid.0.as_chunks::<4>();
    let (words, at) = if gid.is_ipv4() { (&words[3..], SRC_V4) } else { (words, SRC_V6) };
    for (number, word) in (0u8..).zip(words) {
        // Behind this comparison come the others, of two instructions each, and the verdict.
        let rest = 2 * (words.len() as u8 - 1 - number) + 1;
        code.extend([
            op(LOAD_WORD, at.wrapping_add(4 * u32::from(number))),
            jump(JUMP_EQ, u32::from_be_bytes(*word), 0, rest),
        ]);
    }
    code.push(verdict);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::RETURN;
    use crate::sys;
    use crate::udp::TakenDrops;
    use roxe_wire::ROCE_PORT;
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::AsRawFd;

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

    // One that no test and no ephemeral socket has.
    const FILTER_PORT: u16 = 4793;

    /// Which of `from` reach a socket at `own` with the program for it, when 127.0.0.0/8 and ::1
    /// are the only addresses that can be sent from.
    fn passed(own: IpAddr, host: &[IpAddr], from: &[(IpAddr, u16)]) -> Option<Vec<bool>> {
        let socket = UdpSocket::bind((own, 0)).ok()?;
        socket.set_nonblocking(true).unwrap();
        let senders: Vec<_> = from.iter().map(|from| UdpSocket::bind(from).unwrap()).collect();
        let host: Vec<Gid> = host.iter().map(|&ip| ip.into()).collect();
        let mut code = program(own.into(), FILTER_PORT, &host, &[]).unwrap();
        sys::attach_filter(socket.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut code).unwrap();
        senders.iter().for_each(|sender| assert!(sender.send_to(&[7; 20], socket.local_addr().unwrap()).is_ok()));
        let mut seen = Vec::new();
        while let Ok((_, address)) = socket.recv_from(&mut [0; 64]) {
            seen.push(address);
        }
        Some(senders.iter().map(|sender| seen.contains(&sender.local_addr().unwrap())).collect())
    }

    #[test]
    fn packets_of_this_host_pass_from_the_local_port_only() {
        let [own, other] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(127, 79, 0, last)));
        let from = [(own, FILTER_PORT), (own, 0), (other, FILTER_PORT), (other, 0)];
        assert_eq!(passed(own, &[], &from), Some(vec![true, false, true, false]));
        let many: Vec<_> = (0..200).map(|last| IpAddr::from(Ipv4Addr::new(10, 9, 8, last))).collect();
        assert_eq!(passed(own, &many, &from), Some(vec![true, false, true, false]));
    }

    #[test]
    fn packets_of_this_host_over_ipv6_do_not_pass_from_other_ports() {
        let own = IpAddr::from(Ipv6Addr::LOCALHOST);
        let many: Vec<_> = (0..200).map(|last| IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last))).collect();
        // Where there is no IPv6 nothing comes from it.
        if let Some(passed) = passed(own, &many, &[(own, 0), (own, 0)]) {
            assert_eq!(passed, [false, false]);
        }
    }

    #[test]
    fn other_hosts_may_send_from_any_port_and_addresses_of_this_one_may_not() {
        // Of addresses that no test can send from, the kernel is not asked.
        let run = |own: Gid, host: &[Gid], src: Gid, port: u16| {
            let code = program(own, FILTER_PORT, host, &[]).unwrap();
            let (mut pc, mut a) = (0, 0u32);
            loop {
                let insn = code[pc];
                pc += 1;
                let bytes = if src.is_ipv4() { &src.0[12..] } else { &src.0[..] };
                let first = if src.is_ipv4() { SRC_V4 } else { SRC_V6 };
                match insn.code {
                    LOAD_HALF => a = port.into(),
                    LOAD_WORD => {
                        let at = insn.k.wrapping_sub(first) as usize;
                        a = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
                    }
                    AND => a &= insn.k,
                    JUMP_EQ => pc += usize::from(if a == insn.k { insn.jt } else { insn.jf }),
                    RETURN => return insn.k > 0,
                    other => panic!("unknown instruction {other:#x}"),
                }
            }
        };
        let v4 = |last: u16| Gid::from(Ipv4Addr::new(10, 9, 8, last as u8));
        let v6 = |last| Gid::from(IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)));
        for [own, second, remote] in [[1, 2, 3].map(v4), [1, 2, 3].map(v6)] {
            let admits = |src, port| run(own, &[v4(1), v4(2), v6(1), v6(2)], src, port);
            assert!([own, second, remote].into_iter().all(|src| admits(src, FILTER_PORT)));
            assert!(!admits(own, 50_000) && !admits(second, 50_000) && admits(remote, 50_000));
        }
        assert!(program(v4(1), FILTER_PORT, &vec![v4(2); MAX_LEN], &[]).is_none());
    }

    #[test]
    fn packets_of_cards_of_other_users_pass_from_any_port() {
        let [own, card, other] = [1, 2, 3].map(|last| IpAddr::from(Ipv4Addr::new(127, 79, 2, last)));
        let receiver = UdpSocket::bind((own, 0)).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let mut code = program(own.into(), FILTER_PORT, &[], &[card.into()]).unwrap();
        sys::attach_filter(receiver.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut code).unwrap();
        for (from, passes) in [(card, true), (other, false), (own, false)] {
            UdpSocket::bind((from, 0)).unwrap().send_to(&[7; 20], receiver.local_addr().unwrap()).unwrap();
            assert_eq!(receiver.recv(&mut [0; 20]).is_ok(), passes, "from {from}");
        }
    }
}
