//! Checks that Debian's `ibv_asyncwatch` prints the port's events when its interface changes. The
//! interface is in a network namespace, in which this program restarts itself.

use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::{build, pair};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Environment variable of the process inside the namespace.
const INSIDE: &str = "ROXE_TEST_INSIDE";
/// Time limit for an event.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// Script that sets up the namespace and waits until the link is up.
const SETUP: &str = "ip link set lo up && ip link add x0 type veth peer name x1 && ip addr add 10.77.0.1/24 dev x0 && \
                    ip link set x1 up && ip link set x0 up && \
                    until [ $(ip -o link | grep -c ' state UP') = 2 ]; do :; done";
/// Changes of the interface, and the event printed for each.
const STEPS: [(&str, &str); 7] = [
    ("ip link set x0 down", "IBV_EVENT_PORT_ERR (10), port 1"),
    ("ip link set x0 up", "IBV_EVENT_PORT_ACTIVE (9), port 1"),
    ("ip addr add 10.77.0.2/24 dev x0", "IBV_EVENT_GID_CHANGE (18), port 1"),
    ("ip link set x1 down", "IBV_EVENT_PORT_ERR (10), port 1"),
    ("ip link set x1 up", "IBV_EVENT_PORT_ACTIVE (9), port 1"),
    ("ip addr del 10.77.0.2/24 dev x0", "IBV_EVENT_GID_CHANGE (18), port 1"),
    ("ip link del x0", "IBV_EVENT_DEVICE_FATAL (8)"),
];

pub(crate) fn main() -> ExitCode {
    if std::env::var_os(INSIDE).is_none() {
        return report::main(vec![Check::new("ibv_asyncwatch -d roxe0", outside)]);
    }
    match inside() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns a command that runs `script` as root of a new network namespace.
fn in_namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "--", "sh", "-c", script]);
    command
}

fn outside() -> Verdict {
    if !pair::installed("ibv_asyncwatch") {
        return Verdict::not_installed("ibv_asyncwatch");
    }
    if !in_namespace(SETUP).output().is_ok_and(|made| made.status.success()) {
        return Verdict::Skipped("this user cannot create a network namespace with two interfaces".into());
    }
    let mut command = in_namespace(&format!("{SETUP} && exec \"$0\" asyncwatch"));
    command.arg(std::env::current_exe().unwrap_or_default());
    command.env(INSIDE, "1").env("ROXE_BIN", build::roxe()).env("ROXE_NETDEV", "x0");
    match command.output() {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok(ended) if ended.status.success() => Verdict::Passed,
        Ok(ended) => Verdict::Failed(String::from_utf8_lossy(&ended.stdout).into_owned()),
    }
}

/// A running `ibv_asyncwatch`; killed when dropped.
struct Watcher {
    child: Child,
    lines: Receiver<String>,
}

impl Watcher {
    fn start() -> std::io::Result<Self> {
        let mut command = Command::new(build::roxe());
        command.args(["run", "--", "ibv_asyncwatch", "-d", "roxe0"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                let all = BufReader::new(output).lines().map_while(Result::ok);
                let _ = all.map(|line| sender.send(line)).find(Result::is_err);
            });
        }
        Ok(Self { child, lines })
    }

    /// Waits for a line with `text`; skips other lines.
    fn expect(&self, text: &str) -> Result<(), String> {
        loop {
            match self.lines.recv_timeout(TIME_LIMIT) {
                Ok(line) if line.contains(text) => return Ok(()),
                Ok(_) => {}
                Err(e) => return Err(format!("ibv_asyncwatch does not print {text:?}: {e}")),
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Fails if the program has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn inside() -> Result<(), String> {
    let watcher = Watcher::start().map_err(|e| e.to_string())?;
    watcher.expect("async event FD")?;
    for (step, text) in STEPS {
        let words: Vec<_> = step.split(' ').collect();
        let done = Command::new(words[0]).args(&words[1..]).status().is_ok_and(|status| status.success());
        if !done {
            return Err(format!("{step} fails"));
        }
        watcher.expect(text).map_err(|why| format!("after {step}: {why}"))?;
    }
    Ok(())
}
