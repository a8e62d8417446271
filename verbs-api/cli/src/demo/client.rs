//! The client: runs the steps of a case, checks the client's side and measures times.

use super::case::{CHECKED, Case, Step, Task};
use super::connection::{Connection, ProgressLimit, Resources, SlotContent, is_receive};
use super::failure::{Failure, words};
use super::server::{ECHO_DEPTH, mark};
use roxe::{RemoteAddr, WcOpcode};
use roxe_peer::plan::{self, Op};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

/// Rounds before the measurement, from which the time of a round is estimated.
const WARM_UP: usize = 20;

/// The pipe to the server process.
#[derive(Debug)]
pub(super) struct Control {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// The server's process id.
    pub(super) pid: u32,
    /// Memory of the server that the client may access.
    remote: RemoteAddr,
}

impl Control {
    /// Connects to the pipes of a started server and waits for its greeting.
    pub(super) fn new(child: &mut Child) -> Result<Self, Failure> {
        let no_pipes = || Failure::new("the server process has no pipes");
        let to = child.stdin.take().ok_or_else(no_pipes)?;
        let mut from = BufReader::new(child.stdout.take().ok_or_else(no_pipes)?);
        let greeting = read_answer(&mut from)?;
        let [_, pid, remote] = words(&greeting)?;
        let pid = pid
            .parse()
            .map_err(|_| Failure::new(format!("the server process sent {greeting:?} instead of a greeting")))?;
        Ok(Self { to, from, pid, remote: remote.parse()? })
    }

    /// Sends a line and waits for the answer.
    fn ask(&mut self, line: &str) -> Result<String, Failure> {
        writeln!(self.to, "{line}")?;
        read_answer(&mut self.from)
    }
}

fn read_answer(from: &mut impl BufRead) -> Result<String, Failure> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(Failure::new("the server process exited; see its output above"));
    }
    match line.trim_end().strip_prefix("failed ") {
        Some(text) => Err(Failure::from_line(text)),
        None => Ok(line.trim_end().to_owned()),
    }
}

/// The result of one case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Checks passed, on both sides.
    pub(super) checks: usize,
    /// Median time of one message: half a round trip; for READ and atomics, from posting to
    /// completion.
    pub(super) latency: Duration,
    /// Messages per second, with up to a window of outstanding messages.
    pub(super) rate: f64,
}

/// Runs one case on a new connection. Each of the two measurements takes about `time`.
pub(super) fn run(
    resources: &Resources,
    control: &mut Control,
    case: Case,
    seed: u64,
    time: Duration,
) -> Result<Outcome, Failure> {
    let mut connection = resources.connection(case.service)?;
    let line = format!("open {} {} {}", case.service.name(), connection.endpoint(), resources.remote());
    let answer = control.ask(&line)?;
    let [_, endpoint] = words(&answer)?;
    connection.connect(endpoint.parse()?, control.remote)?;
    let mut client = Client { connection, control, case, seed, time, checks: 0 };
    for index in 0..CHECKED {
        client.step(Step::Check { index }, |client, seed| client.check(index, seed))?;
    }
    let latency = client.latency()?;
    let rate = client.rate()?;
    Ok(Outcome { checks: client.checks, latency, rate })
}

struct Client<'s, 'c> {
    connection: Connection<'s>,
    control: &'c mut Control,
    case: Case,
    /// Seed of the next task.
    seed: u64,
    time: Duration,
    checks: usize,
}

impl Client<'_, '_> {
    /// Runs one step on both sides. Fetches the server's result even if this side failed, so that
    /// both sides stay at the same step.
    fn step<T>(&mut self, step: Step, play: impl FnOnce(&mut Self, u64) -> Result<T, Failure>) -> Result<T, Failure> {
        self.seed += 1000;
        let task = Task { case: self.case, step, seed: self.seed };
        self.control.ask(&format!("task {task}"))?;
        let played = play(self, task.seed);
        let verified = self.control.ask("verify");
        let played = played?;
        let answer = verified?;
        let [_, checks] = words(&answer)?;
        self.checks += checks
            .parse::<usize>()
            .map_err(|_| Failure::new(format!("the server process sent {answer:?} instead of a verdict")))?;
        Ok(played)
    }

