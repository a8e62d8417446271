//! The network between this process and its guest, in a namespace of its own.
//!
//! The whole test process moves into a fresh network namespace by restarting itself. No name in it
//! can clash with another run, and the kernel removes it with the last process, however that one
//! ended.

use super::kernel::run_command;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The bridge that roxe opens.
pub const NETDEV: &str = "br0";
/// Our address on the bridge.
pub const HERE_V4: &str = "10.77.0.1";
/// Our IPv6 address on the bridge.
pub const HERE_V6: &str = "fd77::1";
/// The guest's address.
pub const GUEST_V4: &str = "10.77.0.11";
/// The guest's IPv6 address.
pub const GUEST_V6: &str = "fd77::11";
/// Bytes of an IP packet: room for a path MTU of 4096.
pub const MTU: u32 = 4500;
/// The guest's end of the link.
pub(super) const TAP: &str = "tap0";
/// Packets that may wait for the guest. UC and UD send as fast as they can, and a clean link to a
/// slow processor must not lose any of it: several messages of 1 MiB at the smallest MTU.
const QUEUE: u32 = 50_000;

/// Set in a process that [`enter`] has started again.
const INSIDE: &str = "ROXE_TEST_NAMESPACE";

/// Returns in a process with a network namespace of its own: at once if it is one, else in a copy
/// of this process that takes its place, with the same arguments. Call it before anything else is
/// started.
pub fn enter() -> io::Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe()?;
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    Err(Command::new("unshare").args(["--net", "--"]).arg(program).args(args).env(INSIDE, "1").exec())
}

/// Returns true if this process may create network namespaces and send raw packets in them: root,
/// unless a container forbids it.
pub fn is_root() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    let may_unshare = || {
        let mut probe = Command::new("unshare");
        let probe =
            probe.args(["--net", "--", "ip", "link", "set", "lo", "up"]).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    // SAFETY: takes no pointers.
    *MAY.get_or_init(|| unsafe { libc::geteuid() } == 0 && may_unshare())
}

/// As root, moves into a network namespace in which only this process and its children send
/// packets, over loopback; other users stay. Call it before anything else starts.
pub fn isolate() -> io::Result<()> {
    if !is_root() {
        return Ok(());
    }
    enter()?;
    run_command(Command::new("ip").args(["link", "set", "lo", "up"])).map(drop)
}

/// Adds an interface that is up and has this IPv4 address, in the namespace that [`isolate`]
/// entered.
pub fn add_bridge(name: &str, address: &str) -> io::Result<()> {
    if std::env::var_os(INSIDE).is_none() {
        return Err(io::Error::other("that takes root"));
    }
    for line in [
        format!("link add {name} type bridge"),
        format!("addr add {address}/24 dev {name}"),
        format!("link set {name} up"),
    ] {
        run_command(Command::new("ip").args(line.split(' ')))?;
    }
    Ok(())
}

/// Makes the bridge, our addresses on it and the tap device for the guest.
pub(super) fn build() -> io::Result<()> {
    if std::env::var_os(INSIDE).is_none() {
        return Err(io::Error::other("not in a network namespace of its own: call link::enter first"));
    }
    if Path::new("/proc/sys/net/ipv4/conf").join(NETDEV).exists() {
        return Ok(());
    }
    for line in [
        "link set lo up".to_owned(),
        format!("link add {NETDEV} type bridge mcast_snooping 0"),
        format!("tuntap add {TAP} mode tap"),
        format!("link set {TAP} mtu {MTU} txqueuelen {QUEUE} master {NETDEV} up"),
        format!("link set {NETDEV} mtu {MTU} up"),
        format!("addr add {HERE_V4}/24 dev {NETDEV}"),
        format!("addr add {HERE_V6}/64 dev {NETDEV} nodad"),
    ] {
        run_command(Command::new("ip").args(line.split(' ')))?;
    }
    Ok(())
}
