//! The directory in which the processes of one user on this host find each other.
//!
//! A *name* is the path of a Unix socket in the directory. Only this user can enter the directory,
//! because a process that can create or replace a name can take part in the communication. All
//! processes of a user share the RoCE port and must find each other, so they try the same fixed
//! candidates in the same order. `XDG_RUNTIME_DIR` may add a candidate; processes that use it also
//! create symlinks to their names in the first usable fixed candidate, the *common* directory.
//!
//! A name is *live* while a socket is bound to it, then *dead* forever. Only `RuntimeDir::sweep`
//! removes dead names, one process at a time, so that no live name can replace a dead one between
//! the check and the removal.

#[cfg(test)]
mod tests;

use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::private_dir::{self, are_all_users_mapped, overflow_uid};
use roxe_base::random;
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

/// File that a process locks while it sweeps.
const SWEEP_LOCK: &str = "sweeper.lock";
/// Prefix of port files; the number of a network namespace follows. A port file has the local port
/// of the user in that namespace. A sweep removes it if no process of the namespace has a name and
/// no process has locked the file.
pub(super) const PORT_FILE_PREFIX: &str = "port-";
/// File that a process locks while it reads, writes or removes a port file. A process gets its name
/// before it locks this file, so that a sweep keeps the port file.
pub(super) const PORT_FILES_LOCK: &str = "holders.lock";
/// Folder in the runtime directory that `roxe run` watches. `roxe run` creates it.
const WATCHED_DIR: &str = "watched";
/// Name of the file in [`watched_dir`] that a process opens when it lists the devices.
pub const LISTED_FILE: &str = "listed";
/// Name of the file in [`watched_dir`] that a process opens when it starts a device.
pub const STARTED_FILE: &str = "started";
/// Maximum path length of a Unix socket in bytes, without the final zero (`man 7 unix`).
pub(super) const MAX_PATH: usize = 107;
/// Maximum length of a socket's file name in bytes: `2-`, the number of a network namespace (32
/// bits in hex), `-`, and the longest name, that of a service at an IPv6 address (`svc`, interface,
/// service, address).
const MAX_FILE_NAME: usize = 2 + 8 + 1 + 4 + 9 + 17 + 32;

/// A directory that only this user can enter.
#[derive(Debug)]
pub(crate) struct RuntimeDir {
    path: PathBuf,
    uid: u32,
    /// The directory, locked if it is in a shared folder, so that systemd-tmpfiles does not remove
    /// it (`man tmpfiles.d`).
    _cleanup_lock: Option<File>,
    /// The common directory; `None` if this directory is the common one, or there is none.
    common: Option<Box<Self>>,
}

#[derive(Debug)]
struct Current {
    dir: Option<Arc<RuntimeDir>>,
    /// The process that bound `names`. A child of a fork must not remove them.
    pid: u32,
    /// Names of this process, each with its symlink in the common directory. Both are removed when
    /// the socket is closed or the process exits.
    names: BTreeMap<PathBuf, Option<PathBuf>>,
}

static CURRENT: Mutex<rank::RuntimeDir, Current> = Mutex::new(Current { dir: None, pid: 0, names: BTreeMap::new() });

/// True if a process of this user has died without removing its names, and no sweep followed yet.
static NEEDS_SWEEP: AtomicBool = AtomicBool::new(false);

#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(
        "there is no folder where the processes of this user could find each other (tried {}); \
         set XDG_RUNTIME_DIR to a folder that belongs to you and that only you can write",
        reasons(.0)
    )]
    All(Vec<(PathBuf, String)>),
    #[error(
        "this user namespace does not map user {0}, so other users cannot be told from this one; \
         enter it with a mapping (unshare --map-root-user or --map-user)"
    )]
    Unmapped(u32),
}

fn reasons(tried: &[(PathBuf, String)]) -> String {
    tried.iter().map(|(path, why)| format!("{}: {why}", path.display())).collect::<Vec<_>>().join("; ")
}

enum Refusal {
    /// No process of this user can use the directory.
    Unfit(String),
    /// A resource is exhausted.
    Exhausted(io::Error),
}

