//! A peer that nobody here wrote: the Linux kernel's rxe, in a QEMU guest on this machine.
//!
//! The guest is emulated, needs no KVM and no disk image: its root is this machine's file system, read-only under an
//! overlay, so every program installed here runs there. Orders go over a virtio port that is QEMU's standard input and
//! output; what a command prints lands in a folder that both sides see. Touches processes and the network namespace
//! that [`link::enter`] has made; the scripts that run inside the guest are in `tests/guest`.

pub mod kernel;
pub mod link;
pub mod sides;

use crate::pair;
use kernel::Kernel;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time from power on to the first command; ten seconds are usual.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Longest time for a command that needs no network, such as `tc`.
const SHORT_LIMIT: Duration = Duration::from_secs(30);

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
    /// The file its standard output goes to, readable while it runs.
    pub fn output(&self) -> &Path {
        &self.output
    }

    /// What was run.
    pub fn command(&self) -> &str {
        &self.command
    }
}

/// A running guest; powered off when dropped.
pub struct Guest {
    qemu: Child,
    orders: Option<ChildStdin>,
    news: Receiver<String>,
    ended: HashMap<u32, i32>,
    jobs: u32,
    folder: PathBuf,
}

impl Guest {
    /// Boots a guest and waits until it obeys. The caller has called [`link::enter`].
    pub fn boot(kernel: &Kernel) -> io::Result<Self> {
        link::build()?;
        let folder = fresh_folder()?;
        fs::write(folder.join("guest.sh"), include_str!("../guest/guest.sh"))?;
        fs::write(folder.join("netem.sh"), include_str!("../guest/netem.sh"))?;
        let mut qemu = power_on(kernel, &folder)?;
        let (orders, news) = (qemu.stdin.take(), listen(qemu.stdout.take()));
        let mut guest = Self { qemu, orders, news, ended: HashMap::new(), jobs: 0, folder };
        match guest.hear(Instant::now() + BOOT_LIMIT) {
            Ok(word) if word == "ready" => Ok(guest),
            Ok(word) => Err(io::Error::other(format!("the guest said {word:?} instead of being ready"))),
            Err(e) => Err(io::Error::other(format!("the guest did not come up: {e}\n{}", guest.console()))),
        }
    }

    /// Folder that the guest sees as `/mnt`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A new empty file in [`Self::folder`] that nothing else writes to.
    fn fresh_output(&mut self) -> io::Result<PathBuf> {
        self.jobs += 1;
        let file = self.folder.join(format!("out.{}", self.jobs));
        File::create_new(&file)?;
        Ok(file)
    }

    /// Starts a shell command in the guest, one line.
    pub fn start(&mut self, command: &str) -> io::Result<Job> {
        assert!(!command.contains('\n'), "one order is one line");
        let output = self.fresh_output()?;
        let id = self.jobs;
        self.order(&format!("start {id} {command}\n"))?;
        Ok(Job { id, command: command.to_owned(), output })
    }

    /// Waits for a command; its exit status, or `None` if it still runs at the deadline.
    pub fn wait(&mut self, job: &Job, deadline: Instant) -> io::Result<Option<i32>> {
        loop {
            if let Some(status) = self.ended.get(&job.id) {
                return Ok(Some(*status));
            }
            match self.hear(deadline) {
                Ok(line) => self.note(&line)?,
                Err(e) if e.kind() == io::ErrorKind::TimedOut => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    /// Ends a command and all that it started. Harmless if it has ended.
    pub fn stop(&mut self, job: &Job) -> io::Result<()> {
        self.order(&format!("stop {}\n", job.id))
    }

    /// Runs a short command; its output, or an error that shows it.
    pub fn run(&mut self, command: &str) -> io::Result<String> {
        let job = self.start(command)?;
        let status = self.wait(&job, Instant::now() + SHORT_LIMIT)?;
        let output = pair::both(&job.output);
        match status {
            Some(0) => Ok(output),
            Some(status) => Err(io::Error::other(format!("in the guest: {command}: status {status}\n{output}"))),
            None => Err(io::Error::other(format!("in the guest: {command}: still running\n{output}"))),
        }
    }

    /// Lets netem treat RoCEv2 packets of both directions by `rules` (its own words); with none, leaves them alone.
    pub fn netem(&mut self, rules: &str) -> io::Result<()> {
        self.run(&format!("bash /mnt/netem.sh {rules}")).map(drop)
    }

    fn order(&mut self, line: &str) -> io::Result<()> {
        let orders = self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        orders.write_all(line.as_bytes())?;
        orders.flush()
    }

    fn note(&mut self, line: &str) -> io::Result<()> {
        let mut words = line.split_whitespace();
        let entry = match (words.next(), words.next(), words.next()) {
            (Some("done"), Some(id), Some(status)) => id.parse().ok().zip(status.parse().ok()),
            _ => None,
        };
        let (id, status) = entry.ok_or_else(|| io::Error::other(format!("the guest said {line:?}")))?;
        self.ended.insert(id, status);
        Ok(())
    }

    fn hear(&mut self, deadline: Instant) -> io::Result<String> {
        self.news.recv_timeout(deadline.saturating_duration_since(Instant::now())).map_err(|e| match e {
            RecvTimeoutError::Timeout => io::Error::new(io::ErrorKind::TimedOut, "no word from the guest"),
            RecvTimeoutError::Disconnected => {
                io::Error::new(io::ErrorKind::BrokenPipe, format!("the guest is gone\n{}", self.console()))
            }
        })
    }

    /// The last lines of the guest's console.
    fn console(&self) -> String {
        let text = fs::read(self.folder.join("console")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Nothing in the guest outlives it and its disk is memory, so there is nothing to shut down in order.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        let _ = kernel::remove_tree(&self.folder);
    }
}

/// The folder of this process, and an end to those whose process is gone.
fn fresh_folder() -> io::Result<PathBuf> {
    let all = kernel::folder();
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
fn power_on(kernel: &Kernel, folder: &Path) -> io::Result<Child> {
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
        .args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max", "-smp", "1", "-m", "1200"])
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

/// Hands on the lines the guest writes; the channel closes when QEMU ends.
fn listen(port: Option<ChildStdout>) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(port) = port {
        thread::spawn(move || {
            for line in BufReader::new(port).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}
