//! Two network namespaces that a veth pair joins: this process's own, and a second one. Touches
//! child processes; root only.

use crate::pair::LOOK;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

/// One end of the link.
#[derive(Clone, Debug)]
pub struct End {
    /// Interface.
    pub name: &'static str,
    /// Its MAC.
    pub mac: &'static str,
    /// Its addresses, each with the length of its prefix. IPv6 addresses are used at once, without
    /// a search for doubles.
    pub addresses: Vec<String>,
}

/// The second namespace, which a process keeps that ends with this one.
#[derive(Debug)]
pub struct Veth {
    keeper: Child,
}

impl Veth {
    /// Makes the second namespace and a link to it, and waits until both ends are up. The caller
    /// has called [`isolate`](crate::guest::link::isolate).
    pub fn build(here: &End, there: &End) -> io::Result<Self> {
        // It reads until our end of the pipe is gone.
        let keeper = Command::new("unshare").args(["--net", "--", "cat"]).stdin(Stdio::piped()).spawn()?;
        let veth = Self { keeper };
        let pid = veth.keeper();
        while namespace(pid)? == namespace(std::process::id())? {
            thread::sleep(LOOK);
        }
        let (a, b) = (here, there);
        ip(
            &[],
            &format!(
                "link add {} address {} type veth peer name {} address {} netns {pid}",
                a.name, a.mac, b.name, b.mac
            ),
        )?;
        ip(&veth.prefix(), "link set lo up")?;
        raise(&[], here)?;
        raise(&veth.prefix(), there)?;
        while !is_up(&[], here)? || !is_up(&veth.prefix(), there)? {
            thread::sleep(LOOK);
        }
        Ok(veth)
    }

    /// Gives both ends this MTU, bytes of an IP packet.
    pub fn set_mtu(&self, here: &End, there: &End, mtu: u32) -> io::Result<()> {
        ip(&[], &format!("link set dev {} mtu {mtu}", here.name))?;
        ip(&self.prefix(), &format!("link set dev {} mtu {mtu}", there.name)).map(drop)
    }

    /// A process in the second namespace.
    pub fn keeper(&self) -> u32 {
        self.keeper.id()
    }

    /// A command that leads into the second namespace.
    pub fn prefix(&self) -> Vec<String> {
        ["nsenter", "--net", "--target", &self.keeper().to_string(), "--"].map(str::to_owned).to_vec()
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        // It may have ended; then there is nothing left to do.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

fn raise(prefix: &[String], end: &End) -> io::Result<()> {
    for address in &end.addresses {
        let at_once = if address.contains(':') { " nodad" } else { "" };
        ip(prefix, &format!("addr add {address} dev {}{at_once}", end.name))?;
    }
    ip(prefix, &format!("link set {} up", end.name)).map(drop)
}

/// An end is up some time after it was told to be.
fn is_up(prefix: &[String], end: &End) -> io::Result<bool> {
    Ok(ip(prefix, &format!("-o link show dev {}", end.name))?.contains("state UP"))
}

fn namespace(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net"))
}

/// Runs `ip` in the namespace that `prefix` leads to, and returns what it says.
fn ip(prefix: &[String], line: &str) -> io::Result<String> {
    let words = prefix.iter().map(String::as_str).chain(["ip"]).chain(line.split_whitespace());
    let words: Vec<_> = words.collect();
    let output = Command::new(words[0]).args(&words[1..]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(said) } else { Err(io::Error::other(format!("`ip {line}` failed"))) }
}