impl RuntimeDir {
    /// Returns the directory of this user, created and swept on the first call. Fails with EACCES
    /// if no candidate can be used.
    pub(crate) fn get() -> io::Result<Arc<Self>> {
        let uid = roxe_base::privilege::effective_uid();
        let mut current = CURRENT.lock();
        if let Some(dir) = current.dir.as_ref().filter(|dir| dir.uid == uid) {
            return Ok(Arc::clone(dir));
        }
        let runtime = roxe_base::config::variable("XDG_RUNTIME_DIR");
        let dir = Arc::new(Self::open(&candidates(runtime, (uid, outer_uid(uid))), uid)?);
        current.dir = Some(Arc::clone(&dir));
        drop(current);
        dir.sweep();
        Ok(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns this directory, then the common directory if it is a different one.
    pub(crate) fn with_common(&self) -> impl Iterator<Item = &Self> {
        [Some(self), self.common.as_deref()].into_iter().flatten()
    }

    /// Returns the path of the symlink for the name at `path`; `None` if none is needed.
    pub(crate) fn symlink_path(&self, path: &Path) -> Option<PathBuf> {
        Some(self.common.as_ref()?.path.join(path.file_name()?))
    }

    fn open(candidates: &Candidates, uid: u32) -> io::Result<Self> {
        let Candidates { xdg, fixed } = candidates;
        let (index, own) = Self::choose(xdg.iter().chain(fixed), uid)?;
        if xdg.is_none() || index > 0 {
            return Ok(own);
        }
        let common = match Self::choose(fixed, uid).map(|(_, common)| common) {
            // Without a common directory, processes that use this one still find each other.
            Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => None,
            common => Some(Box::new(common?)),
        };
        Ok(Self { common: common.filter(|common| common.path != own.path), ..own })
    }

    /// Returns the first usable directory of `candidates`, and its index.
    fn choose<'a>(candidates: impl IntoIterator<Item = &'a PathBuf>, uid: u32) -> io::Result<(usize, Self)> {
        let refuse = |why: Unusable| io::Error::new(io::ErrorKind::PermissionDenied, why);
        if is_unmapped(uid) {
            return Err(refuse(Unusable::Unmapped(uid)));
        }
        let mut tried = Vec::new();
        for (index, path) in candidates.into_iter().enumerate() {
            match Self::prepare(path, uid) {
                Ok(dir) => return Ok((index, dir)),
                Err(Refusal::Unfit(why)) => tried.push((path.clone(), why)),
                Err(Refusal::Exhausted(cause)) => return Err(cause),
            }
        }
        Err(refuse(Unusable::All(tried)))
    }

    /// Creates the directory at `path` if needed, and checks that only this user can enter it.
    fn prepare(path: &Path, uid: u32) -> Result<Self, Refusal> {
        let folder = private_dir::make(path).map_err(|why| Refusal::Unfit(why.to_string()))?;
        let max_len = MAX_PATH.saturating_sub(1 + MAX_FILE_NAME);
        if folder.path.as_os_str().as_bytes().len() > max_len {
            return Err(Refusal::Unfit(format!("its path is longer than {max_len} bytes")));
        }
        let lock = if folder.is_in_shared { File::open(&folder.path).ok() } else { None };
        let lock = lock.filter(|lock| lock.try_lock_shared().is_ok());
        let dir = Self { path: folder.path, uid, _cleanup_lock: lock, common: None };
        check_sockets_work(&dir.path).map_err(|cause| match cause.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Refusal::Exhausted(cause),
            _ => Refusal::Unfit(format!("sockets cannot be bound in it: {cause}")),
        })?;
        Ok(dir)
    }

    /// Removes dead names. Returns false if another process is sweeping.
    pub(super) fn sweep(&self) -> bool {
        // The common directory is swept last, because then its symlinks to removed names dangle.
        self.with_common().filter(|dir| !dir.sweep_this_dir()).count() == 0
    }

    fn sweep_this_dir(&self) -> bool {
        let Ok(lock) = self.open_sweep_lock() else { return false };
        if lock.try_lock().is_err() {
            return false;
        }
        if let (Ok(entries), Ok(probe)) = (fs::read_dir(&self.path), datagram_socket()) {
            let names = entries.flatten().filter(is_name);
            names.map(|entry| entry.path()).filter(|path| is_dead(&probe, path)).for_each(|path| {
                let _ = fs::remove_file(path);
            });
        }
        remove_unused_port_files(&self.path);
        // Closing is not enough: a child that is forked meanwhile shares the lock.
        let _ = lock.unlock();
        true
    }

    pub(super) fn open_sweep_lock(&self) -> io::Result<File> {
        self.open_file(SWEEP_LOCK)
    }

    fn open_file(&self, name: &str) -> io::Result<File> {
        let flags = libc::O_NOFOLLOW;
        File::options().create(true).write(true).mode(0o600).custom_flags(flags).open(self.path.join(name))
    }
}

