//! The folder where the processes of one user on this host leave the names by which they find each other.
//!
//! Whoever can make, replace or open a name in it can take part in what those processes do with each other, so it belongs
//! to our user and nobody else may enter it. All processes of a user must come to the same folder; the places are
//! therefore fixed, and tried in the same order everywhere. Touches the file system.
//!
//! Names of processes that were killed stay behind. A name is *live* while a socket is bound to it and *dead* afterwards,
//! for ever: only [`RuntimeDir::sweep`] takes a dead name away, one process at a time, so nobody can put a live one in
//! its place between the look and the removal.

use crate::named::{Space, datagram_socket, is_dead};
use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Lockable, Mutex, rank};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the kernel shows in place of a user that the namespace does not map, where it does not say otherwise.
const OVERFLOW_UID: u32 = 65_534;
/// Bytes of the path of a Unix socket, without the zero at its end (`man 7 unix`).
pub(super) const MAX_PATH: usize = 107;
/// The file whose lock the sweeper holds.
const SWEEPER: &str = "sweeper.lock";

/// A folder that only this user can enter.
#[derive(Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    /// Whose it is.
    uid: u32,
    /// In a folder that is tidied up by age, what is locked is left alone (`man tmpfiles.d`).
    _shared: Option<File>,
}

/// What this process has of the folder.
#[derive(Debug)]
struct Current {
    dir: Option<Arc<RuntimeDir>>,
    /// The process that bound `names`; a child of a fork is another one.
    pid: u32,
    /// To be taken away when their sockets are closed, or the process ends.
    names: BTreeSet<PathBuf>,
}

static CURRENT: Mutex<rank::RuntimeDir, Current> = Mutex::new(Current { dir: None, pid: 0, names: BTreeSet::new() });

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

/// Why one cannot.
enum Refusal {
    /// It is not fit for us, whoever asks.
    Unfit(String),
    /// The system has run out of something.
    Failed(io::Error),
}

impl RuntimeDir {
    /// The folder of this user; made, and swept, the first time. EACCES: none can be used.
    pub fn get() -> io::Result<Arc<Self>> {
        let uid = roxe_base::privilege::effective_uid();
        let mut current = CURRENT.lock();
        if let Some(dir) = current.dir.as_ref().filter(|dir| dir.uid == uid) {
            return Ok(Arc::clone(dir));
        }
        let runtime = roxe_base::config::variable("XDG_RUNTIME_DIR");
        let dir = Arc::new(Self::choose(&candidates(runtime, uid), uid)?);
        current.dir = Some(Arc::clone(&dir));
        drop(current);
        dir.sweep();
        Ok(dir)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn choose(candidates: &[PathBuf], uid: u32) -> io::Result<Self> {
        let refuse = |why: Unusable| io::Error::new(io::ErrorKind::PermissionDenied, why);
        if !is_mapped(uid) {
            return Err(refuse(Unusable::Unmapped(uid)));
        }
        let mut tried = Vec::new();
        for path in candidates {
            match Self::prepare(path, uid) {
                Ok(dir) => return Ok(dir),
                Err(Refusal::Unfit(why)) => tried.push((path.clone(), why)),
                Err(Refusal::Failed(cause)) => return Err(cause),
            }
        }
        Err(refuse(Unusable::All(tried)))
    }

    /// Makes the folder at `path` unless it is there, and checks that it is ours alone.
    fn prepare(path: &Path, uid: u32) -> Result<Self, Refusal> {
        let unfit = |why: &dyn std::fmt::Display| Refusal::Unfit(why.to_string());
        let is_shared = check_parent(path, uid).map_err(|why| unfit(&why))?;
        match DirBuilder::new().mode(0o700).create(path) {
            Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(unfit(&cause)),
            _ => {}
        }
        let meta = fs::symlink_metadata(path).map_err(|cause| unfit(&cause))?;
        if !meta.is_dir() {
            return Err(unfit(&"it is not a folder"));
        }
        if meta.uid() != uid {
            return Err(unfit(&format!("it belongs to user {}", meta.uid())));
        }
        if meta.mode() & 0o022 != 0 {
            // Others may have left names in it that would pass for ours.
            return Err(unfit(&"others can write in it"));
        }
        if meta.mode() & 0o7777 != 0o700 {
            fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(|cause| unfit(&cause))?;
        }
        let shared = if is_shared { File::open(path).ok() } else { None };
        let shared = shared.filter(|folder| folder.try_lock_shared().is_ok());
        let dir = Self { path: path.into(), uid, _shared: shared };
        Space::try_out(&dir).map_err(|cause| match cause.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Refusal::Failed(cause),
            _ => Refusal::Unfit(format!("it takes no sockets: {cause}")),
        })?;
        Ok(dir)
    }

