//! The controller's end of a connection to an agent.

use crate::protocol::{self, Args, Command, DEFAULT_PORT, Refusal, Request, limits};
use serde_json::{Value, json};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time without a TCP acknowledgement after which the agent's host counts as crashed.
const TCP_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of TCP keepalive probes on an idle connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The agent or the verb refused the request; the session continues.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The connection failed.
    #[error("the connection to the agent failed: {0}")]
    Connection(#[from] io::Error),
    /// The answer does not fit the request.
    #[error("the agent sent an unexpected answer: {0}")]
    Protocol(String),
}

impl ClientError {
    /// Returns the errno of a refusal; `None` for other errors.
    pub const fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(refusal) => Some(refusal.errno),
            _ => None,
        }
    }
}

/// Address and token of an agent: `[peer://][TOKEN@]HOST[:PORT]`, HOST a name, an IPv4 address, or
/// an IPv6 address in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The token that the agent printed; empty if the target has none.
    pub token: String,
    /// `HOST:PORT`.
    pub address: String,
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.strip_prefix("peer://").unwrap_or(text);
        let (token, host) = text.rsplit_once('@').unwrap_or(("", text));
        if host.is_empty() {
            return Err("the host is missing; write TOKEN@HOST:PORT, as `roxe peer` printed it".to_owned());
        }
        let has_port = host.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
        let address = if has_port { host.to_owned() } else { format!("{host}:{DEFAULT_PORT}") };
        Ok(Self { token: token.to_owned(), address })
    }
}

/// A session with an agent. When it is dropped, the agent destroys all objects of the session.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
    /// Id of the newest request.
    last: u64,
    card: Value,
    /// Lines of the queued requests.
    queued: Vec<u8>,
    /// Number of queued requests.
    count: u64,
    is_lost: bool,
}

impl Client {
    /// Connects to an agent and sends the token. Fails if no agent listens there, the token is
    /// wrong, or the agent serves another controller.
    pub fn connect(address: impl ToSocketAddrs, token: &str) -> Result<Self, ClientError> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        // An answer takes at most the maximum wait of a request, plus some time for the network.
        stream.set_read_timeout(Some(Duration::from_millis(limits::WAIT_MS) + Duration::from_secs(10)))?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_user_timeout(Some(TCP_TIMEOUT))?;
        socket
            .set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_INTERVAL).with_interval(KEEPALIVE_INTERVAL))?;
        let mut client = Self {
            stream: BufReader::new(stream),
            last: 0,
            card: Value::Null,
            queued: Vec::new(),
            count: 0,
            is_lost: false,
        };
        client.card = client.call(Command::Hello, json!({ "token": token }))?;
        Ok(client)
    }

    /// Connects to the agent of a target. Fails like [`Self::connect`].
    pub fn open(target: &Target) -> Result<Self, ClientError> {
        Self::connect(&target.address, &target.token)
    }

    /// Returns the answer to `hello`: device, port, gids, limits, version.
    pub const fn card(&self) -> &Value {
        &self.card
    }

    /// Returns true if the agent's address is a loopback address.
    pub fn is_local(&self) -> bool {
        self.stream.get_ref().peer_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback())
    }

    /// Returns the name of the device.
    pub fn name(&self) -> &str {
        self.card["device"].as_str().unwrap_or("?")
    }

    /// Returns true if the connection has failed.
    pub const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Sends a request and waits for its answer. `arguments` is an object or null. Requests queued
    /// by [`Self::ask`] are sent first; their answers are discarded. Fails if the request is
    /// refused, or the connection fails.
    pub fn call(&mut self, command: Command, arguments: Value) -> Result<Value, ClientError> {
        self.ask(command, arguments)?;
        let missing = || ClientError::Protocol("nothing".into());
        self.answers()?.pop().ok_or_else(missing)?.map_err(ClientError::Refused)
    }

    /// Queues a request, which the next call of [`Self::answers`] sends. Fails if `arguments` is
    /// neither an object nor null.
    pub fn ask(&mut self, command: Command, arguments: Value) -> Result<(), ClientError> {
        let mut arguments = protocol::arguments(arguments)?;
        // The agent treats a null member as missing. Without it, an agent with a slow processor
        // parses less.
        arguments.retain(|_, value| !value.is_null());
        let args = Args::new(arguments);
        self.last += 1;
        self.count += 1;
        self.queued.extend(Request { id: self.last, command, args }.line().as_bytes());
        Ok(())
    }

    /// Sends all queued requests together and returns their answers, in the order of the requests.
    /// Split batches with long answers: the agent stops reading requests while its answers are not
    /// read. Fails if the connection fails.
    pub fn answers(&mut self) -> Result<Vec<protocol::Result<Value>>, ClientError> {
        let answers = self.exchange();
        self.is_lost |= answers.is_err();
        answers
    }

    fn exchange(&mut self) -> Result<Vec<protocol::Result<Value>>, ClientError> {
        let (lines, count) = (std::mem::take(&mut self.queued), std::mem::take(&mut self.count));
        self.stream.get_mut().write_all(&lines)?;
        (self.last - count + 1..=self.last).map(|id| self.answer(id)).collect()
    }

    fn answer(&mut self, id: u64) -> Result<protocol::Result<Value>, ClientError> {
        let mut answer = Vec::new();
        (&mut self.stream).take(limits::LINE as u64).read_until(b'\n', &mut answer)?;
        if answer.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let unexpected = || ClientError::Protocol(String::from_utf8_lossy(&answer).chars().take(200).collect());
        let (answered, result) = protocol::parse_answer(&answer).ok_or_else(unexpected)?;
        // The agent may refuse a connection before it reads a request; that answer has id 0.
        if answered != id && !(answered == 0 && result.is_err()) {
            return Err(unexpected());
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_token_and_port_are_optional() {
        let read = |text: &str| text.parse::<Target>().map(|target| (target.token, target.address));
        let target = |token: &str, address: &str| Ok((token.to_owned(), address.to_owned()));
        assert_eq!(read("peer://ab12@10.0.0.1:99"), target("ab12", "10.0.0.1:99"));
        assert_eq!(read("host"), target("", "host:14791"));
        assert_eq!(read("ab@[::1]"), target("ab", "[::1]:14791"));
        assert_eq!(read("[::1]:7"), target("", "[::1]:7"));
        assert!(read("peer://ab@").is_err());
    }
}
