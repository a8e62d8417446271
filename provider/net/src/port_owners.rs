//! UDP ports that identify the users of one host, since the kernel gives a port to one user.
//!
//! - [`LocalPort`]: source port of packets between addresses of this host
//! - [`owner_of_port`] and others: owners of the RoCE port according to the kernel's table
//! - [`Claim`]: addresses of an interface that belong to this user's card

use crate::bpf::DROP;
use crate::named;
use crate::runtime_dir::{self, PORT_FILE_PREFIX, PORT_FILES_LOCK, common_dir};
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
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum wait for a process that is agreeing on the port, and the pause between attempts. After
/// that, a process that holds the lock, for example because it is stopped, is ignored.
const LOCK_RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(1));
/// The UDP port by which a user claims an address.
pub const CLAIM_PORT: u16 = ROCE_PORT + 1;

static CURRENT: Mutex<rank::LocalPort, Weak<LocalPort>> = Mutex::new(Weak::new());

/// The UDP source port of packets between addresses of this host, which proves that a packet comes
/// from this user.
///
/// A source address proves nothing: any user can bind a free address (127.0.0.2), or name another
/// address as the source (`IP_PKTINFO`). But while a socket of one user has a port at the wildcard
/// address, the kernel refuses that port to other users at every address. The processes of a user
/// agree on one such port by a file in the common directory, and each holds it while it has links.
#[derive(Debug)]
pub struct LocalPort {
    number: u16,
    namespace: u64,
    /// Bound to the port at the wildcard address.
    guard: Socket,
}

impl LocalPort {
    /// Returns the port of this user in the network namespace of the calling thread, for a process
    /// with a name in the runtime folder.
    ///
    /// # Errors
    /// Those of the common directory and its file, and of opening a socket.
    pub fn get() -> io::Result<Arc<Self>> {
        Ok(Self::find(false)?.0)
    }

    /// Like [`LocalPort::get`], for any process: while the file is open, a sweep leaves it alone.
    pub(super) fn get_held() -> io::Result<(Arc<Self>, Option<File>)> {
        Self::find(true)
    }

    fn find(holds: bool) -> io::Result<(Arc<Self>, Option<File>)> {
        let namespace = named::namespace()?;
        let mut current = CURRENT.lock();
        let known = current.upgrade().filter(|port| port.namespace == namespace);
        if let (Some(port), false) = (&known, holds) {
            return Ok((Arc::clone(port), None));
        }
        let (agreed, file) = agree_in(&common_dir()?, namespace, known.as_ref().map(|port| port.number), holds)?;
        let port = match (known, agreed) {
            (Some(port), _) => port,
            (None, (number, guard)) => Arc::new(Self { number, namespace, guard }),
        };
        *current = Arc::downgrade(&port);
        Ok((port, file))
    }

    /// Sends `bytes` to the RoCE port of `to`, an address of this host.
    ///
    /// # Errors
    /// Those of sendto(2).
    pub(super) fn send(&self, to: Gid, bytes: &[u8]) -> io::Result<()> {
        let to = match (to.to_ip(), self.guard.local_addr()?.is_ipv6()) {
            (IpAddr::V4(ip), true) => ip.to_ipv6_mapped().into(),
            (ip, _) => ip,
        };
        self.guard.send_to(bytes, &SocketAddr::new(to, ROCE_PORT).into()).map(drop)
    }

    /// Returns the port number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Returns the lock of the current port, for the fork handlers.
pub fn lock() -> &'static dyn Lockable {
    &CURRENT
}

/// Agrees with the other processes of this user in a network namespace on a port, by a file in
/// `dir`, which is returned with a shared lock if the process `holds` it. `known` is the port of
/// this process, if it has one already.
fn agree_in(dir: &Path, namespace: u64, known: Option<u16>, holds: bool) -> io::Result<((u16, Socket), Option<File>)> {
    let open = |name: &str| {
        let mut options = File::options();
        options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        options.open(dir.join(name))
    };
    let lock = open(PORT_FILES_LOCK)?;
    wait_for_lock(&lock)?;
    let agreed = open(&format!("{PORT_FILE_PREFIX}{namespace:x}")).and_then(|mut file| {
        if holds {
            // Fails only if the sweep was stopped for seconds; then the file may be removed.
            let _ = file.try_lock_shared();
        }
        Ok((agree(&mut file, known)?, holds.then_some(file)))
    });
    // Closing is not enough: a child that is forked meanwhile shares the lock.
    let _ = lock.unlock();
    agreed
}

fn wait_for_lock(file: &File) -> io::Result<()> {
    let (limit, pause) = LOCK_RETRY;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if start.elapsed() < limit => thread::sleep(pause),
            Ok(()) | Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(cause)) => return Err(cause),
        }
    }
}

