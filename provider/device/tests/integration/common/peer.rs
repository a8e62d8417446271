//! Peer processes: this program, started again, which talks to its test through standard input and
//! output, one line at a time.

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use std::io::{BufRead, BufReader, Write};
use std::panic::Location;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Set in a peer process: its task.
pub(crate) const ROLE: &str = "ROXE_TEST_ROLE";
/// Prefix of a peer's lines, because the test harness writes to the same pipe.
pub(crate) const MARK: &str = "peer: ";

/// Serializes tests with peers. A killed process takes packets for others along, because sockets
/// are renumbered; packets sent only once (datagrams, NAKs) must not share an address with such
/// tests.
static ONE_TEST: ReentrantMutex<()> = ReentrantMutex::new(());

/// Returns the command that runs `test` of the calling file in this program.
#[track_caller]
pub(crate) fn program(test: &str) -> Command {
    let module = Path::new(Location::caller().file()).file_stem().unwrap().to_str().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{module}::{test}"), "--nocapture", "--test-threads=1"]);
    command
}

/// A peer process.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Released after the child has ended.
    _alone: ReentrantMutexGuard<'static, ()>,
}

impl Peer {
    /// Starts the test `peer` of the calling file, when no other test has peers.
    #[track_caller]
    pub(crate) fn start(role: &str, knobs: &[(&str, &str)]) -> Self {
        Self::start_as(program("peer"), role, knobs)
    }

    /// Starts `program` as a peer; it may be a copy of this one and run as another user.
    pub(crate) fn start_as(mut program: Command, role: &str, knobs: &[(&str, &str)]) -> Self {
        let _alone = ONE_TEST.lock();
        let program = program.env(ROLE, role).envs(knobs.iter().copied());
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output, _alone }
    }

    pub(crate) fn send_line(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Returns the next line of the peer.
    pub(crate) fn read_line(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the peer ended");
            if let Some((_, answer)) = line.split_once(MARK) {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Sends a command and returns the answer as numbers.
    pub(crate) fn ask(&mut self, line: &str) -> Vec<u64> {
        self.send_line(line);
        let answer = self.read_line();
        answer.split_whitespace().map(|word| word.parse().unwrap_or_else(|_| panic!("{line}: {answer}"))).collect()
    }

    /// Stops the peer, and waits until all its threads have stopped.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let (pid, mut status) = (self.child.id() as i32, 0);
        // SAFETY: our own child; a stop is not its end, which is still to be waited for.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) }, pid);
        assert!(libc::WIFSTOPPED(status));
    }

    /// Makes the peer exit, and waits for it.
    pub(crate) fn end(mut self) {
        self.send_line("exit");
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: our own child, not yet waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
