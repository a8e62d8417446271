//! The server process: runs the steps that the client's lines name, and checks the server's side.
//!
//! Every line gets one answer within bounded time, so that both sides stay at the same step.

use super::case::{Case, Step, Task};
use super::connection::{Connection, Resources};
use super::failure::{Failure, words};
use roxe::{WcOpcode, WorkCompletion};
use roxe_peer::plan::{self, Op, Service};
use std::io::{BufRead, Write};

/// Serves until the client closes its end of the pipe.
pub(super) fn serve(input: impl BufRead, mut output: impl Write) -> Result<(), Failure> {
    let resources = Resources::open()?;
    let mut server = Server { resources: &resources, connection: None, running: None };
    writeln!(output, "hello {} {}", std::process::id(), resources.remote())?;
    for line in input.lines() {
        server.answer(&line?, &mut output)?;
    }
    Ok(())
}

struct Server<'s> {
    resources: &'s Resources,
    connection: Option<Connection<'s>>,
    /// The current task, and the number of passed checks.
    running: Option<(Task, Result<usize, Failure>)>,
}

impl Server<'_> {
    fn answer(&mut self, line: &str, output: &mut impl Write) -> Result<(), Failure> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let answer = match verb {
            "open" => self.open(rest),
            "task" => self.prepare(rest),
            "verify" => self.verify(),
            _ => Err(Failure::new(format!("unknown request {line:?}"))),
        };
        let text = answer.unwrap_or_else(|failure| format!("failed {}", failure.to_line()));
        writeln!(output, "{text}")?;
        output.flush()?;
        // Runs this side of the task while the client runs its own.
        if verb == "task"
            && let (Some(connection), Some((task, outcome))) = (&mut self.connection, &mut self.running)
        {
            *outcome = run_task(connection, task);
        }
        Ok(())
    }

    /// Parses `SERVICE ENDPOINT REMOTE` and opens a connection to the client's endpoint.
    fn open(&mut self, text: &str) -> Result<String, Failure> {
        let [service, endpoint, remote] = words(text)?;
        let service = Service::named(service).ok_or_else(|| Failure::new(format!("unknown service {service}")))?;
        self.connection = None;
        let mut connection = self.resources.connection(service)?;
        connection.connect(endpoint.parse()?, remote.parse()?)?;
        let own = connection.endpoint();
        self.connection = Some(connection);
        Ok(format!("opened {own}"))
    }

    fn prepare(&mut self, text: &str) -> Result<String, Failure> {
        self.running = None;
        let task: Task = text.parse().map_err(Failure::new)?;
        let connection = self.connection.as_mut().ok_or_else(|| Failure::new("no connection is open"))?;
        prepare(connection, &task)?;
        self.running = Some((task, Ok(0)));
        Ok("ready".into())
    }

    fn verify(&mut self) -> Result<String, Failure> {
        let (task, outcome) = self.running.take().ok_or_else(|| Failure::new("nothing to verify"))?;
        let connection = self.connection.as_mut().ok_or_else(|| Failure::new("no connection is open"))?;
        Ok(format!("verified {}", outcome? + verify(connection, &task)?))
    }
}

fn prepare(connection: &mut Connection<'_>, task: &Task) -> Result<(), Failure> {
    let Task { case, step, seed } = *task;
    match step {
        Step::Check { index } if case.op.takes_receive() => {
            connection.clear(&case, index)?;
            connection.post_recv(&case, index, case.length(index))
        }
        Step::Check { index } if case.op == Op::Write => connection.clear(&case, index),
        Step::Check { index } if case.op == Op::Read => connection.fill_inbox(&case, index, case.length(index), seed),
        Step::Check { .. } => connection.set_atomic_word(seed),
        Step::Echo { rounds } if case.op.takes_receive() => {
            connection.fill_outbox(&case, 0, case.size, seed)?;
            (0..rounds.min(ECHO_DEPTH)).try_for_each(|_| connection.post_recv(&case, 0, case.size))
        }
        Step::Echo { .. } => {
            connection.fill_outbox(&case, 0, case.size, seed)?;
            connection.clear_mark(&case)
        }
        Step::Stream { count } => prepare_stream(connection, &case, count, seed),
    }
}

/// Number of receives that each side keeps posted during round trips.
pub(super) const ECHO_DEPTH: usize = 2;

fn prepare_stream(connection: &mut Connection<'_>, case: &Case, count: usize, seed: u64) -> Result<(), Failure> {
    for index in 0..case.window() {
        match case.op {
            Op::Read => connection.fill_inbox(case, index, case.size, seed + index as u64)?,
            Op::CmpSwap | Op::FetchAdd => connection.set_atomic_word(0)?,
            _ => connection.clear(case, index)?,
        }
    }
    let receives = receives(case, count).min(case.window());
    (0..receives).try_for_each(|index| connection.post_recv(case, index, case.size))
}

