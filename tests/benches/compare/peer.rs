//! The second process of what we measure without other people's programs: this very program in
//! another role.

use roxe_tests::measure::load;
use roxe_tests::measure::pin::{self, End};
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A copy of this program in a role; it says on its first line where it listens, and is killed when
/// dropped.
pub(crate) struct Peer {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// The port, or whatever number the role says.
    pub(crate) port: u16,
}

impl Peer {
    /// Starts `role` and waits until it is ready.
    pub(crate) fn start(role: &[&str]) -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let mut words = pin::prefix(End::Server);
        words.push(program.to_string_lossy().into_owned());
        let mut child =
            Command::new(&words[0]).args(&words[1..]).args(role).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("the peer has no output"))?;
        let mut peer = Self { child, lines: BufReader::new(stdout), port: 0 };
        peer.port = peer.line()?.parse().map_err(io::Error::other)?;
        Ok(peer)
    }

    /// Its next line.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the peer ended early"));
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        load::note(self.child.id());
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a role: says a line to the process that started it.
pub(crate) fn say(word: impl std::fmt::Display) -> io::Result<()> {
    println!("{word}");
    io::stdout().flush()
}