    /// Sends one message and checks its completion and this side's memory.
    fn check(&mut self, index: usize, seed: u64) -> Result<(), Failure> {
        let (case, length) = (self.case, self.case.length(index));
        if case.op.is_atomic() {
            let atomic = plan::atomic(case.op, index as u32, seed);
            self.connection.post_atomic(&case, index, (atomic.compare_add, atomic.swap))?;
        } else {
            self.connection.clear(&case, index)?;
            self.connection.fill_outbox(&case, index, length, seed)?;
            self.connection.post(&case, index, length, seed as u32)?;
        }
        let completion = self.connection.wait(false)?;
        if completion.opcode() != opcode(case.op) || completion.wr_id() != index as u64 {
            return Err(Failure::new(format!("the sender got {completion:?} for {} {index}", case.op)));
        }
        self.checks += 1;
        match case.op {
            Op::Read => self.expect_read(index, length, seed),
            op if op.is_atomic() => {
                self.expect(self.connection.old_value(&case, index)? == seed, "an atomic returned a wrong old value")
            }
            _ => Ok(()),
        }
    }

    fn expect_read(&mut self, index: usize, length: usize, seed: u64) -> Result<(), Failure> {
        let found = self.connection.compare_slot(&self.case, index, length, seed)?;
        self.expect(found == SlotContent::Right, "a READ returned wrong bytes")
    }

    fn expect(&mut self, right: bool, what: &str) -> Result<(), Failure> {
        if right {
            self.checks += 1;
            return Ok(());
        }
        Err(Failure::new(what))
    }

    /// Measures the median time of one message.
    fn latency(&mut self) -> Result<Duration, Failure> {
        let first = self.echo(WARM_UP)?;
        let rounds = repetitions(self.time, first.iter().sum(), WARM_UP, 2000);
        let mut times = self.echo(rounds)?;
        times.sort_unstable();
        let round_trip = times.get(rounds / 2).copied().unwrap_or_default();
        Ok(if self.case.op.is_fetch() { round_trip } else { round_trip / 2 })
    }

    /// Runs round trips. Returns the time of each.
    fn echo(&mut self, rounds: usize) -> Result<Vec<Duration>, Failure> {
        self.step(Step::Echo { rounds }, |client, seed| client.play_echo(rounds, seed))
    }

    fn play_echo(&mut self, rounds: usize, seed: u64) -> Result<Vec<Duration>, Failure> {
        let case = self.case;
        self.connection.fill_outbox(&case, 0, case.size, seed)?;
        if case.op == Op::Write {
            self.connection.clear_mark(&case)?;
        }
        if case.op.takes_receive() {
            (0..rounds.min(ECHO_DEPTH)).try_for_each(|_| self.connection.post_recv(&case, 0, case.size))?;
        }
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let start = Instant::now();
            self.round(round)?;
            times.push(start.elapsed());
            if case.op.takes_receive() && round + ECHO_DEPTH < rounds {
                self.connection.post_recv(&case, 0, case.size)?;
            }
        }
        self.connection.wait_sends()?;
        Ok(times)
    }

    fn round(&mut self, round: usize) -> Result<(), Failure> {
        let case = self.case;
        match case.op {
            Op::Write => {
                self.connection.set_mark(&case, mark(round))?;
                self.connection.post(&case, 0, case.size, 0)?;
                self.connection.wait_mark(&case, mark(round))
            }
            Op::CmpSwap | Op::FetchAdd => {
                self.connection.post_atomic(&case, 0, (0, 0))?;
                self.connection.wait(false).map(drop)
            }
            op => {
                self.connection.post(&case, 0, case.size, 0)?;
                self.connection.wait(op.takes_receive()).map(drop)
            }
        }
    }

    /// Measures the messages per second.
    fn rate(&mut self) -> Result<f64, Failure> {
        let count = 4 * self.case.window();
        let first = self.stream(count)?;
        let count = repetitions(self.time, first, count, 200_000);
        let time = self.stream(count)?;
        Ok(count as f64 / time.as_secs_f64().max(1e-9))
    }

    fn stream(&mut self, count: usize) -> Result<Duration, Failure> {
        self.step(Step::Stream { count }, |client, seed| client.play_stream(count, seed))
    }

    fn play_stream(&mut self, count: usize, seed: u64) -> Result<Duration, Failure> {
        let case = self.case;
        let slots = case.window().min(count);
        for index in 0..slots {
            self.connection.clear(&case, index)?;
            self.connection.fill_outbox(&case, index, case.size, seed + index as u64)?;
        }
        let start = Instant::now();
        SendWindow::new(self, count).run()?;
        let time = start.elapsed();
        if case.op == Op::Read {
            for index in 0..slots {
                self.expect_read(index, case.size, seed + index as u64)?;
            }
        }
        Ok(time)
    }
}

