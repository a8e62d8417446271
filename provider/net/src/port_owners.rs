//! UDP ports by which the users of one host are told apart: the kernel gives a port to one user.
//!
//! - [`LocalPort`]: the source port of packets between addresses of this host, which proves that a
//!   packet comes from this user
//! - [`owner_of_port`] and its kin: what the kernel's table says of the owners of the RoCE port
//! - [`Claim`]: the addresses of an interface that the card of this user has
//!
//! Touches sockets, the kernel's table of UDP sockets, and a file of the common folder.

use crate::bpf::DROP;
use crate::named;
use crate::runtime_dir::{self, common_dir};
use crate::sys;
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::privilege::effective_uid;
use roxe_wire::{Gid, ROCE_PORT};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How long a process waits for another one that is agreeing on the port, and the pause between two
/// attempts. The other process may have been stopped; then this one goes ahead.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(1));
/// The UDP port by which a user claims an address; the one behind the RoCE port.
const CLAIM_PORT: u16 = ROCE_PORT + 1;

static CURRENT: Mutex<rank::LocalPort, Weak<LocalPort>> = Mutex::new(Weak::new());

/// The UDP source port of packets between addresses of this host, which proves that a packet comes
/// from this user.
///
/// A source address of this host proves nothing: any user can bind a free address (127.0.0.2) and
/// name another address of the host as the source of a packet (`IP_PKTINFO`), also from the RoCE
/// port. A port that is bound at the wildcard address does: while a socket of one user has it, the
/// kernel refuses that port to other users at every address. So the processes of a user agree on
/// one such port, by a file in the common folder, and each of them holds it as long as it has
/// links. Packets to addresses of this host leave from that port; packets to other hosts leave from
/// the RoCE port.
#[derive(Debug)]
pub struct LocalPort {
    number: u16,
    namespace: u64,
    /// Bound to the port at the wildcard address.
    guard: Socket,
}

impl LocalPort {
    /// The port of this user in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Those of the common folder and of the file in it, and those of opening a socket.
    pub fn get() -> io::Result<Arc<Self>> {
        let namespace = named::namespace()?;
        let mut current = CURRENT.lock();
        if let Some(port) = current.upgrade().filter(|port| port.namespace == namespace) {
            return Ok(port);
        }
        let path = common_dir()?.join(format!("port-{namespace:x}"));
        let mut options = File::options();
        options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(path)?;
        wait_for_lock(&file)?;
        let agreed = agree(&mut file);
        // Closing the file would not be enough: a child that is forked meanwhile has the same lock.
        let _ = file.unlock();
        let (number, guard) = agreed?;
        let port = Arc::new(Self { number, namespace, guard });
        *current = Arc::downgrade(&port);
        Ok(port)
    }

    /// Sends `bytes` to the RoCE port of `to`, an address of this host, from any address of it.
    ///
    /// # Errors
    /// As sendto(2).
    pub(super) fn send(&self, to: Gid, bytes: &[u8]) -> io::Result<()> {
        let to = match (to.to_ip(), self.guard.local_addr()?.is_ipv6()) {
            (IpAddr::V4(ip), true) => ip.to_ipv6_mapped().into(),
            (ip, _) => ip,
        };
        self.guard.send_to(bytes, &SocketAddr::new(to, ROCE_PORT).into()).map(drop)
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// The lock of the current port, for the fork handlers.
pub fn lock() -> &'static dyn Lockable {
    &CURRENT
}

fn wait_for_lock(file: &File) -> io::Result<()> {
    let (limit, pause) = PATIENCE;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if begun.elapsed() < limit => thread::sleep(pause),
            Ok(()) | Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(cause)) => return Err(cause),
        }
    }
}

/// Binds the port that `file` names, or another one if it names none or another user has it by now;
/// the file names that one afterwards.
fn agree(file: &mut File) -> io::Result<(u16, Socket)> {
    let mut text = String::new();
    // What is not text names no port.
    let _ = file.read_to_string(&mut text);
    if let Ok(number @ 1..) = text.trim().parse::<u16>() {
        match hold(number) {
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => {}
            held => return Ok((number, held?)),
        }
    }
    let guard = hold(0)?;
    let number = guard.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidData)?.port();
    file.rewind()?;
    file.set_len(0)?;
    write!(file, "{number}")?;
    Ok((number, guard))
}

