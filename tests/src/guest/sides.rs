//! One program here under roxe and one in the guest over rxe, started in either order, bounded in
//! time, always ended.

use super::{Guest, Job, link};
use crate::build;
use crate::pair::{self, KILLED, Outcome, POLL_INTERVAL};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Side that runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// This machine, with roxe as its libibverbs.
    Roxe,
    /// The guest, with Debian's libibverbs and the kernel's rxe.
    Rxe,
}

/// Time within which a server must listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(20);

/// Time within which a server must end after its client.
const SERVER_END_LIMIT: Duration = Duration::from_secs(10);

/// A program under way on one side.
pub enum Process {
    /// Here.
    Roxe(Local),
    /// In the guest.
    Rxe(Job),
}

/// A program under way here; killed when dropped.
pub struct Local {
    command: String,
    child: Child,
    output: PathBuf,
}

impl Drop for Local {
    fn drop(&mut self) {
        // Harmless when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts a command line on `side`. `envs` are for roxe; the guest's programs have no use for
    /// them.
    pub fn start(guest: &Guest, side: Side, command: &str, envs: &[(String, String)]) -> io::Result<Self> {
        match side {
            Side::Rxe => Ok(Self::Rxe(guest.start(&format!("exec {command}"))?)),
            Side::Roxe => Local::start(guest, command, envs).map(Self::Roxe),
        }
    }

    /// Output so far.
    pub fn output_so_far(&self) -> String {
        pair::output_of(self.output())
    }

    /// The file with its standard output, which grows while it runs.
    pub fn output(&self) -> &Path {
        match self {
            Self::Roxe(local) => &local.output,
            Self::Rxe(job) => job.output(),
        }
    }

    /// Returns true if it ended within `patience`.
    pub fn ended(&mut self, guest: &Guest, patience: Duration) -> io::Result<bool> {
        Ok(self.status(guest, Instant::now() + patience)?.is_some())
    }

    /// Waits until `deadline`, then kills it; returns its outcome.
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

    /// Its exit status in words ("0" is good), `None` if it still runs at the deadline.
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
        let (_, output) = guest.fresh_output()?;
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

/// Waits until something on `side` listens on TCP `port`, or `server` has ended.
pub fn await_listener(guest: &Guest, side: Side, port: u16, server: &mut Process) -> io::Result<()> {
    let deadline = Instant::now() + LISTEN_LIMIT;
    if side == Side::Rxe {
        // Column 2 is the local address, column 4 the state; 0A is LISTEN. Bounded by the limit of
        // guest.run.
        let listens = format!("grep -Eqh '^ *[0-9]+: [0-9A-F]+:{port:04X} [^ ]+ 0A' /proc/net/tcp /proc/net/tcp6");
        let tries = LISTEN_LIMIT.as_secs() * 10;
        guest.run(&format!("for i in $(seq {tries}); do {listens} && break; sleep 0.1; done"))?;
        return Ok(());
    }
    while !pair::listens(port) && Instant::now() < deadline && !server.ended(guest, POLL_INTERVAL)? {}
    Ok(())
}

/// Starts `server` on the other side of `client_side`, then `client`, and waits for both.
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
    // A client that failed leaves its server waiting for ever: give it a moment to say why, no
    // more.
    let patience = if client.ok { SERVER_END_LIMIT } else { Duration::from_secs(1) };
    let server = first.wait(guest, Instant::now() + patience)?;
    Ok([server, client])
}
