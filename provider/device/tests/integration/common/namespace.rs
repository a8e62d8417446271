//! Tests that need a network namespace of their own: this very program, started again as its root.

use super::peer::{MARK, program};
use std::process::Command;

/// Set inside the namespace.
const INSIDE: &str = "ROXE_TEST_INSIDE";

/// Shell command that makes the loopback interface usable.
pub(crate) const UP: &str = "ip link set lo up";
/// Shell command that waits until the veth pair `x0` and `x1` carries frames: both ends drop frames
/// until the system has noticed that both are up.
pub(crate) const LINKED: &str = "until [ $(ip -o link | grep -c 'noqueue.* state UP') = 2 ]; do :; done";

/// Runs `test` with the device on `netdev` in a namespace that the shell command `make` has set up;
/// `name` is the calling test. Skipped where no namespace can be made.
#[track_caller]
pub(crate) fn inside(name: &str, make: &str, netdev: &str, test: impl FnOnce()) {
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
    if !unshare(make).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no network namespace can be made here with: {make}");
        return;
    }
    let inner = program(name);
    let mut command = unshare(&format!("{make} && exec \"$0\" \"$@\""));
    command.arg(inner.get_program()).args(inner.get_args()).env(INSIDE, "1").env("ROXE_NETDEV", netdev);
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains(&format!("{MARK}done")), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
}
