//! Runs a program on this machine over roxe and one in the guest over rxe, with a time limit.

use super::{Guest, Job, link};
use crate::build;
use crate::pair::{self, KILLED, Outcome, POLL_INTERVAL};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The side on which a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// This machine, with roxe as its libibverbs.
    Roxe,
    /// The guest, with Debian's libibverbs and the kernel's rxe.
    Rxe,
}

/// Time limit for a server to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(20);

/// Time limit for a server to end after its client.
const SERVER_END_LIMIT: Duration = Duration::from_secs(10);

/// A running program.
pub enum Process {
    /// Runs on this machine.
    Roxe(Local),
    /// Runs in the guest.
    Rxe(Job),
}

/// A program that runs on this machine; killed when dropped.
pub struct Local {
    command: String,
    child: Child,
    output: PathBuf,
}

impl Drop for Local {
    fn drop(&mut self) {
        // Fails if the program has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts a command line on `side`. The environment variables `envs` are set on roxe's side
    /// only.
    pub fn start(guest: &Guest, side: Side, command: &str, envs: &[(String, String)]) -> io::Result<Self> {
        match side {
            Side::Rxe => Ok(Self::Rxe(guest.start(&format!("exec {command}"))?)),
            Side::Roxe => Local::start(guest, command, envs).map(Self::Roxe),
        }
    }

    /// Returns the standard output and standard error so far.
    pub fn output_so_far(&self) -> String {
        pair::output_of(self.output())
    }

    /// Returns the file of its standard output, readable while it runs.
    pub fn output(&self) -> &Path {
        match self {
            Self::Roxe(local) => &local.output,
            Self::Rxe(job) => job.output(),
        }
    }

    /// Waits at most `limit` for the end of the program. Returns true if it has ended.
    pub fn ended(&mut self, guest: &Guest, limit: Duration) -> io::Result<bool> {
        Ok(self.status(guest, Instant::now() + limit)?.is_some())
    }

    /// Waits for the end of the program, kills it at `deadline`, and returns its outcome.
    pub fn wait(mut self, guest: &Guest, deadline: Instant) -> io::Result<Outcome> {
        let status = self.status(guest, deadline)?;
        if let (None, Self::Rxe(job)) = (&status, &self) {
            guest.stop(job)?;
        }
        let output = self.output_so_far();
        let (ok, note) = match status {
            Some(status) if status == "0" => (true, String::new()),
            Some(status) => (false, format!("[ended with {status}]")),
            None => (false, KILLED.to_owned()),
        };
        let command = match &self {
            Self::Roxe(local) => format!("roxe run -- {}", local.command),
            Self::Rxe(job) => format!("guest: {}", job.command()),
        };
        Ok(Outcome { command, ok, output: output + &note })
    }

    /// Waits for the end of the program. Returns its exit status as text, "0" for success; `None`
    /// if it still runs at the deadline.
    fn status(&mut self, guest: &Guest, deadline: Instant) -> io::Result<Option<String>> {
        match self {
            Self::Rxe(job) => Ok(guest.wait(job, deadline)?.map(|status| status.to_string())),
            Self::Roxe(local) => loop {
                match local.child.try_wait()? {
                    Some(status) if status.success() => return Ok(Some("0".to_owned())),
                    Some(status) => return Ok(Some(status.to_string())),
                    None if Instant::now() >= deadline => return Ok(None),
                    None => thread::sleep(POLL_INTERVAL),
                }
            },
        }
    }
}

impl Local {
    fn start(guest: &Guest, command: &str, envs: &[(String, String)]) -> io::Result<Self> {
        let (_, output) = guest.new_output()?;
        let file = File::options().append(true).open(&output)?;
        let errors = File::create(pair::stderr_path(&output))?;
        // setpriv ends the program with this process even if that one is killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(build::roxe())
            .args(["run", "--"])
            .args(command.split_whitespace())
            .env("ROXE_NETDEV", link::NETDEV)
            .envs(envs.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()?;
        Ok(Self { command: command.to_owned(), child, output })
    }
}

/// Waits until a program on `side` listens on TCP `port`, or `server` has ended.
pub fn await_listener(guest: &Guest, side: Side, port: u16, server: &mut Process) -> io::Result<()> {
    let deadline = Instant::now() + LISTEN_LIMIT;
    if side == Side::Rxe {
        // Column 2 is the local address, column 4 the state; 0A is LISTEN.
        let listens = format!("grep -Eqh '^ *[0-9]+: [0-9A-F]+:{port:04X} [^ ]+ 0A' /proc/net/tcp /proc/net/tcp6");
        let tries = LISTEN_LIMIT.as_secs() * 10;
        guest.run(&format!("for i in $(seq {tries}); do {listens} && break; sleep 0.1; done"))?;
        return Ok(());
    }
    while !pair::listens(port) && Instant::now() < deadline && !server.ended(guest, POLL_INTERVAL)? {}
    Ok(())
}

/// Starts `server` on the other side than `client_side`, then `client`, and waits for both.
pub fn run_pair(
    guest: &Guest,
    client_side: Side,
    (server, client): (&str, &str),
    port: u16,
    envs: &[(String, String)],
    limit: Duration,
) -> io::Result<[Outcome; 2]> {
    let deadline = Instant::now() + limit;
    let server_side = if client_side == Side::Roxe { Side::Rxe } else { Side::Roxe };
    let mut first = Process::start(guest, server_side, server, envs)?;
    await_listener(guest, server_side, port, &mut first)?;
    let second = Process::start(guest, client_side, client, envs)?;
    let client = second.wait(guest, deadline)?;
    // The server of a failed client may wait forever. It gets a second to print the reason.
    let limit = if client.ok { SERVER_END_LIMIT } else { Duration::from_secs(1) };
    let server = first.wait(guest, Instant::now() + limit)?;
    Ok([server, client])
}