/// Binds the port in `file`. If `file` has none, or another user has that port, binds the `known`
/// port, or one that the kernel chooses, and writes its number to `file`.
fn agree(file: &mut File, known: Option<u16>) -> io::Result<(u16, Socket)> {
    let mut text = String::new();
    // Invalid text counts as no port.
    let _ = file.read_to_string(&mut text);
    let written = text.trim().parse().ok().filter(|number| *number > 0);
    if let Some(number) = written {
        match hold(number) {
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => {}
            held => return Ok((number, held?)),
        }
    }
    let guard = hold(known.unwrap_or(0))?;
    let number = guard.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidData)?.port();
    file.rewind()?;
    file.set_len(0)?;
    write!(file, "{number}")?;
    Ok((number, guard))
}

/// Opens a socket bound to `port` at all addresses of both families that receives nothing. Errors:
/// `EADDRINUSE` if another user has the port at some address.
fn hold(port: u16) -> io::Result<Socket> {
    let v6 = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)).and_then(|socket| {
        socket.set_only_v6(false)?;
        Ok((socket, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))))
    });
    let v4 = || {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        Ok::<_, io::Error>((socket, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))
    };
    // The kernel may have no IPv6.
    let (socket, address) = v6.or_else(|_| v4())?;
    sys::attach_filter(socket.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut [DROP])?;
    // A port chosen by the kernel must not be shared with an unrelated program of this user, so
    // sharing begins after binding.
    let is_chosen = port == 0;
    socket.set_reuse_port(!is_chosen)?;
    socket.bind(&SockAddr::from(address))?;
    socket.set_reuse_port(true)?;
    Ok(socket)
}

/// Returns the number of sockets bound to the RoCE port of `gid`. The table is read repeatedly,
/// because a reader misses lines while sockets are opened and closed; too large a number does no
/// harm.
pub(super) fn count_bound(gid: Gid) -> io::Result<usize> {
    let table = if gid.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" };
    let mut count = 0;
    for _ in 0..3 {
        count = count.max(users(&fs::read_to_string(table)?, &[local(gid, ROCE_PORT)]).count());
    }
    Ok(count)
}

/// Returns the other user that owns the RoCE port of `gid`, in words; `None` if it is free or this
/// user's.
pub fn other_owner_of_port(gid: Gid) -> Option<String> {
    Users::of_port(ROCE_PORT).at(&[gid, any(gid)]).find(|uid| *uid != effective_uid()).map(describe_user)
}

/// Returns the owner of the RoCE port of `gid`, in words; `None` if the kernel shows none.
pub fn owner_of_port(gid: Gid) -> Option<String> {
    Users::of_port(ROCE_PORT).at(&[gid, any(gid)]).next().map(describe_user)
}

/// Returns the user in words; a user namespace shows all unmapped users as one.
fn describe_user(uid: u32) -> String {
    if runtime_dir::is_unmapped(uid) { "another user".to_owned() } else { format!("user {uid}") }
}

/// Returns true if another user of this host owns the RoCE port of `gid`.
pub(super) fn is_card_of_other_user(gid: Gid) -> bool {
    Users::of_port(ROCE_PORT).at(&[gid]).any(|uid| uid != effective_uid())
}

/// Owners of a port according to both kernel tables; none without tables.
#[derive(Debug)]
struct Users {
    tables: String,
    port: u16,
}

impl Users {
    fn of_port(port: u16) -> Self {
        let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
        Self { tables: tables.concat(), port }
    }

    fn at(&self, gids: &[Gid]) -> impl Iterator<Item = u32> {
        let locals: Vec<_> = gids.iter().map(|gid| local(*gid, self.port)).collect();
        users(&self.tables, &locals).collect::<Vec<_>>().into_iter()
    }

    /// Returns true if another user has the port at `gid` or at all addresses.
    fn is_other_user_at(&self, gid: Gid) -> bool {
        self.at(&[gid, any(gid)]).any(|uid| uid != effective_uid())
    }

    /// Returns true if this user has the port at `gid`.
    fn is_this_user_at(&self, gid: Gid) -> bool {
        self.at(&[gid]).any(|uid| uid == effective_uid())
    }
}

/// Returns the wildcard address of the family of `gid`.
fn any(gid: Gid) -> Gid {
    let any: IpAddr = if gid.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    any.into()
}

/// Users (eighth column) of the sockets in `table` bound to one of `locals` (second column).
fn users<'a>(table: &'a str, locals: &'a [String]) -> impl Iterator<Item = u32> + 'a {
    table.lines().filter_map(move |line| {
        let mut columns = line.split_whitespace().skip(1);
        let is_selected = columns.next().is_some_and(|local| locals.iter().any(|selected| selected == local));
        is_selected.then(|| columns.nth(5)?.parse().ok()).flatten()
    })
}

