//! Another process of a test: this very program, started again, talks through its standard input
//! and output, one line at a time.

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use std::io::{BufRead, BufReader, Write};
use std::panic::Location;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Tells the test `peer` of the program that it is one, and what to do.
pub(crate) const ROLE: &str = "ROXE_TEST_ROLE";
/// What peers put in front of their lines, because the test harness writes to the same pipe.
pub(crate) const MARK: &str = "peer: ";

/// Held by the test that has peers. A process that is killed takes along what its sockets had
/// received for others, as the numbers of the sockets move; what is sent only once (a datagram, a
/// NAK) must not have the peers of other tests beside it.
static ONE_TEST: ReentrantMutex<()> = ReentrantMutex::new(());

/// This very program, to be started again for one test alone: `test` of the file that calls.
#[track_caller]
pub(crate) fn program(test: &str) -> Command {
    let module = Path::new(Location::caller().file()).file_stem().unwrap().to_str().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{module}::{test}"), "--nocapture", "--test-threads=1"]);
    command
}

/// A peer, seen from the test.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Let go of when the child is over.
    _alone: ReentrantMutexGuard<'static, ()>,
}

impl Peer {
    /// Starts the test `peer` of the file that calls, when the peers of other tests are over.
    #[track_caller]
    pub(crate) fn start(role: &str, knobs: &[(&str, &str)]) -> Self {
        Self::start_as(program("peer"), role, knobs)
    }

    /// Starts `program` as a peer, which may be a copy of this one and belong to another user.
    pub(crate) fn start_as(mut program: Command, role: &str, knobs: &[(&str, &str)]) -> Self {
        let _alone = ONE_TEST.lock();
        let program = program.env(ROLE, role).envs(knobs.iter().copied());
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output, _alone }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The next line of the peer.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the peer ended");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Sends a command and returns the answer as numbers.
    pub(crate) fn ask(&mut self, line: &str) -> Vec<u64> {
        self.tell(line);
        let answer = self.hear();
        answer.split_whitespace().map(|word| word.parse().unwrap_or_else(|_| panic!("{line}: {answer}"))).collect()
    }

    /// Stops it, and returns when all its threads stand still.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let (pid, mut status) = (self.child.id() as i32, 0);
        // SAFETY: our own child; a stop is not its end, which is still to be waited for.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) }, pid);
        assert!(libc::WIFSTOPPED(status));
    }

    /// Tells it to end by itself, and returns when it has.
    pub(crate) fn end(mut self) {
        self.tell("exit");
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