    /// Takes away the names of processes that have died. False if another process is at it.
    pub(super) fn sweep(&self) -> bool {
        let Ok(lock) = self.open_lock() else { return false };
        if lock.try_lock().is_err() {
            return false;
        }
        if let (Ok(entries), Ok(probe)) = (fs::read_dir(&self.path), datagram_socket()) {
            let sockets = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
            sockets.map(|entry| entry.path()).filter(|path| is_dead(&probe, path)).for_each(|path| {
                let _ = fs::remove_file(path);
            });
        }
        // Closing it would not be enough: a child that is forked meanwhile has the same lock.
        let _ = lock.unlock();
        true
    }

    fn open_lock(&self) -> io::Result<File> {
        let flags = libc::O_NOFOLLOW;
        File::options().create(true).write(true).mode(0o600).custom_flags(flags).open(self.path.join(SWEEPER))
    }
}

/// The folder where the processes of this user find each other, which nobody else can enter; made if need be. A program may
/// keep something of its own there. EACCES: none can be used; the text says what was tried.
pub fn runtime_dir() -> io::Result<PathBuf> {
    RuntimeDir::get().map(|dir| dir.path().to_owned())
}

/// Where the folder may be, best first. `runtime` is the value of `XDG_RUNTIME_DIR`.
fn candidates(runtime: Option<OsString>, uid: u32) -> Vec<PathBuf> {
    let named = runtime.map(PathBuf::from).filter(|path| path.is_absolute()).map(|path| path.join("roxe"));
    let system = (uid == 0).then(|| PathBuf::from("/run/roxe"));
    let of_user = format!("/run/user/{uid}/roxe");
    let others = ["/tmp", "/dev/shm"].map(|folder| Path::new(folder).join(format!("roxe-{uid}")));
    let fixed = std::iter::once(of_user.into()).chain(system).chain(others);
    let mut seen = BTreeSet::new();
    named.into_iter().chain(fixed).filter(|path| seen.insert(path.clone())).collect()
}

/// Whether nobody but our user, and root, can rename or remove what is in the folder above `path`. If so: whether others
/// keep things there, too.
fn check_parent(path: &Path, uid: u32) -> Result<bool, String> {
    let room = MAX_PATH.saturating_sub(Space::LONGEST);
    if path.as_os_str().as_bytes().len() > room {
        return Err(format!("its path is longer than {room} bytes"));
    }
    let parent = path.parent().unwrap_or_else(|| Path::new("/"));
    let meta = fs::metadata(parent).map_err(|cause| format!("{}: {cause}", parent.display()))?;
    // In a user namespace that does not map root, what is root's shows as the overflow uid; so does what is of others who
    // are not mapped, but places that those choose are not among the candidates.
    if ![uid, 0, overflow_uid()].contains(&meta.uid()) {
        return Err(format!("{} belongs to user {}", parent.display(), meta.uid()));
    }
    let (is_shared, is_sticky) = (meta.mode() & 0o022 != 0, meta.mode() & 0o1000 != 0);
    if is_shared && !is_sticky { Err(format!("others can write in {}", parent.display())) } else { Ok(is_shared) }
}

