//! The controller's end: a connection to an agent, one request at a time. Touches TCP.

use crate::protocol::{self, Args, Command, Refusal, Request, limits};
use serde_json::{Value, json};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Why a request brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The agent, or the verb, refused it; the session goes on.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The connection is of no use any more.
    #[error("the agent: {0}")]
    Connection(#[from] io::Error),
    /// What came is no answer to what was asked.
    #[error("the agent answered something else: {0}")]
    Protocol(String),
}

impl ClientError {
    /// The errno of a refusal.
    #[must_use]
    pub const fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(refusal) => Some(refusal.errno),
            _ => None,
        }
    }
}

/// A session with an agent. It ends, and the agent frees everything, when this is dropped.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
    last: u64,
    card: Value,
}

impl Client {
    /// Connects to an agent and shows the token that it printed.
    ///
    /// # Errors
    /// If nobody listens there, the token is wrong, or another controller is served.
    pub fn connect(address: impl ToSocketAddrs, token: &str) -> Result<Self, ClientError> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        // An answer comes at the latest when the wait that its request asked for is over.
        stream.set_read_timeout(Some(Duration::from_millis(limits::WAIT_MS) + Duration::from_secs(10)))?;
        let mut client = Self { stream: BufReader::new(stream), last: 0, card: Value::Null };
        client.card = client.call(Command::Hello, json!({ "token": token }))?;
        Ok(client)
    }

    /// What `hello` answered: device, port, gids, limits, version.
    #[must_use]
    pub const fn card(&self) -> &Value {
        &self.card
    }

    /// Asks and waits for the answer; `arguments` is an object, or null.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn call(&mut self, command: Command, arguments: Value) -> Result<Value, ClientError> {
        self.last += 1;
        let args = Args::new(protocol::arguments(arguments)?);
        let line = Request { id: self.last, command, args }.line();
        self.exchange(self.last, line.as_bytes())?.map_err(ClientError::Refused)
    }

    fn exchange(&mut self, id: u64, line: &[u8]) -> Result<protocol::Result<Value>, ClientError> {
        self.stream.get_mut().write_all(line)?;
        let mut answer = Vec::new();
        (&mut self.stream).take(limits::LINE as u64).read_until(b'\n', &mut answer)?;
        if answer.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let other = || ClientError::Protocol(String::from_utf8_lossy(&answer).chars().take(200).collect());
        let (answered, result) = protocol::parse_answer(&answer).ok_or_else(other)?;
        // A controller that is turned away has asked nothing yet.
        if answered != id && !(answered == 0 && result.is_err()) {
            return Err(other());
        }
        Ok(result)
    }
}
