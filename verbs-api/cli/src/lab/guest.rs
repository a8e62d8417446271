//! A host with the kernel's rxe: a guest of QEMU, which emulates its processor. QEMU does not use
//! KVM, because inside a virtual machine KVM may open and then hang.
//!
//! ```text
//! switch's bridge ── v2 ══ eth0 ── br0 ── tap0 ══ eth0 and rxe0 of the guest
//!                           network namespace of the host
//! ```
//!
//! The guest's root is the file system of this machine, read-only under an overlay in memory, so
//! every program installed here runs there. `guest/init` is the guest's first process;
//! `guest/kernel.rs` finds its kernel and modules. QEMU ends with this process's namespace, like
//! every process of the lab.

mod kernel;

use super::net::Net;
use crate::child::{KillOnDrop, ip};
use crate::output::Result;
use crate::program::find;
use kernel::{Kernel, MODULES};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio, id};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// First process of a guest.
const INIT: &str = include_str!("guest/init");
/// Time limit for the boot until rxe0 exists, which usually takes ten seconds.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// Length in frames of the queue in front of the guest. UC and UD send faster than an emulated
/// processor receives, and a link without impairments must not drop frames.
const GUEST_QUEUE: u32 = 50_000;

/// A guest that does not run yet.
#[derive(Debug)]
pub(super) struct Guest {
    qemu: PathBuf,
    kernel: Kernel,
    /// The initial file system, in memory.
    files: OwnedFd,
    number: u8,
    mtu: u32,
    /// Port on which a program of the guest will listen.
    listens: Option<u16>,
}

/// A guest that waits for permission to start its command.
pub(super) struct Booted {
    qemu: KillOnDrop,
    orders: ChildStdin,
    lines: Receiver<Vec<u8>>,
    listens: Option<u16>,
}

impl Guest {
    /// Finds the programs and the kernel of the guest, and packs its initial file system.
    pub(super) fn prepare(net: &Net, number: u8, listens: Option<u16>, command: &[OsString]) -> Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            return Err("a guest with the kernel's rxe needs an x86-64 machine".into());
        }
        let qemu = tool("qemu-system-x86_64", "qemu-system-x86")?;
        let busybox = tool("busybox", "busybox-static")?;
        if !crate::program::is_static(&busybox) {
            return Err(format!("{} needs libraries; install busybox-static", busybox.display()).into());
        }
        tool("rdma", "iproute2")?;
        let tun = File::options().read(true).write(true).open("/dev/net/tun");
        tun.map_err(|cause| format!("cannot open /dev/net/tun: {cause}; load the module tun"))?;
        let kernel = Kernel::find(net.kernel.as_deref().unwrap_or_else(|| Path::new("/")))?;
        let lab_variables = net.variables(number).map(|(name, value)| (name.into(), value.into()));
        let script = script(command, &std::env::current_dir()?, std::env::vars_os().chain(lab_variables));
        let settings = settings(net, number, listens);
        let files = [("init", INIT.as_bytes()), ("settings", settings.as_bytes()), ("command", &script)];
        let packed = kernel.pack(&busybox, &MODULES, &files)?;
        let files = memfd_create("guest", MFdFlags::MFD_CLOEXEC)?;
        File::from(files.try_clone()?).write_all(&packed)?;
        Ok(Self { qemu, kernel, files, number, mtu: net.mtu(), listens })
    }

    /// Connects the guest to eth0 of this network namespace, boots it and waits for its rxe0.
    pub(super) fn boot(self) -> Result<Booted> {
        let mtu = self.mtu;
        ip(&format!(
            "link set lo up\nlink add br0 mtu {mtu} type bridge mcast_snooping 0\ntuntap add tap0 mode tap\nlink set \
             tap0 mtu {mtu} txqueuelen {GUEST_QUEUE} master br0 up\nlink set eth0 master br0 up\nlink set br0 up\n"
        ))?;
        eprintln!("roxe lab: {} boots Linux and its rxe", Net::name(self.number));
        let mut child = self.power_on().map_err(|cause| format!("cannot start {}: {cause}", self.qemu.display()))?;
        let (orders, output) = (child.stdin.take(), child.stdout.take());
        let qemu = KillOnDrop(child);
        let (Some(orders), Some(output)) = (orders, output) else { return Err("QEMU has no streams".into()) };
        let (report, lines) = channel();
        thread::Builder::new().spawn(move || {
            let read = BufReader::new(output).split(b'\n').map_while(|line| line.ok());
            // Sending fails once the command has ended and the receiver is dropped.
            read.for_each(|line| _ = report.send(line));
        })?;
        match lines.recv_timeout(BOOT_LIMIT) {
            Ok(line) if line == b"ready" => Ok(Booted { qemu, orders, lines, listens: self.listens }),
            _ => Err(format!("the guest with {} did not boot", self.kernel.image.display()).into()),
        }
    }

    /// Starts QEMU. QEMU's standard input and output are the guest's port. The guest's console, to
    /// which its kernel prints errors, is this process's standard error.
    fn power_on(&self) -> std::io::Result<Child> {
        let processors = thread::available_parallelism().map_or(1, |count| count.get().min(2));
        let own_descriptor = |descriptor: i32| format!("/proc/{}/fd/{descriptor}", id());
        Command::new(&self.qemu)
            .args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max", "-m", "1024"])
            .args(["-smp", &processors.to_string()])
            .args(["-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-serial", &format!("file:{}", own_descriptor(2))])
            .arg("-kernel")
            .arg(&self.kernel.image)
            .args(["-initrd", &own_descriptor(self.files.as_raw_fd())])
            .args(["-append", "console=ttyS0 quiet panic=-1 no_timer_check"])
            .args(["-netdev", "tap,id=net,ifname=tap0,script=no,downscript=no"])
            .arg("-device")
            .arg(format!(
                "virtio-net-pci,netdev=net,romfile=,mac=52:54:00:59:00:{:02x},host_mtu={}",
                self.number, self.mtu
            ))
            .args(["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"])
            .args(["-chardev", "stdio,id=port,signal=off", "-device", "virtio-serial-pci"])
            .args(["-device", "virtserialport,chardev=port,name=lab"])
            .args(["-object", "rng-random,filename=/dev/urandom,id=rng", "-device", "virtio-rng-pci,rng=rng"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    }
}

impl Booted {
    /// Starts the command and prints its output. Returns its exit status.
    pub(super) fn run(mut self) -> Result<ExitCode> {
        self.orders.write_all(b"go\n")?;
        let mut listener = None;
        for line in &self.lines {
            let text = String::from_utf8_lossy(&line);
            let (kind, rest) = text.split_once(' ').unwrap_or((&text, ""));
            match (kind, self.listens) {
                ("out", _) => println!("{rest}"),
                ("err", _) => eprintln!("{rest}"),
                // The director looks for listeners in this network namespace.
                ("listens", Some(port)) => listener = Some(TcpListener::bind((Ipv4Addr::LOCALHOST, port))?),
                ("ended", _) => return Ok(ExitCode::from(rest.parse().unwrap_or(1))),
                _ => return Err(format!("unexpected line from the guest: {text:?}").into()),
            }
        }
        drop(listener);
        let status = self.qemu.0.wait()?;
        Err(format!("the guest ended before its command: QEMU ended with {status}").into())
    }
}

/// Finds a program in PATH, or in the folders of programs for root.
fn tool(name: &str, package: &str) -> Result<PathBuf> {
    let in_sbin =
        || ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(name)).into_iter().find(|path| path.is_file());
    find(OsStr::new(name)).or_else(in_sbin).ok_or_else(|| format!("{name} is missing; install {package}").into())
}

