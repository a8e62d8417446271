//! Which addresses of an interface the card of this user has: those that no other user has.
//!
//! The kernel gives the RoCE port of an address to one user. On the loopback interface every
//! address of 127.0.0.0/8 is as good as any other, so a further user gets the next free one there,
//! and all processes of a user the same. But a program opens the RoCE port only with its first
//! queue pair, when peers may know its GIDs already. So a process that lists a device *claims* its
//! address there before: it binds UDP port 4792, which the kernel also gives to one user, and
//! which carries no packets. Touches this socket and the kernel's table of UDP sockets.

use crate::bpf::DROP;
use crate::sys;
use crate::udp_table::Users;
use roxe_wire::{Gid, ROCE_PORT};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The UDP port by which a user claims an address; the one behind the RoCE port.
const CLAIM_PORT: u16 = ROCE_PORT + 1;

/// The address of the loopback interface that this process has claimed.
#[derive(Clone, Debug, Default)]
pub struct Claim(Option<Claimed>);

/// A claimed address, and the socket that says so. `None`: the system allows no such socket.
#[derive(Clone, Debug)]
struct Claimed {
    gid: Gid,
    socket: Option<Arc<Socket>>,
}

impl Claim {
    /// The addresses that the card of this user has on an interface with these `addresses`; one of
    /// the loopback interface is claimed. All of them if other users have all, so that whoever
    /// opens one is told.
    pub fn usable(&mut self, addresses: &[Gid]) -> Vec<Gid> {
        let cards = Users::of_port(ROCE_PORT);
        let first_of_loopback = addresses.iter().copied().find(is_loopback);
        let usable: Vec<_> = addresses
            .iter()
            .filter_map(|&gid| match first_of_loopback {
                Some(first) if first == gid => self.claim_any(first, &cards),
                _ => (!cards.is_other_user_at(gid)).then_some(gid),
            })
            .collect();
        if usable.is_empty() { addresses.to_vec() } else { usable }
    }

    /// The RoCE port of `gid` is open: that is a claim, too.
    pub fn release(&mut self, gid: Gid) {
        if let Some(claimed) = self.0.as_mut().filter(|claimed| claimed.gid == gid) {
            claimed.socket = None;
        }
    }

    /// Claims `first`, or another address of the loopback interface.
    fn claim_any(&mut self, first: Gid, cards: &Users) -> Option<Gid> {
        if let Some(Claimed { gid, .. }) = self.0 {
            return Some(gid);
        }
        let claims = Users::of_port(CLAIM_PORT);
        let others = (2..=254).map(|last| Gid::from(Ipv4Addr::new(127, 0, 0, last)));
        let mut all = std::iter::once(first).chain(others);
        // The one that other processes of this user have: by a claim, or by a card if the first
        // address is of another user.
        let by_claim = all.clone().find(|gid| claims.is_this_user_at(*gid));
        let is_taken = cards.is_other_user_at(first) || claims.is_other_user_at(first);
        let by_card = all.clone().find(|gid| is_taken && cards.is_this_user_at(*gid));
        self.0 = by_claim.into_iter().chain(by_card).chain(&mut all).find_map(|gid| claim(gid, cards));
        self.0.as_ref().map(|claimed| claimed.gid)
    }
}

/// Claims an address; `None`: another user has it.
fn claim(gid: Gid, cards: &Users) -> Option<Claimed> {
    let socket = match hold(gid) {
        Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => return None,
        held => held.ok().map(Arc::new),
    };
    (!cards.is_other_user_at(gid)).then_some(Claimed { gid, socket })
}

fn is_loopback(gid: &Gid) -> bool {
    gid.is_ipv4() && gid.to_ip().is_loopback()
}

/// A socket at the claim port of `gid`, which processes of this user share.
fn hold(gid: Gid) -> io::Result<Socket> {
    let address = SocketAddr::new(gid.to_ip(), CLAIM_PORT);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    sys::attach_filter(socket.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut [DROP])?;
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn claim_is_shared_within_a_user_and_stable() {
        let [a, b] = [1, 2].map(|last| Gid::from(Ipv4Addr::new(127, 78, 2, last)));
        let (mut first, mut second) = (Claim::default(), Claim::default());
        assert_eq!(first.usable(&[a, b]), [a, b]);
        assert_eq!(second.usable(&[a]), [a]);
        let error = UdpSocket::bind((a.to_ip(), CLAIM_PORT)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "what does not share it stands for another user");
    }

    #[test]
    fn address_that_another_user_claims_is_replaced() {
        let taken = Gid::from(Ipv4Addr::new(127, 78, 2, 3));
        let claimed = UdpSocket::bind((taken.to_ip(), CLAIM_PORT)).unwrap();
        let mut claim = Claim::default();
        let usable = claim.usable(&[taken]);
        assert!(usable.len() == 1 && usable[0] != taken && usable[0].to_ip().is_loopback(), "{usable:?}");
        drop(claimed);
        assert_eq!(claim.usable(&[taken]), usable, "a process keeps its address");
    }
}