/// A socket that is bound to `port` at all addresses of both families, and takes no packets.
/// `EADDRINUSE`: another user has the port at some address.
fn hold(port: u16) -> io::Result<Socket> {
    let v6 = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)).and_then(|socket| {
        socket.set_only_v6(false)?;
        Ok((socket, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))))
    });
    let v4 = || {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        Ok::<_, io::Error>((socket, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))
    };
    // A system without IPv6 has no socket of that family.
    let (socket, address) = v6.or_else(|_| v4())?;
    sys::attach_filter(socket.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut [DROP])?;
    // A port that the system chooses must not be one that an unrelated program of this user shares,
    // so sharing begins when it is bound.
    let is_chosen = port == 0;
    socket.set_reuse_port(!is_chosen)?;
    socket.bind(&SockAddr::from(address))?;
    socket.set_reuse_port(true)?;
    Ok(socket)
}

/// How many sockets are bound to the RoCE port of `gid`. A reader of the table misses lines when
/// others open and close sockets meanwhile, so it is read more than once; a number too many does no
/// harm.
pub(super) fn count_bound(gid: Gid) -> io::Result<usize> {
    let table = if gid.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" };
    let mut count = 0;
    for _ in 0..3 {
        count = count.max(users(&fs::read_to_string(table)?, &[local(gid, ROCE_PORT)]).count());
    }
    Ok(count)
}

/// The other user who has the RoCE port of `gid`, in words; `None`: it is free, or of this user.
pub fn other_owner_of_port(gid: Gid) -> Option<String> {
    Users::of_port(ROCE_PORT).at(&[gid, any(gid)]).find(|uid| *uid != effective_uid()).map(in_words)
}

/// The owner of the RoCE port of `gid`, in words; `None`: the system shows none.
pub fn owner_of_port(gid: Gid) -> Option<String> {
    Users::of_port(ROCE_PORT).at(&[gid, any(gid)]).next().map(in_words)
}

/// In a user namespace the system shows all users that it does not map as one.
fn in_words(uid: u32) -> String {
    if runtime_dir::is_unmapped(uid) { "another user".to_owned() } else { format!("user {uid}") }
}

/// Returns true if the RoCE port of `gid` belongs to another user of this host.
pub(super) fn is_card_of_other_user(gid: Gid) -> bool {
    Users::of_port(ROCE_PORT).at(&[gid]).any(|uid| uid != effective_uid())
}

/// Which users have a port, as both tables had it; nobody where there are no tables.
#[derive(Debug)]
struct Users {
    tables: String,
    port: u16,
}

impl Users {
    /// Reads the tables.
    fn of_port(port: u16) -> Self {
        let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
        Self { tables: tables.concat(), port }
    }

    /// The users of the sockets at these addresses.
    fn at(&self, gids: &[Gid]) -> impl Iterator<Item = u32> {
        let locals: Vec<_> = gids.iter().map(|gid| local(*gid, self.port)).collect();
        users(&self.tables, &locals).collect::<Vec<_>>().into_iter()
    }

    /// Returns true if another user has the port of `gid`, or of all addresses.
    fn is_other_user_at(&self, gid: Gid) -> bool {
        self.at(&[gid, any(gid)]).any(|uid| uid != effective_uid())
    }

    /// Returns true if this user has the port of `gid`.
    fn is_this_user_at(&self, gid: Gid) -> bool {
        self.at(&[gid]).any(|uid| uid == effective_uid())
    }
}

/// What stands for all addresses of the family of `gid`.
fn any(gid: Gid) -> Gid {
    let any: IpAddr = if gid.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    any.into()
}

