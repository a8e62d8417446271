//! Runs the Linux kernel's rxe, an independent peer, in a QEMU guest on this machine.
//!
//! The guest is emulated and needs neither KVM nor a disk image: its root is this machine's file
//! system, read-only under an overlay, so every program installed here runs there. Commands go over
//! a virtio port that is QEMU's standard input and output. The output of a command is a file in a
//! folder that host and guest share. The scripts that run inside the guest are in `tests/guest`.

pub mod kernel;
pub mod link;
mod messages;
pub mod sides;

use crate::report::last_lines;
use crate::{build, pair};
use kernel::Kernel;
use messages::Messages;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time limit of a boot, which usually takes ten seconds.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Time limit of a command without a deadline. `tc` takes a second on an idle machine, but much
/// longer if other processes use the processors.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// The reason why no guest can run on this machine.
#[derive(Clone, Debug)]
pub struct Unavailable(pub String);

impl From<String> for Unavailable {
    fn from(why: String) -> Self {
        Self(why)
    }
}

impl From<&str> for Unavailable {
    fn from(why: &str) -> Self {
        Self(why.to_owned())
    }
}

/// A command that was started in the guest.
#[derive(Debug)]
pub struct Job {
    id: u32,
    command: String,
    output: PathBuf,
}

impl Job {
    /// Returns the file of its standard output, readable while it runs.
    pub fn output(&self) -> &Path {
        &self.output
    }

    /// Returns its command line.
    pub fn command(&self) -> &str {
        &self.command
    }
}

/// A running guest; powered off when dropped. Several threads may use it at once.
pub struct Guest {
    qemu: Child,
    commands: Mutex<ChildStdin>,
    messages: Messages,
    next_job: AtomicU32,
    folder: PathBuf,
}

impl Guest {
    /// Boots a guest with one processor and waits until it accepts commands. Call [`link::enter`]
    /// before.
    pub fn boot(kernel: &Kernel) -> io::Result<Self> {
        Self::boot_with(kernel, 1)
    }

    /// Boots a guest with this number of processors, like [`Self::boot`].
    pub fn boot_with(kernel: &Kernel, processors: u32) -> io::Result<Self> {
        link::build()?;
        let folder = new_folder()?;
        fs::write(folder.join("guest.sh"), include_str!("../guest/guest.sh"))?;
        fs::write(folder.join("netem.sh"), include_str!("../guest/netem.sh"))?;
        let mut qemu = start_qemu(kernel, &folder, processors)?;
        let (commands, output) = qemu.stdin.take().zip(qemu.stdout.take()).ok_or(io::ErrorKind::BrokenPipe)?;
        let (commands, messages) = (Mutex::new(commands), Messages::from(output));
        let guest = Self { qemu, commands, messages, next_job: AtomicU32::new(0), folder };
        match guest.messages.wait_ready(Instant::now() + BOOT_LIMIT) {
            Ok(true) => Ok(guest),
            Ok(false) => Err(io::Error::other(format!("the guest did not boot\n{}", guest.console()))),
            Err(e) => Err(io::Error::other(format!("the guest did not boot: {e}\n{}", guest.console()))),
        }
    }

    /// Returns the process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Returns the shared folder, which is `/mnt` in the guest.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the id of a new command, and a new empty file in [`Self::folder`] for its output.
    fn new_output(&self) -> io::Result<(u32, PathBuf)> {
        let id = self.next_job.fetch_add(1, Ordering::Relaxed);
        let file = self.folder.join(format!("out.{id}"));
        File::create_new(&file)?;
        Ok((id, file))
    }

    /// Starts a shell command in the guest.
    ///
    /// # Panics
    /// If the command has more than one line.
    pub fn start(&self, command: &str) -> io::Result<Job> {
        assert!(!command.contains('\n'), "a command is one line");
        let (id, output) = self.new_output()?;
        self.send(&format!("start {id} {command}\n"))?;
        Ok(Job { id, command: command.to_owned(), output })
    }

