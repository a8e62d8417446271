//! The folder where the processes of one user on this host leave the names by which they find each
//! other.
//!
//! Whoever can make, replace or open a name in it can take part in what those processes do with
//! each other, so it belongs to our user and nobody else may enter it. All processes of a user must
//! find each other, because they share the RoCE port; the places are therefore fixed, and tried in
//! the same order everywhere. `XDG_RUNTIME_DIR` names another one, which not all of them may know:
//! who is there leaves links to its names in the first fixed place, the *common* folder, where
//! everybody looks. Touches the file system.
//!
//! Names of processes that were killed stay behind. A name is *live* while a socket is bound to it
//! and *dead* afterwards, for ever: only `RuntimeDir::sweep` takes a dead name away, one process at
//! a time, so nobody can put a live one in its place between the look and the removal.

#[cfg(test)]
mod tests;

use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::private_dir::{self, is_everybody_mapped, overflow_uid};
use roxe_base::random;
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

/// The file whose lock the sweeper holds.
const SWEEPER: &str = "sweeper.lock";
/// Bytes of the path of a Unix socket, without the zero at its end (`man 7 unix`).
pub(super) const MAX_PATH: usize = 107;
/// Bytes of the longest file name of a socket: `2-`, a network namespace of 32 bits (the kernel
/// counts them), `-`, and the longest name, which is that of a service at an address of IPv6
/// (`svc`, interface, service, address).
const MAX_FILE_NAME: usize = 2 + 8 + 1 + 4 + 9 + 17 + 32;

/// A folder that only this user can enter.
#[derive(Debug)]
pub(crate) struct RuntimeDir {
    path: PathBuf,
    /// Whose it is.
    uid: u32,
    /// In a folder that is tidied up by age, what is locked is left alone (`man tmpfiles.d`).
    _shared: Option<File>,
    /// Where processes with another `XDG_RUNTIME_DIR` look. `None`: here, or there is none.
    common: Option<Box<Self>>,
}

/// What this process has of the folder.
#[derive(Debug)]
struct Current {
    dir: Option<Arc<RuntimeDir>>,
    /// The process that bound `names`; a child of a fork is another one.
    pid: u32,
    /// To be taken away when their sockets are closed, or the process ends; with the links to them
    /// in the common folder.
    names: BTreeMap<PathBuf, Option<PathBuf>>,
}

static CURRENT: Mutex<rank::RuntimeDir, Current> = Mutex::new(Current { dir: None, pid: 0, names: BTreeMap::new() });

/// Whether a process of this user was seen to have died.
static DEATH: AtomicBool = AtomicBool::new(false);

/// Why no folder can be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(
        "there is no folder where the processes of this user could find each other (tried {}); \
         set XDG_RUNTIME_DIR to a folder that belongs to you and that only you can write",
        list(.0)
    )]
    All(Vec<(PathBuf, String)>),
    #[error(
        "this user namespace does not map user {0}, so other users cannot be told from this one; \
         enter it with a mapping (unshare --map-root-user or --map-user)"
    )]
    Unmapped(u32),
}

fn list(tried: &[(PathBuf, String)]) -> String {
    tried.iter().map(|(path, why)| format!("{}: {why}", path.display())).collect::<Vec<_>>().join("; ")
}

/// Why one folder cannot be used.
enum Refusal {
    /// The folder cannot be used, and would not be for any process of this user.
    Unfit(String),
    /// The system has run out of something.
    Failed(io::Error),
}

impl RuntimeDir {
    /// The folder of this user; made, and swept, the first time. EACCES: none can be used.
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