/// Removes the port files in `dir` that no process needs.
fn remove_unused_port_files(dir: &Path) {
    let open = |path: &Path| File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path);
    // Without the lock file, there are no port files.
    let Some(lock) = open(&dir.join(PORT_FILES_LOCK)).ok().filter(|lock| lock.try_lock().is_ok()) else { return };
    let (mut ports, mut used) = (Vec::new(), BTreeSet::new());
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        if let Some(namespace) = file.strip_prefix(PORT_FILE_PREFIX) {
            ports.push((namespace.to_owned(), entry.path()));
        } else if let Some(namespace) = file.split('-').nth(1).filter(|_| is_name(&entry)) {
            used.insert(namespace.to_owned());
        }
    }
    for (_, path) in ports.iter().filter(|(namespace, _)| !used.contains(namespace)) {
        if open(path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(path);
        }
    }
    // Closing is not enough: a child that is forked meanwhile shares the lock.
    let _ = lock.unlock();
}

/// Returns the directory in which the processes of this user find each other, created if needed.
/// Programs may keep files in it.
///
/// # Errors
/// EACCES with the list of candidates if none can be used.
pub fn runtime_dir() -> io::Result<PathBuf> {
    RuntimeDir::get().map(|dir| dir.path().to_owned())
}

/// Returns the folder for [`LISTED_FILE`] and [`STARTED_FILE`] that `roxe run` watches, created if
/// needed. It is not the runtime directory, because a watch takes time for each name that the
/// folder ever had.
///
/// # Errors
/// Those of [`runtime_dir`], and of creating the folder.
pub fn watched_dir() -> io::Result<PathBuf> {
    let path = runtime_dir()?.join(WATCHED_DIR);
    private_dir::make(&path).map(|folder| folder.path).map_err(io::Error::other)
}

/// Opens [`LISTED_FILE`] once, so that `roxe run` notices that this process has listed the devices.
pub fn note_listing() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| open_watched(LISTED_FILE));
}

/// Opens [`STARTED_FILE`], so that `roxe run` notices that this process uses a device, or has
/// failed to find one for an address.
pub fn note_start() {
    open_watched(STARTED_FILE);
}

/// Opens a file in the watched folder. Ignores errors: if the folder does not exist, no program
/// watches it.
fn open_watched(name: &str) {
    let _ = RuntimeDir::get().and_then(|dir| dir.open_file(&format!("{WATCHED_DIR}/{name}")));
}

/// Returns the directory for files that all processes of this user share: the common directory, or
/// this process's own if there is none.
///
/// # Errors
/// Those of [`runtime_dir`].
pub fn common_dir() -> io::Result<PathBuf> {
    let dir = RuntimeDir::get()?;
    Ok(dir.with_common().last().unwrap_or(&dir).path().to_owned())
}

#[derive(Debug)]
struct Candidates {
    /// The candidate in `XDG_RUNTIME_DIR`, which is tried first.
    xdg: Option<PathBuf>,
    /// The candidates that all processes of the user try, in this order.
    fixed: Vec<PathBuf>,
}

/// Returns the candidates for a user with the number `uid` in this user namespace and `outer` in
/// the parent namespace. `runtime` is the value of `XDG_RUNTIME_DIR`.
fn candidates(runtime: Option<OsString>, (uid, outer): (u32, u32)) -> Candidates {
    let xdg = runtime.map(PathBuf::from).filter(|path| path.is_absolute()).map(|path| path.join("roxe"));
    let system = (uid == 0).then(|| PathBuf::from("/run/roxe"));
    let user_dir = format!("/run/user/{outer}/roxe");
    let others = ["/tmp", "/dev/shm"].map(|folder| Path::new(folder).join(format!("roxe-{outer}")));
    Candidates { xdg, fixed: std::iter::once(user_dir.into()).chain(system).chain(others).collect() }
}

/// Returns the number of the user `uid` in the parent of this user namespace. Directories are named
/// by it, because a process of the same user outside shares the RoCE port.
fn outer_uid(uid: u32) -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().find_map(|line| map_uid(line, uid)).unwrap_or(uid)
}

/// Maps `uid` to the parent namespace by a line of `uid_map`: first uid inside, first uid outside,
/// count.
fn map_uid(line: &str, uid: u32) -> Option<u32> {
    let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
    let [inside, outside, count] = [numbers.next()??, numbers.next()??, numbers.next()??];
    let offset = uid.checked_sub(inside).filter(|offset| *offset < count)?;
    outside.checked_add(offset)
}