    /// Waits for the end of a command. Returns its exit status; `None` if it still runs at the
    /// deadline.
    pub fn wait(&self, job: &Job, deadline: Instant) -> io::Result<Option<i32>> {
        let status = self.messages.status(job.id, deadline);
        status.map_err(|e| io::Error::new(e.kind(), format!("{e}\n{}", self.console())))
    }

    /// Kills a command and all processes that it started. Does nothing if it has ended.
    pub fn stop(&self, job: &Job) -> io::Result<()> {
        self.send(&format!("stop {}\n", job.id))
    }

    /// Runs a short command and returns its output.
    ///
    /// # Errors
    /// If its exit status is not 0; the error contains the output.
    pub fn run(&self, command: &str) -> io::Result<String> {
        let job = self.start(command)?;
        let status = self.wait(&job, Instant::now() + COMMAND_LIMIT)?;
        let output = pair::output_of(&job.output);
        match status {
            Some(0) => Ok(output),
            Some(status) => Err(io::Error::other(format!("in the guest: {command}: status {status}\n{output}"))),
            None => Err(io::Error::other(format!("in the guest: {command}: still running\n{output}"))),
        }
    }

    /// Applies `rules`, in the syntax of `tc netem`, to RoCEv2 packets of both directions. An empty
    /// string removes netem.
    pub fn netem(&self, rules: &str) -> io::Result<()> {
        self.run(&format!("bash /mnt/netem.sh {rules}")).map(drop)
    }

    fn send(&self, line: &str) -> io::Result<()> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.write_all(line.as_bytes())?;
        commands.flush()
    }

    /// Returns the last lines of the guest's console.
    pub fn console(&self) -> String {
        let text = fs::read(self.folder.join("console")).unwrap_or_default();
        last_lines(&String::from_utf8_lossy(&text), 20)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The guest writes only to memory and to the shared folder, so it needs no orderly
        // shutdown.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        let _ = kernel::remove_tree(&self.folder);
    }
}

/// Creates the shared folder of this process's guest, and removes those of dead processes.
fn new_folder() -> io::Result<PathBuf> {
    let all = build::shared_dir().join("guest");
    fs::create_dir_all(&all)?;
    for entry in fs::read_dir(&all)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.strip_prefix("run-").is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            kernel::remove_tree(&entry.path())?;
        }
    }
    let folder = all.join(format!("run-{}", std::process::id()));
    kernel::remove_tree(&folder)?;
    fs::create_dir(&folder)?;
    fs::canonicalize(folder)
}

/// Starts QEMU. The kernel kills it when this process dies.
fn start_qemu(kernel: &Kernel, folder: &Path, processors: u32) -> io::Result<Child> {
    let append = format!(
        "console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0 link_mtu={} link_ipv4={} link_ipv6={}",
        link::MTU,
        link::GUEST_V4,
        link::GUEST_V6
    );
    let (net, nic) = (
        format!("tap,id=net,ifname={},script=no,downscript=no", link::TAP),
        format!("virtio-net-pci,netdev=net,mac=52:54:00:77:00:11,host_mtu={}", link::MTU),
    );
    let share = format!("local,path={},mount_tag=share,security_model=none", folder.display());
    let serial = format!("file:{}", folder.join("console").display());
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        .args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max", "-m", "1200"])
        .args(["-smp", &processors.to_string()])
        .args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", &serial])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&kernel.initramfs)
        .args(["-append", &append, "-netdev", &net, "-device", &nic])
        .args(["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"])
        .args(["-virtfs", &share])
        .args(["-chardev", "stdio,id=agent,signal=off", "-device", "virtio-serial-pci"])
        .args(["-device", "virtserialport,chardev=agent,name=agent"])
        .args(["-object", "rng-random,filename=/dev/urandom,id=rng", "-device", "virtio-rng-pci,rng=rng"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(File::create(folder.join("qemu"))?)
        .spawn()
}
