//! Unix datagram sockets with names in the runtime directory: binding a name claims the object of
//! that name, for example a slot.
//!
//! A socket is bound to a random name, then `link(2)` claims the real name atomically, so that
//! every real name is or was a bound socket. The kernel closes the socket when the process dies,
//! and then refuses connections to its name. Names contain the network namespace, because
//! namespaces may share the directory. Processes with another directory share the RoCE port, so a
//! claim also leaves a symlink in the common directory ([`crate::runtime_dir`]), and lookups check
//! both.

use crate::runtime_dir::{self, MAX_PATH, RuntimeDir, bind_at_random, datagram_socket};
use crate::sys;
use socket2::{SockAddr, Socket};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Version of the messages between processes; other versions are not found.
const VERSION: u32 = 2;
/// Attempts to bind a random name, which a sweep may remove before it is bound.
const ATTEMPTS: u32 = 8;
/// Maximum time for which a claim is retried while another process removes dead names, and the
/// pause between attempts.
const CLAIM_RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(1));

/// The names of one network namespace in the directory of this process and in the common one.
#[derive(Clone, Debug)]
pub(super) struct Space {
    dir: Arc<RuntimeDir>,
    namespace: u64,
}

impl Space {
    pub(super) fn of(socket: &Socket) -> io::Result<Self> {
        Ok(Self { dir: RuntimeDir::get()?, namespace: namespace_of(socket) })
    }

    /// Addresses at which a process may have `name`, most likely first.
    pub(super) fn addresses(&self, name: &impl fmt::Display) -> impl Iterator<Item = io::Result<SockAddr>> {
        self.dir.with_common().map(move |dir| self.address_in(dir, name))
    }

    /// Does not allocate, because credits are sent often.
    fn address_in(&self, dir: &RuntimeDir, name: &impl fmt::Display) -> io::Result<SockAddr> {
        let mut bytes = [0; MAX_PATH];
        let mut rest = &mut bytes[..];
        rest.write_all(dir.path().as_os_str().as_bytes())?;
        write!(rest, "/{}{name}", Prefix(self.namespace))?;
        let unused = rest.len();
        SockAddr::unix(OsStr::from_bytes(&bytes[..MAX_PATH - unused]))
    }

    pub(super) fn namespace(&self) -> u64 {
        self.namespace
    }

    fn path(&self, name: &impl fmt::Display) -> PathBuf {
        self.dir.path().join(format!("{}{name}", Prefix(self.namespace)))
    }

    /// Claims the name at `path` in the common directory, and returns the symlink there, if needed.
    /// `AlreadyExists` if a process with another directory has it.
    fn announce(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let Some(link) = self.dir.symlink_path(path) else { return Ok(None) };
        match symlink(path, &link) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(e),
            // Without a symlink in the common directory, only processes with the same directory
            // find this one.
            made => Ok(made.ok().map(|()| link)),
        }
    }
}

/// The beginning of the names of a network namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix(pub(super) u64);

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}-{:x}-", self.0)
    }
}

impl Prefix {
    /// Parses the beginning of a file's name; also returns the remaining text.
    pub(super) fn of(file: &str) -> Option<(Self, &str)> {
        let rest = file.strip_prefix(&format!("{VERSION}-"))?;
        let (namespace, name) = rest.split_once('-')?;
        Some((Self(u64::from_str_radix(namespace, 16).ok()?), name))
    }
}

/// Returns the network namespace of this thread.
pub fn namespace() -> io::Result<u64> {
    Ok(namespace_of(&datagram_socket()?))
}

/// Returns the network namespace of a socket: its cookie (Linux 5.14), else the inode of this
/// thread's namespace.
fn namespace_of(socket: &Socket) -> u64 {
    let inode = || fs::metadata("/proc/thread-self/ns/net").map(|meta| meta.ino());
    sys::namespace_cookie(socket.as_raw_fd()).or_else(|_| inode()).unwrap_or(0)
}

/// A named socket. Dropping it removes its name, unless this process inherited the socket in a
/// fork.
#[derive(Debug)]
pub struct NamedSocket {
    socket: Socket,
    space: Space,
    path: PathBuf,
}

