//! Which addresses of an interface the card of this user has: those that no other user has.
//!
//! The kernel gives the RoCE port of an address to one user, but a program opens it only with its
//! first queue pair, when peers may know its GIDs already. So whoever lists a device *claims* its
//! addresses before: it binds [`CLAIM_PORT`] there, which the kernel also gives to one user, and
//! which carries no packets. On the loopback interface every address of 127.0.0.0/8 is as good as any
//! other, so a further user gets the next free one there, and all processes of a user the same.
//! Touches these sockets and the kernel's table of UDP sockets.

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

/// The addresses that this process has claimed.
#[derive(Clone, Debug, Default)]
pub struct Claims(Vec<Claim>);

/// A claimed address, and the socket that says so. `None`: the system allows no such socket.
#[derive(Clone, Debug)]
struct Claim {
    gid: Gid,
    _socket: Option<Arc<Socket>>,
}

impl Claims {
    /// The addresses that the card of this user has on an interface with these `addresses`, claimed.
    /// All of them if other users have all, so that whoever opens one is told.
    pub fn usable(&mut self, addresses: &[Gid]) -> Vec<Gid> {
        let cards = Users::of_port(ROCE_PORT);
        let first_of_loopback = addresses.iter().copied().find(is_loopback);
        let mut usable = Vec::new();
        for &gid in addresses {
            if Some(gid) == first_of_loopback {
                usable.extend(self.claim_loopback(gid, &cards));
            } else if self.claim(gid, &cards) {
                usable.push(gid);
            }
        }
        self.0.retain(|claim| usable.contains(&claim.gid));
        if usable.is_empty() { addresses.to_vec() } else { usable }
    }

    /// Claims `first`, or another address of the loopback interface.
    fn claim_loopback(&mut self, first: Gid, cards: &Users) -> Option<Gid> {
        if let Some(claim) = self.0.iter().find(|claim| is_loopback(&claim.gid)) {
            return Some(claim.gid);
        }
        let claims = Users::of_port(CLAIM_PORT);
        let others = (2..=254).map(|last| Gid::from(Ipv4Addr::new(127, 0, 0, last)));
        let mut all = std::iter::once(first).chain(others);
        // The one that other processes of this user have.
        let agreed = all.clone().find(|gid| claims.is_this_user_at(*gid));
        agreed.into_iter().chain(&mut all).find(|gid| self.claim(*gid, cards))
    }

    /// Claims an address. False if another user has it.
    fn claim(&mut self, gid: Gid, cards: &Users) -> bool {
        if self.0.iter().any(|claim| claim.gid == gid) {
            return true;
        }
        let socket = match hold(gid) {
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => return false,
            held => held.ok().map(Arc::new),
        };
        let is_free = !cards.is_other_user_at(gid);
        if is_free {
            self.0.push(Claim { gid, _socket: socket });
        }
        is_free
    }
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

    #[test]
    fn claims_are_shared_within_a_user_and_stable() {
        let [a, b] = [1, 2].map(|last| Gid::from(Ipv4Addr::new(127, 78, 2, last)));
        let (mut first, mut second) = (Claims::default(), Claims::default());
        assert_eq!(first.usable(&[a, b]), [a, b]);
        assert_eq!(second.usable(&[a, b]), [a, b]);
        assert_eq!(first.usable(&[a]), [a], "an address that is gone");
        assert_eq!(first.0.len(), 1);
    }

    #[test]
    fn address_of_another_user_is_left_out_unless_there_is_no_other() {
        let [a, b] = [3, 4].map(|last| Gid::from(Ipv4Addr::new(127, 78, 2, last)));
        // A socket that does not share the port stands for one of another user.
        let claimed = std::net::UdpSocket::bind((a.to_ip(), CLAIM_PORT)).unwrap();
        let mut claims = Claims::default();
        assert_eq!(claims.usable(&[b, a]), [b]);
        drop(claimed);
        assert_eq!(claims.usable(&[b, a]), [b, a]);
    }
}
