//! The `/sys/class/infiniband` and `/dev/infiniband` that a program sees under `roxe run`.
//!
//! Some programs look for a card there before, or instead of, asking libibverbs. So the program
//! starts in a mount namespace of its own in which these folders exist; nothing outside of it
//! changes. Root needs no more than that. Other users need a user namespace as well, in which they
//! keep their user and group and have no more rights than before; there, set-user-id programs have
//! no effect and other users appear as `nobody`. Who has some of the rights of root would lose them
//! there, and gets no view.
//!
//! In it roxe's library also stands for the system's libibverbs and librdmacm, and for copies that
//! programs bring along, so that also those are served that do not follow LD_LIBRARY_PATH.
//!
//! All that `roxe run` starts shares one view, with counters that begin at 0. What cannot be made
//! is said in one line, and the program starts without it.

mod libraries;
mod namespace;
mod overlay;
mod sysfs;

use crate::program;
use namespace::Space;
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
        "no /sys/class/infiniband for the program: {} gains rights when it starts, which a user namespace would \
         prevent",
        program.display()
    )]
    GainsRights { program: PathBuf },
    #[error("no /sys/class/infiniband for the program: a user namespace would take away some of its rights")]
    Rights,
    #[error(
        "no /sys/class/infiniband for the program: its user stands for all others in a user namespace, where no card \
         would work; run it as another user"
    )]
    OverflowUser,
    #[error(
        "no /sys/class/infiniband for the program: the root folder is no mount point, as in a chroot\n  Let it be \
         one: mount --bind ROOT ROOT, before chroot ROOT; most programs do without."
    )]
    Root,
    #[error("no /sys/class/infiniband for the program: /sys is not mounted here\n  mount -t sysfs sys /sys")]
    NoSys,
    #[error("no {target} for the program: {cause}")]
    Mount { target: &'static str, cause: io::Error },
    #[error("programs that do not follow LD_LIBRARY_PATH may load {} and not roxe: {cause}", path.display())]
    Library { path: PathBuf, cause: io::Error },
}

/// What a program is shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    /// There are counters.
    pub(crate) counters: bool,
    /// The library stands for those of the system and of the program.
    pub(crate) library: bool,
}

/// Moves this process to where it sees roxe's devices, and `library` in place of all
/// others of its names, for `program`, which it will become; `scratch` is a folder to mount on
/// meanwhile. What cannot be done is handed to `report`.
pub(crate) fn enter(library: &Path, program: Option<&Path>, scratch: &Path, report: impl Fn(ViewError)) -> Shown {
    let others = libraries::find(library, program);
    match prepare(program) {
        Ok(devices) => {
            let laid = libraries::replace(library, &others).map_err(|(path, cause)| ViewError::Library { path, cause });
            let library = laid.map_err(&report).is_ok();
            Shown { counters: show(&devices, scratch, report), library }
        }
        Err(error) => {
            report(error);
            Shown::default()
        }
    }
}

/// The copy of libibverbs that a package of this Python brings along under a name of its own.
pub(crate) fn copy_of_python(program: &Path) -> Option<PathBuf> {
    program::is_python(program).then(|| libraries::packaged(program)).flatten()
}

/// Whether programs of this user can have a view.
pub(crate) fn possible() -> Result<(), ViewError> {
    space_for(None).map(drop)
}

/// What to enter for the program in this file.
fn space_for(program: Option<&Path>) -> Result<Space, ViewError> {
    if !namespace::root_is_mounted() {
        return Err(ViewError::Root);
    }
    if !Path::new("/sys/class").is_dir() {
        return Err(ViewError::NoSys);
    }
    let space = Space::needed().ok_or(ViewError::Rights)?;
    if space == Space::OfUser {
        if roxe_provider::is_overflow_user() {
            return Err(ViewError::OverflowUser);
        }
        if let Some(program) = program.filter(|path| program::gains_rights(path)) {
            return Err(ViewError::GainsRights { program: program.to_owned() });
        }
        namespace::probe().map_err(ViewError::Namespace)?;
    }
    Ok(space)
}

/// The devices, once this process is in namespaces of its own.
fn prepare(program: Option<&Path>) -> Result<Vec<sysfs::DeviceFiles>, ViewError> {
    let devices = roxe_provider::preview()?;
    let space = space_for(program)?;
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
