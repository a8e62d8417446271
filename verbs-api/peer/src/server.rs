//! The agent's listener: checks tokens, serves one session at a time, and bounds lines and time.
//!
//! Each connection has a thread, and few connections are open at once. Only a connection that has
//! sent the token gets a session, which opens the card.

use crate::protocol::{self, Command, Refusal, Request, limits};
use crate::session::Session;
use crate::visitors::{self, PendingConnection, Timed};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// Settings of an agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address to listen on; port 0 lets the kernel choose one.
    pub listen: SocketAddr,
    /// Name of the device; the first device by default.
    pub device: Option<String>,
    /// Port number of the device.
    pub port: u8,
    /// Token that controllers must send; a random one by default.
    pub token: Option<String>,
}

/// A listening agent.
pub struct Server {
    listener: TcpListener,
    gate: Arc<Gate>,
}

/// Maximum bytes of requests read at once, and of answers queued before they are sent.
const BUFFER: usize = 64 << 10;

struct Gate {
    options: Options,
    token: String,
    /// Locked by the thread that serves a session.
    session: Mutex<()>,
}

impl Server {
    /// Listens, and draws the token if none was set. Fails if the address cannot be used, there is
    /// no libibverbs or no such device, or the token is too short.
    pub fn bind(options: &Options) -> Result<Self, Refusal> {
        // A missing card is reported here, not to the first controller.
        drop(Session::open(options.device.as_deref(), options.port)?);
        let refuse = |error| Refusal::os(format_args!("cannot listen on {}", options.listen), &error);
        let listener = TcpListener::bind(options.listen).map_err(refuse)?;
        let token = options.token.clone().map_or_else(draw_token, check_token)?;
        let gate = Gate { options: options.clone(), token, session: Mutex::new(()) };
        Ok(Self { listener, gate: Arc::new(gate) })
    }

    /// Returns the address that the agent listens on. Fails if the kernel does not report it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the token that a controller must send.
    pub fn token(&self) -> &str {
        &self.gate.token
    }

    /// Serves controllers: only one if `once`, otherwise until the listener fails. Fails if the
    /// listener fails.
    pub fn serve(&self, once: bool) -> io::Result<()> {
        let (listener, gate) = (self.listener.try_clone()?, Arc::clone(&self.gate));
        let (served, ended) = mpsc::channel();
        let failed = served.clone();
        thread::Builder::new().spawn(move || {
            let serve = move |stream, pending| {
                if gate.admit(stream, pending) && once {
                    let _ = served.send(Ok(()));
                }
            };
            let _ = failed.send(visitors::accept(&listener, limits::CONNECTIONS, serve));
        })?;
        ended.recv().unwrap_or(Ok(()))
    }
}

fn draw_token() -> protocol::Result<String> {
    let mut secret = [0; 16];
    let refuse = |error| Refusal { text: format!("cannot draw a token: {error}"), errno: libc::EIO };
    getrandom::fill(&mut secret).map_err(refuse)?;
    Ok(protocol::to_hex(&secret))
}

fn check_token(token: String) -> protocol::Result<String> {
    let text = format!("a token must have at least {} characters, and no space", limits::TOKEN);
    let is_good = token.len() >= limits::TOKEN && token.chars().all(|c| c.is_ascii_graphic());
    if is_good { Ok(token) } else { Err(Refusal { text, errno: libc::EINVAL }) }
}