/// Whether `uid` is a user of its own, and not what stands for all those that this user namespace does not map.
fn is_mapped(uid: u32) -> bool {
    uid != overflow_uid() || fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_everybody(&map))
}

/// Whether the lines of a `uid_map` leave nobody out (`man 7 user_namespaces`).
fn maps_everybody(map: &str) -> bool {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum::<u64>() >= u64::from(u32::MAX)
}

/// Whether this process runs as the user that stands for everybody whom a user namespace does not map (`man 7
/// user_namespaces`): in a namespace that maps nobody else it could not tell others from itself, and no device works there.
pub fn is_overflow_user() -> bool {
    roxe_base::privilege::effective_uid() == overflow_uid()
}

fn overflow_uid() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(OVERFLOW_UID)
}

/// This process has bound `path`, which goes when it ends in good order.
pub(super) fn note_name(path: PathBuf) {
    let mut current = CURRENT.lock();
    let pid = std::process::id();
    if current.pid != pid {
        current.names.clear();
        current.pid = pid;
        at_exit(Stage::Clean, remove_all);
    }
    current.names.insert(path);
}

/// Takes `path` away if this very process bound it.
pub(super) fn remove_name(path: &Path) {
    let mut current = CURRENT.lock();
    if current.names.remove(path) && current.pid == std::process::id() {
        drop(current);
        let _ = fs::remove_file(path);
    }
}

