//! Runs `roxe check-peer`, `roxe conform` and `roxe fuzz` against rxe behind an agent, and checks
//! their output.

use super::run::Runner;
use super::stock::ProgramResult;
use super::{Ending, Ip};
use crate::build;
use crate::guest::Guest;
use crate::guest::sides::{Process, Side};
use crate::pair::{self, Outcome, POLL_INTERVAL};
use roxe_peer::client::Target;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of a command. The guest's processor is emulated.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Pattern of lines of the guest's kernel log that report an error of the kernel.
const KERNEL_ERRORS: &str = "BUG:|Oops|WARNING:|blocked for more than|soft lockup|general protection";
/// Time limit for an agent to listen.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// A command with its options.
#[derive(Clone, Debug)]
pub struct Agents {
    command: &'static str,
    options: &'static str,
    /// Rules of netem in the guest; empty for a network without loss.
    netem: &'static str,
    /// Returns true if the outcome of the command is as expected.
    passes: fn(&Outcome) -> bool,
    /// Pattern of allowed error lines in the kernel log: known bugs of rxe that the command
    /// triggers.
    allowed: &'static str,
}

/// Pattern that allows no error line.
const NO_LINE: &str = "^$";

impl Agents {
    /// Returns the name in the results.
    pub fn name(&self) -> String {
        let words = ["agents", self.command, self.netem, self.options];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// Runs the command.
    pub fn run(&self, runner: &mut Runner) -> ProgramResult {
        let start = Instant::now();
        let ending = self.try_run(runner).unwrap_or_else(|e| Ending::Failed(e.to_string()));
        let ending = runner.guest.netem("").map_or_else(|e| Ending::Failed(e.to_string()), |()| ending);
        ProgramResult { name: self.name(), ending, seconds: start.elapsed().as_secs_f32(), tries: 1, capture: None }
    }

    fn try_run(&self, runner: &mut Runner) -> io::Result<Ending> {
        runner.set(super::Condition::Clean)?;
        runner.guest.netem(self.netem)?;
        let (roxe, guest) = (build::roxe(), &runner.guest);
        let (agent, Target { address, token }) = start_agent(guest, Side::Rxe, &[])?;
        let client = format!("{} {} {address} {}", roxe.display(), self.command, self.options);
        let envs = [("ROXE_STATS".to_owned(), "on".to_owned()), ("ROXE_PEER_TOKEN".to_owned(), token)];
        let client = Process::start(guest, Side::Roxe, &client, &envs)?.wait(guest, Instant::now() + TIME_LIMIT)?;
        let agent = agent.wait(guest, Instant::now() + TIME_LIMIT)?;
        let kernel_errors =
            guest.run(&format!("dmesg | grep -E '{KERNEL_ERRORS}' | grep -vE '{}' || true", self.allowed))?;
        if (self.passes)(&client) && agent.ok && kernel_errors.trim().is_empty() {
            return Ok(Ending::Passed);
        }
        if agent.ok && kernel_errors.trim().is_empty() && rxe_forgot_message(&client.output) {
            let bug = "rxe's RC requester forgot a message that it was about to retransmit";
            return Ok(Ending::PeerBug(bug.to_owned()));
        }
        Ok(Ending::Failed(format!("{}\n{}\n{kernel_errors}", client.output, agent.output)))
    }
}

/// Starts an agent on `side`. Returns it with its address and token.
pub(super) fn start_agent(guest: &Guest, side: Side, envs: &[(String, String)]) -> io::Result<(Process, Target)> {
    let command = format!("{} peer --once --listen 0.0.0.0:0", build::roxe().display());
    let mut agent = Process::start(guest, side, &command, envs)?;
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        // `listening ADDRESS:PORT token TOKEN`
        let words = fs::read_to_string(agent.output())?;
        if let [_, address, _, token] = words.split_whitespace().collect::<Vec<_>>()[..]
            && let (Some((_, port)), true) = (address.rsplit_once(':'), words.ends_with('\n'))
        {
            let host = super::run::address(side, Ip::V4);
            return Ok((agent, Target { address: format!("{host}:{port}"), token: token.to_owned() }));
        }
        if Instant::now() > deadline || agent.ended(guest, POLL_INTERVAL)? {
            return Err(io::Error::other(format!("no agent on one side: {}", agent.output_so_far())));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns true if the only failures are RC messages of over 64 packets from rxe that rxe neither
/// completed nor retransmitted. The evidence is roxe's counters: in the half minute of the check, a
/// requester with a timeout of 67 ms retransmits [`MIN_RETRANSMISSIONS`] times, whatever the
/// responder does.
///
/// Seen once with Linux 6.1 on a busy machine. Before a retransmission, rxe's requester marks the
/// message as not started (`req_retry` in `rxe_req.c`). Then it may wait for the network device to
/// return packets and never be woken (`peer_bugs.rs`). When the timer expires, it finds a message
/// that is not started and is not armed again.
fn rxe_forgot_message(output: &str) -> bool {
    let failed = || output.lines().map(str::trim).filter(|line| line.starts_with("FAILED "));
    let is_forgotten = |line: &str| {
        let value = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok());
        let is_long = value("size=").zip(value("mtu=")).is_some_and(|(size, mtu)| size > 64 * mtu);
        let is_open = line.contains(" far->near: requester: no completion of message ");
        line.starts_with("FAILED RC ") && is_long && is_open
    };
    let counter = |name| pair::counter(output, name);
    let retransmissions = counter("duplicate_request") + counter("out_of_sequence");
    let has_stopped = counter("received_packets") > 0 && retransmissions < MIN_RETRANSMISSIONS;
    failed().count() > 0 && failed().all(is_forgotten) && has_stopped
}

/// Half a minute, divided by a timeout of 67 ms.
const MIN_RETRANSMISSIONS: u64 = 440;

/// All checks of `check-peer`.
const CHECKS: Agents =
    Agents { command: "check-peer", options: "", netem: "", passes: |outcome| outcome.ok, allowed: NO_LINE };

/// A minute of fuzzing. Passes if the fuzzer ends, whatever it finds, and the connection beside it
/// is served all the time. It always finds two bugs of rxe: a completion with SUCCESS after an
/// invalid syndrome, and leaked references of queue pairs, for which rxe waits 50 s when it
/// destroys them.
const FUZZ: Agents = Agents {
    command: "fuzz",
    options: "--seconds 60 --spare",
    netem: "",
    passes: |outcome| outcome.output.contains(" packets a second") && !outcome.output.contains("honest connection"),
    allowed: "rxe_completer|__rxe_cleanup",
};

/// The conformance cases except those that crash the guest. Known failures of rxe are tolerated.
/// The kernel warns once when a case makes rxe complete a failed request with SUCCESS.
const CONFORM: Agents = Agents {
    command: "conform",
    options: concat!(
        "--skip dma_length --skip pad_wrong --skip invalidated_unbound --skip local_invalidate_twice ",
        "--skip local_invalidate_unbound --skip cm/long --tolerate ",
        env!("CARGO_MANIFEST_DIR"),
        "/conform/rxe-6.1.txt"
    ),
    netem: "",
    passes: |outcome| outcome.ok,
    allowed: "rxe_completer",
};

/// The conformance cases with packet loss, which may make a case inconclusive but never fail it.
const CONFORM_WITH_LOSS: Agents = Agents {
    netem: "loss 1%",
    passes: |outcome| outcome.ok || outcome.output.contains("roxe conform: 0 of "),
    ..CONFORM
};

/// Returns all commands.
pub fn all() -> Vec<Agents> {
    vec![CHECKS, CONFORM, CONFORM_WITH_LOSS, FUZZ]
}

/// Returns the checks of one MTU and IP version.
pub fn slice() -> Vec<Agents> {
    vec![Agents { options: "mtu=1024 ipv4", ..CHECKS }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stuck_long_rc_message_is_blamed_on_rxe() {
        let line =
            |what: &str| format!("near: roxe0\n  FAILED {what}: requester: no completion of message 1 within 30 s\n");
        let counted = "roxe0 (process 1): received_packets=9000 duplicate_request=3\n";
        let long = line("RC RDMA_WRITE size=1048576 mtu=1024 ipv4 far->near");
        assert!(rxe_forgot_message(&format!("{long}{counted}")));
        for other in [
            counted.to_owned(),
            long.clone(),
            format!("{long}roxe0 (process 1): received_packets=9000 duplicate_request=400 out_of_sequence=40\n"),
            format!("{long}  FAILED RC SEND size=64 mtu=1024 ipv4 far->near: received: 1 bytes differ\n{counted}"),
            line("RC RDMA_WRITE size=65536 mtu=1024 ipv4 far->near") + counted,
            line("RC RDMA_WRITE size=1048576 mtu=1024 ipv4 near->far") + counted,
            line("UC RDMA_WRITE size=1048576 mtu=1024 ipv4 far->near") + counted,
        ] {
            assert!(!rxe_forgot_message(&other), "{other}");
        }
    }
}