/// Returns the variables that `guest/init` reads.
fn settings(net: &Net, number: u8, listens: Option<u16>) -> String {
    let (name, address, prefix, mtu) = (Net::name(number), net.address(number), net.prefix(), net.mtu());
    let nodad = if net.ipv6 { "nodad" } else { "" };
    let port = listens.map(|port| port.to_string()).unwrap_or_default();
    format!("name={name} address={address} prefix={prefix} nodad={nodad} mtu={mtu} port={port}\n")
}

/// Returns a shell script that becomes the command in `folder` with `variables`. It leaves out the
/// variables with which the command would load roxe's libraries.
fn script(command: &[OsString], folder: &Path, variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<u8> {
    let mut script = Vec::new();
    let mut add = |parts: &[&[u8]]| parts.iter().for_each(|part| script.extend(*part));
    for (name, value) in variables {
        let bytes = name.as_bytes();
        let is_name = !bytes.first().is_none_or(u8::is_ascii_digit)
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let is_of_roxe = bytes.starts_with(b"ROXE_") || bytes == b"LD_LIBRARY_PATH" || bytes == b"LD_PRELOAD";
        if is_name && !is_of_roxe {
            add(&[b"export ", bytes, b"=", &quoted(&value), b"\n"]);
        }
    }
    add(&[b"cd ", &quoted(folder.as_os_str()), b" 2>/dev/null\nexec"]);
    command.iter().for_each(|word| add(&[b" ", &quoted(word)]));
    add(&[b"\n"]);
    script
}

/// Quotes `text` as one word of the shell.
fn quoted(text: &OsStr) -> Vec<u8> {
    let parts: Vec<&[u8]> = text.as_bytes().split(|byte| *byte == b'\'').collect();
    [b"'", parts.join(&b"'\\''"[..]).as_slice(), b"'"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;
    use std::fs;

    #[test]
    fn newest_kernel_with_rxe_is_found() {
        const RXE: &str = "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko:\n";
        let root = Scratch::new("kernels");
        let missing = Kernel::find(&root).unwrap_err().to_string();
        assert!(missing.starts_with("no kernel with rdma_rxe in "), "{missing}");
        for (version, list) in [("6.1.0-9", RXE), ("6.1.0-56", RXE), ("6.12.0-1", "kernel/fs/9p/9p.ko:\n")] {
            let modules = root.join("lib/modules").join(version);
            fs::create_dir_all(&modules).unwrap();
            fs::write(modules.join("modules.dep"), list).unwrap();
            fs::write(modules.join("vmlinuz"), "").unwrap();
        }
        assert!(Kernel::find(&root).unwrap().image.ends_with("lib/modules/6.1.0-56/vmlinuz"));
    }

    #[test]
    fn script_keeps_words_folder_and_variables() {
        let pair = |(name, value): (&str, &str)| (OsString::from(name), OsString::from(value));
        let variables = [("A", "it's $HOME"), ("ROXE_NETDEV", "lo"), ("LD_PRELOAD", "x"), ("BASH_FUNC_f%%", "()")];
        let command = ["printf", "%s|", "a 'b'\n$A"].map(OsString::from);
        let script = script(&command, Path::new("/tmp"), variables.into_iter().map(pair));
        let script = String::from_utf8(script).unwrap();
        assert!(script.starts_with("export A='it'\\''s $HOME'\ncd '/tmp' "), "{script}");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a 'b'\n$A|");
    }
}