/// The process ends.
fn remove_all() {
    // The thread that ends the process may be the one that has the lock; a next start sweeps.
    let Some(mut current) = CURRENT.try_lock() else { return };
    let names = std::mem::take(&mut current.names);
    if current.pid == std::process::id() {
        drop(current);
        names.iter().for_each(|path| _ = fs::remove_file(path));
    }
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
            // Who is at it now may have passed the place already.
            note_death();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named::Temporary;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixDatagram;

    /// A folder of this test's, short enough for the names.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            let path = PathBuf::from(format!("/tmp/x{:x}", getrandom::u32().unwrap()));
            DirBuilder::new().mode(0o700).create(&path).unwrap();
            Self(path)
        }

        fn candidate(&self) -> PathBuf {
            self.0.join("roxe")
        }

        fn prepare(&self) -> Result<RuntimeDir, String> {
            RuntimeDir::prepare(&self.candidate(), roxe_base::privilege::effective_uid()).map_err(|refusal| {
                match refusal {
                    Refusal::Unfit(why) => why,
                    Refusal::Failed(cause) => cause.to_string(),
                }
            })
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn the_folder_is_made_private_and_one_that_was_readable_becomes_so() {
        let scratch = Scratch::new();
        let dir = scratch.prepare().unwrap();
        assert_eq!(mode(dir.path()), 0o700);
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        scratch.prepare().unwrap();
        assert_eq!(mode(dir.path()), 0o700);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "trying it out leaves nothing");
    }

    #[test]
    fn links_files_and_folders_that_others_can_write_are_refused() {
        let scratch = Scratch::new();
        symlink("/tmp", scratch.candidate()).unwrap();
        assert_eq!(scratch.prepare().unwrap_err(), "it is not a folder");
        fs::remove_file(scratch.candidate()).unwrap();
        fs::write(scratch.candidate(), "").unwrap();
        assert_eq!(scratch.prepare().unwrap_err(), "it is not a folder");
        fs::remove_file(scratch.candidate()).unwrap();
        fs::create_dir(scratch.candidate()).unwrap();
        fs::set_permissions(scratch.candidate(), Permissions::from_mode(0o770)).unwrap();
        assert_eq!(scratch.prepare().unwrap_err(), "others can write in it");
    }

    #[test]
    fn a_folder_that_others_could_exchange_is_refused_unless_it_is_sticky() {
        let scratch = Scratch::new();
        fs::set_permissions(&scratch.0, Permissions::from_mode(0o777)).unwrap();
        assert!(scratch.prepare().unwrap_err().starts_with("others can write in /tmp/x"));
        fs::set_permissions(&scratch.0, Permissions::from_mode(0o1777)).unwrap();
        let dir = scratch.prepare().unwrap();
        assert!(dir._shared.is_some(), "tidying up by age leaves it alone");
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let scratch = Scratch::new();
        if roxe_base::privilege::effective_uid() != 0 {
            return eprintln!("skipped: only root can make a folder of another user");
        }
        fs::create_dir(scratch.candidate()).unwrap();
        std::os::unix::fs::chown(scratch.candidate(), Some(12_345), None).unwrap();
        assert_eq!(scratch.prepare().unwrap_err(), "it belongs to user 12345");
        fs::remove_dir(scratch.candidate()).unwrap();
        std::os::unix::fs::chown(&scratch.0, Some(12_345), None).unwrap();
        assert!(scratch.prepare().unwrap_err().ends_with(" belongs to user 12345"));
    }

    #[test]
    fn a_folder_whose_names_would_be_too_long_is_refused() {
        let path = Path::new("/tmp").join("x".repeat(MAX_PATH - Space::LONGEST));
        assert!(check_parent(&path, 0).unwrap_err().contains("longer than"));
    }

    #[test]
    fn the_places_are_the_same_for_all_processes_of_a_user() {
        let places = |runtime: Option<&str>, uid| -> Vec<String> {
            let all = candidates(runtime.map(OsString::from), uid);
            all.into_iter().map(|path| path.to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(places(None, 7), ["/run/user/7/roxe", "/tmp/roxe-7", "/dev/shm/roxe-7"]);
        assert_eq!(places(Some("/run/user/7"), 7), places(None, 7));
        assert_eq!(places(Some("relative"), 7), places(None, 7));
        assert_eq!(places(Some("/x"), 7)[0], "/x/roxe");
        assert_eq!(places(None, 0)[1], "/run/roxe");
    }

    #[test]
    fn without_a_folder_the_error_says_what_was_tried_and_what_to_do() {
        let uid = roxe_base::privilege::effective_uid();
        let nowhere = PathBuf::from("/nowhere/roxe");
        let error = RuntimeDir::choose(std::slice::from_ref(&nowhere), uid).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let text = error.to_string();
        assert!(text.contains("/nowhere/roxe: /nowhere: ") && text.contains("set XDG_RUNTIME_DIR"), "{text}");
        let scratch = Scratch::new();
        let found = RuntimeDir::choose(&[nowhere, scratch.candidate()], uid).unwrap();
        assert_eq!(found.path(), scratch.candidate());
    }

    #[test]
    fn a_map_leaves_somebody_out_unless_it_is_whole() {
        assert!(maps_everybody("         0          0 4294967295\n"));
        assert!(maps_everybody("0 0 1000\n1000 1000 4294966295\n"));
        assert!(!maps_everybody("65534 1000 1\n") && !maps_everybody(""));
    }

    #[test]
    fn a_sweep_takes_the_names_of_the_dead_and_nothing_else() {
        let scratch = Scratch::new();
        let dir = scratch.prepare().unwrap();
        let (dead, alive, file) = (dir.path().join("dead"), dir.path().join("alive"), dir.path().join("file"));
        drop(UnixDatagram::bind(&dead).unwrap());
        // Found by another name than it was bound to.
        let bound = Temporary::random(dir.path()).unwrap();
        let _socket = UnixDatagram::bind(&bound.0).unwrap();
        fs::hard_link(&bound.0, &alive).unwrap();
        drop(bound);
        fs::write(&file, "").unwrap();
        let lock = dir.open_lock().unwrap();
        lock.lock().unwrap();
        assert!(!dir.sweep() && dead.exists(), "another process is at it");
        lock.unlock().unwrap();
        assert!(dir.sweep());
        assert!(!dead.exists() && alive.exists() && file.exists());
    }
}