impl Gate {
    /// Checks the token and serves the controller. Returns true if the controller had a session.
    fn admit(&self, stream: TcpStream, pending: PendingConnection) -> bool {
        let mut lines = Lines::new(stream);
        let Ok(Some(line)) = lines.next(limits::FIRST_LINE, limits::FIRST_LINE_SECONDS) else { return false };
        let request = Request::parse(&line);
        let id = request.as_ref().map_or(0, |request| request.id);
        let refuse = |lines: &mut Lines, text: &str, errno| {
            let _ = lines.send(&protocol::answer(id, &Err(Refusal { text: text.to_owned(), errno })));
            false
        };
        let hello = request.as_ref().ok().filter(|request| request.command == Command::Hello);
        let token = hello.and_then(|request| request.args.text("token").ok());
        if !token.is_some_and(|token| are_equal(token.as_bytes(), self.token.as_bytes())) {
            return refuse(&mut lines, "the first request must be hello with the token", libc::EACCES);
        }
        // From here on, `accept` does not close this connection to make room for another.
        drop(pending);
        // The lock guards no data. If it is poisoned, the session that panicked has ended.
        let _session = match self.session.try_lock() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => {
                return refuse(&mut lines, "another controller is connected", libc::EBUSY);
            }
        };
        let Options { device, port, .. } = &self.options;
        match (Session::open(device.as_deref(), *port), request) {
            (Ok(session), Ok(request)) => {
                // An error ends the connection.
                let _ = serve(session, &request, &mut lines);
                true
            }
            (Err(refusal), _) => refuse(&mut lines, &refusal.text, refusal.errno),
            (Ok(_), Err((_, refusal))) => refuse(&mut lines, &refusal.text, refusal.errno),
        }
    }
}

/// Answers requests until the controller disconnects, is idle for too long, or sends `bye`.
fn serve(mut session: Session, hello: &Request, lines: &mut Lines) -> io::Result<()> {
    lines.send(&protocol::answer(hello.id, &session.execute(hello)))?;
    while let Some(line) = lines.next(limits::LINE, limits::IDLE_SECONDS)? {
        let (id, result, is_last) = match Request::parse(&line) {
            Ok(request) => (request.id, session.execute(&request), request.command == Command::Bye),
            Err((id, refusal)) => (id, Err(refusal), false),
        };
        let answer = protocol::answer(id, &result);
        if is_last {
            return lines.send(&answer);
        }
        lines.send_soon(&answer)?;
    }
    Ok(())
}

/// Returns true if both are equal. Compares in constant time, so that the time does not reveal the
/// position of the first difference.
fn are_equal(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |sum, (left, right)| sum | (left ^ right)) == 0
}

/// Lines of a connection in both directions. Answers to requests that arrived together are sent
/// together.
struct Lines {
    stream: BufReader<Timed>,
    answers: Vec<u8>,
}

impl Lines {
    fn new(stream: TcpStream) -> Self {
        // If this fails, answers are only slower.
        let _ = stream.set_nodelay(true);
        let timed = Timed::new(stream, Duration::ZERO);
        Self { stream: BufReader::with_capacity(BUFFER, timed), answers: Vec::new() }
    }

    /// Reads the next line of at most `limit` bytes within `seconds`. Returns `None` at the end.
    fn next(&mut self, limit: usize, seconds: u64) -> io::Result<Option<Vec<u8>>> {
        self.stream.get_mut().restart(Duration::from_secs(seconds));
        let mut line = Vec::new();
        (&mut self.stream).take(limit as u64).read_until(b'\n', &mut line)?;
        if line.last() == Some(&b'\n') {
            return Ok(Some(line));
        }
        if line.len() >= limit {
            let refusal = Refusal { text: format!("a line must have at most {limit} bytes"), errno: libc::EMSGSIZE };
            self.send(&protocol::answer(0, &Err(refusal)))?;
        }
        Ok(None)
    }

    /// Sends all queued lines and this one.
    fn send(&mut self, line: &str) -> io::Result<()> {
        self.answers.extend(line.as_bytes());
        self.stream.get_mut().restart(Duration::from_secs(limits::ANSWER_SECONDS));
        let sent = self.stream.get_mut().write_all(&self.answers);
        self.answers.clear();
        sent
    }

    /// Sends this line. If another request has already arrived, queues the line until that request
    /// is answered.
    fn send_soon(&mut self, line: &str) -> io::Result<()> {
        if self.answers.len() >= BUFFER || !self.stream.buffer().contains(&b'\n') {
            return self.send(line);
        }
        self.answers.extend(line.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_as_a_whole() {
        assert!(are_equal(b"abc", b"abc"));
        assert!(!are_equal(b"abc", b"abd") && !are_equal(b"abc", b"ab") && !are_equal(b"", b"a"));
    }
}
