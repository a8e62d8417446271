//! Unix datagram sockets with names in the runtime directory: whoever binds a name has what it
//! stands for.
//!
//! A name is claimed by `link(2)`, which is atomic and refuses a name that exists: the socket is
//! bound at a random name first, so whatever has its real name is a socket that somebody has, or
//! had. The kernel closes it when the process dies, however it dies; then a connection to its name
//! is refused. Names carry the network namespace, because processes in different ones may share the
//! folder and must never meet. The address that the kernel shows to everybody in `/proc/net/unix`
//! is the random name.
//!
//! Processes in another folder share the RoCE port, so a name is one for all folders: who claims it
//! leaves a link to it in the common one ([`crate::runtime_dir`]), which is as atomic, and who
//! looks for it looks there too.

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

/// Version of what processes send each other by these sockets: those who speak another one are not
/// met.
const VERSION: u32 = 2;
/// Random names that are tried before giving up: a sweep may take one away before it is bound.
const ATTEMPTS: u32 = 8;
/// For how long a claim tries again while another process removes dead names, and after which
/// pauses. One of low priority was kept from the processor for more than 50 ms meanwhile.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(1));

/// The names of one network namespace in the folder of this process, and in the common one.
#[derive(Clone, Debug)]
pub(super) struct Space {
    dir: Arc<RuntimeDir>,
    namespace: u64,
}

impl Space {
    /// The one that `socket` belongs to.
    pub(super) fn of(socket: &Socket) -> io::Result<Self> {
        Ok(Self { dir: RuntimeDir::get()?, namespace: namespace_of(socket) })
    }

    /// Where a process may have `name`, the likeliest place first.
    pub(super) fn addresses(&self, name: &impl fmt::Display) -> impl Iterator<Item = io::Result<SockAddr>> {
        self.dir.all().map(move |dir| self.address_in(dir, name))
    }

    /// Made without allocating, because credits are sent often.
    fn address_in(&self, dir: &RuntimeDir, name: &impl fmt::Display) -> io::Result<SockAddr> {
        let mut bytes = [0; MAX_PATH];
        let mut rest = &mut bytes[..];
        rest.write_all(dir.path().as_os_str().as_bytes())?;
        write!(rest, "/{VERSION}-{:x}-{name}", self.namespace)?;
        let unused = rest.len();
        SockAddr::unix(OsStr::from_bytes(&bytes[..MAX_PATH - unused]))
    }

    fn path(&self, name: &impl fmt::Display) -> PathBuf {
        self.dir.path().join(format!("{VERSION}-{:x}-{name}", self.namespace))
    }

    /// Claims the name at `path`, which is this process's in its own folder, for all folders. The
    /// link that says so, if one is needed. `AlreadyExists`: a process with another folder has it.
    fn announce(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let Some(link) = self.dir.link_to(path) else { return Ok(None) };
        match symlink(path, &link) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(e),
            // The common folder takes no links: this process is as good as alone.
            made => Ok(made.ok().map(|()| link)),
        }
    }
}

/// Which network namespace this thread is in.
pub fn namespace() -> io::Result<u64> {
    Ok(namespace_of(&datagram_socket()?))
}

/// Which network namespace a socket is in: its cookie (Linux 5.14), or the inode that stands for
/// that of this thread.
fn namespace_of(socket: &Socket) -> u64 {
    let inode = || fs::metadata("/proc/thread-self/ns/net").map(|meta| meta.ino());
    sys::namespace_cookie(socket.as_raw_fd()).or_else(|_| inode()).unwrap_or(0)
}

/// A socket that has a name. The name goes with it, unless this process only inherited it.
#[derive(Debug)]
pub struct NamedSocket {
    socket: Socket,
    space: Space,
    path: PathBuf,
}

impl NamedSocket {
    /// Binds `name` to a new socket that says who sends to it. EADDRINUSE: somebody has it.
    pub(super) fn bind(name: &impl fmt::Display) -> io::Result<Self> {
        let (limit, pause) = PATIENCE;
        let begun = Instant::now();
        loop {
            match Self::bind_first(std::iter::once(name)).map(|(_, socket)| socket) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && !Probe::new()?.finds(name) => {
                    // The process that had the name has died.
                    if begun.elapsed() > limit {
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

    /// Binds the first of `names` that nobody has or had; which one. EADDRINUSE: there is none.
    pub(super) fn bind_first<N: fmt::Display>(names: impl Iterator<Item = N> + Clone) -> io::Result<(usize, Self)> {
        let mut attempts = 1..ATTEMPTS;
        loop {
            match Self::bind_one_of(names.clone()) {
                // A sweep took the random name for a dead one, before the kernel had bound it.
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
        for (at, name) in names.enumerate() {
            let path = space.path(&name);
            match fs::hard_link(&bound.0, &path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                linked => {
                    linked?;
                    match space.announce(&path) {
                        Ok(link) => {
                            runtime_dir::note_name(path.clone(), link);
                            return Ok((at, Self { socket, space, path }));
                        }
                        Err(_) => fs::remove_file(&path)?,
                    }
                }
            }
        }
        Err(io::Error::from_raw_os_error(libc::EADDRINUSE))
    }

    /// The names among which its own is.
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

/// Looks whether names are held: any number of them with one descriptor, as a datagram socket may
/// change its peer.
#[derive(Debug)]
pub struct Probe {
    socket: Socket,
    space: Space,
}

impl Probe {
    /// A socket to look for names with.
    pub fn new() -> io::Result<Self> {
        let socket = datagram_socket()?;
        let space = Space::of(&socket)?;
        Ok(Self { socket, space })
    }

    /// Whether some process holds `name`. For a thread that may be cancelled, too.
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
    fn a_name_has_one_owner_and_goes_with_it() {
        let (name, probe) = (unused(), Probe::new().unwrap());
        assert!(!probe.finds(&name));
        let owner = NamedSocket::bind(&name).unwrap();
        assert!(probe.finds(&name));
        assert_eq!(NamedSocket::bind(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(owner);
        assert!(!probe.finds(&name) && !path_of(&name).exists());
    }

    #[test]
    fn one_of_many_concurrent_claims_gets_the_name_of_a_dead_process() {
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
    fn a_claim_waits_while_another_process_takes_long_to_sweep() {
        let name = unused();
        drop(UnixDatagram::bind(path_of(&name)).unwrap());
        let sweeper = RuntimeDir::get().unwrap().open_lock().unwrap();
        sweeper.lock().unwrap();
        thread::scope(|scope| {
            let claim = scope.spawn(|| NamedSocket::bind(&name));
            // As long as a process that others keep from the processor may hold it.
            thread::sleep(Duration::from_millis(200));
            sweeper.unlock().unwrap();
            claim.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_claim_of_any_name_leaves_names_of_dead_processes_alone() {
        let names = [unused(), unused(), unused()];
        let _alive = NamedSocket::bind(&names[0]).unwrap();
        drop(UnixDatagram::bind(path_of(&names[1])).unwrap());
        // A sweep of another test may have taken the dead one away.
        let (at, taken) = NamedSocket::bind_first(names.iter()).unwrap();
        assert!(at == 2 || at == 1 && taken.path == path_of(&names[1]));
        assert!(NamedSocket::bind_first(names[..1].iter()).is_err());
    }

    #[test]
    fn the_kernel_shows_nobody_the_name() {
        let name = unused();
        let _owner = NamedSocket::bind(&name).unwrap();
        let table = fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!table.contains(&name));
    }

    #[test]
    fn the_child_of_a_fork_leaves_the_names_of_its_parent() {
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
