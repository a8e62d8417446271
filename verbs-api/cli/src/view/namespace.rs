//! The namespaces of a view.
//!
//! A process cannot leave a user namespace, and some systems grant no rights there, so a child
//! process tries to enter one first.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};
use std::fs;
use std::io;
use std::process::{Command, Stdio};

/// The namespaces that a process needs to mount privately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Namespaces {
    /// A mount namespace.
    Mount,
    /// A mount namespace in a user namespace.
    UserAndMount,
}

/// Bit of `CAP_SYS_ADMIN` in a set of capabilities (`man capabilities`).
const SYS_ADMIN: u32 = 21;

impl Namespaces {
    /// Returns the namespaces that this process needs; `None` if it has capabilities that it would
    /// lose in a user namespace.
    pub(super) fn needed() -> Option<Self> {
        Self::for_rights(capabilities(&fs::read_to_string("/proc/self/status").unwrap_or_default()))
    }

    fn for_rights(set: u64) -> Option<Self> {
        match set {
            0 => Some(Self::UserAndMount),
            set => (set >> SYS_ADMIN & 1 == 1).then_some(Self::Mount),
        }
    }
}

/// Returns the effective capabilities in `/proc/PID/status`.
pub(crate) fn capabilities(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// Returns true if the root folder is a mount point, as private mounts require. The root folder of
/// a chroot may be no mount point.
pub(super) fn root_is_mounted() -> bool {
    fs::read_to_string("/proc/self/mountinfo").map_or(true, |table| lists_root(&table))
}

/// Returns true if `/proc/PID/mountinfo` has the root folder (`man proc_pid_mountinfo`: the fifth
/// word is the mount point, as seen from the root of the process).
fn lists_root(table: &str) -> bool {
    table.lines().any(|line| line.split(' ').nth(4) == Some("/"))
}

/// Tries [`enter`] in a child process. Fails with the reason if that fails there.
pub(super) fn probe() -> Result<(), String> {
    let run = || {
        let program = std::env::current_exe()?;
        Command::new(program).arg("probe-view").stdin(Stdio::null()).output()
    };
    let output = run().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let why = errors.trim().trim_start_matches("roxe probe-view: ");
    Err(format!("this system grants no user namespace ({why})"))
}

/// Moves this process, which must have one thread, into new namespaces. The process keeps its user
/// and group.
pub(super) fn enter(namespaces: Namespaces) -> io::Result<()> {
    match namespaces {
        Namespaces::Mount => unshare(CloneFlags::CLONE_NEWNS)?,
        Namespaces::UserAndMount => unshare_user(CloneFlags::CLONE_NEWNS, Uid::effective(), Gid::effective())?,
    }
    make_mounts_private()
}

/// Hides later mounts in this process's mount namespace from other namespaces. Later mounts of the
/// system still appear in this namespace.
pub(super) fn make_mounts_private() -> io::Result<()> {
    let nothing = None::<&str>;
    Ok(mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_SLAVE, nothing)?)
}

/// Moves this process, which must have one thread, into a user namespace and the namespaces of
/// `flags`. There it is `user` and `group`.
pub(super) fn unshare_user(flags: CloneFlags, user: Uid, group: Gid) -> io::Result<()> {
    let (own_user, own_group) = (Uid::effective(), Gid::effective());
    unshare(CloneFlags::CLONE_NEWUSER | flags)?;
    // The kernel requires this, because a process that drops a group could open files that deny
    // access to the group.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {own_user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {own_group} 1"))
}

/// Shows the processes of this process namespace in `/proc`, in this mount namespace only.
pub(crate) fn mount_own_proc() -> Result<(), String> {
    let mounted = make_mounts_private()
        .and_then(|()| Ok(mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None::<&str>)?));
    mounted.map_err(|cause| format!("cannot mount /proc: {cause}; in a container, unmask its paths"))
}

/// Moves this process, which must have one thread, into the namespaces of `flags`, where it is
/// root. Root may do without a user namespace.
pub(crate) fn unshare_as_root(flags: CloneFlags) -> Result<(), String> {
    if Uid::effective().is_root() && unshare(flags).is_ok() {
        return Ok(());
    }
    unshare_user(flags, Uid::from_raw(0), Gid::from_raw(0)).map_err(|cause| {
        format!("this system grants no user namespace: {cause}; run as root, or allow unprivileged user namespaces")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_chroot_is_not_a_mount_point() {
        let proc = "40 28 0:22 / /proc rw,relatime shared:5 - proc proc rw\n";
        assert!(!lists_root(proc));
        assert!(lists_root(&format!("28 1 254:0 / / rw,noatime - ext4 /dev/root rw\n{proc}")));
        assert!(root_is_mounted() || !std::path::Path::new("/proc/self").exists());
    }

    #[test]
    fn capabilities_determine_the_namespaces() {
        let needed = |status| Namespaces::for_rights(capabilities(status));
        assert_eq!(needed("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(Namespaces::Mount));
        assert_eq!(needed("CapEff:\t0000000000200000\n"), Some(Namespaces::Mount));
        assert_eq!(needed("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n"), Some(Namespaces::UserAndMount));
        assert_eq!(needed("CapEff:\t00000000a80425fb\n"), None);
    }
}
