//! The `/sys/class/infiniband` and `/dev/infiniband` that a program sees under `roxe run`.
//!
//! Some programs look for a card there before, or instead of, asking libibverbs. So the program starts in a mount
//! namespace of its own in which these folders exist; nothing outside of it changes. Root needs no more than that. Other
//! users need a user namespace as well, in which they keep their user and group and have no more rights than before; there,
//! set-user-id programs have no effect and other users appear as `nobody`. Who has some of the rights of root would lose
//! them there, and gets no view.
//!
//! All that `roxe run` starts shares one view, with counters that begin at 0. What cannot be made is said in one line, and
//! the program starts without it.

mod graft;
mod namespace;
mod tree;

use namespace::Space;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The folder in which devices find the files of their counters.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// Why the program does without, or with a part only.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ViewError {
    #[error("no /sys/class/infiniband for the program: {0}")]
    Device(#[from] roxe_provider::Error),
    #[error("no /sys/class/infiniband for the program: {0}")]
    Namespace(String),
    #[error(
        "no /sys/class/infiniband for the program: {} changes its user, which a user namespace would prevent",
        program.display()
    )]
    SetUser { program: PathBuf },
    #[error("no /sys/class/infiniband for the program: a user namespace would take away some of its rights")]
    Rights,
    #[error(
        "no /sys/class/infiniband for the program: its user stands for all others in a user namespace, where no card \
         would work; run it as another user"
    )]
    OverflowUser,
    #[error("no {target} for the program: {cause}")]
    Graft { target: &'static str, cause: io::Error },
}

/// Moves this process to where it sees the devices of `netdevs`, for `program`, which it will become; `scratch` is a folder
/// to mount on meanwhile. What cannot be done is handed to `report`. Whether there are counters.
pub(crate) fn enter(netdevs: Option<&str>, program: &OsStr, scratch: &Path, report: impl Fn(ViewError)) -> bool {
    match prepare(netdevs, program) {
        Ok(devices) => show(&devices, scratch, report),
        Err(error) => {
            report(error);
            false
        }
    }
}

/// The devices, once this process is in namespaces of its own.
fn prepare(netdevs: Option<&str>, program: &OsStr) -> Result<Vec<tree::Card>, ViewError> {
    let devices = roxe_provider::preview(netdevs)?;
    let space = Space::needed().ok_or(ViewError::Rights)?;
    if space == Space::OfUser {
        if roxe_provider::is_overflow_user() {
            return Err(ViewError::OverflowUser);
        }
        if let Some(program) = find(program).filter(|path| changes_user(path)) {
            return Err(ViewError::SetUser { program });
        }
        namespace::probe().map_err(ViewError::Namespace)?;
    }
    namespace::enter(space).map_err(|cause| ViewError::Namespace(cause.to_string()))?;
    Ok(devices.iter().map(tree::Card::new).collect())
}

/// Puts both folders in place. Whether the one of the counters is.
fn show(cards: &[tree::Card], scratch: &Path, report: impl Fn(ViewError)) -> bool {
    let open = |names| graft::Open { names, without: tree::is_ours };
    let (sys, dev) = (Path::new("/sys/class"), Path::new("/dev"));
    let class = open(&["infiniband", "infiniband_verbs"]);
    let class = graft::graft(scratch, sys, &class, |to| tree::write_class(cards, to));
    let dev = graft::graft(scratch, dev, &open(&["infiniband"]), |to| tree::write_dev(cards, to));
    let shown = class.is_ok();
    for (target, result) in [(CLASS, class), ("/dev/infiniband", dev)] {
        if let Err(cause) = result {
            report(ViewError::Graft { target, cause });
        }
    }
    shown
}

/// Where the program is, as `execvp` finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Whether a program runs as its owner or group, whoever starts it.
fn changes_user(program: &Path) -> bool {
    program.metadata().is_ok_and(|meta| meta.mode() & 0o6000 != 0)
}

/// `roxe probe-view`: tries to enter the namespaces, in a process that has nothing to lose. The error is for the one who
/// asked.
pub(crate) fn try_out() -> Result<(), Box<dyn std::error::Error>> {
    namespace::enter(Space::OfUser)?;
    Ok(graft::try_out()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn programs_that_change_their_user_are_told_apart() {
        let file = std::env::temp_dir().join(format!("roxe-view-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        assert!(!changes_user(&file));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(changes_user(&file));
        fs::remove_file(&file).unwrap();
        assert!(!changes_user(&file));
    }

    #[test]
    fn programs_are_found_as_the_system_does() {
        assert!(find(OsStr::new("sh")).is_some_and(|path| path.is_absolute() && path.ends_with("sh")));
        assert_eq!(find(OsStr::new("./sh")), Some("./sh".into()));
        assert_eq!(find(OsStr::new("no-such-program-anywhere")), None);
    }
}
