//! An independent peer: the Linux kernel's rxe, in a QEMU guest on this machine.
//!
//! The guest is emulated, needs no KVM and no disk image: its root is this machine's file system,
//! read-only under an overlay, so every program installed here runs there. Orders go over a virtio
//! port that is QEMU's standard input and output; what a command prints lands in a folder that both
//! sides see. Touches processes and the network namespace that [`link::enter`] has made; the
//! scripts that run inside the guest are in `tests/guest`.

pub mod kernel;
pub mod link;
mod messages;
pub mod sides;

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

/// Longest time from power on to the first command; ten seconds are usual.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Longest time for a command that needs no network, such as `tc`: a second, but where others keep
/// the processors busy.
const SHORT_LIMIT: Duration = Duration::from_secs(120);

/// Why no guest can run on this machine; the text says what is missing.
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

/// A command under way in the guest.
#[derive(Debug)]
pub struct Job {
    id: u32,
    command: String,
    output: PathBuf,
}

impl Job {
    /// File of its standard output, readable while it runs.
    pub fn output(&self) -> &Path {
        &self.output
    }

    /// Command line of the program.
    pub fn command(&self) -> &str {
        &self.command
    }
}

/// A running guest; powered off when dropped. Several threads may use it at once.
pub struct Guest {
    qemu: Child,
    orders: Mutex<ChildStdin>,
    messages: Messages,
    jobs: AtomicU32,
    folder: PathBuf,
}

impl Guest {
    /// Boots a guest with one processor and waits until it accepts commands. The caller has called
    /// [`link::enter`].
    pub fn boot(kernel: &Kernel) -> io::Result<Self> {
        Self::boot_with(kernel, 1)
    }

    /// Boots a guest with this number of processors.
    pub fn boot_with(kernel: &Kernel, processors: u32) -> io::Result<Self> {
        link::build()?;
        let folder = fresh_folder()?;
        fs::write(folder.join("guest.sh"), include_str!("../guest/guest.sh"))?;
        fs::write(folder.join("netem.sh"), include_str!("../guest/netem.sh"))?;
        let mut qemu = power_on(kernel, &folder, processors)?;
        let (orders, words) = qemu.stdin.take().zip(qemu.stdout.take()).ok_or(io::ErrorKind::BrokenPipe)?;
        let (orders, messages) = (Mutex::new(orders), Messages::from(words));
        let guest = Self { qemu, orders, messages, jobs: AtomicU32::new(0), folder };
        match guest.messages.wait_ready(Instant::now() + BOOT_LIMIT) {
            Ok(true) => Ok(guest),
            Ok(false) => Err(io::Error::other(format!("the guest did not boot\n{}", guest.console()))),
            Err(e) => Err(io::Error::other(format!("the guest did not boot: {e}\n{}", guest.console()))),
        }
    }

    /// Process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Folder that the guest sees as `/mnt`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the id of a new command, and a new empty file in [`Self::folder`] for its output.
    fn fresh_output(&self) -> io::Result<(u32, PathBuf)> {
        let id = self.jobs.fetch_add(1, Ordering::Relaxed);
        let file = self.folder.join(format!("out.{id}"));
        File::create_new(&file)?;
        Ok((id, file))
    }

    /// Starts a shell command of one line in the guest.
    pub fn start(&self, command: &str) -> io::Result<Job> {
        assert!(!command.contains('\n'), "a command is one line");
        let (id, output) = self.fresh_output()?;
        self.order(&format!("start {id} {command}\n"))?;
        Ok(Job { id, command: command.to_owned(), output })
    }

    /// Waits for the end of a command. Returns its exit status, or `None` if it still runs at the
    /// deadline.
    pub fn wait(&self, job: &Job, deadline: Instant) -> io::Result<Option<i32>> {
        let status = self.messages.status(job.id, deadline);
        status.map_err(|e| io::Error::new(e.kind(), format!("{e}\n{}", self.console())))
    }

    /// Kills a command and all processes that it started. Does nothing if it has ended.
    pub fn stop(&self, job: &Job) -> io::Result<()> {
        self.order(&format!("stop {}\n", job.id))
    }

    /// Runs a short command; its output, or an error that shows it.
    pub fn run(&self, command: &str) -> io::Result<String> {
        let job = self.start(command)?;
        let status = self.wait(&job, Instant::now() + SHORT_LIMIT)?;
        let output = pair::output_of(&job.output);
        match status {
            Some(0) => Ok(output),
            Some(status) => Err(io::Error::other(format!("in the guest: {command}: status {status}\n{output}"))),
            None => Err(io::Error::other(format!("in the guest: {command}: still running\n{output}"))),
        }
    }

    /// Lets netem treat RoCEv2 packets of both directions by `rules` (its own words); with none,
    /// leaves them alone.
    pub fn netem(&self, rules: &str) -> io::Result<()> {
        self.run(&format!("bash /mnt/netem.sh {rules}")).map(drop)
    }

    fn order(&self, line: &str) -> io::Result<()> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.write_all(line.as_bytes())?;
        orders.flush()
    }

    /// The last lines of the guest's console.
    pub fn console(&self) -> String {
        let text = fs::read(self.folder.join("console")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Nothing in the guest outlives it and its disk is memory, so an orderly shutdown is not
        // needed.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        let _ = kernel::remove_tree(&self.folder);
    }
}

/// Creates the folder of this process, and removes those of dead processes.
fn fresh_folder() -> io::Result<PathBuf> {
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

/// Starts QEMU. It ends with this process even if that one is killed.
fn power_on(kernel: &Kernel, folder: &Path, processors: u32) -> io::Result<Child> {
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
