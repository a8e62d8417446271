//! Runs a server and a client under `roxe run`, with a time limit.

use crate::measure::load;
use crate::{build, perftest};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Appended to the output of a program that was killed at its time limit.
pub const KILLED: &str = "[still running at the time limit; killed]";

/// Interval between two checks of a condition.
pub const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Result of one process.
#[derive(Debug)]
pub struct Outcome {
    /// The command line, for messages.
    pub command: String,
    /// True if it exited with status 0 before the time limit.
    pub ok: bool,
    /// Standard output and standard error together.
    pub output: String,
}

impl Outcome {
    /// Returns the command line and the output, for messages.
    pub fn transcript(&self) -> String {
        format!("$ {}\n{}", self.command, self.output)
    }
}

/// A running program; killed when dropped. Standard output and standard error go to two files: in
/// one file, errors would interrupt lines of output, because programs write output in blocks.
pub(crate) struct Running {
    command: String,
    child: Child,
    /// True once the time that the process waited for a processor is recorded.
    wait_recorded: bool,
    log: PathBuf,
}

impl Running {
    pub(crate) fn start(Program { name, args }: &Program, launch: &Launch, log: PathBuf) -> io::Result<Self> {
        let (output, errors) = (File::create(&log)?, File::create(stderr_path(&log))?);
        let mut words: Vec<OsString> = launch.prefix.iter().map(OsString::from).collect();
        if !launch.without_roxe {
            let roxe = launch.roxe.clone().unwrap_or_else(build::roxe);
            words.extend([roxe.into_os_string(), "run".into()]);
            words.extend(launch.options.iter().map(OsString::from));
            words.push("--".into());
        }
        words.push(name.into());
        let clock = if launch.calibrate_clock { None } else { perftest::clock_library(name) };
        let child = Command::new(&words[0])
            .args(&words[1..])
            .args(args)
            .envs(clock.map(|clock| ("LD_PRELOAD", clock)))
            .envs(launch.envs.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()?;
        Ok(Self { command: format!("{name} {}", args.join(" ")), child, wait_recorded: false, log })
    }

    pub(crate) fn exited(&mut self) -> bool {
        if !self.wait_recorded && load::has_ended(self.child.id()) {
            load::record_wait(self.child.id());
            self.wait_recorded = true;
        }
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills a program that must not exit by itself. The outcome is `ok` if it was still running.
    fn stop(mut self) -> Outcome {
        let ok = !self.exited();
        let note = if ok { "[stopped]" } else { "[ended too early]" };
        Outcome { command: self.command.clone(), ok, output: self.output_so_far() + note }
    }

    pub(crate) fn wait(mut self, deadline: Instant) -> Outcome {
        while !self.exited() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        let (ok, note) = match self.child.try_wait() {
            Ok(Some(status)) if status.success() => (true, String::new()),
            Ok(Some(status)) => (false, format!("[ended with {status}]")),
            Ok(None) => (false, KILLED.to_owned()),
            Err(e) => (false, format!("[cannot wait: {e}]")),
        };
        Outcome { command: self.command.clone(), ok, output: self.output_so_far() + &note }
    }

    /// Returns standard output and standard error so far.
    pub(crate) fn output_so_far(&self) -> String {
        output_of(&self.log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.exited() {
            // Children of a shell would outlive it and keep ports and processors in use.
            let descendants = descendants(self.child.id());
            // Fails if the program has just ended.
            let _ = self.child.kill();
            descendants.into_iter().for_each(kill);
        }
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.log);
        let _ = fs::remove_file(stderr_path(&self.log));
    }
}

/// Returns all descendants of process `pid`.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<u32> = lists.flat_map(|list| numbers(&list)).collect();
        found.extend(children);
        next += 1;
    }
    found.split_off(1)
}

fn numbers(list: &str) -> Vec<u32> {
    list.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

fn kill(pid: u32) {
    // SAFETY: kill takes no pointers.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
}

/// Returns the path of the standard error file for this standard output file.
pub(crate) fn stderr_path(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".err");
    name.into()
}

/// Reads standard output, then standard error, of a program with this standard output file.
pub(crate) fn output_of(output: &Path) -> String {
    let read = |file: &Path| fs::read(file).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let (mut text, errors) = (read(output), read(&stderr_path(output)));
    if !text.is_empty() && !text.ends_with('\n') && !errors.is_empty() {
        text.push('\n');
    }
    text + &errors
}

/// A command line.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name or path.
    pub name: String,
    /// Arguments, without the name of the program.
    pub args: Vec<String>,
}

