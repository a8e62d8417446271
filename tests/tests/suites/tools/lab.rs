//! `roxe lab`: stock programs between hosts of one machine, as root and as an ordinary user,
//! without leftovers.

use roxe_tests::build;
use roxe_tests::guest::link;
use roxe_tests::pair::{UNPRIVILEGED, installed};
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::io::Read;
use std::process::{Command, ExitCode, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Starts a server on the first host; the others are its clients, which try until it is there.
const RPING: &str = "if [ $LAB_HOST = 1 ]; then exec rping -s -a $ADDR -C 5; fi
for i in $(seq 100); do rping -c -a $ADDR -C 5 -v && exit 0; sleep 0.1; done; exit 1";

pub(crate) fn main() -> ExitCode {
    report::main(vec![
        Check::new("lab: rping between two hosts", || rping(&[], &[], "host1")),
        Check::new("lab: rping between two hosts of an ordinary user", || rping(&UNPRIVILEGED, &[], "host1")),
        Check::new("lab: rping over IPv6", || rping(&[], &["--ipv6"], "fd89::1")),
        Check::new("lab: rping with losses", || rping(&[], &["--link", "50us loss 2%"], "host1")),
        Check::new("lab: each host has its name, address, interface and card", hosts_differ),
        Check::new("lab: failing host ends the others and sets the exit status", failure_ends_all),
        Check::new("lab: kill -9 leaves nothing behind", nothing_is_left),
    ])
}

fn lab(prefix: &[&str], options: &[&str], script: &str) -> Command {
    let roxe = build::roxe();
    let mut words = prefix.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    words.extend(["timeout", "60"].map(str::to_owned));
    words.push(roxe.display().to_string());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("lab").args(options).args(["--", "sh", "-c", script]);
    command.stdin(Stdio::null()).env("XDG_CACHE_HOME", "/dev/null/none");
    command
}

/// Runs a script; an error says why labs cannot run here.
fn output(command: &mut Command) -> Result<Output, Verdict> {
    if let Some(tool) = ["ip", "setpriv", "rping"].into_iter().find(|tool| !installed(tool)) {
        return Err(Verdict::Skipped(format!("{tool} is not installed (tests/run installs it)")));
    }
    let output = command.output().map_err(|e| Verdict::Failed(e.to_string()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("grants no user namespace") {
        return Err(Verdict::Skipped(said.trim().to_owned()));
    }
    Ok(output)
}

fn text(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn rping(prefix: &[&str], options: &[&str], address: &str) -> Verdict {
    if !prefix.is_empty() && !link::is_root() {
        return Verdict::Skipped("takes root, to become an ordinary user".to_owned());
    }
    match output(lab(prefix, options, RPING).env("ADDR", address)) {
        Ok(output) if output.status.success() && text(&output).contains("host2 | ping data: rdma-ping-4") => {
            Verdict::Passed
        }
        Ok(output) => Verdict::Failed(text(&output)),
        Err(verdict) => verdict,
    }
}

fn hosts_differ() -> Verdict {
    let script = "echo $(hostname) $LAB_HOST/$LAB_HOSTS $LAB_NAMES $LAB_ADDRS $(ls /sys/class/net | tr '\\n' ' ') \
                  $(ls /sys/class/infiniband) $(grep host3 /etc/hosts)";
    let output = match output(&mut lab(&[], &["--hosts", "3"], script)) {
        Ok(output) => output,
        Err(verdict) => return verdict,
    };
    let text = text(&output);
    for number in 1..=3 {
        let line = format!(
            "host{number} | host{number} {number}/3 host1 host2 host3 10.89.0.1 10.89.0.2 10.89.0.3 eth0 lo roxe0 \
             10.89.0.3 host3\n"
        );
        if !text.contains(&line) {
            return Verdict::Failed(format!("no line {line:?} in\n{text}"));
        }
    }
    Verdict::Passed
}

fn failure_ends_all() -> Verdict {
    let started = Instant::now();
    match output(&mut lab(&[], &["--hosts", "3"], "[ $LAB_HOST = 2 ] && exit 7; sleep 1000")) {
        Ok(output) if output.status.code() == Some(7) && started.elapsed() < Duration::from_secs(50) => Verdict::Passed,
        Ok(output) => Verdict::Failed(text(&output)),
        Err(verdict) => verdict,
    }
}

/// Processes whose command line holds this text.
fn processes(mark: &str) -> usize {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = folders.filter_map(|folder| fs::read(folder.path().join("cmdline")).ok());
    lines.filter(|line| line.windows(mark.len()).any(|part| part == mark.as_bytes())).count()
}

fn nothing_is_left() -> Verdict {
    let mark = format!("1{:09}", std::process::id());
    let mut child = match lab(&[], &[], &format!("setsid sleep {mark} & echo started; sleep {mark}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    {
        Ok(child) => child,
        Err(e) => return Verdict::Failed(e.to_string()),
    };
    let mut seen = [0; 40];
    let read = child.stdout.take().and_then(|mut stream| stream.read(&mut seen).ok());
    let before = processes(&mark);
    // `timeout`, which is the child, ends with its own child.
    let _ = Command::new("pkill").args(["-9", "-f", &format!("roxe lab .*{mark}")]).status();
    let _ = child.wait();
    let deadline = Instant::now() + Duration::from_secs(10);
    while processes(&mark) > 0 && Instant::now() < deadline {
        sleep(Duration::from_millis(20));
    }
    match (read, before, processes(&mark)) {
        (Some(1..), 3.., 0) => Verdict::Passed,
        (read, before, after) => Verdict::Failed(format!("read {read:?}; {before} processes before, {after} after")),
    }
}
