//! Runs a pair of programs in restricted environments: it works, or it prints one line with what is
//! missing and what to do. Most of these environments need root.

use roxe_tests::guest::link;
use roxe_tests::pair::{self, Launch, Outcome, Program};
use roxe_tests::report::{self, Check, Verdict};
use std::net::UdpSocket;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use std::{env, io};

mod chroot;
mod containers;
mod seccomp;

const TIME_LIMIT: Duration = Duration::from_secs(40);
/// Argument after which this process becomes another program, with only a container's system calls.
const CONTAINED: &str = "--contained";
/// A UID that no user has.
const UNUSED_UID: &str = "47911";
/// Another unused UID, of which no process runs: a limit on processes counts all processes of a
/// UID, and the watcher of `roxe run` exits a moment after its program.
const IDLE_UID: &str = "47912";

/// Expected result of the pair.
#[derive(Clone, Copy)]
enum Expects {
    Works,
    /// The programs fail, and one line of roxe's messages contains these words.
    Says(&'static [&'static str]),
}

/// A command that enters an environment, and the expected result of the pair.
struct Environment {
    name: &'static str,
    prefix: Vec<String>,
    expects: Expects,
    /// True if some systems forbid this environment to ordinary users.
    may_be_forbidden: bool,
}

pub(crate) fn main() -> ExitCode {
    let args: Vec<String> = report::arguments().collect();
    if let [first, command @ ..] = &args[..]
        && first == CONTAINED
    {
        println!("{}", seccomp::become_contained(command));
        return ExitCode::FAILURE;
    }
    crate::alone("environment", || report::main(checks()))
}

