//! The switch's handle of a host, and the handshake by which a host starts.

use super::net::{HOST_NUMBER, Net, RULES, RXE};
use super::scenario::{self, Ready};
use crate::child::own;
use crate::output::Result;
use roxe_provider::network_namespace;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The first process of a host and its standard streams.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) child: Child,
    pub(super) input: ChildStdin,
    pub(super) output: BufReader<ChildStdout>,
}

impl Host {
    /// Starts host `number`, which becomes `roxe run` with the arguments `run`. The host impairs
    /// its end of the link with the queueing discipline `uplink` and the fault rules `rules`. A
    /// host with the kernel's rxe boots its guest before it reports the second step.
    pub(super) fn start(
        net: &Net,
        number: u8,
        plan: &scenario::Host,
        run: &[OsString],
        uplink: Option<Vec<String>>,
        rules: &str,
    ) -> Result<Self> {
        let mut command = Command::new(own()?);
        command.arg("lab-host").args(net.arguments()).arg(format!("--number={number}"));
        command.args(uplink.map(|words| format!("--uplink={}", words.join(" "))));
        if plan.rxe {
            command.arg("--rxe").env(RXE, "1");
            let port = if let Ready::Listens(port) = plan.ready { Some(port) } else { None };
            command.args(port.map(|port| format!("--listens={port}")));
        }
        command.arg("--").args(run);
        // `roxe lab --shell` reads these variables of the first process of a host.
        command.env(HOST_NUMBER, number.to_string()).env(RULES, rules);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a host has no streams".into());
        };
        Ok(Self { name: Net::name(number), child, input, output: BufReader::new(output) })
    }

    /// Waits until the host reports that a step is done. Returns its network namespace.
    pub(super) fn await_step(&mut self) -> Result<u64> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if let Ok(namespace) = line.trim_end().parse() {
            return Ok(namespace);
        }
        let mut stderr = String::new();
        self.child.stderr.take().map(|mut stream| stream.read_to_string(&mut stderr)).transpose()?;
        Err(format!("{} did not start: {}", self.name, stderr.trim().trim_start_matches("roxe lab-host: ")).into())
    }

    /// Lets the host continue after a step.
    pub(super) fn proceed(&mut self) -> Result<()> {
        Ok(self.input.write_all(PROCEED.as_bytes())?)
    }
}

/// The line by which the switch lets a host continue after a step.
const PROCEED: &str = "go\n";

/// Prints the number of this network namespace. Fails if the switch has ended.
fn report(mut switch: impl Write) -> Result<()> {
    writeln!(switch, "{}", network_namespace()?)?;
    Ok(switch.flush()?)
}

/// Reports a finished step to the switch by printing the number of this network namespace, and
/// waits for [`PROCEED`].
pub(super) fn step() -> Result<()> {
    report(io::stdout())?;
    let mut line = [0; PROCEED.len()];
    Ok(io::stdin().read_exact(&mut line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_to_ended_switch_fails() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        assert!(report(writer).unwrap_err().to_string().contains("Broken pipe"));
    }
}