impl Program {
    /// Splits a command line at spaces.
    pub fn parse(line: &str) -> Self {
        let mut words = line.split_whitespace().map(str::to_owned);
        Self { name: words.next().unwrap_or_default(), args: words.collect() }
    }
}

/// Settings with which a program is started.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Command prefix, such as `ip netns exec`.
    pub prefix: Vec<String>,
    /// Additional environment variables.
    pub envs: Vec<(String, String)>,
    /// Options of `roxe run`.
    pub options: Vec<String>,
    /// Path of `roxe`; `None` for the build of this source tree.
    pub roxe: Option<PathBuf>,
    /// True if the program starts without `roxe run`.
    pub without_roxe: bool,
    /// True if perftest measures the processor's clock rate itself: slow, but its times are then
    /// correct.
    pub calibrate_clock: bool,
}

impl Launch {
    fn with_envs(envs: &[(&str, &str)]) -> Self {
        let envs = envs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { envs, ..Self::default() }
    }
}

/// Runs `program` alone under `roxe run`.
pub fn run(program: &Program, envs: &[(&str, &str)], limit: Duration) -> io::Result<Outcome> {
    run_with(program, &Launch::with_envs(envs), limit)
}

/// Runs `program` alone, started as `launch` says.
pub fn run_with(program: &Program, launch: &Launch, limit: Duration) -> io::Result<Outcome> {
    let deadline = deadline(limit);
    Ok(Running::start(program, launch, log_path("alone"))?.wait(deadline))
}

/// Starts `server`, waits until it listens on TCP `port`, runs `client`, and waits for both.
pub fn run_pair(
    server: &Program,
    client: &Program,
    port: u16,
    envs: &[(&str, &str)],
    limit: Duration,
) -> io::Result<[Outcome; 2]> {
    let here = Launch::with_envs(envs);
    run_pair_with([(server, &here), (client, &here)], &port.to_string(), || listens(port), limit)
}

/// Starts `server`, waits until `ready` accepts its output, runs `client`, and kills the server.
pub fn run_client(
    server: &Program,
    client: &Program,
    envs: &[(&str, &str)],
    ready: impl Fn(&str) -> bool,
    limit: Duration,
) -> io::Result<[Outcome; 2]> {
    let (deadline, here) = (deadline(limit), Launch::with_envs(envs));
    let mut first = Running::start(server, &here, log_path("server"))?;
    while !ready(&first.output_so_far()) && !first.exited() && Instant::now() < deadline {
        thread::sleep(POLL_INTERVAL);
    }
    let client = Running::start(client, &here, log_path("client"))?.wait(deadline);
    Ok([first.stop(), client])
}

/// Starts the first program, waits until `ready` is true, starts the second, and waits for both, at
/// most until `limit`. `tag` is part of the names of their output files. Repeats a run of perftest
/// that failed because it [could not measure the clock rate](perftest::lacks_clock_rate).
pub fn run_pair_with(
    programs: [(&Program, &Launch); 2],
    tag: &str,
    ready: impl Fn() -> bool,
    limit: Duration,
) -> io::Result<[Outcome; 2]> {
    let once = || {
        let deadline = deadline(limit);
        let (server, client) = start_and_await_second(programs, tag, &ready, deadline)?;
        // The server of a failed client may wait forever. It gets one second to print the reason.
        let until = if client.ok { deadline } else { Instant::now() + Duration::from_secs(1) };
        Ok([server.wait(until), client])
    };
    perftest::retry_without_clock_rate(once, |ends| {
        ends.iter().any(|end| !end.ok && perftest::lacks_clock_rate(&end.output))
    })
}

/// Like [`run_pair_with`], but for a server that never ends: kills it once the client has ended.
pub fn run_against(
    programs: [(&Program, &Launch); 2],
    tag: &str,
    ready: impl Fn() -> bool,
    limit: Duration,
) -> io::Result<[Outcome; 2]> {
    let (server, client) = start_and_await_second(programs, tag, ready, deadline(limit))?;
    Ok([server.wait(Instant::now()), client])
}

/// Starts `server`, waits until it listens on TCP `port`, starts `client`, and kills both once
/// `enough` is true or after `limit`. The output of a killed program ends with [`KILLED`].
pub fn kill_pair(
    server: &Program,
    client: &Program,
    port: u16,
    envs: &[(&str, &str)],
    enough: impl Fn() -> bool,
    limit: Duration,
) -> io::Result<[Outcome; 2]> {
    let (deadline, here) = (deadline(limit), Launch::with_envs(envs));
    let both = [(server, &here), (client, &here)];
    let [mut server, mut client] = start_both(both, &port.to_string(), || listens(port), deadline)?;
    while !enough() && !server.exited() && !client.exited() && Instant::now() < deadline {
        thread::sleep(POLL_INTERVAL);
    }
    Ok([server.wait(Instant::now()), client.wait(Instant::now())])
}

