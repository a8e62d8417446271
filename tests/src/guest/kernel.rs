//! The guest's kernel and its first file system, made once and kept under the target folder.
//!
//! Touches the package manager (only to fetch a kernel; nothing is installed), the target folder
//! and child processes.

use super::Unavailable;
use crate::build;
use crate::pair::installed;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The first process of the guest.
const INIT: &str = include_str!("../../guest/init");

/// Modules the guest needs; what they depend on is added. Those that a kernel has built in do no
/// harm here.
const MODULES: &str = "virtio_pci virtio_net virtio_rng virtio_console 9pnet_virtio 9p overlay crc32_generic crc32_pclmul \
                       rdma_rxe rdma_ucm ib_umad ib_uverbs sch_netem sch_prio sch_ingress cls_u32 act_mirred ifb";

/// Programs on this machine, each with the Debian package that has it. The guest runs this
/// machine's programs, too.
const PROGRAMS: [(&str, &str); 11] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("/bin/busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("/sbin/modprobe", "kmod"),
    ("/sbin/tc", "iproute2"),
    ("apt-get", "apt"),
    ("dpkg", "dpkg"),
    ("setpriv", "util-linux"),
    ("gzip", "gzip"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
];

/// The package that always depends on Debian's newest kernel.
const NEWEST: &str = "linux-image-amd64";

/// Files that QEMU boots.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Version, as in `uname -r`.
    pub version: String,
    /// The compressed kernel.
    pub image: PathBuf,
    /// The compressed archive with the first process and the modules.
    pub initramfs: PathBuf,
}

/// Folder of everything the guests use.
pub(super) fn folder() -> PathBuf {
    build::target_dir().join("rxe-guest")
}

impl Kernel {
    /// Checks that a guest can run here, fetches a kernel unless that was done before, and packs
    /// the initramfs.
    ///
    /// Needs the network the first time. Two callers at once take turns.
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
        let kernel = Self {
            image: root.join(format!("boot/vmlinuz-{version}")),
            initramfs: folder.join("initramfs.gz"),
            version,
        };
        let stamp = format!("{} {MODULES}\n{INIT}", kernel.version);
        let stamp_file = folder.join("initramfs.made-of");
        if fs::read_to_string(&stamp_file).ok().as_deref() != Some(&stamp) || !kernel.initramfs.exists() {
            kernel.pack(folder, &root)?;
            fs::write(stamp_file, stamp)?;
        }
        Ok(kernel)
    }

    fn pack(&self, folder: &Path, root: &Path) -> io::Result<()> {
        let tree = folder.join("initramfs");
        remove_tree(&tree)?;
        for name in ["bin", "proc", "sys", "dev", "host", "scratch", "new", "lib/modules"] {
            fs::create_dir_all(tree.join(name))?;
        }
        fs::copy("/bin/busybox", tree.join("bin/busybox"))?;
        fs::write(tree.join("init"), INIT)?;
        fs::set_permissions(tree.join("init"), fs::Permissions::from_mode(0o755))?;
        let mut order = File::create(tree.join("modules"))?;
        for module in self.modules(root)? {
            let name = copy_module(&module, &tree.join("lib/modules"))?;
            writeln!(order, "{name}")?;
        }
        let archive = format!(
            "find . | cpio --quiet -o -H newc | gzip -1 > '{}.new' && mv '{0}.new' '{0}'",
            self.initramfs.display()
        );
        said(Command::new("sh").arg("-ec").arg(archive).current_dir(&tree))?;
        remove_tree(&tree)
    }

    /// The module files in the order to load them.
    fn modules(&self, root: &Path) -> io::Result<Vec<PathBuf>> {
        said(Command::new("/sbin/depmod").arg("-b").arg(root).arg(&self.version))?;
        let mut files = Vec::new();
        for module in MODULES.split_whitespace() {
            let mut ask = Command::new("/sbin/modprobe");
            // No configuration: the options this machine gives its own modules are not the guest's.
            ask.args(["-C", "/dev/null", "-S", &self.version, "-d"]).arg(root).args(["--show-depends", module]);
            ask.stderr(Stdio::null());
            // A module that this kernel does not have is built in or merged into another: its text
            // is then empty.
            let text = String::from_utf8_lossy(&ask.output()?.stdout).into_owned();
            for line in text.lines() {
                match line.strip_prefix("insmod ").map(|rest| PathBuf::from(rest.trim())) {
                    Some(file) if !files.contains(&file) => files.push(file),
                    _ => {}
                }
            }
        }
        Ok(files)
    }
}

/// Unpacks Debian's newest kernel into `root`.
fn fetch(folder: &Path, root: &Path) -> io::Result<()> {
    let depends = said(Command::new("apt-cache").args(["depends", NEWEST]))?;
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
    // apt drops its rights for the download, and would then not be allowed to write here.
    download.args(["-qq", "-o", "APT::Sandbox::User=root", "download", package]).current_dir(&incoming);
    said(&mut download)?;
    said(Command::new("dpkg").arg("-x").arg(incoming.join(only_name(&incoming)?)).arg(&unpacked))?;
    remove_tree(&incoming)?;
    // Later runs use a kernel by this name, so only a complete one gets it.
    fs::rename(unpacked, root)
}

/// Puts a module into `to`, uncompressed, and returns its file name.
fn copy_module(file: &Path, to: &Path) -> io::Result<String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(plain) = name.strip_suffix(".xz") else {
        fs::copy(file, to.join(&name))?;
        return Ok(name);
    };
    let out = File::create(to.join(plain))?;
    said(Command::new("xz").arg("-dc").arg(file).stdout(out))?;
    Ok(plain.to_owned())
}

/// Name of the one entry of `folder`.
fn only_name(folder: &Path) -> io::Result<String> {
    let entry =
        fs::read_dir(folder)?.next().ok_or_else(|| io::Error::other(format!("{} is empty", folder.display())))?;
    Ok(entry?.file_name().to_string_lossy().into_owned())
}

/// Removes a folder and all in it; one that is not there is fine.
pub(super) fn remove_tree(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Runs a command; returns its standard output, or its standard error as the error.
pub(super) fn said(command: &mut Command) -> io::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|e| io::Error::other(format!("{name}: {e}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("{name} ended with {}: {why}", output.status)))
}
