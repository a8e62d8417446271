//! Runs `roxe peer` as an agent for roxe's card on this host.

use crate::build;
use roxe_peer::client::{Client, ClientError};
use std::io::{self, BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// A running agent; killed when dropped.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    /// Address on which it listens, `HOST:PORT`.
    pub address: String,
    /// Token that a controller must present.
    pub token: String,
}

impl Agent {
    /// Starts an agent with these environment variables, and waits until it listens.
    ///
    /// # Errors
    /// If it cannot be started, or does not print its address and token.
    pub fn start(envs: &[(&str, &str)]) -> io::Result<Self> {
        let roxe = build::roxe();
        let mut command = Command::new(&roxe);
        command.args(["run", "--"]).arg(&roxe).args(["peer", "--listen", "127.0.0.1:0"]);
        let mut child = command.envs(envs.iter().copied()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let mut agent = Self { child, address: String::new(), token: String::new() };
        let [_, address, _, token] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(io::Error::other(format!("the agent printed {line:?}, not its address and token")));
        };
        (agent.address, agent.token) = (address.to_owned(), token.to_owned());
        Ok(agent)
    }

    /// Connects to the agent.
    ///
    /// # Errors
    /// If the agent has ended, or serves another controller.
    pub fn client(&self) -> Result<Client, ClientError> {
        Client::connect(&self.address, &self.token)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Fails only if the agent has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
