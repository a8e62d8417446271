//! Drops packets of other users of this host, by their source port.
//!
//! Every user of this host may send from its addresses, but only this user can send from the local
//! port ([`crate::port_owners`]). A packet with a source address of this host and another port is
//! dropped, unless another user owns the RoCE port of that address: its card counts as another
//! host. Packets of remote hosts may have any source port. Dropped packets have taken room in the
//! receive buffer, so after one of them the kernel filters them (`program`) until none came for
//! `UPDATE_PERIOD`.

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

/// Time between updates of the kernel's filter.
const UPDATE_PERIOD: Duration = Duration::from_millis(20);
/// Time for which the owner of an address is cached.
const OWNER_KEPT: Duration = Duration::from_secs(1);
/// Minimum pause between reads of the kernel's table, which a flood from many addresses causes.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const MAX_CARDS: usize = 64;
/// Offset of the network header, and in it of the source address, in a program whose other offsets
/// count from the UDP header.
const NETWORK: u32 = libc::SKF_NET_OFF.cast_unsigned();
const SRC_V4: u32 = NETWORK.wrapping_add(12);
const SRC_V6: u32 = NETWORK.wrapping_add(8);
const SRC_PORT: u32 = 0;

/// Source ports accepted from addresses of this host.
#[derive(Debug, Default)]
pub struct SourcePorts {
    /// The port from which only this user can send; 0 if unknown.
    local_port: u16,
    /// Addresses of this host except loopback.
    host: Vec<Gid>,
    /// Addresses whose RoCE port another user owns, with the time of the lookup.
    cards: Vec<(Gid, Instant)>,
    /// Time from which on the table may be read again for an unknown address.
    look_again: Instant,
    filters: Vec<Filter>,
    /// Time of the next filter update; `None` without filters.
    due: Option<Instant>,
    failed_at: Option<Instant>,
}

#[derive(Debug)]
struct Filter {
    link: Weak<UdpLink>,
    drops: u32,
}

impl SourcePorts {
    /// Sets the addresses of this host and the local port of this user.
    pub fn set_host(&mut self, addresses: &[Gid], local_port: u16) {
        self.host = addresses.to_vec();
        self.local_port = local_port;
    }

    /// Returns the port from which only this user can send.
    pub fn local_port(&self) -> u16 {
        self.local_port
    }

    /// Returns true if a packet of this source may be delivered: false if another user of this host
    /// sent it from an address that this user may have.
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

    /// Called for a dropped packet received by `link`: attaches a filter for some time. If that
    /// fails, packets are dropped here.
    #[cold]
    pub fn attach_filter(&mut self, link: &Arc<UdpLink>, now: Instant) {
        if link.is_filtered() || self.failed_at.is_some_and(|at| now.since(at) < UPDATE_PERIOD) {
            return;
        }
        if self.attach(link).is_err() {
            self.failed_at = Some(now);
            return;
        }
        self.filters.push(Filter { link: Arc::downgrade(link), drops: link.all_drops() });
        self.due.get_or_insert_with(|| now.after(UPDATE_PERIOD));
    }

    /// Returns the time of the next [`SourcePorts::renew_filters`].
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Updates the filters with the current addresses, and detaches those that dropped nothing.
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
            self.attach(&link).is_ok()
        });
        self.due = (!filters.is_empty()).then(|| now.after(UPDATE_PERIOD));
        self.filters = filters;
    }

    fn attach(&self, link: &UdpLink) -> io::Result<()> {
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

/// Returns a filter for a socket of the family of `own`: packets from the addresses of this `host`,
/// from `own` and from loopback pass only from `local_port`, except from `cards` of other users.
/// `None` if it would be too long.
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

/// Appends the verdict on packets from `gid`.
fn push_verdict(code: &mut Vec<sock_filter>, gid: Gid, verdict: sock_filter) {
    let (words, _) = gid.0.as_chunks::<4>();
    let (words, at) = if gid.is_ipv4() { (&words[3..], SRC_V4) } else { (words, SRC_V6) };
    for (number, word) in (0u8..).zip(words) {
        // Behind this comparison are the remaining ones, of two instructions each, and the verdict.
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
    fn local_packets_need_local_port() {
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
    fn packets_of_known_foreign_card_pass_for_a_while() {
        let mut ports = SourcePorts::default();
        let card = [127, 78, 9, 9];
        ports.set_host(&[], LOCAL_PORT);
        ports.cards.push((Gid::from(Ipv4Addr::from(card)), Instant(0)));
        let packet = meta(card, ROCE_PORT, [127, 78, 9, 1]);
        assert!(ports.admit(&packet, Instant(0)));
        // The kernel's table lists no socket of another user there.
        assert!(!ports.admit(&packet, Instant(0).after(OWNER_KEPT)));
    }

    #[test]
    fn kernel_filters_foreign_packets_until_none_come() {
        let here = Ipv4Addr::new(127, 78, 9, 2);
        let mut ports = SourcePorts::default();
        let link = Arc::new(UdpLink::open(here.into(), 1, true, true).unwrap());
        let other_user = UdpSocket::bind((here, 0)).unwrap();
        let arrives = || {
            other_user.send_to(&[7; 20], (here, ROCE_PORT)).unwrap();
            link.recv(&mut [0; 65_536]).unwrap().is_some()
        };
        let after = |periods: u64| Instant(periods * UPDATE_PERIOD.as_nanos() as u64);
        assert!(arrives());
        ports.attach_filter(&link, after(0));
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
    fn closed_socket_is_no_longer_filtered() {
        let mut ports = SourcePorts::default();
        let link = Arc::new(UdpLink::open(Ipv4Addr::new(127, 78, 9, 3).into(), 1, true, true).unwrap());
        ports.attach_filter(&link, Instant(0));
        assert!(link.is_filtered());
        drop(link);
        ports.renew_filters(Instant(1));
        assert_eq!(ports.due(), None);
    }

    // Used by no test and no ephemeral socket.
    const FILTER_PORT: u16 = 4793;

    /// Returns which of `from` reach a socket at `own` with its filter, where 127.0.0.0/8 and ::1
    /// are the only source addresses.
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
    fn local_packets_pass_only_from_local_port() {
        let [own, other] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(127, 79, 0, last)));
        let from = [(own, FILTER_PORT), (own, 0), (other, FILTER_PORT), (other, 0)];
        assert_eq!(passed(own, &[], &from), Some(vec![true, false, true, false]));
        let many: Vec<_> = (0..200).map(|last| IpAddr::from(Ipv4Addr::new(10, 9, 8, last))).collect();
        assert_eq!(passed(own, &many, &from), Some(vec![true, false, true, false]));
    }

    #[test]
    fn local_ipv6_packets_do_not_pass_from_other_ports() {
        let own = IpAddr::from(Ipv6Addr::LOCALHOST);
        let many: Vec<_> = (0..200).map(|last| IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last))).collect();
        // Without IPv6 nothing arrives.
        if let Some(passed) = passed(own, &many, &[(own, 0), (own, 0)]) {
            assert_eq!(passed, [false, false]);
        }
    }

    #[test]
    fn other_hosts_pass_from_any_port_local_addresses_do_not() {
        // Addresses that a test cannot send from are evaluated without the kernel.
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
    fn cards_of_other_users_pass_from_any_port() {
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