/// Returns the number of receives that a stream of `count` messages consumes.
fn receives(case: &Case, count: usize) -> usize {
    match case.op {
        op if op.takes_receive() => count,
        // Only the last WRITE of each batch consumes a receive.
        Op::Write if case.needs_credit() => count.div_ceil(case.credit()),
        _ => 0,
    }
}

/// Runs this side of a task. Returns the number of checks passed.
fn run_task(connection: &mut Connection<'_>, task: &Task) -> Result<usize, Failure> {
    let Task { case, step, seed } = *task;
    match step {
        Step::Check { index } if case.op.takes_receive() => {
            let completion = connection.wait(true)?;
            check_completion(connection, &case, index, seed, &completion)
        }
        Step::Echo { rounds } if case.op.takes_receive() => echo(connection, &case, rounds),
        Step::Echo { rounds } if case.op == Op::Write => echo_writes(connection, &case, rounds),
        Step::Stream { count } if case.needs_credit() => drain(connection, &case, count),
        _ => Ok(0),
    }
}

fn echo(connection: &mut Connection<'_>, case: &Case, rounds: usize) -> Result<usize, Failure> {
    for round in 0..rounds {
        connection.wait(true)?;
        if round + ECHO_DEPTH < rounds {
            connection.post_recv(case, 0, case.size)?;
        }
        connection.post(case, 0, case.size, 0)?;
    }
    connection.wait_sends()?;
    Ok(0)
}

fn echo_writes(connection: &mut Connection<'_>, case: &Case, rounds: usize) -> Result<usize, Failure> {
    for round in 0..rounds {
        connection.wait_mark(case, mark(round))?;
        connection.set_mark(case, mark(round))?;
        connection.post(case, 0, case.size, 0)?;
    }
    connection.wait_sends()?;
    Ok(0)
}

/// Returns the last byte of the message of a round. It differs from that of the previous round and
/// from cleared memory.
pub(super) fn mark(round: usize) -> u8 {
    (round % 255) as u8 + 1
}

/// Receives `count` messages and returns credits for them, so that the client never sends more
/// messages than receives are posted.
fn drain(connection: &mut Connection<'_>, case: &Case, count: usize) -> Result<usize, Failure> {
    let receives = receives(case, count);
    let (mut posted, mut got, mut due) = (receives.min(case.window()), 0, 0);
    while got < count {
        let completion = connection.wait(true)?;
        // The immediate data of the WRITE that ends a batch is the number of WRITEs in it.
        let messages = if case.op == Op::Write { completion.imm_data().unwrap_or(0) as usize } else { 1 };
        (got, due) = (got + messages, due + messages);
        if posted < receives {
            connection.post_recv(case, posted % case.window(), case.size)?;
            posted += 1;
        }
        if due >= case.credit() || got >= count {
            connection.post_credit(due as u32)?;
            due = 0;
        }
    }
    connection.wait_sends()?;
    Ok(0)
}

fn check_completion(
    connection: &Connection<'_>,
    case: &Case,
    index: usize,
    seed: u64,
    completion: &WorkCompletion,
) -> Result<usize, Failure> {
    let opcode = if case.op == Op::WriteImm { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
    let expected = Received {
        wr_id: index as u64,
        opcode,
        // For a WRITE with immediate data, the length is that of the data written elsewhere.
        byte_len: (connection.header_len() + case.length(index)) as u32,
        imm: case.op.has_imm().then_some(seed as u32),
        grh: connection.header_len() > 0,
    };
    let found = Received {
        wr_id: completion.wr_id(),
        opcode: completion.opcode(),
        byte_len: completion.byte_len(),
        imm: completion.imm_data(),
        grh: completion.has_grh(),
    };
    if found == expected { Ok(1) } else { Err(Failure::new(format!("the receiver got {found:?}, not {expected:?}"))) }
}

/// The fields of a receive completion.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    wr_id: u64,
    opcode: WcOpcode,
    byte_len: u32,
    imm: Option<u32>,
    grh: bool,
}

/// Checks memory after the task. Returns the number of checks passed.
fn verify(connection: &mut Connection<'_>, task: &Task) -> Result<usize, Failure> {
    let Task { case, step, seed } = *task;
    match step {
        Step::Check { index } if !case.op.is_fetch() => {
            connection.wait_slot(&case, index, case.length(index), seed)?;
            Ok(1)
        }
        Step::Check { index } if case.op.is_atomic() => {
            expect_word(connection, plan::atomic(case.op, index as u32, seed).result)
        }
        Step::Stream { count } if case.op.is_atomic() => expect_word(connection, count as u64),
        Step::Stream { count } if !case.op.is_fetch() => {
            let slots = case.window().min(count);
            for index in 0..slots {
                connection.wait_slot(&case, index, case.size, seed + index as u64)?;
            }
            Ok(slots)
        }
        _ => Ok(0),
    }
}

fn expect_word(connection: &Connection<'_>, expected: u64) -> Result<usize, Failure> {
    let found = connection.atomic_word()?;
    if found == expected {
        return Ok(1);
    }
    Err(Failure::new(format!("the word is {found:#x} after the atomic, not {expected:#x}")))
}