/// Starts the first program, waits until `ready` is true, and runs the second to its end. Returns
/// the first, which may still run, and the outcome of the second.
fn start_and_await_second(
    programs: [(&Program, &Launch); 2],
    tag: &str,
    ready: impl Fn() -> bool,
    deadline: Instant,
) -> io::Result<(Running, Outcome)> {
    let [first, second] = start_both(programs, tag, ready, deadline)?;
    Ok((first, second.wait(deadline)))
}

/// Starts the first program, waits until `ready` is true, and starts the second.
fn start_both(
    [server, client]: [(&Program, &Launch); 2],
    tag: &str,
    ready: impl Fn() -> bool,
    deadline: Instant,
) -> io::Result<[Running; 2]> {
    let mut first = Running::start(server.0, server.1, log_path(&format!("s{tag}")))?;
    while !ready() && !first.exited() && Instant::now() < deadline {
        thread::sleep(POLL_INTERVAL);
    }
    let second = Running::start(client.0, client.1, log_path(&format!("c{tag}")))?;
    Ok([first, second])
}

/// Returns the deadline `limit` from now. Builds roxe before, because a build may take longer than
/// the limit.
pub(crate) fn deadline(limit: Duration) -> Instant {
    build::roxe();
    Instant::now() + limit
}

pub(crate) fn log_path(tag: &str) -> PathBuf {
    std::env::temp_dir().join(format!("roxe-test-{}-{tag}.log", std::process::id()))
}

/// Returns the final value of a counter in `output` (`ROXE_STATS`), summed over all processes.
pub fn counter(output: &str, name: &str) -> u64 {
    let words = output.split_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    words.filter_map(|value| value.parse::<u64>().ok()).sum()
}

/// Returns true if a process of this network namespace listens on TCP `port` (column 2 is the local
/// address, column 4 the state, 0A is LISTEN).
pub fn listens(port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).is_ok_and(|text| {
            text.lines().any(|line| {
                let mut columns = line.split_whitespace().skip(1);
                columns.next().is_some_and(|local| local.ends_with(&suffix)) && columns.nth(1) == Some("0A")
            })
        })
    })
}

/// Reason to skip checks over IPv6.
pub const NO_IPV6: &str = "the loopback interface has no IPv6 address";

/// Returns true if the loopback interface has an IPv6 address.
pub fn has_ipv6() -> bool {
    std::net::UdpSocket::bind((std::net::Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// Command prefix with which root runs a command without capabilities and groups, under a UID that
/// Debian never assigns.
pub const UNPRIVILEGED: [&str; 5] = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "--"];

/// Returns true if `program` is in `PATH`.
pub fn installed(program: &str) -> bool {
    Path::new(program).is_file()
        || std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Returns the variable for the weakest card (docs/explanation/weakest.md) if the command line has
/// `--weakest=SEED`. `left_out` (each `,-NAME`) excludes weaknesses that the program does not
/// support.
pub fn weakest(left_out: &str) -> Option<(&'static str, String)> {
    let seed = std::env::args().find_map(|arg| arg.strip_prefix("--weakest=").map(str::to_owned))?;
    Some(("ROXE_WEAKEST", seed + left_out))
}

#[cfg(test)]
mod tests {
    use super::{Launch, Program, Running, descendants, log_path};
    use std::fs;
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn children_of_a_shell_are_killed_with_it() {
        let shell =
            Program { name: "sh".to_owned(), args: ["-c", "sleep 600 & sleep 600; :"].map(str::to_owned).into() };
        let launch = Launch { without_roxe: true, ..Launch::default() };
        let running = Running::start(&shell, &launch, log_path("shell")).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let mut started = Vec::new();
        while started.len() < 2 {
            assert!(Instant::now() < until, "the shell has started no process");
            thread::sleep(super::POLL_INTERVAL);
            started = descendants(running.child.id());
        }
        drop(running);
        // A zombie has no command line.
        let lives = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
        while started.iter().any(lives) {
            assert!(Instant::now() < until, "{started:?} still run");
            thread::sleep(super::POLL_INTERVAL);
        }
    }
}