/// The users of the sockets in `table` that are bound to one of `locals`: the second and the eighth
/// column.
fn users<'a>(table: &'a str, locals: &'a [String]) -> impl Iterator<Item = u32> + 'a {
    table.lines().filter_map(move |line| {
        let mut columns = line.split_whitespace().skip(1);
        let is_meant = columns.next().is_some_and(|local| locals.iter().any(|meant| meant == local));
        is_meant.then(|| columns.nth(5)?.parse().ok()).flatten()
    })
}

/// How the table shows `port` of `gid`. The kernel prints addresses as 32-bit words in the
/// byte order of the machine.
fn local(gid: Gid, port: u16) -> String {
    let word = |bytes: &[u8; 4]| format!("{:08X}", u32::from_ne_bytes(*bytes));
    let address = match gid.to_ip() {
        IpAddr::V4(ip) => word(&ip.octets()),
        IpAddr::V6(ip) => ip.octets().as_chunks::<4>().0.iter().map(word).collect(),
    };
    format!("{address}:{port:04X}")
}

/// Which addresses of an interface the card of this user has: those that no other user has.
///
/// The kernel gives the RoCE port of an address to one user. On the loopback interface every
/// address of 127.0.0.0/8 is as good as any other, so a further user gets the next free one there,
/// and all processes of a user the same. But a program opens the RoCE port only with its first
/// queue pair, when peers may know its GIDs already. So a process that lists a device *claims* its
/// address there before: it binds UDP port 4792, which the kernel also gives to one user, and
/// which carries no packets.
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
    // A socket at the claim port of `gid`, which processes of this user share.
    let hold = || -> io::Result<Socket> {
        let address = SocketAddr::new(gid.to_ip(), CLAIM_PORT);
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        sys::attach_filter(socket.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut [DROP])?;
        socket.set_reuse_port(true)?;
        socket.bind(&SockAddr::from(address))?;
        Ok(socket)
    };
    let socket = match hold() {
        Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => return None,
        held => held.ok().map(Arc::new),
    };
    (!cards.is_other_user_at(gid)).then_some(Claimed { gid, socket })
}

fn is_loopback(gid: &Gid) -> bool {
    gid.is_ipv4() && gid.to_ip().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn local_port_held_is_refused_elsewhere() {
        let port = LocalPort::get().unwrap();
        assert_eq!(LocalPort::get().unwrap().number(), port.number());
        // A socket that does not share ports stands for one of another user.
        for address in [IpAddr::from([127, 78, 1, 1]), Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()] {
            let error = UdpSocket::bind((address, port.number())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{address}");
        }
    }

    #[test]
    fn agreement_survives_restart_and_leaves_taken_ports() {
        let path = std::env::temp_dir().join(format!("roxe-local-port-{}", std::process::id()));
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let first = agree(&mut open()).unwrap();
        let second = agree(&mut open()).unwrap();
        assert_eq!(first.0, second.0, "two processes share the port");
        drop((first.1, second.1));
        let other_user = UdpSocket::bind((Ipv4Addr::new(127, 78, 1, 2), first.0)).unwrap();
        let third = agree(&mut open()).unwrap();
        assert_ne!(third.0, first.0, "a port that another user has at one address proves nothing");
        drop(other_user);
        assert_eq!(agree(&mut open()).unwrap().0, third.0);
        fs::write(&path, "no port").unwrap();
        assert!(agree(&mut open()).is_ok());
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn sockets_are_found_by_address_and_port_with_their_users() {
        for gid in [Gid::from(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST).into()] {
            let line = |local: &str, user| format!("  1: {local} 0:0000 07 0:0 00:0 0 {user} 0 7 2 0 0\n");
            let other = local(gid, ROCE_PORT).replace(":12B7", ":12B8");
            let table =
                [line("sl", 1), line(&local(gid, ROCE_PORT), 1000), line(&other, 2), line(&local(gid, ROCE_PORT), 3)]
                    .concat();
            assert!(users(&table, &[local(gid, ROCE_PORT)]).eq([1000, 3]));
            assert_eq!(users(&table, &["0:12B7".to_owned()]).next(), None);
        }
    }

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
