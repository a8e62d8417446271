//! The UDP source port of packets between addresses of this host, which proves that a packet comes
//! from this user.
//!
//! A source address of this host proves nothing: any user can bind a free address (127.0.0.2) and
//! name another address of the host as the source of a packet (`IP_PKTINFO`), also from the RoCE
//! port. A port that is bound at the wildcard address does: while a socket of one user has it, the
//! kernel refuses that port to other users at every address. So the processes of a user agree on
//! one such port, by a file in the common folder, and each of them holds it as long as it has
//! links. Packets to addresses of this host leave from that port; packets to other hosts leave from
//! the RoCE port. Touches the file and a socket.

use crate::bpf::DROP;
use crate::named;
use crate::runtime_dir::common_dir;
use crate::sys;
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_wire::{Gid, ROCE_PORT};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::fs::{File, TryLockError};
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

static CURRENT: Mutex<rank::LocalPort, Weak<LocalPort>> = Mutex::new(Weak::new());

/// The port, held at the wildcard address.
#[derive(Debug)]
pub struct LocalPort {
    number: u16,
    namespace: u64,
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
        std::fs::write(&path, "no port").unwrap();
        assert!(agree(&mut open()).is_ok());
        std::fs::remove_file(path).unwrap();
    }
}
