//! Folders in which only this user and root can change anything. They hold the names by which
//! processes find each other, and libraries that a program's loader runs.
//!
//! A folder is as safe as the folders above it, because renaming any of them replaces it. So the
//! check goes from the root down a path without links. Each folder must belong to root or to the
//! user, and others must not be able to write in it, unless it is sticky: there they cannot rename
//! folders of this user. Only the user or root can change a path that has passed.

use crate::privilege::effective_uid;
use std::fmt;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The user id that `stat` reports for owners the user namespace does not map, unless
/// `/proc/sys/kernel/overflowuid` names another.
const OVERFLOW_UID: u32 = 65_534;

/// A path on which only this user and root can change anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trusted {
    /// The path without links.
    pub path: PathBuf,
    /// True if a folder above is writable by all (and sticky): another user can take the name once
    /// the folder no longer exists, for example after a restart of the system.
    pub is_in_shared: bool,
}

/// The reason to reject a folder.
#[derive(Debug)]
pub struct Unfit(String);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unfit {}

impl From<io::Error> for Unfit {
    fn from(cause: io::Error) -> Self {
        Self(cause.to_string())
    }
}

/// Checks that only this user and root can replace or change the file or folder at `path`.
pub fn check(path: &Path) -> Result<Trusted, Unfit> {
    let at = |path: &Path, why: &dyn fmt::Display| Unfit(format!("{}: {why}", path.display()));
    let path = path.canonicalize().map_err(|cause| at(path, &cause))?;
    let mut is_in_shared = false;
    for part in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
        let meta = fs::symlink_metadata(part).map_err(|cause| at(part, &cause))?;
        if !is_trusted(meta.uid()) {
            return Err(Unfit(format!("{} belongs to user {}", part.display(), meta.uid())));
        }
        // Group root counts as root: container images have folders that it can write in.
        let others = if meta.gid() == 0 { 0o002 } else { 0o022 };
        let is_open = meta.mode() & others != 0;
        if is_open && !(meta.is_dir() && meta.mode() & 0o1000 != 0) {
            return Err(Unfit(format!("others can write in {}", part.display())));
        }
        is_in_shared |= is_open;
    }
    Ok(Trusted { path, is_in_shared })
}

/// Makes the folder `path` unless it exists. Checks that only this user can enter it and that other
/// users cannot replace it. The parent folder must exist.
pub fn make(path: &Path) -> Result<Trusted, Unfit> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Unfit("it is not a folder of this user".to_owned()));
    };
    let Trusted { path: parent, is_in_shared } = check(parent)?;
    let path = parent.join(name);
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause.into()),
        _ => {}
    }
    let meta = fs::symlink_metadata(&path)?;
    if !meta.is_dir() {
        return Err(Unfit("it is not a folder".to_owned()));
    }
    if meta.uid() != effective_uid() {
        return Err(Unfit(format!("it belongs to user {}", meta.uid())));
    }
    if meta.mode() & 0o022 != 0 {
        // Other users may have left a file in it that would pass for one of this user.
        return Err(Unfit("others can write in it".to_owned()));
    }
    if meta.mode() & 0o7777 != 0o700 {
        fs::set_permissions(&path, Permissions::from_mode(0o700))?;
    }
    Ok(Trusted { path, is_in_shared })
}

/// Like [`make`]; also makes the missing folders above, with mode 0700 under any umask.
pub fn make_all(path: &Path) -> Result<Trusted, Unfit> {
    if let Some(parent) = path.parent().filter(|parent| fs::symlink_metadata(parent).is_err()) {
        make_all(parent).map_err(|why| Unfit(format!("{}: {why}", parent.display())))?;
    }
    make(path)
}

/// Returns true for root and the user of this process. In a user namespace that does not map root,
/// files of root and of other unmapped users all show the overflow uid, so they cannot be told
/// apart.
fn is_trusted(owner: u32) -> bool {
    [effective_uid(), 0].contains(&owner) || owner == overflow_uid() && !are_all_users_mapped()
}

/// Returns true if the user namespace of this process maps all users.
pub fn are_all_users_mapped() -> bool {
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_all_users(&map))
}

/// Returns true if the lines of a `uid_map` map every user (`man 7 user_namespaces`).
fn maps_all_users(map: &str) -> bool {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum::<u64>() >= u64::from(u32::MAX)
}

