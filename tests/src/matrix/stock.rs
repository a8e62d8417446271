//! Runs Debian's verbs programs between roxe and rxe in both directions, and checks their output.

use super::run::{self, Runner};
use super::{Condition, Direction, Ending, Ip, capture};
use crate::guest::sides::{self, Side};
use crate::pair::{self, KILLED, Outcome};
use crate::perftest::{self, Row};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit of one pair. The guest's processor is emulated.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Number of tries of a pair that fails because of a [lost last acknowledgement](lost_last_ack).
/// `ibv_srq_pingpong` does so in a third of its runs: it exits although one of its queue pairs may
/// still have to retransmit.
pub(super) const TRIES: usize = 8;

/// A pair of server and client of one stock program, with its options.
#[derive(Clone, Debug)]
pub struct Stock {
    /// Side of the client.
    pub direction: Direction,
    /// IP version.
    pub ip: Ip,
    /// Condition of the network.
    pub condition: Condition,
    tool: &'static str,
    args: &'static str,
    gid_option: &'static str,
    check_output: fn(&str) -> Result<(), String>,
}

/// Result of a pair of stock programs.
#[derive(Clone, Debug)]
pub struct ProgramResult {
    /// Direction, condition and command line.
    pub name: String,
    /// Ending of the last try.
    pub ending: Ending,
    /// Duration in seconds.
    pub seconds: f32,
    /// Number of tries, the last one included.
    pub tries: usize,
    /// Result of tshark on its packets, if there was a capture.
    pub capture: Option<capture::Verdict>,
}

impl Stock {
    /// Returns direction, condition and command line.
    pub fn name(&self) -> String {
        format!("stock {} {} {} {} {}", self.direction, self.ip, self.condition, self.tool, self.args)
    }

    /// Runs the pair.
    pub fn run(&self, runner: &mut Runner) -> ProgramResult {
        let (name, start) = (self.name(), Instant::now());
        let mut tries = 1;
        let (ending, capture) = if pair::installed(self.tool) {
            self.try_run(runner, &name, &mut tries).unwrap_or_else(|e| (Ending::Failed(e.to_string()), None))
        } else {
            (Ending::Skipped(format!("{} is not installed", self.tool)), None)
        };
        ProgramResult { name, ending, seconds: start.elapsed().as_secs_f32(), tries, capture }
    }

    fn try_run(
        &self,
        runner: &mut Runner,
        name: &str,
        tries: &mut usize,
    ) -> io::Result<(Ending, Option<capture::Verdict>)> {
        runner.set(self.condition)?;
        let file = runner.capture_file(name)?;
        let mut outcomes = self.pair(runner, file.as_deref())?;
        while self.condition.lossy() && lost_last_ack(&outcomes) && *tries < TRIES {
            *tries += 1;
            outcomes = self.pair(runner, file.as_deref())?;
        }
        match self.judge(&outcomes) {
            // The packets of a failed pair are not checked: its output says more, and it may have
            // sent none.
            failed @ Ending::Failed(_) => Ok((failed, None)),
            ending => Ok((ending, file.as_deref().map(capture::judge).transpose()?)),
        }
    }

    fn pair(&self, runner: &mut Runner, capture: Option<&Path>) -> io::Result<[Outcome; 2]> {
        let envs = runner.environment(self.condition, capture);
        let port = runner.new_port();
        let (server_side, client_side) = match self.direction {
            Direction::RoxeToRxe => (Side::Rxe, Side::Roxe),
            Direction::RxeToRoxe => (Side::Roxe, Side::Rxe),
        };
        let server = self.command(runner, server_side, port)?;
        // The pingpongs' servers listen on IPv4 only. The IP version of the packets depends on the
        // GID, not on this address.
        let client = format!("{} {}", self.command(runner, client_side, port)?, run::address(server_side, Ip::V4));
        sides::run_pair(&runner.guest, client_side, (&server, &client), port, &envs, TIME_LIMIT)
    }

    fn command(&self, runner: &mut Runner, side: Side, port: u16) -> io::Result<String> {
        let gid = runner.gid_index(side, self.ip)?;
        Ok(format!("{} {} {} {gid} -p {port}", self.tool, self.args, self.gid_option))
    }

    fn judge(&self, [server, client]: &[Outcome; 2]) -> Ending {
        match (server.ok && client.ok).then(|| (self.check_output)(&client.output)) {
            Some(Ok(())) => Ending::Passed,
            Some(Err(why)) => Ending::Failed(format!("{why}\n{}", client.transcript())),
            None => Ending::Failed(format!("{}\n{}", server.transcript(), client.transcript())),
        }
    }
}

