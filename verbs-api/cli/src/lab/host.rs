//! A host of a lab as the switch holds it, and the steps of its start.

use super::net::{NUMBER, Net, RULES, RXE};
use super::scenario::{self, Ready};
use crate::child::own;
use crate::output::Result;
use roxe_provider::network_namespace;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A host and the ends of its streams.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) child: Child,
    pub(super) input: ChildStdin,
    pub(super) output: BufReader<ChildStdout>,
}

impl Host {
    /// Starts host `number`, which becomes `roxe run` with the words of `run`. It impairs its end
    /// of the link by the queueing discipline `uplink` and by fault rules. A host that is the
    /// kernel's rxe boots its guest before it reports the second step.
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
        // Also for `roxe lab --shell`, which reads the variables of the first process of a host.
        command.env(NUMBER, number.to_string()).env(RULES, rules);
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

    pub(super) fn go_on(&mut self) -> Result<()> {
        Ok(self.input.write_all(GO_ON.as_bytes())?)
    }
}

/// The line by which the switch lets a host go on.
const GO_ON: &str = "go\n";

/// Fails if the switch is gone.
fn report(mut switch: impl Write) -> Result<()> {
    writeln!(switch, "{}", network_namespace()?)?;
    Ok(switch.flush()?)
}

/// Tells the switch by the number of this network namespace that a step is done, and waits until it
/// lets this host go on.
pub(super) fn step() -> Result<()> {
    report(io::stdout())?;
    let mut line = [0; GO_ON.len()];
    Ok(io::stdin().read_exact(&mut line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_to_a_switch_that_is_gone_fails() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        assert!(report(writer).unwrap_err().to_string().contains("Broken pipe"));
    }
}
