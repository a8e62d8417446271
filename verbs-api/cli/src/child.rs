//! Child processes of this program.

use crate::library;
use crate::output::Result;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A child process that is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct KillOnDrop(pub(crate) Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // `kill` fails if the process has ended already.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Returns a command that runs a subcommand of this program in a process group of its own, which
/// signals for the caller's group do not reach.
///
/// `roxe run` starts its helpers with `--detach`. That child starts the lasting helper and ends, so
/// that the program has no child that it did not start.
pub(crate) fn background(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(subcommand).process_group(0).stdout(Stdio::null());
    command
}

/// Returns the file of this program, to start it as a child.
pub(crate) fn own() -> Result<PathBuf> {
    Ok(library::own_program().ok_or("/proc is missing: mount -t proc proc /proc")?)
}

/// Configures links by the lines of a batch of `ip`.
pub(crate) fn ip(batch: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let missing = |cause| format!("cannot start ip of iproute2: {cause}");
    let mut child = command.spawn().map_err(missing)?;
    child.stdin.take().map(|mut input| input.write_all(batch.as_bytes())).transpose()?;
    let output = child.wait_with_output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip failed: {}", errors.trim()).into()) }
}
