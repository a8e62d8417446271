//! Runs a test in a network namespace of its own: starts this test program again, as root of a new
//! user namespace.

use super::peer::{MARK, program};
use std::process::Command;

/// Environment variable that is set in the test program inside the namespace.
const INSIDE: &str = "ROXE_TEST_INSIDE";

/// Shell command that makes the loopback interface usable.
pub(crate) const LOOPBACK_UP: &str = "ip link set lo up";
/// Shell command that waits until the veth pair `x0` and `x1` carries frames: both ends drop frames
/// until the kernel has activated their queueing disciplines.
pub(crate) const VETH_UP: &str = "until [ $(ip -o link | grep -c 'noqueue.* state UP') = 2 ]; do :; done";

/// Runs `test` with the device on `netdev` in a namespace that the shell command `setup` prepares;
/// `name` is the calling test. Skips the test if the system permits no namespace.
#[track_caller]
pub(crate) fn inside(name: &str, setup: &str, netdev: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        test();
        println!("{MARK}done");
        return;
    }
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "--", "sh", "-c", script]);
        command
    };
    if !unshare(setup).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: cannot prepare a network namespace here with: {setup}");
        return;
    }
    let inner = program(name);
    let mut command = unshare(&format!("{setup} && exec \"$0\" \"$@\""));
    command.arg(inner.get_program()).args(inner.get_args()).env(INSIDE, "1").env("ROXE_NETDEV", netdev);
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains(&format!("{MARK}done")), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
}