impl NamedSocket {
    /// Binds `name` to a new socket that receives credentials. Fails with EADDRINUSE if a live
    /// process holds the name.
    pub(super) fn bind(name: &impl fmt::Display) -> io::Result<Self> {
        let (limit, pause) = CLAIM_RETRY;
        let start = Instant::now();
        loop {
            match Self::bind_first(std::iter::once(name)).map(|(_, socket)| socket) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && !Probe::new()?.finds(name) => {
                    // The process that held the name has died.
                    if start.elapsed() > limit {
                        return Err(e);
                    }
                    if !RuntimeDir::get()?.sweep() {
                        thread::sleep(pause);
                    }
                }
                result => return result,
            }
        }
    }

    /// Binds the first of `names` that does not exist; returns its index. Fails with EADDRINUSE if
    /// all exist.
    pub(super) fn bind_first<N: fmt::Display>(names: impl Iterator<Item = N> + Clone) -> io::Result<(usize, Self)> {
        let mut attempts = 1..ATTEMPTS;
        loop {
            match Self::bind_one_of(names.clone()) {
                // A sweep removed the random name before the kernel had bound it.
                Err(e) if e.kind() == io::ErrorKind::NotFound && attempts.next().is_some() => {}
                result => return result,
            }
        }
    }

    fn bind_one_of<N: fmt::Display>(names: impl Iterator<Item = N>) -> io::Result<(usize, Self)> {
        let socket = datagram_socket()?;
        sys::set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, 1)?;
        let space = Space::of(&socket)?;
        let (socket, bound) = bind_at_random(socket, space.dir.path())?;
        for (index, name) in names.enumerate() {
            let path = space.path(&name);
            match fs::hard_link(&bound.0, &path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                linked => {
                    linked?;
                    match space.announce(&path) {
                        Ok(link) => {
                            runtime_dir::register_name(path.clone(), link);
                            return Ok((index, Self { socket, space, path }));
                        }
                        Err(_) => fs::remove_file(&path)?,
                    }
                }
            }
        }
        Err(io::Error::from_raw_os_error(libc::EADDRINUSE))
    }

    pub(super) fn space(&self) -> &Space {
        &self.space
    }
}

impl Deref for NamedSocket {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl Drop for NamedSocket {
    fn drop(&mut self) {
        runtime_dir::remove_name(&self.path);
    }
}

/// Looks up names. One descriptor serves all lookups, since a datagram socket may be reconnected.
#[derive(Debug)]
pub struct Probe {
    socket: Socket,
    space: Space,
}

impl Probe {
    /// Opens a socket for lookups.
    pub fn new() -> io::Result<Self> {
        let socket = datagram_socket()?;
        let space = Space::of(&socket)?;
        Ok(Self { socket, space })
    }

    /// Returns true if a process holds `name`. Not a cancellation point.
    pub(super) fn finds(&self, name: &impl fmt::Display) -> bool {
        let fd = self.socket.as_raw_fd();
        self.space.addresses(name).any(|address| address.and_then(|address| sys::connect(fd, &address)).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;
    use std::cell::RefCell;
    use std::os::unix::net::UnixDatagram;
    use std::sync::Barrier;

    fn unused() -> String {
        format!("test-{:016x}", roxe_base::random::number().unwrap())
    }

    fn path_of(name: &str) -> PathBuf {
        Space::of(&datagram_socket().unwrap()).unwrap().path(&name)
    }

    #[test]
    fn name_has_one_owner_and_ends_with_it() {
        let (name, probe) = (unused(), Probe::new().unwrap());
        assert!(!probe.finds(&name));
        let owner = NamedSocket::bind(&name).unwrap();
        assert!(probe.finds(&name));
        assert_eq!(NamedSocket::bind(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(owner);
        assert!(!probe.finds(&name) && !path_of(&name).exists());
    }

    #[test]
    fn one_concurrent_claim_gets_name_of_dead_process() {
        let name = unused();
        for _ in 0..20 {
            drop(UnixDatagram::bind(path_of(&name)).unwrap());
            let start = Barrier::new(4);
            let claim = || {
                start.wait();
                NamedSocket::bind(&name)
            };
            let claims: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(claims.iter().flatten().count(), 1);
            assert!(claims.iter().flat_map(Result::as_ref).all(|_| Probe::new().unwrap().finds(&name)));
            let refused = claims.iter().filter_map(|claim| claim.as_ref().err());
            assert!(refused.into_iter().all(|e| e.kind() == io::ErrorKind::AddrInUse));
        }
    }

    #[test]
    fn claim_waits_for_slow_sweep() {
        let name = unused();
        drop(UnixDatagram::bind(path_of(&name)).unwrap());
        let sweeper = RuntimeDir::get().unwrap().open_sweep_lock().unwrap();
        sweeper.lock().unwrap();
        thread::scope(|scope| {
            let claim = scope.spawn(|| NamedSocket::bind(&name));
            // The duration for which a preempted process may hold the lock.
            thread::sleep(Duration::from_millis(200));
            sweeper.unlock().unwrap();
            claim.join().unwrap().unwrap();
        });
    }

    #[test]
    fn claim_of_any_name_leaves_dead_names() {
        let names = [unused(), unused(), unused()];
        let _alive = NamedSocket::bind(&names[0]).unwrap();
        drop(UnixDatagram::bind(path_of(&names[1])).unwrap());
        // A sweep of another test may have removed the dead name.
        let (at, claimed) = NamedSocket::bind_first(names.iter()).unwrap();
        assert!(at == 2 || at == 1 && claimed.path == path_of(&names[1]));
        assert!(NamedSocket::bind_first(names[..1].iter()).is_err());
    }

    #[test]
    fn kernel_tables_do_not_show_the_name() {
        let name = unused();
        let _owner = NamedSocket::bind(&name).unwrap();
        let table = fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!table.contains(&name));
    }

    #[test]
    fn child_of_fork_keeps_names_of_parent() {
        let name = unused();
        let owner = RefCell::new(Some(NamedSocket::bind(&name).unwrap()));
        in_child(|| {
            drop(owner.take());
            path_of(&name).exists()
        });
        drop(owner.take());
        assert!(!path_of(&name).exists());
    }
}