/// Returns all pairs. Under loss only those over RC: the programs wait forever for a message that
/// UC or UD has lost.
pub fn all() -> Vec<Stock> {
    let mut list = Vec::new();
    for condition in [Condition::Clean, Condition::Netem] {
        for direction in Direction::ALL {
            let pingpongs = PINGPONGS.iter().flat_map(|&(tool, args)| Ip::ALL.map(|ip| (ip, tool, args, "-g")));
            let perftests = PERFTESTS.iter().map(|&(tool, args)| (Ip::V4, tool, args, "-x"));
            for (ip, tool, args, gid_option) in pingpongs.chain(perftests) {
                let reliable = !["uc", "ud", "UC", "UD"].iter().any(|word| tool.contains(word) || args.contains(word));
                if reliable || !condition.lossy() {
                    let check_output = match direction {
                        _ if gid_option == "-g" => check_iterations,
                        Direction::RoxeToRxe => check_measured,
                        Direction::RxeToRoxe => check_counted,
                    };
                    list.push(Stock { direction, ip, condition, tool, args, gid_option, check_output });
                }
            }
        }
    }
    list
}

/// Returns one pair in each direction, for every change.
pub fn few() -> Vec<Stock> {
    let mut list = slice();
    list.retain(|s| s.condition == Condition::Netem && s.args == "-c -s 4096 -n 200");
    list
}

/// Returns a few pairs of each kind of program.
pub fn slice() -> Vec<Stock> {
    let mut list = all();
    list.retain(|s| {
        (s.ip == Ip::V4 && s.condition == Condition::Netem && s.tool == "ibv_rc_pingpong")
            || (s.condition == Condition::Clean && s.tool == "ib_write_bw")
    });
    list
}

const PINGPONGS: [(&str, &str); 5] = [
    ("ibv_rc_pingpong", "-c -s 4096 -n 200"),
    ("ibv_rc_pingpong", "-c -m 4096 -s 100000 -n 30"),
    ("ibv_uc_pingpong", "-c -s 4096 -n 200"),
    ("ibv_ud_pingpong", "-c -s 2048 -n 200"),
    ("ibv_srq_pingpong", "-c -s 4096 -q 4 -n 200"),
];

const PERFTESTS: [(&str, &str); 12] = [
    ("ib_write_bw", "-F -c RC -s 65536 -n 50"),
    ("ib_read_bw", "-F -c RC -s 65536 -n 50"),
    ("ib_send_bw", "-F -c RC -s 65536 -n 50"),
    ("ib_atomic_bw", "-F -c RC -n 200"),
    ("ib_write_lat", "-F -c RC -s 64 -n 100"),
    ("ib_read_lat", "-F -c RC -s 64 -n 100"),
    ("ib_send_lat", "-F -c RC -s 64 -n 100"),
    ("ib_atomic_lat", "-F -c RC -n 100"),
    ("ib_write_bw", "-F -c UC -s 65536 -n 50"),
    ("ib_send_bw", "-F -c UC -s 4096 -n 50"),
    ("ib_send_lat", "-F -c UC -s 64 -n 100"),
    ("ib_send_lat", "-F -c UD -s 64 -n 100"),
];

/// Returns true if one side finished and the other only lacks the acknowledgement of its last
/// message. The pingpongs exit without waiting for each other, so a lost acknowledgement is never
/// repeated. roxe then gives up; rxe treats the retry count of 7 as infinite.
fn lost_last_ack([server, client]: &[Outcome; 2]) -> bool {
    let finished = |o: &Outcome| o.ok && check_iterations(&o.output).is_ok();
    let gave_up = |o: &Outcome| o.output.contains("transport retry counter exceeded") || o.output.ends_with(KILLED);
    let unacknowledged = |o: &Outcome| !o.ok && gave_up(o);
    (finished(server) && unacknowledged(client)) || (finished(client) && unacknowledged(server))
}

/// Checks the output of a pingpong: it ends with "N iters in S seconds", and with `-c` it prints
/// "invalid data" if bytes differ.
fn check_iterations(output: &str) -> Result<(), String> {
    if output.contains("invalid data") {
        return Err("the received bytes differ".to_owned());
    }
    if output.contains("iters in") { Ok(()) } else { Err("no result line".to_owned()) }
}

/// Checks that perftest on this host printed one line with a rate or a latency.
fn check_measured(output: &str) -> Result<(), String> {
    one_line(output, |row| perftest::is_measured(row, output))
}

/// Checks that perftest in the guest printed one line with a number of messages. Its rate may be
/// 0.00: a program cannot measure its clock rate in a guest that was stalled.
fn check_counted(output: &str) -> Result<(), String> {
    one_line(output, |row| row.figures.first().is_some_and(|count| *count > 0.0))
}

fn one_line(output: &str, is_good: impl Fn(&Row) -> bool) -> Result<(), String> {
    match perftest::rows(output).as_slice() {
        [row] if is_good(row) => Ok(()),
        rows => Err(format!("expected one line of figures, found {rows:?}")),
    }
}