    /// The path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// This folder, and the common one if that is another.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Self> {
        [Some(self), self.common.as_deref()].into_iter().flatten()
    }

    /// Where those look for the name at `path` who do not know this folder; `None`: they do.
    pub(crate) fn link_to(&self, path: &Path) -> Option<PathBuf> {
        Some(self.common.as_ref()?.path.join(path.file_name()?))
    }

    fn open(candidates: &Candidates, uid: u32) -> io::Result<Self> {
        let Candidates { named, fixed } = candidates;
        let (at, own) = Self::choose(named.iter().chain(fixed), uid)?;
        if named.is_none() || at > 0 {
            return Ok(own);
        }
        let common = match Self::choose(fixed, uid).map(|(_, common)| common) {
            // Those who know this folder still meet.
            Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => None,
            common => Some(Box::new(common?)),
        };
        Ok(Self { common: common.filter(|common| common.path != own.path), ..own })
    }

    /// The first of `candidates` that will do, and its place among them.
    fn choose<'a>(candidates: impl IntoIterator<Item = &'a PathBuf>, uid: u32) -> io::Result<(usize, Self)> {
        let refuse = |why: Unusable| io::Error::new(io::ErrorKind::PermissionDenied, why);
        if !is_mapped(uid) {
            return Err(refuse(Unusable::Unmapped(uid)));
        }
        let mut tried = Vec::new();
        for (at, path) in candidates.into_iter().enumerate() {
            match Self::prepare(path, uid) {
                Ok(dir) => return Ok((at, dir)),
                Err(Refusal::Unfit(why)) => tried.push((path.clone(), why)),
                Err(Refusal::Failed(cause)) => return Err(cause),
            }
        }
        Err(refuse(Unusable::All(tried)))
    }

    /// Makes the folder at `path` unless it is there, and checks that it is ours alone.
    fn prepare(path: &Path, uid: u32) -> Result<Self, Refusal> {
        let folder = private_dir::make(path).map_err(|why| Refusal::Unfit(why.to_string()))?;
        let room = MAX_PATH.saturating_sub(1 + MAX_FILE_NAME);
        if folder.path.as_os_str().as_bytes().len() > room {
            return Err(Refusal::Unfit(format!("its path is longer than {room} bytes")));
        }
        let shared = if folder.is_in_shared { File::open(&folder.path).ok() } else { None };
        let shared = shared.filter(|shared| shared.try_lock_shared().is_ok());
        let dir = Self { path: folder.path, uid, _shared: shared, common: None };
        try_folder(&dir.path).map_err(|cause| match cause.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Refusal::Failed(cause),
            _ => Refusal::Unfit(format!("it takes no sockets: {cause}")),
        })?;
        Ok(dir)
    }

    /// Takes away the names of processes that have died. False if another process is at it.
    pub(super) fn sweep(&self) -> bool {
        // The common folder after the own one: what is taken away here is a link to nothing there.
        self.all().filter(|dir| !dir.sweep_alone()).count() == 0
    }

    fn sweep_alone(&self) -> bool {
        let Ok(lock) = self.open_lock() else { return false };
        if lock.try_lock().is_err() {
            return false;
        }
        if let (Ok(entries), Ok(probe)) = (fs::read_dir(&self.path), datagram_socket()) {
            let names = entries.flatten().filter(is_name);
            names.map(|entry| entry.path()).filter(|path| is_dead(&probe, path)).for_each(|path| {
                let _ = fs::remove_file(path);
            });
        }
        // Closing it would not be enough: a child that is forked meanwhile has the same lock.
        let _ = lock.unlock();
        true
    }

    /// What a process has locked while it sweeps.
    pub(super) fn open_lock(&self) -> io::Result<File> {
        let flags = libc::O_NOFOLLOW;
        File::options().create(true).write(true).mode(0o600).custom_flags(flags).open(self.path.join(SWEEPER))
    }
}

/// The folder where the processes of this user find each other, which nobody else can enter; made
/// if need be. A program may keep something of its own there. EACCES: none can be used; the text
/// says what was tried.
pub fn runtime_dir() -> io::Result<PathBuf> {
    RuntimeDir::get().map(|dir| dir.path().to_owned())
}

/// Opens the folder once: `roxe run` watches it, and learns so that this process has looked for
/// devices.
pub fn note_look() {
    static NOTED: Once = Once::new();
    // Without a folder it learns nothing.
    NOTED.call_once(|| drop(runtime_dir().and_then(File::open)));
}

/// The common folder, or where there is none that of this process: for what all processes of this
/// user are to find. As [`runtime_dir`] otherwise.
pub fn common_dir() -> io::Result<PathBuf> {
    let dir = RuntimeDir::get()?;
    Ok(dir.all().last().unwrap_or(&dir).path().to_owned())
}

/// Where the folder may be.
#[derive(Debug)]
struct Candidates {
    /// In `XDG_RUNTIME_DIR`, which comes first.
    named: Option<PathBuf>,
    /// Those that all processes of the user know, best first.
    fixed: Vec<PathBuf>,
}

/// Where the folder of the user `uid` may be, whom others know as `outer`. `runtime` is the value
/// of `XDG_RUNTIME_DIR`.
fn candidates(runtime: Option<OsString>, (uid, outer): (u32, u32)) -> Candidates {
    let named = runtime.map(PathBuf::from).filter(|path| path.is_absolute()).map(|path| path.join("roxe"));
    let system = (uid == 0).then(|| PathBuf::from("/run/roxe"));
    let of_user = format!("/run/user/{outer}/roxe");
    let others = ["/tmp", "/dev/shm"].map(|folder| Path::new(folder).join(format!("roxe-{outer}")));
    Candidates { named, fixed: std::iter::once(of_user.into()).chain(system).chain(others).collect() }
}

/// The number of the user `uid` outside of this user namespace. It names the folders: they lie
/// where everybody's do, whose numbers are those of outside, and a process of the same user there
/// shares the RoCE port with this one.
fn outer_uid(uid: u32) -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().find_map(|line| outside(line, uid)).unwrap_or(uid)
}

