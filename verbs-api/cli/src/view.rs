//! The `/sys/class/infiniband` and `/dev/infiniband` that a program sees under `roxe run`.
//!
//! Some programs look for a card there before, or instead of, asking libibverbs. So the program
//! starts in a mount namespace of its own in which these folders exist; nothing outside of it
//! changes. Root needs no more than that. Other users need a user namespace as well, in which they
//! keep their user and group and have no more rights than before; there, set-user-id programs have
//! no effect and other users appear as `nobody`. Who has some of the rights of root would lose them
//! there, and gets no view.
//!
//! All that `roxe run` starts shares one view, with counters that begin at 0. What cannot be made
//! is said in one line, and the program starts without it.

mod namespace;
mod overlay;
mod sysfs;

use crate::program;
use namespace::Space;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// The folder in which devices find the files of their counters.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// Why the program does without, or with a part only.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ViewError {
    #[error("{0}\n  Until then the program finds no device, and no /sys/class/infiniband.")]
    Device(#[from] roxe_provider::Error),
    #[error("no /sys/class/infiniband for the program: {0}")]
    Namespace(String),
    #[error(
        "no /sys/class/infiniband for the program: {} changes its user, which a user namespace would prevent; nor \
         does the loader of such a program follow LD_LIBRARY_PATH, so it may use another libibverbs",
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
    Mount { target: &'static str, cause: io::Error },
}

/// Moves this process to where it sees the devices of `netdevs`, for `program`, which it will
/// become; `scratch` is a folder to mount on meanwhile. What cannot be done is handed to `report`.
/// Whether there are counters.
pub(crate) fn enter(netdevs: Option<&str>, program: &OsStr, scratch: &Path, report: impl Fn(ViewError)) -> bool {
    match prepare(netdevs, program) {
        Ok(devices) => show(&devices, scratch, report),
        Err(error) => {
            report(error);
            false
        }
    }
}

/// Whether programs of this user can have a view.
pub(crate) fn possible() -> Result<(), ViewError> {
    space_for(None).map(drop)
}

/// What to enter for the program in this file.
fn space_for(program: Option<PathBuf>) -> Result<Space, ViewError> {
    let space = Space::needed().ok_or(ViewError::Rights)?;
    if space == Space::OfUser {
        if roxe_provider::is_overflow_user() {
            return Err(ViewError::OverflowUser);
        }
        if let Some(program) = program.filter(|path| program::changes_user(path)) {
            return Err(ViewError::SetUser { program });
        }
        namespace::probe().map_err(ViewError::Namespace)?;
    }
    Ok(space)
}

/// The devices, once this process is in namespaces of its own.
fn prepare(netdevs: Option<&str>, program: &OsStr) -> Result<Vec<sysfs::DeviceFiles>, ViewError> {
    let devices = roxe_provider::preview(netdevs)?;
    let space = space_for(program::find(program))?;
    namespace::enter(space).map_err(|cause| ViewError::Namespace(cause.to_string()))?;
    Ok(devices.iter().map(sysfs::DeviceFiles::new).collect())
}

/// Puts both folders in place. Whether the one of the counters is.
fn show(cards: &[sysfs::DeviceFiles], scratch: &Path, report: impl Fn(ViewError)) -> bool {
    let open = |names| overlay::Opened { names, without: sysfs::is_ours };
    let (sys, dev) = (Path::new("/sys/class"), Path::new("/dev"));
    let class = open(&["infiniband", "infiniband_verbs"]);
    let class = overlay::add(scratch, sys, &class, |to| sysfs::write_class(cards, to));
    let dev = overlay::add(scratch, dev, &open(&["infiniband"]), |to| sysfs::write_dev(cards, to));
    let shown = class.is_ok();
    for (target, result) in [(CLASS, class), ("/dev/infiniband", dev)] {
        if let Err(cause) = result {
            report(ViewError::Mount { target, cause });
        }
    }
    shown
}

/// `roxe probe-view`: tries to enter the namespaces, in a process that has nothing to lose. The
/// error is for the one who asked.
pub(crate) fn try_out() -> Result<(), Box<dyn std::error::Error>> {
    namespace::enter(Space::OfUser)?;
    Ok(overlay::try_out()?)
}
