//! The arms of a script: agents, their processes, and the link between them.

use super::agent::MARK;
use super::c_abi::CAgent;
use parking_lot::Mutex;
use std::io::{BufRead, BufReader, Write};
use std::panic::resume_unwind;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

/// Tells the test `agent` of this program that it is one.
pub(crate) const ROLE: &str = "ROXE_CASES_AGENT";
/// Faults that a reliable service recovers from.
const BAD_NETWORK: &str = "drop 3%; duplicate 3%; reorder 3%";

/// One way to run a script.
pub(crate) struct Arm {
    pub(crate) name: &'static str,
    language: Language,
    processes: usize,
    knobs: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Rust,
    C,
}

const ARMS: &[Arm] = &[
    Arm { name: "Rust, one process", language: Language::Rust, processes: 1, knobs: &[] },
    Arm { name: "Rust, one process, udp", language: Language::Rust, processes: 1, knobs: &[("ROXE_LINK", "udp")] },
    Arm { name: "Rust, two processes", language: Language::Rust, processes: 2, knobs: &[] },
    Arm { name: "C, one process", language: Language::C, processes: 1, knobs: &[] },
    Arm { name: "C, two processes, udp", language: Language::C, processes: 2, knobs: &[("ROXE_LINK", "udp")] },
];
const BAD: &[Arm] = &[
    Arm { name: "Rust, bad ring", language: Language::Rust, processes: 2, knobs: &[("ROXE_FAULTS", BAD_NETWORK)] },
    Arm {
        name: "Rust, bad network",
        language: Language::Rust,
        processes: 2,
        knobs: &[("ROXE_LINK", "udp"), ("ROXE_FAULTS", BAD_NETWORK)],
    },
];

impl Arm {
    pub(crate) fn on_good_networks() -> impl Iterator<Item = &'static Self> {
        ARMS.iter().filter(|arm| arm.is_wanted())
    }

    pub(crate) fn on_all_networks() -> impl Iterator<Item = &'static Self> {
        ARMS.iter().chain(BAD).filter(|arm| arm.is_wanted())
    }

    /// `ROXE_TEST_ARMS` picks those whose name begins with it: `tests/checked/run` has instrumented
    /// agents in Rust only.
    fn is_wanted(&self) -> bool {
        std::env::var("ROXE_TEST_ARMS").map_or(true, |wanted| self.name.starts_with(&wanted))
    }

    fn start(&self) -> Result<Box<dyn Ask>, String> {
        if self.language == Language::C {
            return Ok(Box::new(CAgent::start(self.knobs)?));
        }
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        command.args(["--exact", "cases::agent", "--nocapture", "--test-threads=1"]).env(ROLE, "yes");
        command.envs(self.knobs.iter().copied());
        Ok(Box::new(Agent::start(command).map_err(|e| e.to_string())?))
    }
}

/// A process that runs the lines of a script.
trait Ask {
    fn ask(&mut self, line: &str) -> Result<String, String>;
}

impl Ask for CAgent {
    fn ask(&mut self, line: &str) -> Result<String, String> {
        Self::ask(self, line)
    }
}

/// Runs `work` while no other script sends packets, in a network namespace of its own or after the
/// others. A process that ends discards packets that its sockets have received for other processes,
/// and unreliable ones are not repeated.
pub(crate) fn alone<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    static ONE_SCRIPT: Mutex<()> = Mutex::new(());
    let isolated = || {
        // SAFETY: takes no pointers; it moves this thread, which ends with the work, and the
        // processes that it starts.
        let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
        let up = moved && Command::new("ip").args(["link", "set", "lo", "up"]).status().is_ok_and(|ip| ip.success());
        let _others = (!up).then(|| ONE_SCRIPT.lock());
        work()
    };
    thread::scope(|scope| scope.spawn(isolated).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// The agents of a script.
pub(crate) struct World<'a> {
    arm: &'a Arm,
    agents: Vec<Box<dyn Ask>>,
}

impl<'a> World<'a> {
    pub(crate) fn of(arm: &'a Arm) -> Result<Self, String> {
        let agents = (0..arm.processes).map(|_| arm.start()).collect::<Result<_, _>>()?;
        Ok(Self { arm, agents })
    }

    /// Returns true if packets get lost.
    pub(crate) fn loses(&self) -> bool {
        self.arm.knobs.iter().any(|(name, _)| *name == "ROXE_FAULTS")
    }

    /// Sends a line to the agent of its end; returns the answer.
    pub(crate) fn ask(&mut self, line: &str) -> Result<String, String> {
        let place = if line.starts_with("b ") { self.arm.processes - 1 } else { 0 };
        let answer = self.agents[place].ask(line)?;
        if answer.starts_with("refused") { Err(answer) } else { Ok(answer) }
    }
}

/// A process of this program that runs lines from its standard input.
struct Agent {
    child: Child,
    /// Until it is to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Agent {
    fn start(mut program: Command) -> std::io::Result<Self> {
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| std::io::Error::other("no pipes"))?;
        Ok(Self { child, input: Some(input), output: BufReader::new(output) })
    }
}

impl Ask for Agent {
    fn ask(&mut self, line: &str) -> Result<String, String> {
        let input = self.input.as_mut().ok_or("the agent was ended")?;
        writeln!(input, "{line}").map_err(|e| e.to_string())?;
        let mut answer = String::new();
        loop {
            answer.clear();
            if self.output.read_line(&mut answer).map_err(|e| e.to_string())? == 0 {
                return Err("the agent has ended".into());
            }
            if let Some((_, said)) = answer.split_once(MARK) {
                return Ok(said.trim_end().to_owned());
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It ends with its input, and every wait of it has a limit.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
