//! Runs commands over roxe and over the Linux kernel's rxe, for experiments: boots the guest of the
//! interoperability tests and reads commands from standard input.
//!
//! ```text
//! cargo run --release -p roxe-tests --example rxe_peer
//! > there ibv_rc_pingpong -g 1 &
//! > here ibv_rc_pingpong -g 0 10.77.0.11
//! ```
//!
//! `here COMMAND` runs under roxe, `there COMMAND` in the guest. A command with `&` at the end runs
//! in the background; the end of the input waits for it. `netem loss 3%` applies a rule of tc-netem
//! to the guest's network, `netem` alone removes it. `ROXE_*` variables apply to roxe. Needs root
//! and the packages of `tests/run`.

use roxe_tests::build;
use roxe_tests::guest::sides::{Process, Side};
use roxe_tests::guest::{Guest, kernel::Kernel, link};
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

/// Time limit of a command.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Time for a background command to start listening, or to end, before the next line is read.
const BACKGROUND_WAIT: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    // Fetch the kernel and build the product before entering the namespace, which has no network.
    let kernel = Kernel::prepare().map_err(|why| why.0)?;
    build::roxe();
    link::enter()?;
    let mut peer = Peer { guest: Guest::boot(&kernel)?, background: Vec::new() };
    println!("there: rxe of Linux {} at {} and {}", kernel.version, link::GUEST_V4, link::GUEST_V6);
    peer.print_gids(Side::Rxe)?;
    println!("here: roxe at {} and {}", link::HERE_V4, link::HERE_V6);
    peer.print_gids(Side::Roxe)?;
    prompt()?;
    for line in io::stdin().lock().lines() {
        if let Err(e) = peer.execute(line?.trim()) {
            println!("{e}");
        }
        prompt()?;
    }
    println!();
    peer.end()
}

fn prompt() -> io::Result<()> {
    print!("> ");
    io::stdout().flush()
}

/// The guest and the background commands.
struct Peer {
    guest: Guest,
    background: Vec<Process>,
}

impl Peer {
    fn execute(&mut self, line: &str) -> Result<(), Box<dyn Error>> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "here" => self.start(Side::Roxe, rest)?,
            "there" => self.start(Side::Rxe, rest)?,
            "netem" => self.guest.netem(rest)?,
            "" => {}
            _ => return Err(format!("{verb}? Say here COMMAND, there COMMAND or netem RULES").into()),
        }
        self.print_ended()
    }

    fn start(&mut self, side: Side, command: &str) -> io::Result<()> {
        let (command, waits) = match command.strip_suffix('&') {
            Some(command) => (command.trim(), false),
            None => (command, true),
        };
        let mut process = Process::start(&self.guest, side, command, &[])?;
        if waits {
            return self.finish(process);
        }
        process.ended(&self.guest, BACKGROUND_WAIT)?;
        self.background.push(process);
        Ok(())
    }

    fn finish(&mut self, process: Process) -> io::Result<()> {
        let outcome = process.wait(&self.guest, Instant::now() + TIME_LIMIT)?;
        println!("$ {}\n{}", outcome.command, outcome.output.trim_end());
        Ok(())
    }

    /// Prints the background commands that have ended.
    fn print_ended(&mut self) -> Result<(), Box<dyn Error>> {
        for mut process in std::mem::take(&mut self.background) {
            if process.ended(&self.guest, BACKGROUND_WAIT)? {
                self.finish(process)?;
            } else {
                self.background.push(process);
            }
        }
        Ok(())
    }

    fn print_gids(&mut self, side: Side) -> io::Result<()> {
        let process = Process::start(&self.guest, side, "ibv_devinfo -v", &[])?;
        let outcome = process.wait(&self.guest, Instant::now() + TIME_LIMIT)?;
        outcome.output.lines().filter(|line| line.contains("GID[")).for_each(|line| println!("{}", line.trim()));
        Ok(())
    }

    fn end(mut self) -> Result<(), Box<dyn Error>> {
        for process in std::mem::take(&mut self.background) {
            self.finish(process)?;
        }
        Ok(())
    }
}
