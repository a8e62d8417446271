//! Tests that need an interface of their own: this very program, started again as root of a network
//! namespace.

use super::peer::{MARK, program};
use std::process::Command;

/// Set inside the namespace.
const INSIDE: &str = "ROXE_TEST_INSIDE";

/// What waits, behind commands that make and raise the veth pair `x0` and `x1`, until both ends
/// carry frames: they drop them in silence while the system has not noticed yet that both are up.
pub(crate) const LINKED: &str = "until [ $(ip -o link | grep -c 'noqueue.* state UP') = 2 ]; do :; done";

/// Whether this is the program inside; one outside has nothing to do.
pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Says inside that the test came to its end.
pub(crate) fn done() {
    println!("{MARK}done");
}

/// Runs the test `name` of the file that calls with the device on `netdev`, in a namespace that the
/// shell command `make` has furnished. Does nothing but say so where that cannot be made.
#[track_caller]
pub(crate) fn run(name: &str, make: &str, netdev: &str) {
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
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(&format!("{MARK}done")), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
