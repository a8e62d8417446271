//! Sets up network namespaces for tests, and the network between this process and its guest.
//!
//! The test process moves into a new network namespace by restarting itself. Interface names cannot
//! clash with another run, and the kernel removes the namespace with its last process.

use super::kernel::run_command;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Bridge on which roxe's device is.
pub const NETDEV: &str = "br0";
/// IPv4 address of the bridge.
pub const HERE_V4: &str = "10.77.0.1";
/// IPv6 address of the bridge.
pub const HERE_V6: &str = "fd77::1";
/// IPv4 address of the guest.
pub const GUEST_V4: &str = "10.77.0.11";
/// IPv6 address of the guest.
pub const GUEST_V6: &str = "fd77::11";
/// MTU of the link in bytes of an IP packet: enough for a path MTU of 4096.
pub const MTU: u32 = 4500;
/// Tap device of the guest.
pub(super) const TAP: &str = "tap0";
/// Length of the tap device's queue in packets. UC and UD are not flow controlled, and a clean link
/// must not lose packets: the queue holds several messages of 1 MiB at the smallest MTU.
const QUEUE: u32 = 50_000;

/// Environment variable of a process that [`enter`] has restarted.
const INSIDE: &str = "ROXE_TEST_NAMESPACE";

/// Moves this process into a network namespace of its own: unless it is in one already, replaces
/// the process by a new instance with the same arguments. Call it before other work.
pub fn enter() -> io::Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe()?;
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    Err(Command::new("unshare").args(["--net", "--"]).arg(program).args(args).env(INSIDE, "1").exec())
}

/// Returns true if this process is root and can create network namespaces, which some containers
/// forbid.
pub fn is_root() -> bool {
    static IS_ROOT: OnceLock<bool> = OnceLock::new();
    let can_unshare = || {
        let mut probe = Command::new("unshare");
        let probe =
            probe.args(["--net", "--", "ip", "link", "set", "lo", "up"]).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    // SAFETY: takes no pointers.
    *IS_ROOT.get_or_init(|| unsafe { libc::geteuid() } == 0 && can_unshare())
}

/// Moves into a network namespace in which only this process and its children send packets, and
/// brings up its loopback interface. Does nothing unless the user is root. Call it before other
/// work.
pub fn isolate() -> io::Result<()> {
    if !is_root() {
        return Ok(());
    }
    enter()?;
    run_command(Command::new("ip").args(["link", "set", "lo", "up"])).map(drop)
}

/// Adds a bridge with this IPv4 address to the namespace that [`isolate`] entered.
pub fn add_bridge(name: &str, address: &str) -> io::Result<()> {
    if std::env::var_os(INSIDE).is_none() {
        return Err(io::Error::other("adding an interface needs root"));
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

/// Creates the bridge with its addresses, and the tap device of the guest.
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