/// A stream with at most a window of outstanding messages, within the credits of the server.
struct SendWindow<'a, 's> {
    connection: &'a mut Connection<'s>,
    case: Case,
    count: usize,
    sent: usize,
    /// Messages that the server has received, as completions or credits show.
    delivered: usize,
    /// Credit messages of the whole stream.
    credits: usize,
    /// Receives posted for credit messages.
    posted: usize,
}

/// Receives posted for credit messages. At most three credit messages are outstanding, because a
/// window is two batches.
const CREDIT_DEPTH: usize = 4;

impl<'a, 's> SendWindow<'a, 's> {
    fn new(client: &'a mut Client<'s, '_>, count: usize) -> Self {
        let case = client.case;
        let credits = if case.needs_credit() { count.div_ceil(case.credit()) } else { 0 };
        Self { connection: &mut client.connection, case, count, sent: 0, delivered: 0, credits, posted: 0 }
    }

    fn run(mut self) -> Result<(), Failure> {
        while self.posted < self.credits.min(CREDIT_DEPTH) {
            self.post_credit_receive()?;
        }
        let mut deadline = ProgressLimit::new(self.case.service);
        while self.delivered < self.count {
            while self.sent < self.count
                && self.sent - self.delivered < self.case.window()
                && self.connection.has_room()
            {
                self.send()?;
            }
            match self.connection.poll()? {
                Some(completion) if is_receive(&completion) => {
                    self.delivered += completion.imm_data().unwrap_or(0) as usize;
                    if self.posted < self.credits {
                        self.post_credit_receive()?;
                    }
                }
                Some(_) if self.credits == 0 => self.count_completion()?,
                Some(_) => {}
                None => {
                    deadline.check("the stream stalled: no message arrived")?;
                    continue;
                }
            }
            deadline.renew();
        }
        self.connection.wait_sends()
    }

    fn post_credit_receive(&mut self) -> Result<(), Failure> {
        self.posted += 1;
        self.connection.post_recv_empty()
    }

    fn send(&mut self) -> Result<(), Failure> {
        let number = self.sent;
        let (case, index) = (self.case, number % self.case.window());
        self.sent += 1;
        match case.op {
            Op::CmpSwap => self.connection.post_atomic(&case, index, (number as u64, number as u64 + 1)),
            Op::FetchAdd => self.connection.post_atomic(&case, index, (1, 0)),
            Op::Write if self.credits > 0 => {
                let batch = number % case.credit() + 1;
                let closes = batch == case.credit() || self.sent == self.count;
                let case = if closes { Case { op: Op::WriteImm, ..case } } else { case };
                self.connection.post(&case, index, case.size, batch as u32)
            }
            _ => self.connection.post(&case, index, case.size, 1),
        }
    }

    /// Counts a completion that proves delivery. The server executes atomics in order, so each
    /// returns the result of the previous one.
    fn count_completion(&mut self) -> Result<(), Failure> {
        let number = self.delivered;
        self.delivered += 1;
        if self.case.op.is_atomic() {
            let old = self.connection.old_value(&self.case, number % self.case.window())?;
            if old != number as u64 {
                return Err(Failure::new(format!(
                    "atomic {number} returned the old value {old}, so an atomic was lost or executed twice"
                )));
            }
        }
        Ok(())
    }
}

const fn opcode(op: Op) -> WcOpcode {
    match op {
        Op::Send | Op::SendImm => WcOpcode::Send,
        Op::Write | Op::WriteImm => WcOpcode::RdmaWrite,
        Op::Read => WcOpcode::RdmaRead,
        Op::CmpSwap => WcOpcode::CompareSwap,
        Op::FetchAdd => WcOpcode::FetchAdd,
    }
}

/// Returns the number of repetitions that fill `time`, if `done` repetitions took `took`.
fn repetitions(time: Duration, took: Duration, done: usize, max: usize) -> usize {
    let times = time.as_nanos() * done as u128 / took.as_nanos().max(1);
    usize::try_from(times).unwrap_or(max).clamp(WARM_UP, max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_fill_the_time_within_bounds() {
        let time = Duration::from_millis(80);
        assert_eq!(repetitions(time, Duration::from_micros(800), 10, 2000), 1000);
        assert_eq!(repetitions(time, Duration::from_secs(1), 1, 2000), WARM_UP);
        assert_eq!(repetitions(time, Duration::ZERO, 1, 2000), 2000);
        assert_eq!(repetitions(Duration::ZERO, time, 1, 2000), WARM_UP);
    }
}