/// Returns true for a socket, and for a symlink to a path of the same file name that is a socket or
/// does not exist.
fn is_name(entry: &fs::DirEntry) -> bool {
    let Ok(kind) = entry.file_type() else { return false };
    let leads_to_name = || {
        let path = entry.path();
        fs::read_link(&path).is_ok_and(|target| target.is_absolute() && target.file_name() == path.file_name())
            && fs::metadata(&path)
                .map_or_else(|cause| cause.kind() == io::ErrorKind::NotFound, |meta| meta.file_type().is_socket())
    };
    kind.is_socket() || kind.is_symlink() && leads_to_name()
}

/// Returns true if this process runs as the user that stands for all unmapped ones (`man 7
/// user_namespaces`). No device works then, because other users would look like this one.
pub fn is_overflow_user() -> bool {
    roxe_base::privilege::effective_uid() == overflow_uid()
}

/// Returns true if `uid` stands for all users that this user namespace does not map.
pub(super) fn is_unmapped(uid: u32) -> bool {
    uid == overflow_uid() && !are_all_users_mapped()
}

/// Registers `path`, bound by this process, and its `link` in the common directory for removal at
/// exit.
pub(super) fn register_name(path: PathBuf, link: Option<PathBuf>) {
    let mut current = CURRENT.lock();
    let pid = std::process::id();
    if current.pid != pid {
        current.names.clear();
        current.pid = pid;
        at_exit(Stage::Clean, remove_all_names);
    }
    current.names.insert(path, link);
}

pub(super) fn remove_name(path: &Path) {
    let mut current = CURRENT.lock();
    if let Some(link) = current.names.remove(path)
        && current.pid == std::process::id()
    {
        drop(current);
        remove_files(path, link.as_deref());
    }
}

fn remove_all_names() {
    // The exiting thread may hold the lock. Then the names stay until the next sweep.
    let Some(mut current) = CURRENT.try_lock() else { return };
    let names = std::mem::take(&mut current.names);
    if current.pid == std::process::id() {
        drop(current);
        names.iter().for_each(|(path, link)| remove_files(path, link.as_deref()));
    }
}

/// Removes the symlink of a name, then the name: another process may replace a dangling symlink.
fn remove_files(path: &Path, link: Option<&Path>) {
    link.into_iter().chain([path]).for_each(|path| _ = fs::remove_file(path));
}

/// Returns the lock of this module's state, for the fork handlers.
pub fn lock() -> &'static dyn Lockable {
    &CURRENT
}

/// Forgets the parent's names in the child of a fork.
pub fn abandon() {
    CURRENT.lock().names.clear();
}

/// Records that a process of this user has died without removing its names.
pub fn note_death() {
    NEEDS_SWEEP.store(true, Ordering::Relaxed);
}

/// Sweeps if [`note_death`] was called. Slow: do not call it on a data path.
pub fn sweep_after_death() {
    if NEEDS_SWEEP.load(Ordering::Relaxed) && NEEDS_SWEEP.swap(false, Ordering::Relaxed) {
        let dir = CURRENT.lock().dir.clone();
        if !dir.is_none_or(|dir| dir.sweep()) {
            // Another process is sweeping, and may have passed the dead name already.
            note_death();
        }
    }
}

/// A path in the directory. The file at it is removed when this value is dropped.
pub(super) struct TemporaryPath(pub(super) PathBuf);

impl TemporaryPath {
    fn random(dir: &Path) -> io::Result<Self> {
        Ok(Self(dir.join(format!("new-{:016x}", random::number()?))))
    }
}

impl Drop for TemporaryPath {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

pub(super) fn bind_at_random(socket: Socket, dir: &Path) -> io::Result<(Socket, TemporaryPath)> {
    let path = TemporaryPath::random(dir)?;
    socket.bind(&SockAddr::unix(&path.0)?)?;
    Ok((socket, path))
}

pub(super) fn datagram_socket() -> io::Result<Socket> {
    Socket::new(Domain::UNIX, Type::DGRAM, None)
}

/// Returns true if the socket file at `path` belongs to a dead process, or is a dangling symlink.
/// `probe` is any unbound datagram socket.
fn is_dead(probe: &Socket, path: &Path) -> bool {
    let connected = SockAddr::unix(path).and_then(|address| probe.connect(&address));
    connected.is_err_and(|e| matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound))
}

/// Checks that sockets can be bound, linked and connected to in `dir`.
fn check_sockets_work(dir: &Path) -> io::Result<()> {
    let (_socket, bound) = bind_at_random(datagram_socket()?, dir)?;
    let named = TemporaryPath::random(dir)?;
    fs::hard_link(&bound.0, &named.0)?;
    datagram_socket()?.connect(&SockAddr::unix(&named.0)?)
}
