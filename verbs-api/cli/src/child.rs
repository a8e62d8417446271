//! Child processes of this program.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A child process that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct KillOnDrop(pub(crate) Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Fails if it has ended already.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Returns a command that runs a subcommand of this program in a process group of its own, which
/// signals for the caller's group do not reach.
///
/// `roxe run` starts its helpers with `--detach`: that child starts the one that stays and ends, so
/// that the program has no child that it did not start.
pub(crate) fn background(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(subcommand).process_group(0).stdout(Stdio::null());
    command
}