fn checks() -> Vec<Check> {
    let mut checks: Vec<Check> = environments().into_iter().map(check).collect();
    checks.push(Check::new("port 4791 taken by another program is reported", foreign_port));
    checks.extend(chroot::checks());
    checks.extend(containers::checks());
    checks
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Returns a prefix that runs `script` in a mount namespace, then the command.
fn mounted(script: &str) -> Vec<String> {
    let script = format!("set -e; unset XDG_RUNTIME_DIR; {script}; exec \"$@\"");
    ["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
}

/// Returns a prefix that makes these folders read-only.
fn read_only(folders: &str) -> Vec<String> {
    mounted(&format!("for i in {folders}; do mount --bind $i $i; mount -o remount,ro,bind $i; done"))
}

/// Returns a prefix that enters a user namespace as its root, where the host's root already owns
/// the folders that roxe would create in shared places.
fn user_namespace_root() -> Vec<String> {
    let folder = "/run/roxe-test-environment";
    let mut prefix = mounted(&format!(
        "for i in tmp dev/shm; do mkdir -p {folder}/$i; chmod 1777 {folder}/$i; mkdir -p -m 700 {folder}/$i/roxe-0; \
         mount --bind {folder}/$i /$i; done"
    ));
    let user = format!("setpriv --reuid {UNUSED_UID} --regid {UNUSED_UID} --clear-groups");
    prefix.extend(words(&format!("{user} unshare --user --map-root-user")));
    prefix
}

/// Capabilities of root in a Docker container.
const CAPABILITIES: &str = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,\
                      +sys_chroot,+mknod,+audit_write,+setfcap";

fn environments() -> Vec<Environment> {
    let this = env::current_exe().unwrap_or_default().display().to_string();
    let works = |name, prefix| Environment { name, prefix, expects: Expects::Works, may_be_forbidden: false };
    let says =
        |name, prefix, words| Environment { name, prefix, expects: Expects::Says(words), may_be_forbidden: false };
    vec![
        works("a user namespace, as its root", words("unshare --user --map-root-user")),
        Environment {
            may_be_forbidden: true,
            ..works("a user namespace, as its root, with folders of the host's root", user_namespace_root())
        },
        works("a user namespace that maps only the own user", words("unshare --user --map-current-user")),
        works("no /proc", mounted("mount -t tmpfs none /proc")),
        works("a read-only root and a read-only /tmp", read_only("/ /tmp")),
        works("20 open files", words("prlimit --nofile=20")),
        works("files of 100 KB at most", words("prlimit --fsize=102400")),
        works("no locked memory", words("prlimit --memlock=0")),
        works("no HOME", words("env -u HOME -u XDG_RUNTIME_DIR")),
        works("a container's system calls and capabilities", {
            let mut prefix = words(&format!("setpriv --bounding-set {CAPABILITIES}"));
            prefix.extend([this, "environment".to_owned(), CONTAINED.to_owned()]);
            prefix
        }),
        says("no writable folder", read_only("/ /tmp /run /dev/shm"), &["XDG_RUNTIME_DIR"]),
        says("10 open files", words("prlimit --nofile=10"), &["Too many open files", "ulimit -n"]),
        says("a network namespace whose lo is down", words("unshare --net"), &["lo", "ip link set lo up"]),
        says(
            "no threads",
            words(&format!(
                "prlimit --nproc=1 setpriv --reuid {IDLE_UID} --regid {IDLE_UID} --clear-groups env -u XDG_RUNTIME_DIR"
            )),
            &["cannot start the background thread", "ulimit -u"],
        ),
    ]
}

fn check(environment: Environment) -> Check {
    let expectation = match environment.expects {
        Expects::Works => "works",
        Expects::Says(_) => "is reported",
    };
    Check::new(format!("{}: {expectation}", environment.name), move || {
        let first = environment.prefix.first().map_or("", String::as_str);
        if !link::is_root() {
            return Verdict::Skipped("needs root".to_owned());
        }
        if let Some(missing) = [first, "ibv_rc_pingpong"].into_iter().find(|tool| !pair::installed(tool)) {
            return Verdict::not_installed(missing);
        }
        if environment.may_be_forbidden && !is_possible(&environment.prefix) {
            return Verdict::Skipped("the system forbids this to ordinary users".to_owned());
        }
        let launch = Launch { prefix: environment.prefix.clone(), ..Launch::default() };
        match run(&launch) {
            Err(e) => Verdict::Failed(e.to_string()),
            Ok(outcomes) => judge(&outcomes, environment.expects),
        }
    })
}

/// Returns true if a program can be run with this prefix.
fn is_possible(prefix: &[String]) -> bool {
    let [program, args @ ..] = prefix else { return true };
    Command::new(program).args(args).arg("true").status().is_ok_and(|status| status.success())
}

fn run(launch: &Launch) -> io::Result<[Outcome; 2]> {
    static PORT: AtomicU16 = AtomicU16::new(18_900);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let program = |server: &str| Program {
        name: "ibv_rc_pingpong".to_owned(),
        args: words(&format!("-g 0 -n 100 -p {port} {server}")),
    };
    let programs = [program(""), program("127.0.0.1")];
    pair::run_pair_with(
        programs.each_ref().map(|program| (program, launch)),
        &port.to_string(),
        || pair::listens(port),
        TIME_LIMIT,
    )
}

fn judge(outcomes: &[Outcome; 2], expects: Expects) -> Verdict {
    let all =
        || outcomes.iter().map(|outcome| format!("$ {}\n{}\n", outcome.command, outcome.output)).collect::<String>();
    let good = match expects {
        Expects::Works => outcomes.iter().all(|outcome| outcome.ok),
        Expects::Says(words) => {
            outcomes.iter().all(|outcome| !outcome.ok) && outcomes.iter().any(|end| says(end, words))
        }
    };
    if good { Verdict::Passed } else { Verdict::Failed(all()) }
}

/// Returns true if one line of roxe's messages contains all the words.
fn says(outcome: &Outcome, words: &[&str]) -> bool {
    let mut lines = outcome.output.lines().filter(|line| line.starts_with("roxe"));
    lines.any(|line| words.iter().all(|word| line.contains(word)))
}

fn foreign_port() -> Verdict {
    if !link::is_root() {
        return Verdict::Skipped("needs root, for a network of its own".to_owned());
    }
    if !pair::installed("ibv_rc_pingpong") {
        return Verdict::not_installed("ibv_rc_pingpong");
    }
    let taken = UdpSocket::bind("127.0.0.1:4791");
    match taken.and_then(|_socket| run(&Launch::default())) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok(outcomes) => judge(&outcomes, Expects::Says(&["UDP port 4791 of 127.0.0.1", "ROXE_NETDEV"])),
    }
}
