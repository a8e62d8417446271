//! The configurations that run a script: language of the agents, processes, and link.

use super::agent::MARK;
use super::c_abi::CAgent;
use parking_lot::Mutex;
use std::io::{BufRead, BufReader, Write};
use std::panic::resume_unwind;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

/// Environment variable that turns the test `agent` into an agent process.
pub(crate) const ROLE: &str = "ROXE_CASES_AGENT";
/// Fault rules that a reliable service recovers from.
const BAD_NETWORK: &str = "drop 3%; duplicate 3%; reorder 3%";

/// A configuration to run a script with.
pub(crate) struct Config {
    pub(crate) name: &'static str,
    language: Language,
    processes: usize,
    settings: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Rust,
    C,
}

const CONFIGS: &[Config] = &[
    Config { name: "Rust, one process", language: Language::Rust, processes: 1, settings: &[] },
    Config {
        name: "Rust, one process, udp",
        language: Language::Rust,
        processes: 1,
        settings: &[("ROXE_LINK", "udp")],
    },
    Config { name: "Rust, two processes", language: Language::Rust, processes: 2, settings: &[] },
    Config { name: "C, one process", language: Language::C, processes: 1, settings: &[] },
    Config { name: "C, two processes, udp", language: Language::C, processes: 2, settings: &[("ROXE_LINK", "udp")] },
];
const LOSSY: &[Config] = &[
    Config {
        name: "Rust, bad ring",
        language: Language::Rust,
        processes: 2,
        settings: &[("ROXE_FAULTS", BAD_NETWORK)],
    },
    Config {
        name: "Rust, bad network",
        language: Language::Rust,
        processes: 2,
        settings: &[("ROXE_LINK", "udp"), ("ROXE_FAULTS", BAD_NETWORK)],
    },
];

impl Config {
    pub(crate) fn on_good_networks() -> impl Iterator<Item = &'static Self> {
        CONFIGS.iter().filter(|config| config.is_selected())
    }

    pub(crate) fn on_all_networks() -> impl Iterator<Item = &'static Self> {
        CONFIGS.iter().chain(LOSSY).filter(|config| config.is_selected())
    }

    /// Returns true if the name begins with `ROXE_TEST_CONFIGS`: `tests/checked/run` instruments
    /// only the agents in Rust.
    fn is_selected(&self) -> bool {
        std::env::var("ROXE_TEST_CONFIGS").map_or(true, |prefix| self.name.starts_with(&prefix))
    }

    fn start(&self) -> Result<Box<dyn Ask>, String> {
        if self.language == Language::C {
            return Ok(Box::new(CAgent::start(self.settings)?));
        }
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        command.args(["--exact", "cases::agent", "--nocapture", "--test-threads=1"]).env(ROLE, "yes");
        command.envs(self.settings.iter().copied());
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

/// Runs `work` while no other script sends packets: in a network namespace of its own, or under a
/// lock. An exiting process discards packets that its sockets have received for other processes,
/// and unreliable services do not retransmit them.
pub(crate) fn alone<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    static ONE_SCRIPT: Mutex<()> = Mutex::new(());
    let isolated = || {
        // SAFETY: takes no pointers; it moves only this thread and the processes that it starts.
        let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
        let up = moved && Command::new("ip").args(["link", "set", "lo", "up"]).status().is_ok_and(|ip| ip.success());
        let _others = (!up).then(|| ONE_SCRIPT.lock());
        work()
    };
    thread::scope(|scope| scope.spawn(isolated).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// The agents of a script.
pub(crate) struct Agents<'a> {
    config: &'a Config,
    agents: Vec<Box<dyn Ask>>,
}

impl<'a> Agents<'a> {
    pub(crate) fn new(config: &'a Config) -> Result<Self, String> {
        let agents = (0..config.processes).map(|_| config.start()).collect::<Result<_, _>>()?;
        Ok(Self { config, agents })
    }

    /// Returns true if the network loses packets.
    pub(crate) fn loses(&self) -> bool {
        self.config.settings.iter().any(|(name, _)| *name == "ROXE_FAULTS")
    }

    /// Sends a line to the agent of the line's end. Returns the answer.
    pub(crate) fn ask(&mut self, line: &str) -> Result<String, String> {
        let index = if line.starts_with("b ") { self.config.processes - 1 } else { 0 };
        let answer = self.agents[index].ask(line)?;
        if answer.starts_with("refused") { Err(answer) } else { Ok(answer) }
    }
}

/// A process of this program that runs lines from its standard input.
struct Agent {
    child: Child,
    /// `None` once the agent should exit.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Agent {
    fn start(mut program: Command) -> std::io::Result<Self> {
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| std::io::Error::other("the agent process has no pipes"))?;
        Ok(Self { child, input: Some(input), output: BufReader::new(output) })
    }
}

impl Ask for Agent {
    fn ask(&mut self, line: &str) -> Result<String, String> {
        let input = self.input.as_mut().ok_or("the agent was stopped")?;
        writeln!(input, "{line}").map_err(|e| e.to_string())?;
        let mut answer = String::new();
        loop {
            answer.clear();
            if self.output.read_line(&mut answer).map_err(|e| e.to_string())? == 0 {
                return Err("the agent exited without an answer".into());
            }
            if let Some((_, result)) = answer.split_once(MARK) {
                return Ok(result.trim_end().to_owned());
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The agent exits at the end of its input, and each of its waits has a time limit.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
