//! The kernel of a guest, found on this machine, and its initial file system, packed in memory. The
//! integration tests include this file for guests of their own.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Modules that every guest needs. One that is missing in `modules.dep` is built into the kernel,
/// and is skipped.
pub(super) const MODULES: [&str; 13] = [
    "virtio_pci",
    "virtio_net",
    "virtio_rng",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    // rxe of Linux 6.1 requests the CRC by its name, and the guest has no modprobe to load it.
    "crc32_generic",
    "crc32_pclmul",
    "rdma_rxe",
    "rdma_ucm",
    "ib_umad",
    "ib_uverbs",
];

/// A kernel with rxe.
#[derive(Debug, PartialEq)]
pub(super) struct Kernel {
    /// File of the kernel image.
    pub(super) image: PathBuf,
    /// Folder of its modules.
    modules: PathBuf,
}

impl Kernel {
    /// Finds the newest kernel with rxe that this user may read in `root`, a folder with `boot` and
    /// `lib/modules`.
    pub(super) fn find(root: &Path) -> Result<Self> {
        let entries = fs::read_dir(root.join("lib/modules")).into_iter().flatten().flatten();
        let mut versions: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        versions.sort_by_key(|version| numbers(version));
        let mut refused = None;
        for version in versions.iter().rev() {
            let modules = root.join("lib/modules").join(version);
            let has_rxe = |list| fs::read_to_string(modules.join(list)).is_ok_and(|text| text.contains("/rdma_rxe.ko"));
            if !modules.join("modules.dep").is_file() || !["modules.dep", "modules.builtin"].into_iter().any(has_rxe) {
                continue;
            }
            for image in [root.join(format!("boot/vmlinuz-{version}")), modules.join("vmlinuz")] {
                match File::open(&image) {
                    Ok(_) => return Ok(Self { image, modules }),
                    Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                    Err(cause) => refused = Some(format!("cannot read {}: {cause}", image.display())),
                }
            }
        }
        let none = format!("no kernel with rdma_rxe in {}", root.display());
        let why = refused.unwrap_or(none);
        Err(format!(
            "{why}; install linux-image-amd64, or pass --kernel DIR, where DIR has boot/vmlinuz-VERSION and \
             lib/modules/VERSION/modules.dep"
        )
        .into())
    }

    /// Packs the initial file system: busybox, the modules as `/modules/NUMBER-NAME` in the order
    /// to load them, and these files.
    pub(super) fn pack(&self, busybox: &Path, modules: &[&str], files: &[(&str, &[u8])]) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for folder in ["bin", "dev", "host", "modules", "new", "proc", "scratch", "sys"] {
            archive.add(folder, FOLDER, &[]);
        }
        archive.add("bin/busybox", PROGRAM, &fs::read(busybox)?);
        let list = fs::read_to_string(self.modules.join("modules.dep"))?;
        for (number, module) in load_order(&list, modules).iter().enumerate() {
            archive.add(&format!("modules/{number:03}-{}", name(module)), PROGRAM, &self.module(module)?);
        }
        files.iter().for_each(|(name, content)| archive.add(name, PROGRAM, content));
        archive.add("TRAILER!!!", 0, &[]);
        Ok(archive.0)
    }

    fn module(&self, file: &str) -> Result<Vec<u8>> {
        let path = self.modules.join(file);
        let unpack = [(".xz", "xz"), (".zst", "zstd"), (".gz", "gzip")];
        let Some((_, tool)) = unpack.into_iter().find(|(end, _)| file.ends_with(end)) else {
            return Ok(fs::read(path)?);
        };
        let output = Command::new(tool).arg("-dc").arg(&path).stdin(Stdio::null()).output();
        let output = output.map_err(|cause| format!("cannot start {tool}, which unpacks modules: {cause}"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            Ok(output.stdout)
        } else {
            Err(format!("{tool} failed: {}", stderr.trim()).into())
        }
    }
}

/// Returns the numbers of a version, by which versions are ordered.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// Returns the name of a module from the path of its file.
fn name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or_default();
    name.split('.').next().unwrap_or_default().replace('-', "_")
}

/// Returns the files of these modules and of those that they need, in the order to load them.
/// `modules.dep` has lines `FILE: FILE...`, where each file needs those to its right.
fn load_order<'a>(list: &'a str, modules: &[&str]) -> Vec<&'a str> {
    let mut order = Vec::new();
    for module in modules {
        let line = list.lines().find_map(|line| line.split_once(':').filter(|(file, _)| name(file) == *module));
        let Some((file, needs)) = line else { continue };
        for file in needs.split_whitespace().rev().chain([file]) {
            if !order.contains(&file) {
                order.push(file);
            }
        }
    }
    order
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive as the kernel unpacks it: `newc` of cpio, in
/// Documentation/driver-api/early-userspace/buffer-format.rst of Linux.
#[derive(Debug, Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        // A unique inode, so that no file is a link to another one.
        let inode = self.0.len();
        let (links, size, name_size) = (1, content.len(), name.len() + 1);
        let fields = [inode, mode as usize, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.0.extend(b"070701");
        fields.iter().for_each(|field| self.0.extend(format!("{field:08x}").bytes()));
        self.0.extend(name.bytes().chain([0]));
        self.pad();
        self.0.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "kernel/net/9p/9pnet.ko.xz:\n\
                        kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/ib_uverbs.ko.xz kernel/ib_core.ko.xz\n\
                        kernel/ib_uverbs.ko.xz: kernel/ib_core.ko.xz\n\
                        kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz\n\
                        kernel/crypto/crc32-generic.ko.xz:\n";

    #[test]
    fn modules_follow_those_that_they_need() {
        let names: Vec<String> = load_order(LIST, &MODULES).into_iter().map(name).collect();
        assert_eq!(names, ["9pnet", "9p", "crc32_generic", "ib_core", "ib_uverbs", "rdma_rxe"]);
    }

    #[test]
    fn archive_aligns_names_and_contents() {
        let mut archive = Archive::default();
        archive.add("init", PROGRAM, b"12345");
        let text = String::from_utf8(archive.0).unwrap();
        let ids = "00000000000081ed00000000000000000000000100000000";
        let sizes = "0000000500000000000000000000000000000000";
        assert_eq!(text, format!("070701{ids}{sizes}0000000500000000init\0\012345\0\0\0"));
    }
}
