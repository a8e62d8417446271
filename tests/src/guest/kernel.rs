//! Prepares the guest's kernel and initramfs, and keeps them in the target folder.
//!
//! The kernel is Debian's package, downloaded with apt-get but not installed.

#[path = "../../../verbs-api/cli/src/lab/guest/kernel.rs"]
mod packed;

use super::Unavailable;
use crate::build;
use crate::pair::installed;
use packed::MODULES;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Script that is the first process of the guest.
const INIT: &str = include_str!("../../guest/init");

/// Kernel modules that netem.sh needs.
const NETEM: [&str; 6] = ["sch_netem", "sch_prio", "sch_ingress", "cls_u32", "act_mirred", "ifb"];

/// Files that this machine and the guest need, each with its Debian package.
const PROGRAMS: [(&str, &str); 9] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("/bin/busybox", "busybox-static"),
    ("/sbin/depmod", "kmod"),
    ("/sbin/tc", "iproute2"),
    ("apt-get", "apt"),
    ("dpkg", "dpkg"),
    ("setpriv", "util-linux"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
];

/// Package that depends on Debian's newest kernel.
const NEWEST: &str = "linux-image-amd64";

/// Files that QEMU boots.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Version, as in `uname -r`.
    pub version: String,
    /// Path of the compressed kernel.
    pub image: PathBuf,
    /// Path of the archive with the first process and the kernel modules.
    pub initramfs: PathBuf,
}

/// Returns the folder of the kernel and the initramfs.
pub(super) fn folder() -> PathBuf {
    build::target_dir().join("rxe-guest")
}

impl Kernel {
    /// Checks that a guest can run here, fetches a kernel on first use, which needs the network,
    /// and packs the initramfs. Holds a lock file against other processes.
    pub fn prepare() -> Result<Self, Unavailable> {
        if fs::metadata("/proc/self").map_or(0, |m| m.uid()) != 0 {
            return Err("needs root: a network namespace, a tap device and the guest's memory locks".into());
        }
        let missing: Vec<&str> = PROGRAMS.iter().filter(|(file, _)| !installed(file)).map(|(_, deb)| *deb).collect();
        if !missing.is_empty() {
            return Err(format!("not installed: {} (tests/run installs them)", missing.join(" ")).into());
        }
        Self::make(&folder()).map_err(|e| format!("cannot prepare the guest's kernel: {e}").into())
    }

    fn make(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let lock = File::create(folder.join("lock"))?;
        lock.lock()?;
        let root = folder.join("kernel");
        if !root.is_dir() {
            fetch(folder, &root)?;
        }
        let version = only_name(&root.join("lib/modules"))?;
        let failed = |e: Box<dyn Error>| io::Error::other(e.to_string());
        let found = packed::Kernel::find(&root).map_err(failed)?;
        let modules = [&MODULES[..], &NETEM].concat();
        let archive = found.pack(Path::new("/bin/busybox"), &modules, &[("init", INIT.as_bytes())]).map_err(failed)?;
        let initramfs = folder.join("initramfs");
        // Replace the file by a rename, because QEMU may be reading the old one.
        if fs::read(&initramfs).ok().as_deref() != Some(&archive) {
            let fresh = folder.join("initramfs.new");
            fs::write(&fresh, archive)?;
            fs::rename(fresh, &initramfs)?;
        }
        Ok(Self { version, image: found.image, initramfs })
    }
}

/// Downloads Debian's newest kernel and unpacks it into `root`.
fn fetch(folder: &Path, root: &Path) -> io::Result<()> {
    let depends = run_command(Command::new("apt-cache").args(["depends", NEWEST]))?;
    let package = depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: ").filter(|name| name.starts_with("linux-image-")))
        .ok_or_else(|| {
            io::Error::other(format!("the package lists do not know {NEWEST} (apt-get update fetches them)"))
        })?;
    let (incoming, unpacked) = (folder.join("incoming"), folder.join("kernel.new"));
    remove_tree(&incoming)?;
    remove_tree(&unpacked)?;
    fs::create_dir_all(&incoming)?;
    let mut download = Command::new("apt-get");
    // By default apt-get downloads as the user `_apt`, which may not write to this folder.
    download.args(["-qq", "-o", "APT::Sandbox::User=root", "download", package]).current_dir(&incoming);
    run_command(&mut download)?;
    run_command(Command::new("dpkg").arg("-x").arg(incoming.join(only_name(&incoming)?)).arg(&unpacked))?;
    remove_tree(&incoming)?;
    run_command(Command::new("/sbin/depmod").arg("-b").arg(&unpacked).arg(only_name(&unpacked.join("lib/modules"))?))?;
    // Later runs use any folder of this name, so rename only a complete one.
    fs::rename(unpacked, root)
}

/// Returns the name of the only entry of `folder`.
fn only_name(folder: &Path) -> io::Result<String> {
    let entry =
        fs::read_dir(folder)?.next().ok_or_else(|| io::Error::other(format!("{} is empty", folder.display())))?;
    Ok(entry?.file_name().to_string_lossy().into_owned())
}

/// Removes a folder with its files. Returns `Ok` if it does not exist.
pub(super) fn remove_tree(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Runs a command; returns its standard output, or its standard error as the error.
pub(super) fn run_command(command: &mut Command) -> io::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|e| io::Error::other(format!("{name}: {e}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("{name} ended with {}: {why}", output.status)))
}
