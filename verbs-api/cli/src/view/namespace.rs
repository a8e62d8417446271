//! Namespaces: which are needed, whether they may be had, and how to get into them.
//!
//! Entering a user namespace cannot be undone, and some systems let a process in and then give it
//! no rights there. So it is tried in a child process first, and this one follows only if that went
//! well. Touches the kernel's view of this process.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};
use std::fs;
use std::io;
use std::process::{Command, Stdio};

/// What it takes to mount something that nobody else sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// A mount namespace.
    OfMounts,
    /// A mount namespace in a user namespace.
    OfUser,
}

/// Bit of `CAP_SYS_ADMIN` in a set of capabilities (`man capabilities`).
const SYS_ADMIN: u32 = 21;
/// The name of the subcommand that tries it.
pub(crate) const PROBE: &str = "probe-view";

impl Space {
    /// What this process needs; `None` if that would cost it other rights, which do not reach out
    /// of a user namespace.
    pub(super) fn needed() -> Option<Self> {
        Self::for_rights(capabilities(&fs::read_to_string("/proc/self/status").unwrap_or_default()))
    }

    fn for_rights(set: u64) -> Option<Self> {
        match set {
            0 => Some(Self::OfUser),
            set => (set >> SYS_ADMIN & 1 == 1).then_some(Self::OfMounts),
        }
    }
}

/// The capabilities in force, as `/proc/PID/status` shows them.
fn capabilities(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// Whether the root folder is a mount point, which mounts of our own take. In a chroot it need not
/// be.
pub(super) fn root_is_mounted() -> bool {
    fs::read_to_string("/proc/self/mountinfo").map_or(true, |table| lists_root(&table))
}

/// Whether `/proc/PID/mountinfo` has the root folder (`man proc_pid_mountinfo`: its fifth word is
/// the mount point, as seen from the root of the process).
fn lists_root(table: &str) -> bool {
    table.lines().any(|line| line.split(' ').nth(4) == Some("/"))
}

/// Tries `enter` in a child process; the error says why it failed there.
pub(super) fn probe() -> Result<(), String> {
    let run = || {
        let program = std::env::current_exe()?;
        Command::new(program).arg(PROBE).stdin(Stdio::null()).output()
    };
    let output = run().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.trim().trim_start_matches("roxe probe-view: ");
    Err(format!("this system does not let you have a user namespace ({why})"))
}

/// Moves this process, which must have one thread, into fresh namespaces. Its user and group stay
/// what they are.
pub(super) fn enter(space: Space) -> io::Result<()> {
    let (user, group) = (Uid::effective(), Gid::effective());
    match space {
        Space::OfMounts => unshare(CloneFlags::CLONE_NEWNS)?,
        Space::OfUser => {
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
            // Who may drop groups could get at files that are closed to one of them; so nobody may
            // who maps them himself.
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
            fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        }
    }
    // What the system mounts later is seen, what we mount stays here.
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_SLAVE, nothing)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_a_chroot_is_no_mount_point() {
        let proc = "40 28 0:22 / /proc rw,relatime shared:5 - proc proc rw\n";
        assert!(!lists_root(proc));
        assert!(lists_root(&format!("28 1 254:0 / / rw,noatime - ext4 /dev/root rw\n{proc}")));
        assert!(root_is_mounted() || !std::path::Path::new("/proc/self").exists());
    }

    #[test]
    fn capabilities_decide_what_is_needed() {
        let needed = |status| Space::for_rights(capabilities(status));
        assert_eq!(needed("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(Space::OfMounts));
        assert_eq!(needed("CapEff:\t0000000000200000\n"), Some(Space::OfMounts));
        assert_eq!(needed("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n"), Some(Space::OfUser));
        assert_eq!(needed("CapEff:\t00000000a80425fb\n"), None);
    }
}