/// Returns the user id that stands for all users that the user namespace does not map.
pub fn overflow_uid() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(OVERFLOW_UID)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            let path = PathBuf::from(format!("/tmp/roxe-private-{:x}", crate::random::number().unwrap() as u64));
            DirBuilder::new().mode(0o700).create(&path).unwrap();
            Self(path)
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.join(path)
        }

        fn set_mode(&self, path: &str, mode: u32) {
            fs::set_permissions(self.at(path), Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn new_folder_is_private_under_any_umask() {
        let scratch = Scratch::new();
        // All threads of a process share the umask, so another process sets it.
        if std::env::var_os("ROXE_TEST_PRIVATE_DIR").is_none() {
            for umask in ["000", "077", "777"] {
                let own = std::env::current_exe().unwrap();
                let name = "new_folder_is_private_under_any_umask";
                let script = format!("umask {umask}; exec \"$0\" {name}");
                let mut shell = std::process::Command::new("sh");
                let status = shell.arg("-c").arg(script).arg(own).env("ROXE_TEST_PRIVATE_DIR", "1").status();
                assert!(status.unwrap().success(), "umask {umask}");
            }
            return;
        }
        scratch.set_mode("", 0o700);
        make_all(&scratch.at("a/b/c")).unwrap();
        for path in ["a", "a/b", "a/b/c"] {
            assert_eq!(fs::metadata(scratch.at(path)).unwrap().mode() & 0o7777, 0o700, "{path}");
        }
    }

    #[test]
    fn parent_writable_by_others_is_rejected() {
        let scratch = Scratch::new();
        make_all(&scratch.at("a/b/c")).unwrap();
        for (open, mode) in [("", 0o777), ("a", 0o770), ("a/b", 0o707)] {
            if effective_uid() == 0 {
                chown(scratch.at(open), None, Some(12_345)).unwrap();
            }
            scratch.set_mode(open, mode);
            let refused = [check(&scratch.at("a/b/c")), make(&scratch.at("a/b/c"))].map(Result::unwrap_err);
            let expected = format!("others can write in {}", scratch.at(open).display());
            assert!(refused.iter().all(|why| why.to_string() == expected.trim_end_matches('/')), "{refused:?}");
            scratch.set_mode(open, 0o700);
        }
        if effective_uid() == 0 {
            chown(scratch.at("a"), None, Some(0)).unwrap();
            scratch.set_mode("a", 0o770);
            check(&scratch.at("a/b/c")).unwrap();
        }
        scratch.set_mode("a", 0o1777);
        assert!(make(&scratch.at("a/b/c")).unwrap().is_in_shared, "a sticky folder is accepted");
    }

    #[test]
    fn parent_of_another_user_is_rejected() {
        let scratch = Scratch::new();
        if effective_uid() != 0 {
            return eprintln!("skipped: only root can make a folder of another user");
        }
        make_all(&scratch.at("a/b/c")).unwrap();
        for foreign in ["a", "a/b", "a/b/c"] {
            chown(scratch.at(foreign), Some(12_345), None).unwrap();
            assert!(check(&scratch.at("a/b/c")).unwrap_err().to_string().ends_with(" belongs to user 12345"));
            assert!(make(&scratch.at("a/b/c")).unwrap_err().to_string().ends_with(" belongs to user 12345"));
            chown(scratch.at(foreign), Some(0), None).unwrap();
        }
        // Where all users are mapped, the overflow uid is an ordinary user.
        chown(scratch.at("a"), Some(overflow_uid()), None).unwrap();
        assert_eq!(check(&scratch.at("a/b")).is_err(), are_all_users_mapped());
    }

    #[test]
    fn links_are_resolved_and_their_targets_checked() {
        let scratch = Scratch::new();
        make_all(&scratch.at("a/b")).unwrap();
        symlink(scratch.at("a"), scratch.at("link")).unwrap();
        assert_eq!(make(&scratch.at("link/b")).unwrap().path, scratch.at("a/b"));
        assert_eq!(make(&scratch.at("link")).unwrap_err().to_string(), "it is not a folder");
        scratch.set_mode("a", 0o777);
        assert!(check(&scratch.at("link/b")).is_err());
    }

    #[test]
    fn file_writable_by_others_is_rejected() {
        let scratch = Scratch::new();
        fs::write(scratch.at("library"), "").unwrap();
        scratch.set_mode("library", 0o644);
        check(&scratch.at("library")).unwrap();
        scratch.set_mode("library", 0o1666);
        check(&scratch.at("library")).unwrap_err();
    }

    #[test]
    fn uid_map_is_complete_only_if_it_covers_all_ids() {
        assert!(maps_all_users("         0          0 4294967295\n"));
        assert!(maps_all_users("0 0 1000\n1000 1000 4294966295\n"));
        assert!(!maps_all_users("65534 1000 1\n") && !maps_all_users(""));
    }
}
