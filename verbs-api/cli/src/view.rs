//! The view: `/sys/class/infiniband` and `/dev/infiniband` of roxe's devices under `roxe run`,
//! because some programs look for a card there.
//!
//! The program starts in a mount namespace. Unless its user is root, the program also starts in a
//! user namespace, where it keeps its user and group, but set-uid programs gain no rights. A
//! program with some capabilities would lose them there, so it gets no view. Roxe's library is
//! bound over other copies of libibverbs and librdmacm, for programs that do not follow
//! LD_LIBRARY_PATH. If a part of the view fails, `roxe run` reports it and the program starts
//! without that part.

mod libraries;
mod namespace;
mod overlay;
mod sysfs;

use crate::output::Result;
use crate::program;
use namespace::Namespaces;
pub(crate) use namespace::{capabilities, mount_own_proc, unshare_as_root};
use nix::mount::{MsFlags, mount};
use nix::unistd::Uid;
use roxe_provider::Device;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
pub(crate) use sysfs::{CLASS, hex_groups, shows_other_cards};

/// A reason why the program has no view, or a part of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ViewError {
    #[error("no device and no /sys/class/infiniband for the program: {0}")]
    Device(#[from] roxe_provider::Error),
    #[error("no /sys/class/infiniband for the program: {0}")]
    Namespace(String),
    #[error(
        "no /sys/class/infiniband for the program: {} gains rights when it starts, which a user namespace would \
         prevent",
        program.display()
    )]
    GainsRights { program: PathBuf },
    #[error("no /sys/class/infiniband for the program: a user namespace would remove some of its capabilities")]
    Rights,
    #[error("no /sys/class/infiniband for the program: root without capabilities can use no user namespace")]
    PowerlessRoot,
    #[error(
        "no /sys/class/infiniband for the program: its user stands for all others in a user namespace, where no card \
         would work; run it as another user"
    )]
    OverflowUser,
    #[error(
        "no /sys/class/infiniband for the program: the root folder is not a mount point, as in a chroot; before chroot \
         ROOT, mount --bind ROOT ROOT (most programs do without)"
    )]
    Root,
    #[error("no /sys/class/infiniband for the program: /sys is not mounted; mount -t sysfs sys /sys")]
    NoSys,
    #[error("no {target} for the program: {cause}")]
    Mount { target: &'static str, cause: io::Error },
    #[error("programs that do not follow LD_LIBRARY_PATH may load {} and not roxe: {cause}", path.display())]
    Library { path: PathBuf, cause: io::Error },
}

/// The parts of the view that a program has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ViewParts {
    pub(crate) counters: bool,
    /// True if roxe's library replaces all other copies.
    pub(crate) library: bool,
}

/// Moves this process, which will become `program`, into the view, with `library` in place of all
/// other copies. `scratch` is a folder for temporary mounts. Calls `report` for each failure.
pub(crate) fn enter(library: &Path, program: Option<&Path>, scratch: &Path, report: impl Fn(ViewError)) -> ViewParts {
    let others = libraries::find(library, program);
    match prepare(program) {
        Ok(devices) => {
            let replaced =
                libraries::replace(library, &others).map_err(|(path, cause)| ViewError::Library { path, cause });
            let library = replaced.map_err(&report).is_ok();
            libraries::replace_rdma();
            ViewParts { counters: show(&devices, scratch, report), library }
        }
        Err(error) => {
            report(error);
            ViewParts::default()
        }
    }
}

/// Returns the copy of libibverbs that a package of this Python bundles under another name.
pub(crate) fn copy_of_python(program: &Path) -> Option<PathBuf> {
    program::is_python(program).then(|| libraries::packaged(program)).flatten()
}

/// Fails if programs of this user cannot have a view.
pub(crate) fn possible() -> Result<(), ViewError> {
    namespaces_for(None).map(drop)
}

/// Returns the namespaces that the program needs.
fn namespaces_for(program: Option<&Path>) -> Result<Namespaces, ViewError> {
    if !namespace::root_is_mounted() {
        return Err(ViewError::Root);
    }
    if !Path::new("/sys/class").is_dir() {
        return Err(ViewError::NoSys);
    }
    let namespaces = Namespaces::needed().ok_or(ViewError::Rights)?;
    if namespaces == Namespaces::UserAndMount {
        if roxe_provider::is_overflow_user() {
            return Err(ViewError::OverflowUser);
        }
        if let Some(program) = program.filter(|path| program::gains_rights(path)) {
            return Err(ViewError::GainsRights { program: program.to_owned() });
        }
        // Linux lets a process map user 0 into a user namespace only if it has CAP_SETFCAP
        // (kernel/user_namespace.c, verify_root_map).
        let refused =
            |why| if Uid::effective().is_root() { ViewError::PowerlessRoot } else { ViewError::Namespace(why) };
        namespace::probe().map_err(refused)?;
    }
    Ok(namespaces)
}

/// Enters the namespaces and returns the devices.
fn prepare(program: Option<&Path>) -> Result<Vec<Device>, ViewError> {
    let devices = roxe_provider::preview()?;
    let namespaces = namespaces_for(program)?;
    namespace::enter(namespaces).map_err(|cause| ViewError::Namespace(cause.to_string()))?;
    Ok(devices)
}

/// Mounts both folders. Returns true if `/sys/class/infiniband`, which has the counters, is
/// mounted.
fn show(cards: &[Device], scratch: &Path, report: impl Fn(ViewError)) -> bool {
    // Read before the class is replaced.
    let outer = sysfs::outer_devices(Path::new(CLASS), Path::new(sysfs::NODES));
    let without = |name: &OsStr| outer.contains(name) || sysfs::has_name_of_ours(name);
    let open = |names| overlay::OpenFolders { names, without: &without };
    let (sys, dev) = (Path::new("/sys/class"), Path::new("/dev"));
    let class = open(&["infiniband", "infiniband_verbs"]);
    let class = overlay::add(scratch, sys, &class, |to| sysfs::write_class(cards, to));
    let dev = overlay::add(scratch, dev, &open(&["infiniband"]), |to| sysfs::write_dev(cards, to));
    let shown = class.is_ok();
    for (target, result) in [(CLASS, class), (sysfs::NODES, dev)] {
        if let Err(cause) = result {
            report(ViewError::Mount { target, cause });
        }
    }
    shown
}

/// `roxe probe-view`: tries to enter the namespaces. The parent process reads the error.
pub(crate) fn probe() -> Result {
    namespace::enter(Namespaces::UserAndMount)?;
    // Fails if this process may not mount.
    Ok(mount(Some("roxe"), "/sys/class", Some("tmpfs"), MsFlags::empty(), None::<&str>)?)
}
