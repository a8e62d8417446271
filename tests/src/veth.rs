//! Connects the network namespace of this process and a second one by a veth pair, and by a bridge
//! in a third namespace. Needs root.

use crate::pair::POLL_INTERVAL;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

/// The interface at one end of a link.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Name, as `ip link` shows it.
    pub name: &'static str,
    /// MAC address.
    pub mac: &'static str,
    /// IP addresses with prefix lengths. IPv6 addresses are set without duplicate address
    /// detection, so that they are usable at once.
    pub addresses: Vec<String>,
}

/// A process that keeps a network namespace alive; it ends with this process.
#[derive(Debug)]
struct Keeper(Child);

impl Keeper {
    fn start() -> io::Result<Self> {
        // `cat` ends when this process's end of the pipe is closed.
        let keeper = Self(Command::new("unshare").args(["--net", "--", "cat"]).stdin(Stdio::piped()).spawn()?);
        while namespace(keeper.0.id())? == namespace(std::process::id())? {
            thread::sleep(POLL_INTERVAL);
        }
        Ok(keeper)
    }

    /// Returns the prefix of a command that runs in the namespace.
    fn prefix(&self) -> Vec<String> {
        ["nsenter", "--net", "--target", &self.0.id().to_string(), "--"].map(str::to_owned).to_vec()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Fails if the keeper has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The second namespace, with a veth pair to it.
#[derive(Debug)]
pub struct Veth {
    keeper: Keeper,
}

impl Veth {
    /// Creates the second namespace and a veth pair to it, and waits until both ends are up. Call
    /// [`isolate`](crate::guest::link::isolate) before.
    pub fn build(here: &Interface, there: &Interface) -> io::Result<Self> {
        let veth = Self { keeper: Keeper::start()? };
        let pid = veth.pid();
        let (a, b) = (here, there);
        ip(
            &[],
            &format!(
                "link add {} address {} type veth peer name {} address {} netns {pid}",
                a.name, a.mac, b.name, b.mac
            ),
        )?;
        ip(&veth.prefix(), "link set lo up")?;
        configure(&[], here)?;
        configure(&veth.prefix(), there)?;
        while !is_up(&[], here)? || !is_up(&veth.prefix(), there)? {
            thread::sleep(POLL_INTERVAL);
        }
        Ok(veth)
    }

    /// Sets the MTU of both ends, in bytes of an IP packet.
    pub fn set_mtu(&self, here: &Interface, there: &Interface, mtu: u32) -> io::Result<()> {
        ip(&[], &format!("link set dev {} mtu {mtu}", here.name))?;
        ip(&self.prefix(), &format!("link set dev {} mtu {mtu}", there.name)).map(drop)
    }

    /// Returns the id of a process in the second namespace.
    pub fn pid(&self) -> u32 {
        self.keeper.0.id()
    }

    /// Returns the prefix of a command that runs in the second namespace.
    pub fn prefix(&self) -> Vec<String> {
        self.keeper.prefix()
    }
}

/// A bridge in a namespace of its own, with a port for each of the two namespaces of a [`Veth`].
#[derive(Debug)]
pub struct Bridge {
    keeper: Keeper,
}

/// Names of the ports for the first and the second namespace.
const PORTS: [&str; 2] = ["port0", "port1"];

impl Bridge {
    /// Adds an interface that is connected to the bridge to both namespaces, and waits until they
    /// are up.
    pub fn build(veth: &Veth, ends: [&Interface; 2]) -> io::Result<Self> {
        let bridge = Self { keeper: Keeper::start()? };
        let (pid, at) = (bridge.keeper.0.id(), bridge.keeper.prefix());
        ip(&at, "link add bridge0 type bridge")?;
        ip(&at, "link set bridge0 up")?;
        let prefixes = [Vec::new(), veth.prefix()];
        for ((end, prefix), port) in ends.iter().zip(&prefixes).zip(PORTS) {
            let (name, mac) = (end.name, end.mac);
            ip(prefix, &format!("link add {name} address {mac} type veth peer name {port} netns {pid}"))?;
            ip(&at, &format!("link set {port} master bridge0 up"))?;
            configure(prefix, end)?;
        }
        for (end, prefix) in ends.iter().zip(&prefixes) {
            while !is_up(prefix, end)? {
                thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(bridge)
    }

    /// Sets the MTU of both ends, the ports and the bridge, in bytes of an IP packet.
    pub fn set_mtu(&self, veth: &Veth, ends: [&Interface; 2], mtu: u32) -> io::Result<()> {
        for ((end, prefix), port) in ends.iter().zip([Vec::new(), veth.prefix()]).zip(PORTS) {
            ip(&self.keeper.prefix(), &format!("link set dev {port} mtu {mtu}"))?;
            ip(&prefix, &format!("link set dev {} mtu {mtu}", end.name))?;
        }
        ip(&self.keeper.prefix(), &format!("link set dev bridge0 mtu {mtu}")).map(drop)
    }
}

fn configure(prefix: &[String], end: &Interface) -> io::Result<()> {
    for address in &end.addresses {
        let at_once = if address.contains(':') { " nodad" } else { "" };
        ip(prefix, &format!("addr add {address} dev {}{at_once}", end.name))?;
    }
    ip(prefix, &format!("link set {} up", end.name)).map(drop)
}

fn is_up(prefix: &[String], end: &Interface) -> io::Result<bool> {
    Ok(ip(prefix, &format!("-o link show dev {}", end.name))?.contains("state UP"))
}

fn namespace(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net"))
}

/// Runs `ip` in the namespace of `prefix`, and returns its output.
fn ip(prefix: &[String], line: &str) -> io::Result<String> {
    let words = prefix.iter().map(String::as_str).chain(["ip"]).chain(line.split_whitespace());
    let words: Vec<_> = words.collect();
    let output = Command::new(words[0]).args(&words[1..]).output()?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(stdout) } else { Err(io::Error::other(format!("`ip {line}` failed"))) }
}
