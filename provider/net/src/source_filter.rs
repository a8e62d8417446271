//! A program for the kernel that keeps packets of other users of this host out of a socket
//! ([`crate::source_ports`]).
//!
//! What our process drops has taken the place of something else in the receive buffer. With this
//! program the kernel drops it before. It knows the local port of this user, the addresses of this
//! host, and which of these are cards of other users. Touches nothing.

use crate::bpf::{AND, DROP, JUMP_EQ, LOAD_HALF, LOAD_WORD, MAX_LEN, PASS, jump, op};
use libc::sock_filter;
use roxe_wire::Gid;
use std::net::{IpAddr, Ipv6Addr};

/// Where the network header is, and in it the source address, in a program whose other offsets are
/// from the UDP header on.
const NETWORK: u32 = libc::SKF_NET_OFF.cast_unsigned();
const SRC_V4: u32 = NETWORK.wrapping_add(12);
const SRC_V6: u32 = NETWORK.wrapping_add(8);
/// Where the UDP header has the source port.
const SRC_PORT: u32 = 0;

/// The program for a socket of the family of `own`: packets from the addresses of this `host`, from
/// `own` and from loopback come from `local_port` only, except from `cards` of other users. `None`:
/// it would be too long.
pub(super) fn program(own: Gid, local_port: u16, host: &[Gid], cards: &[Gid]) -> Option<Vec<sock_filter>> {
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
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::AsRawFd;

    // One that no test and no ephemeral socket has.
    const LOCAL_PORT: u16 = 4793;

    /// Which of `from` reach a socket at `own` with the program for it, when 127.0.0.0/8 and ::1
    /// are the only addresses that can be sent from.
    fn passed(own: IpAddr, host: &[IpAddr], from: &[(IpAddr, u16)]) -> Option<Vec<bool>> {
        let socket = UdpSocket::bind((own, 0)).ok()?;
        socket.set_nonblocking(true).unwrap();
        let senders: Vec<_> = from.iter().map(|from| UdpSocket::bind(from).unwrap()).collect();
        let host: Vec<Gid> = host.iter().map(|&ip| ip.into()).collect();
        let mut code = program(own.into(), LOCAL_PORT, &host, &[]).unwrap();
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
        let from = [(own, LOCAL_PORT), (own, 0), (other, LOCAL_PORT), (other, 0)];
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
            let code = program(own, LOCAL_PORT, host, &[]).unwrap();
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
            assert!([own, second, remote].into_iter().all(|src| admits(src, LOCAL_PORT)));
            assert!(!admits(own, 50_000) && !admits(second, 50_000) && admits(remote, 50_000));
        }
        assert!(program(v4(1), LOCAL_PORT, &vec![v4(2); MAX_LEN], &[]).is_none());
    }

    #[test]
    fn packets_of_cards_of_other_users_pass_from_any_port() {
        let [own, card, other] = [1, 2, 3].map(|last| IpAddr::from(Ipv4Addr::new(127, 79, 2, last)));
        let receiver = UdpSocket::bind((own, 0)).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let mut code = program(own.into(), LOCAL_PORT, &[], &[card.into()]).unwrap();
        sys::attach_filter(receiver.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut code).unwrap();
        for (from, passes) in [(card, true), (other, false), (own, false)] {
            UdpSocket::bind((from, 0)).unwrap().send_to(&[7; 20], receiver.local_addr().unwrap()).unwrap();
            assert_eq!(receiver.recv(&mut [0; 20]).is_ok(), passes, "from {from}");
        }
    }
}