/// Returns the table's form of `port` at `gid`: addresses as native 32-bit words.
fn local(gid: Gid, port: u16) -> String {
    let word = |bytes: &[u8; 4]| format!("{:08X}", u32::from_ne_bytes(*bytes));
    let address = match gid.to_ip() {
        IpAddr::V4(ip) => word(&ip.octets()),
        IpAddr::V6(ip) => ip.octets().as_chunks::<4>().0.iter().map(word).collect(),
    };
    format!("{address}:{port:04X}")
}

/// The addresses of an interface that belong to this user's card: those that no other user has.
///
/// On loopback each further user gets the next free address of 127.0.0.0/8, all processes of a user
/// the same. The RoCE port is only opened with the first queue pair, when peers may already know
/// the GIDs. Listing a device therefore *claims* its address earlier, by binding UDP port 4792,
/// which carries no packets.
#[derive(Clone, Debug, Default)]
pub struct Claim(Option<Claimed>);

/// A claimed address and its socket; `None` if the system allows no such socket.
#[derive(Clone, Debug)]
struct Claimed {
    gid: Gid,
    socket: Option<Arc<Socket>>,
}

impl Claim {
    /// Returns the addresses of this user's card among `addresses`; one on loopback is claimed. All
    /// of them if other users have all, so that opening one reports the owner.
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

    /// Drops the claim socket of `gid`, whose open RoCE port is a claim as well.
    pub fn release(&mut self, gid: Gid) {
        if let Some(claimed) = self.0.as_mut().filter(|claimed| claimed.gid == gid) {
            claimed.socket = None;
        }
    }

    /// Claims `first`, or another loopback address.
    fn claim_any(&mut self, first: Gid, cards: &Users) -> Option<Gid> {
        if let Some(Claimed { gid, .. }) = self.0 {
            return Some(gid);
        }
        let claims = Users::of_port(CLAIM_PORT);
        let others = (2..=254).map(|last| Gid::from(Ipv4Addr::new(127, 0, 0, last)));
        let mut all = std::iter::once(first).chain(others);
        // The address of other processes of this user: by a claim, or by a card if another user has
        // the first address.
        let by_claim = all.clone().find(|gid| claims.is_this_user_at(*gid));
        let is_taken = cards.is_other_user_at(first) || claims.is_other_user_at(first);
        let by_card = all.clone().find(|gid| is_taken && cards.is_this_user_at(*gid));
        self.0 = by_claim.into_iter().chain(by_card).chain(&mut all).find_map(|gid| claim(gid, cards));
        self.0.as_ref().map(|claimed| claimed.gid)
    }
}

/// Claims an address; `None` if another user has it.
fn claim(gid: Gid, cards: &Users) -> Option<Claimed> {
    // A socket at the claim port, shared by processes of this user.
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
        // A socket that does not share its port stands for another user.
        for address in [IpAddr::from([127, 78, 1, 1]), Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()] {
            let error = UdpSocket::bind((address, port.number())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{address}");
        }
    }

    #[test]
    fn held_file_keeps_the_number_of_the_process() {
        let port = LocalPort::get().unwrap();
        let path = common_dir().unwrap().join(format!("{PORT_FILE_PREFIX}{:x}", named::namespace().unwrap()));
        // Remove the file, as a sweep does while no process has a name.
        fs::remove_file(&path).unwrap();
        let (same, _held) = LocalPort::get_held().unwrap();
        assert_eq!((same.number(), fs::read_to_string(&path).unwrap()), (port.number(), port.number().to_string()));
    }

    #[test]
    fn agreement_survives_restart_and_leaves_taken_ports() {
        let path = std::env::temp_dir().join(format!("roxe-local-port-{}", std::process::id()));
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let first = agree(&mut open(), None).unwrap();
        let second = agree(&mut open(), None).unwrap();
        assert_eq!(first.0, second.0, "two processes share the port");
        drop((first.1, second.1));
        let other_user = UdpSocket::bind((Ipv4Addr::new(127, 78, 1, 2), first.0)).unwrap();
        let third = agree(&mut open(), None).unwrap();
        assert_ne!(third.0, first.0, "a port that another user has at one address proves nothing");
        drop(other_user);
        assert_eq!(agree(&mut open(), None).unwrap().0, third.0);
        fs::write(&path, "no port").unwrap();
        assert!(agree(&mut open(), None).is_ok());
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
        assert_eq!(
            error.kind(),
            io::ErrorKind::AddrInUse,
            "a socket that does not share the port belongs to another user"
        );
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