/// What a line of a `uid_map` makes of `uid`: first number inside, first outside, how many.
fn outside(line: &str, uid: u32) -> Option<u32> {
    let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
    let [inside, outside, count] = [numbers.next()??, numbers.next()??, numbers.next()??];
    let at = uid.checked_sub(inside).filter(|at| *at < count)?;
    outside.checked_add(at)
}

/// Whether this is a socket, or the link to one in another folder, which has the same name there.
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

/// Whether `uid` is a user of its own, and not what stands for all those that this user namespace
/// does not map.
fn is_mapped(uid: u32) -> bool {
    uid != overflow_uid() || is_everybody_mapped()
}

/// Whether this process runs as the user that stands for everybody whom a user namespace does not
/// map (`man 7 user_namespaces`): in a namespace that maps nobody else it could not tell others
/// from itself, and no device works there.
pub fn is_overflow_user() -> bool {
    roxe_base::privilege::effective_uid() == overflow_uid()
}

/// Returns true if the system shows `uid` for users that this user namespace does not map.
pub(super) fn is_unmapped(uid: u32) -> bool {
    uid == overflow_uid() && !is_mapped(uid)
}

/// This process has bound `path`, which is removed when the process exits, and before it the `link`
/// to it in the common folder.
pub(super) fn note_name(path: PathBuf, link: Option<PathBuf>) {
    let mut current = CURRENT.lock();
    let pid = std::process::id();
    if current.pid != pid {
        current.names.clear();
        current.pid = pid;
        at_exit(Stage::Clean, remove_all);
    }
    current.names.insert(path, link);
}

/// Takes `path` away if this very process bound it.
pub(super) fn remove_name(path: &Path) {
    let mut current = CURRENT.lock();
    if let Some(link) = current.names.remove(path)
        && current.pid == std::process::id()
    {
        drop(current);
        remove(path, link.as_deref());
    }
}

/// Removes all names of this process, which is ending.
fn remove_all() {
    // The thread that ends the process may be the one that has the lock; a next start sweeps.
    let Some(mut current) = CURRENT.try_lock() else { return };
    let names = std::mem::take(&mut current.names);
    if current.pid == std::process::id() {
        drop(current);
        names.iter().for_each(|(path, link)| remove(path, link.as_deref()));
    }
}

/// The link first: once it leads nowhere, another process may take its name.
fn remove(path: &Path, link: Option<&Path>) {
    link.into_iter().chain([path]).for_each(|path| _ = fs::remove_file(path));
}

/// The lock, for the fork handlers.
pub fn lock() -> &'static dyn Lockable {
    &CURRENT
}

/// In the child of a fork: the names are the parent's.
pub fn abandon() {
    CURRENT.lock().names.clear();
}

/// A process of this user has died without taking its names away.
pub fn note_death() {
    DEATH.store(true, Ordering::Relaxed);
}

/// Takes away the names of processes whose death was noted. Not for a data path.
pub fn sweep_after_death() {
    if DEATH.load(Ordering::Relaxed) && DEATH.swap(false, Ordering::Relaxed) {
        let dir = CURRENT.lock().dir.clone();
        if !dir.is_none_or(|dir| dir.sweep()) {
            // The process that sweeps now may have passed the dead name already.
            note_death();
        }
    }
}

/// A path whose file is removed when this is dropped.
pub(super) struct RemovedOnDrop(pub(super) PathBuf);

impl RemovedOnDrop {
    /// An unused path in `dir`.
    fn random(dir: &Path) -> io::Result<Self> {
        Ok(Self(dir.join(format!("new-{:016x}", random::number()?))))
    }
}

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Binds `socket` to a path in `dir` that nobody looks for.
pub(super) fn bind_at_random(socket: Socket, dir: &Path) -> io::Result<(Socket, RemovedOnDrop)> {
    let path = RemovedOnDrop::random(dir)?;
    socket.bind(&SockAddr::unix(&path.0)?)?;
    Ok((socket, path))
}

/// A Unix datagram socket without a name.
pub(super) fn datagram_socket() -> io::Result<Socket> {
    Socket::new(Domain::UNIX, Type::DGRAM, None)
}

/// Whether the socket file at `path` is one of a process that has died, or a link to none; `probe`
/// is any unbound datagram socket.
fn is_dead(probe: &Socket, path: &Path) -> bool {
    let connected = SockAddr::unix(path).and_then(|address| probe.connect(&address));
    connected.is_err_and(|e| matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound))
}

/// Makes sure that sockets can be bound, named and found in `dir`.
fn try_folder(dir: &Path) -> io::Result<()> {
    let (_socket, bound) = bind_at_random(datagram_socket()?, dir)?;
    let named = RemovedOnDrop::random(dir)?;
    fs::hard_link(&bound.0, &named.0)?;
    datagram_socket()?.connect(&SockAddr::unix(&named.0)?)
}
